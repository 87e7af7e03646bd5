/* SPDX-License-Identifier: BSD-3-Clause */
/* host_memory.c: pinned host memory: the driver makes it, a sorted table remembers it. */
#define _GNU_SOURCE
#include "memory/host_memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "driver/driver_calls.h"

typedef struct host_entry {
    openreg_host_block block;
    bool freeing; /* the driver is about to take it; its address may come up again before the entry goes */
} host_entry;

static openreg_lock table_lock = OPENREG_LOCK_INITIALIZER; /* guards the three below; never held in a driver's call */
static host_entry *entries;                                /* sorted by start */
static size_t entry_room;
static atomic_size_t entry_count; /* written under the lock; 0 is read without it */

static size_t
count_of_entries(void)
{
    return atomic_load_explicit(&entry_count, memory_order_relaxed);
}

/* Index of the first entry that starts above `address`. The lock is held. */
static size_t
first_above(uintptr_t address)
{
    size_t low = 0, high = count_of_entries();
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (entries[middle].block.start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The lock is held. */
static bool
insert(const openreg_host_block *block)
{
    const size_t count = count_of_entries();
    if (count == entry_room) {
        const size_t room = entry_room == 0 ? 32 : 2 * entry_room;
        host_entry *grown = realloc(entries, room * sizeof *grown);
        if (grown == NULL)
            return false;
        entries = grown;
        entry_room = room;
    }
    const size_t at = first_above(block->start);
    memmove(&entries[at + 1], &entries[at], (count - at) * sizeof entries[0]);
    entries[at] = (host_entry){*block, false};
    atomic_store_explicit(&entry_count, count + 1, memory_order_relaxed);
    return true;
}

/* The lock is held. An empty table keeps no memory. */
static void
remove_at(size_t at)
{
    const size_t count = count_of_entries() - 1;
    memmove(&entries[at], &entries[at + 1], (count - at) * sizeof entries[0]);
    atomic_store_explicit(&entry_count, count, memory_order_relaxed);
    if (count == 0) {
        free(entries);
        entries = NULL;
        entry_room = 0;
    }
}

/* The entry that starts at `start` and is, or is not, being freed; NULL if there is none. The lock is held. */
static host_entry *
find_start(uintptr_t start, bool freeing)
{
    for (size_t at = first_above(start); at > 0 && entries[at - 1].block.start == start; at--)
        if (entries[at - 1].freeing == freeing)
            return &entries[at - 1];
    return NULL;
}

bool
openreg_host_memory_find(uintptr_t address, openreg_host_block *out)
{
    if (count_of_entries() == 0)
        return false;
    bool found = false;
    openreg_lock_acquire(&table_lock);
    size_t at = first_above(address);
    while (at > 0 && entries[at - 1].freeing)
        at--;
    if (at > 0 && address - entries[at - 1].block.start < entries[at - 1].block.size) {
        *out = entries[at - 1].block;
        found = true;
    }
    openreg_lock_release(&table_lock);
    return found;
}

int64_t
openreg_host_memory_live_blocks(const openreg_device *device)
{
    int64_t live = 0;
    openreg_lock_acquire(&table_lock);
    for (size_t i = 0; i < count_of_entries(); i++)
        live += entries[i].block.device == device;
    openreg_lock_release(&table_lock);
    return live;
}

openreg_status
openreg_malloc_host(int32_t device, size_t size, void **out)
{
    static const char call[] = "openreg_malloc_host";
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out must not be NULL");
    *out = NULL;
    openreg_device *entry;
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    if (size == 0)
        return OPENREG_OK;
    void *start;
    OPENREG_RETURN_NOT_OK(openreg_call_host_alloc(entry, call, size, &start));
    const openreg_host_block block = {(uintptr_t)start, size, entry};
    openreg_lock_acquire(&table_lock);
    const bool inserted = insert(&block);
    openreg_lock_release(&table_lock);
    if (!inserted) {
        (void)openreg_call_host_free(entry, call, start);
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for the table of pinned blocks");
    }
    *out = start;
    return OPENREG_OK;
}

openreg_status
openreg_free_host(void *ptr)
{
    static const char call[] = "openreg_free_host";
    if (ptr == NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    const uintptr_t start = (uintptr_t)ptr;
    openreg_device *device = NULL;
    openreg_lock_acquire(&table_lock);
    host_entry *entry = find_start(start, false);
    if (entry != NULL) {
        entry->freeing = true;
        device = entry->block.device;
    }
    openreg_lock_release(&table_lock);
    if (entry == NULL) {
        openreg_host_block around;
        if (openreg_host_memory_find(start, &around))
            return openreg_error_set(OPENREG_E_INVALID, call,
                                     "%p is inside a pinned block, %llu bytes behind its start; only the start of a "
                                     "block names it",
                                     ptr, (unsigned long long)(start - around.start));
        return openreg_error_set(OPENREG_E_INVALID, call, "%p is not pinned memory of openreg, or was freed already",
                                 ptr);
    }
    const openreg_status status = openreg_call_host_free(device, call, ptr);
    openreg_lock_acquire(&table_lock);
    entry = find_start(start, true);
    if (status == OPENREG_OK)
        remove_at((size_t)(entry - entries));
    else
        entry->freeing = false;
    openreg_lock_release(&table_lock);
    return status;
}
