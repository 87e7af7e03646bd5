/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/races.h: finds unordered uses of memory: on a GPU they would race, even if this run was correct. Part of
 * the C API: the rules of openreg.h on errors, threads and start hold here. Not stable: it is version 0, and may
 * change in any release. Valid C11 and C++17.
 *
 *   uint32_t before;
 *   openreg_races_set(OPENREG_RACES_REPORT, &before);
 *   ...                                               copies, fills, kernels, events, waits are followed
 *   openreg_races_visit(0, show, NULL);
 *
 * Each stream has a vector clock, and the host has one. Work is ordered behind everything that its stream has waited for
 * and that the host knew to be done when it queued the work; an event carries its stream's clock to the streams that
 * wait for it, and a synchronisation or a query that returned "done" carries it to the host. Two uses of one byte, of
 * which one writes, race unless one is in the other's past. So the result doesn't depend on which of them came first in
 * this run. All threads of the host share one clock: the order observed between them counts as order.
 *
 * While detection is off, every instrumented place costs one load of a flag. */
#ifndef OPENREG_RACES_H
#define OPENREG_RACES_H

#include <openreg/lab.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_RACES_REPORT 1u /* keep reports */
#define OPENREG_RACES_RAISE 2u  /* keep reports, and let the second use fail with OPENREG_E_INVALID, before it begins */
#define OPENREG_RACES_UNINITIALIZED 4u /* also report reads of memory that nothing has written */
#define OPENREG_RACES_STACKS 8u        /* with the whole stack of each use, where the language has one */

/* The current flags; 0: off, at the cost of one load. Never fails. */
static inline uint32_t
openreg_races_flags(void)
{
    if ((openreg_observed() & OPENREG_OBSERVE_USES) == 0)
        return 0;
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->races_flags() : 0;
}

/* Switches detection on or off (0), or changes its flags; `before` (may be NULL) gets the previous ones. Switching on or off
 * forgets recorded uses; reports stay. The environment variable OPENREG_RACES ("report", "raise", either with
 * ",uninitialized" and ",stacks") does this when the device table is published; OPENREG_SIM_RACES is another name of it.
 * Errors: OPENREG_E_INVALID (unknown flags), OPENREG_E_NOMEM, those of openreg_lab_get(). */
static inline openreg_status
openreg_races_set(uint32_t flags, uint32_t *before)
{
    const openreg_lab *const lab = openreg_lab_get();
    return lab != NULL ? lab->races_set(flags, before) : OPENREG_E_INCOMPATIBLE;
}

/* ------------------------------------------------------------------------------------------------------------ reports */

#define OPENREG_RACE_READ_WRITE 1    /* a read, then a write, or the other way around */
#define OPENREG_RACE_WRITE_WRITE 2   /* two writes */
#define OPENREG_RACE_REUSE 3         /* memory was freed and given out again while another stream used it */
#define OPENREG_RACE_HOST 4          /* the host uses pinned memory that a stream still copies from or to */
#define OPENREG_RACE_UNINITIALIZED 5 /* a read of memory that nothing has written */
#define OPENREG_RACE_LOST_DEVICE 6   /* a stream or an event of a device that was lost; the call fails by itself */

/* One of the two uses. Strings are valid until the visitor returns. */
typedef struct openreg_race_use {
    const char *what;      /* "aten::add_", "copy"; "" if not known */
    const char *place;     /* where in the program, as the language says it; "" if not known */
    const char *stack;     /* all of it, a line each between newlines, innermost first; "" without _STACKS */
    int32_t device;        /* OPENREG_HOST: a use by the host */
    int32_t writes;        /* 1 or 0 */
    openreg_stream stream; /* of `device` */
} openreg_race_use;

typedef struct openreg_race {
    uint32_t struct_size;
    int32_t kind; /* OPENREG_RACE_* */
    openreg_race_use first, second;
    uint64_t address, size; /* the first bytes in question; 0: there are none */
    uint64_t block, offset; /* start of the allocation and the bytes' place in it; 0: not known */
    const char *remedy;     /* what would order them */
    const char *text;       /* the whole report, stacks last */
    /* _REUSE: where the first use's block was freed, as text (openreg_places in embedding.h); "" if not known. */
    const char *freed;
} openreg_race;

#define OPENREG_RACE_SIZE_1 136u /* without `freed` */
#define OPENREG_RACE_SIZE_2 144u
static_assert(sizeof(openreg_race) == OPENREG_RACE_SIZE_2, "append a field, then freeze its size");

