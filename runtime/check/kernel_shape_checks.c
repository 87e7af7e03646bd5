/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_shape_checks.c: kernels by the element over random shapes, strides, broadcasts and numbers, against a reference
 * in C. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"
#include "kernel_bench.h"

static const openreg_dtype boolean = {OPENREG_DTYPE_BOOL, 8, 1};

/* Beside those of every check, as a driver may have kernels for them too. */
static const openreg_dtype narrow_dtypes[] = {
    {OPENREG_DTYPE_UINT, 8, 1}, {OPENREG_DTYPE_INT, 8, 1}, {OPENREG_DTYPE_INT, 16, 1}};

#define NARROW_DTYPES (sizeof narrow_dtypes / sizeof narrow_dtypes[0])

/* A number for an argument that takes one. An integer is wrapped to the tensors' type, as PyTorch does: to compare with one
 * just outside is legal. */
static openreg_value
pick_number(check_bench *b, const check_elementwise *op, double *real, int64_t *whole)
{
    static const int64_t ints[] = {3, -2, (INT64_C(1) << 40) + 3, -(INT64_C(1) << 33) - 1, (INT64_C(1) << 53) + 1};
    static const double reals[] = {2.5, -0.5, 1e15, 3, 16777217};
    const bool is_wide = b->dtype.bits == 64 && !op->is_real;
    if (!check_is_float(b->dtype)) {
        int64_t number = ints[check_bench_below(b, is_wide ? 5 : 2)];
        if (op->is_exact && check_bench_below(b, op->is_boolean ? 2 : 3) == 0) {
            number = check_bench_end(b, b->dtype);
            if (op->is_boolean && b->dtype.bits < 64 && check_bench_below(b, 2) == 0)
                number += number > 0 ? 1 : -1;
        }
        *whole = check_number_wrap(number, b->dtype);
        *real = (double)number;
        return (openreg_value){.kind = OPENREG_VALUE_INT, .integer = number, .real = *real};
    }
    *real = reals[check_bench_below(b, op->is_real ? 2 : 5)];
    *real = op->is_positive && *real < 0 ? -*real : *real;
    *whole = (int64_t)(*real < 1e18 ? *real : 0);
    if (*real == 3)
        return (openreg_value){.kind = OPENREG_VALUE_INT, .integer = 3, .real = 3};
    return (openreg_value){.kind = OPENREG_VALUE_FLOAT, .real = *real};
}

/* What a kernel may have computed with, whose vendor has no numbers below the normal ones. */
static double
flushed(double number, openreg_dtype dtype)
{
    return fabs(number) < (dtype.bits == 32 ? FLT_MIN : DBL_MIN) ? copysign(0, number) : number;
}

/* Argument i, which is no tensor; `real` and `whole` point to the places of it in lists of all arguments. */
static openreg_value
pick_value(check_bench *b, const check_elementwise *op, int i, double *real, int64_t *whole)
{
    const char kind = op->kinds[i];
    if (kind == 'G') {
        *real = (double)check_bench_below(b, 2);
        return (openreg_value){.kind = OPENREG_VALUE_STRING, .text = *real != 0 ? "tanh" : "none", .count = 4};
    }
    const bool has_none = kind == 'O' && op->kinds[i - 1] == 'O' && isnan(real[-1]); /* PyTorch refuses two */
    if (kind == 'O' && !has_none && check_bench_below(b, 3) == 0) {
        *real = NAN;
        *whole = op->kinds[i - 1] == 'T' ? INT64_MIN : INT64_MAX; /* the lower bound comes first */
        return (openreg_value){.kind = OPENREG_VALUE_NONE};
    }
    if (b->is_special && strchr("NS", kind) != NULL && check_bench_below(b, 2) == 0) {
        *real = flushed(check_bench_special(b), b->dtype);
        *real = op->is_positive ? fabs(*real) : *real;
        return (openreg_value){.kind = OPENREG_VALUE_FLOAT, .real = *real};
    }
    return pick_number(b, op, real, whole);
}

static void
expect_element(check_bench *b, const check_elementwise *op, int64_t i, const double *reals, const int64_t *wholes)
{
    const check_tensor *const result = &b->places[CHECK_RESULT];
    if (!check_is_float(b->dtype)) {
        check_bench_expect(b, i, 0, check_elementwise_whole(op, wholes));
        return;
    }
    const unsigned char *const at = check_tensor_broadcast_at(result, result, i);
    double wanted = check_elementwise_real(op, reals);
    for (int way = 1; way < 4 && b->is_special; ++way) { /* kernels of PyTorch's own differ so */
        double others[4];
        for (int k = 0; k < 4; ++k)
            others[k] = (way & 1) != 0 ? flushed(reals[k], b->dtype) : reals[k];
        if ((way & 2) != 0)
            check_elementwise_regroup(op, others);
        const double other = check_elementwise_real(op, others);
        if (op->is_boolean ? *at == (other != 0) : check_is_close(check_number_load(at, b->dtype), other, b->dtype))
            wanted = other;
    }
    check_bench_expect(b, i, wanted, wanted != 0);
}

