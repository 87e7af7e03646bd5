/* SPDX-License-Identifier: BSD-3-Clause */
// gpu_test.h: what the tests of the CUDA and HIP drivers share. They call a driver's table, without the runtime, and
// run against the drivers over fakes (tests/drivers/gpu), and against a real driver and its GPU where a variable names
// one:
//
//   TEST_GPU_DRIVER=<build>/runtime/drivers/gpu/libopenreg_cuda.so gpu_slots_test
//
// What needs the fake is skipped there.
#ifndef OPENREG_TESTS_GPU_TEST_H
#define OPENREG_TESTS_GPU_TEST_H

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <openreg/driver.h>
#include <openreg/ipc.h>
#include <openreg/vmm.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "../../drivers/gpu/fake_gpu_hooks.h"
#include "../bytes.h"
#include "../child.h"
#include "../owned.h"
#include "../threads.h"

namespace openreg_test {

struct Gpu {
  std::string name;     // of the parameter: "cuda", "hip", "hip_nvidia", "real"
  std::string library;  // path
  bool is_fake = true;

  bool is_hip() const { return name.rfind("hip", 0) == 0; }
  // CUDA's runtime and its contexts are below.
  bool is_cudart() const { return name != "hip"; }
  std::string prefix() const { return is_hip() ? "hip" : "cuda"; }
  // Of the names of errors.
  std::string error_prefix() const { return (is_cudart() ? "cuda" : "hip") + std::string("Error"); }
};
inline void PrintTo(const Gpu& gpu, std::ostream* out) { *out << gpu.name; }

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

inline std::vector<Gpu> gpus() {
  std::vector<Gpu> all;
  for (const auto& name : split(OPENREG_TEST_FAKE_GPUS, ',')) {
    all.push_back({name, std::string(OPENREG_TEST_DRIVERS_DIR) + "/libopenreg_" + name + "_fake.so"});
  }
  if (const char* real = getenv("TEST_GPU_DRIVER")) all.push_back({"real", real, false});
  return all;
}

inline std::vector<Gpu> gpus_with(bool (*wanted)(const Gpu&)) {
  std::vector<Gpu> some;
  for (const auto& gpu : gpus()) {
    if (wanted(gpu)) some.push_back(gpu);
  }
  return some;
}
// The fakes over CUDA's runtime, over HIP's, and those whose names are those of the runtime below.
inline std::vector<Gpu> cudart_gpus() {
  return gpus_with([](const Gpu& gpu) { return gpu.is_fake && gpu.is_cudart(); });
}
inline std::vector<Gpu> hip_gpus() {
  return gpus_with([](const Gpu& gpu) { return gpu.is_fake && !gpu.is_cudart(); });
}
inline std::vector<Gpu> plain_gpus() {
  return gpus_with([](const Gpu& gpu) { return gpu.is_fake && gpu.name != "hip_nvidia"; });
}

// What a driver told its host, by thread.
struct HostRecord {
  int errors = 0;
  int64_t vendor_code = 0;
  std::string text;
};
inline thread_local HostRecord host_record;
inline std::mutex host_log_lock;
inline std::vector<std::string> host_log_lines;

inline const openreg_host& test_host() {
  static const openreg_host host = {sizeof(openreg_host), OPENREG_ABI_MINOR, nullptr,
                                    [](void*, openreg_status, int64_t vendor_code, const char* text) {
                                      host_record.errors += 1;
                                      host_record.vendor_code = vendor_code;
                                      host_record.text = text;
                                    },
                                    [](void*, int32_t, const char* text) {
                                      std::lock_guard<std::mutex> guard(host_log_lock);
                                      host_log_lines.emplace_back(text);
                                    }};
  return host;
}

// A driver's library, which stays; its table, and how a test sees into it if it is a fake.
inline void* load(const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }
inline const openreg_driver* table_of(void* library) {
  const auto query = reinterpret_cast<openreg_driver_query_fn>(dlsym(library, OPENREG_DRIVER_ENTRY_NAME));
  const openreg_driver* table = nullptr;
  EXPECT_TRUE(query != nullptr && query(&test_host(), &table) == OPENREG_OK);
  return table;
}
inline const fake_gpu_hooks* hooks_of(void* library) {
  const auto hooks = reinterpret_cast<fake_gpu_hooks_fn>(dlsym(library, FAKE_GPU_HOOKS_NAME));
  return hooks != nullptr ? hooks() : nullptr;
}

// The end of a test that leaves nothing in the fake.
inline void expect_nothing_left(const fake_gpu_hooks& hooks) {
  for (const char* kind :
       {"memory", "host", "stream", "event", "import", "communicator", "reservation", "handle", "mapping"})
    EXPECT_EQ(hooks.live(kind), 0) << kind;
  EXPECT_EQ(hooks.violations(), 0);
  hooks.reset();
}

inline void clear_gpu_variables() {
  std::vector<std::string> names = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (text.rfind("FAKE_GPU_", 0) == 0) names.push_back(text.substr(0, text.find('=')));
  }
  for (const auto& name : names) unsetenv(name.c_str());
}

