// SPDX-License-Identifier: BSD-3-Clause
#include "shim/compiled_graphs.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <cstdint>
#include <utility>

#include "shim/device.h"

namespace c10::openreg {

namespace {

// What one call's kernel is told beside its tensors; on the stack of run_compiled_graph().
struct Call {
  const HostGraph& graph;
  std::vector<at::Tensor> inputs; // undefined where an openreg tensor goes
  std::vector<size_t> places;     // of the openreg tensors
};

std::vector<at::Tensor> kernel(at::TensorList shown, int64_t address) {
  Call& call = *reinterpret_cast<Call*>(address);
  TORCH_INTERNAL_ASSERT(shown.size() == call.places.size());
  for (size_t i = 0; i < shown.size(); ++i) {
    call.inputs[call.places[i]] = shown[i];
  }
  return call.graph(std::move(call.inputs));
}

using Signature = std::vector<at::Tensor>(at::TensorList, int64_t);

const c10::TypedOperatorHandle<Signature>& operator_for(bool writes) {
  const auto find = [](const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  };
  static const auto reads_only = find("openreg::compiled_graph");
  static const auto in_place = find("openreg::compiled_graph_");
  return writes ? in_place : reads_only;
}

} // namespace

std::vector<at::Tensor> run_compiled_graph(
    std::vector<at::Tensor> inputs, bool writes, DeviceIndex device, const HostGraph& graph) {
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
    return operator_for(writes).call(ours, static_cast<int64_t>(reinterpret_cast<intptr_t>(&call)));
  }
  std::vector<at::Tensor> results = graph(std::move(call.inputs));
  const c10::Device to(c10::DeviceType::PrivateUse1, index_or_current(device));
  for (at::Tensor& result : results) {
    if (result.defined()) {
      result = result.to(to);
    }
  }
  return results;
}

// `call` is an address, which no other caller can have: run_compiled_graph() is the way in.
TORCH_LIBRARY_FRAGMENT(openreg, m) {
  m.def("compiled_graph(Tensor[] inputs, int call) -> Tensor[]");
  m.def("compiled_graph_(Tensor(a!)[] inputs, int call) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(openreg, CPU, m) {
  m.impl("compiled_graph", &kernel);
  m.impl("compiled_graph_", &kernel);
}

} // namespace c10::openreg
