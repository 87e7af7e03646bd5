/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_private.c: private pools of the caching allocator, and which of them a thread's requests go to
 * (openreg/allocator.h). */
#include "memory/cache_internal.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/inside.h"

#define KNOWN_FLAGS (OPENREG_MEMORY_POOL_USE_ON_OOM | OPENREG_MEMORY_POOL_NO_SPLIT | OPENREG_MEMORY_POOL_REPLAYED)

static atomic_uint_fast64_t last_thread;
static _Thread_local uint64_t own_thread; /* 0 until number_of_this_thread() */

static uint64_t
number_of_this_thread(void)
{
    if (own_thread == 0)
        own_thread = atomic_fetch_add_explicit(&last_thread, 1, memory_order_relaxed) + 1;
    return own_thread;
}

static bool
same_id(openreg_memory_pool_id one, openreg_memory_pool_id other)
{
    return one.first == other.first && one.second == other.second;
}

static uint64_t
hash_of(openreg_memory_pool_id id)
{
    uint64_t mixed = id.first * UINT64_C(0x9E3779B97F4A7C15) ^ id.second;
    mixed = (mixed ^ (mixed >> 32)) * UINT64_C(0xD6E8FEB86659FD93);
    return mixed ^ (mixed >> 32);
}

/* A pool that is in use, or NULL. A released one may have the id of a new one. */
static openreg_private_pool *
find_pool(const struct openreg_cache *cache, openreg_memory_pool_id id)
{
    const uint64_t hash = hash_of(id);
    openreg_tree_node *node = openreg_tree_at_least(&cache->pools_by_id, hash);
    for (; node != NULL && node->key == hash; node = openreg_tree_beside(node, 1)) {
        openreg_private_pool *pool = OPENREG_TREE_OWNER(node, openreg_private_pool, node);
        if (same_id(pool->id, id))
            return pool;
    }
    return NULL;
}

static openreg_status
no_such_pool(const char *call, const openreg_device *device, openreg_memory_pool_id id)
{
    return openreg_error_set(OPENREG_E_INVALID, call, "there is no memory pool (%llu, %llu) on %s:%d",
                             (unsigned long long)id.first, (unsigned long long)id.second, openreg_device_name(),
                             device->index);
}

openreg_status
openreg_cache_no_memory(const char *call, const openreg_device *device)
{
    return openreg_error_set(OPENREG_E_NOMEM, call, "out of host memory for allocator metadata of %s:%d",
                             openreg_device_name(), device->index);
}

/* --------------------------------------------------------------------------------------------------------- requests */

static openreg_pool_binding *
route_of(openreg_tree_node *node)
{
    openreg_pool_binding *const route = OPENREG_TREE_OWNER(node, openreg_pool_binding, node);
    return route != NULL && route->node.key == number_of_this_thread() ? route : NULL;
}

/* The calling thread's routes, latest first, or NULL. */
static openreg_pool_binding *
latest_route(const struct openreg_cache *cache)
{
    return route_of(openreg_tree_at_most(&cache->routes, number_of_this_thread()));
}

static openreg_pool_binding *
route_before(const openreg_pool_binding *route)
{
    return route_of(openreg_tree_beside(&route->node, 0));
}

static openreg_status
pools_of_private(struct openreg_cache *cache, openreg_private_pool *pool, openreg_stream stream,
                 openreg_stream_pools **out)
{
    openreg_stream_pools *pools = pool->streams;
    while (pools != NULL && pools->stream != stream)
        pools = pools->next_in_bucket;
    if (pools == NULL) {
        OPENREG_RETURN_NOT_OK(openreg_cache_new_pools(cache, "openreg_malloc", cache->device, stream, pool, &pools));
        const bool no_split = (pool->flags & OPENREG_MEMORY_POOL_NO_SPLIT) != 0;
        pools->small.no_split = pools->large.no_split = no_split;
        pools->next_in_bucket = pool->streams;
        pool->streams = pools;
    }
    *out = pools;
    return OPENREG_OK;
}

