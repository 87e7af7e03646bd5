/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_schedule.c: runs the simulated devices' work in an order that a seed chooses (sim_schedule.h).
 *
 * One lock for all of it, outside the streams' locks and the lists'. It is released while a host function runs, so that
 * other threads can queue work; the function's stream is then `busy`, and none of its tasks run. */
#define _GNU_SOURCE
#include "sim_schedule.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CALL_NS 1000u
#define BYTES_PER_NS 10u
#define CHANGES 2 /* of priorities: PCT's depth less one */

struct openreg_sim_schedule {
    uint64_t random, seed;
    openreg_sim_order order;
    int64_t switches;
    FILE *log;

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    uint64_t clock;   /* nanoseconds */
    uint64_t put_off; /* copies and fills so far */
    uint64_t steps;   /* tasks that were run */
    uint32_t streams; /* that were made */
    uint64_t host_priority, lowest;
    uint64_t changes[CHANGES]; /* the steps at which a priority changes */

    bool has_helper, stopping; /* the thread for functions of the host */
    pthread_t helper;
    openreg_driver_stream calling; /* the stream whose function is next, or NULL */
};

/* splitmix64 */
static uint64_t
draw(openreg_sim_schedule *schedule)
{
    uint64_t z = schedule->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* True with probability n / 2^32. */
static bool
happens(openreg_sim_schedule *schedule, uint64_t n)
{
    return (draw(schedule) >> 32) < n;
}
#define QUARTERS(n) ((uint64_t)(n) << 30)

/* --------------------------------------------------------------------------------------------------------- options */

bool
openreg_sim_plan_read(openreg_sim_plan *plan, const openreg_option *option, const char **expected)
{
    static const char *const orders[] = {"", "random", "pct", "latest"};
    const char *const value = option->value;
    uint64_t number = 0;
    if (value[0] == '\0')
        return true;
    if (strcmp(option->key, "seed") == 0) {
        *expected = "an integer from 0 to 2^63 - 1";
        plan->is_on = openreg_sim_read_number(value, INT64_MAX, NULL, &plan->seed);
        return plan->is_on;
    }
    if (strcmp(option->key, "switches") == 0) {
        *expected = "an integer from 0 on";
        if (!openreg_sim_read_number(value, INT64_MAX, NULL, &number))
            return false;
        plan->switches = (int64_t)number;
    } else if (strcmp(option->key, "schedule") == 0) {
        *expected = "random, pct or latest";
        plan->order = OPENREG_SIM_ORDER_BY_SEED;
        for (int i = OPENREG_SIM_RANDOM; i <= OPENREG_SIM_LATEST; i++)
            if (strcmp(value, orders[i]) == 0)
                plan->order = (openreg_sim_order)i;
        return plan->order != OPENREG_SIM_ORDER_BY_SEED;
    } else if (strcmp(option->key, "schedule_log") == 0) {
        plan->log = value;
    }
    return true;
}

void
openreg_sim_plan_complete(openreg_sim_plan *plan)
{
    static const openreg_sim_order by_seed[] = {OPENREG_SIM_LATEST, OPENREG_SIM_RANDOM, OPENREG_SIM_PCT};
    if (plan->order == OPENREG_SIM_ORDER_BY_SEED)
        plan->order = by_seed[plan->seed % 3];
}

openreg_status
openreg_sim_schedule_create(openreg_instance instance, const openreg_sim_plan *plan)
{
    if (!plan->is_on)
        return OPENREG_OK;
    openreg_sim_schedule *schedule = calloc(1, sizeof *schedule);
    if (schedule == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for the schedule of %s",
                            instance->label);
    if (plan->log != NULL && (schedule->log = fopen(plan->log, "we")) == NULL) {
        const int error = errno;
        free(schedule);
        return openreg_fail(instance->host, OPENREG_E_INVALID, error,
                            "OPENREG_%s_SCHEDULE_LOG: \"%.256s\" can't be written: %s", instance->label, plan->log,
                            strerror(error));
    }
    schedule->seed = schedule->random = plan->seed;
    schedule->order = plan->order;
    schedule->switches = plan->switches;
    schedule->clock = CALL_NS;
    schedule->host_priority = draw(schedule);
    schedule->lowest = UINT64_C(1) << 32;
    /* The length of a run isn't known: the changes come within its first 16 to 4096 steps. */
    const uint64_t span = UINT64_C(16) << draw(schedule) % 9;
    for (int i = 0; i < CHANGES; i++)
        schedule->changes[i] = draw(schedule) % span;
    (void)pthread_mutex_init(&schedule->lock, NULL);
    (void)pthread_cond_init(&schedule->changed, NULL);
    instance->schedule = schedule;
    return OPENREG_OK;
}

void
openreg_sim_schedule_destroy(openreg_instance instance)
{
    openreg_sim_schedule *schedule = instance->schedule;
    if (schedule == NULL)
        return;
    (void)pthread_mutex_lock(&schedule->lock);
    schedule->stopping = true;
    (void)pthread_cond_broadcast(&schedule->changed);
    const bool has_helper = schedule->has_helper;
    (void)pthread_mutex_unlock(&schedule->lock);
    if (has_helper)
        (void)pthread_join(schedule->helper, NULL);
    if (schedule->log != NULL)
        (void)fclose(schedule->log);
    (void)pthread_cond_destroy(&schedule->changed);
    (void)pthread_mutex_destroy(&schedule->lock);
    free(schedule);
    instance->schedule = NULL;
}

/* ----------------------------------------------------------------------------------------------------- the log */

/* Poison is not logged. */
static void
describe(char *out, size_t size, const openreg_sim_task *task)
{
    if (task->kind == OPENREG_SIM_COPY || task->kind == OPENREG_SIM_FILL)
        (void)snprintf(out, size, "%s of %llu bytes", task->kind == OPENREG_SIM_COPY ? "copy" : "fill",
                       (unsigned long long)task->amount);
    else if (task->kind == OPENREG_SIM_WAIT)
        (void)snprintf(out, size, "wait for device %d stream %u task %llu", task->awaited->device->ordinal,
                       task->awaited->number, (unsigned long long)task->amount);
    else
        (void)snprintf(out, size, task->kind == OPENREG_SIM_RECORD ? "event" : "function of the host");
}

/* Without an address or a time of this machine: equal runs have equal lines. */
static void
note(openreg_sim_schedule *schedule, const char *what, uint64_t number, openreg_driver_stream stream, uint64_t position,
     const openreg_sim_task *task)
{
    char text[96];
    if (schedule->log == NULL)
        return;
    describe(text, sizeof text, task);
    (void)fprintf(schedule->log, "%s %llu: device %d stream %u task %llu: %s\n", what, (unsigned long long)number,
                  stream->device->ordinal, stream->number, (unsigned long long)position, text);
    (void)fflush(schedule->log);
}

/* -------------------------------------------------------------------------------------------------- freed memory */

/* Runs the poison tasks behind the task that has just ended, so no queue ever begins with one. The lock is held. */
static void
poison_behind(openreg_driver_stream stream)
{
    while (stream->task_count > 0 && stream->first->tasks[stream->head].kind == OPENREG_SIM_POISON) {
        const openreg_sim_task task = openreg_sim_stream_pop(stream);
        openreg_sim_stream_run(&task);
        (void)atomic_fetch_add_explicit(&stream->completed, 1, memory_order_release);
    }
}

/* Never 0, which is what fresh memory has anyway. */
static uint8_t
poison_of(const openreg_sim_schedule *schedule)
{
    return (uint8_t)(0xa5 ^ ((schedule->seed * 37) & 0x5a));
}

void
openreg_sim_schedule_poison(openreg_instance instance, void *memory, uint64_t size)
{
    if (instance->schedule != NULL)
        memset(memory, poison_of(instance->schedule), size);
}

openreg_status
openreg_sim_poison(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *ptr, uint64_t size)
{
    openreg_sim_schedule *schedule = instance->schedule;
    openreg_driver_stream own = openreg_sim_stream_of(instance, dev, stream);
    const openreg_sim_task task = {.kind = OPENREG_SIM_POISON,
                                   .value = poison_of(schedule),
                                   .target = (char *)ptr + instance->devices[dev].alias_distance,
                                   .amount = size};
    openreg_status status = OPENREG_OK;
    (void)pthread_mutex_lock(&schedule->lock);
    if (own->task_count > 0 || own->is_busy)
        status = openreg_sim_stream_push(own, &task);
    else
        openreg_sim_stream_run(&task);
    (void)pthread_mutex_unlock(&schedule->lock);
    return status;
}

/* ------------------------------------------------------------------------------------------------- functions */

static void *
helper_main(void *argument)
{
    openreg_sim_schedule *schedule = argument;
    (void)pthread_mutex_lock(&schedule->lock);
    while (!schedule->stopping) {
        openreg_driver_stream stream = schedule->calling;
        if (stream == NULL) {
            (void)pthread_cond_wait(&schedule->changed, &schedule->lock);
            continue;
        }
        const openreg_sim_task task = stream->function;
        (void)pthread_mutex_unlock(&schedule->lock);
        task.function(task.target);
        (void)pthread_mutex_lock(&schedule->lock);
        (void)atomic_fetch_add_explicit(&stream->completed, 1, memory_order_release);
        stream->is_busy = false;
        poison_behind(stream);
        schedule->calling = NULL;
        (void)pthread_cond_broadcast(&schedule->changed);
    }
    (void)pthread_mutex_unlock(&schedule->lock);
    return NULL;
}

/* Before the first function is queued. The lock is held. */
static openreg_status
start_helper(openreg_sim_schedule *schedule, const openreg_sim_device *device)
{
    if (schedule->has_helper)
        return OPENREG_OK;
    const int error = openreg_sim_start_thread(&schedule->helper, helper_main, schedule);
    if (error != 0)
        return openreg_fail(device->instance->host, OPENREG_E_NOMEM, error,
                            "no thread for functions of the host of device %d: %s", device->ordinal, strerror(error));
    schedule->has_helper = true;
    return OPENREG_OK;
}

/* Lets the thread run the function and waits for it, with the lock released. One function at a time: another thread's may
 * be first. */
static void
call_function(openreg_sim_schedule *schedule, openreg_driver_stream stream)
{
    stream->is_busy = true;
    while (schedule->calling != NULL)
        (void)pthread_cond_wait(&schedule->changed, &schedule->lock);
    schedule->calling = stream;
    (void)pthread_cond_broadcast(&schedule->changed);
    while (stream->is_busy)
        (void)pthread_cond_wait(&schedule->changed, &schedule->lock);
}

/* ----------------------------------------------------------------------------------------------------- the tasks */

static bool
is_pending(openreg_driver_stream stream)
{
    return stream->task_count > 0 && !stream->is_busy;
}

static const openreg_sim_task *
first_task(openreg_driver_stream stream)
{
    return &stream->first->tasks[stream->head];
}

/* Whether the stream's first task can be run; `no_functions`: by a caller that must not wait for host functions. */
static bool
is_ready(openreg_driver_stream stream, bool no_functions)
{
    if (!is_pending(stream))
        return false;
    const openreg_sim_task *task = first_task(stream);
    if (task->kind == OPENREG_SIM_WAIT)
        return openreg_sim_stream_passed(task->awaited, task->amount);
    return task->kind != OPENREG_SIM_HOST_FUNC || !no_functions;
}

/* The stream whose first task must run so that `stream` makes progress: itself, or one that it waits for. A busy one: its
 * function is running. */
static openreg_driver_stream
needed_by(openreg_driver_stream stream)
{
    while (is_pending(stream) && !is_ready(stream, false))
        stream = first_task(stream)->awaited;
    return stream;
}

/* Runs the stream's first task, which is ready. */
static void
run_first(openreg_sim_schedule *schedule, openreg_driver_stream stream)
{
    for (int i = 0; i < CHANGES; i++) /* at the steps that the seed has chosen the priority becomes the lowest */
        if (schedule->changes[i] == schedule->steps)
            stream->drawn_priority = --schedule->lowest;
    const uint64_t position = atomic_load_explicit(&stream->completed, memory_order_relaxed) + 1;
    openreg_sim_task task = openreg_sim_stream_pop(stream);
    note(schedule, "step", ++schedule->steps, stream, position, &task);
    schedule->clock += CALL_NS;
    if (task.kind == OPENREG_SIM_COPY || task.kind == OPENREG_SIM_FILL)
        schedule->clock += task.amount / BYTES_PER_NS;
    if (task.kind == OPENREG_SIM_HOST_FUNC) {
        stream->function = task;
        call_function(schedule, stream);
        return;
    }
    if (task.kind == OPENREG_SIM_RECORD) {
        atomic_store_explicit(&task.record->nanoseconds, schedule->clock, memory_order_relaxed);
        openreg_sim_record_release(task.record);
    } else if (task.kind != OPENREG_SIM_WAIT) {
        openreg_sim_stream_run(&task);
    }
    (void)atomic_fetch_add_explicit(&stream->completed, 1, memory_order_release);
    poison_behind(stream);
    if (task.kind == OPENREG_SIM_WAIT) /* last: it may have held the last reference to this stream */
        openreg_sim_stream_release(task.awaited);
}

/* A stream with a task that is ready: by random, or with the highest priority above `floor`. NULL: none. */
static openreg_driver_stream
choose(openreg_instance instance, bool no_functions, uint64_t floor)
{
    openreg_sim_schedule *schedule = instance->schedule;
    openreg_driver_stream chosen = NULL;
    uint64_t count = 0;
    for (int32_t i = 0; i < instance->device_count; i++) {
        openreg_sim_device *device = &instance->devices[i];
        (void)pthread_mutex_lock(&device->list_lock);
        for (openreg_driver_stream at = device->streams; at != NULL; at = at->next) {
            if (!is_ready(at, no_functions))
                continue;
            if (schedule->order == OPENREG_SIM_PCT) {
                if (at->drawn_priority > floor) {
                    floor = at->drawn_priority;
                    chosen = at;
                }
            } else if (draw(schedule) % ++count == 0) {
                chosen = at;
            }
        }
        (void)pthread_mutex_unlock(&device->list_lock);
    }
    return chosen;
}

static bool
may_put_off(const openreg_sim_schedule *schedule)
{
    return schedule->switches < 0 || schedule->put_off < (uint64_t)schedule->switches;
}

/* Runs the tasks that the stream needs to reach the position, as far as possible without host functions. */
static void
run_up_to(openreg_sim_schedule *schedule, openreg_driver_stream stream, uint64_t position)
{
    while (!openreg_sim_stream_passed(stream, position)) {
        openreg_driver_stream next = needed_by(stream);
        if (!is_ready(next, true))
            return;
        run_first(schedule, next);
    }
}

/* Whether the task that has just been queued is deferred. */
static bool
puts_off(openreg_sim_schedule *schedule, openreg_driver_stream stream)
{
    if (schedule->order == OPENREG_SIM_RANDOM)
        return happens(schedule, QUARTERS(3));
    return schedule->order != OPENREG_SIM_PCT || stream->drawn_priority < schedule->host_priority;
}

/* At calls: with `random`, runs some ready tasks; with `pct`, those more urgent than the host. */
static void
run_some(openreg_instance instance)
{
    openreg_sim_schedule *schedule = instance->schedule;
    openreg_driver_stream next = NULL;
    if (schedule->order == OPENREG_SIM_PCT) {
        while ((next = choose(instance, true, schedule->host_priority)) != NULL)
            run_first(schedule, next);
    } else if (schedule->order == OPENREG_SIM_RANDOM) {
        while (happens(schedule, QUARTERS(1)) && (next = choose(instance, true, 0)) != NULL)
            run_first(schedule, next);
    }
}

/* ------------------------------------------------------------------------------------------------------- the calls */

void
openreg_sim_schedule_add(openreg_driver_stream stream)
{
    openreg_sim_schedule *schedule = stream->device->instance->schedule;
    if (schedule == NULL)
        return;
    (void)pthread_mutex_lock(&schedule->lock);
    stream->number = schedule->streams++;
    stream->drawn_priority = draw(schedule) | UINT64_C(1) << 33; /* above every lowered one */
    (void)pthread_mutex_unlock(&schedule->lock);
}

openreg_status
openreg_sim_schedule_submit(openreg_driver_stream stream, const openreg_sim_task *task)
{
    openreg_instance instance = stream->device->instance;
    openreg_sim_schedule *schedule = instance->schedule;
    openreg_status status = OPENREG_OK;
    (void)pthread_mutex_lock(&schedule->lock);
    schedule->clock += CALL_NS;
    if (task->kind == OPENREG_SIM_HOST_FUNC)
        status = start_helper(schedule, stream->device);
    if (status == OPENREG_OK)
        status = openreg_sim_stream_push(stream, task);
    if (status == OPENREG_OK) {
        const uint64_t position = atomic_load_explicit(&stream->queued, memory_order_relaxed);
        const bool is_work = task->kind == OPENREG_SIM_COPY || task->kind == OPENREG_SIM_FILL;
        if (is_work && may_put_off(schedule) && puts_off(schedule, stream))
            note(schedule, "switch", ++schedule->put_off, stream, position, task);
        else if (is_work || (stream->task_count == 1 && is_ready(stream, true)))
            run_up_to(schedule, stream, position);
        if (may_put_off(schedule))
            run_some(instance);
    }
    (void)pthread_mutex_unlock(&schedule->lock);
    return status;
}

void
openreg_sim_schedule_await(openreg_driver_stream stream, uint64_t position)
{
    openreg_instance instance = stream->device->instance;
    openreg_sim_schedule *schedule = instance->schedule;
    (void)pthread_mutex_lock(&schedule->lock);
    schedule->clock += CALL_NS;
    while (!openreg_sim_stream_passed(stream, position)) {
        openreg_driver_stream next = NULL;
        if (schedule->order == OPENREG_SIM_PCT ||
            (schedule->order == OPENREG_SIM_RANDOM && happens(schedule, QUARTERS(2))))
            next = may_put_off(schedule) ? choose(instance, false, 0) : NULL;
        if (next == NULL)
            next = needed_by(stream);
        if (is_ready(next, false))
            run_first(schedule, next);
        else /* another thread waits for its function */
            (void)pthread_cond_wait(&schedule->changed, &schedule->lock);
    }
    (void)pthread_mutex_unlock(&schedule->lock);
}

void
openreg_sim_schedule_look(openreg_driver_stream stream)
{
    openreg_instance instance = stream->device->instance;
    openreg_sim_schedule *schedule = instance->schedule;
    (void)pthread_mutex_lock(&schedule->lock);
    schedule->clock += CALL_NS;
    if (stream->task_count > 0) {
        /* Runs one task that the stream needs, with any order, so that repeated queries end. A host function is started and
         * not waited for: the caller may hold a lock that the function needs. */
        openreg_driver_stream next = needed_by(stream);
        if (is_ready(next, true)) {
            run_first(schedule, next);
        } else if (is_ready(next, false) && schedule->calling == NULL) {
            const uint64_t position = atomic_load_explicit(&next->completed, memory_order_relaxed) + 1;
            next->function = openreg_sim_stream_pop(next);
            note(schedule, "step", ++schedule->steps, next, position, &next->function);
            next->is_busy = true;
            schedule->calling = next;
            (void)pthread_cond_broadcast(&schedule->changed);
        }
    }
    (void)pthread_mutex_unlock(&schedule->lock);
}
