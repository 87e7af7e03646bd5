/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_bench.c: see kernel_bench.h. */
#include "kernel_bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fixtures.h"

#define ROOM ((size_t)1 << 20) /* bytes of a place */
#define LONG_SHAPE 2048        /* elements of a shape with a long dimension */

const openreg_dtype check_dtypes[CHECK_DTYPES] = {
    {OPENREG_DTYPE_FLOAT, 32, 1}, {OPENREG_DTYPE_INT, 64, 1}, {OPENREG_DTYPE_FLOAT, 64, 1}, {OPENREG_DTYPE_INT, 32, 1}};

bool
check_is_float(openreg_dtype dtype)
{
    return dtype.code == OPENREG_DTYPE_FLOAT;
}

const openreg_kernels *
check_kernels(check_context *c)
{
    return c->table.extension(c->instance, OPENREG_KERNELS_NAME, OPENREG_KERNELS_VERSION);
}

void
check_bench_set_up(check_bench *b, check_context *c, int32_t dev)
{
    memset(b, 0, sizeof *b);
    b->c = c;
    b->dev = dev;
    check_need(dev, check_total_memory(c, dev), CHECK_BENCH_BYTES);
    OPTIONAL(c, device_bind, c->instance, 0);
    b->before = check_host_alloc(c, ROOM, false);
    for (int i = 0; i < CHECK_PLACES; ++i) {
        b->places[i].memory = check_alloc(c, dev, ROOM);
        b->places[i].host = check_host_alloc(c, ROOM, false);
    }
}

int64_t
check_bench_below(check_bench *b, int64_t limit)
{
    return (int64_t)check_random_below(b->c, (uint64_t)limit);
}

int64_t
check_bench_shape(check_bench *b, int32_t ndim, int64_t most, int64_t *shape)
{
    const int64_t longest = ndim > 0 ? b->longest : 0, room = longest > 0 ? LONG_SHAPE / longest : INT64_MAX;
    const int32_t at = longest > 0 ? (int32_t)check_bench_below(b, ndim) : -1;
    int64_t others = 1;
    for (int32_t d = 0; d < ndim; ++d) {
        const int64_t size = 1 + check_bench_below(b, most);
        shape[d] = d == at ? longest : others * size <= room ? size : 1;
        others *= d == at ? 1 : shape[d];
    }
    b->longest = ndim > 0 ? 0 : b->longest;
    return others * (longest > 0 ? longest : 1);
}

void
check_bench_lay(check_bench *b, int place, int32_t ndim, const int64_t *shape, stride_kind kind, openreg_dtype dtype)
{
    check_tensor *const t = &b->places[place];
    int32_t order[CHECK_DIMS];
    for (int32_t d = 0; d < ndim; ++d)
        order[d] = d;
    for (int32_t d = ndim - 1; d > 0 && kind != CONTIGUOUS; --d) {
        const int32_t other = (int32_t)check_bench_below(b, d + 1), kept = order[d];
        order[d] = order[other];
        order[other] = kept;
    }
    int64_t step = kind == GAPPED ? 1 + check_bench_below(b, 3) : 1, last = 0;
    for (int32_t i = ndim - 1; i >= 0; --i) {
        const int32_t d = order[i];
        t->shape[d] = shape[d];
        t->strides[d] = kind == EXPANDED && check_bench_below(b, 2) == 0 ? 0 : step;
        if (t->strides[d] != 0)
            step *= shape[d] > 0 ? shape[d] : 1;
        if (kind == GAPPED)
            step += check_bench_below(b, 4);
        last += shape[d] > 0 ? (shape[d] - 1) * t->strides[d] : 0;
    }
    const int64_t offset = kind == CONTIGUOUS ? 0 : check_bench_below(b, 6);
    const size_t size = dtype.bits / 8;
    t->used = (size_t)(offset + last + 1 + 8) * size;
    if (t->used > ROOM && kind != CONTIGUOUS) {
        check_bench_lay(b, place, ndim, shape, CONTIGUOUS, dtype);
        return;
    }
    REQUIRE(t->used <= ROOM, "internal: a tensor of %zu bytes", t->used);
    t->tensor = (openreg_tensor){.data = t->memory + (size_t)offset * size,
                                 .device_type = OPENREG_TENSOR_DEVICE_TYPE,
                                 .device_id = b->dev,
                                 .ndim = ndim,
                                 .dtype = dtype,
                                 .shape = ndim == 0 ? NULL : t->shape,
                                 .strides = ndim == 0 ? NULL : t->strides};
}

