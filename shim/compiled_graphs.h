/* SPDX-License-Identifier: BSD-3-Clause */
// Whole graphs that were compiled for the CPU, on openreg tensors.
//
// A graph in C++ (Inductor's cpp_wrapper, AOTInductor's packages) knows tensors of the CPU alone. It runs inside of one
// operator, openreg::compiled_graph, whose kernel for the CPU calls it: so the operator fallback shows it the tensors
// (aliased or staged), its allocations come out of the device's memory, and its results are adopted, as those of any other
// operator are.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <vector>

#include "shim/export.h"

namespace c10::openreg {

// Is given tensors of the CPU, and returns such.
using HostGraph = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// Runs `graph` with the openreg tensors among `inputs`, which must be on one device, shown as tensors of the CPU; others are
// passed as they are. Results are tensors of that device; without an openreg tensor among the inputs they are copied to
// `device` (-1: the current one). `writes`: the graph writes some of its inputs. Undefined results stay undefined.
// Throws c10::Error where a device fails or inputs are on two openreg devices, and what `graph` throws. `graph` runs in the
// calling thread, which must not hold the GIL where `graph` takes it.
TORCH_OPENREG_API std::vector<at::Tensor> run_compiled_graph(
    std::vector<at::Tensor> inputs, bool writes, DeviceIndex device, const HostGraph& graph);

} // namespace c10::openreg
