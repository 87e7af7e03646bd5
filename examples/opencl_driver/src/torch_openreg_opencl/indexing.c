/* SPDX-License-Identifier: BSD-3-Clause */
/* indexing.c: operators that read or write where other numbers say: losses of classes, embeddings, pooling. */
#include <string.h>

#include "kernels.h"

static bool
is_dense(const job *j, const openreg_tensor *tensor, openreg_dtype type)
{
    return tensor != NULL && kernel_knows(j, tensor->dtype) && tensor->dtype.code == type.code &&
           tensor->dtype.bits == type.bits && openreg_is_contiguous(tensor);
}

static bool
is_floating(const job *j, const openreg_tensor *tensor)
{
    return tensor != NULL && is_float(tensor->dtype) && kernel_knows(j, tensor->dtype);
}

/* -------------------------------------------------------------------------------------------------------------- losses */

/* aten::nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index). A class that
 * there is not gives not-a-number, where the CPU raises an error. */
static openreg_status
nll_loss(job *j)
{
    static const char body[] =
        "ACC loss = 0, weights = 0;\n"
        "for (long j = 0; j < Q(5); ++j) { const long at = p2[j];\n"
        "  if (at == Q(0)) { if (Q(1) == 0) p0[j * Q(6)] = 0; continue; }\n"
        "  const bool is_there = at >= 0 && at < Q(2); const C weight = HAS_WEIGHT && is_there ? L3(at) : 1;\n"
        "  const C x = is_there ? -L1(j * Q(3) + at * Q(4)) * weight : NAN;\n"
        "  loss += x; weights += weight; if (Q(1) == 0) p0[j * Q(6)] = x; }\n"
        "if (Q(1) == 1) p0[0] = loss / weights; if (Q(1) == 2) p0[0] = loss;\n"
        "p4[0] = Q(1) == 0 ? 0 : weights;";
    const openreg_kernel_call *const call = j->call;
    const openreg_tensor *const self = openreg_tensor_argument(call, 0), *const target = openreg_tensor_argument(call,
                                                                                                                 1);
    const openreg_tensor *const weight = openreg_tensor_argument(call, 2);
    const openreg_tensor *const result = call->results[0]->tensor;
    if (!is_floating(j, self) || self->ndim != 2 || !is_dense(j, target, INT64) || target->ndim != 1 ||
        (weight != NULL && !is_dense(j, weight, self->dtype)))
        return REFUSED;
    launch_begin(j, body, self->dtype);
    launch_slot(j, 0, result->data, result->dtype);
    launch_slot(j, 1, self->data, self->dtype);
    launch_slot(j, 2, target->data, target->dtype);
    if (weight != NULL)
        launch_slot(j, 3, weight->data, weight->dtype);
    launch_slot(j, 4, call->results[1]->tensor->data, call->results[1]->tensor->dtype);
    const int64_t integers[] = {call->arguments[4]->integer,
                                call->arguments[3]->integer,
                                self->shape[1],
                                self->strides[0],
                                self->strides[1],
                                self->shape[0],
                                result->ndim > 0 ? result->strides[0] : 0};
    for (int k = 0; k < 7; ++k)
        j->g.integers[k] = integers[k];
    (void)snprintf(j->macros, sizeof j->macros, "#define HAS_WEIGHT %d\n", weight != NULL);
    return launch(j);
}

openreg_status
run_nll_loss(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, nll_loss(&j));
}

/* aten::nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction,
 * SymInt ignore_index, Tensor total_weight) */
static openreg_status
nll_loss_backward(job *j)
{
    static const char body[] =
        "const long row = i / Q(2), at = p2[row]; C x = 0;\n"
        "if (at == i % Q(2) && at != Q(0)) {\n"
        "  x = -(HAS_WEIGHT ? L3(at) : 1) * L1(Q(1) == 0 ? row * Q(3) : 0); if (Q(1) == 1) x /= L4(0); }\n"
        "p0[i] = x;";
    const openreg_kernel_call *const call = j->call;
    const openreg_value *const *const a = call->arguments;
    const openreg_tensor *const result = call->results[0]->tensor, *const grad = a[0]->tensor;
    if (!is_floating(j, grad) || !is_dense(j, result, grad->dtype) || result->ndim != 2 ||
        !is_dense(j, a[2]->tensor, INT64) || (a[3]->tensor != NULL && !is_dense(j, a[3]->tensor, grad->dtype)) ||
        !is_dense(j, a[6]->tensor, grad->dtype))
        return REFUSED;
    launch_begin(j, body, grad->dtype);
    launch_slot(j, 0, result->data, result->dtype);
    launch_slot(j, 1, grad->data, grad->dtype);
    launch_slot(j, 2, a[2]->tensor->data, INT64);
    if (a[3]->tensor != NULL)
        launch_slot(j, 3, a[3]->tensor->data, grad->dtype);
    launch_slot(j, 4, a[6]->tensor->data, grad->dtype);
    j->g.n = result->shape[0] * result->shape[1];
    const int64_t integers[] = {a[5]->integer, a[4]->integer, result->shape[1], grad->ndim > 0 ? grad->strides[0] : 0};
    for (int k = 0; k < 4; ++k)
        j->g.integers[k] = integers[k];
    (void)snprintf(j->macros, sizeof j->macros, "#define HAS_WEIGHT %d\n", a[3]->tensor != NULL);
    return launch(j);
}

