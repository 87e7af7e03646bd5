/* SPDX-License-Identifier: BSD-3-Clause */
// Around the places in which an operator holds its thread up until a device's work has ended.
//
// Operators mostly run without the GIL, but not all: those on DTensors and in Python's dispatch modes hold it. What they wait
// for may be behind a collective whose thread wants the GIL, to let go of something that Python knows.
#pragma once

#include "shim/base/export.h"

namespace c10::openreg {

// As openreg_set_blocking_hooks() of openreg/embedding.h: `before` is called when a thread begins to wait, and `after` with
// what it returned when it has ended. For the side of Python, before the first operator; without it nothing is called.
TORCH_OPENREG_API void set_wait_hooks(void* (*before)(), void (*after)(void* state));

// Its life is the wait.
class WaitScope {
 public:
  WaitScope();
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  void* state_ = nullptr;
};

} // namespace c10::openreg
