// SPDX-License-Identifier: BSD-3-Clause
// Upgrades: drivers that were compiled with the header of another version of the ABI, older and newer, in this runtime.
#include <openreg/comm.h>
#include <openreg/communicators.h>
#include <openreg/graphs.h>
#include <openreg/kernels.h>
#include <openreg/sharing.h>

#include <atomic>
#include <numeric>

#include "../../../runtime/sharing/handle.h"
#include "runtime_test.h"

namespace openreg_test {
namespace {

class UpgradeTest : public RuntimeTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    set("OPENREG_DRIVER_LIBRARIES", "frozen:" + driver_path(GetParam()));
    set("OPENREG_DRIVERS", "frozen");
    ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  }
};

bool has(const openreg_driver_record& record, size_t offset) {
  return (record.slots >> ((offset - offsetof(openreg_driver, open)) / sizeof(void (*)(void))) & 1) != 0;
}

// Its own functions are called, not the runtime's defaults; what its version lacks is absent.
TEST_P(UpgradeTest, Functions) {
  const openreg_driver_record record = record_of("frozen");
  EXPECT_EQ(record.device_count, 2);
  EXPECT_TRUE(has(record, offsetof(openreg_driver, stream_create)));
  EXPECT_TRUE(has(record, offsetof(openreg_driver, event_record)));
  EXPECT_TRUE(has(record, offsetof(openreg_driver, host_alloc)));
  EXPECT_FALSE(has(record, offsetof(openreg_driver, mem_info)));
  EXPECT_TRUE(has(record, offsetof(openreg_driver, describe)));
  EXPECT_TRUE(has(record, offsetof(openreg_driver, host_func)));
  constexpr size_t kSlots = (sizeof(openreg_driver) - offsetof(openreg_driver, open)) / sizeof(void (*)(void));
  EXPECT_EQ(record.slots >> kSlots, 0u) << "a function that nobody knows";
  auto properties = properties_of(1);
  EXPECT_STREQ(properties.name, "frozen device 1");
  EXPECT_EQ(properties.total_memory, uint64_t{64} << 20);
}

// Copies, fills, streams of two devices ordered by an event, and pinned memory. acceptance 5.21
TEST_P(UpgradeTest, Work) {
  constexpr size_t kSize = 1 << 16;
  void* const host = make_pinned(kSize);
  auto* bytes = static_cast<uint8_t*>(host);
  std::iota(bytes, bytes + kSize, uint8_t{3});
  const openreg_stream source = from_pool(0), target = from_pool(1);
  void *const first = allocate(0, kSize, source), *const second = allocate(1, kSize, target);
  const openreg_event event = make_event();
  ASSERT_EQ(openreg_memcpy_async(0, source, first, 0, host, OPENREG_HOST, kSize), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memset_async(0, source, first, 0x5a, 16), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_event_record(event, 0, source), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_wait_event(1, target, event), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memcpy_async(1, target, second, 1, first, 0, kSize), OPENREG_OK) << last_message();
  std::vector<uint8_t> back(kSize);
  ASSERT_EQ(openreg_memcpy_async(1, target, back.data(), OPENREG_HOST, second, 1, kSize), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_synchronize(1, target), OPENREG_OK) << last_message();
  int32_t done = 0;
  ASSERT_EQ(openreg_event_query(event, &done), OPENREG_OK) << last_message();
  EXPECT_EQ(done, 1);
  std::fill_n(bytes, 16, uint8_t{0x5a});
  EXPECT_TRUE(std::equal(back.begin(), back.end(), bytes));
}

// A function of the host runs.
TEST_P(UpgradeTest, HostFunction) {
  std::atomic<int> calls{0};
  const auto call = [](void* count) { ++*static_cast<std::atomic<int>*>(count); };
  const openreg_stream stream = from_pool(0);
  ASSERT_EQ(openreg_stream_launch_host_func(0, stream, call, &calls), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_synchronize(0, stream), OPENREG_OK) << last_message();
  EXPECT_EQ(calls, 1);
}

// A communicator with an id of that driver's size, and a collective of it.
TEST_P(UpgradeTest, Communicator) {
  uint32_t size = 0;
  ASSERT_EQ(openreg_communicator_id_size(0, &size), OPENREG_OK) << last_message();
  EXPECT_EQ(size, 256u);
  std::vector<unsigned char> id(size);
  ASSERT_EQ(openreg_communicator_id(0, id.data(), size), OPENREG_OK) << last_message();
  openreg_communicator communicator = nullptr;
  ASSERT_EQ(openreg_communicator_create(0, 0, 1, id.data(), size, &communicator), OPENREG_OK) << last_message();
  std::vector<float> values{1, 2, 3}, back(3);
  const uint64_t bytes = values.size() * sizeof(float);
  void *const send = allocate(0, bytes), *const recv = allocate(0, bytes);
  ASSERT_EQ(openreg_memcpy(send, 0, values.data(), OPENREG_HOST, bytes), OPENREG_OK) << last_message();
  auto one = sized<openreg_collective>();
  one.kind = OPENREG_COLLECTIVE_ALL_REDUCE;
  one.send = send;
  one.recv = recv;
  one.count = values.size();
  one.type = {OPENREG_DTYPE_FLOAT, 32, 1};
  ASSERT_EQ(openreg_communicator_queue(communicator, 0, &one, 1), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_memcpy(back.data(), OPENREG_HOST, recv, 0, bytes), OPENREG_OK) << last_message();
  EXPECT_EQ(back, values);
  EXPECT_EQ(openreg_communicator_destroy(communicator), OPENREG_OK);
}

