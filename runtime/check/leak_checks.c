/* SPDX-License-Identifier: BSD-3-Clause */
/* leak_checks.c: finds leaks by counting bytes of the device and of the heap, files, threads, addresses. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"

static void
use_event(check_context *c, int i)
{
    openreg_driver_event const event = check_event(c, 0, i % 2 == 0 ? OPENREG_EVENT_TIMING : 0);
    if (i % 3 != 0)
        MUST(c, event_record, c->instance, 0, NULL, event);
    if (i % 5 == 0)
        MUST(c, event_record, c->instance, 0, NULL, event);
    MUST(c, event_destroy, c->instance, 0, event);
}

static void
use_stream_once(check_context *c, size_t size, bool is_awaited)
{
    static char *memory;
    if (memory == NULL)
        memory = check_alloc(c, 0, (size_t)1 << 20);
    openreg_driver_stream const stream = check_stream(c, 0);
    if (size > 0)
        MUST(c, copy, c->instance, 0, stream, memory, 0, memory + size, 0, size);
    if (is_awaited)
        MUST(c, stream_sync, c->instance, 0, stream);
    MUST(c, stream_destroy, c->instance, 0, stream);
}

static void
use_stream(check_context *c, int i)
{
    use_stream_once(c, i % 2 == 0 ? 4096 : 0, i % 4 == 0);
}

/* The copy is not over yet when its stream is destroyed. */
static void
use_busy_stream(check_context *c, int i)
{
    use_stream_once(c, (size_t)1 << 19, i % 16 == 0);
}

static void
use_host_memory(check_context *c, int i)
{
    check_host_free(c, check_host_alloc(c, (size_t)1 + (size_t)(i % 7) * 40000, true), true);
}

static void
use_memory(check_context *c, int i)
{
    void *memory = NULL;
    const openreg_status status = MAY(c, mem_alloc, c->instance, 0, BYTES((uint64_t)1 + (uint64_t)(i % 7) * 30000),
                                      &memory);
    REQUIRE(status == OPENREG_OK,
            "mem_alloc() returned %s at attempt %d, though each block was freed before the next: %s",
            check_status_name(status), i, check_error_text());
    check_free(c, 0, memory);
}

/* Four times the device's memory, at most a sixteenth at a time. */
static void
memory_does_not_run_out(check_context *c)
{
    const uint64_t total = check_total_memory(c, 0);
    check_skip_if(total == 0, "the driver does not say how much memory a device has");
    const uint64_t size = check_within(c, 0, total / 16);
    const int rounds = total / size < 1024 ? (int)(4 * total / size) : 4096;
    const uint64_t before = check_free_memory(c, 0);
    for (int i = 0; i < rounds; ++i) {
        void *memory = NULL;
        const openreg_status status = MAY(c, mem_alloc, c->instance, 0, BYTES(size), &memory);
        REQUIRE(status == OPENREG_OK,
                "%llu bytes of the device's memory were allocated and freed %d times, and the next attempt returned %s",
                (unsigned long long)size, i, check_status_name(status));
        check_free(c, 0, memory);
    }
    const uint64_t after = check_free_memory(c, 0);
    REQUIRE(after + total / 8 > before, "%llu bytes of device memory were free, and after all was freed %llu",
            (unsigned long long)before, (unsigned long long)after);
}

static void
use_queue(check_context *c, int i)
{
    static char *memory;
    if (memory == NULL)
        memory = check_alloc(c, 0, 8192);
    MUST(c, copy, c->instance, 0, NULL, memory, 0, memory + 4096, 0, 100);
    OPTIONAL(c, fill, c->instance, 0, NULL, memory, 1, 100);
    if (i % 50 == 0)
        check_sync(c, 0, NULL);
}

typedef struct route {
    int32_t from, to; /* -1: host */
    bool pinned;
    const char *name;
} route;

#define LAP 64 /* small copies go to as many places, which are cleared before and compared behind them */

/* The copies of one slope: of that many bytes, at odd addresses or at aligned ones. */
static struct {
    int32_t from, to;
    size_t size, step, room; /* bytes: of a copy, between two places, of all places */
    bool is_odd;
    int done;
    char *source, *target;
    unsigned char *pattern, *seen;
    char what[160];
} copies;

/* Odd addresses are 1 and 3 behind a multiple of 4, of sources and targets in turn. */
static size_t
place_of(int i, size_t odd)
{
    return (size_t)i * copies.step + (copies.is_odd ? i % 2 == 0 ? odd : 4 - odd : 0);
}

