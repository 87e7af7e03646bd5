/* SPDX-License-Identifier: BSD-3-Clause */
/* thread_checks.c: slots called from many threads at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fixtures.h"

#define THREADS 16
#define SIZE 20000
#define BLOCKS 4

/* A thread's own: nobody else touches its memory, so what it finds there must be what its own program put there. */
typedef struct worker {
    check_context c; /* with a random state of its own */
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
            OPTIONAL(c, stream_wait, c->instance, w->dev, w->stream, w->event);
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
prepare(worker *w, const check_context *c, int i, int32_t dev)
{
    w->c = *c;
    w->c.random += (uint64_t)(i + 1) * UINT64_C(0xd1342543de82ef95);
    w->dev = dev;
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

static worker workers[THREADS];

static void
run_workers(check_context *c, void *(*function)(void *))
{
    check_run_threads(function, workers, sizeof workers[0], THREADS);
    for (int32_t dev = 0; dev < c->devices; ++dev)
        MUST(c, device_sync, c->instance, dev);
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
        }
        if (c->table.event_create == NULL || c->table.stream_wait == NULL)
            check_sync(c, w->dev, stream);
        check_copy(c, w->dev, w->stream, w->seen, -1, memory, w->dev, 999);
        REQUIRE(memcmp(w->seen, w->model[0], 999) == 0,
                "of %d threads that made streams, events and memory, one got back other bytes than it had sent",
                THREADS);
        check_free(c, w->dev, memory);
        OPTIONAL(c, stream_destroy, c->instance, w->dev, stream);
    }
    return NULL;
}

static void
workers_agree(check_context *c)
{
    const bool shares_streams = strcmp(c->check->name, "thread.one_stream") == 0;
    for (int i = 0; i < THREADS; ++i) {
        prepare(&workers[i], c, i, i % c->devices);
        if (shares_streams && i >= c->devices)
            workers[i].stream = workers[i % c->devices].stream;
    }
    run_workers(c, strcmp(c->check->name, "thread.handles") == 0 ? churn : run_steps);
}

/* Two threads that meet before their calls, so that both are inside of a slot at the same moment: whether a race shows
 * depends on how often calls overlap, and not on how long threads run, so overlaps are counted. A third thread stops one of
 * them at any of its instructions by a signal, so that calls overlap also where there is one processor, or all are busy. */
typedef struct partner {
    worker own;
    struct partner *other;
    unsigned meetings, sizes[BLOCKS];
    uint64_t seeds[BLOCKS];
    openreg_driver_stream made_stream;
    openreg_driver_event made_event;
    char *shared; /* SHARED bytes, of both */
} partner;

#define SHARED 64
#define OVERLAPS 500
#define TIMES 20 /* as long as other checks, where calls don't overlap: on one processor, or a busy one */

static atomic_uint arrived, inside, overlaps;
static atomic_bool is_over;
static _Thread_local volatile sig_atomic_t is_inside;

static void
stop_inside(int signal)
{
    (void)signal;
    const int kept = errno;
    if (is_inside != 0)
        (void)nanosleep(&(struct timespec){0, 200000}, NULL);
    errno = kept;
}

/* `argument`: the thread. */
static void *
stop_at_times(void *argument)
{
    for (long span = 1; !atomic_load(&is_over); span = span * 7 % 1000003) { /* up to a millisecond */
        (void)nanosleep(&(struct timespec){0, span}, NULL);
        (void)pthread_kill(*(pthread_t *)argument, SIGUSR2);
    }
    return NULL;
}

static void
meet(partner *p)
{
    const unsigned wanted = 2 * ++p->meetings;
    (void)atomic_fetch_add(&arrived, 1);
    for (unsigned turn = 0; atomic_load(&arrived) < wanted; ++turn)
        if (turn > 10000) /* leaves the processor to others, which sched_yield() does not on a busy one */
            (void)nanosleep(&(struct timespec){0, 10000}, NULL);
}

/* Around a call that may meet the same of the other thread. */
static void
enter_call(partner *p)
{
    meet(p);
    is_inside = 1;
    if (atomic_fetch_add(&inside, 1) > 0)
        (void)atomic_fetch_add(&overlaps, 1);
}

