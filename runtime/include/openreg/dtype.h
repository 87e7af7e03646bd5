/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/dtype.h: types of elements, as in DLPack, for kernels.h and comm.h. Valid C11 and C++17. */
#ifndef OPENREG_DTYPE_H
#define OPENREG_DTYPE_H

#include <assert.h>
#include <stdint.h>

#include <openreg/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of number: DLPack's DLDataTypeCode. Other codes of DLPack are valid too. */
#define OPENREG_DTYPE_INT 0u
#define OPENREG_DTYPE_UINT 1u
#define OPENREG_DTYPE_FLOAT 2u
#define OPENREG_DTYPE_BFLOAT 4u
#define OPENREG_DTYPE_COMPLEX 5u
#define OPENREG_DTYPE_BOOL 6u
#define OPENREG_DTYPE_FLOAT8_E4M3FN 10u /* the OCP's, without infinities */
#define OPENREG_DTYPE_FLOAT8_E5M2 12u

/* DLPack's DLDataType: {OPENREG_DTYPE_FLOAT, 32, 1} is torch.float32. */
typedef struct openreg_dtype {
    uint8_t code;   /* OPENREG_DTYPE_*, or another code of DLPack */
    uint8_t bits;   /* of an element; complex: of both parts together */
    uint16_t lanes; /* 1 */
} openreg_dtype;

static_assert(sizeof(openreg_dtype) == 4u, "openreg_dtype is DLPack's DLDataType");

/* Bytes of an element; 0 if its bits are not a whole number of bytes. */
OPENREG_HELPER uint32_t
openreg_dtype_size(openreg_dtype type)
{
    const uint32_t bits = (uint32_t)type.bits * type.lanes;
    return bits % 8 == 0 ? bits / 8 : 0;
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_DTYPE_H */
