// SPDX-License-Identifier: BSD-3-Clause
// The built files from outside: what libopenreg.so and a driver export, and the program openreg-info.
#include <sstream>

#include "runtime_test.h"

using openreg_test::driver_path;
using openreg_test::output_of;
using openreg_test::RuntimeTest;

namespace {

class LibraryTest : public RuntimeTest {
 protected:
  static std::vector<std::string> exports(const std::string& path) {
    std::istringstream lines(output_of("nm -D --defined-only '" + path + "'"));
    std::vector<std::string> names;
    std::string address, kind, name;
    while (lines >> address >> kind >> name) {
      if (kind != "A") names.push_back(name.substr(0, name.find('@')));  // A: the version node itself
    }
    return names;
  }
  static std::string info(const std::string& arguments, int status = 0) {
    return output_of(std::string("'") + OPENREG_INFO_PROGRAM + "' " + arguments + " 2>&1", status);
  }
};

// Nothing but openreg_ functions leaves the runtime.
TEST_F(LibraryTest, RuntimeExportsOnlyItsPrefix) {
  const std::vector<std::string> names = exports(OPENREG_LIBRARY);
  int functions = 0;
  for (const auto& name : names) {
    // Instrumented builds add their own.
    const bool is_instrumentation = name.rfind("__", 0) == 0;
    EXPECT_TRUE(name.rfind("openreg_", 0) == 0 || is_instrumentation) << name;
    functions += name.rfind("openreg_", 0) == 0;
  }
  EXPECT_GT(functions, 50);
}

// A driver exports one symbol.
TEST_F(LibraryTest, DriverExportsOneSymbol) {
  std::vector<std::string> own;
  for (const auto& name : exports(driver_path("toy_driver"))) {
    if (name.rfind("__", 0) != 0) own.push_back(name);
  }
  EXPECT_EQ(own, std::vector<std::string>{"openreg_driver_query_v1"});
}

// openreg-info: the devices, the drivers with what is native and what is emulated; status 0 with a device.
TEST_F(LibraryTest, InfoShowsDriversAndDevices) {
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + driver_path("toy_driver"));
  set("OPENREG_DRIVERS", "toy,sim");
  const std::string text = info("");
  EXPECT_CONTAINS(text, "openreg " OPENREG_VERSION_STRING);
  EXPECT_CONTAINS(text, "  toy: open, OPENREG_DRIVER_LIBRARIES, priority 400, 2 devices");
  EXPECT_CONTAINS(text, "    native    open close device_count mem_alloc mem_free copy device_sync\n");
  EXPECT_CONTAINS(text, "    emulated  device_info fill stream_create");
  EXPECT_CONTAINS(text, "/toy_driver.so");
  EXPECT_CONTAINS(text, "  cuda: failed, bundled, priority 200");
  EXPECT_CONTAINS(text, "    why not   the library is not there: built without CUDA (OPENREG_E_NO_DEVICE)");
  EXPECT_CONTAINS(text, "  openreg:0: toy device 0, driver toy, ordinal 0");
  EXPECT_CONTAINS(text, "  openreg:3: ");
  EXPECT_CONTAINS(text, "67108864 bytes (64.0 MiB)");
  EXPECT_CONTAINS(text, "    flags     active gpu required plugin\n");
  EXPECT_CONTAINS(text, "    ABI       1.0\n");
  EXPECT_CONTAINS(text, "\nselection\n  rule      environment\n  default   toy\n");
}

// Which rule chose, and what is mocked.
TEST_F(LibraryTest, InfoShowsTheSelection) {
  set("OPENREG_USE_MOCK_GPU", "1");
  set("OPENREG_LOG_LEVEL", "error");
  const std::string text = info("");
  EXPECT_CONTAINS(text, "  cuda: open, mock, priority 200, 1 device\n    flags     active gpu mock\n");
  EXPECT_CONTAINS(text, "\nselection\n  rule      automatic\n  default   cuda\n");
  EXPECT_CONTAINS(text, "  openreg:0: OpenReg mock CUDA device 0, driver cuda, ordinal 0");
  const std::string json = info("--json");
  EXPECT_CONTAINS(json, "\"selection\": {\"chosen_by\": \"automatic\", \"default_driver\": \"cuda\"");
  EXPECT_CONTAINS(json, "\"flags\": [\"active\", \"gpu\", \"mock\"]");
  set("OPENREG_DRIVERS", "nobody");
  EXPECT_CONTAINS(info("", 1), "\nselection\n  rule      none\n  default   -\n");
}

