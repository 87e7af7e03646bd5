// SPDX-License-Identifier: BSD-3-Clause
// The tables of drivers' kernels: which operator is served by which, and the calls of them.
#include <openreg/kernels.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/operators/fallback/fallback.h"
#include "shim/operators/native/native_kernels.h"
#include "shim/operators/policy/device_check.h"
#include "shim/operators/policy/operator_counts.h"
#include "shim/operators/policy/operator_policy.h"
#include "shim/optional/kernels/native_call.h"

namespace c10::openreg {

// An operator that a driver's kernel serves.
struct NativeKernel {
  // `functional`: the listed operator of which this is a form.
  NativeKernel(
      const openreg_kernel& by,
      const std::string& name,
      std::optional<c10::OperatorHandle> functional,
      LaterArguments without)
      : kernel(by),
        later(without),
        counter(operator_counter(ExecutionMode::native, name)),
        shape_function(functional) {}

  const openreg_kernel& kernel;
  LaterArguments later;
  bool is_compared = true; // with the operator's schema
  bool is_refused = false;
  std::once_flag comparing;
  OperatorCounter& counter;
  ShapeFunction shape_function;
};

namespace {

using Key = c10::DispatchKey;

// What an operator on lists is taken apart into.
struct Parts {
  explicit Parts(const NativeKernel& of) : kernel(of) {}

  const NativeKernel& kernel;
  mutable std::atomic<uint64_t> refused_types{0}; // bits by type of what the kernel has refused in lists
};

struct DriverKernels {
  std::unordered_map<c10::OperatorName, std::unique_ptr<NativeKernel>> by_operator;
  std::unordered_map<c10::OperatorName, Parts> in_parts; // of operators without a kernel, whose parts have one
};

struct Device {
  const DriverKernels* kernels;
  int32_t ordinal;
};

// Read without a lock: what is published stays, also when the device table changes.
std::array<std::atomic<const Device*>, OPENREG_MAX_DEVICES> devices;

struct Registry {
  std::mutex lock;
  uint32_t generation = 0; // of the device table that `by_table` was read for
  std::unordered_map<const openreg_kernels*, std::unique_ptr<DriverKernels>> by_table;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<DriverKernels>> retired;        // other threads may be reading them
  std::unordered_map<std::string, torch::Library*> libraries; // by namespace; leaked, as in register_aten.cpp
};

Registry& registry() {
  static auto* instance = new Registry; // leaked: used until the process ends
  return *instance;
}

const openreg_kernel& entry(const openreg_kernels& table, uint64_t i) {
  const auto* first = reinterpret_cast<const char*>(table.list);
  return *reinterpret_cast<const openreg_kernel*>(first + i * table.kernel_size);
}

c10::OperatorName operator_name(const std::string& name) {
  const size_t dot = name.find('.', name.find("::"));
  return dot == std::string::npos ? c10::OperatorName(name, "")
                                  : c10::OperatorName(name.substr(0, dot), name.substr(dot + 1));
}

// ----------------------------------------------------------------------------------------- what can't be served, why

bool is_tensor_or_list(const c10::Argument& result) {
  const auto kind = result.type()->kind();
  return kind == c10::TypeKind::TensorType || result.type()->isSubtypeOf(*c10::ListType::ofTensors());
}

const char* refusal_of(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (!is_tensor_or_list(result)) {
      return "returns something other than tensors";
    }
    if (result.alias_info() != nullptr && !is_written(result)) {
      return "returns a view of its argument";
    }
  }
  for (const c10::Argument& argument : schema.arguments()) {
    if (kind_of(argument) == c10::TypeKind::GeneratorType) {
      return "draws random numbers from a generator of PyTorch's";
    }
  }
  return nullptr;
}

bool comes_to_the_fallback(const c10::OperatorHandle& op) {
  return is_operator_of_fallback(op.operator_name()) || !op.hasKernelForDispatchKey(Key::PrivateUse1);
}

// Why a driver's kernel can't serve the operator; nullptr if it can.
const char* refusal_of(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd)) {
    return "is put together by PyTorch from other operators, which are the ones to list";
  }
  if (!comes_to_the_fallback(op)) {
    return "has a kernel for this device already";
  }
  if (!op.hasComputedKernelForDispatchKey(Key::Meta)) {
    return "has no shape function (a kernel for the key Meta)";
  }
  return refusal_of(op.schema());
}

