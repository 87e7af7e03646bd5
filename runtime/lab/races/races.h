/* SPDX-License-Identifier: BSD-3-Clause */
/* races.h: inputs of the race detector (openreg/races.h). Internal.
 *
 * The functions of the first part are called only while openreg_races_are_found(). They record nothing while the thread is
 * muted. The detector's lock is a leaf; they may be called with a lock of the runtime held. */
#ifndef OPENREG_SRC_RACES_H
#define OPENREG_SRC_RACES_H

#include <stdbool.h>

#include <openreg/observer.h>
#include <openreg/races.h>

uint32_t openreg_lab_races_flags(void);

/* One load. */
static inline bool
openreg_races_are_found(void)
{
    return openreg_lab_races_flags() != 0;
}

/* What observer.h calls: an order between streams, marks and the host; a block of memory; a call that uses a stream,
 * or an event of one, of a device that was lost, and will fail (the strings live as long as the process; no lock is
 * held). */
void openreg_races_see_order(void *ctx, const openreg_order *order);
void openreg_races_see_block(void *ctx, int32_t what, const void *address, uint64_t size, int32_t device,
                             openreg_stream stream);
void openreg_races_see_lost(void *ctx, const char *call, int32_t device, openreg_stream stream, const char *first_call,
                            const char *first_place);

/* Reads OPENREG_RACES, or OPENREG_SIM_RACES: while a table is published its flags are added to those of
 * openreg_races_set(). */
void openreg_races_see_table(void *ctx, int32_t is_published);

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
