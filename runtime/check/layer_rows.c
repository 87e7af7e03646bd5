/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_rows.c: softmax, normalisations, losses of classes and embeddings, and their gradients, against a reference in
 * C (layer_bench.h). */
#include <math.h>
#include <string.h>

#include "layer_bench.h"

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

/* x and y may be the same. */
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
    (void)check_bench_shape(&l->b, ndim, 6, shape);
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
    const int64_t count = check_bench_shape(&l->b, ndim, 6, shape), dim = pick_dim(l, ndim, shape);
    const rows r = rows_of(ndim, shape, dim < 0 ? dim + ndim : dim);
    const double *const grad = check_layer_tensor(l, "grad_output", l->dtype, ndim, shape);
    double *const y = check_layer_tensor(l, "output", l->dtype, ndim, shape);
    exponentials(&r, y, y, is_log);
    for (int64_t i = 0; i < count; ++i)
        y[i] = check_layer_rounded(l, y[i]);
    check_layer_int(l, "dim", dim);
    check_layer_value(l, "input_dtype", OPENREG_VALUE_DTYPE)->dtype = l->dtype;
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
    (void)check_bench_shape(&l->b, *ndim, 6, shape);
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
    const double *const weight = check_layer_maybe_tensor(l, "weight", check_layer_toss(l), last, shape + ndim - last);
    const double *const bias = check_layer_maybe_tensor(l, "bias", check_layer_toss(l), last, shape + ndim - last);
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

/* The gradients of one group: of the input, the weight and the bias. The last two have a number for each of the group's,
 * or, with `of_groups`, for each group. */
