// SPDX-License-Identifier: BSD-3-Clause
// openreg-check: the drivers of this repository conform, and drivers with one defect each do not. All of them, with
// OPENREG_TEST_LONG=1 (`make test-conformance`): without it a sample.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../../drivers/mutants/mutants.h"
#include "sanitizer.h"

namespace {

struct Ended {
  int status = -1;
  std::string output;
};

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> all;
  for (std::string word; stream >> word;) all.push_back(word);
  return all;
}

// A process that a sanitizer ends for memory that a driver keeps to its end would look like a defect.
Ended check(const std::string& arguments, const std::string& variables = "") {
  std::ostringstream command;
  command << "ASAN_OPTIONS=detect_leaks=0 " << variables << " '" << OPENREG_CHECK_PROGRAM << "' " << arguments
          << " 2>&1";
  FILE* pipe = popen(command.str().c_str(), "r");
  Ended ended;
  char buffer[4096];
  size_t length;
  while ((length = fread(buffer, 1, sizeof buffer, pipe)) > 0) ended.output.append(buffer, length);
  const int status = pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

bool is_long() {
  const char* const value = getenv("OPENREG_TEST_LONG");
  return value != nullptr && std::string(value) == "1";
}

#define SKIP_UNLESS_LONG() \
  if (!is_long()) GTEST_SKIP() << "takes a minute: make test-conformance"

std::string library(const std::string& name) { return std::string(OPENREG_TEST_DRIVERS_DIR) + "/" + name + ".so"; }

// The drivers of this repository keep the rules: "sim" by name, the others as libraries that a vendor would ship.
class CheckConformTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CheckConformTest, Conforms) {
  if (GetParam() != "sim") SKIP_UNLESS_LONG();
#if defined(__SANITIZE_ADDRESS__)
  // Its allocator ends a process that asks for too much, where malloc() answers NULL, and keeps what is freed for a while.
  if (GetParam() != "sim" && GetParam() != "mutants")
    GTEST_SKIP() << "the address sanitizer's allocator keeps no such rule";
#elif defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the checks' time limits are not meant for the thread sanitizer's speed";
#endif
  const std::string driver = GetParam() == "sim" ? "sim" : library(GetParam());
  const Ended ended = check(driver + " --level 2 --time 0.1", "FAKE_GPU_MEMORY=134217728");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_NE(ended.output.find("\nconforms to driver.h 1.0, level 2, seed 1\n"), std::string::npos) << ended.output;
}

// What the drivers' own tests leave to the checks, with four devices: collectives, in one process and in several, the order
// of a GPU's streams, and what the runtime does for a driver of seven functions.
TEST(CheckCommTest, FourDevicesConform) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the checks' time limits are not meant for the thread sanitizer's speed";
#endif
  std::vector<std::string> all = {
      library("mutants") + " --option devices=4 --only comm",
      library("toy_driver") + " --option devices=4 --only runtime.copy,runtime.pinned,runtime.streams,runtime.events"};
#ifdef OPENREG_TEST_CHECKED_GPUS
  for (const auto& vendor : words(OPENREG_TEST_CHECKED_GPUS))
    all.push_back(library("checked_" + vendor) + " --time 0.1 --only comm,stream,event,host_func");
#endif
  for (const auto& arguments : all) {
    const Ended ended = check(arguments, "FAKE_GPU_DEVICES=4 FAKE_GPU_MEMORY=134217728");
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_EQ(ended.output.find("\nskip  "), std::string::npos) << ended.output;
  }
}

// Drivers of older headers, and of one that has a function more, keep the rules of the table. Their extensions have the
// headers' shapes and do nothing: upgrade_test.cc calls them.
TEST(CheckFrozenTest, Conforms) {
  if (OPENREG_TEST_SANITIZER) GTEST_SKIP() << "as CheckConformTest";
  SKIP_UNLESS_LONG();
  const std::array<std::string, 3> all[] = {
      {"frozen_1_0", "1.0", "table,lifecycle,process,errors,info,memory,copy,fill,stream,event,thread,runtime"},
      {"frozen_next_minor", "1.90", "table,lifecycle,errors,runtime"}};
  for (const auto& [driver, version, rooms] : all) {
    const Ended ended = check(library(driver) + " --level 2 --time 0.1 --only " + rooms);
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_NE(ended.output.find("ABI " + version + ","), std::string::npos) << ended.output;
  }
}