openreg_status
openreg_cache_route(struct openreg_cache *cache, openreg_stream stream, openreg_stream_pools **out)
{
    const openreg_pool_binding *const route = latest_route(cache);
    openreg_private_pool *pool = route == NULL ? NULL : route->pool;
    if (pool == NULL && (openreg_features() & OPENREG_FEATURE_UNCACHED) != 0)
        pool = &cache->uncached;
    if (pool != NULL)
        return pools_of_private(cache, pool, stream, out);
    *out = openreg_cache_find_pools(cache, cache->device, stream);
    return *out != NULL ? OPENREG_OK : openreg_cache_make_pools(cache, "openreg_malloc", cache->device, stream, out);
}

openreg_block *
openreg_cache_borrow(const struct openreg_cache *cache, const openreg_pool *pool, uint64_t rounded)
{
    for (const openreg_private_pool *lender = LIST_FIRST(&cache->private_pools); lender != NULL;
         lender = LIST_NEXT(lender, all)) {
        if ((lender->flags & (OPENREG_MEMORY_POOL_USE_ON_OOM | OPENREG_MEMORY_POOL_REPLAYED)) !=
            OPENREG_MEMORY_POOL_USE_ON_OOM)
            continue;
        for (openreg_stream_pools *pools = lender->streams; pools != NULL; pools = pools->next_in_bucket) {
            if (pools->stream != pool->owner->stream)
                continue;
            const openreg_pool *its = pool->kind == OPENREG_POOL_SMALL ? &pools->small : &pools->large;
            openreg_block *block = openreg_cache_find(its, rounded);
            if (block != NULL)
                return block;
        }
    }
    return NULL;
}

/* -------------------------------------------------------------------------------------------------- coming and going */

/* A pool without uses and segments is freed by the next openreg_cache_forget_pools(). */
static void
note_end(struct openreg_cache *cache, openreg_private_pool *pool)
{
    if (pool->uses > 0 || pool->segments > 0 || pool->is_released || pool == &cache->uncached)
        return;
    pool->next_released = cache->ended_pools;
    cache->ended_pools = pool;
}

void
openreg_cache_count_segment(struct openreg_cache *cache, openreg_private_pool *pool, int64_t amount)
{
    if (pool == NULL)
        return;
    pool->segments += amount;
    note_end(cache, pool);
}

/* Removes a use. True if it was the last one: no request reaches the pool any more, and the caller must call
 * openreg_cache_return(). */
static bool
drop_use(struct openreg_cache *cache, openreg_private_pool *pool)
{
    if (--pool->uses > 0)
        return false;
    openreg_tree_remove(&cache->pools_by_id, &pool->node);
    openreg_cache_feature(OPENREG_FEATURE_RETURNS, true);
    pool->is_released = true;
    pool->next_released = cache->released;
    cache->released = pool;
    return true;
}

/* Frees the pools by stream of a private pool that has no segment. */
static void
free_streams(openreg_private_pool *pool)
{
    while (pool->streams != NULL) {
        openreg_stream_pools *pools = pool->streams;
        pool->streams = pools->next_in_bucket;
        LIST_REMOVE(pools, all);
        free(pools);
    }
}

void
openreg_cache_forget_pools(struct openreg_cache *cache)
{
    if (cache->ended_pools != NULL)
        openreg_cache_release_hot(cache); /* the list of pools that may have such a block must not name them */
    while (cache->ended_pools != NULL) {
        openreg_private_pool *pool = cache->ended_pools;
        cache->ended_pools = pool->next_released;
        LIST_REMOVE(pool, all);
        free_streams(pool);
        free(pool);
        openreg_cache_feature(OPENREG_FEATURE_RETURNS, false);
    }
}

