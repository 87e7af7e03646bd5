// SPDX-License-Identifier: BSD-3-Clause
// Streams and events through the device guard.
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <set>

#include "shim/device/device.h"
#include "shim/memory/device_allocator.h"
#include "tests/shim/support.h"

namespace {

using c10::EventFlag;
using c10::Stream;
using namespace openreg_test;

class StreamTest : public ShimTest {
 protected:
  // Queues `count` copies of 8 MiB on a stream, so that it stays busy for a while.
  void keep_busy(const Stream& stream, int count) {
    constexpr size_t size = size_t{8} << 20;
    auto& allocator = c10::openreg::device_allocator();
    from_ = allocator.allocate_on(stream.device_index(), size);
    to_ = allocator.allocate_on(stream.device_index(), size);
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(openreg_memcpy_async(stream.device_index(), stream.id(), to_.get(), stream.device_index(), from_.get(),
                                     stream.device_index(), size),
                OPENREG_OK)
          << openreg_last_error()->message;
    }
  }
  void TearDown() override {
    for (const int i : {0, 1}) {
      guard().synchronizeDevice(static_cast<c10::DeviceIndex>(i));
    }
    ShimTest::TearDown();
  }

  c10::DataPtr from_;
  c10::DataPtr to_;
};

// c10 guarantees that stream 0 is a valid stream, the default one.
TEST_F(StreamTest, StreamZeroIsTheDefaultStream) {
  EXPECT_EQ(guard().getDefaultStream(device(1)), Stream(Stream::DEFAULT, device(1)));
  EXPECT_EQ(guard().getStream(device(1)).id(), 0);
  EXPECT_EQ(guard().getDefaultStream(device(-1)).device(), device(0));
  EXPECT_TRUE(guard().queryStream(guard().getDefaultStream(device(0))));
}

// Streams of the pool differ, belong to their device and change neither device nor current stream.
TEST_F(StreamTest, NewStreams) {
  std::set<c10::StreamId> ids;
  for (int i = 0; i < 8; ++i) {
    const Stream stream = guard().getNewStream(device(1), i % 2 == 0 ? 0 : -1);
    EXPECT_EQ(stream.device(), device(1));
    EXPECT_NE(stream.id(), 0);
    ids.insert(stream.id());
  }
  EXPECT_EQ(ids.size(), 8u);
  EXPECT_EQ(guard().getStream(device(1)).id(), 0);
  const Stream urgent = guard().getStreamFromGlobalPool(device(0), true);
  const Stream plain = guard().getStreamFromGlobalPool(device(0), false);
  int32_t urgent_priority = 0;
  int32_t plain_priority = 0;
  ASSERT_EQ(openreg_stream_priority(0, urgent.id(), &urgent_priority), OPENREG_OK);
  ASSERT_EQ(openreg_stream_priority(0, plain.id(), &plain_priority), OPENREG_OK);
  openreg_device_properties properties{};
  properties.struct_size = sizeof properties;
  ASSERT_EQ(openreg_device_get_properties(0, &properties), OPENREG_OK);
  EXPECT_EQ(urgent_priority, properties.priority_high);
  EXPECT_LE(urgent_priority, plain_priority);
}

// A stream of device 1 is no stream of device 0.
TEST_F(StreamTest, AStreamOfAnotherDeviceIsRefused) {
  const Stream stream = guard().getNewStream(device(1), 0);
  const Stream forged(Stream::UNSAFE, device(0), stream.id());
  EXPECT_HAS(error_of([&] { guard().queryStream(forged); }), "OPENREG_E_INVALID");
  EXPECT_THROW(guard().synchronizeStream(forged), c10::Error);
  EXPECT_THROW(guard().exchangeStream(forged), c10::Error);
  EXPECT_EQ(guard().getStream(device(0)).id(), 0);
  EXPECT_THROW(guard().queryStream(Stream(Stream::UNSAFE, device(0), 123456789)), c10::Error);
}

// synchronizeDevice(i) waits for device i, whichever is current.
TEST_F(StreamTest, SynchronizeDeviceHonoursItsArgument) {
  const Stream stream = guard().getNewStream(device(1), 0);
  keep_busy(stream, 20);
  guard().synchronizeDevice(0);
  guard().synchronizeDevice(1);
  EXPECT_TRUE(guard().queryStream(stream));
  EXPECT_THROW(guard().synchronizeDevice(2), c10::Error);
  guard().synchronizeDevice(-1);
}

TEST_F(StreamTest, NativeHandle) {
  const Stream one = guard().getNewStream(device(0), 0);
  const Stream two = guard().getNewStream(device(0), 0);
  EXPECT_NE(guard().getStreamNativeHandle(one), nullptr);
  EXPECT_NE(guard().getStreamNativeHandle(one), guard().getStreamNativeHandle(two));
  EXPECT_NO_THROW(guard().getStreamNativeHandle(guard().getDefaultStream(device(0))));
}

// An event that was never recorded is complete, and waiting for it is nothing.
TEST_F(StreamTest, AnUnrecordedEventIsComplete) {
  const Stream stream = guard().getNewStream(device(0), 0);
  c10::Event event(c10::DeviceType::PrivateUse1);
  EXPECT_TRUE(event.query());
  event.synchronize();
  event.block(stream);
  EXPECT_TRUE(guard().queryEvent(nullptr));
  guard().block(nullptr, stream);
  guard().synchronizeEvent(nullptr);
  EXPECT_THROW(guard().elapsedTime(nullptr, nullptr, 0), c10::Error);
}

// A stream of another device waits for an event.
TEST_F(StreamTest, AStreamWaitsForAnEventOfAnotherDevice) {
  const Stream first = guard().getNewStream(device(0), 0);
  const Stream second = guard().getNewStream(device(1), 0);
  c10::Event event(c10::DeviceType::PrivateUse1);
  keep_busy(first, 20);
  event.record(first);
  event.block(second);
  guard().synchronizeStream(second);
  EXPECT_TRUE(event.query()) << "the waiting stream ran ahead of the event";
}

// An event stays with the device of its first record: the stream of another one is an error, also where both are
// stream 0, and the event keeps working.
TEST_F(StreamTest, AnEventOfAnotherDeviceIsRefused) {
  void* event = nullptr;
  guard().record(&event, guard().getDefaultStream(device(0)), -1, EventFlag::PYTORCH_DEFAULT);
  ASSERT_NE(event, nullptr);
  void* const before = event;
  EXPECT_HAS(
      error_of([&] { guard().record(&event, guard().getDefaultStream(device(1)), -1, EventFlag::PYTORCH_DEFAULT); }),
      "an event of openreg:0 can't be recorded on a stream of openreg:1");
  EXPECT_EQ(event, before);
  guard().synchronizeEvent(event);
  guard().destroyEvent(event, 0);

  void* never = nullptr;
  EXPECT_THROW(guard().record(&never, guard().getDefaultStream(device(1)), 0, EventFlag::PYTORCH_DEFAULT), c10::Error);
  EXPECT_THROW(guard().record(&never, guard().getDefaultStream(device(1)), -1, EventFlag::INVALID), c10::Error);
  EXPECT_THROW(guard().record(&never, Stream(Stream::UNSAFE, device(1), 987654321), -1, EventFlag::PYTORCH_DEFAULT),
               c10::Error);
  EXPECT_EQ(never, nullptr) << "a failed record left an event";
}

}  // namespace
