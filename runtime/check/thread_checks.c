/* SPDX-License-Identifier: BSD-3-Clause */
/* thread_checks.c: slots called from many threads at once. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fixtures.h"

#define THREADS 16
#define SIZE 20000
#define BLOCKS 4

/* A thread's own: nobody else touches its memory, so what it finds there must be what its own program put there. */
typedef struct worker {
    check_context c; /* with a random state of its own */
    pthread_t thread;
    int32_t dev;
    int rounds;
    bool is_failing;
    unsigned char *model[BLOCKS], *seen, *staging;
    char *memory[BLOCKS];
    openreg_driver_stream stream;
    openreg_driver_event event; /* NULL: the driver has none */
    int queued;                 /* host functions */
    atomic_int called;
    atomic_bool is_out_of_order;
} worker;

typedef struct queued_call {
    worker *worker;
    int number;
} queued_call;

/* Runs on a thread of the driver's. */
static void
note_call(void *argument)
{
    queued_call *const call = argument;
    if (atomic_fetch_add(&call->worker->called, 1) != call->number)
        atomic_store(&call->worker->is_out_of_order, true);
    free(call);
}

/* `staging` and `seen` may be written again. Waits for the stream, or for an event behind the thread's work. */
static void
settle(worker *w)
{
    check_context *const c = &w->c;
    if (w->event != NULL && check_random_below(c, 2) == 0) {
        MUST(c, event_record, c->instance, w->dev, w->stream, w->event);
        MUST(c, event_sync, c->instance, w->dev, w->event);
    } else {
        check_sync(c, w->dev, w->stream);
    }
    const int called = atomic_load(&w->called);
    REQUIRE(called == w->queued, "of %d host functions that a thread had queued %d were called when it had waited",
            w->queued, called);
    REQUIRE(!atomic_load(&w->is_out_of_order), "host functions of one thread on one stream were called out of order");
}

static void
step(worker *w)
{
    check_context *const c = &w->c;
    const size_t block = (size_t)check_random_below(c, BLOCKS),
                 other = (block + 1 + check_random_below(c, BLOCKS - 1)) % BLOCKS;
    const size_t size = 1 + (size_t)check_random_below(c, SIZE / 2), from = (size_t)check_random_below(c, SIZE - size),
                 to = (size_t)check_random_below(c, SIZE - size);
    switch (check_random_below(c, 8)) {
    case 0: /* from the host */
        settle(w);
        check_pattern(w->staging, size, check_random(c));
        MUST(c, copy, c->instance, w->dev, w->stream, w->memory[block] + to, w->dev, w->staging, -1, size);
        memcpy(w->model[block] + to, w->staging, size);
        break;
    case 1: /* on the device */
    case 2:
        MUST(c, copy, c->instance, w->dev, w->stream, w->memory[block] + to, w->dev, w->memory[other] + from, w->dev,
             size);
        memcpy(w->model[block] + to, w->model[other] + from, size);
        break;
    case 3:
        if (c->table.fill != NULL) {
            const uint8_t value = (uint8_t)check_random(c);
            MUST(c, fill, c->instance, w->dev, w->stream, w->memory[block] + to, value, size);
            memset(w->model[block] + to, value, size);
        }
        break;
    case 5:
        if (c->table.host_func != NULL) {
            queued_call *const call = malloc(sizeof *call);
            *call = (queued_call){w, w->queued++};
            MUST(c, host_func, c->instance, w->dev, w->stream, note_call, call);
        }
        break;
    case 6:
        if (w->event != NULL) {
            MUST(c, event_record, c->instance, w->dev, w->stream, w->event);
            if (c->table.stream_wait != NULL)
                MUST(c, stream_wait, c->instance, w->dev, w->stream, w->event);
        }
        break;
    case 4: /* a block that comes and goes, with contents on the way */
        settle(w);
        {
            char *const visitor = check_alloc(c, w->dev, size);
            MUST(c, copy, c->instance, w->dev, w->stream, visitor, w->dev, w->memory[other] + from, w->dev, size);
            MUST(c, copy, c->instance, w->dev, w->stream, w->memory[block] + to, w->dev, visitor, w->dev, size);
            memcpy(w->model[block] + to, w->model[other] + from, size);
            check_free(c, w->dev, visitor);
        }
        break;
    default:
        MUST(c, copy, c->instance, w->dev, w->stream, w->seen, -1, w->memory[block] + from, w->dev, size);
        settle(w);
        REQUIRE(memcmp(w->seen, w->model[block] + from, size) == 0,
                "step %d of a thread among %d found other bytes than its own program put there (seed %llu)", w->rounds,
                THREADS, (unsigned long long)c->target->seed);
    }
    ++w->rounds;
}

