/* SPDX-License-Identifier: BSD-3-Clause */
/* rows.c: operators that sum over some dimensions: reductions, softmax, normalisations. */
#include <math.h>
#include <string.h>

#include "kernels.h"

/* ---------------------------------------------------------------------------------------------------------- reductions */

static const struct reduction {
    const char *name;
    int dims, keep; /* numbers of the arguments; -1: all dimensions, and none is kept */
    const char *body;
} reductions[] = {
    {"aten::sum", -1, -1, "ACC acc = 0; EACH(acc += L1(i1);) p0[o0] = acc;"},
    {"aten::sum.dim_IntList", 1, 2, "ACC acc = 0; EACH(acc += L1(i1);) p0[o0] = acc;"},
    {"aten::mean", -1, -1, "ACC acc = 0; EACH(acc += L1(i1);) p0[o0] = acc / g.m;"},
    {"aten::mean.dim", 1, 2, "ACC acc = 0; EACH(acc += L1(i1);) p0[o0] = acc / g.m;"},
    {"aten::amax", 1, 2,
     "C best = 0; EACH(const C x = L1(i1); if (j == 0 || x > best || x != x) best = x; if (best != best) break;) "
     "p0[o0] = best;"},
    {"aten::amin", 1, 2,
     "C best = 0; EACH(const C x = L1(i1); if (j == 0 || x < best || x != x) best = x; if (best != best) break;) "
     "p0[o0] = best;"},
    {"aten::max", -1, -1,
     "C best = 0; EACH(const C x = L1(i1); if (j == 0 || x > best || x != x) best = x; if (best != best) break;) "
     "p0[o0] = best;"},
    {"aten::min", -1, -1,
     "C best = 0; EACH(const C x = L1(i1); if (j == 0 || x < best || x != x) best = x; if (best != best) break;) "
     "p0[o0] = best;"},
    {"aten::argmax", 1, 2,
     "C best = 0; long at = 0; EACH(const C x = L1(i1); if (j == 0 || x > best || x != x) { best = x; at = j; } if "
     "(best != best) break;) p0[o0] = at;"},
    {"aten::linalg_vector_norm", 2, 3, "ACC acc = 0; EACH(const ACC x = L1(i1); acc += x * x;) p0[o0] = sqrt(acc);"},
};
#define REDUCTIONS (sizeof reductions / sizeof reductions[0])

/* Which dimensions an argument names: a list, a number, or None for all. */
static void
read_dims(const openreg_value *value, int ndim, bool *inner)
{
    const bool is_all = value == NULL || value->kind == OPENREG_VALUE_NONE ||
                        (value->kind == OPENREG_VALUE_INTS && value->count == 0);
    for (int d = 0; d < ndim; ++d)
        inner[d] = is_all;
    if (is_all)
        return;
    const uint64_t count = value->kind == OPENREG_VALUE_INTS ? value->count : 1;
    for (uint64_t i = 0; i < count; ++i) {
        const int64_t dim = value->kind == OPENREG_VALUE_INTS ? value->integers[i] : value->integer;
        if (ndim > 0)
            inner[dim < 0 ? dim + ndim : dim] = true;
    }
}

/* The result in the dimensions of the argument: those that were reduced have stride 0. */
static view
expanded_result(const view *result, const view *of, const bool *inner, bool keeps)
{
    view v = *of;
    int at = 0;
    v.data = result->data;
    v.dtype = result->dtype;
    for (int d = 0; d < of->ndim; ++d) {
        v.strides[d] = inner[d] ? 0 : result->strides[at];
        at += !inner[d] || keeps;
    }
    return v;
}

static openreg_status
reduce(job *j)
{
    const openreg_kernel_call *const call = j->call;
    const struct reduction *r = reductions;
    bool inner[MOST_DIMS];
    view views[2], result;
    while (strcmp(r->name, call->kernel->name) != 0)
        ++r;
    if (!view_of(openreg_tensor_argument(call, 0), &views[1]) || !view_of(call->results[0]->tensor, &result) ||
        !kernel_knows(j, views[1].dtype) || !kernel_knows(j, result.dtype) ||
        openreg_element_count(call->arguments[0]->tensor) == 0)
        return REFUSED;
    if (views[1].dtype.code == OPENREG_DTYPE_BOOL && strcmp(r->name, "aten::argmax") == 0)
        return REFUSED;                                                               /* an error of PyTorch's */
    if (r->dims == 2 && (call->arguments[1]->real != 2 || !is_float(views[1].dtype))) /* the Euclidean norm alone */
        return REFUSED;
    read_dims(r->dims < 0 ? NULL : call->arguments[r->dims], views[1].ndim, inner);
    const bool keeps = r->keep >= 0 && call->arguments[r->keep]->integer != 0;
    views[0] = expanded_result(&result, &views[1], inner, keeps);
    launch_begin(j, r->body, is_float(views[1].dtype) ? views[1].dtype : is_float(result.dtype) ? result.dtype : INT64);
    return launch_views(j, 2, views, inner) ? launch(j) : REFUSED;
}

