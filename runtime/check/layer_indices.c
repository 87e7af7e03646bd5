/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_indices.c: operators that read or write where indices say, that sort, that add up along a dimension, and
 * attention, against a reference in C (layer_bench.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layer_bench.h"

/* As programs give it: from the end, too. */
static void
add_dim(check_layer *l, int64_t dim, int32_t ndim)
{
    check_layer_int(l, "dim", check_layer_toss(l) ? dim : dim - ndim);
}

static int64_t
count_of(int32_t ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int32_t d = 0; d < ndim; ++d)
        count *= shape[d];
    return count;
}

/* Where element i of a tensor of one shape is in one of another; in dimension `dim` at `there`. */
static int64_t
place_in(int32_t ndim, const int64_t *shape, int64_t i, const int64_t *in, int64_t dim, int64_t there)
{
    int64_t place = 0, stride = 1;
    for (int32_t d = ndim - 1; d >= 0; --d) {
        place += (d == dim ? there : i % shape[d]) * stride;
        i /= shape[d];
        stride *= in[d];
    }
    return place;
}

static double *
add_indices(check_layer *l, const char *name, int32_t ndim, const int64_t *shape, int64_t least, int64_t most)
{
    double *const at = check_layer_tensor(l, name, CHECK_INT64, ndim, shape);
    for (int64_t i = 0; i < count_of(ndim, shape); ++i)
        at[i] = (double)check_layer_between(l, least, most);
    return at;
}

/* gather(self, dim, index, sparse_grad), scatter_add(self, dim, index, src) and scatter.src: the indices of the last are
 * different ones, as nobody promises which of two equal ones counts. */
static void
gather(check_layer *l)
{
    int64_t shape[4], own[4];
    const bool is_gather = check_layer_is(l, "aten::gather"), adds = check_layer_is(l, "aten::scatter_add");
    const int32_t ndim = (int32_t)check_layer_between(l, 1, 4);
    const int64_t all = check_bench_shape(&l->b, ndim, 5, shape), dim = check_layer_between(l, 0, ndim - 1);
    for (int32_t d = 0; d < ndim; ++d)
        own[d] = check_layer_between(l, 1, shape[d]);
    if (is_gather || adds)
        own[dim] = check_layer_between(l, 1, 2 * shape[dim]);
    const double *const self = check_layer_tensor(l, "self", l->dtype, ndim, shape);
    add_dim(l, dim, ndim);
    double *const at = add_indices(l, "index", ndim, own, 0, shape[dim] - 1);
    const int64_t turn = check_layer_between(l, 0, shape[dim] - 1), count = count_of(ndim, own);
    const int64_t inner = count_of(ndim - (int32_t)dim - 1, own + dim + 1);
    for (int64_t i = 0; i < count && !is_gather && !adds; ++i)
        at[i] = (double)((i / inner % own[dim] + turn + i % inner) % shape[dim]);
    const double *const src = is_gather ? NULL : check_layer_tensor(l, "src", l->dtype, ndim, own);
    if (is_gather)
        check_layer_bool(l, "sparse_grad", false);
    double *const out = check_layer_result(l, l->dtype, ndim, is_gather ? own : shape);
    l->terms = adds ? (double)count : 0;
    if (!is_gather)
        memcpy(out, self, sizeof *out * (size_t)all);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t place = place_in(ndim, own, i, shape, dim, (int64_t)at[i]);
        if (is_gather)
            out[i] = self[place];
        else
            out[place] = src[i] + (adds ? out[place] : 0);
    }
}

/* index_select(self, dim, index) */
static void
index_select(check_layer *l)
{
    int64_t shape[4], own[4];
    const int32_t ndim = (int32_t)check_layer_between(l, 1, 4);
    (void)check_bench_shape(&l->b, ndim, 5, shape);
    const int64_t dim = check_layer_between(l, 0, ndim - 1), taken = check_layer_between(l, 1, 9);
    memcpy(own, shape, sizeof own);
    own[dim] = taken;
    const double *const self = check_layer_tensor(l, "self", l->dtype, ndim, shape);
    add_dim(l, dim, ndim);
    const double *const at = add_indices(l, "index", 1, &taken, 0, shape[dim] - 1);
    double *const out = check_layer_result(l, l->dtype, ndim, own);
    const int64_t inner = count_of(ndim - (int32_t)dim - 1, own + dim + 1);
    for (int64_t i = 0; i < count_of(ndim, own); ++i)
        out[i] = self[place_in(ndim, own, i, shape, dim, (int64_t)at[i / inner % taken])];
}

