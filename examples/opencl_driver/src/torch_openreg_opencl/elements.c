/* SPDX-License-Identifier: BSD-3-Clause */
/* elements.c: operators by elements, a line each, and the table of all kernels. */
#include <math.h>
#include <string.h>

#include "kernels.h"

/* A0, A1, ... are the operator's arguments in the order of its schema, numbers or elements. The result has the type that
 * PyTorch's shape function has found; the expression is computed in it, or, for a bool, in the type of the arguments.
 * FLOATING: not for integers; INTEGRAL: only for integers; NUMBERS: not for bools; ORDERED: the operands must have one
 * type. PyTorch raises errors for calls that are refused, or runs its own kernels. */
enum kind { PLAIN, FLOATING, INTEGRAL, NUMBERS, ORDERED };

static const struct row {
    const char *schema;
    const char *expression;
    enum kind kind;
    bool is_indexed; /* not by elements alone: the expression uses i, ROW or COLUMN */
} rows[] = {
    {"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", "A0 + A2 * A1", PLAIN, false},
    {"aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", "A0 + A2 * A1", PLAIN, false},
    {"aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", "A0 - A2 * A1", NUMBERS, false},
    {"aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", "A0 - A2 * A1", NUMBERS, false},
    {"aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", "A1 - A2 * A0", NUMBERS, false},
    {"aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", "A0 * A1", PLAIN, false},
    {"aten::mul.Scalar(Tensor self, Scalar other) -> Tensor", "A0 * A1", PLAIN, false},
    {"aten::div.Tensor(Tensor self, Tensor other) -> Tensor", "A0 / A1", FLOATING, false},
    {"aten::div.Scalar(Tensor self, Scalar other) -> Tensor", "A0 / A1", FLOATING, false},
    {"aten::maximum(Tensor self, Tensor other) -> Tensor", "A0 != A0 ? A0 : A0 > A1 ? A0 : A1", ORDERED, false},
    {"aten::minimum(Tensor self, Tensor other) -> Tensor", "A0 != A0 ? A0 : A0 < A1 ? A0 : A1", ORDERED, false},
    {"aten::neg(Tensor self) -> Tensor", "-A0", PLAIN, false},
    {"aten::abs(Tensor self) -> Tensor", "A0 < 0 ? -A0 : A0 + 0", NUMBERS, false},
    {"aten::exp(Tensor self) -> Tensor", "exp(A0)", FLOATING, false},
    {"aten::log(Tensor self) -> Tensor", "log(A0)", FLOATING, false},
    {"aten::sqrt(Tensor self) -> Tensor", "sqrt(A0)", FLOATING, false},
    {"aten::rsqrt(Tensor self) -> Tensor", "1 / sqrt(A0)", FLOATING, false},
    {"aten::reciprocal(Tensor self) -> Tensor", "1 / A0", FLOATING, false},
    {"aten::sin(Tensor self) -> Tensor", "sin(A0)", FLOATING, false},
    {"aten::cos(Tensor self) -> Tensor", "cos(A0)", FLOATING, false},
    {"aten::tanh(Tensor self) -> Tensor", "tanh(A0)", FLOATING, false},
    {"aten::sigmoid(Tensor self) -> Tensor", "1 / (1 + exp(-A0))", FLOATING, false},
    {"aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", "A1 == 2 ? A0 * A0 : pow(A0, A1)", FLOATING,
     false},
    {"aten::relu(Tensor self) -> Tensor", "A0 < 0 ? 0 : A0", NUMBERS, false},
    {"aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor", "A1 <= A2 ? 0 : A0",
     ORDERED, false},
    {"aten::tanh_backward(Tensor grad_output, Tensor output) -> Tensor", "A0 * (1 - A1 * A1)", FLOATING, false},
    {"aten::sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor", "A0 * A1 * (1 - A1)", FLOATING, false},
    {"aten::gelu(Tensor self, *, str approximate='none') -> Tensor",
     "A1 != 0 ? A0 * (C)0.5 * (1 + TANH(A0))"
     " : A0 * (C)0.5 * (1 + erf(A0 * (C)0.7071067811865476))",
     FLOATING, false},
    {"aten::gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor",
     "A2 != 0 ? A0 * (C)0.5 * (1 + TANH(A1) + A1 * (1 - TANH(A1) * TANH(A1)) * (C)0.7978845608028654"
     " * (1 + (C)0.134145 * A1 * A1))"
     " : A0 * ((C)0.5 * (1 + erf(A1 * (C)0.7071067811865476))"
     " + A1 * (C)0.3989422804014327 * exp((C)-0.5 * A1 * A1))",
     FLOATING, false},
    {"aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor", "A0 + A3 * A1 * A2",
     NUMBERS, false},
    {"aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor", "A0 + A3 * (A1 / A2)",
     FLOATING, false},
    {"aten::lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor",
     "(A2 < 0 ? -A2 : A2) < (C)0.5 ? A0 + A2 * (A1 - A0) : A1 - (A1 - A0) * (1 - A2)", FLOATING, false},
    {"aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor",
     "A0 != A0 ? A0 : A0 > A2 || A1 > A2 ? A2 : A0 < A1 ? A1 : A0", FLOATING, false},
    {"aten::eq.Tensor(Tensor self, Tensor other) -> Tensor", "A0 == A1", ORDERED, false},
    {"aten::eq.Scalar(Tensor self, Scalar other) -> Tensor", "A0 == A1", ORDERED, false},
    {"aten::ne.Tensor(Tensor self, Tensor other) -> Tensor", "A0 != A1", ORDERED, false},
    {"aten::ne.Scalar(Tensor self, Scalar other) -> Tensor", "A0 != A1", ORDERED, false},
    {"aten::lt.Tensor(Tensor self, Tensor other) -> Tensor", "A0 < A1", ORDERED, false},
    {"aten::lt.Scalar(Tensor self, Scalar other) -> Tensor", "A0 < A1", ORDERED, false},
    {"aten::le.Tensor(Tensor self, Tensor other) -> Tensor", "A0 <= A1", ORDERED, false},
    {"aten::le.Scalar(Tensor self, Scalar other) -> Tensor", "A0 <= A1", ORDERED, false},
    {"aten::gt.Tensor(Tensor self, Tensor other) -> Tensor", "A0 > A1", ORDERED, false},
    {"aten::gt.Scalar(Tensor self, Scalar other) -> Tensor", "A0 > A1", ORDERED, false},
    {"aten::ge.Tensor(Tensor self, Tensor other) -> Tensor", "A0 >= A1", ORDERED, false},
    {"aten::ge.Scalar(Tensor self, Scalar other) -> Tensor", "A0 >= A1", ORDERED, false},
    {"aten::logical_not(Tensor self) -> Tensor", "A0 == 0", PLAIN, false},
    {"aten::bitwise_not(Tensor self) -> Tensor", "INVERTED(A0)", INTEGRAL, false},
    {"aten::bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor", "A0 & A1", INTEGRAL, false},
    {"aten::bitwise_or.Tensor(Tensor self, Tensor other) -> Tensor", "A0 | A1", INTEGRAL, false},
    {"aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor", "A0 != 0 ? A1 : A2", PLAIN, false},
    {"aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor", "A1 != 0 ? A2 : A0", PLAIN, false},
    {"aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor", "A1 != 0 ? A2 : A0", PLAIN, false},
    {"aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)", "A1", PLAIN, false},
    {"aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)", "A1", PLAIN, false},
    {"aten::fill_.Tensor(Tensor(a!) self, Tensor value) -> Tensor(a!)", "A1", PLAIN, false},
    {"aten::zero_(Tensor(a!) self) -> Tensor(a!)", "0", PLAIN, false},
    {"aten::tril(Tensor self, SymInt diagonal=0) -> Tensor", "COLUMN - ROW <= A1 ? A0 : 0", PLAIN, true},
    {"aten::triu(Tensor self, SymInt diagonal=0) -> Tensor", "COLUMN - ROW >= A1 ? A0 : 0", PLAIN, true},
    {"aten::arange.start_out(Scalar start, Scalar end, Scalar step=1, *, Tensor(a!) out) -> Tensor(a!)",
     "A0 + (C)i * A2", PLAIN, true},
};
#define ROWS (sizeof rows / sizeof rows[0])

