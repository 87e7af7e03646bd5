/* SPDX-License-Identifier: BSD-3-Clause */
/* vector_clock.h: vector clocks of streams and of the host. Internal to races/; its lock is held.
 *
 * A line of time is a stream, or the host, which is number 0. A clock has, for each line, the latest time that its owner
 * knows. The host's own entry is never read: whatever it does is in the past of work that it queues later. */
#ifndef OPENREG_SRC_VECTOR_CLOCK_H
#define OPENREG_SRC_VECTOR_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include <openreg/openreg.h>

#define OPENREG_RACES_LINES 1024
#define OPENREG_RACES_HOST_LINE 0u

/* All zero knows nothing. */
typedef struct openreg_clock {
    uint32_t count;
    uint32_t room;
    uint64_t *at;
} openreg_clock;

static inline uint64_t
openreg_clock_of(const openreg_clock *clock, uint32_t line)
{
    return line < clock->count ? clock->at[line] : 0;
}

/* Merges `from` into `to`. False: memory is short, and nothing has changed. */
bool openreg_clock_join(openreg_clock *to, const openreg_clock *from);
/* Makes them equal. False: memory is short, and `to` knows nothing. */
bool openreg_clock_copy(openreg_clock *to, const openreg_clock *from);
void openreg_clock_free(openreg_clock *clock);

/* The line of a stream, made on first use. OPENREG_RACES_LINES: there are too many. */
uint32_t openreg_clock_line(int32_t device, openreg_stream stream);
/* The stream of a line. */
void openreg_clock_stream_of(uint32_t line, int32_t *device, openreg_stream *stream);
uint32_t openreg_clock_lines(void);

/* The clock of work queued on the line now, with what the host knows merged in; and the time of such work. */
openreg_clock *openreg_clock_queue(uint32_t line, uint64_t *now);
/* The clock of a line to merge into others: later work gets a later time. */
const openreg_clock *openreg_clock_release(uint32_t line);
/* Merges it into the host's clock. False: memory is short. */
bool openreg_clock_host_joins(const openreg_clock *clock);
const openreg_clock *openreg_clock_host(void);

void openreg_clock_reset(void); /* all lines are as new */

#endif
