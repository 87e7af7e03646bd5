// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/policy/operator_policy.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <mutex>
#include <set>

#include "shim/base/device_name.h"
#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/observe/operator_watch.h"
#include "shim/operators/policy/operator_counts.h"

namespace c10::openreg {
namespace {

constexpr char kPolicyVariable[] = "OPENREG_OPERATORS_POLICY";
constexpr char kReportVariable[] = "OPENREG_OPERATORS_REPORT";

struct Rules {
  std::mutex lock;
  OperatorRules by_mode;
  std::array<std::set<std::string>, kExecutionModes> warned;
};

Rules& rules() {
  static auto* instance = new Rules; // leaked: used until the process ends
  return *instance;
}

std::array<std::atomic<bool>, kExecutionModes> has_rules;

size_t index_of(ExecutionMode mode) {
  return static_cast<size_t>(mode);
}

// With the lock held.
void rules_have_changed(ExecutionMode mode) {
  const auto& own = rules().by_mode[index_of(mode)];
  rules().warned[index_of(mode)].clear();
  const bool has_some = own.others != OperatorPolicy::allow || !own.by_operator.empty();
  has_rules[index_of(mode)].store(has_some, std::memory_order_relaxed);
  if (mode == ExecutionMode::aliased) {
    watch_operators(OperatorWatch::rules, has_some);
  }
}

template <class Value, size_t Count>
Value value_named(const std::array<const char*, Count>& names, const std::string& name, const char* what) {
  for (size_t i = 0; i < Count; ++i) {
    if (name == names[i]) {
      return static_cast<Value>(i);
    }
  }
  TORCH_CHECK_VALUE(false, what, " must be one of '", c10::Join("', '", names), "', but is '", name, "'.");
}

// "aten::mm". Only PyTorch's own names can be looked up: other libraries may be loaded later.
void check_operator_name(const std::string& name) {
  const size_t separator = name.find("::");
  TORCH_CHECK_VALUE(
      separator != std::string::npos && separator > 0 && name.find('.') == std::string::npos,
      "an operator is named by namespace and name, without an overload, as 'aten::add', but got '",
      name,
      "'.");
  if (name.compare(0, separator, "aten") != 0) {
    return;
  }
  for (const auto& known : c10::Dispatcher::singleton().getAllOpNames()) {
    if (known.name == name) {
      return;
    }
  }
  TORCH_CHECK_VALUE(false, "this PyTorch has no operator '", name, "'.");
}

const char* meaning_of(ExecutionMode mode, DeviceIndex device) {
  switch (mode) {
    case ExecutionMode::native:
      return "by a kernel of the driver";
    case ExecutionMode::aliased:
      return (detail::device_bits(device) & detail::kIsGpu) != 0 ? "by PyTorch's kernel for GPUs on the device's memory"
                                                                 : "by PyTorch's CPU kernel on the device's memory";
    default:
      return "on copies of its tensors in host memory";
  }
}

// The policy of a call, allow where it has been warned of already.
OperatorPolicy policy_of(ExecutionMode mode, const std::string& name) {
  const std::lock_guard<std::mutex> guard(rules().lock);
  const auto& own = rules().by_mode[index_of(mode)];
  const auto found = own.by_operator.find(name);
  const OperatorPolicy policy = found == own.by_operator.end() ? own.others : found->second;
  const bool again = policy == OperatorPolicy::warn && !rules().warned[index_of(mode)].insert(name).second;
  return again ? OperatorPolicy::allow : policy;
}

std::string how_to_allow(ExecutionMode mode, const std::string& name) {
  std::string call = "torch." + device_name() + ".set_operator_policy(\"allow\", ";
  if (mode != ExecutionMode::staged) {
    call.append("mode=\"").append(kExecutionModeNames[index_of(mode)]).append("\", ");
  }
  return call.append("operators=[\"").append(name).append("\"])");
}

// As it may be shown: each value that is taken is plain text.
std::string variable(const char* name) {
  const char* value = openreg_variable(name);
  return value != nullptr ? shown(value) : "";
}

void apply_policy_item(const std::string& item) {
  const size_t equals = item.find('=');
  TORCH_CHECK_VALUE(equals != std::string::npos, "'", item, "' has no '='.");
  const std::string what = item.substr(0, equals);
  const OperatorPolicy policy = operator_policy_named(item.substr(equals + 1));
  if (what.find("::") != std::string::npos) {
    set_operator_policy(policy, ExecutionMode::staged, {what});
  } else {
    set_operator_policy(policy, execution_mode_named(what), {});
  }
}

void read_policy() {
  const std::string value = variable(kPolicyVariable);
  const auto before = operator_rules();
  try {
    for (size_t start = 0; start < value.size();) {
      const size_t end = std::min(value.find(',', start), value.size());
      apply_policy_item(value.substr(start, end - start));
      start = end + 1;
    }
  } catch (const c10::ValueError& error) {
    replace_operator_rules(before);
    TORCH_CHECK(
        false,
        kPolicyVariable,
        " is a list of mode=policy and operator=policy, as 'staged=warn,aten::mm=forbid', but is '",
        value,
        "': ",
        error.what_without_backtrace());
  }
}

void read_report() {
  const std::string value = variable(kReportVariable);
  TORCH_CHECK(
      value.empty() || value == "0" || value == "1" || value == "detailed",
      kReportVariable,
      " must be '0', '1' or 'detailed', but is '",
      value,
      "'.");
  if (value == "detailed") {
    set_operator_details(true);
  }
}

} // namespace

ExecutionMode execution_mode_named(const std::string& name) {
  return value_named<ExecutionMode>(kExecutionModeNames, name, "the mode");
}

OperatorPolicy operator_policy_named(const std::string& name) {
  return value_named<OperatorPolicy>(kOperatorPolicyNames, name, "the policy");
}

void set_operator_policy(OperatorPolicy policy, ExecutionMode mode, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    check_operator_name(name);
  }
  const std::lock_guard<std::mutex> guard(rules().lock);
  auto& own = rules().by_mode[index_of(mode)];
  if (names.empty()) {
    own.others = policy;
    own.by_operator.clear();
  }
  for (const auto& name : names) {
    own.by_operator[name] = policy;
  }
  rules_have_changed(mode);
}

