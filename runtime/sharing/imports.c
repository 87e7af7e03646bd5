/* SPDX-License-Identifier: BSD-3-Clause */
/* imports.c: device memory of other processes (sharing.h). A process has one mapping of an allocation, however often its
 * blocks are imported: vendors refuse a second one. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"
#include "base/lock.h"
#include "base/sized_struct.h"
#include "driver/driver_calls.h"
#include "exports.h"
#include "imports.h"
#include "leases.h"
#include "memory/cache.h"

typedef struct mapping {
    openreg_device *device;
    openreg_ipc_handle handle;
    uint64_t size;
    void *base;
    struct openreg_segment *segment;
    int references;
    struct mapping *next;
} mapping;

struct openreg_import_s {
    openreg_device *device;
    mapping *mapping; /* NULL: this process exported the memory itself */
    openreg_lease_file *leases;
    uint32_t slot;
};

/* Guards the list. Drivers are called with it held, because they refuse a second mapping of an allocation: only threads
 * that import or release an import wait for it. */
static openreg_lock lock = OPENREG_LOCK_INITIALIZER;
static mapping *mappings;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_IMPORTS, &lock);
}

/* This process's device that is the exporter's: of the same driver, with the same UUID or, if the driver has none, the
 * same number. */
static openreg_status
find_device(const char *call, const openreg_handle_fields *handle, openreg_device **out)
{
    static const char no_uuid[sizeof handle->uuid];
    openreg_device *device;
    OPENREG_RETURN_NOT_OK(openreg_part_device(call, 0, &device)); /* initialises */
    const bool has_uuid = memcmp(handle->uuid, no_uuid, sizeof no_uuid) != 0;
    for (int32_t i = 0, count = openreg_device_count(); i < count; i++) {
        if (openreg_part_device(call, i, &device) != OPENREG_OK ||
            strncmp(device->driver->name, handle->driver, sizeof handle->driver) != 0)
            continue;
        if (has_uuid ? memcmp(device->info.uuid, handle->uuid, sizeof handle->uuid) == 0
                     : device->ordinal == handle->ordinal) {
            *out = device;
            return OPENREG_OK;
        }
    }
    return openreg_error_set(OPENREG_E_NO_DEVICE, call,
                             "the memory is on device %d of driver \"%.31s\" of process %d, which is none of this "
                             "process's devices",
                             (int)handle->ordinal, handle->driver, (int)handle->process);
}

static openreg_status
close_mapping(const char *call, openreg_device *device, void *base)
{
    const openreg_ipc *ipc = NULL;
    OPENREG_RETURN_NOT_OK(openreg_sharing_extension(call, device->driver, &ipc));
    return OPENREG_PART_CALL(call, device, 1, ipc->memory_close(device->driver->instance, device->ordinal, base));
}

