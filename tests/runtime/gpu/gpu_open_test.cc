// SPDX-License-Identifier: BSD-3-Clause
// Opening the CUDA and HIP drivers, and counting devices without opening them (gpu_test.h).
#include "gpu_test.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

extern "C" {
#include "../../../runtime/drivers/gpu/gpu_version.h"
}

namespace openreg_test {
namespace {

// A directory that stands for the root of a machine.
class Root {
 public:
  Root() {
    char name[] = "/tmp/openreg_gpu_test_XXXXXX";
    path_ = mkdtemp(name);
    setenv("FAKE_GPU_ROOT", path_.c_str(), 1);
  }
  ~Root() {
    unsetenv("FAKE_GPU_ROOT");
    std::filesystem::remove_all(path_);
  }
  void write(const std::string& file, const std::string& text) {
    const auto path = path_ + file;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  void remove(const std::string& file) { std::filesystem::remove_all(path_ + file); }

  // A node of the kernel's description of AMD devices; processors are nodes too.
  void add_node(int node, int simds, const std::string& more = "") {
    const std::string at = "/sys/class/kfd/kfd/topology/nodes/" + std::to_string(node);
    write(at + "/properties", "cpu_cores_count 0\nsimd_count " + std::to_string(simds) +
                                  "\nsimd_per_cu 4\ngfx_target_version 90010\ndrm_render_minor " +
                                  std::to_string(128 + node) + "\n" + more);
    write("/dev/dri/renderD" + std::to_string(128 + node), "");
  }
  // Two devices behind one processor, linked with each other.
  void add_two_amd_devices() {
    write("/dev/kfd", "");
    write("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 8\nsimd_count 0\n");
    add_node(1, 416, "unique_id 81985529216486895\nnonsense\n");
    add_node(2, 416, "unique_id 81985529216486896\n");
    const std::string at = "/sys/class/kfd/kfd/topology/nodes/1";
    write(at + "/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 1000\n");
    write(at + "/mem_banks/1/properties", "heap_type 0\nsize_in_bytes 5\n");
    write(at + "/io_links/0/properties", "type 2\nnode_from 1\nnode_to 0\n");
    write(at + "/io_links/1/properties", "type 11\nnode_from 1\nnode_to 2\n");
  }

 private:
  std::string path_;
};

class FakeGpuOpen : public FakeGpuTest {
 protected:
  // Opens a copy of the driver library, with a variable set: a library keeps what it has found.
  openreg_status open_fresh(const char* name, const std::string& value) {
    const std::string copy = testing::TempDir() + "openreg_" + std::to_string(getpid()) + "_fake_copy.so";
    std::filesystem::copy_file(GetParam().library, copy, std::filesystem::copy_options::overwrite_existing);
    void* library = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
    std::filesystem::remove(copy);
    if (library == nullptr) return -1;
    const openreg_driver* const table = table_of(library);
    openreg_instance instance = nullptr;
    set(name, value);
    const int before = host_record.errors;
    const openreg_status status = table->open(&test_host(), nullptr, 0, &instance);
    unsetenv(name);
    EXPECT_EQ(host_record.errors, before + (status != OPENREG_OK));
    if (status == OPENREG_OK) {
      EXPECT_EQ(table->close(instance), OPENREG_OK);
    }
    EXPECT_EQ(dlclose(library), 0);
    return status;
  }
};
using FakeCudaOpen = FakeGpuOpen;
using FakeHipOpen = FakeGpuOpen;
using FakePlainOpen = FakeGpuOpen;  // HIP's version over CUDA's is not the one that is compared
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuOpen, ::testing::ValuesIn(gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, FakeCudaOpen, ::testing::ValuesIn(cudart_gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, FakeHipOpen, ::testing::ValuesIn(hip_gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, FakePlainOpen, ::testing::ValuesIn(plain_gpus()), gpu_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FakeCudaOpen);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FakeHipOpen);

class FakeGpuCensus : public FakeGpuTest {
 protected:
  void SetUp() override {
    FakeGpuTest::SetUp();
    if (!IsSkipped()) close();  // a census is what one takes before opening
  }
  int32_t count_devices() {
    int32_t count = -1;
    succeeds([&] { return table_->describe(&test_host(), nullptr, 0, "", 0, nullptr, nullptr, &count); });
    return count;
  }
  openreg_status counting_fails() {
    int32_t count = -7;
    const openreg_status status =
        fails([&] { return table_->describe(&test_host(), nullptr, 0, "", 0, nullptr, nullptr, &count); });
    EXPECT_EQ(count, -7);
    return status;
  }
  // As many devices as open() finds, in the fake of either vendor.
  void make_devices(int count) {
    set("FAKE_GPU_DEVICES", std::to_string(count));
    hooks_->reset();
  }
};
using FakeNvidiaCensus = FakeGpuCensus;
using FakeAmdCensus = FakeGpuCensus;
INSTANTIATE_TEST_SUITE_P(Gpu, FakeGpuCensus, ::testing::ValuesIn(gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, FakeNvidiaCensus, ::testing::ValuesIn(cudart_gpus()), gpu_name);
INSTANTIATE_TEST_SUITE_P(Gpu, FakeAmdCensus, ::testing::ValuesIn(hip_gpus()), gpu_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FakeNvidiaCensus);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FakeAmdCensus);

// ------------------------------------------------------------------------------------------------------------ versions

// Digits that don't count are divided away. acceptance 5.31
TEST(GpuVersion, ComparesAfterScaling) {
  EXPECT_TRUE(openreg_version_ok(12041, 12040, 10));
  EXPECT_FALSE(openreg_version_ok(12041, 12040, 1));
  EXPECT_TRUE(openreg_version_ok(12041, 12041, 1));
  EXPECT_TRUE(openreg_version_ok(12041, 13000, 1));
  EXPECT_FALSE(openreg_version_ok(13000, 12090, 1000));
  EXPECT_TRUE(openreg_version_ok(13010, 13000, 1000));
}

// The version can't be had. acceptance 5.29
TEST_P(FakeGpuOpen, VersionCannotBeHad) {
  const std::string sentence =
      GetParam().is_hip() ? "Unable to load HIP. Is it installed?" : "Unable to load CUDA. Is it installed?";
  set("FAKE_GPU_FAIL", GetParam().is_cudart() ? "DriverGetVersion:0:999" : "RuntimeGetVersion:0:999");
  EXPECT_EQ(restart_fails(), OPENREG_E_INCOMPATIBLE);
  EXPECT_EQ(host_record.text.rfind(sentence, 0), 0u) << host_record.text;
  EXPECT_EQ(host_record.vendor_code, 999);
  unsetenv("FAKE_GPU_FAIL");
  set(GetParam().is_cudart() ? "FAKE_GPU_DRIVER_VERSION" : "FAKE_GPU_RUNTIME_VERSION", "0");
  EXPECT_EQ(restart_fails(), OPENREG_E_NO_DEVICE);
  EXPECT_EQ(host_record.text.rfind(sentence, 0), 0u) << host_record.text;
  EXPECT_EQ(hooks_->calls("GetDeviceCount"), 0) << "the vendor's runtime was started in vain";
}

// An older copy is refused, with both numbers. acceptance 5.30
TEST_P(FakeGpuOpen, OlderVersionIsRefused) {
  set(GetParam().is_cudart() ? "FAKE_GPU_DRIVER_VERSION" : "FAKE_GPU_RUNTIME_VERSION", "1000");
  EXPECT_EQ(restart_fails(), OPENREG_E_INCOMPATIBLE);
  const std::string name = GetParam().is_hip() ? "HIP" : "CUDA";
  EXPECT_CONTAINS(host_record.text, "Found " + name + " version 1000, but torch_openreg was built against version ");
  EXPECT_CONTAINS(host_record.text, ", which is newer. The copy of " + name +
                                        " that is installed must be at least as new as the version against which "
                                        "torch_openreg was built.");
}

// Of CUDA the major version counts, and the text says what is too old. Of HIP the version must be at least as new, and one
// binary serves every major version that is known.
TEST_P(FakePlainOpen, VersionsThatDifferInMinorDigits) {
  if (GetParam().is_cudart()) {
    const int built = std::stoi(table_->version);
    for (const int found : {built / 1000 * 1000, built + 10, built + 1000}) {
      set("FAKE_GPU_DRIVER_VERSION", std::to_string(found));
      restart();
    }
    set("FAKE_GPU_DRIVER_VERSION", std::to_string(built / 1000 * 1000 - 10));
    EXPECT_EQ(restart_fails(), OPENREG_E_INCOMPATIBLE);
    EXPECT_CONTAINS(host_record.text,
                    "the newest CUDA that the installed NVIDIA driver serves: install a newer driver");
    return;
  }
  const auto digits = split(table_->version, '.');
  const auto version = [&](int major, int minor, int patch) {
    set("FAKE_GPU_RUNTIME_VERSION",
        std::to_string((std::stoi(digits[0]) + major) * 10000000 + (std::stoi(digits[1]) + minor) * 100000 + patch));
  };
  version(0, 0, 0);
  restart();
  version(0, 1, 0);
  restart();
  version(0, -1, 99999);
  EXPECT_EQ(restart_fails(), OPENREG_E_INCOMPATIBLE);
  const int built = std::stoi(digits[0]);
  for (int major = built; major <= 7; ++major) {
    version(major - built, 0, 0);
    restart();
  }
  version(8 - built, 0, 0);
  EXPECT_EQ(restart_fails(), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(host_record.text, "knows no structures after major version 7");
}

// ----------------------------------------------------------------------------------------------------------- libraries

// No device, and a driver that is too old for the runtime: open() says which.
TEST_P(FakeGpuOpen, NoDevices) {
  set("FAKE_GPU_DEVICES", "0");
  EXPECT_EQ(restart_fails(), OPENREG_E_NO_DEVICE);
  EXPECT_EQ(host_record.vendor_code, 100);
  EXPECT_EQ(hooks_->peek_error(), 0);
  set("FAKE_GPU_FAIL", "GetDeviceCount:0:35");
  EXPECT_EQ(restart_fails(), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(host_record.text, "install a newer driver");
}

// All of the vendor's devices, whatever their number.
TEST_P(FakeGpuOpen, DeviceCountIsThatOfTheVendor) {
  set("FAKE_GPU_DEVICES", "5");
  restart();
  EXPECT_EQ(device_count(), 5);
}

// The library of HIP is looked for by the names of all major versions, then without one; one that is in the process already
// comes first. A function that older versions lack may be missing.
TEST_P(FakeHipOpen, Library) {
  EXPECT_EQ(open_fresh("FAKE_GPU_LIBRARY", "0"), OPENREG_E_NO_DEVICE);
  EXPECT_CONTAINS(host_record.text, "libamdhip64.so of major version 5, 6 or 7 is not installed: libamdhip64.so.7: ");
  for (const char* soname : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"}) {
    EXPECT_EQ(open_fresh("FAKE_GPU_LIBRARY", soname), OPENREG_OK) << soname;
    EXPECT_EQ(open_fresh("FAKE_GPU_OPENED", soname), OPENREG_OK) << soname;
  }
  EXPECT_EQ(open_fresh("FAKE_GPU_MISSING", "hipLaunchHostFunc"), OPENREG_OK);
  EXPECT_EQ(open_fresh("FAKE_GPU_MISSING", "hipStreamBeginCapture"), OPENREG_OK);
  EXPECT_EQ(open_fresh("FAKE_GPU_MISSING", "hipMalloc"), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(host_record.text, "lacks the function hipMalloc");
  EXPECT_EQ(open_fresh("FAKE_GPU_ROOT", "/nowhere"), OPENREG_E_NO_DEVICE);
  EXPECT_CONTAINS(host_record.text, "there is neither /dev/kfd nor /dev/dxg");
}

// CUDA's driver may be too old to have a function.
TEST_P(FakeCudaOpen, FunctionsOfTheDriver) {
  EXPECT_EQ(open_fresh("FAKE_GPU_MISSING", "cuCtxPushCurrent"), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(host_record.text, "cuCtxPushCurrent: ");
  EXPECT_EQ(open_fresh("FAKE_GPU_FAIL", "GetDriverEntryPoint:6:500"), OPENREG_E_INCOMPATIBLE);
  EXPECT_CONTAINS(host_record.text, "cuCtxPushCurrent: ");
}

// -------------------------------------------------------------------------------------------------------------- census

// Counting makes no context, does not start the vendor's runtime, and a child made by fork() can open afterwards.
TEST_P(FakeGpuCensus, ProbeLeavesNothing) {
  Root root;
  if (!GetParam().is_cudart()) root.add_two_amd_devices();
  hooks_->reset();
  EXPECT_EQ(count_devices(), 2);
  EXPECT_EQ(hooks_->contexts(), 0u);
  EXPECT_EQ(hooks_->calls("GetDeviceCount"), 0);
  EXPECT_EQ(hooks_->calls("nvmlInit"), hooks_->calls("nvmlShutdown"));
  EXPECT_TRUE(in_child([this] {
    void* memory = nullptr;
    return open() == OPENREG_OK && table_->mem_alloc(instance_, 1, Bytes(4096), &memory) == OPENREG_OK &&
           table_->mem_free(instance_, 1, memory) == OPENREG_OK;
  }));
}

// What is known without opening: names, memory, links; and no more is written than there is room for.
TEST_P(FakeGpuCensus, DevicesAreDescribed) {
  Root root;
  root.add_two_amd_devices();
  openreg_device_info infos[3] = {}, *const pointers[3] = {&infos[0], &infos[1], &infos[2]};
  for (auto& info : infos) info.struct_size = sizeof info;
  uint8_t peers[9];
  std::memset(peers, 9, sizeof peers);
  int32_t count = -1;
  const auto describe = [&](const char* topology, int32_t capacity, uint8_t* matrix) {
    return table_->describe(&test_host(), nullptr, 0, topology, capacity, pointers, matrix, &count);
  };
  succeeds([&] { return describe("", 3, peers); });
  ASSERT_EQ(count, 2);
  EXPECT_EQ(hooks_->contexts(), 0u);
  EXPECT_EQ(infos[2].name[0], '\0');
  if (GetParam().is_cudart()) {
    EXPECT_STREQ(infos[1].name, "Fake GPU 1");
    EXPECT_EQ(infos[1].total_bytes, 256u << 20);
    EXPECT_EQ(infos[1].capability_minor, 1);
    EXPECT_EQ(std::string(infos[1].uuid, 16), std::string(16, '\x11'));
    EXPECT_EQ(peers[1], 1);
    EXPECT_EQ(peers[3], 1);
  } else {
    EXPECT_STREQ(infos[0].name, "AMD gfx90a");
    EXPECT_EQ(infos[0].total_bytes, 1000u);
    EXPECT_EQ(infos[0].multi_processor_count, 104);
    EXPECT_EQ(infos[0].capability_major, 9);
    EXPECT_EQ(infos[0].capability_minor, 0);
    EXPECT_EQ(std::string(infos[0].uuid, 16), "0123456789abcdef");
    EXPECT_EQ(peers[1], 1);
    EXPECT_EQ(peers[3], 0);
  }
  EXPECT_EQ(peers[0], 0);
  EXPECT_EQ(peers[8], 9);

  // Less room than devices: all are counted.
  infos[0].struct_size = offsetof(openreg_device_info, name);
  infos[0].name[0] = '?';
  succeeds([&] { return describe("", 1, nullptr); });
  EXPECT_EQ(count, 2);
  EXPECT_EQ(infos[0].name[0], '?');
  succeeds([&] { return describe("", 0, nullptr); });
  EXPECT_EQ(fails([&] { return describe("v5e-8", 3, nullptr); }), OPENREG_E_INVALID);
  EXPECT_CONTAINS(host_record.text, "\"v5e-8\"");
}

// CUDA_VISIBLE_DEVICES as CUDA reads it.
TEST_P(FakeNvidiaCensus, VisibleDevices) {
  make_devices(4);
  const std::string u0 = "GPU-10101010-1010-1010-1010-101010101010";
  const std::vector<std::pair<std::string, int>> expected = {
      {"0", 1},
      {"3,1", 2},
      {"0,1,2,3", 4},
      {" 1, 2", 2},
      {"1gpu2,2ampere", 2},
      {"+1", 1},
      {"0,9,1", 1},
      {"0,-1,1", 1},
      {"2,x", 1},
      {u0, 1},
      {"GPU-11,GPU-12", 2},
      {"GPU-11,GPU-9", 1},
      {"GPU-11,x,GPU-12", 1},
      {"99999999999999999999", 0},
      {"1,1", 0},
      {"GPU-1", 0},
      {"", 0},
      {"MIG-none", 0},
      {"GPU-11,GPU-111", 0},
      {"MIG-fake,MIG-other", 1},
  };
  for (const auto& [list, count] : expected) {
    SCOPED_TRACE(list);
    set("CUDA_VISIBLE_DEVICES", list);
    if (count == 0) {
      EXPECT_EQ(counting_fails(), OPENREG_E_NO_DEVICE);
    } else {
      EXPECT_EQ(count_devices(), count);
    }
  }
  // In the order of the list.
  set("CUDA_VISIBLE_DEVICES", "3,1");
  openreg_device_info infos[2] = {}, *const pointers[2] = {&infos[0], &infos[1]};
  infos[0].struct_size = infos[1].struct_size = sizeof infos[0];
  int32_t count = -1;
  succeeds([&] { return table_->describe(&test_host(), nullptr, 0, "", 2, pointers, nullptr, &count); });
  EXPECT_STREQ(infos[0].name, "Fake GPU 3");
  EXPECT_STREQ(infos[1].name, "Fake GPU 1");
}

// Where devices are in MIG mode CUDA shows one instance, the first, and no other device, whether a list names devices or
// there is none; without an instance a device in that mode is none.
TEST_P(FakeNvidiaCensus, Instances) {
  make_devices(3);
  struct Case {
    const char *instances, *list, *name;
    int count;
  };
  const std::vector<Case> cases = {
      {"---", nullptr, "Fake GPU 0", 3},        {"3--", nullptr, "Fake GPU 0 MIG 1", 1},
      {"-21", nullptr, "Fake GPU 1 MIG 1", 1},  {"0--", nullptr, "Fake GPU 1", 2},
      {"-0-", nullptr, "Fake GPU 0", 2},        {"000", nullptr, nullptr, 0},
      {"021", nullptr, "Fake GPU 1 MIG 1", 1},  {"2--", "1,2", "Fake GPU 1", 2},
      {"2-1", "1,2", "Fake GPU 2 MIG 1", 1},    {"2-1", "2,0", "Fake GPU 2 MIG 1", 1},
      {"2--", "GPU-10", "Fake GPU 0 MIG 1", 1},
  };
  for (const auto& [instances, list, name, count] : cases) {
    SCOPED_TRACE(std::string(instances) + " " + (list == nullptr ? "no list" : list));
    set("FAKE_GPU_MIG", instances);
    if (list != nullptr) set("CUDA_VISIBLE_DEVICES", list);
    if (count == 0) {
      EXPECT_EQ(counting_fails(), OPENREG_E_NO_DEVICE);
    } else {
      openreg_device_info infos[3] = {}, *const pointers[3] = {&infos[0], &infos[1], &infos[2]};
      for (auto& info : infos) info.struct_size = sizeof info;
      int32_t described = -1;
      EXPECT_EQ(count_devices(), count);
      succeeds([&] { return table_->describe(&test_host(), nullptr, 0, "", count, pointers, nullptr, &described); });
      EXPECT_EQ(described, count);
      EXPECT_STREQ(infos[0].name, name);
      EXPECT_EQ(static_cast<uint8_t>(infos[0].uuid[0]) >= 0x80, std::string(name).find("MIG") != std::string::npos);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
  }
  unsetenv("FAKE_GPU_MIG");
}

// The variables of HIP as HIP reads them, on top of those of the layer below.
TEST_P(FakeAmdCensus, VisibleDevices) {
  Root root;
  root.add_two_amd_devices();
  root.add_node(3, 416);
  struct Case {
    const char *rocr, *hip, *cuda;
    int count;
  };
  const std::vector<Case> cases = {
      {nullptr, nullptr, nullptr, 3},    {nullptr, "0,2", nullptr, 2},
      {nullptr, "1,1", nullptr, 1},      {nullptr, "", "1", 1},
      {nullptr, "", nullptr, 3},         {nullptr, "1gpu", nullptr, 0},
      {nullptr, " 1", nullptr, 0},       {"2,0", "1", nullptr, 1},
      {"2", "0,1", nullptr, 1},          {"", nullptr, nullptr, 0},
      {nullptr, "0,7,1", nullptr, 1},    {nullptr, "GPU-0123456789abcdef,2", nullptr, 2},
      {nullptr, "GPU-0123", nullptr, 0},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(std::string(one.rocr ? one.rocr : "-") + " / " + (one.hip ? one.hip : "-"));
    for (const auto& [name, value] :
         {std::pair("ROCR_VISIBLE_DEVICES", one.rocr), std::pair("HIP_VISIBLE_DEVICES", one.hip),
          std::pair("CUDA_VISIBLE_DEVICES", one.cuda)}) {
      value != nullptr ? setenv(name, value, 1) : unsetenv(name);
    }
    if (one.count == 0) {
      EXPECT_EQ(counting_fails(), OPENREG_E_NO_DEVICE);
    } else {
      EXPECT_EQ(count_devices(), one.count);
    }
  }
}

// What may not be opened does not count.
TEST_P(FakeAmdCensus, DevicesThatAreNotGiven) {
  Root root;
  EXPECT_EQ(counting_fails(), OPENREG_E_NO_DEVICE);
  EXPECT_CONTAINS(host_record.text, "no /dev/kfd");
  root.write("/dev/dxg", "");
  EXPECT_EQ(counting_fails(), OPENREG_E_UNSUPPORTED);
  root.add_two_amd_devices();
  EXPECT_EQ(count_devices(), 2);
  root.remove("/dev/dri/renderD129");
  EXPECT_EQ(count_devices(), 1);
  root.write("/sys/class/kfd/kfd/topology/nodes/2/properties", "");  // as the kernel shows another container's
  EXPECT_EQ(counting_fails(), OPENREG_E_NO_DEVICE);
}

// Without NVML the kernel's driver is asked; without that there is none.
TEST_P(FakeNvidiaCensus, WithoutNvml) {
  Root root;
  set("FAKE_GPU_NVML", "0");
  EXPECT_EQ(counting_fails(), OPENREG_E_NO_DEVICE);
  EXPECT_CONTAINS(host_record.text, "no NVIDIA driver is installed: libnvidia-ml.so.1");
  root.write("/dev/nvgpu", "");
  EXPECT_EQ(counting_fails(), OPENREG_E_UNSUPPORTED);
  const std::string gpus = "/proc/driver/nvidia/gpus/";
  root.write(gpus + "0000:65:00.0/information",
             "Model: \t\t NVIDIA H200\nIRQ:   5\nGPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeeff\n");
  root.write(gpus + "0000:17:00.0/information", "Model: A100\nGPU UUID: GPU-????\n");
  root.write(gpus + "0000:98:00.0/other", "");
  EXPECT_EQ(count_devices(), 3);
  openreg_device_info infos[3] = {}, *const pointers[3] = {&infos[0], &infos[1], &infos[2]};
  for (auto& info : infos) info.struct_size = sizeof info;
  int32_t count = -1;
  succeeds([&] { return table_->describe(&test_host(), nullptr, 0, "", 3, pointers, nullptr, &count); });
  EXPECT_STREQ(infos[0].name, "A100");
  EXPECT_EQ(std::string(infos[0].uuid, 16), std::string(16, '\0'));
  EXPECT_STREQ(infos[1].name, "NVIDIA H200");
  EXPECT_EQ(infos[1].uuid[1], 0x11);
  EXPECT_EQ(static_cast<uint8_t>(infos[1].uuid[15]), 0xff);
  set("CUDA_VISIBLE_DEVICES", "GPU-0011");
  EXPECT_EQ(count_devices(), 1);
  set("CUDA_VISIBLE_DEVICES", "MIG-fake");
  EXPECT_EQ(counting_fails(), OPENREG_E_UNSUPPORTED);
}

// The reasons of NVML become statuses, and nothing is counted.
TEST_P(FakeNvidiaCensus, NvmlFails) {
  const std::vector<std::pair<std::string, openreg_status>> cases = {
      {"nvmlInit:0:18", OPENREG_E_INCOMPATIBLE},
      {"nvmlInit:0:9", OPENREG_E_NO_DEVICE},
      {"nvmlInit:0:4", OPENREG_E_NO_DEVICE},
      {"nvmlDeviceGetCount:0:999", OPENREG_E_NO_DEVICE},
      {"nvmlDeviceGetHandleByIndex:0:15", OPENREG_E_NO_DEVICE},
  };
  for (const auto& [failure, status] : cases) {
    SCOPED_TRACE(failure);
    hooks_->set_failures(failure.c_str());
    EXPECT_EQ(counting_fails(), status);
  }
  hooks_->set_failures("");
  set("FAKE_GPU_NVML", "old");
  EXPECT_EQ(counting_fails(), OPENREG_E_INCOMPATIBLE);
  unsetenv("FAKE_GPU_NVML");
  set("CUDA_VISIBLE_DEVICES", "MIG-" + std::string(200, 'x'));
  EXPECT_EQ(counting_fails(), OPENREG_E_NO_DEVICE);
}

}  // namespace
}  // namespace openreg_test
