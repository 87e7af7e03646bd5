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

// Runs `graph` with the openreg tensors among `inputs`, which must be on one device, shown as tensors of the CPU; others are
// passed as they are. Results are tensors of that device; without an openreg tensor among the inputs they are copied to
// `device` (-1: the current one). `writes`: the graph writes some of its inputs. Undefined results stay undefined.
// `kernels`: gpu, for a graph that was compiled for the GPU that the device is (gpu_of()): its tensors are shown as those of
// the GPU, at least one of them is openreg's, and it runs in a GpuScope.
// Throws c10::Error where a device fails or inputs are on two openreg devices, and what `graph` throws. `graph` runs in the
// calling thread, which must not hold the GIL where `graph` takes it.
TORCH_OPENREG_API std::vector<at::Tensor> run_compiled_graph(
    std::vector<at::Tensor> inputs,
    bool writes,
    DeviceIndex device,
    const HostGraph& graph,
    Kernels kernels = Kernels::cpu);

// The index of the GPU of PyTorch's that `device` is, an index in range, where its operators run that GPU's kernels; -1: it is
// none. Throws as has_gpu_kernels().
TORCH_OPENREG_API DeviceIndex gpu_for_graphs(DeviceIndex device);

} // namespace c10::openreg
