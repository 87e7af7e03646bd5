// SPDX-License-Identifier: BSD-3-Clause
// PrivateUse1HooksInterface: each method, before and after the first use of the devices.
#include "shim/registration/hooks.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Storage.h>

#include <numeric>
#include <vector>

#include "shim/device/device.h"
#include "shim/memory/device_allocator.h"
#include "tests/shim/support.h"

namespace {

using namespace openreg_test;
using c10::openreg::device_allocator;
using c10::openreg::host_allocator;

const at::PrivateUse1HooksInterface& hooks() { return at::detail::getPrivateUse1Hooks(); }

class HooksTest : public ShimTest {
 protected:
  // As in a fresh process. Nothing of an earlier test is alive.
  static void close_devices() {
    host_allocator().empty_cache();
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << openreg_last_error()->message;
  }
};

// Loading the library registered everything and opened nothing.
TEST_F(HooksTest, LoadingOpensNoDriver) {
  EXPECT_TRUE(at::isPrivateUse1HooksRegistered());
  EXPECT_FALSE(initialized_at_start);
}

// Questions that PyTorch asks before the devices are open: answered without opening them.
TEST_F(HooksTest, QuestionsInitialiseNothing) {
  close_devices();
  EXPECT_TRUE(hooks().isBuilt());
  EXPECT_TRUE(hooks().isAvailable());
  EXPECT_EQ(hooks().deviceCount(), 2);
  EXPECT_EQ(hooks().getCurrentDevice(), 0);
  int on_the_stack = 0;
  EXPECT_FALSE(hooks().isPinnedPtr(&on_the_stack));
  EXPECT_FALSE(hooks().isPinnedPtr(nullptr));
  EXPECT_FALSE(hooks().hasPrimaryContext(0));
  EXPECT_FALSE(hooks().hasPrimaryContext(-1));
  EXPECT_FALSE(device_allocator().initialized());
  device_allocator().emptyCache();
  host_allocator().empty_cache();
  EXPECT_EQ(openreg_is_initialized(), 0) << "a question opened the driver";
  hooks().init();
  EXPECT_EQ(openreg_is_initialized(), 1);
  hooks().init();
}

// acceptance 4.6b: a context comes with the first allocation, not with the selection.
TEST_F(HooksTest, AContextComesWithTheFirstAllocation) {
  close_devices();
  c10::openreg::set_device(1);
  EXPECT_FALSE(hooks().hasPrimaryContext(1));
  c10::openreg::exchange_device(0);
  c10::openreg::maybe_exchange_device(1);
  EXPECT_FALSE(hooks().hasPrimaryContext(1));
  {
    const c10::DataPtr block = device_allocator().allocate(16);
    EXPECT_TRUE(hooks().hasPrimaryContext(1));
    EXPECT_TRUE(hooks().hasPrimaryContext(-1));  // the current device
    EXPECT_FALSE(hooks().hasPrimaryContext(0));
  }
  EXPECT_THROW(hooks().hasPrimaryContext(2), c10::Error);
  EXPECT_THROW(hooks().hasPrimaryContext(-2), c10::Error);
  c10::openreg::set_device(0);
}

// acceptance 4.33: the device functions are c10::openreg's.
TEST_F(HooksTest, Devices) {
  hooks().setCurrentDevice(1);
  EXPECT_EQ(hooks().getCurrentDevice(), 1);
  EXPECT_EQ(hooks().exchangeDevice(0), 1);
  EXPECT_EQ(hooks().maybeExchangeDevice(-1), -1);
  EXPECT_EQ(hooks().maybeExchangeDevice(1), 0);
  EXPECT_THROW(hooks().setCurrentDevice(2), c10::Error);
  EXPECT_THROW(hooks().exchangeDevice(-1), c10::Error);
  EXPECT_THROW(hooks().maybeExchangeDevice(-2), c10::Error);
  hooks().setCurrentDevice(0);
}

// Pinned: any address inside a pinned block, no other.
TEST_F(HooksTest, PinnedPointers) {
  const c10::DataPtr pinned = host_allocator().allocate(4096);
  const c10::DataPtr block = device_allocator().allocate(4096);
  EXPECT_TRUE(hooks().isPinnedPtr(pinned.get()));
  EXPECT_TRUE(hooks().isPinnedPtr(static_cast<char*>(pinned.get()) + 4000));
  EXPECT_FALSE(hooks().isPinnedPtr(block.get()));
  EXPECT_FALSE(hooks().isPinnedPtr(reinterpret_cast<void*>(uintptr_t{8})));
  EXPECT_EQ(hooks().getPinnedMemoryAllocator(), &host_allocator());
}

// The device of any address inside a block; host memory has none.
TEST_F(HooksTest, DeviceFromPointer) {
  const c10::DataPtr block = device_allocator().allocate_on(1, 4096);
  const c10::DataPtr pinned = host_allocator().allocate(64);
  EXPECT_EQ(hooks().getDeviceFromPtr(block.get()), device(1));
  EXPECT_EQ(hooks().getDeviceFromPtr(static_cast<char*>(block.get()) + 100), device(1));
  EXPECT_EQ(at::globalContext().getDeviceFromPtr(block.get(), c10::DeviceType::PrivateUse1), device(1));
  int on_the_stack = 0;
  EXPECT_HAS(error_of([&] { hooks().getDeviceFromPtr(&on_the_stack); }), "is not memory of an openreg device.");
  EXPECT_HAS(error_of([&] { hooks().getDeviceFromPtr(pinned.get()); }), "it is pinned host memory");
  EXPECT_THROW(hooks().getDeviceFromPtr(nullptr), c10::Error);
}

class ResizeTest : public HooksTest {
 protected:
  static c10::Storage make(size_t size, bool resizable = true) {
    return {c10::Storage::use_byte_size_t(), size, device_allocator().allocate_on(1, size), &device_allocator(),
            resizable};
  }
  static void write(const c10::Storage& storage, const std::vector<unsigned char>& bytes) {
    ASSERT_EQ(openreg_memcpy(storage.mutable_data(), 1, bytes.data(), OPENREG_HOST, bytes.size()), OPENREG_OK);
  }
  static std::vector<unsigned char> read(const c10::Storage& storage, size_t size) {
    std::vector<unsigned char> bytes(size);
    EXPECT_EQ(openreg_memcpy(bytes.data(), OPENREG_HOST, storage.data(), 1, size), OPENREG_OK);
    return bytes;
  }
};

// Growing and shrinking keep what fits, on the storage's own device; 0 bytes are fine.
TEST_F(ResizeTest, KeepsWhatFits) {
  std::vector<unsigned char> bytes(1000);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(3));
  const c10::Storage storage = make(bytes.size());
  write(storage, bytes);

