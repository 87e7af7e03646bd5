/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_shape_checks.c: kernels over random shapes, strides, broadcasts and numbers, against a reference in C. What a
 * kernel refuses is no failure, but it must not have written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openreg/kernels.h>

#include "check.h"
#include "kernel_reference.h"
#include "work.h"

#define MOST_DIMS 6
#define PLACES 4 /* of tensors: arguments, and the result at the end */
#define RESULT (PLACES - 1)
#define ROOM ((size_t)256 << 10) /* bytes of one */
#define UNTOUCHED 0xc3

typedef struct tensor {
    openreg_tensor tensor;
    int64_t shape[MOST_DIMS], strides[MOST_DIMS];
    size_t used; /* bytes */
    char *memory;
    unsigned char *host;
} tensor;

typedef struct bench {
    check_context *c;
    const openreg_kernel *kernel;
    openreg_dtype dtype;
    tensor places[PLACES];
    unsigned char *before;
    char text[240]; /* of the call, for messages */
    int served, refused;
} bench;

static const openreg_dtype dtypes[] = {
    {OPENREG_DTYPE_FLOAT, 32, 1}, {OPENREG_DTYPE_INT, 64, 1}, {OPENREG_DTYPE_FLOAT, 64, 1}, {OPENREG_DTYPE_INT, 32, 1}};
static const openreg_dtype boolean = {OPENREG_DTYPE_BOOL, 8, 1};

static bool
is_float(openreg_dtype dtype)
{
    return dtype.code == OPENREG_DTYPE_FLOAT;
}

static const openreg_kernels *
kernels_of(check_context *c)
{
    return c->table.extension(c->instance, OPENREG_KERNELS_NAME, OPENREG_KERNELS_VERSION);
}

static void
set_up(bench *b, check_context *c)
{
    memset(b, 0, sizeof *b);
    b->c = c;
    b->before = check_host_alloc(c, ROOM, false);
    for (int i = 0; i < PLACES; ++i) {
        b->places[i].memory = check_alloc(c, 0, ROOM);
        b->places[i].host = check_host_alloc(c, ROOM, false);
    }
}

static int64_t
below(bench *b, int64_t limit)
{
    return (int64_t)check_random_below(b->c, (uint64_t)limit);
}

/* ----------------------------------------------------------------------------------------------------------- tensors */

typedef enum stride_kind { CONTIGUOUS, PERMUTED, GAPPED, EXPANDED } stride_kind;

/* Lays a tensor of that shape into a place. EXPANDED: some dimensions have one element in memory. */
static void
lay(bench *b, int place, int32_t ndim, const int64_t *shape, stride_kind kind, openreg_dtype dtype)
{
    tensor *const t = &b->places[place];
    int32_t order[MOST_DIMS];
    for (int32_t d = 0; d < ndim; ++d)
        order[d] = d;
    for (int32_t d = ndim - 1; d > 0 && kind != CONTIGUOUS; --d) {
        const int32_t other = (int32_t)below(b, d + 1), kept = order[d];
        order[d] = order[other];
        order[other] = kept;
    }
    int64_t step = kind == GAPPED ? 1 + below(b, 3) : 1, last = 0;
    for (int32_t i = ndim - 1; i >= 0; --i) {
        const int32_t d = order[i];
        t->shape[d] = shape[d];
        t->strides[d] = kind == EXPANDED && below(b, 2) == 0 ? 0 : step;
        if (t->strides[d] != 0)
            step *= shape[d] > 0 ? shape[d] : 1;
        if (kind == GAPPED)
            step += below(b, 4);
        last += shape[d] > 0 ? (shape[d] - 1) * t->strides[d] : 0;
    }
    const int64_t offset = kind == CONTIGUOUS ? 0 : below(b, 6);
    const size_t size = dtype.bits / 8;
    t->used = (size_t)(offset + last + 1 + 8) * size;
    REQUIRE(t->used <= ROOM, "internal: a tensor of %zu bytes", t->used);
    t->tensor = (openreg_tensor){.data = t->memory + (size_t)offset * size,
                                 .device_type = OPENREG_TENSOR_DEVICE_TYPE,
                                 .ndim = ndim,
                                 .dtype = dtype,
                                 .shape = ndim == 0 ? NULL : t->shape,
                                 .strides = ndim == 0 ? NULL : t->strides};
}

