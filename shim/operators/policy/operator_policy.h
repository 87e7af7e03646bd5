/* SPDX-License-Identifier: BSD-3-Clause */
// Which execution modes (execution_mode.h) a program permits for its operators. Default: all. The rules are those of the
// process, not of a thread: backward passes run in threads of their own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shim/operators/policy/execution_mode.h"

namespace c10::openreg {

enum class OperatorPolicy : uint8_t {
  allow,
  warn,   // by PyTorch's warnings, once an operator and mode
  forbid, // c10::Error before anything runs
};
constexpr std::array<const char*, 3> kOperatorPolicyNames = {"allow", "warn", "forbid"};

struct ModeRules {
  OperatorPolicy others = OperatorPolicy::allow;     // of every operator without a rule of its own
  std::map<std::string, OperatorPolicy> by_operator; // "aten::mm"
};
using OperatorRules = std::array<ModeRules, kExecutionModes>;

// From their names. Throw c10::ValueError that lists the known ones.
TORCH_OPENREG_API ExecutionMode execution_mode_named(const std::string& name);
TORCH_OPENREG_API OperatorPolicy operator_policy_named(const std::string& name);

// Sets the policy of the operators named; without names, of the whole mode, and drops what was said of single
// operators in that mode. Throws c10::ValueError for a name without namespace, with an overload, or unknown to PyTorch.
TORCH_OPENREG_API void set_operator_policy(
    OperatorPolicy policy, ExecutionMode mode, const std::vector<std::string>& names);

// All rules, and all rules exchanged: to come back to what was before.
TORCH_OPENREG_API OperatorRules operator_rules();
TORCH_OPENREG_API void replace_operator_rules(const OperatorRules& rules);

// Takes over OPENREG_OPERATORS_POLICY and OPENREG_OPERATORS_REPORT, the first time that it succeeds. Throws
// c10::Error that names the variable and the value.
TORCH_OPENREG_API void read_operator_variables();

bool operator_mode_has_rules(ExecutionMode mode) noexcept;

// Warns or throws as the rules say. Cheap where the mode has none.
TORCH_OPENREG_API void ask_operator_policy(ExecutionMode mode, const std::string& name, DeviceIndex device);

} // namespace c10::openreg
