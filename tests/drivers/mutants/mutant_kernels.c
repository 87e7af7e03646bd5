/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant_kernels.c: the kernels that the driver with defects has, and theirs (mutants.h). They run on the host, when the
 * stream has come to them. */
#define _GNU_SOURCE
#include "mutant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openreg/kernels.h>

#include "numbers.h"

#define GROUPS ((int64_t)65535 * 256) /* elements of a launch */

/* ------------------------------------------------------------------------------------------------------------ elements */

static bool
is_known(const openreg_tensor *tensor)
{
    return openreg_has_dtype(tensor, OPENREG_DTYPE_FLOAT, 32) || openreg_has_dtype(tensor, OPENREG_DTYPE_FLOAT, 64) ||
           openreg_has_dtype(tensor, OPENREG_DTYPE_INT, 64) ||
           (IS(kernel_types) && tensor->dtype.code == 99 && tensor->dtype.bits == 64);
}

/* At a distance from the first one, in elements. */
static char *
at_offset(openreg_instance instance, const openreg_tensor *tensor, int64_t offset)
{
    void *host = NULL;
    (void)mutant_base->host_alias(instance, tensor->device_id, tensor->data, &host);
    if (IS(kernel_offset)) /* as a vendor's buffers have to begin */
        host = (void *)((uintptr_t)host & ~(uintptr_t)15);
    if (IS(kernel_index_32_bits))
        offset &= INT32_MAX;
    const int64_t bytes = offset * (tensor->dtype.bits / 8);
    return (char *)host + (IS(kernel_offset_32_bits) ? (uint32_t)bytes : bytes);
}

static char *
element(openreg_instance instance, const openreg_tensor *tensor, int64_t i)
{
    int64_t offset = 0;
    if (IS(kernel_strides) || (IS(kernel_four_dims) && tensor->ndim > 4) || (IS(kernel_eight_dims) && tensor->ndim > 8))
        offset = i;
    else
        for (int32_t d = tensor->ndim - 1; d >= 0; --d) {
            offset += i % tensor->shape[d] * tensor->strides[d];
            i /= tensor->shape[d];
        }
    return at_offset(instance, tensor, offset);
}

static bool
has_type_of(const openreg_tensor *one, const openreg_tensor *other)
{
    return one->dtype.code == other->dtype.code && one->dtype.bits == other->dtype.bits;
}

/* In numbers.h; 0: of more bits. */
static int
narrow_type(openreg_dtype dtype)
{
    return dtype.bits != 16 ? 0 : dtype.code == OPENREG_DTYPE_FLOAT ? 6 : dtype.code == OPENREG_DTYPE_BFLOAT ? 9 : 0;
}

static double
rounded(double value, openreg_dtype dtype)
{
    char narrow[2];
    number_store(narrow, narrow_type(dtype), value);
    return (double)number_load(narrow, narrow_type(dtype));
}

static double
load_from(const char *at, openreg_dtype dtype)
{
    float f;
    double d;
    int64_t l;
    if (narrow_type(dtype) != 0)
        return (double)number_load(at, narrow_type(dtype));
    if (dtype.bits == 32)
        return memcpy(&f, at, sizeof f), (double)f;
    if (dtype.code == OPENREG_DTYPE_FLOAT)
        return memcpy(&d, at, sizeof d), d;
    return memcpy(&l, at, sizeof l), (double)l;
}

static double
load(openreg_instance instance, const openreg_value *value, int64_t i)
{
    return value->tensor == NULL ? value->real : load_from(element(instance, value->tensor, i), value->tensor->dtype);
}

/* Integers, which double does not hold. */
static int64_t
load_whole(openreg_instance instance, const openreg_value *value, int64_t i)
{
    int64_t whole;
    if (value->tensor == NULL)
        return IS(kernel_int_scalar)      ? (int32_t)value->integer
               : IS(kernel_scalar_double) ? (int64_t)(float)value->real
                                          : value->integer;
    return memcpy(&whole, element(instance, value->tensor, i), sizeof whole), whole;
}

