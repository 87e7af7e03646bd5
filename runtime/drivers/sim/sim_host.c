/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_host.c: pinned host memory of the simulated devices, and the owner of an address. */
#define _GNU_SOURCE
#include "sim_schedule.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The block that starts at `address` or, of those before it, last; or NULL. The lock is held. */
static openreg_sim_pinned *
at_or_before(openreg_instance instance, uintptr_t address)
{
    return OPENREG_SIM_OWNER(openreg_sim_tree_at_most(instance->pinned, address), openreg_sim_pinned, node);
}

openreg_status
openreg_sim_host_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    (void)dev;
    OPENREG_SIM_RETURN_NOT_OK(openreg_alloc_check(instance->host, info, page));
    const uint64_t rounded = info->size <= UINT64_MAX - page ? (info->size + page - 1) / page * page
                                                             : UINT64_MAX / page * page;
    void *start = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, errno, "no pinned host memory of %llu bytes: %s",
                            (unsigned long long)info->size, strerror(errno));
    openreg_sim_pinned *block = malloc(sizeof *block);
    if (block == NULL) {
        (void)munmap(start, rounded);
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "out of host memory for metadata of pinned memory");
    }
    *block = (openreg_sim_pinned){.node.key = (uintptr_t)start, .size = rounded};
    (void)pthread_mutex_lock(&instance->pinned_lock);
    openreg_sim_tree_insert(&instance->pinned, &block->node);
    (void)pthread_mutex_unlock(&instance->pinned_lock);
    openreg_sim_schedule_poison(instance, start, info->size);
    *out = start;
    return OPENREG_OK;
}

openreg_status
openreg_sim_host_free(openreg_instance instance, int32_t dev, void *ptr)
{
    (void)dev;
    const uintptr_t start = (uintptr_t)ptr;
    (void)pthread_mutex_lock(&instance->pinned_lock);
    openreg_sim_pinned *block = at_or_before(instance, start);
    const bool found = block != NULL && block->node.key == start;
    (void)pthread_mutex_unlock(&instance->pinned_lock);
    if (!found)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "host_free: %p is not pinned memory", ptr);

    openreg_sim_await_all(instance);
    (void)pthread_mutex_lock(&instance->pinned_lock);
    openreg_sim_tree_remove(&instance->pinned, &block->node);
    (void)pthread_mutex_unlock(&instance->pinned_lock);
    (void)munmap(ptr, block->size);
    free(block);
    return OPENREG_OK;
}

bool
openreg_sim_is_pinned(openreg_instance instance, const void *ptr, uint64_t size)
{
    (void)pthread_mutex_lock(&instance->pinned_lock);
    const openreg_sim_pinned *block = at_or_before(instance, (uintptr_t)ptr);
    const uint64_t offset = block == NULL ? 0 : (uintptr_t)ptr - block->node.key;
    const bool inside = block != NULL && offset < block->size && size <= block->size - offset;
    (void)pthread_mutex_unlock(&instance->pinned_lock);
    return inside;
}

void
openreg_sim_host_destroy(openreg_instance instance)
{
    while (instance->pinned != NULL) {
        openreg_sim_pinned *block = OPENREG_SIM_OWNER(instance->pinned, openreg_sim_pinned, node);
        openreg_sim_tree_remove(&instance->pinned, &block->node);
        free(block);
    }
}
