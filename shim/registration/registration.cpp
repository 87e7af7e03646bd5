// SPDX-License-Identifier: BSD-3-Clause
// All registrations of the shim, in their order. They run inside dlopen(), which calls register_backend() and nothing else
// of the shim: so no file may rely on an object of namespace scope that has a constructor. Each stores a pointer, opens no
// driver, reads no environment variable but OPENREG_DEVICE_NAME and throws nothing. The objects are never destroyed, so nothing of them runs at
// exit. Where another backend has the device, nothing is registered.
#include "shim/registration/registration.h"

#include <ATen/core/CachingHostAllocator.h>
#include <openreg/embedding.h>

#include "shim/device/guard.h"
#include "shim/device/profiler.h"
#include "shim/memory/allocator_settings.h"
#include "shim/memory/device_allocator.h"
#include "shim/memory/host_allocator.h"
#include "shim/operators/aten/registrations.h"
#include "shim/operators/fallback/fallback.h"
#include "shim/registration/hooks.h"

namespace c10::openreg {

namespace {

void register_operators() {
  register_fallbacks();
  register_attention();
  register_autocast();
  register_concatenation();
  register_copies();
  register_dispatch_stubs();
  register_dropout();
  register_factories();
  register_fills();
  register_lstm();
  register_recurrent_cells();
  register_tensor_properties();
  register_views();
  // Behind all others, those of parts among them: these two look for operators that have no kernel yet.
  register_fourier();
  register_remaining_operators();
}

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
    register_profiler_stubs();
    register_parts();
    register_operators();
    // What isn't a word for the runtime is none for Python, which refuses it.
    (void)openreg_set_device_name(c10::get_privateuse1_backend().c_str());
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