static void
store_whole(openreg_instance instance, const openreg_tensor *tensor, int64_t i, uint64_t value)
{
    if (IS(kernel_int64_halves))
        value &= INT32_MAX;
    memcpy(element(instance, tensor, i), &value, sizeof value);
}

static bool
is_whole(const openreg_tensor *tensor)
{
    return tensor->dtype.code != OPENREG_DTYPE_FLOAT && tensor->dtype.bits == 64;
}

/* From one place in a dimension to the next. */
static int64_t
elements_behind(const openreg_tensor *tensor, int64_t along)
{
    int64_t count = 1;
    for (int64_t d = along + 1; d < tensor->ndim; ++d)
        count *= tensor->shape[d];
    return count;
}

/* Elements that a kernel computes. */
static int64_t
count_of(const openreg_tensor *tensor)
{
    const int64_t count = openreg_element_count(tensor);
    const int64_t most = IS(kernel_many) ? 4 << 20 : GROUPS;
    return (IS(kernel_many) || IS(kernel_groups)) && count > most ? most : count;
}

static void
store(openreg_instance instance, const openreg_tensor *tensor, int64_t i, double value)
{
    char *const at = element(instance, tensor, i);
    const float f = (float)value;
    int64_t l = (int64_t)value;
    if (IS(kernel_int64_halves))
        l &= INT32_MAX;
    if (narrow_type(tensor->dtype) != 0)
        number_store(at, narrow_type(tensor->dtype), value);
    else if (tensor->dtype.bits == 32)
        memcpy(at, &f, sizeof f);
    else if (tensor->dtype.code == OPENREG_DTYPE_FLOAT)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &l, sizeof l);
}

/* Waits until the stream has come to the call. */
static openreg_status
begin(openreg_instance instance, const openreg_kernel_call *call)
{
    if (IS(odd_kernels_of_first) && call->dev != 0)
        return OPENREG_E_UNSUPPORTED;
    return IS(kernel_stream) ? OPENREG_OK : mutant_base->stream_sync(instance, call->dev, call->stream);
}

/* Launched on a device where the call's memory isn't. */
static bool
is_elsewhere(const openreg_kernel_call *call)
{
    return call->dev != (IS(kernel_bound_device) ? mutant_bound : IS(kernel_first_device) ? 0 : call->dev);
}

#define BEGIN(instance, call)                                                                                          \
    do {                                                                                                               \
        const openreg_status begin_status = begin((instance), (call));                                                 \
        if (begin_status != OPENREG_OK || is_elsewhere(call))                                                          \
            return begin_status;                                                                                       \
    } while (0)

/* ------------------------------------------------------------------------------------------------------------- kernels */

/* aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor */
static openreg_status
kernel_add(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0]->tensor, *const self = openreg_tensor_argument(call, 0);
    const openreg_tensor *const other = call->arguments[1]->tensor;
    const int64_t count = count_of(result);
    if (IS(kernel_unused))
        return OPENREG_E_UNSUPPORTED;
    if (!is_known(result) || (self != NULL && !is_known(self)) || (other != NULL && !is_known(other))) {
        if (IS(kernel_refuses_late))
            store(instance, result, 0, 0);
        return OPENREG_E_UNSUPPORTED;
    }
    BEGIN(instance, call);
    if (IS(kernel_leaks))
        mutant_leaked = malloc(100);
    if ((IS(kernel_in_place_nothing) && self != NULL && self->data == result->data) ||
        (IS(kernel_out_nothing) && call->argument_count > 3))
        return OPENREG_OK;
    if (IS(kernel_nothing) && count == 0)
        store(instance, result, 0, 0);
    static openreg_value shared; /* as a vendor's kernel object has its arguments */
    if (IS(kernel_shared))
        shared = *call->arguments[0];
    if (IS(kernel_shared))
        (void)nanosleep(&(struct timespec){0, 200000}, NULL);
    const openreg_value *const first = IS(kernel_shared) ? &shared : call->arguments[0];
    const double alpha = IS(kernel_alpha) ? 1 : call->arguments[2]->real;
    for (int64_t i = 0; IS(kernel_clears) && i < count; ++i)
        store(instance, result, i, 0);
    const uint64_t whole_alpha = IS(kernel_alpha) ? 1 : (uint64_t)load_whole(instance, call->arguments[2], 0);
    for (int64_t i = 0; i < count && is_whole(result); ++i)
        store_whole(instance, result, i,
                    (uint64_t)load_whole(instance, call->arguments[0], i) +
                        whole_alpha * (uint64_t)load_whole(instance, call->arguments[1], i));
    for (int64_t i = 0; i < count && !is_whole(result); ++i)
        store(instance, result, i, load(instance, first, i) + alpha * load(instance, call->arguments[1], i));
    if (IS(kernel_beside) && !openreg_is_contiguous(result))
        element(instance, result, 0)[result->dtype.bits / 8] = 1;
    return OPENREG_OK;
}

