/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_reference.c: numbers of every type (kernel_reference.h). */
#include "kernel_reference.h"

#include <float.h>
#include <math.h>

double
check_number_load(const void *at, openreg_dtype dtype)
{
    float f;
    double d;
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
    const bool is_float = dtype.code == OPENREG_DTYPE_FLOAT;
    const int64_t whole = is_float ? 0 : dtype.code == OPENREG_DTYPE_BOOL ? value != 0 : (int64_t)value;
    if (is_float && dtype.bits == 32)
        memcpy(at, &f, sizeof f);
    else if (is_float)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &whole, dtype.bits / 8);
}

bool
check_is_close(double seen, double wanted, openreg_dtype dtype)
{
    if (dtype.code != OPENREG_DTYPE_FLOAT)
        return seen == wanted;
    if (dtype.bits == 32 && fabs(wanted) > FLT_MAX && !isinf(wanted))
        wanted = wanted > 0 ? INFINITY : -INFINITY;
    if (isnan(wanted) || isinf(wanted))
        return isnan(wanted) ? isnan(seen) != 0 : seen == wanted;
    const double tolerance = dtype.bits == 64 ? 1e-12 : 1e-5;
    const double size = wanted < 0 ? -wanted : wanted;
    return seen - wanted <= tolerance * (size + 1) && wanted - seen <= tolerance * (size + 1);
}