// A vendor with handles, one queue and copies in words (drivers/handles): what its headers are for; the rest with the others.
TEST(CheckHandlesTest, Conforms) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the checks' time limits are not meant for the thread sanitizer's speed";
#endif
  const Ended ended = check(library("handles_driver") + " --time 0.05 --only copy,fill,stream,event,host_func");
  EXPECT_EQ(ended.status, 0) << ended.output;
}

std::vector<std::string> drivers() {
  std::vector<std::string> all = {"sim",    "toy_driver", "checked_full_toy", "checked_kernels", "handles_driver",
                                  "mutants"};
#ifdef OPENREG_TEST_CHECKED_GPUS
  for (const auto& vendor : words(OPENREG_TEST_CHECKED_GPUS)) all.push_back("checked_" + vendor);
#endif
  return all;
}
INSTANTIATE_TEST_SUITE_P(Drivers, CheckConformTest, ::testing::ValuesIn(drivers()),
                         [](const auto& driver) { return driver.param; });

// Right drivers keep sizes and offsets of more than 32 bits. On a machine with little memory they are skipped by name.
TEST(CheckWideTest, Conforms) {
  if (OPENREG_TEST_SANITIZER) GTEST_SKIP() << "a sanitizer's memory for 4 GiB is more than a machine may have";
  SKIP_UNLESS_LONG();
  const Ended ended = check("sim --only wide --option memory=12G --time 1");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_NE(check("sim --only wide --option memory=1G --time 1").output.find("skip  wide.sizes"), std::string::npos);
  EXPECT_EQ(check(library("toy_driver") + " --only wide.offsets").status, 0);
}

// Devices with little memory: what doesn't fit is skipped, and says so; checks of memory itself take less.
TEST(CheckSmallTest, LittleMemoryIsNoFailure) {
  if (OPENREG_TEST_SANITIZER) GTEST_SKIP() << "as CheckConformTest";
  for (const std::string& driver : {std::string("sim"), library("mutants")}) {
    if (driver != "sim" && !is_long()) continue;
    const Ended ended = check(driver + " --level 2 --time 0.05 --option memory=16M");
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_EQ(ended.output.find("\nskip  memory."), std::string::npos) << ended.output;
    EXPECT_NE(ended.output.find("device 1 has 16 MiB; this takes 80\n"), std::string::npos) << ended.output;
  }
}

struct Mutant {
  std::string name;
  std::vector<std::string> checks;
};

std::vector<Mutant> mutants() {
#define MUTANT_ENTRY(name, checks) {#name, words(checks)},
  std::vector<Mutant> all = {OPENREG_MUTANTS(MUTANT_ENTRY)};
  all.push_back({"exporting", {"table.exports"}});  // a defect of linking: a library of its own
  return all;
}

// The command line for a mutant.
Ended run_mutant(const std::string& name, const std::string& arguments) {
  const bool is_library = name == "exporting";
  // Room for the checks of sizes above 4 GiB.
  const std::string memory = name.find("_32_bits") != std::string::npos ? "--option memory=12G --time 1 " : "";
  const std::string devices = name.find("comm_many") != std::string::npos ? "--option devices=4 " : "";
  const std::string limit = memory.empty() ? " --timeout 10 " : " --timeout 60 ";
  return check(library(is_library ? "mutants_exporting" : "mutants") + limit + memory + devices + arguments,
               is_library ? std::string() : std::string(OPENREG_MUTANT_VARIABLE "=").append(name));
}