/* aten::eq.Scalar(Tensor self, Scalar other) -> Tensor: of integers of any width. The number has the tensor's type. */
static openreg_status
kernel_eq(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0]->tensor, *const self = openreg_tensor_argument(call, 0);
    if (self == NULL || self->dtype.code > OPENREG_DTYPE_UINT || call->arguments[1]->kind != OPENREG_VALUE_INT)
        return OPENREG_E_UNSUPPORTED;
    BEGIN(instance, call);
    const int rest = 64 - self->dtype.bits;
    const bool is_signed = self->dtype.code == OPENREG_DTYPE_INT || IS(kernel_uint_signed);
    for (int64_t i = 0; i < count_of(result); ++i) {
        uint64_t bits = 0;
        memcpy(&bits, element(instance, self, i), self->dtype.bits / 8);
        const uint64_t number = (uint64_t)call->arguments[1]->integer << rest;
        const int64_t value = is_signed ? (int64_t)(bits << rest) >> rest : (int64_t)bits,
                      wrapped = is_signed ? (int64_t)number >> rest : (int64_t)(number >> rest);
        const bool is_wide = IS(kernel_number_outside) || IS(kernel_uint_signed);
        *element(instance, result, i) = (char)(value == (is_wide ? call->arguments[1]->integer : wrapped));
    }
    return OPENREG_OK;
}

/* aten::mm(Tensor self, Tensor mat2) -> Tensor */
static openreg_status
kernel_mm(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0]->tensor, *const left = call->arguments[0]->tensor,
                                *const right = call->arguments[1]->tensor;
    const bool is_narrow = narrow_type(result->dtype) != 0;
    if ((!is_known(result) && !is_narrow) || !has_type_of(left, result) ||
        (!IS(kernel_mm_two_types) && !has_type_of(right, result)))
        return OPENREG_E_UNSUPPORTED;
    BEGIN(instance, call);
    const int64_t rows = result->shape[0], columns = result->shape[1], inner = left->shape[1];
    if (IS(kernel_inner_zero) && inner == 0)
        return OPENREG_OK;
    /* The sum is in scratch memory; the defect takes that for zeroed. */
    void *const scratch = call->workspace(call, sizeof(double)), *host = NULL;
    if (scratch == NULL)
        return OPENREG_E_NOMEM;
    (void)mutant_base->host_alias(instance, call->dev, scratch, &host);
    for (int64_t i = 0; i < rows * columns; ++i) {
        double sum = 0;
        if (IS(kernel_workspace) && i == 0)
            memcpy(&sum, host, sizeof sum);
        for (int64_t k = 0; k < (IS(kernel_mm_256) && inner > 256 ? 256 : inner); ++k) {
            const int64_t at = IS(kernel_mm_transposed) ? k * columns + i % columns
                                                        : k * right->strides[0] + i % columns * right->strides[1];
            sum += load(instance, call->arguments[0], i / columns % (IS(kernel_mm_tile) ? 128 : rows) * inner + k) *
                   load_from(at_offset(instance, right, at), right->dtype);
            if (IS(kernel_mm_halves) && is_narrow)
                sum = rounded(sum, result->dtype);
            memcpy(host, &sum, sizeof sum);
        }
        if (inner > 0)
            memcpy(&sum, host, sizeof sum);
        store(instance, result, i, sum);
    }
    return OPENREG_OK;
}

