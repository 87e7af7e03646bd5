/* SPDX-License-Identifier: BSD-3-Clause */
/* leak_checks.c: what is given back, by counting: bytes of the device and of the heap, files, threads, addresses. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "work.h"

/* Runs `once` until what it makes once is there, then counts over `rounds` more; `books` bytes for each may stay. */
static void
count_over(check_context *c, int rounds, unsigned books, void (*once)(check_context *c, int i), const char *what)
{
    check_count_exactly();
    for (int i = 0; i < rounds / 4 + 8; ++i)
        once(c, i);
    MUST(c, device_sync, c->instance, 0);
    const check_counts before = check_count_now();
    for (int i = 0; i < rounds; ++i)
        once(c, i);
    MUST(c, device_sync, c->instance, 0);
    const int threads = check_threads_down_to(before.threads);
    const check_counts after = check_count_now();
    REQUIRE(threads <= before.threads, "%d threads are left after %d times %s", threads - before.threads, rounds, what);
    REQUIRE(after.files <= before.files, "%d files are left open after %d times %s", after.files - before.files, rounds,
            what);
    REQUIRE(after.heap < before.heap + (uint64_t)rounds * books + CHECK_HEAP_SLACK,
            "%llu bytes of host memory are left after %d times %s", (unsigned long long)(after.heap - before.heap),
            rounds, what);
    /* glibc keeps up to 40 MiB of ended threads' stacks, and an arena of malloc() takes 64 MiB of addresses. */
    REQUIRE(after.address_space < before.address_space + (uint64_t)rounds * 2048 + ((uint64_t)128 << 20),
            "%llu bytes of address space are left after %d times %s",
            (unsigned long long)(after.address_space - before.address_space), rounds, what);
}

static void
use_event(check_context *c, int i)
{
    openreg_driver_event const event = check_event(c, 0, i % 2 == 0 ? OPENREG_EVENT_TIMING : 0);
    if (i % 3 != 0)
        MUST(c, event_record, c->instance, 0, event, NULL);
    if (i % 5 == 0)
        MUST(c, event_record, c->instance, 0, event, NULL);
    MUST(c, event_destroy, c->instance, 0, event);
}

static void
events_are_given_back(check_context *c)
{
    count_over(c, 8000, 6, use_event, "creating and destroying an event");
}

static void
use_stream(check_context *c, int i)
{
    static void *memory;
    if (memory == NULL)
        memory = check_alloc(c, 0, 8192);
    openreg_driver_stream const stream = check_stream(c, 0);
    if (i % 2 == 0) {
        MUST(c, copy, c->instance, memory, 0, (char *)memory + 4096, 0, 4096, 0, stream);
        if (i % 4 == 0)
            MUST(c, stream_sync, c->instance, 0, stream);
    }
    MUST(c, stream_destroy, c->instance, 0, stream);
}

static void
streams_are_given_back(check_context *c)
{
    count_over(c, 400, 256, use_stream, "creating and destroying a stream");
}

static void
use_host_memory(check_context *c, int i)
{
    check_host_free(c, check_host_alloc(c, (size_t)1 + (size_t)(i % 7) * 40000, true), true);
}

static void
host_memory_is_given_back(check_context *c)
{
    count_over(c, 1500, 6, use_host_memory, "host_alloc() and host_free()");
}

static void
use_memory(check_context *c, int i)
{
    void *memory = NULL;
    const openreg_status status = MAY(c, mem_alloc, c->instance, 0, (uint64_t)1 + (uint64_t)(i % 7) * 30000, &memory);
    REQUIRE(status == OPENREG_OK,
            "mem_alloc() returned %s at attempt %d, though each block was freed before the next: %s",
            check_status_name(status), i, check_error_text());
    check_free(c, 0, memory);
}

static void
memory_is_given_back(check_context *c)
{
    count_over(c, 3000, 6, use_memory, "mem_alloc() and mem_free()");
}