// Its own graphs are used: the functions are called, and get what it gave.
TEST_P(UpgradeTest, Graphs) {
  const openreg_stream stream = from_pool(0);
  int32_t status = -1, fits = -1;
  openreg_graph graph = nullptr;
  openreg_graph_exec exec = nullptr;
  ASSERT_EQ(openreg_graph_begin(0, stream, OPENREG_CAPTURE_RELAXED), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_graph_status(0, stream, &status), OPENREG_OK) << last_message();
  EXPECT_EQ(status, OPENREG_CAPTURE_ACTIVE);
  ASSERT_EQ(openreg_graph_end(0, stream, &graph), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_graph_instantiate(graph, &exec), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_update(exec, graph, &fits), OPENREG_OK) << last_message();
  EXPECT_EQ(fits, 1);
  EXPECT_EQ(openreg_graph_launch(exec, stream), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_dump(graph, "nowhere"), OPENREG_E_UNSUPPORTED);
  EXPECT_EQ(openreg_graph_exec_destroy(exec), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_graph_destroy(graph), OPENREG_OK) << last_message();
}

// A vendor that must know who imports is told, and refuses without; its handle arrives whole.
TEST_P(UpgradeTest, Sharing) {
  void* const block = allocate(0, 4096);
  auto handle = sized<openreg_memory_handle>();
  EXPECT_EQ(openreg_memory_export(block, &handle), OPENREG_E_UNSUPPORTED);
  const int32_t importer = 4711;
  ASSERT_EQ(openreg_memory_export_to(block, &importer, 1, &handle), OPENREG_OK) << last_message();
  EXPECT_EQ(reinterpret_cast<const openreg_handle_fields&>(handle).allocation_bytes, 65u);
  EXPECT_EQ(reinterpret_cast<const openreg_handle_fields&>(handle).allocation.bytes[64], 'k');
  openreg_import import = nullptr;  // by the exporter itself; its end lets the block go
  int32_t device = -1;
  void* same = nullptr;
  EXPECT_EQ(openreg_memory_import(&handle, &import, &device, &same), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_free(block), OPENREG_OK);
  EXPECT_EQ(openreg_import_release(import), OPENREG_OK);
}

// Its kernel sees the call as its header describes it.
TEST_P(UpgradeTest, Kernel) {
  const openreg_kernels* table = nullptr;
  ASSERT_EQ(openreg_device_get_kernels(1, &table), OPENREG_OK) << last_message();
  ASSERT_NE(table, nullptr);
  ASSERT_EQ(table->count, 1u);
  EXPECT_STREQ(table->list[0].name, "aten::relu");
  const int64_t shape = 5, stride = 1;
  openreg_tensor tensor{};
  tensor.device_type = OPENREG_TENSOR_DEVICE_TYPE;
  tensor.ndim = 1;
  tensor.dtype = {OPENREG_DTYPE_FLOAT, 32, 1};
  tensor.shape = &shape;
  tensor.strides = &stride;
  openreg_value value{};
  value.kind = OPENREG_VALUE_TENSOR;
  value.tensor = &tensor;
  const char* const name = "self";
  auto call = sized<openreg_kernel_call>();
  call.name = "aten::relu";
  const openreg_value* const values = &value;
  call.arguments = call.results = &values;
  call.argument_count = call.result_count = 1;
  call.argument_names = &name;
  EXPECT_EQ(openreg_kernel_run(&table->list[0], 1, 0, &call), OPENREG_OK) << last_message();
}

INSTANTIATE_TEST_SUITE_P(Headers, UpgradeTest, ::testing::Values("frozen_1_0", "frozen_next_minor"),
                         [](const auto& library) { return library.param; });

class OtherMajorTest : public RuntimeTest {};

// Of a later major: refused with both numbers, and no other driver takes its place.
TEST_F(OtherMajorTest, IsRefused) {
  set("OPENREG_DRIVER_LIBRARIES", "frozen:" + driver_path("frozen_next_major"));
  set("OPENREG_DRIVERS", "frozen");
  expect_error(openreg_init(), OPENREG_E_INCOMPATIBLE, "the driver implements ABI 2, this runtime ABI 1");
}

}  // namespace
}  // namespace openreg_test