openreg_status
run_nll_loss_backward(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, nll_loss_backward(&j));
}

/* ---------------------------------------------------------------------------------------------------------- embeddings */

/* aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx, bool scale_grad_by_freq, bool sparse). A row that
 * there is not gives not-a-number, where the CPU raises an error. */
static openreg_status
embedding(job *j)
{
    static const char body[] =
        "const long row = p1[o1]; p0[o0] = row >= 0 && row < Q(3) ? L2(row * Q(0) + i % Q(2) * Q(1)) : (C)NAN;";
    const openreg_kernel_call *const call = j->call;
    const openreg_tensor *const weight = openreg_tensor_argument(call, 0);
    view views[2];
    if (!is_floating(j, weight) || weight->ndim != 2 || !view_of(call->results[0]->tensor, &views[0]) ||
        !view_of(openreg_tensor_argument(call, 1), &views[1]) || !kernel_knows(j, views[1].dtype) ||
        views[1].ndim == MOST_DIMS)
        return REFUSED;
    views[1].shape[views[1].ndim] = weight->shape[1];
    views[1].strides[views[1].ndim++] = 0;
    launch_begin(j, body, weight->dtype);
    if (!launch_views(j, 2, views, NULL))
        return REFUSED;
    launch_slot(j, 2, weight->data, weight->dtype);
    const int64_t integers[] = {weight->strides[0], weight->strides[1], weight->shape[1], weight->shape[0]};
    for (int k = 0; k < 4; ++k)
        j->g.integers[k] = integers[k];
    return launch(j);
}

openreg_status
run_embedding(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, embedding(&j));
}

/* aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx,
 * bool scale_grad_by_freq). Each element looks through the indices, so that sums have one order: without atomics. */
static openreg_status
embedding_backward(job *j)
{
    static const char body[] = "const long row = i / Q(0); ACC acc = 0;\n"
                               "if (row != Q(1)) EACH(if (p1[i1] == row) acc += L2(i2);)\n"
                               "p0[o0] = acc;";
    const openreg_kernel_call *const call = j->call;
    view grad, indices, result;
    bool inner[MOST_DIMS] = {false, false};
    if (!view_of(openreg_tensor_argument(call, 0), &grad) || !view_of(openreg_tensor_argument(call, 1), &indices) ||
        !view_of(call->results[0]->tensor, &result) || !is_float(grad.dtype) || !kernel_knows(j, grad.dtype) ||
        !kernel_knows(j, indices.dtype) || indices.ndim + 2 > MOST_DIMS || call->arguments[4]->integer != 0)
        return REFUSED;
    /* Rows, columns, and the dimensions of the indices. */
    const int64_t shape[2] = {result.shape[0], result.shape[1]};
    const int64_t across = grad.strides[grad.ndim - 1];
    view views[3] = {{result.data, result.dtype, indices.ndim + 2, {0}, {result.strides[0], result.strides[1]}},
                     {indices.data, indices.dtype, indices.ndim + 2, {0}, {0}},
                     {grad.data, grad.dtype, indices.ndim + 2, {0}, {0, across}}};
    for (int d = 0; d < indices.ndim + 2; ++d) {
        inner[d] = d >= 2;
        for (int v = 0; v < 3; ++v)
            views[v].shape[d] = d < 2 ? shape[d] : indices.shape[d - 2];
        if (d >= 2) {
            views[1].strides[d] = indices.strides[d - 2];
            views[2].strides[d] = grad.strides[d - 2];
        }
    }
    launch_begin(j, body, grad.dtype);
    if (!launch_views(j, 3, views, inner))
        return REFUSED;
    j->g.integers[0] = result.shape[1];
    j->g.integers[1] = call->arguments[3]->integer;
    return launch(j);
}

openreg_status
run_embedding_backward(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, embedding_backward(&j));
}

/* ------------------------------------------------------------------------------------------------------------- pooling */

