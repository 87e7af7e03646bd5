/* SPDX-License-Identifier: BSD-3-Clause */
/* check.h: what the checks of openreg-check share: what a check is, what it is given, and how it ends.
 *
 * Each check runs in a process of its own (runner.c). It passes by returning, and ends the process as soon as the driver
 * has broken a rule: check_fail() writes the reason where the parent reads it, from any thread. So a check needs no
 * clean-up, and a crash or a hang is a result too. */
#ifndef OPENREG_CHECK_CHECK_H
#define OPENREG_CHECK_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <openreg/driver.h>

/* What a check needs beside the slots that it names. What is missing makes it a skip, with this as its reason. */
#define CHECK_CLOSED 1u        /* the check opens the driver itself; without it the runner has */
#define CHECK_TWO_DEVICES 2u   /* two devices */
#define CHECK_GATE 4u          /* a host function that runs while its caller goes on: it holds a stream */
#define CHECK_FORK_SAFE 8u     /* the flag OPENREG_CAP_FORK_SAFE */
#define CHECK_FENCED 16u       /* a device with OPENREG_CAP_FENCED */
#define CHECK_HOST_VISIBLE 32u /* a device with OPENREG_CAP_HOST_VISIBLE */
#define CHECK_RUNTIME 64u      /* calls the runtime: the runner opens nothing */
#define CHECK_KERNELS 128u     /* the extension openreg.kernels */
#define CHECK_COMM 256u        /* the extension openreg.comm */
/* Nothing; it moves gigabytes, or compiles many kernels, and hangs after ten times as long as others. */
#define CHECK_LONG 512u

#define CHECK_EACH 1024u /* nothing; it runs once for each device, which is c->dev */

typedef struct check_context check_context;

typedef struct check_case {
    const char *name;  /* "copy.last_byte": the room and what is checked */
    const char *slots; /* optional slots without which there is nothing to check, separated by spaces */
    uint32_t needs;    /* CHECK_* */
    const char *rule;  /* of driver.h or its extensions, in one or two sentences */
    const char *hint;  /* where to look in a driver that breaks it */
    void (*run)(check_context *c);
} check_case;

typedef struct check_group {
    int level; /* 1: the table alone; 2: through the runtime, and the extensions */
    const check_case *cases;
    size_t count;
} check_group;

#define CHECK_GROUP(level, list) {level, list, sizeof(list) / sizeof((list)[0])}

extern const check_group check_table_group, check_lifecycle_group, check_process_group, check_error_group,
    check_memory_group, check_copy_group, check_wide_group, check_stream_group, check_event_group,
    check_host_func_group, check_info_group, check_thread_group, check_leak_group, check_probe_group,
    check_extension_group, check_comm_group, check_comm_process_group, check_kernel_group, check_runtime_group,
    check_fault_group, check_graph_group, check_kernel_shape_group, check_layer_group;

/* All of them, in the order in which they run. NULL ends the list. */
extern const check_group *const check_groups[];

#define CHECK_OPTIONS 32 /* of a command line */

/* What is checked, as the command line says it. */
typedef struct check_target {
    const char *name;              /* as it was given */
    const char *path;              /* of the library, or NULL: built in */
    const openreg_option *options; /* for open(); in a check's process with those of OPENREG_<DRIVER>_<KEY> */
    uint32_t option_count;
    uint64_t seed;
    double seconds; /* for each check that runs for a time rather than to an end */
} check_target;

struct check_context {
    const check_case *check; /* the one that runs; NULL while the driver is identified */
    const check_target *target;
    const openreg_host *host;
    const openreg_driver *given; /* the driver's own table */
    openreg_driver table;        /* a copy: the part that both sides know, the rest zero */
    openreg_instance instance;   /* NULL with CHECK_CLOSED and CHECK_RUNTIME */
    int32_t devices, dev;        /* dev: with CHECK_EACH */
    uint64_t random;             /* state of check_random() */
    int gate;                    /* 0: not tried, 1: there is one, -1: there is none */
};

/* ---- target.c ---- */

/* Finds a driver: a path to a library, "sim", or the name of one that the runtime knows as a library ("cuda").
 * Returns NULL, or why there is none. Loads nothing. */
const char *check_target_find(const char *name, check_target *target);
/* The same target with the options that variables OPENREG_<DRIVER>_<KEY> hold behind those of the command line, which
 * go first. Valid until the next call; for the process of a check, which calls it once. */
const check_target *check_target_with_variables(const check_target *target, const char *driver);
/* The driver's entry point; loads the library. Fails the check if there is none. */
openreg_driver_query_fn check_target_entry(const check_target *target);

