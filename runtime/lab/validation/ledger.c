/* SPDX-License-Identifier: BSD-3-Clause */
/* ledger.c: the books of the layer: live memory, streams and events (validated.h). */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "validation/validated.h"

/* ---------------------------------------------------------------------------------------------------------- memory */

/* Index of the first range that begins above `address`. */
static size_t
upper_bound(openreg_instance v, uintptr_t address)
{
    size_t low = 0, high = v->range_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (v->ranges[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int
overlaps(const openreg_ledger_range *a, const openreg_ledger_range *b)
{
    return a->start < b->start + b->size && b->start < a->start + a->size;
}

openreg_status
openreg_ledger_make_room(openreg_instance v)
{
    /* Twice the number of calls that may be adding: each makes room for itself, and all may add at once. */
    openreg_lock_acquire(&v->lock);
    const size_t wanted = v->range_count + ++v->ranges_coming;
    int fits = wanted <= v->range_capacity;
    if (!fits) {
        openreg_ledger_range *const grown = realloc(v->ranges, 2 * wanted * sizeof *grown);
        if (grown != NULL) {
            v->ranges = grown;
            v->range_capacity = 2 * wanted;
            fits = 1;
        }
    }
    v->ranges_coming -= fits ? 0 : 1;
    openreg_lock_release(&v->lock);
    return fits ? OPENREG_OK : openreg_validation_no_memory();
}

/* Adds a range, with room made. Otherwise it overlaps a live one, which is copied to *other. */
static bool
add_range(openreg_instance v, const openreg_ledger_range *range, openreg_ledger_range *other)
{
    openreg_lock_acquire(&v->lock);
    const size_t at = upper_bound(v, range->start);
    const openreg_ledger_range *hit = NULL;
    if (at > 0 && (overlaps(range, &v->ranges[at - 1]) || v->ranges[at - 1].start == range->start))
        hit = &v->ranges[at - 1];
    else if (at < v->range_count && overlaps(range, &v->ranges[at]))
        hit = &v->ranges[at];
    --v->ranges_coming;
    if (hit != NULL) {
        *other = *hit;
    } else {
        memmove(v->ranges + at + 1, v->ranges + at, (v->range_count - at) * sizeof *v->ranges);
        v->ranges[at] = *range;
        ++v->range_count;
    }
    openreg_lock_release(&v->lock);
    return hit == NULL;
}

static void
give_up_room(openreg_instance v)
{
    openreg_lock_acquire(&v->lock);
    --v->ranges_coming;
    openreg_lock_release(&v->lock);
}

openreg_status
openreg_ledger_made(openreg_instance v, const char *slot, openreg_status status, const openreg_ledger_range *made)
{
    openreg_ledger_range other;
    if (status != OPENREG_OK || made->start == 0)
        give_up_room(v);
    else if (!add_range(v, made, &other))
        return openreg_validation_refuse(v, OPENREG_RULE_NO_OVERLAP, OPENREG_E_INTERNAL, slot,
                                         "it gave %llu bytes at %p, where %llu bytes of device %d at %p are live",
                                         (unsigned long long)made->size, (void *)made->start,
                                         (unsigned long long)other.size, other.dev, (void *)other.start);
    return status;
}

/* The last range that begins at the address or below; with the lock held. */
static openreg_ledger_range *
at_or_below(openreg_instance v, const void *address)
{
    const size_t at = upper_bound(v, (uintptr_t)address);
    return at > 0 ? &v->ranges[at - 1] : NULL;
}

static openreg_ledger_range *
starting_at(openreg_instance v, const void *start)
{
    openreg_ledger_range *const range = at_or_below(v, start);
    return range != NULL && range->start == (uintptr_t)start ? range : NULL;
}

openreg_status
openreg_ledger_begin_remove(openreg_instance v, const char *slot, openreg_made_by kind, int32_t dev, const void *ptr,
                            openreg_ledger_range *out)
{
    if (dev != -1)
        OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    openreg_lock_acquire(&v->lock);
    openreg_ledger_range *const range = starting_at(v, ptr);
    const bool is_it = range != NULL && range->kind == kind && range->dev == dev;
    if (is_it) {
        *out = *range;
        const size_t after = v->range_count - (size_t)(range - v->ranges) - 1;
        memmove(range, range + 1, after * sizeof *range);
        --v->range_count;
        ++v->ranges_coming; /* put back if the driver fails to free it */
    }
    openreg_lock_release(&v->lock);
    if (is_it) {
        openreg_validation_range_goes(v, slot, out->start);
        return OPENREG_OK;
    }
    if (openreg_ledger_find(v, ptr, out))
        return openreg_validation_refuse(v, OPENREG_RULE_ALLOCATION_ALIVE, OPENREG_E_INVALID, slot,
                                         "%p of device %d is inside %llu bytes at %p of device %d, of another kind, "
                                         "device or start",
                                         ptr, dev, (unsigned long long)out->size, (void *)out->start, out->dev);
    return openreg_validation_refuse(v, OPENREG_RULE_ALLOCATION_ALIVE, OPENREG_E_INVALID, slot,
                                     "%p of device %d is not live", ptr, dev);
}

openreg_status
openreg_ledger_end_remove(openreg_instance v, openreg_status status, const openreg_ledger_range *range)
{
    openreg_ledger_range other;
    if (status == OPENREG_OK)
        give_up_room(v);
    if (status == OPENREG_OK || !add_range(v, range, &other))
        free(range->mapped);
    return status;
}

int
openreg_ledger_find(openreg_instance v, const void *ptr, openreg_ledger_range *out)
{
    openreg_lock_acquire(&v->lock);
    const openreg_ledger_range *const below = at_or_below(v, ptr);
    const int is_found = below != NULL &&
                         ((uintptr_t)ptr - below->start < below->size || below->kind == OPENREG_MADE_BY_MEMORY_OPEN);
    if (is_found)
        *out = *below;
    openreg_lock_release(&v->lock);
    return is_found;
}

/* Whether all pieces of the range of addresses are mapped, or none is; the lock is held. */
static int
are_mapped(const openreg_ledger_range *range, uint64_t offset, uint64_t size, int mapped)
{
    if (offset > range->size || size > range->size - offset)
        return 0;
    for (uint64_t i = offset / range->step; i * range->step < offset + size; ++i)
        if (range->mapped[i] != mapped)
            return 0;
    return 1;
}

int
openreg_ledger_holds(openreg_instance v, const void *ptr, uint64_t size)
{
    openreg_lock_acquire(&v->lock);
    const openreg_ledger_range *const range = at_or_below(v, ptr);
    const uint64_t offset = range != NULL ? (uintptr_t)ptr - range->start : 0;
    const int holds = range != NULL && (range->mapped != NULL ? are_mapped(range, offset, size, 1)
                                                              : offset <= range->size && size <= range->size - offset);
    openreg_lock_release(&v->lock);
    return holds;
}

int
openreg_ledger_set_mapped(openreg_instance v, const void *ptr, uint64_t offset, uint64_t size, int mapped)
{
    openreg_lock_acquire(&v->lock);
    openreg_ledger_range *const range = starting_at(v, ptr);
    const int fits = range != NULL && range->mapped != NULL && offset % range->step == 0 && size % range->step == 0 &&
                     are_mapped(range, offset, size, !mapped);
    if (fits)
        memset(range->mapped + offset / range->step, mapped, size / range->step);
    openreg_lock_release(&v->lock);
    return fits;
}

void
openreg_ledger_set_distance(openreg_instance v, const void *start, uintptr_t distance)
{
    openreg_lock_acquire(&v->lock);
    openreg_ledger_range *const range = starting_at(v, start);
    if (range != NULL) {
        range->has_distance = 1;
        range->distance = distance;
    }
    openreg_lock_release(&v->lock);
}

/* --------------------------------------------------------------------------------------------------------- handles */

/* The link to the entry, or the end of the list; with the lock held. */
static openreg_handle **
find(openreg_instance v, openreg_made_by kind, const void *key)
{
    const uint64_t mixed = (uint64_t)(uintptr_t)key * UINT64_C(0x9e3779b97f4a7c15);
    openreg_handle **at = &v->handles[(mixed >> 40) % OPENREG_HANDLE_BUCKETS];
    while (*at != NULL && ((*at)->key != key || (*at)->kind != kind))
        at = &(*at)->next;
    return at;
}

openreg_handle *
openreg_handle_make(openreg_instance v, openreg_made_by kind, int32_t dev)
{
    openreg_handle *const entry = calloc(1, sizeof *entry);
    openreg_stream_state *const stream = kind == OPENREG_MADE_BY_STREAM_CREATE ? calloc(1, sizeof *stream) : NULL;
    if (entry == NULL || (kind == OPENREG_MADE_BY_STREAM_CREATE && stream == NULL)) {
        free(entry);
        free(stream);
        (void)openreg_validation_no_memory();
        return NULL;
    }
    entry->kind = kind;
    entry->dev = dev;
    entry->uses = 1;
    entry->stream = stream;
    if (stream != NULL) {
        openreg_lock_acquire(&v->lock);
        stream->next = v->streams;
        v->streams = stream;
        openreg_lock_release(&v->lock);
    }
    return entry;
}

static int
add_handle(openreg_instance v, openreg_handle *entry, const void *key)
{
    entry->key = key;
    openreg_lock_acquire(&v->lock);
    openreg_handle **const at = find(v, entry->kind, key);
    const int is_new = *at == NULL;
    if (is_new)
        *at = entry;
    openreg_lock_release(&v->lock);
    return is_new;
}

static const struct {
    const char *maker, *name;
    openreg_rule rule; /* on the handle that the maker returns */
} kinds[OPENREG_MADE_BY_COUNT] = {
    [OPENREG_MADE_BY_MEM_ALLOC] = {.maker = "mem_alloc()"},
    [OPENREG_MADE_BY_HOST_ALLOC] = {.maker = "host_alloc()"},
    [OPENREG_MADE_BY_RESERVE] = {.maker = "reserve()"},
    [OPENREG_MADE_BY_MEMORY_OPEN] = {.maker = "memory_open()"},
    [OPENREG_MADE_BY_STREAM_CREATE] = {"stream_create()", "stream", OPENREG_RULE_STREAM_HANDLE},
    [OPENREG_MADE_BY_EVENT_CREATE] = {"event_create()", "event", OPENREG_RULE_EVENT_HANDLE},
    [OPENREG_MADE_BY_COMM_INIT] = {"init() of comm.h", "communicator", OPENREG_RULE_COMM_HANDLE},
    [OPENREG_MADE_BY_GRAPH_END] = {"end() of graph.h", "graph", OPENREG_RULE_GRAPH_HANDLE},
    [OPENREG_MADE_BY_INSTANTIATE] = {"instantiate()", "executable graph", OPENREG_RULE_GRAPH_EXEC_HANDLE},
};

openreg_status
openreg_handle_made(openreg_instance v, const char *slot, openreg_status status, const void *made,
                    openreg_handle *entry, void *out)
{
    const char *const name = kinds[entry->kind].name;
    const openreg_rule rule = kinds[entry->kind].rule;
    if (status == OPENREG_OK && openreg_written_address(made) == 0)
        status = openreg_validation_refuse(v, rule, OPENREG_E_INTERNAL, slot, "it returned OK with a NULL %s", name);
    else if (status == OPENREG_OK && !add_handle(v, entry, made))
        status = openreg_validation_refuse(v, rule, OPENREG_E_INTERNAL, slot,
                                           "it gave the %s %p, which is live already", name, made);
    if (status == OPENREG_OK)
        memcpy(out, &made, sizeof made);
    else
        openreg_handle_release(v, entry);
    return status;
}

static openreg_status
refuse_dead(openreg_instance v, const char *slot, openreg_made_by kind, const void *key)
{
    return openreg_validation_refuse(v, OPENREG_RULE_HANDLE_ALIVE, OPENREG_E_INVALID, slot, "%s %p is not live",
                                     kinds[kind].name, key);
}

openreg_status
openreg_handle_use(openreg_instance v, const char *slot, openreg_made_by kind, const void *key, openreg_handle **out)
{
    openreg_lock_acquire(&v->lock);
    *out = *find(v, kind, key);
    if (*out != NULL)
        ++(*out)->uses;
    openreg_lock_release(&v->lock);
    return *out != NULL ? OPENREG_OK : refuse_dead(v, slot, kind, key);
}

openreg_status
openreg_handle_use_on(openreg_instance v, const char *slot, openreg_made_by kind, const void *key, int32_t dev,
                      openreg_handle **out)
{
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, slot, kind, key, out));
    const int32_t owner = (*out)->dev;
    if (owner == dev)
        return OPENREG_OK;
    openreg_handle_release(v, *out);
    *out = NULL;
    const bool is_event = kind == OPENREG_MADE_BY_EVENT_CREATE;
    return openreg_validation_refuse(v, is_event ? OPENREG_RULE_EVENT_DEVICE : OPENREG_RULE_HANDLE_ALIVE,
                                     OPENREG_E_INVALID, slot, "%s %p of device %d was %s device %d", kinds[kind].name,
                                     key, owner, is_event ? "given with" : "used for", dev);
}

openreg_status
openreg_handle_begin_destroy(openreg_instance v, const char *slot, openreg_made_by kind, const void *key,
                             openreg_handle **out)
{
    int others = 0;
    *out = NULL;
    if (key == NULL)
        return OPENREG_OK;
    openreg_lock_acquire(&v->lock);
    openreg_handle **const at = find(v, kind, key);
    openreg_handle *const entry = *at;
    if (entry != NULL) {
        *at = entry->next;
        entry->next = NULL;
        others = entry->uses - 1;
    }
    openreg_lock_release(&v->lock);
    if (entry == NULL)
        return refuse_dead(v, slot, kind, key);
    if (others > 0)
        openreg_validation_report(v, OPENREG_RULE_DESTROY_UNUSED, slot, "%d calls use %s %p", others, kinds[kind].name,
                                  key);
    *out = entry;
    return OPENREG_OK;
}

openreg_status
openreg_handle_end_destroy(openreg_instance v, openreg_status status, const void *key, openreg_handle *entry)
{
    if (status == OPENREG_OK || entry == NULL || !add_handle(v, entry, key))
        openreg_handle_release(v, entry);
    return status;
}

void
openreg_handle_release(openreg_instance v, openreg_handle *entry)
{
    if (entry == NULL)
        return;
    openreg_lock_acquire(&v->lock);
    const int is_last = --entry->uses == 0;
    openreg_lock_release(&v->lock);
    if (is_last)
        free(entry);
}

/* ------------------------------------------------------------------------------------------------------------- end */

void
openreg_ledger_report_live(openreg_instance v)
{
    size_t live[OPENREG_MADE_BY_COUNT] = {0};
    for (size_t i = 0; i < v->range_count; ++i)
        ++live[v->ranges[i].kind];
    for (size_t i = 0; i < OPENREG_HANDLE_BUCKETS; ++i)
        for (const openreg_handle *entry = v->handles[i]; entry != NULL; entry = entry->next)
            ++live[entry->kind];
    for (size_t kind = 0; kind < OPENREG_MADE_BY_COUNT; ++kind)
        if (live[kind] > 0)
            openreg_validation_report(v, OPENREG_RULE_FREED_BEFORE_CLOSE, "close",
                                      "%zu object(s) made by %s still live", live[kind], kinds[kind].maker);
    size_t captures = 0;
    for (const openreg_capture_state *at = v->captures; at != NULL; at = at->next)
        ++captures;
    if (captures > 0)
        openreg_validation_report(v, OPENREG_RULE_FREED_BEFORE_CLOSE, "close", "%zu captures had not ended", captures);
}

void
openreg_ledger_free(openreg_instance v)
{
    for (size_t i = 0; i < OPENREG_HANDLE_BUCKETS; ++i)
        for (openreg_handle *entry = v->handles[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            free(entry);
        }
    for (openreg_stream_state *stream = v->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        free(stream);
    }
    for (size_t i = 0; i < v->range_count; ++i)
        free(v->ranges[i].mapped);
    free(v->ranges);
    for (openreg_capture_state *at = v->captures, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
    for (openreg_captured_range *at = v->captured_ranges, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
}
