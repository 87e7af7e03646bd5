/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_schedule.h: the order in which the simulated devices run their work, chosen from a seed. Internal to drivers/sim.
 *
 * With the option `seed` no stream has a thread. Work stays in its queue until a thread waits for it and then runs it, one
 * task after the other, unless the seed lets it run when it is queued. A task is ready when it is the first of its stream
 * and, if it waits for an event, that is complete. So any order of ready tasks is one that real devices might take. Host
 * functions run on one thread of the driver, which callers wait for.
 *
 *   schedule   random   queued work is deferred with probability 3/4; each call runs some ready tasks, and each wait any
 *                       ready tasks until the awaited one has run
 *              pct      streams and the host have priorities: work runs as soon as its stream's priority is above the
 *                       host's; at two steps the running stream gets the lowest priority
 *              latest   only tasks that a wait needs are run
 *              without the option the seed chooses: 0, 3, 6... latest, 1, 4, 7... random, 2, 5, 8... pct
 *   switches   number of copies and fills that may be deferred; later ones run when queued. 0 is the plain order
 *   schedule_log  a file that gets a line for each task, and for each deferred one
 *
 * Time is virtual: calls and tasks take a microsecond, copies and fills also the time of 10 GB/s. */
#ifndef OPENREG_DRIVERS_SIM_SCHEDULE_H
#define OPENREG_DRIVERS_SIM_SCHEDULE_H

#include "sim.h"

/* The options; all zero means none. */
typedef struct openreg_sim_plan {
    bool is_on;
    uint64_t seed;
    openreg_sim_order order;
    int64_t switches; /* -1: any number */
    const char *log;  /* a path, owned by the options, or NULL */
} openreg_sim_plan;

/* Reads an option, if it is one of these. False: the value is invalid, and `*expected` names the valid ones. */
bool openreg_sim_plan_read(openreg_sim_plan *plan, const openreg_option *option, const char **expected);
/* Reads decimal digits up to *end or, if that is NULL, to the end of the text. False: there are none, or the number
 * is greater. */
bool openreg_sim_read_number(const char *text, uint64_t most, const char **end, uint64_t *out);
/* Completes the plan once all options are read. */
void openreg_sim_plan_complete(openreg_sim_plan *plan);

/* For open() and close(). E_INVALID: the log can't be written. */
openreg_status openreg_sim_schedule_create(openreg_instance instance, const openreg_sim_plan *plan);
void openreg_sim_schedule_destroy(openreg_instance instance);

/* Initialises a stream's numbers from the seed. */
void openreg_sim_schedule_add(openreg_driver_stream stream);
/* Appends a task that `push` has made room for: what openreg_sim_stream_submit() does with a seed. */
openreg_status openreg_sim_schedule_submit(openreg_driver_stream stream, const openreg_sim_task *task);
/* Runs tasks until the stream has reached the position. */
void openreg_sim_schedule_await(openreg_driver_stream stream, uint64_t position);
/* A call queries a stream: time advances, and a ready task may run, so that a polling caller finds the end. */
void openreg_sim_schedule_look(openreg_driver_stream stream);
/* Fills new device or pinned memory with bytes that the seed chooses. No effect without a seed. */
void openreg_sim_schedule_poison(openreg_instance instance, void *memory, uint64_t size);
/* The same for device memory that the program has freed, as early as its stream allows: now, or right behind the queued
 * work. openreg/schedule.h; with a seed. */
openreg_status openreg_sim_poison(openreg_instance, int32_t dev, openreg_driver_stream, void *ptr, uint64_t size);

#endif