void
openreg_cache_destroy_pools(struct openreg_cache *cache)
{
    while (cache->routes.root != NULL) {
        openreg_pool_binding *route = OPENREG_TREE_OWNER(cache->routes.root, openreg_pool_binding, node);
        openreg_tree_remove(&cache->routes, &route->node);
        free(route);
        openreg_cache_feature(OPENREG_FEATURE_ROUTES, false);
    }
    while (!LIST_EMPTY(&cache->private_pools)) {
        openreg_private_pool *pool = LIST_FIRST(&cache->private_pools);
        LIST_REMOVE(pool, all);
        if (pool->uses == 0)
            openreg_cache_feature(OPENREG_FEATURE_RETURNS, false);
        free(pool); /* its pools by stream are freed with the others */
    }
}

void
openreg_cache_return(struct openreg_cache *cache)
{
    const openreg_error_fields before = openreg_error_save();
    openreg_lock_acquire(&cache->flush);
    openreg_fast_lock_acquire(&cache->lock);
    while (cache->released != NULL) {
        openreg_private_pool *pool = cache->released;
        cache->released = pool->next_released;
        (void)openreg_cache_give_segments(cache, "openreg_free",
                                          (openreg_segment_filter){.kind = OPENREG_FILTER_POOL, .pool = pool});
        pool->is_released = false;
        note_end(cache, pool);
    }
    openreg_cache_give_returning(cache, "openreg_free");
    openreg_cache_forget_pools(cache);
    openreg_fast_lock_release(&cache->lock);
    openreg_lock_release(&cache->flush);
    openreg_error_restore(&before);
}

static openreg_status
trim(struct openreg_cache *cache, const char *call, openreg_memory_pool_id id)
{
    openreg_status status = OPENREG_OK;
    openreg_lock_acquire(&cache->flush);
    openreg_fast_lock_acquire(&cache->lock);
    openreg_private_pool *pool = find_pool(cache, id);
    if (pool != NULL && (pool->flags & OPENREG_MEMORY_POOL_REPLAYED) == 0) {
        pool->uses++; /* keeps it while the lock is released */
        status = openreg_cache_sync_waiting(cache, call);
        if (status == OPENREG_OK)
            status = openreg_cache_give_segments(cache, call,
                                                 (openreg_segment_filter){.kind = OPENREG_FILTER_POOL, .pool = pool});
        (void)drop_use(cache, pool); /* the last one, if the pool was released in between */
    }
    openreg_fast_lock_release(&cache->lock);
    openreg_lock_release(&cache->flush);
    return status;
}

/* Removes a use, of openreg_memory_pool_retain() or of a thread that is leaving, and releases the pool's memory if it was
 * the last. No lock is held. */
static openreg_status
release_use(struct openreg_cache *cache, const char *call, openreg_memory_pool_id id, bool is_retained)
{
    openreg_fast_lock_acquire(&cache->lock);
    openreg_private_pool *pool = find_pool(cache, id);
    const bool is_missing = pool != NULL && is_retained && pool->retained == 0;
    bool last = false;
    if (pool != NULL && !is_missing) {
        pool->retained -= is_retained;
        last = drop_use(cache, pool);
    }
    openreg_fast_lock_release(&cache->lock);
    if (pool == NULL)
        return no_such_pool(call, cache->device, id);
    if (is_missing)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "memory pool (%llu, %llu) of %s:%d was released as often as it was retained; "
                                 "threads are still in it",
                                 (unsigned long long)id.first, (unsigned long long)id.second, openreg_device_name(),
                                 cache->device->index);
    if (last)
        openreg_cache_return(cache);
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------------------- public API */

/* The lock is held. */
static openreg_status
retain(struct openreg_cache *cache, const char *call, openreg_memory_pool_id id, uint32_t flags)
{
    openreg_private_pool *pool = find_pool(cache, id);
    if (pool == NULL) {
        pool = calloc(1, sizeof *pool);
        if (pool == NULL)
            return openreg_cache_no_memory(call, cache->device);
        pool->id = id;
        pool->flags = flags;
        LIST_INSERT_HEAD(&cache->private_pools, pool, all);
        pool->node.key = hash_of(id);
        openreg_tree_insert(&cache->pools_by_id, &pool->node);
    }
    pool->flags |= flags & OPENREG_MEMORY_POOL_REPLAYED;
    pool->uses++;
    pool->retained++;
    return OPENREG_OK;
}

