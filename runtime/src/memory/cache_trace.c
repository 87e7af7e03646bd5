/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_trace.c: tells whoever listens what the caching allocator does (openreg/allocator.h). */
#include "memory/cache_internal.h"

typedef void (*trace_fn)(const openreg_memory_event *event);

static _Atomic(trace_fn) listener;

void
openreg_set_memory_trace(void (*trace)(const openreg_memory_event *event))
{
    trace_fn before = atomic_exchange_explicit(&listener, trace, memory_order_acq_rel);
    if ((before == NULL) != (trace == NULL))
        openreg_cache_feature(OPENREG_FEATURE_TRACE, trace != NULL);
}

void
openreg_cache_trace(const struct openreg_cache *cache, int32_t action, const openreg_pool *pool, uint64_t address,
                    uint64_t size)
{
    const trace_fn trace = atomic_load_explicit(&listener, memory_order_acquire);
    if (trace == NULL)
        return; /* it has just left */
    openreg_memory_event event = {
        .action = action,
        .device = cache->device->index,
        .address = address,
        .size = size,
        .stream = pool->owner->stream,
    };
    if (pool->owner->private_pool != NULL)
        event.pool = pool->owner->private_pool->id;
    trace(&event);
}
