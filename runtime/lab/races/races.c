/* SPDX-License-Identifier: BSD-3-Clause */
/* races.c: the race detector: its inputs, under one lock (openreg/races.h, races.h). */
#include "races/races.h"

#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/log.h"
#include "races/marks.h"
#include "races/recorded_blocks.h"
#include "races/reports.h"
#include "races/shadow.h"
#include "races/vector_clock.h"
#include "watch/observers.h"

#define KNOWN_FLAGS (OPENREG_RACES_REPORT | OPENREG_RACES_RAISE | OPENREG_RACES_UNINITIALIZED | OPENREG_RACES_STACKS)
#define BLOCK_UNIT 512u
#define PLACE 96 /* bytes of the text of a place */

/* Guards the flags, clocks, cells and reports. A leaf. */
static openreg_lock lock = OPENREG_LOCK_INITIALIZER;
static uint32_t wanted;            /* flags by openreg_lab_races_set() */
static uint32_t by_variable;       /* flags by OPENREG_RACES */
static _Atomic uint32_t published; /* both */
static atomic_int allowed;
static _Thread_local int muted;

uint32_t
openreg_lab_races_flags(void)
{
    return atomic_load_explicit(&published, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------------------------ on and off */

/* If an order can't be recorded, all uses that it may concern are forgotten, so that no report is wrong. The lock is held. */
static void
forget_all(void)
{
    openreg_shadow_reset();
    openreg_clock_reset();
    openreg_recorded_blocks_reset();
    openreg_marks_reset();
}

/* The line of a stream. If there are too many, all of them are reset. The lock is held. */
static uint32_t
line_of(int32_t device, openreg_stream stream)
{
    const uint32_t line = openreg_clock_line(device, stream);
    if (line < OPENREG_RACES_LINES)
        return line;
    forget_all();
    return openreg_clock_line(device, stream);
}

/* The lock is held. */
static void
publish_flags(void)
{
    const uint32_t now = wanted | by_variable;
    if ((now == 0) != (openreg_lab_races_flags() == 0))
        forget_all();
    atomic_store_explicit(&published, now, memory_order_relaxed);
    openreg_races_observe(now != 0);
}

openreg_status
openreg_lab_races_set(uint32_t flags, uint32_t *before)
{
    static const char call[] = "openreg_races_set";
    if ((flags & ~KNOWN_FLAGS) != 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "unknown flags 0x%x", flags & ~KNOWN_FLAGS);
    openreg_lock_acquire(&lock);
    if (before != NULL)
        *before = wanted;
    wanted = flags;
    publish_flags();
    openreg_lock_release(&lock);
    return OPENREG_OK;
}

static const struct {
    const char *word;
    uint32_t flags;
} words[] = {
    {"report", OPENREG_RACES_REPORT},
    {"raise", OPENREG_RACES_REPORT | OPENREG_RACES_RAISE},
    {"uninitialized", OPENREG_RACES_REPORT | OPENREG_RACES_UNINITIALIZED},
    {"stacks", OPENREG_RACES_REPORT | OPENREG_RACES_STACKS},
};
#define WORDS (sizeof words / sizeof words[0])

/* Flags of words separated by commas; NULL, "" and "0" are none. False: a word is unknown. */
static bool
read_words(const char *text, uint32_t *flags)
{
    *flags = 0;
    if (text == NULL || *text == '\0' || strcmp(text, "0") == 0)
        return true;
    for (;;) {
        const size_t length = strcspn(text, ",");
        size_t i = 0;
        while (i < WORDS && (strlen(words[i].word) != length || strncmp(words[i].word, text, length) != 0))
            ++i;
        if (i == WORDS)
            return false;
        *flags |= words[i].flags;
        if (text[length] == '\0')
            return true;
        text += length + 1;
    }
}

void
openreg_races_see_table(void *ctx, int32_t is_published)
{
    (void)ctx;
    uint32_t flags = 0;
    const char *name = "OPENREG_RACES";
    const char *text = is_published ? openreg_variable(name) : NULL;
    if (is_published && (text == NULL || *text == '\0')) {
        name = "OPENREG_SIM_RACES";
        text = openreg_variable(name);
    }
    if (!read_words(text, &flags)) {
        openreg_log(
            OPENREG_LOG_WARNING,
            "invalid value %s in env var %s: expected report or raise, or either with ,uninitialized or ,stacks; "
            "races are not looked for",
            text, name);
        flags = 0;
    }
    openreg_lock_acquire(&lock);
    by_variable = flags;
    publish_flags();
    forget_all(); /* no block, stream or event of another table is left */
    openreg_lock_release(&lock);
}

void
openreg_lab_races_allow(int change)
{
    (void)atomic_fetch_add_explicit(&allowed, change, memory_order_relaxed);
}

void
openreg_lab_races_mute(int change)
{
    muted += change;
}

int
openreg_lab_races_is_muted(void)
{
    return muted > 0;
}

/* --------------------------------------------------------------------------------------------------------- origins */

uint32_t
openreg_lab_races_origin(const char *what)
{
    int32_t is_allowed = 0;
    const uint32_t place = openreg_observers_here((openreg_lab_races_flags() & OPENREG_RACES_STACKS) != 0);
    (void)openreg_observers_here_text(place, &is_allowed);
    if (atomic_load_explicit(&allowed, memory_order_relaxed) > 0)
        is_allowed = 1;
    openreg_lock_acquire(&lock);
    const uint32_t origin = openreg_race_origin(what == NULL ? "" : what, place, is_allowed != 0);
    openreg_lock_release(&lock);
    return origin;
}

/* What is known of an origin. The lock is held. */
static void
fill_in(openreg_race_use *use, uint32_t origin)
{
    const uint32_t place = openreg_race_origin_place(origin);
    int32_t is_allowed;
    const char *const text = openreg_observers_here_text(place, &is_allowed);
    const char *const stack = openreg_observers_here_stack(place);
    use->what = openreg_race_origin_what(origin);
    use->place = text == NULL ? "" : text;
    use->stack = stack == NULL ? "" : stack;
}

/* The lock is held. */
static openreg_race_use
use_of(const openreg_epoch *epoch, int writes)
{
    openreg_race_use use = {.writes = writes};
    openreg_clock_stream_of(epoch->line, &use.device, &use.stream);
    fill_in(&use, epoch->origin);
    return use;
}

/* ------------------------------------------------------------------------------------------------------------- uses */

/* A stack is logged in parts of whole lines, as long log lines are cut. */
static void
log_stack(const char *which, const char *stack)
{
    enum { PART = 1800 };
    const char *more = "";
    for (size_t length; *stack != '\0'; stack += length, more = "more of the ") {
        length = strlen(stack);
        if (length > PART) {
            length = PART;
            while (length > 1 && stack[length - 1] != '\n')
                length--;
        }
        openreg_log(OPENREG_LOG_WARNING, "race: %sstack of the %s use:\n%.*s", more, which,
                    (int)(stack[length - 1] == '\n' ? length - 1 : length), stack);
    }
}

static void
log_report(const char *line, const openreg_race *race)
{
    openreg_log(OPENREG_LOG_WARNING, "%s", line);
    log_stack("first", race->first.stack);
    log_stack("second", race->second.stack);
}

/* A conflict that was found, for use without the lock. */
static openreg_status
tell(const openreg_conflict *conflict, const openreg_shadow_use *use)
{
    if (conflict->kind == 0 || openreg_race_origin_is_allowed(conflict->other.origin) ||
        openreg_race_origin_is_allowed(use->epoch.origin))
        return OPENREG_OK;
    openreg_race race = {.kind = conflict->kind, .address = conflict->address, .size = conflict->size};
    openreg_pointer_info info = {.struct_size = sizeof info};
    if (openreg_pointer_get_info((const void *)(uintptr_t)conflict->address, &info) == OPENREG_OK &&
        info.kind != OPENREG_POINTER_UNKNOWN && info.live) {
        race.block = (uint64_t)(uintptr_t)info.base;
        race.offset = conflict->address - race.block;
    }
    openreg_status status = OPENREG_OK;
    openreg_lock_acquire(&lock);
    race.freed = openreg_race_origin_what(conflict->freed);
    race.first = use_of(&conflict->other, conflict->other_writes);
    race.second = use_of(&use->epoch, use->writes);
    if (race.second.device == OPENREG_HOST && race.kind != OPENREG_RACE_REUSE)
        race.kind = OPENREG_RACE_HOST;
    const bool raises = (openreg_lab_races_flags() & OPENREG_RACES_RAISE) != 0;
    const uint64_t before = openreg_race_reports();
    const char *const text = openreg_race_report(&race, conflict->other.origin, use->epoch.origin, raises);
    char line[OPENREG_RACE_TEXT] = "";
    if (text != NULL)
        (void)strncat(line, text, sizeof line - 1);
    /* The host's use can't be prevented, so the error comes later, or never if the program ends now. */
    const bool is_logged = !raises || (race.second.device == OPENREG_HOST && openreg_race_reports() > before);
    openreg_lock_release(&lock);
    if (line[0] != '\0' && is_logged)
        log_report(line, &race);
    if (raises)
        status = openreg_error_set(OPENREG_E_INVALID, NULL, "%s", line);
    return status;
}

static openreg_status
note_use(uint32_t origin, bool by_host, int32_t device, openreg_stream stream, const void *address, uint64_t size,
         int32_t writes)
{
    openreg_conflict conflict = {0};
    if (!openreg_races_are_found() || size == 0 || address == NULL)
        return OPENREG_OK;
    openreg_lock_acquire(&lock);
    const uint32_t line = by_host ? OPENREG_RACES_HOST_LINE : line_of(device, stream);
    openreg_shadow_use use = {
        .address = (uint64_t)(uintptr_t)address,
        .size = size,
        .epoch = {.line = line, .origin = origin},
        .writes = writes != 0,
        .checks_only = by_host,
        .wants_uninitialized = (openreg_lab_races_flags() & OPENREG_RACES_UNINITIALIZED) != 0,
    };
    use.clock = by_host ? openreg_clock_host() : openreg_clock_queue(line, &use.epoch.time);
    if (use.clock != NULL)
        openreg_shadow_note(&use, &conflict);
    openreg_lock_release(&lock);
    return __builtin_expect(conflict.kind == 0, 1) ? OPENREG_OK : tell(&conflict, &use);
}

openreg_status
openreg_lab_races_use(uint32_t origin, int32_t device, openreg_stream stream, const void *address, uint64_t size,
                      int32_t writes)
{
    return note_use(origin, false, device, stream, address, size, writes);
}

openreg_status
openreg_lab_races_host_use(uint32_t origin, const void *address, uint64_t size, int32_t writes)
{
    return note_use(origin, true, OPENREG_HOST, OPENREG_STREAM_DEFAULT, address, size, writes);
}

int
openreg_lab_races_knows(const void *address, uint64_t size)
{
    if (!openreg_races_are_found() || size == 0)
        return 0;
    openreg_lock_acquire(&lock);
    const bool known = openreg_shadow_knows((uint64_t)(uintptr_t)address, size);
    openreg_lock_release(&lock);
    return known;
}

void
openreg_races_see_lost(void *ctx, const char *call, int32_t device, openreg_stream stream, const char *first_call,
                       const char *first_place)
{
    (void)ctx;
    const uint32_t origin = openreg_lab_races_origin(call);
    openreg_race race = {.kind = OPENREG_RACE_LOST_DEVICE, .freed = ""};
    race.first = (openreg_race_use){.what = first_call, .place = first_place, .stack = "", .device = device};
    race.second = (openreg_race_use){.device = device, .stream = stream};
    char line[OPENREG_RACE_TEXT] = "";
    openreg_lock_acquire(&lock);
    if (!openreg_race_origin_is_allowed(origin)) {
        fill_in(&race.second, origin);
        const char *const text = openreg_race_report(&race, 0, origin, false);
        (void)strncat(line, text == NULL ? "" : text, sizeof line - 1);
    }
    openreg_lock_release(&lock);
    if (line[0] != '\0')
        log_report(line, &race);
}

/* ------------------------------------------------------------------------------------------------------------ tensors */

/* A tensor's dimensions, without those of size 1, contiguous ones merged, strides in bytes. */
typedef struct rows {
    int count;
    uint64_t size[64], stride[64];
    uint64_t piece;  /* bytes of one row */
    uint64_t extent; /* from the first byte to behind the last */
} rows;

/* From strides in elements of `item` bytes. False if the tensor is empty, or too complex. */
static bool
read_rows(rows *out, int32_t dimensions, const int64_t *sizes, const int64_t *strides, uint64_t item)
{
    out->count = 0;
    out->piece = out->extent = item;
    if (dimensions > 64)
        return false;
    for (int32_t i = 0; i < dimensions; ++i) {
        if (sizes[i] <= 0 || strides[i] < 0)
            return false;
        if (sizes[i] == 1 || strides[i] == 0)
            continue;
        const uint64_t stride = (uint64_t)strides[i] * item;
        int at = out->count++;
        for (; at > 0 && out->stride[at - 1] < stride; --at) { /* greatest stride first */
            out->size[at] = out->size[at - 1];
            out->stride[at] = out->stride[at - 1];
        }
        out->size[at] = (uint64_t)sizes[i];
        out->stride[at] = stride;
        out->extent += ((uint64_t)sizes[i] - 1) * stride;
    }
    while (out->count > 0 && out->stride[out->count - 1] <= out->piece) {
        out->count--;
        out->piece += (out->size[out->count] - 1) * out->stride[out->count];
    }
    return true;
}

static uint64_t
total_of(const rows *of)
{
    uint64_t total = 1;
    for (int i = 0; i < of->count; ++i)
        total *= of->size[i];
    return total;
}

/* Where one of the rows begins, in bytes from the first byte. */
static uint64_t
offset_of(const rows *of, uint64_t number)
{
    uint64_t offset = 0;
    for (int i = of->count; i-- > 0; number /= of->size[i])
        offset += number % of->size[i] * of->stride[i];
    return offset;
}

openreg_status
openreg_lab_races_use_tensor(uint32_t origin, int32_t device, openreg_stream stream, const void *address,
                             int32_t dimensions, const int64_t *sizes, const int64_t *strides, uint64_t item,
                             int32_t writes)
{
    rows its;
    if (!openreg_races_are_found() || address == NULL || !read_rows(&its, dimensions, sizes, strides, item))
        return OPENREG_OK;
    if (its.count == 0)
        return openreg_lab_races_use(origin, device, stream, address, its.piece, writes);
    const uint64_t total = total_of(&its);
    const uint64_t told = total < OPENREG_RACES_ROWS ? total : OPENREG_RACES_ROWS;
    for (uint64_t row = 0; row < told; ++row) {
        /* From the first to the last, evenly. */
        const uint64_t number = told == total ? row : row * (total - 1) / (told - 1);
        const char *const at = (const char *)address + offset_of(&its, number);
        OPENREG_RETURN_NOT_OK(openreg_lab_races_use(origin, device, stream, at, its.piece, writes));
    }
    if (writes && told < total) { /* the gaps may be written: they count as unknown */
        openreg_lock_acquire(&lock);
        openreg_shadow_excuse((uint64_t)(uintptr_t)address, its.extent);
        openreg_lock_release(&lock);
    }
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------------------------- order */

/* The lock is held in these. */
static void
host_learns(const openreg_clock *clock)
{
    if (clock == NULL || !openreg_clock_host_joins(clock))
        forget_all();
}

static void
stream_learns(uint32_t line, const openreg_clock *clock)
{
    uint64_t now;
    openreg_clock *const own = clock == NULL ? NULL : openreg_clock_queue(line, &now);
    if (own == NULL || !openreg_clock_join(own, clock))
        forget_all();
}

static void
note_order(const openreg_order *order)
{
    const int32_t device = order->device;
    const openreg_clock *clock;
    openreg_stream stream;
    int32_t of;
    uint32_t line;
    switch (order->what) {
    case OPENREG_ORDER_HOST_STREAM:
        host_learns(openreg_clock_release(line_of(device, order->stream)));
        break;
    case OPENREG_ORDER_HOST_DEVICE:
        for (line = 1; line < openreg_clock_lines(); ++line) {
            openreg_clock_stream_of(line, &of, &stream);
            if (of == device)
                host_learns(openreg_clock_release(line));
        }
        break;
    case OPENREG_ORDER_STREAMS:
        if (order->stream == order->first_stream && device == order->first_device)
            break;
        (void)line_of(order->first_device, order->first_stream);
        line = line_of(device, order->stream); /* lines may have been reset: the other one is looked up once more */
        stream_learns(line, openreg_clock_release(line_of(order->first_device, order->first_stream)));
        break;
    case OPENREG_ORDER_MARK:
        clock = openreg_clock_release(line_of(device, order->stream));
        if (clock == NULL || !openreg_marks_add(order->mark, clock))
            forget_all();
        break;
    case OPENREG_ORDER_HOST_MARK:
        clock = openreg_marks_find(order->mark);
        if (clock != NULL)
            host_learns(clock);
        break;
    case OPENREG_ORDER_STREAM_MARK:
        line = line_of(device, order->stream);
        clock = openreg_marks_find(order->mark);
        if (clock != NULL)
            stream_learns(line, clock);
        break;
    default:
        break;
    }
}

void
openreg_races_see_order(void *ctx, const openreg_order *order)
{
    (void)ctx;
    openreg_lock_acquire(&lock);
    if (order->what == OPENREG_ORDER_MARK || order->what == OPENREG_ORDER_MARK_GONE)
        openreg_marks_remove(order->mark);
    if (muted == 0)
        note_order(order);
    openreg_lock_release(&lock);
}

void
openreg_lab_races_host_waits(int32_t device, openreg_stream stream)
{
    const openreg_order order = {.what = OPENREG_ORDER_HOST_STREAM, .device = device, .stream = stream};
    if (openreg_races_are_found())
        openreg_races_see_order(NULL, &order);
}

void
openreg_lab_races_stream_waits(int32_t later_device, openreg_stream later, int32_t first_device, openreg_stream first)
{
    const openreg_order order = {.what = OPENREG_ORDER_STREAMS,
                                 .device = later_device,
                                 .stream = later,
                                 .first_device = first_device,
                                 .first_stream = first};
    if (openreg_races_are_found())
        openreg_races_see_order(NULL, &order);
}

/* ----------------------------------------------------------------------------------------------------------- memory */

void
openreg_lab_races_forget(const void *address, uint64_t size)
{
    if (!openreg_races_are_found() || size == 0)
        return;
    openreg_lock_acquire(&lock);
    openreg_shadow_forget((uint64_t)(uintptr_t)address, size);
    openreg_lock_release(&lock);
}

static uint64_t
whole_blocks(uint64_t size)
{
    return (size + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT;
}

static void
pass_to_allocator(uint64_t start, uint64_t size, uint32_t line)
{
    const openreg_clock *const clock = openreg_clock_release(line);
    if (clock != NULL)
        openreg_shadow_pass(start, size, clock);
    else
        openreg_shadow_forget(start, size);
}

/* The lock is held. Most blocks are freed on the line of the one before. */
static uint32_t
origin_of_free(const char place[PLACE])
{
    static char before[PLACE];
    static uint32_t origin;
    if (strcmp(before, place) != 0) {
        memcpy(before, place, strlen(place) + 1);
        origin = place[0] == '\0' ? 0 : openreg_race_origin(place, 0, false);
    }
    return origin;
}

void
openreg_races_see_block(void *ctx, int32_t what, const void *address, uint64_t size, int32_t device,
                        openreg_stream stream)
{
    const uint64_t start = (uint64_t)(uintptr_t)address;
    char place[PLACE];
    (void)ctx;
    /* Not here(), which may take the GIL: a deleter must not wait for it. */
    if (what == OPENREG_BLOCK_FREE)
        openreg_observers_place(place, sizeof place);
    openreg_lock_acquire(&lock);
    switch (what) {
    case OPENREG_BLOCK_ALLOCATED:
        openreg_shadow_give(start, whole_blocks(size));
        break;
    case OPENREG_BLOCK_RECORDED:
        if (!openreg_recorded_blocks_add(start, whole_blocks(size), line_of(device, stream)))
            forget_all();
        break;
    case OPENREG_BLOCK_FREE:
        openreg_shadow_free(start, whole_blocks(size), origin_of_free(place));
        openreg_recorded_blocks_take(start, pass_to_allocator);
        break;
    default:
        openreg_shadow_forget(start, size);
        break;
    }
    openreg_lock_release(&lock);
}

/* ----------------------------------------------------------------------------------------------------------- reports */

uint64_t
openreg_lab_races_count(void)
{
    openreg_lock_acquire(&lock);
    const uint64_t count = openreg_race_reports();
    openreg_lock_release(&lock);
    return count;
}

openreg_status
openreg_lab_races_visit(uint64_t from, int (*visit)(void *ctx, const openreg_race *race), void *ctx)
{
    static const char call[] = "openreg_races_visit";
    if (visit == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "visit is NULL");
    for (uint64_t number = from;; ++number) {
        openreg_race copy;
        openreg_lock_acquire(&lock);
        const bool is_there = openreg_race_report_at(number, &copy);
        openreg_lock_release(&lock);
        if (!is_there)
            return OPENREG_OK;
        const bool is_whole = copy.text != NULL && copy.remedy != NULL;
        const bool is_last = !is_whole || visit(ctx, &copy) != 0;
        openreg_race_free(&copy);
        if (!is_whole)
            return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a report");
        if (is_last)
            return OPENREG_OK;
    }
}

void
openreg_lab_races_clear(void)
{
    openreg_lock_acquire(&lock);
    openreg_race_reports_clear();
    openreg_lock_release(&lock);
}

/* -------------------------------------------------------------------------------------------------------------- fork */

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_RACES, &lock);
}
