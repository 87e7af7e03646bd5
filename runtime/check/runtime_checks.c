/* SPDX-License-Identifier: BSD-3-Clause */
/* runtime_checks.c: the driver behind the runtime: what that emulates, the caching allocator, the end of memory. */
#include <stdatomic.h>
#include <string.h>

#include "behind_runtime.h"

static void
devices_are_there(check_context *c)
{
    check_start_runtime(c);
    for (int32_t i = 0; i < c->devices; ++i) {
        uint64_t unused = 0, total = 0;
        OK(openreg_set_device(i));
        const openreg_device_properties properties = check_properties(i);
        REQUIRE(strcmp(properties.driver, c->table.name) == 0, "device %d belongs to the driver \"%s\"", i,
                properties.driver);
        REQUIRE(properties.name[0] != '\0', "device %d has no name", i);
        OK(openreg_memory_get_info(i, &unused, &total));
        REQUIRE(unused <= total, "device %d has %llu of %llu bytes free", i, (unsigned long long)unused,
                (unsigned long long)total);
        OK(openreg_free(check_allocate_block(i, 100)));
        OK(openreg_device_synchronize(i));
    }
}

#define SIZE 70001

static void
copies_are_exact(check_context *c)
{
    static unsigned char host[SIZE + 128], seen[SIZE + 128], expected[SIZE + 128];
    static const size_t sizes[] = {0, 1, 3, 511, 4097, SIZE};
    check_start_runtime(c);
    for (int32_t from = 0; from < c->devices; ++from)
        for (int32_t to = 0; to < c->devices; ++to)
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
                char *const one = check_allocate_block(from, sizeof host), *const other = check_allocate_block(
                                                                               to, sizeof host);
                check_pattern(host, sizeof host, i);
                memset(expected, 0x3c, sizeof expected);
                OK(openreg_memcpy(one, from, host, OPENREG_HOST, sizeof host));
                OK(openreg_memset_async(to, OPENREG_STREAM_DEFAULT, other, 0x3c, sizeof host));
                OK(openreg_device_synchronize(to));
                OK(openreg_memcpy(other + 61, to, one + 7, from, sizes[i]));
                OK(openreg_memcpy(seen, OPENREG_HOST, other, to, sizeof seen));
                memcpy(expected + 61, host + 7, sizes[i]);
                REQUIRE(memcmp(seen, expected, sizeof seen) == 0,
                        "%zu bytes copied from device %d to device %d between two filled ends are wrong", sizes[i],
                        from, to);
                OK(openreg_free(one));
                OK(openreg_free(other));
            }
}

static void
pinned_memory_works(check_context *c)
{
    check_start_runtime(c);
    unsigned char *const from = check_pinned_block(c->dev, SIZE), *const to = check_pinned_block(c->dev, SIZE);
    char *const memory = check_allocate_block(c->dev, SIZE);
    for (uint64_t i = 0; i < 10; ++i) {
        check_pattern(from, SIZE, i);
        memset(to, 0, SIZE);
        OK(openreg_memcpy_async(c->dev, OPENREG_STREAM_DEFAULT, memory, c->dev, from, OPENREG_HOST, SIZE));
        OK(openreg_memcpy_async(c->dev, OPENREG_STREAM_DEFAULT, to, OPENREG_HOST, memory, c->dev, SIZE));
        OK(openreg_stream_synchronize(c->dev, OPENREG_STREAM_DEFAULT));
        check_is_pattern(to, SIZE, i, "bytes that went from pinned memory to a device and back");
    }
    OK(openreg_free(memory));
    OK(openreg_host_free(from));
    OK(openreg_host_free(to));
}

#define WORK ((size_t)8 << 20)

/* Keeps a stream busy for some milliseconds. */
static void
keep_busy(int32_t dev, openreg_stream stream, char *big, int copies)
{
    for (int i = 0; i < copies; ++i)
        OK(openreg_memcpy_async(dev, stream, big + (i % 2) * (WORK / 2), dev, big + (1 - i % 2) * (WORK / 2), dev,
                                WORK / 2));
}

static void
streams_are_ordered(check_context *c)
{
    check_start_runtime(c);
    check_need_segments(c->dev);
    unsigned char *const from = check_pinned_block(0, SIZE), *const to = check_pinned_block(0, SIZE);
    for (uint64_t i = 0; i < 6; ++i) {
        openreg_stream const writer = check_pool_stream(c->dev), reader = check_pool_stream(c->dev);
        openreg_event const event = check_runtime_event(c->dev, 0);
        char *const memory = check_allocate_block(c->dev, SIZE), *const big = check_allocate_block(c->dev, WORK);
        OK(openreg_memset_async(c->dev, OPENREG_STREAM_DEFAULT, memory, 0, SIZE));
        OK(openreg_device_synchronize(c->dev));
        check_pattern(from, SIZE, i);
        keep_busy(c->dev, writer, big, 20);
        OK(openreg_memcpy_async(c->dev, writer, memory, c->dev, from, OPENREG_HOST, SIZE));
        OK(openreg_event_record(event, c->dev, writer));
        OK(openreg_stream_wait_event(c->dev, reader, event));
        OK(openreg_memcpy_async(c->dev, reader, to, OPENREG_HOST, memory, c->dev, SIZE));
        OK(openreg_stream_synchronize(c->dev, reader));
        check_is_pattern(to, SIZE, i, "what a stream copied after it had waited for the writer's event");
        OK(openreg_event_destroy(event));
        OK(openreg_free(memory));
        OK(openreg_free(big));
    }
}