// ------------------------------------------------------------------------------------------------------------ schemas

// type() has int for SymInt, as a kernel has, but for types of elements too.
bool is_same_type(const c10::Argument& a, const c10::Argument& b) {
  const auto is_dtype = [](const c10::Argument& x) { return kind_of(x) == c10::TypeKind::ScalarTypeType; };
  return *a.type() == *b.type() && is_dtype(a) == is_dtype(b) && is_written(a) == is_written(b);
}

bool is_same_argument(const c10::Argument& a, const c10::Argument& b) {
  return a.name() == b.name() && a.kwarg_only() == b.kwarg_only() && is_same_type(a, b);
}

// Whether a kernel that was written for `expected` can serve `running`, which may have further arguments with defaults.
bool is_compatible(const c10::FunctionSchema& expected, const c10::FunctionSchema& running) {
  const auto& arguments = running.arguments();
  const size_t known = expected.arguments().size();
  return expected.operator_name() == running.operator_name() && known <= arguments.size() &&
      std::equal(expected.arguments().begin(), expected.arguments().end(), arguments.begin(), is_same_argument) &&
      std::all_of(
             arguments.begin() + static_cast<std::ptrdiff_t>(known),
             arguments.end(),
             [](const c10::Argument& argument) { return argument.default_value().has_value(); }) &&
      std::equal(
             expected.returns().begin(),
             expected.returns().end(),
             running.returns().begin(),
             running.returns().end(),
             is_same_type);
}

// The arguments that the kernel was written without; nullopt, with a warning, where it can't serve the operator.
std::optional<LaterArguments> compared_schema(
    const openreg_kernel& kernel, const c10::FunctionSchema& running, const char* driver) {
  if (kernel.schema == nullptr) {
    return LaterArguments{running.arguments().size(), 0};
  }
  try {
    const c10::FunctionSchema expected = torch::jit::parseSchema(kernel.schema);
    if (is_compatible(expected, running)) {
      const size_t known = expected.arguments().size();
      return LaterArguments{known, running.arguments().size() - known};
    }
  } catch (const std::exception&) { // no schema, or with a type that this PyTorch doesn't know
  }
  TORCH_WARN(
      "Driver \"",
      driver,
      "\" lists a kernel for ",
      shown(kernel.name),
      ", which is not used: it was written for the schema ",
      shown(kernel.schema),
      ", and this PyTorch's is ",
      running,
      ".");
  return std::nullopt;
}

// ---------------------------------------------------------------------------------------------- forms of an operator

bool has_same_name_and_type(const c10::Argument& a, const c10::Argument& b) {
  return a.name() == b.name() && *a.real_type() == *b.real_type();
}

bool writes_nothing(const c10::FunctionSchema& schema) {
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), is_written);
}

// The same operator, which writes into its first argument (in place) or into tensors at the end (out=).
bool is_form_of(const c10::FunctionSchema& form, const c10::FunctionSchema& functional) {
  const auto& arguments = functional.arguments();
  const auto& other = form.arguments();
  if (other.size() < arguments.size() || form.returns().size() != functional.returns().size()) {
    return false;
  }
  for (size_t i = 0; i < other.size(); ++i) {
    const bool written = is_written(other[i]);
    const bool in_place = i == 0 && form.name() == functional.name() + "_";
    if (i < arguments.size() ? !has_same_name_and_type(other[i], arguments[i]) || written != in_place
                             : !other[i].is_out()) {
      return false;
    }
  }
  return form.name() != functional.name() || other.size() > arguments.size();
}

bool is_a(const c10::Type& type, c10::TypeKind kind) {
  const auto* list = type.castRaw<c10::ListType>();
  return type.kind() == kind || (list != nullptr && list->getElementType()->kind() == kind);
}

// Whether an operator on lists calls this one on their elements: tensors and numbers stand in the same places. "add.Tensor"
// isn't called for "_foreach_add.Scalar", whose parts are "add.Scalar".
bool is_part_of(const c10::FunctionSchema& part, const c10::FunctionSchema& lists) {
  const auto& arguments = part.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i >= lists.arguments().size()) {
      if (!arguments[i].default_value().has_value()) {
        return false;
      }
      continue;
    }
    for (const auto kind : {c10::TypeKind::TensorType, c10::TypeKind::NumberType}) {
      if (is_a(*lists.arguments()[i].real_type(), kind) && !is_a(*arguments[i].real_type(), kind)) {
        return false;
      }
    }
  }
  return true;
}

