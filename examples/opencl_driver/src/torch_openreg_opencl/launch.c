/* SPDX-License-Identifier: BSD-3-Clause */
/* launch.c: programs made of bodies, and how they are queued (kernels.h). */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define GROUP 64 /* work items of a group: one size, as a platform may compile for each */

static const char head[] =
    "typedef struct { long n, m, outer, inner; long outer_shape[6], inner_shape[6];\n"
    "  long outer_strides[4][6], inner_strides[4][6]; double numbers[6]; long integers[20]; } geometry;\n"
    "#define S(k) ((C)g.numbers[k])\n"
    "#define Q(k) (g.integers[k])\n"
    "#define MOVE(which, count, shape, strides, x0, x1, x2, x3) { long rest = which; \\\n"
    "  for (long d = count - 1; d >= 0; --d) { const long at = rest % shape[d]; rest /= shape[d]; \\\n"
    "    x0 += at * strides[0][d]; x1 += at * strides[1][d]; x2 += at * strides[2][d]; x3 += at * strides[3][d]; } }\n"
    "#define EACH(code) for (long j = 0; j < g.m; ++j) { long i0 = o0, i1 = o1, i2 = o2, i3 = o3; \\\n"
    "  MOVE(j, g.inner, g.inner_shape, g.inner_strides, i0, i1, i2, i3) code }\n"
    "__kernel void run(const geometry g, __global T0 *p0, __global T1 *p1, __global T2 *p2, __global T3 *p3,\n"
    "    __global T4 *p4, __global T5 *p5, __global T6 *p6, __global T7 *p7) {\n"
    "  const long i = get_global_id(0);\n"
    "  if (i >= g.n) return;\n"
    "  long o0 = 0, o1 = 0, o2 = 0, o3 = 0;\n"
    "  MOVE(i, g.outer, g.outer_shape, g.outer_strides, o0, o1, o2, o3)\n";

/* --------------------------------------------------------------------------------------------------------------- types */

