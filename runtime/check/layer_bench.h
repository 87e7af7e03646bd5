/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_bench.h: calls of kernels with many arguments, as layers and their gradients have. A builder gives the arguments in
 * the order of the operator's schema, then the results with the expected values:
 *
 *   double *const x = check_layer_tensor(l, "self", l->dtype, ndim, shape);   filled with numbers, which may be changed
 *   check_layer_int(l, "dim", dim);
 *   double *const y = check_layer_result(l, l->dtype, ndim, shape);           the expected values: zeros, to be filled in
 *
 * Numbers are in double precision, the last dimension fastest, whatever the strides of the tensor are. */
#ifndef OPENREG_CHECK_LAYER_BENCH_H
#define OPENREG_CHECK_LAYER_BENCH_H

#include "kernel_bench.h"

#define CHECK_LAYER_RESULTS 3
#define CHECK_LAYER_LIST 4 /* tensors in a list */

typedef struct check_layer {
    check_bench b; /* places: the tensors in the order in which they were added */
    openreg_dtype dtype;
    openreg_value arguments[CHECK_VALUES], results[CHECK_LAYER_RESULTS];
    const char *names[CHECK_VALUES];
    uint64_t argument_count, result_count;
    int tensors, inputs;          /* all, and those that are arguments */
    double *values[CHECK_PLACES]; /* of arguments */
    double *wanted[CHECK_PLACES]; /* NULL: the call doesn't write it */
    int64_t integers[CHECK_VALUES][CHECK_DIMS];
    const openreg_tensor *list[CHECK_LAYER_LIST];
    enum { CHECK_MIXED, CHECK_CONTIGUOUS, CHECK_STRIDED, CHECK_ANY } layout; /* of all calls; the last: results' too */
    double terms;     /* that a number of the results is the sum of, where they are many */
    bool has_strides; /* some of the arguments lie with gaps or in another order */
    char more[120];   /* numbers of the call, for messages */
} check_layer;

/* One call of an operator, with random sizes and numbers. */
typedef struct check_layer_operator {
    const char *name; /* NULL ends a list */
    void (*build)(check_layer *l);
} check_layer_operator;

double *check_layer_tensor(check_layer *l, const char *name, openreg_dtype dtype, int32_t ndim, const int64_t *shape);
/* The same where `is_there`; else None, and NULL. */
double *check_layer_maybe_tensor(check_layer *l, const char *name, bool is_there, int32_t ndim, const int64_t *shape);
/* The argument before is written: what it has to be afterwards, at first what it is. */
double *check_layer_written(check_layer *l);
/* A list of `count` tensors, that the calls of check_layer_tensor() without a name before made. */
void check_layer_tensors(check_layer *l, const char *name, int count);
/* The next argument, of which the caller sets what its kind has. */
openreg_value *check_layer_value(check_layer *l, const char *name, int32_t kind);
void check_layer_int(check_layer *l, const char *name, int64_t number);
void check_layer_bool(check_layer *l, const char *name, bool truth);
void check_layer_real(check_layer *l, const char *name, double number);
void check_layer_ints(check_layer *l, const char *name, int count, const int64_t *numbers);

double *check_layer_result(check_layer *l, openreg_dtype dtype, int32_t ndim, const int64_t *shape);
/* The last argument of a backward function, output_mask, and its three results; NULL for one that it does not ask for. */
void check_layer_gradients(check_layer *l, const bool *mask, const int32_t *ndims, const int64_t *const *shapes,
                           double **out);
/* The result is the argument in that place, which is written. */
void check_layer_result_is(check_layer *l, int place);

/* Uniform from `least` to `most`. */
int64_t check_layer_between(check_layer *l, int64_t least, int64_t most);
bool check_layer_toss(check_layer *l);
/* Whether the call's operator has that name. */
bool check_layer_is(const check_layer *l, const char *name);
/* As a number of the call's type has it. */
double check_layer_rounded(const check_layer *l, double number);

/* Builds calls of each operator of the check's list that the driver has, and compares. */
void check_layer_run(check_context *c);

/* Every operator that the references have; NULL if there is none of that name. */
const check_layer_operator *check_layer_find(const char *name);
bool check_layer_is_product(const char *name);
extern const check_layer_operator check_product_layers[], check_reduction_layers[]; /* the last: one, of all of them */
extern const check_layer_operator check_row_layers[], check_window_layers[], check_move_layers[], check_index_layers[];

/* A call of any operator that the references have can be made again and again. */
void check_layer_set_up(check_layer *l, check_context *c, int32_t dev);
void check_layer_take_down(check_layer *l); /* once the calls have ended */
/* Builds a call. False if the references don't have the kernel's operator, or the results have no elements. */
bool check_layer_begin(check_layer *l, const openreg_kernel *kernel, openreg_dtype dtype);
/* False if the kernel refuses it. */
bool check_layer_call(check_layer *l);
/* Builds calls of types and sizes that the kernel may take, and queues them, until it serves one. False if it serves none. */
bool check_layer_serve(check_layer *l, const openreg_kernel *kernel);
/* The parts of check_layer_call(), for several calls at once: check_layer_write(), check_layer_repeat(), and this with what
 * that has returned. */
void check_layer_write(check_layer *l);
bool check_layer_end(check_layer *l, openreg_status status);
/* Queues it and does not wait. Scratch memory goes back at the next call. */
openreg_status check_layer_repeat(check_layer *l);

#endif
