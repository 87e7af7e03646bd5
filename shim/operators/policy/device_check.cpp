// SPDX-License-Identifier: BSD-3-Clause
#include "shim/operators/policy/device_check.h"

namespace c10::openreg {
namespace {

void check_index(const c10::IValue& indexed, const at::Tensor& index) {
  TORCH_CHECK(
      !index.defined() || index.is_cpu() || !indexed.isTensor() || index.device() == indexed.toTensor().device(),
      "indices should be either on cpu or on the same device as the indexed tensor (",
      indexed.toTensor().device(),
      ")");
}

} // namespace

void DeviceCheck::reject(c10::Device first, c10::Device second) const {
  TORCH_CHECK(
      false,
      "Expected all tensors to be on the same device, but found at least two devices, ",
      first,
      " and ",
      second,
      "! (when checking arguments of ",
      schema_.name(),
      ")");
}

void DeviceCheck::check_second(c10::Device device) const {
  const std::string& name = schema_.name();
  if (name != "openreg::compiled_graph" && name != "openreg::compiled_graph_") {
    reject(*first_, device);
  }
}

void DeviceCheck::check_generator() const {
  if (!first_.has_value() && !has_others_) {
    return; // of an operator that makes tensors
  }
  const c10::DeviceType type = first_.has_value() ? c10::DeviceType::PrivateUse1 : c10::DeviceType::CPU;
  TORCH_CHECK(
      *generator_ == type,
      "Expected a '",
      c10::DeviceTypeName(type, /*lower_case=*/true),
      "' device type for generator but found '",
      c10::DeviceTypeName(*generator_, /*lower_case=*/true),
      "'");
}

bool may_be_on_cpu(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  const std::string& name = argument.name();
  return name == "input_lengths" || name == "target_lengths" || name == "cpu_nested_shape_example" ||
      name == "nested_size" || name == "nested_strides" ||
      (name == "offsets" && schema.name().rfind("aten::_nested_view_from_buffer", 0) == 0);
}

DeviceIndex common_device(const c10::FunctionSchema& schema, const c10::IValue* arguments, size_t count) {
  DeviceCheck check(schema);
  const auto& declared = schema.arguments();
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      check.add(value.toTensor(), is_written(declared[i]), may_be_on_cpu(schema, declared[i]));
    } else if (value.isGenerator()) {
      check.add(value.toGenerator());
    } else if (value.isTensorList()) {
      for (const c10::IValue& tensor : value.toListRef()) {
        check.add(tensor.toTensor(), is_written(declared[i]));
      }
    } else if (is_optional_tensor_list(value)) {
      for (const c10::IValue& tensor : value.toListRef()) {
        if (tensor.isTensor()) {
          check_index(arguments[0], tensor.toTensor());
          check.add(tensor.toTensor(), false, /*may_be_on_cpu=*/true); // indices
        }
      }
    }
  }
  return check.finish();
}

} // namespace c10::openreg
