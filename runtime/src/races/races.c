/* SPDX-License-Identifier: BSD-3-Clause */
/* races.c: the race detector: what is told to it, under one lock (openreg/races.h, races.h). */
#define _GNU_SOURCE
#include "races/races.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/sized_struct.h"
#include "base/tree.h"
#include "races/reports.h"
#include "races/shadow.h"
#include "races/vector_clock.h"

uint32_t openreg_races_published_flags;
bool (*openreg_races_find_block)(uint64_t address, uint64_t *start, uint64_t *size);

#define KNOWN_FLAGS (OPENREG_RACES_REPORT | OPENREG_RACES_RAISE | OPENREG_RACES_UNINITIALIZED)
#define BLOCK_UNIT 512u

/* Guards the flags, clocks, cells and reports. A leaf. */
static openreg_lock lock = OPENREG_LOCK_INITIALIZER;
static uint64_t session = 1; /* clocks of another one mean nothing */
static uint32_t wanted;      /* flags by openreg_races_set() */
static uint32_t by_variable; /* flags by OPENREG_SIM_RACES */
static atomic_int allowed;
static _Thread_local int muted;

static openreg_race_places places;

struct openreg_race_event {
    uint64_t session;
    openreg_clock clock;
};

/* Blocks that streams were recorded for. */
typedef struct recorded_block {
    openreg_tree_node node; /* by start */
    uint64_t size;
    uint32_t count;
    uint32_t lines[]; /* their streams' */
} recorded_block;
static openreg_tree recorded;

/* ------------------------------------------------------------------------------------------------------ on and off */

static void
forget_recorded(recorded_block *block)
{
    openreg_tree_remove(&recorded, &block->node);
    free(block);
}

static recorded_block *
recorded_of(openreg_tree_node *node)
{
    return OPENREG_TREE_OWNER(node, recorded_block, node);
}

/* The lock is held. */
static void
publish_flags(void)
{
    const uint32_t now = wanted | by_variable;
    if ((now == 0) != (openreg_races_flags() == 0)) {
        openreg_shadow_reset();
        openreg_clock_reset();
        while (recorded.root != NULL)
            forget_recorded(recorded_of(recorded.root));
        session++;
    }
    __atomic_store_n(&openreg_races_published_flags, now, __ATOMIC_RELAXED);
}

openreg_status
openreg_races_set(uint32_t flags, uint32_t *before)
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

/* "report", "raise" and "uninitialized", separated by commas; "" and "0" are nothing. */
static bool
read_flags(const char *text, uint32_t *flags)
{
    static const struct {
        const char *word;
        uint32_t flags;
    } words[] = {{"report", OPENREG_RACES_REPORT},
                 {"raise", OPENREG_RACES_REPORT | OPENREG_RACES_RAISE},
                 {"uninitialized", OPENREG_RACES_REPORT | OPENREG_RACES_UNINITIALIZED}};
    *flags = 0;
    if (text == NULL || *text == '\0' || strcmp(text, "0") == 0)
        return true;
    for (;;) {
        const size_t length = strcspn(text, ",");
        size_t i = 0;
        while (i < 3 && (strlen(words[i].word) != length || strncmp(words[i].word, text, length) != 0))
            ++i;
        if (i == 3)
            return false;
        *flags |= words[i].flags;
        if (text[length] == '\0')
            return true;
        text += length + 1;
    }
}

void
openreg_races_follow_variable(bool is_published)
{
    uint32_t flags = 0;
    const char *const text = is_published ? openreg_variable("OPENREG_SIM_RACES") : NULL;
    if (!read_flags(text, &flags)) {
        openreg_log(OPENREG_LOG_WARNING,
                    "invalid value %s in env var OPENREG_SIM_RACES: expected report or raise, or either with "
                    ",uninitialized; races are not looked for",
                    text);
        flags = 0;
    }
    openreg_lock_acquire(&lock);
    by_variable = flags;
    publish_flags();
    openreg_lock_release(&lock);
}