static int64_t
elements_of(const tensor *t)
{
    return openreg_element_count(&t->tensor);
}

static unsigned char *
at_indices(const tensor *t, const int64_t *indices)
{
    int64_t at = 0;
    for (int32_t d = 0; d < t->tensor.ndim; ++d)
        at += indices[d] * t->strides[d];
    return t->host + ((char *)t->tensor.data - t->memory) + at * (t->tensor.dtype.bits / 8);
}

/* Of element i of a shape to which the tensor is broadcast. */
static unsigned char *
broadcast_at(const tensor *t, const tensor *to, int64_t i)
{
    int64_t indices[MOST_DIMS] = {0};
    const int32_t missing = to->tensor.ndim - t->tensor.ndim;
    for (int32_t d = to->tensor.ndim - 1; d >= 0; --d) {
        if (d >= missing && t->shape[d - missing] != 1)
            indices[d - missing] = i % to->shape[d];
        i /= to->shape[d];
    }
    return at_indices(t, indices);
}

static int64_t
load_whole(const void *at, openreg_dtype dtype)
{
    int64_t wide;
    int32_t narrow;
    if (dtype.bits == 64)
        return memcpy(&wide, at, sizeof wide), wide;
    return memcpy(&narrow, at, sizeof narrow), (int64_t)narrow;
}

/* Numbers that every type has exactly, none of them 0; integers are at times near the ends of their type. */
static void
fill_place(bench *b, int place, bool is_positive, bool is_wide)
{
    tensor *const t = &b->places[place];
    const openreg_dtype dtype = t->tensor.dtype;
    const size_t size = dtype.bits / 8;
    memset(t->host, UNTOUCHED, t->used);
    for (size_t at = 0; at + size <= t->used; at += size) {
        const double small = (double)below(b, 9) - 4.5;
        const int64_t wide = INT64_MAX / (1 + below(b, 5)) - below(b, 1000);
        check_number_store(t->host + at, dtype, is_positive && small < 0 ? -small : small);
        if (!is_float(dtype) && is_wide && below(b, 3) == 0)
            memcpy(t->host + at, &wide, size);
        else if (!is_float(dtype) && small > -1 && small < 1)
            check_number_store(t->host + at, dtype, 7);
    }
    check_write(b->c, 0, t->memory, t->host, t->used);
}

/* ------------------------------------------------------------------------------------------------------------- calls */

typedef struct lent {
    check_context *c;
    char *blocks[32];
    int count;
} lent;

static void *
lend(const openreg_kernel_call *call, uint64_t size)
{
    lent *const scratch = call->scratch;
    if (scratch->count == 32)
        return NULL;
    char *const block = check_alloc(scratch->c, 0, size == 0 ? 1 : size);
    check_begin_call(call->name); /* the kernel goes on */
    return scratch->blocks[scratch->count++] = block;
}

/* Runs the kernel into the result's place, of which the host then has the bytes. False if it refuses. */
static bool
call_kernel(bench *b, const openreg_value *arguments, uint64_t count, const char *const *names)
{
    check_context *const c = b->c;
    tensor *const result = &b->places[RESULT];
    const openreg_value results[1] = {{.kind = OPENREG_VALUE_TENSOR, .tensor = &result->tensor}};
    lent scratch = {.c = c};
    const openreg_kernel_call call = {.struct_size = sizeof call,
                                      .kernel = b->kernel,
                                      .name = b->kernel->name,
                                      .arguments = arguments,
                                      .argument_count = count,
                                      .results = results,
                                      .result_count = 1,
                                      .argument_names = names,
                                      .workspace = lend,
                                      .scratch = &scratch};
    memset(b->before, UNTOUCHED, result->used);
    check_write(c, 0, result->memory, b->before, result->used);
    check_begin_call(b->kernel->name);
    const openreg_status status = b->kernel->run(c->instance, &call);
    const bool is_refused = status == OPENREG_E_UNSUPPORTED;
    if (!is_refused)
        check_succeeded(b->kernel->name, status);
    check_sync(c, 0, NULL);
    while (scratch.count > 0)
        check_free(c, 0, scratch.blocks[--scratch.count]);
    check_read(c, 0, result->host, result->memory, result->used);
    REQUIRE(!is_refused || memcmp(result->host, b->before, result->used) == 0,
            "%s, %s: it refused, and has written to its result", b->kernel->name, b->text);
    b->served += !is_refused;
    b->refused += is_refused;
    return !is_refused;
}

