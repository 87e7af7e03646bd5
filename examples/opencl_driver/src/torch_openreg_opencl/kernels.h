/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels.h: kernels in OpenCL C, made of a body and a geometry.
 *
 * Every kernel is a body, a few lines of OpenCL C that run for each of `n` outer positions, and may run a part for each of
 * `m` inner ones. An operator by elements has no inner positions, a sum has the reduced dimensions there, a softmax its
 * row, a matrix product the dimension that is summed over. Up to four tensors have strides, whatever they are, and up to
 * eight are at hand. What a body may use:
 *   i, j            number of the outer position, and of the inner one
 *   o0 .. o3        offsets of the outer position in tensors 0 to 3, in elements
 *   EACH(code)      runs the code for each inner position; i0 .. i3 are the offsets there
 *   p0 .. p7        the tensors' elements, of types T0 .. T7
 *   L0(x) .. L7(x)  element x of a tensor as a C, the type that is computed with
 *   ACC             the type of sums: the widest of its kind
 *   S(k)            number k of the call, as a C
 *   Q(k)            integer k of the call */
#ifndef TORCH_OPENREG_OPENCL_KERNELS_H
#define TORCH_OPENREG_OPENCL_KERNELS_H

#include <stdio.h>

#include "opencl.h"

#define DIMS 6      /* after neighbouring dimensions were put together */
#define MOST_DIMS 8 /* before */
#define STRIDED 4
#define SLOTS 8

/* As the program has it. */
typedef struct geometry {
    cl_long n, m, outer, inner; /* positions, and dimensions */
    cl_long outer_shape[DIMS], inner_shape[DIMS];
    cl_long outer_strides[STRIDED][DIMS], inner_strides[STRIDED][DIMS];
    cl_double numbers[6];
    cl_long integers[20];
} geometry;

/* A tensor as a kernel sees it: an openreg_tensor, or other dimensions over its memory. */
typedef struct view {
    char *data;
    openreg_dtype dtype;
    int ndim;
    int64_t shape[MOST_DIMS], strides[MOST_DIMS];
} view;

typedef struct program {
    struct program *next;
    const char *body;
    char *types; /* what else it was made of */
    cl_kernel kernel;
} program;

typedef struct scratch {
    struct scratch *next;
    const stream *of;
    char *memory;
    uint64_t size, used;
} scratch;

struct kernel_state {
    pthread_mutex_t lock; /* held for a whole call: kernels of a program have one set of arguments */
    openreg_instance cl;
    int32_t dev;
    bool has_double;
    program *programs;
    scratch *scratches; /* by stream */
};

/* One call of an operator. */
typedef struct job {
    openreg_instance cl;
    const openreg_kernel_call *call;
    kernel_state *state;
    stream *stream;
    /* The next launch. */
    geometry g;
    const char *body;
    void *slots[SLOTS];
    openreg_dtype types[SLOTS];
    openreg_dtype compute;
    char macros[256]; /* definitions that the body needs */
} job;

#define FLOAT32 ((openreg_dtype){OPENREG_DTYPE_FLOAT, 32, 1})
#define INT64 ((openreg_dtype){OPENREG_DTYPE_INT, 64, 1})

/* --------------------------------------------------------------------------------------------------------- launch.c */

/* Whether kernels of this device can be made for the type. */
bool kernel_knows(const job *j, openreg_dtype dtype);

bool is_float(openreg_dtype dtype);

/* False for too many dimensions. */
bool view_of(const openreg_tensor *tensor, view *out);

bool view_is_contiguous(const view *v);

/* Drops what an earlier launch of the job has set. */
void launch_begin(job *j, const char *body, openreg_dtype compute);

/* A tensor without strides: contiguous, or addressed by the body. */
void launch_slot(job *j, int slot, const void *data, openreg_dtype dtype);

/* Tensors 0 to count - 1 have these dimensions, with strides 0 where they are expanded; those of `inner` are the inner
 * ones. False for too many dimensions. */
bool launch_views(job *j, int count, const view *views, const bool *inner);

openreg_status launch(job *j);

/* Memory that is the call's until its work has ended; NULL, with the error set, if there is none. Not of earlier ones of
 * the same call: `size` is for all of them, asked for once. */
void *scratch_memory(job *j, uint64_t size);

/* ---------------------------------------------------------------------------------------------------------- matrix.c */

openreg_status run_mm(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_addmm(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_bmm(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_baddbmm(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_convolution(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_convolution_backward(openreg_instance cl, const openreg_kernel_call *call);

/* ------------------------------------------------------------------------------------------------------------ rows.c */

openreg_status run_reduction(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_softmax(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_layer_norm(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_layer_norm_backward(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_batch_norm(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_batch_norm_backward(openreg_instance cl, const openreg_kernel_call *call);

/* -------------------------------------------------------------------------------------------------------- indexing.c */

openreg_status run_nll_loss(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_nll_loss_backward(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_embedding(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_embedding_backward(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_max_pool(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_max_pool_backward(openreg_instance cl, const openreg_kernel_call *call);

/* -------------------------------------------------------------------------------------------------------- elements.c */

openreg_status run_elements(openreg_instance cl, const openreg_kernel_call *call);
openreg_status run_cat(openreg_instance cl, const openreg_kernel_call *call);

/* result = source, of any types and strides. The shapes are the same. */
openreg_status copy_view(job *j, const view *result, const view *source);

/* --------------------------------------------------------------------------------------------------------- helpers */

/* Begins a call: its device's lock is held until job_end(). */
openreg_status job_begin(openreg_instance cl, const openreg_kernel_call *call, job *out);
openreg_status job_end(job *j, openreg_status status);

#define REFUSED OPENREG_E_UNSUPPORTED

#endif /* TORCH_OPENREG_OPENCL_KERNELS_H */
