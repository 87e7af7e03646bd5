/* SPDX-License-Identifier: BSD-3-Clause */
/* event_checks.c: events: when they are complete, which record counts, and their times. */
#include <string.h>

#include "fixtures.h"

#define SIZE 60001

static int32_t
query(check_context *c, int32_t dev, openreg_driver_event event)
{
    int32_t done = -7;
    MUST(c, event_query, c->instance, dev, event, &done);
    REQUIRE(done == 0 || done == 1, "event_query() said %d", done);
    return done;
}

/* Bytes reach the host in front of the record: they are there when the event says so. */
static void
complete_after_last_byte(check_context *c)
{
    const bool by_query = strcmp(c->check->name, "event.query") == 0;
    openreg_driver_stream const streams[] = {check_stream(c, c->dev), NULL};
    openreg_driver_event const event = check_event(c, c->dev, 0);
    check_tail t = {.from = NULL};
    for (int i = 0; i < 4; ++i) {
        check_tail_queue(c, &t, c->dev, streams[i % 2], 15);
        MUST(c, event_record, c->instance, c->dev, streams[i % 2], event);
        const double end = check_own_time() + CHECK_PATIENCE;
        while (by_query && query(c, c->dev, event) == 0)
            REQUIRE(check_own_time() < end, "event_query() says 0 %d seconds after a few copies and the record",
                    CHECK_PATIENCE);
        if (!by_query)
            MUST(c, event_sync, c->instance, c->dev, event);
        check_is_pattern(t.to, CHECK_TAIL, t.seed, "the last copy in front of a record that is complete");
        REQUIRE(query(c, c->dev, event) == 1, "event_query() said 0 of an event that was complete");
    }
}

static void
query_of_held_event(check_context *c)
{
    openreg_driver_stream const stream = check_stream(c, c->dev);
    openreg_driver_event const event = check_event(c, c->dev, 0);
    check_gate *const gate = check_gate_close(c, c->dev, stream);
    MUST(c, event_record, c->instance, c->dev, stream, event);
    REQUIRE(query(c, c->dev, event) == 0, "event_query() said 1 while work in front of the record was held");
    check_gate_open(gate);
    MUST(c, event_sync, c->instance, c->dev, event);
    REQUIRE(query(c, c->dev, event) == 1, "event_query() said 0 after event_sync()");
}

static void
without_record(check_context *c)
{
    openreg_driver_event const event = check_event(c, c->dev, c->dev % 2 == 0 ? 0 : OPENREG_EVENT_TIMING);
    REQUIRE(query(c, c->dev, event) == 1, "event_query() said 0 of an event that was never recorded");
    REQUIRE(check_sync_returns(c, c->dev, NULL, event), "event_sync() waits for an event that was never recorded");
}

static void
sync_is_for_its_record_alone(check_context *c)
{
    openreg_driver_stream const stream = check_stream(c, 0);
    openreg_driver_event const event = check_event(c, 0, 0);
    char *const memory = check_alloc(c, 0, 2 * SIZE);
    MUST(c, copy, c->instance, 0, stream, memory, 0, memory + SIZE, 0, SIZE);
    MUST(c, event_record, c->instance, 0, stream, event);
    check_gate *const gate = check_gate_close(c, 0, stream);
    REQUIRE(check_sync_returns(c, 0, NULL, event), "event_sync() waits for work that was queued behind the record");
    REQUIRE(query(c, 0, event) == 1, "event_query() said 0 while work behind the record was held");
    check_gate_open(gate);
    check_sync(c, 0, stream);
}

/* Held records first, idle ones last, and the other way round. */
static void
latest_record_counts(check_context *c)
{
    openreg_driver_stream const held = check_stream(c, 0), idle = check_stream(c, 0);
    openreg_driver_event const event = check_event(c, 0, 0);
    check_gate *const gate = check_gate_close(c, 0, held);
    MUST(c, event_record, c->instance, 0, held, event);
    MUST(c, event_record, c->instance, 0, idle, event);
    MUST(c, stream_sync, c->instance, 0, idle);
    REQUIRE(query(c, 0, event) == 1,
            "an event recorded on an idle stream is not complete: an earlier record, on a stream that is held, counts");
    REQUIRE(check_sync_returns(c, 0, NULL, event), "event_sync() waits for a record that was replaced");
    MUST(c, event_record, c->instance, 0, held, event);
    REQUIRE(query(c, 0, event) == 0,
            "an event recorded on a stream that is held is complete: an earlier record counts");
    check_gate_open(gate);
    MUST(c, event_sync, c->instance, 0, event);
}

