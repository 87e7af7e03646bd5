/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_shape_checks.c: kernels by the element over random shapes, strides, broadcasts and numbers, against a reference
 * in C. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"
#include "kernel_bench.h"

static const openreg_dtype boolean = {OPENREG_DTYPE_BOOL, 8, 1};

/* ------------------------------------------------------------------------------------------------------ by the element */

/* Beside those of every check, as a driver may have kernels for them too. */
static const openreg_dtype narrow_dtypes[] = {
    {OPENREG_DTYPE_UINT, 8, 1}, {OPENREG_DTYPE_INT, 8, 1}, {OPENREG_DTYPE_INT, 16, 1}};

#define NARROW_DTYPES (sizeof narrow_dtypes / sizeof narrow_dtypes[0])

/* A number for an argument that takes one. An integer is wrapped to the tensors' type, as PyTorch does: to compare with one
 * just outside is legal. */
static openreg_value
pick_number(check_bench *b, const check_elementwise *op, double *real, int64_t *whole)
{
    static const int64_t ints[] = {3, -2, (INT64_C(1) << 40) + 3, -(INT64_C(1) << 33) - 1, (INT64_C(1) << 53) + 1};
    static const double reals[] = {2.5, -0.5, 1e15, 3, 16777217};
    const bool is_wide = b->dtype.bits == 64 && !op->is_real;
    if (!check_is_float(b->dtype)) {
        int64_t number = ints[check_bench_below(b, is_wide ? 5 : 2)];
        if (op->is_exact && check_bench_below(b, op->is_boolean ? 2 : 3) == 0) {
            number = check_bench_end(b, b->dtype);
            if (op->is_boolean && b->dtype.bits < 64 && check_bench_below(b, 2) == 0)
                number += number > 0 ? 1 : -1;
        }
        *whole = check_number_wrap(number, b->dtype);
        *real = (double)number;
        return (openreg_value){.kind = OPENREG_VALUE_INT, .integer = number, .real = *real};
    }
    *real = reals[check_bench_below(b, op->is_real ? 2 : 5)];
    *real = op->is_positive && *real < 0 ? -*real : *real;
    *whole = (int64_t)(*real < 1e18 ? *real : 0);
    if (*real == 3)
        return (openreg_value){.kind = OPENREG_VALUE_INT, .integer = 3, .real = 3};
    return (openreg_value){.kind = OPENREG_VALUE_FLOAT, .real = *real};
}

/* What a kernel may have computed with, whose vendor has no numbers below the normal ones. */
static double
flushed(double number, openreg_dtype dtype)
{
    return fabs(number) < (dtype.bits == 32 ? FLT_MIN : DBL_MIN) ? copysign(0, number) : number;
}

/* An argument that is no tensor. */
static openreg_value
pick_value(check_bench *b, const check_elementwise *op, int i, double *real, int64_t *whole)
{
    const char kind = op->kinds[i];
    if (kind == 'G') {
        *real = (double)check_bench_below(b, 2);
        return (openreg_value){.kind = OPENREG_VALUE_STRING, .text = *real != 0 ? "tanh" : "none"};
    }
    if (kind == 'O' && check_bench_below(b, 3) == 0) {
        *real = NAN;
        *whole = op->kinds[i - 1] == 'T' ? INT64_MIN : INT64_MAX; /* the lower bound comes first */
        return (openreg_value){.kind = OPENREG_VALUE_NONE};
    }
    if (b->is_special && strchr("NS", kind) != NULL && check_bench_below(b, 2) == 0) {
        *real = flushed(check_bench_special(b), b->dtype);
        *real = op->is_positive ? fabs(*real) : *real;
        return (openreg_value){.kind = OPENREG_VALUE_FLOAT, .real = *real};
    }
    return pick_number(b, op, real, whole);
}

static void
expect_element(check_bench *b, const check_elementwise *op, int64_t i, const double *reals, const int64_t *wholes)
{
    const check_tensor *const result = &b->places[CHECK_RESULT];
    if (!check_is_float(b->dtype)) {
        check_bench_expect(b, i, 0, check_elementwise_whole(op, wholes));
        return;
    }
    double wanted = check_elementwise_real(op, reals), others[4];
    for (int k = 0; k < 4; ++k)
        others[k] = flushed(reals[k], b->dtype);
    const double other = check_elementwise_real(op, others);
    const unsigned char *const at = check_tensor_broadcast_at(result, result, i);
    if (b->is_special &&
        (op->is_boolean ? *at == (other != 0) : check_is_close(check_number_load(at, b->dtype), other, b->dtype)))
        wanted = other;
    check_bench_expect(b, i, wanted, wanted != 0);
}

