/* SPDX-License-Identifier: BSD-3-Clause */
// gate.h: makes a slot of a driver wait for the test.
#ifndef OPENREG_TESTS_GATE_H
#define OPENREG_TESTS_GATE_H

#include <atomic>
#include <chrono>
#include <thread>

namespace openreg_test {

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