// Drivers that are right, each in a way that few are: no check may fail.
TEST(CheckOddTest, Conforms) {
  if (OPENREG_TEST_SANITIZER) GTEST_SKIP() << "a sanitizer's allocator does not count what is in use";
  SKIP_UNLESS_LONG();
#define ODD_ENTRY(name, checks) {#name, checks},
  const std::vector<std::pair<std::string, std::string>> all = {OPENREG_ODD(ODD_ENTRY)};
  std::vector<Ended> ended(all.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] { ended[i] = run_mutant(all[i].first, "--timeout 60 --only " + all[i].second); });
  }
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(ended[i].status, 0) << all[i].first << ":\n" << ended[i].output;
  const Ended many = check("sim --option devices=127 --only info,copy.between_devices,lifecycle.count,runtime.devices");
  EXPECT_EQ(many.status, 0) << many.output;
}

// Kernels that serve the first device alone are called there.
TEST(CheckKernelDeviceTest, HasKernels) {
  const Ended ended =
      run_mutant("odd_kernels_of_first", "--verbose --only kernel.strides,kernel.streams,kernel.products");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_NE(ended.output.find("\n3 passed, 0 failed, 0 skipped in "), std::string::npos) << ended.output;
}

std::vector<std::string> names_of_checks() {
  std::vector<std::string> names;
  const auto list = words(check("--list").output);
  for (size_t i = 1; i < list.size(); i += 2) names.push_back(list[i]);
  return names;
}

