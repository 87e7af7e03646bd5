// SPDX-License-Identifier: BSD-3-Clause
// A word about GPUs that the machine seems to have and no driver serves: device files and PCI under a root of the test's.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "runtime_test.h"

namespace openreg_test {
namespace {

// Each initialisation is one of a fresh process, as a suggestion is made once in each.
class MissingDriverTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    char directory[] = "/tmp/openreg_root_XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    root_ = directory;
    set("OPENREG_SYSTEM_ROOT", root_);
    set("OPENREG_LOG_LEVEL", "warning");
  }
  void TearDown() override {
    std::filesystem::remove_all(root_);
    RuntimeTest::TearDown();
  }
  void file(const std::string& name, const std::string& content = "") {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  void pci(const std::string& slot, const std::string& vendor, const std::string& kind) {
    file("sys/bus/pci/devices/" + slot + "/vendor", vendor + "\n");
    file("sys/bus/pci/devices/" + slot + "/class", kind + "\n");
  }
  // Whether a process that initialises twice logs just these warnings.
  bool warns(const std::vector<std::string>& expected) {
    return in_child([&] {
      const bool worked = openreg_init() == OPENREG_OK && openreg_shutdown() == OPENREG_OK &&
                          openreg_init() == OPENREG_OK && openreg_shutdown() == OPENREG_OK;
      const auto seen = lines();
      for (const auto& line : seen) {
        if (seen != expected) fprintf(stderr, "warning: %s\n", line.c_str());
      }
      return worked && seen == expected;
    });
  }
  std::string root_;
  const std::string no_cuda_ =
      "An NVIDIA GPU may be present on this machine, but torch_openreg was built without CUDA support. Falling back to "
      "sim.";
  const std::string no_hip_ =
      "An AMD GPU may be present on this machine, but torch_openreg was built without HIP support. Falling back to "
      "sim.";
};

// acceptance 5.62: the library is not there: once a process, for each of the signs.
TEST_F(MissingDriverTest, NotBuilt) {
  EXPECT_TRUE(warns({}));
  for (const char* sign : {"dev/nvidia0", "dev/nvidiactl", "dev/dxg"}) {
    file(sign);
    EXPECT_TRUE(warns({no_cuda_})) << sign;
    std::filesystem::remove(root_ + "/" + sign);
  }
  file("dev/kfd");
  EXPECT_TRUE(warns({no_hip_}));
  EXPECT_TRUE(in_child([&] { return openreg_drivers_open_all() == OPENREG_OK && lines() == std::vector{no_hip_}; }));
  file("dev/nvidia0");
  EXPECT_TRUE(warns({no_cuda_, no_hip_}));
}

// acceptance 5.62: the library is there and has failed: why.
TEST_F(MissingDriverTest, FailedToInitialize) {
  file("dev/nvidia0");
  set("OPENREG_CUDA_LIBRARY_PATH", driver_path("broken_open_fails"));
  EXPECT_TRUE(
      warns({"CUDA driver failed to initialize: the vendor's library is too old (OPENREG_E_INCOMPATIBLE) (Set "
             "OPENREG_LOG_LEVEL=debug and rerun for more info.)"}));
}

// acceptance 5.62: without device files the PCI bus tells, by vendor and a class of displays.
TEST_F(MissingDriverTest, OnTheBus) {
  pci("0000:00:02.0", "0x8086", "0x030000");  // another vendor's display
  pci("0000:01:00.1", "0x10de", "0x040300");  // an audio device of NVIDIA
  pci("0000:02:00.0", "0x1002", "0x060000");  // a bridge of AMD
  pci("0000:03:00.0", "nonsense", "");
  file("sys/bus/pci/devices/readme", "no directory");
  EXPECT_TRUE(warns({}));
  pci("0000:04:00.0", "0x10de", "0x030200");
  EXPECT_TRUE(warns({no_cuda_}));
  pci("0000:05:00.0", "0x1002", "0x038000");
  EXPECT_TRUE(warns({no_cuda_, no_hip_}));
}

// acceptance 5.62: silence where somebody chose, or where a GPU is used.
TEST_F(MissingDriverTest, SilenceWhereSomebodyChose) {
  file("dev/nvidia0");
  file("dev/kfd");
  set("OPENREG_DRIVERS", "sim");
  EXPECT_TRUE(warns({}));
  unset("OPENREG_DRIVERS");
  EXPECT_TRUE(in_child([&] { return openreg_drivers_use("sim") == OPENREG_OK && lines().empty(); }));
  EXPECT_TRUE(in_child(
      [&] { return openreg_driver_prefer("sim") == OPENREG_OK && openreg_init() == OPENREG_OK && lines().empty(); }));
  set("OPENREG_CUDA_LIBRARY_PATH", driver_path("toy_driver"));
  EXPECT_TRUE(warns({}));
  unset("OPENREG_CUDA_LIBRARY_PATH");
  // Counting does not choose.
  EXPECT_TRUE(in_child([&] { return openreg_device_count() == 2 && lines().empty(); }));
}

// A preference that can't be followed leaves an automatic choice, which may suggest.
TEST_F(MissingDriverTest, AfterAPreferenceThatDoesNotWork) {
  file("dev/nvidia0");
  EXPECT_TRUE(in_child([&] {
    return openreg_driver_prefer("cuda") == OPENREG_OK && openreg_init() == OPENREG_OK && lines().size() == 2 &&
           lines()[0] ==
               "Trying to use driver 'cuda' but its library is not loaded (the library is not there: built without "
               "CUDA). "
               "Ignoring the preference." &&
           lines()[1] == no_cuda_;
  }));
}

// A root that is too long to look under, or a file, is no sign of anything.
TEST_F(MissingDriverTest, UnusableRoot) {
  set("OPENREG_SYSTEM_ROOT", "/" + std::string(5000, 'x'));
  EXPECT_TRUE(warns({}));
  file("plain");
  set("OPENREG_SYSTEM_ROOT", root_ + "/plain");
  EXPECT_TRUE(warns({}));
}

}  // namespace
}  // namespace openreg_test
