/* SPDX-License-Identifier: BSD-3-Clause */
/* stream_checks.c: streams, what waiting for them means, and the order between them. */
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"

#define SIZE CHECK_TAIL

#define MANY 33

static void
handles_are_streams(check_context *c)
{
    const openreg_device_info info = check_info(c, c->dev);
    openreg_driver_stream streams[MANY];
    for (int i = 0; i < MANY; ++i) {
        const int64_t span = (int64_t)info.priority_low - info.priority_high + 1;
        streams[i] = NULL;
        MUST(c, stream_create, c->instance, c->dev, 0, (int32_t)(info.priority_high + i % span), &streams[i]);
        REQUIRE(streams[i] != NULL, "stream_create() succeeded and gave no handle: NULL is the default stream");
        for (int k = 0; k < i; ++k)
            REQUIRE(streams[k] != streams[i], "stream_create() gave one handle for two streams");
    }
    check_tail t = {.from = NULL};
    for (int i = 0; i < MANY; i += 8) {
        check_tail_queue(c, &t, c->dev, streams[i], 1);
        MUST(c, stream_sync, c->instance, c->dev, streams[i]);
        check_is_pattern(t.to, CHECK_TAIL, t.seed, "a copy on one of many streams");
    }
    for (int i = 0; i < MANY; ++i)
        MUST(c, stream_destroy, c->instance, c->dev, streams[i]);
    MUST(c, stream_destroy, c->instance, c->dev, NULL);
    MUST(c, device_sync, c->instance, c->dev);
}

static void
sync_waits(check_context *c)
{
    const bool is_default = strcmp(c->check->name, "stream.sync_default") == 0;
    check_tail t = {.from = NULL};
    openreg_driver_stream const stream = is_default ? NULL : check_stream(c, c->dev);
    for (int i = 0; i < (is_default ? 1 : 3); ++i) {
        check_tail_queue(c, &t, c->dev, stream, 15);
        MUST(c, stream_sync, c->instance, c->dev, stream);
        check_is_pattern(t.to, CHECK_TAIL, t.seed,
                         is_default ? "the last copy of the default stream after stream_sync()"
                                    : "the last copy of a stream after stream_sync()");
    }
}

/* Work on the default stream, the first one, one in the middle and the last of STREAMS streams, more than the runtime makes
 * for a priority. Only the first two devices have as many streams. */
static void
device_sync_waits(check_context *c)
{
    enum { STREAMS = 64, ATTEMPTS = 6, TAILS = 4 };
    check_tail tails[TAILS] = {{.from = NULL}};
    openreg_driver_stream streams[STREAMS] = {NULL};
    const int most = c->dev < 2 ? STREAMS : TAILS, attempts = c->dev < 2 ? ATTEMPTS : 1;
    for (int i = 1; i < most; ++i)
        streams[i] = check_stream(c, c->dev);
    for (int k = 0; k < attempts; ++k) {
        const int last = most - 1 - k * (most - TAILS) / ATTEMPTS;
        const int used[TAILS] = {0, 1, last / 2 + 1, last};
        for (int i = 0; i < TAILS; ++i)
            check_tail_queue(c, &tails[i], c->dev, streams[used[i]], i == 0 ? 5 : 15);
        MUST(c, device_sync, c->instance, c->dev);
        for (int i = 0; i < TAILS; ++i)
            check_is_pattern(tails[i].to, CHECK_TAIL, tails[i].seed,
                             i == 0 ? "the default stream's last copy after device_sync()"
                                    : "a stream's last copy after device_sync()");
        for (int i = 0; i < TAILS; ++i) /* which may wait for all of them */
            check_free(c, c->dev, tails[i].memory);
    }
    for (int i = 1; i < most && streams[i] != NULL; ++i)
        MUST(c, stream_destroy, c->instance, c->dev, streams[i]);
}

static void
query_sees_the_last_byte(check_context *c)
{
    check_tail t = {.from = NULL};
    openreg_driver_stream const streams[] = {check_stream(c, c->dev), NULL};
    for (int i = 0; i < 4; ++i) {
        int32_t done = 0;
        check_tail_queue(c, &t, c->dev, streams[i % 2], 15);
        const double end = check_own_time() + CHECK_PATIENCE;
        while (done == 0) {
            MUST(c, stream_query, c->instance, c->dev, streams[i % 2], &done);
            REQUIRE(done == 0 || done == 1, "stream_query() said %d", done);
            REQUIRE(check_own_time() < end, "stream_query() says 0 %d seconds after a few copies were queued",
                    CHECK_PATIENCE);
        }
        check_is_pattern(t.to, CHECK_TAIL, t.seed,
                         "the last copy of a stream when stream_query() says that all is done");
    }
}

