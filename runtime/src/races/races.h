/* SPDX-License-Identifier: BSD-3-Clause */
/* races.h: what the runtime tells the race detector of (openreg/races.h). Internal.
 *
 * Every function but openreg_races_are_found() is called only where that one says so. They note nothing while the thread
 * is muted. The detector's lock is a leaf; they may be called with a lock of the runtime's held. */
#ifndef OPENREG_SRC_RACES_H
#define OPENREG_SRC_RACES_H

#include <stdbool.h>

#include <openreg/races.h>

/* One load. */
static inline bool
openreg_races_are_found(void)
{
    return __builtin_expect(openreg_races_flags() != 0, 0);
}

/* What an event carries; made at a record, kept by the event. NULL: nothing. */
typedef struct openreg_race_event openreg_race_event;
void openreg_races_event_records(openreg_race_event **event, int32_t device, openreg_stream stream);
void openreg_races_event_free(openreg_race_event *event);
/* A stream, or the host, is behind it. */
void openreg_races_stream_waits_event(int32_t device, openreg_stream stream, const openreg_race_event *event);
void openreg_races_host_waits_event(const openreg_race_event *event);
void openreg_races_host_waits_device(int32_t device);

/* A block was given out; one that a stream was recorded for; one that goes back. */
void openreg_races_block_given(const void *address, uint64_t size);
void openreg_races_block_recorded(const void *address, uint64_t size, int32_t device, openreg_stream stream);
void openreg_races_block_freed(const void *address);

/* A call is about to use a stream, or an event of one, of a device that was lost, and will fail. `loss` is the call that
 * lost it; its strings live as long as the process, but its stack. Called with no lock held. */
void openreg_races_lost_device_used(const openreg_race_use *loss, const char *call, openreg_stream stream);

/* Reads OPENREG_SIM_RACES: while the table is published, flags are at least what it says; before one is, and after, they
 * are what openreg_races_set() made them. */
void openreg_races_follow_variable(bool is_published);

/* Who knows blocks: the start and size of the live one around an address, or false. Set by the room that has them; called
 * without the detector's lock. */
extern bool (*openreg_races_find_block)(uint64_t address, uint64_t *start, uint64_t *size);

#endif
