/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_moves.c: operators that put tensors together, copy, fill, count and cut them, against a reference in C
 * (layer_bench.h). */
#include <math.h>
#include <string.h>

#include "layer_bench.h"

/* A tensor that an in-place operator writes: argument "self" and the result. Its memory may have any strides. */
static double *
pick_target(check_layer *l, const char *name, int32_t ndim, const int64_t *shape)
{
    const int place = l->tensors;
    (void)check_layer_tensor(l, name, l->dtype, ndim, shape);
    check_layer_result_is(l, place);
    return check_layer_written(l);
}

static void
join(check_layer *l)
{
    const bool is_stack = check_layer_is(l, "aten::stack");
    int64_t shape[CHECK_DIMS], out_shape[CHECK_DIMS], own[CHECK_DIMS], sizes[CHECK_LAYER_LIST];
    const int32_t ndim = (int32_t)check_layer_between(l, is_stack ? 0 : 1, 4), results = ndim + is_stack;
    const int count = (int)check_layer_between(l, 1, CHECK_LAYER_LIST);
    const int64_t dim = check_layer_between(l, 0, results - 1);
    const double *parts[CHECK_LAYER_LIST];
    l->dtype = check_dtypes[check_layer_between(l, 0, CHECK_DTYPES - 1)];
    (void)check_bench_shape(&l->b, ndim, 4, shape);
    int64_t total = 0, outer = 1, inner = 1;
    for (int t = 0; t < count; ++t) {
        memcpy(own, shape, sizeof own);
        if (!is_stack)
            own[dim] = check_layer_between(l, count > 1 ? 0 : 1, shape[dim] > 4 ? shape[dim] : 4);
        parts[t] = check_layer_tensor(l, NULL, l->dtype, ndim, own);
        total += sizes[t] = is_stack ? 1 : own[dim];
    }
    check_layer_tensors(l, "tensors", count);
    check_layer_int(l, "dim", check_layer_toss(l) ? dim : dim - results);
    for (int32_t d = 0, from = 0; d < results; ++d) {
        out_shape[d] = d == dim ? total : shape[from];
        from += d != dim || !is_stack;
        *(d < dim ? &outer : &inner) *= d == dim ? 1 : out_shape[d];
    }
    double *const out = check_layer_result(l, l->dtype, results, out_shape);
    int64_t before = 0;
    for (int t = 0; t < count; before += sizes[t++])
        for (int64_t i = 0; i < outer * sizes[t] * inner; ++i)
            out[(i / (sizes[t] * inner) * total + before) * inner + i % (sizes[t] * inner)] = parts[t][i];
}

static void
copy(check_layer *l)
{
    int64_t shape[5];
    const int32_t ndim = (int32_t)check_layer_between(l, 0, 5);
    l->dtype = check_dtypes[check_layer_between(l, 0, CHECK_DTYPES - 1)];
    const int64_t count = check_bench_shape(&l->b, ndim, 4, shape);
    double *const wanted = pick_target(l, "self", ndim, shape);
    const double *const from = check_layer_tensor(l, "src", check_dtypes[check_layer_between(l, 0, CHECK_DTYPES - 1)],
                                                  ndim, shape);
    check_layer_bool(l, "non_blocking", check_layer_toss(l));
    for (int64_t i = 0; i < count; ++i)
        wanted[i] = check_is_float(l->dtype) ? from[i] : trunc(from[i]); /* as the target's type has it */
}

static void
fill(check_layer *l)
{
    const bool has_value = !check_layer_is(l, "aten::zero_"), is_tensor = check_layer_is(l, "aten::fill_.Tensor");
    int64_t shape[5];
    const int32_t ndim = (int32_t)check_layer_between(l, 0, 5);
    l->dtype = check_dtypes[check_layer_between(l, 0, CHECK_DTYPES - 1)];
    const int64_t count = check_bench_shape(&l->b, ndim, 4, shape);
    double *const wanted = pick_target(l, "self", ndim, shape);
    double value = has_value ? (double)check_layer_between(l, -9, 9) : 0;
    if (is_tensor) {
        const bool is_expanded = (l->b.kernel->flags & OPENREG_KERNEL_ELEMENTWISE) != 0;
        check_tensor *const t = &l->b.places[l->tensors];
        double *const number = check_layer_tensor(l, "value", l->dtype, is_expanded ? ndim : 0, shape);
        memset(t->strides, 0, sizeof t->strides); /* one number, also where it has the result's shape */
        for (int64_t i = 0; i < openreg_element_count(&t->tensor); ++i)
            number[i] = value;
    } else if (has_value && check_is_float(l->dtype)) {
        check_layer_real(l, "value", value += 0.5);
    } else if (has_value) {
        check_layer_int(l, "value", (int64_t)value);
    }
    for (int64_t i = 0; i < count; ++i)
        wanted[i] = value;
}

static void
triangle(check_layer *l)
{
    const bool is_lower = check_layer_is(l, "aten::tril");
    int64_t shape[4];
    const int32_t ndim = (int32_t)check_layer_between(l, 2, 4);
    l->dtype = check_dtypes[check_layer_between(l, 0, CHECK_DTYPES - 1)];
    const int64_t count = check_bench_shape(&l->b, ndim, 5, shape), diagonal = check_layer_between(l, -4, 4);
    const double *const x = check_layer_tensor(l, "self", l->dtype, ndim, shape);
    check_layer_int(l, "diagonal", diagonal);
    double *const out = check_layer_result(l, l->dtype, ndim, shape);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t distance = i % shape[ndim - 1] - i / shape[ndim - 1] % shape[ndim - 2];
        out[i] = (is_lower ? distance <= diagonal : distance >= diagonal) ? x[i] : 0;
    }
}

/* arange(start, end, step=1, *, out) */
static void
arange(check_layer *l)
{
    const int64_t count = check_layer_between(l, 1, 300), step = check_layer_toss(l) ? 1 : -3;
    l->dtype = check_dtypes[check_layer_between(l, 0, CHECK_DTYPES - 1)];
    const int64_t start = check_layer_between(l, -5, 5);
    check_layer_int(l, "start", start);
    check_layer_int(l, "end", start + count * step);
    check_layer_int(l, "step", step);
    double *const wanted = pick_target(l, "out", 1, &count);
    for (int64_t i = 0; i < count; ++i)
        wanted[i] = (double)(start + i * step);
}

const check_layer_operator check_move_layers[] = {
    {"aten::cat", join},
    {"aten::stack", join},
    {"aten::copy_", copy},
    {"aten::fill_.Scalar", fill},
    {"aten::fill_.Tensor", fill},
    {"aten::zero_", fill},
    {"aten::tril", triangle},
    {"aten::triu", triangle},
    {"aten::arange.start_out", arange},
    {NULL, NULL},
};
