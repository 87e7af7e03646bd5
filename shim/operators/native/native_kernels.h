/* SPDX-License-Identifier: BSD-3-Clause */
// Operators that drivers run themselves (openreg/kernels.h): which, and how PyTorch's calls get to them.
//
// A driver's table is read when an operator first runs on one of its devices. Operators come here through the fallback
// and the typed kernels, which ask route() (fallback/route.h): a load and a branch where the driver has none. What reads the
// tables and calls the kernels is the part `kernels` (shim/optional/kernels), loaded for the first driver that has some.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <openreg/kernels.h>
#include <openreg/openreg.h>

#include "shim/base/export.h"
#include "shim/operators/policy/execution_mode.h"

namespace c10::openreg {

// Reads the table of the device's driver and prepares it. Returns whether there are kernels. Throws c10::Error for a
// malformed table; warns of entries that can't be used. What was read for another generation of the device table is read
// again: its driver may have been closed since.
TORCH_OPENREG_API bool look_for_kernels(DeviceIndex device);

// Called while the shim is loaded for each operator of PyTorch that comes to the fallback or to a typed kernel although
// it may have a kernel registered for PrivateUse1: the other ones that have are none of theirs.
TORCH_OPENREG_API void note_operator_of_fallback(const c10::OperatorName& name);
TORCH_OPENREG_API bool is_operator_of_fallback(const c10::OperatorName& name);

struct NativeKernel;
using TakeApart = bool (*)(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// What the part does, with devices that have kernels.
struct NativeKernelFunctions {
  // For a device whose driver has the table, in this generation of the device table.
  void (*read)(DeviceIndex device, uint32_t generation, const openreg_kernels& table);

  // The kernel of the driver for the operator; nullptr if there is none. Lives until the process ends.
  NativeKernel* (*look_up)(const c10::OperatorHandle& op, DeviceIndex device);

  // Runs an operator on lists ("aten::_foreach_add_.List") as operators on tensors, by `take_apart`, if the driver has none
  // for it but one for those ("aten::add_.Tensor"). False, and nothing was run: there is no such kernel, it has refused a
  // part of an earlier list of the same type, or `take_apart` returned false.
  bool (*run_in_parts)(
      const c10::OperatorHandle& op, DeviceIndex device, torch::jit::Stack* stack, TakeApart take_apart);

  // Runs the operator of the stack by the driver's kernel and replaces the arguments by the results. All tensors have
  // been checked to be on `device`. False if it refuses: then nothing has changed but the size of an out= tensor, which is
  // the same in every mode. Throws c10::Error with driver, operator and text where the kernel fails.
  bool (*run)(NativeKernel& kernel, const c10::OperatorHandle& op, DeviceIndex device, torch::jit::Stack* stack);
};

// Loads the part, the first time.
TORCH_OPENREG_API const NativeKernelFunctions& native_kernels();

} // namespace c10::openreg

// The entry of libtorch_openreg_kernels.so.
extern "C" TORCH_OPENREG_API void openreg_native_kernels(c10::openreg::NativeKernelFunctions* functions);
