/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_checks.c: the extension openreg.kernels, against a reference in C (kernel_reference.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_bench.h"
#include "work.h"

static void
table_is_sound(check_context *c)
{
    const openreg_kernels *const kernels = check_kernels(c);
    REQUIRE(kernels->struct_size >= OPENREG_KERNELS_SIZE_1 && kernels->kernel_size >= OPENREG_KERNEL_SIZE_1,
            "the table of kernels has %u bytes, and an entry %u", (unsigned)kernels->struct_size,
            (unsigned)kernels->kernel_size);
    REQUIRE(kernels->version >= 1, "the table of kernels has version %u", (unsigned)kernels->version);
    REQUIRE(kernels->count == 0 || kernels->list != NULL, "the table of kernels has no list");
    for (uint64_t i = 0; i < kernels->count; ++i) {
        const openreg_kernel *const kernel = check_kernel_at(kernels, i);
        REQUIRE(kernel->name != NULL && strstr(kernel->name, "::") != NULL,
                "kernel %llu is named \"%.60s\", without a namespace", (unsigned long long)i,
                kernel->name != NULL ? kernel->name : "");
        REQUIRE(kernel->run != NULL, "%s has no function", kernel->name);
        REQUIRE((kernel->flags & ~OPENREG_KERNEL_ELEMENTWISE) == 0, "%s has the unknown flags 0x%llx", kernel->name,
                (unsigned long long)kernel->flags);
        const size_t length = strlen(kernel->name);
        REQUIRE(kernel->schema == NULL ||
                    (strncmp(kernel->schema, kernel->name, length) == 0 && kernel->schema[length] == '('),
                "%s has the schema of another operator: %.80s", kernel->name, kernel->schema);
        for (uint64_t k = 0; k < i; ++k)
            REQUIRE(strcmp(check_kernel_at(kernels, k)->name, kernel->name) != 0, "%s is in the list twice",
                    kernel->name);
    }
    REQUIRE(check_kernels(c) == kernels, "extension() gave another table of kernels when it was asked again");
}

/* -------------------------------------------------------------------------------------------------------------- tensors */

#define DIMENSIONS 4
#define ROOM 4096 /* bytes of a tensor's memory, of which it uses a part */
#define UNTOUCHED 0xc3

/* A tensor of the device, and its memory as the host has it. */
typedef struct operand {
    openreg_tensor tensor;
    int64_t shape[DIMENSIONS], strides[DIMENSIONS];
    size_t offset; /* of the first element, in elements */
    char *memory;
    unsigned char *host;
} operand;

typedef struct layout {
    const char *name;
    int32_t ndim;
    int64_t shape[DIMENSIONS], strides[DIMENSIONS];
    size_t offset;
} layout;

static const layout contiguous = {"contiguous", 2, {5, 7}, {7, 1}, 0};
static const layout layouts[] = {
    {"transposed", 2, {5, 7}, {1, 5}, 0},           {"every second column", 2, {5, 7}, {20, 2}, 3},
    {"one row, expanded", 2, {5, 7}, {0, 1}, 2},    {"one number, expanded", 2, {5, 7}, {0, 0}, 9},
    {"one column, expanded", 2, {5, 7}, {3, 0}, 1},
};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])

static void
make_operand(check_context *c, operand *o, const layout *wanted, openreg_dtype dtype)
{
    memset(o, 0, sizeof *o);
    memcpy(o->shape, wanted->shape, sizeof o->shape);
    memcpy(o->strides, wanted->strides, sizeof o->strides);
    o->offset = wanted->offset;
    o->memory = check_alloc(c, 0, ROOM);
    o->host = check_host_alloc(c, ROOM, false);
    memset(o->host, UNTOUCHED, ROOM);
    o->tensor = (openreg_tensor){.data = o->memory + o->offset * (dtype.bits / 8),
                                 .device_type = OPENREG_TENSOR_DEVICE_TYPE,
                                 .ndim = wanted->ndim,
                                 .dtype = dtype,
                                 .shape = wanted->ndim == 0 ? NULL : o->shape,
                                 .strides = wanted->ndim == 0 ? NULL : o->strides};
}

static void *
element(const operand *o, int64_t i)
{
    int64_t at = (int64_t)o->offset;
    for (int32_t d = o->tensor.ndim - 1; d >= 0; --d) {
        at += i % o->shape[d] * o->strides[d];
        i /= o->shape[d];
    }
    return o->host + at * (o->tensor.dtype.bits / 8);
}

static void
fill_operand(check_context *c, operand *o)
{
    const int64_t count = openreg_element_count(&o->tensor);
    for (int64_t i = 0; i < count; ++i) /* small whole numbers and a half: exact in every type, never 0 */
        check_number_store(element(o, i), o->tensor.dtype, (double)(int64_t)check_random_below(c, 9) - 4.5);
    check_write(c, 0, o->memory, o->host, ROOM);
}

