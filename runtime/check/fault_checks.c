/* SPDX-License-Identifier: BSD-3-Clause */
/* fault_checks.c: the driver behind a runtime in which calls fail by plan (openreg/faults.h): tests failures that a driver's
 * table can't be made to produce. */
#include <openreg/faults.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "behind_runtime.h"

#define SIZE 70001
#define MIB (UINT64_C(1) << 20)

static openreg_faults __attribute__((format(printf, 1, 2)))
begin(const char *format, ...)
{
    char plan[96];
    openreg_faults faults = NULL;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(plan, sizeof plan, format, arguments);
    va_end(arguments);
    check_runtime_ok(openreg_faults_begin(plan, &faults), plan);
    return faults;
}

static void
is_error(openreg_status status, openreg_status wanted, const char *call)
{
    REQUIRE(status == wanted, "%s is %s where a fault was planned, not %s", call, openreg_status_name(status),
            openreg_status_name(wanted));
}

/* Of all devices. */
static uint64_t
free_bytes(check_context *c)
{
    uint64_t sum = 0;
    for (int32_t dev = 0; dev < c->devices; ++dev) {
        uint64_t unused = 0, total = 0;
        OK(openreg_memory_empty_cache(-1));
        OK(openreg_device_synchronize(dev));
        OK(openreg_memory_get_info(dev, &unused, &total));
        sum += unused;
    }
    return sum;
}

/* A request that is refused once, while the cache holds several segments and one block is in use. */
static void
give_back_in_a_row(int32_t device)
{
    enum { BLOCKS = 8 };
    static unsigned char host[SIZE];
    void *blocks[BLOCKS], *large = NULL;
    uint64_t unused = 0, total = 0;
    OK(openreg_memory_get_info(device, &unused, &total));
    const size_t size = (size_t)check_third_within(device, unused / 16 < 11 * MIB ? unused / 16 : 11 * MIB);
    if (size < SIZE)
        return;
    for (int i = 0; i < BLOCKS; ++i)
        blocks[i] = check_allocate_block(device, size);
    check_pattern(host, SIZE, 7);
    OK(openreg_memcpy(blocks[3], device, host, OPENREG_HOST, SIZE));
    for (int i = 0; i < BLOCKS; ++i)
        if (i != 3)
            OK(openreg_free(blocks[i]));
    openreg_faults const faults = begin("nomem at segment 1");
    OK(openreg_malloc(device, OPENREG_STREAM_DEFAULT, size * 3, &large));
    openreg_faults_end(faults);
    OK(openreg_free(large));
    OK(openreg_memcpy(host, OPENREG_HOST, blocks[3], device, SIZE));
    check_is_pattern(host, SIZE, 7, "a block that was in use while memory around it was released");
    OK(openreg_free(blocks[3]));
}

/* What is missing of the devices' free memory after it. */
static uint64_t
lost_in_a_program(check_context *c)
{
    const uint64_t before = free_bytes(c);
    openreg_faults const faults = begin("seed %llu; nomem 40%% of segments",
                                        (unsigned long long)(check_random(c) >> 32));
    for (int i = 0; i < 100 && openreg_faults_hits(faults) == 0; ++i) /* on busy cores a program has few allocations */
        check_random_program(c, &c->random, c->target->seconds / 4);
    REQUIRE(openreg_faults_hits(faults) > 0, "no allocation was refused: the driver was not called for any");
    openreg_faults_end(faults);
    for (int32_t dev = 0; dev < c->devices; ++dev)
        give_back_in_a_row(dev);
    const uint64_t after = free_bytes(c);
    return before > after ? before - after : 0;
}

static void
memory_is_refused(check_context *c)
{
    uint64_t lost = 0;
    check_start_runtime(c);
    for (int32_t dev = 0; dev < c->devices; ++dev) {
        check_need_segments(dev);
        OK(openreg_free(check_allocate_block(dev, SIZE))); /* what a device keeps for itself from its first use on */
    }
    for (int i = 0; i < 3; ++i) { /* other processes may use the devices, too */
        lost = lost_in_a_program(c);
        if (lost <= 32 * MIB)
            return;
    }
    check_fail("%llu bytes of device memory are missing after a program whose allocations failed now and then",
               (unsigned long long)lost);
}

typedef struct place {
    int32_t dev;
    openreg_stream stream;
    char *memory;
    unsigned char *host; /* pinned */
} place;

static void
send(const place *p, uint64_t seed)
{
    check_pattern(p->host, SIZE, seed);
    OK(openreg_memcpy_async(p->dev, p->stream, p->memory, p->dev, p->host, OPENREG_HOST, SIZE));
}

/* The second copy fails: only a wait for the stream reports it, the bytes stay unchanged, and work queued behind it runs. */
static void
a_copy_fails(const place *p, bool has_streams)
{
    openreg_stream const other = has_streams ? check_pool_stream(p->dev) : p->stream;
    openreg_event const event = check_runtime_event(p->dev, 0);
    openreg_faults const faults = begin("openreg:%d error at copy 2", p->dev);
    send(p, 1);
    OK(openreg_stream_synchronize(p->dev, p->stream));
    unsigned char *const bytes = p->host; /* the copy that fails does not read them */
    OK(openreg_memcpy_async(p->dev, p->stream, p->memory, p->dev, bytes + 1, OPENREG_HOST, SIZE - 1));
    if (has_streams) { /* emulated events wait, and would tell */
        OK(openreg_event_record(event, p->dev, p->stream));
        OK(openreg_stream_wait_event(p->dev, other, event));
    }
    memset(p->host, 0, SIZE);
    OK(openreg_memcpy_async(p->dev, other, p->host, OPENREG_HOST, p->memory, p->dev, SIZE));
    if (has_streams)
        OK(openreg_stream_synchronize(p->dev, other)); /* the error is not its own */
    is_error(openreg_stream_synchronize(p->dev, p->stream), OPENREG_E_INTERNAL, "openreg_stream_synchronize()");
    OK(openreg_stream_synchronize(p->dev, p->stream));
    OK(openreg_device_synchronize(p->dev));
    check_is_pattern(p->host, SIZE, 1, "what a copy that failed was to overwrite");
    openreg_faults_end(faults);
    OK(openreg_event_destroy(event));
}