/* All of the result. `places`: of the arguments that are tensors; -1: the argument is one of the given numbers. */
static void
expect_elements(check_bench *b, const check_elementwise *op, const int *places, double *reals, int64_t *wholes)
{
    const check_tensor *const result = &b->places[CHECK_RESULT];
    for (int64_t i = 0; i < openreg_element_count(&result->tensor); ++i) {
        for (int k = 0; op->kinds[k] != '\0'; ++k)
            if (places[k] >= 0) {
                const check_tensor *const t = &b->places[places[k]];
                const unsigned char *const at = check_tensor_broadcast_at(t, result, i);
                reals[k] = check_number_load(at, t->tensor.dtype);
                wholes[k] = check_is_float(t->tensor.dtype) ? 0 : check_number_load_whole(at, t->tensor.dtype);
            }
        expect_element(b, op, i, reals, wholes);
    }
}

static void
try_elementwise(check_bench *b, const check_elementwise *op)
{
    char more[80] = "";
    const char *const *const names = check_bench_names(b, op->names);
    openreg_value arguments[4] = {{0}};
    double reals[4] = {0};
    int64_t wholes[4] = {0}, shape[CHECK_DIMS];
    int places[4] = {-1, -1, -1, -1}, tensors = 0;
    const int count = (int)strlen(op->kinds);
    const bool is_expanded = (b->kernel->flags & OPENREG_KERNEL_ELEMENTWISE) != 0;
    /* Rarely more dimensions than a kernel's arrays may have room for; most of them of size 1. */
    const bool is_deep = check_bench_below(b, 8) == 0;
    const int32_t ndim = (int32_t)check_bench_below(b, is_deep ? CHECK_DIMS + 1 : 7);
    for (int32_t d = 0; d < ndim; ++d)
        shape[d] = is_deep ? 1 + (check_bench_below(b, 3) == 0) : 1 + check_bench_below(b, d < 3 ? 5 : 3);
    if (ndim > 0 && check_bench_below(b, 12) == 0)
        shape[check_bench_below(b, ndim)] = 0;
    check_bench_lay(b, CHECK_RESULT, ndim, shape,
                    check_bench_below(b, 3) == 0   ? PERMUTED
                    : check_bench_below(b, 4) == 0 ? GAPPED
                                                   : CONTIGUOUS,
                    op->is_boolean ? boolean : b->dtype);
    for (int i = 0; i < count; ++i) {
        const char kind = op->kinds[i];
        const bool is_number = strchr("SAOG", kind) != NULL || (kind == 'N' && check_bench_below(b, 3) == 0);
        if (is_number) {
            arguments[i] = pick_value(b, op, i, &reals[i], &wholes[i]);
            check_append(more, sizeof more, ", %s %g", names[i], reals[i]);
            continue;
        }
        int64_t own[CHECK_DIMS];
        const bool is_whole = is_expanded || i == 0;
        const int32_t missing = is_whole ? 0 : kind == 'V' ? ndim : (int32_t)check_bench_below(b, ndim + 1);
        for (int32_t d = missing; d < ndim; ++d)
            own[d - missing] = is_whole || check_bench_below(b, 3) != 0 ? shape[d] : 1;
        places[i] = tensors++;
        const stride_kind strides = (stride_kind)check_bench_below(b, is_expanded ? 4 : 3);
        check_bench_lay(b, places[i], ndim - missing, own, strides, kind == 'M' ? boolean : b->dtype);
        if (kind == 'V')
            memset(b->places[places[i]].strides, 0, sizeof b->places[places[i]].strides);
        check_bench_fill(b, places[i], op->is_positive, op->is_exact);
        arguments[i] = (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[places[i]].tensor};
    }
    check_bench_describe(b, tensors, more);
    if (!check_bench_call(b, arguments, (uint64_t)count, op->names))
        return;
    expect_elements(b, op, places, reals, wholes);
    REQUIRE(memcmp(b->places[CHECK_RESULT].host, b->before, b->places[CHECK_RESULT].used) == 0,
            "%s, %s: it has written beside its result's elements", b->kernel->name, b->text);
}

