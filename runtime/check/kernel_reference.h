/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_reference.h: operators of PyTorch, in C and in double precision, to compare a driver's kernels with. */
#ifndef OPENREG_CHECK_KERNEL_REFERENCE_H
#define OPENREG_CHECK_KERNEL_REFERENCE_H

#include <stdbool.h>

#include <openreg/kernels.h>

typedef struct check_elementwise {
    const char *name, *names; /* of the operator, and of its arguments, "a b c" */
    /* A letter each: T a tensor, M a mask, V a tensor without dimensions, N a tensor or a number, S and A a number, O one or None, G gelu's text. */
    const char *kinds;
    int what;
    double (*function)(double x); /* of C's library */
    bool is_real;                 /* of floating-point numbers alone */
    bool is_whole;                /* of integers alone */
    bool is_positive;             /* of numbers above 0 alone */
    bool is_boolean;              /* the result is a truth */
    bool is_exact;                /* of integers, those near the ends of their type too: it wraps, or compares */
} check_elementwise;

/* NULL if the reference does not have it. */
const check_elementwise *check_elementwise_find(const char *name);
/* The result of four arguments, of which an operator reads those that it has. */
double check_elementwise_real(const check_elementwise *op, const double *arguments);
int64_t check_elementwise_whole(const check_elementwise *op, const int64_t *arguments);
/* The four arguments with which check_elementwise_real() has the product or quotient of the tensors first, as CUDA's kernels
 * of addcmul and addcdiv; any other operator's stay as they are. */
void check_elementwise_regroup(const check_elementwise *op, double *arguments);

typedef struct check_reduction {
    const char *name, *names; /* of the operator, and of its arguments */
    enum { CHECK_SUM, CHECK_MEAN, CHECK_MOST, CHECK_LEAST, CHECK_PLACE_OF_MOST, CHECK_NORM } kind;
    /* A letter for each argument: T the tensor, D dimensions, I one dimension or None, K keepdim, P the number 2,
     * t a type. */
    const char *kinds;
} check_reduction;
const check_reduction *check_reduction_find(const char *name);

double check_number_load(const void *at, openreg_dtype dtype);
int64_t check_number_load_whole(const void *at, openreg_dtype dtype); /* of integers */
int64_t check_number_wrap(int64_t value, openreg_dtype dtype);        /* to an integer type, as C's conversion */
void check_number_store(void *at, openreg_dtype dtype, double value); /* integers, and numbers of 16 bits: cut off */
bool check_is_close(double seen, double wanted, openreg_dtype dtype);

#endif
