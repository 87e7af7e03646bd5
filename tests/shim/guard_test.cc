// SPDX-License-Identifier: BSD-3-Clause
// PyTorch's device guards on openreg.
#include "shim/device/guard.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "shim/device/device.h"
#include "tests/shim/support.h"

namespace {

using namespace openreg_test;
namespace openreg = c10::openreg;

class GuardTest : public ShimTest {};

// acceptance 4.27: the registered implementation is ours.
TEST_F(GuardTest, IsRegistered) {
  EXPECT_NE(dynamic_cast<const openreg::OpenRegGuardImpl*>(&guard()), nullptr);
  EXPECT_EQ(guard().type(), c10::DeviceType::PrivateUse1);
}

// acceptance 4.25: switches on construction, restores on destruction.
TEST_F(GuardTest, SwitchesAndRestores) {
  {
    const c10::DeviceGuard on(device(1));
    EXPECT_EQ(on.original_device(), device(0));
    EXPECT_EQ(openreg::current_device(), 1);
  }
  EXPECT_EQ(openreg::current_device(), 0);
  {
    const c10::DeviceGuard on(device(-1));  // no index: the current device
    EXPECT_EQ(on.current_device(), device(0));
  }
}

// acceptance 4.26: nested guards restore when an exception leaves them.
TEST_F(GuardTest, RestoresWhenAnExceptionLeaves) {
  try {
    const c10::DeviceGuard outer(device(1));
    const c10::DeviceGuard inner(device(0));
    const c10::DeviceGuard innermost(device(1));
    throw std::runtime_error("leave");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(openreg::current_device(), 0);
  EXPECT_THROW(c10::DeviceGuard(device(99)), c10::Error);
  EXPECT_EQ(openreg::current_device(), 0);
}

// acceptance 4.28: an index that names no device is refused, -1 too, and the current device stays.
TEST_F(GuardTest, ExchangeRefusesWhatIsNoDevice) {
  EXPECT_EQ(guard().exchangeDevice(device(1)), device(0));
  for (const int index : {-1, -2, -56, 2, 99}) {
    EXPECT_THROW(guard().exchangeDevice(device(static_cast<c10::DeviceIndex>(index))), c10::Error) << index;
    EXPECT_EQ(openreg::current_device(), 1);
  }
  EXPECT_EQ(guard().exchangeDevice(device(0)), device(1));
}

// acceptance 4.29
TEST_F(GuardTest, SetAndGet) {
  guard().setDevice(device(1));
  EXPECT_EQ(guard().getDevice(), device(1));
  guard().setDevice(device(0));
  EXPECT_EQ(guard().deviceCount(), 2);
}

// acceptance 4.30: devices of another type are refused by constructor, exchangeDevice, setDevice and the streams.
TEST_F(GuardTest, ChecksTheDeviceType) {
  const char* text = "Expected a PrivateUse1 device, but got cpu";
  const c10::Device cpu(c10::DeviceType::CPU);
  EXPECT_HAS(error_of([&] { guard().setDevice(cpu); }), text);
  EXPECT_HAS(error_of([&] { guard().exchangeDevice(cpu); }), text);
  EXPECT_HAS(error_of([&] { guard().getStream(cpu); }), text);
  EXPECT_HAS(error_of([&] { guard().getNewStream(cpu, 0); }), text);
  EXPECT_HAS(error_of([] { openreg::OpenRegGuardImpl{c10::DeviceType::CPU}; }), text);
  EXPECT_NO_THROW(openreg::OpenRegGuardImpl{c10::DeviceType::PrivateUse1});
}

// acceptance 4.30b: what runs in destructors is noexcept and ignores every index that it can't use.
TEST_F(GuardTest, UncheckedSetNeverThrows) {
  static_assert(
      noexcept(std::declval<const openreg::OpenRegGuardImpl&>().uncheckedSetDevice(std::declval<c10::Device>())));
  static_assert(noexcept(std::declval<const openreg::OpenRegGuardImpl&>().destroyEvent(nullptr, 0)));
  static_assert(noexcept(std::declval<const openreg::OpenRegGuardImpl&>().deviceCount()));
  guard().uncheckedSetDevice(device(1));
  EXPECT_EQ(openreg::current_device(), 1);
#ifdef NDEBUG
  const std::vector<int> unusable{99, 2, -1, -2, -56};
#else
  const std::vector<int> unusable{99, 2, -1};  // the others can't be made
#endif
  for (const int index : unusable) {
    guard().uncheckedSetDevice(device(static_cast<c10::DeviceIndex>(index)));
    EXPECT_EQ(openreg::current_device(), 1) << index;
  }
  guard().uncheckedSetDevice(device(0));
  guard().destroyEvent(nullptr, -1);
}

// acceptance 4.31, 4.32: the other guards of c10.
TEST_F(GuardTest, OptionalDeviceGuard) {
  {
    const c10::OptionalDeviceGuard none{std::optional<c10::Device>()};
    EXPECT_EQ(openreg::current_device(), 0);
    EXPECT_FALSE(none.original_device().has_value());
  }
  {
    c10::OptionalDeviceGuard later{std::optional<c10::Device>()};
    later.reset_device(device(1));
    EXPECT_EQ(openreg::current_device(), 1);
  }
  EXPECT_EQ(openreg::current_device(), 0);
}

// acceptance 4.31: a stream guard selects the stream and its device, and restores both.
TEST_F(GuardTest, StreamGuards) {
  const c10::Stream mine = guard().getNewStream(device(1), 0);
  const c10::Stream other = guard().getNewStream(device(0), 0);
  ASSERT_NE(mine.id(), 0);
  {
    const c10::StreamGuard on(mine);
    EXPECT_EQ(openreg::current_device(), 1);
    EXPECT_EQ(guard().getStream(device(1)), mine);
    EXPECT_EQ(guard().getStream(device(-1)), mine);
  }
  EXPECT_EQ(openreg::current_device(), 0);
  EXPECT_EQ(guard().getStream(device(1)).id(), 0);
  {
    const c10::MultiStreamGuard both({mine, other});
    EXPECT_EQ(openreg::current_device(), 0);  // by contract of MultiStreamGuard
    EXPECT_EQ(guard().getStream(device(1)), mine);
    EXPECT_EQ(guard().getStream(device(0)), other);
  }
  EXPECT_EQ(guard().getStream(device(1)).id(), 0);
  EXPECT_EQ(guard().getStream(device(0)).id(), 0);
}

// acceptance 4.31: torch.accelerator's functions, which torch.accelerator.device_index is made of.
TEST_F(GuardTest, Accelerator) {
  ASSERT_EQ(at::accelerator::getAccelerator(), c10::DeviceType::PrivateUse1);
  EXPECT_EQ(at::accelerator::deviceCount(), 2);
  EXPECT_EQ(at::accelerator::exchangeDevice(1), 0);
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 1);
  EXPECT_EQ(at::accelerator::maybeExchangeDevice(-1), 1);  // gives the index that is current afterwards
  at::accelerator::maybeExchangeDevice(0);
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 0);
  EXPECT_THROW(at::accelerator::setDeviceIndex(2), c10::Error);
  at::accelerator::synchronizeDevice(1);
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 0);
}

// Types that tensors can be converted to: the quantised, packed and sub-byte ones are none.
TEST_F(GuardTest, Capability) {
  const c10::DeviceCapability capability = guard().getDeviceCapability(device(1));
  const auto& types = capability.capability_data.supported_scalar_types;
  EXPECT_TRUE(types.has_Float && types.has_Half && types.has_BFloat16 && types.has_Long && types.has_Bool);
  EXPECT_TRUE(types.has_ComplexFloat && types.has_Double);
  EXPECT_TRUE(types.has_Float8_e4m3fn && types.has_UInt16);
  EXPECT_TRUE(types.has_QInt8 && types.has_QUInt8 && types.has_QInt32 && types.has_QUInt4x2 && types.has_QUInt2x4);
  EXPECT_FALSE(types.has_Bits8 || types.has_Int4);
}

}  // namespace