/* index.Tensor(self, indices): of the first dimensions, at times from the end. */
static void
index_tensors(check_layer *l)
{
    int64_t shape[4], own[2], result[5];
    const int32_t ndim = (int32_t)check_layer_between(l, 1, 4);
    (void)check_bench_shape(&l->b, ndim, 5, shape);
    const int32_t used = (int32_t)check_layer_between(l, 1, ndim < 3 ? ndim : 3), rest = ndim - used;
    const int32_t own_ndim = (int32_t)check_layer_between(l, 1, 2);
    const double *at[3];
    for (int32_t d = 0; d < own_ndim; ++d)
        result[d] = own[d] = check_layer_between(l, 1, 5);
    for (int32_t d = 0; d < rest; ++d)
        result[own_ndim + d] = shape[used + d];
    const double *const self = check_layer_tensor(l, "self", l->dtype, ndim, shape);
    for (int32_t t = 0; t < used; ++t)
        at[t] = add_indices(l, NULL, own_ndim, own, -shape[t], shape[t] - 1);
    check_layer_tensors(l, "indices", used);
    double *const out = check_layer_result(l, l->dtype, own_ndim + rest, result);
    const int64_t inner = count_of(rest, shape + used);
    for (int64_t i = 0; i < count_of(own_ndim, own); ++i) {
        int64_t from = 0;
        for (int32_t t = 0; t < used; ++t)
            from = from * shape[t] + ((int64_t)at[t][i] + shape[t]) % shape[t];
        memcpy(out + i * inner, self + from * inner, sizeof *out * (size_t)inner);
    }
}

/* Numbers of one row, and where each of them was. */
typedef struct ranked {
    double number;
    int64_t at;
} ranked;

/* sort(self, dim, descending), sort.stable(self, stable, dim, descending), topk(self, k, dim, largest, sorted), max.dim and
 * min.dim(self, dim, keepdim): values and their places. No two numbers of a row are equal, but for sort.stable. */
static void
rank(check_layer *l)
{
    const bool is_stable = check_layer_is(l, "aten::sort.stable"), is_topk = check_layer_is(l, "aten::topk");
    const bool is_sort = is_stable || check_layer_is(l, "aten::sort");
    int64_t shape[4], own[4], most = 0;
    const int32_t ndim = (int32_t)check_layer_between(l, 1, 4);
    const int64_t count = check_bench_shape(&l->b, ndim, 5, shape), dim = check_layer_between(l, 0, ndim - 1);
    const int64_t size = shape[dim], taken = is_sort ? size : is_topk ? check_layer_between(l, 1, size) : 1;
    const int64_t inner = count_of(ndim - (int32_t)dim - 1, shape + dim + 1);
    double *const x = check_layer_tensor(l, "self", l->dtype, ndim, shape);
    for (int64_t i = 0; i < count && !is_stable; ++i) {
        int64_t step = 37; /* has no divisor in common with the row's size, so that each number is there once */
        while (size % step == 0)
            ++step;
        x[i] = (double)((i / inner % size * step + i / inner / size + i % inner) % size - size / 2) / 4;
    }
    if (is_stable)
        check_layer_bool(l, "stable", true);
    if (is_topk)
        check_layer_int(l, "k", taken);
    add_dim(l, dim, ndim);
    const bool falls = is_sort || is_topk ? check_layer_toss(l) : check_layer_is(l, "aten::max.dim");
    const bool is_kept = is_sort || is_topk || check_layer_toss(l);
    check_layer_bool(l, is_sort ? "descending" : is_topk ? "largest" : "keepdim", is_sort || is_topk ? falls : is_kept);
    if (is_topk)
        check_layer_bool(l, "sorted", true);
    for (int32_t d = 0; d < ndim; ++d)
        if (d != dim || is_kept)
            own[most++] = d == dim ? taken : shape[d];
    double *const values = check_layer_result(l, l->dtype, (int32_t)most, own), *const places = check_layer_result(
                                                                                    l, CHECK_INT64, (int32_t)most, own);
    ranked *const row = malloc(sizeof *row * (size_t)size);
    for (int64_t r = 0; r < count / size; ++r) {
        const int64_t first = r / inner * size * inner + r % inner, to = r / inner * taken * inner + r % inner;
        for (int64_t k = 0; k < size; ++k) { /* equal ones stay in their order */
            int64_t p = k;
            const ranked new = {x[first + k * inner] * (falls ? -1 : 1), k};
            for (; p > 0 && row[p - 1].number > new.number; --p)
                row[p] = row[p - 1];
            row[p] = new;
        }
        for (int64_t k = 0; k < taken; ++k) {
            values[to + k * inner] = row[k].number * (falls ? -1 : 1);
            places[to + k * inner] = (double)row[k].at;
        }
    }
    free(row);
}

