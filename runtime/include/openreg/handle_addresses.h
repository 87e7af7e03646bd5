/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/handle_addresses.h: addresses for a vendor that has handles of buffers and no addresses. For drivers; defined in this
 * header only. Not stable: it is version 0, and may change in any release; a driver keeps the copy that it was built with.
 * Valid C11 and C++17, with POSIX. docs/writing-a-driver.md has the recipe.
 *
 * A range of the process's address space stands for each buffer. No memory is behind it: an access faults. The runtime adds
 * offsets to its start; the table leads from any address in it to the buffer and the offset.
 *
 * Any function may be called from any thread. */
#ifndef OPENREG_HANDLE_ADDRESSES_H
#define OPENREG_HANDLE_ADDRESSES_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <openreg/export.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct openreg_handle_range {
    uintptr_t start;
    uint64_t size;    /* bytes of the buffer */
    uintptr_t mapped; /* what mmap() returned, and its bytes */
    uint64_t mapped_size;
    void *handle;
} openreg_handle_range;

/* Zeroed memory with `lock` made by pthread_mutex_init() is an empty table. */
typedef struct openreg_handle_table {
    pthread_mutex_t lock;
    openreg_handle_range *ranges; /* by start */
    size_t count, capacity;
} openreg_handle_table;

/* The number of ranges that start at or below `address`. The lock is held. */
OPENREG_HELPER size_t
openreg_handle_place(const openreg_handle_table *table, uintptr_t address)
{
    size_t first = 0, last = table->count;
    while (first < last) {
        const size_t middle = first + (last - first) / 2;
        if (table->ranges[middle].start <= address)
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

/* Reserves `size` > 0 bytes of addresses for a buffer, which must not be NULL; `alignment` is a power of two, or 0. NULL: there
 * is no host memory, or no address space. */
OPENREG_HELPER void *
openreg_handle_reserve(openreg_handle_table *table, uint64_t size, uint64_t alignment, void *handle)
{
    const uint64_t room = alignment <= 4096 ? size : size + alignment; /* pages are aligned to 4096 */
    if (room < size || room > (uint64_t)SIZE_MAX / 2)
        return NULL;
    void *const memory = mmap(NULL, (size_t)room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    const uintptr_t mapped = (uintptr_t)memory;
    const uintptr_t start = alignment <= 4096 ? mapped : (mapped + alignment - 1) & ~(uintptr_t)(alignment - 1);
    pthread_mutex_lock(&table->lock);
    if (table->count == table->capacity) {
        const size_t capacity = table->capacity == 0 ? 16 : 2 * table->capacity;
        void *const grown = realloc(table->ranges, capacity * sizeof *table->ranges);
        if (grown == NULL) {
            pthread_mutex_unlock(&table->lock);
            munmap(memory, (size_t)room);
            return NULL;
        }
        table->ranges = (openreg_handle_range *)grown;
        table->capacity = capacity;
    }
    const size_t at = openreg_handle_place(table, start);
    memmove(table->ranges + at + 1, table->ranges + at, (table->count - at) * sizeof *table->ranges);
    const openreg_handle_range range = {start, size, mapped, room, handle};
    table->ranges[at] = range;
    ++table->count;
    pthread_mutex_unlock(&table->lock);
    return (void *)start;
}

/* The buffer around an address, the address's offset in it, and the bytes from there to its end; NULL if there is none. `use`, unless it is NULL, is called with
 * the buffer while the table is locked: it may count a user, so that another thread's release doesn't end the buffer. */
OPENREG_HELPER void *
openreg_handle_find(openreg_handle_table *table, const void *address, uint64_t *offset, uint64_t *left,
                    void (*use)(void *handle))
{
    void *handle = NULL;
    pthread_mutex_lock(&table->lock);
    const size_t place = openreg_handle_place(table, (uintptr_t)address);
    if (place > 0) {
        const openreg_handle_range *const range = &table->ranges[place - 1];
        if ((uintptr_t)address - range->start < range->size) {
            handle = range->handle;
            *offset = (uintptr_t)address - range->start;
            *left = range->size - *offset;
            if (use != NULL)
                use(handle);
        }
    }
    pthread_mutex_unlock(&table->lock);
    return handle;
}

/* Takes a buffer out of the table and returns it; NULL if none starts at `start`. Its addresses stay reserved, and are no other
 * buffer's, until openreg_handle_unmap(*range). */
OPENREG_HELPER void *
openreg_handle_remove(openreg_handle_table *table, const void *start, openreg_handle_range *range)
{
    void *handle = NULL;
    pthread_mutex_lock(&table->lock);
    const size_t place = openreg_handle_place(table, (uintptr_t)start);
    if (place > 0 && table->ranges[place - 1].start == (uintptr_t)start) {
        *range = table->ranges[place - 1];
        handle = range->handle;
        memmove(table->ranges + place - 1, table->ranges + place, (table->count - place) * sizeof *table->ranges);
        --table->count;
    }
    pthread_mutex_unlock(&table->lock);
    return handle;
}

/* Gives the addresses of a removed range back to the process. */
OPENREG_HELPER void
openreg_handle_unmap(const openreg_handle_range *range)
{
    munmap((void *)range->mapped, (size_t)range->mapped_size);
}

/* Frees the table, in which no range is left. */
OPENREG_HELPER void
openreg_handle_table_free(openreg_handle_table *table)
{
    free(table->ranges);
    table->ranges = NULL;
    table->count = table->capacity = 0;
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_HANDLE_ADDRESSES_H */
