/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_checks.c: softmax, normalisations, losses of classes and embeddings, and their gradients, against a reference in
 * C (layer_bench.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layer_bench.h"

static const openreg_dtype int64 = {OPENREG_DTYPE_INT, 64, 1};

/* A shape as rows of `size` elements in one dimension: element k of row (a, b) is at (a * size + k) * inner + b. */
typedef struct rows {
    int64_t outer, size, inner;
} rows;

static rows
rows_of(int32_t ndim, const int64_t *shape, int64_t dim)
{
    rows r = {1, shape[dim], 1};
    for (int32_t d = 0; d < ndim; ++d)
        *(d < dim ? &r.outer : &r.inner) *= d == dim ? 1 : shape[d];
    return r;
}

/* ------------------------------------------------------------------------------------------------------------- softmax */

static void
exponentials(const rows *r, const double *x, double *y, bool is_log)
{
    for (int64_t row = 0; row < r->outer * r->inner; ++row) {
        const int64_t first = row / r->inner * r->size * r->inner + row % r->inner;
        double sum = 0;
        for (int64_t k = 0; k < r->size; ++k)
            sum += exp(x[first + k * r->inner]);
        for (int64_t k = 0; k < r->size; ++k)
            y[first + k * r->inner] = is_log ? x[first + k * r->inner] - log(sum) : exp(x[first + k * r->inner]) / sum;
    }
}

static int64_t
pick_dim(check_layer *l, int32_t ndim, const int64_t *shape)
{
    int64_t dim = check_layer_between(l, 0, ndim - 1);
    for (int32_t d = 0; d < ndim; ++d)
        dim = shape[d] > 6 && check_layer_between(l, 0, 3) > 0 ? d : dim; /* a long one, by preference */
    return dim - (check_layer_toss(l) ? ndim : 0);
}

static bool
is_log_softmax(const check_layer *l)
{
    return strncmp(l->b.kernel->name, "aten::_log", 10) == 0;
}

static void
softmax(check_layer *l)
{
    int64_t shape[4];
    const int32_t ndim = (int32_t)check_layer_between(l, 1, 4);
    (void)check_layer_shape(l, ndim, 6, shape);
    const double *const x = check_layer_tensor(l, "self", l->dtype, ndim, shape);
    const int64_t dim = pick_dim(l, ndim, shape);
    const rows r = rows_of(ndim, shape, dim < 0 ? dim + ndim : dim);
    check_layer_int(l, "dim", dim);
    check_layer_bool(l, "half_to_float", false);
    exponentials(&r, x, check_layer_result(l, l->dtype, ndim, shape), is_log_softmax(l));
}

static void
softmax_backward(check_layer *l)
{
    const bool is_log = is_log_softmax(l);
    int64_t shape[4];
    const int32_t ndim = (int32_t)check_layer_between(l, 1, 4);
    const int64_t count = check_layer_shape(l, ndim, 6, shape), dim = pick_dim(l, ndim, shape);
    const rows r = rows_of(ndim, shape, dim < 0 ? dim + ndim : dim);
    const double *const grad = check_layer_tensor(l, "grad_output", l->dtype, ndim, shape);
    double *const y = check_layer_tensor(l, "output", l->dtype, ndim, shape);
    double *const x = malloc(sizeof(double) * (size_t)count);
    memcpy(x, y, sizeof(double) * (size_t)count);
    exponentials(&r, x, y, is_log);
    free(x);
    for (int64_t i = 0; i < count; ++i)
        y[i] = check_layer_rounded(l, y[i]);
    check_layer_int(l, "dim", dim);
    check_layer_dtype(l, "input_dtype", l->dtype);
    double *const out = check_layer_result(l, l->dtype, ndim, shape);
    for (int64_t row = 0; row < r.outer * r.inner; ++row) {
        const int64_t first = row / r.inner * r.size * r.inner + row % r.inner;
        double sum = 0;
        for (int64_t k = 0; k < r.size; ++k)
            sum += grad[first + k * r.inner] * (is_log ? 1 : y[first + k * r.inner]);
        for (int64_t k = 0; k < r.size; ++k) {
            const int64_t i = first + k * r.inner;
            out[i] = is_log ? grad[i] - exp(y[i]) * sum : (grad[i] - sum) * y[i];
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ normalisations */

/* A tensor, or None and NULL. */
static double *
maybe_tensor(check_layer *l, const char *name, bool is_there, int32_t ndim, const int64_t *shape)
{
    if (is_there)
        return check_layer_tensor(l, name, l->dtype, ndim, shape);
    check_layer_none(l, name);
    return NULL;
}

static double *
maybe_result(check_layer *l, bool is_there, int32_t ndim, const int64_t *shape)
{
    if (is_there)
        return check_layer_result(l, l->dtype, ndim, shape);
    check_layer_no_result(l);
    return NULL;
}

typedef struct moments {
    double mean, scale, squares; /* scale: 1 / sqrt(variance + eps); squares: the sum of squared distances */
} moments;

/* Of `count` numbers; number k is at index(k). Each of `groups` has a stretch of `inner` in each of `outer`. */
static int64_t
index_in(const rows *r, int64_t group, int64_t k)
{
    return (k / r->inner * r->size + group) * r->inner + k % r->inner;
}

static moments
moments_of(const double *x, const rows *r, int64_t group, double eps)
{
    const int64_t count = r->outer * r->inner;
    moments m = {0, 0, 0};
    for (int64_t k = 0; k < count; ++k)
        m.mean += x[index_in(r, group, k)] / (double)count;
    for (int64_t k = 0; k < count; ++k)
        m.squares += pow(x[index_in(r, group, k)] - m.mean, 2);
    m.scale = 1 / sqrt(m.squares / (double)count + eps);
    return m;
}

/* Sizes of a normalised input, as rows whose groups are normalised each: `size` groups of outer * inner numbers. */
static rows
pick_layer_shape(check_layer *l, int32_t *ndim, int32_t *last, int64_t *shape, int64_t *of_rows)
{
    rows r = {1, 1, 1};
    *ndim = (int32_t)check_layer_between(l, 1, 4);
    *last = (int32_t)check_layer_between(l, 1, *ndim > 1 ? 2 : 1);
    (void)check_layer_shape(l, *ndim, 6, shape);
    for (int32_t d = 0; d < *ndim; ++d) {
        of_rows[d] = d < *ndim - *last ? shape[d] : 1;
        *(d < *ndim - *last ? &r.size : &r.inner) *= shape[d];
    }
    return r;
}

static void
layer_norm(check_layer *l)
{
    int64_t shape[4], of_rows[4];
    int32_t ndim, last;
    const rows r = pick_layer_shape(l, &ndim, &last, shape, of_rows);
    const double eps = check_layer_toss(l) ? 1e-5 : 0.5;
    const double *const x = check_layer_tensor(l, "input", l->dtype, ndim, shape);
    check_layer_ints(l, "normalized_shape", last, shape + ndim - last);
    const double *const weight = maybe_tensor(l, "weight", check_layer_toss(l), last, shape + ndim - last);
    const double *const bias = maybe_tensor(l, "bias", check_layer_toss(l), last, shape + ndim - last);
    check_layer_real(l, "eps", eps);
    double *const out = check_layer_result(l, l->dtype, ndim, shape),
                  *const mean = check_layer_result(l, l->dtype, ndim, of_rows),
                  *const scale = check_layer_result(l, l->dtype, ndim, of_rows);
    for (int64_t row = 0; row < r.size; ++row) {
        const moments m = moments_of(x, &r, row, eps);
        mean[row] = m.mean;
        scale[row] = m.scale;
        for (int64_t k = 0; k < r.inner; ++k)
            out[row * r.inner + k] = (x[row * r.inner + k] - m.mean) * m.scale * (weight != NULL ? weight[k] : 1) +
                                     (bias != NULL ? bias[k] : 0);
    }
}

/* The gradient of what is normalised, of one group; weight(k) by its number. */
static void
normal_gradient(const rows *r, int64_t group, const moments *m, const double *grad, const double *x,
                const double *weights, double weight, bool is_constant, double *out)
{
    const int64_t count = r->outer * r->inner;
    double sum = 0, product = 0;
    for (int64_t k = 0; k < count; ++k) {
        const int64_t i = index_in(r, group, k);
        const double g = grad[i] * (weights != NULL ? weights[k] : weight);
        sum += g / (double)count;
        product += g * (x[i] - m->mean) * m->scale / (double)count;
    }
    for (int64_t k = 0; k < count; ++k) {
        const int64_t i = index_in(r, group, k);
        const double g = grad[i] * (weights != NULL ? weights[k] : weight);
        out[i] = m->scale * (is_constant ? g : g - sum - (x[i] - m->mean) * m->scale * product);
    }
}

static void
layer_norm_backward(check_layer *l)
{
    int64_t shape[4], of_rows[4];
    int32_t ndim, last;
    const rows r = pick_layer_shape(l, &ndim, &last, shape, of_rows);
    const int64_t *const inner = shape + ndim - last;
    const double *const grad = check_layer_tensor(l, "grad_out", l->dtype, ndim, shape);
    const double *const x = check_layer_tensor(l, "input", l->dtype, ndim, shape);
    check_layer_ints(l, "normalized_shape", last, inner);
    double *const mean = check_layer_tensor(l, "mean", l->dtype, ndim, of_rows);
    double *const scale = check_layer_tensor(l, "rstd", l->dtype, ndim, of_rows);
    for (int64_t row = 0; row < r.size; ++row) {
        const moments m = moments_of(x, &r, row, 0.5);
        mean[row] = check_layer_rounded(l, m.mean);
        scale[row] = check_layer_rounded(l, m.scale);
    }
    const double *const weight = maybe_tensor(l, "weight", check_layer_toss(l), last, inner);
    const double *const bias = maybe_tensor(l, "bias", check_layer_toss(l), last, inner);
    const bool mask[] = {check_layer_toss(l), weight != NULL && check_layer_toss(l),
                         bias != NULL && check_layer_toss(l)};
    check_layer_bools(l, "output_mask", 3, mask);
    double *const of_input = maybe_result(l, mask[0], ndim, shape),
                  *const of_weight = maybe_result(l, mask[1], last, inner),
                  *const of_bias = maybe_result(l, mask[2], last, inner);
    l->terms = (double)r.size;
    for (int64_t row = 0; row < r.size; ++row) {
        const moments m = {mean[row], scale[row], 0};
        if (of_input != NULL)
            normal_gradient(&r, row, &m, grad, x, weight, 1, false, of_input);
        for (int64_t k = 0; k < r.inner; ++k) {
            const int64_t i = row * r.inner + k;
            if (of_weight != NULL)
                of_weight[k] += grad[i] * (x[i] - m.mean) * m.scale;
            if (of_bias != NULL)
                of_bias[k] += grad[i];
        }
    }
}

/* Images: (N, C), (N, C, L) or (N, C, H, W). */
static rows
pick_batch_shape(check_layer *l, int32_t *ndim, int64_t *shape)
{
    *ndim = (int32_t)check_layer_between(l, 2, 4);
    (void)check_layer_shape(l, *ndim, 4, shape);
    shape[0] += 1; /* of one number there is no variance */
    return rows_of(*ndim, shape, 1);
}

static double *
positive_tensor(check_layer *l, const char *name, bool is_there, int64_t count)
{
    double *const numbers = maybe_tensor(l, name, is_there, 1, &count);
    for (int64_t i = 0; numbers != NULL && i < count; ++i)
        numbers[i] = fabs(numbers[i]) + 0.25;
    return numbers;
}

static void
batch_norm(check_layer *l)
{
    int64_t shape[4];
    int32_t ndim;
    const rows r = pick_batch_shape(l, &ndim, shape);
    const bool is_training = check_layer_toss(l), is_kept = !is_training || check_layer_toss(l);
    const double eps = check_layer_toss(l) ? 1e-5 : 0.5, momentum = check_layer_toss(l) ? 0.1 : 0.75;
    const double count = (double)(r.outer * r.inner);
    const double *const x = check_layer_tensor(l, "input", l->dtype, ndim, shape);
    const double *const weight = maybe_tensor(l, "weight", check_layer_toss(l), 1, &r.size);
    const double *const bias = maybe_tensor(l, "bias", weight != NULL, 1, &r.size);
    const double *const mean = maybe_tensor(l, "running_mean", is_kept, 1, &r.size);
    double *const new_mean = is_training && is_kept ? check_layer_written(l) : NULL;
    const double *const variance = positive_tensor(l, "running_var", is_kept, r.size);
    double *const new_variance = is_training && is_kept ? check_layer_written(l) : NULL;
    check_layer_bool(l, "training", is_training);
    check_layer_real(l, "momentum", momentum);
    check_layer_real(l, "eps", eps);
    const int64_t kept = is_training ? r.size : 0;
    double *const out = check_layer_result(l, l->dtype, ndim, shape),
                  *const save_mean = check_layer_result(l, l->dtype, 1, &kept),
                  *const save_scale = check_layer_result(l, l->dtype, 1, &kept);
    for (int64_t channel = 0; channel < r.size; ++channel) {
        moments m = moments_of(x, &r, channel, eps);
        if (!is_training)
            m = (moments){mean[channel], 1 / sqrt(variance[channel] + eps), 0};
        for (int64_t k = 0; k < r.outer * r.inner; ++k) {
            const int64_t i = index_in(&r, channel, k);
            out[i] = (x[i] - m.mean) * m.scale * (weight != NULL ? weight[channel] : 1) +
                     (bias != NULL ? bias[channel] : 0);
        }
        if (is_training) {
            save_mean[channel] = m.mean;
            save_scale[channel] = m.scale;
        }
        if (new_mean != NULL && new_variance != NULL) {
            new_mean[channel] = (1 - momentum) * mean[channel] + momentum * m.mean;
            new_variance[channel] = (1 - momentum) * variance[channel] + momentum * m.squares / (count - 1);
        }
    }
}

static void
batch_norm_backward(check_layer *l)
{
    int64_t shape[4];
    int32_t ndim;
    const rows r = pick_batch_shape(l, &ndim, shape);
    const bool is_training = check_layer_toss(l);
    const double eps = 0.5;
    const double *const grad = check_layer_tensor(l, "grad_out", l->dtype, ndim, shape);
    const double *const x = check_layer_tensor(l, "input", l->dtype, ndim, shape);
    const double *const weight = maybe_tensor(l, "weight", check_layer_toss(l), 1, &r.size);
    const double *const mean = maybe_tensor(l, "running_mean", true, 1, &r.size);
    const double *const variance = positive_tensor(l, "running_var", true, r.size);
    double *const save_mean = maybe_tensor(l, "save_mean", is_training, 1, &r.size);
    double *const save_scale = maybe_tensor(l, "save_invstd", is_training, 1, &r.size);
    const bool mask[] = {check_layer_toss(l), weight != NULL && check_layer_toss(l),
                         weight != NULL && check_layer_toss(l)};
    check_layer_bool(l, "train", is_training);
    check_layer_real(l, "eps", eps);
    check_layer_bools(l, "output_mask", 3, mask);
    double *const of_input = maybe_result(l, mask[0], ndim, shape),
                  *const of_weight = maybe_result(l, mask[1], 1, &r.size),
                  *const of_bias = maybe_result(l, mask[2], 1, &r.size);
    l->terms = (double)(r.outer * r.inner);
    for (int64_t channel = 0; channel < r.size; ++channel) {
        moments m = {mean[channel], 1 / sqrt(variance[channel] + eps), 0};
        if (is_training) {
            m = moments_of(x, &r, channel, eps);
            save_mean[channel] = m.mean = check_layer_rounded(l, m.mean);
            save_scale[channel] = m.scale = check_layer_rounded(l, m.scale);
        }
        if (of_input != NULL)
            normal_gradient(&r, channel, &m, grad, x, NULL, weight != NULL ? weight[channel] : 1, !is_training,
                            of_input);
        for (int64_t k = 0; k < r.outer * r.inner; ++k) {
            const int64_t i = index_in(&r, channel, k);
            if (of_weight != NULL)
                of_weight[channel] += grad[i] * (x[i] - m.mean) * m.scale;
            if (of_bias != NULL)
                of_bias[channel] += grad[i];
        }
    }
}

/* -------------------------------------------------------------------------------------------------------------- losses */

/* Classes, of which at least the first isn't ignored. */
static double *
pick_classes(check_layer *l, const char *name, int64_t count, int64_t classes, int64_t ignored)
{
    double *const at = check_layer_tensor(l, name, int64, 1, &count);
    for (int64_t i = 0; i < count; ++i)
        at[i] = (double)(ignored < 0 && i > 0 && check_layer_between(l, 0, 4) == 0
                             ? ignored
                             : check_layer_between(l, 0, classes - 1));
    if ((int64_t)at[0] == ignored)
        at[0] = (double)((ignored + 1) % classes);
    return at;
}

static void
nll_loss(check_layer *l)
{
    int64_t shape[2];
    (void)check_layer_shape(l, 2, 6, shape);
    shape[1] += shape[1] == 1; /* of classes there are two */
    const int64_t reduction = check_layer_between(l, 0, 2), ignored = check_layer_toss(l) ? -100 : 1;
    const double *const x = check_layer_tensor(l, "self", l->dtype, 2, shape);
    const double *const at = pick_classes(l, "target", shape[0], shape[1], ignored);
    const double *const weight = positive_tensor(l, "weight", check_layer_toss(l), shape[1]);
    check_layer_int(l, "reduction", reduction);
    check_layer_int(l, "ignore_index", ignored);
    double *const out = check_layer_result(l, l->dtype, reduction == 0, shape);
    double *const total = check_layer_result(l, l->dtype, 0, NULL);
    double sum = 0, weights = 0;
    for (int64_t i = 0; i < shape[0]; ++i) {
        if ((int64_t)at[i] == ignored)
            continue;
        const double w = weight != NULL ? weight[(int64_t)at[i]] : 1, loss = -x[i * shape[1] + (int64_t)at[i]] * w;
        sum += loss;
        weights += w;
        if (reduction == 0)
            out[i] = loss;
    }
    if (reduction != 0) {
        out[0] = reduction == 1 ? sum / weights : sum;
        total[0] = weights;
    }
}

static void
nll_loss_backward(check_layer *l)
{
    int64_t shape[2];
    (void)check_layer_shape(l, 2, 6, shape);
    shape[1] += shape[1] == 1; /* of classes there are two */
    const int64_t reduction = check_layer_between(l, 0, 2), ignored = check_layer_toss(l) ? -100 : 1;
    const double *const grad = check_layer_tensor(l, "grad_output", l->dtype, reduction == 0, shape);
    (void)check_layer_tensor(l, "self", l->dtype, 2, shape);
    const double *const at = pick_classes(l, "target", shape[0], shape[1], ignored);
    const double *const weight = positive_tensor(l, "weight", check_layer_toss(l), shape[1]);
    check_layer_int(l, "reduction", reduction);
    check_layer_int(l, "ignore_index", ignored);
    double *const total = check_layer_tensor(l, "total_weight", l->dtype, 0, NULL);
    double *const out = check_layer_result(l, l->dtype, 2, shape);
    total[0] = 0;
    for (int64_t i = 0; i < shape[0] && reduction != 0; ++i)
        if ((int64_t)at[i] != ignored)
            total[0] += weight != NULL ? weight[(int64_t)at[i]] : 1;
    for (int64_t i = 0; i < shape[0]; ++i)
        if ((int64_t)at[i] != ignored)
            out[i * shape[1] + (int64_t)at[i]] = -(weight != NULL ? weight[(int64_t)at[i]] : 1) *
                                                 grad[reduction == 0 ? i : 0] / (reduction == 1 ? total[0] : 1);
}

/* ---------------------------------------------------------------------------------------------------------- embeddings */

/* Sizes of the table and of its indices, whose number it returns; one of the two may have a long dimension. */
static int64_t
pick_table(check_layer *l, int64_t *table, int32_t *ndim, int64_t *shape)
{
    const bool is_table = check_layer_toss(l);
    *ndim = (int32_t)check_layer_between(l, 0, 3);
    if (is_table)
        (void)check_layer_shape(l, 2, 7, table);
    const int64_t count = check_layer_shape(l, *ndim, 4, shape);
    l->b.longest = 0;
    if (!is_table)
        (void)check_layer_shape(l, 2, 7, table);
    return count;
}

static double *
pick_rows(check_layer *l, int32_t ndim, const int64_t *shape, int64_t count, int64_t most)
{
    const openreg_dtype dtype = check_dtypes[check_layer_toss(l) ? 1 : 3]; /* int64, int32 */
    double *const at = check_layer_tensor(l, "indices", dtype, ndim, shape);
    for (int64_t i = 0; i < count; ++i)
        at[i] = (double)check_layer_between(l, 0, most - 1);
    return at;
}

static void
embedding(check_layer *l)
{
    int64_t shape[4], table[2];
    int32_t ndim;
    const int64_t count = pick_table(l, table, &ndim, shape);
    const double *const weight = check_layer_tensor(l, "weight", l->dtype, 2, table);
    const double *const at = pick_rows(l, ndim, shape, count, table[0]);
    check_layer_int(l, "padding_idx", check_layer_between(l, -1, table[0] - 1));
    check_layer_bool(l, "scale_grad_by_freq", false);
    check_layer_bool(l, "sparse", false);
    shape[ndim] = table[1];
    double *const out = check_layer_result(l, l->dtype, ndim + 1, shape);
    for (int64_t i = 0; i < count * table[1]; ++i)
        out[i] = weight[(int64_t)at[i / table[1]] * table[1] + i % table[1]];
}

static void
embedding_backward(check_layer *l)
{
    int64_t shape[4], table[2];
    int32_t ndim;
    const int64_t count = pick_table(l, table, &ndim, shape), padding = check_layer_between(l, -1, table[0] - 1);
    const bool is_scaled = check_layer_between(l, 0, 3) == 0;
    shape[ndim] = table[1];
    const double *const grad = check_layer_tensor(l, "grad_output", l->dtype, ndim + 1, shape);
    const double *const at = pick_rows(l, ndim, shape, count, table[0]);
    check_layer_int(l, "num_weights", table[0]);
    check_layer_int(l, "padding_idx", padding);
    check_layer_bool(l, "scale_grad_by_freq", is_scaled);
    double *const out = check_layer_result(l, l->dtype, 2, table), uses[1100] = {0};
    for (int64_t i = 0; i < count; ++i)
        ++uses[(int64_t)at[i]];
    for (int64_t i = 0; i < count * table[1]; ++i) {
        const int64_t row = (int64_t)at[i / table[1]];
        if (row != padding)
            out[row * table[1] + i % table[1]] += grad[i] / (is_scaled ? uses[row] : 1);
    }
}

/* --------------------------------------------------------------------------------------------------------------- check */

const check_layer_operator check_row_layers[] = {
    {"aten::_softmax", softmax},
    {"aten::_log_softmax", softmax},
    {"aten::_softmax_backward_data", softmax_backward},
    {"aten::_log_softmax_backward_data", softmax_backward},
    {"aten::native_layer_norm", layer_norm},
    {"aten::native_layer_norm_backward", layer_norm_backward},
    {"aten::native_batch_norm", batch_norm},
    {"aten::native_batch_norm_backward", batch_norm_backward},
    {"aten::nll_loss_forward", nll_loss},
    {"aten::nll_loss_backward", nll_loss_backward},
    {"aten::embedding", embedding},
    {"aten::embedding_dense_backward", embedding_backward},
};
const size_t check_row_layer_count = sizeof check_row_layers / sizeof check_row_layers[0];

static const check_case cases[] = {
    {"kernel.layers", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: softmax, normalisations, losses of classes and embeddings, and their gradients: any dimensions, "
     "optional arguments that are None, results that output_mask leaves out, and nothing written but the results and "
     "what the "
     "operator says.",
     "mean and rstd have the input's dimensions, those that are normalised with size 1; ignored classes count in no "
     "sum.",
     check_layer_run},
};
const check_group check_layer_group = CHECK_GROUP(2, cases);
