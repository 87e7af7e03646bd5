/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_checks.c: the extension openreg.kernels, against a reference in C (layer_bench.h); kernels that are called again
 * and again, which leaves nothing behind, and in several threads and on several streams at once. */
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

static check_layer layer;

/* The result is the memory of one of the arguments. */
static bool
call_in_place(check_layer *l)
{
    const int result = l->inputs, into = (int)check_bench_below(&l->b, l->inputs);
    const check_tensor *const places = l->b.places;
    if ((l->b.kernel->flags & OPENREG_KERNEL_ELEMENTWISE) == 0 ||
        memcmp(&places[into].tensor.dtype, &places[result].tensor.dtype, sizeof(openreg_dtype)) != 0)
        return false;
    l->results[0].tensor = &places[into].tensor;
    l->wanted[into] = l->wanted[result];
    l->wanted[result] = NULL;
    l->tensors = l->inputs;
    check_append(l->b.text, sizeof l->b.text, ", in place");
    return check_layer_call(l);
}

/* The first argument is wrong until a copy that comes late on the stream of the call. */
static bool
call_behind_copy(check_layer *l)
{
    check_context *const c = l->b.c;
    const check_tensor *const first = &l->b.places[0];
    unsigned char *const late = check_host_alloc(c, first->used, true);
    if (l->b.stream == NULL)
        l->b.stream = check_stream(c, l->b.dev);
    check_layer_write(l);
    memcpy(late, first->host, first->used);
    memset(l->b.before, 0, first->used);
    check_write(c, l->b.dev, first->memory, l->b.before, first->used);
    check_delay(c, l->b.dev, l->b.stream, 10);
    MUST(c, copy, c->instance, l->b.dev, l->b.stream, first->memory, l->b.dev, late, -1, first->used);
    const bool is_served = check_layer_end(l, check_layer_repeat(l));
    check_host_free(c, late, true);
    return is_served;
}

/* Builds some calls of each kernel in each type. `call` makes the one that was built, and returns whether the kernel has
 * served it. Returns how many were. */
static int
call_all(check_context *c, int32_t dev, int layout, int rounds, bool (*call)(check_layer *l))
{
    const openreg_kernel *kernel;
    int served = 0, known = 0;
    check_layer_set_up(&layer, c, dev);
    layer.layout = layout;
    for (uint64_t i = 0; (kernel = check_kernel_at(check_kernels(c), i)) != NULL; ++i)
        for (int k = 0; k < CHECK_DTYPES * rounds; ++k) {
            const openreg_dtype dtype = check_dtypes[k % CHECK_DTYPES];
            const check_elementwise *const op = check_elementwise_find(kernel->name);
            if (op == NULL ? !check_layer_is_product(kernel->name)
                           : (check_is_float(dtype) ? op->is_whole : op->is_real))
                continue; /* the reference has no results of that type */
            ++known;
            if (check_layer_begin(&layer, kernel, dtype))
                served += call(&layer);
        }
    check_bench_skip_untried(known);
    return served;
}

/* How many calls are built of each kernel in each type, and how they are made. */
static const struct {
    const char *check;
    int layout, rounds;
    bool (*call)(check_layer *l);
    const char *what;
} ways[] = {{"kernel.values", CHECK_CONTIGUOUS, 4, check_layer_call, "with contiguous tensors"},
            {"kernel.strides", CHECK_STRIDED, 8, check_layer_call, "with strides"},
            {"kernel.in_place", CHECK_MIXED, 4, call_in_place, "in place"},
            {"kernel.stream", CHECK_CONTIGUOUS, 1, call_behind_copy, "behind a copy on their stream"}};

/* The values also on the devices before, with fewer calls. */
static void
calls_are_right(check_context *c)
{
    const int32_t last = check_kernel_device(c);
    size_t i = 0;
    while (strcmp(ways[i].check, c->check->name) != 0)
        ++i;
    for (int32_t dev = 0; i == 0 && dev < last && dev <= 3; ++dev)
        (void)call_all(c, dev, ways[0].layout, 1, ways[0].call);
    check_skip_if(call_all(c, last, ways[i].layout, ways[i].rounds, ways[i].call) == 0,
                  "the driver's kernels refuse every call %s", ways[i].what);
}

static void
once(check_context *c, int i)
{
    (void)check_layer_repeat(&layer);
    if (i % 16 == 0)
        check_sync(c, layer.b.dev, NULL);
}

/* Of one round below: a driver that compiles its kernels at each open() would take minutes for a slope. */
#define ANEW_SECONDS 0.25

