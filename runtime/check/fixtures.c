/* SPDX-License-Identifier: BSD-3-Clause */
/* fixtures.c: what checks do with a driver (fixtures.h). */
#define _GNU_SOURCE
#include "fixtures.h"

#include <errno.h>
#include <signal.h>
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

void *
check_host_alloc(check_context *c, size_t size, bool pinned)
{
    void *memory = NULL;
    if (pinned && c->table.host_alloc != NULL)
        MUST(c, host_alloc, c->instance, 0, BYTES(size), &memory);
    else
        check_skip_if(posix_memalign(&memory, 64, size) != 0, "no host memory of %zu bytes", size);
    REQUIRE(memory != NULL, "host_alloc() of %zu bytes succeeded and gave no address", size);
    return memory;
}

void
check_host_free(check_context *c, void *memory, bool pinned)
{
    if (pinned && c->table.host_alloc != NULL)
        MUST(c, host_free, c->instance, 0, memory);
    else
        free(memory);
}

void *
check_alloc_at(check_context *c, int32_t dev, size_t size, bool pinned)
{
    return dev < 0 ? check_host_alloc(c, size, pinned) : check_alloc(c, dev, size);
}

void
check_free_at(check_context *c, int32_t dev, void *memory, bool pinned)
{
    if (dev < 0)
        check_host_free(c, memory, pinned);
    else
        check_free(c, dev, memory);
}

void
check_copy(check_context *c, int32_t dev, openreg_driver_stream stream, void *to, int32_t to_dev, const void *from,
           int32_t from_dev, size_t size)
{
    MUST(c, copy, c->instance, dev, stream, to, to_dev, from, from_dev, size);
    check_sync(c, dev, stream);
}

void
check_write(check_context *c, int32_t dev, void *to, const void *from, size_t size)
{
    if (dev < 0)
        memcpy(to, from, size);
    else
        check_copy(c, dev, NULL, to, dev, from, -1, size);
}

void
check_read(check_context *c, int32_t dev, void *to, const void *from, size_t size)
{
    if (dev < 0)
        memcpy(to, from, size);
    else
        check_copy(c, dev, NULL, to, -1, from, dev, size);
}

/* Contents on their way to or from a device. */
static unsigned char *
own_buffer(check_context *c, size_t size)
{
    static unsigned char *buffer;
    static size_t room;
    if (size > room) {
        buffer = check_host_alloc(c, size, true);
        room = size;
    }
    return buffer;
}

void
check_write_pattern(check_context *c, int32_t dev, void *to, size_t size, uint64_t seed)
{
    unsigned char *const buffer = own_buffer(c, size);
    check_pattern(buffer, size, seed);
    check_write(c, dev, to, buffer, size);
}

void
check_holds_pattern(check_context *c, int32_t dev, const void *memory, size_t size, uint64_t seed, const char *what)
{
    unsigned char *const buffer = own_buffer(c, size);
    memset(buffer, 0, size);
    check_read(c, dev, buffer, memory, size);
    check_is_pattern(buffer, size, seed, what);
}

openreg_device_info
check_info(check_context *c, int32_t dev)
{
    openreg_device_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    OPTIONAL(c, device_info, c->instance, dev, &info);
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
    if (c->table.mem_info == NULL)
        return check_info(c, dev).total_bytes;
    MUST(c, mem_info, c->instance, dev, &unused, &total);
    return total;
}

uint64_t
check_free_memory(check_context *c, int32_t dev)
{
    uint64_t unused = 0, total = 0;
    OPTIONAL(c, mem_info, c->instance, dev, &unused, &total);
    return unused;
}

uint64_t
check_within(check_context *c, int32_t dev, uint64_t bytes)
{
    const uint64_t most = check_info(c, dev).max_allocation;
    return most != 0 && most < bytes ? most : bytes;
}

uint64_t
check_share(check_context *c, int32_t dev, uint64_t parts, uint64_t bytes)
{
    const uint64_t total = check_total_memory(c, dev);
    return check_within(c, dev, total != 0 && total / parts < bytes ? total / parts : bytes);
}

