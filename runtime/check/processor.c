/* SPDX-License-Identifier: BSD-3-Clause */
/* processor.c: threads that wait for a processor (processor.h). The kernel's own count, in schedstat, is of waits that have
 * ended, and one that goes on is what counts here: so a look takes a thread's state for that of the time since the last. */
#define _GNU_SOURCE
#include "processor.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

double
check_counted_time(pid_t group, double now, check_usage *last)
{
    check_usage look = {now, 0};
    bool is_ready = false;
    glob_t threads = {.gl_pathc = 0};
    (void)glob("/proc/[0-9]*/task/[0-9]*/stat", GLOB_NOSORT, NULL, &threads);
    for (size_t i = 0; i < threads.gl_pathc; ++i) {
        char text[512], state;
        int its_group;
        unsigned long user, system; /* see proc(5) */
        FILE *const file = fopen(threads.gl_pathv[i], "re");
        const char *const line = file != NULL ? fgets(text, sizeof text, file) : NULL; /* NULL: it has ended */
        const char *const name_end = line != NULL ? strrchr(text, ')') : NULL;         /* a name may have a ')' */
        if (file != NULL)
            (void)fclose(file);
        if (name_end == NULL ||
            sscanf(name_end, ") %c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &state, &its_group, &user,
                   &system) != 4 ||
            its_group != group)
            continue;
        look.used += (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
        is_ready = is_ready || state == 'R';
    }
    globfree(&threads);
    const double passed = now - last->at, used = look.used > last->used ? look.used - last->used : 0;
    *last = look;
    return is_ready && used < passed ? used : passed;
}
