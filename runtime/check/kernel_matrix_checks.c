/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_matrix_checks.c: products of matrices and reductions over random shapes, against a reference in C. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"
#include "kernel_bench.h"

/* ----------------------------------------------------------------------------------------------------------- products */

/* A shape that broadcasts to the result's: any of its first dimensions left out, any of the others 1. */
static int32_t
pick_bias(check_bench *b, int32_t ndim, const int64_t *out, int64_t *shape)
{
    const int32_t missing = (int32_t)check_bench_below(b, ndim + 1);
    for (int32_t d = missing; d < ndim; ++d)
        shape[d - missing] = check_bench_below(b, 3) == 0 ? 1 : out[d];
    return ndim - missing;
}

/* mm(self, mat2), bmm(self, mat2), addmm(self, mat1, mat2, *, beta=1, alpha=1), baddbmm(self, batch1, batch2, *, beta=1,
 * alpha=1); sizes from those of `least`. */
static void
try_product(check_bench *b, const check_product *op, const int64_t *least, bool is_large)
{
    static const char *const plain_names[] = {"self", "mat2"},
                             *const bias_names[] = {"self", "mat1", "mat2", "beta", "alpha"},
                             *const batch_names[] = {"self", "batch1", "batch2", "beta", "alpha"};
    static const double factors[] = {1, 2, 0, -3};
    const bool has_bias = op->has_bias;
    const int64_t batch = op->is_batched ? 1 + check_bench_below(b, is_large ? 2 : 3) : 1,
                  rows = least[0] + check_bench_below(b, 6), columns = least[1] + check_bench_below(b, 6),
                  inner = least[2] + check_bench_below(b, 6);
    const int64_t left[] = {batch, rows, inner}, right[] = {batch, inner, columns}, out[] = {batch, rows, columns};
    const int first = op->is_batched ? 0 : 1, of_left = has_bias ? 1 : 0, of_right = of_left + 1;
    const double beta = has_bias ? factors[check_bench_below(b, 4)] : 0,
                 alpha = has_bias ? factors[check_bench_below(b, 4)] : 1;
    openreg_value arguments[5];
    int64_t bias[3];
    char more[64];
    memset(arguments, 0, sizeof arguments);
    if (has_bias) {
        const int32_t ndim = pick_bias(b, 3 - first, out + first, bias);
        check_bench_lay(b, 0, ndim, bias, (stride_kind)check_bench_below(b, 3), b->dtype);
        check_bench_fill(b, 0, false, false);
        arguments[3] = (openreg_value){.kind = OPENREG_VALUE_INT, .integer = (int64_t)beta, .real = beta};
        arguments[4] = (openreg_value){.kind = OPENREG_VALUE_INT, .integer = (int64_t)alpha, .real = alpha};
    }
    check_bench_lay(b, of_left, 3 - first, left + first, (stride_kind)check_bench_below(b, is_large ? 2 : 4), b->dtype);
    check_bench_lay(b, of_right, 3 - first, right + first, (stride_kind)check_bench_below(b, is_large ? 2 : 4),
                    b->dtype);
    check_bench_lay(b, CHECK_RESULT, 3 - first, out + first,
                    check_bench_below(b, 4) == 0 ? (stride_kind)check_bench_below(b, 3) : CONTIGUOUS, b->dtype);
    check_bench_fill(b, of_left, false, false);
    check_bench_fill(b, of_right, false, false);
    for (int i = 0; i <= of_right; ++i)
        arguments[i] = (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[i].tensor};
    (void)snprintf(more, sizeof more, ", beta %g, alpha %g", beta, alpha);
    check_bench_describe(b, of_right + 1, has_bias ? more : "");
    if (!check_bench_call(b, arguments, has_bias ? 5 : 2,
                          !has_bias        ? plain_names
                          : op->is_batched ? batch_names
                                           : bias_names))
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
    /* Rows, columns, inner: of some elements; those that a vendor's library is called for; beyond one work group. */
    static const int64_t least[][3] = {{1, 1, 0}, {64, 64, 64}, {200, 300, 100}, {30, 40, 300}};
    static check_bench b;
    const openreg_kernels *const kernels = check_kernels(c);
    check_bench_set_up(&b, c, c->devices - 1);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = check_kernel_at(kernels, i);
        const check_product *const op = check_product_find(b.kernel->name);
        for (size_t k = 0; op != NULL && k < CHECK_DTYPES; ++k) {
            b.dtype = check_dtypes[k];
            for (int round = 0; round < 60; ++round)
                try_product(&b, op, least[0], false);
            for (int large = 1; large < 4 && check_is_float(b.dtype); ++large)
                try_product(&b, op, least[large], true);
        }
        if (op != NULL)
            check_bench_require_served(&b);
    }
    check_bench_skip_unknown(&b);
}

