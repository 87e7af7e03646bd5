/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_reference.c: numbers of every type, operators by the element, reductions and products (kernel_reference.h). */
#include "kernel_reference.h"

#include <float.h>
#include <math.h>

/* Of 16 bits: half, of 5 bits of exponent, or the first two bytes of a float. */
static bool
is_half(openreg_dtype dtype)
{
    return dtype.code == OPENREG_DTYPE_FLOAT && dtype.bits == 16;
}

static double
load_half(const void *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31
                            ? (fraction != 0 ? NAN : INFINITY)
                            : ldexp(fraction + (exponent != 0 ? 1024 : 0), (exponent != 0 ? exponent : 1) - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

/* For numbers that the type has. */
static void
store_half(void *at, double value)
{
    int exponent;
    (void)frexp(value, &exponent);
    exponent = value == 0 || exponent < -13 ? -13 : exponent;
    const int fraction = (int)ldexp(fabs(value), 11 - exponent);
    const uint16_t bits = (uint16_t)((value < 0 ? 0x8000 : 0) + ((exponent + 13) << 10) + fraction);
    memcpy(at, &bits, sizeof bits);
}

double
check_number_load(const void *at, openreg_dtype dtype)
{
    float f = 0;
    double d;
    if (is_half(dtype))
        return load_half(at);
    if (dtype.code == OPENREG_DTYPE_BFLOAT)
        return memcpy((char *)&f + 2, at, 2), (double)f;
    if (dtype.code != OPENREG_DTYPE_FLOAT)
        return (double)check_number_load_whole(at, dtype);
    if (dtype.bits == 32)
        return memcpy(&f, at, sizeof f), (double)f;
    return memcpy(&d, at, sizeof d), d;
}

int64_t
check_number_wrap(int64_t value, openreg_dtype dtype)
{
    const int rest = 64 - dtype.bits;
    const uint64_t high = (uint64_t)value << rest;
    return dtype.code == OPENREG_DTYPE_INT ? (int64_t)high >> rest : (int64_t)(high >> rest);
}

/* The first bytes are the low ones: every machine that the runtime is built for is little-endian. */
int64_t
check_number_load_whole(const void *at, openreg_dtype dtype)
{
    int64_t value = 0;
    memcpy(&value, at, dtype.bits / 8);
    return check_number_wrap(value, dtype);
}

void
check_number_store(void *at, openreg_dtype dtype, double value)
{
    const float f = (float)value;
    const bool is_float = dtype.code == OPENREG_DTYPE_FLOAT, is_brain = dtype.code == OPENREG_DTYPE_BFLOAT;
    const int64_t whole = is_float || is_brain ? 0 : dtype.code == OPENREG_DTYPE_BOOL ? value != 0 : (int64_t)value;
    if (is_half(dtype))
        store_half(at, value);
    else if (is_brain)
        memcpy(at, (const char *)&f + 2, 2);
    else if (is_float && dtype.bits == 32)
        memcpy(at, &f, sizeof f);
    else if (is_float)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &whole, dtype.bits / 8);
}

bool
check_is_close(double seen, double wanted, openreg_dtype dtype)
{
    const bool is_brain = dtype.code == OPENREG_DTYPE_BFLOAT;
    if (dtype.code != OPENREG_DTYPE_FLOAT && !is_brain)
        return seen == wanted;
    if (dtype.bits == 32 && fabs(wanted) > FLT_MAX && !isinf(wanted))
        wanted = wanted > 0 ? INFINITY : -INFINITY;
    if (isnan(wanted) || isinf(wanted))
        return isnan(wanted) ? isnan(seen) != 0 : seen == wanted;
    const double tolerance = dtype.bits == 64 ? 1e-12 : dtype.bits == 32 ? 1e-5 : is_brain ? 8e-3 : 1e-3;
    return fabs(seen - wanted) <= tolerance * (fabs(wanted) + 1);
}

/* Arithmetic and choices; comparisons and bits; what floating-point numbers alone have. */
enum { ADD, SUB, RSUB, MUL, NEG, ABS, RELU, MAXIMUM, MINIMUM, THRESHOLD_BACKWARD, CLAMP, WHERE, MASKED_FILL };
enum { EQ = MASKED_FILL + 1, NE, LT, LE, GT, GE, NOT, INVERT, AND, OR };
enum { FUNCTION = OR + 1, DIV, RSQRT, RECIPROCAL, SIGMOID, POW, TANH_BACKWARD, SIGMOID_BACKWARD, LERP };
enum { ADDCMUL = LERP + 1, ADDCDIV, GELU, GELU_BACKWARD };

#define REAL .is_real = true
#define POSITIVE .is_real = true, .is_positive = true
#define TRUTH .is_boolean = true, .is_exact = true
#define EXACT .is_exact = true
#define WHOLE .is_whole = true, .is_exact = true

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
    {"aten::exp", "self", "T", FUNCTION, REAL, .function = exp},
    {"aten::log", "self", "T", FUNCTION, POSITIVE, .function = log},
    {"aten::sqrt", "self", "T", FUNCTION, POSITIVE, .function = sqrt},
    {"aten::rsqrt", "self", "T", RSQRT, POSITIVE},
    {"aten::reciprocal", "self", "T", RECIPROCAL, REAL},
    {"aten::sin", "self", "T", FUNCTION, REAL, .function = sin},
    {"aten::cos", "self", "T", FUNCTION, REAL, .function = cos},
    {"aten::tanh", "self", "T", FUNCTION, REAL, .function = tanh},
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
    {"aten::gelu", "self approximate", "TG", GELU, REAL},
    {"aten::gelu_backward", "grad_output self approximate", "TTG", GELU_BACKWARD, REAL},
    {"aten::clamp", "self min max", "TOO", CLAMP, EXACT},
    {"aten::bitwise_not", "self", "T", INVERT, WHOLE},
    {"aten::bitwise_and.Tensor", "self other", "TT", AND, WHOLE},
    {"aten::bitwise_or.Tensor", "self other", "TT", OR, WHOLE},
    {"aten::where.self", "condition self other", "MTT", WHERE, EXACT},
    {"aten::masked_fill.Scalar", "self mask value", "TMS", MASKED_FILL, EXACT},
    {"aten::masked_fill.Tensor", "self mask value", "TMV", MASKED_FILL, EXACT},
};

