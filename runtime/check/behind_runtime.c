/* SPDX-License-Identifier: BSD-3-Clause */
/* behind_runtime.c: what the checks of a driver behind the runtime begin with (behind_runtime.h). */
#define _GNU_SOURCE
#include "behind_runtime.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
check_runtime_ok(openreg_status status, const char *call)
{
    REQUIRE(status == OPENREG_OK, "%s: %s (%s)", call, openreg_last_error()->message, openreg_status_name(status));
}

/* Nothing of the surroundings reaches the runtime but the options and the level of the log; main.c refuses the variables
 * that would ask for more. */
static void
set_variables(const check_context *c)
{
    extern char **environ;
    for (char **at = environ; *at != NULL;) {
        char name[256];
        const bool is_ours = strncmp(*at, "OPENREG_", 8) == 0 && strncmp(*at, "OPENREG_LOG_LEVEL=", 18) != 0;
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        at = is_ours && unsetenv(name) == 0 ? environ : at + 1; /* which may be another list */
    }
    for (size_t i = 0; i < c->target->option_count; ++i) {
        char name[256];
        (void)snprintf(name, sizeof name, "OPENREG_%s_%s", c->table.name, c->target->options[i].key);
        for (char *at = name; *at != '\0'; ++at)
            *at = (char)toupper((unsigned char)*at);
        (void)setenv(name, c->target->options[i].value, 1);
    }
    (void)setenv("OPENREG_LOG_LEVEL", "error", 0);
}

void
check_start_runtime(check_context *c)
{
    if (c->devices > 0) /* started by the check of another device */
        return;
    set_variables(c);
    if (c->target->path != NULL)
        OK(openreg_driver_load(c->table.name, c->target->path));
    const openreg_status status = openreg_drivers_use(c->table.name);
    check_skip_if(status == OPENREG_E_NO_DEVICE, "there is no device: %s", openreg_last_error()->message);
    check_runtime_ok(status, "openreg_drivers_use()");
    c->devices = openreg_device_count();
    check_skip_if(c->devices == 0, "the driver has no device");
}

openreg_device_properties
check_properties(int32_t device)
{
    openreg_device_properties properties = {.struct_size = sizeof properties};
    OK(openreg_device_get_properties(device, &properties));
    return properties;
}

uint64_t
check_third_within(int32_t device, uint64_t bytes)
{
    const uint64_t third = check_properties(device).max_allocation / 3;
    return third != 0 && third < bytes ? third : bytes;
}

void
check_need_segments(int32_t device)
{
    uint64_t unused = 0, total = 0;
    OK(openreg_memory_get_info(device, &unused, &total));
    check_need(device, total, UINT64_C(12) << 20);
}

void *
check_allocate_block(int32_t device, size_t size)
{
    void *memory = NULL;
    OK(openreg_malloc(device, OPENREG_STREAM_DEFAULT, size, &memory));
    return memory;
}

void *
check_pinned_block(int32_t device, size_t size)
{
    void *memory = NULL;
    OK(openreg_host_alloc(device, size, &memory));
    return memory;
}

openreg_stream
check_pool_stream(int32_t device)
{
    openreg_stream stream;
    OK(openreg_stream_from_pool(device, 0, &stream));
    return stream;
}

openreg_event
check_runtime_event(int32_t device, uint32_t flags)
{
    openreg_event event = NULL;
    OK(openreg_event_create(device, flags, &event));
    return event;
}

void
check_round_trip(int32_t device, uint64_t seed, const char *what)
{
    static unsigned char host[5000], seen[5000];
    void *const memory = check_allocate_block(device, sizeof host);
    check_pattern(host, sizeof host, seed);
    OK(openreg_memcpy(memory, device, host, OPENREG_HOST, sizeof host));
    OK(openreg_memcpy(seen, OPENREG_HOST, memory, device, sizeof seen));
    check_is_pattern(seen, sizeof seen, seed, what);
    OK(openreg_free(memory));
}

void
check_random_program(check_context *c, uint64_t *state, double seconds)
{
    enum { BLOCKS = 40, MIDDLING = 70001, LARGEST = 1500000 };
    check_block blocks[BLOCKS] = {{.memory = NULL}};
    check_context own = *c;
    own.random = *state;
    unsigned char *const host = malloc(LARGEST);
    const double end = check_now() + seconds;
    for (uint64_t step = 0; step < 600 || check_now() < end; ++step) {
        check_block *const b = &blocks[check_random_below(&own, BLOCKS)];
        if (b->memory == NULL) {
            const uint64_t kind = check_random_below(&own, 8);
            b->size = (size_t)(1 + check_random_below(&own, kind < 2 ? 600 : kind < 7 ? MIDDLING : LARGEST));
            b->dev = (int32_t)check_random_below(&own, (uint64_t)c->devices);
            b->seed = check_random(&own);
            void *memory = NULL;
            const openreg_status status = openreg_malloc(b->dev, OPENREG_STREAM_DEFAULT, b->size, &memory);
            if (status == OPENREG_E_NOMEM) /* a small device, and other threads have it */
                continue;
            check_runtime_ok(status, "openreg_malloc()");
            b->memory = memory;
            check_pattern(host, b->size, b->seed);
            OK(openreg_memcpy(b->memory, b->dev, host, OPENREG_HOST, b->size));
            continue;
        }
        OK(openreg_memcpy(host, OPENREG_HOST, b->memory, b->dev, b->size));
        check_is_pattern(host, b->size, b->seed, "contents of a block while others were allocated and freed");
        OK(openreg_free(b->memory));
        b->memory = NULL;
        if (step % 97 == 0)
            OK(openreg_memory_empty_cache(-1));
    }
    for (int i = 0; i < BLOCKS; ++i)
        if (blocks[i].memory != NULL)
            OK(openreg_free(blocks[i].memory));
    free(host);
}

void
check_nothing_is_left(check_counts before, const char *what)
{
    const int threads = check_threads_down_to(before.threads);
    const check_counts after = check_count_now();
    REQUIRE(threads < before.threads + 5, "%s leaves threads: %d more after five", what, threads - before.threads);
    REQUIRE(after.files < before.files + 5, "%s leaves files open: %d more after five", what,
            after.files - before.files);
}
