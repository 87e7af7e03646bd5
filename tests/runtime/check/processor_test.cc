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

// A process in a group of its own, on the processor that is this test's first one.
class Process {
 public:
  template <typename Work>
  explicit Process(int niceness, const Work& work) : id_(fork()) {
    if (id_ == 0) {
      cpu_set_t all, first;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      sched_getaffinity(0, sizeof all, &all);
      CPU_ZERO(&first);
      for (int i = 0; CPU_COUNT(&first) == 0; ++i)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &first);
      sched_setaffinity(0, sizeof first, &first);
      setpriority(PRIO_PROCESS, 0, niceness);
      while (true) work();
    }
    setpgid(id_, id_);
  }
  ~Process() {
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }

  // The share of a second that counts.
  double share() {
    double counted = 0;
    const double begin = last_.at;
    while (last_.at < begin + 1) counted += look();
    return counted / (last_.at - begin);
  }
  double look() {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return check_counted_time(id_, now(), &last_);
  }
  double looked_at() const { return last_.at; }

 private:
  pid_t id_;
  check_usage last_ = {now(), 0};
};

void spin() {
  volatile int turns = 0;
  while (turns < 1000000) turns = turns + 1;
}

}  // namespace

TEST(CheckProcessorTest, WaitingForAProcessorIsNotCounted) {
  Process hog(0, spin), starving(19, spin);
  EXPECT_LT(starving.share(), 0.5);
}

TEST(CheckProcessorTest, SleepingIsCounted) {
  Process hog(0, spin), sleeping(19, pause);
  double before, counted;
  do {  // until it sleeps, for which it needs a processor
    before = sleeping.looked_at();
    counted = sleeping.look();
  } while (counted < sleeping.looked_at() - before);
  EXPECT_DOUBLE_EQ(sleeping.share(), 1);
}
