// The rule that all tensors of an operator are on one device, checked before anything runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace c10::openreg {

// The device of the openreg tensors among the arguments, -1 if there is none. `arguments` are the values of the
// schema's arguments, in order.
// Throws c10::Error "Expected all tensors to be on the same device, but found at least two devices, ..." for tensors
// of two openreg devices, or of another device type. Allowed, as on CUDA: zero-dimensional CPU tensors that are not
// written, index tensors (arguments of type Tensor?[]), and the lengths of ctc_loss.
DeviceIndex common_device(const c10::FunctionSchema& schema, const c10::IValue* arguments, size_t count);

} // namespace c10::openreg
