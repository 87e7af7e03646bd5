/* SPDX-License-Identifier: BSD-3-Clause */
/* elements.c: operators by elements, a line each, and the table of all kernels. */
#include <math.h>
#include <string.h>

#include "kernels.h"

/* A0, A1, ... are the operator's arguments in the order of its schema, numbers or elements; the result is of the type that
 * PyTorch's shape function has found, and so is what is computed; for a bool that of the arguments. FLOATING: not for
 * integers; INTEGRAL: for nothing else; NUMBERS: not for bools; ORDERED: what it compares must be of one type. PyTorch
 * raises errors for what is refused, or its kernels do what this driver's would do otherwise. */
enum kind { PLAIN, FLOATING, INTEGRAL, NUMBERS, ORDERED };

static const struct row {
    const char *name; /* without "aten::" */
    const char *expression;
    enum kind kind;
    bool is_indexed; /* not by elements alone: the expression uses i, ROW or COLUMN */
} rows[] = {
    {"add.Tensor", "A0 + A2 * A1", PLAIN, false},
    {"add.Scalar", "A0 + A2 * A1", PLAIN, false},
    {"sub.Tensor", "A0 - A2 * A1", NUMBERS, false},
    {"sub.Scalar", "A0 - A2 * A1", NUMBERS, false},
    {"rsub.Scalar", "A1 - A2 * A0", NUMBERS, false},
    {"mul.Tensor", "A0 * A1", PLAIN, false},
    {"mul.Scalar", "A0 * A1", PLAIN, false},
    {"div.Tensor", "A0 / A1", FLOATING, false},
    {"div.Scalar", "A0 / A1", FLOATING, false},
    {"maximum", "A0 != A0 ? A0 : A0 > A1 ? A0 : A1", ORDERED, false},
    {"minimum", "A0 != A0 ? A0 : A0 < A1 ? A0 : A1", ORDERED, false},
    {"neg", "-A0", PLAIN, false},
    {"abs", "A0 < 0 ? -A0 : A0 + 0", NUMBERS, false},
    {"exp", "exp(A0)", FLOATING, false},
    {"log", "log(A0)", FLOATING, false},
    {"sqrt", "sqrt(A0)", FLOATING, false},
    {"rsqrt", "1 / sqrt(A0)", FLOATING, false},
    {"reciprocal", "1 / A0", FLOATING, false},
    {"sin", "sin(A0)", FLOATING, false},
    {"cos", "cos(A0)", FLOATING, false},
    {"tanh", "tanh(A0)", FLOATING, false},
    {"sigmoid", "1 / (1 + exp(-A0))", FLOATING, false},
    {"pow.Tensor_Scalar", "A1 == 2 ? A0 * A0 : pow(A0, A1)", FLOATING, false},
    {"relu", "A0 < 0 ? 0 : A0", NUMBERS, false},
    {"threshold_backward", "A1 <= A2 ? 0 : A0", PLAIN, false},
    {"tanh_backward", "A0 * (1 - A1 * A1)", FLOATING, false},
    {"sigmoid_backward", "A0 * A1 * (1 - A1)", FLOATING, false},
    {"gelu",
     "A1 != 0 ? A0 * (C)0.5 * (1 + TANH(A0))"
     " : A0 * (C)0.5 * (1 + erf(A0 * (C)0.7071067811865476))",
     FLOATING, false},
    {"gelu_backward",
     "A2 != 0 ? A0 * (C)0.5 * (1 + TANH(A1) + A1 * (1 - TANH(A1) * TANH(A1)) * (C)0.7978845608028654"
     " * (1 + (C)0.134145 * A1 * A1))"
     " : A0 * ((C)0.5 * (1 + erf(A1 * (C)0.7071067811865476))"
     " + A1 * (C)0.3989422804014327 * exp((C)-0.5 * A1 * A1))",
     FLOATING, false},
    {"addcmul", "A0 + A3 * A1 * A2", NUMBERS, false},
    {"addcdiv", "A0 + A3 * (A1 / A2)", FLOATING, false},
    {"lerp.Scalar", "(A2 < 0 ? -A2 : A2) < (C)0.5 ? A0 + A2 * (A1 - A0) : A1 - (A1 - A0) * (1 - A2)", FLOATING, false},
    {"clamp", "A0 < A1 ? A1 : A0 > A2 ? A2 : A0", FLOATING, false},
    {"eq.Tensor", "A0 == A1", ORDERED, false},
    {"eq.Scalar", "A0 == A1", ORDERED, false},
    {"ne.Tensor", "A0 != A1", ORDERED, false},
    {"ne.Scalar", "A0 != A1", ORDERED, false},
    {"lt.Tensor", "A0 < A1", ORDERED, false},
    {"lt.Scalar", "A0 < A1", ORDERED, false},
    {"le.Tensor", "A0 <= A1", ORDERED, false},
    {"le.Scalar", "A0 <= A1", ORDERED, false},
    {"gt.Tensor", "A0 > A1", ORDERED, false},
    {"gt.Scalar", "A0 > A1", ORDERED, false},
    {"ge.Tensor", "A0 >= A1", ORDERED, false},
    {"ge.Scalar", "A0 >= A1", ORDERED, false},
    {"logical_not", "A0 == 0", PLAIN, false},
    {"bitwise_not", "INVERTED(A0)", INTEGRAL, false},
    {"bitwise_and.Tensor", "A0 & A1", INTEGRAL, false},
    {"bitwise_or.Tensor", "A0 | A1", INTEGRAL, false},
    {"where.self", "A0 != 0 ? A1 : A2", PLAIN, false},
    {"masked_fill.Scalar", "A1 != 0 ? A2 : A0", PLAIN, false},
    {"masked_fill.Tensor", "A1 != 0 ? A2 : A0", PLAIN, false},
    {"copy_", "A1", PLAIN, false},
    {"fill_.Scalar", "A1", PLAIN, false},
    {"fill_.Tensor", "A1", PLAIN, false},
    {"zero_", "0", PLAIN, false},
    {"tril", "COLUMN - ROW <= A1 ? A0 : 0", PLAIN, true},
    {"triu", "COLUMN - ROW >= A1 ? A0 : 0", PLAIN, true},
    {"arange.start_out", "A0 + (C)i * A2", PLAIN, true},
};
#define ROWS (sizeof rows / sizeof rows[0])