// ---------------------------------------------------------------------------------------------------- reading tables

class Reader {
 public:
  Reader(const openreg_kernels& table, const char* driver) : table_(table), driver_(driver) {}

  std::unique_ptr<DriverKernels> read() {
    for (uint64_t i = 0; i < table_.count; ++i) {
      const openreg_kernel& kernel = entry(table_, i);
      add_listed(kernel, operator_name(kernel.name));
    }
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      add_if_form(name);
    }
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      add_if_in_parts(name);
    }
    return std::move(result_);
  }

 private:
  void add(
      const c10::OperatorName& name,
      const openreg_kernel& kernel,
      LaterArguments later = {},
      std::optional<c10::OperatorHandle> functional = std::nullopt) {
    auto& added = result_->by_operator[name];
    if (added == nullptr) {
      added = std::make_unique<NativeKernel>(kernel, name.name, functional, later);
    }
  }

  void add_listed(const openreg_kernel& kernel, const c10::OperatorName& name) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    const bool known = op.has_value() && op->hasSchema();
    if (!known && name.getNamespace() != "aten") {
      add(name, kernel); // of a library that is not loaded yet
      result_->by_operator[name]->is_compared = false;
      return;
    }
    if (const char* reason = known ? refusal_of(*op) : "is not an operator of this PyTorch") {
      TORCH_WARN(
          "Driver \"", driver_, "\" lists a kernel for ", shown(kernel.name), ", which is not used: it ", reason, ".");
      return;
    }
    const auto later = compared_schema(kernel, op->schema(), driver_);
    if (!later.has_value()) {
      return;
    }
    add(name, kernel, *later);
    keep_whole(*op);
    if (writes_nothing(op->schema())) {
      functional_.emplace(name.name, Functional{*op, &kernel, *later});
    }
  }

  void add_if_form(const c10::OperatorName& name) {
    const bool in_place = name.name.back() == '_';
    const std::string& functional = in_place ? name.name.substr(0, name.name.size() - 1) : name.name;
    const auto [first, last] = functional_.equal_range(functional);
    if (first == last) {
      return;
    }
    const auto form = c10::Dispatcher::singleton().findOp(name);
    for (auto at = first; at != last; ++at) {
      const auto& [op, kernel, later] = at->second;
      // In place, a kernel would write where it may still read.
      const bool may_share = !in_place || (kernel->flags & OPENREG_KERNEL_ELEMENTWISE) != 0;
      if (may_share && form.has_value() && form->hasSchema() && is_form_of(form->schema(), op.schema()) &&
          refusal_of(*form) == nullptr) {
        add(name, *kernel, later, op);
      }
    }
  }

  // "aten::_foreach_add_.List", where the driver serves the "aten::add_.Tensor" that its parts are, or it would get slower.
  void add_if_in_parts(const c10::OperatorName& name) {
    constexpr std::string_view kLists = "aten::_foreach_";
    if (name.name.compare(0, kLists.size(), kLists) != 0 || result_->by_operator.count(name) != 0) {
      return;
    }
    std::string part = "aten::" + name.name.substr(kLists.size());
    const bool in_place = part.back() == '_';
    if (in_place) {
      part.pop_back();
    }
    if (part == "aten::norm") {
      part = "aten::linalg_vector_norm";
    }
    const auto lists = c10::Dispatcher::singleton().findOp(name);
    const auto [first, last] = functional_.equal_range(part);
    for (auto at = first; at != last && lists.has_value() && lists->hasSchema(); ++at) {
      const auto served = result_->by_operator.find(
          c10::OperatorName(part + (in_place ? "_" : ""), at->second.op.operator_name().overload_name));
      if (served != result_->by_operator.end() && is_part_of(at->second.op.schema(), lists->schema())) {
        result_->in_parts.try_emplace(name, *served->second);
      }
    }
  }

  // What PyTorch would take apart for this key comes to the fallback whole.
  static void keep_whole(const c10::OperatorHandle& op) {
    if (op.hasKernelForDispatchKey(Key::PrivateUse1) || !op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd)) {
      return;
    }
    const auto& name = op.operator_name();
    const std::string space(*name.getNamespace());
    auto& library = registry().libraries[space];
    if (library == nullptr) {
      library = new torch::Library(torch::Library::IMPL, space, Key::PrivateUse1, __FILE__, __LINE__);
    }
    library->impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&operator_fallback>());
    note_operator_of_fallback(name);
  }

  struct Functional {
    c10::OperatorHandle op;
    const openreg_kernel* kernel;
    LaterArguments later;
  };

  const openreg_kernels& table_;
  const char* driver_;
  std::unique_ptr<DriverKernels> result_ = std::make_unique<DriverKernels>();
  std::unordered_multimap<std::string, Functional> functional_; // by name
};

