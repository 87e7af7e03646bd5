/* SPDX-License-Identifier: BSD-3-Clause */
/* candidates.h: the list of candidate drivers. Internal.
 *
 * Two kinds of exclusion. The *lock* protects the list and what openreg_driver_get_record() reads of its
 * members; it is held for a few instructions and never while foreign code runs or a line is logged. The *driver lock*
 * (driver_lock.h) is held by the one thread that loads, opens or closes drivers, for as long as that takes. */
#ifndef OPENREG_SRC_CANDIDATES_H
#define OPENREG_SRC_CANDIDATES_H

#include "base/error.h"
#include "driver/device_table.h"
#include "driver/options.h"
#include "registry/driver_names.h"
#include "registry/loader.h"

/* Where a candidate comes from. If two have one name, the later kind wins; within a kind, the later candidate. */
typedef enum openreg_source {
    OPENREG_SOURCE_BUILT_IN,
    OPENREG_SOURCE_BUNDLED, /* or at the path of OPENREG_<NAME>_LIBRARY_PATH */
    OPENREG_SOURCE_MOCK,    /* OPENREG_USE_MOCK_GPU */
    OPENREG_SOURCE_REGISTERED,
    OPENREG_SOURCE_LIBRARIES, /* OPENREG_DRIVER_LIBRARIES */
} openreg_source;

/* Once in the list it is never freed or moved. The first part is then constant; the rest is written by the holder of the
 * driver lock, under the lock. */
typedef struct openreg_candidate {
    char name[OPENREG_NAME_SIZE];
    openreg_source source;
    char origin[64]; /* the source in words */
    int32_t priority;
    uint32_t flags;                /* OPENREG_REGISTER_* */
    char *wanted_path;             /* of its library, else NULL */
    openreg_driver_query_fn query; /* built in or mock, else NULL */
    openreg_driver_factory factory;
    void *factory_context;
    openreg_options options; /* of its registration */

    int hidden;        /* the variable no longer names it */
    int is_absent;     /* its library is missing */
    int has_table;     /* `table` was read and accepted */
    int is_described;  /* its factory described it, without a table */
    int is_unloadable; /* the failure is that of its library or table */
    int is_missing;    /* the same, because that library, or one that it needs, is not on this machine */
    int was_tried;     /* it was requested since it failed: the failure of a missing library is known before any
                        * request */
    int was_announced; /* the warning that it is a mock was logged */
    int32_t state;     /* OPENREG_DRIVER_STATE_*, without _SHADOWED */
    openreg_error_fields failure; /* its text without the name of the call, nor "driver \"<name>\": " in front */
    unsigned failed_at;           /* openreg_candidates_changes() at the time of the failure */
    int32_t device_count, first_device;
    openreg_opened_driver *opened; /* NULL unless it is open and has a table */
    openreg_driver table;
    char version[64]; /* described ones */
    const char *path; /* openreg_loader_keep_path() */
} openreg_candidate;

#define OPENREG_CANDIDATES_MAX 256

void openreg_candidates_lock(void);
void openreg_candidates_unlock(void);

/* Makes a candidate, which is not in the list yet, and frees one that was not added. NULL: host memory is short. `path`
 * may be NULL. */
openreg_candidate *openreg_candidate_create(const char *name, openreg_source source, const char *origin,
                                            int32_t priority, const char *path);
void openreg_candidate_discard(openreg_candidate *candidate);

/* ---- With the lock held. ---- */

int openreg_candidates_add_locked(openreg_candidate *candidate); /* 0: the list is full */
/* Candidate i in order of age, including hidden ones; NULL behind the last one. */
openreg_candidate *openreg_candidates_at_locked(int i);
/* The candidate of a canonical name, or NULL. */
openreg_candidate *openreg_candidates_find_locked(const char *name);
/* The same for a name that may be a group's: of a group the first open member, else its first. */
openreg_candidate *openreg_candidates_find_member_locked(const char *name);
/* The open one of a name, including hidden and shadowed ones; of a group that of the first member with one. NULL: none. */
openreg_candidate *openreg_candidates_find_open_locked(const char *name);
int openreg_candidate_is_listed_locked(const openreg_candidate *candidate); /* appears in the records */

/* ---- Without. ---- */

int openreg_candidate_is_gpu(const openreg_candidate *candidate);    /* OPENREG_DRIVER_FLAG_GPU */
int openreg_candidate_is_plugin(const openreg_candidate *candidate); /* OPENREG_DRIVER_FLAG_PLUGIN */
int openreg_candidate_is_named(const openreg_candidate *candidate);  /* named by a variable of this run */

openreg_candidate *openreg_candidates_find(const char *name);
/* Copies pointers to all candidates that are neither shadowed nor hidden, by priority, then by age; returns their
 * number. */
int openreg_candidates_sorted(openreg_candidate *out[OPENREG_CANDIDATES_MAX]);
/* All candidates of a name that are not hidden, including shadowed ones. */
int openreg_candidates_namesakes(const char *name, openreg_candidate *out[OPENREG_CANDIDATES_MAX]);

/* Counts the changes after which failed candidates are tried again: of variables or registrations, a shutdown, a caller's
 * request. */
unsigned openreg_candidates_changes(void);
void openreg_candidates_note_change(void);

/* ---- With the driver lock held. ---- */

/* Reads the candidate's table, or calls its factory, if that has not been done: candidate_load.c. On failure the candidate
 * keeps the reason. Errors: those of loader.h, the factory's own, OPENREG_E_NO_DEVICE (it returned nothing). */
openreg_status openreg_candidate_load(const char *call, openreg_candidate *candidate);
/* Keeps the thread's last error as the candidate's, in the form of openreg_candidate_failure(). */
void openreg_candidate_fail(openreg_candidate *candidate, const char *call);
void openreg_candidate_fail_with(openreg_candidate *candidate, openreg_status code, const char *message);
/* An error's text for a candidate: without "<call>: " and the name of the driver. */
openreg_error_fields openreg_candidate_failure(const openreg_candidate *candidate, const char *call,
                                               const openreg_error_fields *error);
/* Sets a state other than failed. */
void openreg_candidate_set_state(openreg_candidate *candidate, int32_t state, int32_t device_count);
/* Sets the state open and `opened` together: readers that hold the candidates' lock never find an open driver without its
 * table. `opened` is NULL for a driver that its factory only describes. */
void openreg_candidate_set_open(openreg_candidate *candidate, openreg_opened_driver *opened, int32_t device_count);
/* Resets the state to the one before it was opened or failed, together with `opened`, which the caller frees. */
void openreg_candidate_reset(openreg_candidate *candidate);
/* 1 if it has failed and nothing has changed since. Being short of memory is no reason not to try again. */
int openreg_candidate_failed_before(const openreg_candidate *candidate);
/* Notes that a failed candidate was requested. */
void openreg_candidate_note_tried(openreg_candidate *candidate);

#endif