static char bodies[ROWS][512];

static const struct row *
row_of(const openreg_kernel_call *call)
{
    for (size_t i = 0; i < ROWS; ++i)
        if (strcmp(call->kernel->name + strlen("aten::"), rows[i].name) == 0)
            return &rows[i];
    return NULL;
}

/* The type that two are promoted to; bool < integers < floating-point numbers. */
static openreg_dtype
wider(openreg_dtype a, openreg_dtype b)
{
    if (is_float(a) != is_float(b))
        return is_float(a) ? a : b;
    return is_float(a) && b.bits < a.bits ? a : is_float(a) ? b : INT64;
}

/* Whether the numbers can be of the tensors' type, and those are of one: PyTorch compares in that, where 300 is another
 * number. */
static bool
is_of_one_type(const openreg_kernel_call *call, const view *views, int count)
{
    const openreg_dtype type = views[1].dtype;
    const double most = type.code == OPENREG_DTYPE_UINT ? 255 : ldexp(1, type.bits - 1) - 1;
    const double least = type.code == OPENREG_DTYPE_UINT ? 0 : -ldexp(1, type.bits - 1);
    for (int v = 2; v < count; ++v)
        if (views[v].dtype.code != type.code || views[v].dtype.bits != type.bits)
            return false;
    for (uint64_t i = 0; i < call->argument_count; ++i) {
        const openreg_value *const a = &call->arguments[i];
        const bool is_number = a->kind >= OPENREG_VALUE_BOOL && a->kind <= OPENREG_VALUE_FLOAT;
        if (is_number && (type.code == OPENREG_DTYPE_INT || type.code == OPENREG_DTYPE_UINT) &&
            (a->real < least || a->real > most))
            return false;
    }
    return true;
}

static bool
has_bool(const openreg_kernel_call *call)
{
    for (uint64_t i = 0; i < call->argument_count; ++i) {
        const openreg_value *const a = &call->arguments[i];
        if (a->kind == OPENREG_VALUE_BOOL ||
            (a->kind == OPENREG_VALUE_TENSOR && a->tensor->dtype.code == OPENREG_DTYPE_BOOL))
            return true;
    }
    return false;
}

/* The type to compute with; false if there is none. */
static bool
find_compute_type(job *j, const struct row *row, const view *views, int count)
{
    const openreg_kernel_call *const call = j->call;
    openreg_dtype type = is_float(views[0].dtype) ? views[0].dtype : INT64;
    if (views[0].dtype.code == OPENREG_DTYPE_BOOL) /* a comparison, or a copy: 0.5 is true */
        for (int v = 1; v < count; ++v)
            type = wider(type, views[v].dtype);
    if ((row->kind == FLOATING && !is_float(type)) || (row->kind == INTEGRAL && is_float(type)) ||
        (row->kind == NUMBERS && has_bool(call)) || (row->kind == ORDERED && !is_of_one_type(call, views, count)))
        return false;
    for (uint64_t i = 0; i < call->argument_count; ++i) {
        const openreg_value *const a = &call->arguments[i];
        const double most = 9007199254740992.0; /* 2^53: numbers come as doubles */
        if (a->kind == OPENREG_VALUE_FLOAT && !is_float(type) && a->real != floor(a->real))
            return false;
        if (a->kind == OPENREG_VALUE_COMPLEX || (!is_float(type) && fabs(a->real) > most))
            return false;
    }
    j->compute = type;
    return true;
}

