/* SPDX-License-Identifier: BSD-3-Clause */
// runtime_test.h: what the tests of the runtime core share. Every test starts and ends with the runtime shut down, no
// OPENREG_* variable set, and log lines collected instead of printed. With TEST_OPENREG_VALIDATE=1 in the environment
// every test runs with OPENREG_VALIDATE=1, and a report of that layer fails it. TEST_OPENREG_RACES is each test's
// OPENREG_SIM_RACES.
#ifndef OPENREG_TESTS_RUNTIME_TEST_H
#define OPENREG_TESTS_RUNTIME_TEST_H

#include <gtest/gtest.h>
#include <openreg/allocator.h>
#include <openreg/driver.h>
#include <openreg/embedding.h>
#include <openreg/openreg.h>
#include <stdlib.h>
#include <unistd.h>

#include <list>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../drivers/full_toy_driver.h"
#include "bytes.h"
#include "child.h"
#include "owned.h"
#include "threads.h"

namespace openreg_test {

// A driver library of tests/drivers.
inline std::string driver_path(const std::string& name) {
  return std::string(OPENREG_TEST_DRIVERS_DIR) + "/" + name + ".so";
}

inline const full_toy_hooks& toy() { return *full_toy_test_hooks(); }

inline std::string last_message() { return openreg_last_error()->message; }

// A call that must fail with this code, and what its text must have. A failure names the line of the test.
inline void expect_error(openreg_status status, openreg_status expected, const std::string& part,
                         const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const ::testing::ScopedTrace trace(file, line, "the call of this line");
  EXPECT_EQ(status, expected);
  EXPECT_NE(last_message().find(part), std::string::npos) << part << " in: " << last_message();
}

// The blocks that a test has been given and has not given back.
inline std::mutex given_lock;
inline std::set<const void*> given_blocks;

// What tests call by these names: the runtime's, noted, so that a block that a test leaves is told from one that the runtime
// has lost. A child of a process with busy threads calls the runtime's: a lock here may be held for ever in it.
inline openreg_status openreg_malloc(int32_t device, openreg_stream stream, size_t size, void** out) {
  const openreg_status status = ::openreg_malloc(device, stream, size, out);
  if (status == OPENREG_OK) {
    const std::lock_guard<std::mutex> guard(given_lock);
    given_blocks.insert(*out);
  }
  return status;
}
inline openreg_status openreg_free(void* block) {
  bool was_given = false;
  {
    const std::lock_guard<std::mutex> guard(given_lock);  // before another thread is given it
    was_given = given_blocks.erase(block) != 0;
  }
  const openreg_status status = ::openreg_free(block);
  if (status != OPENREG_OK && was_given) {
    const std::lock_guard<std::mutex> guard(given_lock);
    given_blocks.insert(block);
  }
  return status;
}

inline void* allocate(int32_t device, size_t size, openreg_stream stream = OPENREG_STREAM_DEFAULT) {
  void* block = nullptr;
  EXPECT_EQ(openreg_malloc(device, stream, size, &block), OPENREG_OK) << last_message();
  return block;
}

inline void release(void* block) { EXPECT_EQ(openreg_free(block), OPENREG_OK) << last_message(); }

inline openreg_stream from_pool(int32_t device, int32_t priority = 0) {
  openreg_stream stream = -1;
  EXPECT_EQ(openreg_stream_from_pool(device, priority, &stream), OPENREG_OK) << last_message();
  return stream;
}

inline openreg_device_properties properties_of(int32_t device) {
  auto properties = sized<openreg_device_properties>();
  EXPECT_EQ(openreg_device_get_properties(device, &properties), OPENREG_OK) << last_message();
  return properties;
}

inline openreg_pointer_info pointer_info(const void* ptr) {
  auto info = sized<openreg_pointer_info>();
  EXPECT_EQ(openreg_pointer_get_info(ptr, &info), OPENREG_OK) << last_message();
  return info;
}

inline openreg_allocator_settings default_settings() {
  auto settings = sized<openreg_allocator_settings>();
  EXPECT_EQ(openreg_allocator_default_settings(&settings), OPENREG_OK) << last_message();
  return settings;
}

// The default settings but for what is changed.
template <typename Change>
void use_settings(Change change) {
  auto settings = default_settings();
  change(settings);
  EXPECT_EQ(openreg_allocator_set_settings(&settings), OPENREG_OK) << last_message();
}

// The record of a driver, by name; of several the one that is not shadowed.
inline openreg_driver_record record_of(const std::string& name) {
  openreg_driver_record found{};
  found.state = -1;
  for (int32_t i = 0, n = openreg_driver_count(); i < n; ++i) {
    auto record = sized<openreg_driver_record>();
    if (openreg_driver_get_record(i, &record) == OPENREG_OK && name == record.name &&
        (found.state == -1 || record.state != OPENREG_DRIVER_STATE_SHADOWED)) {
      found = record;
    }
  }
  return found;
}

class RuntimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    clear_variables();
    if (is_validated()) set("OPENREG_VALIDATE", "1");
    if (const char* const races = getenv("TEST_OPENREG_RACES")) set("OPENREG_SIM_RACES", races);
    set("OPENREG_LOG_LEVEL", "debug");
    set("OPENREG_SIM_MEMORY", "67108864");
    set("OPENREG_SYSTEM_ROOT", "/nowhere");  // what GPUs this machine has is nobody's business
    forget_lines();
    openreg_log_set_callback(&RuntimeTest::log, this);
    openreg_clear_error();
    toy().reset();
  }

  void TearDown() override {
    toy().reset();
    give_back();
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
    EXPECT_EQ(toy().live("instance"), 0);
    EXPECT_EQ(toy().live("memory"), 0);
    EXPECT_EQ(toy().live("stream"), 0);
    EXPECT_EQ(toy().live("event"), 0);
    EXPECT_EQ(toy().live("host"), 0);
    if (is_validated()) {
      for (const auto& line : lines(OPENREG_LOG_ERROR)) EXPECT_NE(line.rfind("OPENREG_VALIDATE: ", 0), 0u) << line;
    }
    openreg_log_set_callback(nullptr, nullptr);
    clear_variables();
  }

  static void set(const char* name, const std::string& value) { ASSERT_EQ(setenv(name, value.c_str(), 1), 0); }
  static void unset(const char* name) { ASSERT_EQ(unsetenv(name), 0); }

  // Events, pinned memory and blocks that a test leaves behind are given back when it has ended.
  openreg_event make_event(int32_t device = 0, uint32_t flags = 0) {
    openreg_event event = nullptr;
    EXPECT_EQ(openreg_event_create(device, flags, &event), OPENREG_OK) << last_message();
    return owned_.add(event, [this, event] { destroy(event); });
  }
  void destroy(openreg_event event) {
    EXPECT_EQ(openreg_event_destroy(event), OPENREG_OK) << last_message();
    owned_.remove(event);
  }
  void* make_pinned(size_t size, int32_t device = 0) {
    void* memory = nullptr;
    EXPECT_EQ(openreg_host_alloc(device, size, &memory), OPENREG_OK) << last_message();
    return owned_.add(memory, [this, memory] { free_pinned(memory); });
  }
  void free_pinned(void* memory) {
    EXPECT_EQ(openreg_host_free(memory), OPENREG_OK) << last_message();
    owned_.remove(memory);
  }

  // Registers the driver with all slots, less those that `change` takes away, and makes it the one that is used.
  template <typename Change>
  void use_full_toy(Change change) {
    static auto* const tables = new std::list<openreg_driver>;  // must live as long as the process
    tables->push_back(*toy().table());
    openreg_driver* const table = &tables->back();
    change(*table);
    ASSERT_EQ(openreg_driver_register_table(table), OPENREG_OK) << last_message();
    set("OPENREG_DRIVERS", table->name);
  }
  void use_full_toy() {
    use_full_toy([](openreg_driver&) {});
  }

  static bool is_validated() { return getenv("TEST_OPENREG_VALIDATE") != nullptr; }

  // Lines of one level, or of all with level 0.
  std::vector<std::string> lines(int32_t level = 0) {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<std::string> found;
    for (const auto& line : lines_) {
      if (level == 0 || line.first == level) found.push_back(line.second);
    }
    return found;
  }
  void forget_lines() {
    std::lock_guard<std::mutex> guard(mutex_);
    lines_.clear();
  }
  int count_lines(int32_t level, const std::string& part) {
    int count = 0;
    for (const auto& line : lines(level)) count += line.find(part) != std::string::npos;
    return count;
  }

  void give_back() {
    owned_.give_back();
    std::vector<void*> blocks;
    const auto visit = [](void* all, const openreg_block_info* block) {
      if (block->state == OPENREG_BLOCK_ALLOCATED) static_cast<std::vector<void*>*>(all)->push_back(block->address);
      return 0;
    };
    for (int32_t device = 0; openreg_is_initialized() != 0 && device < openreg_device_count(); ++device)
      EXPECT_EQ(openreg_memory_visit_blocks(device, visit, &blocks), OPENREG_OK) << last_message();
    for (void* block : blocks) {
      EXPECT_EQ(given_blocks.count(block), 1u) << "the runtime has kept a block that it gave to nobody";
      EXPECT_EQ(openreg_free(block), OPENREG_OK) << last_message();
    }
    given_blocks.clear();
  }

  Owned owned_;

 private:
  static void log(void* self, int32_t level, const char* text) {
    auto* test = static_cast<RuntimeTest*>(self);
    std::lock_guard<std::mutex> guard(test->mutex_);
    test->lines_.emplace_back(level, text);
  }
  static void clear_variables() {
    std::vector<std::string> names;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string text = *variable;
      if (text.rfind("OPENREG_", 0) == 0) names.push_back(text.substr(0, text.find('=')));
    }
    for (const auto& name : names) unsetenv(name.c_str());
  }

  std::mutex mutex_;
  std::vector<std::pair<int32_t, std::string>> lines_;
};

