/* SPDX-License-Identifier: BSD-3-Clause */
/* fixtures.h: what checks do with a driver: memory with known contents, work that takes its time, streams that are held, and
 * counts of what a process has. Every function that calls a slot fails the check if the slot fails. */
#ifndef OPENREG_CHECK_FIXTURES_H
#define OPENREG_CHECK_FIXTURES_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "check.h"

/* ---------------------------------------------------------------------------------------------------------- contents */

/* Writes `size` bytes that differ with `seed` and from place to place. */
void check_pattern(void *memory, size_t size, uint64_t seed);
/* Fails the check where the bytes differ from that pattern: "WHAT: byte 17 of 4096 is 0x00, not 0x5c". */
void check_is_pattern(const void *memory, size_t size, uint64_t seed, const char *what);
/* The same for one value. */
void check_is_value(const void *memory, size_t size, unsigned char value, const char *what);
/* Memory with a pattern of that seed. */
typedef struct check_block {
    char *memory; /* NULL: none */
    size_t size;
    uint64_t seed;
    int32_t dev;
} check_block;
/* Index of the first different byte, `size` if there is none. */
size_t check_pattern_difference(const void *memory, size_t size, uint64_t seed);
/* Write memory of a device, and compare what it has, by a buffer of their own, which is pinned where the driver has that.
 * One thread at a time. */
void check_write_pattern(check_context *c, int32_t dev, void *to, size_t size, uint64_t seed);
void check_holds_pattern(check_context *c, int32_t dev, const void *memory, size_t size, uint64_t seed,
                         const char *what);

/* ------------------------------------------------------------------------------------------------------------ memory */

void *check_alloc(check_context *c, int32_t dev, uint64_t size);
void check_free(check_context *c, int32_t dev, void *memory);
/* Host memory; pinned where the driver has that and `pinned` is set. */
void *check_host_alloc(check_context *c, size_t size, bool pinned);
void check_host_free(check_context *c, void *memory, bool pinned);
/* Either: of the host where `dev` is -1. */
void *check_alloc_at(check_context *c, int32_t dev, size_t size, bool pinned);
void check_free_at(check_context *c, int32_t dev, void *memory, bool pinned);
/* copy() on a stream of device `dev`, and a wait for that. A device of -1 is the host. */
void check_copy(check_context *c, int32_t dev, openreg_driver_stream stream, void *to, int32_t to_dev, const void *from,
                int32_t from_dev, size_t size);
/* Copies to and from the host, and waits. A device of -1 is the host. */
void check_write(check_context *c, int32_t dev, void *to, const void *from, size_t size);
void check_read(check_context *c, int32_t dev, void *to, const void *from, size_t size);
/* Bytes of the device, and those of them that are free; 0 if the driver does not say. */
uint64_t check_total_memory(check_context *c, int32_t dev);
uint64_t check_free_memory(check_context *c, int32_t dev);
/* That many bytes, or the device's max_allocation where that is less. */
uint64_t check_within(check_context *c, int32_t dev, uint64_t bytes);
/* The same, or one of that many parts of the device's memory where that is less. */
uint64_t check_share(check_context *c, int32_t dev, uint64_t parts, uint64_t bytes);
/* Skips the check where the device's memory, which is `total` bytes or 0 for unknown, is less in all. */
void check_need(int32_t dev, uint64_t total, uint64_t bytes);
/* On device 0. Skips the check where the device or the machine has too little. `touched` bytes of it will be written:
 * simulated devices, and those that share the host's memory, take that from the host. In wide_checks.c. */
char *check_alloc_wide(check_context *c, uint64_t size, uint64_t touched);
/* Bytes of host memory that are still available, 0 if unknown. */
uint64_t check_host_available(void);
/* All zero without device_info(). */
openreg_device_info check_info(check_context *c, int32_t dev);
uint64_t check_caps(check_context *c, int32_t dev);
/* An extension's table, `size` bytes in its first version. Without the extension it is a skip. */
const void *check_extension_table(check_context *c, const char *name, uint32_t version, uint32_t size);
/* The same, of an extension of which every function is required. */
const void *check_extension(check_context *c, const char *name, uint32_t version, uint32_t size);

/* ----------------------------------------------------------------------------------------------------------- streams */

openreg_driver_stream check_stream(check_context *c, int32_t dev);
openreg_driver_event check_event(check_context *c, int32_t dev, uint32_t flags);
/* stream_sync(), or device_sync() where there are no streams. */
void check_sync(check_context *c, int32_t dev, openreg_driver_stream stream);
/* The same as a program may: at once, after a pause, or after queries and pauses, by `way` modulo 3. A driver that collects
 * work before it queues it does so at each of these. */
void check_sync_late(check_context *c, int32_t dev, openreg_driver_stream stream, uint64_t way);

/* Whether event_sync(), or a wait for the stream where `event` is NULL, returns within CHECK_PATIENCE: in a thread. */
bool check_sync_returns(check_context *c, int32_t dev, openreg_driver_stream stream, openreg_driver_event event);

/* Bytes that reach the host only at the end of slow work: when a call reports that the work is complete, they are checked.
 * The first call makes what the tail has on the host; the device's memory is new each time. */