/* Copies with one wrong bit each, of which the stream tells. */
static void
bits_flip(const place *p)
{
    static unsigned char expected[SIZE];
    for (uint64_t i = 0; i < 8; ++i) {
        openreg_faults const faults = begin("seed %llu; openreg:%d ecc at copy 1", (unsigned long long)i, p->dev);
        send(p, i);
        is_error(openreg_stream_synchronize(p->dev, p->stream), OPENREG_E_INTERNAL, "openreg_stream_synchronize()");
        openreg_faults_end(faults);
        check_pattern(expected, SIZE, i);
        OK(openreg_memcpy(p->host, OPENREG_HOST, p->memory, p->dev, SIZE));
        int bits = 0;
        for (size_t k = 0; k < SIZE; ++k)
            bits += __builtin_popcount((unsigned)(p->host[k] ^ expected[k]));
        REQUIRE(bits == 1, "one bit of a copy was to be wrong, and %d are", bits);
    }
}

static void
work_fails(check_context *c)
{
    check_start_runtime(c);
    const place p = {c->dev, check_pool_stream(c->dev), check_allocate_block(c->dev, SIZE),
                     check_pinned_block(c->dev, SIZE)};
    a_copy_fails(&p, c->table.stream_create != NULL);
    bits_flip(&p);
    OK(openreg_free(p.memory));
    OK(openreg_host_free(p.host));
}

/* Work on all devices, of which the first is lost; the others go on, and everything can be released. */
static void
lose_the_first(check_context *c)
{
    enum { MOST = 8, STREAMS = 3 };
    const int32_t devices = c->devices < MOST ? c->devices : MOST;
    unsigned char *host[MOST], *const seen = check_pinned_block(0, SIZE);
    void *memory[MOST];
    openreg_stream streams[MOST][STREAMS];
    openreg_event events[MOST];
    for (int32_t dev = 0; dev < devices; ++dev) {
        host[dev] = check_pinned_block(dev, SIZE);
        memory[dev] = check_allocate_block(dev, SIZE);
        check_pattern(host[dev], SIZE, (uint64_t)dev);
        events[dev] = check_runtime_event(dev, 0);
        for (int i = 0; i < STREAMS; ++i)
            streams[dev][i] = check_pool_stream(dev);
        for (int i = 0; i < STREAMS; ++i) {
            OK(openreg_memcpy_async(dev, streams[dev][i], memory[dev], dev, host[dev], OPENREG_HOST, SIZE));
            OK(openreg_event_record(events[dev], dev, streams[dev][i]));
            if (i + 1 < STREAMS) /* one after the other */
                OK(openreg_stream_wait_event(dev, streams[dev][i + 1], events[dev]));
        }
    }
    openreg_faults const faults = begin("openreg:0 lost");
    is_error(openreg_memset_async(0, streams[0][0], memory[0], 0, SIZE), OPENREG_E_DEVICE_LOST,
             "openreg_memset_async()");
    is_error(openreg_device_synchronize(0), OPENREG_E_DEVICE_LOST, "openreg_device_synchronize()");
    for (int32_t dev = 1; dev < devices; ++dev) {
        OK(openreg_device_synchronize(dev));
        OK(openreg_memcpy(seen, OPENREG_HOST, memory[dev], dev, SIZE));
        check_is_pattern(seen, SIZE, (uint64_t)dev, "memory of a device beside one that is lost");
    }
    for (int32_t dev = 0; dev < devices; ++dev) {
        OK(openreg_event_destroy(events[dev]));
        OK(openreg_free(memory[dev]));
        OK(openreg_host_free(host[dev]));
    }
    OK(openreg_host_free(seen));
    OK(openreg_shutdown());
    openreg_faults_end(faults);
}

static void
devices_are_lost(check_context *c)
{
    check_start_runtime(c);
    check_counts before = {.files = 0};
    for (int i = 0; i < 8; ++i) {
        lose_the_first(c);
        if (i == 2)
            before = check_count_now();
        OK(openreg_drivers_use(c->table.name));
        check_round_trip(0, (uint64_t)i, "memory of a device that was opened again after a loss");
    }
    OK(openreg_shutdown());
    check_nothing_is_left(before, "each loss of a device");
}

static const check_case cases[] = {
    {"fault.out_of_memory", "", CHECK_RUNTIME,
     "When a request is refused, all memory that the allocator then releases is free again, and blocks that are in use "
     "keep their contents.",
     "The allocator frees many allocations in a row then, between two requests.", memory_is_refused},
    {"fault.error", "", CHECK_RUNTIME | CHECK_EACH,
     "Where a copy fails, what is behind it on the stream runs and the bytes that it was to write stay; a copy of one "
     "byte changes that byte alone.",
     "Faults are planned in the runtime: the driver is not called for a copy that fails.", work_fails},
    {"fault.device_lost", "", CHECK_RUNTIME,
     "After a loss what frees and destroys is still called, and succeeds, also for streams that nobody has waited for; "
     "other devices go on, and the driver can be opened again.",
     "stream_destroy() and close() must release what a sync would release: a lost device gets none.", devices_are_lost},
};
const check_group check_fault_group = CHECK_GROUP(2, cases);
