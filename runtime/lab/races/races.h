/* SPDX-License-Identifier: BSD-3-Clause */
/* races.h: inputs of the race detector (openreg/races.h). Internal.
 *
 * The functions of the first part are called only while openreg_races_are_found(). They record nothing while the thread is
 * muted. The detector's lock is a leaf; they may be called with a lock of the runtime held. */
#ifndef OPENREG_SRC_RACES_H
#define OPENREG_SRC_RACES_H

#include <stdbool.h>

#include <openreg/races.h>

uint32_t openreg_lab_races_flags(void);

/* One load. */
static inline bool
openreg_races_are_found(void)
{
    return openreg_lab_races_flags() != 0;
}

/* A recorded event, or a queued host function, by a number: it carries its stream's clock. */
void openreg_races_mark(uint64_t mark, int32_t device, openreg_stream stream);
void openreg_races_mark_gone(uint64_t mark);
/* A stream, or the host, is ordered behind it. */
void openreg_races_stream_waits_mark(int32_t device, openreg_stream stream, uint64_t mark);
void openreg_races_host_waits_mark(uint64_t mark);
void openreg_races_host_waits_device(int32_t device);

/* A block was allocated; a stream was recorded for one; one is released. */
void openreg_races_block_given(const void *address, uint64_t size);
void openreg_races_block_recorded(const void *address, uint64_t size, int32_t device, openreg_stream stream);
void openreg_races_block_freed(const void *address, uint64_t size);

/* A call is about to use a stream, or an event of one, of a device that was lost, and will fail. `loss` is the call that
 * lost it; its strings, except the stack, live as long as the process. Called with no lock held. */
void openreg_races_lost_device_used(const openreg_race_use *loss, const char *call, openreg_stream stream);

/* Reads OPENREG_RACES, or OPENREG_SIM_RACES: while a table is published its flags are added to those of
 * openreg_races_set(). */
void openreg_races_follow_variable(bool is_published);

/* Whether the runtime's calls are observed; observer.c. */
void openreg_races_observe(bool on);

/* The functions of openreg/races.h. */
openreg_status openreg_lab_races_set(uint32_t flags, uint32_t *before);
openreg_status openreg_lab_races_visit(uint64_t from, int (*visit)(void *ctx, const openreg_race *race), void *ctx);
uint64_t openreg_lab_races_count(void);
void openreg_lab_races_clear(void);
void openreg_lab_races_allow(int change);
void openreg_lab_races_mute(int change);
int openreg_lab_races_is_muted(void);
uint32_t openreg_lab_races_origin(const char *what);
openreg_status openreg_lab_races_use(uint32_t origin, int32_t device, openreg_stream stream, const void *address,
                                     uint64_t size, int32_t writes);
openreg_status openreg_lab_races_use_tensor(uint32_t origin, int32_t device, openreg_stream stream, const void *address,
                                            int32_t dimensions, const int64_t *sizes, const int64_t *strides,
                                            uint64_t item, int32_t writes);
openreg_status openreg_lab_races_host_use(uint32_t origin, const void *address, uint64_t size, int32_t writes);
int openreg_lab_races_knows(const void *address, uint64_t size);
void openreg_lab_races_host_waits(int32_t device, openreg_stream stream);
void openreg_lab_races_stream_waits(int32_t later_device, openreg_stream later, int32_t first_device,
                                    openreg_stream first);
void openreg_lab_races_forget(const void *address, uint64_t size);

#endif
