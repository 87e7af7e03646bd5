/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant_queues.c: defects of streams, events and host functions (mutants.h). */
#define _GNU_SOURCE
#include "mutant.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------------------- streams */

static openreg_driver_stream last_stream;
mutant_func_note mutant_last_func;
static void *_Atomic dropped_call; /* with its stream: it does not run */

/* Streams with work that nobody has waited for by stream_sync(). */
static openreg_driver_stream unsynced[256];

static openreg_driver_stream *
unsynced_place(openreg_driver_stream stream)
{
    for (size_t i = 0; i < sizeof unsynced / sizeof unsynced[0]; ++i)
        if (unsynced[i] == stream)
            return &unsynced[i];
    return NULL;
}

void
mutant_note_work(openreg_driver_stream stream)
{
    const bool is_noted = IS(destroy_unsynced_leaks) || IS(busy_kept_to_close);
    openreg_driver_stream *const place = is_noted && stream != NULL && unsynced_place(stream) == NULL
                                             ? unsynced_place(NULL)
                                             : NULL;
    if (place != NULL)
        *place = stream;
}

/* Whether it had such work. */
static bool
forget_work(openreg_driver_stream stream)
{
    openreg_driver_stream *const place = stream != NULL ? unsynced_place(stream) : NULL;
    if (place != NULL)
        *place = NULL;
    return place != NULL;
}

/* What destroyed streams leave until close(). */
typedef struct kept {
    struct kept *next;
    char bytes[692];
} kept;

static kept *_Atomic all_kept;

static void
keep_to_close(void)
{
    kept *const more = malloc(sizeof *more);
    if (more != NULL)
        more->next = atomic_exchange(&all_kept, more); /* close(), alone, is who follows it */
}

void
mutant_free_kept(void)
{
    for (kept *at = atomic_exchange(&all_kept, NULL), *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
}

/* The streams that device_sync() knows. */
static openreg_driver_stream known[16];

static void
replace_known(openreg_driver_stream old, openreg_driver_stream new)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
        if (known[i] == old) {
            known[i] = new;
            return;
        }
}

static openreg_status
sync_known(openreg_instance instance, int32_t dev)
{
    openreg_status status = mutant_base->stream_sync(instance, dev, NULL);
    for (size_t i = 0; i < sizeof known / sizeof known[0] && status == OPENREG_OK; ++i)
        if (known[i] != NULL && known[i]->device->ordinal == dev)
            status = mutant_base->stream_sync(instance, dev, known[i]);
    return status;
}

static openreg_status
mutant_stream_create(openreg_instance instance, int32_t dev, uint32_t flags, int32_t priority,
                     openreg_driver_stream *out)
{
    static int created;
    mutant_lock();
    mutant_unlock();
    if (IS(streams_abort) && ++created == 3000)
        abort();
    if (IS(stream_twice) && last_stream != NULL && last_stream->device->ordinal == dev) {
        *out = last_stream;
        return OPENREG_OK;
    }
    const openreg_status status = mutant_base->stream_create(instance, dev, flags, IS(odd_priorities) ? 0 : priority,
                                                             out);
    if (status == OPENREG_OK)
        last_stream = *out;
    if (status == OPENREG_OK && IS(device_sync_16))
        replace_known(NULL, *out);
    return status;
}

static openreg_status
mutant_stream_destroy(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    if (IS(stream_null_refused) && stream == NULL)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "no stream");
    mutant_held_work.instance = NULL;
    if (IS(destroy_drops_func) && stream != NULL && mutant_last_func.stream == stream)
        atomic_store(&dropped_call, mutant_last_func.call);
    if (IS(destroy_drops))
        mutant_drop_late_copy();
    mutant_run_late_copy();
    if (IS(device_sync_16) && stream != NULL)
        replace_known(stream, NULL);
    const bool had_work = forget_work(stream);
    if (had_work && IS(destroy_unsynced_leaks))
        (void)dup(STDERR_FILENO);
    if (had_work && IS(busy_kept_to_close))
        keep_to_close();
    return IS(stream_leaked) ? OPENREG_OK : mutant_base->stream_destroy(instance, dev, stream);
}