/* Number `i` of a list that may have one number for both, or none. */
static int64_t
pair(const openreg_value *list, int i, int64_t otherwise)
{
    return list->count == 0 ? otherwise : list->integers[list->count == 1 ? 0 : i];
}

/* Q(0): height, Q(1): width of the input, Q(2), Q(3) of the output, then kernel, stride, padding, dilation. `first` is the
 * number of the argument kernel_size. */
static void
describe_pool(job *j, const openreg_tensor *input, const openreg_tensor *output, int first)
{
    const openreg_value *const *const a = &j->call->arguments[first];
    for (int i = 0; i < 2; ++i) {
        j->g.integers[i] = input->shape[input->ndim - 2 + i];
        j->g.integers[2 + i] = output->shape[output->ndim - 2 + i];
        j->g.integers[4 + i] = pair(a[0], i, 1);
        j->g.integers[6 + i] = pair(a[1], i, pair(a[0], i, 1));
        j->g.integers[8 + i] = pair(a[2], i, 0);
        j->g.integers[10 + i] = pair(a[3], i, 1);
    }
}

/* aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation,
 * bool ceil_mode) */
static openreg_status
max_pool(job *j)
{
    static const char body[] =
        "const long plane = i / (Q(2) * Q(3)), row = i / Q(3) % Q(2), column = i % Q(3); C best = -INFINITY; long at = "
        "-1;\n"
        "for (long a = 0; a < Q(4); ++a) for (long b = 0; b < Q(5); ++b) {\n"
        "  const long y = row * Q(6) - Q(8) + a * Q(10), x = column * Q(7) - Q(9) + b * Q(11);\n"
        "  if (y < 0 || y >= Q(0) || x < 0 || x >= Q(1)) continue;\n"
        "  const C value = L2((plane * Q(0) + y) * Q(1) + x);\n"
        "  if (at < 0 || value > best || value != value) { best = value; at = y * Q(1) + x; } }\n"
        "p0[i] = best; p1[i] = at;";
    const openreg_kernel_call *const call = j->call;
    const openreg_tensor *const input = openreg_tensor_argument(call, 0);
    const openreg_tensor *const result = call->results[0]->tensor, *const indices = call->results[1]->tensor;
    if (!is_floating(j, input) || !is_dense(j, input, input->dtype) || !is_dense(j, result, input->dtype) ||
        !is_dense(j, indices, INT64) || input->ndim < 3)
        return REFUSED;
    launch_begin(j, body, input->dtype);
    launch_slot(j, 0, result->data, result->dtype);
    launch_slot(j, 1, indices->data, INT64);
    launch_slot(j, 2, input->data, input->dtype);
    j->g.n = openreg_element_count(result);
    describe_pool(j, input, result, 1);
    return launch(j);
}

openreg_status
run_max_pool(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, max_pool(&j));
}

/* aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride,
 * int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices). Each element of the input looks at the windows that it
 * is in. */
static openreg_status
max_pool_backward(job *j)
{
    static const char body[] =
        "const long plane = i / (Q(0) * Q(1)), y = i / Q(1) % Q(0), x = i % Q(1); ACC acc = 0;\n"
        "for (long a = 0; a < Q(4); ++a) for (long b = 0; b < Q(5); ++b) {\n"
        "  const long v = y + Q(8) - a * Q(10), u = x + Q(9) - b * Q(11);\n"
        "  if (v < 0 || u < 0 || v % Q(6) != 0 || u % Q(7) != 0 || v / Q(6) >= Q(2) || u / Q(7) >= Q(3)) continue;\n"
        "  const long k = (plane * Q(2) + v / Q(6)) * Q(3) + u / Q(7);\n"
        "  if (p1[k] == y * Q(1) + x) acc += L2(k); }\n"
        "p0[i] = acc;";
    const openreg_kernel_call *const call = j->call;
    const openreg_tensor *const grad = openreg_tensor_argument(call, 0), *const indices = openreg_tensor_argument(call,
                                                                                                                  7);
    const openreg_tensor *const result = call->results[0]->tensor;
    if (!is_floating(j, grad) || !is_dense(j, grad, grad->dtype) || !is_dense(j, result, grad->dtype) ||
        !is_dense(j, indices, INT64) || result->ndim < 3)
        return REFUSED;
    launch_begin(j, body, grad->dtype);
    launch_slot(j, 0, result->data, result->dtype);
    launch_slot(j, 1, indices->data, INT64);
    launch_slot(j, 2, grad->data, grad->dtype);
    j->g.n = openreg_element_count(result);
    describe_pool(j, result, grad, 2);
    return launch(j);
}

openreg_status
run_max_pool_backward(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, max_pool_backward(&j));
}
