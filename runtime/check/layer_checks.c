/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_checks.c: kernels with many arguments against references in C (layer_bench.h); those of matrix products and
 * reductions are here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layer_bench.h"

/* mm(self, mat2), bmm(self, mat2), addmm(self, mat1, mat2, *, beta=1, alpha=1), baddbmm(self, batch1, batch2, *, beta=1,
 * alpha=1). The added one is broadcast: any of its first dimensions left out, any of the others 1. */
static void
product(check_layer *l)
{
    /* Rows, columns, inner: of some elements; those that a vendor's library is called for; beyond one work group. */
    static const int64_t least[][3] = {{1, 1, 0}, {64, 64, 64}, {200, 300, 100}, {30, 40, 1000}};
    static const double factors[] = {1, 2, 0, -3};
    const bool is_batched = strstr(l->b.kernel->name, "bmm") != NULL,
               has_bias = strstr(l->b.kernel->name, "add") != NULL;
    const int64_t longest = l->b.longest;
    const int64_t *const size = least[longest == 0 ? 0 : longest < 257 ? 1 : longest == 257 ? 2 : 3];
    const int64_t batch = is_batched ? check_layer_between(l, 1, longest == 0 ? 3 : 2) : 1,
                  rows = check_layer_between(l, size[0], size[0] + 5),
                  columns = check_layer_between(l, size[1], size[1] + 5),
                  inner = check_layer_between(l, size[2], size[2] + 5);
    const int32_t ndim = is_batched ? 3 : 2;
    const int64_t shapes[3][3] = {{batch, rows, inner}, {batch, inner, columns}, {batch, rows, columns}};
    const int64_t *const out_shape = shapes[2] + 3 - ndim;
    double beta = 0, alpha = 1;
    l->b.longest = 0;
    if (has_bias) {
        const int32_t missing = (int32_t)check_layer_between(l, 0, ndim);
        int64_t bias[3];
        for (int32_t d = missing; d < ndim; ++d)
            bias[d - missing] = check_layer_between(l, 0, 2) == 0 ? 1 : out_shape[d];
        (void)check_layer_tensor(l, "self", l->dtype, ndim - missing, bias);
        beta = factors[check_layer_between(l, 0, 3)];
        alpha = factors[check_layer_between(l, 0, 3)];
    }
    const char *const names[] = {!has_bias    ? "self"
                                 : is_batched ? "batch1"
                                              : "mat1",
                                 has_bias && is_batched ? "batch2" : "mat2"};
    const double *const left = check_layer_tensor(l, names[0], l->dtype, ndim, shapes[0] + 3 - ndim);
    const double *const right = check_layer_tensor(l, names[1], l->dtype, ndim, shapes[1] + 3 - ndim);
    if (has_bias) {
        check_layer_int(l, "beta", (int64_t)beta);
        check_layer_int(l, "alpha", (int64_t)alpha);
    }
    double *const out = check_layer_result(l, l->dtype, ndim, out_shape);
    const check_tensor *const added = &l->b.places[0], *const result = &l->b.places[l->tensors - 1];
    for (int64_t i = 0; i < batch * rows * columns; ++i) {
        for (int64_t k = 0; k < inner; ++k)
            out[i] += left[i / columns * inner + k] * right[(i / (rows * columns) * inner + k) * columns + i % columns];
        out[i] *= alpha;
        if (beta != 0)
            out[i] += beta * check_number_load(check_tensor_broadcast_at(added, result, i), l->dtype);
    }
}

/* Which of the results element i goes to: the dimensions that are kept. */
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

/* `all` numbers to `results`: sums, or the one that is most or least, or its place among those that went there. */
static void
reduce(const check_reduction *op, const double *x, int64_t all, int32_t ndim, const int64_t *shape,
       const bool *is_reduced, double *out, int64_t results)
{
    const bool is_sum = op->kind == CHECK_SUM || op->kind == CHECK_MEAN || op->kind == CHECK_NORM;
    struct {
        double best;
        int64_t count;
    } *const seen = calloc((size_t)results, sizeof *seen);
    for (int64_t i = 0; i < all; ++i) {
        const int64_t to = result_of(i, ndim, shape, is_reduced), place = seen[to].count++;
        if (is_sum) {
            out[to] += op->kind == CHECK_NORM ? x[i] * x[i] : x[i];
        } else if (place == 0 || (op->kind == CHECK_LEAST ? x[i] < seen[to].best : x[i] > seen[to].best)) {
            seen[to].best = x[i];
            out[to] = op->kind == CHECK_PLACE_OF_MOST ? (double)place : x[i];
        }
    }
    for (int64_t i = 0; i < results; ++i)
        out[i] = op->kind == CHECK_MEAN   ? out[i] / (double)seen[i].count
                 : op->kind == CHECK_NORM ? sqrt(out[i])
                                          : out[i];
    free(seen);
}

/* The tensor. If numbers were equal, any of their places would be a right result: each number occurs once, in memory too. */
static double *
pick_numbers(check_layer *l, const check_reduction *op, const char *name, int32_t ndim, const int64_t *shape)
{
    if (op->kind != CHECK_PLACE_OF_MOST)
        return check_layer_tensor(l, name, l->dtype, ndim, shape);
    const int layout = l->layout;
    l->has_strides = l->has_strides || layout == CHECK_ANY || layout == CHECK_STRIDED;
    l->layout = CHECK_MIXED;
    double *const x = check_layer_tensor(l, name, l->dtype, ndim, shape);
    l->layout = layout;
    for (int64_t i = 0; i < openreg_element_count(&l->b.places[0].tensor); ++i)
        x[i] = (double)(i * 7919 % 4099 - 2000);
    return x;
}

