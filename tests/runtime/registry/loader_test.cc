// SPDX-License-Identifier: BSD-3-Clause
// The loader: which tables and libraries are accepted, and what is said of those that are not.
#include <limits.h>
#include <sys/stat.h>

#include <fstream>

#include "runtime_test.h"

namespace openreg_test {
namespace {

class LoaderTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    char directory[] = "/tmp/openreg_loader_XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
  }
  void TearDown() override {
    for (const auto& path : paths_) unlink(path.c_str());
    rmdir(directory_.c_str());
    RuntimeTest::TearDown();
  }
  std::string file(const std::string& name, const std::string& content) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    paths_.push_back(path);
    return path;
  }
  std::string link(const std::string& name, const std::string& target) {
    const std::string path = directory_ + "/" + name;
    EXPECT_EQ(symlink(target.c_str(), path.c_str()), 0);
    paths_.push_back(path);
    return path;
  }
  std::string directory_;

 private:
  std::vector<std::string> paths_;
};

// Refused by openreg_driver_load(), by name of the call and with the reason; and an initialisation that was told to use
// the library fails too, with the same reason, and never falls back to the simulator.
void expect_refused(const std::string& path, openreg_status code, const std::string& reason) {
  SCOPED_TRACE(path);
  EXPECT_EQ(openreg_driver_load("zoo", path.c_str()), code);
  EXPECT_EQ(last_message().rfind("openreg_driver_register: ", 0), 0u) << last_message();
  EXPECT_CONTAINS(last_message(), reason);

  setenv("OPENREG_DRIVER_LIBRARIES", ("zoo:" + path).c_str(), 1);
  EXPECT_EQ(openreg_init(), code);
  EXPECT_CONTAINS(last_message(), "openreg_init: Unable to initialize driver 'zoo': ");
  EXPECT_CONTAINS(last_message(), reason);
  EXPECT_CONTAINS(last_message(), "set OPENREG_DRIVERS=sim");
  EXPECT_EQ(openreg_is_initialized(), 0);
  const openreg_driver_record record = record_of("zoo");
  EXPECT_EQ(record.state, OPENREG_DRIVER_STATE_FAILED);
  EXPECT_EQ(record.code, code);
  EXPECT_STREQ(record.source, "OPENREG_DRIVER_LIBRARIES");
  EXPECT_CONTAINS(record.message, reason);
  unsetenv("OPENREG_DRIVER_LIBRARIES");
}

// The loader zoo.
TEST_F(LoaderTest, ZooOfFiles) {
  expect_refused(directory_ + "/missing.so", OPENREG_E_INCOMPATIBLE, "No such file or directory");
  expect_refused(file("text.so", "this is no library\n"), OPENREG_E_INCOMPATIBLE, "text.so");
  expect_refused(file("empty.so", ""), OPENREG_E_INCOMPATIBLE, "file too short");
  expect_refused(directory_, OPENREG_E_INCOMPATIBLE, "not a regular file");
  expect_refused(link("loop.so", directory_ + "/loop.so"), OPENREG_E_INCOMPATIBLE, "Too many levels of symbolic links");
  std::string machine(
      "\x7f"
      "ELF\x02\x01\x01",
      7);
  machine.resize(64);
  machine[16] = 3;  // a shared object
  machine[18] = 8;  // for MIPS
  machine[20] = 1;
  expect_refused(file("machine.so", machine), OPENREG_E_INCOMPATIBLE, "machine.so");
  expect_refused("toy_driver.so", OPENREG_E_INVALID, "not a path to a library");
}

TEST_F(LoaderTest, ZooOfLibraries) {
  expect_refused(driver_path("broken_no_entry"), OPENREG_E_INCOMPATIBLE, "does not export openreg_driver_query_v1");
  expect_refused(driver_path("broken_v2_only"), OPENREG_E_INCOMPATIBLE, "the driver implements ABI 2");
  // acceptance 5.65
  expect_refused(driver_path("broken_v99_only"), OPENREG_E_INCOMPATIBLE,
                 "the driver implements ABI 99, this runtime ABI 1");
  expect_refused(driver_path("broken_query_fails"), OPENREG_E_NO_DEVICE, "nothing here");
  expect_refused(driver_path("broken_null_table"), OPENREG_E_INCOMPATIBLE, "returned no table");
  expect_refused(driver_path("broken_short_table"), OPENREG_E_INCOMPATIBLE,
                 "has 264 bytes, ABI 1.0 needs at least 272");
  expect_refused(driver_path("broken_no_copy"), OPENREG_E_INCOMPATIBLE, "lacks the required function copy");
  expect_refused(driver_path("broken_half_streams"), OPENREG_E_INCOMPATIBLE, "has stream_create but lacks");
  expect_refused(driver_path("broken_name"), OPENREG_E_INVALID, "\"Not A Name\" is not 1 to 31 characters");
  expect_refused(driver_path("broken_unresolved"), OPENREG_E_INCOMPATIBLE, "openreg_test_symbol_that_nobody_defines");
}