static openreg_status
mutant_stream_query(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    mutant_lock();
    mutant_unlock();
    mutant_run_late_copy();
    const openreg_status status = mutant_base->stream_query(instance, dev, stream, done);
    if (IS(stream_query_leaks))
        mutant_leaked = malloc(40);
    if (IS(query_done))
        *done = 1;
    if (IS(query_never_done))
        *done = 0;
    return status;
}

/* A recording whose failure the vendor tells later. */
static int record_failed;

static openreg_status
mutant_stream_sync(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    mutant_run_late_copy();
    (void)forget_work(stream);
    if (record_failed && !IS(vendor_error_forgotten)) {
        record_failed = 0;
        return openreg_fail(instance->host, OPENREG_E_INTERNAL, 7, "the vendor's recording failed");
    }
    if (IS(sync_not) || (IS(sync_default_not) && stream == NULL))
        return OPENREG_OK;
    if (IS(default_waits) && stream == NULL)
        return mutant_base->device_sync(instance, dev);
    if (IS(sync_locked))
        mutant_lock();
    const openreg_status status = mutant_base->stream_sync(instance, dev, stream);
    if (IS(sync_locked))
        mutant_unlock();
    return status;
}

static openreg_status
mutant_device_sync(openreg_instance instance, int32_t dev)
{
    mutant_run_late_copy();
    if (IS(device_sync_not))
        return OPENREG_OK;
    if (IS(device_sync_default))
        return mutant_base->stream_sync(instance, dev, NULL);
    return IS(device_sync_16) ? sync_known(instance, dev) : mutant_base->device_sync(instance, dev);
}

typedef struct polled_wait {
    openreg_instance instance;
    int32_t dev;
    openreg_driver_event event;
    openreg_driver_stream timeline; /* of the record */
    uint64_t position;
    atomic_int is_begun, is_dropped;
} polled_wait;

static polled_wait *pending_wait; /* the latest one */

static void
poll_event(void *argument)
{
    polled_wait *const wait = argument;
    for (int32_t done = 0; done == 0;) {
        (void)usleep(500);
        (void)mutant_base->event_query(wait->instance, wait->dev, wait->event, &done);
    }
    free(wait);
}

/* Right as long as nobody records the event again before the stream comes to the wait. */
static void
poll_record(void *argument)
{
    polled_wait *const wait = argument;
    atomic_store(&wait->is_begun, 1);
    while (!atomic_load(&wait->is_dropped) && !openreg_sim_stream_passed(wait->timeline, wait->position))
        (void)usleep(500);
}

static void
drop_wait_for(openreg_driver_event event)
{
    if (IS(unpinned_wait_dropped) && pending_wait != NULL && pending_wait->event == event)
        atomic_store(&pending_wait->is_dropped, !atomic_load(&pending_wait->is_begun));
}

static openreg_status
mutant_stream_wait(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    static int waits;
    mutant_run_late_copy();
    if (IS(wait_not) || IS(runtime_wait_not) || (IS(wait_not_devices) && event->device != dev) ||
        (IS(wait_sometimes) && ++waits % 5 == 0))
        return OPENREG_OK;
    if (IS(wait_unrecorded) && event->timeline == NULL)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "the event was never recorded");
    if (IS(wait_latest) || IS(unpinned_wait_latest)) {
        polled_wait *const wait = malloc(sizeof *wait);
        *wait = (polled_wait){.instance = instance, .dev = event->device, .event = event};
        return mutant_base->host_func(instance, dev, stream, poll_event, wait);
    }
    if (IS(unpinned_wait_dropped) && event->timeline != NULL) {
        pending_wait = malloc(sizeof *pending_wait);
        *pending_wait = (polled_wait){.event = event, .timeline = event->timeline, .position = event->position};
        return mutant_base->host_func(instance, dev, stream, poll_record, pending_wait);
    }
    return mutant_base->stream_wait(instance, dev, stream, event);
}

/* -------------------------------------------------------------------------------------------------------------- events */

