// SPDX-License-Identifier: BSD-3-Clause
// The CUDA and HIP drivers under the runtime: over fakes, and the real libraries on whatever machine this is.
#include <filesystem>

#include "../gate.h"
#include "gpu_runtime.h"
#include "scenario.h"

namespace openreg_test {
namespace {

using FakeGpuRuntime = GpuRuntimeTest;
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuRuntime, ::testing::ValuesIn(gpus()), gpu_name);

// A little of everything, from initialisation to shutdown.
TEST_P(FakeGpuRuntime, DoesEverything) {
  Scenario scenario;
  EXPECT_EQ(scenario.run(), OPENREG_OK) << last_message();
  EXPECT_TRUE(scenario.bytes_are_right());
  EXPECT_TRUE(scenario.is_clean());
}

// Initialising reads the devices' names and makes no context.
TEST_P(FakeGpuRuntime, InitialisationMakesNoContext) {
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_count(), 2);
  EXPECT_STREQ(properties_of(1).name, "Fake GPU 1");
  EXPECT_EQ(hooks_->contexts(), 0u);
}

// The cache's segments are given back when the device is full, and the allocation then succeeds.
TEST_P(FakeGpuRuntime, FullDeviceIsFlushedAndTriedAgain) {
  set("FAKE_GPU_MEMORY", std::to_string(64 << 20));
  hooks_->reset();
  void* more = nullptr;
  release(allocate(0, 40 << 20));
  EXPECT_EQ(hooks_->live("memory"), 1) << "the cache keeps it";
  allocate(0, 50 << 20);
  EXPECT_EQ(hooks_->live("memory"), 1);
  EXPECT_EQ(openreg_malloc(0, 0, 50 << 20, &more), OPENREG_E_NOMEM);
  EXPECT_EQ(hooks_->peek_error(), 0);
}

