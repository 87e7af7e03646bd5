// SPDX-License-Identifier: BSD-3-Clause
// Collectives of the CUDA and HIP drivers (openreg/comm.h) over a fake of NCCL, two ranks on two devices of one process:
// the driver's table, and the runtime's functions over it. What holds of every driver's collectives is checked by
// openreg-check (CheckCommTest); ranks in two processes: tests/python/distributed.
#include <openreg/communicators.h>

#include <thread>

#include "gpu_runtime.h"

namespace openreg_test {
namespace {

constexpr int kSize = 2;

constexpr openreg_dtype type_of(unsigned code, unsigned bits) {
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
}
constexpr openreg_dtype kFloat = type_of(OPENREG_DTYPE_FLOAT, 32), kDouble = type_of(OPENREG_DTYPE_FLOAT, 64),
                        kInt = type_of(OPENREG_DTYPE_INT, 32);

openreg_collective collective(int32_t kind, const void* send, void* recv, uint64_t count, openreg_dtype type,
                              int32_t reduction = 0, int32_t peer = 0) {
  auto what = sized<openreg_collective>();
  what.kind = kind;
  what.send = send;
  what.recv = recv;
  what.count = count;
  what.type = type;
  what.reduction = reduction;
  what.peer = peer;
  return what;
}

class GpuComm : public FakeGpuTest {
 protected:
  void SetUp() override {
    FakeGpuTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    find_comm();
  }
  void find_comm() {
    comm_ = static_cast<const openreg_comm*>(table_->extension(instance_, OPENREG_COMM_NAME, OPENREG_COMM_VERSION));
  }
  // Runs a function for each rank, in a thread each.
  template <typename Rank>
  static void each(Rank rank) {
    std::thread other([&] { rank(1); });
    rank(0);
    other.join();
  }
  void connect() {
    const auto id = new_id();
    each([&](int rank) {
      succeeds([&] { return comm_->init(instance_, rank, rank, kSize, id.data(), &ranks_[rank]); });
    });
    for (int rank = 0; rank < kSize; ++rank) streams_[rank] = make_stream(rank);
  }
  std::vector<unsigned char> new_id() {
    uint32_t size = 0;
    succeeds([&] { return comm_->id_size(instance_, &size); });
    std::vector<unsigned char> id(size);
    succeeds([&] { return comm_->unique_id(instance_, 0, id.data()); });
    return id;
  }
  // What the first rank's communicator is told of in the end.
  openreg_status error_to_come() {
    openreg_status status = OPENREG_OK;
    for (int i = 0; i < 2000 && status == OPENREG_OK; ++i) {
      usleep(1000);
      status = comm_->get_error(instance_, ranks_[0]);
    }
    return status;
  }
  openreg_status queue(int rank, const openreg_collective& what) {
    return comm_->queue(instance_, ranks_[rank], streams_[rank], &what, 1);
  }
  openreg_status all_reduce(int rank, void* data, openreg_dtype type, int32_t reduction = 0, uint64_t count = 1) {
    return queue(rank, collective(OPENREG_COLLECTIVE_ALL_REDUCE, data, data, count, type, reduction));
  }
  void disconnect() {
    for (int rank = 0; rank < kSize; ++rank) {
      sync(rank, streams_[rank]);
      succeeds([&] { return comm_->destroy(instance_, ranks_[rank]); });
      destroy(rank, streams_[rank]);
    }
    EXPECT_EQ(hooks_->live("communicator"), 0);
  }
  template <typename T>
  T* put(int rank, const std::vector<T>& values) {
    void* memory = allocate(rank);
    copy(memory, rank, values.data(), -1, values.size() * sizeof(T), rank);
    sync(rank);
    return static_cast<T*>(memory);
  }
  template <typename T>
  std::vector<T> get(int rank, const void* memory, size_t count) {
    std::vector<T> values(count);
    sync(rank, streams_[rank]);
    copy(values.data(), -1, memory, rank, count * sizeof(T), rank);
    sync(rank);
    return values;
  }