static void
events_measure(check_context *c)
{
    check_start_runtime(c);
    check_need_segments(c->dev);
    openreg_event const first = check_runtime_event(c->dev, OPENREG_EVENT_TIMING);
    openreg_event const last = check_runtime_event(c->dev, OPENREG_EVENT_TIMING);
    int32_t done = 0;
    int64_t ns = -1;
    char *const big = check_allocate_block(c->dev, WORK);
    OK(openreg_event_query(first, &done));
    REQUIRE(done == 1, "an event that was never recorded is not complete");
    keep_busy(c->dev, OPENREG_STREAM_DEFAULT, big, 4);
    OK(openreg_device_synchronize(c->dev));
    bool is_close = false;
    double host = 0, ms = 0;
    for (int i = 0; i < 3 && !is_close; ++i) { /* on a busy machine the host may come late */
        const double begin = check_now();
        OK(openreg_event_record(first, c->dev, OPENREG_STREAM_DEFAULT));
        keep_busy(c->dev, OPENREG_STREAM_DEFAULT, big, 60);
        OK(openreg_event_record(last, c->dev, OPENREG_STREAM_DEFAULT));
        OK(openreg_event_synchronize(last));
        host = (check_now() - begin) * 1e3;
        OK(openreg_event_query(last, &done));
        REQUIRE(done == 1, "an event is not complete after it was waited for");
        OK(openreg_event_elapsed(first, last, &ns));
        ms = (double)ns / 1e6;
        is_close = ms >= host * 0.3 - 1 && ms <= host * 1.1 + 2;
    }
    REQUIRE(is_close, "the events say %g ms, the host's clock %g ms", ms, host);
    OK(openreg_event_destroy(first));
    OK(openreg_event_destroy(last));
    OK(openreg_free(big));
}

static void
host_functions_run(check_context *c)
{
    check_start_runtime(c);
    check_need_segments(c->dev);
    unsigned char *const from = check_pinned_block(0, SIZE), *const to = check_pinned_block(0, SIZE);
    openreg_stream const stream = check_pool_stream(c->dev);
    char *const memory = check_allocate_block(c->dev, SIZE), *const big = check_allocate_block(c->dev, WORK);
    for (uint64_t i = 1; i < 5; ++i) {
        check_visit v = {.bytes = to, .size = SIZE, .seed = i};
        check_pattern(from, SIZE, i);
        memset(to, 0, SIZE);
        OK(openreg_device_synchronize(c->dev));
        keep_busy(c->dev, stream, big, 20);
        OK(openreg_memcpy_async(c->dev, stream, memory, c->dev, from, OPENREG_HOST, SIZE));
        OK(openreg_memcpy_async(c->dev, stream, to, OPENREG_HOST, memory, c->dev, SIZE));
        OK(openreg_stream_launch_host_func(c->dev, stream, check_look, &v));
        OK(openreg_stream_synchronize(c->dev, stream));
        REQUIRE(atomic_load(&v.calls) == 1, "a host function ran %d times by openreg_stream_synchronize()",
                atomic_load(&v.calls));
        REQUIRE(v.right == SIZE, "a host function ran before a copy in front of it had ended");
    }
    OK(openreg_free(memory));
    OK(openreg_free(big));
}

static void
blocks_keep_their_contents(check_context *c)
{
    check_start_runtime(c);
    check_random_program(c, &c->random, c->target->seconds);
    OK(openreg_memory_empty_cache(-1));
    for (int32_t dev = 0; dev < c->devices; ++dev) {
        openreg_memory_stats stats = {.struct_size = sizeof stats};
        OK(openreg_memory_get_stats(dev, &stats));
        REQUIRE(stats.allocated_bytes[OPENREG_POOL_ALL].current == 0 &&
                    stats.reserved_bytes[OPENREG_POOL_ALL].current == 0,
                "%lld bytes of device %d are allocated and %lld reserved when all is freed",
                (long long)stats.allocated_bytes[OPENREG_POOL_ALL].current, dev,
                (long long)stats.reserved_bytes[OPENREG_POOL_ALL].current);
    }
}

