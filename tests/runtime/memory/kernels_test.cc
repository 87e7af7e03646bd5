// SPDX-License-Identifier: BSD-3-Clause
// The operators that a driver runs itself: which tables are refused, and what a kernel is given and may answer.
#include <openreg/kernels.h>

#include <algorithm>
#include <set>

#include "runtime_test.h"

namespace openreg_test {
namespace {

openreg_kernels* table = nullptr;  // what the driver's extension() gives
openreg_status answer = OPENREG_OK;
openreg_kernel_call seen{};
const openreg_host* host = nullptr;

openreg_status open(const openreg_host* given, const openreg_option* options, uint32_t n, openreg_instance* out) {
  host = given;
  return toy().table()->open(given, options, n, out);
}
const void* extension(openreg_instance, const char* name, uint32_t version) {
  return std::string(name) == OPENREG_KERNELS_NAME && version <= OPENREG_KERNELS_VERSION ? table : nullptr;
}
uint64_t scratch_sizes[20];
uint64_t scratch_count = 0;
void* scratch[20];
bool frees_scratch = false;

openreg_status run(openreg_instance, const openreg_kernel_call* call) {
  seen = *call;
  for (uint64_t i = 0; i < scratch_count; ++i) {
    scratch[i] = call->workspace(call, scratch_sizes[i]);
    if (scratch[i] == nullptr) {
      return OPENREG_E_NOMEM;
    }
  }
  if (frees_scratch) {
    EXPECT_EQ(openreg_free(scratch[0]), OPENREG_OK);
  }
  return answer == OPENREG_OK || answer == OPENREG_E_UNSUPPORTED
             ? answer
             : openreg_fail(host, answer, 7, "the kernel was told to fail");
}

class KernelsTest : public ToysTest {
 protected:
  void SetUp() override {
    ToysTest::SetUp();
    static openreg_driver driver = *toy().table();
    driver.name = "with_kernels";
    driver.open = open;
    driver.extension = extension;
    ASSERT_EQ(openreg_driver_register_table(&driver), OPENREG_OK) << last_message();
    set("OPENREG_DRIVERS", "with_kernels");
    table = &good_;
    answer = OPENREG_OK;
    seen = {};
    call_.name = "aten::mm";
  }
  void refused(const openreg_kernels& wrong, const char* fault) {
    openreg_kernels copy = wrong;
    table = &copy;
    const openreg_kernels* out = &good_;
    EXPECT_EQ(openreg_device_get_kernels(0, &out), OPENREG_E_INCOMPATIBLE) << fault;
    EXPECT_CONTAINS(last_message(), std::string("its table of kernels ") + fault);
    EXPECT_EQ(out, &good_) << "written on failure";
  }

