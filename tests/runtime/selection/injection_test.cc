// SPDX-License-Identifier: BSD-3-Clause
// Fault injection: each function of a driver fails at its n-th call, and each allocation of host memory fails, for every
// n until the work gets through. Nothing crashes, nothing leaks, the error is the right one, and the next attempt works.
//
// This program contains the runtime itself instead of loading it, so that the linker can put the functions below in
// front of malloc() and its relatives (--wrap).
#include <atomic>
#include <thread>

#include "runtime_test.h"
#include "scenario.h"

using openreg_test::in_child;
using openreg_test::last_message;
using openreg_test::RuntimeTest;
using openreg_test::Scenario;
using openreg_test::toy;

namespace {

// The allocation that fails next, counted down by those of every thread; 0: none.
std::atomic<int> countdown{0};

bool must_fail() {
  int left = countdown.load();
  while (left > 0) {
    if (countdown.compare_exchange_weak(left, left - 1)) return left == 1;
  }
  return false;
}

}  // namespace

extern "C" {
void* __real_malloc(size_t size);
void* __real_calloc(size_t count, size_t size);
void* __real_realloc(void* memory, size_t size);
char* __real_strdup(const char* text);
int __real_posix_memalign(void** out, size_t alignment, size_t size);

void* __wrap_malloc(size_t size) { return must_fail() ? nullptr : __real_malloc(size); }
void* __wrap_calloc(size_t count, size_t size) { return must_fail() ? nullptr : __real_calloc(count, size); }
void* __wrap_realloc(void* memory, size_t size) { return must_fail() ? nullptr : __real_realloc(memory, size); }
char* __wrap_strdup(const char* text) { return must_fail() ? nullptr : __real_strdup(text); }
int __wrap_posix_memalign(void** out, size_t alignment, size_t size) {
  return must_fail() ? ENOMEM : __real_posix_memalign(out, alignment, size);
}
}

