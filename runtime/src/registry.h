/* registry.h: the list of candidate drivers, and the gate through which it is changed. Internal.
 *
 * Two kinds of exclusion (rule L7). The *lock* protects the list and the texts of its records; it is held for a few
 * instructions and never while foreign code runs. The *gate* is held by the one thread that loads, opens or closes
 * drivers, for as long as that takes; others wait on a condition, and a driver that calls back is refused. */
#ifndef OPENREG_SRC_REGISTRY_H
#define OPENREG_SRC_REGISTRY_H

#include "device_table.h"
#include "environment.h"
#include "loader.h"

/* Where a candidate comes from. Of two of one name the later kind wins, then the later one of a kind. */
typedef enum openreg_source {
    OPENREG_SOURCE_BUILT_IN,
    OPENREG_SOURCE_BESIDE,
    OPENREG_SOURCE_REGISTERED,
    OPENREG_SOURCE_LIBRARIES, /* OPENREG_DRIVER_LIBRARIES */
} openreg_source;

/* Made by registry.c, never freed, never moved. `name`, `source`, `priority`, `wanted_path`, `query` are constant; the
 * rest is written by the holder of the gate, under the lock where openreg_driver_record_get() reads it. */
typedef struct openreg_candidate {
    char name[32];
    openreg_source source;
    int32_t priority;
    char *wanted_path;             /* of a library, else NULL */
    openreg_driver_query_fn query; /* built in, else NULL */
    int hidden;                    /* an earlier OPENREG_DRIVER_LIBRARIES named it, the present one does not */
    int has_table;                 /* `table` was read and accepted */
    int32_t state;                 /* OPENREG_DRIVER_*, without SHADOWED */
    openreg_status code;
    int64_t vendor_code;
    int32_t device_count, first_device;
    openreg_driver table;
    char path[OPENREG_LOADER_PATH_MAX];
    char message[1024]; /* why it failed, without the name of call and driver */
} openreg_candidate;

void openreg_registry_lock(void);
void openreg_registry_unlock(void);
void openreg_registry_after_fork(void); /* in the child: nobody holds the gate any more */

/* Waits for the gate. OPENREG_E_BUSY if this thread holds it already (a driver calls the runtime inside open()). */
openreg_status openreg_registry_enter(const char *call);
void openreg_registry_leave(void);

/* Everything below: the caller holds the gate. */

/* Reads the environment again, if the table does not stand, and brings the list of candidates up to it. *changed (may
 * be NULL) = 1 if variables or registrations have changed since the last call. Errors: OPENREG_E_NOMEM. */
openreg_status openreg_registry_refresh(const char *call, int *changed);
const openreg_environment *openreg_registry_environment(void); /* the one that refresh() read; may be NULL */

/* The candidate that a name means; NULL if there is none. */
openreg_candidate *openreg_registry_find(const char *name);
/* Copies pointers to all candidates that are neither shadowed nor hidden, by priority, then by age; returns their
 * number. */
int openreg_registry_candidates(openreg_candidate **out, int capacity);
/* All candidates of a name, shadowed ones too. */
int openreg_registry_namesakes(const char *name, openreg_candidate **out, int capacity);
#define OPENREG_REGISTRY_MAX 256

/* Reads its table if that has not been done. On failure the candidate remembers why. */
openreg_status openreg_candidate_load(const char *call, openreg_candidate *candidate);
/* Remembers the thread's last error, less "<call>: " and the name of the driver. */
void openreg_candidate_fail(openreg_candidate *candidate, const char *call);
void openreg_candidate_fail_with(openreg_candidate *candidate, openreg_status code, const char *message);
void openreg_candidate_set_state(openreg_candidate *candidate, int32_t state, int32_t count, int32_t first);

const char *openreg_source_name(openreg_source source);

#endif