  openreg_kernel entries_[2] = {{"aten::mm", run, 0, nullptr},
                                {"aten::relu", run, OPENREG_KERNEL_ELEMENTWISE, nullptr}};
  openreg_kernel_call call_ = sized<openreg_kernel_call>();
  openreg_kernels good_ = {sizeof(openreg_kernels), OPENREG_KERNELS_VERSION, sizeof(openreg_kernel), 2, entries_};
};

// A driver without extension(), one without kernels, and one with: NULL, NULL, and the driver's own table.
TEST_F(KernelsTest, TableOfTheDriver) {
  const openreg_kernels* out = nullptr;
  ASSERT_EQ(openreg_device_get_kernels(1, &out), OPENREG_OK) << last_message();
  EXPECT_EQ(out, &good_);
  table = nullptr;
  ASSERT_EQ(openreg_device_get_kernels(0, &out), OPENREG_OK) << last_message();
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(openreg_device_get_kernels(2, &out), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_device_get_kernels(0, nullptr), OPENREG_E_INVALID);
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK);
  set("OPENREG_DRIVERS", "sim");
  out = &good_;
  ASSERT_EQ(openreg_device_get_kernels(0, &out), OPENREG_OK) << last_message();
  EXPECT_EQ(out, nullptr);
}

// Each fault is refused by name, and nothing is written.
TEST_F(KernelsTest, MalformedTables) {
  openreg_kernel wrong[2] = {entries_[0], entries_[1]};
  const auto with = [&wrong](openreg_kernel first) {
    wrong[0] = first;
    return openreg_kernels{sizeof(openreg_kernels), OPENREG_KERNELS_VERSION, sizeof(openreg_kernel), 2, wrong};
  };
  refused({8, 1, sizeof(openreg_kernel), 2, entries_}, "is too short: set .struct_size = ");
  refused({sizeof(openreg_kernels), 0, sizeof(openreg_kernel), 2, entries_}, "has no version: set .version = ");
  refused({sizeof(openreg_kernels), 1, 16, 2, entries_}, "has no size of entries: set .kernel_size = ");
  refused({sizeof(openreg_kernels), OPENREG_KERNELS_VERSION, sizeof(openreg_kernel), 2, nullptr}, "has no list");
  refused(with({nullptr, run, 0, nullptr}), "has an entry without an operator's name");
  refused(with({"mm", run, 0, nullptr}), "has an entry without an operator's name");
  refused(with({"aten::mm", nullptr, 0, nullptr}), "has no function for aten::mm");
  refused(with({"aten::mm", run, 1u << 5, nullptr}), "has unknown flags for aten::mm");
  refused(with({"aten::relu", run, 0, nullptr}), "has two kernels for aten::relu");
}

// A kernel gets the ordinal, the stream and its entry; a refusal is no error, a failure names operator and driver.
TEST_F(KernelsTest, Run) {
  set("OPENREG_WITH_KERNELS_VISIBLE_DEVICES", "1");
  const openreg_stream stream = from_pool(0);
  ASSERT_EQ(openreg_kernel_run(&entries_[0], 0, stream, &call_), OPENREG_OK) << last_message();
  EXPECT_EQ(seen.dev, 1);
  EXPECT_EQ(seen.kernel, &entries_[0]);
  EXPECT_NE(seen.stream, nullptr);

  openreg_clear_error();
  answer = OPENREG_E_UNSUPPORTED;
  EXPECT_EQ(openreg_kernel_run(&entries_[0], 0, 0, &call_), OPENREG_E_UNSUPPORTED);
  answer = OPENREG_E_NOMEM;
  EXPECT_EQ(openreg_kernel_run(&entries_[0], 0, 0, &call_), OPENREG_E_NOMEM);
  EXPECT_CONTAINS(last_message(), "aten::mm: driver \"with_kernels\": the kernel was told to fail");
  EXPECT_EQ(openreg_last_error()->vendor_code, 7);

  EXPECT_EQ(openreg_kernel_run(nullptr, 0, 0, &call_), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_kernel_run(&entries_[0], 0, 0, nullptr), OPENREG_E_INVALID);
  call_.struct_size = 8;
  EXPECT_EQ(openreg_kernel_run(&entries_[0], 0, 0, &call_), OPENREG_E_INVALID);
}

// Scratch memory is the device's, each piece apart, on the call's stream, and back in the cache when the call has returned,
// so that the next one on the stream gets it again and what another stream wants doesn't.
TEST_F(KernelsTest, Workspace) {
  const openreg_stream stream = from_pool(0), other = from_pool(0);
  scratch_count = 20;
  std::fill(scratch_sizes, scratch_sizes + 20, 3000);
  scratch_sizes[19] = 0;
  ASSERT_EQ(openreg_kernel_run(&entries_[0], 0, stream, &call_), OPENREG_OK) << last_message();
  std::set<void*> first(scratch, scratch + 20);
  EXPECT_EQ(first.size(), 20u);
  for (void* const block : first) {
    EXPECT_EQ(pointer_info(block).kind, OPENREG_POINTER_DEVICE);
  }
  scratch_count = 1;
  ASSERT_EQ(openreg_kernel_run(&entries_[0], 0, stream, &call_), OPENREG_OK) << last_message();
  EXPECT_EQ(first.count(scratch[0]), 1u) << "not used again on the same stream";
  ASSERT_EQ(openreg_kernel_run(&entries_[0], 0, other, &call_), OPENREG_OK) << last_message();
  EXPECT_EQ(first.count(scratch[0]), 0u) << "used by another stream, which nothing orders behind the first";
  ASSERT_EQ(openreg_memory_empty_cache(0), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << "scratch memory is still in use: " << last_message();
  scratch_count = 0;
}

// A kernel that fails for want of scratch memory need not say why: the error has the reason of workspace().
TEST_F(KernelsTest, NoWorkspace) {
  scratch_count = 1;
  scratch_sizes[0] = uint64_t(1) << 46;
  EXPECT_EQ(openreg_kernel_run(&entries_[0], 0, 0, &call_), OPENREG_E_NOMEM);
  EXPECT_CONTAINS(last_message(), "aten::mm: driver \"with_kernels\": openreg_malloc: ");
  scratch_sizes[0] = UINT64_MAX / 2;
  expect_error(openreg_kernel_run(&entries_[0], 0, 0, &call_), OPENREG_E_NOMEM, "size must be at most 2^47 bytes");
  scratch_count = 0;
  answer = OPENREG_E_NOMEM;
  expect_error(openreg_kernel_run(&entries_[0], 0, 0, &call_), OPENREG_E_NOMEM, "the kernel was told to fail");
}

// Where scratch memory can't be given back, the call says so, unless the kernel has failed before.
TEST_F(KernelsTest, WorkspaceThatIsGone) {
  scratch_count = 2;
  scratch_sizes[0] = scratch_sizes[1] = 3000;
  frees_scratch = true;
  for (const openreg_status from_kernel : {OPENREG_OK, OPENREG_E_UNSUPPORTED}) {
    answer = from_kernel;
    expect_error(openreg_kernel_run(&entries_[0], 0, 0, &call_), OPENREG_E_INVALID, "openreg_free: ");
  }
  answer = OPENREG_E_TIMEOUT;
  expect_error(openreg_kernel_run(&entries_[0], 0, 0, &call_), OPENREG_E_TIMEOUT, "the kernel was told to fail");
  frees_scratch = false;
  scratch_count = 0;
  ASSERT_EQ(openreg_shutdown(), OPENREG_OK) << "scratch memory is still in use: " << last_message();
}

}  // namespace
}  // namespace openreg_test
