// SPDX-License-Identifier: BSD-3-Clause
// What the shim asks of a driver, and what it makes of a driver's failures: on the toy driver, which counts its calls,
// fails on request and holds queued work back.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Event.h>

#include <string>
#include <vector>

#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/memory/device_allocator.h"
#include "tests/drivers/full_toy_driver.h"
#include "tests/shim/support.h"

namespace {

using namespace openreg_test;
using c10::openreg::device_allocator;
using c10::openreg::host_allocator;

class DriverTest : public ShimTest {
 protected:
  void SetUp() override {
    toy.reset();
    ShimTest::SetUp();
  }
  void TearDown() override {
    toy.reset();
    ShimTest::TearDown();
  }

  const full_toy_hooks& toy = *full_toy_test_hooks();
};

// Keeps warnings instead of printing them.
struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

// acceptance 4.4: counting devices asks the driver once, opens nothing and makes no context.
TEST_F(DriverTest, CountingIsCached) {
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << openreg_last_error()->message;
  toy.reset();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(c10::openreg::device_count(), 2);
    EXPECT_EQ(guard().deviceCount(), 2);
  }
  EXPECT_EQ(toy.calls("describe"), 1);
  EXPECT_EQ(toy.calls("open"), 0);
  EXPECT_FALSE(at::detail::getPrivateUse1Hooks().hasPrimaryContext(0));
  EXPECT_FALSE(at::detail::getPrivateUse1Hooks().hasPrimaryContext(1));
  EXPECT_EQ(toy.calls("open"), 0);
}

// acceptance 4.3: a driver that fails is a count of 0, without an exception; who needs a device is told why.
TEST_F(DriverTest, ADriverThatFailsHasNoDevices) {
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << openreg_last_error()->message;
  toy.reset();
  toy.fail("describe", 1, OPENREG_E_INCOMPATIBLE, FULL_TOY_FOREVER);
  EXPECT_EQ(c10::openreg::device_count(), 0);
  EXPECT_EQ(guard().deviceCount(), 0);
  EXPECT_FALSE(at::detail::getPrivateUse1Hooks().isAvailable());
  toy.reset();
  toy.fail("open", 1, OPENREG_E_INCOMPATIBLE, FULL_TOY_FOREVER);
  EXPECT_HAS(error_of([] { c10::openreg::device_count_ensure_non_zero(); }), "was told to fail");
  EXPECT_HAS(error_of([] { device_allocator().allocate(16); }), "was told to fail");
  toy.reset();
  EXPECT_EQ(openreg_init(), OPENREG_OK) << openreg_last_error()->message;
  EXPECT_EQ(c10::openreg::device_count(), 2);
}

// acceptance 4.14: the device that is current is not bound again.
TEST_F(DriverTest, SettingTheCurrentDeviceCallsNoDriver) {
  const int before = toy.calls("device_bind");
  c10::openreg::set_device(0);
  guard().setDevice(device(0));
  {
    const c10::DeviceGuard same(device(0));
  }
  EXPECT_EQ(toy.calls("device_bind"), before);
  c10::openreg::set_device(1);
  EXPECT_EQ(toy.calls("device_bind"), before + 1);
  EXPECT_EQ(toy.bound(), 1);
  c10::openreg::set_device(0);
}

// acceptance 4.13: a driver's failure arrives with its text and the code's name, and nothing has changed.
TEST_F(DriverTest, ADriversFailureReachesTheCaller) {
  toy.fail("device_bind", 1, OPENREG_E_INTERNAL, FULL_TOY_FOREVER);
  const std::string text = error_of([] { c10::openreg::set_device(1); });
  EXPECT_HAS(text, "device_bind was told to fail");
  EXPECT_HAS(text, "OPENREG_E_INTERNAL");
  EXPECT_HAS(text, "full_toy");
  EXPECT_HAS(text, "openreg_set_device");
  EXPECT_EQ(c10::openreg::current_device(), 0);
  EXPECT_THROW(c10::openreg::exchange_device(1), c10::Error);
  EXPECT_THROW(c10::DeviceGuard(device(1)), c10::Error);
  EXPECT_EQ(c10::openreg::current_device(), 0);
}

// acceptance 4.30b: what runs in a destructor calls no driver, so no driver can make it fail.
TEST_F(DriverTest, RestoringCallsNoDriver) {
  {
    const c10::DeviceGuard on(device(1));
    toy.fail("device_bind", 1, OPENREG_E_INTERNAL, FULL_TOY_FOREVER);
  }
  EXPECT_EQ(c10::openreg::current_device(), 0);
}

// What a driver can't do is NotImplementedError, also where it gives no text.
TEST_F(DriverTest, UnsupportedIsNotImplemented) {
  const c10::Stream stream = guard().getNewStream(device(0), 0);
  toy.fail("stream_native", 1, OPENREG_E_UNSUPPORTED, FULL_TOY_SILENT);
  const std::string text = error_of<c10::NotImplementedError>([&] { guard().getStreamNativeHandle(stream); });
  EXPECT_HAS(text, "OPENREG_E_UNSUPPORTED");
  EXPECT_HAS(text, "full_toy");
}

