// SPDX-License-Identifier: BSD-3-Clause
// Registrations of the shim. They run inside dlopen(): each stores a pointer, opens no driver, reads no environment
// variable and throws nothing. The objects are never destroyed, so nothing of them runs at exit. Operators and autocast
// rules register in their own files.
#include "shim/registration/registration.h"

#include <ATen/core/CachingHostAllocator.h>

#include "shim/device/guard.h"
#include "shim/memory/allocator_settings.h"
#include "shim/memory/device_allocator.h"
#include "shim/memory/host_allocator.h"
#include "shim/registration/hooks.h"

namespace c10::openreg {

namespace {

const char* register_backend() noexcept {
  constexpr DeviceType type = DeviceType::PrivateUse1;
  if (at::isPrivateUse1HooksRegistered() || c10::impl::hasDeviceGuardImpl(type)) {
    return "another PrivateUse1 backend is registered in this process already";
  }
  try {
    c10::impl::registerDeviceGuard(type, new OpenRegGuardImpl);
    c10::SetAllocator(type, &device_allocator());
    at::setHostAllocator(type, &host_allocator());
    at::RegisterPrivateUse1HooksInterface(new OpenRegHooks);
    register_allocator_settings();
  } catch (...) {
    return "PyTorch refused the registration";
  }
  return nullptr;
}

const char* const registration_result = register_backend();

} // namespace

const char* registration_error() noexcept {
  return registration_result;
}

} // namespace c10::openreg
