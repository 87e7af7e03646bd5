/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_ipc.c: the extension "openreg.ipc" (openreg/ipc.h), by the vendor's handles. */
#include "gpu.h"

#include <string.h>

#include <openreg/ipc.h>

static_assert(sizeof(GPU(IpcMemHandle_t)) <= OPENREG_IPC_HANDLE_MAX, "the vendor's handles are too long");

static openreg_status
handle_size(openreg_instance instance, uint32_t *out)
{
    (void)instance;
    *out = sizeof(GPU(IpcMemHandle_t));
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
    GPU(IpcMemHandle_t) native;
    const openreg_status status = OPENREG_GPU_TRY(&scope, IpcGetMemHandle, &native, ptr);
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK)
        memcpy(out, &native, sizeof native);
    return status;
}

static openreg_status
memory_open(openreg_instance instance, int32_t dev, const void *handle, void **out)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    GPU(IpcMemHandle_t) native;
    void *memory = NULL;
    memcpy(&native, handle, sizeof native);
    const openreg_status status = OPENREG_GPU_TRY(&scope, IpcOpenMemHandle, &memory, native, GPU_IPC_FLAG);
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
