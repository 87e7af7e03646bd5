/* SPDX-License-Identifier: BSD-3-Clause */
/* kernel_call_checks.c: the same kernels again and again, which leaves nothing behind, and in several threads at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"
#include "layer_bench.h"

static check_layer layer;

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
    const openreg_kernels *const kernels = check_kernels(c);
    check_layer_set_up(&layer, c, c->devices - 1);
    c->random = 1;
    for (uint64_t k = 0; k < kernels->count; ++k) {
        const openreg_kernel *const kernel = check_kernel_at(kernels, k);
        const check_layer_operator *const op = check_layer_find(kernel->name);
        for (int n = 0; op != NULL && n < 3; ++n) /* of types and sizes, of which it serves some */
            if (check_layer_begin(&layer, kernel, check_dtypes[n % 2], op)) {
                check_layer_write(&layer);
                (void)check_layer_repeat(&layer);
                check_sync(c, layer.b.dev, NULL);
            }
    }
}

/* One call each that the kernel serves, again and again. */
static void
kernels_leave_nothing(check_context *c)
{
    const openreg_kernels *const kernels = check_kernels(c);
    char what[100];
    int counted = 0;
    check_layer_set_up(&layer, c, c->devices - 1);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        const openreg_kernel *const kernel = check_kernel_at(kernels, i);
        const check_layer_operator *const op = check_layer_find(kernel->name);
        bool is_served = false;
        for (int k = 0; op != NULL && k < 24 && !is_served; ++k) /* of types and sizes that it takes */
            if (check_layer_begin(&layer, kernel, check_dtypes[k % CHECK_DTYPES], op)) {
                check_layer_write(&layer);
                is_served = check_layer_repeat(&layer) == OPENREG_OK;
            }
        if (!is_served)
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

/* --------------------------------------------------------------------------------------------------------------- threads */

#define THREADS 4

typedef struct caller {
    pthread_t thread;
    check_context c; /* with random numbers of its own */
    uint64_t first;  /* the kernel that all begin with */
    int made;
} caller;

static void *
call_all(void *argument)
{
    caller *const self = argument;
    check_layer *const l = malloc(sizeof *l);
    const openreg_kernels *const kernels = check_kernels(&self->c);
    const double end = check_now() + 0.5 + self->c.target->seconds;
    check_layer_set_up(l, &self->c, self->c.devices - 1);
    for (uint64_t i = 0; i < 4 || (i < 100 * kernels->count && check_now() < end); ++i) {
        const openreg_kernel *const kernel = check_kernel_at(kernels, (self->first + i) % kernels->count);
        const check_layer_operator *const op = check_layer_find(kernel->name);
        for (int again = 0; op != NULL && again < 4; ++again)
            if (check_layer_begin(l, kernel, check_dtypes[0], op))
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
    if (check_kernels(c)->count == 0)
        check_skip("the driver has no kernels");
    for (int i = 0; i < THREADS; ++i) {
        callers[i].c = *c;
        callers[i].c.random = check_random(c);
        callers[i].first = first;
        REQUIRE(pthread_create(&callers[i].thread, NULL, call_all, &callers[i]) == 0, "internal: no thread");
    }
    for (int i = 0; i < THREADS; ++i) {
        (void)pthread_join(callers[i].thread, NULL);
        made += callers[i].made;
    }
    check_bench_skip_untried(made);
}

/* --------------------------------------------------------------------------------------------------------------- streams */

/* Two calls of each kernel at once, each on a stream of its own. */
static void
streams_call_at_once(check_context *c)
{
    static check_layer both[2];
    const openreg_kernels *const kernels = check_kernels(c);
    int made = 0;
    for (int i = 0; i < 2; ++i) {
        check_layer_set_up(&both[i], c, c->devices - 1);
        both[i].b.stream = check_stream(c, c->devices - 1);
    }
    for (uint64_t i = 0; i < kernels->count; ++i) {
        const openreg_kernel *const kernel = check_kernel_at(kernels, i);
        const check_layer_operator *const op = check_layer_find(kernel->name);
        for (int round = 0; op != NULL && round < 4; ++round) {
            openreg_status statuses[2];
            if (!check_layer_begin(&both[0], kernel, check_dtypes[0], op) ||
                !check_layer_begin(&both[1], kernel, check_dtypes[0], op))
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

/* ----------------------------------------------------------------------------------------------------------- refusals */

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

/* Every tensor that has the call's type has one that nobody can know. */
static void
unknown_types_are_refused(check_context *c)
{
    const openreg_kernels *const kernels = check_kernels(c);
    int tried = 0;
    check_layer_set_up(&layer, c, c->devices - 1);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        const openreg_kernel *const kernel = check_kernel_at(kernels, i);
        const check_layer_operator *const op = check_layer_find(kernel->name);
        for (int round = 0; op != NULL && !moves_alone(kernel->name) && round < 4; ++round) {
            if (!check_layer_begin(&layer, kernel, check_dtypes[round % 2 * 2], op))
                continue;
            for (int t = 0; t < layer.tensors; ++t)
                if (memcmp(&layer.b.places[t].tensor.dtype, &layer.dtype, sizeof layer.dtype) == 0)
                    layer.b.places[t].tensor.dtype.code = 99;
            check_layer_write(&layer);
            const openreg_status status = check_layer_repeat(&layer);
            REQUIRE(status != OPENREG_OK, "%s took tensors of the unknown type with code 99: %s", kernel->name,
                    layer.b.text);
            (void)check_layer_end(&layer, status);
            ++tried;
        }
    }
    check_bench_skip_untried(tried);
}

static const check_case cases[] = {
    {"kernel.refusals", "extension", CHECK_KERNELS,
     "kernels.h: OPENREG_E_UNSUPPORTED for types that the kernel does not know, with nothing written: of every kernel "
     "that "
     "computes.",
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
const check_group check_kernel_call_group = CHECK_GROUP(2, cases);