OperatorRules operator_rules() {
  const std::lock_guard<std::mutex> guard(rules().lock);
  return rules().by_mode;
}

void replace_operator_rules(const OperatorRules& replacement) {
  const std::lock_guard<std::mutex> guard(rules().lock);
  rules().by_mode = replacement;
  for (size_t i = 0; i < kExecutionModes; ++i) {
    rules_have_changed(static_cast<ExecutionMode>(i));
  }
}

void read_operator_variables() {
  static std::mutex lock;
  static bool done = false; // false after a bad value: it is refused by each use until it is corrected
  const std::lock_guard<std::mutex> guard(lock);
  if (!done) {
    read_policy();
    read_report();
    done = true;
  }
}

bool operator_mode_has_rules(ExecutionMode mode) noexcept {
  return has_rules[index_of(mode)].load(std::memory_order_relaxed);
}

void ask_operator_policy(ExecutionMode mode, const std::string& name, DeviceIndex device) {
  if (C10_LIKELY(!operator_mode_has_rules(mode))) {
    return;
  }
  const OperatorPolicy policy = policy_of(mode, name);
  if (policy == OperatorPolicy::allow) {
    return;
  }
  const c10::Device where(c10::DeviceType::PrivateUse1, device);
  const std::string how = c10::str(
      name,
      policy == OperatorPolicy::forbid ? " would run " : " runs ",
      kExecutionModeNames[index_of(mode)],
      " on ",
      where,
      " (driver \"",
      properties_of(device).driver,
      "\"), ",
      meaning_of(mode, device));
  TORCH_CHECK(
      policy != OperatorPolicy::forbid,
      how,
      ", and the policy for operators forbids that. ",
      mode == ExecutionMode::staged
          ? "To avoid it: a kernel of the driver (openreg/kernels.h), this step on CPU tensors, or "
          : "To allow it: ",
      how_to_allow(mode, name),
      ".");
  TORCH_WARN(how, ". Shown once per operator; to allow it: ", how_to_allow(mode, name), ".");
}

} // namespace c10::openreg