// Each test starts with a fresh fake of two devices and an open instance, and ends with nothing left.
class GpuTest : public ::testing::TestWithParam<Gpu> {
 protected:
  void SetUp() override {
    if (GetParam().is_fake) clear_gpu_variables();
    void* const library = load(GetParam().library);
    ASSERT_NE(library, nullptr) << dlerror();
    table_ = table_of(library);
    ASSERT_NE(table_, nullptr);
    if (GetParam().is_fake) {
      hooks_ = hooks_of(library);
      ASSERT_NE(hooks_, nullptr);
      hooks_->reset();
    }
    host_record = HostRecord();
    host_log_lines.clear();
    const openreg_status status = open();
    if (!GetParam().is_fake && status == OPENREG_E_NO_DEVICE) GTEST_SKIP() << "no GPU: " << host_record.text;
    ASSERT_EQ(status, OPENREG_OK) << host_record.text;
  }

  void TearDown() override {
    if (hooks_ != nullptr) hooks_->set_failures("");
    owned_.give_back();
    close();
    if (hooks_ == nullptr) return;
    clear_gpu_variables();
    expect_nothing_left(*hooks_);
  }

  openreg_status open() {
    instance_ = nullptr;
    return table_->open(&test_host(), nullptr, 0, &instance_);
  }
  void close() {
    if (instance_ != nullptr) {
      EXPECT_EQ(table_->close(instance_), OPENREG_OK);
    }
    instance_ = nullptr;
    owned_.forget();
  }
  static void set(const char* name, const std::string& value) { ASSERT_EQ(setenv(name, value.c_str(), 1), 0); }
  // A new fake with the variables as they are now, and an instance of it.
  void restart() {
    close();
    hooks_->reset();
    ASSERT_EQ(open(), OPENREG_OK) << host_record.text;
  }
  // The same, where open() must fail.
  openreg_status restart_fails() {
    close();
    hooks_->reset();
    return fails([&] { return open(); });
  }

  // Runs a slot that must succeed, and so must not report an error.
  template <typename Slot>
  static void succeeds(Slot slot) {
    const int before = host_record.errors;
    EXPECT_EQ(slot(), OPENREG_OK) << host_record.text;
    EXPECT_EQ(host_record.errors, before);
  }
  // The code of a slot that must fail, and so must report that code exactly once.
  template <typename Slot>
  static openreg_status fails(Slot slot) {
    const int before = host_record.errors;
    const openreg_status status = slot();
    EXPECT_NE(status, OPENREG_OK);
    EXPECT_EQ(host_record.errors, before + 1);
    return status;
  }

