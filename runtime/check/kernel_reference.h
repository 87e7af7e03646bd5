/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_reference.h: operators of PyTorch, in C and in double precision, to compare a driver's kernels with. */
#ifndef OPENREG_CHECK_KERNEL_REFERENCE_H
#define OPENREG_CHECK_KERNEL_REFERENCE_H

#include <stdbool.h>

#include <openreg/kernels.h>

typedef struct check_operator {
    const char *name;
    int operands;    /* tensors */
    bool has_alpha;  /* a number follows them, by which the last is multiplied */
    bool is_product; /* of two matrices */
    bool is_real;    /* of floating-point numbers alone: of whole ones PyTorch makes those first */
    double (*apply)(double a, double b);
} check_operator;

/* NULL if the reference does not have it. */
const check_operator *check_operator_find(const char *name);
/* An element of the result; alpha is 2. */
double check_operator_apply(const check_operator *known, const double *operands);

double check_number_load(const void *at, openreg_dtype dtype);
void check_number_store(void *at, openreg_dtype dtype, double value); /* integers: cut off */
bool check_is_close(double seen, double wanted, openreg_dtype dtype);

#endif