/* The added number: the bias is broadcast to the result. */
static double
bias_at(openreg_instance instance, const openreg_tensor *bias, int64_t row, int64_t column)
{
    int64_t offset = 0;
    if (IS(kernel_bias_row))
        offset = column;
    else if (IS(kernel_bias_number) && bias->ndim == 1)
        offset = column * bias->strides[0];
    else
        for (int32_t d = 0; d < bias->ndim; ++d)
            if (bias->shape[d] != 1)
                offset += (d == bias->ndim - 1 ? column : row) * bias->strides[d];
    return load_from(at_offset(instance, bias, offset), bias->dtype);
}

/* aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor */
static openreg_status
kernel_addmm(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0]->tensor, *const bias = call->arguments[0]->tensor,
                                *const left = call->arguments[1]->tensor, *const right = call->arguments[2]->tensor;
    if (!is_known(result) || !is_known(bias) || !is_known(left) || !is_known(right) || !openreg_is_contiguous(result) ||
        !has_type_of(bias, result) || !has_type_of(left, result) || !has_type_of(right, result))
        return OPENREG_E_UNSUPPORTED;
    BEGIN(instance, call);
    const double beta = IS(kernel_beta) ? 1 : call->arguments[3]->real, alpha = call->arguments[4]->real;
    for (int64_t i = 0; i < result->shape[0] * result->shape[1]; ++i) {
        const int64_t row = i / result->shape[1], column = i % result->shape[1];
        double sum = 0;
        for (int64_t k = 0; k < left->shape[1]; ++k)
            sum += load_from(at_offset(instance, left, row * left->strides[0] + k * left->strides[1]), left->dtype) *
                   load_from(at_offset(instance, right, k * right->strides[0] + column * right->strides[1]),
                             right->dtype);
        store(instance, result, i, alpha * sum + (beta == 0 ? 0 : beta * bias_at(instance, bias, row, column)));
    }
    return OPENREG_OK;
}

/* aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor */
static openreg_status
kernel_sum(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0]->tensor, *const self = call->arguments[0]->tensor;
    const openreg_value *const dims = call->arguments[1];
    bool is_summed[16] = {false};
    const bool is_narrow = narrow_type(self->dtype) != 0 && has_type_of(result, self);
    if (((!is_known(result) || !is_known(self)) && !is_narrow) || dims->kind != OPENREG_VALUE_INTS ||
        dims->count == 0 || self->ndim == 0 || self->ndim > 16)
        return OPENREG_E_UNSUPPORTED;
    BEGIN(instance, call);
    for (uint64_t i = 0; i < (IS(kernel_sum_one_dim) ? 1 : dims->count); ++i)
        is_summed[dims->integers[i] < 0 ? dims->integers[i] + self->ndim : dims->integers[i]] = true;
    const int64_t count = openreg_element_count(result);
    double *const sums = calloc((size_t)count + 1, sizeof *sums);
    for (int64_t i = 0; i < openreg_element_count(self); ++i) {
        bool is_lost = IS(kernel_sum_groups) && i >= GROUPS; /* beyond one work group, or all of a launch */
        int64_t rest = i, size = 1, to = 0;
        for (int32_t d = self->ndim - 1; d >= 0; --d) {
            const int64_t at = rest % self->shape[d];
            rest /= self->shape[d];
            if (is_summed[d]) {
                is_lost = is_lost || (IS(kernel_sum_256) && at >= 256);
                continue;
            }
            to += at * size;
            size *= self->shape[d];
        }
        to %= count; /* more than there are, where a dimension was left out */
        if (!is_lost)
            sums[to] += load(instance, call->arguments[0], i);
        if (IS(kernel_sum_halves) && is_narrow)
            sums[to] = rounded(sums[to], self->dtype);
    }
    for (int64_t i = 0; i < count; ++i)
        store(instance, result, i, sums[i]);
    free(sums);
    return OPENREG_OK;
}