/* What a copy rarely drops or spoils shows too: each small one has a place of its own. */
static void
use_route(check_context *c, int i)
{
    const int places = copies.size > 4096 ? 1 : LAP, place = copies.done++ % places;
    const int32_t dev = copies.to >= 0 ? copies.to : copies.from;
    (void)i;
    if (places > 1 && place == 0) {
        memset(copies.seen, 0, copies.room);
        check_write(c, copies.to, copies.target, copies.seen, copies.room);
    }
    MUST(c, copy, c->instance, dev, NULL, copies.target + place_of(place, 3), copies.to,
         copies.source + place_of(place, 1), copies.from, copies.size);
    if (places == 1 || place % 8 == 7)
        check_sync(c, dev, NULL);
    if (places == 1 || place < places - 1)
        return;
    check_read(c, copies.to, copies.seen, copies.target, copies.room);
    for (int k = 0; k < LAP; ++k)
        REQUIRE(memcmp(copies.seen + place_of(k, 3), copies.pattern + place_of(k, 1), copies.size) == 0,
                "%s: of %d copies, the last %d to a place each, that to place %d is wrong", copies.what, copies.done,
                LAP, k);
}

/* Small and large ones on the first devices, and such at odd addresses on the last ones. */
static void
copies_leave_nothing(check_context *c)
{
    static const route routes[] = {{-1, 0, false, "from unpinned memory to the device"},
                                   {0, -1, false, "from the device to unpinned memory"},
                                   {-1, 0, true, "from pinned memory to the device"},
                                   {0, -1, true, "from the device to pinned memory"},
                                   {0, 0, false, "on the device"},
                                   {1, 0, false, "from a device to the one before"},
                                   {0, 1, false, "from a device to the next one"}};
    enum { OF_ONE = 5, ALL = 7 };
    static const struct {
        size_t size;
        bool is_odd;
        const char *name;
        int rounds;
        unsigned books;
    } kinds[] = {{100, false, "100 bytes", 1500, 6},
                 {(size_t)700 << 10, false, "700 KiB", 120, 64},
                 {101, true, "101 bytes at odd addresses", 1500, 6},
                 {((size_t)700 << 10) + 1, true, "700 KiB at odd addresses", 120, 64}};
    const bool is_peer = strcmp(c->check->name, "leak.peer_copies") == 0;
    for (size_t i = is_peer ? OF_ONE : 0; i < (is_peer ? ALL : OF_ONE); ++i)
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
            const bool pinned = routes[i].pinned;
            const int32_t beyond = kinds[k].is_odd ? c->devices - (is_peer ? 2 : 1) : 0;
            if (pinned && c->table.host_alloc == NULL)
                continue;
            memset(&copies, 0, sizeof copies);
            copies.from = routes[i].from < 0 ? -1 : routes[i].from + beyond;
            copies.to = routes[i].to < 0 ? -1 : routes[i].to + beyond;
            copies.size = kinds[k].size;
            copies.is_odd = kinds[k].is_odd;
            copies.step = (copies.size + 7) / 4 * 4;
            copies.room = copies.step * (copies.size > 4096 ? 1 : LAP);
            copies.pattern = check_host_alloc(c, copies.room, false);
            copies.seen = check_host_alloc(c, copies.room, false);
            copies.source = check_alloc_at(c, copies.from, copies.room, pinned);
            copies.target = check_alloc_at(c, copies.to, copies.room, pinned);
            check_pattern(copies.pattern, copies.room, i);
            check_write(c, copies.from, copies.source, copies.pattern, copies.room);
            (void)snprintf(copies.what, sizeof copies.what, "copying %s %s", kinds[k].name, routes[i].name);
            check_slope(c, kinds[k].rounds, kinds[k].books, use_route, copies.what);
            check_free_at(c, copies.from, copies.source, pinned);
            check_free_at(c, copies.to, copies.target, pinned);
        }
}

static void
replace_record(check_context *c, int i)
{
    static openreg_driver_event event;
    static openreg_driver_stream stream;
    if (event == NULL) {
        event = check_event(c, 0, 0);
        stream = check_stream(c, 0);
    }
    MUST(c, event_record, c->instance, 0, i % 3 == 0 ? NULL : stream, event);
    if (c->table.stream_wait != NULL && i % 2 == 0)
        MUST(c, stream_wait, c->instance, 0, i % 4 == 0 ? NULL : stream, event);
    if (i % 16 == 0)
        MUST(c, event_sync, c->instance, 0, event);
}

