/* SPDX-License-Identifier: BSD-3-Clause */
/* memory.c: describing addresses, host aliases, free memory. malloc and free are in cache.c. */
#define _GNU_SOURCE
#include <string.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"
#include "base/sized_struct.h"
#include "driver/driver_calls.h"
#include "memory/cache.h"
#include "memory/host_memory.h"

/* The range of a caller's device address. False for anything else, and in a bad fork, which has no table. */
static inline bool
find_device_address(const void *ptr, openreg_found_range *found)
{
    return openreg_device_table_peek() != NULL && openreg_address_map_find(ptr, found) && !found->alias;
}

openreg_status
openreg_reject_address(const char *call, const void *ptr)
{
    openreg_found_range found;
    openreg_host_block pinned;
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    if (openreg_address_map_find(ptr, &found))
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "%p is the host's alias of memory of %s:%d, not its device address", ptr,
                                 openreg_device_name(), found.info.device->index);
    if (openreg_host_memory_find((uintptr_t)ptr, &pinned))
        return openreg_error_set(OPENREG_E_INVALID, call, "%p is pinned host memory, not device memory", ptr);
    return openreg_error_set(OPENREG_E_INVALID, call, "%p is not memory of %s, or was freed already", ptr,
                             openreg_device_name());
}

static void
describe(const void *ptr, openreg_pointer_info *info)
{
    openreg_found_range found;
    openreg_block_view block;
    openreg_host_block pinned;
    if (openreg_address_map_find(ptr, &found)) {
        const uintptr_t shift = found.alias ? found.info.distance : 0;
        if (!openreg_cache_view(&found, (uintptr_t)ptr - shift, &block))
            return;
        info->kind = found.alias ? OPENREG_POINTER_ALIAS : OPENREG_POINTER_DEVICE;
        info->device = found.info.device->index;
        info->live = block.live;
        info->base = (void *)(block.address + shift);
        info->size = block.live ? block.requested : block.size;
    } else if (openreg_host_memory_find((uintptr_t)ptr, &pinned)) {
        info->kind = OPENREG_POINTER_PINNED;
        info->live = 1;
        info->base = (void *)pinned.start;
        info->size = pinned.size;
    }
}

openreg_status
openreg_pointer_get_info(const void *ptr, openreg_pointer_info *inout)
{
    static const char call[] = "openreg_pointer_get_info";
    if (!openreg_sized_is_valid(inout, OPENREG_POINTER_INFO_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "struct_size must be set to the size of openreg_pointer_info");
    openreg_pointer_info info = {.kind = OPENREG_POINTER_UNKNOWN, .device = -1};
    if (openreg_device_table_peek() == NULL)
        OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    else
        describe(ptr, &info);
    openreg_sized_write(inout, &info, sizeof info);
    return OPENREG_OK;
}

openreg_status
openreg_host_alias(const void *device_ptr, void **host_ptr)
{
    static const char call[] = "openreg_host_alias";
    openreg_found_range found;
    if (host_ptr == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "host_ptr must not be NULL");
    if (!find_device_address(device_ptr, &found))
        return openreg_reject_address(call, device_ptr);
    if ((found.info.flags & OPENREG_RANGE_VISIBLE) == 0)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, call,
                                 "memory of %s:%d (driver \"%s\") is not visible to the host", openreg_device_name(),
                                 found.info.device->index, found.info.device->driver->name);
    *host_ptr = (void *)((uintptr_t)device_ptr + found.info.distance);
    return OPENREG_OK;
}

openreg_status
openreg_device_address(const void *host_ptr, void **device_ptr)
{
    static const char call[] = "openreg_device_address";
    openreg_found_range found;
    if (device_ptr == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "device_ptr must not be NULL");
    if (openreg_device_table_peek() == NULL)
        OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    /* Where alias and device address are the same, the map says "device". */
    const bool ours = openreg_address_map_find(host_ptr, &found);
    if (!ours || !(found.alias || ((found.info.flags & OPENREG_RANGE_VISIBLE) != 0 && found.info.distance == 0)))
        return openreg_error_set(OPENREG_E_INVALID, call, "%p is not the host's alias of device memory%s", host_ptr,
                                 ours ? ", but a device address itself" : "");
    *device_ptr = (void *)((uintptr_t)host_ptr - found.info.distance);
    return OPENREG_OK;
}

openreg_status
openreg_memory_get_info(int32_t device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_get_info";
    openreg_device *entry;
    if (free_bytes == NULL || total_bytes == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "free_bytes and total_bytes must not be NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, device, &entry));
    const openreg_status status = openreg_call_mem_info(entry, call, free_bytes, total_bytes);
    if (status != OPENREG_E_UNSUPPORTED)
        return status;
    const uint64_t known = entry->info.total_bytes, total = known != 0 ? known : OPENREG_MEMORY_UNKNOWN;
    const uint64_t reserved = openreg_cache_reserved(entry->cache);
    *total_bytes = total;
    *free_bytes = total > reserved ? total - reserved : 0;
    return OPENREG_OK;
}
