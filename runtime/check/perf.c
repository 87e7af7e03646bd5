/* SPDX-License-Identifier: BSD-3-Clause */
/* perf.c: a driver's figures beside the host's (report.h). */
#define _GNU_SOURCE
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fixtures.h"

#define MOST 64
#define LARGEST ((size_t)16 << 20)
#define SPAN 0.05 /* seconds for one of several measurements, of which the best counts */

static const size_t sizes[] = {4096, (size_t)1 << 20, LARGEST};

typedef struct figure {
    const char *what; /* a constant */
    uint64_t size;    /* bytes, 0: none */
    bool is_rate;     /* value and host are GB/s, else microseconds */
    double value, host;
} figure;

static struct {
    int count;
    figure all[MOST];
} *figures; /* shared with the process that measures */

typedef struct work {
    check_context *c;
    void *to, *from;
    int32_t to_dev, from_dev;
    size_t size;
    openreg_driver_event event;
    int copies; /* before a wait, in one call */
} work;

/* Seconds of one call: the best of three. */
static double
time_of(void (*once)(work *w), work *w)
{
    double best = 0;
    once(w);
    for (int attempt = 0; attempt < 3; ++attempt) {
        const double begin = check_now();
        double now = begin;
        int count = 0;
        for (; count < 3 || now < begin + SPAN / 3; ++count, now = check_now())
            once(w);
        const double each = (now - begin) / count;
        best = attempt == 0 || each < best ? each : best;
    }
    return best;
}

static void
add(const char *what, uint64_t size, bool is_rate, double seconds, double host_seconds)
{
    if (figures->count == MOST)
        return;
    figures->all[figures->count++] = (figure){what, size, is_rate,
                                              is_rate ? (double)size / seconds * 1e-9 : seconds * 1e6,
                                              host_seconds <= 0 ? 0
                                              : is_rate         ? (double)size / host_seconds * 1e-9
                                                                : host_seconds * 1e6};
}

static void
copy_and_wait(work *w)
{
    const int32_t dev = w->to_dev >= 0 ? w->to_dev : w->from_dev;
    for (int i = 0; i < w->copies; ++i)
        MUST(w->c, copy, w->c->instance, dev, NULL, w->to, w->to_dev, w->from, w->from_dev, w->size);
    check_sync(w->c, dev, NULL);
}

static void
copy_on_host(work *w)
{
    memcpy(w->to, w->from, w->size);
    __asm__ volatile("" : : "r"(w->to) : "memory");
}

static void
allocate(work *w)
{
    check_free(w->c, 0, check_alloc(w->c, 0, w->size));
}

static void
allocate_on_host(work *w)
{
    void *volatile memory = malloc(w->size);
    free(memory);
}

static void
make_event(work *w)
{
    MUST(w->c, event_destroy, w->c->instance, 0, check_event(w->c, 0, 0));
}

static void
record(work *w)
{
    MUST(w->c, event_record, w->c->instance, 0, NULL, w->event);
    MUST(w->c, event_sync, w->c->instance, 0, w->event);
}

static void
query(work *w)
{
    int32_t done;
    MUST(w->c, event_query, w->c->instance, 0, w->event, &done);
}

static void
measure_copies(check_context *c, const double *host)
{
    static const struct {
        const char *what;
        int32_t from, to;
        bool pinned;
    } ways[] = {{"copy to the device", -1, 0, false},
                {"copy from the device", 0, -1, false},
                {"copy to the device, pinned", -1, 0, true},
                {"copy from the device, pinned", 0, -1, true},
                {"copy on the device", 0, 0, false},
                {"copy from device 0 to device 1", 0, 1, false},
                {"copy from device 1 to device 0", 1, 0, false}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; ++i) {
        if ((ways[i].pinned && c->table.host_alloc == NULL) || ways[i].from >= c->devices || ways[i].to >= c->devices)
            continue;
        void *const from = check_alloc_at(c, ways[i].from, LARGEST, ways[i].pinned);
        void *const to = check_alloc_at(c, ways[i].to, LARGEST, ways[i].pinned);
        if (ways[i].from < 0)
            memset(from, 1, LARGEST);
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; ++k) {
            work w = {c, to, from, ways[i].to, ways[i].from, sizes[k], NULL, 1};
            add(ways[i].what, sizes[k], true, time_of(copy_and_wait, &w), host[k]);
        }
        check_free_at(c, ways[i].from, from, ways[i].pinned);
        check_free_at(c, ways[i].to, to, ways[i].pinned);
    }
}