static void
prepare(worker *w, const check_context *c, int i)
{
    w->c = *c;
    w->c.random += (uint64_t)(i + 1) * UINT64_C(0xd1342543de82ef95);
    w->dev = i % c->devices;
    w->stream = check_stream(&w->c, w->dev);
    w->event = c->table.event_create == NULL ? NULL : check_event(&w->c, w->dev, 0);
    w->seen = check_host_alloc(&w->c, SIZE, true);
    w->staging = check_host_alloc(&w->c, SIZE, true);
    for (int k = 0; k < BLOCKS; ++k) {
        w->model[k] = malloc(SIZE);
        w->memory[k] = check_alloc(&w->c, w->dev, SIZE);
        check_pattern(w->model[k], SIZE, (uint64_t)(i * BLOCKS + k));
        check_write(&w->c, w->dev, w->memory[k], w->model[k], SIZE);
    }
}

static void *
run_steps(void *argument)
{
    worker *const w = argument;
    const double end = check_now() + w->c.target->seconds;
    while (w->rounds < 50 || check_now() < end)
        step(w);
    return NULL;
}

static void
run_threads(check_context *c, void *(*function)(void *), worker *workers)
{
    for (int i = 0; i < THREADS; ++i)
        if (pthread_create(&workers[i].thread, NULL, function, &workers[i]) != 0)
            check_skip("no thread could be made");
    for (int i = 0; i < THREADS; ++i)
        (void)pthread_join(workers[i].thread, NULL);
    for (int32_t dev = 0; dev < c->devices; ++dev)
        MUST(c, device_sync, c->instance, dev);
}

static void
agrees_with_serial_model(check_context *c)
{
    static worker workers[THREADS];
    for (int i = 0; i < THREADS; ++i)
        prepare(&workers[i], c, i);
    run_threads(c, run_steps, workers);
}

static void
share_streams(check_context *c)
{
    static worker workers[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        prepare(&workers[i], c, i);
        if (i >= c->devices)
            workers[i].stream = workers[i % c->devices].stream;
    }
    run_threads(c, run_steps, workers);
}

/* Handles that come and go. */
static void *
churn(void *argument)
{
    worker *const w = argument;
    check_context *const c = &w->c;
    const double end = check_now() + c->target->seconds / 2;
    for (; w->rounds < 30 || check_now() < end; ++w->rounds) {
        openreg_driver_stream const stream = check_stream(c, w->dev);
        char *const memory = check_alloc(c, w->dev, SIZE);
        memset(w->seen, 0, 999);
        MUST(c, copy, c->instance, w->dev, stream, memory, w->dev, w->model[0], -1, 999);
        if (c->table.event_create != NULL) {
            openreg_driver_event const event = check_event(c, w->dev, 0);
            MUST(c, event_record, c->instance, w->dev, stream, event);
            if (c->table.stream_wait != NULL)
                MUST(c, stream_wait, c->instance, w->dev, w->stream, event);
            else
                MUST(c, event_sync, c->instance, w->dev, event);
            MUST(c, event_destroy, c->instance, w->dev, event);
        } else {
            check_sync(c, w->dev, stream);
        }
        if (c->table.event_create != NULL && c->table.stream_wait == NULL)
            check_sync(c, w->dev, stream);
        MUST(c, copy, c->instance, w->dev, w->stream, w->seen, -1, memory, w->dev, 999);
        check_sync(c, w->dev, w->stream);
        REQUIRE(memcmp(w->seen, w->model[0], 999) == 0,
                "of %d threads that made streams, events and memory, one got back other bytes than it had sent",
                THREADS);
        check_free(c, w->dev, memory);
        if (stream != NULL)
            MUST(c, stream_destroy, c->instance, w->dev, stream);
    }
    return NULL;
}

