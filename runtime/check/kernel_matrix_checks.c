/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_matrix_checks.c: products of matrices and reductions over random shapes, against a reference in C. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_bench.h"
#include "work.h"

/* ----------------------------------------------------------------------------------------------------------- products */

/* The shapes that broadcast to m rows and n columns. */
static int32_t
pick_bias(check_bench *b, int64_t rows, int64_t columns, int64_t *shape)
{
    const int64_t shapes[][2] = {{rows, columns}, {1, columns}, {rows, 1}, {1, 1}, {columns, 0}, {1, 0}, {0, 0}};
    static const int32_t ndims[] = {2, 2, 2, 2, 1, 1, 0};
    const int64_t which = check_bench_below(b, 7);
    memcpy(shape, shapes[which], sizeof shapes[which]);
    return ndims[which];
}

/* mm(self, mat2), bmm(self, mat2), addmm(self, mat1, mat2, *, beta=1, alpha=1); inner sizes from 0. */
static void
try_product(check_bench *b, bool is_batched, bool has_bias)
{
    static const char *const plain_names[] = {"self", "mat2"}, *const bias_names[] = {"self", "mat1", "mat2", "beta",
                                                                                      "alpha"};
    static const double factors[] = {1, 2, 0, -3};
    const int64_t batch = is_batched ? 1 + check_bench_below(b, 3) : 1, rows = 1 + check_bench_below(b, 6),
                  columns = 1 + check_bench_below(b, 6), inner = check_bench_below(b, 6);
    const int64_t left[] = {batch, rows, inner}, right[] = {batch, inner, columns}, out[] = {batch, rows, columns};
    const int first = is_batched ? 0 : 1, of_left = has_bias ? 1 : 0, of_right = of_left + 1;
    const double beta = has_bias ? factors[check_bench_below(b, 4)] : 0,
                 alpha = has_bias ? factors[check_bench_below(b, 4)] : 1;
    openreg_value arguments[5];
    int64_t bias[2];
    char more[64];
    memset(arguments, 0, sizeof arguments);
    if (has_bias) {
        const int32_t ndim = pick_bias(b, rows, columns, bias);
        check_bench_lay(b, 0, ndim, bias, (stride_kind)check_bench_below(b, 3), b->dtype);
        check_bench_fill(b, 0, false, false);
        arguments[3] = (openreg_value){.kind = OPENREG_VALUE_INT, .integer = (int64_t)beta, .real = beta};
        arguments[4] = (openreg_value){.kind = OPENREG_VALUE_INT, .integer = (int64_t)alpha, .real = alpha};
    }
    check_bench_lay(b, of_left, 3 - first, left + first, (stride_kind)check_bench_below(b, 4), b->dtype);
    check_bench_lay(b, of_right, 3 - first, right + first, (stride_kind)check_bench_below(b, 4), b->dtype);
    check_bench_lay(b, CHECK_RESULT, 3 - first, out + first, CONTIGUOUS, b->dtype);
    check_bench_fill(b, of_left, false, false);
    check_bench_fill(b, of_right, false, false);
    for (int i = 0; i <= of_right; ++i)
        arguments[i] = (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[i].tensor};
    (void)snprintf(more, sizeof more, ", beta %g, alpha %g", beta, alpha);
    check_bench_describe(b, of_right + 1, has_bias ? more : "");
    if (!check_bench_call(b, arguments, has_bias ? 5 : 2, has_bias ? bias_names : plain_names))
        return;
    for (int64_t i = 0; i < batch * rows * columns; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
            const int64_t l[] = {i / (rows * columns), i / columns % rows, k}, r[] = {l[0], k, i % columns};
            sum += check_number_load(check_tensor_at(&b->places[of_left], l + first), b->dtype) *
                   check_number_load(check_tensor_at(&b->places[of_right], r + first), b->dtype);
        }
        sum *= alpha;
        if (has_bias && beta != 0)
            sum += beta *
                   check_number_load(check_tensor_broadcast_at(&b->places[0], &b->places[CHECK_RESULT], i), b->dtype);
        check_bench_expect(b, i, sum, (int64_t)sum);
    }
    check_bench_expect_nothing_beside(b);
}

static void
products_of_any_shape(check_context *c)
{
    static check_bench b;
    const openreg_kernels *const kernels = check_kernels(c);
    check_bench_set_up(&b, c);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = check_kernel_at(kernels, i);
        const bool is_batched = strcmp(b.kernel->name, "aten::bmm") == 0;
        const bool has_bias = strcmp(b.kernel->name, "aten::addmm") == 0;
        if (!is_batched && !has_bias && strcmp(b.kernel->name, "aten::mm") != 0)
            continue;
        for (size_t k = 0; k < CHECK_DTYPES; ++k) {
            b.dtype = check_dtypes[k];
            for (int round = 0; round < 60; ++round)
                try_product(&b, is_batched, has_bias);
        }
    }
    check_bench_skip_unserved(&b);
}

