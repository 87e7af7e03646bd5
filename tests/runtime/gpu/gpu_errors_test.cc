// SPDX-License-Identifier: BSD-3-Clause
// What the CUDA and HIP drivers leave behind them: the vendor's current device, contexts and last error; and what the
// vendor's errors become (gpu_test.h).
#include "gpu_test.h"

#include <thread>

namespace openreg_test {
namespace {

using FakeGpuErrors = FakeGpuTest;
using FakeCudaErrors = FakeGpuTest;   // what only CUDA's runtime has
using FakePlainErrors = FakeGpuTest;  // HIP's headers for NVIDIA fold the numbers that HIP lacks
INSTANTIATE_TEST_SUITE_P(Gpu, FakeCudaErrors, ::testing::ValuesIn(cudart_gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, FakePlainErrors, ::testing::ValuesIn(plain_gpus()), gpu_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FakeCudaErrors);
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuErrors, ::testing::ValuesIn(gpus()), gpu_name);

// One call of a slot, on device 1, and the vendor's function on which it depends.
struct SlotCall {
  const char* slot;
  const char* function;  // "" where none is called
  std::function<openreg_status()> call;
};

// Every slot that works on a device, with what it needs.
class FakeGpuState : public FakeGpuTest {
 protected:
  void SetUp() override {
    FakeGpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    memory_ = allocate(1);
    far_ = allocate(0);
    host_ = pinned();
    stream_ = make_stream(1);
    event_ = make_event(1, OPENREG_EVENT_TIMING);
    succeeds([&] { return table_->event_record(instance_, 1, stream_, event_); });
    sync(1, stream_);
    copy(memory_, 1, far_, 0, 64, 1, stream_);  // opens the way
    sync(1, stream_);
  }

  std::vector<SlotCall> calls() {
    auto* const t = table_;
    const openreg_instance i = instance_;
    return {
        {"mem_info", "MemGetInfo",
         [=] {
           uint64_t a, b;
           return t->mem_info(i, 1, &a, &b);
         }},
        {"device_info", "DeviceGetAttribute",
         [=] {
           auto info = sized<openreg_device_info>();
           return t->device_info(i, 1, &info);
         }},
        {"device_sync", "DeviceSynchronize", [=] { return t->device_sync(i, 1); }},
        {"device_active", "",
         [=] {
           int32_t active;
           return t->device_active(i, 1, &active);
         }},
        {"copy", "MemcpyAsync", [=, this] { return t->copy(i, 1, stream_, host_, -1, memory_, 1, 64); }},
        {"peer copy", "MemcpyPeerAsync", [=, this] { return t->copy(i, 1, stream_, memory_, 1, far_, 0, 64); }},
        {"fill", "MemsetAsync", [=, this] { return t->fill(i, 1, stream_, memory_, 1, 64); }},
        {"stream_query", "StreamQuery",
         [=, this] {
           int32_t done;
           return t->stream_query(i, 1, stream_, &done);
         }},
        {"stream_sync", "StreamSynchronize", [=, this] { return t->stream_sync(i, 1, stream_); }},
        {"stream_wait", "StreamWaitEvent", [=, this] { return t->stream_wait(i, 1, stream_, event_); }},
        {"host_func", "LaunchHostFunc", [=, this] { return t->host_func(i, 1, stream_, [](void*) {}, nullptr); }},
        {"event_record", "EventRecord", [=, this] { return t->event_record(i, 1, stream_, event_); }},
        {"event_sync", "EventSynchronize", [=, this] { return t->event_sync(i, 1, event_); }},
        {"event_query", "EventQuery",
         [=, this] {
           int32_t done;
           return t->event_query(i, 1, event_, &done);
         }},
        {"event_elapsed", "EventElapsedTime",
         [=, this] {
           int64_t ns;
           return t->event_elapsed(i, 1, event_, event_, &ns);
         }},
        {"mem_alloc", "Malloc", [=, this] { return t->mem_alloc(i, 1, Bytes(64), &made_); }},
        {"mem_free", "Free", [=, this] { return t->mem_free(i, 1, made_); }},
        {"host_alloc", "HostAlloc", [=, this] { return t->host_alloc(i, 0, Bytes(64), &made_); }},
        {"host_free", "FreeHost", [=, this] { return t->host_free(i, 0, made_); }},
        {"stream_create", "StreamCreateWithPriority",
         [=, this] { return t->stream_create(i, 1, 0, 0, &made_stream_); }},
        {"stream_destroy", "StreamDestroy", [=, this] { return t->stream_destroy(i, 1, made_stream_); }},
        {"event_create", "EventCreateWithFlags", [=, this] { return t->event_create(i, 1, 0, &made_event_); }},
        {"event_destroy", "EventDestroy", [=, this] { return t->event_destroy(i, 0, made_event_); }},
        {"ipc memory_export", "IpcGetMemHandle",
         [=, this] {
           openreg_ipc_handle handle;
           return ipc()->memory_export(i, 1, memory_, nullptr, 0, &handle);
         }},
        {"ipc memory_export", "MemGetAddressRange",
         [=, this] {
           openreg_ipc_handle handle;
           return ipc()->memory_export(i, 1, memory_, nullptr, 0, &handle);
         }},
    };
  }

