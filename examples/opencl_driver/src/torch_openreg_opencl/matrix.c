/* SPDX-License-Identifier: BSD-3-Clause */
/* matrix.c: matrix products by CLBlast, and convolutions made of them. */
#include <string.h>

#include "kernels.h"

#include <clblast_c.h> /* behind the version of OpenCL */

/* A batch of matrices with fewer multiplications than this is multiplied by a kernel of this driver: CLBlast's batched one
 * is only faster for large matrices. */
#define LARGE (64 * 64 * 64)

/* A matrix as CLBlast takes it: rows one after the other, or columns. */
typedef struct matrix {
    char *data;
    int64_t rows, columns, stride;
    bool is_transposed;
} matrix;

static bool
is_float32(const openreg_dtype dtype)
{
    return is_float(dtype) && dtype.bits == 32;
}

/* False: a layout that CLBlast does not take. */
static bool
matrix_of(const view *v, matrix *out)
{
    const int64_t rows = v->shape[0], columns = v->shape[1];
    const int64_t down = v->strides[0], across = v->strides[1];
    if ((across == 1 || columns == 1) && (down >= columns || rows == 1))
        *out = (matrix){v->data, rows, columns, rows == 1 ? columns : down, false};
    else if ((down == 1 || rows == 1) && (across >= rows || columns == 1))
        *out = (matrix){v->data, rows, columns, columns == 1 ? rows : across, true};
    else
        return false;
    return true;
}

/* c = alpha a b + beta c, of float32; c has its rows one after the other. */
static openreg_status
multiply(job *j, const matrix *a, const matrix *b, const matrix *c, float alpha, float beta)
{
    size_t a_offset, b_offset, c_offset;
    cl_event event = NULL;
    signal_state signals;
    cl_mem const a_buffer = opencl_buffer(j->cl, a->data, &a_offset),
                 b_buffer = opencl_buffer(j->cl, b->data, &b_offset);
    cl_mem const c_buffer = opencl_buffer(j->cl, c->data, &c_offset);
    if (a_buffer == NULL || b_buffer == NULL || c_buffer == NULL)
        return opencl_fail(j->cl, "a matrix outside of the device's memory", CL_INVALID_VALUE);
    opencl_enter_platform(&signals); /* it compiles */
    (void)pthread_mutex_lock(&j->stream->lock);
    const CLBlastStatusCode code = CLBlastSgemm(
        CLBlastLayoutRowMajor, a->is_transposed ? CLBlastTransposeYes : CLBlastTransposeNo,
        b->is_transposed ? CLBlastTransposeYes : CLBlastTransposeNo, (size_t)c->rows, (size_t)c->columns,
        (size_t)a->columns, alpha, a_buffer, a_offset / sizeof(float), (size_t)a->stride, b_buffer,
        b_offset / sizeof(float), (size_t)b->stride, beta, c_buffer, c_offset / sizeof(float), (size_t)c->stride,
        &j->stream->queue, &event);
    if (code == CLBlastSuccess)
        opencl_queued(j->stream, event);
    (void)pthread_mutex_unlock(&j->stream->lock);
    opencl_leave_platform(&signals);
    return code == CLBlastSuccess ? OPENREG_OK : opencl_fail(j->cl, "CLBlastSgemm", (cl_int)code);
}

/* --------------------------------------------------------------------------------------------- products of any strides */