/* Every operator that the reference has, in each type some rounds. */
static void
elements_are_right(check_context *c)
{
    const bool is_special = strcmp(c->check->name, "kernel.special") == 0;
    static check_bench b;
    check_bench_set_up(&b, c, check_kernel_device(c));
    b.is_special = is_special;
    for (uint64_t i = 0; (b.kernel = check_kernel_at(check_kernels(c), i)) != NULL; ++i) {
        const check_elementwise *const op = check_elementwise_find(b.kernel->name);
        for (size_t k = 0; op != NULL && k < CHECK_DTYPES + NARROW_DTYPES; ++k) {
            b.dtype = k < CHECK_DTYPES ? check_dtypes[k] : narrow_dtypes[k - CHECK_DTYPES];
            if (check_is_float(b.dtype) ? op->is_whole : op->is_real || is_special)
                continue;
            if (is_special && strchr(op->kinds, 'G') != NULL) /* of -inf PyTorch's own differ */
                continue;
            for (int round = 0; round < (is_special ? 4 : k < 2 || k >= CHECK_DTYPES ? 24 : 8); ++round)
                try_elementwise(&b, op);
        }
        if (op != NULL && !is_special)
            check_bench_require_served(&b);
    }
    check_bench_skip_untried(b.tried);
}

/* Beyond 65,535 groups of 256, which is what many launches have at most in a dimension, and beyond what float counts to. */
#define LARGE_COUNT ((int64_t)17 * 1000 * 1000 + 1027)
#define SUMMED 100000

static check_bench bench;

/* Of element k of the tensor in a place. */
typedef double (*number_at)(int64_t k, int place);

static double
number_of(int64_t k, int place)
{
    return (double)((k * (2 * place + 3)) % 251 + 1) / 8;
}

/* A contiguous tensor of numbers of k, the place of an element, in memory of its own. Skips the check where the device
 * hasn't room for some of them. */
static void
lay_many(int place, openreg_dtype dtype, int64_t count, number_at number)
{
    check_bench *const b = &bench;
    check_tensor *const t = &b->places[place];
    const size_t size = dtype.bits / 8, bytes = (size_t)count * size;
    check_need(b->dev, check_total_memory(b->c, b->dev), 8 * (uint64_t)bytes);
    check_skip_if(check_within(b->c, b->dev, bytes) < bytes, "device %d has no %zu MiB in one piece", b->dev,
                  bytes >> 20);
    unsigned char *const host = check_host_alloc(b->c, bytes, false);
    for (int64_t k = 0; k < count; ++k)
        check_number_store(host + (size_t)k * size, dtype, number(k, place));
    t->memory = check_alloc(b->c, b->dev, bytes);
    check_write(b->c, b->dev, t->memory, host, bytes);
    check_host_free(b->c, host, false);
    check_bench_lay(b, place, 1, (const int64_t[]){1}, CONTIGUOUS, dtype); /* all is more than a place has room for */
    t->shape[0] = count;
}

/* Few ones: floats add them exactly, in any order. The last is the greatest. */
static double
few_number(int64_t k, int place)
{
    (void)place;
    return k == LARGE_COUNT - 1 ? 2 : k % 61 == 0;
}

/* Sums of which the types of 16 bits hold, but not while they are made: 0.5 is nothing beside 2048. */
static double
small_number(int64_t k, int place)
{
    (void)place;
    return (double)(k % 5) / 8 + 0.25;
}

/* A kernel by the element: compares at places all over the result, and at the end. */
static void
large_elements(const check_elementwise *op)
{
    enum { PART = 1024, PARTS = 97 };
    check_bench *const b = &bench;
    const openreg_dtype dtype = check_dtypes[0];
    float seen[PART];
    openreg_value arguments[4] = {{0}};
    const int count = (int)strlen(op->kinds);
    for (int k = 0; k < count; ++k)
        arguments[k] = op->kinds[k] == 'T' || op->kinds[k] == 'N'
                           ? (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[k].tensor}
                           : (openreg_value){.kind = OPENREG_VALUE_INT, .integer = 2, .real = 2};
    if (!check_bench_call(b, arguments, (uint64_t)count, op->names))
        return;
    for (int64_t part = 0; part < PARTS; ++part) {
        const int64_t first = part == PARTS - 1 ? LARGE_COUNT - PART : LARGE_COUNT / PARTS * part;
        check_read(b->c, b->dev, seen, b->places[CHECK_RESULT].memory + (size_t)first * sizeof(float), sizeof seen);
        for (int64_t k = first; k < first + PART; ++k) {
            double reals[4] = {0};
            for (int n = 0; n < count; ++n)
                reals[n] = arguments[n].tensor == NULL ? 2 : number_of(k, n);
            const double wanted = check_elementwise_real(op, reals);
            REQUIRE(check_is_close(seen[k - first], wanted, dtype), "%s, %s: element %lld of the result is %g, not %g",
                    b->kernel->name, b->text, (long long)k, (double)seen[k - first], wanted);
        }
    }
}

