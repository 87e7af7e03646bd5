/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_elements.c: operators by the element with any arguments, and reductions (kernel_reference.h). */
#include <math.h>

#include "kernel_reference.h"

typedef enum what {
    ADD,
    SUB,
    RSUB,
    MUL,
    DIV,
    MAXIMUM,
    MINIMUM,
    NEG,
    ABS,
    RELU,
    EXP,
    LOG,
    SQRT,
    RSQRT,
    RECIPROCAL,
    SIN,
    COS,
    TANH,
    SIGMOID,
    POW,
    THRESHOLD_BACKWARD,
    TANH_BACKWARD,
    SIGMOID_BACKWARD,
    ADDCMUL,
    ADDCDIV,
    LERP,
    EQ,
    NE,
    LT,
    LE,
    GT,
    GE,
    NOT
} what;

#define REAL .is_real = true
#define POSITIVE .is_real = true, .is_positive = true
#define TRUTH .is_boolean = true, .is_exact = true
#define EXACT .is_exact = true

static const check_elementwise elementwise[] = {
    {"aten::add.Tensor", "self other alpha", "TNA", ADD, EXACT},
    {"aten::add.Scalar", "self other alpha", "TSA", ADD, EXACT},
    {"aten::sub.Tensor", "self other alpha", "TNA", SUB, EXACT},
    {"aten::sub.Scalar", "self other alpha", "TSA", SUB, EXACT},
    {"aten::rsub.Scalar", "self other alpha", "TSA", RSUB, EXACT},
    {"aten::mul.Tensor", "self other", "TN", MUL, EXACT},
    {"aten::mul.Scalar", "self other", "TS", MUL, EXACT},
    {"aten::div.Tensor", "self other", "TN", DIV, REAL},
    {"aten::div.Scalar", "self other", "TS", DIV, REAL},
    {"aten::maximum", "self other", "TT", MAXIMUM, EXACT},
    {"aten::minimum", "self other", "TT", MINIMUM, EXACT},
    {"aten::neg", "self", "T", NEG, EXACT},
    {"aten::abs", "self", "T", ABS, EXACT},
    {"aten::relu", "self", "T", RELU, EXACT},
    {"aten::exp", "self", "T", EXP, REAL},
    {"aten::log", "self", "T", LOG, POSITIVE},
    {"aten::sqrt", "self", "T", SQRT, POSITIVE},
    {"aten::rsqrt", "self", "T", RSQRT, POSITIVE},
    {"aten::reciprocal", "self", "T", RECIPROCAL, REAL},
    {"aten::sin", "self", "T", SIN, REAL},
    {"aten::cos", "self", "T", COS, REAL},
    {"aten::tanh", "self", "T", TANH, REAL},
    {"aten::sigmoid", "self", "T", SIGMOID, REAL},
    {"aten::pow.Tensor_Scalar", "self exponent", "TS", POW, POSITIVE},
    {"aten::threshold_backward", "grad_output self threshold", "TTS", THRESHOLD_BACKWARD, EXACT},
    {"aten::tanh_backward", "grad_output output", "TT", TANH_BACKWARD, REAL},
    {"aten::sigmoid_backward", "grad_output output", "TT", SIGMOID_BACKWARD, REAL},
    {"aten::addcmul", "self tensor1 tensor2 value", "TTTS", ADDCMUL, REAL},
    {"aten::addcdiv", "self tensor1 tensor2 value", "TTTS", ADDCDIV, REAL},
    {"aten::lerp.Scalar", "self end weight", "TTS", LERP, REAL},
    {"aten::eq.Tensor", "self other", "TN", EQ, TRUTH},
    {"aten::eq.Scalar", "self other", "TS", EQ, TRUTH},
    {"aten::ne.Tensor", "self other", "TN", NE, TRUTH},
    {"aten::ne.Scalar", "self other", "TS", NE, TRUTH},
    {"aten::lt.Tensor", "self other", "TN", LT, TRUTH},
    {"aten::lt.Scalar", "self other", "TS", LT, TRUTH},
    {"aten::le.Tensor", "self other", "TN", LE, TRUTH},
    {"aten::le.Scalar", "self other", "TS", LE, TRUTH},
    {"aten::gt.Tensor", "self other", "TN", GT, TRUTH},
    {"aten::gt.Scalar", "self other", "TS", GT, TRUTH},
    {"aten::ge.Tensor", "self other", "TN", GE, TRUTH},
    {"aten::ge.Scalar", "self other", "TS", GE, TRUTH},
    {"aten::logical_not", "self", "T", NOT, TRUTH},
};