  void* memory_ = nullptr;
  void* far_ = nullptr;
  uint8_t* host_ = nullptr;
  openreg_driver_stream stream_ = nullptr;
  openreg_driver_event event_ = nullptr;
  void* made_ = nullptr;
  openreg_driver_stream made_stream_ = nullptr;
  openreg_driver_event made_event_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuState, ::testing::ValuesIn(gpus()), gpu_name);

// After every slot the thread is where it was, after a failure too; and a failure leaves no error for others.
TEST_P(FakeGpuState, CurrentDeviceIsRestored) {
  hooks_->set_device(0);
  for (const auto& step : calls()) {
    SCOPED_TRACE(step.slot);
    if (step.function[0] != '\0') {
      hooks_->set_failures((std::string(step.function) + ":0:999").c_str());
      EXPECT_EQ(fails(step.call), OPENREG_E_INTERNAL);
      EXPECT_EQ(host_record.vendor_code, 999);
      EXPECT_EQ(hooks_->current_device(), 0);
      EXPECT_EQ(hooks_->peek_error(), 0);
      hooks_->set_failures("");
    }
    succeeds(step.call);
    EXPECT_EQ(hooks_->current_device(), 0);
    EXPECT_EQ(hooks_->peek_error(), 0);
  }
}

// The same in a thread that never chose a device: it has none afterwards, so that nothing was bound to it by accident.
TEST_P(FakeGpuState, ThreadWithoutDeviceKeepsNone) {
  std::thread([this] {
    for (const auto& step : calls()) {
      SCOPED_TRACE(step.slot);
      succeeds(step.call);
      EXPECT_EQ(hooks_->has_current_context(), 0);
      EXPECT_EQ(hooks_->current_device(), 0);
    }
  }).join();
}

// device_bind() alone changes it, and other slots keep what it chose.
TEST_P(FakeGpuState, BindStays) {
  succeeds([&] { return table_->device_bind(instance_, 1); });
  EXPECT_EQ(hooks_->current_device(), 1);
  release(0, allocate(0));
  EXPECT_EQ(hooks_->current_device(), 1);
  hooks_->set_failures("SetDevice:0:801");
  EXPECT_EQ(fails([&] { return table_->device_bind(instance_, 0); }), OPENREG_E_UNSUPPORTED);
  hooks_->set_failures("");
  EXPECT_EQ(hooks_->current_device(), 1);
}

// Failures on the way to the device and back. The way back can't fail the slot: it is logged.
TEST_P(FakeGpuState, WaysToTheDeviceFail) {
  const bool is_cudart = GetParam().is_cudart();
  const std::vector<const char*> there = is_cudart ? std::vector<const char*>{"cuCtxGetCurrent", "cuCtxPushCurrent"}
                                                   : std::vector<const char*>{"GetDevice", "SetDevice"};
  for (const char* function : there) {
    SCOPED_TRACE(function);
    hooks_->set_failures((std::string(function) + ":0:801").c_str());
    EXPECT_EQ(fails([&] { return table_->fill(instance_, 1, stream_, memory_, 0, 64); }), OPENREG_E_UNSUPPORTED);
    EXPECT_CONTAINS(host_record.text, function);
    EXPECT_EQ(hooks_->current_device(), 0);
  }
  hooks_->set_failures(is_cudart ? "cuCtxPopCurrent:1:801" : "SetDevice:2:801");
  fill(1, memory_, 0, 64, stream_);
  ASSERT_EQ(host_log_lines.size(), 1u);
  EXPECT_CONTAINS(host_log_lines[0], "this thread stays on device 1");
}

// The first work on a device retains its context; asking for it can fail too.
TEST_P(FakeCudaErrors, FirstUseFails) {
  int32_t active = 99;
  void* out = nullptr;
  for (const char* function : {"cuDeviceGet", "cuDevicePrimaryCtxRetain"}) {
    hooks_->set_failures((std::string(function) + ":0:2").c_str());
    EXPECT_EQ(fails([&] { return table_->mem_alloc(instance_, 0, Bytes(64), &out); }), OPENREG_E_NOMEM);
    EXPECT_CONTAINS(host_record.text, function);
  }
  for (const char* function : {"cuDeviceGet", "cuDevicePrimaryCtxGetState"}) {
    hooks_->set_failures((std::string(function) + ":0:801").c_str());
    EXPECT_EQ(fails([&] { return table_->device_active(instance_, 0, &active); }), OPENREG_E_UNSUPPORTED);
    EXPECT_EQ(fails([&] { return table_->device_sync(instance_, 0); }), OPENREG_E_UNSUPPORTED);
    EXPECT_EQ(fails([&] { return table_->stream_sync(instance_, 0, nullptr); }), OPENREG_E_UNSUPPORTED);
  }
  EXPECT_EQ(active, 99);
  EXPECT_EQ(hooks_->contexts(), 0u);
}

// What only asks makes no context, and what works makes one on its own device alone.
TEST_P(FakeGpuErrors, NoContextAppearsByAccident) {
  int32_t value = -1;
  auto info = sized<openreg_device_info>();
  EXPECT_EQ(device_count(), 2);
  succeeds([&] { return table_->device_info(instance_, 0, &info); });
  succeeds([&] { return table_->device_info(instance_, 1, &info); });
  succeeds([&] { return table_->device_active(instance_, 1, &value); });
  EXPECT_EQ(value, 0);
  succeeds([&] { return table_->device_sync(instance_, 0); });
  sync(0);
  EXPECT_EQ(is_done(1, nullptr), 1);
  EXPECT_NE(ipc(), nullptr);
  EXPECT_EQ(hooks_->contexts(), 0u);

  void* const memory = allocate(1);
  fill(1, memory, 1);
  EXPECT_EQ(bytes(1, memory), filled(1));
  void* const host = pinned();  // of no device, so of one that has a context
  EXPECT_EQ(hooks_->contexts(), 2u);
  succeeds([&] { return table_->device_active(instance_, 1, &value); });
  EXPECT_EQ(value, 1);
  succeeds([&] { return table_->device_active(instance_, 0, &value); });
  EXPECT_EQ(value, 0);
  release_pinned(host);
  release(1, memory);
  EXPECT_EQ(hooks_->contexts(), 2u);
}

// In a thread with a device pinned memory is made there, and no context elsewhere.
TEST_P(FakeGpuErrors, PinnedMemoryTakesTheThreadsDevice) {
  hooks_->set_device(1);
  release_pinned(pinned());
  EXPECT_EQ(hooks_->contexts(), GetParam().is_cudart() ? 2u : 0u) << "hipSetDevice() makes no context";
  EXPECT_EQ(hooks_->current_device(), 1);
}

// A device that another part of the process has made active counts as active.
TEST_P(FakeCudaErrors, ContextsOfOthersAreSeen) {
  hooks_->set_device(1);
  int32_t active = -1;
  succeeds([&] { return table_->device_active(instance_, 1, &active); });
  EXPECT_EQ(active, 1);
  succeeds([&] { return table_->device_sync(instance_, 1); });
  EXPECT_EQ(hooks_->calls("DeviceSynchronize"), 1);
}

// Every number of the vendor's becomes its status; those that end a context end the device.
TEST_P(FakePlainErrors, CodesBecomeStatuses) {
  const std::vector<std::pair<int, openreg_status>> expected = {
      {1, OPENREG_E_INVALID},        {2, OPENREG_E_NOMEM},         {3, OPENREG_E_NO_DEVICE},
      {4, OPENREG_E_INTERNAL},       {17, OPENREG_E_INVALID},      {21, OPENREG_E_INVALID},
      {34, OPENREG_E_INCOMPATIBLE},  {35, OPENREG_E_INCOMPATIBLE}, {36, OPENREG_E_INCOMPATIBLE},
      {46, OPENREG_E_NO_DEVICE},     {100, OPENREG_E_NO_DEVICE},   {101, OPENREG_E_INVALID},
      {102, OPENREG_E_INCOMPATIBLE}, {201, OPENREG_E_INVALID},     {209, OPENREG_E_INCOMPATIBLE},
      {214, OPENREG_E_DEVICE_LOST},  {215, OPENREG_E_UNSUPPORTED}, {216, OPENREG_E_NO_DEVICE},
      {217, OPENREG_E_UNSUPPORTED},  {220, OPENREG_E_DEVICE_LOST}, {226, OPENREG_E_DEVICE_LOST},
      {400, OPENREG_E_INVALID},      {401, OPENREG_E_INVALID},     {500, OPENREG_E_INCOMPATIBLE},
      {700, OPENREG_E_DEVICE_LOST},  {701, OPENREG_E_NOMEM},       {702, OPENREG_E_DEVICE_LOST},
      {708, OPENREG_E_INVALID},      {709, OPENREG_E_DEVICE_LOST}, {710, OPENREG_E_DEVICE_LOST},
      {712, OPENREG_E_INVALID},      {713, OPENREG_E_INVALID},     {714, OPENREG_E_DEVICE_LOST},
      {715, OPENREG_E_DEVICE_LOST},  {716, OPENREG_E_DEVICE_LOST}, {717, OPENREG_E_DEVICE_LOST},
      {718, OPENREG_E_DEVICE_LOST},  {719, OPENREG_E_DEVICE_LOST}, {721, OPENREG_E_DEVICE_LOST},
      {900, OPENREG_E_CAPTURE},      {908, OPENREG_E_CAPTURE},     {909, OPENREG_E_TIMEOUT},
      {801, OPENREG_E_UNSUPPORTED},  {802, OPENREG_E_NO_DEVICE},   {803, OPENREG_E_INCOMPATIBLE},
      {804, OPENREG_E_INCOMPATIBLE}, {805, OPENREG_E_NO_DEVICE},   {806, OPENREG_E_DEVICE_LOST},
      {807, OPENREG_E_NO_DEVICE},    {808, OPENREG_E_NO_DEVICE},   {809, OPENREG_E_NO_DEVICE},
      {810, OPENREG_E_DEVICE_LOST},  {999, OPENREG_E_INTERNAL},    {9999, OPENREG_E_INTERNAL},
  };
  for (const auto& [code, status] : expected) {
    SCOPED_TRACE(code);
    restart();
    hooks_->set_failures(("Malloc:0:" + std::to_string(code)).c_str());
    void* out = nullptr;
    EXPECT_EQ(fails([&] { return table_->mem_alloc(instance_, 1, Bytes(64), &out); }), status);
    EXPECT_EQ(host_record.vendor_code, code);
    EXPECT_CONTAINS(host_record.text, GetParam().prefix() + "Malloc: ");
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(hooks_->peek_error(), status == OPENREG_E_DEVICE_LOST ? code : 0);
    hooks_->set_failures("");
    int32_t done = -1;
    if (status == OPENREG_E_DEVICE_LOST) {
      EXPECT_EQ(fails([&] { return table_->stream_query(instance_, 1, nullptr, &done); }), OPENREG_E_DEVICE_LOST);
    } else {
      EXPECT_EQ(is_done(1, nullptr), 1);
    }
    release(0, allocate(0));
  }
}

// The text of an error in full; and PyTorch's next check does not find it.
TEST_P(FakeGpuErrors, OutOfMemoryIsNamedAndForgotten) {
  void* out = nullptr;
  EXPECT_EQ(fails([&] { return table_->mem_alloc(instance_, 0, Bytes(UINT64_C(1) << 30), &out); }), OPENREG_E_NOMEM);
  EXPECT_EQ(host_record.text, GetParam().prefix() + "Malloc: " + GetParam().error_prefix() +
                                  "MemoryAllocation (out of memory) on device 0; free memory of the device, or "
                                  "use less at a time");
  EXPECT_EQ(hooks_->take_error(), 0);
  allocate(0);
}

// Work that fails on a stream is reported by the next call that waits; the device is lost, the other one goes on, and
// what was on the lost one can be given back.
TEST_P(FakeGpuErrors, LostDeviceStaysLost) {
  void* const memory = allocate(0);
  void* const other = allocate(1);
  openreg_driver_stream stream = make_stream(0);
  openreg_driver_event event = make_event(0);
  hooks_->set_failures("Task:1:700");
  fill(0, memory, 1, 4096, stream);
  EXPECT_EQ(fails([&] { return table_->stream_sync(instance_, 0, stream); }), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(host_record.vendor_code, 700);
  EXPECT_CONTAINS(host_record.text, "IllegalAddress (an illegal memory access was encountered) on device 0");
  EXPECT_EQ(hooks_->peek_error(), 700) << "an error that ends a context was taken away";
  hooks_->set_failures("");

  const int before = hooks_->calls("MemsetAsync");
  EXPECT_EQ(fails([&] { return table_->fill(instance_, 0, nullptr, memory, 0, 64); }), OPENREG_E_DEVICE_LOST);
  EXPECT_CONTAINS(host_record.text, "device 0 is lost since an earlier ");
  EXPECT_EQ(hooks_->calls("MemsetAsync"), before);
  int32_t done = -1;
  void* out = nullptr;
  EXPECT_EQ(fails([&] { return table_->stream_query(instance_, 0, stream, &done); }), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(fails([&] { return table_->device_sync(instance_, 0); }), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(fails([&] { return table_->event_query(instance_, 0, event, &done); }), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(fails([&] { return table_->mem_alloc(instance_, 0, Bytes(64), &out); }), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(fails([&] { return table_->device_bind(instance_, 0); }), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(fails([&] { return table_->copy(instance_, 1, nullptr, other, 1, memory, 0, 64); }), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(fails([&] { return table_->copy(instance_, 1, nullptr, memory, 0, other, 1, 64); }), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(fails([&] { return table_->event_create(instance_, 0, 0, &event); }), OPENREG_E_DEVICE_LOST);
  auto info = sized<openreg_device_info>();
  succeeds([&] { return table_->device_info(instance_, 0, &info); });

  fill(1, other, 9);
  EXPECT_EQ(bytes(1, other), filled(9));
  release_pinned(pinned());
  release(1, other);

  release(0, memory);
  destroy(event);
  destroy(0, stream);
  succeeds([&] { return ipc()->memory_close(instance_, 0, memory); });
  close();
  hooks_->reset();  // the fake still holds what the device took with it
}

// All devices lost: pinned memory can't be made, and says why.
TEST_P(FakeGpuErrors, AllDevicesLost) {
  void* out = nullptr;
  hooks_->set_failures("Malloc:0:700");
  for (int32_t dev = 0; dev < 2; ++dev) {
    EXPECT_EQ(fails([&] { return table_->mem_alloc(instance_, dev, Bytes(64), &out); }), OPENREG_E_DEVICE_LOST);
  }
  EXPECT_EQ(fails([&] { return table_->host_alloc(instance_, 0, Bytes(64), &out); }), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(fails([&] { return table_->host_free(instance_, 0, &out); }), OPENREG_E_DEVICE_LOST);
}

// Another caller's error is not taken away by a call that succeeds, nor by one that fails in the same way; where the
// vendor has put ours in its place, that is logged.
TEST_P(FakeGpuErrors, ErrorsOfOthersAreLeft) {
  hooks_->leave_error(98);
  void* const memory = allocate(0);
  fill(0, memory, 1);
  sync(0);
  EXPECT_EQ(hooks_->peek_error(), 98);
  EXPECT_TRUE(host_log_lines.empty());

  hooks_->leave_error(1);
  EXPECT_EQ(fails([&] { return table_->mem_free(instance_, 1, memory); }), OPENREG_E_INVALID);
  EXPECT_EQ(hooks_->take_error(), 1);
  EXPECT_TRUE(host_log_lines.empty());

  hooks_->leave_error(98);
  EXPECT_EQ(fails([&] { return table_->mem_free(instance_, 1, memory); }), OPENREG_E_INVALID);
  EXPECT_EQ(hooks_->take_error(), 0);
  ASSERT_EQ(host_log_lines.size(), 1u);
  EXPECT_CONTAINS(host_log_lines[0], "of another caller was pending in this thread and is replaced by");
}

// HIP before 7 takes another caller's error away when a call succeeds: it can't be put back, so it is in the log, once.
TEST_P(FakeGpuErrors, ErrorsThatTheVendorForgetsAreLogged) {
  if (GetParam().is_cudart()) GTEST_SKIP() << "CUDA keeps an error until it is taken";
  void* host = nullptr;
  succeeds([&] { return table_->host_alloc(instance_, 0, Bytes(4096), &host); });
  set("FAKE_GPU_FORGETS", "1");
  uint64_t free_bytes = 0, total = 0;
  int32_t active = 0;
  const std::vector<std::function<openreg_status()>> calls = {
      [&] { return table_->mem_info(instance_, 1, &free_bytes, &total); },
      [&] { return table_->device_bind(instance_, 0); },
      [&] { return table_->device_active(instance_, 1, &active); },
      [&] { return table_->host_free(instance_, 0, host); },
  };
  for (const auto& call : calls) {
    hooks_->leave_error(98);
    host_log_lines.clear();
    succeeds(call);
    ASSERT_EQ(host_log_lines.size(), hooks_->peek_error() == 98 ? 0u : 1u);
    if (!host_log_lines.empty()) {
      EXPECT_CONTAINS(host_log_lines[0], "of another caller was pending in this thread");
    }
  }
  EXPECT_EQ(hooks_->take_error(), 0);
}

// What the vendor has no word for has advice, a name that is its own text stands once, and a failed start isn't always
// fork()'s fault.
TEST_P(FakePlainErrors, Texts) {
  void* out = nullptr;
  hooks_->set_failures("Malloc:0:999");
  EXPECT_EQ(fails([&] { return table_->mem_alloc(instance_, 0, Bytes(64), &out); }), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(host_record.text, "the vendor doesn't say what failed; see the kernel's log (dmesg)");
  hooks_->set_failures("Malloc:0:3");
  EXPECT_EQ(fails([&] { return table_->mem_alloc(instance_, 0, Bytes(64), &out); }), OPENREG_E_NO_DEVICE);
  EXPECT_CONTAINS(host_record.text, "whether this user may open the device files");
  set("FAKE_GPU_PLAIN_TEXTS", "1");  // as HIP 5.2
  EXPECT_EQ(fails([&] { return table_->mem_alloc(instance_, 0, Bytes(64), &out); }), OPENREG_E_NO_DEVICE);
  EXPECT_EQ(host_record.text.find("ErrorOfFake ("), std::string::npos) << host_record.text;
}

// A failure in the middle of a slot gives back what it had made.
TEST_P(FakeGpuErrors, FailuresLeaveNothing) {
  openreg_driver_event event = nullptr;
  hooks_->set_failures("EventCreateWithFlags:0:2");
  EXPECT_EQ(fails([&] { return table_->event_create(instance_, 0, 0, &event); }), OPENREG_E_NOMEM);
  hooks_->set_failures("");
  EXPECT_EQ(event, nullptr);
  if (GetParam().name == "hip") {
    for (const char* function : {"DeviceGetName", "DeviceTotalMem", "DeviceGetUuid", "DeviceGetStreamPriorityRange"}) {
      auto info = sized<openreg_device_info>();
      hooks_->set_failures((std::string(function) + ":0:999").c_str());
      EXPECT_EQ(fails([&] { return table_->device_info(instance_, 0, &info); }), OPENREG_E_INTERNAL) << function;
      EXPECT_EQ(info.total_bytes, 0u);
    }
    int32_t active = 9;
    hooks_->set_failures("DevicePrimaryCtxGetState:0:999");
    EXPECT_EQ(fails([&] { return table_->device_active(instance_, 1, &active); }), OPENREG_E_INTERNAL);
  } else {
    auto info = sized<openreg_device_info>();
    hooks_->set_failures("GetDeviceProperties:0:999");
    EXPECT_EQ(fails([&] { return table_->device_info(instance_, 0, &info); }), OPENREG_E_INTERNAL);
  }
}

}  // namespace
}  // namespace openreg_test
