// SPDX-License-Identifier: BSD-3-Clause
#include "shim/memory/sharing.h"

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/memory/device_allocator.h"

namespace c10::openreg {

namespace {

void release_import(void* import) noexcept {
  const openreg_status status = openreg_import_release(static_cast<openreg_import>(import));
  // In a forked child the import is the parent's.
  if (C10_UNLIKELY(status != OPENREG_OK && status != OPENREG_E_FORKED)) {
    warn_of_failure("Memory of another process could not be released: ", openreg_last_error()->message);
  }
}

} // namespace

openreg_memory_handle export_storage(const Storage& storage) {
  const Device device = storage.device();
  TORCH_CHECK(
      device.is_privateuseone(), "Expected a storage of ", a_device_name(), " device, but got one of ", device, ".");
  // Not of one stream: a queue of multiprocessing exports in a thread of its own, whose streams are not the sender's.
  {
    const WaitScope waiting;
    OPENREG_CHECK(openreg_device_synchronize(device.index()));
  }
  openreg_memory_handle handle{};
  handle.struct_size = sizeof handle;
  OPENREG_CHECK(openreg_memory_export(storage.data(), &handle));
  return handle;
}

Storage import_storage(const openreg_memory_handle& handle, size_t size) {
  TORCH_CHECK(size <= handle.size, "The shared memory has ", handle.size, " bytes, but ", size, " were requested.");
  openreg_import import = nullptr;
  int32_t device = 0;
  void* memory = nullptr;
  OPENREG_CHECK(openreg_memory_import(&handle, &import, &device, &memory));
  DataPtr data(memory, import, &release_import, Device(DeviceType::PrivateUse1, static_cast<DeviceIndex>(device)));
  return make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(),
      static_cast<int64_t>(size),
      std::move(data),
      &device_allocator(),
      /*resizable=*/false); // another process has the bytes behind it
}

} // namespace c10::openreg
