/* SPDX-License-Identifier: BSD-3-Clause */
/* slopes.c: what grows with each round of the same calls (fixtures.h). */
#include <stdio.h>

#include "fixtures.h"

#define ONCE_SECONDS 2.0 /* for the rounds of one window: a slow driver gets fewer */

/* What has grown, as text; NULL if nothing has. */
static const char *
growth(const check_counts *before, const check_counts *after, int rounds, unsigned books, const char *what)
{
    static char text[200];
    unsigned long long number = 0;
    const char *noun = NULL;
    if (after->threads > before->threads) {
        number = (unsigned)(after->threads - before->threads);
        noun = "threads";
    } else if (after->files > before->files) {
        number = (unsigned)(after->files - before->files);
        noun = "open files";
    } else if (after->heap > before->heap + (uint64_t)rounds * books + CHECK_HEAP_SLACK) {
        number = after->heap - before->heap;
        noun = "bytes of host memory";
    } else if (after->address_space > before->address_space + (uint64_t)rounds * 2048 + CHECK_ADDRESS_SLACK) {
        number = after->address_space - before->address_space;
        noun = "bytes of address space";
    } else if (before->device > after->device + (uint64_t)rounds * 64 + CHECK_DEVICE_SLACK) {
        number = before->device - after->device;
        noun = "bytes of device memory";
    }
    if (noun == NULL)
        return NULL;
    (void)snprintf(text, sizeof text, "%llu %s are left after %d times %s", number, noun, rounds, what);
    return text;
}

static check_counts
count_all(check_context *c, int threads)
{
    check_counts counts;
    for (int32_t dev = 0; c->instance != NULL && dev < c->devices; ++dev) /* behind the runtime `once` waits itself */
        MUST(c, device_sync, c->instance, dev);
    const int left = threads > 0 ? check_threads_down_to(threads) : 0;
    counts = check_count_now();
    if (threads > 0)
        counts.threads = left;
    for (int32_t dev = 0; c->instance != NULL && c->table.mem_info != NULL && dev < c->devices; ++dev) {
        uint64_t unused = 0, total;
        MUST(c, mem_info, c->instance, dev, &unused, &total);
        counts.device += unused;
    }
    return counts;
}

void
check_slope(check_context *c, int rounds, unsigned books, void (*once)(check_context *c, int i), const char *what)
{
    check_count_exactly();
    const int first = rounds / 4 + 8;
    const double begin = check_now();
    int done = 0;
    while (done < first && (done < 8 || check_now() < begin + ONCE_SECONDS))
        once(c, done++);
    const double each = (check_now() - begin) / done;
    if (each * rounds > ONCE_SECONDS)
        rounds = (int)(ONCE_SECONDS / each) + 8;
    check_counts before = count_all(c, 0);
    const char *grown = "";
    /* What a vendor fills once can take tens of thousands of calls: quick ones get more windows. */
    for (int window = 0; grown != NULL && (window < 4 || (window < 7 && each * rounds * 2 < ONCE_SECONDS)); ++window) {
        if (window > 1)
            rounds *= 2; /* on busy cores a window has few rounds, and what ends to grow may do so after four of them */
        for (int i = 0; i < rounds; ++i)
            once(c, i);
        const check_counts after = count_all(c, before.threads);
        grown = growth(&before, &after, rounds, books, what);
        before = after;
    }
    REQUIRE(grown == NULL, "%s, and again after as many more", grown);
}
