/* SPDX-License-Identifier: BSD-3-Clause */
// PyTorch's own kernels for the meta device, in C++.
//
// For most operators Python's are registered in front of them (torch/_meta_registrations.py), which find the same and take
// some fifty times as long.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace c10::openreg {

// NULL: the operator has none here, and is called as others are. `runs_on_cpu`: the call's kernel is PyTorch's for the CPU,
// which for some operators differs from those for GPUs. Any thread.
const c10::KernelFunction* meta_kernel_of(const c10::OperatorHandle& op, bool runs_on_cpu);

} // namespace c10::openreg
