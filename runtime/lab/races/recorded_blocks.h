/* SPDX-License-Identifier: BSD-3-Clause */
/* recorded_blocks.h: blocks that streams were recorded for (record_stream()). Internal to races/; its lock is held. */
#ifndef OPENREG_SRC_RECORDED_BLOCKS_H
#define OPENREG_SRC_RECORDED_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

/* Notes that the stream of that line uses the block; no effect if noted before. False: memory is short. */
bool openreg_recorded_blocks_add(uint64_t start, uint64_t size, uint32_t line);

/* Calls `see` with each line of the block, and forgets the block. */
void openreg_recorded_blocks_take(uint64_t start, void (*see)(uint64_t start, uint64_t size, uint32_t line));

void openreg_recorded_blocks_reset(void);

#endif
