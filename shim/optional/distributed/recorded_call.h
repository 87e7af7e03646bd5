/* SPDX-License-Identifier: BSD-3-Clause */
// A call of the host's backend, as profilers see it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <optional>
#include <vector>

namespace c10::openreg {

// While it lives, the call is an event of the calling thread's profiler, and the backend records none. The backend's event
// would end in another thread, perhaps after the profiler has ended: wait() of a collective doesn't wait for that thread.
class RecordedCall {
 public:
  // `name` lives for ever. `is_ours`: there are tensors of openreg; else nothing is done.
  template <class Tensors>
  RecordedCall(const char* name, const Tensors& tensors, bool is_ours) {
    if (!is_ours) {
      return;
    }
    record_.emplace(at::RecordScope::USER_SCOPE);
    if (record_->isActive()) {
      add(tensors);
      record_->_setAsync(); // as every backend's: the collective goes on behind it
      record_->before(name, c10::ArrayRef<const c10::IValue>(inputs_.data(), inputs_.size()));
    }
    own_.emplace();
  }

 private:
  void add(const at::Tensor& tensor) {
    inputs_.emplace_back(tensor);
  }

  template <class Item>
  void add(const std::vector<Item>& items) {
    for (const auto& item : items) {
      add(item);
    }
  }

  std::vector<c10::IValue> inputs_;
  std::optional<at::RecordFunction> record_;
  std::optional<at::DisableRecordFunctionGuard> own_; // destroyed first
};

} // namespace c10::openreg
