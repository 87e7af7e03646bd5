/* SPDX-License-Identifier: BSD-3-Clause */
/* marks.h: the clocks of recorded events and queued host functions, by the numbers of OPENREG_ORDER_MARK. Internal to
 * races/; its lock is held. */
#ifndef OPENREG_SRC_RACE_MARKS_H
#define OPENREG_SRC_RACE_MARKS_H

#include <stdbool.h>
#include <stdint.h>

#include "races/vector_clock.h"

/* Adds a mark; there must be none of that number. False: memory is short. */
bool openreg_marks_add(uint64_t mark, const openreg_clock *clock);
/* NULL: there is none. Valid until the next change. */
const openreg_clock *openreg_marks_find(uint64_t mark);
void openreg_marks_remove(uint64_t mark);
void openreg_marks_reset(void);

#endif