void
openreg_races_allow(int change)
{
    (void)atomic_fetch_add_explicit(&allowed, change, memory_order_relaxed);
}

void
openreg_races_mute(int change)
{
    muted += change;
}

int
openreg_races_is_muted(void)
{
    return muted > 0;
}

openreg_status
openreg_races_set_places(const openreg_race_places *given)
{
    static const char call[] = "openreg_races_set_places";
    openreg_race_places own = {0};
    if (given != NULL) {
        if (!openreg_sized_is_valid(given, OPENREG_RACE_PLACES_SIZE_1))
            return openreg_error_set(OPENREG_E_INVALID, call, "struct_size must be set");
        openreg_sized_read(&own, sizeof own, given);
        if (own.here == NULL || own.text == NULL)
            return openreg_error_set(OPENREG_E_INVALID, call, "here or text is NULL");
    }
    openreg_lock_acquire(&lock);
    places = own;
    openreg_lock_release(&lock);
    return OPENREG_OK;
}

/* --------------------------------------------------------------------------------------------------------- origins */

uint32_t
openreg_races_origin(const char *what)
{
    openreg_lock_acquire(&lock);
    const openreg_race_places known = places;
    openreg_lock_release(&lock);
    uint32_t place = 0;
    int32_t is_allowed = 0;
    if (known.here != NULL) {
        place = known.here(known.ctx);
        (void)known.text(known.ctx, place, &is_allowed);
    }
    if (atomic_load_explicit(&allowed, memory_order_relaxed) > 0)
        is_allowed = 1;
    openreg_lock_acquire(&lock);
    const uint32_t origin = openreg_race_origin(what == NULL ? "" : what, place, is_allowed != 0);
    openreg_lock_release(&lock);
    return origin;
}

/* The lock is held. */
static openreg_race_use
use_of(const openreg_epoch *epoch, int writes)
{
    openreg_race_use use = {.writes = writes, .place = ""};
    use.what = openreg_race_origin_what(epoch->origin);
    openreg_clock_stream_of(epoch->line, &use.device, &use.stream);
    if (places.text != NULL) {
        int32_t is_allowed;
        const char *const text = places.text(places.ctx, openreg_race_origin_place(epoch->origin), &is_allowed);
        use.place = text == NULL ? "" : text;
    }
    return use;
}

/* ------------------------------------------------------------------------------------------------------------- uses */

/* What was found of a use, looked at without the lock. */
static openreg_status
tell(const openreg_conflict *conflict, const openreg_shadow_use *use)
{
    if (conflict->kind == 0 || openreg_race_origin_is_allowed(conflict->other.origin) ||
        openreg_race_origin_is_allowed(use->epoch.origin))
        return OPENREG_OK;
    openreg_race race = {.kind = conflict->kind, .address = conflict->address, .size = conflict->size};
    uint64_t start, size;
    if (openreg_races_find_block != NULL && openreg_races_find_block(conflict->address, &start, &size)) {
        race.block = start;
        race.offset = conflict->address - start;
    }
    openreg_status status = OPENREG_OK;
    openreg_lock_acquire(&lock);
    race.first = use_of(&conflict->other, conflict->other_writes);
    race.second = use_of(&use->epoch, use->writes);
    if (race.second.device == OPENREG_HOST && race.kind != OPENREG_RACE_REUSE)
        race.kind = OPENREG_RACE_HOST;
    const bool raises = (openreg_races_flags() & OPENREG_RACES_RAISE) != 0;
    const char *const text = openreg_race_report(&race, conflict->other.origin, use->epoch.origin, raises);
    char line[OPENREG_RACE_TEXT] = "";
    if (text != NULL)
        (void)strncat(line, text, sizeof line - 1);
    openreg_lock_release(&lock);
    if (raises)
        status = openreg_error_set(OPENREG_E_INVALID, NULL, "%s", line);
    else if (line[0] != '\0')
        openreg_log(OPENREG_LOG_WARNING, "%s", line);
    return status;
}

