// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/recorder.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone_ops.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <openreg/openreg.h>

#include <algorithm>

#include "shim/base/device_name.h"
#include "shim/base/kernel_library.h"
#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/observe/races.h"
#include "shim/operators/fallback/staged_storage.h"
#include "shim/operators/policy/device_check.h"
#include "shim/optional/graph/capture.h"
#include "shim/optional/graph/collective.h"
#include "shim/optional/graph/kept_tensors.h"
#include "shim/optional/graph/treatment.h"
#include "shim/optional/graph/values.h"

namespace c10::openreg {
namespace {

using torch::jit::Stack;

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kCapture);

bool is_dense(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_nested();
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
      found.stream = current_stream_of(device);
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

// On a stream that is none of a capture's: the capture's memory has no content there, and what it has changed is put back.
void check_uncaptured(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& declared = op.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    for_each_tensor(stack[stack.size() - declared.size() + i], [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_privateuseone() && tensor.has_storage()) {
        if (const auto capture = Captures::instance().of_memory(tensor.storage(), is_written(declared[i]))) {
          capture->refuse(name_of(op), "its stream is not part of the capture, whose memory it uses");
        }
      }
    });
  }
}

// One call: it runs, and what it has done is noted.
class Recording {
 public:
  Recording(const c10::OperatorHandle& op, const Found& where, Stack& stack)
      : op_(op),
        schema_(op.schema()),
        capture_(*where.capture),
        stream_(where.stream),
        stack_(stack),
        first_(stack.size() - schema_.arguments().size()),
        kept_(where.capture->pool()) {}

  // `is_node` false: it changes no memory.
  void record(c10::DispatchKeySet keys, bool is_node) {
    const OwnCalls own;
    check_arguments();
    note_arguments();
    Stack read = is_node ? kept_arguments(false) : Stack{};
    const Modes modes = Modes::now();
    run(keys);
    follow_moves();
    std::vector<at::Tensor> fixed = note_results();
    if (std::none_of(fixed.begin(), fixed.end(), [](const auto& tensor) { return tensor.defined(); })) {
      fixed.clear();
    }
    if (!is_node || (!writes_ && fixed.empty())) {
      return; // views
    }
    Stack arguments = kept_arguments(true); // an operator may resize what it writes
    for (size_t i = 0; i < read.size(); ++i) {
      if (!is_written(schema_.arguments()[i])) {
        arguments[i] = std::move(read[i]);
      }
    }
    capture_.add(
        std::make_shared<OperatorNode>(
            op_, std::move(arguments), std::move(fixed), std::move(blocks_), modes, stream_.device, only_queues_),
        stream_);
  }

 private:
  struct Argument {
    at::Tensor tensor;
    const c10::StorageImpl* storage;
    const void* address;
    size_t size;
  };

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
        if (!is_dense(tensor)) {
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

  // What is to be undone, and where tensors are before the call.
  void note_arguments() {
    capture_.follow(stream_);
    // Operators of others may write what their schemas don't say.
    const std::string& name = op_.operator_name().name;
    const bool says_all = name.starts_with("aten::as_strided") || covers_what_it_touches(name);
    for (size_t i = 0; i < schema_.arguments().size(); ++i) {
      const bool writes = is_written(schema_.arguments()[i]);
      for_each_tensor(stack_[first_ + i], [&](const at::Tensor& tensor) {
        if (!tensor.defined() || !tensor.has_storage() || !(tensor.is_privateuseone() || tensor.is_pinned())) {
          return;
        }
        own_copy(tensor);
        if (writes || !says_all) {
          capture_.undo().save_written(tensor, stream_.device);
        } else if (tensor.is_privateuseone()) {
          capture_.undo().save_read(tensor, stream_.device);
        }
        writes_ = writes_ || writes;
        const c10::Storage& storage = tensor.storage();
        before_.push_back({tensor, storage.unsafeGetStorageImpl(), storage.data(), storage.nbytes()});
      });
      if (stack_[first_ + i].isGenerator()) {
        capture_.undo().save(stack_[first_ + i].toGenerator());
      }
    }
    if (op_.hasTag(at::Tag::nondeterministic_seeded)) {
      capture_.undo().save(at::globalContext().defaultGenerator({c10::DeviceType::PrivateUse1, stream_.device}));
    }
  }

  // Of memory that is shared until somebody writes it: it would move later, away from what nodes know.
  void own_copy(const at::Tensor& tensor) const {
    const c10::Storage& storage = tensor.storage();
    if (c10::impl::cow::is_cow_data_ptr(storage.data_ptr())) {
      (void)storage.mutable_data();
    }
  }

  Stack kept_arguments(bool after) {
    KeptTensors kept(capture_.pool());
    Stack all;
    const Stack& from = after ? given_ : stack_;
    const size_t first = after ? 0 : first_;
    for (size_t i = 0; i < schema_.arguments().size(); ++i) {
      all.push_back(with_tensors(from[first + i], [&](const at::Tensor& tensor) { return kept.keep(tensor); }));
    }
    return all;
  }

  void run(c10::DispatchKeySet keys) {
    given_.assign(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
    const PoolScope scope(capture_.pool(), stream_.device);
    const c10::impl::ExcludeDispatchKeyGuard inside(kCapture);
    const RaceMute mute(races_are_found()); // a capture's run is ordered whatever the graph's branches say
    {
      const auto noted = BlockListScope::note(blocks_);
      openreg_graph_pass(0);
      op_.redispatchBoxed(keys, &stack_);
      only_queues_ = openreg_graph_pass(0) == 0 && is_of_one_device() && !draws();
    }
    for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i) {
      for_each_tensor(stack_[i], [this](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.is_privateuseone() && tensor.has_storage()) {
          own_copy(tensor);
        }
      });
    }
    // What a kernel allocates on another device is not the pool's, and may be anybody's in a replay.
    std::erase_if(blocks_, [this](const ListedBlock& block) { return block.device != stream_.device; });
    for (const ListedBlock& block : blocks_) {
      capture_.pool().note_block(block.address);
    }
  }

