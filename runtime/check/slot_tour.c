/* SPDX-License-Identifier: BSD-3-Clause */
/* slot_tour.c: every slot of a driver, called as a program would (fixtures.h). */
#include "fixtures.h"

#define SIZE 5000

static void
use_events(check_context *c, int32_t dev, openreg_driver_stream stream)
{
    openreg_driver_event const first = check_event(c, dev, OPENREG_EVENT_TIMING);
    openreg_driver_event const second = check_event(c, dev, OPENREG_EVENT_TIMING);
    int32_t done = 0;
    int64_t ns = 0;
    MUST(c, event_record, c->instance, dev, NULL, first);
    OPTIONAL(c, stream_wait, c->instance, dev, stream, first);
    MUST(c, event_record, c->instance, dev, stream, second);
    MUST(c, event_query, c->instance, dev, second, &done);
    MUST(c, event_sync, c->instance, dev, first);
    MUST(c, event_sync, c->instance, dev, second);
    OPTIONAL(c, event_elapsed, c->instance, dev, first, second, &ns);
    MUST(c, event_destroy, c->instance, dev, first);
    MUST(c, event_destroy, c->instance, dev, second);
}

const char *
check_use_alone(check_context *c, int32_t dev, int which)
{
    static const char *const slots[] = {"mem_alloc",    "copy to",       "copy from",  "copy on",      "fill",
                                        "host_alias",   "host_alloc",    "host_func",  "stream_query", "stream_native",
                                        "event_record", "event_elapsed", "mem_info",   "device_info",  "device_active",
                                        "device_bind",  "extension",     "device_sync"};
    enum { ALLOC, TO, FROM, ON, FILL, VIEW, HOST, FUNC, QUERY, HANDLE, RECORD, TIME, FREE, INFO, ACTIVE, BIND, FIND };
    unsigned char host[64] = {0};
    const char *missing;
    int64_t ns;
    int32_t number;
    void *pointer;
    if ((size_t)which >= sizeof slots / sizeof slots[0])
        return NULL;
    if (!check_has_slots(&c->table, slots[which], &missing) ||
        (which == VIEW && (check_caps(c, dev) & OPENREG_CAP_HOST_VISIBLE) == 0))
        return "";
    char *const memory = which <= VIEW ? check_alloc(c, dev, SIZE) : NULL;
    openreg_driver_stream const stream = which == QUERY || which == HANDLE ? check_stream(c, dev) : NULL;
    openreg_driver_event const event = which == RECORD || which == TIME ? check_event(c, dev, OPENREG_EVENT_TIMING)
                                                                        : NULL;
    if (which == TO || which == FROM)
        MUST(c, copy, c->instance, dev, NULL, which == TO ? (void *)memory : host, which == TO ? dev : -1,
             which == TO ? (void *)host : memory, which == TO ? -1 : dev, sizeof host);
    if (which == ON)
        MUST(c, copy, c->instance, dev, NULL, memory + 128, dev, memory, dev, sizeof host);
    if (which == FILL)
        MUST(c, fill, c->instance, dev, NULL, memory, 7, SIZE);
    if (which == VIEW)
        MUST(c, host_alias, c->instance, dev, memory, &pointer);
    if (which == HOST)
        check_host_free(c, check_host_alloc(c, SIZE, true), true);
    if (which == FUNC && MAY(c, host_func, c->instance, dev, NULL, check_sleep_some, NULL) != OPENREG_OK)
        c->table.host_func = NULL; /* E_UNSUPPORTED: host_func.once has any other answer */
    if (which == QUERY)
        MUST(c, stream_query, c->instance, dev, stream, &number);
    if (which == HANDLE)
        MUST(c, stream_native, c->instance, dev, stream, &pointer);
    if (event != NULL) {
        MUST(c, event_record, c->instance, dev, NULL, event);
        MUST(c, event_sync, c->instance, dev, event);
    }
    if (which == TIME)
        MUST(c, event_elapsed, c->instance, dev, event, event, &ns);
    if (which == FREE)
        (void)check_free_memory(c, dev);
    if (which == INFO)
        (void)check_info(c, dev);
    if (which == ACTIVE)
        MUST(c, device_active, c->instance, dev, &number);
    if (which == BIND)
        MUST(c, device_bind, c->instance, dev);
    if (which == FIND)
        (void)c->table.extension(c->instance, "openreg.no such extension", 1);
    if (which != FREE && which != INFO)
        MUST(c, device_sync, c->instance, dev);
    if (event != NULL)
        MUST(c, event_destroy, c->instance, dev, event);
    if (stream != NULL)
        MUST(c, stream_destroy, c->instance, dev, stream);
    if (memory != NULL)
        check_free(c, dev, memory);
    return slots[which];
}

static void
use_device(check_context *c, int32_t dev)
{
    unsigned char *const from = check_host_alloc(c, SIZE, true), *const to = check_host_alloc(c, SIZE, true);
    OPTIONAL(c, device_bind, c->instance, dev);
    openreg_driver_stream const stream = check_stream(c, dev);
    char *const memory = check_alloc(c, dev, SIZE), *const other = check_alloc(c, dev, SIZE);
    int32_t done;
    check_pattern(from, SIZE, (uint64_t)dev + 1);
    MUST(c, copy, c->instance, dev, stream, memory, dev, from, -1, SIZE);
    MUST(c, copy, c->instance, dev, stream, other, dev, memory, dev, SIZE);
    OPTIONAL(c, stream_query, c->instance, dev, stream, &done);
    check_copy(c, dev, stream, to, -1, other, dev, SIZE);
    check_is_pattern(to, SIZE, (uint64_t)dev + 1, "what came back from a device");
    if (c->table.event_create != NULL)
        use_events(c, dev, stream);
    for (int which = 0; check_use_alone(c, dev, which) != NULL;)
        ++which;
    MUST(c, device_sync, c->instance, dev);
    OPTIONAL(c, stream_destroy, c->instance, dev, stream);
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

void
check_use_others(void *context)
{
    check_context *const c = context;
    char *const memory = check_alloc(c, 0, 2 * SIZE);
    openreg_driver_stream const stream = check_stream(c, 0);
    int32_t done;
    if (c->table.event_create != NULL) {
        openreg_driver_event const event = check_event(c, 0, 0);
        MUST(c, event_record, c->instance, 0, NULL, event);
        MUST(c, event_sync, c->instance, 0, event);
        MUST(c, event_destroy, c->instance, 0, event);
    }
    OPTIONAL(c, stream_query, c->instance, 0, NULL, &done);
    check_copy(c, 0, NULL, memory, 0, memory + SIZE, 0, SIZE);
    check_copy(c, 0, stream, memory, 0, memory + SIZE, 0, SIZE);
    OPTIONAL(c, stream_destroy, c->instance, 0, stream);
}