/* What the defects keep of an event. */
typedef struct note {
    openreg_driver_event event;
    atomic_int flag;
    int64_t submitted; /* nanoseconds */
    int32_t recorded;
} note;

static note notes[4096];

static note *
note_of(openreg_driver_event event)
{
    for (size_t i = 0; i < sizeof notes / sizeof notes[0]; ++i)
        if (notes[i].event == event || notes[i].event == NULL) {
            notes[i].event = event;
            return &notes[i];
        }
    return &notes[0];
}

static bool
keeps_notes(void)
{
    return IS(event_one_flag) || IS(elapsed_submitted) || IS(event_first_record);
}

static openreg_status
mutant_event_create(openreg_instance instance, int32_t dev, uint32_t flags, openreg_driver_event *out)
{
    static int created;
    static openreg_driver_event last, shared;
    mutant_lock();
    mutant_unlock();
    if (IS(events_other_code) && ++created == 5000)
        return openreg_fail(instance->host, OPENREG_E_INTERNAL, 0, "no more events");
    if (IS(event_twice) && last != NULL && ++created % 2 == 0) {
        *out = last;
        return OPENREG_OK;
    }
    const openreg_status status = mutant_base->event_create(instance, dev, flags, out);
    if (status != OPENREG_OK)
        return status;
    last = *out;
    if (IS(racy_event)) {
        shared = *out;
        (void)usleep(20);
        *out = shared;
    }
    if (keeps_notes())
        *note_of(*out) = (note){.event = *out};
    return status;
}

static openreg_status
mutant_event_destroy(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    if (IS(event_null_refused) && event == NULL)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "no event");
    int32_t done = 1;
    if (IS(event_busy) && event != NULL)
        (void)mutant_base->event_query(instance, dev, event, &done);
    if (done == 0)
        return openreg_fail(instance->host, OPENREG_E_BUSY, 0, "the event is pending");
    return IS(event_leaked) ? OPENREG_OK : mutant_base->event_destroy(instance, dev, event);
}

static void
raise_flag(void *argument)
{
    atomic_store(&((note *)argument)->flag, 1);
}

static openreg_status
mutant_event_record(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    mutant_run_late_copy();
    drop_wait_for(event);
    if (openreg_probe_fails(&mutant_to_fail))
        record_failed = 1;
    if (IS(record_leaks) && event->timeline != NULL)
        mutant_leaked = malloc(48);
    if (keeps_notes()) {
        note *const n = note_of(event);
        n->submitted = (int64_t)openreg_sim_now();
        atomic_store(&n->flag, 0);
        if (IS(event_first_record) && n->recorded++ > 0)
            return OPENREG_OK;
        if (IS(event_one_flag))
            (void)mutant_base->host_func(instance, dev, stream, raise_flag, n);
    }
    return mutant_base->event_record(instance, dev, stream, event);
}

static openreg_status
mutant_event_query(openreg_instance instance, int32_t dev, openreg_driver_event event, int32_t *done)
{
    mutant_run_late_copy();
    if (IS(error_on_success))
        (void)openreg_fail(instance->host, OPENREG_E_INTERNAL, 0, "not ready, asked again");
    const openreg_status status = mutant_base->event_query(instance, dev, event, done);
    if (IS(event_query_leaks) && status == OPENREG_OK && *done != 0)
        mutant_leaked = malloc(40);
    if (IS(event_done))
        *done = 1;
    if (IS(event_never_done) || (IS(unrecorded_pending) && event->timeline == NULL))
        *done = 0;
    if (IS(event_one_flag))
        *done = atomic_load(&note_of(event)->flag);
    return status;
}

static openreg_status
mutant_event_sync(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    mutant_run_late_copy();
    if (IS(event_sync_not))
        return OPENREG_OK;
    if (IS(event_sync_more))
        return mutant_base->device_sync(instance, dev);
    return mutant_base->event_sync(instance, dev, event);
}