static char bodies[ROWS][512];

static const struct row *
row_of(const openreg_kernel_call *call)
{
    for (size_t i = 0; i < ROWS; ++i)
        if (call->kernel->schema == rows[i].schema)
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

/* Whether the tensors have one type, and it can represent the numbers: PyTorch compares in the tensors' type, where 300
 * may be another number. */
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
        const openreg_value *const a = call->arguments[i];
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
        const openreg_value *const a = call->arguments[i];
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
        const openreg_value *const a = call->arguments[i];
        const double most = 9007199254740992.0; /* 2^53: numbers come as doubles, and that one may be 2^53 + 1 */
        if (a->kind == OPENREG_VALUE_FLOAT && !is_float(type) && a->real != floor(a->real))
            return false;
        if (a->kind == OPENREG_VALUE_COMPLEX || (!is_float(type) && fabs(a->real) >= most))
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
        const openreg_value *const a = call->arguments[i];
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
    if (!view_of(j->call->results[0]->tensor, &views[0]) || !kernel_knows(j, views[0].dtype) ||
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
    const openreg_value *const list = call->arguments[0];
    const bool is_stack = strcmp(call->kernel->name, "aten::stack") == 0;
    view result, part, from;
    if (!view_of(call->results[0]->tensor, &result) || !kernel_knows(j, result.dtype) || result.ndim == 0)
        return REFUSED;
    const int64_t dim = call->arguments[1]->integer;
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

static const struct other {
    const char *schema;
    openreg_status (*run)(openreg_instance, const openreg_kernel_call *call);
} others[] = {
    {"aten::cat(Tensor[] tensors, int dim=0) -> Tensor", run_cat},
    {"aten::stack(Tensor[] tensors, int dim=0) -> Tensor", run_cat},
    {"aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor", run_reduction},
    {"aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
     run_reduction},
    {"aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", run_reduction},
    {"aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
     run_reduction},
    {"aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", run_reduction},
    {"aten::amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", run_reduction},
    {"aten::max(Tensor self) -> Tensor", run_reduction},
    {"aten::min(Tensor self) -> Tensor", run_reduction},
    {"aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", run_reduction},
    {"aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? "
     "dtype=None) -> Tensor",
     run_reduction},
    {"aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", run_softmax},
    {"aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", run_softmax},
    {"aten::_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor",
     run_softmax},
    {"aten::_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor",
     run_softmax},
    {"aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> "
     "(Tensor, Tensor, Tensor)",
     run_layer_norm},
    {"aten::native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor "
     "rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
     run_layer_norm_backward},
    {"aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
     "bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
     run_batch_norm},
    {"aten::native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? "
     "running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, "
     "Tensor, Tensor)",
     run_batch_norm_backward},
    {"aten::nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> "
     "(Tensor output, Tensor total_weight)",
     run_nll_loss},
    {"aten::nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt "
     "ignore_index, Tensor total_weight) -> Tensor",
     run_nll_loss_backward},
    {"aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool "
     "sparse=False) -> Tensor",
     run_embedding},
    {"aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool "
     "scale_grad_by_freq) -> Tensor",
     run_embedding_backward},
    {"aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] "
     "dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
     run_max_pool},
    {"aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, "
     "int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor",
     run_max_pool_backward},
    {"aten::mm(Tensor self, Tensor mat2) -> Tensor", run_mm},
    {"aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", run_addmm},
    {"aten::bmm(Tensor self, Tensor mat2) -> Tensor", run_bmm},
    {"aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
     run_baddbmm},
    {"aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] "
     "dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor",
     run_convolution},
    {"aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] "
     "stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] "
     "output_mask) -> (Tensor, Tensor, Tensor)",
     run_convolution_backward},
};
#define OTHERS (sizeof others / sizeof others[0])

static char names[ROWS + OTHERS][48];
static openreg_kernel list[ROWS + OTHERS];
static const openreg_kernels kernels = {
    .struct_size = sizeof(openreg_kernels),
    .version = OPENREG_KERNELS_VERSION,
    .kernel_size = sizeof(openreg_kernel),
    .count = ROWS + OTHERS,
    .list = list,
};

/* An operator's name is what its schema begins with. */
static void
add_kernel(size_t at, const char *schema, openreg_status (*run)(openreg_instance, const openreg_kernel_call *call),
           uint64_t flags)
{
    (void)snprintf(names[at], sizeof names[at], "%.*s", (int)strcspn(schema, "("), schema);
    list[at] = (openreg_kernel){.name = names[at], .schema = schema, .run = run, .flags = flags};
}

static void
make_table(void)
{
    for (size_t i = 0; i < ROWS; ++i) {
        (void)snprintf(bodies[i], sizeof bodies[i],
                       "#define TANH(x) tanh((C)0.7978845608028654 * (x + (C)0.044715 * x * x * x))\n"
                       "#define ROW (i / Q(0) %% Q(1))\n#define COLUMN (i %% Q(0))\np0[o0] = RESULT(%s);",
                       rows[i].expression);
        add_kernel(i, rows[i].schema, run_elements, rows[i].is_indexed ? 0 : OPENREG_KERNEL_ELEMENTWISE);
    }
    for (size_t i = 0; i < OTHERS; ++i)
        add_kernel(ROWS + i, others[i].schema, others[i].run, 0);
}

const openreg_kernels *
opencl_kernels(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, make_table);
    return &kernels;
}