/* Sets the conflict and what was asked. The lock is held. */
static bool
prepare(openreg_shadow_use *use, uint32_t origin, uint32_t line, const void *address, uint64_t size, int32_t writes)
{
    uint64_t now = 0;
    *use = (openreg_shadow_use){
        .address = (uint64_t)(uintptr_t)address,
        .size = size,
        .writes = writes != 0,
        .wants_uninitialized = (openreg_races_flags() & OPENREG_RACES_UNINITIALIZED) != 0,
        .epoch = {.line = line, .origin = origin},
    };
    use->clock = line == OPENREG_RACES_HOST_LINE ? openreg_clock_host() : openreg_clock_queue(line, &now);
    use->epoch.time = now;
    use->checks_only = line == OPENREG_RACES_HOST_LINE;
    return use->clock != NULL;
}

openreg_status
openreg_races_use(uint32_t origin, int32_t device, openreg_stream stream, const void *address, uint64_t size,
                  int32_t writes)
{
    openreg_shadow_use use = {0};
    openreg_conflict conflict = {0};
    if (!openreg_races_are_found() || size == 0 || address == NULL)
        return OPENREG_OK;
    openreg_lock_acquire(&lock);
    const uint32_t line = openreg_clock_line(device, stream);
    if (line < OPENREG_RACES_LINES && prepare(&use, origin, line, address, size, writes))
        openreg_shadow_note(&use, &conflict);
    openreg_lock_release(&lock);
    return __builtin_expect(conflict.kind == 0, 1) ? OPENREG_OK : tell(&conflict, &use);
}

openreg_status
openreg_races_host_use(uint32_t origin, const void *address, uint64_t size, int32_t writes)
{
    openreg_shadow_use use = {0};
    openreg_conflict conflict = {0};
    if (!openreg_races_are_found() || size == 0 || address == NULL)
        return OPENREG_OK;
    openreg_lock_acquire(&lock);
    if (prepare(&use, origin, OPENREG_RACES_HOST_LINE, address, size, writes))
        openreg_shadow_note(&use, &conflict);
    openreg_lock_release(&lock);
    return conflict.kind == 0 ? OPENREG_OK : tell(&conflict, &use);
}

int
openreg_races_knows(const void *address, uint64_t size)
{
    if (!openreg_races_are_found() || size == 0)
        return 0;
    openreg_lock_acquire(&lock);
    const bool known = openreg_shadow_knows((uint64_t)(uintptr_t)address, size);
    openreg_lock_release(&lock);
    return known;
}

/* ------------------------------------------------------------------------------------------------------------ tensors */

/* A tensor's dimensions, those of one element left out, those that lie behind each other made one, strides in bytes. */
typedef struct rows {
    int count;
    uint64_t size[64], stride[64];
    uint64_t piece;  /* bytes of one row */
    uint64_t extent; /* from the first byte to behind the last */
} rows;

/* False where there is nothing, or more than can be said. */
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

