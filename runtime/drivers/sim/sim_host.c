/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_host.c: pinned host memory of the simulated devices, and whose memory an address is. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Index of the first block that starts above `address`. */
static size_t
first_above(openreg_instance instance, uintptr_t address)
{
    size_t low = 0, high = instance->pinned_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (instance->pinned[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool
reserve_pinned(openreg_instance instance)
{
    if (instance->pinned_count < instance->pinned_room)
        return true;
    const size_t room = instance->pinned_room == 0 ? 16 : 2 * instance->pinned_room;
    openreg_sim_pinned *pinned = realloc(instance->pinned, room * sizeof *pinned);
    if (pinned == NULL)
        return false;
    instance->pinned = pinned;
    instance->pinned_room = room;
    return true;
}

openreg_status
openreg_sim_host_alloc(openreg_instance instance, uint64_t size, void **out)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t rounded = size <= UINT64_MAX - page ? (size + page - 1) / page * page : UINT64_MAX / page * page;
    void *start = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, errno, "no pinned host memory of %llu bytes: %s",
                            (unsigned long long)size, strerror(errno));
    (void)pthread_mutex_lock(&instance->pinned_lock);
    const bool room = reserve_pinned(instance);
    if (room) {
        const size_t at = first_above(instance, (uintptr_t)start);
        memmove(&instance->pinned[at + 1], &instance->pinned[at],
                (instance->pinned_count - at) * sizeof instance->pinned[0]);
        instance->pinned[at] = (openreg_sim_pinned){(uintptr_t)start, rounded};
        instance->pinned_count++;
    }
    (void)pthread_mutex_unlock(&instance->pinned_lock);
    if (!room) {
        (void)munmap(start, rounded);
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "out of host memory for metadata of pinned memory");
    }
    *out = start;
    return OPENREG_OK;
}

openreg_status
openreg_sim_host_free(openreg_instance instance, void *ptr)
{
    const uintptr_t start = (uintptr_t)ptr;
    uint64_t size = 0;
    (void)pthread_mutex_lock(&instance->pinned_lock);
    const size_t above = first_above(instance, start);
    if (above > 0 && instance->pinned[above - 1].start == start)
        size = instance->pinned[above - 1].size;
    (void)pthread_mutex_unlock(&instance->pinned_lock);
    if (size == 0)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "host_free: %p is not pinned memory", ptr);

    /* As for device memory: queued copies may still use it. */
    for (int32_t i = 0; i < instance->device_count; i++)
        openreg_sim_device_await(&instance->devices[i]);
    (void)pthread_mutex_lock(&instance->pinned_lock);
    const size_t at = first_above(instance, start) - 1;
    instance->pinned_count--;
    memmove(&instance->pinned[at], &instance->pinned[at + 1],
            (instance->pinned_count - at) * sizeof instance->pinned[0]);
    (void)pthread_mutex_unlock(&instance->pinned_lock);
    (void)munmap(ptr, size);
    return OPENREG_OK;
}

bool
openreg_sim_is_pinned(openreg_instance instance, const void *ptr, uint64_t size)
{
    (void)pthread_mutex_lock(&instance->pinned_lock);
    const size_t above = first_above(instance, (uintptr_t)ptr);
    bool inside = false;
    if (above > 0) {
        const openreg_sim_pinned *block = &instance->pinned[above - 1];
        const uint64_t offset = (uintptr_t)ptr - block->start;
        inside = offset < block->size && size <= block->size - offset;
    }
    (void)pthread_mutex_unlock(&instance->pinned_lock);
    return inside;
}