/* cumsum(self, dim, dtype) */
static void
cumsum(check_layer *l)
{
    int64_t shape[4];
    const int32_t ndim = (int32_t)check_layer_between(l, 1, 4);
    const int64_t count = check_bench_shape(&l->b, ndim, 5, shape), dim = check_layer_between(l, 0, ndim - 1);
    const int64_t inner = count_of(ndim - (int32_t)dim - 1, shape + dim + 1);
    const double *const x = check_layer_tensor(l, "self", l->dtype, ndim, shape);
    add_dim(l, dim, ndim);
    (void)check_layer_value(l, "dtype", OPENREG_VALUE_NONE);
    double *const out = check_layer_result(l, l->dtype, ndim, shape);
    l->terms = (double)shape[dim];
    for (int64_t i = 0; i < count; ++i)
        out[i] = x[i] + (i / inner % shape[dim] > 0 ? out[i - inner] : 0);
}

/* _scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, attn_mask, scale) */
static void
attention(check_layer *l)
{
    const int64_t heads = check_layer_between(l, 1, 3), queries = check_layer_between(l, 1, 40);
    const int64_t keys = check_layer_between(l, 1, 70), width = check_layer_between(l, 1, 20);
    const int64_t batch = check_layer_between(l, 1, 2);
    const int64_t of_query[] = {batch, heads, queries, width}, of_key[] = {batch, heads, keys, width};
    const int64_t of_mask[] = {batch, heads, queries, keys}, of_sum[] = {batch, heads, queries};
    const double *const query = check_layer_tensor(l, "query", l->dtype, 4, of_query);
    const double *const key = check_layer_tensor(l, "key", l->dtype, 4, of_key);
    const double *const value = check_layer_tensor(l, "value", l->dtype, 4, of_key);
    const bool is_causal = check_layer_toss(l), has_mask = !is_causal && check_layer_toss(l);
    check_layer_real(l, "dropout_p", 0);
    check_layer_bool(l, "is_causal", is_causal);
    const double *const mask = check_layer_maybe_tensor(l, "attn_mask", has_mask, 4, of_mask);
    double scale = 1 / sqrt((double)width);
    if (check_layer_toss(l))
        check_layer_real(l, "scale", scale = 0.125);
    else
        (void)check_layer_value(l, "scale", OPENREG_VALUE_NONE);
    double *const out = check_layer_result(l, l->dtype, 4, of_query), *const sums = check_layer_result(l, l->dtype, 3,
                                                                                                       of_sum);
    double *const weights = malloc(sizeof *weights * (size_t)keys);
    for (int64_t row = 0; row < batch * heads * queries; ++row) {
        const double *const k = key + row / queries * keys * width, *const v = value + row / queries * keys * width;
        const int64_t seen = is_causal && row % queries + 1 < keys ? row % queries + 1 : keys;
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < seen; ++j) {
            weights[j] = mask != NULL ? mask[row * keys + j] : 0;
            for (int64_t d = 0; d < width; ++d)
                weights[j] += query[row * width + d] * k[j * width + d] * scale;
            most = fmax(most, weights[j]);
        }
        for (int64_t j = 0; j < seen; ++j)
            sum += exp(weights[j] - most);
        sums[row] = most + log(sum);
        for (int64_t j = 0; j < seen; ++j)
            for (int64_t d = 0; d < width; ++d)
                out[row * width + d] += exp(weights[j] - sums[row]) * v[j * width + d];
    }
    free(weights);
}

const check_layer_operator check_index_layers[] = {
    {"aten::gather", gather},
    {"aten::scatter.src", gather},
    {"aten::scatter_add", gather},
    {"aten::index_select", index_select},
    {"aten::index.Tensor", index_tensors},
    {"aten::sort", rank},
    {"aten::sort.stable", rank},
    {"aten::topk", rank},
    {"aten::max.dim", rank},
    {"aten::min.dim", rank},
    {"aten::cumsum", cumsum},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
    {NULL, NULL},
};
