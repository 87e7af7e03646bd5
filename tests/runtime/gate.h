/* SPDX-License-Identifier: BSD-3-Clause */
// gate.h: makes a slot of a driver wait for the test, and the test for a thread that waits.
#ifndef OPENREG_TESTS_GATE_H
#define OPENREG_TESTS_GATE_H

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

namespace openreg_test {

// Whether a thread of this process waits for something in the kernel, or has ended.
inline bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos || text.compare(name_end, 3, ") S") == 0;
}

inline void await_sleep(pid_t thread) {
  while (!is_asleep(thread)) std::this_thread::yield();
}

// Does something once the thread that made it waits: in the call under test, or at the latest for this to end.
class OnceThisThreadWaits {
 public:
  explicit OnceThisThreadWaits(std::function<void()> action)
      : thread_([waiter = gettid(), action = std::move(action)] {
          await_sleep(waiter);
          action();
        }) {}
  ~OnceThisThreadWaits() { thread_.join(); }
  OnceThisThreadWaits(const OnceThisThreadWaits&) = delete;
  OnceThisThreadWaits& operator=(const OnceThisThreadWaits&) = delete;

 private:
  std::thread thread_;
};

// One slot at a time. A gate that stays closed for long, because the test waits for whom it keeps waiting, gives up.
class Gate {
 public:
  void close(const char* name) {
    entered_ = false;
    slot_ = name;
  }
  void open() { slot_ = nullptr; }
  // What the slot calls.
  void pass(const char* name) {
    if (slot_.load() != name) return;
    entered_ = true;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (slot_.load() == name && !gave_up_) {
      if (std::chrono::steady_clock::now() > end) gave_up_ = true;
      std::this_thread::yield();
    }
  }
  // Until a thread waits in the slot.
  void await() const {
    while (!entered_) std::this_thread::yield();
  }
  bool gave_up() const { return gave_up_; }

 private:
  std::atomic<const char*> slot_{nullptr};
  std::atomic<bool> entered_{false};
  std::atomic<bool> gave_up_{false};
};

}  // namespace openreg_test

#endif
