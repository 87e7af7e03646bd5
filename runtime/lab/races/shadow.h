/* SPDX-License-Identifier: BSD-3-Clause */
/* shadow.h: who used which bytes last. Internal to races/; its lock is held.
 *
 * Ranges of bytes that were used alike are one cell: the last write, and those reads since of which none is in another's
 * past (FastTrack, Flanagan and Freund 2009: more can't be needed to find the first race of a byte). */
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

/* What a new use is in conflict with. */
typedef struct openreg_conflict {
    int32_t kind; /* OPENREG_RACE_*, 0: none */
    openreg_epoch other;
    int other_writes;
    uint32_t freed; /* of OPENREG_RACE_REUSE: by openreg_shadow_free(), or 0 */
    uint64_t address, size;
} openreg_conflict;

/* A use of [address, address + size) by `epoch`, which knows `clock`. Fills in the first conflict, if there is one, and
 * notes the use, whatever it found; with `checks_only` nothing is noted. `wants_uninitialized`: a read of memory that
 * nothing wrote is a conflict too. */
typedef struct openreg_shadow_use {
    uint64_t address, size;
    openreg_epoch epoch;
    const openreg_clock *clock;
    bool writes, checks_only, wants_uninitialized;
} openreg_shadow_use;
void openreg_shadow_note(const openreg_shadow_use *use, openreg_conflict *conflict);

/* The range was freed by a call of that origin; what it was freed by while a use of an owner before counts, is kept. */
void openreg_shadow_free(uint64_t address, uint64_t size, uint32_t origin);
/* The range was given out: who used it before was another owner, and nothing is written. */
void openreg_shadow_give(uint64_t address, uint64_t size);
/* Uses of the range that `clock` knows of are forgotten: its allocator waits for them. */
void openreg_shadow_pass(uint64_t address, uint64_t size, const openreg_clock *clock);
/* All of them are. */
void openreg_shadow_forget(uint64_t address, uint64_t size);
/* Nothing is said of what was or wasn't written in the range. */
void openreg_shadow_excuse(uint64_t address, uint64_t size);
bool openreg_shadow_knows(uint64_t address, uint64_t size);
void openreg_shadow_reset(void);

#endif
