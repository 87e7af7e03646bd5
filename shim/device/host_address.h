/* SPDX-License-Identifier: BSD-3-Clause */
// For an extension in C++ that has a CPU kernel and is given openreg tensors: the memory as the host sees it.
#pragma once

#include <ATen/core/Tensor.h>
#include <openreg/openreg.h>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/device/device.h"

namespace c10::openreg {

// The host's address of a tensor's first element, once the work that the calling thread's current stream of the tensor's
// device holds has ended; data_ptr() itself is an address of the device, which the host must not touch. The memory is the
// tensor's: valid while it lives, and to be used before work that changes it is queued. NULL for a tensor without elements.
// Throws c10::NotImplementedError where the host can't reach the device's memory (copy the tensor to the CPU then), and
// c10::Error for a tensor of another device.
inline void* host_address(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.device().type() == c10::DeviceType::PrivateUse1,
      "Expected a tensor of ",
      device_name(),
      ", but got one of ",
      tensor.device());
  if (tensor.numel() == 0) {
    return nullptr;
  }
  const DeviceIndex device = tensor.device().index();
  OPENREG_CHECK(openreg_stream_synchronize(device, current_stream(device).id()));
  void* address = nullptr;
  OPENREG_CHECK(openreg_host_alias(tensor.data_ptr(), &address));
  return address;
}

} // namespace c10::openreg