/* Numbers and tensors as A0, A1, ...; what is None is NaN, which no comparison holds for. False: refused. */
static bool
show_arguments(job *j, view *views, int *count)
{
    const openreg_kernel_call *const call = j->call;
    int at = 0, numbers = 0;
    *count = 1;
    for (uint64_t i = 0; i < call->argument_count && i < 6; ++i) {
        const openreg_value *const a = &call->arguments[i];
        char name[32];
        if (a->kind == OPENREG_VALUE_TENSOR) {
            if (*count == STRIDED || !view_of(a->tensor, &views[*count]) || !kernel_knows(j, a->tensor->dtype))
                return false;
            (void)snprintf(name, sizeof name, "L%d(o%d)", *count, *count);
            ++*count;
        } else {
            if (a->kind > OPENREG_VALUE_FLOAT && a->kind != OPENREG_VALUE_STRING)
                return false;
            j->g.numbers[numbers] = a->kind == OPENREG_VALUE_NONE     ? NAN
                                    : a->kind == OPENREG_VALUE_STRING ? strcmp(a->text, "none") != 0
                                                                      : a->real;
            (void)snprintf(name, sizeof name, "S(%d)", numbers++);
        }
        at += snprintf(j->macros + at, sizeof j->macros - (size_t)at, "#define A%d %s\n", (int)i, name);
    }
    return true;
}

static void
add_special_names(job *j, const view *result)
{
    const size_t at = strlen(j->macros);
    const bool is_bool = result->dtype.code == OPENREG_DTYPE_BOOL; /* a byte: 0 or 1 */
    const int n = result->ndim;
    (void)snprintf(j->macros + at, sizeof j->macros - at, "#define RESULT(x) %s\n#define INVERTED(x) %s\n",
                   is_bool ? "((x) != 0)" : "((T0)(x))", is_bool ? "((x) == 0)" : "(~(x))");
    j->g.integers[0] = n > 0 ? result->shape[n - 1] : 1;
    j->g.integers[1] = n > 1 ? result->shape[n - 2] : 1;
}

static openreg_status
run_row(job *j, const struct row *row)
{
    view views[STRIDED];
    int count;
    launch_begin(j, bodies[row - rows], INT64);
    if (!view_of(j->call->results[0].tensor, &views[0]) || !kernel_knows(j, views[0].dtype) ||
        !show_arguments(j, views, &count) || !find_compute_type(j, row, views, count))
        return REFUSED;
    for (int v = 1; v < count; ++v) {
        bool same = views[v].ndim == views[0].ndim;
        for (int d = 0; same && d < views[0].ndim; ++d)
            same = views[v].shape[d] == views[0].shape[d];
        if (!same)
            return REFUSED;
    }
    add_special_names(j, &views[0]);
    return launch_views(j, count, views, NULL) ? launch(j) : REFUSED;
}

openreg_status
run_elements(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, run_row(&j, row_of(call)));
}

openreg_status
copy_view(job *j, const view *result, const view *source)
{
    const view views[] = {*result, *source};
    launch_begin(j, "p0[o0] = (T0)L1(o1);",
                 is_float(result->dtype) || is_float(source->dtype)
                     ? (is_float(source->dtype) ? source->dtype : result->dtype)
                     : INT64);
    if (result->dtype.code == OPENREG_DTYPE_BOOL)
        j->body = "p0[o0] = L1(o1) != 0;";
    return launch_views(j, 2, views, NULL) ? launch(j) : REFUSED;
}

