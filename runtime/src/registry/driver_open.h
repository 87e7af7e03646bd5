/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_open.h: drivers are opened, counted and closed. Internal. The caller holds the driver lock.
 *
 * Several may be open; they stay so until openreg_driver_open_close_back_to(). */
#ifndef OPENREG_SRC_DRIVER_OPEN_H
#define OPENREG_SRC_DRIVER_OPEN_H

#include "registry/candidates.h"

/* What to do with a driver: open it, or only count its devices. *devices: its visible devices. A failure is remembered
 * by the candidate. */
typedef openreg_status (*openreg_attempt)(const char *call, openreg_candidate *candidate, int64_t *devices);

/* Loads and opens it, unless it is open. A driver that a factory describes is open then, too. */
openreg_status openreg_candidate_open(const char *call, openreg_candidate *candidate, int64_t *devices);

/* Grows with each driver that was opened, or couldn't be. */
uint32_t openreg_driver_open_attempts(void);

/* Counts them as describe() does; of one that couldn't be opened the failure, until something has changed. */
#define OPENREG_MUST_OPEN INT64_C(-1) /* *devices: only opening will tell */
openreg_status openreg_driver_open_count(const char *call, openreg_candidate *candidate, int64_t *devices);

/* Makes an attempt whose failure is not an error: not repeated before something has changed, logged once. */
openreg_status openreg_driver_open_try(const char *call, openreg_candidate *candidate, openreg_attempt attempt,
                                       int64_t *devices);
/* The line that says so. */
void openreg_driver_open_log_failure(const openreg_candidate *candidate);

/* Options of a driver: of this process, of its registration, of the environment, each overriding those before, and apart
 * from them what the runtime reads itself. Errors: OPENREG_E_NOMEM, OPENREG_E_INVALID. */
typedef struct openreg_settings {
    openreg_options options;
    openreg_option visible; /* {NULL, NULL}: not set */
    openreg_option faults;  /* likewise: a plan of openreg/faults.h */
} openreg_settings;
openreg_status openreg_settings_read(const char *call, const openreg_candidate *candidate, openreg_settings *out);
void openreg_settings_free(openreg_settings *settings);

/* Number of open drivers. close_back_to() closes all but the first `mark` of them, the last one first, and leaves the
 * thread's error alone. */
int openreg_driver_open_mark(void);
void openreg_driver_open_close_back_to(const char *call, int mark);

#endif
