// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/compile/compiled_graphs.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <utility>

#include "shim/base/device_name.h"
#include "shim/device/device.h"

namespace c10::openreg {

namespace {

// What a call's kernel, which runs in the calling thread, is told beside its tensors.
struct Call {
  const HostGraph& graph;
  std::vector<at::Tensor> inputs; // undefined where an openreg tensor goes
  std::vector<size_t> places;     // of the openreg tensors
};

thread_local Call* pending = nullptr;

std::vector<at::Tensor> kernel(at::TensorList shown) {
  TORCH_CHECK(
      pending != nullptr && shown.size() == pending->places.size(),
      "openreg::compiled_graph runs what torch.compile and AOTInductor have made; it is not to be called");
  Call& call = *std::exchange(pending, nullptr);
  for (size_t i = 0; i < shown.size(); ++i) {
    call.inputs[call.places[i]] = shown[i];
  }
  return call.graph(std::move(call.inputs));
}

using Signature = std::vector<at::Tensor>(at::TensorList);

const c10::TypedOperatorHandle<Signature>& operator_for(bool writes, Kernels kernels) {
  const auto find = [](const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  };
  static const auto reads_only = find("openreg::compiled_graph");
  static const auto in_place = find("openreg::compiled_graph_");
  static const auto on_gpu = find("openreg::compiled_gpu_graph_");
  return kernels == Kernels::gpu ? on_gpu : writes ? in_place : reads_only;
}

} // namespace

std::vector<at::Tensor> run_compiled_graph(
    std::vector<at::Tensor> inputs, bool writes, DeviceIndex device, const HostGraph& graph, Kernels kernels) {
  Call call{graph, std::move(inputs), {}};
  std::vector<at::Tensor> ours;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].defined() && call.inputs[i].is_privateuseone()) {
      call.places.push_back(i);
      ours.push_back(std::exchange(call.inputs[i], {}));
    }
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  // Python modes have seen the graph when it was traced, or see it as one function.
  const c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  if (!ours.empty()) {
    const auto& op = operator_for(writes, kernels);
    pending = &call;
    const auto forget = c10::make_scope_exit([] { pending = nullptr; });
    return op.call(ours);
  }
  TORCH_CHECK(
      kernels == Kernels::cpu, "a graph for a GPU has at least one ", device_name(), " tensor among its inputs");
  std::vector<at::Tensor> results = graph(std::move(call.inputs));
  const c10::Device to(c10::DeviceType::PrivateUse1, index_or_current(device));
  for (at::Tensor& result : results) {
    if (result.defined()) {
      result = result.to(to);
    }
  }
  return results;
}

DeviceIndex gpu_for_graphs(DeviceIndex device) {
  return has_gpu_kernels(device) ? gpu_of(device).index() : DeviceIndex{-1};
}

TORCH_LIBRARY_FRAGMENT(openreg, m) {
  m.def("compiled_graph(Tensor[] inputs) -> Tensor[]");
  m.def("compiled_graph_(Tensor(a!)[] inputs) -> Tensor[]");
  m.def("compiled_gpu_graph_(Tensor(a!)[] inputs) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(openreg, CUDA, m) {
  m.impl("compiled_gpu_graph_", &kernel);
}

TORCH_LIBRARY_IMPL(openreg, CPU, m) {
  m.impl("compiled_graph", &kernel);
  m.impl("compiled_graph_", &kernel);
}

} // namespace c10::openreg