  const openreg_comm* comm_ = nullptr;
  openreg_driver_comm ranks_[kSize] = {};
  openreg_driver_stream streams_[kSize] = {};
};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuComm, ::testing::ValuesIn(gpus()), gpu_name);

// Parts of other sizes, 0 among them: of all_gather, also in place, and of all_to_all. The thread's device stays.
TEST_P(GpuComm, UnevenParts) {
  using Ints = std::vector<int32_t>;
  connect();
  int32_t* in[kSize] = {put<int32_t>(0, {1, 2, 3}), put<int32_t>(1, {4, 5, 6})};
  int32_t* out[kSize] = {put<int32_t>(0, Ints(6)), put<int32_t>(1, Ints(6))};
  const uint64_t gathered[] = {3, 1};
  const int before = hooks_->current_device();
  for (int r = 0; r < kSize; ++r) {
    auto what = collective(OPENREG_COLLECTIVE_ALL_GATHER, in[r], out[r], 0, kInt);
    what.recv_counts = gathered;
    succeeds([&] { return queue(r, what); });
  }
  for (int r = 0; r < kSize; ++r) EXPECT_EQ(get<int32_t>(r, out[r], 6), (Ints{1, 2, 3, 4, 0, 0}));
  for (int r = 0; r < kSize; ++r) {
    auto what = collective(OPENREG_COLLECTIVE_ALL_GATHER, out[r] + 3 * r, out[r], 0, kInt);
    what.recv_counts = gathered;
    succeeds([&] { return queue(r, what); });
  }
  for (int r = 0; r < kSize; ++r) EXPECT_EQ(get<int32_t>(r, out[r], 4), (Ints{1, 2, 3, 4}));
  const uint64_t sent[kSize][kSize] = {{1, 2}, {0, 3}}, received[kSize][kSize] = {{1, 0}, {2, 3}};
  for (int r = 0; r < kSize; ++r) {
    auto what = collective(OPENREG_COLLECTIVE_ALL_TO_ALL, in[r], out[r], 0, kInt);
    what.send_counts = sent[r];
    what.recv_counts = received[r];
    succeeds([&] { return queue(r, what); });
  }
  EXPECT_EQ(get<int32_t>(0, out[0], 2), (Ints{1, 2}));
  EXPECT_EQ(get<int32_t>(1, out[1], 5), (Ints{2, 3, 4, 5, 6}));
  EXPECT_EQ(hooks_->current_device(), before);
  disconnect();
  for (int rank = 0; rank < kSize; ++rank) {
    release(rank, in[rank]);
    release(rank, out[rank]);
  }
}

// Types and reductions that the library lacks are refused before anything is queued; an old library has no 8-bit types.
TEST_P(GpuComm, WhatIsNotSupported) {
  set("FAKE_GPU_NCCL_VERSION", "22304");
  restart();
  find_comm();
  connect();
  void* data = allocate(0);
  for (const auto type : {type_of(OPENREG_DTYPE_FLOAT8_E4M3FN, 8), type_of(OPENREG_DTYPE_FLOAT8_E5M2, 8),
                          type_of(OPENREG_DTYPE_BOOL, 8), type_of(OPENREG_DTYPE_INT, 16)})
    EXPECT_EQ(fails([&] { return all_reduce(0, data, type); }), OPENREG_E_UNSUPPORTED) << int{type.code};
  for (const int32_t reduction : {-1, 5})
    EXPECT_EQ(fails([&] { return all_reduce(0, data, kFloat, reduction); }), OPENREG_E_UNSUPPORTED) << reduction;
  const openreg_collective list[] = {collective(OPENREG_COLLECTIVE_ALL_REDUCE, data, data, 1, kFloat),
                                     collective(OPENREG_COLLECTIVE_ALL_REDUCE, data, data, 1, kFloat, 5)};
  EXPECT_EQ(fails([&] { return comm_->queue(instance_, ranks_[0], streams_[0], list, 2); }), OPENREG_E_UNSUPPORTED);
  EXPECT_EQ(hooks_->calls("ncclAllReduce"), 0);
  disconnect();
}

// Errors of the library are errors of the call, with its function, text and number.
TEST_P(GpuComm, ErrorsOfTheLibrary) {
  connect();
  void* data = allocate(0);
  hooks_->set_failures("ncclAllReduce:1:3,ncclBroadcast:1:5,ncclGroupEnd:1:2,ncclGetUniqueId:0:6,ncclCommInitRank:0:4");
  EXPECT_EQ(fails([&] { return all_reduce(0, data, kFloat); }), OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(host_record.text, "ncclAllReduce: error of the fake (text of the fake) on device 0; NCCL_DEBUG=WARN");
  EXPECT_EQ(host_record.vendor_code, 3);
  EXPECT_EQ(fails([&] { return queue(0, collective(OPENREG_COLLECTIVE_BROADCAST, data, data, 1, kFloat)); }),
            OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] {
              return queue(0, collective(OPENREG_COLLECTIVE_ALL_TO_ALL, data, static_cast<char*>(data) + 8, 1, kFloat));
            }),
            OPENREG_E_INTERNAL);
  EXPECT_CONTAINS(host_record.text, "ncclGroupEnd");
  std::vector<unsigned char> id(128, 7);
  EXPECT_EQ(fails([&] { return comm_->unique_id(instance_, 0, id.data()); }), OPENREG_E_PEER);
  EXPECT_CONTAINS(host_record.text, "a peer has ended, or its connection");
  EXPECT_EQ(id[5], 7);
  openreg_driver_comm none = nullptr;
  EXPECT_EQ(fails([&] { return comm_->init(instance_, 0, 0, 1, id.data(), &none); }), OPENREG_E_INVALID);
  EXPECT_EQ(none, nullptr);
  hooks_->set_failures("");
  release(0, data);
  disconnect();
}

