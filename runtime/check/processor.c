/* SPDX-License-Identifier: BSD-3-Clause */
/* processor.c: threads that wait for a processor (processor.h). The kernel's own count, in schedstat, is of waits that have
 * ended, and one that goes on is what counts here: so a look takes a thread's state for that of the time since the last. */
#define _GNU_SOURCE
#include "processor.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* State, group and seconds on processors of a process or a thread; see proc(5). False if it has gone. */
static bool
read_state(const char *path, char *state, int *group, double *used)
{
    char text[512];
    unsigned long user = 0, system = 0;
    FILE *const file = fopen(path, "re");
    if (file == NULL)
        return false;
    const char *const line = fgets(text, sizeof text, file);
    (void)fclose(file);
    const char *const name_end = line != NULL ? strrchr(text, ')') : NULL; /* a name may have spaces, and a ')' */
    const int got = name_end == NULL ? 0
                                     : sscanf(name_end, ") %c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", state,
                                              group, &user, &system);
    *used = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
    return got == 4;
}

/* Whether one of its threads runs or waits for a processor. */
static bool
has_ready_thread(const char *process)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%.20s/task", process);
    DIR *const threads = opendir(path);
    bool is_ready = false;
    for (const struct dirent *at; !is_ready && threads != NULL && (at = readdir(threads)) != NULL;) {
        char state = ' ';
        int group;
        double used;
        (void)snprintf(path, sizeof path, "/proc/%.20s/task/%.20s/stat", process, at->d_name);
        is_ready = at->d_name[0] != '.' && read_state(path, &state, &group, &used) && state == 'R';
    }
    if (threads != NULL)
        (void)closedir(threads);
    return is_ready;
}

double
check_counted_time(pid_t group, double now, check_usage *last)
{
    check_usage look = {now, 0};
    bool is_ready = false;
    DIR *const processes = opendir("/proc");
    for (const struct dirent *at; processes != NULL && (at = readdir(processes)) != NULL;) {
        char path[64], state;
        int group_of_it;
        double used;
        (void)snprintf(path, sizeof path, "/proc/%.20s/stat", at->d_name);
        if (at->d_name[0] < '0' || at->d_name[0] > '9' || !read_state(path, &state, &group_of_it, &used) ||
            group_of_it != group)
            continue;
        look.used += used;
        is_ready = is_ready || has_ready_thread(at->d_name);
    }
    if (processes != NULL)
        (void)closedir(processes);
    const double passed = now - last->at, used = look.used > last->used ? look.used - last->used : 0;
    *last = look;
    return is_ready && used < passed ? used : passed;
}
