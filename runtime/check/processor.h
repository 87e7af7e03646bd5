/* SPDX-License-Identifier: BSD-3-Clause */
/* processor.h: how long the processes of a check were ready to run and no processor was free for them. On a busy machine that
 * is most of the time, and no limit may count it. */
#ifndef OPENREG_CHECK_PROCESSOR_H
#define OPENREG_CHECK_PROCESSOR_H

#include <sys/types.h>

#define CHECK_LOOK_EACH 0.5 /* seconds */

typedef struct check_usage {
    double at;   /* seconds, of a clock that the caller has */
    double used; /* seconds on processors until then, of all the processes together */
} check_usage;

/* Looks at the processes of a group, by /proc. Returns how many of the seconds from *last, the look before this one, to `now`
 * count: all if no thread is ready now, else those that they used of a processor. The first *last is {now, 0}. */
double check_counted_time(pid_t group, double now, check_usage *last);

#endif