// On the simulated devices, unless a test takes the toy.
class SimDevicesTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    set("OPENREG_DRIVERS", "sim");
  }
};

// For use_full_toy(): a driver whose memory the host can't reach.
inline void hide_from_host(openreg_driver& table) {
  table.host_alias = nullptr;
  table.device_info = [](openreg_instance instance, int32_t device, openreg_device_info* inout) {
    const openreg_status status = toy().table()->device_info(instance, device, inout);
    inout->caps = 0;
    return status;
  };
}
inline auto hidden_from_host(const char* name) {
  return [name](openreg_driver& table) {
    table.name = name;
    hide_from_host(table);
  };
}

// A driver with all slots, registered under a name of the test's own. All of them are one code: its hooks count for all.
struct Toy {
  std::string name;
  int32_t priority = OPENREG_PRIORITY_PLUGIN;
  uint32_t flags = 0;
  std::vector<openreg_option> options = {};
  uint64_t caps = 0;
};

// Registers toys. Later tests of the program find them shadowed by drivers that no rule chooses and that do nothing.
class ToysTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    // Several simulated drivers are open at once: they must fit into the address space that a checker leaves.
    for (const char* name : {"OPENREG_SIM_MEMORY", "OPENREG_CUDA_MEMORY", "OPENREG_HIP_MEMORY"}) set(name, "64M");
  }
  void TearDown() override {
    toy().reset();
    give_back();
    EXPECT_EQ(openreg_driver_prefer(nullptr), OPENREG_OK);
    EXPECT_EQ(openreg_shutdown(), OPENREG_OK) << last_message();
    const std::set<std::string> names(names_.begin(), names_.end());
    for (const auto& name : names) {
      EXPECT_EQ(add_factory({name, OPENREG_PRIORITY_NEVER}, gone), OPENREG_OK) << last_message();
    }
    EXPECT_EQ(openreg_set_process(0, 1), OPENREG_OK);
    RuntimeTest::TearDown();
  }

  openreg_status add(const Toy& wanted) {
    static auto* const tables = new std::list<std::pair<std::string, openreg_driver>>;  // for ever, as the runtime asks
    tables->emplace_back(wanted.name, *toy().table());
    openreg_driver& table = tables->back().second;
    table.name = tables->back().first.c_str();
    table.caps |= wanted.caps;
    openreg_registration registration = registration_of(wanted);
    registration.table = &table;
    return openreg_driver_register(&registration);
  }
  openreg_status add_factory(const Toy& wanted, openreg_driver_factory factory, void* context = nullptr) {
    openreg_registration registration = registration_of(wanted);
    registration.factory = factory;
    registration.ctx = context;
    return openreg_driver_register(&registration);
  }

  // Says that the test registers this name by itself.
  void will_register(const std::string& name) { names_.push_back(name); }

 private:
  static openreg_status gone(void*, openreg_factory_result*) { return OPENREG_OK; }
  openreg_registration registration_of(const Toy& wanted) {
    will_register(wanted.name);
    auto registration = sized<openreg_registration>();
    registration.name = wanted.name.c_str();
    registration.priority = wanted.priority;
    registration.flags = wanted.flags;
    registration.options = wanted.options.data();
    registration.option_count = wanted.options.size();
    return registration;
  }
  std::list<std::string> names_;
};

