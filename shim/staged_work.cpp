// SPDX-License-Identifier: BSD-3-Clause
#include "shim/staged_work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/openreg.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "shim/operators/fallback/kernel_view.h"
#include "shim/operators/policy/execution_mode.h"
#include "shim/status.h"
#include "shim/storage.h"

namespace c10::openreg {
namespace {

using c10::ivalue::Future;

using Outputs = std::vector<StagedOutput>;

bool can_show_in_place(const at::Tensor& tensor) {
  return execution_mode(tensor.device().index()) == ExecutionMode::aliased && tensor.numel() > 0 &&
      tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor shown_in_place(const at::Tensor& tensor, TensorRole role) {
  void* const data = role == TensorRole::input ? const_cast<void*>(tensor.const_data_ptr()) : writable_data(tensor);
  void* address = nullptr;
  OPENREG_CHECK(openreg_host_alias(data, &address));
  return at::from_blob(
      address,
      tensor.sizes(),
      tensor.strides(),
      [keeps_memory = tensor.storage()](void* /*address*/) {},
      tensor.options().device(c10::DeviceType::CPU));
}

at::Tensor shown_as_copy(const at::Tensor& tensor, TensorRole role) {
  at::Tensor host = at::empty_like(tensor, tensor.options().device(c10::DeviceType::CPU).pinned_memory(true));
  if (role != TensorRole::output) {
    host.copy_(tensor);
  }
  return host;
}

c10::intrusive_ptr<Future> make_future(const Outputs& outputs) {
  std::vector<c10::Device> devices;
  for (const auto& output : outputs) {
    if (output.tensor.is_privateuseone()) {
      devices.push_back(output.tensor.device());
    }
  }
  return c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::move(devices));
}

// Null where this kind of Work has none, which it says by throwing.
c10::intrusive_ptr<Future> future_of(c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

std::vector<at::Tensor> tensors_of(const Outputs& outputs) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(outputs.size());
  for (const auto& output : outputs) {
    tensors.push_back(output.tensor);
  }
  return tensors;
}

// Copies what the host has to the devices, lets go of the host's memory and completes the future; an error of that
// becomes the future's.
void bring_back(Outputs& outputs, Future& future) noexcept {
  try {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    for (auto& output : outputs) {
      if (output.is_copy) {
        output.tensor.copy_(output.host);
      }
      output.host.reset();
    }
    future.markCompleted(c10::IValue(tensors_of(outputs)));
  } catch (...) {
    future.setErrorIfNeeded(std::current_exception());
  }
}

class StagedWork final : public c10d::Work {
 public:
  StagedWork(c10::intrusive_ptr<c10d::Work> host_work, Outputs outputs)
      : Work(/*rank=*/-1, host_work->retrieveOpType()),
        host_work_(std::move(host_work)),
        outputs_(std::make_shared<Outputs>(std::move(outputs))),
        future_(make_future(*outputs_)) {
    if (const auto host_future = future_of(*host_work_)) {
      ends_by_itself_ = true;
      // In the thread of the host's backend; at once, if it is done already.
      host_future->addCallback([outputs = outputs_, future = future_](Future& host) {
        if (host.hasError()) {
          future->setErrorIfNeeded(host.exception_ptr());
        } else {
          bring_back(*outputs, *future);
        }
      });
    }
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (ends_by_itself_) {
      if (!host_work_->wait(timeout)) {
        return false;
      }
    } else if (!wait_and_bring_back(timeout)) {
      return false;
    }
    future_->waitAndThrow();
    return true;
  }

  bool isCompleted() override {
    return future_->completed();
  }

  bool isSuccess() const override {
    return !future_->hasError();
  }

  std::exception_ptr exception() const override {
    return future_->hasError() ? future_->exception_ptr() : nullptr;
  }

  std::vector<at::Tensor> result() override {
    TORCH_CHECK(
        isCompleted(), "Work needs to be completed before calling result(). Should call wait() before result().");
    return tensors_of(*outputs_);
  }

  c10::intrusive_ptr<Future> getFuture() override {
    return ends_by_itself_ ? future_ : host_work_->getFuture();
  }

  int sourceRank() const override {
    return host_work_->sourceRank();
  }

  uint64_t getSequencenumber() const override {
    return host_work_->getSequencenumber();
  }

  void abort() override {
    host_work_->abort();
  }

 private:
  // Not both in two threads: what the host has is brought back once.
  bool wait_and_bring_back(std::chrono::milliseconds timeout) {
    const std::lock_guard<std::mutex> guard(waiting_);
    if (future_->completed()) {
      return true;
    }
    try {
      if (!host_work_->wait(timeout)) {
        return false; // aborted
      }
    } catch (...) {
      future_->setError(std::current_exception());
      throw;
    }
    bring_back(*outputs_, *future_);
    return true;
  }

  const c10::intrusive_ptr<c10d::Work> host_work_;
  const std::shared_ptr<Outputs> outputs_;
  const c10::intrusive_ptr<Future> future_; // of the tensors that the caller knows
  bool ends_by_itself_ = false;
  std::mutex waiting_;
};

} // namespace

void require_gloo_collectives() {
  const char* value = openreg_variable("OPENREG_ENABLE_GLOO_COLLECTIVES");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "1") == 0) {
    return;
  }
  TORCH_CHECK(
      std::strcmp(value, "0") == 0, "OPENREG_ENABLE_GLOO_COLLECTIVES must be '0' or '1', but is '", value, "'.");
  TORCH_CHECK(
      false,
      "Collectives of openreg tensors are off: OPENREG_ENABLE_GLOO_COLLECTIVES=0 is set. Without it they run in gloo, "
      "staged through host memory. Collectives of CPU tensors are not affected.");
}

at::Tensor StagedTensors::show(const at::Tensor& tensor, TensorRole role) {
  at::Tensor host = tensor;
  bool is_copy = false;
  if (tensor.defined() && tensor.is_privateuseone()) {
    require_gloo_collectives();
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    wait_for_current_stream(tensor.device().index());
    is_copy = !can_show_in_place(tensor);
    host = is_copy ? shown_as_copy(tensor, role) : shown_in_place(tensor, role);
    has_staged_output_ |= role != TensorRole::input;
  }
  if (role != TensorRole::input) {
    outputs_.push_back({tensor, host, is_copy});
  }
  return host;
}

c10::intrusive_ptr<c10d::Work> StagedTensors::finish(c10::intrusive_ptr<c10d::Work> host_work) {
  if (!has_staged_output_) {
    return host_work;
  }
  return c10::make_intrusive<StagedWork>(std::move(host_work), std::move(outputs_));
}

} // namespace c10::openreg