/* Every slot that asks or waits, of work that has ended and of work that may not have. */
static void
ask(check_context *c, int i)
{
    static openreg_driver_event first, second;
    static openreg_driver_stream stream;
    static char *memory;
    int32_t done;
    int64_t ns;
    void *out;
    if (memory == NULL) {
        memory = check_alloc(c, 0, 8192);
        stream = check_stream(c, 0);
        if (c->table.event_create != NULL) {
            first = check_event(c, 0, OPENREG_EVENT_TIMING);
            second = check_event(c, 0, OPENREG_EVENT_TIMING);
            MUST(c, event_record, c->instance, 0, stream, first);
        }
    }
    if (i % 4 == 0)
        MUST(c, copy, c->instance, 0, stream, memory, 0, memory + 4096, 0, 100);
    if (c->table.stream_create != NULL) {
        MUST(c, stream_query, c->instance, 0, stream, &done);
        if (i % 16 == 0)
            MUST(c, stream_sync, c->instance, 0, stream);
        MUST(c, stream_query, c->instance, 0, NULL, &done);
    }
    if (c->table.event_create != NULL) {
        MUST(c, event_record, c->instance, 0, stream, second);
        MUST(c, event_query, c->instance, 0, second, &done);
        MUST(c, event_sync, c->instance, 0, second);
        MUST(c, event_query, c->instance, 0, second, &done);
        OPTIONAL(c, event_elapsed, c->instance, 0, first, second, &ns);
    }
    if (i % 8 == 0)
        MUST(c, device_sync, c->instance, 0);
    (void)check_free_memory(c, 0);
    (void)check_caps(c, 0);
    OPTIONAL(c, device_active, c->instance, 0, &done);
    OPTIONAL(c, stream_native, c->instance, 0, stream, &out);
    if (c->table.host_alias != NULL && (check_caps(c, 0) & OPENREG_CAP_HOST_VISIBLE) != 0)
        MUST(c, host_alias, c->instance, 0, memory, &out);
}

static atomic_int calls[16]; /* of the last functions */

/* Each function runs once, which shows here if it does not now and then. */
static void
call_back(check_context *c, int i)
{
    static int queued;
    (void)i;
    MUST(c, host_func, c->instance, 0, NULL, check_count_call, &calls[queued++ % 16]);
    if (queued % 16 != 0)
        return;
    check_sync(c, 0, NULL);
    for (int k = 0; k < 16; ++k)
        REQUIRE(atomic_load(&calls[k]) == queued / 16, "of %d host functions, each of which was waited for, one ran %s",
                queued, atomic_load(&calls[k]) < queued / 16 ? "never" : "twice");
}

static uint64_t refused_size;

/* A size that the vendor's functions for objects take, and those for memory do not; and one that nobody takes. */
static void
refuse_memory(check_context *c, int i)
{
    void *memory = NULL;
    if (MAY(c, mem_alloc, c->instance, 0, BYTES(i % 2 == 0 ? refused_size : UINT64_C(1) << 50), &memory) == OPENREG_OK)
        check_free(c, 0, memory);
}

static void
refuse_host_memory(check_context *c, int i)
{
    void *memory = NULL;
    (void)i;
    if (MAY(c, host_alloc, c->instance, 0, BYTES(UINT64_C(1) << 55), &memory) == OPENREG_OK)
        MUST(c, host_free, c->instance, 0, memory);
}

static void
refuse_time(check_context *c, int i)
{
    static openreg_driver_event plain, timed;
    int64_t ns;
    if (plain == NULL) {
        plain = check_event(c, 0, 0);
        timed = check_event(c, 0, OPENREG_EVENT_TIMING);
        MUST(c, event_record, c->instance, 0, NULL, plain);
    }
    (void)MAY(c, event_elapsed, c->instance, 0, i % 2 == 0 ? plain : timed, timed, &ns);
}

static void
refuse_open(check_context *c, int i)
{
    const openreg_option option = {i % 2 == 0 ? "devices" : "memory", "not a number"};
    openreg_instance instance = NULL;
    if (check_open_with(c, &option, 1, &instance) == OPENREG_OK)
        MUST(c, close, instance);
}

