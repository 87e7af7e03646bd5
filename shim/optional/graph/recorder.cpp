// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/resize_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/openreg.h>

#include <algorithm>

#include "shim/base/device_name.h"
#include "shim/base/kernel_library.h"
#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/operators/fallback/kernel_choice.h"
#include "shim/operators/policy/device_check.h"
#include "shim/operators/policy/kernel_keys.h"
#include "shim/optional/graph/capture.h"
#include "shim/optional/graph/collective.h"
#include "shim/optional/graph/kept_tensors.h"
#include "shim/optional/graph/plan.h"
#include "shim/optional/graph/shapes.h"
#include "shim/optional/graph/values.h"

namespace c10::openreg {
namespace {

using torch::jit::Stack;

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kCapture);

StreamKey current_stream(DeviceIndex device) {
  openreg_stream stream = OPENREG_STREAM_DEFAULT;
  OPENREG_CHECK(openreg_current_stream(device, &stream));
  return {device, stream};
}

struct Found {
  std::shared_ptr<Capture> capture; // null: none of the call's devices has a current stream that is captured
  StreamKey stream;
};

// The capture that the call is part of.
Found capture_of(const c10::IValue* arguments, size_t count) {
  Found found{};
  DeviceIndex seen = -1;
  const auto look = [&](DeviceIndex device) {
    if (found.capture == nullptr && device != seen) {
      seen = device;
      found.stream = current_stream(device);
      found.capture = Captures::instance().of_stream(found.stream);
    }
  };
  for (size_t i = 0; i < count; ++i) {
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_privateuseone()) {
        look(tensor.device().index());
      }
    });
    if (arguments[i].isDevice() && arguments[i].toDevice().is_privateuseone()) {
      look(index_or_current(arguments[i].toDevice().index()));
    }
  }
  return found;
}

at::Tensor new_in_pool(GraphPool& pool, c10::Device device, const at::Tensor& like) {
  const PoolScope scope(pool, device.index());
  at::Tensor made = at::_ops::empty_strided::redispatch(
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      like.sym_sizes(),
      like.sym_strides(),
      like.scalar_type(),
      c10::kStrided,
      device,
      std::nullopt);
  pool.note_block(made.storage().data());
  return made;
}

// One call that becomes a node.
class Recording {
 public:
  Recording(const c10::OperatorHandle& op, const Found& where, Stack& stack)
      : op_(op),
        schema_(op.schema()),
        capture_(*where.capture),
        stream_(where.stream),
        stack_(stack),
        first_(stack.size() - schema_.arguments().size()),
        device_(c10::DeviceType::PrivateUse1, where.stream.device),
        kept_(where.capture->pool()) {}

  void record() {
    check_arguments();
    ask_meta();
    resize_written();
    Stack arguments;
    for (size_t i = first_; i < stack_.size(); ++i) {
      arguments.push_back(with_tensors(stack_[i], [this](const at::Tensor& tensor) { return kept_.keep(tensor); }));
    }
    Stack results = make_results();
    std::vector<at::Tensor> fixed_results;
    bool all_defined = true;
    for (size_t i = 0; i < results.size(); ++i) {
      const bool is_argument = schema_.returns()[i].alias_info() != nullptr;
      for_each_tensor(results[i], [&](const at::Tensor& tensor) {
        all_defined = all_defined && tensor.defined();
        fixed_results.push_back(is_argument || !tensor.defined() ? at::Tensor() : kept_.keep(tensor));
      });
    }
    c10::OperatorHandle called = op_;
    const Plan& plan = plan_of(op_);
    // Another operator's form is none for a driver with a kernel for this one.
    const bool has_out =
        plan.out.has_value() && (plan.more.empty() || native_kernel_of(op_, stream_.device) == nullptr);
    if (has_out && all_defined && fixed_results.size() == schema_.returns().size()) {
      called = *plan.out;
      arguments.insert(arguments.end(), plan.more.begin(), plan.more.end());
      arguments.insert(arguments.end(), fixed_results.begin(), fixed_results.end());
      fixed_results.clear();
    }
    if (std::none_of(
            fixed_results.begin(), fixed_results.end(), [](const at::Tensor& tensor) { return tensor.defined(); })) {
      fixed_results.clear();
    }
    capture_.add(
        std::make_shared<OperatorNode>(called, std::move(arguments), std::move(fixed_results), stream_.device),
        stream_);
    stack_.resize(first_);
    stack_.insert(stack_.end(), results.begin(), results.end());
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    capture_.refuse(name_of(op_), why);
  }