// Paths are somebody else's text: no escape reaches the terminal, and JSON stays valid.
TEST_F(LibraryTest, InfoShowsPathsAsText) {
  set("OPENREG_DRIVER_LIBRARIES", "chip:/nowhere/\033[31m\xff.so");
  const std::string text = info("", 1);
  EXPECT_EQ(text.find('\033'), std::string::npos) << text;
  EXPECT_CONTAINS(text, "    path      /nowhere/\\x1b[31m\\xff.so\n");
  EXPECT_CONTAINS(info("--json", 1), R"("path": "/nowhere/\u001b[31m\udcff.so")");
}

// Without a device: status 1 and the reason.
TEST_F(LibraryTest, InfoSaysWhyThereIsNoDevice) {
  set("OPENREG_DRIVERS", "nobody");
  const std::string text = info("", 1);
  EXPECT_CONTAINS(text,
                  "  none: openreg_init: Unable to initialize driver 'nobody': Driver 'nobody' is not in the list");
  const std::string json = info("--json", 1);
  EXPECT_CONTAINS(json, "\"status\": \"OPENREG_E_INVALID\"");
  EXPECT_CONTAINS(json, "Unable to initialize driver 'nobody'");
}

// The JSON has the same facts, with brackets and quotes that match.
TEST_F(LibraryTest, InfoAsJson) {
  set("OPENREG_DRIVERS", "sim");
  const std::string json = info("--json");
  EXPECT_CONTAINS(json, "{\"name\": \"sim\", \"state\": \"open\", \"source\": \"built in\"");
  EXPECT_CONTAINS(json, "{\"index\": 1, \"name\": \"");
  EXPECT_CONTAINS(json, "\"total_memory\": 67108864");
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (in_string) {
      i += json[i] == '\\';
      in_string = json[i] != '"';
    } else {
      in_string = json[i] == '"';
      depth += json[i] == '{' || json[i] == '[';
      depth -= json[i] == '}' || json[i] == ']';
    }
    EXPECT_GE(depth, 0);
  }
  EXPECT_EQ(depth, 0);
  EXPECT_FALSE(in_string);
}

TEST_F(LibraryTest, InfoArguments) {
  EXPECT_CONTAINS(info("--help"), "usage: openreg-info [--json]");
  EXPECT_CONTAINS(info("--wrong", 2), "usage: openreg-info");
}

// A copy of the runtime in a directory of its own, with other libraries beside it, as it is installed.
class BesideTest : public LibraryTest {
 protected:
  void SetUp() override {
    LibraryTest::SetUp();
    char directory[] = "/tmp/openreg_beside_XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    place("libopenreg.so.1", OPENREG_LIBRARY);
  }
  void TearDown() override {
    output_of("rm -r '" + directory_ + "'");
    LibraryTest::TearDown();
  }
  void place(const std::string& name, const std::string& source) {
    output_of("cp '" + source + "' '" + directory_ + "/" + name + "'");
  }
  std::string info_there(int status = 0) {
    return output_of("LD_LIBRARY_PATH='" + directory_ + "' '" + OPENREG_INFO_PROGRAM + "' 2>&1", status);
  }
  std::string directory_;
};

// A bundled library is found, and preferred to the simulator.
TEST_F(BesideTest, LibraryBesideTheRuntimeIsUsed) {
  place("libopenreg_hip.so", driver_path("full_toy_driver"));
  const std::string text = info_there();
  EXPECT_CONTAINS(text, "  hip: open, bundled, priority 200, 2 devices");
  EXPECT_CONTAINS(text, directory_ + "/libopenreg_hip.so");
  EXPECT_CONTAINS(text, "  openreg:0: Full toy 0, driver hip, ordinal 0");
}

// A driver that is found and can't be used is one info line; one that can't even be loaded is a warning. The simulator is used.
TEST_F(BesideTest, FailuresOfFoundLibrariesAreQuiet) {
  place("libopenreg_cuda.so", driver_path("broken_open_fails"));
  place("libopenreg_hip.so", driver_path("broken_no_entry"));
  set("OPENREG_LOG_LEVEL", "info");
  const std::string text = info_there();
  EXPECT_CONTAINS(text,
                  "openreg: info: driver \"cuda\" (bundled) is not used: the vendor's library is too "
                  "old (OPENREG_E_INCOMPATIBLE)");
  EXPECT_CONTAINS(text, "openreg: warning: driver \"hip\" (bundled) is not used: ");
  EXPECT_CONTAINS(text, "does not export openreg_driver_query_v1");
  EXPECT_CONTAINS(text, ", driver sim, ordinal 0");
}

// If nothing is left, the error lists every driver with its reason.
TEST_F(BesideTest, NothingIsLeft) {
  place("libopenreg_cuda.so", driver_path("broken_open_fails"));
  place("libopenreg_hip.so", driver_path("broken_no_devices"));
  set("OPENREG_SIM_DEVICES", "-3");
  const std::string text = info_there(1);
  EXPECT_CONTAINS(text, "  none: openreg_init: no driver can be used\n  sim (built in): ");
  EXPECT_CONTAINS(text, "\"-3\"");
  EXPECT_CONTAINS(text, "\n  hip (bundled): Driver 'hip' provides no devices.");
  EXPECT_CONTAINS(text, "\n  cuda (bundled): the vendor's library is too old");
}

// Asked for by name, the same failure is an error, and names the others.
TEST_F(BesideTest, AskedForByName) {
  place("libopenreg_cuda.so", driver_path("broken_open_fails"));
  set("OPENREG_DRIVERS", "cuda");
  const std::string text = info_there(1);
  EXPECT_CONTAINS(text,
                  "openreg_init: Unable to initialize driver 'cuda': the vendor's library is too old "
                  "(OPENREG_E_INCOMPATIBLE) (set OPENREG_DRIVERS='' to automatically choose an available driver)\n"
                  "  bundled: " +
                      directory_ +
                      "/libopenreg_cuda.so: the error above\n"
                      "  OPENREG_DRIVER_LIBRARIES: not set\n"
                      "  other drivers: sim (built in, 2 devices)");
}

}  // namespace
