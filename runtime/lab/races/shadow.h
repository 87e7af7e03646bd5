/* SPDX-License-Identifier: BSD-3-Clause */
/* shadow.h: the last uses of each byte. Internal to races/; its lock is held.
 *
 * A range of bytes with the same uses is one cell: the last write, and the later reads of which none is in another's past
 * (FastTrack, Flanagan and Freund 2009: no more is needed to find the first race of a byte). */
#ifndef OPENREG_SRC_SHADOW_H
#define OPENREG_SRC_SHADOW_H

#include <stdbool.h>
#include <stdint.h>

#include "races/vector_clock.h"

/* A use: of a line at a time. */
typedef struct openreg_epoch {
    uint64_t time; /* 0: none */
    uint32_t line;
    uint32_t origin;
} openreg_epoch;

/* The earlier use that a new one conflicts with. */
typedef struct openreg_conflict {
    int32_t kind; /* OPENREG_RACE_*, 0: none */
    openreg_epoch other;
    int other_writes;
    uint32_t freed; /* of OPENREG_RACE_REUSE: by openreg_shadow_free(), or 0 */
    uint64_t address, size;
} openreg_conflict;

/* A use of [address, address + size) by `epoch`, whose past is `clock`. Fills in the first conflict, if there is one, and
 * records the use in any case, unless `checks_only`. `wants_uninitialized`: a read of memory that nothing wrote is a
 * conflict too. */
typedef struct openreg_shadow_use {
    uint64_t address, size;
    openreg_epoch epoch;
    const openreg_clock *clock;
    bool writes, checks_only, wants_uninitialized;
} openreg_shadow_use;
void openreg_shadow_note(const openreg_shadow_use *use, openreg_conflict *conflict);

/* The range was freed by a call of that origin; an earlier origin is kept while uses of an earlier owner count. */
void openreg_shadow_free(uint64_t address, uint64_t size, uint32_t origin);
/* The range was allocated: its uses are those of an earlier owner, and nothing is written. */
void openreg_shadow_give(uint64_t address, uint64_t size);
/* Forgets uses of the range in the past of `clock`: its allocator waits for them. */
void openreg_shadow_pass(uint64_t address, uint64_t size, const openreg_clock *clock);
/* Forgets all uses of the range. */
void openreg_shadow_forget(uint64_t address, uint64_t size);
/* Makes it unknown whether bytes of the range were written. */
void openreg_shadow_excuse(uint64_t address, uint64_t size);
bool openreg_shadow_knows(uint64_t address, uint64_t size);
void openreg_shadow_reset(void);

#endif