const Device& device_with_kernels(DeviceIndex device) {
  return *devices[device].load(std::memory_order_acquire);
}

// With the lock held.
void retire_kernels_of_other_tables(uint32_t generation) {
  if (registry().generation == generation) {
    return;
  }
  for (auto& [table, kernels] : registry().by_table) {
    registry().retired.push_back(std::move(kernels));
  }
  registry().by_table.clear();
  registry().generation = generation;
}

void read(DeviceIndex device, uint32_t generation, const openreg_kernels& table) {
  const openreg_device_properties properties = properties_of(device);
  const std::lock_guard<std::mutex> guard(registry().lock);
  retire_kernels_of_other_tables(generation);
  auto& kernels = registry().by_table[&table];
  if (kernels == nullptr) {
    kernels = Reader(table, properties.driver).read();
  }
  registry().devices.push_back(std::make_unique<Device>(Device{kernels.get(), properties.ordinal}));
  devices[device].store(registry().devices.back().get(), std::memory_order_release);
}

NativeKernel* look_up(const c10::OperatorHandle& op, DeviceIndex device) {
  const auto& kernels = device_with_kernels(device).kernels->by_operator;
  const auto found = kernels.find(op.operator_name());
  return found == kernels.end() ? nullptr : found->second.get();
}

bool run_parts(const c10::OperatorHandle& op, DeviceIndex device, torch::jit::Stack* stack, TakeApart take_apart) {
  const auto& in_parts = device_with_kernels(device).kernels->in_parts;
  const auto found = in_parts.find(op.operator_name());
  if (found == in_parts.end()) {
    return false;
  }
  const c10::IValue& list = (*stack)[stack->size() - op.schema().arguments().size()];
  const auto tensors = list.isTensorList() ? list.toListRef() : c10::ArrayRef<c10::IValue>();
  const uint64_t type = tensors.empty() ? 0 : uint64_t{1} << static_cast<unsigned>(tensors[0].toTensor().scalar_type());
  const Parts& parts = found->second;
  const auto& refused = parts.kernel.counter.refused;
  if ((parts.refused_types.load(std::memory_order_relaxed) & type) != 0) {
    return false;
  }
  const uint64_t before = refused.load(std::memory_order_relaxed);
  if (!take_apart(op, stack)) {
    return false;
  }
  if (refused.load(std::memory_order_relaxed) != before) {
    parts.refused_types.fetch_or(type, std::memory_order_relaxed);
  }
  return true;
}

bool run(NativeKernel& kernel, const c10::OperatorHandle& op, DeviceIndex device, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(!kernel.is_compared)) {
    std::call_once(kernel.comparing, [&] {
      const auto later = compared_schema(kernel.kernel, op.schema(), properties_of(device).driver);
      kernel.is_refused = !later.has_value();
      kernel.later = later.value_or(LaterArguments{});
    });
  }
  if (kernel.is_refused) {
    return false;
  }
  NativeCall call(
      op, kernel.kernel, kernel.later, kernel.shape_function, device, device_with_kernels(device).ordinal, *stack);
  if (!call.prepare()) {
    kernel.counter.refused.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  ask_operator_policy(ExecutionMode::native, op.schema().name(), device);
  const auto start = OperatorClock::now();
  if (!call.run()) {
    kernel.counter.refused.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  kernel.counter.add_call(0, OperatorClock::now() - start);
  call.replace_arguments(*stack);
  return true;
}

} // namespace
} // namespace c10::openreg

void openreg_native_kernels(c10::openreg::NativeKernelFunctions* functions) {
  using namespace c10::openreg;
  *functions = {&read, &look_up, &run_parts, &run};
}
