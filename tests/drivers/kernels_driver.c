/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_driver.c: a driver of seven functions with three operators of its own (openreg/kernels.h), on memory that the
 * host can't reach (toy_common.h). So an operator of the list works only if it was given device addresses, and every
 * other one only if PyTorch made copies. */
#include <stdlib.h>
#include <string.h>

#include <openreg/kernels.h>

#include "toy_common.h"

// LITERALINCLUDE START: NATIVE KERNELS
static int
is_float(const openreg_tensor *tensor)
{
    return openreg_has_dtype(tensor, OPENREG_DTYPE_FLOAT, 32) || openreg_has_dtype(tensor, OPENREG_DTYPE_FLOAT, 64);
}

/* A number, or a tensor of the result's type. */
static int
is_operand(const openreg_kernel_call *call, uint64_t i)
{
    const openreg_tensor *const tensor = openreg_tensor_argument(call, i);
    if (tensor == NULL)
        return openreg_is_real_argument(call, i);
    return tensor->dtype.bits == call->results[0]->tensor->dtype.bits && is_float(tensor);
}

/* The address of element `i` in the order of the shape, whatever the strides. */
static void *
element(const openreg_tensor *tensor, int64_t i)
{
    int64_t offset = 0;
    for (int32_t d = tensor->ndim - 1; d >= 0; --d) {
        offset += i % tensor->shape[d] * tensor->strides[d];
        i /= tensor->shape[d];
    }
    return (char *)on_host(tensor->data) + offset * (tensor->dtype.bits / 8);
}

static double
load(const openreg_value *operand, int64_t i)
{
    if (operand->tensor == NULL)
        return operand->real;
    const void *const address = element(operand->tensor, i);
    return operand->tensor->dtype.bits == 32 ? (double)*(const float *)address : *(const double *)address;
}

static void
store(const openreg_tensor *tensor, int64_t i, double value)
{
    if (tensor->dtype.bits == 32)
        *(float *)element(tensor, i) = (float)value;
    else
        *(double *)element(tensor, i) = value;
}

static int64_t calls[3]; /* how often each kernel ran: add, relu, mm */

/* aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor */
static openreg_status
kernel_add(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    const openreg_tensor *const result = call->results[0]->tensor;
    if (!is_float(result) || !is_operand(call, 0) || !is_operand(call, 1) || !openreg_is_real_argument(call, 2))
        return OPENREG_E_UNSUPPORTED;
    const int64_t count = openreg_element_count(result);
    for (int64_t i = 0; i < count; ++i)
        store(result, i, load(call->arguments[0], i) + call->arguments[2]->real * load(call->arguments[1], i));
    __atomic_fetch_add(&calls[0], 1, __ATOMIC_RELAXED);
    return OPENREG_OK;
}

/* aten::relu(Tensor self) -> Tensor */
static openreg_status
kernel_relu(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    const openreg_tensor *const result = call->results[0]->tensor;
    if (!is_float(result) || !is_operand(call, 0))
        return OPENREG_E_UNSUPPORTED;
    const int64_t count = openreg_element_count(result);
    for (int64_t i = 0; i < count; ++i) {
        const double value = load(call->arguments[0], i);
        store(result, i, value < 0 ? 0 : value); /* not a number stays so */
    }
    __atomic_fetch_add(&calls[1], 1, __ATOMIC_RELAXED);
    return OPENREG_OK;
}

static int
is_dense_float32(const openreg_tensor *tensor)
{
    return tensor != NULL && openreg_has_dtype(tensor, OPENREG_DTYPE_FLOAT, 32) && openreg_is_contiguous(tensor);
}

/* aten::mm(Tensor self, Tensor mat2) -> Tensor */
static openreg_status
kernel_mm(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    const openreg_tensor *const a = openreg_tensor_argument(call, 0);
    const openreg_tensor *const b = openreg_tensor_argument(call, 1);
    const openreg_tensor *const result = call->results[0]->tensor;
    if (!is_dense_float32(a) || !is_dense_float32(b) || !is_dense_float32(result))
        return OPENREG_E_UNSUPPORTED;
    const int64_t rows = a->shape[0], inner = a->shape[1], columns = b->shape[1];
    const float *const left = on_host(a->data), *const right = on_host(b->data);
    float *const to = on_host(result->data);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < inner; ++k)
                sum += (double)left[i * inner + k] * (double)right[k * columns + j];
            to[i * columns + j] = (float)sum;
        }
    }
    __atomic_fetch_add(&calls[2], 1, __ATOMIC_RELAXED);
    return OPENREG_OK;
}

static const openreg_kernel list[] = {
    {.name = "aten::add.Tensor",
     .schema = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
     .run = kernel_add,
     .flags = OPENREG_KERNEL_ELEMENTWISE},
    {.name = "aten::relu",
     .schema = "aten::relu(Tensor self) -> Tensor",
     .run = kernel_relu,
     .flags = OPENREG_KERNEL_ELEMENTWISE},
    {.name = "aten::mm", .schema = "aten::mm(Tensor self, Tensor mat2) -> Tensor", .run = kernel_mm},
};

static const openreg_kernels kernels = {
    .struct_size = sizeof(openreg_kernels),
    .version = OPENREG_KERNELS_VERSION,
    .kernel_size = sizeof(openreg_kernel),
    .count = sizeof list / sizeof list[0],
    .list = list,
};

static const void *
kernels_extension(openreg_instance instance, const char *name, uint32_t version)
{
    (void)instance;
    return strcmp(name, OPENREG_KERNELS_NAME) == 0 && version <= OPENREG_KERNELS_VERSION ? &kernels : NULL;
}
// LITERALINCLUDE END: NATIVE KERNELS

EXPORT int64_t kernels_driver_calls(int which);

/* How often the kernel ran: 0 add, 1 relu, 2 mm. For tests. */
int64_t
kernels_driver_calls(int which)
{
    return __atomic_load_n(&calls[which], __ATOMIC_RELAXED);
}

static const openreg_driver table = {
    .struct_size = sizeof(openreg_driver),
    .abi_minor = OPENREG_ABI_MINOR,
    .name = "kernels",
    .version = "1.0",
    TOY_SLOTS,
    .extension = kernels_extension,
};

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    (void)host;
    *out = &table;
    return OPENREG_OK;
}