static void
handles_come_and_go(check_context *c)
{
    static worker workers[THREADS];
    for (int i = 0; i < THREADS; ++i)
        prepare(&workers[i], c, i);
    run_threads(c, churn, workers);
}

/* Half of the threads fail all the time: the others must not see it. */
static void *
fail_or_work(void *argument)
{
    worker *const w = argument;
    const double end = check_now() + w->c.target->seconds / 3;
    for (; w->rounds < 50 || check_now() < end; ++w->rounds) {
        void *memory = NULL;
        if (w->is_failing)
            FAILS(&w->c, OPENREG_E_NOMEM, mem_alloc, w->c.instance, w->dev, BYTES(UINT64_C(1) << 60), &memory);
        else
            check_free(&w->c, w->dev, check_alloc(&w->c, w->dev, 5000));
    }
    return NULL;
}

static void
errors_are_of_a_thread(check_context *c)
{
    static worker workers[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        workers[i].c = *c;
        workers[i].dev = i % c->devices;
        workers[i].is_failing = i % 2 == 0;
    }
    run_threads(c, fail_or_work, workers);
}

typedef struct blocked_call {
    check_context *c;
    openreg_driver_stream stream;
} blocked_call;

static void *
sync_held(void *argument)
{
    const blocked_call *const call = argument;
    MUST(call->c, stream_sync, call->c->instance, 0, call->stream);
    return NULL;
}

static void
use_others(void *argument)
{
    check_context *const c = argument;
    char *const memory = check_alloc(c, 0, SIZE);
    openreg_driver_stream const stream = check_stream(c, 0);
    MUST(c, copy, c->instance, 0, stream, memory, 0, memory + SIZE / 2, 0, SIZE / 2);
    MUST(c, stream_sync, c->instance, 0, stream);
    MUST(c, stream_destroy, c->instance, 0, stream);
    if (c->table.event_create != NULL)
        MUST(c, event_destroy, c->instance, 0, check_event(c, 0, 0));
}

static void
waiting_blocks_nobody(check_context *c)
{
    static blocked_call call;
    pthread_t thread;
    call = (blocked_call){c, check_stream(c, 0)};
    check_gate *const gate = check_gate_close(c, 0, call.stream);
    check_gate_await_reached(gate);
    if (pthread_create(&thread, NULL, sync_held, &call) != 0)
        check_skip("no thread could be made");
    check_sleep(20);
    REQUIRE(check_returns_within(CHECK_PATIENCE * 1000, use_others, c),
            "while one thread was in stream_sync(), slots of another thread did not return");
    check_gate_open(gate);
    (void)pthread_join(thread, NULL);
}

static const check_case cases[] = {
    {"thread.model", "", 0, "Any slot may be called from any thread, several at once.",
     "State that is shared needs a lock: also what a slot keeps in a static variable.", agrees_with_serial_model},
    {"thread.one_stream", "stream_create", 0,
     "Any slot may be called from any thread, several at once: also for one stream, whose work of each thread "
     "keeps its order.",
     "What a slot does to a stream in several steps needs a lock of the stream's.", share_streams},
    {"thread.handles", "", 0, "Streams, events and memory are made and destroyed by many threads at once.",
     "Lists of live handles need a lock.", handles_come_and_go},
    {"thread.errors", "", 0, "An error belongs to the thread whose call fails.",
     "Don't keep the last error in a variable of the driver.", errors_are_of_a_thread},
    {"thread.waiting", "stream_create host_func", CHECK_GATE, "A thread that waits keeps no other from calling slots.",
     "Hold no lock while waiting.", waiting_blocks_nobody},
};
const check_group check_thread_group = CHECK_GROUP(1, cases);