/* aten::cat(Tensor[] tensors, int dim=0) -> Tensor */
static openreg_status
kernel_cat(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0]->tensor;
    const openreg_value *const parts = call->arguments[0];
    const int64_t dim = call->arguments[1]->integer, along = dim < 0 ? dim + result->ndim : dim;
    if (!is_known(result))
        return OPENREG_E_UNSUPPORTED;
    for (uint64_t t = 0; t < parts->count; ++t)
        if (parts->tensors[t]->ndim != result->ndim || !has_type_of(parts->tensors[t], result))
            return OPENREG_E_UNSUPPORTED;
    BEGIN(instance, call);
    const int64_t inner = elements_behind(result, along);
    int64_t before = 0;
    for (uint64_t t = 0; t < parts->count; ++t) {
        const openreg_value part = {.kind = OPENREG_VALUE_TENSOR, .tensor = parts->tensors[t]};
        const int64_t size = part.tensor->shape[along];
        for (int64_t i = 0;
             i < openreg_element_count(part.tensor) && !(IS(kernel_cat_64) && i >= 64 * inner && size > 64); ++i) {
            const int64_t row = i / (inner * size), at = i / inner % size + before;
            store(instance, result, (row * result->shape[along] + at) * inner + i % inner, load(instance, &part, i));
        }
        if (!IS(kernel_cat_over))
            before += size;
        if (IS(kernel_cat_first))
            break;
    }
    return OPENREG_OK;
}

/* aten::index_select(Tensor self, int dim, Tensor index) -> Tensor */
static openreg_status
kernel_index_select(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0]->tensor, *const self = call->arguments[0]->tensor,
                                *const index = call->arguments[2]->tensor;
    const int64_t dim = call->arguments[1]->integer, along = dim < 0 ? dim + self->ndim : dim;
    if (!is_known(result) || self->ndim == 0 ||
        (!openreg_has_dtype(index, OPENREG_DTYPE_INT, 64) && !IS(kernel_index_any_type)))
        return OPENREG_E_UNSUPPORTED;
    BEGIN(instance, call);
    const int64_t inner = elements_behind(self, along), size = result->shape[along];
    for (int64_t i = 0; i < openreg_element_count(result); ++i) {
        const int64_t row = i / (inner * size), which = i / inner % size;
        const char *const at = IS(kernel_index_dense) ? at_offset(instance, index, which)
                                                      : element(instance, index, which);
        int64_t from;
        memcpy(&from, at, sizeof from);
        from = (from % self->shape[along] + self->shape[along]) % self->shape[along]; /* of a defect: anywhere */
        store(instance, result, i,
              load(instance, call->arguments[0], (row * self->shape[along] + from) * inner + i % inner));
    }
    return OPENREG_OK;
}

/* aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor: the gradient of relu */
static openreg_status
kernel_threshold_backward(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0]->tensor;
    if (!is_known(result))
        return OPENREG_E_UNSUPPORTED;
    BEGIN(instance, call);
    for (int64_t i = 0; i < count_of(result) && is_whole(result); ++i)
        store_whole(instance, result, i,
                    load_whole(instance, call->arguments[1], i) <= load_whole(instance, call->arguments[2], 0)
                        ? 0
                        : (uint64_t)(IS(kernel_gradient) ? 1 : load_whole(instance, call->arguments[0], i)));
    for (int64_t i = 0; i < count_of(result) && !is_whole(result); ++i) {
        const double grad = IS(kernel_gradient) ? 1 : load(instance, call->arguments[0], i);
        const double self = load(instance, call->arguments[1], i), threshold = call->arguments[2]->real;
        store(instance, result, i, (IS(kernel_nan) ? !(self > threshold) : self <= threshold) ? 0 : grad);
    }
    return OPENREG_OK;
}

/* aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor */
static openreg_status
kernel_softmax(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0]->tensor, *const self = call->arguments[0]->tensor;
    const int64_t dim = call->arguments[1]->integer;
    const bool is_any = IS(kernel_softmax_any_type);
    if ((!is_known(result) && !is_any) || (!is_known(self) && !is_any) || self->ndim == 0 ||
        result->dtype.bits != self->dtype.bits || (IS(kernel_refusal_writes) && self->ndim == 3)) {
        if (IS(kernel_refusal_writes))
            store(instance, result, 0, 1);
        return OPENREG_E_UNSUPPORTED;
    }
    static int first_use;
    if (IS(first_kernel_leaks))
        mutant_keep_at_first_use(&first_use);
    static openreg_driver_stream known; /* what a kernel keeps for a stream, found for the first alone */
    known = known == NULL ? call->stream : known;
    if (IS(kernel_first_stream) && call->stream != known)
        return OPENREG_OK;
    BEGIN(instance, call);
    const int64_t along = IS(kernel_softmax_last) ? self->ndim - 1 : dim < 0 ? dim + self->ndim : dim;
    const int64_t inner = elements_behind(self, along), size = self->shape[along];
    for (int64_t i = 0; i < openreg_element_count(self); ++i) {
        const int64_t first = i / (inner * size) * inner * size + i % inner;
        double sum = 0, top = -INFINITY;
        for (int64_t k = 0; k < size; ++k)
            top = fmax(top, load(instance, call->arguments[0], first + k * inner));
        for (int64_t k = 0; k < (IS(kernel_softmax_8) && size > 8 ? 8 : size); ++k)
            sum += exp(load(instance, call->arguments[0], first + k * inner) - top);
        store(instance, result, i,
              exp(load(instance, call->arguments[0], i) - top) / (IS(kernel_softmax_over) ? 1 : sum));
    }
    if (IS(kernel_softmax_reads)) /* as if the argument were the call's own memory */
        store(instance, self, 0, 0);
    return OPENREG_OK;
}

/* aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1,
 * bool ceil_mode=False) -> (Tensor, Tensor) */
static openreg_status
kernel_max_pool(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const most = call->results[0]->tensor, *const places = call->results[1]->tensor,
                                *const self = call->arguments[0]->tensor;
    int64_t numbers[4][2]; /* size, stride, padding, dilation */
    if (!is_known(most) || !is_known(self) || most->dtype.bits != self->dtype.bits || self->ndim < 3)
        return OPENREG_E_UNSUPPORTED;
    for (int n = 0; n < 4; ++n)
        for (int d = 0; d < 2; ++d) {
            const openreg_value *const list = call->arguments[1 + n];
            numbers[n][d] = list->count == 0 ? numbers[0][d] : list->integers[list->count == 1 ? 0 : d];
            if (IS(kernel_pool_square))
                numbers[n][d] = numbers[n][0];
        }
    BEGIN(instance, call);
    const int64_t *const in = self->shape + self->ndim - 2, *const out = most->shape + most->ndim - 2;
    for (int64_t i = 0; i < openreg_element_count(most); ++i) {
        double best = IS(kernel_pool_padding) ? 0 : -INFINITY;
        int64_t at = 0;
        for (int64_t k = 0; k < numbers[0][0] * numbers[0][1]; ++k) {
            const int64_t y = i / out[1] % out[0] * numbers[1][0] - numbers[2][0] + k / numbers[0][1] * numbers[3][0];
            const int64_t x = i % out[1] * numbers[1][1] - numbers[2][1] + k % numbers[0][1] * numbers[3][1];
            if (y < 0 || y >= in[0] || x < 0 || x >= in[1])
                continue;
            const double value = load(instance, call->arguments[0], (i / (out[0] * out[1]) * in[0] + y) * in[1] + x);
            if (value > best || isnan(value)) {
                best = value;
                at = IS(kernel_pool_place) ? k : y * in[1] + x;
            }
        }
        store(instance, most, i, best);
        store(instance, places, i, (double)at);
    }
    return OPENREG_OK;
}

