// SPDX-License-Identifier: BSD-3-Clause
// Growing segments of the CUDA and HIP drivers (openreg/vmm.h): the driver's table over fakes and on a real GPU, and the
// caching allocator over fakes (gpu_test.h).
#include <openreg/allocator.h>
#include <openreg/sharing.h>

#include <map>
#include <random>
#include <thread>

#include "../memory/cache_check.h"
#include "gpu_runtime.h"

namespace openreg_test {
namespace {

constexpr uint64_t kPiece = uint64_t{2} << 20;
constexpr uint64_t kMib = 1 << 20;

class GpuVmm : public GpuTest {
 protected:
  // Addresses, of which the first `mapped` pieces are memory.
  char* reserve(int32_t dev, uint64_t pieces, uint64_t mapped = 0) {
    void* out = nullptr;
    succeeds([&] { return vmm()->reserve(instance_, dev, pieces * kPiece, &out); });
    auto* const start = static_cast<char*>(out);
    if (mapped != 0) resize(dev, start, mapped);
    return owned_.add(start, [=, this] { end(dev, start); });
  }
  // The first `pieces` are memory, and no others.
  openreg_status try_resize(int32_t dev, char* start, uint64_t pieces) {
    uint64_t& before = pieces_[start];
    const openreg_status status =
        pieces >= before ? vmm()->map(instance_, dev, start, before * kPiece, (pieces - before) * kPiece)
                         : vmm()->unmap(instance_, dev, start, pieces * kPiece, (before - pieces) * kPiece);
    if (status == OPENREG_OK) before = pieces;
    return status;
  }
  void resize(int32_t dev, char* start, uint64_t pieces) {
    succeeds([&] { return try_resize(dev, start, pieces); });
  }
  void end(int32_t dev, char* start) {
    succeeds([&] { return vmm()->release(instance_, dev, start); });
    pieces_.erase(start);
    owned_.remove(start);
  }
  bool holds(int32_t dev, const char* memory, uint8_t value, uint64_t size) {
    return bytes(dev, memory, size) == filled(value, size);
  }