static void
try_elementwise(check_bench *b, const check_elementwise *op)
{
    char buffer[64], more[80] = "";
    const char *names[4];
    openreg_value arguments[4];
    double reals[4] = {0};
    int64_t wholes[4] = {0}, shape[CHECK_DIMS];
    int places[4] = {-1, -1, -1, -1}, tensors = 0;
    const int count = (int)strlen(op->kinds);
    const bool is_expanded = (b->kernel->flags & OPENREG_KERNEL_ELEMENTWISE) != 0;
    const int32_t ndim = (int32_t)check_bench_below(b, CHECK_DIMS + 1);
    check_bench_names(op->names, buffer, names);
    for (int32_t d = 0; d < ndim; ++d)
        shape[d] = 1 + check_bench_below(b, d < 3 ? 5 : 3);
    if (ndim > 0 && check_bench_below(b, 12) == 0)
        shape[check_bench_below(b, ndim)] = 0;
    check_bench_lay(b, CHECK_RESULT, ndim, shape,
                    check_bench_below(b, 3) == 0   ? PERMUTED
                    : check_bench_below(b, 4) == 0 ? GAPPED
                                                   : CONTIGUOUS,
                    op->is_boolean ? boolean : b->dtype);
    memset(arguments, 0, sizeof arguments);
    for (int i = 0; i < count; ++i) {
        const char kind = op->kinds[i];
        const bool is_number = strchr("SAOG", kind) != NULL || (kind == 'N' && check_bench_below(b, 3) == 0);
        if (is_number) {
            arguments[i] = pick_value(b, op, i, &reals[i], &wholes[i]);
            (void)snprintf(more + strlen(more), sizeof more - strlen(more), ", %s %g", names[i], reals[i]);
            continue;
        }
        int64_t own[CHECK_DIMS];
        const bool is_whole = is_expanded || i == 0;
        const int32_t missing = is_whole ? 0 : kind == 'V' ? ndim : (int32_t)check_bench_below(b, ndim + 1);
        for (int32_t d = missing; d < ndim; ++d)
            own[d - missing] = is_whole || check_bench_below(b, 3) != 0 ? shape[d] : 1;
        places[i] = tensors++;
        const stride_kind strides = (stride_kind)check_bench_below(b, is_expanded ? 4 : 3);
        check_bench_lay(b, places[i], ndim - missing, own, strides, kind == 'M' ? boolean : b->dtype);
        if (kind == 'V')
            memset(b->places[places[i]].strides, 0, sizeof b->places[places[i]].strides);
        if (kind == 'M')
            check_bench_fill_mask(b, places[i]);
        else if (b->is_special)
            check_bench_fill_special(b, places[i], op->is_positive);
        else
            check_bench_fill(b, places[i], op->is_positive, op->is_exact);
        arguments[i] = (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[places[i]].tensor};
    }
    check_bench_describe(b, tensors, more);
    if (!check_bench_call(b, arguments, (uint64_t)count, names))
        return;
    for (int64_t i = 0; i < check_tensor_count(&b->places[CHECK_RESULT]); ++i) {
        for (int k = 0; k < count; ++k)
            if (places[k] >= 0) {
                const check_tensor *const t = &b->places[places[k]];
                const unsigned char *const at = check_tensor_broadcast_at(t, &b->places[CHECK_RESULT], i);
                reals[k] = check_number_load(at, t->tensor.dtype);
                wholes[k] = check_is_float(t->tensor.dtype) ? 0 : check_number_load_whole(at, t->tensor.dtype);
            }
        expect_element(b, op, i, reals, wholes);
    }
    check_bench_expect_nothing_beside(b);
}

/* Every operator that the reference has, in each type some rounds. */
static void
elements_are_right(check_context *c)
{
    const bool is_special = strcmp(c->check->name, "kernel.special") == 0;
    static check_bench b;
    const openreg_kernels *const kernels = check_kernels(c);
    check_bench_set_up(&b, c, c->devices - 1);
    b.is_special = is_special;
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = check_kernel_at(kernels, i);
        const check_elementwise *const op = check_elementwise_find(b.kernel->name);
        for (size_t k = 0; op != NULL && k < CHECK_DTYPES + NARROW_DTYPES; ++k) {
            b.dtype = k < CHECK_DTYPES ? check_dtypes[k] : narrow_dtypes[k - CHECK_DTYPES];
            if (check_is_float(b.dtype) ? op->is_whole : op->is_real || is_special)
                continue;
            if (is_special && strchr(op->kinds, 'G') != NULL) /* of -inf PyTorch's own differ */
                continue;
            for (int round = 0; round < (is_special ? 4 : k < 2 || k >= CHECK_DTYPES ? 24 : 8); ++round)
                try_elementwise(&b, op);
        }
        if (op != NULL && !is_special)
            check_bench_require_served(&b);
    }
    check_bench_skip_untried(b.served + b.refused);
}

