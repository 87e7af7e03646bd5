/* SPDX-License-Identifier: BSD-3-Clause */
/* slopes.c: counts of what a process has, and what grows with each round of the same calls (fixtures.h). */
#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fixtures.h"

#define ONCE_SECONDS 2.0 /* for the rounds of one window: a slow driver gets fewer */

static int
entries_of(const char *folder)
{
    int count = 0;
    DIR *const directory = opendir(folder);
    if (directory == NULL)
        return 0;
    while (readdir(directory) != NULL)
        ++count;
    (void)closedir(directory);
    return count - 3; /* ".", ".." and the directory itself; of tasks one less than there are: the caller's */
}

static uint64_t
heap_bytes(void)
{
#if __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 heap = mallinfo2();
    return (uint64_t)heap.uordblks + (uint64_t)heap.hblkhd;
#else
    const struct mallinfo heap = mallinfo(); /* counts up to 4 GiB, which is more than a driver's own */
    return (uint64_t)(unsigned)heap.uordblks + (uint64_t)(unsigned)heap.hblkhd;
#endif
}

/* Of a file with one number, or the line of one that begins with `key`; UINT64_MAX if there is none ("max"). */
static uint64_t
read_bytes(const char *path, const char *key, uint64_t unit)
{
    char line[128];
    uint64_t bytes = UINT64_MAX;
    FILE *const file = fopen(path, "re");
    while (file != NULL && bytes == UINT64_MAX && fgets(line, sizeof line, file) != NULL) {
        unsigned long long number;
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%llu", &number) == 1)
            bytes = (uint64_t)number * unit;
    }
    if (file != NULL)
        (void)fclose(file);
    return bytes;
}

uint64_t
check_host_available(void)
{
    const uint64_t machine = read_bytes("/proc/meminfo", "MemAvailable:", 1024);
    const uint64_t limit = read_bytes("/sys/fs/cgroup/memory.max", "", 1);
    const uint64_t used = read_bytes("/sys/fs/cgroup/memory.current", "", 1);
    const uint64_t group = limit == UINT64_MAX || used == UINT64_MAX ? UINT64_MAX : limit > used ? limit - used : 0;
    const uint64_t least = machine < group ? machine : group;
    return least == UINT64_MAX ? 0 : least;
}

check_counts
check_count_now(void)
{
    const uint64_t bytes = read_bytes("/proc/self/statm", "", (uint64_t)sysconf(_SC_PAGESIZE));
    return (check_counts){.files = entries_of("/proc/self/fd"),
                          .threads = entries_of("/proc/self/task"),
                          .heap = heap_bytes(),
                          .address_space = bytes != UINT64_MAX ? bytes : 0};
}

void
check_count_exactly(void)
{
    (void)mallopt(M_ARENA_MAX, 1);
}

int
check_threads_down_to(int wanted)
{
    int threads = entries_of("/proc/self/task");
    for (int i = 0; i < 200 && threads > wanted; ++i) {
        check_sleep(5);
        threads = entries_of("/proc/self/task");
    }
    return threads;
}

/* What has grown, as text; NULL if nothing has. */
static const char *
growth(const check_counts *before, const check_counts *after, int rounds, unsigned books, const char *what)
{
    static char text[200];
    const struct {
        uint64_t before, after, slack;
        const char *noun;
    } all[] = {{(uint64_t)before->threads, (uint64_t)after->threads, 0, "threads"},
               {(uint64_t)before->files, (uint64_t)after->files, 0, "open files"},
               {before->heap, after->heap, (uint64_t)rounds * books + CHECK_HEAP_SLACK, "bytes of host memory"},
               {before->address_space, after->address_space, (uint64_t)rounds * 2048 + CHECK_ADDRESS_SLACK,
                "bytes of address space"},
               {after->device, before->device, (uint64_t)rounds * 64 + CHECK_DEVICE_SLACK, "bytes of device memory"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        if (all[i].after > all[i].before + all[i].slack) {
            (void)snprintf(text, sizeof text, "%llu %s are left after %d times %s",
                           (unsigned long long)(all[i].after - all[i].before), all[i].noun, rounds, what);
            return text;
        }
    return NULL;
}

static check_counts
count_all(check_context *c, int threads)
{
    for (int32_t dev = 0; c->instance != NULL && dev < c->devices; ++dev) /* behind the runtime `once` waits itself */
        MUST(c, device_sync, c->instance, dev);
    const int left = threads > 0 ? check_threads_down_to(threads) : 0;
    check_counts counts = check_count_now();
    if (threads > 0)
        counts.threads = left;
    for (int32_t dev = 0; c->instance != NULL && dev < c->devices; ++dev)
        counts.device += check_free_memory(c, dev);
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