/* result[b, m, n] = beta self + alpha (sum over k of left[b, m, k] right[b, k, n]), of any type and strides. */
static openreg_status
contract(job *j, const view *result, const view *left, const view *right, const view *self, double alpha, double beta)
{
    static const char body[] = "ACC acc = 0; EACH(acc += (ACC)L1(i1) * (ACC)L2(i2);)\n"
                               "p0[o0] = (ACC)g.numbers[0] * acc + (HAS_SELF ? (ACC)g.numbers[1] * L3(o3) : 0);";
    static const bool inner[MOST_DIMS] = {false, false, false, true};
    const int64_t b = result->shape[0], m = result->shape[1], n = result->shape[2], k = left->shape[2];
    const view views[] = {
        {result->data, result->dtype, 4, {b, m, n, k}, {result->strides[0], result->strides[1], result->strides[2], 0}},
        {left->data, left->dtype, 4, {b, m, n, k}, {left->strides[0], left->strides[1], 0, left->strides[2]}},
        {right->data, right->dtype, 4, {b, m, n, k}, {right->strides[0], 0, right->strides[2], right->strides[1]}},
        {self->data, self->dtype, 4, {b, m, n, k}, {self->strides[0], self->strides[1], self->strides[2], 0}},
    };
    launch_begin(j, body, is_float(result->dtype) ? result->dtype : INT64);
    j->g.numbers[0] = alpha;
    j->g.numbers[1] = beta;
    (void)snprintf(j->macros, sizeof j->macros, "#define HAS_SELF %d\n", beta != 0);
    return launch_views(j, beta != 0 ? 4 : 3, views, inner) ? launch(j) : REFUSED;
}

/* With a dimension of one in front. */
static view
batch_of_one(const view *v)
{
    return (view){v->data, v->dtype, 3, {1, v->shape[0], v->shape[1]}, {0, v->strides[0], v->strides[1]}};
}

/* `of` expanded to the shape of `to`; false where it can't be. */
static bool
expand(const view *of, const view *to, view *out)
{
    const int missing = to->ndim - of->ndim;
    *out = *to;
    out->data = of->data;
    out->dtype = of->dtype;
    if (missing < 0)
        return false;
    for (int d = 0; d < to->ndim; ++d)
        out->strides[d] = d < missing || of->shape[d - missing] == 1 ? 0 : of->strides[d - missing];
    return true;
}

/* A number that a call has, or what it means where it was not given. */
static double
number_of(const openreg_kernel_call *call, uint64_t i)
{
    return openreg_is_real_argument(call, i) ? call->arguments[i]->real : 1;
}

static bool
is_known(const job *j, const view *v, int ndim)
{
    return v->ndim == ndim && kernel_knows(j, v->dtype) && v->dtype.code != OPENREG_DTYPE_BOOL;
}

static bool
is_same_type(const view *a, const view *b)
{
    return a->dtype.code == b->dtype.code && a->dtype.bits == b->dtype.bits;
}

/* aten::mm(Tensor self, Tensor mat2), aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta, Scalar alpha) */
static openreg_status
two_matrices(job *j, int first, double beta, double alpha)
{
    const openreg_kernel_call *const call = j->call;
    view result, left, right, self = {0};
    matrix a, b, c;
    if (!view_of(call->results[0]->tensor, &result) || !view_of(call->arguments[first]->tensor, &left) ||
        !view_of(call->arguments[first + 1]->tensor, &right) || !is_known(j, &result, 2) ||
        !is_same_type(&left, &result) || !is_same_type(&right, &result))
        return REFUSED;
    if (first != 0) {
        view given;
        if (!view_of(call->arguments[0]->tensor, &given) || !is_same_type(&given, &result) ||
            !expand(&given, &result, &self))
            return REFUSED;
    }
    const bool fits = is_float32(result.dtype) && left.shape[1] > 0 && matrix_of(&left, &a) && matrix_of(&right, &b) &&
                      matrix_of(&result, &c) && !c.is_transposed;
    if (!fits) {
        const view parts[] = {batch_of_one(&result), batch_of_one(&left), batch_of_one(&right), batch_of_one(&self)};
        return contract(j, &parts[0], &parts[1], &parts[2], &parts[3], alpha, beta);
    }
    const openreg_status status = beta != 0 ? copy_view(j, &result, &self) : OPENREG_OK;
    return status != OPENREG_OK ? status : multiply(j, &a, &b, &c, (float)alpha, (float)beta);
}

openreg_status
run_mm(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, two_matrices(&j, 0, 0, 1));
}

openreg_status
run_addmm(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, two_matrices(&j, 1, number_of(call, 3), number_of(call, 4)));
}

/* aten::bmm(Tensor self, Tensor mat2), aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta,
 * Scalar alpha) */