/* -------------------------------------------------------------------------------------------------------------- large */

#define LARGE_COUNT ((int64_t)4 * 1024 * 1024 + 1027)

/* More elements than a launch of many vendors has, in float32: the sampled ones, and all at the end. */
static void
large_tensors(check_context *c)
{
    static check_bench b;
    const openreg_kernels *const kernels = check_kernels(c);
    const size_t bytes = (size_t)LARGE_COUNT * sizeof(float);
    const uint64_t total = check_total_memory(c, c->devices - 1);
    if ((total != 0 && total < 8 * bytes) || check_within(c, c->devices - 1, bytes) < bytes)
        check_skip("device %d has %llu MiB", c->devices - 1, (unsigned long long)(total >> 20));
    float *const host = malloc(bytes);
    if (host == NULL)
        check_skip("no host memory of %zu bytes", bytes);
    check_bench_set_up(&b, c, c->devices - 1);
    b.dtype = check_dtypes[0];
    for (int i = 0; i < CHECK_PLACES; i = i == 2 ? CHECK_RESULT : i + 1) { /* three arguments, and the result */
        check_tensor *const t = &b.places[i];
        t->memory = check_alloc(c, b.dev, bytes);
        t->shape[0] = LARGE_COUNT;
        t->strides[0] = 1;
        t->tensor = (openreg_tensor){.data = t->memory,
                                     .device_type = OPENREG_TENSOR_DEVICE_TYPE,
                                     .device_id = b.dev,
                                     .ndim = 1,
                                     .dtype = b.dtype,
                                     .shape = t->shape,
                                     .strides = t->strides};
        for (int64_t k = 0; k < LARGE_COUNT; ++k)
            host[k] = i == CHECK_RESULT ? 0 : (float)((k * (2 * i + 3)) % 251 + 1) / 8;
        check_write(c, b.dev, t->memory, host, bytes);
    }
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = check_kernel_at(kernels, i);
        const check_elementwise *const op = check_elementwise_find(b.kernel->name);
        if (op == NULL || op->is_boolean || op->is_whole || strpbrk(op->kinds, "MGOV") != NULL)
            continue;
        char buffer[64];
        const char *names[4];
        openreg_value arguments[4];
        memset(arguments, 0, sizeof arguments);
        check_bench_names(op->names, buffer, names);
        const int count = (int)strlen(op->kinds);
        for (int k = 0; k < count; ++k)
            arguments[k] = op->kinds[k] == 'T' || op->kinds[k] == 'N'
                               ? (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b.places[k].tensor}
                               : (openreg_value){.kind = OPENREG_VALUE_INT, .integer = 2, .real = 2};
        (void)snprintf(b.text, sizeof b.text, "float32 of %lld elements", (long long)LARGE_COUNT);
        b.places[CHECK_RESULT].used = 0;
        if (!check_bench_call(&b, arguments, (uint64_t)count, names))
            continue;
        check_read(c, b.dev, host, b.places[CHECK_RESULT].memory, bytes);
        for (int64_t k = 0; k<LARGE_COUNT; k += k + 2048> LARGE_COUNT ? 1 : 61) {
            double reals[4];
            for (int n = 0; n < count; ++n)
                reals[n] = arguments[n].tensor == NULL ? 2 : (double)((k * (2 * n + 3)) % 251 + 1) / 8;
            const double wanted = check_elementwise_real(op, reals);
            REQUIRE(check_is_close(host[k], wanted, b.dtype), "%s, %s: element %lld of the result is %g, not %g",
                    b.kernel->name, b.text, (long long)k, (double)host[k], wanted);
        }
    }
    check_bench_skip_untried(b.served + b.refused);
}

static const check_case cases[] = {
    {"kernel.shapes", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: tensors of any number of dimensions, sizes and strides, arguments that broadcast, and numbers as wide "
     "as their type.",
     "Refuse more dimensions than the kernel has room for; int64 numbers don't fit into int, float or double.",
     elements_are_right},
    {"kernel.special", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: NaN, infinities, zeros of both signs and numbers below the normal ones, in tensors and as arguments, "
     "give what PyTorch's kernels give; the last may count as 0.",
     "maximum, minimum, clamp and relu keep NaN: a > b ? a : b does not; fmax() and fmin() drop it.",
     elements_are_right},
    {"kernel.large", "extension", CHECK_KERNELS, "kernels.h: tensors of more than 4 million elements.",
     "A launch has a largest number of groups: repeat it, or let each work item do more.", large_tensors},
};
const check_group check_kernel_shape_group = CHECK_GROUP(2, cases);
