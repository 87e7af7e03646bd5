/* SPDX-License-Identifier: BSD-3-Clause */
/* host_func_checks.c: functions of the host on a stream. */
#include <pthread.h>
#include <stdatomic.h>

#include "fixtures.h"

#define SIZE 50001

static void
runs_once_behind_earlier_work(check_context *c)
{
    openreg_driver_stream const streams[] = {NULL, check_stream(c, c->dev)};
    check_tail t = {.from = NULL};
    for (int i = 0; i < 4; ++i) {
        check_ballast(c, c->dev, streams[i % 2], 10);
        check_tail_queue(c, &t, c->dev, streams[i % 2], 0);
        check_visit v = {.bytes = t.to, .size = CHECK_TAIL, .seed = t.seed};
        MUST(c, host_func, c->instance, c->dev, streams[i % 2], check_look, &v);
        MUST(c, device_sync, c->instance, c->dev);
        REQUIRE(atomic_load(&v.calls) == 1, "a host function ran %d times by device_sync()", atomic_load(&v.calls));
        REQUIRE(v.right == CHECK_TAIL,
                "a host function ran before a copy in front of it had ended: byte %zu was not there", v.right);
        check_sleep(2);
        REQUIRE(atomic_load(&v.calls) == 1, "a host function ran %d times", atomic_load(&v.calls));
    }
}

/* A copy on the device, as a copy of host memory may wait inside its call. Another stream reads while it is held. */
static void
later_work_waits(check_context *c)
{
    openreg_driver_stream const stream = check_stream(c, 0);
    char *const from = check_alloc(c, 0, SIZE), *const to = check_alloc(c, 0, SIZE);
    check_write_pattern(c, 0, from, SIZE, 1);
    check_write_pattern(c, 0, to, SIZE, 2);
    check_gate *const gate = check_gate_close(c, 0, stream);
    MUST(c, copy, c->instance, 0, stream, to, 0, from, 0, SIZE);
    check_gate_await_reached(gate);
    check_sleep(20);
    check_holds_pattern(c, 0, to, SIZE, 2, "the target of a copy behind a host function that runs");
    check_gate_open(gate);
    check_sync(c, 0, stream);
    check_holds_pattern(c, 0, to, SIZE, 1, "the target of a copy behind a host function");
}

static void
waits_cover_it(check_context *c)
{
    openreg_driver_stream const streams[] = {NULL, check_stream(c, 0)};
    openreg_driver_event const event = c->table.event_create != NULL ? check_event(c, 0, 0) : NULL;
    for (int i = 0; i < 6; ++i) {
        check_visit v = {.bytes = NULL, .pause = 15};
        openreg_driver_stream const stream = streams[i % 2];
        MUST(c, host_func, c->instance, 0, stream, check_look, &v);
        const char *what = "device_sync()";
        if (i / 2 == 1 && event != NULL) {
            what = "event_sync() of an event recorded behind it";
            MUST(c, event_record, c->instance, 0, stream, event);
            MUST(c, event_sync, c->instance, 0, event);
        } else if (i / 2 == 2) {
            what = "stream_sync()";
            check_sync(c, 0, stream);
        } else {
            MUST(c, device_sync, c->instance, 0);
        }
        REQUIRE(atomic_load(&v.calls) == 1, "%s did not wait for a host function", what);
        MUST(c, device_sync, c->instance, 0);
    }
}

static void
runs_on_another_thread(check_context *c)
{
    check_visit v = {.bytes = NULL};
    MUST(c, host_func, c->instance, 0, NULL, check_look, &v);
    MUST(c, device_sync, c->instance, 0);
    REQUIRE(atomic_load(&v.calls) == 1 && !pthread_equal(v.thread, pthread_self()),
            "a host function ran on the thread that queued it, or waited for it");
}

/* A program's function may wait for a thread of its own, which calls the driver. */
static void
holds_no_lock(check_context *c)
{
    openreg_driver_stream const stream = check_stream(c, 0);
    check_skip_if(stream == NULL, "the table has no stream_create");
    check_gate *const gate = check_gate_close(c, 0, stream);
    check_gate_await_reached(gate);
    REQUIRE(check_returns_within(CHECK_PATIENCE * 1000, check_use_others, c),
            "while a host function ran, slots of other streams did not return");
    check_gate_open(gate);
    check_sync(c, 0, stream);
}

static const check_case cases[] = {
    {"host_func.once", "host_func", CHECK_EACH, "host_func(): it runs once, when the work queued before has ended.",
     "Behind copies in both directions, and by itself: nobody has to ask.", runs_once_behind_earlier_work},
    {"host_func.order", "stream_create host_func", CHECK_GATE, "Work queued later waits until the function returns.",
     "The function is a part of the queue; a callback of the vendor's may be none.", later_work_waits},
    {"host_func.waits", "host_func", 0,
     "The stream's queries and syncs, and events recorded behind it, wait until the function returns.",
     "Count the function's end, not its start.", waits_cover_it},
    {"host_func.thread", "host_func", 0, "The function runs on a thread of the driver's or of the vendor's.",
     "A program that holds a lock around the call would wait for itself.", runs_on_another_thread},
    {"host_func.unlocked", "host_func", CHECK_GATE, "The function runs with no lock of the driver held.",
     "Take the task from the queue, release the lock, run it.", holds_no_lock},
};
const check_group check_host_func_group = CHECK_GROUP(1, cases);