static void
leave_call(void)
{
    (void)atomic_fetch_sub(&inside, 1);
    is_inside = 0;
}

/* One more round? Both get the same answer. */
static bool
meet_again(partner *p, double end)
{
    worker *const w = &p->own;
    if (p < p->other)
        atomic_store(&is_over, atomic_load(&overlaps) >= OVERLAPS || (w->rounds >= SHARED * 3 && check_now() > end));
    ++w->rounds;
    meet(p);
    return !atomic_load(&is_over);
}

/* Memory of few sizes, so that what was freed is given again; one of the blocks that stay is compared. */
static void
replace_block(partner *p)
{
    worker *const w = &p->own;
    check_context *const c = &w->c;
    const size_t k = (size_t)check_random_below(c, BLOCKS), seen = (size_t)check_random_below(c, BLOCKS);
    p->sizes[k] = 100 + 1000 * ((unsigned)w->rounds % 3);
    p->seeds[k] = check_random(c);
    check_pattern(w->staging, p->sizes[k], p->seeds[k]);
    enter_call(p);
    check_free(c, w->dev, w->memory[k]);
    leave_call();
    enter_call(p);
    w->memory[k] = check_alloc(c, w->dev, p->sizes[k]);
    leave_call();
    check_copy(c, w->dev, w->stream, w->memory[k], w->dev, w->staging, -1, p->sizes[k]);
    meet(p);
    check_copy(c, w->dev, w->stream, w->seen, -1, w->memory[seen], w->dev, p->sizes[seen]);
    check_is_pattern(w->seen, p->sizes[seen], p->seeds[seen], "memory of one of two threads that allocate at once");
}

static void
replace_handles(partner *p)
{
    worker *const w = &p->own;
    check_context *const c = &w->c;
    enter_call(p);
    p->made_stream = check_stream(c, w->dev);
    if (c->table.event_create != NULL)
        p->made_event = check_event(c, w->dev, 0);
    leave_call();
    meet(p);
    REQUIRE(p->made_stream == NULL || p->made_stream != p->other->made_stream,
            "two threads that made streams at once got the same one");
    REQUIRE(p->made_event == NULL || p->made_event != p->other->made_event,
            "two threads that made events at once got the same one");
    if (c->table.event_create != NULL) {
        MUST(c, event_record, c->instance, w->dev, p->made_stream, p->made_event);
        MUST(c, event_sync, c->instance, w->dev, p->made_event);
    }
    enter_call(p); /* nobody compares any more */
    OPTIONAL(c, event_destroy, c->instance, w->dev, p->made_event);
    OPTIONAL(c, stream_destroy, c->instance, w->dev, p->made_stream);
    leave_call();
}

static void *
make_at_once(void *argument)
{
    partner *const p = argument;
    const double end = check_now() + TIMES * p->own.c.target->seconds;
    while (meet_again(p, end)) {
        replace_block(p);
        replace_handles(p);
    }
    return NULL;
}

/* Each writes its part of the same few bytes, from the host, on the device and by fill() in turn. */
static void *
write_neighbours(void *argument)
{
    partner *const p = argument;
    worker *const w = &p->own;
    check_context *const c = &w->c;
    const bool is_first = p < p->other;
    const double end = check_now() + TIMES * c->target->seconds;
    while (meet_again(p, end)) {
        const unsigned round = (unsigned)w->rounds, middle = 1 + round % (SHARED - 1);
        unsigned char wanted[SHARED];
        memset(wanted, (uint8_t)(2 * round), middle);
        memset(wanted + middle, (uint8_t)(2 * round + 1), SHARED - middle);
        const unsigned from = is_first ? 0 : middle, size = is_first ? middle : SHARED - middle;
        char *const to = p->shared + from;
        const unsigned way = round / SHARED % 3;
        check_copy(c, w->dev, w->stream, w->memory[0], w->dev, wanted, -1, SHARED);
        enter_call(p);
        if (way == 2 && c->table.fill != NULL)
            MUST(c, fill, c->instance, w->dev, w->stream, to, wanted[from], size);
        else if (way == 1)
            MUST(c, copy, c->instance, w->dev, w->stream, to, w->dev, w->memory[0] + from, w->dev, size);
        else
            MUST(c, copy, c->instance, w->dev, w->stream, to, w->dev, wanted + from, -1, size);
        check_sync(c, w->dev, w->stream);
        leave_call();
        meet(p);
        unsigned char seen[SHARED];
        check_copy(c, w->dev, w->stream, seen, -1, p->shared, w->dev, SHARED);
        for (unsigned i = 0; i < SHARED; ++i)
            REQUIRE(seen[i] == wanted[i],
                    "one thread wrote the first %u of %d bytes and another the rest, at once (round %u): byte %u is "
                    "0x%02x, not 0x%02x",
                    middle, SHARED, round, i, seen[i], wanted[i]);
    }
    return NULL;
}