static openreg_status
batches(job *j, int first, double beta, double alpha)
{
    const openreg_kernel_call *const call = j->call;
    view result, left, right, self = {0};
    if (!view_of(call->results[0]->tensor, &result) || !view_of(call->arguments[first]->tensor, &left) ||
        !view_of(call->arguments[first + 1]->tensor, &right) || !is_known(j, &result, 3) ||
        !is_same_type(&left, &result) || !is_same_type(&right, &result))
        return REFUSED;
    if (first != 0) {
        view given;
        if (!view_of(call->arguments[0]->tensor, &given) || !is_same_type(&given, &result) ||
            !expand(&given, &result, &self))
            return REFUSED;
    }
    matrix a, b, c;
    const view one[] = {
        {result.data, result.dtype, 2, {result.shape[1], result.shape[2]}, {result.strides[1], result.strides[2]}},
        {left.data, left.dtype, 2, {left.shape[1], left.shape[2]}, {left.strides[1], left.strides[2]}},
        {right.data, right.dtype, 2, {right.shape[1], right.shape[2]}, {right.strides[1], right.strides[2]}},
    };
    if (!is_float32(result.dtype) || result.shape[1] * result.shape[2] * left.shape[2] < LARGE ||
        !matrix_of(&one[0], &c) || c.is_transposed || !matrix_of(&one[1], &a) || !matrix_of(&one[2], &b))
        return contract(j, &result, &left, &right, &self, alpha, beta);
    openreg_status status = beta != 0 ? copy_view(j, &result, &self) : OPENREG_OK;
    for (int64_t i = 0; i < result.shape[0] && status == OPENREG_OK; ++i) {
        status = multiply(j, &a, &b, &c, (float)alpha, (float)beta);
        a.data += left.strides[0] * (int64_t)sizeof(float);
        b.data += right.strides[0] * (int64_t)sizeof(float);
        c.data += result.strides[0] * (int64_t)sizeof(float);
    }
    return status;
}

openreg_status
run_bmm(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, batches(&j, 0, 0, 1));
}

openreg_status
run_baddbmm(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, batches(&j, 1, number_of(call, 3), number_of(call, 4)));
}

/* -------------------------------------------------------------------------------------------------------- convolutions */

/* Images (N, C, H, W), filters (O, C, KH, KW), results (N, O, OH, OW). The columns are a matrix of K = C KH KW rows and
 * N L columns, L = OH OW: one product serves the batch, and gives (O, N L). */
typedef struct convolution {
    view images, filters, results;
    int64_t N, C, H, W, O, KH, KW, OH, OW, K, L;
    int64_t stride[2], padding[2], dilation[2];
} convolution;

/* `first`: number of the argument `stride`. */
static bool
describe(job *j, int first, convolution *c)
{
    const openreg_value *const *const a = &j->call->arguments[first];
    if (c->images.ndim != 4 || c->filters.ndim != 4 || a[3]->integer != 0 || a[5]->integer != 1 ||
        !is_float32(c->images.dtype) || !is_float32(c->filters.dtype) || !is_float32(c->results.dtype) ||
        !view_is_contiguous(&c->filters))
        return false;
    for (int i = 0; i < 2; ++i) {
        c->stride[i] = a[0]->integers[a[0]->count == 1 ? 0 : i];
        c->padding[i] = a[1]->integers[a[1]->count == 1 ? 0 : i];
        c->dilation[i] = a[2]->integers[a[2]->count == 1 ? 0 : i];
    }
    c->N = c->images.shape[0], c->C = c->images.shape[1], c->H = c->images.shape[2], c->W = c->images.shape[3];
    c->O = c->filters.shape[0], c->KH = c->filters.shape[2], c->KW = c->filters.shape[3];
    c->OH = c->results.shape[2], c->OW = c->results.shape[3];
    c->K = c->C * c->KH * c->KW;
    c->L = c->OH * c->OW;
    return c->N * c->K * c->L > 0 && c->O > 0;
}

static void
set_numbers(job *j, const convolution *c)
{
    const int64_t numbers[] = {c->N,
                               c->L,
                               c->OH,
                               c->OW,
                               c->KH,
                               c->KW,
                               c->H,
                               c->W,
                               c->stride[0],
                               c->stride[1],
                               c->padding[0],
                               c->padding[1],
                               c->dilation[0],
                               c->dilation[1],
                               c->images.strides[0],
                               c->images.strides[1],
                               c->images.strides[2],
                               c->images.strides[3],
                               c->C};
    for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; ++k)
        j->g.integers[k] = numbers[k];
}