static void
normal_gradients(const rows *r, int64_t group, const moments *m, const double *grad, const double *x,
                 const double *weight, bool of_groups, bool is_constant, double *const *out)
{
    const int64_t count = r->outer * r->inner;
    double sum = 0, product = 0;
    for (int64_t k = 0; k < count; ++k) {
        const int64_t i = index_in(r, group, k), at = of_groups ? group : k;
        const double g = grad[i] * (weight != NULL ? weight[at] : 1), distance = (x[i] - m->mean) * m->scale;
        sum += g / (double)count;
        product += g * distance / (double)count;
        if (out[1] != NULL)
            out[1][at] += grad[i] * distance;
        if (out[2] != NULL)
            out[2][at] += grad[i];
    }
    for (int64_t k = 0; k < count && out[0] != NULL; ++k) {
        const int64_t i = index_in(r, group, k);
        const double g = grad[i] * (weight != NULL ? weight[of_groups ? group : k] : 1);
        out[0][i] = m->scale * (is_constant ? g : g - sum - (x[i] - m->mean) * m->scale * product);
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
    const double *const weight = check_layer_maybe_tensor(l, "weight", check_layer_toss(l), last, inner);
    const double *const bias = check_layer_maybe_tensor(l, "bias", check_layer_toss(l), last, inner);
    const bool mask[] = {check_layer_toss(l), weight != NULL && check_layer_toss(l),
                         bias != NULL && check_layer_toss(l)};
    double *out[3];
    check_layer_gradients(l, mask, (const int32_t[]){ndim, last, last}, (const int64_t *const[]){shape, inner, inner},
                          out);
    l->terms = (double)r.size;
    for (int64_t row = 0; row < r.size; ++row)
        normal_gradients(&r, row, &(const moments){mean[row], scale[row], 0}, grad, x, weight, false, false, out);
}

/* Images: (N, C), (N, C, L) or (N, C, H, W). */
static rows
pick_batch_shape(check_layer *l, int32_t *ndim, int64_t *shape)
{
    *ndim = (int32_t)check_layer_between(l, 2, 4);
    (void)check_bench_shape(&l->b, *ndim, 4, shape);
    shape[0] += 1; /* of one number there is no variance */
    return rows_of(*ndim, shape, 1);
}

static double *
positive_tensor(check_layer *l, const char *name, bool is_there, int64_t count)
{
    double *const numbers = check_layer_maybe_tensor(l, name, is_there, 1, &count);
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
    const double *const weight = check_layer_maybe_tensor(l, "weight", check_layer_toss(l), 1, &r.size);
    const double *const bias = check_layer_maybe_tensor(l, "bias", weight != NULL, 1, &r.size);
    const double *const mean = check_layer_maybe_tensor(l, "running_mean", is_kept, 1, &r.size);
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
    const double *const weight = check_layer_maybe_tensor(l, "weight", check_layer_toss(l), 1, &r.size);
    const double *const mean = check_layer_maybe_tensor(l, "running_mean", true, 1, &r.size);
    const double *const variance = positive_tensor(l, "running_var", true, r.size);
    double *const save_mean = check_layer_maybe_tensor(l, "save_mean", is_training, 1, &r.size);
    double *const save_scale = check_layer_maybe_tensor(l, "save_invstd", is_training, 1, &r.size);
    const bool mask[] = {check_layer_toss(l), weight != NULL && check_layer_toss(l),
                         weight != NULL && check_layer_toss(l)};
    check_layer_bool(l, "train", is_training);
    check_layer_real(l, "eps", eps);
    double *out[3];
    check_layer_gradients(l, mask, (const int32_t[]){ndim, 1, 1}, (const int64_t *const[]){shape, &r.size, &r.size},
                          out);
    l->terms = (double)(r.outer * r.inner);
    for (int64_t channel = 0; channel < r.size; ++channel) {
        moments m = {mean[channel], 1 / sqrt(variance[channel] + eps), 0};
        if (is_training) {
            m = moments_of(x, &r, channel, eps);
            save_mean[channel] = m.mean = check_layer_rounded(l, m.mean);
            save_scale[channel] = m.scale = check_layer_rounded(l, m.scale);
        }
        normal_gradients(&r, channel, &m, grad, x, weight, true, !is_training, out);
    }
}

/* Of rows of numbers, one for each class. */
typedef struct loss {
    int64_t shape[2], reduction, ignored;
    const double *grad, *x, *at, *weight; /* grad: NULL for the loss itself; at: the class of each row */
} loss;

static loss
pick_loss(check_layer *l, bool has_grad)
{
    loss s = {.grad = NULL};
    (void)check_bench_shape(&l->b, 2, 6, s.shape);
    s.shape[1] += s.shape[1] == 1; /* of classes there are two */
    s.reduction = check_layer_between(l, 0, 2);
    s.ignored = check_layer_toss(l) ? -100 : 1;
    if (has_grad)
        s.grad = check_layer_tensor(l, "grad_output", l->dtype, s.reduction == 0, s.shape);
    s.x = check_layer_tensor(l, "self", l->dtype, 2, s.shape);
    double *const at = check_layer_tensor(l, "target", CHECK_INT64, 1, s.shape);
    for (int64_t i = 0; i < s.shape[0]; ++i)
        at[i] = (double)(s.ignored < 0 && i > 0 && check_layer_between(l, 0, 4) == 0
                             ? s.ignored
                             : check_layer_between(l, 0, s.shape[1] - 1));
    if ((int64_t)at[0] == s.ignored) /* at least the first isn't */
        at[0] = (double)((s.ignored + 1) % s.shape[1]);
    s.at = at;
    s.weight = positive_tensor(l, "weight", check_layer_toss(l), s.shape[1]);
    check_layer_int(l, "reduction", s.reduction);
    check_layer_int(l, "ignore_index", s.ignored);
    return s;
}

/* 0 for a row whose class is ignored. */
static double
weight_of(const loss *s, int64_t row)
{
    const int64_t at = (int64_t)s->at[row];
    return at == s->ignored ? 0 : s->weight != NULL ? s->weight[at] : 1;
}

static double
sum_of_weights(const loss *s)
{
    double sum = 0;
    for (int64_t i = 0; i < s->shape[0] && s->reduction != 0; ++i)
        sum += weight_of(s, i);
    return sum;
}

static void
nll_loss(check_layer *l)
{
    const loss s = pick_loss(l, false);
    double *const out = check_layer_result(l, l->dtype, s.reduction == 0, s.shape);
    double *const total = check_layer_result(l, l->dtype, 0, NULL);
    total[0] = sum_of_weights(&s);
    for (int64_t i = 0; i < s.shape[0]; ++i)
        if ((int64_t)s.at[i] != s.ignored)
            out[s.reduction == 0 ? i : 0] -= s.x[i * s.shape[1] + (int64_t)s.at[i]] * weight_of(&s, i);
    out[0] /= s.reduction == 1 ? total[0] : 1;
}

static void
nll_loss_backward(check_layer *l)
{
    const loss s = pick_loss(l, true);
    double *const total = check_layer_tensor(l, "total_weight", l->dtype, 0, NULL);
    double *const out = check_layer_result(l, l->dtype, 2, s.shape);
    total[0] = sum_of_weights(&s);
    for (int64_t i = 0; i < s.shape[0]; ++i)
        if ((int64_t)s.at[i] != s.ignored)
            out[i * s.shape[1] + (int64_t)s.at[i]] = -weight_of(&s, i) * s.grad[s.reduction == 0 ? i : 0] /
                                                     (s.reduction == 1 ? total[0] : 1);
}

/* Sizes of the table and of its indices, whose number it returns; one of the two may have a long dimension. */
static int64_t
pick_table(check_layer *l, int64_t *table, int32_t *ndim, int64_t *shape)
{
    const bool is_table = check_layer_toss(l);
    *ndim = (int32_t)check_layer_between(l, 0, 3);
    if (is_table)
        (void)check_bench_shape(&l->b, 2, 7, table);
    const int64_t count = check_bench_shape(&l->b, *ndim, 4, shape);
    l->b.longest = 0;
    if (!is_table)
        (void)check_bench_shape(&l->b, 2, 7, table);
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
    {NULL, NULL},
};