/* What a kernel keeps from its first call on goes with the instance. The same calls in each round. */
static void
all_anew(check_context *c, int i)
{
    (void)i;
    check_layer_take_down(&layer);
    check_close(c);
    check_open(c);
    const openreg_kernel *kernel;
    check_layer_set_up(&layer, c, check_kernel_device(c));
    c->random = 1;
    for (uint64_t k = 0; (kernel = check_kernel_at(check_kernels(c), k)) != NULL; ++k)
        for (int n = 0; n < 3; ++n) /* of types and sizes, of which it serves some */
            if (check_layer_begin(&layer, kernel, check_dtypes[n % 2])) {
                check_layer_write(&layer);
                (void)check_layer_repeat(&layer);
                check_sync(c, layer.b.dev, NULL);
            }
}

/* One call each that the kernel serves, again and again. */
static void
kernels_leave_nothing(check_context *c)
{
    const openreg_kernel *kernel;
    char what[100];
    int counted = 0;
    check_layer_set_up(&layer, c, check_kernel_device(c));
    for (uint64_t i = 0; (kernel = check_kernel_at(check_kernels(c), i)) != NULL; ++i) {
        if (!check_layer_serve(&layer, kernel))
            continue;
        (void)snprintf(what, sizeof what, "a call of %s", kernel->name);
        check_slope(c, 120, 12, once, what);
        check_sync(c, layer.b.dev, NULL);
        ++counted;
    }
    check_bench_skip_untried(counted);
    const double begin = check_now();
    all_anew(c, 0);
    if (check_now() - begin < ANEW_SECONDS)
        check_slope(c, 60, 48, all_anew, "close(), open() and a call of each kernel");
}

#define THREADS 4

typedef struct caller {
    check_context c; /* with random numbers of its own */
    uint64_t first;  /* the kernel that all begin with */
    int made;
} caller;

static void *
call_in_thread(void *argument)
{
    caller *const self = argument;
    check_layer *const l = malloc(sizeof *l);
    const openreg_kernels *const kernels = check_kernels(&self->c);
    const double end = check_now() + 0.5 + self->c.target->seconds;
    check_layer_set_up(l, &self->c, check_kernel_device(&self->c));
    for (uint64_t i = 0; i < 4 || (i < 100 * kernels->count && check_now() < end); ++i) {
        const openreg_kernel *const kernel = check_kernel_at(kernels, (self->first + i) % kernels->count);
        for (int again = 0; again < 4; ++again)
            if (check_layer_begin(l, kernel, check_dtypes[0]))
                self->made += check_layer_call(l);
    }
    return NULL;
}

static void
threads_call_at_once(check_context *c)
{
    static caller callers[THREADS];
    const uint64_t first = check_random(c) >> 32;
    int made = 0;
    check_skip_if(check_kernels(c)->count == 0, "the driver has no kernels");
    const int32_t dev = check_kernel_device(c);
    check_need(dev, check_total_memory(c, dev), THREADS * CHECK_BENCH_BYTES);
    for (int i = 0; i < THREADS; ++i) {
        callers[i].c = *c;
        callers[i].c.random = check_random(c);
        callers[i].first = first;
    }
    check_run_threads(call_in_thread, callers, sizeof callers[0], THREADS);
    for (int i = 0; i < THREADS; ++i)
        made += callers[i].made;
    check_bench_skip_untried(made);
}

/* Two calls of each kernel at once, each on a stream of its own. */
static void
streams_call_at_once(check_context *c)
{
    static check_layer both[2];
    const openreg_kernel *kernel;
    int made = 0;
    const int32_t dev = check_kernel_device(c);
    check_need(dev, check_total_memory(c, dev), 2 * CHECK_BENCH_BYTES);
    for (int i = 0; i < 2; ++i) {
        check_layer_set_up(&both[i], c, dev);
        both[i].b.stream = check_stream(c, dev);
    }
    for (uint64_t i = 0; (kernel = check_kernel_at(check_kernels(c), i)) != NULL; ++i) {
        for (int round = 0; round < 4; ++round) {
            openreg_status statuses[2];
            if (!check_layer_begin(&both[0], kernel, check_dtypes[0]) ||
                !check_layer_begin(&both[1], kernel, check_dtypes[0]))
                continue;
            for (int k = 0; k < 2; ++k)
                check_layer_write(&both[k]);
            for (int k = 0; k < 2; ++k)
                statuses[k] = check_layer_repeat(&both[k]);
            for (int k = 0; k < 2; ++k)
                made += check_layer_end(&both[k], statuses[k]);
        }
    }
    check_bench_skip_untried(made);
}

