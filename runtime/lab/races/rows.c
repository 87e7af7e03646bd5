/* SPDX-License-Identifier: BSD-3-Clause */
/* rows.c: the pieces of memory of a tensor (rows.h). */
#include "races/rows.h"

bool
openreg_rows_read(openreg_rows *out, int32_t dimensions, const int64_t *sizes, const int64_t *strides, uint64_t item)
{
    out->count = 0;
    out->piece = out->extent = item;
    if (dimensions > 64)
        return false;
    for (int32_t i = 0; i < dimensions; ++i) {
        if (sizes[i] <= 0 || strides[i] < 0)
            return false;
        if (sizes[i] == 1 || strides[i] == 0)
            continue;
        const uint64_t stride = (uint64_t)strides[i] * item;
        int at = out->count++;
        for (; at > 0 && out->stride[at - 1] < stride; --at) { /* greatest stride first */
            out->size[at] = out->size[at - 1];
            out->stride[at] = out->stride[at - 1];
        }
        out->size[at] = (uint64_t)sizes[i];
        out->stride[at] = stride;
        out->extent += ((uint64_t)sizes[i] - 1) * stride;
    }
    while (out->count > 0 && out->stride[out->count - 1] <= out->piece) {
        out->count--;
        out->piece += (out->size[out->count] - 1) * out->stride[out->count];
    }
    return true;
}

uint64_t
openreg_rows_total(const openreg_rows *rows)
{
    uint64_t total = 1;
    for (int i = 0; i < rows->count; ++i)
        total *= rows->size[i];
    return total;
}

uint64_t
openreg_rows_offset(const openreg_rows *rows, uint64_t number)
{
    uint64_t offset = 0;
    for (int i = rows->count; i-- > 0; number /= rows->size[i])
        offset += number % rows->size[i] * rows->stride[i];
    return offset;
}