 private:
  std::map<char*, uint64_t> pieces_;
};

class FakeGpuVmm : public NeedsFake<GpuVmm> {
 protected:
  // Of the vendor's functions: CUDA's are those of the driver API.
  std::string prefix() const { return GetParam().is_cudart() ? "cu" : "hip"; }
  void expect_live(int reservations, int pieces) {
    EXPECT_EQ(hooks_->live("reservation"), reservations);
    EXPECT_EQ(hooks_->live("handle"), pieces);
    EXPECT_EQ(hooks_->live("mapping"), pieces);
  }
  static size_t count_lines(const std::string& part) {
    std::lock_guard<std::mutex> guard(host_log_lock);
    size_t count = 0;
    for (const auto& line : host_log_lines) count += line.find(part) != std::string::npos;
    return count;
  }
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuVmm, ::testing::ValuesIn(gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuVmm, ::testing::ValuesIn(gpus()), gpu_name);

// Memory keeps its contents where it grows and where it shrinks, one piece is like the next, and all of it is usable.
TEST_P(GpuVmm, GrowsAndShrinks) {
  const int32_t last = device_count() - 1;
  ASSERT_NE(vmm(), nullptr);
  char* const start = reserve(last, 16);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(start) % kPiece, 0u);
  resize(last, start, 1);
  fill(last, start, 1, kPiece);
  resize(last, start, 4);
  fill(last, start + kPiece, 2, 3 * kPiece);
  EXPECT_TRUE(holds(last, start, 1, kPiece));
  EXPECT_TRUE(holds(last, start + kPiece, 2, 3 * kPiece));
  void* const plain = allocate(last, 4 * kPiece);
  copy(plain, last, start, last, 4 * kPiece, last);  // over the borders of pieces
  EXPECT_TRUE(holds(last, static_cast<char*>(plain) + kPiece, 2, 3 * kPiece));
  resize(last, start, 2);
  EXPECT_TRUE(holds(last, start, 1, kPiece));
  EXPECT_TRUE(holds(last, start + kPiece, 2, kPiece));
  resize(last, start, 2);
  resize(last, start, 16);
  copy(start + 12 * kPiece, last, plain, last, 4 * kPiece, last);
  EXPECT_TRUE(holds(last, start + 12 * kPiece, 1, kPiece));
  EXPECT_TRUE(holds(last, start, 1, kPiece));
  resize(last, start, 0);
  resize(last, start, 1);
  end(last, start);
  release(last, plain);
  reserve(last, 1);
}

// Bytes go to another device and come back, whether its access was there before the memory or comes later.
TEST_P(GpuVmm, OtherDevicesReachIt) {
  if (device_count() < 2) GTEST_SKIP() << "one device";
  void* const there = allocate(1, 2 * kPiece);
  char* const start = reserve(0, 4);
  char* const back = reserve(1, 4);
  resize(0, start, 1);
  fill(0, start, 7, kPiece);
  sync(0);
  copy(there, 1, start, 0, kPiece, 1);
  EXPECT_TRUE(holds(1, static_cast<char*>(there), 7, kPiece));
  resize(0, start, 2);  // the new piece too
  resize(1, back, 2);
  fill(0, start + kPiece, 8, kPiece);
  sync(0);
  copy(back, 1, start, 0, 2 * kPiece, 0);
  sync(0);
  EXPECT_TRUE(holds(1, back, 7, kPiece));
  EXPECT_TRUE(holds(1, back + kPiece, 8, kPiece));
}

// To ask for the table makes no context.
TEST_P(FakeGpuVmm, AskingMakesNoContext) {
  ASSERT_NE(vmm(), nullptr);
  EXPECT_EQ(vmm()->struct_size, sizeof(openreg_vmm));
  EXPECT_EQ(vmm()->version, OPENREG_VMM_VERSION);
  EXPECT_EQ(table_->extension(instance_, OPENREG_VMM_NAME, 2), nullptr);
  EXPECT_EQ(hooks_->contexts(), 0u);
  EXPECT_EQ(hooks_->calls("MemGetAllocationGranularity"), 2);
}

// Without one of the vendor's functions the table is not there, and nothing else is missing.
TEST_P(FakeGpuVmm, NoTableWithoutAFunction) {
  for (const char* name : {"MemGetAllocationGranularity", "MemAddressReserve", "MemAddressFree", "MemCreate",
                           "MemRelease", "MemMap", "MemUnmap", "MemSetAccess"}) {
    SCOPED_TRACE(name);
    set("FAKE_GPU_MISSING", prefix() + name);
    restart();
    const int errors = host_record.errors;
    EXPECT_EQ(vmm(), nullptr);
    EXPECT_EQ(host_record.errors, errors);
    EXPECT_EQ(hooks_->peek_error(), 0);
    EXPECT_NE(ipc(), nullptr);
    release(0, allocate(0));
  }
}

// The granularity is the device's, but not less than 2 MiB; no table where the vendor gives no power of two.
TEST_P(FakeGpuVmm, GranularityIsTheDevices) {
  for (const uint64_t granularity : {uint64_t{0}, kPiece / 32, kPiece, 3 * kPiece / 2, 2 * kPiece}) {
    SCOPED_TRACE(granularity);
    set("FAKE_GPU_GRANULARITY", std::to_string(granularity));
    restart();
    ASSERT_EQ(vmm() != nullptr, granularity != 0 && granularity % 3 != 0);
    if (vmm() == nullptr) continue;
    uint64_t bytes = 0;
    succeeds([&] { return vmm()->granularity(instance_, 1, &bytes); });
    EXPECT_EQ(bytes, std::max(granularity, kPiece));
    void* start = nullptr;
    succeeds([&] { return vmm()->reserve(instance_, 1, 4 * bytes, &start); });
    succeeds([&] { return vmm()->map(instance_, 1, start, bytes, bytes); });
    fill(1, static_cast<char*>(start) + bytes, 3, bytes);
    sync(1);
    succeeds([&] { return vmm()->release(instance_, 1, start); });
  }
  unsetenv("FAKE_GPU_GRANULARITY");
  restart();
  hooks_->set_failures("MemGetAllocationGranularity:2:801");
  const int errors = host_record.errors;
  EXPECT_EQ(vmm(), nullptr);
  EXPECT_EQ(host_record.errors, errors);
  EXPECT_EQ(hooks_->peek_error(), 0);
}

// One binary serves a HIP whose properties of memory are in the order of 5.2 and one that has them as they are now, whichever
// headers it was compiled with; CUDA has one order.
TEST_P(FakeGpuVmm, PropertiesInEitherOrder) {
  for (const char* early : {"0", "1"}) {
    SCOPED_TRACE(early);
    set("FAKE_GPU_EARLY_PROPERTIES", early);
    restart();
    ASSERT_EQ(vmm() != nullptr, *early == '0' || !GetParam().is_cudart());
    EXPECT_EQ(hooks_->peek_error(), 0);
    if (vmm() == nullptr) continue;
    char* const start = reserve(1, 2, 2);
    fill(1, start, 3, 2 * kPiece);
    sync(1);
    EXPECT_TRUE(holds(1, start + kPiece, 3, kPiece));
    end(1, start);
  }
}

// Memory in the middle goes back and comes again; its neighbours keep their contents.
TEST_P(FakeGpuVmm, HolesInTheMiddle) {
  char* const start = reserve(0, 6, 5);
  fill(0, start, 4, 5 * kPiece);
  sync(0);
  succeeds([&] { return vmm()->unmap(instance_, 0, start, kPiece, 2 * kPiece); });
  expect_live(1, 3);
  EXPECT_TRUE(holds(0, start, 4, kPiece));
  EXPECT_TRUE(holds(0, start + 3 * kPiece, 4, 2 * kPiece));
  EXPECT_EQ(fails([&] { return vmm()->unmap(instance_, 0, start, 2 * kPiece, 2 * kPiece); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return vmm()->map(instance_, 0, start, 2 * kPiece, 2 * kPiece); }), OPENREG_E_INVALID);
  succeeds([&] { return vmm()->map(instance_, 0, start, 2 * kPiece, kPiece); });
  fill(0, start + 2 * kPiece, 5, kPiece);
  EXPECT_TRUE(holds(0, start + 2 * kPiece, 5, kPiece));
  EXPECT_TRUE(holds(0, start + 3 * kPiece, 4, 2 * kPiece));
  void* const there = allocate(1, 2 * kPiece);
  copy(there, 1, start + 2 * kPiece, 0, 2 * kPiece, 1);  // access comes to each stretch of memory
  EXPECT_TRUE(holds(1, static_cast<char*>(there), 5, kPiece));
  release(1, there);
  end(0, start);
  expect_live(0, 0);
}

// Each call of a growth fails once: the vendor's code is reported, nothing is left of it, and it can be tried again.
TEST_P(FakeGpuVmm, GrowthFails) {
  char* const start = reserve(0, 8, 2);
  fill(0, start, 5, 2 * kPiece);
  sync(0);
  for (const std::string step :
       {"MemCreate:1", "MemCreate:2", "MemCreate:3", "MemMap:1", "MemMap:2", "MemMap:3", "MemSetAccess:1"}) {
    for (const auto& [code, status] : {std::pair{2, OPENREG_E_NOMEM}, {999, OPENREG_E_INTERNAL}}) {
      SCOPED_TRACE(step);
      hooks_->set_failures((step + ":" + std::to_string(code)).c_str());
      EXPECT_EQ(fails([&] { return try_resize(0, start, 5); }), status);
      EXPECT_EQ(host_record.vendor_code, code);
      EXPECT_CONTAINS(host_record.text, prefix() + step.substr(0, step.find(':')) + ": ");
      EXPECT_EQ(hooks_->peek_error(), 0);
      expect_live(1, 2);
    }
  }
  hooks_->set_failures("");
  EXPECT_TRUE(holds(0, start, 5, 2 * kPiece));
  resize(0, start, 5);
  expect_live(1, 5);
  EXPECT_TRUE(holds(0, start, 5, 2 * kPiece));
  end(0, start);
  expect_live(0, 0);
}

// What the vendor does not take back after a failed growth serves the next one.
TEST_P(FakeGpuVmm, GrowthFailsTwice) {
  char* const start = reserve(0, 8, 1);
  hooks_->set_failures("MemMap:3:2,MemUnmap:2:999");
  EXPECT_EQ(fails([&] { return try_resize(0, start, 5); }), OPENREG_E_NOMEM);
  EXPECT_EQ(host_record.vendor_code, 2);
  EXPECT_EQ(count_lines(prefix() + "MemUnmap: error 999"), 1u);
  hooks_->set_failures("MemMap:3:2,MemRelease:1:999");
  EXPECT_EQ(fails([&] { return try_resize(0, start, 5); }), OPENREG_E_NOMEM);
  EXPECT_EQ(host_record.vendor_code, 2);
  EXPECT_EQ(count_lines(prefix() + "MemRelease: error 999"), 1u);
  hooks_->set_failures("");
  resize(0, start, 5);
  expect_live(1, 5);
  fill(0, start, 3, 5 * kPiece);
  EXPECT_TRUE(holds(0, start, 3, 5 * kPiece));
  end(0, start);
  expect_live(0, 0);
}

// No addresses, or none that the vendor can give.
TEST_P(FakeGpuVmm, ReservationFails) {
  void* start = nullptr;
  for (const auto& [code, status] :
       {std::pair{2, OPENREG_E_NOMEM}, {801, OPENREG_E_UNSUPPORTED}, {999, OPENREG_E_INTERNAL}}) {
    hooks_->set_failures(("MemAddressReserve:1:" + std::to_string(code)).c_str());
    EXPECT_EQ(fails([&] { return vmm()->reserve(instance_, 0, kPiece, &start); }), status);
    EXPECT_EQ(host_record.vendor_code, code);
  }
  EXPECT_EQ(fails([&] { return vmm()->reserve(instance_, 0, kPiece + 1, &start); }), OPENREG_E_INVALID);
  EXPECT_EQ(start, nullptr);
  expect_live(0, 0);
}

// The first call of a shrinking or of a release fails: nothing has changed.
TEST_P(FakeGpuVmm, GivingBackFailsAtOnce) {
  char* const start = reserve(0, 4, 4);
  fill(0, start, 6, 4 * kPiece);
  hooks_->set_failures("MemUnmap:1:999");
  EXPECT_EQ(fails([&] { return try_resize(0, start, 1); }), OPENREG_E_INTERNAL);
  EXPECT_EQ(host_record.vendor_code, 999);
  EXPECT_CONTAINS(host_record.text, prefix() + "MemUnmap: ");
  hooks_->set_failures("MemUnmap:1:999");
  EXPECT_EQ(fails([&] { return vmm()->release(instance_, 0, start); }), OPENREG_E_INTERNAL);
  hooks_->set_failures("");
  expect_live(1, 4);
  EXPECT_TRUE(holds(0, start, 6, 4 * kPiece));
  resize(0, start, 0);
  hooks_->set_failures("MemAddressFree:1:999");
  EXPECT_EQ(fails([&] { return vmm()->release(instance_, 0, start); }), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(host_record.text, prefix() + "MemAddressFree: ");
  hooks_->set_failures("");
  resize(0, start, 1);
}

// A later call of a shrinking fails: it is logged, and the pieces that are left serve the next growth.
TEST_P(FakeGpuVmm, ShrinkingFailsInTheMiddle) {
  char* const start = reserve(0, 4);
  for (const std::string step : {"MemUnmap:2", "MemUnmap:3", "MemRelease:1", "MemRelease:2", "MemRelease:3"}) {
    SCOPED_TRACE(step);
    resize(0, start, 4);
    fill(0, start, 6, 4 * kPiece);
    sync(0);
    const std::string line = prefix() + step.substr(0, step.find(':')) + ": error 999";
    const size_t before = count_lines(line);
    hooks_->set_failures((step + ":999").c_str());
    resize(0, start, 1);
    hooks_->set_failures("");
    EXPECT_EQ(count_lines(line), before + 1);
    EXPECT_EQ(hooks_->peek_error(), 0);
    EXPECT_TRUE(holds(0, start, 6, kPiece));
    resize(0, start, 3);
    fill(0, start + kPiece, 7, 2 * kPiece);
    EXPECT_TRUE(holds(0, start, 6, kPiece));
    EXPECT_TRUE(holds(0, start + kPiece, 7, 2 * kPiece));
    resize(0, start, 1);
    expect_live(1, 1);
  }
}

// A later call of a release fails: what is left goes back with the next reservation, or when the driver is closed.
TEST_P(FakeGpuVmm, ReleaseFailsInTheMiddle) {
  for (const std::string step : {"MemUnmap:2", "MemRelease:1", "MemRelease:2", "MemAddressFree:1"}) {
    SCOPED_TRACE(step);
    char* start = reserve(0, 4, 2);
    hooks_->set_failures((step + ":999").c_str());
    end(0, start);
    hooks_->set_failures("");
    EXPECT_EQ(hooks_->live("reservation"), 1);
    EXPECT_EQ(fails([&] { return try_resize(0, start, 1); }), OPENREG_E_INVALID) << "it has ended";
    start = reserve(0, 4);
    expect_live(1, 0);
    resize(0, start, 2);
    hooks_->set_failures((step + ":999").c_str());
    end(0, start);
    hooks_->set_failures("");
    EXPECT_EQ(hooks_->live("reservation"), 1);
    close();
    expect_live(0, 0);
    ASSERT_EQ(open(), OPENREG_OK);
  }
}

// No reservation, of another device, in the middle of one, larger than it, or of odd size: nothing happens.
TEST_P(FakeGpuVmm, WrongArguments) {
  char* const start = reserve(0, 2, 1);
  EXPECT_EQ(fails([&] { return try_resize(0, start, 3); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return try_resize(1, start, 2); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return try_resize(0, start + kPiece, 1); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return vmm()->map(instance_, 0, start, kPiece, 512); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return vmm()->release(instance_, 1, start); }), OPENREG_E_INVALID);
  expect_live(1, 1);
  end(0, start);
  EXPECT_EQ(fails([&] { return vmm()->release(instance_, 0, start); }), OPENREG_E_INVALID);
}

// The device's memory is all there is.
TEST_P(FakeGpuVmm, DeviceIsFull) {
  set("FAKE_GPU_MEMORY", std::to_string(8 * kPiece));
  restart();
  char* const start = reserve(0, 16, 6);
  EXPECT_EQ(fails([&] { return try_resize(0, start, 9); }), OPENREG_E_NOMEM);
  expect_live(1, 6);
  uint64_t unused = 0, total = 0;
  succeeds([&] { return table_->mem_info(instance_, 0, &unused, &total); });
  EXPECT_EQ(unused, 2 * kPiece);
  resize(0, start, 8);
}

// Nothing is unmapped while queued work uses it, on whatever device's stream; the fake counts that.
TEST_P(FakeGpuVmm, WaitsForQueuedWork) {
  openreg_driver_stream stream = make_stream(0);
  openreg_driver_stream other = make_stream(1);
  void* const there = allocate(1, 2 * kPiece);
  char* const start = reserve(0, 2, 2);
  hooks_->set_delay(20000);
  fill(0, start, 1, 2 * kPiece, stream);
  resize(0, start, 1);
  EXPECT_EQ(is_done(0, stream), 1);
  copy(there, 1, start, 0, kPiece, 1, other);
  end(0, start);
  EXPECT_EQ(is_done(1, other), 1);
  hooks_->set_delay(0);
  EXPECT_EQ(hooks_->violations(), 0);
}

// A capture of a graph that another thread makes goes on.
TEST_P(FakeGpuVmm, CapturesGoOn) {
  void* const there = allocate(1, kPiece);
  hooks_->begin_capture();
  char* const start = reserve(0, 4, 3);
  copy(there, 1, start, 0, kPiece, 1);  // gives access
  resize(0, start, 1);
  end(0, start);
  EXPECT_EQ(hooks_->end_capture(), 1);
}

// Where access to a segment that is there already can't be given, the copy says so, and the next one tries again.
TEST_P(FakeGpuVmm, AccessOfPeersFails) {
  void* const there = allocate(1, kPiece);
  char* const start = reserve(0, 2, 1);
  fill(0, start, 4, kPiece);
  sync(0);
  hooks_->set_failures("MemSetAccess:1:999");
  EXPECT_EQ(fails([&] { return table_->copy(instance_, 1, nullptr, there, 1, start, 0, kPiece); }), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(host_record.text, prefix() + "MemSetAccess: ");
  hooks_->set_failures("");
  copy(there, 1, start, 0, kPiece, 1);
  EXPECT_TRUE(holds(1, static_cast<char*>(there), 4, kPiece));
  EXPECT_EQ(hooks_->violations(), 0);
}

// Devices without access to each other copy by the vendor, and get none to the segments.
TEST_P(FakeGpuVmm, NoAccessWithoutPeers) {
  set("FAKE_GPU_PEERS", "none");
  restart();
  void* const there = allocate(1, kPiece);
  char* const start = reserve(0, 2, 1);
  fill(0, start, 4, kPiece);
  sync(0);
  copy(there, 1, start, 0, kPiece, 1);
  EXPECT_TRUE(holds(1, static_cast<char*>(there), 4, kPiece));
  EXPECT_EQ(hooks_->calls("MemSetAccess"), 1);
}

// On a lost device memory goes back without the vendor, and there is no new one; the other device is as it was.
TEST_P(FakeGpuVmm, LostDevice) {
  char* const lost = reserve(0, 4);
  char* const other = reserve(1, 4);
  resize(0, lost, 2);
  hooks_->set_failures("MemCreate:1:700");
  EXPECT_EQ(fails([&] { return try_resize(0, lost, 3); }), OPENREG_E_DEVICE_LOST);
  hooks_->set_failures("");
  EXPECT_EQ(fails([&] { return try_resize(0, lost, 3); }), OPENREG_E_DEVICE_LOST);
  const int calls = hooks_->calls("MemUnmap");
  resize(0, lost, 1);
  end(0, lost);
  EXPECT_EQ(hooks_->calls("MemUnmap"), calls);
  resize(1, other, 4);
  end(1, other);
  close();
  hooks_->reset();
}

// The vendors' handles for other processes are for other memory: an error that says what to do.
TEST_P(FakeGpuVmm, NotForOtherProcesses) {
  openreg_ipc_handle handle{};
  char* const start = reserve(0, 2, 1);
  EXPECT_EQ(fails([&] { return ipc()->memory_export(instance_, 0, start, nullptr, 0, &handle); }),
            OPENREG_E_UNSUPPORTED);
  EXPECT_CONTAINS(host_record.text, "expandable_segments:False");
  EXPECT_EQ(hooks_->calls("IpcGetMemHandle"), 0);
  end(0, start);
  void* const plain = allocate(0);
  succeeds([&] { return ipc()->memory_export(instance_, 0, plain, nullptr, 0, &handle); });
}

// ------------------------------------------------------------------------------------------- the caching allocator

class FakeGpuGrowing : public GpuRuntimeTest {
 protected:
  void SetUp() override {
    GpuRuntimeTest::SetUp();
    if (hooks_ == nullptr) return;
    set("FAKE_GPU_MEMORY", std::to_string(64 * kMib));
    hooks_->reset();
    use_growing(1);
  }
  void TearDown() override {
    use_growing(0);
    GpuRuntimeTest::TearDown();
  }
  static void use_growing(int32_t expandable) {
    use_settings([expandable](auto& settings) { settings.expandable_segments = expandable; });
  }
  static int64_t reserved() { return stats_of(0).reserved_bytes[0].current; }
  static int64_t used() {
    uint64_t unused = 0, total = 0;
    EXPECT_EQ(openreg_memory_get_info(0, &unused, &total), OPENREG_OK) << last_message();
    return static_cast<int64_t>(total - unused);
  }
  static int first_int(const void* block) {
    int value = 0;
    EXPECT_EQ(openreg_memcpy(&value, OPENREG_HOST, block, 0, sizeof value), OPENREG_OK) << last_message();
    return value;
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuGrowing, ::testing::ValuesIn(gpus()), gpu_name);

// As CachePoolsTest.GrowingSegments on the simulated devices: one segment, which grows in place and gives its end back.
TEST_P(FakeGpuGrowing, GrowsInPlaceAndGivesItsEndBack) {
  void* first = allocate(0, 3 * kMib);
  const int written = 77;
  ASSERT_EQ(openreg_memcpy(first, 0, &written, OPENREG_HOST, sizeof written), OPENREG_OK) << last_message();
  void* second = allocate(0, 25 * kMib);
  void* third = allocate(0, 3 * kMib);
  EXPECT_EQ(static_cast<char*>(second), static_cast<char*>(first) + 3 * kMib);
  EXPECT_EQ(stats_of(0).segment[0].current, 1);
  EXPECT_EQ(snapshot(0)[0].expandable, 1);
  EXPECT_EQ(reserved(), static_cast<int64_t>(32 * kMib));
  EXPECT_EQ(used(), reserved());
  EXPECT_EQ(hooks_->live("mapping"), 16);
  EXPECT_EQ(hooks_->live("memory"), 0);
  check_cache(0);
  release(third);
  release(second);
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK) << last_message();
  check_cache(0);
  EXPECT_EQ(reserved(), static_cast<int64_t>(4 * kMib));
  EXPECT_EQ(used(), reserved());
  EXPECT_EQ(first_int(first), 77);
  void* other = nullptr;
  EXPECT_EQ(openreg_malloc(0, OPENREG_STREAM_DEFAULT, 62 * kMib, &other), OPENREG_E_NOMEM);
  second = allocate(0, 50 * kMib);  // more than the addresses of the first segment
  check_cache(0);
  EXPECT_EQ(first_int(first), 77);
  release(second);
  release(first);
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK);
  EXPECT_EQ(reserved(), 0);
  EXPECT_EQ(hooks_->live("reservation"), 0);
}

// A vendor's failure in a growth is the allocation's error; the cache is in order and goes on.
TEST_P(FakeGpuGrowing, FailuresLeaveTheCacheInOrder) {
  allocate(0, 3 * kMib);
  void* second = nullptr;
  for (const char* failure : {"MemCreate:2:999", "MemMap:1:999", "MemSetAccess:1:999"}) {
    hooks_->set_failures(failure);
    EXPECT_EQ(openreg_malloc(0, OPENREG_STREAM_DEFAULT, 30 * kMib, &second), OPENREG_E_INTERNAL);
    EXPECT_EQ(openreg_last_error()->vendor_code, 999);
    EXPECT_EQ(used(), reserved());
    check_cache(0);
  }
  hooks_->set_failures("");
  second = allocate(0, 20 * kMib);
  release(second);
  hooks_->set_failures("MemUnmap:1:999");
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_E_INTERNAL);
  hooks_->set_failures("");
  check_cache(0);
  EXPECT_EQ(used(), reserved());
  EXPECT_EQ(openreg_memory_empty_cache(0), OPENREG_OK) << last_message();
}

// A driver of the vendor's without these functions: one warning, and ordinary segments.
TEST_P(FakeGpuGrowing, WithoutTheFunctions) {
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
  set("FAKE_GPU_MISSING", GetParam().is_cudart() ? "cuMemMap" : "hipMemMap");
  allocate(0, 100);
  allocate(0, 30 * kMib);
  static int warnings = 0;  // of this process
  warnings += count_lines(OPENREG_LOG_WARNING, "expandable_segments is ignored");
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(hooks_->live("memory"), 2);
  EXPECT_EQ(hooks_->live("reservation"), 0);
}

// Such memory can't be exported, which says why, and can be used as before.
TEST_P(FakeGpuGrowing, NotForOtherProcesses) {
  void* block = allocate(0, 3 * kMib);
  auto handle = sized<openreg_memory_handle>();
  EXPECT_EQ(openreg_memory_export(block, &handle), OPENREG_E_UNSUPPORTED);
  EXPECT_NE(last_message().find("expandable_segments:False"), std::string::npos) << last_message();
  release(block);
  check_cache(0);
}

// Threads allocate, write, give back and copy between devices, while segments grow and shrink under them.
TEST_P(FakeGpuGrowing, Threads) {
  set("FAKE_GPU_MEMORY", std::to_string(512 * kMib));  // room for each thread's growth at once
  hooks_->reset();
  std::atomic<int> wrong{0};
  std::string reasons[4];
  Threads(4, [&wrong, &reasons](int32_t number) {
    std::mt19937 random(static_cast<unsigned>(number));
    const int32_t own = number % 2;
    for (int step = 0; step < 30; ++step) {
      void* here = nullptr;
      void* there = nullptr;
      const size_t size = 4096 + random() % (3 * kMib);
      if (openreg_malloc(own, OPENREG_STREAM_DEFAULT, size, &here) != OPENREG_OK ||
          openreg_malloc(1 - own, OPENREG_STREAM_DEFAULT, size, &there) != OPENREG_OK ||
          openreg_memset_async(own, OPENREG_STREAM_DEFAULT, here, number + 1, size) != OPENREG_OK ||
          openreg_stream_synchronize(own, OPENREG_STREAM_DEFAULT) != OPENREG_OK ||
          openreg_memcpy(there, 1 - own, here, own, size) != OPENREG_OK) {
        ++wrong;
        reasons[number] += last_message() + "\n";
      }
      uint8_t byte = 0;
      if (openreg_memcpy(&byte, OPENREG_HOST, static_cast<char*>(there) + size - 1, 1 - own, 1) != OPENREG_OK ||
          byte != number + 1)
        ++wrong;
      if (openreg_free(here) != OPENREG_OK || openreg_free(there) != OPENREG_OK) ++wrong;
      if (step % 7 == 0 && openreg_memory_empty_cache(own) != OPENREG_OK) ++wrong;
    }
  }).join();
  EXPECT_EQ(wrong, 0) << reasons[0] << reasons[1] << reasons[2] << reasons[3];
  check_cache(0);
  check_cache(1);
  for (int32_t dev = 0; dev < 2; ++dev) EXPECT_EQ(openreg_memory_empty_cache(dev), OPENREG_OK);
}

}  // namespace
}  // namespace openreg_test