openreg_status
openreg_races_use_tensor(uint32_t origin, int32_t device, openreg_stream stream, const void *address,
                         int32_t dimensions, const int64_t *sizes, const int64_t *strides, uint64_t item,
                         int32_t writes)
{
    rows its;
    if (!openreg_races_are_found() || address == NULL || !read_rows(&its, dimensions, sizes, strides, item))
        return OPENREG_OK;
    if (its.count == 0)
        return openreg_races_use(origin, device, stream, address, its.piece, writes);
    uint64_t total = 1;
    for (int i = 0; i < its.count; ++i)
        total *= its.size[i];
    const uint64_t told = total < OPENREG_RACES_ROWS ? total : OPENREG_RACES_ROWS;
    openreg_status status = OPENREG_OK;
    for (uint64_t row = 0; row < told; ++row) {
        /* From the first to the last, evenly. */
        uint64_t number = told == total ? row : row * (total - 1) / (told - 1), offset = 0;
        for (int i = its.count; i-- > 0; number /= its.size[i])
            offset += number % its.size[i] * its.stride[i];
        const openreg_status one = openreg_races_use(origin, device, stream, (const char *)address + offset, its.piece,
                                                     writes);
        if (one != OPENREG_OK)
            return one;
    }
    if (writes && told < total) { /* what lies between may be written: nothing is said of it */
        openreg_lock_acquire(&lock);
        openreg_shadow_excuse((uint64_t)(uintptr_t)address, its.extent);
        openreg_lock_release(&lock);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- order */

void
openreg_races_host_waits(int32_t device, openreg_stream stream)
{
    if (!openreg_races_are_found() || muted > 0)
        return;
    openreg_lock_acquire(&lock);
    const uint32_t line = openreg_clock_line(device, stream);
    const openreg_clock *const clock = line < OPENREG_RACES_LINES ? openreg_clock_release(line) : NULL;
    if (clock != NULL)
        openreg_clock_host_joins(clock);
    openreg_lock_release(&lock);
}

void
openreg_races_host_waits_device(int32_t device)
{
    if (muted > 0)
        return;
    openreg_lock_acquire(&lock);
    for (uint32_t line = 1; line < openreg_clock_lines(); ++line) {
        int32_t of;
        openreg_stream stream;
        openreg_clock_stream_of(line, &of, &stream);
        const openreg_clock *const clock = of == device ? openreg_clock_release(line) : NULL;
        if (clock != NULL)
            openreg_clock_host_joins(clock);
    }
    openreg_lock_release(&lock);
}

/* The lock is held. */
static void
stream_learns(int32_t device, openreg_stream stream, const openreg_clock *clock)
{
    uint64_t now;
    const uint32_t line = openreg_clock_line(device, stream);
    openreg_clock *const own = line < OPENREG_RACES_LINES ? openreg_clock_queue(line, &now) : NULL;
    if (own != NULL)
        (void)openreg_clock_join(own, clock);
}

void
openreg_races_stream_waits(int32_t later_device, openreg_stream later, int32_t first_device, openreg_stream first)
{
    if (!openreg_races_are_found() || muted > 0 || (later == first && later_device == first_device))
        return;
    openreg_lock_acquire(&lock);
    const uint32_t line = openreg_clock_line(first_device, first);
    const openreg_clock *const clock = line < OPENREG_RACES_LINES ? openreg_clock_release(line) : NULL;
    if (clock != NULL)
        stream_learns(later_device, later, clock);
    openreg_lock_release(&lock);
}

void
openreg_races_event_records(openreg_race_event **event, int32_t device, openreg_stream stream)
{
    if (*event == NULL)
        *event = calloc(1, sizeof **event);
    if (*event == NULL)
        return;
    openreg_lock_acquire(&lock);
    const uint32_t line = muted > 0 ? OPENREG_RACES_LINES : openreg_clock_line(device, stream);
    const openreg_clock *const clock = line < OPENREG_RACES_LINES ? openreg_clock_release(line) : NULL;
    (*event)->session = clock != NULL && openreg_clock_copy(&(*event)->clock, clock) ? session : 0;
    openreg_lock_release(&lock);
}

void
openreg_races_event_free(openreg_race_event *event)
{
    if (event == NULL)
        return;
    openreg_clock_free(&event->clock);
    free(event);
}

void
openreg_races_stream_waits_event(int32_t device, openreg_stream stream, const openreg_race_event *event)
{
    if (muted > 0 || event == NULL)
        return;
    openreg_lock_acquire(&lock);
    if (event->session == session)
        stream_learns(device, stream, &event->clock);
    openreg_lock_release(&lock);
}

void
openreg_races_host_waits_event(const openreg_race_event *event)
{
    if (muted > 0 || event == NULL)
        return;
    openreg_lock_acquire(&lock);
    if (event->session == session)
        openreg_clock_host_joins(&event->clock);
    openreg_lock_release(&lock);
}

/* ----------------------------------------------------------------------------------------------------------- memory */

void
openreg_races_forget(const void *address, uint64_t size)
{
    if (!openreg_races_are_found() || size == 0)
        return;
    openreg_lock_acquire(&lock);
    openreg_shadow_forget((uint64_t)(uintptr_t)address, size);
    openreg_lock_release(&lock);
}

void
openreg_races_block_given(const void *address, uint64_t size)
{
    openreg_lock_acquire(&lock);
    openreg_shadow_give((uint64_t)(uintptr_t)address, (size + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT);
    openreg_lock_release(&lock);
}

static recorded_block *
find_recorded(uint64_t start)
{
    openreg_tree_node *const node = openreg_tree_at_most(&recorded, start);
    return node != NULL && node->key == start ? recorded_of(node) : NULL;
}

void
openreg_races_block_recorded(const void *address, uint64_t size, int32_t device, openreg_stream stream)
{
    const uint64_t start = (uint64_t)(uintptr_t)address;
    openreg_lock_acquire(&lock);
    const uint32_t line = openreg_clock_line(device, stream);
    recorded_block *const before = find_recorded(start);
    const uint32_t count = before == NULL ? 0 : before->count;
    recorded_block *const block = malloc(sizeof *block + (count + 1) * sizeof block->lines[0]);
    if (block != NULL && line < OPENREG_RACES_LINES) {
        block->size = size;
        block->count = count + 1;
        block->lines[count] = line;
        if (before != NULL) {
            memcpy(block->lines, before->lines, count * sizeof block->lines[0]);
            forget_recorded(before);
        }
        block->node.key = start;
        openreg_tree_insert(&recorded, &block->node);
    } else {
        free(block);
    }
    openreg_lock_release(&lock);
}

void
openreg_races_block_freed(const void *address)
{
    openreg_lock_acquire(&lock);
    recorded_block *const block = find_recorded((uint64_t)(uintptr_t)address);
    if (block != NULL) {
        for (uint32_t i = 0; i < block->count; ++i) {
            const openreg_clock *const clock = openreg_clock_release(block->lines[i]);
            if (clock != NULL)
                openreg_shadow_pass(block->node.key, block->size, clock);
        }
        forget_recorded(block);
    }
    openreg_lock_release(&lock);
}

/* ----------------------------------------------------------------------------------------------------------- reports */

uint64_t
openreg_races_count(void)
{
    openreg_lock_acquire(&lock);
    const uint64_t count = openreg_race_reports();
    openreg_lock_release(&lock);
    return count;
}

openreg_status
openreg_races_visit(uint64_t from, int (*visit)(void *ctx, const openreg_race *race), void *ctx)
{
    static const char call[] = "openreg_races_visit";
    if (visit == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "visit is NULL");
    for (uint64_t number = from;; ++number) {
        openreg_race_copy copy;
        openreg_lock_acquire(&lock);
        const bool is_there = openreg_race_report_at(number, &copy);
        openreg_lock_release(&lock);
        if (!is_there || visit(ctx, &copy.race) != 0)
            return OPENREG_OK;
    }
}

void
openreg_races_clear(void)
{
    openreg_lock_acquire(&lock);
    openreg_race_reports_clear();
    openreg_lock_release(&lock);
}

/* -------------------------------------------------------------------------------------------------------------- fork */

static void
lock_for_fork(void)
{
    openreg_lock_acquire(&lock);
}

static void
unlock_after_fork(void)
{
    openreg_lock_release(&lock);
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_handle(OPENREG_FORK_RACES,
                        &(openreg_fork_handlers){.prepare = lock_for_fork, .parent = unlock_after_fork});
}