namespace {

class InjectionTest : public RuntimeTest {};

const char* const slots[] = {"open",           "close",        "device_count",  "mem_alloc",   "mem_free",
                             "copy",           "device_sync",  "device_info",   "fill",        "stream_create",
                             "stream_destroy", "stream_query", "stream_sync",   "stream_wait", "event_create",
                             "event_destroy",  "event_record", "event_query",   "event_sync",  "describe",
                             "device_active",  "device_bind",  "host_alloc",    "host_free",   "mem_info",
                             "event_elapsed",  "host_alias",   "stream_native", "host_func"};

// A driver that fails to give something back keeps it, so its own books don't come out even.
bool gives_back(const std::string& slot) {
  return slot == "close" || slot == "mem_free" || slot == "stream_destroy" || slot == "event_destroy" ||
         slot == "host_free";
}

TEST_F(InjectionTest, ScenarioWorks) {
  use_full_toy();
  Scenario scenario;
  EXPECT_EQ(scenario.run(), OPENREG_OK) << last_message();
  EXPECT_TRUE(scenario.bytes_are_right());
  EXPECT_TRUE(scenario.is_clean());
}

// Each slot, each call, in three ways: an ordinary error, an unknown code, and an error without a text.
TEST_F(InjectionTest, EachSlotAtEachCall) {
  set("OPENREG_LOG_LEVEL", "error");
  use_full_toy();
  int injected = 0;
  for (const std::string slot : slots) {
    for (int way = 0; way < 3; ++way) {
      const openreg_status code = way == 1 ? 4711 : OPENREG_E_DEVICE_LOST;
      for (int nth = 1;; ++nth) {
        ASSERT_LT(nth, 200);
        SCOPED_TRACE(slot + " call " + std::to_string(nth) + " way " + std::to_string(way));
        toy().reset();
        toy().fail(slot.c_str(), nth, code, way == 2 ? FULL_TOY_SILENT : 0u);
        Scenario scenario;
        const openreg_status status = scenario.run();
        EXPECT_TRUE(scenario.is_clean()) << last_message();
        const bool was_reached = toy().calls(slot.c_str()) >= nth;
        if (status == OPENREG_OK) {
          EXPECT_TRUE(scenario.bytes_are_right());
        } else {
          EXPECT_TRUE(was_reached);
          EXPECT_EQ(status, way == 1 ? OPENREG_E_INTERNAL : OPENREG_E_DEVICE_LOST);
        }
        if (gives_back(slot)) {
          toy().forget();
        } else {
          for (const char* what : {"instance", "memory", "stream", "event", "host"}) {
            EXPECT_EQ(toy().live(what), 0) << what;
          }
        }
        toy().reset();
        Scenario again;
        EXPECT_EQ(again.run(), OPENREG_OK) << last_message();
        EXPECT_TRUE(again.bytes_are_right());
        if (!was_reached) break;
        ++injected;
      }
    }
  }
  EXPECT_GT(injected, 100);
}

// Runs work() in a fresh process, whose n-th allocation of host memory fails, and once more without. work() gives the
// status, and whether all was given back.
template <typename Work>
bool survives(int nth, bool* was_reached, Work work) {
  return in_child([&] {
           std::pair<openreg_status, bool> first{-1, false};
           std::thread([&] {  // a thread that has no record of its own yet
             countdown = nth;
             first = work();
             countdown = 0;
           })
               .join();
           const auto second = work();
           const openreg_status status = first.first;
           if (status != OPENREG_OK && status != OPENREG_E_NOMEM)
             fprintf(stderr, "allocation %d: status %d\n", nth, status);
           if (!first.second) fprintf(stderr, "allocation %d: not clean\n", nth);
           if (second.first != OPENREG_OK) fprintf(stderr, "allocation %d: again: %s\n", nth, last_message().c_str());
           return (status == OPENREG_OK || status == OPENREG_E_NOMEM) && first.second && second.first == OPENREG_OK &&
                  second.second;
         }) &&
         (*was_reached = in_child([&] {
           countdown = nth;
           (void)work();
           return countdown == 0;
         }),
          true);
}

template <typename Work>
void every_allocation(Work work) {
  int nth = 0;
  bool was_reached = true;
  while (was_reached) {
    ++nth;
    ASSERT_LT(nth, 500);
    ASSERT_TRUE(survives(nth, &was_reached, work)) << "allocation " << nth;
  }
  EXPECT_GT(nth, 10);
}

std::pair<openreg_status, bool> run_scenario() {
  Scenario scenario;
  const openreg_status status = scenario.run();
  return {status, scenario.is_clean() && (status != OPENREG_OK || scenario.bytes_are_right())};
}

// What chooses drivers: registrations, opening to ask, selections by each rule, descriptions.
openreg_status choose() {
#define STEP(expression)                               \
  do {                                                 \
    const openreg_status step_status = (expression);   \
    if (step_status != OPENREG_OK) return step_status; \
  } while (0)
  static const openreg_option options[] = {{"colour", "red"}, {"visible_devices", "1"}};
  auto registration = openreg_test::sized<openreg_registration>();
  registration.name = "injected";
  registration.table = toy().table();
  registration.priority = 5;
  registration.options = options;
  registration.option_count = 2;
  openreg_device_properties devices[4]{};
  for (auto& device : devices) device.struct_size = sizeof device;
  int32_t count = 0;
  STEP(openreg_driver_register(&registration));
  STEP(openreg_driver_open("injected"));
  STEP(openreg_driver_get_device_properties("injected", 0, &devices[0]));
  STEP(openreg_drivers_use("injected,sim"));
  STEP(openreg_driver_get_topology("injected", "", options, 2, 4, devices, nullptr, &count));
  STEP(openreg_drivers_open_all());
  STEP(openreg_drivers_use(nullptr));
  STEP(openreg_driver_prefer("cuda"));
  STEP(openreg_drivers_reselect());
  STEP(openreg_driver_find("hip", [] {
    static openreg_driver_record record;
    record.struct_size = sizeof record;
    return &record;
  }()));
  return OPENREG_OK;
#undef STEP
}

std::pair<openreg_status, bool> run_choose() {
  const openreg_status status = choose();
  bool is_clean = openreg_shutdown() == OPENREG_OK && openreg_is_initialized() == 0;
  is_clean = is_clean && toy().live("instance") == 0;
  return {status, is_clean};
}

TEST_F(InjectionTest, EachAllocationOfChoosing) {
  set("OPENREG_LOG_LEVEL", "error");
  set("OPENREG_USE_MOCK_GPU", "cuda");
  set("OPENREG_SIM_VISIBLE_DEVICES", "1,0");
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + openreg_test::driver_path("toy_driver"));
  every_allocation(run_choose);
}

TEST_F(InjectionTest, EachAllocationWithTheSimulator) {
  set("OPENREG_LOG_LEVEL", "error");
  set("OPENREG_DRIVERS", "sim");
  every_allocation(run_scenario);
}

TEST_F(InjectionTest, EachAllocationWithTheToyDriver) {
  set("OPENREG_LOG_LEVEL", "error");
  set("OPENREG_DRIVER_LIBRARIES", "toy:" + openreg_test::driver_path("toy_driver"));
  set("OPENREG_DRIVERS", "toy");
  every_allocation(run_scenario);
}

}  // namespace
