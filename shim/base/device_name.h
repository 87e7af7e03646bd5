/* SPDX-License-Identifier: BSD-3-Clause */
// The name that PyTorch has for the device: a vendor's where one is chosen (python/_torch_openreg_device_name.py).
#pragma once

#include <c10/core/DeviceType.h>

#include <string>

namespace c10::openreg {

// "openreg", unless a vendor's name is chosen.
inline std::string device_name() {
  return c10::get_privateuse1_backend(/*lower_case=*/true);
}

// "an openreg", for sentences.
inline std::string a_device_name() {
  const std::string name = device_name();
  return (std::string("aeiou").find(name[0]) == std::string::npos ? "a " : "an ") + name;
}

} // namespace c10::openreg
