/* SPDX-License-Identifier: BSD-3-Clause */
/* numbers.h: numbers of each type that collectives have, for the libraries of tests that reduce them; in NCCL's order. */
#ifndef OPENREG_TESTS_DRIVERS_NUMBERS_H
#define OPENREG_TESTS_DRIVERS_NUMBERS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define NUMBER_TYPES 12

typedef long double number_value; /* has every integer of 64 bits */

/* Bytes, and bits of floating point: none of integers. */
static const struct number_format {
    int size, exponent, mantissa;
    bool is_unsigned;
} number_formats[NUMBER_TYPES] = {{1, 0, 0, false},   {1, 0, 0, true},  {4, 0, 0, false},  {4, 0, 0, true},
                                  {8, 0, 0, false},   {8, 0, 0, true},  {2, 5, 10, false}, {4, 8, 23, false},
                                  {8, 11, 52, false}, {2, 8, 7, false}, {1, 4, 3, false},  {1, 5, 2, false}};

/* The types of 8 bits have no infinities here. */
static inline number_value
number_load(const char *at, int type)
{
    const struct number_format *const format = &number_formats[type];
    const int size = 8 * format->size, exponent = format->exponent, mantissa = format->mantissa;
    uint64_t bits = 0;
    memcpy(&bits, at, (size_t)format->size);
    if (exponent == 0)
        return format->is_unsigned ? (number_value)bits : (number_value)((int64_t)(bits << (64 - size)) >> (64 - size));
    const int most = (1 << exponent) - 1, raw = (int)(bits >> mantissa) & most;
    const uint64_t fraction = bits & ((UINT64_C(1) << mantissa) - 1);
    number_value value = (number_value)fraction / (number_value)(UINT64_C(1) << mantissa) + (raw != 0);
    if (raw == most && size > 8)
        value = fraction == 0 ? INFINITY : NAN;
    int power = (raw != 0 ? raw : 1) - most / 2;
    for (; power > 0 && !isinf(value); --power)
        value *= 2;
    for (; power < 0; ++power)
        value /= 2;
    return bits >> (size - 1) & 1 ? -value : value;
}

/* The nearest one; of two that are as near the even one. */
static inline void
number_store(char *at, int type, number_value value)
{
    const struct number_format *const format = &number_formats[type];
    const int size = 8 * format->size, exponent = format->exponent, mantissa = format->mantissa;
    uint64_t bits = value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
    if (exponent != 0) {
        const int bias = (1 << (exponent - 1)) - 1;
        const uint64_t top = size > 8 ? (2 * (uint64_t)bias + 1) << mantissa : mantissa == 3 ? 0x7e : 0x7b;
        number_value left = value < 0 ? -value : value;
        int power = 0;
        for (; left >= 2 && power <= bias; ++power)
            left /= 2;
        for (; left < 1 && power > 1 - bias; --power)
            left *= 2;
        left *= (number_value)(UINT64_C(1) << mantissa);
        uint64_t whole = power > bias ? UINT64_C(1) << mantissa : (uint64_t)left;
        const number_value rest = left - (number_value)whole;
        whole += rest > 0.5L || (rest == 0.5L && whole % 2 == 1);
        bits = whole + ((uint64_t)(power + bias - 1) << mantissa);
        bits = isnan(value) ? top + 1 : bits > top ? top : bits;
        bits |= value < 0 ? UINT64_C(1) << (size - 1) : 0;
    }
    memcpy(at, &bits, (size_t)format->size);
}

/* What two of them are reduced to; an average adds, and is divided at the end. */
static inline number_value
number_reduced(number_value a, number_value b, int reduction)
{
    return reduction == 1 ? a * b : reduction == 2 ? (a > b ? a : b) : reduction == 3 ? (a < b ? a : b) : a + b;
}

#endif
