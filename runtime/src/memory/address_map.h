/* SPDX-License-Identifier: BSD-3-Clause */
/* address_map.h: which segment an address belongs to, for device addresses and their host aliases. Internal.
 *
 * A table over the 48-bit address space in granules of 2 MiB, each with at most two ranges: every segment is at least a
 * granule long, so no granule touches three. Lookups take no lock and are async-signal-safe; they cost three dependent
 * loads. Writers take one lock, and only when a segment is allocated from the driver or released to it.
 *
 * Ranges and the nodes of the table are never freed, so a reader may hold one that is being removed or reused. Its
 * fields are therefore read between two loads of `sequence`, which is odd while they change (a sequence lock of only
 * acquire and release operations, which thread sanitizers follow). */
#ifndef OPENREG_SRC_ADDRESS_MAP_H
#define OPENREG_SRC_ADDRESS_MAP_H

#include <stdatomic.h>
#include <stdbool.h>

#include "driver/device_table.h"

#define OPENREG_ADDRESS_BITS 48
#define OPENREG_GRANULE_SHIFT 21
#define OPENREG_LEAF_SHIFT 13 /* log2 of the granules of a leaf */

#define OPENREG_RANGE_VISIBLE 1u /* `distance` leads to the host's alias */
#define OPENREG_RANGE_FENCED 2u  /* the device address faults when the host touches it */

struct openreg_segment;

/* The map's description of a segment. */
typedef struct openreg_range_info {
    uintptr_t start;    /* device address */
    uint64_t size;      /* at least 2 MiB */
    uintptr_t distance; /* alias less device address, modulo 2^64; 0 unless visible */
    uint32_t flags;     /* OPENREG_RANGE_* */
    openreg_device *device;
    struct openreg_segment *segment; /* guarded by the cache's lock */
} openreg_range_info;

typedef struct openreg_range {
    atomic_uint_least64_t sequence;
    atomic_uintptr_t start, distance;
    atomic_uint_least64_t size;
    atomic_uint flags;
    _Atomic(openreg_device *) device;
    _Atomic(struct openreg_segment *) segment;
    struct openreg_range *next_free; /* guarded by the map's lock */
} openreg_range;

typedef struct openreg_found_range {
    openreg_range_info info;
    const openreg_range *range;
    uint64_t sequence; /* the lookup is valid while range->sequence equals it */
    bool alias;        /* the address is a host alias; never set where alias and device address are the same */
} openreg_found_range;

typedef struct openreg_leaf {
    _Atomic(openreg_range *) granules[1u << OPENREG_LEAF_SHIFT][2];
} openreg_leaf;

#define OPENREG_LEAF_ADDRESS_SHIFT (OPENREG_GRANULE_SHIFT + OPENREG_LEAF_SHIFT)
extern _Atomic(openreg_leaf *) openreg_address_map_root[1u << (OPENREG_ADDRESS_BITS - OPENREG_LEAF_ADDRESS_SHIFT)];

/* Adds a segment. OPENREG_E_NOMEM (host memory), or OPENREG_E_INTERNAL if the driver's range is shorter than 2 MiB,
 * lies outside 48 bits or overlaps a live one; nothing is changed then. */
openreg_status openreg_address_map_insert(const char *call, const openreg_range_info *info, openreg_range **out);
void openreg_address_map_remove(openreg_range *range);

static inline bool
openreg_range_matches(const openreg_range *range, uintptr_t address, openreg_found_range *out)
{
    const uint64_t sequence = atomic_load_explicit(&range->sequence, memory_order_acquire);
    out->info.start = atomic_load_explicit(&range->start, memory_order_acquire);
    out->info.size = atomic_load_explicit(&range->size, memory_order_acquire);
    out->info.distance = atomic_load_explicit(&range->distance, memory_order_acquire);
    out->info.flags = atomic_load_explicit(&range->flags, memory_order_acquire);
    out->info.device = atomic_load_explicit(&range->device, memory_order_acquire);
    out->info.segment = atomic_load_explicit(&range->segment, memory_order_acquire);
    out->range = range;
    out->sequence = sequence;
    out->alias = false;
    const uintptr_t offset = address - out->info.start;
    if (offset >= out->info.size) {
        if (out->info.distance == 0 || offset - out->info.distance >= out->info.size)
            return false;
        out->alias = true;
    }
    return (sequence & 1) == 0 && atomic_load_explicit(&range->sequence, memory_order_relaxed) == sequence;
}

/* The range of a device address or of a host alias. Lock-free. */
static inline bool
openreg_address_map_find(const void *ptr, openreg_found_range *out)
{
    const uintptr_t address = (uintptr_t)ptr;
    if (address >> OPENREG_ADDRESS_BITS != 0)
        return false;
    openreg_leaf *leaf = atomic_load_explicit(&openreg_address_map_root[address >> OPENREG_LEAF_ADDRESS_SHIFT],
                                              memory_order_acquire);
    if (leaf == NULL)
        return false;
    const size_t granule = (address >> OPENREG_GRANULE_SHIFT) & ((1u << OPENREG_LEAF_SHIFT) - 1);
    for (int i = 0; i < 2; i++) {
        const openreg_range *range = atomic_load_explicit(&leaf->granules[granule][i], memory_order_acquire);
        if (range != NULL && openreg_range_matches(range, address, out))
            return true;
    }
    return false;
}

#endif
