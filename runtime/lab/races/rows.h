/* SPDX-License-Identifier: BSD-3-Clause */
/* rows.h: the pieces of memory of a tensor. Internal to races/. */
#ifndef OPENREG_SRC_RACE_ROWS_H
#define OPENREG_SRC_RACE_ROWS_H

#include <stdbool.h>
#include <stdint.h>

/* A tensor's dimensions, without those of size 1, contiguous ones merged, strides in bytes. */
typedef struct openreg_rows {
    int count;
    uint64_t size[64], stride[64];
    uint64_t piece;  /* bytes of one row */
    uint64_t extent; /* from the first byte to behind the last */
} openreg_rows;

/* From strides in elements of `item` bytes. False if the tensor is empty, or too complex. */
bool openreg_rows_read(openreg_rows *out, int32_t dimensions, const int64_t *sizes, const int64_t *strides,
                       uint64_t item);

/* How many there are, and where one of them begins, in bytes from the tensor's first. */
uint64_t openreg_rows_total(const openreg_rows *rows);
uint64_t openreg_rows_offset(const openreg_rows *rows, uint64_t number);

#endif
