/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_schedule.h: the order in which the simulated devices run their work, chosen from a seed. Internal to drivers/sim.
 *
 * With the option `seed` no stream has a thread. Work waits in its queue until somebody waits for it, or until the seed
 * says that it runs when it is given, and the thread that waits then runs it, one task after the other. A task is ready
 * when it is the first of its stream and, if it waits for an event, that was passed. So any order of ready tasks is one
 * that real devices might take. Functions of the host run on one thread of the driver's, for which is waited.
 *
 *   schedule   random   given work is put off with probability 3/4; some of what is ready runs at each call, and at each
 *                       wait anything that is ready, until what is waited for has run
 *              pct      streams have priorities, and so has the host: work runs as soon as its stream's is above the
 *                       host's; at two moments the stream that is at it becomes the last of all
 *              latest   only what a wait needs is run
 *              without the option the seed chooses: 0, 3, 6... latest, 1, 4, 7... random, 2, 5, 8... pct
 *   switches   copies and fills that may be put off; from then on each is run when it is given. 0 is the plain order
 *   schedule_log  a file to which a line for each task, and for each that is put off, is written
 *
 * Time is virtual: calls and tasks take a microsecond, copies and fills the time of 10 GB/s besides. */
#ifndef OPENREG_DRIVERS_SIM_SCHEDULE_H
#define OPENREG_DRIVERS_SIM_SCHEDULE_H

#include "sim.h"

/* Of the options; zero is none. */
typedef struct openreg_sim_plan {
    bool is_on;
    uint64_t seed;
    openreg_sim_order order;
    int64_t switches; /* -1: any number */
    const char *log;  /* a path, owned by the options, or NULL */
} openreg_sim_plan;

/* Reads an option, if it is one of these. False: the value is no good, and `*expected` says what it may be. */
bool openreg_sim_plan_read(openreg_sim_plan *plan, const openreg_option *option, const char **expected);
/* Completes the plan once all options are read. */
void openreg_sim_plan_complete(openreg_sim_plan *plan);

/* For open() and close(). E_INVALID: the log can't be written. */
openreg_status openreg_sim_schedule_create(openreg_instance instance, const openreg_sim_plan *plan);
void openreg_sim_schedule_destroy(openreg_instance instance);

/* Gives a stream the numbers that the seed has for it. */
void openreg_sim_schedule_add(openreg_driver_stream stream);
/* Appends a task that `push` has made room for: what openreg_sim_stream_submit() does with a seed. */
openreg_status openreg_sim_schedule_submit(openreg_driver_stream stream, const openreg_sim_task *task);
/* Runs tasks until the stream has reached the position. */
void openreg_sim_schedule_await(openreg_driver_stream stream, uint64_t position);
/* A call looks at a stream: time goes on, and something that is ready may run, so that who asks again and again sees the
 * end. */
void openreg_sim_schedule_look(openreg_driver_stream stream);
/* Now, on the virtual clock. */
uint64_t openreg_sim_schedule_now(openreg_instance instance);
/* Fills memory that was just made, for a device or pinned, with bytes that the seed chooses: nothing that anybody has
 * written. Nothing without a seed. */
void openreg_sim_schedule_poison(openreg_instance instance, void *memory, uint64_t size);
/* The same with device memory that the program has freed, as early as its stream allows: now, or right behind the work that
 * is queued. openreg/schedule.h; with a seed. */
openreg_status openreg_sim_poison(openreg_instance, int32_t dev, openreg_driver_stream, void *ptr, uint64_t size);

#endif
