/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_bench.h: calls of a driver's kernel with tensors of any shape and strides, in memory that is used again and again.
 * What a kernel refuses is no failure, but it must not have written. Every function may end the check. */
#ifndef OPENREG_CHECK_KERNEL_BENCH_H
#define OPENREG_CHECK_KERNEL_BENCH_H

#include <openreg/kernels.h>

#include "check.h"
#include "kernel_reference.h"

#define CHECK_VALUES 12 /* arguments or results of a call */
#define CHECK_DIMS 12
#define CHECK_PLACES 12 /* of tensors: arguments, and the result at the end */
#define CHECK_RESULT (CHECK_PLACES - 1)
#define CHECK_DTYPES 4
#define CHECK_UNTOUCHED 0xc3                   /* bytes that nobody may write to */
#define CHECK_LENT 32                          /* blocks of scratch memory that a call may take */
#define CHECK_BENCH_BYTES (UINT64_C(16) << 20) /* of the device's memory that a bench takes, with some for kernels */

typedef struct check_tensor {
    openreg_tensor tensor;
    int64_t shape[CHECK_DIMS], strides[CHECK_DIMS];
    size_t used; /* bytes */
    char *memory;
    unsigned char *host;
} check_tensor;

typedef struct check_bench {
    check_context *c;
    int32_t dev; /* of the memory and the calls */
    const openreg_kernel *kernel;
    openreg_dtype dtype;
    check_tensor places[CHECK_PLACES];
    unsigned char *before;
    openreg_driver_stream stream; /* of the calls; NULL: the default one */
    char text[240];               /* of the call, for messages */
    int64_t longest;              /* of one dimension of the next shape; 0: none */
    bool is_special;              /* kernels may take numbers below the normal ones for 0 */
    int tried, served;            /* calls; those that this kernel has not refused */
    char names_text[64];          /* of check_bench_names() */
    const char *names[CHECK_VALUES];
    char *lent[CHECK_LENT]; /* scratch memory of the last call */
    int lent_count;
} check_bench;

typedef enum stride_kind { CONTIGUOUS, PERMUTED, GAPPED, EXPANDED } stride_kind;

/* float32, int64, float64, int32 */
extern const openreg_dtype check_dtypes[CHECK_DTYPES];
#define CHECK_INT64 check_dtypes[1]
bool check_is_float(openreg_dtype dtype);

/* The driver's table, and an entry of it; NULL beyond the last one. */
const openreg_kernels *check_kernels(check_context *c);
const openreg_kernel *check_kernel_at(const openreg_kernels *kernels, uint64_t i);

/* The device that kernels are called on: the last one where one of them serves some call, as a driver may have kernels for
 * some of its devices; else the last one. A kernel that runs on the first, or on that which the thread has bound, shows
 * there. The first call in a process decides, before other threads call. In layer_bench.c. */
int32_t check_kernel_device(check_context *c);
/* Binds the first device in this thread where the driver has the slot. Skips the check if `dev` has too little memory. */
void check_bench_set_up(check_bench *b, check_context *c, int32_t dev);
int64_t check_bench_below(check_bench *b, int64_t limit); /* uniform */
/* Random sizes up to `most`, and one of b->longest, which is then 0; returns the number of elements. */
int64_t check_bench_shape(check_bench *b, int32_t ndim, int64_t most, int64_t *shape);
/* Lays a tensor of that shape into a place. EXPANDED: some dimensions have one element in memory. A tensor that a place has
 * no room for otherwise is contiguous. */
void check_bench_lay(check_bench *b, int place, int32_t ndim, const int64_t *shape, stride_kind kind,
                     openreg_dtype dtype);
/* The least or the greatest number of an integer type of less than 64 bits, or of int64. */
int64_t check_bench_end(check_bench *b, openreg_dtype dtype);
/* Numbers that every type has exactly, none of them 0; with `is_wide` integers are at times near the ends of their type, or
 * 0. In a mask 0 and 1; with b->is_special NaN, infinities, zeros, subnormal and ordinary numbers. */
void check_bench_fill(check_bench *b, int place, bool is_positive, bool is_wide);
double check_bench_special(check_bench *b);
/* Splits "a b c". The bench holds the names. */
const char *const *check_bench_names(check_bench *b, const char *text);
/* The text of messages: type, the first `count` places, and more. */
void check_bench_describe(check_bench *b, int count, const char *more);
/* Runs the kernel into the result's place, of which the host then has the bytes. `names`: "a b c". False if it refuses. */
bool check_bench_call(check_bench *b, const openreg_value *arguments, uint64_t count, const char *names);
/* Queues it. Its scratch memory goes back by the second, once the work has ended. */
openreg_status check_bench_queue(check_bench *b, const openreg_value *arguments, uint64_t count,
                                 const char *const *names, const openreg_value *results, uint64_t result_count);
void check_bench_take_back(check_bench *b);
/* Compares element i of the result, and takes it out of what is compared with the bytes before. */
void check_bench_expect(check_bench *b, int64_t i, double wanted, int64_t whole);
/* Fails where the kernel, since it was set, has refused every call. The next one is counted anew. */
void check_bench_require_served(check_bench *b);
/* Ends the check as skipped where no call was made. */
void check_bench_skip_untried(int calls);

/* Of element i of a shape to which the tensor is broadcast. */
unsigned char *check_tensor_broadcast_at(const check_tensor *t, const check_tensor *to, int64_t i);

#endif