/* --------------------------------------------------------------------------------------------------------- reductions */

static void
try_reduction(check_bench *b, const check_reduction *op)
{
    static const char *const names[] = {"self", "dim", "keepdim", "dtype"};
    int64_t shape[CHECK_DIMS], out[CHECK_DIMS], dims[CHECK_DIMS], count = 0;
    bool is_reduced[CHECK_DIMS] = {false};
    char more[80] = ", dim";
    const int32_t ndim = 1 + (int32_t)check_bench_below(b, CHECK_DIMS - 1);
    const bool keeps = check_bench_below(b, 2) == 0;
    int32_t kept = 0;
    for (int32_t d = 0; d < ndim; ++d)
        shape[d] = 1 + check_bench_below(b, 4);
    for (int32_t d = 0; d < ndim; ++d)
        if (check_bench_below(b, 2) == 0 || (d == ndim - 1 && count == 0)) {
            is_reduced[d] = true;
            dims[count++] = check_bench_below(b, 2) == 0 ? d : d - ndim;
            (void)snprintf(more + strlen(more), sizeof more - strlen(more), " %d", (int)dims[count - 1]);
            if (op->kind == CHECK_SUM && check_bench_below(b, 10) == 0)
                shape[d] = 0; /* the sum of nothing */
        }
    for (int32_t d = 0; d < ndim; ++d)
        if (!is_reduced[d] || keeps)
            out[kept++] = is_reduced[d] ? 1 : shape[d];
    check_bench_lay(b, 0, ndim, shape, (stride_kind)check_bench_below(b, 4), b->dtype);
    check_bench_lay(b, CHECK_RESULT, kept, out, CONTIGUOUS, b->dtype);
    check_bench_fill(b, 0, false, false);
    const openreg_value arguments[] = {
        {.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[0].tensor},
        {.kind = OPENREG_VALUE_INTS, .integers = dims, .count = (uint64_t)count},
        {.kind = OPENREG_VALUE_BOOL, .integer = keeps, .real = keeps},
        {.kind = OPENREG_VALUE_NONE},
    };
    check_bench_describe(b, 1, more);
    if (!check_bench_call(b, arguments, op->has_dtype ? 4 : 3, names))
        return;
    const int64_t results = check_tensor_count(&b->places[CHECK_RESULT]), all = check_tensor_count(&b->places[0]);
    double *const sums = calloc((size_t)results, sizeof *sums);
    int64_t *const numbers = calloc((size_t)results, sizeof *numbers);
    for (int64_t i = 0; i < all; ++i) {
        int64_t rest = i, to = 0, size = 1;
        for (int32_t d = ndim - 1; d >= 0; --d) {
            if (!is_reduced[d]) {
                to += rest % shape[d] * size;
                size *= shape[d];
            }
            rest /= shape[d];
        }
        const double value = check_number_load(check_tensor_broadcast_at(&b->places[0], &b->places[0], i), b->dtype);
        const bool is_first = numbers[to]++ == 0;
        if (op->kind == CHECK_SUM || op->kind == CHECK_MEAN || is_first)
            sums[to] += value;
        else if (op->kind == CHECK_MOST ? value > sums[to] : value < sums[to])
            sums[to] = value;
    }
    for (int64_t i = 0; i < results; ++i) {
        const double wanted = op->kind == CHECK_MEAN ? sums[i] / (double)numbers[i] : sums[i];
        check_bench_expect(b, i, wanted, (int64_t)wanted);
    }
    free(sums);
    free(numbers);
    check_bench_expect_nothing_beside(b);
}

static void
reductions_of_any_shape(check_context *c)
{
    static check_bench b;
    const openreg_kernels *const kernels = check_kernels(c);
    check_bench_set_up(&b, c);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = check_kernel_at(kernels, i);
        const check_reduction *const op = check_reduction_find(b.kernel->name);
        for (size_t k = 0; op != NULL && k < 3; ++k) { /* a sum of int32 is an int64 */
            b.dtype = check_dtypes[k];
            for (int round = 0; (check_is_float(b.dtype) || op->kind != CHECK_MEAN) && round < 40; ++round)
                try_reduction(&b, op);
        }
    }
    check_bench_skip_unserved(&b);
}

static const check_case cases[] = {
    {"kernel.products", "extension", CHECK_KERNELS,
     "kernels.h: matrix products with any strides, an inner size of 0, factors, and every shape of the added argument "
     "that broadcasts.",
     "The added one may be (n), (1, n), (m, 1), (1, 1), (1) or without dimensions.", products_of_any_shape},
    {"kernel.reductions", "extension", CHECK_KERNELS,
     "kernels.h: reductions over any dimensions, negative ones too, of tensors with any strides.",
     "`dim` has each dimension to reduce; a sum of nothing is 0.", reductions_of_any_shape},
};
const check_group check_kernel_matrix_group = CHECK_GROUP(2, cases);