// Each planted defect is found by the checks that are there for it, and each check finds one; without OPENREG_TEST_LONG
// every tenth defect. With OPENREG_CHECK_MATRIX=<file> every defect meets every check, which takes a quarter of an hour.
TEST(CheckMutantsTest, AllAreKilled) {
  if (OPENREG_TEST_SANITIZER) {
    GTEST_SKIP() << "a sanitizer's allocator does not count what is in use, and ends a process for some defects";
  }
  std::vector<Mutant> all = mutants();
  const char* const matrix = getenv("OPENREG_CHECK_MATRIX");
  ASSERT_GE(all.size(), 60u);
  const bool is_sample = !is_long() && matrix == nullptr;
  if (is_sample) {
    std::vector<Mutant> some;  // quick ones: a limit of time finds none of them
    for (size_t i = 3; i < all.size(); i += 10) some.push_back(all[i]);
    all = some;
  }
  std::mutex lock;
  std::atomic<size_t> next{0};
  std::map<std::string, int> kills;
  std::vector<std::string> survivors, lines(all.size());
  size_t killed = 0;
  const auto work = [&] {
    for (size_t i; (i = next++) < all.size();) {
      bool is_killed = true;
      std::set<std::string> by;
      for (const auto& wanted : all[i].checks) {
        const Ended ended = run_mutant(all[i].name, "--only " + wanted);
        bool is_found = ended.status == 1 && ended.output.find("\nFAIL  " + wanted) != std::string::npos;
        if (wanted.find("wide") != std::string::npos && ended.output.find("\nskip  " + wanted) != std::string::npos) {
          printf("%s: this machine has too little memory for %s\n", all[i].name.c_str(), wanted.c_str());
          is_found = true;
        }
        if (is_found) by.insert(wanted);
        is_killed = is_killed && is_found;
      }
      if (matrix != nullptr) {
        const auto output = words(run_mutant(all[i].name, "").output);
        for (size_t k = 0; k + 1 < output.size(); ++k) {
          if (output[k] == "FAIL") by.insert(output[k + 1]);
        }
      }
      std::lock_guard<std::mutex> guard(lock);
      killed += is_killed;
      if (!is_killed) survivors.push_back(all[i].name);
      lines[i] = all[i].name + ":";
      for (const auto& name : by) {
        ++kills[name];
        lines[i] += " " + name;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (auto& thread : threads) thread.join();
  printf("killed %zu of %zu\n", killed, all.size());
  for (const auto& name : survivors) ADD_FAILURE() << "the defect " << name << " is not found by its checks";
  for (const auto& name : is_sample ? std::vector<std::string>() : names_of_checks()) {
    EXPECT_GT(kills[name], 0) << "the check " << name << " finds no defect: it can't fail, or mutants.h lacks one";
  }
  if (matrix != nullptr) {
    std::ofstream file(matrix);
    for (const auto& line : lines) file << line << "\n";
  }
}

// A crash, a hang and an end of the process are failures of the check that names the slot.
TEST(CheckRunnerTest, CrashAndHangAreResults) {
  Ended ended = run_mutant("streams_abort", "--only leak.exhaustion");
  EXPECT_EQ(ended.status, 1);
  EXPECT_NE(ended.output.find("crashed by signal 6"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("in stream_create()"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("last calls\n"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("stream_create() has not returned\n"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("stream_create() OPENREG_OK\n"), std::string::npos) << ended.output;
  ended = run_mutant("host_abort", "--only runtime.pinned");  // behind the runtime, the call of it
  EXPECT_NE(ended.output.find("in openreg_host_free()"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("openreg_host_free() has not returned\n"), std::string::npos) << ended.output;
  ended = check(library("mutants") + " --timeout 1 --only thread.waiting", OPENREG_MUTANT_VARIABLE "=sync_locked");
  EXPECT_EQ(ended.status, 1);
}

// What is no driver is refused with the reason, and a wrong command line with status 2.
TEST(CheckRunnerTest, WrongArguments) {
  EXPECT_EQ(check("").status, 2);
  EXPECT_EQ(check("sim --level 7").status, 2);
  EXPECT_EQ(check("sim --only no.such.check").status, 2);
  EXPECT_EQ(check("sim --seed x").status, 2);
  EXPECT_EQ(check("no_such_driver").status, 2);
  EXPECT_EQ(check("--explain no.such").status, 2);
  const Ended ended = check("/proc/self/exe");
  EXPECT_EQ(ended.status, 1);
  EXPECT_NE(ended.output.find("is no driver"), std::string::npos) << ended.output;
}

// Options reach open(), in both levels; a driver without devices is status 77.
TEST(CheckRunnerTest, OptionsReachTheDriver) {
  Ended ended = check("sim --option devices=1 --only copy.between_devices,runtime.devices");
  EXPECT_EQ(ended.status, 0);
  EXPECT_NE(ended.output.find("1 device,"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("skip  copy.between_devices"), std::string::npos) << ended.output;
  ended = check("sim --option devices=0 --only info");
  EXPECT_EQ(ended.status, 77) << ended.output;
}

// Variables of the driver's options reach open() too, as in a program; the command line's go before them.
TEST(CheckRunnerTest, VariablesOfOptionsReachTheDriver) {
  const std::string words = "sim --only copy.between_devices,runtime.devices";
  Ended ended = check(words, "OPENREG_SIM_DEVICES=1");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_NE(ended.output.find("1 device,"), std::string::npos) << ended.output;
  ended = check(words + " --option devices=3", "OPENREG_SIM_DEVICES=1");
  EXPECT_NE(ended.output.find("3 devices,"), std::string::npos) << ended.output;
}

// Variables that ask for what checks don't do are refused by name.
TEST(CheckRunnerTest, UnheededVariablesAreRefused) {
  for (const char* variable :
       {"OPENREG_VALIDATE=1", "OPENREG_LAYERS=x:/x", "OPENREG_RACES=raise", "OPENREG_FLIGHT_RECORDER=9",
        "OPENREG_COMM=1", "OPENREG_SIM_FAULTS=x", "OPENREG_SIM_VISIBLE_DEVICES=0"}) {
    const Ended ended = check("sim --only table.name", variable);
    EXPECT_EQ(ended.status, 2) << variable;
    const std::string name = std::string(variable).substr(0, std::string(variable).find('='));
    EXPECT_NE(ended.output.find("don't heed the variable " + name + ":"), std::string::npos) << ended.output;
  }
  const char* const others = "OPENREG_VALIDATE= OPENREG_LOG_LEVEL=error OPENREG_DRIVERS=sim OPENREG_TOY_RACES=raise";
  EXPECT_EQ(check("sim --only table.name", others).status, 0);
}

// The end names what was skipped and how far the limits of the command line went.
TEST(CheckRunnerTest, WhatWasNotTriedIsNamedAtTheEnd) {
  const std::string output =
      check("sim --option devices=1 --time 0.2 --only wide.sizes,copy.between,copy.within").output;
  const size_t end = output.find("\nnot checked\n");
  ASSERT_NE(end, std::string::npos) << output;
  for (const char* text : {"skipped, for the reasons above: ", "copy.between_devices, ", "wide.sizes", "0.2 s"})
    EXPECT_NE(output.find(text, end), std::string::npos) << output;
}

// What level 3 is and where; flags by their names.
TEST(CheckRunnerTest, TextsSayTheWay) {
  EXPECT_NE(check("--help").output.find("python -m torch_openreg check"), std::string::npos);
  const Ended ended = check("sim --level 3");
  EXPECT_EQ(ended.status, 2);
  EXPECT_NE(ended.output.find("python -m torch_openreg check DRIVER --level 3"), std::string::npos) << ended.output;
  const std::string flags = run_mutant("flag_of_device", "--only table.flags").output;
  EXPECT_NE(flags.find("OPENREG_CAP_FENCED"), std::string::npos) << flags;
}

// Without a device nothing conforms, whatever the table says.
TEST(CheckRunnerTest, WithoutDevicesNothingConforms) {
  const Ended ended = check("sim --option devices=0 --level 1");
  EXPECT_EQ(ended.status, 77) << ended.output;
  EXPECT_NE(ended.output.find("\nthere is no device: nothing was checked but"), std::string::npos) << ended.output;
  EXPECT_EQ(ended.output.find("conforms to"), std::string::npos) << ended.output;
}

// A failure that the command line knows is shown with its reason and is none; once the check passes the waiver is one.
TEST(CheckRunnerTest, KnownFailuresAreShown) {
  Ended ended = run_mutant("elapsed_us", "--only event.elapsed --known 'event.elapsed=the vendor counts in us'");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_NE(ended.output.find("\nknow  event.elapsed "), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("1 known in "), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("  known: event.elapsed (the vendor counts in us)\n"), std::string::npos) << ended.output;
  ended = check("sim --only copy.within --known 'copy.within=mended since'");
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_NE(ended.output.find("--known says that it fails (mended since): take that away"), std::string::npos)
      << ended.output;
  EXPECT_EQ(check("sim --only copy.within --known copy.within").status, 2);
  EXPECT_EQ(check("sim --only copy.within --known no.such=reason").status, 2);
}

// Figures of calls, copies, events and allocations, each above 0, with the host's beside them.
TEST(CheckReportTest, Figures) {
  const std::string json = ::testing::TempDir() + "openreg-check-perf.json";
  const Ended ended = check("sim --perf --json " + json);
  EXPECT_EQ(ended.status, 0) << ended.output;
  std::stringstream file;
  file << std::ifstream(json).rdbuf();
  for (const char* name : {"copy to the device, pinned", "copy from device 1 to device 0", "queue it and wait",
                           "record an event and wait", "allocate and free"}) {
    EXPECT_NE(ended.output.find(name), std::string::npos) << ended.output;
    EXPECT_NE(file.str().find(std::string(R"("name": ")").append(name)), std::string::npos) << file.str();
  }
  EXPECT_EQ(file.str().find(R"("driver": 0,)"), std::string::npos) << file.str();
  EXPECT_EQ(check("sim --perf --option devices=0").status, 77);
}

// Files of the results hold every check that ran.
TEST(CheckReportTest, Files) {
  const std::string json = ::testing::TempDir() + "openreg-check.json",
                    junit = ::testing::TempDir() + "openreg-check.xml";
  const Ended ended = check(std::string("sim --only table --json ").append(json).append(" --junit ").append(junit));
  EXPECT_EQ(ended.status, 0) << ended.output;
  std::stringstream in_json, in_junit;
  in_json << std::ifstream(json).rdbuf();
  in_junit << std::ifstream(junit).rdbuf();
  for (const char* name : {"table.query", "table.exports", "table.constant"}) {
    EXPECT_NE(in_json.str().find(std::string(R"("name": ")").append(name)), std::string::npos) << in_json.str();
    EXPECT_NE(in_junit.str().find(std::string(R"(name=")").append(name)), std::string::npos) << in_junit.str();
  }
  EXPECT_NE(in_json.str().find(R"("conforms": false)"), std::string::npos);  // a part is not the whole
}

// A program can act on the file: where a check failed and what to look at, what a skipped one needs, which kernels no check
// has a reference for, also of thousands.
TEST(CheckReportTest, FileSaysWhatToDo) {
  const std::string json = ::testing::TempDir() + "openreg-check-acts.json";
  const auto report = [&](const std::string& mutant, const std::string& arguments) {
    run_mutant(mutant, std::string(arguments).append(" --json ").append(json));
    std::stringstream file;
    file << std::ifstream(json).rdbuf();
    return file.str();
  };
  std::string text = report("elapsed_us", "--option devices=1 --only event.elapsed,copy.between");
  for (const char* part :
       {R"("slot": "event_elapsed", "hint": ")", R"("needs": ["two devices"], "rule": ")", R"("slots_missing": [],)",
        R"("kernels_without_reference": [],)", R"("kernels_left_out": 0,)"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  text = report("streams_abort", "--only leak.exhaustion");
  EXPECT_NE(text.find(R"("slot": "stream_create")"), std::string::npos) << text;
  text = report("odd_kernels", "--only table.name");
  const size_t last = text.rfind("mutants::operator_");
  ASSERT_NE(last, std::string::npos) << text;
  const int count = std::stoi(text.substr(last + strlen("mutants::operator_"))) + 1;
  EXPECT_GT(count, 2000);
  EXPECT_LT(count, 3000);
  const std::string left_out = "\"kernels_left_out\": " + std::to_string(3000 - count) + ",";
  EXPECT_NE(text.find(left_out), std::string::npos) << left_out;
}

// The verdict is a word, also where nothing could be checked and where the run was ended by force; after a crash the hint
// begins with the call that it ended in.
TEST(CheckReportTest, VerdictsAreWords) {
  const std::string json = ::testing::TempDir() + "openreg-check-verdicts.json", to_file = " --json " + json;
  const auto text = [&json] {
    std::stringstream file;
    file << std::ifstream(json).rdbuf();
    return file.str();
  };
  for (const auto& [arguments, verdict] : std::vector<std::pair<std::string, std::string>>{
           {"sim --only table.name", "no failure\""},
           {"sim --option devices=1 --only copy.between", "nothing checked\""},
           {"sim --option devices=0 --level 1", "no device\""},
           {"/proc/self/exe", "no driver\", \"message\": \"cannot load "}}) {
    check(arguments + to_file);
    EXPECT_NE(text().find(R"("verdict": ")" + verdict), std::string::npos) << arguments << text();
  }
  run_mutant("streams_abort", "--only leak.exhaustion" + to_file);
  EXPECT_NE(text().find(R"("verdict": "fails")"), std::string::npos) << text();
  EXPECT_NE(text().find(R"("hint": "It ended in or after stream_create(): )"), std::string::npos) << text();
  const std::string program = OPENREG_CHECK_PROGRAM;
  const std::string command = "'" + program + "' sim" + to_file + " > /dev/null & p=$!; until grep -q unfinished " +
                              json + "; do sleep 0.01; done; kill -KILL $p";
  EXPECT_EQ(system(command.c_str()), 0);
  EXPECT_NE(text().find(R"("conforms": false, "verdict": "unfinished")"), std::string::npos) << text();
}

// Every check has one name, a rule and a hint.
TEST(CheckReportTest, EveryCheckIsExplained) {
  const auto names = names_of_checks();
  EXPECT_GT(names.size(), 100u);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  const std::string all = check("--explain all").output;
  for (const auto& name : names) EXPECT_NE(all.find(name + "  (level "), std::string::npos) << name;
}

}  // namespace
