/* SPDX-License-Identifier: BSD-3-Clause */
/* host_memory.c: pinned host memory: allocated by the driver, and kept in a tree by address. */
#define _GNU_SOURCE
#include "memory/host_memory.h"

#include <stdlib.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"
#include "base/lock.h"
#include "base/tree.h"
#include "driver/driver_calls.h"
#include "watch/observers.h"

typedef struct host_entry {
    openreg_tree_node node; /* by start */
    openreg_host_block block;
    bool freeing; /* the driver is freeing it; its address may be reused before the entry is removed */
} host_entry;

/* Guards the tree; never held in a driver's call. Held over a fork(), so that the tree is consistent in the child. */
static openreg_lock table_lock = OPENREG_LOCK_INITIALIZER;
static openreg_tree entries;
static atomic_size_t entry_count; /* written under the lock; also read without it, to compare with 0 */

/* The last entry that starts at `address` or before, or NULL; then those before it. The lock is held. */
static host_entry *
at_or_before(uintptr_t address)
{
    return OPENREG_TREE_OWNER(openreg_tree_at_most(&entries, address), host_entry, node);
}

static host_entry *
previous_of(const host_entry *entry)
{
    return OPENREG_TREE_OWNER(openreg_tree_beside(&entry->node, 0), host_entry, node);
}

/* The lock is held. */
static void
insert(host_entry *entry)
{
    openreg_tree_insert(&entries, &entry->node);
    (void)atomic_fetch_add_explicit(&entry_count, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&entry->block.device->live_pinned, 1, memory_order_relaxed);
}

static void
remove_entry(host_entry *entry)
{
    openreg_tree_remove(&entries, &entry->node);
    (void)atomic_fetch_sub_explicit(&entry_count, 1, memory_order_relaxed);
    (void)atomic_fetch_sub_explicit(&entry->block.device->live_pinned, 1, memory_order_relaxed);
}

/* The entry that starts at `start` and is not being freed; NULL if there is none. The lock is held. */
static host_entry *
find_start(uintptr_t start)
{
    host_entry *entry = at_or_before(start);
    while (entry != NULL && entry->block.start == start && entry->freeing)
        entry = previous_of(entry);
    return entry != NULL && entry->block.start == start ? entry : NULL;
}

bool
openreg_host_memory_find(uintptr_t address, openreg_host_block *out)
{
    if (atomic_load_explicit(&entry_count, memory_order_relaxed) == 0)
        return false;
    openreg_lock_acquire(&table_lock);
    const host_entry *entry = at_or_before(address);
    while (entry != NULL && entry->freeing) /* at most one for each thread that is freeing */
        entry = previous_of(entry);
    const bool found = entry != NULL && address - entry->block.start < entry->block.size;
    if (found)
        *out = entry->block;
    openreg_lock_release(&table_lock);
    return found;
}

int64_t
openreg_host_memory_live_blocks(const openreg_device *device)
{
    return atomic_load_explicit(&device->live_pinned, memory_order_relaxed);
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_PINNED, &table_lock);
}

openreg_status
openreg_host_alloc(int32_t device, size_t size, void **out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_host_alloc";
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out must not be NULL");
    *out = NULL;
    openreg_device *entry;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    if (size == 0)
        return OPENREG_OK;
    void *start;
    OPENREG_RETURN_NOT_OK(openreg_call_host_alloc(entry, call, size, &start));
    host_entry *block = malloc(sizeof *block);
    if (block == NULL) {
        (void)openreg_call_host_free(entry, call, start);
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the table of pinned blocks");
    }
    *block = (host_entry){.node.key = (uintptr_t)start, .block = {(uintptr_t)start, size, entry}};
    openreg_lock_acquire(&table_lock);
    insert(block);
    openreg_lock_release(&table_lock);
    *out = start;
    return OPENREG_OK;
}

openreg_status
openreg_host_free(void *ptr)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_host_free";
    if (ptr == NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    const uintptr_t start = (uintptr_t)ptr;
    openreg_device *device = NULL;
    uint64_t size = 0;
    openreg_lock_acquire(&table_lock);
    host_entry *entry = find_start(start);
    if (entry != NULL) {
        entry->freeing = true;
        device = entry->block.device;
        size = entry->block.size;
    }
    openreg_lock_release(&table_lock);
    if (openreg_is_observed(OPENREG_OBSERVE_USES))
        openreg_observers_block(OPENREG_BLOCK_GONE, ptr, size, OPENREG_HOST, 0);
    if (entry == NULL) {
        openreg_host_block around;
        if (openreg_host_memory_find(start, &around))
            return openreg_error_set(OPENREG_E_INVALID, call,
                                     "%p is inside a pinned block, %llu bytes behind its start; only the start of a "
                                     "block names it",
                                     ptr, (unsigned long long)(start - around.start));
        return openreg_error_set(OPENREG_E_INVALID, call, "%p is not pinned memory of %s, or was freed already", ptr,
                                 openreg_device_name());
    }
    const openreg_status status = openreg_call_host_free(device, call, ptr);
    openreg_lock_acquire(&table_lock);
    if (status == OPENREG_OK)
        remove_entry(entry);
    else
        entry->freeing = false;
    openreg_lock_release(&table_lock);
    if (status == OPENREG_OK)
        free(entry);
    return status;
}
