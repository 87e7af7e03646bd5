/* SPDX-License-Identifier: BSD-3-Clause */
/* sized_struct.h: public structures that begin with a uint32_t struct_size and may get fields at their end (openreg.h,
 * "Structures"). Internal. */
#ifndef OPENREG_SRC_SIZED_STRUCT_H
#define OPENREG_SRC_SIZED_STRUCT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t
openreg_sized_size(const void *given)
{
    uint32_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

/* 1 if `given` is not NULL and has the fields of the first version, whose frozen size is `least`. */
static inline int
openreg_sized_is_valid(const void *given, uint32_t least)
{
    return given != NULL && openreg_sized_size(given) >= least;
}

/* Reads a valid structure into the library's own of `size` bytes: fields that the caller does not know are 0. */
static inline void
openreg_sized_read(void *own, size_t size, const void *given)
{
    const size_t known = openreg_sized_size(given);
    memset(own, 0, size);
    memcpy(own, given, known < size ? known : size);
}

/* Writes the library's own of `size` bytes into a valid structure, which keeps its struct_size; no byte beyond is written. */
static inline void
openreg_sized_write(void *given, const void *own, size_t size)
{
    const uint32_t known = openreg_sized_size(given);
    memcpy(given, own, known < size ? known : size);
    memcpy(given, &known, sizeof known);
}

#endif
