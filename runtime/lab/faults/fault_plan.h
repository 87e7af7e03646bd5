/* SPDX-License-Identifier: BSD-3-Clause */
/* fault_plan.h: the grammar of openreg/faults.h. Internal. */
#ifndef OPENREG_SRC_FAULT_PLAN_H
#define OPENREG_SRC_FAULT_PLAN_H

#include <stddef.h>
#include <stdint.h>

typedef enum openreg_fault_action {
    OPENREG_FAULT_LOST,
    OPENREG_FAULT_NOMEM,
    OPENREG_FAULT_ERROR,
    OPENREG_FAULT_ECC,
    OPENREG_FAULT_CORRUPT,
    OPENREG_FAULT_SLOW,
    OPENREG_FAULT_PEER_DIES,
    OPENREG_FAULT_PEER_SILENT,
    OPENREG_FAULT_LATE,
    OPENREG_FAULT_KILLED
} openreg_fault_action;

typedef enum openreg_fault_trigger {
    OPENREG_FAULT_ALWAYS,
    OPENREG_FAULT_AT,
    OPENREG_FAULT_AFTER,
    OPENREG_FAULT_CHANCE
} openreg_fault_trigger;

#define OPENREG_FAULT_NAME_SIZE 64
#define OPENREG_FAULT_TEXT_SIZE 128

typedef struct openreg_fault {
    openreg_fault_action action;
    openreg_fault_trigger trigger;
    uint32_t calls;                     /* OPENREG_CALL_* */
    int32_t device;                     /* -1: every one */
    uint64_t number;                    /* AT, AFTER: of calls; CHANCE: in 2^32 */
    int32_t rank;                       /* the variable RANK of the process; -1: any */
    uint32_t milliseconds;              /* LATE */
    double factor;                      /* SLOW */
    char name[OPENREG_FAULT_NAME_SIZE]; /* of an operator; "": all */
    char text[OPENREG_FAULT_TEXT_SIZE]; /* as it was written, cut */
    uint64_t seen;                      /* counted calls */
} openreg_fault;

typedef struct openreg_fault_plan {
    openreg_fault *items;
    size_t count;
    int has_seed;
    uint64_t seed;
} openreg_fault_plan;

/* Reads a plan into one that is all zero. Only white space and ";" is a plan without faults. 0: invalid, and `why`
 * names the wrong word and the valid ones; or host memory is short, and `why` is unchanged. `items` must be freed in
 * all cases. */
int openreg_fault_plan_read(const char *text, openreg_fault_plan *plan, char *why, size_t size);

#endif
