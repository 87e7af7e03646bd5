/* SPDX-License-Identifier: BSD-3-Clause */
/* log.h: log lines with a level, to a callback or stderr. Internal. */
#ifndef OPENREG_SRC_LOG_H
#define OPENREG_SRC_LOG_H

#include <stdint.h>

#include "base/internal_api.h"

/* `level`: OPENREG_LOG_*. Lines below OPENREG_LOG_LEVEL are dropped before formatting. One write(2) a line. */
OPENREG_INTERNAL void openreg_log(int32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sets the threshold from the text of OPENREG_LOG_LEVEL; NULL and unknown words mean the level of
 * openreg_log_set_level(). Before the first call openreg_log() reads the variable itself. */
void openreg_log_read_level(const char *text);

#endif