/* Four times the device's memory, a sixteenth at a time. */
static void
memory_does_not_run_out(check_context *c)
{
    const uint64_t total = check_total_memory(c, 0);
    if (total == 0)
        check_skip("the driver does not say how much memory a device has");
    uint64_t before = 0, after = 0, all = 0;
    if (c->table.mem_info != NULL)
        MUST(c, mem_info, c->instance, 0, &before, &all);
    for (int i = 0; i < 64; ++i) {
        void *memory = NULL;
        const openreg_status status = MAY(c, mem_alloc, c->instance, 0, total / 16, &memory);
        REQUIRE(status == OPENREG_OK,
                "a sixteenth of the device's memory was allocated and freed %d times, and the next attempt returned %s",
                i, check_status_name(status));
        check_free(c, 0, memory);
    }
    if (c->table.mem_info == NULL)
        return;
    MUST(c, mem_info, c->instance, 0, &after, &all);
    REQUIRE(after + total / 8 > before, "%llu bytes of device memory were free, and after all was given back %llu",
            (unsigned long long)before, (unsigned long long)after);
}

static void
use_queue(check_context *c, int i)
{
    static char *memory;
    if (memory == NULL)
        memory = check_alloc(c, 0, 8192);
    MUST(c, copy, c->instance, memory, 0, memory + 4096, 0, 100, 0, NULL);
    if (c->table.fill != NULL)
        MUST(c, fill, c->instance, 0, memory, 1, 100, NULL);
    if (i % 50 == 0)
        check_sync(c, 0, NULL);
}

static void
work_leaves_nothing(check_context *c)
{
    count_over(c, 4000, 6, use_queue, "a copy and a fill");
}

/* --------------------------------------------------------------------------------------------------------- exhaustion */

/* As many as there can be, up to a number that no program reaches: then an error, and all is as before. */
static void
handles_run_out(check_context *c)
{
    enum { MANY = 20000 };
    static void *handles[MANY];
    for (int is_event = 0; is_event < 2; ++is_event) {
        if (is_event ? c->table.event_create == NULL : c->table.stream_create == NULL)
            continue;
        const int most = is_event ? MANY : MANY / 4;
        const char *const slot = is_event ? "event_create" : "stream_create";
        int count = 0;
        for (openreg_status status = OPENREG_OK; count < most; ++count) {
            openreg_driver_event event = NULL;
            openreg_driver_stream stream = NULL;
            if (is_event)
                status = MAY(c, event_create, c->instance, 0, 0, &event);
            else
                status = MAY(c, stream_create, c->instance, 0, 0, 0, &stream);
            REQUIRE(status == OPENREG_OK || status == OPENREG_E_NOMEM, "%s() returned %s after %d successes", slot,
                    check_status_name(status), count);
            if (status != OPENREG_OK)
                break;
            handles[count] = is_event ? (void *)event : (void *)stream;
        }
        REQUIRE(count > 64,
                "%s() made %d and no more; the runtime uses up to 96 streams and PyTorch thousands of events", slot,
                count);
        for (int i = 0; i < count; ++i)
            if (is_event)
                MUST(c, event_destroy, c->instance, 0, handles[i]);
            else
                MUST(c, stream_destroy, c->instance, 0, handles[i]);
        if (is_event)
            MUST(c, event_destroy, c->instance, 0, check_event(c, 0, 0));
        else
            MUST(c, stream_destroy, c->instance, 0, check_stream(c, 0));
    }
}

static const check_case cases[] = {
    {"leak.events", "event_create", 0, "event_destroy() gives back what the event had.",
     "Also the vendor's object of a record that was replaced.", events_are_given_back},
    {"leak.streams", "stream_create", 0, "stream_destroy() gives back what the stream had: its thread, its files.",
     "Join the worker, or let it end by itself.", streams_are_given_back},
    {"leak.host_memory", "host_alloc", 0, "host_free() gives pinned memory back.", "Count both.",
     host_memory_is_given_back},
    {"leak.memory", "", 0, "mem_free() gives memory back, and its books.", "Count both.", memory_is_given_back},
    {"leak.device_memory", "", 0, "What was freed can be allocated again, however often.",
     "mem_free() returns the addresses and the memory.", memory_does_not_run_out},
    {"leak.work", "", 0, "Work that has ended leaves nothing behind.",
     "A vendor's event or command buffer for each copy has to be released.", work_leaves_nothing},
    {"leak.exhaustion", "", 0,
     "When no more streams or events can be made the slot returns OPENREG_E_NOMEM, and those that are there work on.",
     "Never abort() or exit(); look at what malloc() returns.", handles_run_out},
};
const check_group check_leak_group = CHECK_GROUP(1, cases);