/* With one flag for an event, the end of the first record would complete the second. */
static void
first_record_does_not_complete_second(check_context *c)
{
    openreg_driver_stream const one = check_stream(c, 0), other = check_stream(c, 0);
    openreg_driver_event const event = check_event(c, 0, 0);
    check_gate *const first = check_gate_close(c, 0, one);
    MUST(c, event_record, c->instance, 0, one, event);
    check_gate_await_reached(first); /* a vendor may run host functions one after the other */
    check_gate *const second = check_gate_close(c, 0, other);
    MUST(c, event_record, c->instance, 0, other, event);
    check_gate_open(first);
    MUST(c, stream_sync, c->instance, 0, one);
    check_sleep(5);
    REQUIRE(query(c, 0, event) == 0, "the end of an event's first record completed its second one, which was held");
    check_gate_open(second);
    MUST(c, event_sync, c->instance, 0, event);
}

static void
handles_are_events(check_context *c)
{
    enum { MANY = 500 };
    openreg_driver_event events[MANY];
    openreg_driver_stream const stream = check_stream(c, 0);
    for (int i = 0; i < MANY; ++i) {
        events[i] = check_event(c, i % c->devices, i % 2 == 0 ? 0 : OPENREG_EVENT_TIMING);
        for (int k = i > 20 ? i - 20 : 0; k < i; ++k)
            REQUIRE(events[k] != events[i], "event_create() gave one handle for two events");
        MUST(c, event_record, c->instance, i % c->devices, i % c->devices == 0 ? stream : NULL, events[i]);
    }
    for (int i = 0; i < MANY; ++i)
        MUST(c, event_sync, c->instance, i % c->devices, events[i]);
    for (int i = 0; i < MANY; ++i)
        MUST(c, event_destroy, c->instance, i % c->devices, events[i]);
    MUST(c, event_destroy, c->instance, 0, NULL);
}

static void
pending_events_are_destroyed(check_context *c)
{
    unsigned char *const to = check_host_alloc(c, SIZE, true), *const from = check_host_alloc(c, SIZE, true);
    openreg_driver_stream const stream = check_stream(c, 0), other = check_stream(c, 0);
    char *const memory = check_alloc(c, 0, SIZE);
    for (uint64_t i = 0; i < 10; ++i) {
        openreg_driver_event const event = check_event(c, 0, i % 2 == 0 ? 0 : OPENREG_EVENT_TIMING);
        check_pattern(from, SIZE, i);
        check_delay(c, 0, stream, 5);
        MUST(c, copy, c->instance, 0, stream, memory, 0, from, -1, SIZE);
        MUST(c, event_record, c->instance, 0, stream, event);
        OPTIONAL(c, stream_wait, c->instance, 0, other, event);
        MUST(c, event_destroy, c->instance, 0, event);
        MUST(c, copy, c->instance, 0, c->table.stream_wait != NULL ? other : stream, to, -1, memory, 0, SIZE);
        MUST(c, device_sync, c->instance, 0);
        check_is_pattern(to, SIZE, i, "a copy behind a wait for an event that was destroyed while it was pending");
    }
}

/* In milliseconds. */
static double
elapsed(check_context *c, int32_t dev, openreg_driver_event start, openreg_driver_event end)
{
    int64_t ns = INT64_MIN;
    MUST(c, event_elapsed, c->instance, dev, start, end, &ns);
    return (double)ns / 1e6;
}

/* By the host's clock too: the span that the events measure fills most of the host's. On a busy machine the host may come
 * late: one of three attempts has to show it. */
static void
times_are_nanoseconds(check_context *c)
{
    openreg_driver_event const start = check_event(c, c->dev, OPENREG_EVENT_TIMING);
    openreg_driver_event const end = check_event(c, c->dev, OPENREG_EVENT_TIMING);
    openreg_driver_stream const stream = check_stream(c, c->dev);
    check_ballast(c, c->dev, stream, 2);
    double host = 0, ms = 0;
    bool is_close = false;
    for (int i = 0; i < 3 && !is_close; ++i) {
        MUST(c, device_sync, c->instance, c->dev);
        const double begin = check_now();
        MUST(c, event_record, c->instance, c->dev, stream, start);
        check_delay(c, c->dev, stream, 60);
        MUST(c, event_record, c->instance, c->dev, stream, end);
        MUST(c, event_sync, c->instance, c->dev, end);
        host = (check_now() - begin) * 1e3;
        ms = elapsed(c, c->dev, start, end);
        REQUIRE(ms <= host * 1.1 + 2, "event_elapsed() said %g ms for what took the host %g ms", ms, host);
        is_close = ms >= host * 0.5;
    }
    REQUIRE(is_close, "event_elapsed() said %g ms for work that fills most of the host's %g ms", ms, host);
}