/* A sum, mean or maximum of the first tensor, whose numbers are those of `number`. */
static void
reduce_many(const check_reduction *op, number_at number, double tolerance)
{
    static const int64_t dims[] = {0};
    check_bench *const b = &bench;
    const check_tensor *const from = &b->places[0];
    openreg_value arguments[CHECK_VALUES] = {{0}};
    double sum = 0, most = 0;
    for (int i = 0; op->kinds[i] != '\0'; ++i)
        arguments[i] = op->kinds[i] == 'T' ? (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &from->tensor}
                       : op->kinds[i] == 'D'
                           ? (openreg_value){.kind = OPENREG_VALUE_INTS, .integers = dims, .count = 1}
                           : (openreg_value){.kind = op->kinds[i] == 'K' ? OPENREG_VALUE_BOOL : OPENREG_VALUE_NONE};
    for (int64_t k = 0; k < from->shape[0]; ++k) {
        sum += number(k, 0);
        most = fmax(most, number(k, 0));
    }
    const double wanted = op->kind == CHECK_SUM ? sum : op->kind == CHECK_MEAN ? sum / (double)from->shape[0] : most;
    check_bench_lay(b, CHECK_RESULT, 0, NULL, CONTIGUOUS, from->tensor.dtype);
    const bool is_served = check_bench_call(b, arguments, strlen(op->kinds), op->names);
    const double seen = check_number_load(b->places[CHECK_RESULT].host, from->tensor.dtype);
    REQUIRE(!is_served || fabs(seen - wanted) <= tolerance * wanted, "%s, %s: the result is %.9g, not %.9g",
            b->kernel->name, b->text, seen, wanted);
}

/* Each kernel that the reference has, by the element and of those reductions. */
static void
call_many(number_at number, double tolerance, bool has_elements)
{
    for (uint64_t i = 0; (bench.kernel = check_kernel_at(check_kernels(bench.c), i)) != NULL; ++i) {
        const check_elementwise *const op = has_elements ? check_elementwise_find(bench.kernel->name) : NULL;
        const check_reduction *const reduction = has_elements ? NULL : check_reduction_find(bench.kernel->name);
        if (op != NULL && !op->is_boolean && !op->is_whole && strpbrk(op->kinds, "MGOV") == NULL)
            large_elements(op);
        if (reduction != NULL &&
            (reduction->kind == CHECK_SUM || reduction->kind == CHECK_MEAN || reduction->kind == CHECK_MOST))
            reduce_many(reduction, number, tolerance);
    }
}

/* More elements than a launch of many vendors has, in float32. */
static void
large_tensors(check_context *c)
{
    const openreg_dtype dtype = check_dtypes[0];
    check_bench_set_up(&bench, c, check_kernel_device(c));
    for (int i = 0; i < 4; ++i)
        lay_many(i == 3 ? CHECK_RESULT : i, dtype, LARGE_COUNT, number_of);
    bench.places[CHECK_RESULT].used = 0;
    (void)snprintf(bench.text, sizeof bench.text, "float32 of %lld elements", (long long)LARGE_COUNT);
    call_many(NULL, 0, true);
    check_free(c, bench.dev, bench.places[0].memory);
    lay_many(0, dtype, LARGE_COUNT, few_number);
    call_many(few_number, 1e-6, false);
    check_bench_skip_untried(bench.tried);
}

/* Half of the last place of the result, and what float32 loses underway. */
static void
sums_are_exact(check_context *c)
{
    static const struct {
        openreg_dtype dtype;
        double tolerance;
        const char *name;
    } types[] = {{{OPENREG_DTYPE_FLOAT, 16, 1}, 1.0 / 2048 + 1e-4, "float16"},
                 {{OPENREG_DTYPE_BFLOAT, 16, 1}, 1.0 / 256 + 1e-4, "bfloat16"},
                 {{OPENREG_DTYPE_FLOAT, 32, 1}, 1e-4, "float32"}};
    check_bench_set_up(&bench, c, check_kernel_device(c));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
        lay_many(0, types[i].dtype, SUMMED, small_number);
        (void)snprintf(bench.text, sizeof bench.text, "%s of %d elements", types[i].name, SUMMED);
        call_many(small_number, types[i].tolerance, false);
    }
    check_bench_skip_untried(bench.tried);
}