// What was chosen.
inline openreg_selection selection() {
  auto now = sized<openreg_selection>();
  EXPECT_EQ(openreg_selection_get(&now), OPENREG_OK) << last_message();
  return now;
}

// Names of the active drivers in the order of their devices, with "*n" devices: "cuda*2 sim*2".
inline std::string active() {
  std::string text;
  const openreg_selection now = selection();
  if (now.chosen_by == OPENREG_CHOSEN_NONE) return "none";
  const int32_t count = openreg_device_count();
  std::vector<std::pair<std::string, int>> drivers;
  for (int32_t i = 0; i < count; ++i) {
    auto properties = properties_of(i);
    if (drivers.empty() || drivers.back().first != properties.driver) drivers.emplace_back(properties.driver, 0);
    ++drivers.back().second;
  }
  for (const auto& driver : drivers) {
    text += (text.empty() ? "" : " ") + driver.first + "*" + std::to_string(driver.second);
  }
  return text;
}

// Initialises the table of devices; active() names its drivers so.
inline void expect_drivers(const std::string& drivers) {
  ASSERT_EQ(openreg_init(), OPENREG_OK) << last_message();
  EXPECT_EQ(active(), drivers);
}

inline bool has_flag(const std::string& name, uint32_t flag) { return (record_of(name).flags & flag) != 0; }

}  // namespace openreg_test

#define EXPECT_CONTAINS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

#endif