openreg_status
run_reduction(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, reduce(&j));
}

/* ------------------------------------------------------------------------------------------------------------- softmax */

#define EXPONENTIALS                                                                                                   \
    "C top = -INFINITY; EACH(top = fmax(top, L1(i1));)\n"                                                              \
    "ACC acc = 0; EACH(acc += exp(L1(i1) - top);)\n"

/* aten::_softmax(Tensor self, int dim, bool half_to_float), aten::_softmax_backward_data(Tensor grad_output, Tensor
 * output, int dim, ScalarType input_dtype), and those of log_softmax. */
static openreg_status
softmax(job *j)
{
    const openreg_kernel_call *const call = j->call;
    const bool is_backward = strstr(call->kernel->name, "backward") != NULL;
    const bool is_log = strstr(call->kernel->name, "log") != NULL;
    static const char *const bodies[2][2] = {
        {EXPONENTIALS "EACH(p0[i0] = exp(L1(i1) - top) / (C)acc;)",
         EXPONENTIALS "EACH(p0[i0] = L1(i1) - top - log((C)acc);)"},
        {"ACC acc = 0; EACH(acc += L1(i1) * L2(i2);) EACH(p0[i0] = (L1(i1) - (C)acc) * L2(i2);)",
         "ACC acc = 0; EACH(acc += L1(i1);) EACH(p0[i0] = L1(i1) - exp(L2(i2)) * (C)acc;)"},
    };
    view views[3];
    bool inner[MOST_DIMS];
    const int count = is_backward ? 3 : 2;
    if (!view_of(call->results[0]->tensor, &views[0]) || !view_of(openreg_tensor_argument(call, 0), &views[1]) ||
        (is_backward && !view_of(openreg_tensor_argument(call, 1), &views[2])))
        return REFUSED;
    for (int v = 0; v < count; ++v)
        if (!is_float(views[v].dtype) || !kernel_knows(j, views[v].dtype))
            return REFUSED;
    read_dims(call->arguments[is_backward ? 2 : 1], views[0].ndim, inner);
    launch_begin(j, bodies[is_backward][is_log], views[0].dtype);
    return launch_views(j, count, views, inner) ? launch(j) : REFUSED;
}

openreg_status
run_softmax(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, softmax(&j));
}

/* ------------------------------------------------------------------------------------------------------ normalisations */

/* A tensor without strides as tensor `slot` of the next launch, of the type `like`. True for None, too. */
static bool
add_plain(job *j, int slot, const openreg_tensor *tensor, openreg_dtype like)
{
    if (tensor == NULL || openreg_element_count(tensor) == 0)
        return true;
    if (!openreg_is_contiguous(tensor) || tensor->dtype.code != like.code || tensor->dtype.bits != like.bits)
        return false;
    launch_slot(j, slot, tensor->data, tensor->dtype);
    return true;
}

/* Definitions that say which of the tensors there are: HAS4 is 1 or 0. */
static void
say_what_is_there(job *j)
{
    int at = 0;
    for (int s = 0; s < SLOTS; ++s)
        at += snprintf(j->macros + at, sizeof j->macros - (size_t)at, "#define HAS%d %d\n", s, j->slots[s] != NULL);
}

static bool
is_fit(const job *j, const openreg_tensor *tensor, view *out)
{
    return view_of(tensor, out) && is_float(out->dtype) && kernel_knows(j, out->dtype);
}

/* The last dimensions, as many as the argument has numbers. */
static void
mark_last(const openreg_value *shape, int ndim, bool *inner)
{
    for (int d = 0; d < ndim; ++d)
        inner[d] = d >= ndim - (int)shape->count;
}

/* aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) */
static openreg_status
layer_norm(job *j)
{
    static const char body[] = "ACC acc = 0; EACH(acc += L1(i1);) const ACC mean = acc / g.m;\n"
                               "acc = 0; EACH(const ACC x = L1(i1) - mean; acc += x * x;) const ACC scale = 1 / "
                               "sqrt(acc / g.m + (ACC)g.numbers[0]);\n"
                               "EACH(p0[i0] = (L1(i1) - mean) * scale * (HAS4 ? L4(j) : 1) + (HAS5 ? L5(j) : 0);) "
                               "p6[i] = mean; p7[i] = scale;";
    const openreg_kernel_call *const call = j->call;
    view views[2];
    bool inner[MOST_DIMS];
    if (!is_fit(j, call->results[0]->tensor, &views[0]) || !is_fit(j, openreg_tensor_argument(call, 0), &views[1]))
        return REFUSED;
    const openreg_dtype type = views[0].dtype;
    launch_begin(j, body, type);
    mark_last(call->arguments[1], views[0].ndim, inner);
    j->g.numbers[0] = call->arguments[4]->real;
    if (!launch_views(j, 2, views, inner) || !add_plain(j, 4, call->arguments[2]->tensor, type) ||
        !add_plain(j, 5, call->arguments[3]->tensor, type) || !add_plain(j, 6, call->results[1]->tensor, type) ||
        !add_plain(j, 7, call->results[2]->tensor, type))
        return REFUSED;
    say_what_is_there(j);
    return launch(j);
}

openreg_status
run_layer_norm(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, layer_norm(&j));
}

/* A gradient of weight or bias: the sum over the other dimensions. */
static openreg_status
sum_over_rows(job *j, const openreg_tensor *result, const view *grad, const view *input, const bool *inner,
              const char *body)
{
    view views[3] = {{0}, *grad, *input};
    view made;
    bool others[MOST_DIMS];
    if (!view_of(result, &made))
        return REFUSED;
    for (int d = 0; d < grad->ndim; ++d)
        others[d] = !inner[d];
    views[0] = expanded_result(&made, grad, others, false);
    launch_begin(j, body, grad->dtype);
    const openreg_dtype type = grad->dtype;
    return launch_views(j, 3, views, others) && add_plain(j, 6, j->call->arguments[3]->tensor, type) &&
                   add_plain(j, 7, j->call->arguments[4]->tensor, type)
               ? launch(j)
               : REFUSED;
}

/* aten::native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd,
 * Tensor? weight, Tensor? bias, bool[3] output_mask) */
static openreg_status
layer_norm_backward(job *j)
{
    static const char body[] =
        "const ACC mean = L6(i), scale = L7(i); ACC a = 0, b = 0;\n"
        "EACH(const ACC x = L1(i1) * (HAS4 ? L4(j) : 1); a += x; b += x * (L2(i2) - mean) * scale;) a /= g.m; b /= "
        "g.m;\n"
        "EACH(p0[i0] = scale * (L1(i1) * (HAS4 ? L4(j) : 1) - a - (L2(i2) - mean) * scale * b);)";
    const openreg_kernel_call *const call = j->call;
    const openreg_value *const *const results = call->results;
    view views[3];
    bool inner[MOST_DIMS];
    if (!is_fit(j, openreg_tensor_argument(call, 0), &views[1]) ||
        !is_fit(j, openreg_tensor_argument(call, 1), &views[2]))
        return REFUSED;
    const openreg_dtype type = views[1].dtype;
    mark_last(call->arguments[2], views[1].ndim, inner);
    openreg_status status = OPENREG_OK;
    for (int a = 3; a < 6; ++a) /* nothing is refused once something is queued */
        if (!add_plain(j, 0, call->arguments[a]->tensor, type))
            return REFUSED;
    if (results[0]->tensor != NULL) {
        if (!is_fit(j, results[0]->tensor, &views[0]))
            return REFUSED;
        launch_begin(j, body, type);
        if (!launch_views(j, 3, views, inner) || !add_plain(j, 4, call->arguments[5]->tensor, type) ||
            !add_plain(j, 6, call->arguments[3]->tensor, type) || !add_plain(j, 7, call->arguments[4]->tensor, type))
            return REFUSED;
        say_what_is_there(j);
        status = launch(j);
    }
    if (status == OPENREG_OK && results[1]->tensor != NULL)
        status = sum_over_rows(j, results[1]->tensor, &views[1], &views[2], inner,
                               "ACC acc = 0; EACH(acc += L1(i1) * (L2(i2) - L6(j)) * L7(j);) p0[o0] = acc;");
    if (status == OPENREG_OK && results[2]->tensor != NULL)
        status = sum_over_rows(j, results[2]->tensor, &views[1], &views[2], inner,
                               "ACC acc = 0; EACH(acc += L1(i1);) p0[o0] = acc;");
    return status;
}

openreg_status
run_layer_norm_backward(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, layer_norm_backward(&j));
}

/* All but the channels. */
static void
mark_but_channels(int ndim, bool *inner)
{
    for (int d = 0; d < ndim; ++d)
        inner[d] = d != 1;
}

/* aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
 * bool training, float momentum, float eps). It writes the running statistics. */
