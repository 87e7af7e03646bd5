// SPDX-License-Identifier: BSD-3-Clause
// Sizes: structures and tables may get fields at their end, so shorter ones (down to the first version) and longer ones
// than today's are accepted, and less than the first version is an error.
#include <openreg/allocator.h>
#include <openreg/ipc.h>
#include <openreg/kernels.h>
#include <openreg/schedule.h>
#include <openreg/sharing.h>
#include <openreg/trace.h>
#include <openreg/vmm.h>

#include <array>
#include <cstring>

#include "runtime_test.h"

namespace openreg_test {
namespace {

// What a program with a later header has: the same structure and more behind it.
template <typename T>
struct Longer {
  T known{};
  std::array<unsigned char, 16> later;
  Longer() {
    known.struct_size = sizeof(Longer);
    later.fill(0xa5);
  }
  bool is_untouched() const {
    for (const unsigned char byte : later) {
      if (byte != 0xa5) return false;
    }
    return true;
  }
};

class SizesTest : public RuntimeTest {
 protected:
  // `call` takes the structure. The frozen size and more are accepted, and less is not.
  template <typename T, typename Call>
  void check(uint32_t frozen, const Call& call, const std::function<void(T&)>& prepare = [](T&) {}) {
    Longer<T> longer;
    prepare(longer.known);
    EXPECT_EQ(call(longer.known), OPENREG_OK) << last_message();
    EXPECT_TRUE(longer.is_untouched());
    EXPECT_EQ(longer.known.struct_size, sizeof longer) << "the caller's size is not the library's to change";
    for (const uint32_t less : {frozen - 1, 0u}) {
      Longer<T> shorter;
      prepare(shorter.known);
      shorter.known.struct_size = less;
      T before;
      std::memcpy(&before, &shorter.known, sizeof before);
      EXPECT_EQ(call(shorter.known), OPENREG_E_INVALID);
      EXPECT_EQ(std::memcmp(&before, &shorter.known, sizeof before), 0) << "written on failure";
    }
    T exact{};
    prepare(exact);
    exact.struct_size = frozen;
    EXPECT_EQ(call(exact), OPENREG_OK) << last_message();
  }
};

// Every structure that the runtime fills.
TEST_F(SizesTest, StructuresThatAreFilled) {
  set("OPENREG_DRIVERS", "sim");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  check<openreg_device_properties>(OPENREG_DEVICE_PROPERTIES_SIZE_1,
                                   [](auto& it) { return openreg_device_get_properties(0, &it); });
  check<openreg_device_properties>(OPENREG_DEVICE_PROPERTIES_SIZE_1,
                                   [](auto& it) { return openreg_driver_get_device_properties("sim", 0, &it); });
  check<openreg_pointer_info>(OPENREG_POINTER_INFO_SIZE_1, [](auto& it) { return openreg_pointer_get_info(&it, &it); });
  check<openreg_memory_stats>(OPENREG_MEMORY_STATS_SIZE_1, [](auto& it) { return openreg_memory_get_stats(0, &it); });
  check<openreg_allocator_settings>(OPENREG_ALLOCATOR_SETTINGS_SIZE_1,
                                    [](auto& it) { return openreg_allocator_default_settings(&it); });
  check<openreg_allocator_settings>(OPENREG_ALLOCATOR_SETTINGS_SIZE_1,
                                    [](auto& it) { return openreg_allocator_get_settings(&it); });
  check<openreg_driver_record>(OPENREG_DRIVER_RECORD_SIZE_1,
                               [](auto& it) { return openreg_driver_get_record(0, &it); });
  check<openreg_driver_record>(OPENREG_DRIVER_RECORD_SIZE_1, [](auto& it) { return openreg_driver_find("sim", &it); });
  check<openreg_selection>(OPENREG_SELECTION_SIZE_1, [](auto& it) { return openreg_selection_get(&it); });
}

// Every structure that the runtime reads.
TEST_F(SizesTest, StructuresThatAreRead) {
  set("OPENREG_DRIVERS", "sim");
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  check<openreg_allocator_settings>(
      OPENREG_ALLOCATOR_SETTINGS_SIZE_1, [](const auto& it) { return openreg_allocator_set_settings(&it); },
      [](auto& it) {
        const uint32_t size = it.struct_size;
        it.struct_size = sizeof it;
        ASSERT_EQ(openreg_allocator_default_settings(&it), OPENREG_OK);
        it.struct_size = size;
      });
  check<openreg_tracer>(
      OPENREG_TRACER_SIZE_1,
      [](const auto& it) {
        const openreg_status status = openreg_trace_start(&it);
        return status == OPENREG_OK ? openreg_trace_stop() : status;
      },
      [](auto& it) { it.record = [](void*, const openreg_trace_record*) {}; });
  check<openreg_registration>(
      OPENREG_REGISTRATION_SIZE_1, [](const auto& it) { return openreg_driver_register(&it); },
      [](auto& it) {
        it.name = "later";
        it.factory = [](void*, openreg_factory_result*) { return openreg_status{OPENREG_E_NO_DEVICE}; };
      });
}

// An array of structures is stepped through by the size that its first element gives.
TEST_F(SizesTest, ArraysHaveTheCallersStep) {
  Longer<openreg_device_properties> devices[2];
  int32_t count = 0;
  ASSERT_EQ(openreg_driver_get_topology("sim", "", nullptr, 0, 2, &devices[0].known, nullptr, &count), OPENREG_OK)
      << last_message();
  ASSERT_EQ(count, 2);
  EXPECT_STREQ(devices[1].known.name, "OpenReg simulated device 1");
  EXPECT_TRUE(devices[0].is_untouched() && devices[1].is_untouched());
}

Longer<openreg_ipc> ipc;
Longer<openreg_vmm> vmm;
Longer<openreg_kernels> kernels;
int reservations = 0;

const void* extension(openreg_instance, const char* name, uint32_t) {
  if (std::strcmp(name, OPENREG_SCHEDULE_NAME) == 0) return nullptr;
  if (std::strcmp(name, OPENREG_IPC_NAME) == 0) return &ipc;
  if (std::strcmp(name, OPENREG_VMM_NAME) == 0) return &vmm;
  return &kernels;
}

openreg_status mm(openreg_instance, const openreg_kernel_call*) { return OPENREG_OK; }
const Longer<openreg_kernel_call>* as_longer(const openreg_kernel_call* call) {
  return reinterpret_cast<const Longer<openreg_kernel_call>*>(call);
}
openreg_status sees_later(openreg_instance, const openreg_kernel_call* call) {
  const bool is_whole = call->struct_size == sizeof *as_longer(call) && as_longer(call)->is_untouched();
  return is_whole ? OPENREG_OK : OPENREG_E_INTERNAL;
}

// The tables of a driver that was built with a later header are used as far as they are known; shorter ones than the
// first version are not.
TEST_F(SizesTest, TablesOfExtensions) {
  static const openreg_kernel entries[] = {{"aten::mm", mm, 0, nullptr}, {"aten::relu", sees_later, 0, nullptr}};
  use_full_toy([](openreg_driver& table) { table.extension = extension; });
  ipc.known.handle_size = [](openreg_instance, uint32_t* out) -> openreg_status {
    *out = 65;
    return OPENREG_OK;
  };
  ipc.known.memory_export = [](openreg_instance, int32_t, void*, const int32_t*, uint32_t, void*) -> openreg_status {
    return OPENREG_OK;
  };
  ipc.known.version = OPENREG_IPC_VERSION;
  ipc.known.memory_open = [](openreg_instance, int32_t, const void*, void**) -> openreg_status {
    return OPENREG_E_UNSUPPORTED;
  };
  ipc.known.memory_close = [](openreg_instance, int32_t, void*) -> openreg_status { return OPENREG_OK; };
  vmm.known.version = OPENREG_VMM_VERSION;
  vmm.known.granularity = [](openreg_instance, int32_t, uint64_t* out) -> openreg_status {
    *out = 4096;
    return OPENREG_OK;
  };
  vmm.known.map = vmm.known.unmap = [](openreg_instance, int32_t, void*, uint64_t, uint64_t) -> openreg_status {
    return OPENREG_E_NOMEM;
  };
  vmm.known.release = [](openreg_instance, int32_t, void*) -> openreg_status { return OPENREG_OK; };
  vmm.known.reserve = [](openreg_instance, int32_t, uint64_t, void**) -> openreg_status {
    ++reservations;
    return OPENREG_E_NOMEM;
  };
  kernels.known.version = OPENREG_KERNELS_VERSION;
  kernels.known.kernel_size = sizeof entries[0];
  kernels.known.count = 2;
  kernels.known.list = entries;

  void* const block = allocate(0, 4096);
  check<openreg_memory_handle>(OPENREG_MEMORY_HANDLE_SIZE_1, [block](auto& it) {
    const openreg_status status = openreg_memory_export(block, &it);
    if (status != OPENREG_OK) return status;
    openreg_import import = nullptr;  // whose end frees the block
    int32_t device = -1;
    void* ptr = nullptr;
    EXPECT_EQ(openreg_memory_import(&it, &import, &device, &ptr), OPENREG_OK);
    EXPECT_EQ(ptr, block);
    return openreg_import_release(import);
  });
  ipc.known.struct_size = OPENREG_IPC_SIZE_1 - 8;
  auto handle = sized<openreg_memory_handle>();
  expect_error(openreg_memory_export(block, &handle), OPENREG_E_INCOMPATIBLE, "its table openreg.ipc has ");

  const openreg_kernels* table = nullptr;
  ASSERT_EQ(openreg_device_get_kernels(0, &table), OPENREG_OK) << last_message();
  ASSERT_EQ(table, &kernels.known);
  check<openreg_kernel_call>(
      OPENREG_KERNEL_CALL_SIZE_1, [&](auto& it) { return openreg_kernel_run(&table->list[0], 0, 0, &it); },
      [](auto& it) { it.name = "aten::mm"; });
  Longer<openreg_kernel_call> call;
  call.known.name = "aten::relu";
  EXPECT_EQ(openreg_kernel_run(&table->list[1], 0, 0, &call.known), OPENREG_OK) << "a kernel gets the caller's fields";
  kernels.known.struct_size = OPENREG_KERNELS_SIZE_1 - 8;
  EXPECT_EQ(openreg_device_get_kernels(0, &table), OPENREG_E_INCOMPATIBLE);

  use_settings([](auto& settings) { settings.expandable_segments = 1; });
  void* large = allocate(0, 64 << 20);
  EXPECT_GT(reservations, 0);
  EXPECT_EQ(openreg_free(large), OPENREG_OK);
  ASSERT_EQ(openreg_memory_empty_cache(-1), OPENREG_OK);
  vmm.known.struct_size = OPENREG_VMM_SIZE_1 - 8;
  reservations = 0;
  ASSERT_EQ(openreg_malloc(0, 0, 64 << 20, &large), OPENREG_OK) << last_message();
  EXPECT_EQ(reservations, 0);
  EXPECT_GE(count_lines(OPENREG_LOG_WARNING, "its table openreg.vmm has 40 bytes, version 1 needs at least 48"), 1);
  EXPECT_EQ(openreg_free(large), OPENREG_OK);
  use_settings([](auto&) {});
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
}

}  // namespace
}  // namespace openreg_test
