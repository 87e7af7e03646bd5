/* SPDX-License-Identifier: BSD-3-Clause */
/* selection.h: chooses the active drivers, and reports why they cannot be used. Internal. The caller holds the driver
 * lock. */
#ifndef OPENREG_SRC_SELECTION_H
#define OPENREG_SRC_SELECTION_H

#include "registry/candidates.h"
#include "registry/driver_open.h"

/* The result of the rules of openreg/registry.h. */
typedef struct openreg_decision {
    int32_t chosen_by; /* OPENREG_CHOSEN_* */
    int count;
    openreg_candidate *drivers[OPENREG_CANDIDATES_MAX]; /* to be active, in this order */
    int64_t devices;                                    /* of all of them, if `must_open` is 0 */
    int must_open;                                      /* a driver can only be counted by opening it */
} openreg_decision;

/* Decides, making `attempt` at each driver considered; `list` is that of openreg_drivers_use() or NULL. On failure the
 * thread's error is the one to report. Drivers that were opened stay open, also on failure. */
openreg_status openreg_select(const char *call, const char *list, openreg_attempt attempt, openreg_decision *out);

/* Opens every driver, or only those that `list` or OPENREG_DRIVERS names. Otherwise as openreg_select(). */
openreg_status openreg_select_all(const char *call, const char *list, openreg_decision *out);

/* Whether openreg_select() would find a GPU or a requested driver, or would fail because of one. Opens GPUs and the preferred
 * driver, but no simulated one that was not requested. Keeps the thread's error. */
int openreg_would_find_gpu(const char *call, const char *list);

/* Whether rule 4 may choose it: by its priority, and by openreg_choose_plugins_alone(). */
int openreg_candidate_can_be_found(const openreg_candidate *candidate);

/* Whether `list` names exactly these drivers, all of them open. Opens nothing. */
int openreg_list_means(const char *list, openreg_candidate *const *drivers, int count);

/* 1 if the list is empty or NULL. */
int openreg_list_is_empty(const char *list);

/* Whether a failure is one of the driver's library (and of the vendor's behind it), so that it counts as not loaded. */
int openreg_candidate_is_not_loaded(const openreg_candidate *candidate);

/* ---- driver_hints.c ---- */

/* Warns, once per process and driver, if the machine seems to have an NVIDIA or AMD GPU (device files, PCI; under
 * OPENREG_SYSTEM_ROOT instead of "/"). For an automatic choice of `sim`. */
void openreg_suggest_missing_drivers(void);

/* ---- inactive_driver.c ---- */

/* The candidate of a name, with the errors of openreg_driver_find(); of a group the first open member, else the first
 * that can be opened, which is then open. */
openreg_status openreg_inactive_driver_find(const char *call, const char *name, openreg_candidate **out);

/* ---- selection_report.c ---- */

/* How a driver came to be tried. */
typedef enum openreg_choice {
    OPENREG_CHOICE_BY_VARIABLE, /* OPENREG_DRIVERS names it */
    OPENREG_CHOICE_BY_CALL,     /* openreg_drivers_use() names it */
    OPENREG_CHOICE_FOUND,       /* it was not named, but its failure is an error */
} openreg_choice;

/* Each sets the thread's error and returns its code. */

/* For a candidate that has failed: names it and the reason, a remedy, every place of that name with its reason, and the
 * other drivers. */
openreg_status openreg_report_failure(const char *call, const openreg_candidate *candidate, openreg_choice choice);
/* The same for a group of which no member works. */
openreg_status openreg_report_group(const char *call, const char *name, openreg_choice choice);
/* An unknown name, in a list or on its own. */
openreg_status openreg_report_unknown_in_list(const char *call, const char *name, openreg_choice choice);
openreg_status openreg_report_unknown(const char *call, const char *name);
/* An automatic choice without a result; `last` determines the error's code, NULL if there was no driver at all. */
openreg_status openreg_report_none(const char *call, const openreg_candidate *last);
/* A single driver was requested. */
openreg_status openreg_report_not_open(const char *call, const openreg_candidate *candidate);

/* Names that are not shadowed, by priority: 'cuda', 'hip', 'sim'. */
void openreg_known_names(char *out, size_t size);

#endif