/* --------------------------------------------------------------------------------------------------------- reductions */

/* The arguments, by their letters; the dimensions are chosen already. */
static uint64_t
add_arguments(check_bench *b, const check_reduction *op, bool keeps, const int64_t *dims, int64_t count,
              openreg_value *arguments)
{
    uint64_t made = 0;
    for (const char *kind = op->kinds; *kind != '\0'; ++kind) {
        openreg_value *const value = &arguments[made++];
        memset(value, 0, sizeof *value);
        if (*kind == 'T')
            *value = (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[0].tensor};
        else if (*kind == 'D')
            *value = (openreg_value){.kind = OPENREG_VALUE_INTS, .integers = dims, .count = (uint64_t)count};
        else if (*kind == 'I' && count == 1)
            *value = (openreg_value){.kind = OPENREG_VALUE_INT, .integer = dims[0], .real = (double)dims[0]};
        else if (*kind == 'K')
            *value = (openreg_value){.kind = OPENREG_VALUE_BOOL, .integer = keeps, .real = keeps};
        else if (*kind == 'P')
            *value = (openreg_value){.kind = OPENREG_VALUE_FLOAT, .real = 2};
    }
    return made;
}

/* Which of `all` results element i goes to: the dimensions that are kept. */
static int64_t
result_of(int64_t i, int32_t ndim, const int64_t *shape, const bool *is_reduced)
{
    int64_t to = 0, size = 1;
    for (int32_t d = ndim - 1; d >= 0; --d) {
        if (!is_reduced[d]) {
            to += i % shape[d] * size;
            size *= shape[d];
        }
        i /= shape[d];
    }
    return to;
}

/* `number`: how many came before it to this result, which is where the most is, too. */
static void
reduce_into(const check_reduction *op, double value, int64_t number, double *sum, int64_t *place)
{
    if (op->kind == CHECK_SUM || op->kind == CHECK_MEAN)
        *sum += value;
    else if (op->kind == CHECK_NORM)
        *sum += value * value;
    else if (number == 0 || (op->kind == CHECK_LEAST ? value < *sum : value > *sum)) {
        *sum = value;
        *place = number;
    }
}