static void
times_run_forwards(check_context *c)
{
    enum { MANY = 64 };
    openreg_driver_event events[MANY];
    openreg_driver_stream const stream = check_stream(c, 0);
    char *const memory = check_alloc(c, 0, 2 * SIZE);
    for (int i = 0; i < MANY; ++i)
        events[i] = check_event(c, 0, OPENREG_EVENT_TIMING);
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < MANY; ++i) {
            MUST(c, copy, c->instance, 0, stream, memory, 0, memory + SIZE, 0, SIZE);
            MUST(c, event_record, c->instance, 0, stream, events[i]);
        }
        check_sync(c, 0, stream);
        REQUIRE(elapsed(c, 0, events[0], events[0]) == 0, "the time from an event to itself is %g ms",
                elapsed(c, 0, events[0], events[0]));
        for (int i = 1; i < MANY; ++i) {
            const double step = elapsed(c, 0, events[i - 1], events[i]), back = elapsed(c, 0, events[i], events[i - 1]);
            REQUIRE(step >= 0, "record %d of a stream is %g ms before record %d", i, -step, i - 1);
            REQUIRE(back <= 0 && back + step < 1e-3 && back + step > -1e-3,
                    "from one record to the next it is %g ms, and back %g ms", step, back);
        }
        const double whole = elapsed(c, 0, events[0], events[MANY - 1]);
        const double parts = elapsed(c, 0, events[0], events[MANY / 2]) +
                             elapsed(c, 0, events[MANY / 2], events[MANY - 1]);
        REQUIRE(whole - parts < 0.1 && parts - whole < 0.1, "a span is %g ms, and its two halves %g ms", whole, parts);
    }
}

static const check_case cases[] = {
    {"event.query", "event_create", CHECK_EACH,
     "event_query(): 1 if the latest record is complete, with the last byte of the work in front of it.",
     "Complete the event in the queue, behind the work; submit what is collected, so that it ends by itself.",
     complete_after_last_byte},
    {"event.query_pending", "event_create stream_create host_func", CHECK_GATE | CHECK_EACH,
     "event_query(): 0 while the latest record is not complete.", "A record waits for host functions too.",
     query_of_held_event},
    {"event.sync", "event_create", CHECK_EACH, "event_sync() waits for the latest record.",
     "Wait for the end of the work, not for its start or its submission.", complete_after_last_byte},
    {"event.unrecorded", "event_create", CHECK_EACH,
     "An event that was never recorded is complete: query says 1, sync returns.",
     "A vendor's event may be pending until its first record.", without_record},
    {"event.sync_exact", "event_create stream_create host_func", CHECK_GATE,
     "event_sync() waits for the record, not for what is queued behind it.",
     "Don't wait for the stream in place of the event.", sync_is_for_its_record_alone},
    {"event.latest", "event_create stream_create host_func", CHECK_GATE,
     "Recording again replaces an earlier record: query and sync mean the latest one.",
     "Keep the stream and the position of the latest record with the event.", latest_record_counts},
    {"event.replaced", "event_create stream_create host_func", CHECK_GATE,
     "The end of an earlier record does not complete a later one.",
     "One flag for an event is not enough: count records.", first_record_does_not_complete_second},
    {"event.handles", "event_create", 0, "event_create(): a new event; destroying NULL is accepted.",
     "PyTorch makes thousands.", handles_are_events},
    {"event.destroy", "event_create", 0,
     "An event may be destroyed while its record is pending, and a wait for it too.",
     "What the queue needs of an event must outlive it.", pending_events_are_destroyed},
    {"event.elapsed", "event_create event_elapsed", CHECK_EACH,
     "event_elapsed(): nanoseconds from start to end, taken when the stream passes the records.",
     "Vendors count nanoseconds or ticks; some note the time of submission.", times_are_nanoseconds},
    {"event.elapsed_order", "event_create event_elapsed", 0,
     "Times on a stream never run backwards, and from an event to itself it is 0.",
     "Take the times of one clock, at one point of a record.", times_run_forwards},
};
const check_group check_event_group = CHECK_GROUP(1, cases);
