// SPDX-License-Identifier: BSD-3-Clause
// Waiting for a processor isn't counted by openreg-check's limits of time.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

extern "C" {
#include "processor.h"
}

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A process in a group of its own, on the processor that is this test's first one. It spins, and is stopped at first: a stopped
// process has no thread that is ready, and neither has it when a sanitizer runs one of its own in there, as ThreadSanitizer's
// does.
class Process {
 public:
  explicit Process(int niceness) : id_(fork()) {
    if (id_ == 0) {
      cpu_set_t all, first;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setpgid(0, 0);
      sched_getaffinity(0, sizeof all, &all);
      CPU_ZERO(&first);
      for (int i = 0; CPU_COUNT(&first) == 0; ++i)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &first);
      sched_setaffinity(0, sizeof first, &first);
      setpriority(PRIO_PROCESS, 0, niceness);
      raise(SIGSTOP);
      for (volatile int turns = 0;;) turns = turns + 1;
    }
    waitpid(id_, nullptr, WUNTRACED);
  }
  ~Process() {
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  void run() { kill(id_, SIGCONT); }

  // The share of a second that counts.
  double share() {
    double counted = 0;
    check_usage last = {now(), 0};
    const double begin = last.at;
    while (last.at < begin + 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      counted += check_counted_time(id_, now(), &last);
    }
    return counted / (last.at - begin);
  }

 private:
  pid_t id_;
};

}  // namespace

TEST(CheckProcessorTest, WaitingForAProcessorIsNotCounted) {
  Process hog(0), starving(19);
  hog.run();
  starving.run();
  EXPECT_LT(starving.share(), 0.5);
}

TEST(CheckProcessorTest, NoReadyThreadIsCounted) {
  Process hog(0), stopped(19);
  hog.run();
  EXPECT_DOUBLE_EQ(stopped.share(), 1);
}