static void
memory_ends_and_comes_back(check_context *c)
{
    check_start_runtime(c);
    check_need_segments(0);
    const uint64_t total = check_properties(0).total_memory;
    check_skip_if(total == 0, "the driver does not say how much memory a device has");
    enum { MOST = 4096 };
    static void *held[MOST];
    const size_t size = (size_t)check_third_within(0, total / 32);
    const int most = total / size < MOST / 3 ? (int)(3 * total / size) : MOST;
    for (int round = 0; round < 3; ++round) {
        int count = 0;
        openreg_status status = OPENREG_OK;
        while (count < most && (status = openreg_malloc(0, OPENREG_STREAM_DEFAULT, size, &held[count])) == OPENREG_OK)
            ++count;
        check_skip_if(status == OPENREG_OK, "device 0 gave out three times its memory");
        REQUIRE(status == OPENREG_E_NOMEM, "a full device is %s for openreg_malloc(): %s", openreg_status_name(status),
                openreg_last_error()->message);
        REQUIRE(count > 4, "only %d times %zu bytes of the device's memory can be allocated", count, size);
        for (int i = 0; i < count; ++i)
            OK(openreg_free(held[i]));
        /* All is in the cache now, in pieces too small for this: the cache has to release them first. */
        OK(openreg_malloc(0, OPENREG_STREAM_DEFAULT, size * 3, &held[0]));
        OK(openreg_free(held[0]));
    }
}

static void
everything_starts_again(check_context *c)
{
    check_start_runtime(c);
    check_counts before = {.files = 0};
    for (int i = 0; i < 8; ++i) {
        check_round_trip(0, (uint64_t)i, "bytes that came back from a device");
        openreg_event const event = check_runtime_event(0, 0);
        OK(openreg_event_record(event, 0, check_pool_stream(0)));
        OK(openreg_event_destroy(event));
        OK(openreg_shutdown());
        if (i == 2)
            before = check_count_now();
        OK(openreg_drivers_use(c->table.name));
    }
    OK(openreg_shutdown());
    check_nothing_is_left(before, "each openreg_shutdown()");
}

typedef struct program {
    check_context *c;
    uint64_t state;
} program;

static void *
run_program(void *argument)
{
    program *const p = argument;
    check_random_program(p->c, &p->state, p->c->target->seconds / 2);
    return NULL;
}

static void
threads_share_devices(check_context *c)
{
    enum { THREADS = 8 };
    check_start_runtime(c);
    static program programs[THREADS];
    for (int i = 0; i < THREADS; ++i)
        programs[i] = (program){c, check_random(c)};
    check_run_threads(run_program, programs, sizeof programs[0], THREADS);
}

#define HINT_EMULATED                                                                                                  \
    "Slots that the driver lacks are emulated by the others: the message names the call that shows it."

static const check_case cases[] = {
    {"runtime.devices", "", CHECK_RUNTIME, "The runtime opens the driver, and each of its devices can be used.",
     "`openreg-info` says why a driver is not used.", devices_are_there},
    {"runtime.copy", "", CHECK_RUNTIME, "Copies and fills through the runtime are exact, between all devices.",
     HINT_EMULATED, copies_are_exact},
    {"runtime.pinned", "", CHECK_RUNTIME | CHECK_EACH,
     "Pinned memory through the runtime: copies to and from it are exact.", HINT_EMULATED, pinned_memory_works},
    {"runtime.streams", "", CHECK_RUNTIME | CHECK_EACH, "Events order streams, the driver's own and emulated ones.",
     HINT_EMULATED, streams_are_ordered},
    {"runtime.events", "", CHECK_RUNTIME | CHECK_EACH,
     "Events are complete when they were waited for, and measure milliseconds.", HINT_EMULATED, events_measure},
    {"runtime.host_func", "", CHECK_RUNTIME | CHECK_EACH,
     "A host function runs once, behind earlier work of its stream.", HINT_EMULATED, host_functions_run},
    {"runtime.allocator", "", CHECK_RUNTIME,
     "Blocks of the caching allocator keep their contents, and all memory goes back to the driver.",
     "Segments are allocations of the driver of 2 MiB and more.", blocks_keep_their_contents},
    {"runtime.out_of_memory", "", CHECK_RUNTIME,
     "A full device is OPENREG_E_NOMEM: the caching allocator then releases its cache and tries again.",
     "Return OPENREG_E_NOMEM and no other code.", memory_ends_and_comes_back},
    {"runtime.shutdown", "", CHECK_RUNTIME,
     "After openreg_shutdown() the driver can be opened again, and nothing is left.",
     "The runtime has freed all memory and destroyed all streams and events before close().", everything_starts_again},
    {"runtime.threads", "", CHECK_RUNTIME, "Eight threads use the devices at once.",
     "State that is shared needs a lock: also what a slot keeps in a static variable.", threads_share_devices},
};
const check_group check_runtime_group = CHECK_GROUP(2, cases);
