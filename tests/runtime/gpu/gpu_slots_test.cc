// SPDX-License-Identifier: BSD-3-Clause
// The slots of the CUDA and HIP drivers: devices, memory, copies, streams and events (gpu_test.h). The order of streams is
// checked by openreg-check (CheckCommTest).
#include "gpu_test.h"

#include <signal.h>

#include <thread>

#include "sanitizer.h"

namespace openreg_test {
namespace {

using GpuSlots = GpuTest;
using FakeGpuSlots = FakeGpuTest;
INSTANTIATE_TEST_SUITE_P(Gpu, GpuSlots, ::testing::ValuesIn(gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuSlots, ::testing::ValuesIn(gpus()), gpu_name);

// The table names its vendor, and promises nothing that the vendor does not.
TEST_P(GpuSlots, TableIsComplete) {
  if (GetParam().is_fake) {
    EXPECT_STREQ(table_->name, GetParam().prefix().c_str());
  }
  EXPECT_EQ(table_->struct_size, sizeof(openreg_driver));
  EXPECT_EQ(table_->abi_minor, OPENREG_ABI_MINOR);
  EXPECT_NE(std::string(table_->version), "");
  EXPECT_EQ(table_->caps, 0u);
  EXPECT_EQ(table_->host_alias, nullptr);
}

// Every field that the vendor can fill is filled.
TEST_P(GpuSlots, DevicesAreDescribed) {
  const int32_t count = device_count();
  ASSERT_GE(count, 1);
  for (int32_t dev = 0; dev < count; ++dev) {
    auto info = sized<openreg_device_info>();
    succeeds([&] { return table_->device_info(instance_, dev, &info); });
    EXPECT_NE(std::string(info.name), "");
    EXPECT_GT(info.total_bytes, 0u);
    EXPECT_GT(info.multi_processor_count, 0);
    EXPECT_GT(info.capability_major, 0);
    EXPECT_EQ(info.min_alignment, GetParam().is_hip() ? 128u : 256u);
    EXPECT_STREQ(info.torch_device_type, "cuda");
    if (GetParam().is_fake) {  // whose odd devices share the host's page table; HIP does not say whether one does
      const bool is_cuda = GetParam().prefix() == "cuda";
      EXPECT_EQ(info.caps, is_cuda && dev % 2 == 0 ? OPENREG_CAP_FENCED : 0u);
    }
    EXPECT_GT(info.priority_low, info.priority_high);
    // A stream of each end can be made.
    for (const int32_t priority : {info.priority_low, info.priority_high}) destroy(dev, make_stream(dev, priority));
  }
}

// The numbers are the vendor's, of the device that was asked for.
TEST_P(FakeGpuSlots, DeviceInfoHoldsTheVendorsNumbers) {
  auto info = sized<openreg_device_info>();
  succeeds([&] { return table_->device_info(instance_, 1, &info); });
  EXPECT_STREQ(info.name, "Fake GPU 1");
  EXPECT_EQ(info.total_bytes, 256u << 20);
  EXPECT_EQ(info.multi_processor_count, 132);
  EXPECT_EQ(info.capability_major, 9);
  EXPECT_EQ(info.capability_minor, 1);
  EXPECT_EQ(info.priority_low, GetParam().is_cudart() ? 0 : 1);
  EXPECT_EQ(info.priority_high, GetParam().is_cudart() ? -5 : -1);
  const std::string uuid(info.uuid, sizeof info.uuid);
  // HIP's structure for NVIDIA has none.
  EXPECT_EQ(uuid, GetParam().name == "hip_nvidia" ? std::string(16, '\0') : std::string(16, '\x11'));
}

// No byte is written beyond what the caller has, whichever version of the structure it knows.
TEST_P(GpuSlots, DeviceInfoKeepsToItsSize) {
  openreg_device_info info;
  std::memset(&info, 0x5A, sizeof info);
  info.struct_size = offsetof(openreg_device_info, min_alignment);
  succeeds([&] { return table_->device_info(instance_, 0, &info); });
  EXPECT_EQ(info.struct_size, offsetof(openreg_device_info, min_alignment));
  EXPECT_NE(info.total_bytes, UINT64_C(0x5A5A5A5A5A5A5A5A));
  EXPECT_EQ(info.min_alignment, UINT64_C(0x5A5A5A5A5A5A5A5A));
}

// Host to device, inside the device, and back, in sizes at and beside the pages' bounds.
TEST_P(GpuSlots, BytesGoThereAndBack) {
  for (const uint64_t size : {UINT64_C(1), UINT64_C(4095), UINT64_C(1) << 20}) {
    std::vector<uint8_t> out(size), in(size);
    for (size_t i = 0; i < size; ++i) in[i] = static_cast<uint8_t>(i * 7);
    void* const first = allocate(0, size);
    void* const second = allocate(0, size);
    copy(first, 0, in.data(), -1, size, 0);
    copy(second, 0, first, 0, size, 0);
    copy(out.data(), -1, second, 0, size, 0);
    sync(0);
    EXPECT_EQ(out, in);
    release(0, first);
    release(0, second);
  }
}

// A copy from host memory to host memory waits for the copy that fills its source.
TEST_P(GpuSlots, HostMemoryIsCopiedInStreamOrder) {
  uint8_t* const from = pinned();
  uint8_t* const to = pinned();
  void* const memory = allocate(0);
  openreg_driver_stream stream = make_stream(0);
  fill(0, memory, 9, 4096, stream);
  copy(from, -1, memory, 0, 4096, 0, stream);
  copy(to, -1, from, -1, 4096, 0, stream);
  sync(0, stream);
  EXPECT_EQ(std::vector<uint8_t>(to, to + 4096), filled(9));
}

// A fill keeps to its range.
TEST_P(GpuSlots, FillsPartOfMemory) {
  void* const memory = allocate(0);
  fill(0, memory, 1);
  fill(0, static_cast<char*>(memory) + 100, 2, 10);
  auto expected = filled(1);
  std::fill_n(expected.begin() + 100, 10, uint8_t{2});
  EXPECT_EQ(bytes(0, memory), expected);
}

// Nothing is touched, so NULL will do.
TEST_P(GpuSlots, SizeZeroDoesNothing) {
  succeeds([&] { return table_->copy(instance_, 0, nullptr, nullptr, 0, nullptr, -1, 0); });
  succeeds([&] { return table_->fill(instance_, 0, nullptr, nullptr, 0, 0); });
}

// The host can't touch device memory of the fake, as it can't that of most GPUs.
TEST_P(FakeGpuSlots, DeviceMemoryFaults) {
  if (OPENREG_TEST_SANITIZER) GTEST_SKIP() << "a sanitizer ends the process in its own way";
  void* const memory = allocate(0);
  const Child child([memory] {
    signal(SIGSEGV, SIG_DFL);
    *static_cast<volatile char*>(memory) = 1;
    return true;
  });
  EXPECT_TRUE(child.was_killed_by(SIGSEGV)) << child.status;
}

// Mistakes of a caller are errors, and the text names the vendor's function and error, and the device.
TEST_P(FakeGpuSlots, WrongUseIsAnError) {
  void* const memory = allocate(0);
  void* out = memory;
  EXPECT_EQ(fails([&] { return table_->mem_free(instance_, 1, memory); }), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_record.text, GetParam().prefix() + "Free: " + GetParam().error_prefix());
  EXPECT_CONTAINS(host_record.text, "on device 1");
  EXPECT_EQ(host_record.vendor_code, 1);
  EXPECT_EQ(fails([&] { return table_->fill(instance_, 0, nullptr, memory, 0, 4097); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return table_->copy(instance_, 0, nullptr, memory, 0, memory, -1, 4096); }), OPENREG_E_INVALID);
  openreg_driver_stream stream = make_stream(1);
  EXPECT_EQ(fails([&] { return table_->stream_sync(instance_, 0, stream); }), OPENREG_E_INVALID);
  EXPECT_EQ(host_record.vendor_code, 400);
  destroy(1, stream);
  EXPECT_EQ(fails([&] { return table_->stream_destroy(instance_, 1, stream); }), OPENREG_E_INVALID);
  release(0, memory);
  EXPECT_EQ(fails([&] { return table_->mem_free(instance_, 0, memory); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return table_->mem_alloc(instance_, 0, Bytes(UINT64_C(1) << 40), &out); }), OPENREG_E_NOMEM);
  EXPECT_EQ(out, memory) << "an out-parameter was written on failure";
}

// Free memory falls by what is allocated.
TEST_P(GpuSlots, MemoryInfoCountsWhatIsUsed) {
  uint64_t free_before = 0, total = 0, free_after = 0;
  allocate(0);
  succeeds([&] { return table_->mem_info(instance_, 0, &free_before, &total); });
  allocate(0, 64 << 20);
  succeeds([&] { return table_->mem_info(instance_, 0, &free_after, &total); });
  EXPECT_LE(free_after + (64 << 20), free_before);
  EXPECT_LE(free_before, total);
}

// The handles are the vendor's own.
TEST_P(GpuSlots, NativeStreamIsTheVendors) {
  void* native = &native;
  succeeds([&] { return table_->stream_native(instance_, 0, nullptr, &native); });
  EXPECT_EQ(native, nullptr) << "PyTorch's default stream is the legacy one, NULL";
  openreg_driver_stream stream = make_stream(0);
  succeeds([&] { return table_->stream_native(instance_, 0, stream, &native); });
  EXPECT_EQ(native, static_cast<void*>(stream));
  destroy(0, static_cast<openreg_driver_stream>(nullptr));
}

// An event that was never recorded is complete; a recorded one completes with the work before it.
TEST_P(GpuSlots, EventsMarkTheirPlace) {
  openreg_driver_stream stream = make_stream(0);
  openreg_driver_event event = make_event(0);
  void* const memory = allocate(0);
  EXPECT_EQ(is_done(event), 1) << "never recorded";
  succeeds([&] { return table_->event_sync(instance_, 0, event); });
  succeeds([&] { return table_->stream_wait(instance_, 0, stream, event); });
  fill(0, memory, 1, 4096, stream);
  succeeds([&] { return table_->event_record(instance_, 0, stream, event); });
  succeeds([&] { return table_->event_sync(instance_, 0, event); });
  EXPECT_EQ(is_done(event), 1);
  succeeds([&] { return table_->event_destroy(instance_, 0, nullptr); });
}

// Work is queued: the call returns before it is done, a query says so, and a sync waits.
TEST_P(FakeGpuSlots, WorkIsAsynchronous) {
  void* const memory = allocate(0);
  uint8_t* const host = pinned();
  openreg_driver_stream stream = make_stream(0);
  openreg_driver_event event = make_event(0);
  fill(0, memory, 3);
  sync(0);
  hooks_->hold(0, stream, 1);
  copy(host, -1, memory, 0, 4096, 0, stream);
  EXPECT_EQ(host[0], 0xCD) << "the copy was not queued";
  succeeds([&] { return table_->event_record(instance_, 0, stream, event); });
  EXPECT_EQ(is_done(0, stream), 0);
  EXPECT_EQ(is_done(event), 0);
  EXPECT_EQ(hooks_->peek_error(), 0) << "NotReady was left for PyTorch's next check";
  hooks_->set_delay(20000);
  hooks_->hold(0, stream, 0);
  succeeds([&] { return table_->event_sync(instance_, 0, event); });
  EXPECT_EQ(host[0], 3);
  EXPECT_EQ(is_done(event), 1);
  fill(0, memory, 4, 4096, stream);
  sync(0, stream);
  EXPECT_EQ(is_done(0, stream), 1);
  fill(0, memory, 5, 4096, stream);
  succeeds([&] { return table_->device_sync(instance_, 0); });
  EXPECT_EQ(is_done(0, stream), 1);
  hooks_->set_delay(0);
}

// mem_free() returns after queued work on the memory, whichever device's stream does it.
TEST_P(FakeGpuSlots, FreeWaitsForQueuedWork) {
  void* const memory = allocate(0);
  void* const target = allocate(1);
  openreg_driver_stream stream = make_stream(0);
  openreg_driver_stream other = make_stream(1);
  hooks_->set_delay(30000);
  fill(0, memory, 7, 4096, stream);
  release(0, memory);
  EXPECT_EQ(hooks_->violations(), 0);
  EXPECT_EQ(is_done(0, stream), 1);

  void* const source = allocate(0);
  copy(target, 1, source, 0, 4096, 1, other);
  release(0, source);
  EXPECT_EQ(hooks_->violations(), 0) << "a copy by the other device's stream was not waited for";
  hooks_->set_delay(0);
}

// What allocates, frees and asks doesn't end another thread's capture of a graph, and leaves this thread's mode as it was.
TEST_P(FakeGpuSlots, CapturesOfOthersGoOn) {
  openreg_driver_stream stream = make_stream(0);
  openreg_driver_event event = nullptr;
  ASSERT_EQ(table_->event_create(instance_, 0, 0, &event), OPENREG_OK);
  ASSERT_EQ(table_->event_record(instance_, 0, stream, event), OPENREG_OK);
  hooks_->begin_capture();
  void* memory = nullptr;
  void* host = nullptr;
  int32_t done = 0;
  EXPECT_EQ(table_->mem_alloc(instance_, 0, Bytes(4096), &memory), OPENREG_OK);
  EXPECT_EQ(table_->host_alloc(instance_, 0, Bytes(4096), &host), OPENREG_OK);
  EXPECT_EQ(table_->event_query(instance_, 0, event, &done), OPENREG_OK);
  EXPECT_EQ(table_->stream_query(instance_, 0, stream, &done), OPENREG_OK);
  EXPECT_EQ(table_->host_free(instance_, 0, host), OPENREG_OK);
  EXPECT_EQ(table_->mem_free(instance_, 0, memory), OPENREG_OK);
  EXPECT_EQ(hooks_->end_capture(), 1);
  EXPECT_EQ(table_->event_destroy(instance_, 0, event), OPENREG_OK);
}

// Everything else is refused, with the reason, and nothing is written.
TEST_P(GpuSlots, ElapsedTimeNeedsTwoTimedEventsOfOneDevice) {
  openreg_driver_event start = make_event(0, OPENREG_EVENT_TIMING);
  openreg_driver_event end = make_event(0, OPENREG_EVENT_TIMING);
  openreg_driver_event untimed = make_event(0);
  openreg_driver_event elsewhere = make_event(device_count() - 1, OPENREG_EVENT_TIMING);
  int64_t ns = -7;
  const auto elapsed = [&](openreg_driver_event a, openreg_driver_event b) {
    return fails([&] { return table_->event_elapsed(instance_, 0, a, b, &ns); });
  };
  EXPECT_EQ(elapsed(start, end), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_record.text, "never recorded");
  EXPECT_EQ(elapsed(untimed, end), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_record.text, "the start event was created without timing");
  EXPECT_EQ(elapsed(start, untimed), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_record.text, "the end event was created without timing");
  if (device_count() > 1) {
    EXPECT_EQ(elapsed(start, elsewhere), OPENREG_E_INVALID);
    EXPECT_CONTAINS(host_record.text, "not both to 0");
  }
  EXPECT_EQ(ns, -7);
  succeeds([&] { return table_->event_record(instance_, 0, nullptr, start); });
  succeeds([&] { return table_->event_record(instance_, 0, nullptr, end); });
  sync(0);
  succeeds([&] { return table_->event_elapsed(instance_, 0, start, end, &ns); });
  EXPECT_GE(ns, 0);
}

// Refused while the work is pending; then at least as long as the work took.
TEST_P(FakeGpuSlots, ElapsedTimeIsThatOfTheWork) {
  openreg_driver_event start = make_event(0, OPENREG_EVENT_TIMING);
  openreg_driver_event end = make_event(0, OPENREG_EVENT_TIMING);
  void* const memory = allocate(0);
  int64_t ns = -7;
  hooks_->set_delay(30000);
  hooks_->hold(0, nullptr, 1);
  succeeds([&] { return table_->event_record(instance_, 0, nullptr, start); });
  fill(0, memory, 1);
  succeeds([&] { return table_->event_record(instance_, 0, nullptr, end); });
  EXPECT_EQ(fails([&] { return table_->event_elapsed(instance_, 0, start, end, &ns); }), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_record.text, "not complete");
  EXPECT_EQ(hooks_->peek_error(), 0);
  hooks_->hold(0, nullptr, 0);
  sync(0);
  succeeds([&] { return table_->event_elapsed(instance_, 0, start, end, &ns); });
  EXPECT_GE(ns, 30000000);
  hooks_->set_delay(0);
}

// Many threads on all devices at once; each finds its own bytes.
TEST_P(GpuSlots, ThreadsWorkAtOnce) {
  const int32_t count = device_count();
  Threads(4, [this, count](int t) {
    const int32_t dev = t % count;
    openreg_driver_stream stream = make_stream(dev);
    openreg_driver_event event = make_event(dev);
    uint8_t* const host = pinned();
    for (int i = 0; i < 20; ++i) {
      void* const memory = allocate(dev);
      const auto value = static_cast<uint8_t>(t * 40 + i);
      fill(dev, memory, value, 4096, stream);
      copy(host, -1, memory, dev, 4096, dev, stream);
      succeeds([&] { return table_->event_record(instance_, dev, stream, event); });
      succeeds([&] { return table_->event_sync(instance_, dev, event); });
      EXPECT_EQ(host[4095], value);
      release(dev, memory);
    }
    release_pinned(host);
    destroy(event);
    destroy(dev, stream);
  }).join();
}

// A second instance, and one after the other, work as the first.
TEST_P(GpuSlots, OpensAgain) {
  for (int i = 0; i < 3; ++i) {
    close();
    ASSERT_EQ(open(), OPENREG_OK) << host_record.text;
    void* const memory = allocate(0);
    fill(0, memory, 5);
    EXPECT_EQ(bytes(0, memory), filled(5));
    release(0, memory);
  }
}

// A host function runs behind the copies that were queued before it and ahead of the fill that comes later.
TEST_P(GpuSlots, HostFunctionsRunInStreamOrder) {
  struct Look {
    uint8_t* bytes;
    int seen = -1;
    static void look(void* argument) {
      auto* self = static_cast<Look*>(argument);
      self->seen = self->bytes[4095];
    }
  };
  uint8_t* const host = pinned();
  void* const memory = allocate(0);
  openreg_driver_stream stream = make_stream(0);
  std::vector<Look> looks(20, Look{host});
  for (size_t i = 0; i < looks.size(); ++i) {
    fill(0, memory, static_cast<uint8_t>(i), 4096, stream);
    copy(host, -1, memory, 0, 4096, 0, stream);
    succeeds([&] { return table_->host_func(instance_, 0, stream, Look::look, &looks[i]); });
  }
  sync(0, stream);
  for (size_t i = 0; i < looks.size(); ++i) EXPECT_EQ(looks[i].seen, static_cast<int>(i));
}

}  // namespace
}  // namespace openreg_test