void
check_need(int32_t dev, uint64_t total, uint64_t bytes)
{
    check_skip_if(total != 0 && total < bytes, "device %d has %llu MiB; this takes %llu", dev,
                  (unsigned long long)(total >> 20), (unsigned long long)(bytes >> 20));
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
    check_skip_if(table == NULL, "the driver has no extension %s", name);
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

bool
check_await(const atomic_bool *what, int milliseconds)
{
    const double end = check_own_time() + milliseconds * 1e-3;
    while (!atomic_load(what) && check_own_time() < end)
        check_sleep(1);
    return atomic_load(what);
}

static void
wait_at_gate(void *argument)
{
    check_gate *const gate = argument;
    atomic_store(&gate->is_reached, true);
    (void)check_await(&gate->is_open, GATE_LIMIT * 1000);
}

/* Zeros. Never freed: threads, and host functions of a driver that breaks rules, may use it to the end. */
static void *
make(size_t size)
{
    void *const made = calloc(1, size);
    check_skip_if(made == NULL, "no host memory");
    return made;
}

/* A driver may run a host function inside the call (it has no queue): then it can't hold a stream. */
static void
try_gate(void *argument)
{
    check_gate *const gate = argument;
    atomic_store(&gate->is_passed, check_await(&gate->is_open, 400));
    atomic_store(&gate->is_reached, true);
}

void
check_count_call(void *counter)
{
    (void)atomic_fetch_add((atomic_int *)counter, 1);
}

void
check_look(void *visit)
{
    check_visit *const v = visit;
    v->right = v->bytes != NULL ? check_pattern_difference(v->bytes, v->size, v->seed) : v->size;
    v->thread = pthread_self();
    check_sleep(v->pause);
    (void)atomic_fetch_add(&v->calls, 1);
}

void
check_drop_refused_host_func(check_context *c)
{
    if (c->table.host_func == NULL)
        return;
    const openreg_status status = MAY(c, host_func, c->instance, 0, NULL, check_sleep_some, NULL);
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
        check_gate *const gate = make(sizeof *gate);
        MUST(c, host_func, c->instance, 0, NULL, try_gate, gate);
        check_gate_open(gate);
        MUST(c, device_sync, c->instance, 0);
        check_gate_await_reached(gate); /* also where device_sync() does not wait */
        c->gate = atomic_load(&gate->is_passed) ? 1 : -1;
    }
    return c->gate > 0;
}

check_gate *
check_gate_close(check_context *c, int32_t dev, openreg_driver_stream stream)
{
    check_gate *const gate = make(sizeof *gate);
    MUST(c, host_func, c->instance, dev, stream, wait_at_gate, gate);
    return gate;
}

void
check_gate_await_reached(check_gate *gate)
{
    REQUIRE(check_await(&gate->is_reached, 5000), "a host function on an idle stream did not run within 5 seconds");
}