static openreg_value
value_of(const operand *o)
{
    return (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &o->tensor};
}

static void
free_operand(check_context *c, operand *o)
{
    check_free(c, 0, o->memory);
    free(o->host);
}

/* --------------------------------------------------------------------------------------------------------------- calls */

/* Scratch memory that a kernel took; it goes back when the stream has passed the call. */
typedef struct lent {
    check_context *c;
    char *blocks[16];
    int count;
} lent;

static void *
lend(const openreg_kernel_call *call, uint64_t size)
{
    lent *const scratch = call->scratch;
    if (scratch->count == 16)
        return NULL;
    const size_t bytes = size == 0 ? 1 : (size_t)size;
    char *const block = check_alloc(scratch->c, 0, bytes);
    unsigned char *const undefined = check_host_alloc(scratch->c, bytes, false);
    memset(undefined, UNTOUCHED, bytes);
    check_write(scratch->c, 0, block, undefined, bytes);
    free(undefined);
    check_begin_call(call->name); /* the kernel goes on */
    return scratch->blocks[scratch->count++] = block;
}

/* Runs a kernel on a stream and compares. False if it refuses; then the result must be untouched. */
static bool
call_and_compare(check_context *c, const openreg_kernel *kernel, const check_operator *known, operand *result,
                 operand *const *operands, const char *how, openreg_driver_stream stream)
{
    double wanted[64], numbers[64][2];
    openreg_value arguments[3], results[1] = {value_of(result)};
    uint64_t count = 0;
    memset(arguments, 0, sizeof arguments);
    for (int i = 0; i < known->operands; ++i)
        arguments[count++] = value_of(operands[i]);
    if (known->has_alpha)
        arguments[count++] = (openreg_value){.kind = OPENREG_VALUE_INT, .integer = 2, .real = 2};
    const int64_t elements = openreg_element_count(&result->tensor);
    for (int64_t i = 0; i < elements; ++i) {
        for (int k = 0; k < known->operands && !known->is_product; ++k)
            numbers[i][k] = check_number_load(element(operands[k], i), operands[k]->tensor.dtype);
        if (!known->is_product)
            wanted[i] = check_operator_apply(known, numbers[i]);
    }
    if (known->is_product)
        for (int64_t i = 0; i < elements; ++i) {
            const int64_t columns = result->shape[1], inner = operands[0]->shape[1];
            wanted[i] = 0;
            for (int64_t k = 0; k < inner; ++k)
                wanted[i] +=
                    check_number_load(element(operands[0], i / columns * inner + k), operands[0]->tensor.dtype) *
                    check_number_load(element(operands[1], k * columns + i % columns), operands[1]->tensor.dtype);
        }
    static const char *const names_of_one[] = {"self", "other", "alpha"}, *const names_of_product[] = {"self", "mat2"};
    lent scratch = {.c = c};
    const openreg_kernel_call call = {.struct_size = sizeof call,
                                      .dev = 0,
                                      .stream = stream,
                                      .kernel = kernel,
                                      .name = kernel->name,
                                      .arguments = arguments,
                                      .argument_count = count,
                                      .results = results,
                                      .result_count = 1,
                                      .argument_names = known->is_product ? names_of_product : names_of_one,
                                      .workspace = lend,
                                      .scratch = &scratch};
    unsigned char *const before = malloc(ROOM), *const after = malloc(ROOM);
    memcpy(before, result->host, ROOM);
    check_begin_call(kernel->name);
    const openreg_status status = kernel->run(c->instance, &call);
    const bool is_refused = status == OPENREG_E_UNSUPPORTED; /* set_error() is optional then */
    if (!is_refused)
        check_succeeded(kernel->name, status);
    check_sync(c, 0, stream);
    while (scratch.count > 0)
        check_free(c, 0, scratch.blocks[--scratch.count]);
    check_read(c, 0, after, result->memory, ROOM);
    if (is_refused) {
        REQUIRE(memcmp(before, after, ROOM) == 0, "%s, %s: it refused, and has written to its result", kernel->name,
                how);
    } else {
        memcpy(result->host, after, ROOM);
        for (int64_t i = 0; i < elements; ++i) {
            unsigned char *const at = element(result, i);
            const double seen = check_number_load(at, result->tensor.dtype);
            REQUIRE(check_is_close(seen, wanted[i], result->tensor.dtype),
                    "%s, %s%u, %s: element %lld of the result is %g, not %g", kernel->name,
                    result->tensor.dtype.code == OPENREG_DTYPE_FLOAT ? "float" : "int",
                    (unsigned)result->tensor.dtype.bits, how, (long long)i, seen, wanted[i]);
            memcpy(at, before + (at - result->host), result->tensor.dtype.bits / 8);
        }
        REQUIRE(memcmp(before, result->host, ROOM) == 0, "%s, %s: it has written beside its result's elements",
                kernel->name, how);
    }
    free(before);
    free(after);
    return !is_refused;
}

