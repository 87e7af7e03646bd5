/* SPDX-License-Identifier: BSD-3-Clause */
/* slot_tour.c: every slot of a driver, called as a program would (slot_tour.h). */
#include "slot_tour.h"

#include <string.h>

#include "fixtures.h"

#define SIZE 5000

static void
touch(void *argument)
{
    (void)argument;
}

static void
use_events(check_context *c, int32_t dev, openreg_driver_stream stream)
{
    openreg_driver_event const first = check_event(c, dev, OPENREG_EVENT_TIMING);
    openreg_driver_event const second = check_event(c, dev, OPENREG_EVENT_TIMING);
    int32_t done = 0;
    int64_t ns = 0;
    MUST(c, event_record, c->instance, dev, NULL, first);
    if (c->table.stream_wait != NULL)
        MUST(c, stream_wait, c->instance, dev, stream, first);
    MUST(c, event_record, c->instance, dev, stream, second);
    MUST(c, event_query, c->instance, dev, second, &done);
    MUST(c, event_sync, c->instance, dev, first);
    MUST(c, event_sync, c->instance, dev, second);
    if (c->table.event_elapsed != NULL)
        MUST(c, event_elapsed, c->instance, dev, first, second, &ns);
    MUST(c, event_destroy, c->instance, dev, first);
    MUST(c, event_destroy, c->instance, dev, second);
}

static void
ask(check_context *c, int32_t dev, void *memory, openreg_driver_stream stream)
{
    uint64_t unused, total;
    int32_t active;
    void *pointer;
    if (c->table.mem_info != NULL)
        MUST(c, mem_info, c->instance, dev, &unused, &total);
    if (c->table.device_active != NULL)
        MUST(c, device_active, c->instance, dev, &active);
    if ((check_caps(c, dev) & OPENREG_CAP_HOST_VISIBLE) != 0)
        MUST(c, host_alias, c->instance, dev, memory, &pointer);
    if (c->table.stream_native != NULL)
        MUST(c, stream_native, c->instance, dev, stream, &pointer);
    if (c->table.extension != NULL)
        (void)c->table.extension(c->instance, "openreg.no such extension", 1);
}

static void
use_device(check_context *c, int32_t dev)
{
    unsigned char *const from = check_host_alloc(c, SIZE, true), *const to = check_host_alloc(c, SIZE, true);
    if (c->table.device_bind != NULL)
        MUST(c, device_bind, c->instance, dev);
    openreg_driver_stream const stream = check_stream(c, dev);
    char *const memory = check_alloc(c, dev, SIZE), *const other = check_alloc(c, dev, SIZE);
    int32_t done;
    check_pattern(from, SIZE, (uint64_t)dev + 1);
    MUST(c, copy, c->instance, dev, stream, memory, dev, from, -1, SIZE);
    MUST(c, copy, c->instance, dev, stream, other, dev, memory, dev, SIZE);
    if (c->table.stream_query != NULL)
        MUST(c, stream_query, c->instance, dev, stream, &done);
    MUST(c, copy, c->instance, dev, stream, to, -1, other, dev, SIZE);
    if (c->table.host_func != NULL && MAY(c, host_func, c->instance, dev, stream, touch, NULL) != OPENREG_OK)
        c->table.host_func = NULL; /* E_UNSUPPORTED: host_func.once has any other answer */
    check_sync(c, dev, stream);
    check_is_pattern(to, SIZE, (uint64_t)dev + 1, "what came back from a device");
    if (c->table.fill != NULL)
        MUST(c, fill, c->instance, dev, stream, memory, 7, SIZE);
    if (c->table.event_create != NULL)
        use_events(c, dev, stream);
    ask(c, dev, memory, stream);
    MUST(c, device_sync, c->instance, dev);
    if (stream != NULL)
        MUST(c, stream_destroy, c->instance, dev, stream);
    check_free(c, dev, other);
    check_free(c, dev, memory);
    check_host_free(c, from, true);
    check_host_free(c, to, true);
}

void
check_slot_tour(check_context *c)
{
    for (int32_t dev = 0; dev < c->devices; ++dev)
        use_device(c, dev);
}

void
check_whole_slot_tour(check_context *c)
{
    check_open(c);
    check_slot_tour(c);
    check_close(c);
}
