/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant.h: what the sources of the driver with defects share (mutants.h). */
#ifndef OPENREG_TESTS_DRIVERS_MUTANT_H
#define OPENREG_TESTS_DRIVERS_MUTANT_H

#include <openreg/probe.h>

#include "mutants.h"
#include "sim.h"

#define MUTANT_ENUMERATOR(name, checks) mutant_##name,
typedef enum mutant {
    mutant_none,
    OPENREG_MUTANTS_OF_LEVEL_3(MUTANT_ENUMERATOR) OPENREG_ODD(MUTANT_ENUMERATOR) OPENREG_MUTANTS(MUTANT_ENUMERATOR)
        mutant_count
} mutant;

#define SHIFT 8 /* bytes by which an address is misaligned, or aligned */

/* Whether this process has the defect. */
#define IS(name) (mutant_current == mutant_##name)

extern mutant mutant_current;
extern const openreg_driver *mutant_base; /* the simulated devices */
extern int32_t mutant_bound;              /* by device_bind() */
extern uint32_t mutant_to_fail;           /* calls of a vendor's until one fails (probe.h) */
extern int mutant_fork_broke;
extern int mutant_opens;             /* calls of open() */
extern void *volatile mutant_leaked; /* where the compiler must put what is leaked */

/* A lock that two defects hold while they wait. */
void mutant_lock(void);
void mutant_unlock(void);

/* Where a defect is at the first use after open() of what this place is of: keeps some bytes that close() leaves. */
void mutant_keep_at_first_use(int *seen);

/* Each replaces slots of the table by wrappers that have the defects. */
void mutant_wrap_memory(openreg_driver *table);
void mutant_wrap_queues(openreg_driver *table);
void mutant_wrap_info(openreg_driver *table);
void mutant_wrap_extensions(openreg_driver *table);
/* The last one, around the others; where there are graphs: without a defect, or with one of theirs. */
void mutant_wrap_graphs(openreg_driver *table);
bool mutant_has_graphs(void);

/* What extension() gives for OPENREG_KERNELS_NAME. */
const void *mutant_kernels(void);
/* For OPENREG_COMM_NAME, and OPENREG_GRAPH_NAME. */
const void *mutant_comm(uint32_t version);
const void *mutant_graph(uint32_t version);

/* What the odd driver still has to free. */
void mutant_end_frees(openreg_instance instance);
/* Frees what destroyed streams have left. */
void mutant_free_kept(void);
/* The largest allocation that it says it has, and what it keeps of freed memory. */
uint64_t mutant_most(openreg_instance instance, int32_t dev);
uint64_t mutant_kept_bytes(int32_t dev);

/* A stream was given work that it has not been waited for. */
void mutant_note_work(openreg_driver_stream stream);

/* A copy that a defect holds back; runs it now. */
void mutant_run_late_copy(void);
void mutant_drop_late_copy(void);

/* The same of a fill. */
typedef struct mutant_held {
    openreg_instance instance; /* NULL: none */
    int32_t dev;
    openreg_driver_stream stream;
    void *dst;
    uint8_t value;
    uint64_t size;
} mutant_held;

extern mutant_held mutant_held_work;
void mutant_run_held_work(void);

/* The host function that is the last work of its stream; NULL: a copy is. */
typedef struct mutant_func_note {
    openreg_driver_stream stream;
    void *call;
} mutant_func_note;

extern mutant_func_note mutant_last_func;

#endif
