/* SPDX-License-Identifier: BSD-3-Clause */
// owned.h: what a test has made and leaves behind, and how it is given back when the test has ended.
#ifndef OPENREG_TESTS_OWNED_H
#define OPENREG_TESTS_OWNED_H

#include <functional>
#include <list>
#include <mutex>
#include <utility>

namespace openreg_test {

// Handles and addresses, of any thread.
class Owned {
 public:
  template <typename Handle>
  Handle add(Handle handle, std::function<void()> give_back) {
    const std::lock_guard<std::mutex> guard(mutex_);
    all_.emplace_front(handle, std::move(give_back));
    return handle;
  }
  // The test has given it back by itself.
  void remove(const void* handle) {
    const std::lock_guard<std::mutex> guard(mutex_);
    all_.remove_if([handle](const auto& one) { return one.first == handle; });
  }
  // All of it, the latest first.
  void give_back() {
    for (const auto& one : std::exchange(all_, {})) one.second();
  }
  void forget() { all_.clear(); }

 private:
  std::mutex mutex_;
  std::list<std::pair<const void*, std::function<void()>>> all_;
};

}  // namespace openreg_test

#endif