/* Three elements, a little more than `step` bytes from one to the next: in the first argument, or in the result. */
static void
call_wide(char *memory, int64_t step, const check_elementwise *op, bool is_result)
{
    static const int64_t shape[] = {3};
    check_bench *const b = &bench;
    check_tensor *const result = &b->places[CHECK_RESULT], *const far = is_result ? result : &b->places[0];
    openreg_value arguments[4] = {{0}};
    int places[4] = {-1, -1, -1, -1};
    const int count = (int)strlen(op->kinds);
    check_bench_lay(b, CHECK_RESULT, 1, shape, CONTIGUOUS, op->is_boolean ? boolean : b->dtype);
    for (int k = 0; k < count; ++k)
        if (op->kinds[k] == 'T' || op->kinds[k] == 'N') {
            check_bench_lay(b, k, 1, shape, CONTIGUOUS, b->dtype);
            check_bench_fill(b, k, op->is_positive, false);
            places[k] = k;
            arguments[k] = (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &b->places[k].tensor};
        } else {
            arguments[k] = (openreg_value){.kind = OPENREG_VALUE_INT, .integer = 2, .real = 2};
        }
    const check_tensor near = *far;
    const int64_t size = far->tensor.dtype.bits / 8, stride = step / size + 1;
    far->tensor.data = memory;
    far->strides[0] = stride;
    far->used = is_result ? 0 : far->used;
    for (int64_t i = 0; i < 3 && !is_result; ++i)
        check_write(b->c, b->dev, memory + i * stride * size, far->host + i * size, (size_t)size);
    check_bench_describe(b, 1, is_result ? ", of which the result has such strides" : "");
    const bool is_served = check_bench_call(b, arguments, (uint64_t)count, op->names);
    *far = near;
    for (int64_t i = 0; i < 3 && is_result && is_served; ++i)
        check_read(b->c, b->dev, far->host + i * size, memory + i * stride * size, (size_t)size);
    if (is_served)
        expect_elements(b, op, places, (double[]){2, 2, 2, 2}, (int64_t[]){2, 2, 2, 2});
}

static void
offsets_are_wide(check_context *c)
{
    const openreg_dtype dtypes[] = {check_dtypes[0], narrow_dtypes[0], check_dtypes[1]};
    /* Where there is room, counts of float32 elements too are of more than 31 bits. */
    const int64_t step = check_total_memory(c, 0) < UINT64_C(10) << 30 ? INT64_C(1) << 31 : INT64_C(1) << 32;
    char *const memory = check_alloc_wide(c, 2 * (uint64_t)step + 4096, 0);
    check_bench_set_up(&bench, c, 0);
    for (uint64_t i = 0; (bench.kernel = check_kernel_at(check_kernels(c), i / 6)) != NULL; ++i) {
        bench.dtype = dtypes[i % 3];
        const check_elementwise *const op = check_elementwise_find(bench.kernel->name);
        if (op != NULL && strpbrk(op->kinds, "MGOV") == NULL &&
            !(check_is_float(bench.dtype) ? op->is_whole : op->is_real))
            call_wide(memory, step, op, i % 2 != 0);
    }
    check_bench_skip_untried(bench.tried);
}

static const check_case cases[] = {
    {"kernel.shapes", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: tensors of any number of dimensions, sizes and strides, arguments that broadcast, and numbers as wide "
     "as their type.",
     "Refuse more dimensions than the kernel has room for; int64 numbers don't fit into int, float or double.",
     elements_are_right},
    {"kernel.special", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: NaN, infinities, zeros of both signs and numbers below the normal ones, in tensors and as arguments, "
     "give what PyTorch's kernels give; the last may count as 0.",
     "maximum, minimum, clamp and relu keep NaN: a > b ? a : b does not; fmax() and fmin() drop it.",
     elements_are_right},
    {"kernel.large", "extension", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: tensors of 17 million elements, by the element and in reductions.",
     "A launch has a largest number of groups, often 65,535: repeat it, or let each work item do more.", large_tensors},
    {"kernel.wide", "extension", CHECK_KERNELS, "kernels.h: offsets are of 64 bits: strides of more than 2 GiB.",
     "int in a kernel's source is of 32 bits: compute an element's address in 64, or refuse such strides.",
     offsets_are_wide},
    {"kernel.sums", "extension", CHECK_KERNELS,
     "kernels.h: a kernel computes what PyTorch's does: sums of 100,000 numbers of 16 bits are made in float32.",
     "The sum's type isn't the tensor's: above 2048, half has no odd numbers.", sums_are_exact},
};
const check_group check_kernel_shape_group = CHECK_GROUP(2, cases);