/* Takes element i of the result out of what is compared with the bytes before. */
static void
expect_number(bench *b, int64_t i, double wanted, int64_t whole)
{
    const tensor *const result = &b->places[RESULT];
    const openreg_dtype dtype = result->tensor.dtype;
    unsigned char *const at = broadcast_at(result, result, i);
    if (dtype.code == OPENREG_DTYPE_BOOL)
        REQUIRE(*at == (whole != 0), "%s, %s: element %lld of the result is %u, not %d", b->kernel->name, b->text,
                (long long)i, *at, whole != 0);
    else if (is_float(dtype))
        REQUIRE(check_is_close(check_number_load(at, dtype), wanted, dtype),
                "%s, %s: element %lld of the result is %g, not %g", b->kernel->name, b->text, (long long)i,
                check_number_load(at, dtype), wanted);
    else
        REQUIRE(load_whole(at, dtype) == (dtype.bits == 64 ? whole : (int64_t)(int32_t)(uint32_t)whole),
                "%s, %s: element %lld of the result is %lld, not %lld", b->kernel->name, b->text, (long long)i,
                (long long)load_whole(at, dtype), (long long)whole);
    memset(at, UNTOUCHED, dtype.bits / 8);
}

static void
expect_nothing_beside(bench *b)
{
    const tensor *const result = &b->places[RESULT];
    REQUIRE(memcmp(result->host, b->before, result->used) == 0, "%s, %s: it has written beside its result's elements",
            b->kernel->name, b->text);
}

static const char *
show_shape(const tensor *t, char *text, size_t size)
{
    size_t length = (size_t)snprintf(text, size, "(");
    for (int32_t d = 0; d < t->tensor.ndim; ++d)
        length += (size_t)snprintf(text + length, size - length, "%s%lld:%lld", d == 0 ? "" : ", ",
                                   (long long)t->shape[d], (long long)t->strides[d]);
    (void)snprintf(text + length, size - length, ")");
    return text;
}

static void
describe(bench *b, int count, const char *more)
{
    size_t length = (size_t)snprintf(b->text, sizeof b->text, "%s%u size:stride", is_float(b->dtype) ? "float" : "int",
                                     (unsigned)b->dtype.bits);
    char shape[120];
    for (int i = 0; i < count && length < sizeof b->text; ++i)
        length += (size_t)snprintf(b->text + length, sizeof b->text - length, " %s",
                                   show_shape(&b->places[i], shape, sizeof shape));
    if (length < sizeof b->text)
        (void)snprintf(b->text + length, sizeof b->text - length, "%s", more);
}

/* ------------------------------------------------------------------------------------------------------ by the element */

static const char *
split_names(const char *text, char *buffer, const char **names)
{
    int count = 0;
    strcpy(buffer, text);
    for (char *name = strtok(buffer, " "); name != NULL; name = strtok(NULL, " "))
        names[count++] = name;
    return text;
}

/* A number for an argument that takes one. */
static openreg_value
pick_number(bench *b, const check_elementwise *op, double *real, int64_t *whole)
{
    static const int64_t ints[] = {3, -2, (INT64_C(1) << 40) + 3, -(INT64_C(1) << 33) - 1, (INT64_C(1) << 53) + 1};
    static const double reals[] = {2.5, -0.5, 1e15, 3, 16777217};
    const bool is_wide = b->dtype.bits == 64 && !op->is_real;
    if (!is_float(b->dtype)) {
        *whole = ints[below(b, is_wide ? 5 : 2)];
        *real = (double)*whole;
        return (openreg_value){.kind = OPENREG_VALUE_INT, .integer = *whole, .real = *real};
    }
    *real = reals[below(b, op->is_real ? 2 : 5)];
    *real = op->is_positive && *real < 0 ? -*real : *real;
    *whole = (int64_t)(*real < 1e18 ? *real : 0);
    if (*real == 3)
        return (openreg_value){.kind = OPENREG_VALUE_INT, .integer = 3, .real = 3};
    return (openreg_value){.kind = OPENREG_VALUE_FLOAT, .real = *real};
}

