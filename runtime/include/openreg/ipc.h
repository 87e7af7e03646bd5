/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/ipc.h: sharing device memory between processes: the driver extension "openreg.ipc", version 1.
 * Valid C11 and C++17.
 *
 *   const openreg_ipc *ipc = table->extension(instance, OPENREG_IPC_NAME, OPENREG_IPC_VERSION);
 *
 * NULL: the driver does not share. driver.h's rules on threads, devices, errors and ownership hold here too. A handle
 * is 64 bytes without pointers, which go to the other process by whatever way it likes; that process uses the same
 * driver and device. A handle is valid while the allocation that it was made from lives. */
#ifndef OPENREG_IPC_H
#define OPENREG_IPC_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_IPC_NAME "openreg.ipc"
#define OPENREG_IPC_VERSION 1u
#define OPENREG_IPC_HANDLE_SIZE 64u

typedef struct openreg_ipc_handle {
    unsigned char bytes[OPENREG_IPC_HANDLE_SIZE]; /* opaque */
} openreg_ipc_handle;

typedef struct openreg_ipc {
    uint32_t struct_size, version; /* sizeof(openreg_ipc), OPENREG_IPC_VERSION as compiled into the driver */

    /* A handle of a whole allocation: `ptr` is what mem_alloc() returned. The allocation must outlive its use
     * elsewhere; mem_free() does not wait for other processes. E_INVALID: no such allocation. */
    openreg_status (*memory_export)(openreg_instance, int32_t dev, void *ptr, openreg_ipc_handle *out);
    /* The allocation's address in this process. E_INVALID: no such handle, or it was made by this very process.
     * E_UNSUPPORTED: the machine can't. */
    openreg_status (*memory_open)(openreg_instance, int32_t dev, const openreg_ipc_handle *, void **out);
    /* Ends the use of what memory_open() returned, after work queued on it has ended. The memory lives on. */
    openreg_status (*memory_close)(openreg_instance, int32_t dev, void *ptr);
} openreg_ipc;

#define OPENREG_IPC_SIZE_1 32u
static_assert(sizeof(openreg_ipc) == OPENREG_IPC_SIZE_1, "append a function, then freeze its size");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_IPC_H */