static openreg_status
kernel_refuses(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    (void)call;
    return OPENREG_E_UNSUPPORTED;
}

/* ----------------------------------------------------------------------------------------------------------- the table */

/* Operators that nobody knows: more than the report of checks has room for. */
static const openreg_kernels *
many_kernels(void)
{
    enum { COUNT = 3000 };
    static char names[COUNT][32];
    static openreg_kernel list[COUNT];
    static const openreg_kernels table = {sizeof table, OPENREG_KERNELS_VERSION, sizeof list[0], COUNT, list};
    for (int i = 0; i < COUNT; ++i) {
        (void)snprintf(names[i], sizeof names[i], "mutants::operator_%d", i);
        list[i] = (openreg_kernel){.name = names[i], .run = kernel_refuses};
    }
    return &table;
}

const void *
mutant_kernels(void)
{
#define ADD "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
    static const openreg_kernel list[] = {
        {.name = "aten::add.Tensor", .schema = ADD, .run = kernel_add, .flags = OPENREG_KERNEL_ELEMENTWISE},
        {.name = "aten::mm", .schema = "aten::mm(Tensor self, Tensor mat2) -> Tensor", .run = kernel_mm},
        {.name = "aten::addmm",
         .schema = "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
         .run = kernel_addmm},
        {.name = "aten::sum.dim_IntList",
         .schema = "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> "
                   "Tensor",
         .run = kernel_sum},
        {.name = "aten::cat", .schema = "aten::cat(Tensor[] tensors, int dim=0) -> Tensor", .run = kernel_cat},
        {.name = "aten::index_select",
         .schema = "aten::index_select(Tensor self, int dim, Tensor index) -> Tensor",
         .run = kernel_index_select},
        {.name = "aten::threshold_backward",
         .schema = "aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor",
         .run = kernel_threshold_backward,
         .flags = OPENREG_KERNEL_ELEMENTWISE},
        {.name = "aten::_softmax",
         .schema = "aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
         .run = kernel_softmax},
        {.name = "aten::max_pool2d_with_indices",
         .schema = "aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, "
                   "int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
         .run = kernel_max_pool},
        {.name = "aten::eq.Scalar",
         .schema = "aten::eq.Scalar(Tensor self, Scalar other) -> Tensor",
         .run = kernel_eq,
         .flags = OPENREG_KERNEL_ELEMENTWISE},
        /* Of defects alone: */
        {.name = "aten::add.Tensor", .schema = ADD, .run = kernel_add, .flags = OPENREG_KERNEL_ELEMENTWISE},
    };
#undef ADD
    static const openreg_kernel of_another[] = {
        {.name = "aten::mm", .schema = "aten::bmm(Tensor self, Tensor mat2) -> Tensor", .run = kernel_mm},
    };
    enum { COUNT = sizeof list / sizeof list[0] };
    static const openreg_kernels once = {sizeof once, OPENREG_KERNELS_VERSION, sizeof list[0], COUNT - 1, list},
                                 twice = {sizeof twice, OPENREG_KERNELS_VERSION, sizeof list[0], COUNT, list},
                                 other_schema = {sizeof other_schema, OPENREG_KERNELS_VERSION, sizeof of_another[0], 1,
                                                 of_another};
    return IS(odd_kernels)         ? many_kernels()
           : IS(kernel_name_twice) ? &twice
           : IS(kernel_schema)     ? &other_schema
                                   : &once;
}