static void
try_reduction(check_bench *b, const check_reduction *op)
{
    int64_t shape[CHECK_DIMS], out[CHECK_DIMS], dims[CHECK_DIMS], count = 0;
    bool is_reduced[CHECK_DIMS] = {false};
    char more[80] = ", dim", buffer[64];
    const char *names[5];
    openreg_value arguments[5];
    const bool is_all = strpbrk(op->kinds, "DI") == NULL, has_one = strchr(op->kinds, 'I') != NULL;
    const int32_t ndim = (is_all ? 0 : 1) + (int32_t)check_bench_below(b, CHECK_DIMS - 1);
    const bool keeps = !is_all && check_bench_below(b, 2) == 0;
    int32_t kept = 0;
    check_bench_names(op->names, buffer, names);
    (void)check_bench_shape(b, ndim, 4, shape);
    const int64_t only = has_one ? check_bench_below(b, ndim + 1) : -1; /* ndim: None, all */
    for (int32_t d = 0; d < ndim; ++d)
        if (is_all || only == ndim) {
            is_reduced[d] = true;
        } else if (has_one ? d == only : check_bench_below(b, 2) == 0 || (d == ndim - 1 && count == 0)) {
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
    check_bench_lay(b, CHECK_RESULT, kept, out, CONTIGUOUS,
                    op->kind == CHECK_PLACE_OF_MOST ? check_dtypes[1] : b->dtype);
    check_bench_fill(b, 0, false, false);
    const uint64_t given = add_arguments(b, op, keeps, dims, count, arguments);
    check_bench_describe(b, 1, more);
    if (!check_bench_call(b, arguments, given, names))
        return;
    const int64_t results = check_tensor_count(&b->places[CHECK_RESULT]), all = check_tensor_count(&b->places[0]);
    double *const sums = calloc((size_t)results, sizeof *sums);
    int64_t *const numbers = calloc((size_t)results, sizeof *numbers), *const places = calloc((size_t)results,
                                                                                              sizeof *places);
    bool *const are_equal = calloc((size_t)results, sizeof *are_equal); /* of two equal ones either may be named */
    for (int64_t i = 0; i < all; ++i) {
        const int64_t to = result_of(i, ndim, shape, is_reduced);
        const double value = check_number_load(check_tensor_broadcast_at(&b->places[0], &b->places[0], i), b->dtype);
        are_equal[to] = (are_equal[to] && value <= sums[to]) || (numbers[to] > 0 && value == sums[to]);
        reduce_into(op, value, numbers[to]++, &sums[to], &places[to]);
    }
    for (int64_t i = 0; i < results; ++i) {
        const double value = op->kind == CHECK_MEAN   ? sums[i] / (double)numbers[i]
                             : op->kind == CHECK_NORM ? sqrt(sums[i])
                                                      : sums[i];
        const check_tensor *const result = &b->places[CHECK_RESULT];
        const int64_t seen = op->kind != CHECK_PLACE_OF_MOST
                                 ? 0
                                 : check_number_load_whole(check_tensor_broadcast_at(result, result, i),
                                                           check_dtypes[1]);
        check_bench_expect(b, i, value,
                           op->kind != CHECK_PLACE_OF_MOST                          ? (int64_t)value
                           : are_equal[i] && seen >= places[i] && seen < numbers[i] ? seen
                                                                                    : places[i]);
    }
    check_bench_expect_nothing_beside(b);
    free(sums);
    free(numbers);
    free(places);
    free(are_equal);
}

static void
reductions_of_any_shape(check_context *c)
{
    static check_bench b;
    const openreg_kernels *const kernels = check_kernels(c);
    check_bench_set_up(&b, c, c->devices - 1);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = check_kernel_at(kernels, i);
        const check_reduction *const op = check_reduction_find(b.kernel->name);
        for (size_t k = 0; op != NULL && k < 3; ++k) { /* a sum of int32 is an int64 */
            b.dtype = check_dtypes[k];
            for (int round = 0;
                 (check_is_float(b.dtype) || (op->kind != CHECK_MEAN && op->kind != CHECK_NORM)) && round < 40;
                 ++round) {
                check_bench_lengthen(&b, round);
                try_reduction(&b, op);
            }
        }
        if (op != NULL)
            check_bench_require_served(&b);
    }
    check_bench_skip_unknown(&b);
}

static const check_case cases[] = {
    {"kernel.products", "extension", CHECK_KERNELS,
     "kernels.h: matrix products of any sizes, also beyond one work group, with any strides, an inner size of 0, "
     "factors, "
     "and every shape of the added argument that broadcasts.",
     "The added one may be (n), (1, n), (m, 1), (1, 1), (1) or without dimensions.", products_of_any_shape},
    {"kernel.reductions", "extension", CHECK_KERNELS,
     "kernels.h: reductions over any dimensions, negative ones too, of tensors with any strides.",
     "`dim` has each dimension to reduce; a sum of nothing is 0.", reductions_of_any_shape},
};
const check_group check_kernel_matrix_group = CHECK_GROUP(2, cases);