// A peer that has ended shows in get_error(), not on the stream; abort() lets the stream go on, and is the end of the calls.
TEST_P(GpuComm, PeerThatEnds) {
  connect();
  void* data = allocate(0);
  succeeds([&] { return comm_->abort(instance_, ranks_[1]); });
  succeeds([&] { return all_reduce(0, data, kDouble); });
  EXPECT_EQ(error_to_come(), OPENREG_E_PEER);
  EXPECT_CONTAINS(host_record.text, "remote process exited");
  EXPECT_EQ(is_done(0, streams_[0]), 0);
  for (int i = 0; i < 2; ++i) succeeds([&] { return comm_->abort(instance_, ranks_[0]); });
  sync(0, streams_[0]);
  EXPECT_EQ(fails([&] { return all_reduce(0, data, kFloat); }), OPENREG_E_INVALID);
  EXPECT_EQ(fails([&] { return comm_->get_error(instance_, ranks_[0]); }), OPENREG_E_INVALID);
  release(0, data);
  disconnect();
}

// Ranks that make different calls are found out, instead of giving wrong numbers.
TEST_P(GpuComm, RanksThatDisagree) {
  connect();
  void* data[kSize] = {allocate(0), allocate(1)};
  for (int rank = 0; rank < kSize; ++rank)
    succeeds([&] { return all_reduce(rank, data[rank], kInt, 0, 1 + static_cast<uint64_t>(rank)); });
  EXPECT_EQ(error_to_come(), OPENREG_E_INVALID);
  for (int rank = 0; rank < kSize; ++rank) {
    succeeds([&] { return comm_->abort(instance_, ranks_[rank]); });
    release(rank, data[rank]);
  }
  disconnect();
}

// On a lost device a communicator is still freed.
TEST_P(GpuComm, LostDevice) {
  connect();
  hooks_->set_failures("StreamSynchronize:0:700");
  EXPECT_EQ(fails([&] { return table_->stream_sync(instance_, 0, streams_[0]); }), OPENREG_E_DEVICE_LOST);
  hooks_->set_failures("");
  EXPECT_EQ(fails([&] { return all_reduce(0, this, kFloat); }), OPENREG_E_DEVICE_LOST);
  for (int rank = 0; rank < kSize; ++rank) {
    succeeds([&] { return comm_->destroy(instance_, ranks_[rank]); });
    destroy(rank, streams_[rank]);
  }
  EXPECT_EQ(hooks_->live("communicator"), 0);
  close();
  hooks_->reset();  // the stream went with the device
}