static void
query_of_held_stream(check_context *c)
{
    openreg_driver_stream const stream = check_stream(c, c->dev);
    int32_t done = -7;
    MUST(c, stream_query, c->instance, c->dev, stream, &done);
    REQUIRE(done == 1, "stream_query() of a stream without work said %d", done);
    check_gate *const gate = check_gate_close(c, c->dev, stream);
    MUST(c, stream_query, c->instance, c->dev, stream, &done);
    REQUIRE(done == 0, "stream_query() said %d while work was held", done);
    check_gate_open(gate);
    MUST(c, stream_sync, c->instance, c->dev, stream);
    MUST(c, stream_query, c->instance, c->dev, stream, &done);
    REQUIRE(done == 1, "stream_query() said %d after stream_sync()", done);
}

/* Held streams hold nobody else: neither the default stream, nor by it. */
static void
streams_are_apart(check_context *c)
{
    openreg_driver_stream const one = check_stream(c, c->dev), other = check_stream(c, c->dev);
    openreg_driver_stream const pairs[][2] = {{one, NULL}, {NULL, one}, {one, other}};
    for (int i = 0; i < 3; ++i) {
        check_gate *const gate = check_gate_close(c, c->dev, pairs[i][0]);
        check_gate_await_reached(gate);
        char *const memory = check_alloc(c, c->dev, SIZE);
        unsigned char *const host = check_host_alloc(c, SIZE, true);
        MUST(c, copy, c->instance, c->dev, pairs[i][1], memory, c->dev, host, -1, SIZE);
        REQUIRE(check_sync_returns(c, c->dev, pairs[i][1], NULL), "%s waited for %s without an event",
                pairs[i][1] == NULL ? "the default stream" : "a stream",
                pairs[i][0] == NULL ? "the default stream" : "another stream");
        check_gate_open(gate);
        MUST(c, device_sync, c->instance, c->dev);
    }
}

/* One piece of work, or none: at once, and behind work that takes a while. */
static void
destroyed_stream_ends(check_context *c, const check_tail *t, int32_t dev)
{
    enum { NOTHING, COPY, FUNC, FILL, KINDS };
    static const char *const whats[] = {"memory that no work was for",
                                        "a copy, the only work of a stream that was destroyed", "",
                                        "a fill, the only work of a stream that was destroyed"};
    check_drop_refused_host_func(c);
    for (int i = 0; i < 2 * KINDS; ++i) {
        const int kind = i % KINDS;
        atomic_int calls = 0;
        if ((kind == FUNC && c->table.host_func == NULL) || (kind == FILL && c->table.fill == NULL))
            continue;
        openreg_driver_stream const stream = check_stream(c, dev);
        memset(t->from, 0, SIZE);
        check_write(c, dev, t->memory, t->from, SIZE);
        memset(t->from, 7, SIZE);
        if (i >= KINDS)
            check_delay(c, dev, stream, 5);
        if (kind == COPY)
            MUST(c, copy, c->instance, dev, stream, t->memory, dev, t->from, -1, SIZE);
        if (kind == FUNC)
            MUST(c, host_func, c->instance, dev, stream, check_count_call, &calls);
        if (kind == FILL)
            MUST(c, fill, c->instance, dev, stream, t->memory, 7, SIZE);
        MUST(c, stream_destroy, c->instance, dev, stream);
        MUST(c, device_sync, c->instance, dev);
        REQUIRE(kind != FUNC || atomic_load(&calls) == 1,
                "a host function, the only work of a stream that was destroyed, ran %d times", atomic_load(&calls));
        check_read(c, dev, t->to, t->memory, SIZE);
        if (kind != FUNC)
            check_is_value(t->to, SIZE, kind == NOTHING ? 0 : 7, whats[kind]);
    }
}

static void
destroyed_stream_ends_its_work(check_context *c)
{
    check_tail t = {.from = NULL};
    openreg_driver_stream const stream = check_stream(c, c->dev);
    check_tail_queue(c, &t, c->dev, stream, 15);
    MUST(c, stream_destroy, c->instance, c->dev, stream);
    MUST(c, device_sync, c->instance, c->dev);
    check_is_pattern(t.to, CHECK_TAIL, t.seed, "the last copy of a stream that was destroyed");
    destroyed_stream_ends(c, &t, c->dev);
}