void
check_gate_open(check_gate *gate)
{
    atomic_store(&gate->is_open, true);
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

void
check_sleep_some(void *argument)
{
    check_sleep((int)(intptr_t)argument);
}

void
check_delay(check_context *c, int32_t dev, openreg_driver_stream stream, int milliseconds)
{
    if (check_has_gate(c))
        MUST(c, host_func, c->instance, dev, stream, check_sleep_some, (void *)(intptr_t)milliseconds);
    else
        check_ballast(c, dev, stream, milliseconds);
}

void
check_tail_queue(check_context *c, check_tail *t, int32_t dev, openreg_driver_stream stream, int milliseconds)
{
    static uint64_t seed;
    if (t->from == NULL) {
        t->from = check_host_alloc(c, CHECK_TAIL, true);
        t->to = check_host_alloc(c, CHECK_TAIL, true);
    }
    t->memory = check_alloc(c, dev, CHECK_TAIL);
    t->seed = ++seed;
    check_pattern(t->from, CHECK_TAIL, t->seed);
    memset(t->to, 0, CHECK_TAIL);
    if (milliseconds > 0)
        check_delay(c, dev, stream, milliseconds);
    MUST(c, copy, c->instance, dev, stream, t->memory, dev, t->from, -1, CHECK_TAIL);
    MUST(c, copy, c->instance, dev, stream, t->to, -1, t->memory, dev, CHECK_TAIL);
}

#define BALLAST_SIZE ((uint64_t)8 << 20)
#define BALLAST_DEVICES 8

void
check_ballast(check_context *c, int32_t dev, openreg_driver_stream stream, int milliseconds)
{
    static struct ballast {
        void *pair[2];
        uint64_t size;
        double seconds; /* of one copy */
    } ballasts[BALLAST_DEVICES];
    struct ballast *const b = &ballasts[dev % BALLAST_DEVICES];
    if (b->size == 0) {
        double start = 0;
        b->size = check_share(c, dev, 8, BALLAST_SIZE);
        b->pair[0] = check_alloc(c, dev, b->size);
        b->pair[1] = check_alloc(c, dev, b->size);
        for (int i = 0; i < 5; ++i) { /* the first is slower */
            if (i == 1)
                start = check_now();
            MUST(c, copy, c->instance, dev, NULL, b->pair[1], dev, b->pair[0], dev, b->size);
            MUST(c, device_sync, c->instance, dev);
        }
        b->seconds = (check_now() - start) / 4 + 1e-6;
    }
    int count = (int)(milliseconds * 1e-3 / b->seconds) + 1;
    for (count = count < 5000 ? count : 5000; count > 0; --count)
        MUST(c, copy, c->instance, dev, stream, b->pair[count & 1], dev, b->pair[1 - (count & 1)], dev, b->size);
}

void
check_start_thread(pthread_t *thread, void *(*function)(void *), void *argument)
{
    check_skip_if(pthread_create(thread, NULL, function, argument) != 0, "no thread could be made");
}

void
check_run_threads(void *(*function)(void *), void *items, size_t size, int count)
{
    pthread_t threads[CHECK_THREADS];
    REQUIRE(count <= CHECK_THREADS, "internal: %d threads", count);
    for (int i = 0; i < count; ++i)
        check_start_thread(&threads[i], function, (char *)items + (size_t)i * size);
    for (int i = 0; i < count; ++i)
        (void)pthread_join(threads[i], NULL);
}

typedef struct timed_call {
    void (*function)(void *argument);
    void *argument;
    atomic_bool done;
} timed_call;

static void *
run_timed(void *argument)
{
    timed_call *const call = argument;
    call->function(call->argument);
    atomic_store(&call->done, true);
    return NULL;
}

bool
check_returns_within(int milliseconds, void (*function)(void *argument), void *argument)
{
    timed_call *const call = make(sizeof *call);
    pthread_t thread;
    call->function = function;
    call->argument = argument;
    check_start_thread(&thread, run_timed, call);
    (void)pthread_detach(thread);
    return check_await(&call->done, milliseconds);
}

typedef struct sync_call {
    check_context *c;
    int32_t dev;
    openreg_driver_stream stream;
    openreg_driver_event event;
} sync_call;

static void
make_sync(void *argument)
{
    const sync_call *const call = argument;
    if (call->event != NULL)
        MUST(call->c, event_sync, call->c->instance, call->dev, call->event);
    else
        check_sync(call->c, call->dev, call->stream);
}

bool
check_sync_returns(check_context *c, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    sync_call *const call = make(sizeof *call);
    *call = (sync_call){c, dev, stream, event};
    return check_returns_within(CHECK_PATIENCE * 1000, make_sync, call);
}

void
check_await_child(pid_t child, int seconds, int wanted, const char *what)
{
    const double end = check_own_time() + seconds;
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (seconds > 0 && check_own_time() > end) {
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

/* --------------------------------------------------------------------------------------------------------------- time */

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
    while (milliseconds > 0 && nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}
