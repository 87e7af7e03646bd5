/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_checks.c: the extension openreg.kernels, against a reference in C (layer_bench.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"
#include "layer_bench.h"

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
    REQUIRE(check_kernels(c) == kernels, "extension() gave another table of kernels when it was called again");
}

/* --------------------------------------------------------------------------------------------------------------- calls */

static check_layer layer;

/* Whether the reference has results of the operator in that type: of elements and products. */
static bool
has_results(const char *name, openreg_dtype dtype)
{
    const check_elementwise *const op = check_elementwise_find(name);
    return op == NULL ? check_product_find(name) != NULL : check_is_float(dtype) ? !op->is_whole : !op->is_real;
}

/* Builds some calls of each kernel in each type. `call` makes the one that was built, and returns whether the kernel has
 * served it. */
static void
call_all(check_context *c, int32_t dev, int layout, int rounds, bool (*call)(void), const char *what)
{
    const openreg_kernels *const kernels = check_kernels(c);
    int served = 0, known = 0;
    check_layer_set_up(&layer, c, dev);
    layer.layout = layout;
    for (uint64_t i = 0; i < kernels->count; ++i)
        for (int k = 0; k < CHECK_DTYPES * rounds; ++k) {
            const openreg_kernel *const kernel = check_kernel_at(kernels, i);
            const openreg_dtype dtype = check_dtypes[k % CHECK_DTYPES];
            if (!has_results(kernel->name, dtype))
                continue;
            ++known;
            if (check_layer_begin(&layer, kernel, dtype, check_layer_find(kernel->name)))
                served += call();
        }
    check_bench_skip_untried(known);
    if (served == 0)
        check_skip("the driver's kernels refuse every call %s", what);
}

static bool
call_as_built(void)
{
    return check_layer_call(&layer);
}

static void
values_are_right(check_context *c)
{
    const int32_t last = c->devices - 1;
    for (int32_t dev = 0; dev <= last; dev = dev < 3 ? dev + 1 : dev < last ? last : last + 1)
        call_all(c, dev, CHECK_CONTIGUOUS, dev == last ? 4 : 1, call_as_built, "with contiguous tensors");
}

static void
strides_are_respected(check_context *c)
{
    call_all(c, c->devices - 1, CHECK_STRIDED, 8, call_as_built, "with strides");
}

/* The result is the memory of one of the arguments. */
static bool
call_in_place(void)
{
    const int result = layer.inputs, into = (int)check_bench_below(&layer.b, layer.inputs);
    const check_tensor *const places = layer.b.places;
    if ((layer.b.kernel->flags & OPENREG_KERNEL_ELEMENTWISE) == 0 ||
        memcmp(&places[into].tensor.dtype, &places[result].tensor.dtype, sizeof(openreg_dtype)) != 0)
        return false;
    layer.results[0].tensor = &places[into].tensor;
    layer.wanted[into] = layer.wanted[result];
    layer.wanted[result] = NULL;
    layer.tensors = layer.inputs;
    (void)strncat(layer.b.text, ", in place", sizeof layer.b.text - strlen(layer.b.text) - 1);
    return check_layer_call(&layer);
}

static void
aliases_are_allowed(check_context *c)
{
    call_all(c, c->devices - 1, CHECK_MIXED, 4, call_in_place, "in place");
}

/* The first argument is wrong until a copy that comes late on the stream of the call. */
static bool
call_behind_copy(void)
{
    check_context *const c = layer.b.c;
    const check_tensor *const first = &layer.b.places[0];
    unsigned char *const late = check_host_alloc(c, first->used, true);
    if (layer.b.stream == NULL)
        layer.b.stream = check_stream(c, layer.b.dev);
    check_layer_write(&layer);
    memcpy(late, first->host, first->used);
    memset(layer.b.before, 0, first->used);
    check_write(c, layer.b.dev, first->memory, layer.b.before, first->used);
    check_delay(c, layer.b.dev, layer.b.stream, 10);
    MUST(c, copy, c->instance, layer.b.dev, layer.b.stream, first->memory, layer.b.dev, late, -1, first->used);
    const bool is_served = check_layer_end(&layer, check_layer_repeat(&layer));
    check_host_free(c, late, true);
    return is_served;
}

static void
streams_are_respected(check_context *c)
{
    call_all(c, c->devices - 1, CHECK_CONTIGUOUS, 1, call_behind_copy, "behind a copy on their stream");
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
    {"kernel.stream", "extension", CHECK_KERNELS, "kernels.h: a kernel queues its work on the call's stream, in order.",
     "Also where that is NULL, the default stream.", streams_are_respected},
};
const check_group check_kernel_group = CHECK_GROUP(2, cases);