/* `writer` is held, and then writes; `reader` reads that after the event. By pinned memory each works on memory of its own
 * device: a copy between two may be late by itself. Without it by device memory: a copy of other host memory may wait. */
static void
wait_once(check_context *c, int32_t writer_dev, openreg_driver_stream writer, int32_t reader_dev,
          openreg_driver_stream reader, openreg_driver_event event)
{
    const int32_t between_dev = c->table.host_alloc != NULL ? -1 : writer_dev;
    char *const memory = check_alloc(c, writer_dev, SIZE), *const own = check_alloc(c, reader_dev, SIZE);
    char *const between = check_alloc_at(c, between_dev, SIZE, true);
    check_write_pattern(c, writer_dev, memory, SIZE, 2);
    check_write_pattern(c, between_dev, between, SIZE, 1);
    check_gate *const gate = check_hold(c, writer_dev, writer);
    MUST(c, copy, c->instance, writer_dev, writer, between, between_dev, memory, writer_dev, SIZE);
    MUST(c, event_record, c->instance, writer_dev, writer, event);
    MUST(c, stream_wait, c->instance, reader_dev, reader, event);
    MUST(c, copy, c->instance, reader_dev, reader, own, reader_dev, between, between_dev, SIZE);
    check_release(gate);
    check_sync(c, reader_dev, reader);
    check_sync(c, writer_dev, writer);
    check_holds_pattern(c, reader_dev, own, SIZE, 2, "what a stream copied after it had waited for the writer's event");
}

/* Of this device, or of this one and the next. */
static void
wait_orders_streams(check_context *c)
{
    const bool is_other = strcmp(c->check->name, "stream.wait_devices") == 0;
    const int32_t next = is_other ? (c->dev + 1) % c->devices : c->dev;
    openreg_driver_stream const one = check_stream(c, c->dev), other = check_stream(c, next);
    openreg_driver_event const event = check_event(c, c->dev, 0);
    wait_once(c, c->dev, one, next, other, event);
    wait_once(c, c->dev, NULL, next, is_other ? NULL : other, event);
    if (!is_other)
        wait_once(c, c->dev, one, next, NULL, event);
}

static void
wait_for_no_record(check_context *c)
{
    openreg_driver_stream const stream = check_stream(c, c->dev);
    openreg_driver_event const event = check_event(c, c->dev, 0);
    MUST(c, stream_wait, c->instance, c->dev, stream, event);
    MUST(c, stream_wait, c->instance, c->dev, NULL, event);
    if (c->table.stream_sync != NULL)
        REQUIRE(check_sync_returns(c, c->dev, stream, NULL), "a stream waits for an event that was never recorded");
    MUST(c, device_sync, c->instance, c->dev);
}

/* The wait is for the first record, though the event is recorded again, on an idle stream, before that is reached. With
 * `is_behind` the wait is still in the reader's queue at that time. */
static void
wait_keeps_its_record(check_context *c)
{
    openreg_driver_stream const writer = check_stream(c, 0), reader = check_stream(c, 0), idle = check_stream(c, 0);
    openreg_driver_event const event = check_event(c, 0, 0);
    char *const from = check_alloc(c, 0, SIZE), *const memory = check_alloc(c, 0, SIZE),
                *const to = check_alloc(c, 0, SIZE);
    for (int is_behind = 0; is_behind < (check_has_gate(c) ? 2 : 1); ++is_behind) {
        check_write_pattern(c, 0, memory, SIZE, 1);
        check_write_pattern(c, 0, from, SIZE, 2);
        check_gate *behind = NULL;
        if (is_behind) { /* first, and first to open: a vendor may run host functions one after the other */
            behind = check_gate_close(c, 0, reader);
            check_gate_await_reached(behind);
        }
        check_gate *const gate = check_hold(c, 0, writer);
        MUST(c, copy, c->instance, 0, writer, memory, 0, from, 0, SIZE);
        MUST(c, event_record, c->instance, 0, writer, event);
        MUST(c, stream_wait, c->instance, 0, reader, event);
        MUST(c, copy, c->instance, 0, reader, to, 0, memory, 0, SIZE);
        MUST(c, event_record, c->instance, 0, idle, event);
        check_sync(c, 0, idle);
        check_release(behind);
        check_release(gate);
        check_sync(c, 0, reader);
        check_holds_pattern(c, 0, to, SIZE, 2,
                            "what a stream copied after a wait for a record that was replaced later");
        check_sync(c, 0, writer);
    }
}

