/* SPDX-License-Identifier: BSD-3-Clause */
/* runner.h: runs checks, each in a process of its own, and gathers their results. */
#ifndef OPENREG_CHECK_RUNNER_H
#define OPENREG_CHECK_RUNNER_H

#include "check.h"

#define CHECK_MESSAGE_SIZE 900
#define CHECK_EXIT_PASS 0
#define CHECK_EXIT_FAIL 101
#define CHECK_EXIT_SKIP 102

/* CHECK_KNOWN: it failed, and the command line has said that it would (--known). */
typedef enum check_outcome { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED, CHECK_KNOWN } check_outcome;

typedef struct check_result {
    const check_case *check;
    int level;
    check_outcome outcome;
    double seconds;
    char message[CHECK_MESSAGE_SIZE]; /* why it failed or was skipped, else "" */
    char slot[40];                    /* the last one that was called, "": none */
    const char *known;                /* the reason of the command line for CHECK_KNOWN, else NULL */
    char calls[CHECK_CALLS * 128];    /* after a crash or a hang: the last calls of slots, a line each */
} check_result;

/* Runs one check. A crash, an end of the process and more than `limit` seconds are failures that name the slot. */
void check_run(const check_case *check, int level, const check_target *target, int limit, check_result *result);

/* What the report says about the driver, found in a process of its own. */
typedef struct check_identity {
    bool is_loaded;
    char name[32], version[64];
    uint32_t abi_minor;
    uint64_t caps;
    int32_t devices;          /* -1: open() failed, or there is none */
    double slowness;          /* how much longer than usual a call takes here and now, at least 1 */
    char slots[512];          /* optional slots that the table lacks, "a b c" */
    char kernels[1 << 16];    /* those of openreg.kernels that no check has a reference for, "a b c" */
    int32_t kernels_left_out; /* and those that had no room there */
    char message[CHECK_MESSAGE_SIZE];
} check_identity;

void check_identify(const check_target *target, int limit, check_identity *identity);

#endif
