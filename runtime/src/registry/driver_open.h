/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_open.h: opens, counts and closes drivers. Internal. The caller holds the driver lock.
 *
 * Several may be open, until openreg_driver_open_close_back_to(). */
#ifndef OPENREG_SRC_DRIVER_OPEN_H
#define OPENREG_SRC_DRIVER_OPEN_H

#include "registry/candidates.h"

/* An attempt at a driver: to open it, or only count its devices. *devices: its visible devices. The candidate keeps a
 * failure. */
typedef openreg_status (*openreg_attempt)(const char *call, openreg_candidate *candidate, int64_t *devices);

/* Loads and opens it, unless it is open. A driver that a factory only describes counts as open afterwards, too. */
openreg_status openreg_candidate_open(const char *call, openreg_candidate *candidate, int64_t *devices);

/* Grows with each attempt to open a driver. */
uint32_t openreg_driver_open_attempts(void);

/* Counts devices by describe(); returns the failure of a driver that couldn't be opened, until something has changed. */
#define OPENREG_MUST_OPEN INT64_C(-1) /* value of *devices: only opening can count them */
openreg_status openreg_driver_open_count(const char *call, openreg_candidate *candidate, int64_t *devices);

/* Makes an attempt whose failure is not an error: logged once, and not repeated before something has changed. */
openreg_status openreg_driver_open_try(const char *call, openreg_candidate *candidate, openreg_attempt attempt,
                                       int64_t *devices);
/* Logs that line. */
void openreg_driver_open_log_failure(const openreg_candidate *candidate);

/* Options of a driver: of this process, of its registration, of the environment, each overriding those before; options
 * that the runtime reads itself are kept apart. Errors: OPENREG_E_NOMEM, OPENREG_E_INVALID. */
typedef struct openreg_settings {
    openreg_options options;
    openreg_option visible; /* {NULL, NULL}: not set */
    openreg_option faults;  /* the same: a plan of openreg/faults.h */
} openreg_settings;
openreg_status openreg_settings_read(const char *call, const openreg_candidate *candidate, openreg_settings *out);
void openreg_settings_free(openreg_settings *settings);

/* Number of open drivers. close_back_to() closes all but the first `mark` of them, the last one first, and leaves the
 * thread's error alone. */
int openreg_driver_open_mark(void);
void openreg_driver_open_close_back_to(const char *call, int mark);

#endif