  void* allocate(int32_t dev, uint64_t size = 4096) {
    void* memory = nullptr;
    succeeds([&] { return table_->mem_alloc(instance_, dev, Bytes(size), &memory); });
    return owned_.add(memory, [=, this] { release(dev, memory); });
  }
  void release(int32_t dev, void* memory) {
    succeeds([&] { return table_->mem_free(instance_, dev, memory); });
    owned_.remove(memory);
  }
  uint8_t* pinned(uint64_t size = 4096) {
    void* memory = nullptr;
    succeeds([&] { return table_->host_alloc(instance_, 0, Bytes(size), &memory); });
    return static_cast<uint8_t*>(owned_.add(memory, [=, this] { release_pinned(memory); }));
  }
  void release_pinned(void* memory) {
    succeeds([&] { return table_->host_free(instance_, 0, memory); });
    owned_.remove(memory);
  }
  openreg_driver_stream make_stream(int32_t dev, int32_t priority = 0) {
    openreg_driver_stream stream = nullptr;
    succeeds([&] { return table_->stream_create(instance_, dev, 0, priority, &stream); });
    return owned_.add(stream, [=, this] { destroy(dev, stream); });
  }
  void destroy(int32_t dev, openreg_driver_stream stream) {
    succeeds([&] { return table_->stream_destroy(instance_, dev, stream); });
    owned_.remove(stream);
  }
  openreg_driver_event make_event(int32_t dev, uint32_t flags = 0) {
    openreg_driver_event event = nullptr;
    succeeds([&] { return table_->event_create(instance_, dev, flags, &event); });
    const std::lock_guard lock(events_);
    event_devices_[event] = dev;
    return owned_.add(event, [=, this] { destroy(event); });
  }
  int32_t device_of(openreg_driver_event event) {
    const std::lock_guard lock(events_);
    return event_devices_[event];
  }
  void destroy(openreg_driver_event event) {
    succeeds([&] { return table_->event_destroy(instance_, device_of(event), event); });
    owned_.remove(event);
  }
  void fill(int32_t dev, void* memory, uint8_t value, uint64_t size = 4096, openreg_driver_stream stream = nullptr) {
    succeeds([&] { return table_->fill(instance_, dev, stream, memory, value, size); });
  }
  void copy(void* dst, int32_t dst_dev, const void* src, int32_t src_dev, uint64_t size, int32_t stream_dev,
            openreg_driver_stream stream = nullptr) {
    succeeds([&] { return table_->copy(instance_, stream_dev, stream, dst, dst_dev, src, src_dev, size); });
  }
  void sync(int32_t dev, openreg_driver_stream stream = nullptr) {
    succeeds([&] { return table_->stream_sync(instance_, dev, stream); });
  }
  int32_t is_done(int32_t dev, openreg_driver_stream stream) {
    int32_t done = -1;
    succeeds([&] { return table_->stream_query(instance_, dev, stream, &done); });
    return done;
  }
  int32_t is_done(openreg_driver_event event) {
    int32_t done = -1;
    succeeds([&] { return table_->event_query(instance_, device_of(event), event, &done); });
    return done;
  }
  // The device's bytes, after all of its work.
  std::vector<uint8_t> bytes(int32_t dev, const void* memory, uint64_t size = 4096) {
    std::vector<uint8_t> out(size);
    succeeds([&] { return table_->device_sync(instance_, dev); });
    copy(out.data(), -1, memory, dev, size, dev);
    sync(dev);
    return out;
  }
  static std::vector<uint8_t> filled(uint8_t value, uint64_t size = 4096) { return std::vector<uint8_t>(size, value); }
  int32_t device_count() {
    int32_t count = -1;
    succeeds([&] { return table_->device_count(instance_, &count); });
    return count;
  }
  const openreg_ipc* ipc() {
    return static_cast<const openreg_ipc*>(table_->extension(instance_, OPENREG_IPC_NAME, OPENREG_IPC_VERSION));
  }
  const openreg_vmm* vmm() {
    return static_cast<const openreg_vmm*>(table_->extension(instance_, OPENREG_VMM_NAME, OPENREG_VMM_VERSION));
  }

  const openreg_driver* table_ = nullptr;
  const fake_gpu_hooks* hooks_ = nullptr;  // null on a real GPU
  std::mutex events_;                      // tests make events in threads
  std::map<openreg_driver_event, int32_t> event_devices_;
  openreg_instance instance_ = nullptr;
  Owned owned_;  // what a test leaves behind is given back when it has ended
};

// Tests that look into the fake, or give it orders.
template <typename Base, typename... Interfaces>
class NeedsFake : public Base, public Interfaces... {
 protected:
  void SetUp() override {
    if (!this->GetParam().is_fake) GTEST_SKIP() << "needs the fake of the vendor's runtime";
    Base::SetUp();
  }
};
using FakeGpuTest = NeedsFake<GpuTest>;

inline std::string gpu_name(const ::testing::TestParamInfo<Gpu>& info) { return info.param.name; }

}  // namespace openreg_test

#define EXPECT_CONTAINS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

#endif
