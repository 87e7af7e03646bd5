// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/compile/compiled_graphs.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "shim/base/device_name.h"
#include "shim/device/device.h"
#include "shim/operators/fallback/route.h"

namespace c10::openreg {

namespace {

// What a call passes to its kernel, which runs in the calling thread, beside the tensors.
struct Call {
  const HostGraph& graph;
  std::vector<at::Tensor> inputs; // undefined where an openreg tensor goes
  std::vector<size_t> places;     // of the openreg tensors
};

thread_local Call* pending = nullptr;

// `device`, on which the graph allocates, is for the fallback.
std::vector<at::Tensor> kernel(at::TensorList shown, std::optional<c10::Device> /*device*/) {
  TORCH_CHECK(
      pending != nullptr && shown.size() == pending->places.size(),
      "openreg::compiled_graph runs what torch.compile and AOTInductor have made; it is not to be called");
  Call& call = *std::exchange(pending, nullptr);
  for (size_t i = 0; i < shown.size(); ++i) {
    call.inputs[call.places[i]] = shown[i];
  }
  return call.graph(std::move(call.inputs));
}

using Signature = std::vector<at::Tensor>(at::TensorList, std::optional<c10::Device>);

const c10::TypedOperatorHandle<Signature>& operator_for(bool writes, Kernels kernels) {
  const auto find = [](const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  };
  static const auto reads_only = find("openreg::compiled_graph");
  static const auto in_place = find("openreg::compiled_graph_");
  static const auto on_gpu = find("openreg::compiled_gpu_graph_");
  return kernels == Kernels::gpu ? on_gpu : writes ? in_place : reads_only;
}

c10::Device device_at(DeviceIndex place) {
  return place == kOnHost ? c10::Device(c10::DeviceType::CPU) : c10::Device(c10::DeviceType::PrivateUse1, place);
}

// Copies results to their `places`; those without one to `otherwise`, if there is one.
void put_in_place(
    std::vector<at::Tensor>& results, const std::vector<DeviceIndex>& places, std::optional<c10::Device> otherwise) {
  const std::vector<at::Tensor> before = results; // keeps storages alive, by whose addresses their copies are found
  std::map<std::pair<const c10::StorageImpl*, DeviceIndex>, at::Tensor> copies;
  for (size_t i = 0; i < results.size(); ++i) {
    at::Tensor& result = results[i];
    const auto to = i < places.size() && places[i] != -1 ? std::optional(device_at(places[i])) : otherwise;
    if (!result.defined() || !to.has_value() || result.device() == *to) {
      continue;
    }
    at::Tensor& copy = copies[{result.storage().unsafeGetStorageImpl(), to->index()}];
    if (!copy.defined()) {
      const auto bytes = static_cast<int64_t>(result.storage().nbytes());
      copy = at::empty({0}, result.options().dtype(at::kByte)).set_(result.storage(), 0, {bytes}, {1}).to(*to);
    }
    at::Tensor moved = at::empty({0}, result.options().device(*to))
                           .set_(copy.storage(), result.storage_offset(), result.sizes(), result.strides());
    moved._set_conj(result.is_conj());
    moved._set_neg(result.is_neg());
    result = std::move(moved);
  }
}

} // namespace

std::vector<at::Tensor> run_compiled_graph(
    std::vector<at::Tensor> inputs,
    bool writes,
    DeviceIndex device,
    const std::vector<DeviceIndex>& places,
    const HostGraph& graph,
    Kernels kernels) {
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
    const auto first = std::find_if(places.begin(), places.end(), [](DeviceIndex place) { return place != kOnHost; });
    const bool is_named = first != places.end() && *first >= 0;
    std::vector<at::Tensor> results = op.call(ours, is_named ? std::optional(device_at(*first)) : std::nullopt);
    put_in_place(results, places, std::nullopt);
    return results;
  }
  TORCH_CHECK(
      kernels == Kernels::cpu, "a graph for a GPU has at least one ", device_name(), " tensor among its inputs");
  std::vector<at::Tensor> results = graph(std::move(call.inputs));
  put_in_place(results, places, device_at(index_or_current(device)));
  return results;
}

DeviceIndex gpu_for_graphs(DeviceIndex device) {
  return has_gpu_kernels(device) ? gpu_of(device).index() : DeviceIndex{-1};
}

TORCH_LIBRARY_FRAGMENT(openreg, m) {
  m.def("compiled_graph(Tensor[] inputs, Device? device=None) -> Tensor[]");
  m.def("compiled_graph_(Tensor(a!)[] inputs, Device? device=None) -> Tensor[]");
  m.def("compiled_gpu_graph_(Tensor(a!)[] inputs, Device? device=None) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(openreg, CUDA, m) {
  m.impl("compiled_gpu_graph_", &kernel);
}

TORCH_LIBRARY_IMPL(openreg, CPU, m) {
  m.impl("compiled_graph", &kernel);
  m.impl("compiled_graph_", &kernel);
}

} // namespace c10::openreg