static openreg_status
batch_norm(job *j)
{
    static const char body[] = "ACC mean, variance;\n"
                               "if (Q(0)) { ACC acc = 0; EACH(acc += L1(i1);) mean = acc / g.m;\n"
                               "  acc = 0; EACH(const ACC x = L1(i1) - mean; acc += x * x;) variance = acc / g.m;\n"
                               "  const ACC unbiased = acc / (g.m - 1), part = (ACC)g.numbers[1];\n"
                               "  if (HAS2) p2[i] = L2(i) * (1 - part) + mean * part;\n"
                               "  if (HAS3) p3[i] = L3(i) * (1 - part) + unbiased * part;\n"
                               "} else { mean = L2(i); variance = L3(i); }\n"
                               "const ACC scale = 1 / sqrt(variance + (ACC)g.numbers[0]);\n"
                               "if (HAS6) p6[i] = mean; if (HAS7) p7[i] = scale;\n"
                               "EACH(p0[i0] = (L1(i1) - mean) * scale * (HAS4 ? L4(i) : 1) + (HAS5 ? L5(i) : 0);)";
    const openreg_kernel_call *const call = j->call;
    const openreg_value *const *const a = call->arguments;
    view views[2];
    bool inner[MOST_DIMS];
    if (!is_fit(j, call->results[0]->tensor, &views[0]) || !is_fit(j, a[0]->tensor, &views[1]) || views[0].ndim < 2)
        return REFUSED;
    const openreg_dtype type = views[0].dtype;
    const bool is_training = a[5]->integer != 0;
    launch_begin(j, body, type);
    mark_but_channels(views[0].ndim, inner);
    j->g.numbers[0] = a[7]->real;
    j->g.numbers[1] = a[6]->real;
    j->g.integers[0] = is_training;
    if (!launch_views(j, 2, views, inner) || !add_plain(j, 2, a[3]->tensor, type) ||
        !add_plain(j, 3, a[4]->tensor, type) || !add_plain(j, 4, a[1]->tensor, type) ||
        !add_plain(j, 5, a[2]->tensor, type) || !add_plain(j, 6, call->results[1]->tensor, type) ||
        !add_plain(j, 7, call->results[2]->tensor, type) ||
        (!is_training && (a[3]->tensor == NULL || a[4]->tensor == NULL)))
        return REFUSED;
    say_what_is_there(j);
    return launch(j);
}

openreg_status
run_batch_norm(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, batch_norm(&j));
}

/* aten::native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean,
 * Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) */
static openreg_status
batch_norm_backward(job *j)
{
    static const char body[] =
        "const ACC mean = L6(i), scale = Q(0) ? L7(i) : 1 / sqrt(L7(i) + (ACC)g.numbers[0]);\n"
        "ACC a = 0, b = 0; EACH(a += L1(i1); b += L1(i1) * (L2(i2) - mean) * scale;)\n"
        "if (HAS5) p5[i] = b; if (HAS3) p3[i] = a;\n"
        "const ACC weight = (HAS4 ? L4(i) : 1) * scale; if (Q(0)) { a /= g.m; b /= g.m; } else { a = 0; b = 0; }\n"
        "if (Q(1)) EACH(p0[i0] = weight * (L1(i1) - a - (L2(i2) - mean) * scale * b);)";
    const openreg_kernel_call *const call = j->call;
    const openreg_value *const *const a = call->arguments;
    const openreg_value *const *const results = call->results;
    view views[3];
    bool inner[MOST_DIMS];
    const bool is_training = a[7]->integer != 0;
    if (!is_fit(j, a[0]->tensor, &views[1]) || !is_fit(j, a[1]->tensor, &views[2]) || views[1].ndim < 2)
        return REFUSED;
    const openreg_dtype type = views[1].dtype;
    views[0] = views[1]; /* where no gradient of the input is wanted */
    if (results[0]->tensor != NULL && !is_fit(j, results[0]->tensor, &views[0]))
        return REFUSED;
    launch_begin(j, body, type);
    mark_but_channels(views[1].ndim, inner);
    j->g.numbers[0] = a[8]->real;
    j->g.integers[0] = is_training;
    j->g.integers[1] = results[0]->tensor != NULL;
    if (!launch_views(j, 3, views, inner) || !add_plain(j, 3, results[2]->tensor, type) ||
        !add_plain(j, 4, a[2]->tensor, type) || !add_plain(j, 5, results[1]->tensor, type) ||
        !add_plain(j, 6, a[is_training ? 5 : 3]->tensor, type) ||
        !add_plain(j, 7, a[is_training ? 6 : 4]->tensor, type) || j->slots[6] == NULL || j->slots[7] == NULL)
        return REFUSED;
    say_what_is_there(j);
    return launch(j);
}

openreg_status
run_batch_norm_backward(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, batch_norm_backward(&j));
}