/* What only moves elements may take any of their size. */
static bool
moves_alone(const char *name)
{
    static const char *const all[] = {"aten::where", "aten::masked_fill", "aten::embedding", "aten::cat",
                                      "aten::stack", "aten::copy_",       "aten::fill_",     "aten::zero_",
                                      "aten::tril",  "aten::triu"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        if (strncmp(name, all[i], strlen(all[i])) == 0)
            return true;
    return false;
}

/* Where PyTorch's own kernels raise an error if one tensor's type is another. */
static bool
has_one_type(const char *name)
{
    return check_layer_is_product(name) || strcmp(name, "aten::convolution") == 0;
}

/* Of every tensor that has the call's type, that is one that nobody can know; or, in products, of one of them another one
 * of its size; or that of each argument with a type of its own, as indices and masks have. */
static void
unknown_types_are_refused(check_context *c)
{
    const openreg_kernel *kernel;
    int tried = 0;
    check_layer_set_up(&layer, c, check_kernel_device(c));
    for (uint64_t i = 0; (kernel = check_kernel_at(check_kernels(c), i)) != NULL; ++i) {
        for (int round = 0; round < 10; ++round) {
            const bool of_one = round >= 4 && round < 8, of_others = round >= 8;
            if ((round < 4 && moves_alone(kernel->name)) || (of_one && !has_one_type(kernel->name)) ||
                !check_layer_begin(&layer, kernel, check_dtypes[round % 2 * 2]))
                continue;
            int changed = 0;
            for (int t = 0; t < (of_others ? layer.inputs : layer.tensors); ++t) {
                openreg_dtype *const dtype = &layer.b.places[t].tensor.dtype;
                const bool is_other = memcmp(dtype, &layer.dtype, sizeof *dtype) != 0;
                if (is_other != of_others || (of_one && t != round % layer.tensors))
                    continue;
                dtype->code = of_one ? OPENREG_DTYPE_INT : 99;
                ++changed;
            }
            if (changed == 0)
                continue;
            check_layer_write(&layer);
            const openreg_status status = check_layer_repeat(&layer);
            REQUIRE(status != OPENREG_OK, "%s took tensors of %s: %s", kernel->name,
                    of_one ? "two types" : "the unknown type with code 99", layer.b.text);
            (void)check_layer_end(&layer, status);
            ++tried;
        }
    }
    check_bench_skip_untried(tried);
}

static const check_case cases[] = {
    {"kernel.table", "extension", CHECK_KERNELS,
     "kernels.h: names are \"namespace::operator\", each once; every entry has a function, known flags alone, and the "
     "schema of its own operator or none.",
     "kernel_size is sizeof(openreg_kernel), the distance of two entries.", table_is_sound},
    {"kernel.values", "extension", CHECK_KERNELS, "kernels.h: a kernel computes what the operator of its name does.",
     "Compared with a reference in C: floating point to 1e-5 (float64: 1e-12) of the value, integers exactly.",
     calls_are_right},
    {"kernel.strides", "extension", CHECK_KERNELS,
     "kernels.h: strides count elements, may be 0 (an expanded dimension), and are those of each tensor.",
     "Refuse layouts that the kernel does not know: OPENREG_E_UNSUPPORTED before anything is written.",
     calls_are_right},
    {"kernel.in_place", "extension", CHECK_KERNELS,
     "kernels.h: with OPENREG_KERNEL_ELEMENTWISE an argument may be the memory of a result, at the same elements.",
     "Leave the flag out if the kernel reads an element after it wrote another.", calls_are_right},
    {"kernel.stream", "extension", CHECK_KERNELS, "kernels.h: a kernel queues its work on the call's stream, in order.",
     "Also where that is NULL, the default stream.", calls_are_right},
    {"kernel.refusals", "extension", CHECK_KERNELS,
     "kernels.h: OPENREG_E_UNSUPPORTED for types that the kernel does not know, with nothing written: of every kernel "
     "that computes; for matrices of two types, and unknown types of indices and masks, too.",
     "Look at code, bits and lanes of each tensor's type (openreg_has_dtype()), in every kernel, before anything is "
     "queued.",
     unknown_types_are_refused},
    {"kernel.threads", "extension", CHECK_KERNELS | CHECK_LONG,
     "driver.h: Any slot may be called from any thread, several at once; so may kernels.",
     "A vendor's kernel object has one set of arguments, a cache of programs one list: a lock, or one for each thread.",
     threads_call_at_once},
    {"kernel.streams", "extension stream_create", CHECK_KERNELS | CHECK_LONG,
     "kernels.h: a kernel queues its work on the call's stream: two of them run the same kernel at once.",
     "Scratch memory and what else a kernel keeps from call to call is a stream's, or waited for.",
     streams_call_at_once},
    {"kernel.leaks", "extension", CHECK_KERNELS | CHECK_LONG,
     "Work that has ended leaves nothing behind: calls of each kernel, and the first ones after open().",
     "A vendor's event, argument list or buffer for each call has to be released, on every way out; what a kernel "
     "keeps, in close().",
     kernels_leave_nothing},
};
const check_group check_kernel_group = CHECK_GROUP(2, cases);
