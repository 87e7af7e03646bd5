// SPDX-License-Identifier: BSD-3-Clause
// Tables of extensions (driver.h, extension()): what the runtime refuses, with and without the layer of OPENREG_VALIDATE,
// and tables of the shapes that vendors' libraries need.
#include <openreg/allocator.h>
#include <openreg/communicators.h>
#include <openreg/ipc.h>
#include <openreg/schedule.h>
#include <openreg/sharing.h>
#include <openreg/vmm.h>

#include <array>
#include <cstring>

#include "../../../runtime/sharing/handle.h"
#include "runtime_test.h"

namespace openreg_test {
namespace {

constexpr openreg_status kOk = OPENREG_OK;

// One extension at a time: its name and a copy of its table.
const char* offered_name;
alignas(8) std::array<unsigned char, 256> offered;

// What the driver was given last.
std::vector<unsigned char> seen_id, seen_key;
std::vector<int32_t> permitted;
uint32_t id_bytes, key_bytes;

openreg_comm comm_table() {
  auto table = sized<openreg_comm>();
  table.version = OPENREG_COMM_VERSION;
  table.id_size = [](openreg_instance, uint32_t* out) { return *out = id_bytes, kOk; };
  table.unique_id = [](openreg_instance, int32_t, void* id) {
    for (uint32_t i = 0; i < id_bytes; ++i) static_cast<unsigned char*>(id)[i] = static_cast<unsigned char>(i * 7 + 1);
    return kOk;
  };
  table.init = [](openreg_instance, int32_t, int32_t, int32_t, const void* id, openreg_driver_comm* out) {
    const auto* const bytes = static_cast<const unsigned char*>(id);
    seen_id.assign(bytes, bytes + id_bytes);
    *out = reinterpret_cast<openreg_driver_comm>(&offered);
    return kOk;
  };
  table.queue = [](openreg_instance, openreg_driver_comm, openreg_driver_stream, const openreg_collective*, uint32_t) {
    return kOk;
  };
  table.get_error = table.abort = table.destroy = [](openreg_instance, openreg_driver_comm) { return kOk; };
  return table;
}

openreg_ipc ipc_table() {
  auto table = sized<openreg_ipc>();
  table.version = OPENREG_IPC_VERSION;
  table.handle_size = [](openreg_instance, uint32_t* out) { return *out = key_bytes, kOk; };
  table.memory_export = [](openreg_instance, int32_t, void*, const int32_t* processes, uint32_t count, void* handle) {
    if (count > 0) permitted.assign(processes, processes + count);
    std::memset(handle, 'k', key_bytes - 1);
    static_cast<char*>(handle)[key_bytes - 1] = '\0';
    return kOk;
  };
  table.memory_open = [](openreg_instance, int32_t, const void*, void**) -> openreg_status {
    return OPENREG_E_UNSUPPORTED;
  };
  table.memory_close = [](openreg_instance, int32_t, void*) { return kOk; };
  return table;
}

openreg_vmm vmm_table() {
  auto table = sized<openreg_vmm>();
  table.version = OPENREG_VMM_VERSION;
  table.granularity = [](openreg_instance, int32_t, uint64_t* out) { return *out = 1 << 21, kOk; };
  table.reserve = [](openreg_instance, int32_t, uint64_t, void**) -> openreg_status { return OPENREG_E_NOMEM; };
  table.map = table.unmap = [](openreg_instance, int32_t, void*, uint64_t, uint64_t) { return kOk; };
  table.release = [](openreg_instance, int32_t, void*) { return kOk; };
  return table;
}

openreg_schedule schedule_table() {
  auto table = sized<openreg_schedule>();
  table.version = OPENREG_SCHEDULE_VERSION;
  table.poison = [](openreg_instance, int32_t, openreg_driver_stream, void*, uint64_t) { return kOk; };
  return table;
}

class ExtensionsTest : public RuntimeTest, public ::testing::WithParamInterface<bool> {
 protected:
  template <typename Table>
  void offer(const char* name, const Table& table) {
    static_assert(sizeof table <= sizeof offered);
    offered_name = name;
    std::memcpy(offered.data(), &table, sizeof table);
  }
  void SetUp() override {
    RuntimeTest::SetUp();
    if (GetParam()) set("OPENREG_VALIDATE", "1");
    use_full_toy([](openreg_driver& table) {
      table.extension = [](openreg_instance, const char* name, uint32_t) -> const void* {
        return offered_name != nullptr && std::strcmp(name, offered_name) == 0 ? offered.data() : nullptr;
      };
    });
  }
  void start() { ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message(); }
  // Each function in turn is missing; `use` needs the table.
  template <typename Table, typename Use>
  void each_hole(const char* name, const Table& whole, const Use& use) {
    for (size_t at = 2 * sizeof(uint32_t); at < sizeof whole; at += sizeof(void*)) {
      SCOPED_TRACE(at);
      offer(name, whole);
      std::memset(offered.data() + at, 0, sizeof(void*));
      start();
      use(std::string("its table ") + name + " lacks the required function ");
      ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
    }
    Table other = whole;
    --other.version;
    offer(name, other);
    start();
    use(std::string("its table ") + name + " has version 0");
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  }
  void TearDown() override {
    RuntimeTest::TearDown();
    offered_name = nullptr;
  }
};
INSTANTIATE_TEST_SUITE_P(Validated, ExtensionsTest, ::testing::Bool(),
                         [](const auto& it) { return std::string(it.param ? "Yes" : "No"); });

// A table that lacks a required function, or is of an older version, is refused by name where an error can be told.
TEST_P(ExtensionsTest, HolesAreErrors) {
  id_bytes = 128;
  key_bytes = 64;
  each_hole(OPENREG_COMM_NAME, comm_table(), [](const std::string& why) {
    int32_t has = 0;
    unsigned char id[128];
    expect_error(openreg_device_has_communicators(0, &has), OPENREG_E_INCOMPATIBLE, why);
    EXPECT_EQ(openreg_communicator_id(0, id, sizeof id), OPENREG_E_INCOMPATIBLE);
  });
  each_hole(OPENREG_IPC_NAME, ipc_table(), [](const std::string& why) {
    void* const block = allocate(0, 4096);
    auto handle = sized<openreg_memory_handle>();
    expect_error(openreg_memory_export(block, &handle), OPENREG_E_INCOMPATIBLE, why);
    EXPECT_EQ(openreg_free(block), OPENREG_OK);
    EXPECT_EQ(openreg_memory_empty_cache(-1), OPENREG_OK);
  });
}

// What the runtime does without goes on without, with a warning.
TEST_P(ExtensionsTest, HolesAreWarnings) {
  use_settings([](auto& settings) { settings.expandable_segments = 1; });
  const auto allocates = [this](const std::string& why) {
    void* const block = allocate(0, 32 << 20);
    EXPECT_EQ(openreg_free(block), OPENREG_OK);
    EXPECT_EQ(openreg_memory_empty_cache(-1), OPENREG_OK);
    EXPECT_GE(count_lines(OPENREG_LOG_WARNING, why), 1);
  };
  each_hole(OPENREG_VMM_NAME, vmm_table(), allocates);
  each_hole(OPENREG_SCHEDULE_NAME, schedule_table(), allocates);
  use_settings([](auto&) {});
}

// Ids of NCCL's, oneCCL's and HCCL's sizes, and the largest, reach init() whole.
TEST_P(ExtensionsTest, IdsOfVendors) {
  for (const uint32_t bytes : {1u, 128u, 256u, 4108u, OPENREG_COMM_ID_MAX}) {
    SCOPED_TRACE(bytes);
    id_bytes = bytes;
    offer(OPENREG_COMM_NAME, comm_table());
    start();
    uint32_t size = 0;
    ASSERT_EQ(openreg_communicator_id_size(1, &size), OPENREG_OK) << last_message();
    ASSERT_EQ(size, bytes);
    std::vector<unsigned char> id(size + 1, 0xa5);
    ASSERT_EQ(openreg_communicator_id(1, id.data(), size), OPENREG_OK) << last_message();
    EXPECT_EQ(id[size], 0xa5);
    openreg_communicator communicator = nullptr;
    ASSERT_EQ(openreg_communicator_create(1, 0, 1, id.data(), size, &communicator), OPENREG_OK) << last_message();
    id.pop_back();
    EXPECT_EQ(seen_id, id);
    EXPECT_EQ(openreg_communicator_destroy(communicator), OPENREG_OK);
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  }
  for (const uint32_t bytes : {0u, OPENREG_COMM_ID_MAX + 1}) {
    id_bytes = bytes;
    start();
    uint32_t size = 7;
    EXPECT_EQ(openreg_communicator_id_size(0, &size), OPENREG_E_INTERNAL);
    EXPECT_EQ(size, 7u);
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  }
}

// ACL's key has 65 characters, and the processes that may import are named; CUDA's handle has 64 bytes.
TEST_P(ExtensionsTest, KeysOfVendors) {
  for (const uint32_t bytes : {64u, 65u, OPENREG_IPC_HANDLE_MAX}) {
    SCOPED_TRACE(bytes);
    key_bytes = bytes;
    permitted.clear();
    offer(OPENREG_IPC_NAME, ipc_table());
    start();
    void* const block = allocate(0, 4096);
    auto handle = sized<openreg_memory_handle>();
    const int32_t importers[] = {4711, 4712};
    ASSERT_EQ(openreg_memory_export_to(block, importers, 2, &handle), OPENREG_OK) << last_message();
    EXPECT_EQ(permitted, (std::vector<int32_t>{4711, 4712}));
    EXPECT_EQ(reinterpret_cast<const openreg_handle_fields&>(handle).allocation_bytes, bytes);
    EXPECT_EQ(reinterpret_cast<const openreg_handle_fields&>(handle).allocation.bytes[bytes - 2], 'k');
    for (uint32_t i = bytes - 1; i < OPENREG_IPC_HANDLE_MAX; ++i)
      EXPECT_EQ(reinterpret_cast<const openreg_handle_fields&>(handle).allocation.bytes[i], 0) << i;
    EXPECT_EQ(openreg_memory_export_to(block, nullptr, 1, &handle), OPENREG_E_INVALID);
    openreg_import import = nullptr;  // by the exporter itself; its end lets the block go
    int32_t device = -1;
    void* same = nullptr;
    EXPECT_EQ(openreg_memory_import(&handle, &import, &device, &same), OPENREG_OK) << last_message();
    EXPECT_EQ(same, block);
    EXPECT_EQ(openreg_free(block), OPENREG_OK);
    EXPECT_EQ(openreg_import_release(import), OPENREG_OK);
    EXPECT_EQ(openreg_memory_empty_cache(-1), OPENREG_OK);
    ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  }
}

}  // namespace
}  // namespace openreg_test