/* ---- context.c ---- */

/* What the parent can still read after a crash or a hang: the slot that was called last and hasn't returned, and the last
 * calls of any. Names are copied: a kernel's is in the driver's library, which the parent never loads. Threads take places
 * by one counter: one that is overtaken by a whole ring of others is shown wrongly. */
#define CHECK_CALLS 12
typedef struct check_call {
    char slot[40]; /* "": none */
    int thread;
    bool has_ended;
    openreg_status status;
    double begin, end; /* seconds, monotonic */
} check_call;

typedef struct check_trail {
    int current; /* the place of the call that has begun last, +1; 0: none that has not returned */
    unsigned count;
    int is_reported;             /* by one of the check's processes */
    int64_t own_time, looked_at; /* microseconds: what counts of the time until the parent has looked last, and then */
    check_call calls[CHECK_CALLS];
} check_trail;

/* Makes the pipe's end and the shared memory those of this process: the runner calls it first in a child. */
void check_begin(int report_file, check_trail *trail);
/* End the process: the driver broke the rule; the check can't be made. The text is one line. */
_Noreturn void check_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void check_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void check_pass(void);
/* The second of them, where that is so. */
void check_skip_if(bool condition, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Loads the driver and copies its table. Fails the check if that can't be. */
void check_load(check_context *c, const check_target *target);
/* open() and device_count(). With E_NO_DEVICE, or none, it is a skip. */
void check_open(check_context *c);
void check_close(check_context *c);
/* open() alone. Returns the driver's status. */
openreg_status check_open_with(check_context *c, const openreg_option *options, uint32_t count, openreg_instance *out);
/* The host's functions, which count the errors of each thread. */
const openreg_host *check_host(void);
/* Whether the table has that slot of openreg_slots[]. */
bool check_has_slot(const openreg_driver *table, int slot);
/* Whether the table has all slots of a list "a b c"; *missing is the first one that it lacks. */
bool check_has_slots(const openreg_driver *table, const char *slots, const char **missing);

/* Record the begin of a call, by its name up to "(", and its end: reports of a crash or a hang name it. Returns the status. */
void check_begin_call(const char *call);
openreg_status check_end_call(openreg_status status);
/* What every slot must keep: set_error() never before OPENREG_OK; exactly once, with the same code, before another. */
void check_succeeded(const char *slot, openreg_status status);
void check_failed_with(const char *slot, openreg_status wanted, openreg_status status);
/* Either; returns the status. */
openreg_status check_ended(const char *slot, openreg_status status);
/* The text of this thread's last error. */
const char *check_error_text(void);
/* Append to a text, which is cut off at `size` bytes; the second: to a list, "a, b, c". */
void check_append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
void check_append_item(char *list, size_t size, const char *item);
/* A name for messages: "OPENREG_E_NOMEM". */
const char *check_status_name(openreg_status status);

/* MUST(c, copy, c->instance, ...): calls the slot, which has to succeed. FAILS: it has to return that code. MAY: either. */
#define MUST(c, slot, ...) check_succeeded(#slot, (check_begin_call(#slot), (c)->table.slot(__VA_ARGS__)))
#define FAILS(c, code, slot, ...)                                                                                      \
    check_failed_with(#slot, code, (check_begin_call(#slot), (c)->table.slot(__VA_ARGS__)))
#define MAY(c, slot, ...) check_ended(#slot, (check_begin_call(#slot), (c)->table.slot(__VA_ARGS__)))
/* MUST() of an optional slot, where the table has it. */
#define OPTIONAL(c, slot, ...) ((c)->table.slot != NULL ? MUST(c, slot, __VA_ARGS__) : (void)0)
/* The same of a function of an extension, which is named. */
#define CALL(name, call) check_succeeded(name, (check_begin_call(name), (call)))
#define REFUSES(name, call) check_failed_with(name, OPENREG_E_INVALID, (check_begin_call(name), (call)))
#define TRY(name, call) check_ended(name, (check_begin_call(name), (call)))
/* The argument of mem_alloc() and host_alloc() for this number of bytes. */
#define BYTES(count) (&(const openreg_alloc_info){.struct_size = sizeof(openreg_alloc_info), .size = (count)})
/* REQUIRE(condition, "text", ...): the rule that the check is about. */
#define REQUIRE(condition, ...) ((condition) ? (void)0 : check_fail(__VA_ARGS__))

/* 64 bits, from the seed of the run. The state belongs to the context: one thread at a time. */
uint64_t check_random(check_context *c);
/* Uniform in [0, below). */
uint64_t check_random_below(check_context *c, uint64_t below);

#endif