const check_elementwise *
check_elementwise_find(const char *name)
{
    for (size_t i = 0; i < sizeof elementwise / sizeof elementwise[0]; ++i)
        if (strcmp(elementwise[i].name, name) == 0)
            return &elementwise[i];
    return NULL;
}

#define ROOT_HALF 0.70710678118654752440
#define ROOT_TWO_BY_PI 0.79788456080286535588

static double
gelu(double x, bool is_tanh)
{
    return is_tanh ? 0.5 * x * (1 + tanh(ROOT_TWO_BY_PI * (x + 0.044715 * x * x * x)))
                   : 0.5 * x * (1 + erf(x * ROOT_HALF));
}

static double
gelu_slope(double x, bool is_tanh)
{
    if (!is_tanh)
        return 0.5 * (1 + erf(x * ROOT_HALF)) + x * exp(-0.5 * x * x) * ROOT_HALF * ROOT_HALF * ROOT_TWO_BY_PI;
    const double t = tanh(ROOT_TWO_BY_PI * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT_TWO_BY_PI * (1 + 3 * 0.044715 * x * x);
}

void
check_elementwise_regroup(const check_elementwise *op, double *v)
{
    if (op->what != ADDCMUL && op->what != ADDCDIV)
        return;
    v[1] = op->what == ADDCMUL ? v[1] * v[2] : v[1] / v[2];
    v[2] = 1;
}

double
check_elementwise_real(const check_elementwise *op, const double *v)
{
    const double a = v[0], b = v[1], s = v[2];
    const bool compared[] = {a == b, a != b, a<b, a <= b, a> b, a >= b}; /* EQ to GE */
    if (op->what >= EQ && op->what <= GE)
        return compared[op->what - EQ];
    switch (op->what) {
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
        return isnan(a) || a > b ? a : b;
    case MINIMUM:
        return isnan(a) || a < b ? a : b;
    case NEG:
        return -a;
    case ABS:
        return a < 0 ? -a : a;
    case RELU:
        return a < 0 ? 0 : a;
    case FUNCTION:
        return op->function(a);
    case RSQRT:
        return 1 / sqrt(a);
    case RECIPROCAL:
        return 1 / a;
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
    case LERP: /* as PyTorch: infinite ends tell the formulas apart */
        return fabs(s) < 0.5 ? a + s * (b - a) : b - (b - a) * (1 - s);
    case NOT:
        return a == 0;
    case GELU:
        return gelu(a, b != 0);
    case GELU_BACKWARD:
        return a * gelu_slope(b, s != 0);
    case CLAMP: /* a bound that is None is NaN */
        return a > s || (b > s && !isnan(a)) ? s : a < b ? b : a;
    case WHERE:
        return a != 0 ? b : s;
    case MASKED_FILL:
        return b != 0 ? s : a;
    default:
        return 0; /* of integers alone */
    }
}

/* Integers wrap, as PyTorch's do. What compares its arguments with each other and with 0, and chooses one of them, does so as
 * with other numbers in the same order, which a double holds. */
int64_t
check_elementwise_whole(const check_elementwise *op, const int64_t *v)
{
    const int64_t a = v[0], b = v[1], s = v[2];
    switch (op->what) {
    case ADD:
        return (int64_t)((uint64_t)a + (uint64_t)s * (uint64_t)b);
    case SUB:
        return (int64_t)((uint64_t)a - (uint64_t)s * (uint64_t)b);
    case RSUB:
        return (int64_t)((uint64_t)b - (uint64_t)s * (uint64_t)a);
    case MUL:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case NEG:
        return (int64_t)(0 - (uint64_t)a);
    case ABS:
        return a < 0 ? (int64_t)(0 - (uint64_t)a) : a;
    case INVERT:
        return ~a;
    case AND:
        return a & b;
    case OR:
        return a | b;
    default:
        break;
    }
    const int64_t values[] = {0, a, b, s};
    double ranks[4] = {0}; /* whose order is that of the values */
    for (int i = 1; i < 4; ++i)
        for (int k = 0; k < 4; ++k)
            ranks[i] += (values[k] < values[i]) - (values[k] < 0);
    const double chosen = check_elementwise_real(op, ranks + 1);
    for (int i = 0; i < 4 && !op->is_boolean; ++i)
        if (ranks[i] == chosen)
            return values[i];
    return chosen != 0;
}

static const check_reduction reductions[] = {
    {"aten::sum.dim_IntList", "self dim keepdim dtype", CHECK_SUM, "TDKt"},
    {"aten::sum", "self dtype", CHECK_SUM, "Tt"},
    {"aten::mean.dim", "self dim keepdim dtype", CHECK_MEAN, "TDKt"},
    {"aten::mean", "self dtype", CHECK_MEAN, "Tt"},
    {"aten::amax", "self dim keepdim", CHECK_MOST, "TDK"},
    {"aten::max", "self", CHECK_MOST, "T"},
    {"aten::amin", "self dim keepdim", CHECK_LEAST, "TDK"},
    {"aten::min", "self", CHECK_LEAST, "T"},
    {"aten::argmax", "self dim keepdim", CHECK_PLACE_OF_MOST, "TIK"},
    {"aten::linalg_vector_norm", "self ord dim keepdim dtype", CHECK_NORM, "TPDKt"},
};

const check_reduction *
check_reduction_find(const char *name)
{
    for (size_t i = 0; i < sizeof reductions / sizeof reductions[0]; ++i)
        if (strcmp(reductions[i].name, name) == 0)
            return &reductions[i];
    return NULL;
}