static void
reduction(check_layer *l)
{
    const check_reduction *const op = check_reduction_find(l->b.kernel->name);
    int64_t shape[CHECK_DIMS], out_shape[CHECK_DIMS], dims[CHECK_DIMS];
    bool is_reduced[CHECK_DIMS] = {false};
    const char *const *const names = check_bench_names(&l->b, op->names);
    const bool is_all = strpbrk(op->kinds, "DI") == NULL, has_one = strchr(op->kinds, 'I') != NULL;
    const int32_t ndim = (int32_t)check_layer_between(l, is_all ? 0 : 1, 5);
    const bool keeps = !is_all && check_layer_toss(l);
    int32_t kept = 0, count = 0;
    const double *x = NULL;
    if (!check_is_float(l->dtype) && (l->dtype.bits == 32 || op->kind == CHECK_MEAN || op->kind == CHECK_NORM))
        l->dtype = check_dtypes[0]; /* a sum of int32 is an int64 */
    (void)check_bench_shape(&l->b, ndim, 4, shape);
    const int64_t only = has_one ? check_layer_between(l, 0, ndim) : -1; /* ndim: None, all */
    for (int32_t d = 0; d < ndim; ++d)
        if (is_all || only == ndim) {
            is_reduced[d] = true;
        } else if (has_one ? d == only : check_layer_toss(l) || (d == ndim - 1 && count == 0)) {
            is_reduced[d] = true;
            dims[count++] = check_layer_toss(l) ? d : d - ndim;
            if (op->kind == CHECK_SUM && check_layer_between(l, 0, 9) == 0)
                shape[d] = 0; /* the sum of nothing */
        }
    for (int32_t d = 0; d < ndim; ++d)
        if (!is_reduced[d] || keeps)
            out_shape[kept++] = is_reduced[d] ? 1 : shape[d];
    for (int i = 0; op->kinds[i] != '\0'; ++i)
        switch (op->kinds[i]) {
        case 'T':
            x = pick_numbers(l, op, names[i], ndim, shape);
            break;
        case 'D':
            check_layer_ints(l, names[i], count, dims);
            break;
        case 'K':
            check_layer_bool(l, names[i], keeps);
            break;
        case 'P':
            check_layer_real(l, names[i], 2);
            break;
        default:
            if (op->kinds[i] == 'I' && count == 1)
                check_layer_int(l, names[i], dims[0]);
            else
                (void)check_layer_value(l, names[i], OPENREG_VALUE_NONE);
        }
    double *const out = check_layer_result(l, op->kind == CHECK_PLACE_OF_MOST ? CHECK_INT64 : l->dtype, kept,
                                           out_shape);
    reduce(op, x, openreg_element_count(&l->b.places[0].tensor), ndim, shape, is_reduced, out,
           openreg_element_count(&l->b.places[1].tensor));
}

const check_layer_operator check_product_layers[] = {
    {"aten::mm", product}, {"aten::addmm", product}, {"aten::bmm", product}, {"aten::baddbmm", product}, {NULL, NULL}};
const check_layer_operator check_reduction_layers[] = {{"", reduction}, {NULL, NULL}};

static const check_case cases[] = {
    {"kernel.products", "extension", CHECK_KERNELS,
     "kernels.h: matrix products of any sizes, also beyond one work group, with any strides, an inner size of 0, "
     "factors, every shape of the added argument that broadcasts, and halves, which are added up as float32.",
     "The added one may be (n), (1, n), (m, 1), (1, 1), (1) or without dimensions.", check_layer_run},
    {"kernel.reductions", "extension", CHECK_KERNELS,
     "kernels.h: reductions over any dimensions, negative ones too, of tensors with any strides.",
     "`dim` has each dimension to reduce; a sum of nothing is 0.", check_layer_run},
    {"kernel.layers", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: softmax, normalisations, losses of classes and embeddings, and their gradients: any dimensions, "
     "optional arguments that are None, results that output_mask leaves out, and nothing written but the results and "
     "what the operator says.",
     "mean and rstd have the input's dimensions, those that are normalised with size 1; ignored classes count in no "
     "sum.",
     check_layer_run},
    {"kernel.windows", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: pooling and convolutions, and their gradients: strides, padding, dilation, groups, transposed ones, "
     "lists of one number for all dimensions, sizes that no window divides.",
     "Padding of a pool is below every number, not 0; an empty `stride` is the kernel's size.", check_layer_run},
    {"kernel.moves", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: cat and stack of any tensors, also of empty ones, copies between types, fills, triangles and ranges, "
     "into results of any strides.",
     "The distance of two parts in the result is the part's size by the result's stride.", check_layer_run},
    {"kernel.indices", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: gather, scatter and index of any tensors, sort and topk along any dimension with the places of the "
     "numbers, sums along a dimension, and attention.",
     "Indices are a tensor with strides of its own; those of index.Tensor count from the end where they are negative.",
     check_layer_run},
};
const check_group check_layer_group = CHECK_GROUP(2, cases);