/* The reports so far, oldest first: one for each pair of places. At most OPENREG_RACES_MAX are kept. Calls `visit` with
 * no lock held; a non-zero return ends the walk. `from`: the number of the first report to visit. Errors:
 * OPENREG_E_INVALID, OPENREG_E_NOMEM. */
#define OPENREG_RACES_MAX 1000
static inline openreg_status
openreg_races_visit(uint64_t from, int (*visit)(void *ctx, const openreg_race *race), void *ctx)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->races_visit(from, visit, ctx) : OPENREG_OK;
}
static inline uint64_t
openreg_races_count(void)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->races_count() : 0;
}

/* Forgets the reports, so that their pairs are reported again. */
static inline void
openreg_races_clear(void)
{
    const openreg_lab *const lab = openreg_lab_peek();
    if (lab != NULL)
        lab->races_clear();
}

/* Uses between openreg_races_allow(1) and openreg_races_allow(-1) are not reported, in the whole process. Nests. */
static inline void
openreg_races_allow(int change)
{
    const openreg_lab *const lab = openreg_lab_get();
    if (lab != NULL)
        lab->races_allow(change);
}

/* ----------------------------------------------------------------------------- for libraries that report uses */

/* While the sum of this thread's `change` is positive, its calls of the runtime are part of a use that was already
 * reported: they record no use and no order. Nests. */
static inline void
openreg_races_mute(int change)
{
    const openreg_lab *const lab = openreg_lab_peek();
    if (lab != NULL)
        lab->races_mute(change);
}
static inline int
openreg_races_is_muted(void)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->races_is_muted() : 0;
}

/* The origin of a use: the operator and this thread's place in the program (openreg_places in embedding.h), as a number for
 * the calls below. */
static inline uint32_t
openreg_races_origin(const char *what)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->races_origin(what) : 0;
}

/* A stream that doesn't exist on the device, for collectives, which have one of their own on each device. */
#define OPENREG_RACES_COLLECTIVES ((openreg_stream) - 1)

/* Work on `stream` of `device` uses `size` bytes. Errors: OPENREG_E_INVALID (a race, with OPENREG_RACES_RAISE). */
static inline openreg_status
openreg_races_use(uint32_t origin, int32_t device, openreg_stream stream, const void *address, uint64_t size,
                  int32_t writes)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->races_use(origin, device, stream, address, size, writes) : OPENREG_OK;
}

/* The same for a tensor, strides in elements. If its memory is in more than OPENREG_RACES_ROWS pieces only some of them are
 * recorded: races may be missed, but no report is wrong. */
#define OPENREG_RACES_ROWS 64
static inline openreg_status
openreg_races_use_tensor(uint32_t origin, int32_t device, openreg_stream stream, const void *address,
                         int32_t dimensions, const int64_t *sizes, const int64_t *strides, uint64_t item,
                         int32_t writes)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL
               ? lab->races_use_tensor(origin, device, stream, address, dimensions, sizes, strides, item, writes)
               : OPENREG_OK;
}

/* The host uses memory now. The use isn't recorded, as it is in the past of all work that the host queues later. It can't be
 * prevented: with OPENREG_RACES_RAISE a report is logged, besides the error. Errors: OPENREG_E_INVALID (a race). */
static inline openreg_status
openreg_races_host_use(uint32_t origin, const void *address, uint64_t size, int32_t writes)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->races_host_use(origin, address, size, writes) : OPENREG_OK;
}

/* 1 if a stream's use of memory in this range is recorded. Fast for addresses without one. */
static inline int
openreg_races_knows(const void *address, uint64_t size)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->races_knows(address, size) : 0;
}

/* The host knows that all work that is now on the stream is complete. */
static inline void
openreg_races_host_waits(int32_t device, openreg_stream stream)
{
    const openreg_lab *const lab = openreg_lab_peek();
    if (lab != NULL)
        lab->races_host_waits(device, stream);
}
/* Later work of `later` is ordered behind all work that is now on `first`. */
static inline void
openreg_races_stream_waits(int32_t later_device, openreg_stream later, int32_t first_device, openreg_stream first)
{
    const openreg_lab *const lab = openreg_lab_peek();
    if (lab != NULL)
        lab->races_stream_waits(later_device, later, first_device, first);
}
/* Forgets uses of the memory: it has a new owner, and its allocator guarantees that nothing else uses it. */
static inline void
openreg_races_forget(const void *address, uint64_t size)
{
    const openreg_lab *const lab = openreg_lab_peek();
    if (lab != NULL)
        lab->races_forget(address, size);
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_RACES_H */
