#include "shim/operators/device_check.h"

namespace c10::openreg {
namespace {

[[noreturn]] void two_devices(const c10::FunctionSchema& schema, c10::Device first, c10::Device second) {
  TORCH_CHECK(
      false,
      "Expected all tensors to be on the same device, but found at least two devices, ",
      first,
      " and ",
      second,
      "! (when checking arguments of ",
      schema.name(),
      ")");
}

class Check {
 public:
  explicit Check(const c10::FunctionSchema& schema) : schema_(schema) {}

  void see(const at::Tensor& tensor, bool written, bool may_be_on_cpu) {
    if (!tensor.defined()) {
      return;
    }
    const c10::Device device = tensor.device();
    if (device.is_privateuseone()) {
      if (first_.has_value() && *first_ != device) {
        two_devices(schema_, *first_, device);
      }
      first_ = device;
    } else if (!other_.has_value() && !may_be_on_cpu && (written || !device.is_cpu() || tensor.dim() != 0)) {
      other_ = device;
    }
  }

  DeviceIndex finish() const {
    if (first_.has_value() && other_.has_value()) {
      two_devices(schema_, *first_, *other_);
    }
    return first_.has_value() ? first_->index() : DeviceIndex{-1};
  }

 private:
  const c10::FunctionSchema& schema_;
  std::optional<c10::Device> first_;
  std::optional<c10::Device> other_;
};

bool is_length_argument(const c10::Argument& argument) {
  return argument.name() == "input_lengths" || argument.name() == "target_lengths";
}

} // namespace

DeviceIndex common_device(const c10::FunctionSchema& schema, const c10::IValue* arguments, size_t count) {
  Check check(schema);
  const auto& declared = schema.arguments();
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      const bool written = declared[i].alias_info() != nullptr && declared[i].alias_info()->isWrite();
      check.see(value.toTensor(), written, is_length_argument(declared[i]));
    } else if (value.isTensorList()) {
      const bool written = declared[i].alias_info() != nullptr && declared[i].alias_info()->isWrite();
      for (const at::Tensor& tensor : value.toTensorList()) {
        check.see(tensor, written, false);
      }
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        if (tensor.has_value()) {
          check.see(*tensor, false, true);
        }
      }
    }
  }
  return check.finish();
}

} // namespace c10::openreg
