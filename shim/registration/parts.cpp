// SPDX-License-Identifier: BSD-3-Clause
// What PyTorch must find from the start of the parts that are loaded later (shim/base/parts.h): a name and a function each,
// which loads the part when PyTorch calls it.
#include <c10/core/DeviceType.h>
#include <torch/headeronly/version.h>

#include <cstdlib>

#include "shim/base/kernel_library.h"
#include "shim/base/parts.h"
#include "shim/optional/compile/entry.h"
#include "shim/optional/distributed/entry.h"
#include "shim/optional/graph/entry.h"
#include "shim/registration/registration.h"

// The version's header is for ccache, which knows the headers that a file read and not those that it asked for: without
// it the object of a torch that lacks this one is taken for one that has it. A torch that is built without Kineto does.
#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>) && __has_include(<libkineto.h>)
#define OPENREG_HAS_KINETO
#define USE_KINETO
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include "shim/optional/profile/entry.h"
#endif

namespace c10::openreg {
namespace {

template <class Function>
Function* function_of(const char* part, const char* name) {
  return reinterpret_cast<Function*>(find_in_part(part, name));
}

// A call without tensors of openreg loads nothing: most programs with groups have CPU tensors alone, or another device's.
void choose_backend(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (keys.has(c10::DispatchKey::PrivateUse1)) {
    static const auto choose = function_of<decltype(openreg_choose_backend)>("distributed", "openreg_choose_backend");
    choose(op, keys, stack);
  } else {
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect), stack);
  }
}

// A sparse tensor's collective is that of dense ones, which c10d has for PrivateUse1: the group's backend carries it, or says
// what it can't. On the CPU's kernel, where others of its operators go, the result would stay on the host.
void carry_sparse(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

// BackendSelect is the key for choosing a backend by arguments. It is below autograd, so it runs in inference mode, too.
void register_collectives() {
  torch::Library& library = kernel_library("c10d", c10::DispatchKey::BackendSelect);
  for (const char* name :
       {"allgather_",
        "_allgather_base_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
        "allreduce_",
        "allreduce_coalesced_",
        "alltoall_",
        "alltoall_base_",
        "barrier",
        "broadcast_",
        "gather_",
        "recv_",
        "recv_any_source_",
        "reduce_",
        "reduce_scatter_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
        "scatter_",
        "send"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&choose_backend>());
  }
  torch::Library& sparse = kernel_library("c10d", c10::DispatchKey::SparsePrivateUse1);
  sparse.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&carry_sparse>());
}

void normalize(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static const auto run = function_of<decltype(openreg_sync_batch_norm)>("distributed", "openreg_sync_batch_norm");
  run(op, keys, stack);
}

// torch.nn.SyncBatchNorm's.
void register_sync_batch_norm() {
  torch::Library& library = kernel_library("aten", c10::DispatchKey::PrivateUse1);
  for (const char* name :
       {"batch_norm_stats",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
        "batch_norm_elemt",
        "batch_norm_elemt.out",
        "batch_norm_backward_reduce",
        "batch_norm_backward_elemt"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&normalize>());
  }
}

std::unique_ptr<torch::inductor::AOTIModelContainerRunner> make_runner(
    const std::string& library,
    size_t models,
    const std::string& device,
    const std::string& /*binaries*/,
    const bool single_threaded) {
  static const auto make = function_of<decltype(openreg_make_runner)>("compile", "openreg_make_runner");
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> made;
  make(&made, library, models, device, single_threaded);
  return made;
}

// Python passes the name that it has chosen in the variable, which a program without Python may set, too. A name that
// another backend has given stays.
void register_name() {
  if (!c10::is_privateuse1_backend_registered()) {
    const char* const name = std::getenv("OPENREG_DEVICE_NAME");
    c10::register_privateuse1_backend(name == nullptr || *name == '\0' ? "openreg" : name);
  }
}

// A package of AOTInductor has PyTorch's own name of its device, so that it runs under each (_compile/cpp_wrapper.py).
void register_runner() {
  for (const std::string& name : {std::string("privateuseone"), c10::get_privateuse1_backend()}) {
    torch::inductor::getAOTIModelRunnerRegistry()[name] = &make_runner;
  }
}

// torch.accelerator.Graph looks its implementation up by the device's name in upper case.
void register_graphs() {
#ifdef OPENREG_HAS_GRAPHS
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/false), [](at::GraphImplArgs arguments) {
        static const auto make = function_of<decltype(openreg_make_graph)>("graph", "openreg_make_graph");
        std::unique_ptr<at::GraphImplInterface> made;
        make(&made, arguments.keep_graph);
        return made;
      });
#endif
}

// Kineto makes its sources of rows when the first profile is prepared.
void register_profiler() {
#ifdef OPENREG_HAS_KINETO
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory([] {
    std::unique_ptr<libkineto::IActivityProfiler> made;
    function_of<decltype(openreg_make_profiler)>("profile", "openreg_make_profiler")(&made);
    return made;
  });
#endif
}

} // namespace

void register_parts() {
  register_name();
  register_collectives();
  register_sync_batch_norm();
  register_graphs();
  register_runner();
  register_profiler();
}

} // namespace c10::openreg
