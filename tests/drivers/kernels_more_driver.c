/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_more_driver.c: the driver of kernels_driver.c with another table of kernels: every kind of value and result,
 * kernels that fail, and entries that can't be served. BROKEN, a macro, takes a malformed table instead. */
#define openreg_driver_query_v1 kernels_query
#include "kernels_driver.c"
#undef openreg_driver_query_v1

EXPORT openreg_status openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out);

#include <stdio.h>

#include "toy_streams.h"

/* ---------------------------------------------------------------------------------------------- spying on arguments */

#ifndef BROKEN

static char last_call[1024]; /* written by one thread of a test */

EXPORT const char *kernels_last_call(void);

/* The latest call of a kernel that only looks, as text. For tests. */
const char *
kernels_last_call(void)
{
    return last_call;
}

__attribute__((format(printf, 1, 2))) static void
note(const char *format, ...)
{
    const size_t used = strlen(last_call);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(last_call + used, sizeof last_call - used, format, arguments);
    va_end(arguments);
}

static void
note_tensor(const openreg_tensor *tensor)
{
    if (tensor == NULL) {
        note("none");
        return;
    }
    note("%u/%u@%d[", tensor->dtype.code, tensor->dtype.bits, tensor->device_id);
    for (int32_t i = 0; i < tensor->ndim; ++i)
        note("%s%lld:%lld", i > 0 ? "," : "", (long long)tensor->shape[i], (long long)tensor->strides[i]);
    note("]");
}

static void
note_list(const openreg_value *value)
{
    note("(");
    for (uint64_t i = 0; i < value->count; ++i) {
        note(i > 0 ? "," : "");
        if (value->kind == OPENREG_VALUE_TENSORS)
            note_tensor(value->tensors[i]);
        else if (value->kind == OPENREG_VALUE_FLOATS)
            note("%g", value->reals[i]);
        else
            note("%lld", (long long)value->integers[i]);
    }
    note(")");
}

static void
note_value(const openreg_value *value)
{
    switch (value->kind) {
    case OPENREG_VALUE_TENSOR:
        note_tensor(value->tensor);
        break;
    case OPENREG_VALUE_TENSORS:
    case OPENREG_VALUE_BOOLS:
    case OPENREG_VALUE_INTS:
    case OPENREG_VALUE_FLOATS:
        note_list(value);
        break;
    case OPENREG_VALUE_BOOL:
        note(value->integer ? "true" : "false");
        break;
    case OPENREG_VALUE_INT:
        note("%lld=%g", (long long)value->integer, value->real);
        break;
    case OPENREG_VALUE_FLOAT:
        note("%g", value->real);
        break;
    case OPENREG_VALUE_COMPLEX:
        note("%g%+gi", value->real, value->imaginary);
        break;
    case OPENREG_VALUE_STRING:
        note("\"%s\"", value->text);
        break;
    case OPENREG_VALUE_DTYPE:
        note("dtype %u/%u", value->dtype.code, value->dtype.bits);
        break;
    default:
        note("none");
    }
}

/* Writes the call down and refuses it. */
static openreg_status
kernel_spy(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    last_call[0] = '\0';
    note("%s dev %d stream %d", call->name, call->dev, call->stream != NULL ? call->stream->number : 0);
    for (uint64_t i = 0; i < call->argument_count; ++i) {
        note(" ");
        note_value(call->arguments[i]);
    }
    note(" ->");
    for (uint64_t i = 0; i < call->result_count; ++i) {
        note(" ");
        note_value(call->results[i]);
    }
    return OPENREG_E_UNSUPPORTED;
}

/* --------------------------------------------------------------------------------------------------------- failures */

static openreg_status
kernel_on_fire(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)call;
    return openreg_fail(instance->host, OPENREG_E_INTERNAL, 451, "the accelerator is on fire");
}

static openreg_status
kernel_full(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)call;
    return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no room for a workspace");
}

static openreg_status
kernel_speechless(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    (void)call;
    return 4242;
}

/* --------------------------------------------------------------------------------------------- results of all kinds */

/* aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!) */
static openreg_status
kernel_fill(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    const openreg_tensor *const result = call->results[0]->tensor;
    if (!is_float(result) || !openreg_is_real_argument(call, 1))
        return OPENREG_E_UNSUPPORTED;
    for (int64_t i = 0; i < openreg_element_count(result); ++i)
        store(result, i, call->arguments[1]->real);
    return OPENREG_OK;
}

/* aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!), between float32 and float64 */
static openreg_status
kernel_copy(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    const openreg_tensor *const result = call->results[0]->tensor, *const source = openreg_tensor_argument(call, 1);
    if (!is_float(result) || source == NULL || !is_float(source))
        return OPENREG_E_UNSUPPORTED;
    for (int64_t i = 0; i < openreg_element_count(result); ++i)
        store(result, i, load(call->arguments[1], i));
    return OPENREG_OK;
}

