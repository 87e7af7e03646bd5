/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_reference.c: numbers of every type (kernel_reference.h). */
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
    const double size = wanted < 0 ? -wanted : wanted;
    return seen - wanted <= tolerance * (size + 1) && wanted - seen <= tolerance * (size + 1);
}
