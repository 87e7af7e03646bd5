/* SPDX-License-Identifier: BSD-3-Clause */
/* fixtures.c: what checks do with a driver (fixtures.h). */
#define _GNU_SOURCE
#include "fixtures.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runner.h"

/* ---------------------------------------------------------------------------------------------------------- contents */

static unsigned char
pattern_byte(uint64_t seed, size_t i)
{
    uint64_t z = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)(i >> 3) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 29)) * UINT64_C(0x94d049bb133111eb);
    return (unsigned char)((z ^ (z >> 32)) >> (8 * (i & 7)));
}

void
check_pattern(void *memory, size_t size, uint64_t seed)
{
    unsigned char *const bytes = memory;
    for (size_t i = 0; i < size; ++i)
        bytes[i] = pattern_byte(seed, i);
}

size_t
check_pattern_difference(const void *memory, size_t size, uint64_t seed)
{
    const unsigned char *const bytes = memory;
    size_t i = 0;
    while (i < size && bytes[i] == pattern_byte(seed, i))
        ++i;
    return i;
}

void
check_is_pattern(const void *memory, size_t size, uint64_t seed, const char *what)
{
    const unsigned char *const bytes = memory;
    const size_t i = check_pattern_difference(memory, size, seed);
    REQUIRE(i == size, "%s: byte %zu of %zu is 0x%02x, not 0x%02x", what, i, size, bytes[i], pattern_byte(seed, i));
}

void
check_is_value(const void *memory, size_t size, unsigned char value, const char *what)
{
    const unsigned char *const bytes = memory;
    for (size_t i = 0; i < size; ++i)
        REQUIRE(bytes[i] == value, "%s: byte %zu of %zu is 0x%02x, not 0x%02x", what, i, size, bytes[i], value);
}

/* ------------------------------------------------------------------------------------------------------------ memory */

void *
check_alloc(check_context *c, int32_t dev, uint64_t size)
{
    void *memory = NULL;
    MUST(c, mem_alloc, c->instance, dev, BYTES(size), &memory);
    REQUIRE(memory != NULL, "mem_alloc() of %llu bytes on device %d succeeded and gave no address",
            (unsigned long long)size, dev);
    return memory;
}

void
check_free(check_context *c, int32_t dev, void *memory)
{
    MUST(c, mem_free, c->instance, dev, memory);
}

bool
check_has_pinned(const check_context *c)
{
    return c->table.host_alloc != NULL;
}

void *
check_host_alloc(check_context *c, size_t size, bool pinned)
{
    void *memory = NULL;
    if (pinned && check_has_pinned(c)) {
        MUST(c, host_alloc, c->instance, 0, BYTES(size), &memory);
        REQUIRE(memory != NULL, "host_alloc() of %zu bytes succeeded and gave no address", size);
        return memory;
    }
    if (posix_memalign(&memory, 64, size) != 0)
        check_skip("no host memory of %zu bytes", size);
    return memory;
}

void
check_host_free(check_context *c, void *memory, bool pinned)
{
    if (pinned && check_has_pinned(c))
        MUST(c, host_free, c->instance, 0, memory);
    else
        free(memory);
}

void
check_write(check_context *c, int32_t dev, void *to, const void *from, size_t size)
{
    MUST(c, copy, c->instance, dev, NULL, to, dev, from, -1, size);
    check_sync(c, dev, NULL);
}

void
check_read(check_context *c, int32_t dev, void *to, const void *from, size_t size)
{
    MUST(c, copy, c->instance, dev, NULL, to, -1, from, dev, size);
    check_sync(c, dev, NULL);
}

openreg_device_info
check_info(check_context *c, int32_t dev)
{
    openreg_device_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    if (c->table.device_info != NULL)
        MUST(c, device_info, c->instance, dev, &info);
    return info;
}

uint64_t
check_caps(check_context *c, int32_t dev)
{
    return check_info(c, dev).caps;
}

uint64_t
check_total_memory(check_context *c, int32_t dev)
{
    uint64_t unused = 0, total = 0;
    if (c->table.mem_info != NULL) {
        MUST(c, mem_info, c->instance, dev, &unused, &total);
        return total;
    }
    return check_info(c, dev).total_bytes;
}

uint64_t
check_within(check_context *c, int32_t dev, uint64_t bytes)
{
    const uint64_t most = check_info(c, dev).max_allocation;
    return most != 0 && most < bytes ? most : bytes;
}

/* The beginning of every extension's table. */
typedef struct extension_head {
    uint32_t struct_size, version;
} extension_head;

const void *
check_extension_table(check_context *c, const char *name, uint32_t version, uint32_t size)
{
    extension_head head;
    const void *const table = c->table.extension(c->instance, name, version);
    if (table == NULL)
        check_skip("the driver has no extension %s", name);
    memcpy(&head, table, sizeof head);
    REQUIRE(head.struct_size >= size && head.version >= version, "the table of %s says version %u and %u bytes", name,
            (unsigned)head.version, (unsigned)head.struct_size);
    return table;
}

