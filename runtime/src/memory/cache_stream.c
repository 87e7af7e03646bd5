/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_stream.c: the caching allocator's pools by stream, and blocks that other streams have been recorded on. */
#include "memory/cache_internal.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/inside.h"
#include "device/stream.h"

static const char free_call[] = "openreg_free";

openreg_status
openreg_cache_new_pools(struct openreg_cache *cache, const char *call, openreg_device *device, openreg_stream stream,
                        openreg_private_pool *private_pool, openreg_stream_pools **out)
{
    openreg_driver_stream handle;
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(device, call, stream, &handle));
    openreg_stream_pools *pools = calloc(1, sizeof *pools);
    if (pools == NULL)
        return openreg_cache_no_memory(call, cache->device);
    pools->device = device;
    pools->stream = stream;
    pools->handle = handle;
    pools->private_pool = private_pool;
    pools->small.owner = pools->large.owner = pools;
    pools->small.kind = OPENREG_POOL_SMALL;
    pools->large.kind = OPENREG_POOL_LARGE;
    LIST_INSERT_HEAD(&cache->streams, pools, all);
    *out = pools;
    return OPENREG_OK;
}

openreg_status
openreg_cache_make_pools(struct openreg_cache *cache, const char *call, openreg_device *device, openreg_stream stream,
                         openreg_stream_pools **out)
{
    OPENREG_RETURN_NOT_OK(openreg_cache_new_pools(cache, call, device, stream, NULL, out));
    (*out)->next_shared = cache->shared_streams;
    cache->shared_streams = *out;
    if (stream == OPENREG_STREAM_DEFAULT && device == cache->device) {
        cache->default_pools = *out;
    } else {
        openreg_stream_pools **bucket = &cache->buckets[openreg_stream_bucket(stream)];
        (*out)->next_in_bucket = *bucket;
        *bucket = *out;
    }
    return OPENREG_OK;
}

static void
give_use(struct openreg_cache *cache, openreg_stream_use *use)
{
    use->block = NULL;
    use->next_of_block = NULL;
    use->next = cache->unused_uses;
    cache->unused_uses = use;
}

static void
append_waiting(openreg_stream_use *use)
{
    openreg_stream_pools *stream = use->stream;
    use->next = NULL;
    if (stream->last_waiting != NULL)
        stream->last_waiting->next = use;
    else
        stream->first_waiting = use;
    stream->last_waiting = use;
}

static openreg_stream_use *
take_first_waiting(openreg_stream_pools *stream)
{
    openreg_stream_use *use = stream->first_waiting;
    stream->first_waiting = use->next;
    if (use->next == NULL)
        stream->last_waiting = NULL;
    return use;
}

void
openreg_cache_poison(struct openreg_cache *cache, openreg_block *block)
{
    if ((openreg_features() & OPENREG_FEATURE_POISON) == 0 || cache->schedule == NULL)
        return;
    const uint8_t state = block->state;
    block->state = OPENREG_BLOCK_AWAITING_FREE; /* so that no other thread uses it */
    openreg_fast_lock_release(&cache->lock);
    const openreg_error_fields before = openreg_error_save();
    (void)openreg_call_poison(cache->device, free_call, cache->schedule, block->address, block->size,
                              block->segment->pool->owner->handle);
    openreg_error_restore(&before);
    openreg_fast_lock_acquire(&cache->lock);
    block->state = state;
}

/* Completes a use that has been removed from its list. The lock may be released in between. */
static void
finish_use(struct openreg_cache *cache, openreg_stream_use *use)
{
    openreg_block *block = use->block;
    give_use(cache, use);
    if (--block->waiting > 0)
        return;
    openreg_cache_poison(cache, block);
    const int kind = block->segment->pool->kind;
    cache->waiting_blocks--;
    if ((openreg_features() & OPENREG_FEATURE_TRACE) != 0)
        openreg_cache_trace_block(cache, OPENREG_MEMORY_EVENT_FREE_COMPLETED, block);
    openreg_stat_subtract(cache->stats.waiting, kind, 1);
    openreg_stat_subtract(cache->stats.waiting_bytes, kind, (int64_t)block->size);
    openreg_cache_release(cache, block);
}

static void
destroy_marker(openreg_stream_use *use, const char *call)
{
    if (use->marker_device != NULL)
        (void)openreg_call_marker_destroy(use->marker_device, call, &use->marker);
    use->marker_device = NULL;
}

