/* SPDX-License-Identifier: BSD-3-Clause */
// threads.h: several threads of a test that do the same.
#ifndef OPENREG_TESTS_THREADS_H
#define OPENREG_TESTS_THREADS_H

#include <thread>
#include <type_traits>
#include <vector>

namespace openreg_test {

// Runs `work` in each thread, with the thread's number if it takes one.
class Threads {
 public:
  template <typename Work>
  Threads(int count, Work work) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back(
          [work]([[maybe_unused]] int number) {
            if constexpr (std::is_invocable_v<const Work&, int>) {
              work(number);
            } else {
              work();
            }
          },
          i);
    }
  }
  void join() {
    for (auto& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace openreg_test

#endif
