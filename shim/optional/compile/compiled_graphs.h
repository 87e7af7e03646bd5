/* SPDX-License-Identifier: BSD-3-Clause */
// Whole graphs that were compiled for the CPU, on openreg tensors.
//
// A graph in C++ (Inductor's cpp_wrapper, AOTInductor's packages) knows tensors of the CPU alone. It runs inside of one
// operator, openreg::compiled_graph, whose kernel for the CPU calls it: so the operator fallback shows it the tensors
// (aliased or staged), its allocations come out of the device's memory, and its results are adopted, as those of any other
// operator are. A graph for a GPU runs inside of another operator, which has a kernel for GPUs alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <vector>

#include "shim/base/export.h"
#include "shim/operators/fallback/gpu_kernels.h"

namespace c10::openreg {

// Is given tensors of the CPU, and returns such; of a GPU with Kernels::gpu.
using HostGraph = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// In the place of a device in `places`: the CPU.
constexpr DeviceIndex kOnHost = -2;

// Runs `graph` with the openreg tensors among `inputs` shown as tensors of the CPU; others are passed as they are. `places`:
// the device of each result, an index or kOnHost; -1, or none: that of the first openreg tensor among the inputs, or without
// one `device` (-1: the current one). The graph allocates on the first of `places` that is a device; a result that belongs
// elsewhere is copied there, once for all that share its memory. `writes`: the graph writes some of its inputs. Undefined
// results stay undefined.
// `kernels`: gpu, for a graph that was compiled for the GPU that the device is (gpu_of()): its tensors are shown as those of
// the GPU, at least one of them is openreg's, and it runs in a GpuScope.
// Throws c10::Error where a device fails, or inputs of a graph for a GPU are on two devices, and what `graph` throws. `graph` runs in the
// calling thread, which must not hold the GIL where `graph` takes it.
TORCH_OPENREG_API std::vector<at::Tensor> run_compiled_graph(
    std::vector<at::Tensor> inputs,
    bool writes,
    DeviceIndex device,
    const std::vector<DeviceIndex>& places,
    const HostGraph& graph,
    Kernels kernels = Kernels::cpu);

// The index of the GPU of PyTorch's that `device` is, an index in range, where its operators run that GPU's kernels; -1: it is
// none. Throws as has_gpu_kernels().
TORCH_OPENREG_API DeviceIndex gpu_for_graphs(DeviceIndex device);

} // namespace c10::openreg