  // What it uses is memory of its device, and so is what it has allocated.
  bool is_of_one_device() const {
    const auto is_here = [this](c10::Device device) {
      return device.is_privateuseone() && device.index() == stream_.device;
    };
    bool all_here = std::all_of(
        blocks_.begin(), blocks_.end(), [this](const ListedBlock& block) { return block.device == stream_.device; });
    for (const c10::IValue& argument : given_) {
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        all_here = all_here && (!tensor.defined() || is_here(tensor.device()) || tensor.dim() == 0);
      });
    }
    return all_here;
  }

  // Whether it takes random numbers, whose state is the host's.
  bool draws() const {
    return op_.hasTag(at::Tag::nondeterministic_seeded) ||
        std::any_of(given_.begin(), given_.end(), [](const c10::IValue& value) { return value.isGenerator(); });
  }

  // Where memory of the graph moved, a replay moves its content, too; the program's own is there for good.
  void follow_moves() {
    for (const Argument& argument : before_) {
      const c10::Storage& storage = argument.tensor.storage();
      const bool has_moved = storage.unsafeGetStorageImpl() == argument.storage && storage.data() != nullptr &&
          storage.data() != argument.address;
      only_queues_ = only_queues_ && !has_moved;
      if (has_moved && argument.address != nullptr && capture_.pool().has(argument.address)) {
        capture_.add_move(storage, argument.address, argument.size, name_of(op_), stream_);
      }
    }
  }

  // The results in memory of their own, in order; undefined ones for the others.
  std::vector<at::Tensor> note_results() {
    std::vector<at::Tensor> fixed;
    for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i) {
      for_each_tensor(stack_[i], [&](const at::Tensor& tensor) { fixed.push_back(note_result(tensor)); });
    }
    return fixed;
  }

  at::Tensor note_result(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return {};
    }
    if (!is_dense(tensor)) {
      refuse("tensors other than dense ones are not supported in graphs");
    }
    if (!tensor.has_storage()) { // a ZeroTensor
      return {};
    }
    const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    if (std::any_of(before_.begin(), before_.end(), [&](const Argument& a) { return a.storage == storage; })) {
      return {};
    }
    if (!tensor.is_privateuseone()) {
      if (tensor.is_meta() || tensor.numel() == 0) {
        return {};
      }
      refuse("its result is on the host, where a replay doesn't bring it");
    }
    return kept_.keep(tensor);
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Capture& capture_;
  const StreamKey stream_;
  Stack& stack_;
  const size_t first_;
  KeptTensors kept_;
  Stack given_;
  BlockList blocks_;
  std::vector<Argument> before_;
  bool writes_ = false;
  bool only_queues_ = false;
};

void record_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::DispatchKeySet below = keys & kBelow;
  if (Captures::instance().are_none()) { // the key came back with modes that a capture didn't end in
    c10::impl::tls_set_dispatch_key_included(kCapture, false);
    op.redispatchBoxed(below, stack);
    return;
  }
  if (keys.has(c10::DispatchKey::Python)) { // subclasses and modes call what they are made of
    op.redispatchBoxed(below, stack);
    return;
  }
  const size_t count = op.schema().arguments().size();
  const Found found = capture_of(stack->data() + stack->size() - count, count);
  if (found.capture == nullptr) {
    check_uncaptured(op, *stack);
    op.redispatchBoxed(below, stack);
    return;
  }
  found.capture->check_valid();
  if (op.operator_name().name == "aten::_lazy_clone") { // its memory would move at the first write, away from the nodes
    const at::Tensor self = torch::jit::pop(*stack).toTensor();
    torch::jit::push(*stack, at::_ops::clone::call(self, std::nullopt));
    return;
  }
  switch (treatment_of(op)) {
    case Treatment::parts:
      op.redispatchBoxed(below, stack);
      return;
    case Treatment::now:
      Recording(op, found, *stack).record(below, false);
      return;
    case Treatment::memory:
      Recording(op, found, *stack).record(below, Modes::now().deterministic && Modes::now().fills);
      return;
    case Treatment::node:
      Recording(op, found, *stack).record(below, true);
      return;
    case Treatment::refused:
      found.capture->refuse(name_of(op), "what it gives depends on data that a replay computes");
    case Treatment::collective:
      record_collective(op, *found.capture, found.stream, *stack);
      return;
  }
}

thread_local int recording_depth = 0; // captures that the thread has begun

} // namespace

void register_recorder() {
  kernel_library("_", kCapture).fallback(torch::CppFunction::makeFromBoxedFunction<&record_operator>());
}

void record_thread(bool on) {
  recording_depth += on ? 1 : -1;
  c10::impl::tls_set_dispatch_key_included(kCapture, recording_depth > 0);
}

bool thread_is_recorded() {
  return c10::impl::tls_is_dispatch_key_included(kCapture);
}

} // namespace c10::openreg