static void
measure(check_context *c)
{
    double host[3];
    work w = {.c = c, .to = malloc(LARGEST), .from = malloc(LARGEST)};
    memset(w.to, 1, LARGEST);
    memset(w.from, 1, LARGEST);
    for (int i = 0; i < 3; ++i) {
        w.size = sizes[i];
        host[i] = time_of(copy_on_host, &w);
    }
    work small = {.c = c, .to = check_alloc(c, 0, 64), .from = check_alloc(c, 0, 64), .size = 64};
    small.copies = 16; /* as a program queues work */
    work on_host = {.to = w.to, .from = w.from, .size = 64};
    const double of_host = time_of(copy_on_host, &on_host);
    add("queue 64 bytes on the device", 0, false, time_of(copy_and_wait, &small) / 16, of_host);
    small.copies = 1;
    add("queue it and wait", 0, false, time_of(copy_and_wait, &small), of_host);
    if (c->table.event_create != NULL) {
        small.event = check_event(c, 0, 0);
        add("create and destroy an event", 0, false, time_of(make_event, &small), 0);
        add("record an event and wait", 0, false, time_of(record, &small), 0);
        add("query an event", 0, false, time_of(query, &small), 0);
    }
    for (int i = 0; i < 3; ++i) {
        w.size = sizes[i];
        add("allocate and free", sizes[i], false, time_of(allocate, &w), time_of(allocate_on_host, &w));
    }
    measure_copies(c, host);
}

static void
print_figures(void)
{
    printf("%-32s %11s %12s %12s\n", "", "", "driver", "host");
    for (int i = 0; i < figures->count; ++i) {
        const figure *const f = &figures->all[i];
        const char *const unit = f->is_rate ? "GB/s" : "us";
        const bool is_large = f->size >= 1 << 20;
        printf("%-32s ", f->what);
        if (f->size >= 1024)
            printf("%7llu %s", (unsigned long long)(f->size >> (is_large ? 20 : 10)), is_large ? "MiB" : "KiB");
        else
            printf("%11s", "");
        printf(" %7.2f %-4s", f->value, unit);
        if (f->host > 0)
            printf(" %7.2f %-4s", f->host, unit);
        printf("\n");
    }
}

static int
write_figures(const check_target *target, const char *path)
{
    FILE *const file = fopen(path, "w");
    if (file == NULL)
        return -1;
    (void)fprintf(file, "{\"driver\": \"");
    for (const char *at = target->name; *at != '\0'; ++at)
        (void)fprintf(file, *at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
    (void)fprintf(file, "\", \"figures\": [");
    for (int i = 0; i < figures->count; ++i) {
        const figure *const f = &figures->all[i];
        (void)fprintf(file, "%s\n  {\"name\": \"%s\", \"bytes\": %llu, \"unit\": \"%s\", \"driver\": %.6g, \"host\": ",
                      i == 0 ? "" : ",", f->what, (unsigned long long)f->size, f->is_rate ? "GB/s" : "us", f->value);
        (void)fprintf(file, f->host > 0 ? "%.6g}" : "null}", f->host);
    }
    (void)fprintf(file, "\n]}\n");
    const int is_broken = ferror(file);
    return fclose(file) != 0 || is_broken ? -1 : 0;
}

int
check_perf(const check_target *target, int limit, const char *json)
{
    static const check_case perf = {"perf", "", 0, "", "", measure};
    static check_result result;
    figures = mmap(NULL, sizeof *figures, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (figures == MAP_FAILED)
        return 2;
    check_run(&perf, 1, target, limit, &result);
    print_figures();
    if (result.outcome != CHECK_PASSED) {
        printf("%s\n%s", result.message, result.calls);
        return result.outcome == CHECK_SKIPPED ? 77 : 1;
    }
    return json != NULL && write_figures(target, json) != 0 ? 2 : 0;
}