const check_elementwise *
check_elementwise_find(const char *name)
{
    for (size_t i = 0; i < sizeof elementwise / sizeof elementwise[0]; ++i)
        if (strcmp(elementwise[i].name, name) == 0)
            return &elementwise[i];
    return NULL;
}

double
check_elementwise_real(const check_elementwise *op, const double *v)
{
    const double a = v[0], b = op->kinds[1] != '\0' ? v[1] : 0,
                 s = op->kinds[1] != '\0' && op->kinds[2] != '\0' ? v[2] : 1;
    switch ((what)op->what) {
    case ADD:
        return a + s * b;
    case SUB:
        return a - s * b;
    case RSUB:
        return b - s * a;
    case MUL:
        return a * b;
    case DIV:
        return a / b;
    case MAXIMUM:
        return a > b ? a : b;
    case MINIMUM:
        return a < b ? a : b;
    case NEG:
        return -a;
    case ABS:
        return a < 0 ? -a : a;
    case RELU:
        return a < 0 ? 0 : a;
    case EXP:
        return exp(a);
    case LOG:
        return log(a);
    case SQRT:
        return sqrt(a);
    case RSQRT:
        return 1 / sqrt(a);
    case RECIPROCAL:
        return 1 / a;
    case SIN:
        return sin(a);
    case COS:
        return cos(a);
    case TANH:
        return tanh(a);
    case SIGMOID:
        return 1 / (1 + exp(-a));
    case POW:
        return pow(a, b);
    case THRESHOLD_BACKWARD:
        return b <= s ? 0 : a;
    case TANH_BACKWARD:
        return a * (1 - b * b);
    case SIGMOID_BACKWARD:
        return a * b * (1 - b);
    case ADDCMUL:
        return a + v[3] * b * s;
    case ADDCDIV:
        return a + v[3] * b / s;
    case LERP:
        return a + s * (b - a);
    case EQ:
        return a == b;
    case NE:
        return a != b;
    case LT:
        return a < b;
    case LE:
        return a <= b;
    case GT:
        return a > b;
    case GE:
        return a >= b;
    case NOT:
        return a == 0;
    }
    return 0;
}

/* Integers wrap, as PyTorch's do. */
int64_t
check_elementwise_whole(const check_elementwise *op, const int64_t *v)
{
    const int64_t a = v[0], b = op->kinds[1] != '\0' ? v[1] : 0,
                  s = op->kinds[1] != '\0' && op->kinds[2] != '\0' ? v[2] : 1;
    switch ((what)op->what) {
    case ADD:
        return (int64_t)((uint64_t)a + (uint64_t)s * (uint64_t)b);
    case SUB:
        return (int64_t)((uint64_t)a - (uint64_t)s * (uint64_t)b);
    case RSUB:
        return (int64_t)((uint64_t)b - (uint64_t)s * (uint64_t)a);
    case MUL:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case MAXIMUM:
        return a > b ? a : b;
    case MINIMUM:
        return a < b ? a : b;
    case NEG:
        return (int64_t)(0 - (uint64_t)a);
    case ABS:
        return a < 0 ? (int64_t)(0 - (uint64_t)a) : a;
    case RELU:
        return a < 0 ? 0 : a;
    case THRESHOLD_BACKWARD:
        return b <= s ? 0 : a;
    case EQ:
        return a == b;
    case NE:
        return a != b;
    case LT:
        return a < b;
    case LE:
        return a <= b;
    case GT:
        return a > b;
    case GE:
        return a >= b;
    case NOT:
        return a == 0;
    default:
        return 0; /* of floating-point numbers alone */
    }
}

static const check_reduction reductions[] = {
    {"aten::sum.dim_IntList", CHECK_SUM, true},
    {"aten::mean.dim", CHECK_MEAN, true},
    {"aten::amax", CHECK_MOST, false},
    {"aten::amin", CHECK_LEAST, false},
};

const check_reduction *
check_reduction_find(const char *name)
{
    for (size_t i = 0; i < sizeof reductions / sizeof reductions[0]; ++i)
        if (strcmp(reductions[i].name, name) == 0)
            return &reductions[i];
    return NULL;
}

bool
check_is_referenced(const char *name)
{
    return check_operator_find(name) != NULL || check_elementwise_find(name) != NULL ||
           check_reduction_find(name) != NULL || strcmp(name, "aten::bmm") == 0 || strcmp(name, "aten::addmm") == 0;
}