static void
try_elementwise(bench *b, const check_elementwise *op)
{
    char buffer[64], more[80] = "";
    const char *names[4];
    openreg_value arguments[4];
    double reals[4] = {0}, number;
    int64_t wholes[4] = {0}, shape[MOST_DIMS], integer;
    int places[4] = {-1, -1, -1, -1}, tensors = 0;
    const int count = (int)strlen(op->kinds);
    const bool is_expanded = (b->kernel->flags & OPENREG_KERNEL_ELEMENTWISE) != 0;
    const int32_t ndim = (int32_t)below(b, MOST_DIMS + 1);
    (void)split_names(op->names, buffer, names);
    for (int32_t d = 0; d < ndim; ++d)
        shape[d] = 1 + below(b, d < 3 ? 5 : 3);
    lay(b, RESULT, ndim, shape,
        below(b, 3) == 0   ? PERMUTED
        : below(b, 4) == 0 ? GAPPED
                           : CONTIGUOUS,
        op->is_boolean ? boolean : b->dtype);
    memset(arguments, 0, sizeof arguments);
    for (int i = 0; i < count; ++i) {
        const bool is_number = op->kinds[i] == 'S' || op->kinds[i] == 'A' || (op->kinds[i] == 'N' && below(b, 3) == 0);
        if (is_number) {
            arguments[i] = pick_number(b, op, &number, &integer);
            reals[i] = number;
            wholes[i] = integer;
            (void)snprintf(more + strlen(more), sizeof more - strlen(more), ", %s %g", names[i], number);
            continue;
        }
        int64_t own[MOST_DIMS];
        const int32_t missing = is_expanded || i == 0 ? 0 : (int32_t)below(b, ndim + 1);
        for (int32_t d = missing; d < ndim; ++d)
            own[d - missing] = is_expanded || i == 0 || below(b, 3) != 0 ? shape[d] : 1;
        places[i] = tensors++;
        const stride_kind kind = (stride_kind)below(b, is_expanded ? 4 : 3);
        lay(b, places[i], ndim - missing, own, kind, b->dtype);
        fill_place(b, places[i], op->is_positive, op->is_exact);
        arguments[i] = (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[places[i]].tensor};
    }
    describe(b, tensors, more);
    if (!call_kernel(b, arguments, (uint64_t)count, names))
        return;
    for (int64_t i = 0; i < elements_of(&b->places[RESULT]); ++i) {
        for (int k = 0; k < count; ++k)
            if (places[k] >= 0) {
                const unsigned char *const at = broadcast_at(&b->places[places[k]], &b->places[RESULT], i);
                reals[k] = check_number_load(at, b->dtype);
                wholes[k] = is_float(b->dtype) ? 0 : load_whole(at, b->dtype);
            }
        int64_t whole = 0;
        const double wanted = is_float(b->dtype) ? check_elementwise_real(op, reals)
                                                 : (double)(whole = check_elementwise_whole(op, wholes));
        expect_number(b, i, wanted, is_float(b->dtype) ? wanted != 0 : whole);
    }
    expect_nothing_beside(b);
}

static const openreg_kernel *
entry(const openreg_kernels *kernels, uint64_t i)
{
    return (const openreg_kernel *)((const char *)kernels->list + i * kernels->kernel_size);
}

static void
skip_unserved(const bench *b)
{
    if (b->served + b->refused == 0)
        check_skip("the reference has none of the driver's kernels");
    if (b->served == 0)
        check_skip("the driver's kernels refuse every call");
}

static void
elements_of_any_shape(check_context *c)
{
    static bench b;
    const openreg_kernels *const kernels = kernels_of(c);
    set_up(&b, c);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = entry(kernels, i);
        const check_elementwise *const op = check_elementwise_find(b.kernel->name);
        for (size_t k = 0; op != NULL && k < sizeof dtypes / sizeof dtypes[0]; ++k) {
            b.dtype = dtypes[k];
            for (int round = 0; (is_float(b.dtype) || !op->is_real) && round < (k < 2 ? 24 : 8); ++round)
                try_elementwise(&b, op);
        }
    }
    skip_unserved(&b);
}

/* ----------------------------------------------------------------------------------------------------------- products */