// Without the library, or with an unfit one, there is no extension and a line in the log; an option names another one.
TEST_P(GpuComm, Library) {
  const auto is_there = [&](const char* variable, const std::string& value, const char* option) {
    close();
    unsetenv("FAKE_GPU_NCCL");
    unsetenv("FAKE_GPU_MISSING");
    unsetenv("FAKE_GPU_NCCL_VERSION");
    set(variable, value);
    hooks_->reset();
    host_log_lines.clear();
    const openreg_option named = {"comm_library", option};
    EXPECT_EQ(table_->open(&test_host(), &named, option != nullptr ? 1 : 0, &instance_), OPENREG_OK);
    find_comm();
    return comm_ != nullptr;
  };
  EXPECT_EQ(table_->extension(instance_, OPENREG_COMM_NAME, 2), nullptr);
  EXPECT_FALSE(is_there("FAKE_GPU_NCCL", "0", nullptr));
  ASSERT_EQ(host_log_lines.size(), 1u);
  EXPECT_CONTAINS(host_log_lines[0], "not installed, says the fake");
  find_comm();
  EXPECT_EQ(host_log_lines.size(), 1u) << "it is looked for once";
  EXPECT_TRUE(is_there("FAKE_GPU_NCCL", "0", "/opt/nccl.so"));
  EXPECT_FALSE(is_there("FAKE_GPU_NCCL", "1", "/opt/other.so"));
  EXPECT_FALSE(is_there("FAKE_GPU_NCCL", "1", "0"));
  EXPECT_TRUE(host_log_lines.empty()) << "it was asked for";
  EXPECT_FALSE(is_there("FAKE_GPU_MISSING", "ncclReduceScatter", nullptr));
  EXPECT_CONTAINS(host_log_lines.at(0), "lacks the function ncclReduceScatter");
  EXPECT_TRUE(is_there("FAKE_GPU_MISSING", "ncclGetLastError", nullptr)) << "older ones have none";
  EXPECT_FALSE(is_there("FAKE_GPU_NCCL_VERSION", "2708", nullptr));
  EXPECT_CONTAINS(host_log_lines.at(0), "version 2708, and 21000 is the oldest");
}