static openreg_status
open_mapping(const char *call, openreg_device *device, const openreg_handle_fields *handle, mapping **out)
{
    const openreg_ipc *ipc = NULL;
    uint32_t size = 0;
    OPENREG_RETURN_NOT_OK(openreg_sharing_extension(call, device->driver, &ipc));
    OPENREG_RETURN_NOT_OK(openreg_sharing_handle_size(call, device, ipc, &size));
    if (size != handle->allocation_bytes)
        return openreg_error_set(OPENREG_E_INVALID, call, "invalid memory handle for driver \"%s\"",
                                 device->driver->name);
    mapping *made = calloc(1, sizeof *made);
    if (made == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory to import memory");
    openreg_status status = OPENREG_PART_CALL(
        call, device, 0, ipc->memory_open(device->driver->instance, device->ordinal, &handle->allocation, &made->base));
    if (status == OPENREG_OK) {
        status = openreg_cache_adopt(call, device, made->base, handle->allocation_size, &made->segment);
        if (status == OPENREG_OK) {
            made->device = device;
            made->handle = handle->allocation;
            made->size = handle->allocation_size;
            *out = made;
            return OPENREG_OK;
        }
        const openreg_error_fields error = openreg_error_save();
        (void)close_mapping(call, device, made->base);
        openreg_error_restore(&error);
    }
    free(made);
    return status;
}

/* The mapping of an allocation, with a reference. The lock is held. */
static openreg_status
reach_mapping(const char *call, openreg_device *device, const openreg_handle_fields *handle, mapping **out)
{
    mapping *found = mappings;
    while (found != NULL && (found->device != device || found->size != handle->allocation_size ||
                             memcmp(&found->handle, &handle->allocation, sizeof found->handle) != 0))
        found = found->next;
    if (found == NULL) {
        OPENREG_RETURN_NOT_OK(open_mapping(call, device, handle, &found));
        found->next = mappings;
        mappings = found;
    }
    found->references++;
    *out = found;
    return OPENREG_OK;
}

/* Drops a reference; with the last one the mapping is removed, whatever the driver returns. */
static openreg_status
let_mapping_go(const char *call, mapping *held)
{
    openreg_status status = OPENREG_OK;
    openreg_fork_take(OPENREG_FORK_IMPORTS);
    if (--held->references == 0) {
        mapping **link = &mappings;
        while (*link != held)
            link = &(*link)->next;
        *link = held->next;
        openreg_cache_disown(held->segment);
        status = close_mapping(call, held->device, held->base);
        free(held);
    }
    openreg_fork_give(OPENREG_FORK_IMPORTS);
    return status;
}

openreg_status
openreg_imports_add(const openreg_memory_handle *given, openreg_import *out, int32_t *device, void **ptr)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_memory_import";
    bool was_first;
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    if (given == NULL || out == NULL || device == NULL || ptr == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "a pointer is NULL");
    if (!openreg_sized_is_valid(given, OPENREG_MEMORY_HANDLE_SIZE_1))
        return openreg_error_set(OPENREG_E_INVALID, call, "invalid memory handle");
    openreg_handle_fields own;
    openreg_sized_read(&own, sizeof own, given);
    if (own.version != OPENREG_HANDLE_VERSION)
        return openreg_error_set(OPENREG_E_INVALID, call, "invalid memory handle (version %u, not %u)",
                                 (unsigned)own.version, OPENREG_HANDLE_VERSION);
    const openreg_handle_fields *const handle = &own;
    struct openreg_import_s *import = calloc(1, sizeof *import);
    if (import == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory to import memory");
    import->slot = handle->slot;
    openreg_status status = openreg_lease_take(call, handle, &import->leases, &was_first);
    if (status == OPENREG_OK) {
        void *address = NULL;
        status = find_device(call, handle, &import->device);
        if (status == OPENREG_OK && openreg_lease_is_ours(handle)) {
            address = (void *)(uintptr_t)handle->address;
        } else if (status == OPENREG_OK) {
            openreg_fork_take(OPENREG_FORK_IMPORTS);
            status = reach_mapping(call, import->device, handle, &import->mapping);
            openreg_fork_give(OPENREG_FORK_IMPORTS);
            address = status == OPENREG_OK ? (char *)import->mapping->base + handle->offset : NULL;
        }
        if (status == OPENREG_OK) {
            (void)atomic_fetch_add_explicit(&import->device->live_imports, 1, memory_order_relaxed);
            *out = import;
            *device = import->device->index;
            *ptr = address;
            return OPENREG_OK;
        }
        openreg_lease_undo(import->leases, import->slot, was_first);
    }
    free(import);
    return status;
}

openreg_status
openreg_imports_release(openreg_import import)
{
    static const char call[] = "openreg_import_release";
    if (import == NULL)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_fork_reject(call));
    /* The exporter may reuse the memory as soon as the lease is released. */
    openreg_status status = openreg_call_device_sync(import->device, call);
    if (import->mapping != NULL) {
        const openreg_status closed = let_mapping_go(call, import->mapping);
        status = status == OPENREG_OK ? closed : status;
    }
    const bool is_ours = import->mapping == NULL;
    openreg_lease_release(import->leases, import->slot);
    (void)atomic_fetch_sub_explicit(&import->device->live_imports, 1, memory_order_relaxed);
    free(import);
    if (is_ours)
        (void)openreg_exports_collect();
    return status;
}