/* The shapes that broadcast to m rows and n columns. */
static int32_t
pick_bias(bench *b, int64_t rows, int64_t columns, int64_t *shape)
{
    const int64_t shapes[][2] = {{rows, columns}, {1, columns}, {rows, 1}, {1, 1}, {columns, 0}, {1, 0}, {0, 0}};
    static const int32_t ndims[] = {2, 2, 2, 2, 1, 1, 0};
    const int64_t which = below(b, 7);
    memcpy(shape, shapes[which], sizeof shapes[which]);
    return ndims[which];
}

/* mm(self, mat2), bmm(self, mat2), addmm(self, mat1, mat2, *, beta=1, alpha=1); inner sizes from 0. */
static void
try_product(bench *b, bool is_batched, bool has_bias)
{
    static const char *const plain_names[] = {"self", "mat2"}, *const bias_names[] = {"self", "mat1", "mat2", "beta",
                                                                                      "alpha"};
    static const double factors[] = {1, 2, 0, -3};
    const int64_t batch = is_batched ? 1 + below(b, 3) : 1, rows = 1 + below(b, 6), columns = 1 + below(b, 6),
                  inner = below(b, 6);
    const int64_t left[] = {batch, rows, inner}, right[] = {batch, inner, columns}, out[] = {batch, rows, columns};
    const int first = is_batched ? 0 : 1, of_left = has_bias ? 1 : 0, of_right = of_left + 1;
    const double beta = has_bias ? factors[below(b, 4)] : 0, alpha = has_bias ? factors[below(b, 4)] : 1;
    openreg_value arguments[5];
    int64_t bias[2];
    char more[64];
    memset(arguments, 0, sizeof arguments);
    if (has_bias) {
        const int32_t ndim = pick_bias(b, rows, columns, bias);
        lay(b, 0, ndim, bias, (stride_kind)below(b, 3), b->dtype);
        fill_place(b, 0, false, false);
        arguments[3] = (openreg_value){.kind = OPENREG_VALUE_INT, .integer = (int64_t)beta, .real = beta};
        arguments[4] = (openreg_value){.kind = OPENREG_VALUE_INT, .integer = (int64_t)alpha, .real = alpha};
    }
    lay(b, of_left, 3 - first, left + first, (stride_kind)below(b, 4), b->dtype);
    lay(b, of_right, 3 - first, right + first, (stride_kind)below(b, 4), b->dtype);
    lay(b, RESULT, 3 - first, out + first, CONTIGUOUS, b->dtype);
    fill_place(b, of_left, false, false);
    fill_place(b, of_right, false, false);
    for (int i = 0; i <= of_right; ++i)
        arguments[i] = (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[i].tensor};
    (void)snprintf(more, sizeof more, ", beta %g, alpha %g", beta, alpha);
    describe(b, of_right + 1, has_bias ? more : "");
    if (!call_kernel(b, arguments, has_bias ? 5 : 2, has_bias ? bias_names : plain_names))
        return;
    for (int64_t i = 0; i < batch * rows * columns; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
            const int64_t l[] = {i / (rows * columns), i / columns % rows, k}, r[] = {l[0], k, i % columns};
            sum += check_number_load(at_indices(&b->places[of_left], l + first), b->dtype) *
                   check_number_load(at_indices(&b->places[of_right], r + first), b->dtype);
        }
        sum *= alpha;
        if (has_bias && beta != 0)
            sum += beta * check_number_load(broadcast_at(&b->places[0], &b->places[RESULT], i), b->dtype);
        expect_number(b, i, sum, (int64_t)sum);
    }
    expect_nothing_beside(b);
}

static void
products_of_any_shape(check_context *c)
{
    static bench b;
    const openreg_kernels *const kernels = kernels_of(c);
    set_up(&b, c);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = entry(kernels, i);
        const bool is_batched = strcmp(b.kernel->name, "aten::bmm") == 0;
        const bool has_bias = strcmp(b.kernel->name, "aten::addmm") == 0;
        if (!is_batched && !has_bias && strcmp(b.kernel->name, "aten::mm") != 0)
            continue;
        for (size_t k = 0; k < sizeof dtypes / sizeof dtypes[0]; ++k) {
            b.dtype = dtypes[k];
            for (int round = 0; round < 60; ++round)
                try_product(&b, is_batched, has_bias);
        }
    }
    skip_unserved(&b);
}