unsigned char *
check_tensor_broadcast_at(const check_tensor *t, const check_tensor *to, int64_t i)
{
    int64_t at = 0;
    const int32_t missing = to->tensor.ndim - t->tensor.ndim;
    for (int32_t d = to->tensor.ndim - 1; d >= 0; --d) {
        if (d >= missing && t->shape[d - missing] != 1)
            at += i % to->shape[d] * t->strides[d - missing];
        i /= to->shape[d];
    }
    return t->host + ((char *)t->tensor.data - t->memory) + at * (t->tensor.dtype.bits / 8);
}

int64_t
check_bench_end(check_bench *b, openreg_dtype dtype)
{
    const int64_t most = (int64_t)(UINT64_MAX >> (64 - dtype.bits)) >> (dtype.code == OPENREG_DTYPE_INT);
    return check_bench_below(b, 2) == 0 ? most : dtype.code == OPENREG_DTYPE_INT ? -most - 1 : 0;
}

double
check_bench_special(check_bench *b)
{
    static const double numbers[] = {NAN, INFINITY, -INFINITY, 0, -0.0, 1e-40, -1e-40, 1e-310, 1, -1, 2.5, -2.5};
    return numbers[check_bench_below(b, sizeof numbers / sizeof numbers[0])];
}

/* One number of those that check_bench_fill() is for. */
static void
fill_number(check_bench *b, unsigned char *at, openreg_dtype dtype, bool is_positive, bool is_wide)
{
    if (dtype.code == OPENREG_DTYPE_BOOL) {
        *at = (unsigned char)check_bench_below(b, 2);
        return;
    }
    if (b->is_special && check_is_float(dtype)) {
        const double number = check_bench_special(b);
        check_number_store(at, dtype, is_positive ? fabs(number) : number);
        return;
    }
    const double small = (double)check_bench_below(b, 9) - 4.5;
    const int64_t wide = check_is_float(dtype) ? 0 : check_bench_end(b, dtype) / (1 + check_bench_below(b, 5));
    const int64_t moved = wide - (wide > 0 ? check_bench_below(b, 3) : -check_bench_below(b, 3));
    check_number_store(at, dtype, is_positive && small < 0 ? -small : small);
    if (!check_is_float(dtype) && is_wide && check_bench_below(b, 3) == 0)
        memcpy(at, &moved, dtype.bits / 8);
    else if (!check_is_float(dtype) && small > -1 && small < 1)
        check_number_store(at, dtype, 7);
}

void
check_bench_fill(check_bench *b, int place, bool is_positive, bool is_wide)
{
    check_tensor *const t = &b->places[place];
    const size_t size = t->tensor.dtype.bits / 8;
    memset(t->host, CHECK_UNTOUCHED, t->used);
    for (size_t at = 0; at + size <= t->used; at += size)
        fill_number(b, t->host + at, t->tensor.dtype, is_positive, is_wide);
    check_write(b->c, b->dev, t->memory, t->host, t->used);
}

static void *
lend(const openreg_kernel_call *call, uint64_t size)
{
    check_bench *const b = call->scratch;
    if (b->lent_count == CHECK_LENT)
        return NULL;
    const size_t bytes = size == 0 ? 1 : (size_t)size;
    char *const block = check_alloc(b->c, b->dev, bytes);
    unsigned char *const undefined = check_host_alloc(b->c, bytes, false); /* and no zeros */
    memset(undefined, CHECK_UNTOUCHED, bytes);
    check_write(b->c, b->dev, block, undefined, bytes);
    check_host_free(b->c, undefined, false);
    check_begin_call(call->name); /* the kernel goes on */
    return b->lent[b->lent_count++] = block;
}

void
check_bench_take_back(check_bench *b)
{
    while (b->lent_count > 0)
        check_free(b->c, b->dev, b->lent[--b->lent_count]);
}

openreg_status
check_bench_queue(check_bench *b, const openreg_value *arguments, uint64_t count, const char *const *names,
                  const openreg_value *results, uint64_t result_count)
{
    const openreg_value *argument_list[CHECK_VALUES], *result_list[CHECK_VALUES];
    REQUIRE(count <= CHECK_VALUES && result_count <= CHECK_VALUES, "internal: too many values");
    for (uint64_t i = 0; i < count; ++i)
        argument_list[i] = &arguments[i];
    for (uint64_t i = 0; i < result_count; ++i)
        result_list[i] = &results[i];
    const openreg_kernel_call call = {.struct_size = sizeof call,
                                      .kernel = b->kernel,
                                      .name = b->kernel->name,
                                      .dev = b->dev,
                                      .stream = b->stream,
                                      .arguments = argument_list,
                                      .argument_count = (uint32_t)count,
                                      .results = result_list,
                                      .result_count = (uint32_t)result_count,
                                      .argument_names = names,
                                      .workspace = lend,
                                      .scratch = b};
    check_begin_call(b->kernel->name);
    const openreg_status status = b->kernel->run(b->c->instance, &call);
    if (status != OPENREG_E_UNSUPPORTED)
        check_succeeded(b->kernel->name, status);
    return status;
}