static void
refusals_leave_nothing(check_context *c)
{
    const uint64_t most = c->table.mem_info != NULL ? check_free_memory(c, 0) : check_total_memory(c, 0);
    refused_size = most + ((uint64_t)1 << 20);
    check_slope(c, 2000, 6, refuse_memory, "a refused mem_alloc()");
    if (c->table.host_alloc != NULL)
        check_slope(c, 1000, 6, refuse_host_memory, "a refused host_alloc()");
    if (c->table.event_elapsed != NULL)
        check_slope(c, 2000, 6, refuse_time, "a refused event_elapsed()");
    check_slope(c, 100, 48, refuse_open, "a refused open()");
}

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
            status = is_event ? MAY(c, event_create, c->instance, 0, 0, &event)
                              : MAY(c, stream_create, c->instance, 0, 0, 0, &stream);
            REQUIRE(status == OPENREG_OK || status == OPENREG_E_NOMEM, "%s() returned %s after %d successes", slot,
                    check_status_name(status), count);
            if (status != OPENREG_OK)
                break;
            handles[count] = is_event ? (void *)event : (void *)stream;
        }
        REQUIRE(count > 64,
                "%s() made %d and no more; the runtime uses up to 96 streams and PyTorch thousands of events", slot,
                count);
        for (int i = 0; i <= count; ++i) /* the last is made when there are none */
            if (is_event)
                MUST(c, event_destroy, c->instance, 0, i < count ? handles[i] : check_event(c, 0, 0));
            else
                MUST(c, stream_destroy, c->instance, 0, i < count ? handles[i] : check_stream(c, 0));
    }
}

static const struct {
    const char *check;
    int rounds;
    unsigned books;
    void (*once)(check_context *c, int i);
    const char *what;
} slopes[] = {
    {"leak.events", 8000, 6, use_event, "creating and destroying an event"},
    {"leak.streams", 400, 256, use_stream, "creating and destroying a stream"},
    {"leak.streams", 400, 256, use_busy_stream, "destroying a stream with work"},
    {"leak.host_memory", 1500, 6, use_host_memory, "host_alloc() and host_free()"},
    {"leak.memory", 3000, 6, use_memory, "mem_alloc() and mem_free()"},
    {"leak.work", 4000, 6, use_queue, "a copy and a fill"},
    {"leak.records", 3000, 6, replace_record, "recording an event again"},
    {"leak.asks", 1500, 8, ask, "asking and waiting"},
    {"leak.host_funcs", 1500, 8, call_back, "host_func()"},
};

static void
leaves_nothing(check_context *c)
{
    for (size_t i = 0; i < sizeof slopes / sizeof slopes[0]; ++i)
        if (strcmp(slopes[i].check, c->check->name) == 0)
            check_slope(c, slopes[i].rounds, slopes[i].books, slopes[i].once, slopes[i].what);
}

static const check_case cases[] = {
    {"leak.events", "event_create", 0, "event_destroy() releases what the event had.",
     "Also the vendor's object of a record that was replaced.", leaves_nothing},
    {"leak.streams", "stream_create", 0, "stream_destroy() releases what the stream had: its thread, its files.",
     "Join the worker, or let it end by itself.", leaves_nothing},
    {"leak.host_memory", "host_alloc", 0, "host_free() releases pinned memory.", "Count both.", leaves_nothing},
    {"leak.memory", "", 0, "mem_free() releases memory, and the driver's records of it.", "Count both.",
     leaves_nothing},
    {"leak.device_memory", "", 0, "What was freed can be allocated again, however often.",
     "mem_free() returns the addresses and the memory.", memory_does_not_run_out},
    {"leak.work", "", 0, "Work that has ended leaves nothing behind.",
     "A vendor's event or command buffer for each copy has to be released.", leaves_nothing},
    {"leak.copies", "", 0,
     "Work that has ended leaves nothing behind: copies in each direction, small and large, at any address; and none "
     "of thousands is lost.",
     "A staging buffer, or the memory that was registered for a copy, is released when the copy has ended.",
     copies_leave_nothing},
    {"leak.peer_copies", "", CHECK_TWO_DEVICES,
     "Work that has ended leaves nothing behind: copies between two devices.",
     "What a copy through the host takes on the way is released, also on the other device.", copies_leave_nothing},
    {"leak.records", "event_create", 0, "A record that replaces an earlier one leaves nothing of that behind.",
     "Release the vendor's object of the record before, also if a stream waits for it.", leaves_nothing},
    {"leak.asks", "", 0, "Every slot that asks or waits leaves nothing behind.",
     "Objects that were retained for the query are released, whatever it returns.", leaves_nothing},
    {"leak.host_funcs", "host_func", 0,
     "A host function runs exactly once, each of thousands, and leaves nothing behind.",
     "The vendor's event that called it, and the argument that holds function and argument.", leaves_nothing},
    {"leak.refused", "", 0, "A call that fails leaves nothing behind.",
     "Each way out after an error releases what the call had made until then.", refusals_leave_nothing},
    {"leak.exhaustion", "", 0,
     "When no more streams or events can be made the slot returns OPENREG_E_NOMEM, and those that are there work on.",
     "Never abort() or exit(); look at what malloc() returns.", handles_run_out},
};
const check_group check_leak_group = CHECK_GROUP(1, cases);