  hooks().resizePrivateUse1Bytes(storage, 5000);
  EXPECT_EQ(storage.nbytes(), 5000u);
  EXPECT_EQ(storage.device(), device(1));
  EXPECT_EQ(read(storage, bytes.size()), bytes);

  hooks().resizePrivateUse1Bytes(storage, 100);
  EXPECT_EQ(storage.nbytes(), 100u);
  bytes.resize(100);
  EXPECT_EQ(read(storage, 100), bytes);

  hooks().resizePrivateUse1Bytes(storage, 0);
  EXPECT_EQ(storage.nbytes(), 0u);
  EXPECT_EQ(storage.data(), nullptr);
  EXPECT_EQ(storage.device(), device(1));

  hooks().resizePrivateUse1Bytes(storage, 64);
  EXPECT_NE(storage.data(), nullptr);
  EXPECT_EQ(c10::openreg::current_device(), 0);
}

// A failure leaves the storage as it was.
TEST_F(ResizeTest, FailureChangesNothing) {
  const c10::Storage storage = make(8);
  write(storage, {1, 2, 3, 4, 5, 6, 7, 8});
  const void* before = storage.data();
  EXPECT_THROW(hooks().resizePrivateUse1Bytes(storage, size_t{1} << 40), c10::OutOfMemoryError);
  EXPECT_EQ(storage.data(), before);
  EXPECT_EQ(storage.nbytes(), 8u);
  EXPECT_EQ(read(storage, 8), (std::vector<unsigned char>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_HAS(error_of([] { hooks().resizePrivateUse1Bytes(make(8, false), 16); }), "not resizable");
}

}  // namespace
