/* SPDX-License-Identifier: BSD-3-Clause */
/* selection.h: which drivers are to be active, and what is said when they cannot be. Internal. The caller holds the
 * driver lock. */
#ifndef OPENREG_SRC_SELECTION_H
#define OPENREG_SRC_SELECTION_H

#include "registry/candidates.h"
#include "registry/driver_open.h"

/* What the rules of openreg/registry.h come to. */
typedef struct openreg_decision {
    int32_t chosen_by; /* OPENREG_CHOSEN_* */
    int count;
    openreg_candidate *drivers[OPENREG_CANDIDATES_MAX]; /* to be active, in this order */
    int64_t devices;                                    /* of all of them, if `must_open` is 0 */
    int must_open;                                      /* a driver can only be counted by opening it */
} openreg_decision;

/* Decides, with `attempt` made at each driver that is considered; `list` is that of openreg_drivers_use() or NULL. On
 * failure the thread's error is the one to report. Drivers that were opened stay open, also on failure. */
openreg_status openreg_select(const char *call, const char *list, openreg_attempt attempt, openreg_decision *out);

/* Opens every driver, or those alone that `list` or OPENREG_DRIVERS names. As openreg_select() otherwise. */
openreg_status openreg_select_all(const char *call, const char *list, openreg_decision *out);

/* Whether openreg_select() would find a GPU or a driver that somebody has asked for, or would fail because of one. Opens GPUs
 * and the preferred driver, but none that is simulated and was not asked for. The thread's error stays as it is. */
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

/* Warns, once per process and driver, if the machine looks like one with an NVIDIA or AMD GPU (device files, PCI; under
 * OPENREG_SYSTEM_ROOT instead of "/"). For an automatic choice that came down to `sim`. */
void openreg_suggest_missing_drivers(void);

/* ---- inactive_driver.c ---- */

/* The candidate of a name, with the errors of openreg_driver_find(); of a group the first open member, else the first
 * that can be opened, which is open then. */
openreg_status openreg_inactive_driver_find(const char *call, const char *name, openreg_candidate **out);

/* ---- selection_report.c ---- */

/* How a driver came to be tried. */
typedef enum openreg_choice {
    OPENREG_CHOICE_BY_VARIABLE, /* OPENREG_DRIVERS names it */
    OPENREG_CHOICE_BY_CALL,     /* openreg_drivers_use() names it */
    OPENREG_CHOICE_FOUND,       /* nobody did, and its failure is an error */
} openreg_choice;

/* Each sets the thread's error and returns its code. */

/* For a candidate that has failed: what cannot be used and why, a way out, every place of that name with its
 * reason, the other drivers. */
openreg_status openreg_report_failure(const char *call, const openreg_candidate *candidate, openreg_choice choice);
/* The same for a group of which no member works. */
openreg_status openreg_report_group(const char *call, const char *name, openreg_choice choice);
/* A name that nobody knows, in a list or alone. */
openreg_status openreg_report_unknown_in_list(const char *call, const char *name, openreg_choice choice);
openreg_status openreg_report_unknown(const char *call, const char *name);
/* An automatic choice that found nothing; `last` decides what kind of error it is, NULL if there was no driver at all. */
openreg_status openreg_report_none(const char *call, const openreg_candidate *last);
/* A driver was asked for alone. */
openreg_status openreg_report_not_open(const char *call, const openreg_candidate *candidate);

/* Names that are not shadowed, by priority: 'cuda', 'hip', 'sim'. */
void openreg_known_names(char *out, size_t size);

#endif
