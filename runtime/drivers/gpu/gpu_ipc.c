/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_ipc.c: the extension "openreg.ipc" (openreg/ipc.h), by the vendor's handles. */
#include "gpu.h"

#include <string.h>

#include <openreg/ipc.h>

/* The vendors open a handle that was altered, too, and map less, or another part: `size` is the allocation's. */
typedef struct memory_handle {
    GPU(IpcMemHandle_t) native;
    uint64_t size;
} memory_handle;
static_assert(sizeof(memory_handle) <= OPENREG_IPC_HANDLE_MAX, "the vendor's handles are too long");

/* The bytes of the allocation of which `ptr` is the first; 0: it is the first of none. */
static openreg_status
find_size(const openreg_gpu_scope *scope, void *ptr, uint64_t *out)
{
    __typeof__(&GPU_VMM(MemGetAddressRange)) get_range = NULL;
    openreg_gpu_address start = GPU_ADDRESS(NULL);
    size_t size = 0;
    if (!openreg_gpu_find_optional(scope, GPU_VMM_NAME(MemGetAddressRange), &get_range))
        return openreg_fail(scope->instance->host, OPENREG_E_UNSUPPORTED, 0,
                            "the installed " GPU_VENDOR_TEXT " lacks the function " GPU_VMM_NAME(MemGetAddressRange));
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_check(scope, (openreg_gpu_code)get_range(&start, &size, GPU_ADDRESS(ptr)),
                                                GPU_VMM_NAME(MemGetAddressRange)));
    *out = start == GPU_ADDRESS(ptr) ? size : 0;
    return OPENREG_OK;
}

static openreg_status
handle_size(openreg_instance instance, uint32_t *out)
{
    (void)instance;
    *out = sizeof(memory_handle);
    return OPENREG_OK;
}

/* The vendors let in every process that may. */
static openreg_status
memory_export(openreg_instance instance, int32_t dev, void *ptr, const int32_t *processes, uint32_t count, void *out)
{
    (void)processes;
    (void)count;
    if (openreg_gpu_vmm_has(instance, dev, ptr)) /* the vendors' handles are for memory of Malloc() */
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0,
                            "memory of an expandable segment of device %d can't be shared with other processes; "
                            "allocate it with expandable_segments:False, or copy it to the host",
                            dev);
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    memory_handle handle;
    memset(&handle, 0, sizeof handle);
    openreg_status status = OPENREG_GPU_TRY(&scope, IpcGetMemHandle, &handle.native, ptr);
    if (status == OPENREG_OK)
        status = find_size(&scope, ptr, &handle.size);
    openreg_gpu_leave(&scope);
    if (status != OPENREG_OK)
        return status;
    if (handle.size == 0)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "%p is not the start of an allocation", ptr);
    memcpy(out, &handle, sizeof handle);
    return OPENREG_OK;
}

static openreg_status
memory_open(openreg_instance instance, int32_t dev, const void *from, void **out)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    memory_handle handle;
    void *memory = NULL;
    memcpy(&handle, from, sizeof handle);
    uint64_t size = 0;
    openreg_status status = OPENREG_GPU_TRY(&scope, IpcOpenMemHandle, &memory, handle.native, GPU_IPC_FLAG);
    if (status == OPENREG_OK) {
        status = find_size(&scope, memory, &size);
        if (status == OPENREG_OK && (size == 0 || size != handle.size))
            status = openreg_fail(instance->host, OPENREG_E_INVALID, 0, "the handle was altered on its way");
        const openreg_gpu_code closed = status != OPENREG_OK ? GPU_CALL(IpcCloseMemHandle)(memory) : GPU(Success);
        if (closed != GPU(Success))
            openreg_gpu_forget(&scope, closed);
    }
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK)
        *out = memory;
    return status;
}

static openreg_status
memory_close(openreg_instance instance, int32_t dev, void *ptr)
{
    if (openreg_gpu_is_lost(instance, dev)) /* the mapping went with it */
        return OPENREG_OK;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_peer_await(instance, dev));
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_status status = OPENREG_GPU_TRY(&scope, IpcCloseMemHandle, ptr);
    openreg_gpu_leave(&scope);
    return status;
}

const void *
openreg_gpu_extension(openreg_instance instance, const char *name, uint32_t version)
{
    static const openreg_ipc ipc = {
        .struct_size = sizeof(openreg_ipc),
        .version = OPENREG_IPC_VERSION,
        .handle_size = handle_size,
        .memory_export = memory_export,
        .memory_open = memory_open,
        .memory_close = memory_close,
    };
    if (strcmp(name, OPENREG_VMM_NAME) == 0 && version <= OPENREG_VMM_VERSION)
        return openreg_gpu_vmm_extension(instance);
    if (strcmp(name, OPENREG_COMM_NAME) == 0 && version <= OPENREG_COMM_VERSION)
        return openreg_gpu_comm_extension(instance);
    if (strcmp(name, OPENREG_GRAPH_NAME) == 0 && version <= OPENREG_GRAPH_VERSION)
        return openreg_gpu_graph_extension();
    return strcmp(name, OPENREG_IPC_NAME) == 0 && version <= OPENREG_IPC_VERSION ? &ipc : NULL;
}