/* aten::cat(Tensor[] tensors, int dim), aten::stack(Tensor[] tensors, int dim) */
static openreg_status
cat(job *j)
{
    const openreg_kernel_call *const call = j->call;
    const openreg_value *const list = &call->arguments[0];
    const bool is_stack = strcmp(call->kernel->name, "aten::stack") == 0;
    view result, part, from;
    if (!view_of(call->results[0].tensor, &result) || !kernel_knows(j, result.dtype) || result.ndim == 0)
        return REFUSED;
    const int64_t dim = call->arguments[1].integer;
    const int along = (int)(dim < 0 ? dim + result.ndim : dim);
    for (uint64_t t = 0; t < list->count; ++t)
        if (!view_of(list->tensors[t], &from) || !kernel_knows(j, from.dtype) || from.ndim + is_stack > MOST_DIMS ||
            result.ndim > DIMS)
            return REFUSED;
    part = result;
    for (uint64_t t = 0; t < list->count; ++t) {
        (void)view_of(list->tensors[t], &from);
        if (openreg_element_count(list->tensors[t]) == 0)
            continue;
        if (is_stack) {
            memmove(&from.shape[along + 1], &from.shape[along], sizeof from.shape[0] * (size_t)(from.ndim - along));
            memmove(&from.strides[along + 1], &from.strides[along],
                    sizeof from.strides[0] * (size_t)(from.ndim - along));
            from.shape[along] = 1;
            from.strides[along] = 0;
            ++from.ndim;
        }
        part.shape[along] = from.shape[along];
        const openreg_status status = copy_view(j, &part, &from);
        if (status != OPENREG_OK)
            return status;
        part.data += from.shape[along] * result.strides[along] * (result.dtype.bits / 8);
    }
    return OPENREG_OK;
}

openreg_status
run_cat(openreg_instance cl, const openreg_kernel_call *call)
{
    job j;
    const openreg_status status = job_begin(cl, call, &j);
    return status != OPENREG_OK ? status : job_end(&j, cat(&j));
}

/* ---------------------------------------------------------------------------------------------------------- the table */

static const openreg_kernel others[] = {
    {.name = "aten::cat", .run = run_cat},
    {.name = "aten::stack", .run = run_cat},
    {.name = "aten::sum", .run = run_reduction},
    {.name = "aten::sum.dim_IntList", .run = run_reduction},
    {.name = "aten::mean", .run = run_reduction},
    {.name = "aten::mean.dim", .run = run_reduction},
    {.name = "aten::amax", .run = run_reduction},
    {.name = "aten::amin", .run = run_reduction},
    {.name = "aten::max", .run = run_reduction},
    {.name = "aten::min", .run = run_reduction},
    {.name = "aten::argmax", .run = run_reduction},
    {.name = "aten::linalg_vector_norm", .run = run_reduction},
    {.name = "aten::_softmax", .run = run_softmax},
    {.name = "aten::_log_softmax", .run = run_softmax},
    {.name = "aten::_softmax_backward_data", .run = run_softmax},
    {.name = "aten::_log_softmax_backward_data", .run = run_softmax},
    {.name = "aten::native_layer_norm", .run = run_layer_norm},
    {.name = "aten::native_layer_norm_backward", .run = run_layer_norm_backward},
    {.name = "aten::native_batch_norm", .run = run_batch_norm},
    {.name = "aten::native_batch_norm_backward", .run = run_batch_norm_backward},
    {.name = "aten::nll_loss_forward", .run = run_nll_loss},
    {.name = "aten::nll_loss_backward", .run = run_nll_loss_backward},
    {.name = "aten::embedding", .run = run_embedding},
    {.name = "aten::embedding_dense_backward", .run = run_embedding_backward},
    {.name = "aten::max_pool2d_with_indices", .run = run_max_pool},
    {.name = "aten::max_pool2d_with_indices_backward", .run = run_max_pool_backward},
    {.name = "aten::mm", .run = run_mm},
    {.name = "aten::addmm", .run = run_addmm},
    {.name = "aten::bmm", .run = run_bmm},
    {.name = "aten::baddbmm", .run = run_baddbmm},
    {.name = "aten::convolution", .run = run_convolution},
    {.name = "aten::convolution_backward", .run = run_convolution_backward},
};
#define OTHERS (sizeof others / sizeof others[0])

static char names[ROWS][40];
static openreg_kernel list[ROWS + OTHERS];
static const openreg_kernels kernels = {
    .struct_size = sizeof(openreg_kernels),
    .version = OPENREG_KERNELS_VERSION,
    .kernel_size = sizeof(openreg_kernel),
    .count = ROWS + OTHERS,
    .list = list,
};

static void
make_table(void)
{
    for (size_t i = 0; i < ROWS; ++i) {
        (void)snprintf(names[i], sizeof names[i], "aten::%s", rows[i].name);
        (void)snprintf(bodies[i], sizeof bodies[i],
                       "#define TANH(x) tanh((C)0.7978845608028654 * (x + (C)0.044715 * x * x * x))\n"
                       "#define ROW (i / Q(0) %% Q(1))\n#define COLUMN (i %% Q(0))\np0[o0] = RESULT(%s);",
                       rows[i].expression);
        list[i] = (openreg_kernel){names[i], run_elements, rows[i].is_indexed ? 0 : OPENREG_KERNEL_ELEMENTWISE};
    }
    memcpy(&list[ROWS], others, sizeof others);
}

const openreg_kernels *
opencl_kernels(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, make_table);
    return &kernels;
}
