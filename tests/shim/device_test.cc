// SPDX-License-Identifier: BSD-3-Clause
// c10::openreg's device functions: what they change, and what a wrong index does.
#include "shim/device/device.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <openreg/openreg.h>

#include "shim/base/status.h"
#include "shim/device/host_address.h"
#include "shim/memory/device_allocator.h"
#include "tests/shim/support.h"

namespace {

using c10::DeviceIndex;
using namespace openreg_test;
namespace openreg = c10::openreg;

class DeviceTest : public ShimTest {};

// acceptance 4.1: the C++ function, the guard and the C runtime share one current device.
TEST_F(DeviceTest, AllLayersShareTheCurrentDevice) {
  openreg::set_device(1);
  EXPECT_EQ(openreg_current_device(), 1);
  EXPECT_EQ(openreg::current_device(), 1);
  EXPECT_EQ(guard().getDevice(), device(1));
  ASSERT_EQ(openreg_set_device(0), OPENREG_OK);
  EXPECT_EQ(openreg::current_device(), 0);
}

// acceptance 4.3: every layer gives the same count, from noexcept functions.
TEST_F(DeviceTest, AllLayersShareTheCount) {
  static_assert(noexcept(openreg::device_count()));
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_EQ(openreg::device_count(), 2);
  EXPECT_EQ(openreg::device_count_ensure_non_zero(), 2);
  EXPECT_EQ(guard().deviceCount(), 2);
}

// acceptance 4.7, 4.12, 4.15: an index out of range is refused with its number, and nothing changes.
TEST_F(DeviceTest, AnIndexOutOfRangeIsRefused) {
  for (const int index : {2, 65, 99, 127, -1, -2, -56}) {
    const std::string text = error_of([&] { openreg::set_device(static_cast<DeviceIndex>(index)); });
    EXPECT_HAS(text, "The device index is out of range. It must be in [0, 2), but got " + std::to_string(index) + ".");
    EXPECT_HAS(text, "OPENREG_E_INVALID");   // acceptance 4.13: the code's name
    EXPECT_HAS(text, "openreg_set_device");  // and the call
    EXPECT_EQ(openreg::current_device(), 0);
    EXPECT_EQ(openreg::SetDevice(static_cast<DeviceIndex>(index)), OPENREG_E_INVALID);
  }
}

// acceptance 4.12: "openreg:200" reaches C++ as -56; no allocation happens, on no device.
TEST_F(DeviceTest, AWrappedIndexIsNoDevice) {
  const c10::Device wrapped("privateuseone:200");
  ASSERT_EQ(wrapped.index(), -56);
  for (const size_t size : {size_t{0}, size_t{16}}) {
    const std::string text = error_of([&] { openreg::device_allocator().allocate_on(wrapped.index(), size); });
    EXPECT_HAS(text, "The device index is out of range. It must be in [0, 2), but got -56.");
  }
  EXPECT_THROW(guard().getStream(wrapped), c10::Error);
  EXPECT_THROW(guard().exchangeDevice(wrapped), c10::Error);
}

// acceptance 4.12: an integer beyond int8 must not wrap around to a valid index.
TEST_F(DeviceTest, NarrowingRefusesWhatDoesNotFit) {
  EXPECT_EQ(openreg::narrow_device_index(1), 1);
  EXPECT_EQ(openreg::narrow_device_index(-128), -128);  // a DeviceIndex; the runtime refuses it
  for (const int64_t index : {int64_t{128}, int64_t{256}, int64_t{257}, int64_t{-129}, int64_t{1} << 40}) {
    EXPECT_HAS(error_of([&] { openreg::narrow_device_index(index); }),
               "The device index is out of range. It must be in [0, 2), but got " + std::to_string(index) + ".");
  }
}

// For an extension's CPU kernel: the host's address of a tensor's first element, after the work of its stream. What isn't
// on openreg is refused.
TEST_F(DeviceTest, HostAddressOfATensor) {
  const at::Tensor x = at::arange(6, at::TensorOptions().dtype(at::kFloat).device(device(1)));
  x.add_(1);
  const auto* first = static_cast<const float*>(openreg::host_address(x));
  ASSERT_NE(first, x.data_ptr());
  EXPECT_EQ(first[0], 1.0F);
  EXPECT_EQ(first[5], 6.0F);
  EXPECT_EQ(*static_cast<const float*>(openreg::host_address(x.slice(0, 2))), 3.0F);
  EXPECT_EQ(openreg::host_address(x.slice(0, 0, 0)), nullptr);
  EXPECT_THROW(openreg::host_address(at::ones({2})), c10::Error);
}

}  // namespace