// What a collective's peer or time limit ends is what torch.distributed's users catch.
TEST_F(DriverTest, PeersAndTimeoutsAreDistBackendErrors) {
  for (const auto code : {OPENREG_E_PEER, OPENREG_E_TIMEOUT}) {
    toy.fail("stream_sync", 1, code, 0);
    const std::string text =
        error_of<c10::DistBackendError>([] { guard().synchronizeStream(guard().getDefaultStream(device(0))); });
    EXPECT_HAS(text, openreg_status_name(code));
  }
}

// A driver that is out of memory is OutOfMemoryError; the next, smaller request works.
TEST_F(DriverTest, NoMemoryIsOutOfMemoryError) {
  toy.fail("mem_alloc", 1, OPENREG_E_NOMEM, FULL_TOY_FOREVER);
  EXPECT_THROW(device_allocator().allocate(64 << 20), c10::OutOfMemoryError);
  toy.reset();
  EXPECT_NE(device_allocator().allocate(1 << 20).get(), nullptr);
}

// query() and synchronizeDevice(i) mean the stream and the device that they were asked about.
TEST_F(DriverTest, PendingWork) {
  const c10::Stream busy = guard().getNewStream(device(1), 0);
  const c10::Stream idle = guard().getNewStream(device(1), 0);
  c10::Event event(c10::DeviceType::PrivateUse1);
  event.record(busy);
  EXPECT_TRUE(event.query());
  toy.hold(1);
  event.record(busy);
  EXPECT_FALSE(event.query()) << "the earlier record was taken for the later one";
  EXPECT_FALSE(guard().queryStream(busy));
  EXPECT_TRUE(guard().queryStream(idle));
  guard().synchronizeDevice(0);  // would never return if it waited for device 1
  guard().synchronizeDevice(-1);
  EXPECT_FALSE(event.query());
  toy.hold(0);
  guard().synchronizeDevice(1);
  EXPECT_TRUE(event.query());
}

// A block that another stream uses is not given out again before that stream has passed.
TEST_F(DriverTest, RecordStreamDelaysReuse) {
  const c10::Stream side = guard().getNewStream(device(0), 0);
  toy.hold(1);
  void* first = nullptr;
  {
    const c10::DataPtr block = device_allocator().allocate(3 << 20);
    first = block.get();
    guard().recordDataPtrOnStream(block, side);
  }
  {
    const c10::DataPtr next = device_allocator().allocate(3 << 20);
    EXPECT_NE(next.get(), first) << "a block in use by another stream was given out";
  }
  EXPECT_EQ(device_allocator().getDeviceStats(0).active[0].current, 1);  // freed, but waiting
  toy.hold(0);
  device_allocator().emptyCache();
  EXPECT_EQ(device_allocator().getDeviceStats(0).active[0].current, 0);
}

// A storage that grows while another stream is current keeps its old block until that stream has copied from it.
TEST_F(DriverTest, ResizeKeepsTheOldBlockForTheCopy) {
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 3 << 20, device_allocator().allocate(3 << 20),
                             &device_allocator(), true);
  const void* old = storage.data();
  {
    const c10::Stream side = guard().getNewStream(device(0), 0);
    const c10::Stream before = guard().exchangeStream(side);
    toy.hold(1);
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, 6 << 20);
    guard().exchangeStream(before);
  }
  EXPECT_NE(device_allocator().allocate(3 << 20).get(), old) << "the block was given out while a copy reads it";
  toy.hold(0);
}

// The same for pinned memory that a stream uses.
TEST_F(DriverTest, ARecordedHostBlockWaitsForItsEvent) {
  const c10::Stream side = guard().getNewStream(device(1), 0);
  const int events = toy.live("event");
  toy.hold(1);
  void* first = nullptr;
  {
    const c10::DataPtr block = host_allocator().allocate(4096);
    first = block.get();
    ASSERT_TRUE(host_allocator().record_event(block.get(), block.get_context(), side));
  }
  {
    const c10::DataPtr next = host_allocator().allocate(4096);
    EXPECT_NE(next.get(), first) << "a block in use by a stream was given out";
  }
  toy.hold(0);
  host_allocator().empty_cache();
  EXPECT_EQ(host_allocator().get_stats().allocations.current, 0);
  EXPECT_EQ(toy.live("event"), events);
  EXPECT_EQ(toy.live("host"), 0);
}

// A record that fails leaves neither an event object nor a driver's event behind.
TEST_F(DriverTest, AFailedRecordLeavesNothing) {
  const int events = toy.live("event");
  toy.fail("event_record", 1, OPENREG_E_INTERNAL, 0);
  {
    c10::Event event(c10::DeviceType::PrivateUse1);
    EXPECT_HAS(error_of([&] { event.record(guard().getDefaultStream(device(0))); }), "event_record was told to fail");
    EXPECT_TRUE(event.query());
  }
  EXPECT_EQ(toy.live("event"), events);
}

// A deleter may not throw, whatever the driver does: the block is lost, with a warning.
TEST_F(DriverTest, AHostDeleterNeverThrows) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard installed(&warnings);
  {
    const c10::DataPtr block = host_allocator().allocate(512);
    ASSERT_TRUE(host_allocator().record_event(block.get(), block.get_context(), guard().getDefaultStream(device(0))));
    toy.fail("event_record", 1, OPENREG_E_INTERNAL, 0);
  }
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_HAS(warnings.texts[0], "event_record was told to fail");
}

}  // namespace
