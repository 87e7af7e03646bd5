/* SPDX-License-Identifier: BSD-3-Clause */
/* vector_clock.c: vector clocks (vector_clock.h). */
#include "races/vector_clock.h"

#include <stdlib.h>
#include <string.h>

typedef struct line {
    int32_t device;
    openreg_stream stream;
    openreg_clock clock;
    uint64_t host_seen; /* host_version that is merged into the clock */
} line;

#define BUCKETS (2 * OPENREG_RACES_LINES)

static line lines[OPENREG_RACES_LINES]; /* [0]: the host */
static uint32_t line_count = 1;
static uint16_t buckets[BUCKETS]; /* number of a line, by stream; 0: empty */
static uint64_t host_version = 1; /* of the host's clock */

static bool
grow(openreg_clock *clock, uint32_t count)
{
    if (count <= clock->count)
        return true;
    if (count > clock->room) {
        const uint32_t room = count < 8 ? 8 : count + count / 2;
        uint64_t *const at = realloc(clock->at, room * sizeof *at);
        if (at == NULL)
            return false;
        clock->at = at;
        clock->room = room;
    }
    memset(clock->at + clock->count, 0, (count - clock->count) * sizeof *clock->at);
    clock->count = count;
    return true;
}

bool
openreg_clock_join(openreg_clock *to, const openreg_clock *from)
{
    if (!grow(to, from->count))
        return false;
    for (uint32_t i = 0; i < from->count; ++i)
        if (from->at[i] > to->at[i])
            to->at[i] = from->at[i];
    return true;
}

bool
openreg_clock_copy(openreg_clock *to, const openreg_clock *from)
{
    to->count = 0;
    return openreg_clock_join(to, from);
}

void
openreg_clock_free(openreg_clock *clock)
{
    free(clock->at);
    *clock = (openreg_clock){0};
}

uint32_t
openreg_clock_line(int32_t device, openreg_stream stream)
{
    uint32_t bucket = (uint32_t)(((uint64_t)stream * 31 + (uint64_t)(uint32_t)device) * 2654435761u % BUCKETS);
    for (; buckets[bucket] != 0; bucket = (bucket + 1) % BUCKETS) {
        const line *const known = &lines[buckets[bucket]];
        if (known->device == device && known->stream == stream)
            return buckets[bucket];
    }
    if (line_count == OPENREG_RACES_LINES)
        return OPENREG_RACES_LINES;
    line *const made = &lines[line_count];
    made->device = device;
    made->stream = stream;
    buckets[bucket] = (uint16_t)line_count;
    return line_count++;
}

void
openreg_clock_stream_of(uint32_t number, int32_t *device, openreg_stream *stream)
{
    *device = number == OPENREG_RACES_HOST_LINE ? OPENREG_HOST : lines[number].device;
    *stream = number == OPENREG_RACES_HOST_LINE ? OPENREG_STREAM_DEFAULT : lines[number].stream;
}

uint32_t
openreg_clock_lines(void)
{
    return line_count;
}

openreg_clock *
openreg_clock_queue(uint32_t number, uint64_t *now)
{
    line *const own = &lines[number];
    if (own->host_seen != host_version) {
        if (!grow(&own->clock, number + 1) || !openreg_clock_join(&own->clock, &lines[OPENREG_RACES_HOST_LINE].clock))
            return NULL;
        own->host_seen = host_version;
        if (own->clock.at[number] == 0)
            own->clock.at[number] = 1; /* 0 is "never" */
    }
    *now = own->clock.at[number];
    return &own->clock;
}

const openreg_clock *
openreg_clock_release(uint32_t number)
{
    static openreg_clock released; /* written by the holder of the lock */
    uint64_t now;
    openreg_clock *const clock = openreg_clock_queue(number, &now);
    if (clock == NULL || !openreg_clock_copy(&released, clock))
        return NULL;
    clock->at[number] = now + 1;
    return &released;
}

bool
openreg_clock_host_joins(const openreg_clock *clock)
{
    if (!openreg_clock_join(&lines[OPENREG_RACES_HOST_LINE].clock, clock))
        return false;
    host_version++;
    return true;
}

const openreg_clock *
openreg_clock_host(void)
{
    return &lines[OPENREG_RACES_HOST_LINE].clock;
}

void
openreg_clock_reset(void)
{
    for (uint32_t i = 0; i < line_count; ++i) {
        openreg_clock_free(&lines[i].clock);
        lines[i] = (line){0};
    }
    memset(buckets, 0, sizeof buckets);
    line_count = 1;
    host_version++;
}