// The runtime's functions, also through the layer of OPENREG_VALIDATE.
class Communicators : public GpuRuntimeTest {
 protected:
  void all_reduce_of_two() {
    uint32_t size = 0;
    ASSERT_EQ(openreg_communicator_id_size(0, &size), OPENREG_OK) << last_message();
    std::vector<unsigned char> id(size);
    openreg_communicator ranks[kSize] = {};
    void* data[kSize] = {};
    openreg_stream streams[kSize];
    int32_t has = 0;
    ASSERT_EQ(openreg_device_has_communicators(1, &has), OPENREG_OK) << last_message();
    ASSERT_EQ(has, 1);
    ASSERT_EQ(openreg_communicator_id(0, id.data(), size), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_communicator_id(0, id.data(), size - 1), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_communicator_create(0, 0, kSize, id.data(), size + 1, &ranks[0]), OPENREG_E_INVALID);
    std::thread other([&] {
      EXPECT_EQ(openreg_communicator_create(1, 1, kSize, id.data(), size, &ranks[1]), OPENREG_OK) << last_message();
    });
    EXPECT_EQ(openreg_communicator_create(0, 0, kSize, id.data(), size, &ranks[0]), OPENREG_OK) << last_message();
    other.join();
    auto what = sized<openreg_collective>();
    what.kind = OPENREG_COLLECTIVE_ALL_REDUCE;
    what.count = 256;
    what.type = kFloat;
    for (int32_t rank = 0; rank < kSize; ++rank) {
      const std::vector<float> values(256, static_cast<float>(rank + 1));
      ASSERT_EQ(openreg_malloc(rank, 0, 1024, &data[rank]), OPENREG_OK) << last_message();
      ASSERT_EQ(openreg_memcpy(data[rank], rank, values.data(), OPENREG_HOST, 1024), OPENREG_OK) << last_message();
      ASSERT_EQ(openreg_stream_from_pool(rank, 0, &streams[rank]), OPENREG_OK);
      what.send = what.recv = data[rank];
      openreg_collective list[] = {what, what}; /* two halves, as one */
      list[0].count = list[1].count = 128;
      list[1].send = list[1].recv = static_cast<float*>(data[rank]) + 128;
      ASSERT_EQ(openreg_communicator_queue(ranks[rank], streams[rank], list, 2), OPENREG_OK) << last_message();
      ASSERT_EQ(openreg_communicator_queue(ranks[rank], streams[rank], nullptr, 0), OPENREG_OK) << last_message();
    }
    openreg_collective wrong = what;
    wrong.type.bits = 99;
    EXPECT_EQ(openreg_communicator_queue(ranks[0], streams[0], &wrong, 1), OPENREG_E_UNSUPPORTED);
    wrong = what;
    wrong.peer = kSize;
    EXPECT_EQ(openreg_communicator_queue(ranks[0], streams[0], &wrong, 1), OPENREG_E_INVALID);
    EXPECT_CONTAINS(last_message(), "there is no rank 2 of 2");
    wrong = what;
    const uint64_t counts[kSize] = {1, 1};
    wrong.recv_counts = counts;
    EXPECT_EQ(openreg_communicator_queue(ranks[0], streams[0], &wrong, 1), OPENREG_E_INVALID) << "all_reduce has none";
    wrong.kind = OPENREG_COLLECTIVE_ALL_TO_ALL;
    EXPECT_EQ(openreg_communicator_queue(ranks[0], streams[0], &wrong, 1), OPENREG_E_INVALID)
        << "one without the other";
    wrong = what;
    wrong.kind = 8;
    EXPECT_EQ(openreg_communicator_queue(ranks[0], streams[0], &wrong, 1), OPENREG_E_INVALID);
    EXPECT_EQ(openreg_communicator_queue(ranks[0], streams[1], &what, 1), OPENREG_E_INVALID)
        << "another device's stream";
    for (int32_t rank = 0; rank < kSize; ++rank) {
      std::vector<float> values(256);
      ASSERT_EQ(openreg_stream_synchronize(rank, streams[rank]), OPENREG_OK) << last_message();
      ASSERT_EQ(openreg_memcpy(values.data(), OPENREG_HOST, data[rank], rank, 1024), OPENREG_OK) << last_message();
      EXPECT_EQ(values, std::vector<float>(256, 3.0f));
      EXPECT_EQ(openreg_communicator_get_error(ranks[rank]), OPENREG_OK);
      ASSERT_EQ(openreg_free(data[rank]), OPENREG_OK);
    }
    expect_error(openreg_shutdown(), OPENREG_E_BUSY, "2 live communicator(s)");
    EXPECT_EQ(openreg_communicator_abort(ranks[1]), OPENREG_OK) << last_message();
    for (openreg_communicator rank : ranks) EXPECT_EQ(openreg_communicator_destroy(rank), OPENREG_OK) << last_message();
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, Communicators, ::testing::ValuesIn(plain_gpus()), gpu_name);

TEST_P(Communicators, AllReduceOfTwoRanks) { all_reduce_of_two(); }

TEST_P(Communicators, AreValidated) {
  set("OPENREG_VALIDATE", "1");
  all_reduce_of_two();
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "breaks"), 0);
}

// A driver without the extension, and wrong arguments.
TEST_P(Communicators, DriverWithoutThem) {
  set("OPENREG_DRIVERS", "sim");
  int32_t has = 1;
  uint32_t size = 0;
  unsigned char id[128] = {};
  EXPECT_EQ(openreg_communicator_id_size(0, &size), OPENREG_E_UNSUPPORTED);
  openreg_communicator none = nullptr;
  ASSERT_EQ(openreg_device_has_communicators(0, &has), OPENREG_OK) << last_message();
  EXPECT_EQ(has, 0);
  EXPECT_EQ(openreg_communicator_id(0, id, sizeof id), OPENREG_E_UNSUPPORTED);
  EXPECT_EQ(openreg_communicator_create(0, 0, 1, id, sizeof id, &none), OPENREG_E_UNSUPPORTED);
  EXPECT_EQ(openreg_communicator_create(0, 1, 1, id, sizeof id, &none), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_communicator_create(0, 0, 1, nullptr, 0, &none), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_device_has_communicators(0, nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_communicator_queue(nullptr, 0, nullptr, 0), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_communicator_destroy(nullptr), OPENREG_OK);
}

}  // namespace
}  // namespace openreg_test