static openreg_status
mutant_event_elapsed(openreg_instance instance, int32_t dev, openreg_driver_event start, openreg_driver_event end,
                     int64_t *nanoseconds)
{
    static int asked;
    const bool is_refused = !start->timed || !end->timed || start->timeline == NULL || end->timeline == NULL;
    if ((IS(elapsed_always) && is_refused) || (IS(elapsed_any_device) && start->device != end->device) ||
        IS(elapsed_waits)) {
        *nanoseconds = IS(elapsed_waits) ? 1000000 : 0;
        return OPENREG_OK;
    }
    const openreg_status status = mutant_base->event_elapsed(instance, dev, start, end, nanoseconds);
    if (IS(event_elapsed_leaks) && status == OPENREG_OK)
        mutant_leaked = malloc(40);
    if (status != OPENREG_OK && IS(elapsed_refusal_leaks))
        mutant_leaked = malloc(48);
    if (status != OPENREG_OK)
        return status;
    if (IS(elapsed_us))
        *nanoseconds /= 1000;
    if (IS(elapsed_ms))
        *nanoseconds /= 1000000;
    if (IS(elapsed_submitted))
        *nanoseconds = note_of(end)->submitted - note_of(start)->submitted;
    if (IS(elapsed_backwards) && start != end && ++asked % 5 == 0)
        *nanoseconds -= 1000000;
    return status;
}

/* ------------------------------------------------------------------------------------------------------ host functions */

typedef struct func_call {
    void (*function)(void *argument);
    void *argument;
} func_call;

static void
call_and_free(void *argument)
{
    func_call *const call = argument;
    if (IS(func_locked))
        mutant_lock();
    if (atomic_load(&dropped_call) != call)
        call->function(call->argument);
    if (IS(func_locked))
        mutant_unlock();
    static atomic_int called;
    if (IS(func_twice) || (IS(func_twice_rarely) && atomic_fetch_add(&called, 1) % 200 == 199))
        call->function(call->argument);
    free(call);
}

static void *
call_in_thread(void *argument)
{
    if (!IS(func_early))
        (void)usleep(3000);
    call_and_free(argument);
    return NULL;
}

static void
detach_call(void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, call_in_thread, argument) == 0)
        (void)pthread_detach(thread);
}

static openreg_status
mutant_host_func(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void (*function)(void *argument),
                 void *argument)
{
    mutant_run_late_copy();
    if (IS(host_func_leaks))
        mutant_leaked = malloc(40);
    static int first_use;
    if (IS(first_use_leaks))
        mutant_keep_at_first_use(&first_use);
    static int funcs;
    if (IS(func_rarely) && ++funcs % 200 == 0)
        return OPENREG_OK;
    func_call *const call = malloc(sizeof *call);
    *call = (func_call){function, argument};
    if (IS(func_of_stream)) { /* a stream's state, in two steps without its lock */
        static func_call next[1024];
        func_call *const place = &next[(uintptr_t)stream / 64 % 1024];
        *place = *call;
        (void)usleep(50);
        *call = *place;
    }
    mutant_last_func = (mutant_func_note){stream, call};
    if (atomic_load(&dropped_call) == call)
        atomic_store(&dropped_call, NULL);
    if (IS(func_inline)) {
        (void)mutant_base->stream_sync(instance, dev, stream);
        call_and_free(call);
        return OPENREG_OK;
    }
    if (IS(func_early)) {
        detach_call(call);
        return OPENREG_OK;
    }
    return mutant_base->host_func(instance, dev, stream,
                                  IS(func_detached) || IS(unpinned_func_apart) ? detach_call : call_and_free, call);
}

void
mutant_wrap_queues(openreg_driver *table)
{
    table->stream_create = mutant_stream_create;
    table->stream_destroy = mutant_stream_destroy;
    table->stream_query = mutant_stream_query;
    table->stream_sync = mutant_stream_sync;
    table->stream_wait = mutant_stream_wait;
    table->device_sync = mutant_device_sync;
    table->event_create = mutant_event_create;
    table->event_destroy = mutant_event_destroy;
    table->event_record = mutant_event_record;
    table->event_query = mutant_event_query;
    table->event_sync = mutant_event_sync;
    table->event_elapsed = mutant_event_elapsed;
    table->host_func = mutant_host_func;
}