/* --------------------------------------------------------------------------------------------------------- reductions */

static void
try_reduction(bench *b, const check_reduction *op)
{
    static const char *const names[] = {"self", "dim", "keepdim", "dtype"};
    int64_t shape[MOST_DIMS], out[MOST_DIMS], dims[MOST_DIMS], count = 0;
    bool is_reduced[MOST_DIMS] = {false};
    char more[80] = ", dim";
    const int32_t ndim = 1 + (int32_t)below(b, MOST_DIMS - 1);
    const bool keeps = below(b, 2) == 0;
    int32_t kept = 0;
    for (int32_t d = 0; d < ndim; ++d)
        shape[d] = 1 + below(b, 4);
    for (int32_t d = 0; d < ndim; ++d)
        if (below(b, 2) == 0 || (d == ndim - 1 && count == 0)) {
            is_reduced[d] = true;
            dims[count++] = below(b, 2) == 0 ? d : d - ndim;
            (void)snprintf(more + strlen(more), sizeof more - strlen(more), " %d", (int)dims[count - 1]);
            if (op->kind == CHECK_SUM && below(b, 10) == 0)
                shape[d] = 0; /* the sum of nothing */
        }
    for (int32_t d = 0; d < ndim; ++d)
        if (!is_reduced[d] || keeps)
            out[kept++] = is_reduced[d] ? 1 : shape[d];
    lay(b, 0, ndim, shape, (stride_kind)below(b, 4), b->dtype);
    lay(b, RESULT, kept, out, CONTIGUOUS, b->dtype);
    fill_place(b, 0, false, false);
    const openreg_value arguments[] = {
        {.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[0].tensor},
        {.kind = OPENREG_VALUE_INTS, .integers = dims, .count = (uint64_t)count},
        {.kind = OPENREG_VALUE_BOOL, .integer = keeps, .real = keeps},
        {.kind = OPENREG_VALUE_NONE},
    };
    describe(b, 1, more);
    if (!call_kernel(b, arguments, op->has_dtype ? 4 : 3, names))
        return;
    const int64_t results = elements_of(&b->places[RESULT]), all = elements_of(&b->places[0]);
    double *const sums = calloc((size_t)results, sizeof *sums);
    int64_t *const numbers = calloc((size_t)results, sizeof *numbers);
    for (int64_t i = 0; i < all; ++i) {
        int64_t rest = i, to = 0, size = 1;
        for (int32_t d = ndim - 1; d >= 0; --d) {
            if (!is_reduced[d]) {
                to += rest % shape[d] * size;
                size *= shape[d];
            }
            rest /= shape[d];
        }
        const double value = check_number_load(broadcast_at(&b->places[0], &b->places[0], i), b->dtype);
        const bool is_first = numbers[to]++ == 0;
        if (op->kind == CHECK_SUM || op->kind == CHECK_MEAN || is_first)
            sums[to] += value;
        else if (op->kind == CHECK_MOST ? value > sums[to] : value < sums[to])
            sums[to] = value;
    }
    for (int64_t i = 0; i < results; ++i) {
        const double wanted = op->kind == CHECK_MEAN ? sums[i] / (double)numbers[i] : sums[i];
        expect_number(b, i, wanted, (int64_t)wanted);
    }
    free(sums);
    free(numbers);
    expect_nothing_beside(b);
}

static void
reductions_of_any_shape(check_context *c)
{
    static bench b;
    const openreg_kernels *const kernels = kernels_of(c);
    set_up(&b, c);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = entry(kernels, i);
        const check_reduction *const op = check_reduction_find(b.kernel->name);
        for (size_t k = 0; op != NULL && k < 3; ++k) { /* a sum of int32 is an int64 */
            b.dtype = dtypes[k];
            for (int round = 0; (is_float(b.dtype) || op->kind != CHECK_MEAN) && round < 40; ++round)
                try_reduction(&b, op);
        }
    }
    skip_unserved(&b);
}

/* -------------------------------------------------------------------------------------------------------------- large */

#define LARGE_COUNT ((int64_t)4 * 1024 * 1024 + 1027)