// Tables that are fine, of drivers that are not: the failure comes from open() or from what it finds.
TEST_F(LoaderTest, ZooOfOpening) {
  const auto expect_open_fails = [](const char* library, openreg_status code, const std::string& reason) {
    SCOPED_TRACE(library);
    setenv("OPENREG_DRIVER_LIBRARIES", ("zoo:" + driver_path(library)).c_str(), 1);
    EXPECT_EQ(openreg_init(), code);
    EXPECT_CONTAINS(last_message(), reason);
    EXPECT_EQ(openreg_is_initialized(), 0);
  };
  expect_open_fails("broken_open_fails", OPENREG_E_INCOMPATIBLE, "the vendor's library is too old");
  EXPECT_EQ(openreg_last_error()->vendor_code, 35);
  EXPECT_STREQ(openreg_last_error()->driver, "zoo");
  expect_open_fails("broken_no_devices", OPENREG_E_NO_DEVICE, "Driver 'zoo' provides no devices.");
  expect_open_fails("broken_negative_count", OPENREG_E_INTERNAL, "negative number of devices");
  expect_open_fails("broken_too_many", OPENREG_E_NO_DEVICE, "128 devices");
  expect_open_fails("broken_info", OPENREG_E_INTERNAL, "not a power of two");
  expect_open_fails("broken_alias", OPENREG_E_INCOMPATIBLE,
                    "OPENREG_CAP_HOST_VISIBLE of device 0 but lacks host_alias");
}

// A driver that cannot be closed does not keep the runtime from shutting down; it is logged.
TEST_F(LoaderTest, FailingCloseIsLogged) {
  set("OPENREG_DRIVER_LIBRARIES", "zoo:" + driver_path("broken_close_fails"));
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_shutdown(), OPENREG_OK);
  EXPECT_EQ(openreg_is_initialized(), 0);
  EXPECT_EQ(count_lines(OPENREG_LOG_WARNING, "cannot close"), 1);
}

// A table of a later minor, 64 bytes longer, is read up to where both sides know it.
TEST_F(LoaderTest, TableFromTheFutureIsAccepted) {
  set("OPENREG_DRIVER_LIBRARIES", "zoo:" + driver_path("broken_future"));
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_device_count(), 1);
  EXPECT_EQ(record_of("zoo").slots, 0x7fu);  // the seven
}

// mem_alloc that succeeds without giving memory is an error, not a NULL tensor.
TEST_F(LoaderTest, AllocationWithoutMemoryIsAnError) {
  set("OPENREG_DRIVER_LIBRARIES", "zoo:" + driver_path("broken_future"));
  void* memory = &memory;
  EXPECT_EQ(openreg_malloc(0, 0, 16, &memory), OPENREG_E_INTERNAL);
  EXPECT_EQ(memory, nullptr);
  EXPECT_CONTAINS(last_message(), "returned OK without memory");
}

// One file is loaded once, whatever path leads to it, and the resolved path is logged and recorded.
TEST_F(LoaderTest, SameFileLoadsOnce) {
  const std::string target = driver_path("broken_future");
  const std::string alias = link("alias.so", target);
  EXPECT_EQ(openreg_driver_load("once", alias.c_str()), OPENREG_OK) << last_message();
  EXPECT_EQ(openreg_driver_load("twice", target.c_str()), OPENREG_OK) << last_message();
  EXPECT_LE(count_lines(OPENREG_LOG_INFO, "loaded driver \"broken\" from "), 1);
  char real[PATH_MAX];
  ASSERT_NE(realpath(target.c_str(), real), nullptr);
  EXPECT_STREQ(record_of("once").path, real);
  EXPECT_STREQ(record_of("twice").path, real);
}

TEST_F(LoaderTest, ArgumentsAreChecked) {
  EXPECT_EQ(openreg_driver_load("x", nullptr), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_load("x", ""), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_load("no spaces", "/x.so"), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_load("a_name_that_is_longer_than_31_characters", "/x.so"), OPENREG_E_INVALID);
  EXPECT_EQ(openreg_driver_register_table(nullptr), OPENREG_E_INVALID);
  const std::string longest = directory_ + "/" + std::string(200, 'a') + "/../" + std::string(400, 'b') + ".so";
  EXPECT_EQ(openreg_driver_load("x", longest.c_str()), OPENREG_E_INCOMPATIBLE);
}

// Each required slot by its name, each group whole.
TEST_F(LoaderTest, EachMissingSlotIsNamed) {
  const auto refused = [](auto change, const char* reason) {
    openreg_driver table = *toy().table();
    change(table);
    expect_error(openreg_driver_register_table(&table), OPENREG_E_INCOMPATIBLE, reason);
  };
  refused([](openreg_driver& t) { t.open = nullptr; }, "lacks the required function open");
  refused([](openreg_driver& t) { t.close = nullptr; }, "lacks the required function close");
  refused([](openreg_driver& t) { t.device_count = nullptr; }, "lacks the required function device_count");
  refused([](openreg_driver& t) { t.mem_alloc = nullptr; }, "lacks the required function mem_alloc");
  refused([](openreg_driver& t) { t.mem_free = nullptr; }, "lacks the required function mem_free");
  refused([](openreg_driver& t) { t.device_sync = nullptr; }, "lacks the required function device_sync");
  refused([](openreg_driver& t) { t.stream_sync = nullptr; }, "lacks stream_sync: the stream functions come together");
  refused([](openreg_driver& t) { t.event_query = nullptr; }, "lacks event_query: the event functions come together");
  refused([](openreg_driver& t) { t.host_free = nullptr; }, "lacks host_free");
}

// Only the one symbol leaves a driver that is built as the documentation says; the runtime finds it there.
TEST_F(LoaderTest, ToyDriverLoadsByPath) {
  EXPECT_EQ(openreg_driver_load(nullptr, driver_path("toy_driver").c_str()), OPENREG_OK) << last_message();
  const openreg_driver_record record = record_of("toy");
  EXPECT_EQ(record.state, OPENREG_DRIVER_STATE_LOADED);
  EXPECT_EQ(record.priority, 400);
  EXPECT_STREQ(record.source, "registered");
  EXPECT_STREQ(record.version, "1.0");
}

}  // namespace
}  // namespace openreg_test