/* aten::embedding(Tensor weight, Tensor indices, ...) -> Tensor */
static openreg_status
kernel_embedding(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    const openreg_tensor *const weight = openreg_tensor_argument(call, 0);
    const openreg_tensor *const indices = openreg_tensor_argument(call, 1);
    if (!is_dense_float32(weight) || !openreg_has_dtype(indices, OPENREG_DTYPE_INT, 64))
        return OPENREG_E_UNSUPPORTED;
    const int64_t width = weight->shape[1];
    for (int64_t i = 0; i < openreg_element_count(indices); ++i)
        memcpy((float *)on_host(call->results[0]->tensor->data) + i * width,
               (const float *)on_host(weight->data) + *(const int64_t *)element(indices, i) * width,
               (size_t)width * sizeof(float));
    return OPENREG_OK;
}

/* aten::aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max) */
static openreg_status
kernel_aminmax(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    const openreg_value *const self = call->arguments[0];
    if (!is_operand(call, 0) || self->tensor == NULL || call->arguments[1]->kind != OPENREG_VALUE_NONE)
        return OPENREG_E_UNSUPPORTED;
    double least = load(self, 0), most = least;
    for (int64_t i = 1; i < openreg_element_count(self->tensor); ++i) {
        const double value = load(self, i);
        least = value < least ? value : least;
        most = value > most ? value : most;
    }
    store(call->results[0]->tensor, 0, least);
    store(call->results[1]->tensor, 0, most);
    return OPENREG_OK;
}

/* aten::cumsum(Tensor self, int dim) -> Tensor, of a PyTorch that had no dtype yet; not elementwise. The sums are made in
 * scratch memory. */
static openreg_status
kernel_cumsum(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    const openreg_tensor *const result = call->results[0]->tensor;
    const openreg_value *const self = openreg_find_argument(call, "self");
    if (result->ndim != 1 || !is_float(result) || self == NULL || self->tensor == NULL ||
        self->tensor->dtype.bits != result->dtype.bits || !is_float(self->tensor) ||
        openreg_find_argument(call, "dtype") != NULL)
        return OPENREG_E_UNSUPPORTED;
    const size_t bytes = (size_t)result->shape[0] * sizeof(double);
    void *const scratch = call->workspace(call, bytes);
    if (scratch == NULL)
        return OPENREG_E_NOMEM;
    double *const sums = on_host(scratch);
    double sum = 0;
    for (int64_t i = 0; i < result->shape[0]; ++i)
        sums[i] = sum += load(self, i);
    for (int64_t i = 0; i < result->shape[0]; ++i)
        store(result, i, sums[i]);
    return OPENREG_OK;
}

/* aten::_foreach_mul.Scalar(Tensor[] self, Scalar scalar) -> Tensor[] */
static openreg_status
kernel_foreach_mul(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    for (uint64_t t = 0; t < call->results[0]->count; ++t)
        if (!is_float(call->results[0]->tensors[t]) || !is_float(call->arguments[0]->tensors[t]))
            return OPENREG_E_UNSUPPORTED;
    for (uint64_t t = 0; t < call->results[0]->count; ++t) {
        const openreg_value from = {.tensor = call->arguments[0]->tensors[t]};
        for (int64_t i = 0; i < openreg_element_count(from.tensor); ++i)
            store(call->results[0]->tensors[t], i, load(&from, i) * call->arguments[1]->real);
    }
    return OPENREG_OK;
}

/* mylibrary::halve(Tensor x) -> Tensor, an operator of a library of the user's */
static openreg_status
kernel_halve(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    if (!is_operand(call, 0))
        return OPENREG_E_UNSUPPORTED;
    for (int64_t i = 0; i < openreg_element_count(call->results[0]->tensor); ++i)
        store(call->results[0]->tensor, i, load(call->arguments[0], i) / 2);
    return OPENREG_OK;
}

