/* SPDX-License-Identifier: BSD-3-Clause */
/* report.h: what openreg-check prints and writes. */
#ifndef OPENREG_CHECK_REPORT_H
#define OPENREG_CHECK_REPORT_H

#include <stdio.h>

#include "runner.h"

typedef struct check_report {
    const check_target *target;
    check_identity identity;
    int level;
    bool is_whole;    /* nothing was left out by the command line */
    bool is_finished; /* all that is wanted was run */
    double seconds;
    check_result *results;
    int count;
} check_report;

/* The first lines, and a line for each result as it comes. */
void check_report_begin(const check_report *report);
void check_report_result(const check_result *result, bool is_verbose);
/* The last lines: what was not checked, the counts, the verdict. */
void check_report_end(const check_report *report);

/* Files. Return 0, or -1 if the file can't be written. */
int check_report_json(const check_report *report, const char *path);
int check_report_junit(const check_report *report, const char *path);

int check_report_count(const check_report *report, check_outcome outcome);

/* Every check: its level and name; or its rule and hint. `name` may be the beginning of a name, or NULL for all. Returns
 * how many there were. */
void check_list(int level);
int check_explain(const char *name);

/* A driver's figures beside the host's, which judge nothing. Measures in a process of its own, prints a table, and writes it
 * to `json` unless that is NULL. Returns the exit status: 0, 1 if the driver failed during it, 2 if the file can't be
 * written, 77 without a device. */
int check_perf(const check_target *target, int limit, const char *json);

#endif
