/* SPDX-License-Identifier: BSD-3-Clause */
/* faults.h: the active fault plans (openreg/faults.h), and their effects on a call. Internal.
 *
 * One lock, below all locks of the runtime except those of layers and observers; never held while a driver runs. */
#ifndef OPENREG_SRC_FAULTS_H
#define OPENREG_SRC_FAULTS_H

#include <openreg/faults.h>

#include "calls.h"
#include "faults/fault_plan.h"

/* A call that is about to be made. */
typedef struct openreg_fault_site {
    const void *driver;           /* whose device it is */
    int32_t device;               /* openreg:device; OPENREG_HOST: of none */
    uint32_t kind;                /* one OPENREG_CALL_* */
    openreg_driver_stream stream; /* NULL: the default one */
    const char *name;             /* of an operator or kernel, or NULL */
} openreg_fault_site;

/* The effects on the call. */
typedef struct openreg_fault_verdict {
    openreg_status status; /* not OPENREG_OK: it fails with this and with `text` */
    int is_skipped;        /* 1: it succeeds, and nothing is done */
    int corrupts;          /* 1: byte number `byte`, modulo the size, is corrupted */
    uint64_t byte;
    double factor;         /* factor by which the call is slowed down, 1 or more */
    int32_t peer;          /* OPENREG_PEER_* */
    uint32_t milliseconds; /* that openreg_faults_ask() has waited */
    char text[OPENREG_FAULT_TEXT_SIZE + 96];
} openreg_fault_verdict;

/* Counts the call in every plan. Logs nothing: callers may hold locks. Waits, or ends the process, at calls alone
 * around which none is held. */
void openreg_faults_ask(const openreg_fault_site *site, openreg_fault_verdict *out);

/* Begins a plan for the devices of one driver, or with NULL of all. Errors: as openreg_faults_begin(); the text of
 * OPENREG_E_INVALID names `what`, the variable or function with the plan. */
openreg_status openreg_faults_add(const char *call, const char *what, const char *plan, const void *driver,
                                  openreg_faults *out);

/* Attaches the layer to all drivers, with the observer of other events, or removes both; call_layer.c. Any thread. */
void openreg_fault_layer_switch(int on);

/* Counts one operator that has ended on the stream, or a collective. As in openreg/faults.h. */
openreg_status openreg_lab_faults_begin(const char *plan, openreg_faults *out);
void openreg_lab_faults_end(openreg_faults faults);
uint64_t openreg_lab_faults_hits(openreg_faults faults);
int32_t openreg_lab_faults_of_collective(int32_t device);
void openreg_lab_operator_ended(int32_t device, openreg_stream stream, const char *name);

#endif
