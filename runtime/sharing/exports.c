/* SPDX-License-Identifier: BSD-3-Clause */
/* exports.c: device memory for other processes (sharing.h). */
#include "exports.h"

#include <stdlib.h>
#include <string.h>

#include "base/device_name.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/sized_struct.h"
#include "driver/extensions.h"
#include "leases.h"
#include "memory/cache.h"

typedef struct export_handle {
    uint32_t slot;
    struct export_handle *next;
} export_handle;

/* An exported block that its owner has not freed, or that is still held. */
typedef struct exported_block {
    void *ptr; /* the start of the block */
    bool is_freed;
    export_handle *handles; /* that were held at the last check */
    struct exported_block *next;
} exported_block;

/* Guards the list; taken before any other lock of the runtime. Drivers are called with it held, so that no block is freed
 * between its export and its entry here: only threads that export, free an exported block or are out of memory wait for it. */
static openreg_lock lock = OPENREG_LOCK_INITIALIZER;
static exported_block *blocks;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_EXPORTS, &lock);
}

openreg_status
openreg_sharing_extension(const char *call, const openreg_opened_driver *driver, const openreg_ipc **out)
{
    const void *ipc = NULL;
    OPENREG_RETURN_NOT_OK(openreg_call_extension(call, driver, &openreg_extension_ipc, &ipc));
    if (ipc == NULL)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, call,
                                 "driver \"%s\" can't share memory with other processes; copy to the host "
                                 "first",
                                 driver->name);
    *out = ipc;
    return OPENREG_OK;
}

openreg_status
openreg_sharing_handle_size(const char *call, openreg_device *device, const openreg_ipc *ipc, uint32_t *out)
{
    uint32_t size = 0;
    OPENREG_RETURN_NOT_OK(OPENREG_PART_CALL(call, device, 0, ipc->handle_size(device->driver->instance, &size)));
    if (size == 0 || size > OPENREG_IPC_HANDLE_MAX)
        return openreg_error_set_driver(OPENREG_E_INTERNAL, call, device->driver->name,
                                        "handle_size gave %u bytes, not 1 to %u", (unsigned)size,
                                        OPENREG_IPC_HANDLE_MAX);
    *out = size;
    return OPENREG_OK;
}

/* The lock is held. */
static exported_block *
find_entry(const void *ptr)
{
    exported_block *block = blocks;
    while (block != NULL && block->ptr != ptr)
        block = block->next;
    return block;
}

static void
forget_released(exported_block *block)
{
    export_handle **link = &block->handles;
    while (*link != NULL) {
        export_handle *handle = *link;
        if (openreg_lease_is_held(handle->slot)) {
            link = &handle->next;
            continue;
        }
        *link = handle->next;
        openreg_lease_end(handle->slot);
        free(handle);
    }
}

int32_t
openreg_exports_collect(void)
{
    int32_t count = 0;
    if (openreg_in_bad_fork())
        return 0;
    const openreg_error_fields before = openreg_error_save();
    openreg_fork_take(OPENREG_FORK_EXPORTS);
    openreg_lease_look();
    for (exported_block **link = &blocks; *link != NULL;) {
        exported_block *block = *link;
        forget_released(block);
        if (!block->is_freed || block->handles != NULL) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        if (openreg_cache_take_back(block->ptr) && openreg_free(block->ptr) == OPENREG_OK)
            count++;
        free(block);
    }
    openreg_fork_give(OPENREG_FORK_EXPORTS);
    openreg_error_restore(&before);
    return count;
}

void
openreg_exports_free(void *ptr)
{
    openreg_fork_take(OPENREG_FORK_EXPORTS);
    exported_block *block = find_entry(ptr);
    if (block != NULL)
        block->is_freed = true;
    else if (openreg_cache_take_back(ptr)) /* no export of it has succeeded */
        (void)openreg_free(ptr);
    openreg_fork_give(OPENREG_FORK_EXPORTS);
    (void)openreg_exports_collect();
}

static openreg_status
export_locked(const char *call, const void *ptr, const openreg_shared_block *shared, const int32_t *processes,
              uint32_t count, openreg_handle_fields *handle)
{
    openreg_device *device = shared->device;
    const openreg_ipc *ipc = NULL;
    OPENREG_RETURN_NOT_OK(openreg_sharing_extension(call, device->driver, &ipc));
    OPENREG_RETURN_NOT_OK(openreg_sharing_handle_size(call, device, ipc, &handle->allocation_bytes));
    OPENREG_RETURN_NOT_OK(
        OPENREG_PART_CALL(call, device, 0,
                          ipc->memory_export(device->driver->instance, device->ordinal, shared->allocation, processes,
                                             count, &handle->allocation)));
    exported_block *block = find_entry(shared->block);
    export_handle *listed = calloc(1, sizeof *listed);
    if (block == NULL && listed != NULL && (block = calloc(1, sizeof *block)) != NULL) {
        block->ptr = shared->block;
        block->next = blocks;
        blocks = block;
    }
    if (block == NULL || listed == NULL) {
        free(listed);
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory to export memory of %s:%d",
                                 openreg_device_name(), device->index);
    }
    handle->version = OPENREG_HANDLE_VERSION;
    handle->ordinal = device->ordinal;
    handle->address = (uintptr_t)ptr;
    handle->size = shared->requested - (uint64_t)((const char *)ptr - (const char *)shared->block);
    handle->offset = (uint64_t)((const char *)ptr - (const char *)shared->allocation);
    handle->allocation_size = shared->allocation_size;
    memcpy(handle->uuid, device->info.uuid, sizeof handle->uuid);
    memcpy(handle->driver, device->driver->name, sizeof handle->driver);
    const openreg_status status = openreg_lease_grant(call, handle);
    if (status != OPENREG_OK) {
        free(listed);
        return status;
    }
    listed->slot = handle->slot;
    listed->next = block->handles;
    block->handles = listed;
    return OPENREG_OK;
}

openreg_status
openreg_exports_add(const void *ptr, const int32_t *processes, uint32_t count, openreg_memory_handle *inout)
{
    static const char call[] = "openreg_memory_export";
    openreg_handle_fields handle;
    openreg_shared_block shared;
    if (!openreg_sized_is_valid(inout, OPENREG_MEMORY_HANDLE_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call, "inout is NULL or its struct_size not set");
    if (processes == NULL && count > 0)
        return openreg_error_set(OPENREG_E_INVALID, call, "processes is NULL");
    memset(&handle, 0, sizeof handle); /* also the padding: the bytes are sent to another process */
    (void)openreg_exports_collect();
    openreg_fork_take(OPENREG_FORK_EXPORTS);
    openreg_status status = openreg_cache_share(call, ptr, &shared);
    if (status == OPENREG_OK)
        status = export_locked(call, ptr, &shared, processes, count, &handle);
    openreg_fork_give(OPENREG_FORK_EXPORTS);
    if (status == OPENREG_OK)
        openreg_sized_write(inout, &handle, sizeof handle);
    return status;
}