/* Two streams hand a buffer to and fro, a thousand times: message passing. */
static void
streams_pass_messages(check_context *c)
{
    enum { BYTES = 4096, ROUNDS = 400 };
    openreg_driver_stream const streams[] = {check_stream(c, 0), check_stream(c, 0)};
    openreg_driver_event const events[] = {check_event(c, 0, 0), check_event(c, 0, 0)};
    char *const memory[] = {check_alloc(c, 0, BYTES), check_alloc(c, 0, BYTES)};
    unsigned char *const host = check_host_alloc(c, BYTES, true), *const seen = check_host_alloc(c, BYTES, true);
    const double end = check_now() + c->target->seconds;
    for (uint64_t i = 0; i < 20 || check_now() < end; ++i) {
        check_pattern(host, BYTES, i);
        MUST(c, copy, c->instance, 0, streams[0], memory[0], 0, host, -1, BYTES);
        for (int k = 0; k < 16; ++k) {
            const int at = k % 2;
            MUST(c, event_record, c->instance, 0, streams[at], events[at]);
            MUST(c, stream_wait, c->instance, 0, streams[1 - at], events[at]);
            MUST(c, copy, c->instance, 0, streams[1 - at], memory[1 - at], 0, memory[at], 0, BYTES);
        }
        check_copy(c, 0, streams[0], seen, -1, memory[0], 0, BYTES);
        check_is_pattern(seen, BYTES, i, "bytes that two streams handed to each other sixteen times, by events");
    }
}

static const check_case cases[] = {
    {"stream.handles", "stream_create", CHECK_EACH,
     "stream_create(): a new stream, priority between priority_high and priority_low; destroying NULL is accepted.",
     "The runtime makes up to 32 streams for each priority of a device.", handles_are_streams},
    {"stream.sync", "stream_create", CHECK_EACH, "stream_sync() waits for all work queued so far.",
     "Wait for the end of the work, not for its start or its submission.", sync_waits},
    {"stream.sync_default", "stream_create", CHECK_EACH, "NULL is the device's default stream, for stream_sync() too.",
     "Map NULL to a stream of yours, of the right device.", sync_waits},
    {"stream.device_sync", "", CHECK_EACH,
     "device_sync() returns when all work of the device has ended, on every stream.",
     "Also that of the default stream, and of streams that were destroyed.", device_sync_waits},
    {"stream.query", "stream_create", CHECK_EACH,
     "stream_query(): 1 if all work queued so far has ended, to the last byte; it comes to that without a sync.",
     "Take work from the queue after it has run, not before; submit what is collected, so that it ends by itself.",
     query_sees_the_last_byte},
    {"stream.query_pending", "stream_create host_func", CHECK_GATE | CHECK_EACH,
     "stream_query(): 0 while work is pending, 1 when there is none.", "Host functions are work too.",
     query_of_held_stream},
    {"stream.apart", "stream_create host_func", CHECK_GATE | CHECK_EACH,
     "Order between streams comes from events alone: the default stream waits for no other stream, and none for it.",
     "CUDA: streams with cudaStreamNonBlocking. A queue for all streams deadlocks programs.", streams_are_apart},
    {"stream.destroy", "stream_create", CHECK_EACH, "Queued work of a stream that is destroyed still runs.",
     "Wait in stream_destroy(), or keep the queue until it is empty.", destroyed_stream_ends_its_work},
    {"stream.wait", "stream_create stream_wait event_create", CHECK_EACH,
     "stream_wait(): later work of this stream waits for the event's latest record.",
     "The device's queue waits, and the call itself returns.", wait_orders_streams},
    {"stream.wait_devices", "stream_create stream_wait event_create", CHECK_TWO_DEVICES | CHECK_EACH,
     "stream_wait(): the event may belong to another device of this driver.",
     "Where the vendor has no such wait, wait on the host, in a thread or in the call.", wait_orders_streams},
    {"stream.wait_unrecorded", "stream_create stream_wait event_create", CHECK_EACH,
     "stream_wait(): never recorded: nothing to wait for.", "Look for a record first.", wait_for_no_record},
    {"stream.wait_replaced", "stream_create stream_wait event_create", 0,
     "stream_wait() means the latest record at the time of its call; a later one does not change what it waits for.",
     "Wait for a number or a vendor's event of the record, not for the event's state.", wait_keeps_its_record},
    {"stream.messages", "stream_create stream_wait event_create", 0,
     "A stream behind the wait observes what the other stream wrote before the record.",
     "A wait that is dropped now and then, or a missing barrier between two queues.", streams_pass_messages},
};
const check_group check_stream_group = CHECK_GROUP(1, cases);
