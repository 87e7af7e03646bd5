// SPDX-License-Identifier: BSD-3-Clause
// pytorch_kernels.cpp: the toy drivers' memory with the kernels that the variable OPENREG_PYTORCH_KERNELS names, "a b c", each
// computed by PyTorch on the CPU. openreg-check on it compares its own references with PyTorch.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <openreg/kernels.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace
{

// toy_common.h: a device address is the host's with one bit flipped.
void *
on_host(void *device)
{
    return reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(device) ^ (uintptr_t{1} << 46));
}

struct Unsupported : std::exception {
};

at::ScalarType
type_of(openreg_dtype dtype)
{
    static constexpr std::pair<openreg_dtype, at::ScalarType> known[] = {
        {{OPENREG_DTYPE_FLOAT, 64, 1}, at::kDouble}, {{OPENREG_DTYPE_FLOAT, 32, 1}, at::kFloat},
        {{OPENREG_DTYPE_FLOAT, 16, 1}, at::kHalf},   {{OPENREG_DTYPE_BFLOAT, 16, 1}, at::kBFloat16},
        {{OPENREG_DTYPE_INT, 64, 1}, at::kLong},     {{OPENREG_DTYPE_INT, 32, 1}, at::kInt},
        {{OPENREG_DTYPE_INT, 16, 1}, at::kShort},    {{OPENREG_DTYPE_INT, 8, 1}, at::kChar},
        {{OPENREG_DTYPE_UINT, 8, 1}, at::kByte},     {{OPENREG_DTYPE_BOOL, 8, 1}, at::kBool},
    };
    for (const auto &[own, of_pytorch] : known) {
        if (own.code == dtype.code && own.bits == dtype.bits && own.lanes == dtype.lanes) {
            return of_pytorch;
        }
    }
    throw Unsupported();
}

at::Tensor
tensor_of(const openreg_tensor &t)
{
    if (t.data == nullptr) {
        return at::empty(at::IntArrayRef(t.shape, t.ndim), type_of(t.dtype));
    }
    return at::from_blob(on_host(t.data), at::IntArrayRef(t.shape, t.ndim), at::IntArrayRef(t.strides, t.ndim),
                         type_of(t.dtype));
}

// As the 2 in x * 2, whose type doesn't count.
at::Tensor
number_of(at::Tensor tensor)
{
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
}

template <class Add>
void
for_each(const openreg_value &value, const Add &add)
{
    for (uint64_t i = 0; i < value.count; ++i) {
        add(i);
    }
}

c10::IValue
list_of(const openreg_value &value, const c10::TypePtr &element)
{
    if (value.kind == OPENREG_VALUE_TENSORS && element->kind() == c10::TypeKind::OptionalType) {
        c10::List<std::optional<at::Tensor>> list;
        for_each(value, [&](uint64_t i) {
            list.push_back(value.tensors[i] != nullptr ? std::optional(tensor_of(*value.tensors[i])) : std::nullopt);
        });
        return list;
    }
    if (value.kind == OPENREG_VALUE_TENSORS) {
        c10::List<at::Tensor> list;
        for_each(value, [&](uint64_t i) { list.push_back(tensor_of(*value.tensors[i])); });
        return list;
    }
    if (value.kind == OPENREG_VALUE_BOOLS) {
        c10::List<bool> list;
        for_each(value, [&](uint64_t i) { list.push_back(value.integers[i] != 0); });
        return list;
    }
    c10::List<int64_t> list;
    for_each(value, [&](uint64_t i) { list.push_back(value.integers[i]); });
    return list;
}

c10::IValue
value_of(const openreg_value &value, const c10::TypePtr &declared)
{
    const auto *const optional = declared->castRaw<c10::OptionalType>();
    const c10::TypePtr type = optional != nullptr ? optional->getElementType() : declared;
    switch (value.kind) {
    case OPENREG_VALUE_NONE:
        return type->kind() == c10::TypeKind::TensorType && optional == nullptr ? c10::IValue(at::Tensor())
                                                                                : c10::IValue();
    case OPENREG_VALUE_TENSOR:
        return tensor_of(*value.tensor);
    case OPENREG_VALUE_BOOL:
        return value.integer != 0;
    case OPENREG_VALUE_INT:
        return type->kind() == c10::TypeKind::FloatType ? c10::IValue(value.real)
               : type->kind() == c10::TypeKind::TensorType
                   ? c10::IValue(number_of(at::scalar_tensor(value.integer, at::kLong)))
                   : c10::IValue(value.integer);
    case OPENREG_VALUE_FLOAT:
        return type->kind() == c10::TypeKind::TensorType
                   ? c10::IValue(number_of(at::scalar_tensor(value.real, at::kDouble)))
                   : c10::IValue(value.real);
    case OPENREG_VALUE_STRING:
        return std::string(value.text, value.count);
    case OPENREG_VALUE_DTYPE:
        return static_cast<int64_t>(type_of(value.dtype));
    default:
        return list_of(value, type->castRaw<c10::ListType>()->getElementType());
    }
}

openreg_status
run(openreg_instance, const openreg_kernel_call *call) noexcept
{
    try {
        const std::string name = call->kernel->name;
        const size_t dot = name.find('.');
        const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
            name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
        torch::jit::Stack stack;
        for (const c10::Argument &argument : op.schema().arguments()) {
            uint32_t i = 0;
            while (i < call->argument_count && call->argument_names[i] != argument.name()) {
                ++i;
            }
            c10::IValue value = i < call->argument_count ? value_of(*call->arguments[i], argument.type())
                                                         : argument.default_value().value();
            const bool is_written = (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
                                    (name == "aten::native_batch_norm" &&
                                     argument.name().starts_with("running_")); // which its schema doesn't say
            if (value.isTensor() && value.toTensor().defined() && !is_written) {
                value = value.toTensor().contiguous(); // some of PyTorch's kernels read no others
            }
            stack.push_back(std::move(value));
        }
        at::globalContext().setUserEnabledMkldnn(false); // which takes fewer layouts
        op.callBoxed(&stack);
        for (uint32_t i = 0; i < call->result_count; ++i) {
            const openreg_value &result = *call->results[i];
            if (result.tensor != nullptr && result.tensor->data != nullptr) {
                tensor_of(*result.tensor).copy_(stack.at(i).toTensor());
            }
        }
        return OPENREG_OK;
    } catch (const Unsupported &) {
        return OPENREG_E_UNSUPPORTED;
    } catch (const std::exception &error) {
        for (const char *const of_types :
             {" not implemented for ", "Expected data type in ", "could not infer output dtype",
              "Integer division with ", "without overflow"}) {
            if (std::string(error.what()).find(of_types) != std::string::npos) {
                return OPENREG_E_UNSUPPORTED;
            }
        }
        std::fprintf(stderr, "%s: %s\n", call->kernel->name, error.what());
        std::_Exit(3);
    }
}

} // namespace

extern "C" __attribute__((visibility("default"))) const openreg_kernels *
pytorch_kernels()
{
    static const auto &table = *[] {
        const char *const names = std::getenv("OPENREG_PYTORCH_KERNELS");
        std::istringstream words(names != nullptr ? names : "");
        auto &list = *new std::vector<openreg_kernel>;
        for (std::string word; words >> word;) {
            openreg_kernel kernel{};
            kernel.name = strdup(word.c_str());
            kernel.run = &run;
            list.push_back(kernel);
        }
        return new openreg_kernels{sizeof(openreg_kernels), OPENREG_KERNELS_VERSION, sizeof(openreg_kernel),
                                   static_cast<uint32_t>(list.size()), list.data()};
    }();
    return &table;
}
