/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_sharing.c: blocks of the caching allocator that other processes use, and imported memory of theirs (cache.h). */
#define _GNU_SOURCE
#include "memory/cache_internal.h"

#include <stdlib.h>

#include "base/device_name.h"
#include "base/error.h"
#include "watch/lab.h"

openreg_status
openreg_cache_share(const char *call, const void *ptr, openreg_shared_block *out)
{
    openreg_found_range found;
    openreg_status status = OPENREG_OK;
    if (openreg_device_table_peek() == NULL || !openreg_address_map_find(ptr, &found) || found.alias)
        return openreg_reject_address(call, ptr);
    struct openreg_cache *cache = found.info.device->cache;
    openreg_fast_lock_acquire(&cache->lock);
    openreg_block *block = openreg_cache_block_at(&found, (uintptr_t)ptr);
    if (block == NULL || block->state != OPENREG_BLOCK_ALLOCATED) {
        status = openreg_error_set(OPENREG_E_INVALID, call,
                                   "%p on %s:%d was freed already, or is another process's memory, which only "
                                   "that process can export",
                                   ptr, openreg_device_name(), found.info.device->index);
    } else {
        block->is_shared = 1;
        out->device = found.info.device;
        out->block = block->address;
        out->requested = block->u.used.requested;
        out->allocation = block->segment->allocation;
        out->allocation_size = block->segment->size +
                               (uint64_t)(block->segment->start - (char *)block->segment->allocation);
    }
    openreg_fast_lock_release(&cache->lock);
    return status;
}

void
openreg_cache_free_shared(void *ptr)
{
    openreg_sharing_peek()->free_exported(ptr); /* exists only if the library that has exported it is loaded */
}

int32_t
openreg_memory_collect_exports(void)
{
    const openreg_sharing_parts *const parts = openreg_sharing_peek();
    return parts != NULL ? parts->collect() : 0;
}

bool
openreg_cache_take_back(void *ptr)
{
    openreg_found_range found;
    if (openreg_device_table_peek() == NULL || !openreg_address_map_find(ptr, &found))
        return false;
    struct openreg_cache *cache = found.info.device->cache;
    openreg_fast_lock_acquire(&cache->lock);
    openreg_block *block = openreg_cache_block_at(&found, (uintptr_t)ptr);
    const bool is_lent = block != NULL && block->address == ptr && block->state == OPENREG_BLOCK_SHARED;
    if (is_lent) {
        block->state = OPENREG_BLOCK_ALLOCATED;
        block->is_shared = 0;
    }
    openreg_fast_lock_release(&cache->lock);
    return is_lent;
}

openreg_status
openreg_cache_adopt(const char *call, openreg_device *device, void *base, uint64_t size, struct openreg_segment **out)
{
    openreg_segment *segment = calloc(1, sizeof *segment);
    openreg_block *block = calloc(1, sizeof *block);
    openreg_block_index *index = openreg_block_index_create(size, 20);
    openreg_status status = OPENREG_E_NOMEM;
    if (segment == NULL || block == NULL || index == NULL) {
        (void)openreg_cache_no_memory(call, device);
    } else {
        *block = (openreg_block){
            .address = base, .size = size, .segment = segment, .u.used.requested = size, .state = OPENREG_BLOCK_SHARED};
        *segment = (openreg_segment){.start = base, .size = size, .allocation = base, .first = block, .index = index};
        openreg_block_index_set(index, 0, block);
        status = openreg_cache_map_segment(call, device, segment);
    }
    if (status != OPENREG_OK) {
        free(index);
        free(block);
        free(segment);
        return status;
    }
    *out = segment;
    return OPENREG_OK;
}

void
openreg_cache_disown(struct openreg_segment *segment)
{
    openreg_device *device = atomic_load_explicit(&segment->range->device, memory_order_relaxed);
    openreg_fast_lock_acquire(&device->cache->lock); /* readers follow range->segment under it */
    openreg_address_map_remove(segment->range);
    openreg_fast_lock_release(&device->cache->lock);
    free(segment->index);
    free(segment->first);
    free(segment);
}