static void
partners_meet(check_context *c)
{
    void *(*const function)(void *) = strcmp(c->check->name, "thread.meeting") == 0 ? make_at_once : write_neighbours;
    static partner both[2];
    char *const shared = check_alloc(c, 0, SHARED);
    for (int i = 0; i < 2; ++i) {
        partner *const p = &both[i];
        prepare(&p->own, c, i, 0);
        p->other = &both[1 - i];
        p->shared = shared;
        for (int k = 0; k < BLOCKS; ++k) {
            p->sizes[k] = SIZE;
            p->seeds[k] = (uint64_t)(i * BLOCKS + k);
        }
    }
    struct sigaction action = {.sa_handler = stop_inside, .sa_flags = SA_RESTART};
    (void)sigaction(SIGUSR2, &action, NULL);
    pthread_t thread, stopper, own = pthread_self();
    check_start_thread(&thread, function, &both[1]);
    check_start_thread(&stopper, stop_at_times, &own);
    (void)function(&both[0]);
    (void)pthread_join(thread, NULL);
    (void)pthread_join(stopper, NULL);
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
    for (int i = 0; i < THREADS; ++i) {
        workers[i].c = *c;
        workers[i].dev = i % c->devices;
        workers[i].is_failing = i % 2 == 0;
    }
    run_workers(c, fail_or_work);
}

static void *
sync_held(void *argument)
{
    worker *const w = argument;
    MUST(&w->c, stream_sync, w->c.instance, 0, w->stream);
    return NULL;
}

static void
waiting_blocks_nobody(check_context *c)
{
    static worker waiting;
    pthread_t thread;
    waiting.c = *c;
    waiting.stream = check_stream(c, 0);
    check_gate *const gate = check_gate_close(c, 0, waiting.stream);
    check_gate_await_reached(gate);
    check_start_thread(&thread, sync_held, &waiting);
    check_sleep(20);
    REQUIRE(check_returns_within(CHECK_PATIENCE * 1000, check_use_others, c),
            "while one thread was in stream_sync(), slots of another thread did not return");
    check_gate_open(gate);
    (void)pthread_join(thread, NULL);
}

static const check_case cases[] = {
    {"thread.model", "", 0, "Any slot may be called from any thread, several at once.",
     "State that is shared needs a lock: also what a slot keeps in a static variable.", workers_agree},
    {"thread.one_stream", "stream_create", 0,
     "Any slot may be called from any thread, several at once: also for one stream, whose work of each thread keeps "
     "its order.",
     "What a slot does to a stream in several steps needs a lock of the stream's.", workers_agree},
    {"thread.handles", "", 0, "Streams, events and memory are made and destroyed by many threads at once.",
     "Lists of live handles need a lock.", workers_agree},
    {"thread.meeting", "", 0, "Slots may be inside of each other's calls at any of their instructions.",
     "Two calls of the same slot that begin at one moment: a list, a free place or a counter without a lock.",
     partners_meet},
    {"thread.neighbours", "", 0,
     "copy() and fill() change the bytes that they are given and write no others, not even with the same values.",
     "A write of whole words takes its neighbours' bytes along: merge head and tail under a lock, or in the order of "
     "one queue.",
     partners_meet},
    {"thread.errors", "", 0, "An error belongs to the thread whose call fails.",
     "Don't keep the last error in a variable of the driver.", errors_are_of_a_thread},
    {"thread.waiting", "stream_create host_func", CHECK_GATE, "A thread that waits keeps no other from calling slots.",
     "Hold no lock while waiting.", waiting_blocks_nobody},
};
const check_group check_thread_group = CHECK_GROUP(1, cases);