static openreg_status
images_to_columns(job *j, const convolution *c, char *columns)
{
    static const char body[] =
        "const long at = i % Q(1), image = i / Q(1) % Q(0), k = i / (Q(1) * Q(0));\n"
        "const long y = at / Q(3) * Q(8) - Q(10) + k / Q(5) % Q(4) * Q(12), x = at % Q(3) * Q(9) - Q(11) + k % Q(5) * "
        "Q(13);\n"
        "const bool is_inside = y >= 0 && y < Q(6) && x >= 0 && x < Q(7);\n"
        "p0[i] = is_inside ? p1[image * Q(14) + k / (Q(4) * Q(5)) * Q(15) + y * Q(16) + x * Q(17)] : 0;";
    launch_begin(j, body, FLOAT32);
    launch_slot(j, 0, columns, FLOAT32);
    launch_slot(j, 1, c->images.data, FLOAT32);
    set_numbers(j, c);
    j->g.n = c->K * c->N * c->L;
    return launch(j);
}

/* Each element of the images sums what the columns have of it. */
static openreg_status
columns_to_images(job *j, const convolution *c, const view *images, const char *columns)
{
    static const char body[] =
        "const long x = i % Q(7), y = i / Q(7) % Q(6), channel = i / (Q(7) * Q(6)) % Q(18), image = i / (Q(7) * Q(6) * "
        "Q(18));\n"
        "ACC acc = 0;\n"
        "for (long a = 0; a < Q(4); ++a) for (long b = 0; b < Q(5); ++b) {\n"
        "  const long v = y + Q(10) - a * Q(12), u = x + Q(11) - b * Q(13);\n"
        "  if (v < 0 || u < 0 || v % Q(8) != 0 || u % Q(9) != 0 || v / Q(8) >= Q(2) || u / Q(9) >= Q(3)) continue;\n"
        "  acc += p1[(((channel * Q(4) + a) * Q(5) + b) * Q(0) + image) * Q(1) + v / Q(8) * Q(3) + u / Q(9)]; }\n"
        "p0[o0] = acc;";
    launch_begin(j, body, FLOAT32);
    if (!launch_views(j, 1, images, NULL))
        return REFUSED;
    launch_slot(j, 1, columns, FLOAT32);
    set_numbers(j, c);
    return launch(j);
}

/* Results as a matrix (O, N L), shown as (N, O, OH, OW). */
static view
results_of(const convolution *c, char *matrix_data)
{
    return (view){matrix_data, FLOAT32, 4, {c->N, c->O, c->OH, c->OW}, {c->L, c->N * c->L, c->OW, 1}};
}

/* aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
 * bool transposed, SymInt[] output_padding, SymInt groups) */
static openreg_status
convolve(job *j)
{
    const openreg_kernel_call *const call = j->call;
    const openreg_tensor *const bias = openreg_tensor_argument(call, 2);
    convolution c;
    view added = {0};
    if (!view_of(openreg_tensor_argument(call, 0), &c.images) ||
        !view_of(openreg_tensor_argument(call, 1), &c.filters) || !view_of(call->results[0]->tensor, &c.results) ||
        !describe(j, 3, &c) || (bias != NULL && !is_float32(bias->dtype)))
        return REFUSED;
    const int64_t columns_bytes = c.K * c.N * c.L * 4, results_bytes = c.O * c.N * c.L * 4;
    char *const columns = scratch_memory(j, (uint64_t)(columns_bytes + results_bytes));
    if (columns == NULL)
        return OPENREG_E_NOMEM;
    char *const made = columns + columns_bytes;
    const matrix a = {c.filters.data, c.O, c.K, c.K, false}, b = {columns, c.K, c.N * c.L, c.N * c.L, false};
    const matrix product = {made, c.O, c.N * c.L, c.N * c.L, false};
    openreg_status status = images_to_columns(j, &c, columns);
    if (status == OPENREG_OK)
        status = multiply(j, &a, &b, &product, 1, 0);
    if (status != OPENREG_OK)
        return status;
    const view from = results_of(&c, made);
    if (bias == NULL)
        return copy_view(j, &c.results, &from);
    added = from;
    added.data = bias->data;
    memset(added.strides, 0, sizeof added.strides);
    added.strides[1] = bias->strides[0];
    const view views[] = {c.results, from, added};
    launch_begin(j, "p0[o0] = p1[o1] + p2[o2];", FLOAT32);
    return launch_views(j, 3, views, NULL) ? launch(j) : OPENREG_E_INTERNAL;
}