#define CHECK_TAIL 60001
typedef struct check_tail {
    unsigned char *from, *to;
    char *memory;
    uint64_t seed;
} check_tail;
/* The work is copies behind check_delay(); none of that with 0 milliseconds. */
void check_tail_queue(check_context *c, check_tail *t, int32_t dev, openreg_driver_stream stream, int milliseconds);

/* Host functions. */
void check_count_call(void *counter);      /* an atomic_int */
void check_sleep_some(void *milliseconds); /* NULL: not at all */

/* What a host function finds that looks at the bytes that earlier work writes. */
typedef struct check_visit {
    const unsigned char *bytes; /* NULL: none */
    size_t size;
    uint64_t seed;
    size_t right; /* bytes that were right when the function ran */
    int pause;    /* milliseconds that it takes */
    pthread_t thread;
    atomic_int calls;
} check_visit;
void check_look(void *visit);

/* Takes host_func out of the check's copy of the table where the driver answers E_UNSUPPORTED, which is to have none. */
void check_drop_refused_host_func(check_context *c);
/* Whether a host function runs while its caller goes on. Tried once. */
bool check_has_gate(check_context *c);

/* A stream is held at a closed gate: a host function that waits. It opens by itself after twenty seconds. */
typedef struct check_gate {
    atomic_bool is_open, is_reached, is_passed; /* the last: while it was tried whether there are gates */
} check_gate;

/* Whether it becomes true within that time. */
bool check_await(const atomic_bool *what, int milliseconds);
check_gate *check_gate_close(check_context *c, int32_t dev, openreg_driver_stream stream);
void check_gate_await_reached(check_gate *gate);
void check_gate_open(check_gate *gate);

/* Holds a stream until check_release(): at a gate, or, where there is none, by copies that take a while. */
check_gate *check_hold(check_context *c, int32_t dev, openreg_driver_stream stream);
void check_release(check_gate *gate); /* NULL is accepted */

/* Queues work that takes about so long: a host function that sleeps, or copies on the device. */
void check_delay(check_context *c, int32_t dev, openreg_driver_stream stream, int milliseconds);
/* The same, always of copies. */
void check_ballast(check_context *c, int32_t dev, openreg_driver_stream stream, int milliseconds);

/* Skip the check where no thread can be made. The second has one for each of `count` items, of which each has `size` bytes,
 * and waits for all. */
void check_start_thread(pthread_t *thread, void *(*function)(void *), void *argument);
#define CHECK_THREADS 16
void check_run_threads(void *(*function)(void *), void *items, size_t size, int count);

/* Runs `function` in a thread; true if it returned within the time. The thread is left behind otherwise. */
bool check_returns_within(int milliseconds, void (*function)(void *argument), void *argument);

/* Waits for the end of a process made by fork(), whose report counts. Fails the check if it doesn't end within the time (0:
 * the runner's limit), crashes, or ends with another status than `wanted`: "WHAT crashed: Aborted". */
void check_await_child(pid_t child, int seconds, int wanted, const char *what);

/* ------------------------------------------------------------------------------------------------------------- tours */

/* Calls each slot that the table has on each device, with valid arguments, and gives everything back. Copied bytes must
 * be right. */
void check_slot_tour(check_context *c);
/* Calls one slot of a device, with what it needs alone, and gives that back. Returns a name for it; "": the table lacks the
 * slot; NULL: `which`, from 0 on, is beyond them. */
const char *check_use_alone(check_context *c, int32_t dev, int which);
/* For a check_context: what goes on while a stream of device 0 is held, on the default stream and another one. */
void check_use_others(void *context);
/* check_open(), check_slot_tour(), check_close(). */
void check_whole_slot_tour(check_context *c);

/* ------------------------------------------------------------------------------------------------------------- counts */

double check_now(void); /* seconds, monotonic */
/* The same for limits: without the time in which the check had no processor. context.c. */
double check_own_time(void);
/* Seconds for what takes milliseconds, on a machine that has much else to do. A gate is closed for longer. */
#define CHECK_PATIENCE 8
void check_sleep(int milliseconds);

/* Bytes by which counts may differ from window to window: chunks that a thread keeps for its next request count as in
 * use, stacks of ended threads are kept, and a device's memory is shared. */
#define CHECK_HEAP_SLACK 8000
#define CHECK_ADDRESS_SLACK ((uint64_t)40 << 20)
#define CHECK_DEVICE_SLACK ((uint64_t)16 << 20)

typedef struct check_counts {
    int files, threads;
    uint64_t heap;          /* bytes that malloc() has given out, 0 if unknown */
    uint64_t address_space; /* bytes */
    uint64_t device;        /* free bytes of all devices, where a check fills it in */
} check_counts;

check_counts check_count_now(void);
/* Keeps the heap in one arena, so that its bytes tell what is in use and not how many threads there were. */
void check_count_exactly(void);
/* Fails the check if `once`, called again and again with the number of the round, leaves something behind. A leak is a
 * slope: what a vendor's library makes once, or keeps for the next call, ends to grow, so that only what grows in each of
 * some windows, of which the later ones are longer, is reported. `books` bytes for each round may stay. */
void check_slope(check_context *c, int rounds, unsigned books, void (*once)(check_context *c, int i), const char *what);
/* Threads that have ended may be in the list a little longer: waits until there are as few as wanted, up to a second. */
int check_threads_down_to(int wanted);

#endif