  void check_arguments() const {
    const bool copies = op_.operator_name().name == "aten::copy_";
    const bool non_blocking = copies && stack_[first_ + 2].toBool();
    for (size_t i = first_; i < stack_.size(); ++i) {
      const c10::Argument& declared = schema_.arguments()[i - first_];
      for_each_tensor(stack_[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined() || tensor.is_meta()) {
          return;
        }
        if (tensor.layout() != c10::kStrided || tensor.is_quantized()) {
          refuse("tensors other than dense ones are not supported in graphs");
        }
        if (!tensor.is_cpu() || (tensor.dim() == 0 && !is_written(declared))) {
          return;
        }
        if (!copies || !tensor.is_pinned()) {
          refuse("a tensor on the CPU is not in pinned memory, so the host would wait for the copy of it");
        }
        if (!non_blocking) {
          refuse("the host would wait for the copy; pass non_blocking=True");
        }
      });
    }
    if (op_.operator_name().name == "aten::index") {
      for_each_tensor(stack_[first_ + 1], [&](const at::Tensor& index) {
        if (index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte)) {
          refuse("how many elements a mask selects depends on its data");
        }
      });
    }
    if (op_.operator_name().name == "aten::repeat_interleave" && stack_.back().isNone()) {
      refuse("the size of its result depends on data; pass output_size");
    }
  }

  bool writes_arguments_alone() const {
    const auto& returns = schema_.returns();
    return std::all_of(
        returns.begin(), returns.end(), [](const c10::Argument& returned) { return returned.alias_info() != nullptr; });
  }

  // An operator that only writes its arguments goes without a kernel for the meta device.
  void ask_meta() {
    const KernelChoice choice = choose_kernel(op_, stream_.device, device_);
    const bool runs_on_cpu = choice.native == nullptr && choice.kernels == Kernels::cpu;
    shapes_ = shapes_of(op_, runs_on_cpu, c10::ArrayRef<c10::IValue>(stack_.data() + first_, stack_.size() - first_));
    if (!shapes_->are_known && !writes_arguments_alone()) {
      refuse("it has no kernel for the meta device, which would tell the shapes of its results");
    }
  }

  // As the kernel would resize tensors that it is given for its results.
  void resize_written() {
    size_t number = 0;
    for (size_t i = first_; i < stack_.size(); ++i) {
      if (!shapes_->are_known || !is_written(schema_.arguments()[i - first_])) {
        continue;
      }
      for_each_tensor(stack_[i], [&](const at::Tensor& tensor) {
        const c10::DimVector& sizes = shapes_->written[number++];
        if (!tensor.defined() || !tensor.is_privateuseone() || tensor.sizes() == c10::IntArrayRef(sizes)) {
          return;
        }
        const PoolScope scope(capture_.pool(), tensor.device().index());
        at::_ops::resize_::redispatch(
            c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), tensor, c10::fromIntArrayRefSlow(sizes), std::nullopt);
        capture_.pool().note_block(tensor.storage().data());
      });
    }
  }

  // The argument that a result is.
  c10::IValue argument_of(const c10::Argument& returned) const {
    const auto& arguments = schema_.arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].alias_info() != nullptr && *arguments[i].alias_info() == *returned.alias_info()) {
        return stack_[first_ + i];
      }
    }
    refuse("its schema doesn't say which argument it returns");
  }

  Stack make_results() {
    const auto& returns = schema_.returns();
    Stack results;
    for (size_t i = 0; i < returns.size(); ++i) {
      results.push_back(
          returns[i].alias_info() != nullptr
              ? argument_of(returns[i])
              : with_tensors(shapes_->results[i], [this](const at::Tensor& meta) -> at::Tensor {
                  return meta.is_meta() ? new_in_pool(capture_.pool(), device_, meta) : meta;
                }));
    }
    return results;
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Capture& capture_;
  const StreamKey stream_;
  Stack& stack_;
  const size_t first_;
  const c10::Device device_;
  KeptTensors kept_;
  std::shared_ptr<const Shapes> shapes_;
};

// Views, and memory without a content, which is the pool's.
void run_now(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, const Found& found) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const auto for_each_storage = [&](const auto& see) {
    for (size_t i = first; i < stack->size(); ++i) {
      for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.is_privateuseone() && tensor.has_storage()) {
          see(tensor.storage());
        }
      });
      if ((*stack)[i].isStorage()) {
        see((*stack)[i].toStorage());
      }
    }
  };
  c10::SmallVector<const void*, 4> before;
  for_each_storage([&before](const c10::Storage& storage) { before.push_back(storage.data()); });
  const PoolScope scope(found.capture->pool(), found.stream.device);
  op.redispatchBoxed(keys, stack);
  for_each_storage([&](const c10::Storage& storage) {
    if (std::find(before.begin(), before.end(), storage.data()) == before.end()) {
      found.capture->pool().note_block(storage.data());
    }
  });
}

void record_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::DispatchKeySet below = keys & kBelow;
  if (keys.has(c10::DispatchKey::Python)) { // subclasses and modes call what they are made of
    op.redispatchBoxed(below, stack);
    return;
  }
  const size_t count = op.schema().arguments().size();
  const Found found = capture_of(stack->data() + stack->size() - count, count);
  if (found.capture == nullptr) {
    op.redispatchBoxed(below, stack);
    return;
  }
  found.capture->check_valid();
  switch (plan_of(op).treatment) {
    case Treatment::now:
      run_now(op, below, stack, found);
      return;
    case Treatment::parts:
      op.redispatchBoxed(below, stack);
      return;
    case Treatment::node:
      Recording(op, found, *stack).record();
      return;
    case Treatment::refused:
      found.capture->refuse(name_of(op), "what it gives depends on data that a replay computes");
    case Treatment::collective:
      record_collective(op, *found.capture, found.stream, *stack);
      return;
  }
}

thread_local int recording_depth = 0;

} // namespace

void register_recorder() {
  kernel_library("_", kCapture).fallback(torch::CppFunction::makeFromBoxedFunction<&record_operator>());
}

void record_thread(bool on) {
  recording_depth += on ? 1 : -1;
  c10::impl::tls_set_dispatch_key_included(kCapture, recording_depth > 0);
}

} // namespace c10::openreg