const void *
check_extension(check_context *c, const char *name, uint32_t version, uint32_t size)
{
    const char *const table = check_extension_table(c, name, version, size);
    const size_t count = (size - sizeof(extension_head)) / sizeof(void *);
    for (size_t i = 0; i < count; ++i) {
        void (*function)(void);
        memcpy(&function, table + sizeof(extension_head) + i * sizeof function, sizeof function);
        REQUIRE(function != NULL, "the table of %s lacks the function %zu of %zu", name, i + 1, count);
    }
    return table;
}

/* ----------------------------------------------------------------------------------------------------------- streams */

openreg_driver_stream
check_stream(check_context *c, int32_t dev)
{
    openreg_driver_stream stream = NULL;
    if (c->table.stream_create == NULL)
        return NULL;
    MUST(c, stream_create, c->instance, dev, 0, 0, &stream);
    REQUIRE(stream != NULL, "stream_create() succeeded and gave no handle: NULL is the default stream");
    return stream;
}

openreg_driver_event
check_event(check_context *c, int32_t dev, uint32_t flags)
{
    openreg_driver_event event = NULL;
    MUST(c, event_create, c->instance, dev, flags, &event);
    REQUIRE(event != NULL, "event_create() succeeded and gave no handle");
    return event;
}

void
check_sync(check_context *c, int32_t dev, openreg_driver_stream stream)
{
    if (c->table.stream_sync != NULL)
        MUST(c, stream_sync, c->instance, dev, stream);
    else
        MUST(c, device_sync, c->instance, dev);
}

void
check_sync_late(check_context *c, int32_t dev, openreg_driver_stream stream, uint64_t way)
{
    int32_t done = 0;
    for (int i = 0; i < 3 && way % 3 != 0; ++i) {
        if (way % 3 == 2 && c->table.stream_query != NULL)
            MUST(c, stream_query, c->instance, dev, stream, &done);
        check_sleep(5);
    }
    check_sync(c, dev, stream);
}

#define GATE_LIMIT 20 /* seconds */

static void
await_until(check_gate *gate, const bool *what, int milliseconds)
{
    struct timespec end;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += milliseconds / 1000;
    end.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_nsec -= 1000000000;
        ++end.tv_sec;
    }
    while (!*what && pthread_cond_timedwait(&gate->changed, &gate->lock, &end) == 0) {
    }
}

static void
wait_at_gate(void *argument)
{
    check_gate *const gate = argument;
    (void)pthread_mutex_lock(&gate->lock);
    gate->is_reached = true;
    (void)pthread_cond_broadcast(&gate->changed);
    await_until(gate, &gate->is_open, GATE_LIMIT * 1000);
    gate->is_passed = true;
    (void)pthread_cond_broadcast(&gate->changed);
    (void)pthread_mutex_unlock(&gate->lock);
}

static check_gate *
make_gate(void)
{
    check_gate *const gate = calloc(1, sizeof *gate);
    if (gate == NULL)
        check_skip("no host memory");
    (void)pthread_mutex_init(&gate->lock, NULL);
    (void)pthread_cond_init(&gate->changed, NULL);
    return gate;
}

/* A driver may run a host function inside the call (it has no queue): then it can't hold a stream. */
static void
try_gate(void *argument)
{
    check_gate *const gate = argument;
    (void)pthread_mutex_lock(&gate->lock);
    await_until(gate, &gate->is_open, 400);
    gate->is_passed = gate->is_open;
    gate->is_reached = true;
    (void)pthread_cond_broadcast(&gate->changed);
    (void)pthread_mutex_unlock(&gate->lock);
}

static void
do_nothing(void *argument)
{
    (void)argument;
}

void
check_drop_refused_host_func(check_context *c)
{
    if (c->table.host_func == NULL)
        return;
    const openreg_status status = MAY(c, host_func, c->instance, 0, NULL, do_nothing, NULL);
    if (status == OPENREG_E_UNSUPPORTED) {
        c->table.host_func = NULL;
        return;
    }
    check_succeeded("host_func", status);
    MUST(c, device_sync, c->instance, 0);
}

bool
check_has_gate(check_context *c)
{
    if (c->gate == 0 && c->table.host_func == NULL)
        c->gate = -1;
    if (c->gate == 0) {
        check_gate *const gate = make_gate();
        MUST(c, host_func, c->instance, 0, NULL, try_gate, gate);
        check_gate_open(gate);
        MUST(c, device_sync, c->instance, 0);
        check_gate_await_reached(gate); /* also where device_sync() does not wait */
        c->gate = gate->is_passed ? 1 : -1;
    }
    return c->gate > 0;
}

check_gate *
check_gate_close(check_context *c, int32_t dev, openreg_driver_stream stream)
{
    check_gate *const gate = make_gate(); /* never freed: a driver that breaks rules may still run it */
    MUST(c, host_func, c->instance, dev, stream, wait_at_gate, gate);
    return gate;
}

