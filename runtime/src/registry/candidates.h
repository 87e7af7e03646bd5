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

/* Where a candidate comes from. Of two of one name the later kind wins, then the later one of a kind. */
typedef enum openreg_source {
    OPENREG_SOURCE_BUILT_IN,
    OPENREG_SOURCE_BUNDLED, /* or at the path of OPENREG_<NAME>_LIBRARY_PATH */
    OPENREG_SOURCE_MOCK,    /* OPENREG_USE_MOCK_GPU */
    OPENREG_SOURCE_REGISTERED,
    OPENREG_SOURCE_LIBRARIES, /* OPENREG_DRIVER_LIBRARIES */
} openreg_source;

/* Never freed once it is in the list, never moved. The first part is constant from then on; the rest is written by the
 * holder of the driver lock, under the lock. */
typedef struct openreg_candidate {
    char name[OPENREG_NAME_SIZE];
    openreg_source source;
    char origin[64]; /* the source in words */
    int32_t priority;
    uint32_t flags;                /* OPENREG_REGISTER_* */
    char *wanted_path;             /* of a library, else NULL */
    openreg_driver_query_fn query; /* built in or mock, else NULL */
    openreg_driver_factory factory;
    void *factory_context;
    openreg_options options; /* of its registration */

    int hidden;        /* the variable that named it does so no more */
    int is_absent;     /* a library that is not there */
    int has_table;     /* `table` was read and accepted */
    int is_described;  /* by its factory, instead of a table */
    int is_unloadable; /* the failure is that of its library or table */
    int is_missing;    /* likewise, because that library, or one that it needs, is not on this machine */
    int was_tried;     /* somebody has asked for it since it failed: of a library that is not there the failure is known
                        * before anybody does */
    int was_announced; /* the warning that it is a mock */
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

/* A candidate that is not in the list yet, and its end if it never comes there. NULL: host memory is short. `path` may
 * be NULL. */
openreg_candidate *openreg_candidate_create(const char *name, openreg_source source, const char *origin,
                                            int32_t priority, const char *path);
void openreg_candidate_discard(openreg_candidate *candidate);

/* ---- With the lock held. ---- */

int openreg_candidates_add_locked(openreg_candidate *candidate); /* 0: the list is full */
/* Candidate i in order of age, hidden ones too; NULL behind the last one. */
openreg_candidate *openreg_candidates_at_locked(int i);
/* The one that a canonical name means, or NULL. */
openreg_candidate *openreg_candidates_find_locked(const char *name);
/* Likewise of a name that may be a group's: of that the first open member, else its first. */
openreg_candidate *openreg_candidates_find_member_locked(const char *name);
/* The open one of a name, hidden and shadowed ones too; of a group that of the first member that has one. NULL: none. */
openreg_candidate *openreg_candidates_find_open_locked(const char *name);
int openreg_candidate_is_listed_locked(const openreg_candidate *candidate); /* is to be seen in the records */

/* ---- Without. ---- */

int openreg_candidate_is_gpu(const openreg_candidate *candidate);    /* OPENREG_DRIVER_FLAG_GPU */
int openreg_candidate_is_plugin(const openreg_candidate *candidate); /* OPENREG_DRIVER_FLAG_PLUGIN */
int openreg_candidate_is_named(const openreg_candidate *candidate);  /* by a variable of this run */

openreg_candidate *openreg_candidates_find(const char *name);
/* Copies pointers to all candidates that are neither shadowed nor hidden, by priority, then by age; returns their
 * number. */
int openreg_candidates_sorted(openreg_candidate *out[OPENREG_CANDIDATES_MAX]);
/* All candidates of a name that are not hidden, shadowed ones too. */
int openreg_candidates_namesakes(const char *name, openreg_candidate *out[OPENREG_CANDIDATES_MAX]);

/* Counts the changes after which what failed is worth another attempt: of variables, of registrations, a shutdown, the
 * wish of a caller. */
unsigned openreg_candidates_changes(void);
void openreg_candidates_note_change(void);

/* ---- With the driver lock held. ---- */

/* Reads the candidate's table, or asks its factory, if that has not been done: candidate_load.c. On failure the candidate
 * remembers why. Errors: those of loader.h, the factory's own, OPENREG_E_NO_DEVICE (it gave nothing). */
openreg_status openreg_candidate_load(const char *call, openreg_candidate *candidate);
/* Remembers the thread's last error, as openreg_candidate_failure() has it. */
void openreg_candidate_fail(openreg_candidate *candidate, const char *call);
void openreg_candidate_fail_with(openreg_candidate *candidate, openreg_status code, const char *message);
/* An error as what a candidate fails with: less "<call>: " and the name of the driver. */
openreg_error_fields openreg_candidate_failure(const openreg_candidate *candidate, const char *call,
                                               const openreg_error_fields *error);
/* Sets a state that is no failure. */
void openreg_candidate_set_state(openreg_candidate *candidate, int32_t state, int32_t device_count);
/* Open, at once with what it was opened to: readers that hold the candidates' lock never see an open driver whose table
 * is missing. `opened` is NULL for a driver that its factory only describes. */
void openreg_candidate_set_open(openreg_candidate *candidate, openreg_opened_driver *opened, int32_t device_count);
/* The state before it was opened or had failed, at once with its `opened`, which is the caller's to free. */
void openreg_candidate_reset(openreg_candidate *candidate);
/* 1 if it has failed and nothing has changed since. Being short of memory is no reason not to try again. */
int openreg_candidate_failed_before(const openreg_candidate *candidate);
/* Notes that somebody has asked for one that is known to have failed. */
void openreg_candidate_note_tried(openreg_candidate *candidate);

#endif