/* More elements than a launch of many vendors has, in float32: the sampled ones, and all at the end. */
static void
large_tensors(check_context *c)
{
    static bench b;
    const openreg_kernels *const kernels = kernels_of(c);
    const size_t bytes = (size_t)LARGE_COUNT * sizeof(float);
    const uint64_t total = check_total_memory(c, 0);
    if (total != 0 && total < 8 * bytes)
        check_skip("device 0 has %llu MiB", (unsigned long long)(total >> 20));
    float *const host = malloc(bytes);
    if (host == NULL)
        check_skip("no host memory of %zu bytes", bytes);
    set_up(&b, c);
    b.dtype = dtypes[0];
    for (int i = 0; i < PLACES; ++i) {
        tensor *const t = &b.places[i];
        t->memory = check_alloc(c, 0, bytes);
        t->shape[0] = LARGE_COUNT;
        t->strides[0] = 1;
        t->tensor = (openreg_tensor){.data = t->memory,
                                     .device_type = OPENREG_TENSOR_DEVICE_TYPE,
                                     .ndim = 1,
                                     .dtype = b.dtype,
                                     .shape = t->shape,
                                     .strides = t->strides};
        for (int64_t k = 0; k < LARGE_COUNT; ++k)
            host[k] = i == RESULT ? 0 : (float)((k * (2 * i + 3)) % 251 + 1) / 8;
        check_write(c, 0, t->memory, host, bytes);
    }
    for (uint64_t i = 0; i < kernels->count; ++i) {
        b.kernel = entry(kernels, i);
        const check_elementwise *const op = check_elementwise_find(b.kernel->name);
        if (op == NULL || op->is_boolean)
            continue;
        char buffer[64];
        const char *names[4];
        openreg_value arguments[4];
        memset(arguments, 0, sizeof arguments);
        (void)split_names(op->names, buffer, names);
        const int count = (int)strlen(op->kinds);
        for (int k = 0; k < count; ++k)
            arguments[k] = op->kinds[k] == 'T' || op->kinds[k] == 'N'
                               ? (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b.places[k].tensor}
                               : (openreg_value){.kind = OPENREG_VALUE_INT, .integer = 2, .real = 2};
        (void)snprintf(b.text, sizeof b.text, "float32 of %lld elements", (long long)LARGE_COUNT);
        b.places[RESULT].used = 0;
        if (!call_kernel(&b, arguments, (uint64_t)count, names))
            continue;
        check_read(c, 0, host, b.places[RESULT].memory, bytes);
        for (int64_t k = 0; k<LARGE_COUNT; k += k + 2048> LARGE_COUNT ? 1 : 61) {
            double reals[4];
            for (int n = 0; n < count; ++n)
                reals[n] = arguments[n].tensor == NULL ? 2 : (double)((k * (2 * n + 3)) % 251 + 1) / 8;
            const double wanted = check_elementwise_real(op, reals);
            REQUIRE(check_is_close(host[k], wanted, b.dtype), "%s, %s: element %lld of the result is %g, not %g",
                    b.kernel->name, b.text, (long long)k, (double)host[k], wanted);
        }
    }
    skip_unserved(&b);
}

static const check_case cases[] = {
    {"kernel.shapes", "extension", CHECK_KERNELS,
     "kernels.h: tensors of any number of dimensions, sizes and strides, arguments that broadcast, and numbers as wide "
     "as their type.",
     "Refuse more dimensions than the kernel has room for; int64 numbers don't fit into int, float or double.",
     elements_of_any_shape},
    {"kernel.products", "extension", CHECK_KERNELS,
     "kernels.h: matrix products with any strides, an inner size of 0, factors, and every shape of the added argument "
     "that broadcasts.",
     "The added one may be (n), (1, n), (m, 1), (1, 1), (1) or without dimensions.", products_of_any_shape},
    {"kernel.reductions", "extension", CHECK_KERNELS,
     "kernels.h: reductions over any dimensions, negative ones too, of tensors with any strides.",
     "`dim` has each dimension to reduce; a sum of nothing is 0.", reductions_of_any_shape},
    {"kernel.large", "extension", CHECK_KERNELS, "kernels.h: tensors of more than 4 million elements.",
     "A launch has a largest number of groups: repeat it, or let each work item do more.", large_tensors},
};
const check_group check_kernel_shape_group = CHECK_GROUP(2, cases);