// A lost device says so at the next synchronisation; the other one goes on.
TEST_P(FakeGpuRuntime, LostDeviceIsReported) {
  void *const lost = allocate(0, 4096), *const alive = allocate(1, 4096);
  hooks_->set_failures("Task:1:700");
  ASSERT_EQ(openreg_memset_async(0, 0, lost, 1, 4096), OPENREG_OK);
  EXPECT_EQ(openreg_device_synchronize(0), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(openreg_last_error()->vendor_code, 700);
  EXPECT_EQ(openreg_last_error()->code, OPENREG_E_DEVICE_LOST);
  hooks_->set_failures("");
  uint8_t byte = 0;
  ASSERT_EQ(openreg_memset_async(1, 0, alive, 6, 4096), OPENREG_OK);
  ASSERT_EQ(openreg_memcpy(&byte, OPENREG_HOST, alive, 1, 1), OPENREG_OK);
  EXPECT_EQ(byte, 6);
  EXPECT_EQ(openreg_free(lost), OPENREG_OK);
  EXPECT_EQ(openreg_free(alive), OPENREG_OK);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  hooks_->reset();
}

// Host functions run in the order of their stream; after an error that ends the context they don't, and the error says so.
TEST_P(FakeGpuRuntime, HostFunctionsEndWithTheContext) {
  int calls = 0;
  const auto add = [](void* argument) { ++*static_cast<int*>(argument); };
  void* memory = allocate(0, 4096);
  ASSERT_EQ(openreg_stream_launch_host_func(0, 0, add, &calls), OPENREG_OK) << last_message();
  ASSERT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
  EXPECT_EQ(calls, 1);
  hooks_->set_failures("Task:1:700");
  ASSERT_EQ(openreg_memset_async(0, 0, memory, 1, 4096), OPENREG_OK);
  const openreg_status queued = openreg_stream_launch_host_func(0, 0, add, &calls);
  EXPECT_TRUE(queued == OPENREG_OK || queued == OPENREG_E_DEVICE_LOST) << last_message();
  EXPECT_EQ(openreg_stream_synchronize(0, 0), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(openreg_stream_launch_host_func(0, 0, add, &calls), OPENREG_E_DEVICE_LOST);
  EXPECT_EQ(calls, 1);
  hooks_->set_failures("");
  EXPECT_EQ(openreg_free(memory), OPENREG_OK);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  hooks_->reset();
}

// The fake notes a host function that calls the vendor, which the vendor forbids.
TEST_P(FakeGpuRuntime, HostFunctionsMustNotCallTheVendor) {
  openreg_status inside = OPENREG_OK;
  ASSERT_EQ(openreg_stream_launch_host_func(
                0, 0,
                [](void* argument) {
                  uint64_t free_bytes, total;
                  *static_cast<openreg_status*>(argument) = openreg_memory_get_info(0, &free_bytes, &total);
                },
                &inside),
            OPENREG_OK);
  ASSERT_EQ(openreg_stream_synchronize(0, 0), OPENREG_OK);
  EXPECT_NE(inside, OPENREG_OK);
  EXPECT_GT(hooks_->violations(), 0);
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  hooks_->reset();
}

// A shutdown waits for the host functions of the default stream, which is no stream that the driver destroys.
TEST_P(FakeGpuRuntime, ShutdownWaitsForHostFunctions) {
  int calls = 0;
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  hooks_->hold(0, nullptr, 1);
  ASSERT_EQ(openreg_stream_launch_host_func(
                0, 0, [](void* argument) { ++*static_cast<int*>(argument); }, &calls),
            OPENREG_OK);
  const OnceThisThreadWaits opener([&] { hooks_->hold(0, nullptr, 0); });
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
  EXPECT_EQ(calls, 1);
}

// What open() said about versions stays with the driver's record. acceptance 5.29, 5.30
TEST_P(FakeGpuRuntime, RecordKeepsTheReason) {
  const bool is_cudart = GetParam().is_cudart();
  set(is_cudart ? "FAKE_GPU_DRIVER_VERSION" : "FAKE_GPU_RUNTIME_VERSION", "1000");
  hooks_->reset();
  EXPECT_EQ(openreg_init(), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(record_of(GetParam().prefix()).message, "version 1000, but torch_openreg was built against version ");
  unsetenv(is_cudart ? "FAKE_GPU_DRIVER_VERSION" : "FAKE_GPU_RUNTIME_VERSION");
  set("FAKE_GPU_FAIL", is_cudart ? "DriverGetVersion:0:999" : "RuntimeGetVersion:0:999");
  hooks_->reset();
  EXPECT_EQ(openreg_init(), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(record_of(GetParam().prefix()).message, "Unable to load");
  EXPECT_CONTAINS(record_of(GetParam().prefix()).message, ". Is it installed?");
}

// ------------------------------------------------------------------------------------------------- the real libraries

std::vector<std::pair<std::string, std::string>> real_drivers() {
  std::vector<std::pair<std::string, std::string>> all;
#ifdef OPENREG_TEST_REAL_CUDA
  all.emplace_back("cuda", OPENREG_TEST_REAL_CUDA);
#endif
#ifdef OPENREG_TEST_REAL_HIP
  all.emplace_back("hip", OPENREG_TEST_REAL_HIP);
#endif
  return all;
}

// Each loads on any machine, and either has devices or says that there are none and why.
TEST(RealGpuDrivers, LoadEverywhere) {
  for (const auto& [name, path] : real_drivers()) {
    SCOPED_TRACE(name);
    void* const library = load(path);
    ASSERT_NE(library, nullptr) << dlerror();
    const openreg_driver* const table = table_of(library);
    ASSERT_NE(table, nullptr);
    EXPECT_EQ(table->name, name);
    host_record = HostRecord();
    int32_t probed = -1, opened = -1;
    openreg_instance instance = nullptr;
    const openreg_status probe = table->describe(&test_host(), nullptr, 0, "", 0, nullptr, nullptr, &probed);
    const openreg_status open = table->open(&test_host(), nullptr, 0, &instance);
    if (open == OPENREG_OK) {
      EXPECT_EQ(table->device_count(instance, &opened), OPENREG_OK);
      EXPECT_TRUE(probe == OPENREG_E_UNSUPPORTED || probed == opened) << probed << " and " << opened;
      EXPECT_EQ(table->close(instance), OPENREG_OK);
    } else {
      EXPECT_EQ(open, OPENREG_E_NO_DEVICE) << host_record.text;
      EXPECT_EQ(probe, OPENREG_E_NO_DEVICE);
      EXPECT_EQ(host_record.errors, 2);
      EXPECT_FALSE(host_record.text.empty());
    }
  }
}

// Nothing of ours or of the vendor's leaves the library but its entry.
TEST(RealGpuDrivers, ExportOneSymbol) {
  for (const auto& [name, path] : real_drivers()) {
    std::istringstream lines(output_of("nm -D --defined-only '" + path + "'"));
    std::vector<std::string> own;
    for (std::string address, kind, symbol; lines >> address >> kind >> symbol;) {
      if (symbol.rfind("__", 0) != 0) own.push_back(symbol);  // instrumented builds add their own
    }
    EXPECT_EQ(own, std::vector<std::string>{OPENREG_DRIVER_ENTRY_NAME}) << name;
  }
}

#ifdef OPENREG_TEST_REAL_CUDA
// NVIDIA's own runtime library, over a driver of NVIDIA's that has nothing to give: its errors are told in its words.
TEST(RealGpuDrivers, CudasOwnErrors) {
  const std::pair<std::string, std::string> all[] = {
      {"STUB_CUDA_INIT=100",
       "cudaGetDeviceCount: cudaErrorNoDevice (no CUDA-capable device is detected); the vendor's "},
      {"STUB_CUDA_INIT=999",
       "cudaGetDeviceCount: cudaErrorUnknown (unknown error); the vendor doesn't say what failed"},
      {"STUB_CUDA_INIT=3", "cudaErrorInitializationError (initialization error); a process made by fork() can't use "},
      {"STUB_CUDA_INIT=0 STUB_CUDA_VERSION=11080", "Found CUDA version 11080, but torch_openreg was built against "}};
  const std::string run = std::string("env -i LD_LIBRARY_PATH='") + OPENREG_TEST_STUB_LIBCUDA +
                          "' OPENREG_DRIVERS=cuda OPENREG_DRIVER_LIBRARIES='cuda:" + OPENREG_TEST_REAL_CUDA + "' ";
  for (const auto& [variables, expected] : all) {
    const std::string output = output_of(run + variables + " '" + OPENREG_INFO_PROGRAM + "' 2>&1", 1);
    EXPECT_CONTAINS(output, expected);
    EXPECT_EQ(output.find("E_NO_DEVICE) (OPENREG_E_NO_DEVICE)"), std::string::npos) << output;
  }
}
#endif

// Bundled, on a machine without GPUs, they are passed over without a word, and the simulated devices are
// used.
TEST(RealGpuDrivers, AutomaticSelectionPassesOver) {
  if (std::filesystem::exists("/dev/kfd") || std::filesystem::exists("/proc/driver/nvidia")) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  namespace fs = std::filesystem;
  char name[] = "/tmp/openreg_gpu_test_XXXXXX";
  const fs::path root = mkdtemp(name);
  fs::create_directories(root / "lib");
  fs::copy_file(OPENREG_LIBRARY, root / "lib" / "libopenreg.so.1");
  for (const auto& [driver, path] : real_drivers()) {
    fs::copy_file(path, root / "lib" / ("libopenreg_" + driver + ".so"));
  }
  // The variable goes before the program's own idea of where the library is.
  const std::string output =
      output_of("env -i LD_LIBRARY_PATH='" + (root / "lib").string() + "' '" + OPENREG_INFO_PROGRAM + "' 2>&1");
  EXPECT_CONTAINS(output, "sim: open");
  for (const auto& [driver, path] : real_drivers()) {
    EXPECT_CONTAINS(output, driver + ": failed, bundled");
    EXPECT_CONTAINS(output, (root / "lib" / ("libopenreg_" + driver + ".so")).string());
  }
  EXPECT_EQ(output.find("warning"), std::string::npos) << output;
  fs::remove_all(root);
}

}  // namespace
}  // namespace openreg_test