/* Records a marker behind the stream's work. If the driver has none left, waits for the stream instead. */
static openreg_status
mark_use(openreg_stream_use *use)
{
    openreg_device *const device = use->stream->device;
    use->passed = false;
    openreg_status status = OPENREG_OK;
    if (use->marker_device != device) {
        destroy_marker(use, free_call);
        status = openreg_call_marker_create(device, free_call, 0, &use->marker);
        use->marker_device = status == OPENREG_OK ? device : NULL;
    }
    if (status == OPENREG_OK)
        status = openreg_call_marker_record(device, free_call, &use->marker, use->stream->handle);
    if (status != OPENREG_OK) {
        status = openreg_call_stream_sync(device, free_call, use->stream->handle);
        use->passed = true;
    }
    return openreg_device_is_lost(device) ? OPENREG_OK : status; /* nothing runs there any more */
}

/* Records markers on the streams of a block. The lock is released, as a driver may take long; to other threads the block
 * awaits its streams, so they can neither free it nor add a stream to it. */
static openreg_status
mark_uses(struct openreg_cache *cache, openreg_block *block)
{
    openreg_status status = OPENREG_OK;
    block->state = OPENREG_BLOCK_AWAITING_FREE;
    openreg_fast_lock_release(&cache->lock);
    for (openreg_stream_use *use = block->u.used.uses; use != NULL && status == OPENREG_OK; use = use->next_of_block)
        status = mark_use(use);
    openreg_fast_lock_acquire(&cache->lock);
    block->state = OPENREG_BLOCK_ALLOCATED;
    return status;
}

openreg_status
openreg_cache_free_used(struct openreg_cache *cache, openreg_block *block)
{
    const openreg_error_fields before = openreg_error_save();
    OPENREG_RETURN_NOT_OK(mark_uses(cache, block));
    openreg_error_restore(&before);

    const int kind = block->segment->pool->kind;
    openreg_stat_subtract(cache->stats.allocation, kind, 1);
    openreg_stat_subtract(cache->stats.allocated_bytes, kind, (int64_t)block->size);
    openreg_stat_subtract(cache->stats.requested_bytes, kind, (int64_t)block->u.used.requested);
    if (block->oversize)
        openreg_stat_count(&cache->stats.oversize_allocations, -1);
    const bool traced = (openreg_features() & OPENREG_FEATURE_TRACE) != 0;
    if (traced)
        openreg_cache_trace_block(cache, OPENREG_MEMORY_EVENT_FREE_REQUESTED, block);
    uint32_t waiting = 0;
    for (openreg_stream_use *use = block->u.used.uses, *next; use != NULL; use = next) {
        next = use->next_of_block;
        if (use->passed) {
            give_use(cache, use);
        } else {
            append_waiting(use);
            waiting++;
        }
    }
    block->u.used.uses = NULL;
    if (waiting == 0) {
        openreg_cache_poison(cache, block);
        if (traced)
            openreg_cache_trace_block(cache, OPENREG_MEMORY_EVENT_FREE_COMPLETED, block);
        openreg_cache_release(cache, block);
        return OPENREG_OK;
    }
    block->state = OPENREG_BLOCK_AWAITING_FREE;
    block->waiting = waiting;
    cache->waiting_blocks++;
    /* Not openreg_stat_add(): the peak here is that of the sum with `allocation`, which stays the same now. */
    cache->stats.waiting[kind].current += 1;
    cache->stats.waiting_bytes[kind].current += (int64_t)block->size;
    return OPENREG_OK;
}

/* Whether the stream's first waiting use is complete. Releases the lock in between; the use stays, because only the holder
 * of the other lock, `waiting`, removes uses. */
static openreg_status
query_first(struct openreg_cache *cache, const char *call, const openreg_stream_pools *stream, int32_t *done)
{
    openreg_stream_use *const use = stream->first_waiting;
    *done = openreg_device_is_lost(stream->device); /* nothing runs there any more */
    if (*done)
        return OPENREG_OK;
    openreg_fast_lock_release(&cache->lock);
    const openreg_status status = openreg_call_marker_query(stream->device, call, &use->marker, done);
    openreg_fast_lock_acquire(&cache->lock);
    return status;
}

static openreg_status
poll_streams(struct openreg_cache *cache, const char *call)
{
    for (openreg_stream_pools *stream = cache->shared_streams; stream != NULL; stream = stream->next_shared) {
        while (stream->first_waiting != NULL) {
            int32_t done;
            OPENREG_RETURN_NOT_OK(query_first(cache, call, stream, &done));
            if (!done)
                break; /* those behind it are later in the same stream */
            finish_use(cache, take_first_waiting(stream));
        }
    }
    return OPENREG_OK;
}

openreg_status
openreg_cache_poll_waiting(struct openreg_cache *cache, const char *call)
{
    if (!openreg_fast_lock_try(&cache->waiting))
        return OPENREG_OK; /* another thread queries; its driver call must not delay this one */
    const openreg_status status = poll_streams(cache, call);
    openreg_fast_lock_release(&cache->waiting);
    return status;
}