openreg_status
run_convolution(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, convolve(&j));
}

/* The gradient of the filters: gradients (O, N L) by columns (N L, K). */
static openreg_status
filters_gradient(job *j, const convolution *c, const view *result, char *columns, const matrix *gradients)
{
    const matrix b = {columns, c->N * c->L, c->K, c->N * c->L, true}, product = {result->data, c->O, c->K, c->K, false};
    const openreg_status status = images_to_columns(j, c, columns);
    return status != OPENREG_OK ? status : multiply(j, gradients, &b, &product, 1, 0);
}

/* The gradient of the images: filters (K, O) by gradients (O, N L), summed where columns overlap. */
static openreg_status
images_gradient(job *j, const convolution *c, const view *result, char *columns, const matrix *gradients)
{
    const matrix a = {c->filters.data, c->K, c->O, c->K, true},
                 product = {columns, c->K, c->N * c->L, c->N * c->L, false};
    const openreg_status status = multiply(j, &a, gradients, &product, 1, 0);
    return status != OPENREG_OK ? status : columns_to_images(j, c, result, columns);
}

static openreg_status
bias_gradient(job *j, const view *result, const view *gradients)
{
    static const bool inner[MOST_DIMS] = {true, false, true, true};
    view views[] = {*gradients, *gradients};
    views[0].data = result->data;
    memset(views[0].strides, 0, sizeof views[0].strides);
    views[0].strides[1] = result->strides[0];
    launch_begin(j, "ACC acc = 0; EACH(acc += L1(i1);) p0[o0] = acc;", FLOAT32);
    return launch_views(j, 2, views, inner) ? launch(j) : OPENREG_E_INTERNAL;
}

/* aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride,
 * SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) */
static openreg_status
convolve_backward(job *j)
{
    const openreg_kernel_call *const call = j->call;
    const openreg_tensor *const wanted[] = {call->results[0]->tensor, call->results[1]->tensor,
                                            call->results[2]->tensor};
    convolution c;
    view made[3];
    if (!view_of(openreg_tensor_argument(call, 0), &c.results) ||
        !view_of(openreg_tensor_argument(call, 1), &c.images) ||
        !view_of(openreg_tensor_argument(call, 2), &c.filters) || !describe(j, 4, &c))
        return REFUSED;
    for (int i = 0; i < 3; ++i)
        if (wanted[i] != NULL && (!view_of(wanted[i], &made[i]) || (i == 1 && !view_is_contiguous(&made[1]))))
            return REFUSED;
    const int64_t columns_bytes = c.K * c.N * c.L * 4, gradients_bytes = c.O * c.N * c.L * 4;
    char *const columns = scratch_memory(j, (uint64_t)(columns_bytes + gradients_bytes));
    if (columns == NULL)
        return OPENREG_E_NOMEM;
    const matrix gradients = {columns + columns_bytes, c.O, c.N * c.L, c.N * c.L, false};
    const view ordered = results_of(&c, gradients.data);
    openreg_status status = copy_view(j, &ordered, &c.results);
    if (status == OPENREG_OK && wanted[1] != NULL)
        status = filters_gradient(j, &c, &made[1], columns, &gradients);
    if (status == OPENREG_OK && wanted[0] != NULL)
        status = images_gradient(j, &c, &made[0], columns, &gradients);
    if (status == OPENREG_OK && wanted[2] != NULL)
        status = bias_gradient(j, &made[2], &c.results);
    return status;
}

openreg_status
run_convolution_backward(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, convolve_backward(&j));
}