void
check_gate_await_reached(check_gate *gate)
{
    (void)pthread_mutex_lock(&gate->lock);
    await_until(gate, &gate->is_reached, 5000);
    const bool is_reached = gate->is_reached;
    (void)pthread_mutex_unlock(&gate->lock);
    REQUIRE(is_reached, "a host function on an idle stream did not run within 5 seconds");
}

void
check_gate_open(check_gate *gate)
{
    (void)pthread_mutex_lock(&gate->lock);
    gate->is_open = true;
    (void)pthread_cond_broadcast(&gate->changed);
    (void)pthread_mutex_unlock(&gate->lock);
}

check_gate *
check_hold(check_context *c, int32_t dev, openreg_driver_stream stream)
{
    if (check_has_gate(c))
        return check_gate_close(c, dev, stream);
    check_ballast(c, dev, stream, 60);
    return NULL;
}

void
check_release(check_gate *gate)
{
    if (gate == NULL)
        return;
    check_sleep(20); /* time enough for work that wrongly does not wait */
    check_gate_open(gate);
}

static void
sleep_some(void *argument)
{
    check_sleep((int)(intptr_t)argument);
}

void
check_delay(check_context *c, int32_t dev, openreg_driver_stream stream, int milliseconds)
{
    if (check_has_gate(c))
        MUST(c, host_func, c->instance, dev, stream, sleep_some, (void *)(intptr_t)milliseconds);
    else
        check_ballast(c, dev, stream, milliseconds);
}

#define BALLAST_SIZE ((uint64_t)8 << 20)
#define BALLAST_DEVICES 8

void
check_ballast(check_context *c, int32_t dev, openreg_driver_stream stream, int milliseconds)
{
    static void *buffers[BALLAST_DEVICES][2];
    static double seconds; /* of one copy */
    void **const pair = buffers[dev % BALLAST_DEVICES];
    if (pair[0] == NULL) {
        pair[0] = check_alloc(c, dev, BALLAST_SIZE);
        pair[1] = check_alloc(c, dev, BALLAST_SIZE);
    }
    if (seconds <= 0) {
        double start = 0;
        for (int i = 0; i < 5; ++i) { /* the first is slower */
            if (i == 1)
                start = check_now();
            MUST(c, copy, c->instance, dev, NULL, pair[1], dev, pair[0], dev, BALLAST_SIZE);
            MUST(c, device_sync, c->instance, dev);
        }
        seconds = (check_now() - start) / 4 + 1e-6;
    }
    int count = (int)(milliseconds * 1e-3 / seconds) + 1;
    for (count = count < 5000 ? count : 5000; count > 0; --count)
        MUST(c, copy, c->instance, dev, stream, pair[count & 1], dev, pair[1 - (count & 1)], dev, BALLAST_SIZE);
}

typedef struct timed_call {
    void (*function)(void *argument);
    void *argument;
    check_gate *done;
} timed_call;

static void *
run_timed(void *argument)
{
    timed_call *const call = argument;
    call->function(call->argument);
    check_gate_open(call->done);
    return NULL;
}

bool
check_returns_within(int milliseconds, void (*function)(void *argument), void *argument)
{
    timed_call *const call = calloc(1, sizeof *call);
    pthread_t thread;
    if (call == NULL)
        check_skip("no host memory");
    *call = (timed_call){function, argument, make_gate()};
    if (pthread_create(&thread, NULL, run_timed, call) != 0)
        check_skip("no thread could be made");
    (void)pthread_detach(thread);
    (void)pthread_mutex_lock(&call->done->lock);
    await_until(call->done, &call->done->is_open, milliseconds);
    const bool is_done = call->done->is_open;
    (void)pthread_mutex_unlock(&call->done->lock);
    return is_done;
}

void
check_await_child(pid_t child, int seconds, int wanted, const char *what)
{
    const double end = check_now() + seconds;
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (seconds > 0 && check_now() > end) {
            (void)kill(child, SIGKILL);
            check_fail("%s did not end within %d seconds", what, seconds);
        }
        check_sleep(2);
    }
    REQUIRE(WIFEXITED(status), "%s crashed: %s", what, strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) == CHECK_EXIT_FAIL || WEXITSTATUS(status) == CHECK_EXIT_SKIP)
        _exit(WEXITSTATUS(status)); /* the child has said why */
    REQUIRE(WEXITSTATUS(status) == wanted, "%s ended with status %d, not %d", what, WEXITSTATUS(status), wanted);
}

/* ------------------------------------------------------------------------------------------------------------- counts */

double
check_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void
check_sleep(int milliseconds)
{
    struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

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
    check_counts counts = {.files = entries_of("/proc/self/fd"), .threads = entries_of("/proc/self/task")};
    counts.heap = heap_bytes();
    FILE *const file = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0;
    if (file != NULL) {
        if (fscanf(file, "%llu", &pages) == 1)
            counts.address_space = pages * (uint64_t)sysconf(_SC_PAGESIZE);
        (void)fclose(file);
    }
    return counts;
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
