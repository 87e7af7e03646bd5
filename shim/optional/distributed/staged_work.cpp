// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/staged_work.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/openreg.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/memory/storage.h"
#include "shim/observe/races.h"
#include "shim/operators/fallback/kernel_view.h"
#include "shim/operators/fallback/route.h"
#include "shim/optional/distributed/older_libstdcxx.h"
#include "shim/optional/distributed/switch_variable.h"
#include "shim/optional/distributed/work_over_host.h"

namespace c10::openreg {
namespace {

using c10::ivalue::Future;

using Outputs = StagedOutputs;

// Whether a seed says when results come (openreg's simulated devices).
bool is_seeded() {
  const char* seed = openreg_variable("OPENREG_SIM_SEED");
  return seed != nullptr && *seed != '\0';
}

bool can_show_in_place(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !is_seeded() &&
      execution_mode(tensor.device().index()) == ExecutionMode::aliased && tensor.numel() > 0 &&
      tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

// By the host's backend.
bool is_written(TensorRole role) {
  return role != TensorRole::input && role != TensorRole::kept;
}

at::Tensor shown_in_place(const at::Tensor& tensor, TensorRole role) {
  void* const data = is_written(role) ? writable_data(tensor) : const_cast<void*>(tensor.const_data_ptr());
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
  if (tensor.layout() != c10::kStrided) {
    return tensor.cpu();
  }
  at::Tensor host = at::empty_like(tensor, tensor.options().device(c10::DeviceType::CPU).pinned_memory(true));
  if (role != TensorRole::output) {
    host.copy_(tensor);
  }
  return host;
}

// While races are looked for: the future's event must be behind the collective, and behind nothing else that is on the
// current stream of a thread that is its by chance. So it is recorded on a stream of its own.
CurrentStreams::Streams streams_of_its_own(const Outputs& outputs) {
  CurrentStreams::Streams streams;
  if (races_are_found()) {
    for (const auto& output : outputs) {
      if (output.tensor.is_privateuseone()) {
        const auto device = output.tensor.device().index();
        openreg_stream own = OPENREG_STREAM_DEFAULT;
        OPENREG_CHECK(openreg_stream_from_pool(device, 0, &own));
        streams.emplace_back(device, own);
      }
    }
  }
  return streams;
}

// While races are looked for. The memory is kept until gloo no longer uses it, even if all other references are dropped:
// the next owner comes after the collective, as after a stream that was recorded for the block.
void keep_from_races(const at::Tensor& tensor, openreg_stream stream) {
  const auto device = tensor.device().index();
  openreg_races_stream_waits(device, stream, device, OPENREG_RACES_COLLECTIVES);
  if (openreg_memory_record_stream(const_cast<void*>(tensor.storage().data()), device, stream) != OPENREG_OK) {
    openreg_clear_error(); // not the allocator's memory
  }
}

// Copies what the host has to the devices, lets go of the host's memory and completes the future; an error of that
// becomes the future's.
void bring_back(Outputs& outputs, Future& future) noexcept {
  try {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    const auto streams = streams_of_its_own(outputs);
    const CurrentStreams current(streams);
    for (const auto& [device, stream] : streams) {
      note_race_collective_wait(device);
    }
    for (auto& output : outputs) {
      const RaceMute mute(races_are_found()); // noted by StagedTensors::show()
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

// What brings the results back after the host's part, in the thread of its backend, or at once.
struct Return {
  const ResultsInFlight flight{};
  const std::shared_ptr<Outputs> outputs;
  const c10::intrusive_ptr<Future> future;
  const std::string description;

  void run(const Future& host) const {
    if (host.hasError()) {
      future->setErrorIfNeeded(noticed_failure(host.exception_ptr(), description));
    } else {
      bring_back(*outputs, *future);
    }
  }
};

class StagedWork final : public WorkOverHost {
 public:
  StagedWork(
      const c10::intrusive_ptr<c10d::Work>& host_work,
      c10d::OpType operation,
      Outputs outputs,
      const std::string& description,
      std::vector<DeviceIndex> devices)
      : WorkOverHost(host_work, operation, description),
        devices_(std::move(devices)),
        outputs_(std::make_shared<Outputs>(std::move(outputs))),
        future_(make_future(tensors_of(*outputs_))) {
    if (const auto host_future = future_of(*host_work)) {
      ends_by_itself_ = true;
      std::shared_ptr<Return> end(new Return{.outputs = outputs_, .future = future_, .description = description});
      host_future->addCallback([end = std::move(end)](Future& host) { end->run(host); });
    }
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (ends_by_itself_) {
      if (!wait_for_host_work(host_work(), description(), timeout)) {
        return false;
      }
    } else if (!wait_and_bring_back(timeout)) {
      return false;
    }
    future_->waitAndThrow();
    if (races_are_found()) {
      for (const DeviceIndex device : devices_) {
        note_race_collective_wait(device);
      }
    }
    return true;
  }

  bool isCompleted() override {
    const bool completed = future_->completed();
    if (completed && races_are_found()) {
      for (const DeviceIndex device : devices_) {
        note_race_collective_done(device);
      }
    }
    return completed;
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
    return ends_by_itself_ ? future_ : host_work().getFuture();
  }

 private:
  // Not both in two threads: what the host has is brought back once.
  bool wait_and_bring_back(std::chrono::milliseconds timeout) {
    const std::lock_guard<std::mutex> guard(waiting_);
    if (future_->completed()) {
      return true;
    }
    try {
      if (!wait_for_host_work(host_work(), description(), timeout)) {
        return false; // aborted
      }
    } catch (...) {
      future_->setError(std::current_exception());
      throw;
    }
    bring_back(*outputs_, *future_);
    return true;
  }

  const std::vector<DeviceIndex> devices_; // of all tensors
  const std::shared_ptr<Outputs> outputs_;
  const c10::intrusive_ptr<Future> future_; // of the tensors that the caller knows
  bool ends_by_itself_ = false;
  std::mutex waiting_;
};

} // namespace

void require_gloo_collectives() {
  TORCH_CHECK(
      switch_variable("OPENREG_ENABLE_GLOO_COLLECTIVES", true),
      "Collectives of ",
      device_name(),
      " tensors are off: OPENREG_ENABLE_GLOO_COLLECTIVES=0 is set. Without it they run in gloo, "
      "staged through host memory. Collectives of CPU tensors are not affected.");
}

StagedTensors::~StagedTensors() {
  if (!is_finished_ && races_are_found()) {
    for (const auto& [type, device, sizes] : seen_) {
      note_race_collective_done(
          device.index()); // the call was refused: there is no collective that anything races with
    }
  }
}

bool StagedTensors::see(const at::Tensor& tensor, TensorRole role) {
  require_gloo_collectives();
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  const bool follows = follows_races();
  if (follows && tensor.layout() == c10::kStrided) { // others are copied, as a whole
    note_race_collective("c10d collective", tensor, is_written(role));
    if (tensor.numel() > 0) {
      keep_from_races(tensor, streams_.of(tensor.device().index()));
    }
  }
  const RaceMute mute(follows);
  wait_for_current_stream(tensor.device().index());
  seen_.emplace_back(tensor);
  return follows;
}

at::Tensor StagedTensors::show(const at::Tensor& tensor, TensorRole role) {
  at::Tensor host = tensor;
  bool is_copy = false;
  if (tensor.defined() && tensor.is_privateuseone()) {
    const RaceMute mute(see(tensor, role));
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    is_copy = !can_show_in_place(tensor);
    host = is_copy ? shown_as_copy(tensor, role) : shown_in_place(tensor, role);
  }
  if (role != TensorRole::input) {
    const bool is_brought_back = role == TensorRole::output || role == TensorRole::in_out;
    outputs_.push_back({tensor, host, is_copy && is_brought_back});
  }
  return host;
}

at::Tensor StagedTensors::show_in_a_row(const Tensors& tensors, TensorRole role) {
  int64_t count = 0;
  for (const auto& tensor : tensors) {
    count += tensor.numel();
  }
  at::Tensor row = at::empty({count}, tensors.front().options().device(c10::DeviceType::CPU).pinned_memory(true));
  int64_t begin = 0;
  for (const auto& tensor : tensors) {
    const RaceMute mute(see(tensor, role));
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    auto host = row.narrow(0, begin, tensor.numel()).view(tensor.sizes());
    begin += tensor.numel();
    if (role == TensorRole::input) {
      host.copy_(tensor);
    } else {
      outputs_.push_back({tensor, host, /*is_copy=*/true});
    }
  }
  return row;
}

// An output that has the elements of an input, which are copied once. Below the kernels.
at::Tensor StagedTensors::show_filled(const at::Tensor& output, const at::Tensor& input) {
  (void)see(output, TensorRole::output);
  const RaceMute mute(see(input, TensorRole::input));
  const bool is_in_place = can_show_in_place(input) && can_show_in_place(output);
  at::Tensor host;
  if (is_in_place) {
    host = shown_in_place(output, TensorRole::output);
    host.copy_(shown_in_place(input, TensorRole::input).reshape(output.sizes()));
  } else {
    host = shown_as_copy(input, TensorRole::input).reshape(output.sizes());
  }
  outputs_.push_back({output, host, !is_in_place});
  return host;
}

StagedTensors::Tensors StagedTensors::show_to_use_up(const Tensors& inputs, size_t own, const at::Tensor& output) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  Tensors shown;
  for (size_t i = 0; i < inputs.size(); i++) {
    if (i == own) {
      shown.push_back(show_filled(output, inputs[i]));
    } else {
      const RaceMute mute(see(inputs[i], TensorRole::input));
      shown.push_back(shown_as_copy(inputs[i], TensorRole::input));
    }
  }
  return shown;
}

StagedTensors::Tensors StagedTensors::show_with_own(const at::Tensor& input, const Tensors& outputs, size_t own) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
  Tensors shown;
  for (size_t i = 0; i < outputs.size(); i++) {
    shown.push_back(i == own ? show_filled(outputs[i], input) : show(outputs[i], TensorRole::output));
  }
  return shown;
}

c10::intrusive_ptr<c10d::Work> StagedTensors::finish(
    c10::intrusive_ptr<c10d::Work> host_work, c10d::OpType operation, bool is_async) {
  is_finished_ = true;
  if (seen_.empty()) {
    return host_work;
  }
  if (operation == c10d::OpType::UNKNOWN) {
    operation = host_work->retrieveOpType();
  }
  const auto text = description_of(operation, rank_, size_, seen_);
  std::vector<DeviceIndex> devices;
  for (const auto& [type, device, sizes] : seen_) {
    if (std::find(devices.begin(), devices.end(), device.index()) == devices.end()) {
      devices.push_back(device.index());
    }
  }
  if (auto queued = queue_work(host_work, operation, outputs_, text, devices, streams_, is_async)) {
    return queued;
  }
  return c10::make_intrusive<StagedWork>(host_work, operation, std::move(outputs_), text, std::move(devices));
}

} // namespace c10::openreg