bool
check_bench_call(check_bench *b, const openreg_value *arguments, uint64_t count, const char *names)
{
    check_context *const c = b->c;
    check_tensor *const result = &b->places[CHECK_RESULT];
    const openreg_value results[1] = {{.kind = OPENREG_VALUE_TENSOR, .tensor = &result->tensor}};
    memset(b->before, CHECK_UNTOUCHED, result->used);
    check_write(c, b->dev, result->memory, b->before, result->used);
    const bool is_refused = check_bench_queue(b, arguments, count, check_bench_names(b, names), results, 1) ==
                            OPENREG_E_UNSUPPORTED;
    check_sync(c, b->dev, b->stream);
    check_bench_take_back(b);
    check_read(c, b->dev, result->host, result->memory, result->used);
    REQUIRE(!is_refused || memcmp(result->host, b->before, result->used) == 0,
            "%s, %s: it refused, and has written to its result", b->kernel->name, b->text);
    ++b->tried;
    b->served += !is_refused;
    return !is_refused;
}

void
check_bench_expect(check_bench *b, int64_t i, double wanted, int64_t whole)
{
    const check_tensor *const result = &b->places[CHECK_RESULT];
    const openreg_dtype dtype = result->tensor.dtype;
    unsigned char *const at = check_tensor_broadcast_at(result, result, i);
    const int64_t seen = check_number_load_whole(at, dtype);
    const int64_t right = dtype.code == OPENREG_DTYPE_BOOL ? whole != 0 : check_number_wrap(whole, dtype);
    if (check_is_float(dtype))
        REQUIRE(check_is_close(check_number_load(at, dtype), wanted, dtype),
                "%s, %s: element %lld of the result is %g, not %g", b->kernel->name, b->text, (long long)i,
                check_number_load(at, dtype), wanted);
    else
        REQUIRE(seen == right, "%s, %s: element %lld of the result is %lld, not %lld", b->kernel->name, b->text,
                (long long)i, (long long)seen, (long long)right);
    memset(at, CHECK_UNTOUCHED, dtype.bits / 8);
}

void
check_bench_describe(check_bench *b, int count, const char *more)
{
    const char *const code = check_is_float(b->dtype) ? "float" : b->dtype.code == OPENREG_DTYPE_UINT ? "uint" : "int";
    (void)snprintf(b->text, sizeof b->text, "%s%u size:stride", code, (unsigned)b->dtype.bits);
    for (int i = 0; i < count; ++i) {
        const check_tensor *const t = &b->places[i];
        check_append(b->text, sizeof b->text, " (");
        for (int32_t d = 0; d < t->tensor.ndim; ++d)
            check_append(b->text, sizeof b->text, "%s%lld:%lld", d == 0 ? "" : ", ", (long long)t->shape[d],
                         (long long)t->strides[d]);
        check_append(b->text, sizeof b->text, ")");
    }
    check_append(b->text, sizeof b->text, "%s", more);
}

const char *const *
check_bench_names(check_bench *b, const char *text)
{
    int count = 0;
    strcpy(b->names_text, text);
    for (char *name = b->names_text; name != NULL;) { /* not strtok(): several threads at once */
        b->names[count++] = name;
        if ((name = strchr(name, ' ')) != NULL)
            *name++ = '\0';
    }
    return b->names;
}

const openreg_kernel *
check_kernel_at(const openreg_kernels *kernels, uint64_t i)
{
    return i < kernels->count ? (const void *)((const char *)kernels->list + i * kernels->kernel_size) : NULL;
}

void
check_bench_require_served(check_bench *b)
{
    REQUIRE(b->served > 0,
            "%s refuses every call of float32, float64, int32 and int64, contiguous ones too: it is listed for nothing",
            b->kernel->name);
    b->served = 0;
}

void
check_bench_skip_untried(int calls)
{
    check_skip_if(calls == 0, "the reference has none of the driver's kernels");
}
