// SPDX-License-Identifier: BSD-3-Clause
// Copies between GPUs, and memory and events shared with another process (gpu_test.h).
#include "gpu_test.h"

#include <fcntl.h>
#include <sys/wait.h>

namespace openreg_test {
namespace {

class FakeGpuPeers : public FakeGpuTest {
 protected:
  // Device 0 writes, a copy brings it to device 1, on a stream of `stream_dev`; with slow work before the copy.
  void copy_across(int32_t stream_dev, uint64_t size = 100000) {
    void* const source = allocate(0, size);
    void* const target = allocate(1, size);
    openreg_driver_stream stream = make_stream(stream_dev);
    fill(0, source, 1, size);
    fill(1, target, 2, size);
    sync(0);
    sync(1);
    hooks_->set_delay(20000);
    if (stream_dev == 0) {
      fill(0, source, 5, size, stream);  // the copy must see it
    } else {
      fill(1, target, 6, size, stream);  // the copy must not be overwritten by it
    }
    copy(target, 1, source, 0, size, stream_dev, stream);
    sync(stream_dev, stream);
    hooks_->set_delay(0);
    EXPECT_EQ(bytes(1, target, size), filled(stream_dev == 0 ? 5 : 1, size));
    destroy(stream_dev, stream);
    release(0, source);
    release(1, target);
    EXPECT_EQ(hooks_->live("host"), 0);
  }
};
using FakeGpuIpc = FakeGpuTest;
using GpuPeers = GpuTest;
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuPeers, ::testing::ValuesIn(gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuIpc, ::testing::ValuesIn(gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, GpuPeers, ::testing::ValuesIn(gpus()), gpu_name);

// There and back between the first and the last device.
TEST_P(GpuPeers, BytesGoAcross) {
  const int32_t last = device_count() - 1;
  void* const source = allocate(0);
  void* const target = allocate(last);
  fill(0, source, 7);
  sync(0);
  copy(target, last, source, 0, 4096, last);
  EXPECT_EQ(bytes(last, target), filled(7));
  fill(last, target, 8);
  sync(last);
  copy(source, 0, target, last, 4096, last);
  sync(last);
  EXPECT_EQ(bytes(0, source), filled(8));
}

// Access is enabled once, both ways, and the copy is queued.
TEST_P(FakeGpuPeers, AccessIsEnabledOnce) {
  copy_across(0);
  copy_across(1);
  EXPECT_EQ(hooks_->calls("DeviceEnablePeerAccess"), 2);
  EXPECT_EQ(hooks_->calls("MemcpyPeerAsync"), 2);
  EXPECT_EQ(hooks_->calls("HostAlloc"), 0);
}

// Another part of the process was first; and its note of that is not left.
TEST_P(FakeGpuPeers, AccessMayBeEnabledAlready) {
  hooks_->set_failures("DeviceEnablePeerAccess:0:704");
  copy_across(0);
  EXPECT_EQ(hooks_->peek_error(), 0);
}

// Without access the vendor's peer copy goes through the host by itself.
TEST_P(FakeGpuPeers, VendorCopiesWithoutAccess) {
  set("FAKE_GPU_PEERS", "none");
  restart();
  copy_across(0);
  copy_across(1);
  EXPECT_EQ(hooks_->calls("DeviceEnablePeerAccess"), 0);
  EXPECT_EQ(hooks_->calls("MemcpyPeerAsync"), 2);
}

// One way only, and too many peers, are as none.
TEST_P(FakeGpuPeers, AccessInPart) {
  set("FAKE_GPU_PEERS", "01");
  restart();
  copy_across(1);
  set("FAKE_GPU_PEERS", "all");
  restart();
  if (GetParam().name != "hip_nvidia") {  // whose headers fold the number that HIP lacks
    hooks_->set_failures("DeviceEnablePeerAccess:0:711");
    copy_across(1);
    EXPECT_EQ(hooks_->peek_error(), 0);
  }
}

// Where the vendor refuses, the driver copies through pinned memory, in the stream's order, and asks no second time.
TEST_P(FakeGpuPeers, DriverCopiesWhereTheVendorRefuses) {
  set("FAKE_GPU_PEERS", "none");
  set("FAKE_GPU_STAGING", "0");
  restart();
  copy_across(0);
  copy_across(1);
  copy_across(1, 9 << 20);  // in several pieces
  EXPECT_EQ(hooks_->calls("MemcpyPeerAsync"), 1);
  EXPECT_EQ(hooks_->calls("HostAlloc"), 3);
  EXPECT_EQ(hooks_->peek_error(), 0);
}

// Each step of it may fail; what was made is given back.
TEST_P(FakeGpuPeers, StagedCopyFails) {
  set("FAKE_GPU_PEERS", "none");
  set("FAKE_GPU_STAGING", "0");
  restart();
  void* const source = allocate(0);
  void* const target = allocate(1);
  const std::vector<std::string> steps = {"HostAlloc:0",   "StreamCreateWithPriority:1", "MemcpyAsync:1",
                                          "MemcpyAsync:2", "StreamSynchronize:2",        "StreamSynchronize:3"};
  for (const auto& step : steps) {
    SCOPED_TRACE(step);
    hooks_->set_failures((step + ":2").c_str());
    EXPECT_EQ(fails([&] { return table_->copy(instance_, 0, nullptr, target, 1, source, 0, 64); }), OPENREG_E_NOMEM);
    EXPECT_EQ(hooks_->live("host"), 0);
    EXPECT_EQ(hooks_->live("stream"), 0);
  }
  hooks_->set_failures("StreamSynchronize:1:2");
  EXPECT_EQ(fails([&] { return table_->copy(instance_, 0, nullptr, target, 1, source, 0, 64); }), OPENREG_E_NOMEM);
  hooks_->set_failures("");
}

// Each call of the vendor's on the way may fail.
TEST_P(FakeGpuPeers, FailuresAreReported) {
  void* const source = allocate(0);
  void* const target = allocate(1);
  const auto across = [&] { return table_->copy(instance_, 0, nullptr, target, 1, source, 0, 64); };
  // The second DeviceEnablePeerAccess() is for the way back.
  for (const std::string step :
       {"DeviceCanAccessPeer:0", "DeviceEnablePeerAccess:1", "DeviceEnablePeerAccess:2", "MemcpyPeerAsync:0"}) {
    SCOPED_TRACE(step);
    hooks_->set_failures((step + ":999").c_str());
    EXPECT_EQ(fails(across), OPENREG_E_INTERNAL);
    EXPECT_CONTAINS(host_record.text, GetParam().prefix() + step.substr(0, step.find(':')));
  }
  hooks_->set_failures("");
}

// A stream of one device may copy between the host and another, and inside another.
TEST_P(FakeGpuPeers, StreamOfAThirdDevice) {
  uint8_t* const host = pinned();
  void* const memory = allocate(0);
  void* const second = allocate(0);
  openreg_driver_stream stream = make_stream(1);
  std::memset(host, 4, 4096);
  copy(memory, 0, host, -1, 4096, 1, stream);
  copy(second, 0, memory, 0, 4096, 1, stream);
  sync(1, stream);
  std::memset(host, 0, 4096);
  copy(host, -1, second, 0, 4096, 1, stream);
  sync(1, stream);
  EXPECT_EQ(host[0], 4);
  EXPECT_EQ(host[4095], 4);
}

// Another version, or another name, is no table.
TEST_P(FakeGpuIpc, ExtensionIsKnownByNameAndVersion) {
  ASSERT_NE(ipc(), nullptr);
  EXPECT_EQ(ipc()->struct_size, sizeof(openreg_ipc));
  EXPECT_EQ(ipc()->version, OPENREG_IPC_VERSION);
  EXPECT_EQ(table_->extension(instance_, OPENREG_IPC_NAME, 2), nullptr);
  EXPECT_EQ(table_->extension(instance_, "openreg.unknown", 1), nullptr);
}

// Handles of wrong things, wrong handles, and one's own.
TEST_P(FakeGpuIpc, WrongHandlesAreErrors) {
  void* const memory = allocate(0);
  void* out = nullptr;
  openreg_ipc_handle handle{};
  EXPECT_EQ(fails([&] { return ipc()->memory_open(instance_, 0, &handle, &out); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return ipc()->memory_export(instance_, 1, memory, nullptr, 0, &handle); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return ipc()->memory_close(instance_, 0, memory); }), OPENREG_E_INVALID);
  succeeds([&] { return ipc()->memory_export(instance_, 0, memory, nullptr, 0, &handle); });
  EXPECT_EQ(fails([&] { return ipc()->memory_open(instance_, 0, &handle, &out); }), OPENREG_E_INVALID);
  EXPECT_EQ(host_record.vendor_code, 201);
  EXPECT_EQ(out, nullptr);
}

// Another process opens the memory and finds the bytes; what it writes is seen here. A handle that the vendor opens with less
// memory, as CUDA does after its bytes were altered, is refused.
TEST_P(FakeGpuIpc, MemoryIsShared) {
  openreg_ipc_handle handle{};
  int there[2], back[2];
  ASSERT_EQ(pipe(there), 0);
  ASSERT_EQ(pipe(back), 0);
  const pid_t child = fork();  // before this process has any thread of the fake's
  if (child == 0) {
    alarm(60);
    bool right = read(there[0], &handle, sizeof handle) == static_cast<ssize_t>(sizeof handle);
    void* memory = nullptr;
    openreg_driver_stream stream = nullptr;
    right = right && table_->stream_create(instance_, 1, 0, 0, &stream) == OPENREG_OK &&
            ipc()->memory_open(instance_, 1, &handle, &memory) == OPENREG_OK;
    openreg_ipc_handle less = handle;
    const uint64_t half = 2048;
    void* part = nullptr;
    std::memcpy(less.bytes + 24, &half, sizeof half);  // where the fake has the size
    right = right && ipc()->memory_open(instance_, 1, &less, &part) == OPENREG_E_INVALID && part == nullptr;
    std::vector<uint8_t> seen(4096);
    right = right && table_->copy(instance_, 1, stream, seen.data(), -1, memory, 1, 4096) == OPENREG_OK &&
            seen == filled(3) && table_->fill(instance_, 1, stream, memory, 4, 4096) == OPENREG_OK &&
            ipc()->memory_close(instance_, 1, memory) == OPENREG_OK && hooks_->violations() == 0 &&
            hooks_->live("import") == 0;
    const char answer = right ? 'y' : 'n';
    _exit(write(back[1], &answer, 1) == 1 ? 0 : 1);
  }
  void* const memory = allocate(1);
  fill(1, memory, 3);
  sync(1);
  succeeds([&] { return ipc()->memory_export(instance_, 1, memory, nullptr, 0, &handle); });
  ASSERT_EQ(write(there[1], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
  char answer = 0;
  EXPECT_EQ(read(back[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(bytes(1, memory), filled(4));
  for (const int file : {there[0], there[1], back[0], back[1]}) ::close(file);
}

}  // namespace
}  // namespace openreg_test