/* NULL: none that this driver computes with. */
static const char *
type_name(openreg_dtype dtype)
{
    static const struct {
        uint8_t code, bits;
        const char *name;
    } names[] = {
        {OPENREG_DTYPE_FLOAT, 32, "float"}, {OPENREG_DTYPE_FLOAT, 64, "double"}, {OPENREG_DTYPE_INT, 64, "long"},
        {OPENREG_DTYPE_INT, 32, "int"},     {OPENREG_DTYPE_INT, 16, "short"},    {OPENREG_DTYPE_INT, 8, "char"},
        {OPENREG_DTYPE_UINT, 8, "uchar"},   {OPENREG_DTYPE_BOOL, 8, "uchar"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
        if (dtype.code == names[i].code && dtype.bits == names[i].bits && dtype.lanes == 1)
            return names[i].name;
    return NULL;
}

bool
is_float(openreg_dtype dtype)
{
    return dtype.code == OPENREG_DTYPE_FLOAT;
}

bool
kernel_knows(const job *j, openreg_dtype dtype)
{
    const bool is_double = is_float(dtype) && dtype.bits == 64;
    return type_name(dtype) != NULL && (j->state->has_double || !is_double);
}

/* --------------------------------------------------------------------------------------------------------------- views */

bool
view_of(const openreg_tensor *tensor, view *out)
{
    if (tensor == NULL || tensor->ndim > MOST_DIMS)
        return false;
    *out = (view){.data = tensor->data, .dtype = tensor->dtype, .ndim = tensor->ndim};
    for (int d = 0; d < tensor->ndim; ++d) {
        out->shape[d] = tensor->shape[d];
        out->strides[d] = tensor->strides[d];
    }
    return true;
}

bool
view_is_contiguous(const view *v)
{
    int64_t expected = 1;
    for (int d = v->ndim - 1; d >= 0; --d) {
        if (v->shape[d] != 1 && v->strides[d] != expected)
            return false;
        expected *= v->shape[d];
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ geometry */

void
launch_begin(job *j, const char *body, openreg_dtype compute)
{
    memset(&j->g, 0, sizeof j->g);
    memset(j->slots, 0, sizeof j->slots);
    memset(j->types, 0, sizeof j->types);
    j->g.n = 1;
    j->g.m = 1;
    j->body = body;
    j->compute = compute;
    j->macros[0] = '\0';
}

void
launch_slot(job *j, int slot, const void *data, openreg_dtype dtype)
{
    j->slots[slot] = (void *)(uintptr_t)data;
    j->types[slot] = dtype;
}

/* Dimensions of one side, of which neighbours are put together where every tensor allows it. */
static bool
add_dimensions(int count, const view *views, const bool *inner, bool side, cl_long *dims, cl_long *shape,
               cl_long (*strides)[DIMS], cl_long *positions)
{
    int made = 0;
    for (int d = 0; d < views[0].ndim; ++d) {
        const int64_t size = views[0].shape[d];
        if (inner[d] != side || size == 1)
            continue;
        *positions *= size;
        bool joins = made > 0;
        for (int t = 0; t < count && joins; ++t)
            joins = strides[t][made - 1] == views[t].strides[d] * size;
        if (!joins && made == DIMS)
            return false;
        const int at = joins ? made - 1 : made++;
        shape[at] = joins ? shape[at] * size : size;
        for (int t = 0; t < count; ++t)
            strides[t][at] = views[t].strides[d];
    }
    *dims = made;
    return true;
}

bool
launch_views(job *j, int count, const view *views, const bool *inner)
{
    static const bool none[MOST_DIMS] = {false};
    geometry *const g = &j->g;
    if (inner == NULL)
        inner = none;
    g->n = 1;
    g->m = 1;
    for (int t = 0; t < count; ++t)
        launch_slot(j, t, views[t].data, views[t].dtype);
    return add_dimensions(count, views, inner, false, &g->outer, g->outer_shape, g->outer_strides, &g->n) &&
           add_dimensions(count, views, inner, true, &g->inner, g->inner_shape, g->inner_strides, &g->m);
}

/* ------------------------------------------------------------------------------------------------------------ programs */

static void
describe_types(const job *j, char *text, size_t size)
{
    const char *const compute = type_name(j->compute);
    const char *const sum = !is_float(j->compute) ? "long" : j->state->has_double ? "double" : "float";
    int at = snprintf(text, size, "#define C %s\n#define ACC %s\n", compute, sum);
    for (int s = 0; s < SLOTS; ++s) {
        const bool is_bool = j->types[s].code == OPENREG_DTYPE_BOOL;
        const char *const name = j->slots[s] == NULL ? "uchar" : type_name(j->types[s]);
        at += snprintf(text + at, size - (size_t)at, "#define T%d %s\n#define L%d(x) ((C)(p%d[x]%s))\n", s, name, s, s,
                       is_bool ? " != 0" : "");
    }
    (void)snprintf(text + at, size - (size_t)at, "%s", j->macros);
}

static openreg_status
fail_to_build(job *j, cl_program made, cl_int error)
{
    char text[400] = "";
    (void)clGetProgramBuildInfo(made, j->cl->devices[j->state->dev].id, CL_PROGRAM_BUILD_LOG, sizeof text - 1, text,
                                NULL);
    return openreg_fail(j->cl->host, OPENREG_E_INTERNAL, error, "clBuildProgram(): error (%d): %s", error, text);
}

static openreg_status
build(job *j, const char *types, cl_kernel *out)
{
    const char *const texts[] = {types, head, j->body, "\n}\n"};
    cl_int error;
    cl_program const made = clCreateProgramWithSource(j->cl->context, 4, (const char **)(uintptr_t)texts, NULL, &error);
    if (error == CL_SUCCESS)
        error = clBuildProgram(made, 1, &j->cl->devices[j->state->dev].id, "-w", NULL, NULL);
    if (error == CL_SUCCESS)
        *out = clCreateKernel(made, "run", &error);
    const openreg_status status = error == CL_SUCCESS ? OPENREG_OK : fail_to_build(j, made, error);
    if (made != NULL)
        (void)clReleaseProgram(made); /* the kernel keeps it */
    return status;
}

static openreg_status
find_kernel(job *j, cl_kernel *out)
{
    char types[1536];
    signal_state signals;
    describe_types(j, types, sizeof types);
    for (const program *p = j->state->programs; p != NULL; p = p->next)
        if (strcmp(p->body, j->body) == 0 && strcmp(p->types, types) == 0) {
            *out = p->kernel;
            return OPENREG_OK;
        }
    program *const made = malloc(sizeof *made);
    char *const copy = strdup(types);
    openreg_status status = made != NULL && copy != NULL ? OPENREG_OK
                                                         : opencl_fail(j->cl, "malloc", CL_OUT_OF_HOST_MEMORY);
    if (status == OPENREG_OK) {
        opencl_enter_platform(&signals);
        status = build(j, types, out);
        opencl_leave_platform(&signals);
    }
    if (status != OPENREG_OK) {
        free(made);
        free(copy);
        return status;
    }
    *made = (program){j->state->programs, j->body, copy, *out};
    j->state->programs = made;
    return OPENREG_OK;
}

openreg_status
launch(job *j)
{
    cl_kernel kernel = NULL;
    cl_event event = NULL;
    const size_t local = GROUP;
    const size_t global = ((size_t)j->g.n + GROUP - 1) / GROUP * GROUP;
    if (j->g.n == 0)
        return OPENREG_OK;
    const openreg_status status = find_kernel(j, &kernel);
    if (status != OPENREG_OK)
        return status;
    cl_int error = clSetKernelArg(kernel, 0, sizeof j->g, &j->g);
    for (cl_uint s = 0; s < SLOTS && error == CL_SUCCESS; ++s)
        error = clSetKernelArgSVMPointer(kernel, s + 1, j->slots[s] != NULL ? j->slots[s] : j->slots[0]);
    (void)pthread_mutex_lock(&j->stream->lock);
    if (error == CL_SUCCESS)
        error = TRIED(clEnqueueNDRangeKernel(j->stream->queue, kernel, 1, NULL, &global, &local, 0, NULL, &event));
    return opencl_end_queueing(j->cl, j->stream, "clEnqueueNDRangeKernel", error, event);
}

/* ---------------------------------------------------------------------------------------------------------------- jobs */

static kernel_state *
make_state(openreg_instance cl, int32_t dev)
{
    kernel_state *const state = calloc(1, sizeof *state);
    cl_device_fp_config doubles = 0;
    if (state == NULL)
        return NULL;
    (void)pthread_mutex_init(&state->lock, NULL);
    (void)clGetDeviceInfo(cl->devices[dev].id, CL_DEVICE_DOUBLE_FP_CONFIG, sizeof doubles, &doubles, NULL);
    state->cl = cl;
    state->dev = dev;
    state->has_double = doubles != 0;
    return state;
}

openreg_status
job_begin(openreg_instance cl, const openreg_kernel_call *call, job *out)
{
    device *const d = &cl->devices[call->dev];
    (void)pthread_mutex_lock(&d->lock);
    if (d->kernels == NULL)
        d->kernels = make_state(cl, call->dev);
    kernel_state *const state = d->kernels;
    (void)pthread_mutex_unlock(&d->lock);
    if (state == NULL)
        return opencl_fail(cl, "calloc", CL_OUT_OF_HOST_MEMORY);
    *out = (job){.cl = cl, .call = call, .state = state, .stream = opencl_stream(cl, call->dev, call->stream)};
    (void)pthread_mutex_lock(&state->lock);
    return OPENREG_OK;
}

openreg_status
job_end(job *j, openreg_status status)
{
    (void)pthread_mutex_unlock(&j->state->lock);
    return status;
}

void *
scratch_memory(job *j, uint64_t size)
{
    kernel_state *const state = j->state;
    scratch *found = state->scratches;
    void *memory = NULL;
    while (found != NULL && found->of != j->stream)
        found = found->next;
    if (found != NULL && found->size >= size)
        return found->memory;
    if (found == NULL) {
        found = calloc(1, sizeof *found);
        if (found == NULL) {
            (void)opencl_fail(j->cl, "calloc", CL_OUT_OF_HOST_MEMORY);
            return NULL;
        }
        *found = (scratch){.next = state->scratches, .of = j->stream};
        state->scratches = found;
    }
    if (found->memory != NULL)
        (void)opencl_mem_free(j->cl, state->dev, found->memory); /* waits for the work that uses it */
    found->memory = NULL;
    found->size = 0;
    const openreg_alloc_info info = openreg_alloc_bytes(size);
    if (opencl_mem_alloc(j->cl, state->dev, &info, &memory) != OPENREG_OK)
        return NULL;
    found->memory = memory;
    found->size = size;
    return memory;
}

void
opencl_kernels_close(kernel_state *state)
{
    if (state == NULL)
        return;
    while (state->programs != NULL) {
        program *const p = state->programs;
        state->programs = p->next;
        (void)clReleaseKernel(p->kernel);
        free(p->types);
        free(p);
    }
    while (state->scratches != NULL) {
        scratch *const s = state->scratches;
        state->scratches = s->next;
        if (s->memory != NULL)
            (void)opencl_mem_free(state->cl, state->dev, s->memory);
        free(s);
    }
    (void)pthread_mutex_destroy(&state->lock);
    free(state);
}
