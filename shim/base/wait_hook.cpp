// SPDX-License-Identifier: BSD-3-Clause
#include "shim/base/wait_hook.h"

#include <atomic>

namespace c10::openreg {
namespace {

std::atomic<void* (*)()> before_wait{nullptr};
std::atomic<void (*)(void*)> after_wait{nullptr};

} // namespace

void set_wait_hooks(void* (*before)(), void (*after)(void* state)) {
  after_wait = after;
  before_wait = before;
}

WaitScope::WaitScope() {
  if (auto* const before = before_wait.load()) {
    state_ = before();
  }
}

WaitScope::~WaitScope() {
  if (state_ != nullptr) {
    after_wait.load()(state_);
  }
}

} // namespace c10::openreg