openreg_status
openreg_memory_pool_retain(int32_t device, openreg_memory_pool_id id, uint32_t flags)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_pool_retain";
    openreg_device *entry;
    if (id.first == 0 && id.second == 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "(0, 0) is not the id of a memory pool");
    if ((flags & ~KNOWN_FLAGS) != 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "unknown flags %#x", flags);
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    openreg_fast_lock_acquire(&entry->cache->lock);
    const openreg_status status = retain(entry->cache, call, id, flags);
    openreg_fast_lock_release(&entry->cache->lock);
    return status;
}

openreg_status
openreg_memory_pool_release(int32_t device, openreg_memory_pool_id id)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_pool_release";
    openreg_device *entry;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    return release_use(entry->cache, call, id, true);
}

/* The calling thread's route to the pool, or NULL. The lock is held. */
static openreg_pool_binding *
find_route(const struct openreg_cache *cache, const openreg_private_pool *pool)
{
    openreg_pool_binding *route = latest_route(cache);
    while (route != NULL && route->pool != pool)
        route = route_before(route);
    return route;
}

/* The lock is held. `route` is unused on an error. */
static openreg_status
enter(struct openreg_cache *cache, const char *call, openreg_memory_pool_id id, openreg_pool_binding *route)
{
    openreg_private_pool *pool = find_pool(cache, id);
    if (pool == NULL)
        return no_such_pool(call, cache->device, id);
    if (find_route(cache, pool) != NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "this thread is in memory pool (%llu, %llu) of %s:%d already",
                                 (unsigned long long)id.first, (unsigned long long)id.second, openreg_device_name(),
                                 cache->device->index);
    route->node.key = number_of_this_thread();
    route->pool = pool;
    openreg_tree_insert(&cache->routes, &route->node);
    pool->uses++;
    return OPENREG_OK;
}

openreg_status
openreg_memory_pool_enter(int32_t device, openreg_memory_pool_id id)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_pool_enter";
    openreg_device *entry;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    openreg_pool_binding *route = malloc(sizeof *route);
    if (route == NULL)
        return openreg_cache_no_memory(call, entry);
    openreg_cache_feature(OPENREG_FEATURE_ROUTES, true);
    openreg_fast_lock_acquire(&entry->cache->lock);
    const openreg_status status = enter(entry->cache, call, id, route);
    openreg_fast_lock_release(&entry->cache->lock);
    if (status != OPENREG_OK) {
        openreg_cache_feature(OPENREG_FEATURE_ROUTES, false);
        free(route);
    }
    return status;
}

openreg_status
openreg_memory_pool_leave(int32_t device, openreg_memory_pool_id id)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_pool_leave";
    openreg_device *entry;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    struct openreg_cache *cache = entry->cache;
    openreg_fast_lock_acquire(&cache->lock);
    const openreg_private_pool *pool = find_pool(cache, id);
    openreg_pool_binding *const route = pool == NULL ? NULL : find_route(cache, pool);
    if (route != NULL)
        openreg_tree_remove(&cache->routes, &route->node);
    openreg_fast_lock_release(&cache->lock);
    if (route == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "this thread is not in memory pool (%llu, %llu) of %s:%d",
                                 (unsigned long long)id.first, (unsigned long long)id.second, openreg_device_name(),
                                 device);
    free(route);
    openreg_cache_feature(OPENREG_FEATURE_ROUTES, false);
    return release_use(cache, call, id, false);
}

openreg_status
openreg_memory_pool_trim(int32_t device, openreg_memory_pool_id id)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_pool_trim";
    openreg_device *entry;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    OPENREG_RETURN_NOT_OK(trim(entry->cache, call, id));
    openreg_cache_return(entry->cache);
    return OPENREG_OK;
}
