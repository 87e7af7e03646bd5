/* SPDX-License-Identifier: BSD-3-Clause */
/* address_map.c: changes of the address map (address_map.h). */
#include "memory/address_map.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "watch/observers.h"

#define GRANULE (UINT64_C(1) << OPENREG_GRANULE_SHIFT)
#define RANGES_PER_CHUNK 64

_Atomic(openreg_leaf *) openreg_address_map_root[1u << (OPENREG_ADDRESS_BITS - OPENREG_LEAF_ADDRESS_SHIFT)];

static openreg_lock map_lock = OPENREG_LOCK_INITIALIZER; /* guards all stores to the map, and the two variables below */
static openreg_range *free_ranges;
/* Chunks of ranges, linked through their first element: reachable for ever, so no leak. */
static openreg_range *chunks;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_ADDRESSES, &map_lock);
}

static _Atomic(openreg_range *) *
granule_of(uintptr_t address)
{
    openreg_leaf *leaf = atomic_load_explicit(&openreg_address_map_root[address >> OPENREG_LEAF_ADDRESS_SHIFT],
                                              memory_order_relaxed);
    return leaf->granules[(address >> OPENREG_GRANULE_SHIFT) & ((1u << OPENREG_LEAF_SHIFT) - 1)];
}

static bool
in_bounds(uintptr_t start, uint64_t size)
{
    const uint64_t limit = UINT64_C(1) << OPENREG_ADDRESS_BITS;
    return start < limit && size <= limit - start;
}

static bool
overlap(uintptr_t a, uint64_t a_size, uintptr_t b, uint64_t b_size)
{
    return a < b ? b - a < a_size : a - b < b_size;
}

/* Whether a live range, or its alias, overlaps [start, start + size). */
static bool
range_overlaps(const openreg_range *range, uintptr_t start, uint64_t size)
{
    const uintptr_t other = atomic_load_explicit(&range->start, memory_order_relaxed);
    const uintptr_t distance = atomic_load_explicit(&range->distance, memory_order_relaxed);
    const uint64_t other_size = atomic_load_explicit(&range->size, memory_order_relaxed);
    return overlap(other, other_size, start, size) ||
           (distance != 0 && overlap(other + distance, other_size, start, size));
}

/* Makes the leaves of an interval and checks that it is free. */
static openreg_status
prepare(const char *call, const openreg_device *device, uintptr_t start, uint64_t size)
{
    if (!in_bounds(start, size) || size < GRANULE)
        return openreg_error_set_driver(OPENREG_E_INTERNAL, call, device->driver->name,
                                        "gave %llu bytes at 0x%llx, outside %d bits of address space",
                                        (unsigned long long)size, (unsigned long long)start, OPENREG_ADDRESS_BITS);
    for (uintptr_t at = start & ~(GRANULE - 1); at < start + size; at += GRANULE) {
        _Atomic(openreg_leaf *) *root = &openreg_address_map_root[at >> OPENREG_LEAF_ADDRESS_SHIFT];
        if (atomic_load_explicit(root, memory_order_relaxed) == NULL) {
            openreg_leaf *leaf = calloc(1, sizeof *leaf);
            if (leaf == NULL)
                return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the address map");
            atomic_store_explicit(root, leaf, memory_order_release);
        }
        _Atomic(openreg_range *) *slots = granule_of(at);
        for (int i = 0; i < 2; i++) {
            const openreg_range *range = atomic_load_explicit(&slots[i], memory_order_relaxed);
            if (range != NULL && range_overlaps(range, start, size))
                return openreg_error_set_driver(OPENREG_E_INTERNAL, call, device->driver->name,
                                                "gave %llu bytes at 0x%llx, which overlap live memory",
                                                (unsigned long long)size, (unsigned long long)start);
        }
    }
    return OPENREG_OK;
}

/* Replaces `from` by `to` in one of the two slots of each granule. */
static void
replace(uintptr_t start, uint64_t size, openreg_range *from, openreg_range *to)
{
    for (uintptr_t at = start & ~(GRANULE - 1); at < start + size; at += GRANULE) {
        _Atomic(openreg_range *) *slots = granule_of(at);
        const int i = atomic_load_explicit(&slots[0], memory_order_relaxed) == from ? 0 : 1;
        atomic_store_explicit(&slots[i], to, memory_order_release);
    }
}

static openreg_range *
take_range(void)
{
    if (free_ranges == NULL) {
        openreg_range *chunk = calloc(RANGES_PER_CHUNK, sizeof *chunk);
        if (chunk == NULL)
            return NULL;
        chunk->next_free = chunks;
        chunks = chunk;
        for (int i = 1; i < RANGES_PER_CHUNK; i++) {
            atomic_init(&chunk[i].sequence, 1); /* odd: not in use */
            chunk[i].next_free = free_ranges;
            free_ranges = &chunk[i];
        }
    }
    openreg_range *range = free_ranges;
    free_ranges = range->next_free;
    return range;
}

static openreg_status
insert_locked(const char *call, const openreg_range_info *info, openreg_range **out)
{
    OPENREG_RETURN_NOT_OK(prepare(call, info->device, info->start, info->size));
    if (info->distance != 0) {
        OPENREG_RETURN_NOT_OK(prepare(call, info->device, info->start + info->distance, info->size));
        if (overlap(info->start, info->size, info->start + info->distance, info->size))
            return openreg_error_set_driver(OPENREG_E_INTERNAL, call, info->device->driver->name,
                                            "gave an alias that overlaps its memory");
    }
    openreg_range *range = take_range();
    if (range == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the address map");
    /* `sequence` is odd here. The fields are stored with release so that a reader that sees one of them sees, at its
     * second look, an odd or a later sequence. */
    atomic_store_explicit(&range->start, info->start, memory_order_release);
    atomic_store_explicit(&range->size, info->size, memory_order_release);
    atomic_store_explicit(&range->distance, info->distance, memory_order_release);
    atomic_store_explicit(&range->flags, info->flags, memory_order_release);
    atomic_store_explicit(&range->device, info->device, memory_order_release);
    atomic_store_explicit(&range->segment, info->segment, memory_order_release);
    (void)atomic_fetch_add_explicit(&range->sequence, 1, memory_order_release);
    replace(info->start, info->size, NULL, range);
    if (info->distance != 0)
        replace(info->start + info->distance, info->size, NULL, range);
    *out = range;
    return OPENREG_OK;
}

openreg_status
openreg_address_map_insert(const char *call, const openreg_range_info *info, openreg_range **out)
{
    openreg_lock_acquire(&map_lock);
    const openreg_status status = insert_locked(call, info, out);
    openreg_lock_release(&map_lock);
    return status;
}

void
openreg_address_map_remove(openreg_range *range)
{
    if (openreg_is_observed(OPENREG_OBSERVE_USES))
        openreg_observers_block(OPENREG_BLOCK_GONE,
                                (const void *)atomic_load_explicit(&range->start, memory_order_relaxed),
                                atomic_load_explicit(&range->size, memory_order_relaxed), OPENREG_HOST, 0);
    openreg_lock_acquire(&map_lock);
    const uintptr_t start = atomic_load_explicit(&range->start, memory_order_relaxed);
    const uintptr_t distance = atomic_load_explicit(&range->distance, memory_order_relaxed);
    const uint64_t size = atomic_load_explicit(&range->size, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&range->sequence, 1, memory_order_release);
    replace(start, size, range, NULL);
    if (distance != 0)
        replace(start + distance, size, range, NULL);
    range->next_free = free_ranges;
    free_ranges = range;
    openreg_lock_release(&map_lock);
}