static openreg_status
sync_streams(struct openreg_cache *cache, const char *call)
{
    for (openreg_stream_pools *stream = cache->shared_streams; stream != NULL; stream = stream->next_shared) {
        while (stream->first_waiting != NULL) {
            openreg_stream_use *use = stream->first_waiting;
            openreg_fast_lock_release(&cache->lock);
            const openreg_status status = openreg_call_marker_sync(stream->device, call, &use->marker);
            openreg_fast_lock_acquire(&cache->lock);
            if (status != OPENREG_OK && !openreg_device_is_lost(stream->device))
                return status;
            finish_use(cache, take_first_waiting(stream));
        }
    }
    return OPENREG_OK;
}

openreg_status
openreg_cache_sync_waiting(struct openreg_cache *cache, const char *call)
{
    cache->stats.syncs++;
    openreg_fast_lock_release(&cache->lock); /* the other one comes first */
    openreg_fast_lock_acquire(&cache->waiting);
    openreg_fast_lock_acquire(&cache->lock);
    const openreg_status status = sync_streams(cache, call);
    openreg_fast_lock_release(&cache->waiting);
    return status;
}

static void
destroy_uses(openreg_stream_use *use)
{
    while (use != NULL) {
        openreg_stream_use *next = use->next;
        destroy_marker(use, "openreg_shutdown");
        free(use);
        use = next;
    }
}

void
openreg_cache_destroy_streams(struct openreg_cache *cache)
{
    while (!LIST_EMPTY(&cache->streams)) {
        openreg_stream_pools *pools = LIST_FIRST(&cache->streams);
        LIST_REMOVE(pools, all);
        destroy_uses(pools->first_waiting); /* their stream failed */
        free(pools);
    }
    destroy_uses(cache->unused_uses);
}

/* Notes on the block that `stream` of `device` uses it. The lock is held. */
static openreg_status
record_stream(struct openreg_cache *cache, openreg_block *block, openreg_device *device, openreg_stream stream)
{
    openreg_stream_pools *pools = openreg_cache_find_pools(cache, device, stream);
    if (pools == NULL)
        OPENREG_RETURN_NOT_OK(openreg_cache_make_pools(cache, "openreg_memory_record_stream", device, stream, &pools));
    if (device == cache->device && stream == block->segment->pool->owner->stream)
        return OPENREG_OK; /* its own stream is ordered anyway */
    for (openreg_stream_use *use = block->u.used.uses; use != NULL; use = use->next_of_block)
        if (use->stream == pools)
            return OPENREG_OK;
    openreg_stream_use *use = cache->unused_uses;
    if (use != NULL)
        cache->unused_uses = use->next;
    else
        use = calloc(1, sizeof *use);
    if (use == NULL)
        return openreg_cache_no_memory("openreg_memory_record_stream", cache->device);
    use->block = block;
    use->stream = pools;
    use->next = NULL;
    use->next_of_block = block->u.used.uses;
    block->u.used.uses = use;
    return OPENREG_OK;
}

openreg_status
openreg_memory_record_stream(void *ptr, int32_t device, openreg_stream stream)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_record_stream";
    openreg_found_range found;
    if (!openreg_cache_find_range(ptr, &found))
        return openreg_reject_address(call, ptr);
    openreg_device *user;
    openreg_driver_stream handle;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &user));
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(user, call, stream, &handle));
    struct openreg_cache *cache = found.info.device->cache;
    openreg_fast_lock_acquire(&cache->lock);
    openreg_block *block = openreg_cache_find_live(&found, ptr), *around = NULL;
    if (block == NULL)
        around = openreg_cache_block_at(&found, (uintptr_t)ptr);
    const bool is_shared = block == NULL && around != NULL && around->state == OPENREG_BLOCK_SHARED;
    openreg_status status = OPENREG_OK;
    if (block != NULL)
        status = record_stream(cache, block, user, stream);
    else if (!is_shared)
        status = openreg_cache_reject_block(&found, call, ptr);
    const uint64_t size = block != NULL ? block->u.used.requested : 0;
    openreg_fast_lock_release(&cache->lock);
    /* Shared memory is released after a wait for its whole device, and for no other. */
    if (is_shared && user != found.info.device)
        return openreg_call_stream_sync(user, call, handle);
    if (openreg_is_observed(OPENREG_OBSERVE_USES) && status == OPENREG_OK && size > 0)
        openreg_observers_block(OPENREG_BLOCK_RECORDED, ptr, size, device, stream);
    return status;
}