typedef bool (*attempt)(check_context *c, const openreg_kernel *kernel, const check_operator *known,
                        openreg_dtype dtype);

/* Every kernel that the reference knows, with every type. */
static void
attempt_all(check_context *c, attempt call, const char *what)
{
    const openreg_kernels *const kernels = check_kernels(c);
    int served = 0, known_ones = 0;
    for (uint64_t i = 0; i < kernels->count; ++i) {
        const openreg_kernel *const kernel = check_kernel_at(kernels, i);
        const check_operator *const known = check_operator_find(kernel->name);
        if (known == NULL)
            continue;
        ++known_ones;
        for (size_t k = 0; k < CHECK_DTYPES; ++k)
            if ((!known->is_real || check_dtypes[k].code == OPENREG_DTYPE_FLOAT) &&
                call(c, kernel, known, check_dtypes[k]))
                ++served;
    }
    if (known_ones == 0)
        check_skip("the reference has none of the driver's kernels");
    if (served == 0)
        check_skip("the driver's kernels refuse every call %s", what);
}

static bool
call_with(check_context *c, const openreg_kernel *kernel, const check_operator *known, openreg_dtype dtype,
          const layout *first, const layout *second, const layout *of_result, const char *how,
          openreg_driver_stream stream)
{
    operand operands[2], result;
    operand *const all[2] = {&operands[0], &operands[1]};
    make_operand(c, &operands[0], first, dtype);
    make_operand(c, &operands[1], second, dtype);
    make_operand(c, &result, of_result, dtype);
    fill_operand(c, &operands[0]);
    fill_operand(c, &operands[1]);
    check_write(c, 0, result.memory, result.host, ROOM);
    const bool is_served = call_and_compare(c, kernel, known, &result, all, how, stream);
    free_operand(c, &operands[0]);
    free_operand(c, &operands[1]);
    free_operand(c, &result);
    return is_served;
}

static const layout left = {"", 2, {4, 6}, {6, 1}, 0}, right = {"", 2, {6, 5}, {5, 1}, 0},
                    product = {"", 2, {4, 5}, {5, 1}, 0}, right_transposed = {"", 2, {6, 5}, {1, 6}, 4},
                    left_wide = {"", 2, {4, 6}, {13, 2}, 1}, number = {"", 0, {0}, {0}, 3},
                    longer = {"", 4, {2, 1, 3, 4}, {12, 12, 4, 1}, 0};

static bool
plain(check_context *c, const openreg_kernel *kernel, const check_operator *known, openreg_dtype dtype)
{
    if (known->is_product)
        return call_with(c, kernel, known, dtype, &left, &right, &product, "contiguous", NULL);
    const bool is_served = call_with(c, kernel, known, dtype, &contiguous, &contiguous, &contiguous, "contiguous",
                                     NULL);
    (void)call_with(c, kernel, known, dtype, &longer, &longer, &longer, "four dimensions", NULL);
    (void)call_with(c, kernel, known, dtype, &number, &number, &number, "no dimensions", check_stream(c, 0));
    return is_served;
}

static void
values_are_right(check_context *c)
{
    attempt_all(c, plain, "with contiguous tensors");
}

static bool
strided(check_context *c, const openreg_kernel *kernel, const check_operator *known, openreg_dtype dtype)
{
    bool is_served = false;
    if (known->is_product) {
        is_served |= call_with(c, kernel, known, dtype, &left, &right_transposed, &product, "with a transposed operand",
                               NULL);
        is_served |= call_with(c, kernel, known, dtype, &left_wide, &right, &product, "with every second column", NULL);
        return is_served;
    }
    for (size_t i = 0; i < LAYOUTS; ++i) {
        is_served |= call_with(c, kernel, known, dtype, &layouts[i], &contiguous, &contiguous, layouts[i].name, NULL);
        if (known->operands == 2)
            is_served |= call_with(c, kernel, known, dtype, &contiguous, &layouts[i], &contiguous, layouts[i].name,
                                   NULL);
    }
    is_served |= call_with(c, kernel, known, dtype, &contiguous, &contiguous, &layouts[0], "a transposed result", NULL);
    is_served |= call_with(c, kernel, known, dtype, &contiguous, &contiguous, &layouts[1],
                           "every second column of a result", NULL);
    return is_served;
}

static void
strides_are_respected(check_context *c)
{
    attempt_all(c, strided, "with strides");
}

