// SPDX-License-Identifier: BSD-3-Clause
// The runner of AOTInductor's packages for openreg, for aoti_load_package() and AOTIModelPackageLoader.
//
// A package that was compiled for openreg holds code for the CPU (python/torch_openreg/_compile/cpp_wrapper.py) for the
// device "openreg". Its weights are in the host's memory.
#include <ATen/DynamicLibrary.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/csrc/inductor/aoti_torch/tensor_converter.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shim/base/device_name.h"
#include "shim/device/device.h"
#include "shim/optional/compile/compiled_graphs.h"
#include "shim/optional/compile/entry.h"

namespace c10::openreg {

namespace {

using torch::aot_inductor::alloc_tensors_by_stealing_from_handles;
using torch::aot_inductor::unsafe_alloc_new_handles_from_tensors;
using torch::inductor::AOTIModelContainerRunner;
using torch::inductor::AOTIModelContainerRunnerCpu;

// What AOTInductor passes as an AOTInductorConstantMapHandle.
using ConstantMap = std::unordered_map<std::string, AtenTensorHandle>;

class Model final : public AOTIModelContainerRunnerCpu {
 public:
  // `device`: where results go that no input says; without an index the current one.
  Model(const std::string& library, size_t models, const std::string& device, bool single_threaded)
      : AOTIModelContainerRunnerCpu(library, models, single_threaded),
        device_(c10::Device(device).index()),
        writes_(*static_cast<const bool*>(model_so_->sym("openreg_graph_writes_inputs"))),
        places_(places_of(static_cast<const char*>(model_so_->sym("openreg_graph_outputs_on_device")))) {
    const std::lock_guard<std::mutex> guard(models_lock());
    models_by_handle()[container_handle_] = {
        update_constant_buffer_func_,
        update_constant_buffer_from_cpu_func_,
        update_user_managed_constant_buffer_func_,
        update_inactive_constant_buffer_func_};
    update_constant_buffer_func_ = &update<&Functions::update>;
    if (update_constant_buffer_from_cpu_func_ != nullptr) { // packages of an older PyTorch lack it
      update_constant_buffer_from_cpu_func_ = &update<&Functions::update_from_cpu>;
    }
    update_user_managed_constant_buffer_func_ = &update_user_managed;
    update_inactive_constant_buffer_func_ = &update_inactive;
  }
  ~Model() override {
    const std::lock_guard<std::mutex> guard(models_lock());
    models_by_handle().erase(container_handle_);
  }

 private:
  using Update = decltype(&AOTInductorModelContainerUpdateConstantBuffer);
  struct Functions {
    Update update;
    Update update_from_cpu;
    decltype(&AOTInductorModelContainerUpdateUserManagedConstantBuffer) update_user_managed;
    decltype(&AOTInductorModelContainerUpdateInactiveConstantBuffer) update_inactive;
  };
  static std::mutex& models_lock() {
    static auto& lock = *new std::mutex;
    return lock;
  }
  static std::map<AOTInductorModelContainerHandle, Functions>& models_by_handle() {
    static auto& models = *new std::map<AOTInductorModelContainerHandle, Functions>;
    return models;
  }
  static Functions functions_of(AOTInductorModelContainerHandle container) {
    const std::lock_guard<std::mutex> guard(models_lock());
    return models_by_handle().at(container);
  }

  // The library copies constants with memcpy(): weights on a device are copied to the host before.
  class HostConstants {
   public:
    explicit HostConstants(AOTInductorConstantMapHandle given) {
      for (const auto& [name, handle] : *reinterpret_cast<const ConstantMap*>(given)) {
        const at::Tensor& tensor = *reinterpret_cast<const at::Tensor*>(handle);
        tensors_.push_back(std::make_unique<at::Tensor>(tensor.is_privateuseone() ? tensor.cpu() : tensor));
        map_.emplace(name, reinterpret_cast<AtenTensorHandle>(tensors_.back().get()));
      }
    }
    AOTInductorConstantMapHandle handle() {
      return reinterpret_cast<AOTInductorConstantMapHandle>(&map_);
    }

   private:
    std::vector<std::unique_ptr<at::Tensor>> tensors_;
    ConstantMap map_;
  };

  template <auto function>
  static AOTIRuntimeError update(
      AOTInductorModelContainerHandle container,
      AOTInductorConstantMapHandle constants,
      bool use_inactive,
      bool validate_full_update) {
    HostConstants host(constants);
    return (functions_of(container).*function)(container, host.handle(), use_inactive, validate_full_update);
  }
  static AOTIRuntimeError update_inactive(
      AOTInductorModelContainerHandle container, AOTInductorConstantMapHandle constants) {
    HostConstants host(constants);
    return functions_of(container).update_inactive(container, host.handle());
  }
  // The library would keep the caller's memory, which its code can't reach.
  static AOTIRuntimeError update_user_managed(
      AOTInductorModelContainerHandle container,
      AOTInductorConstantMapHandle constants,
      bool use_inactive,
      bool validate_full_update) {
    for (const auto& [name, handle] : *reinterpret_cast<const ConstantMap*>(constants)) {
      TORCH_CHECK(
          !reinterpret_cast<const at::Tensor*>(handle)->is_privateuseone(),
          "load_constants(user_managed=True): the weight ",
          name,
          " is on ",
          device_name(),
          ", but a package for it works on weights in the host's memory. Pass it without "
          "user_managed, "
          "which copies it, or pass a tensor of the CPU.");
    }
    return functions_of(container).update_user_managed(container, constants, use_inactive, validate_full_update);
  }

  // A character an output: '0' for one of the CPU, '1' for one on the device of the inputs, from '2' on an index.
  static std::vector<DeviceIndex> places_of(const std::string& characters) {
    std::vector<DeviceIndex> places;
    for (const char character : characters) {
      const int number = static_cast<unsigned char>(character);
      places.push_back(static_cast<DeviceIndex>(number == '0' ? kOnHost : number - '2')); // '1': -1
    }
    return places;
  }

  static void check_devices(const std::vector<at::Tensor>& inputs) {
    std::optional<c10::Device> first;
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.is_privateuseone()) {
        first = first.value_or(input.device());
        TORCH_CHECK(
            input.device() == *first,
            "A package takes tensors of one device, but found inputs on ",
            *first,
            " and ",
            input.device());
      }
    }
  }

  std::vector<at::Tensor> run_impl(std::vector<AtenTensorHandle>& handles, void* /*stream*/) override {
    std::vector<at::Tensor> given = alloc_tensors_by_stealing_from_handles(handles.data(), handles.size());
    check_devices(given);
    return run_compiled_graph(std::move(given), writes_, device_, places_, [this](std::vector<at::Tensor> inputs) {
      std::vector<AtenTensorHandle> shown = unsafe_alloc_new_handles_from_tensors(inputs);
      inputs.clear();
      return AOTIModelContainerRunnerCpu::run_impl(shown, nullptr);
    });
  }

  const DeviceIndex device_;
  const bool writes_;
  const std::vector<DeviceIndex> places_; // of outputs
};

} // namespace

} // namespace c10::openreg

void openreg_make_runner(
    std::unique_ptr<torch::inductor::AOTIModelContainerRunner>* made,
    const std::string& library,
    size_t models,
    const std::string& device,
    bool single_threaded) {
  *made = std::make_unique<c10::openreg::Model>(library, models, device, single_threaded);
}