static const openreg_kernel more_list[] = {
    {.name = "aten::cat", .run = kernel_spy},
    {.name = "aten::sum.dim_IntList", .run = kernel_spy},
    {.name = "aten::gelu", .run = kernel_spy},
    {.name = "aten::index.Tensor", .run = kernel_spy},
    {.name = "aten::native_layer_norm", .run = kernel_spy},
    {.name = "aten::mul.Tensor", .run = kernel_spy, .flags = OPENREG_KERNEL_ELEMENTWISE},
    {.name = "aten::sub.Tensor", .run = kernel_spy},
    {.name = "aten::add.Scalar", .run = kernel_add, .flags = OPENREG_KERNEL_ELEMENTWISE},
    {.name = "mylibrary::lists", .run = kernel_spy},
    {.name = "aten::neg", .run = kernel_on_fire, .flags = OPENREG_KERNEL_ELEMENTWISE},
    {.name = "aten::floor", .run = kernel_full, .flags = OPENREG_KERNEL_ELEMENTWISE},
    {.name = "aten::ceil", .run = kernel_speechless, .flags = OPENREG_KERNEL_ELEMENTWISE},
    {.name = "aten::fill_.Scalar", .run = kernel_fill},
    {.name = "aten::embedding",
     .schema = "aten::embedding(Tensor weight, Tensor indices, int padding_idx=-1) -> Tensor", /* int for SymInt */
     .run = kernel_embedding},
    {.name = "aten::aminmax", .run = kernel_aminmax},
    {.name = "aten::cumsum", .schema = "aten::cumsum(Tensor self, int dim) -> Tensor", .run = kernel_cumsum},
    {.name = "aten::_foreach_mul.Scalar", .run = kernel_foreach_mul},
    {.name = "aten::copy_", .run = kernel_copy, .flags = OPENREG_KERNEL_ELEMENTWISE},
    {.name = "mylibrary::halve",
     .schema = "mylibrary::halve(Tensor x) -> Tensor",
     .run = kernel_halve,
     .flags = OPENREG_KERNEL_ELEMENTWISE},
    {.name = "mylibrary::quarter", .schema = "mylibrary::quarter(Tensor y) -> Tensor", .run = kernel_on_fire},
    /* Never called: */
    {.name = "aten::linear", .run = kernel_spy},
    {.name = "aten::view", .run = kernel_spy},
    {.name = "aten::bernoulli_.float", .run = kernel_spy},
    {.name = "aten::equal", .run = kernel_spy},
    {.name = "aten::ad.Tensor", .run = kernel_spy},
    {.name = "aten::resize_", .run = kernel_spy},
    /* Nor these, whose schemas differ: in a name, the operator, a type, the results, what is needed, what is there. */
    {.name = "aten::sin", .schema = "aten::sin(Tensor input) -> Tensor", .run = kernel_on_fire},
    {.name = "aten::cos", .schema = "aten::sin(Tensor self) -> Tensor", .run = kernel_on_fire},
    {.name = "aten::leaky_relu",
     .schema = "aten::leaky_relu(Tensor self, int negative_slope) -> Tensor",
     .run = kernel_on_fire},
    {.name = "aten::exp", .schema = "aten::exp(Tensor self) -> (Tensor, Tensor)", .run = kernel_on_fire},
    {.name = "aten::threshold",
     .schema = "aten::threshold(Tensor self, Scalar threshold) -> Tensor",
     .run = kernel_on_fire},
    {.name = "aten::log", .schema = "aten::log(Tensor self, int base=2) -> Tensor", .run = kernel_on_fire},
    {.name = "aten::tan", .schema = "no schema\xff", .run = kernel_on_fire},
};

static const openreg_kernels more_kernels = {
    .struct_size = sizeof(openreg_kernels),
    .version = OPENREG_KERNELS_VERSION,
    .kernel_size = sizeof(openreg_kernel),
    .count = sizeof more_list / sizeof more_list[0],
    .list = more_list,
};

#else /* BROKEN */

#if BROKEN != 6
static const openreg_kernel more_list[] = {
    {.name = "aten::relu", .run = kernel_relu},
#if BROKEN == 1
    {.name = "relu", .run = kernel_relu},
#elif BROKEN == 2
    {.name = "aten::neg", .run = NULL},
#elif BROKEN == 3
    {.name = "aten::neg", .run = kernel_relu, .flags = UINT64_C(1) << 40},
#elif BROKEN == 4
    {.name = "aten::relu", .run = kernel_relu},
#endif
};
#endif

static const openreg_kernels more_kernels = {
#if BROKEN == 5
    .struct_size = 8,
#else
    .struct_size = sizeof(openreg_kernels),
#endif
    .version = OPENREG_KERNELS_VERSION,
    .kernel_size = sizeof(openreg_kernel),
#if BROKEN == 6
    .count = 1,
#else
    .count = sizeof more_list / sizeof more_list[0],
    .list = more_list,
#endif
};

#endif /* BROKEN */

static const void *
more_extension(openreg_instance instance, const char *name, uint32_t version)
{
    return kernels_extension(instance, name, version) != NULL ? &more_kernels : NULL;
}

static openreg_driver more_table;

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    const openreg_driver *base = NULL;
    const openreg_status status = kernels_query(host, &base);
    if (status == OPENREG_OK) {
        more_table = *base;
        more_table.name = "more";
        more_table.extension = more_extension;
        more_table.stream_create = toy_stream_create;
        more_table.stream_destroy = toy_stream_destroy;
        more_table.stream_query = toy_stream_query;
        more_table.stream_sync = toy_stream_sync;
        *out = &more_table;
    }
    return status;
}