static bool
in_place(check_context *c, const openreg_kernel *kernel, const check_operator *known, openreg_dtype dtype)
{
    if ((kernel->flags & OPENREG_KERNEL_ELEMENTWISE) == 0 || known->is_product)
        return false;
    bool is_served = false;
    for (int i = 0; i < known->operands; ++i) {
        operand both, other;
        operand *const all[2] = {i == 0 ? &both : &other, i == 0 ? &other : &both};
        make_operand(c, &both, i == 0 ? &contiguous : &layouts[0], dtype);
        make_operand(c, &other, &contiguous, dtype);
        fill_operand(c, &both);
        fill_operand(c, &other);
        is_served |= call_and_compare(c, kernel, known, &both, all, "in place", NULL);
        free_operand(c, &both);
        free_operand(c, &other);
    }
    return is_served;
}

static void
aliases_are_allowed(check_context *c)
{
    attempt_all(c, in_place, "in place");
}

/* A type that no kernel can know. */
static bool
of_no_type(check_context *c, const openreg_kernel *kernel, const check_operator *known, openreg_dtype dtype)
{
    if (dtype.bits != 64 || dtype.code != OPENREG_DTYPE_INT)
        return false;
    const openreg_dtype none = {99, 64, 1};
    const bool is_served = call_with(c, kernel, known, none, known->is_product ? &left : &contiguous,
                                     known->is_product ? &right : &contiguous,
                                     known->is_product ? &product : &contiguous, "a type of code 99", NULL);
    REQUIRE(!is_served, "%s took tensors of the unknown type with code 99", kernel->name);
    return true;
}

static void
unknown_types_are_refused(check_context *c)
{
    attempt_all(c, of_no_type, "");
}

/* What it reads is written earlier on its stream, and what reads its result is behind it there. */
static bool
in_order(check_context *c, const openreg_kernel *kernel, const check_operator *known, openreg_dtype dtype)
{
    openreg_driver_stream const stream = check_stream(c, 0);
    operand operands[2], result;
    operand *const all[2] = {&operands[0], &operands[1]};
    make_operand(c, &operands[0], known->is_product ? &left : &contiguous, dtype);
    make_operand(c, &operands[1], known->is_product ? &right : &contiguous, dtype);
    make_operand(c, &result, known->is_product ? &product : &contiguous, dtype);
    fill_operand(c, &operands[0]);
    fill_operand(c, &operands[1]);
    check_write(c, 0, result.memory, result.host, ROOM);
    /* The operands are wrong until a copy that comes late. */
    unsigned char *const late = check_host_alloc(c, ROOM, true);
    unsigned char *const wrong = check_host_alloc(c, ROOM, true);
    memcpy(late, operands[0].host, ROOM);
    memset(wrong, 0, ROOM);
    check_write(c, 0, operands[0].memory, wrong, ROOM);
    check_delay(c, 0, stream, 10);
    MUST(c, copy, c->instance, operands[0].memory, 0, late, -1, ROOM, 0, stream);
    const bool is_served = call_and_compare(c, kernel, known, &result, all, "behind a copy on its stream", stream);
    free_operand(c, &operands[0]);
    free_operand(c, &operands[1]);
    free_operand(c, &result);
    return is_served;
}

static void
streams_are_respected(check_context *c)
{
    attempt_all(c, in_order, "");
}

static const check_case cases[] = {
    {"kernel.table", "extension", CHECK_KERNELS,
     "kernels.h: names are \"namespace::operator\", each once; every entry has a function, known flags alone, and the "
     "schema of its own operator or none.",
     "kernel_size is sizeof(openreg_kernel), the distance of two entries.", table_is_sound},
    {"kernel.values", "extension", CHECK_KERNELS, "kernels.h: a kernel computes what the operator of its name does.",
     "Compared with a reference in C: floating point to 1e-5 (float64: 1e-12) of the value, integers exactly.",
     values_are_right},
    {"kernel.strides", "extension", CHECK_KERNELS,
     "kernels.h: strides count elements, may be 0 (an expanded dimension), and are those of each tensor.",
     "Refuse layouts that the kernel does not know: OPENREG_E_UNSUPPORTED before anything is written.",
     strides_are_respected},
    {"kernel.in_place", "extension", CHECK_KERNELS,
     "kernels.h: with OPENREG_KERNEL_ELEMENTWISE an argument may be the memory of a result, at the same elements.",
     "Leave the flag out if the kernel reads an element after it wrote another.", aliases_are_allowed},
    {"kernel.types", "extension", CHECK_KERNELS,
     "kernels.h: OPENREG_E_UNSUPPORTED for types that the kernel does not know, with nothing written.",
     "Compare code, bits and lanes: openreg_has_dtype().", unknown_types_are_refused},
    {"kernel.stream", "extension", CHECK_KERNELS, "kernels.h: a kernel queues its work on the call's stream, in order.",
     "Also where that is NULL, the default stream.", streams_are_respected},
};
const check_group check_kernel_group = CHECK_GROUP(2, cases);
