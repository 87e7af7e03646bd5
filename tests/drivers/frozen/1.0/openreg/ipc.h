/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/ipc.h: sharing device memory between processes: the driver extension "openreg.ipc", version 1.
 * Valid C11 and C++17.
 *
 *   const openreg_ipc *ipc = table->extension(instance, OPENREG_IPC_NAME, OPENREG_IPC_VERSION);
 *
 * NULL: the driver does not share. driver.h's rules on threads, devices, errors and ownership hold here too. A handle is
 * handle_size() bytes without pointers, which may be sent to the other process by any means; that process uses the same
 * driver and device. A handle is valid while the allocation that it was made from lives.
 *   Who may import   Processes of the same user on the same machine. A vendor may restrict this to the processes that the
 *                    exporter names by their ids; it is guaranteed that these can import, not that others can't. */
#ifndef OPENREG_IPC_H
#define OPENREG_IPC_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_IPC_NAME "openreg.ipc"
#define OPENREG_IPC_VERSION 1u
#define OPENREG_IPC_HANDLE_MAX 256u

/* Room for a handle of any driver. */
typedef struct openreg_ipc_handle {
    unsigned char bytes[OPENREG_IPC_HANDLE_MAX];
} openreg_ipc_handle;

/* Every function is required. */
typedef struct openreg_ipc {
    uint32_t struct_size, version; /* sizeof(openreg_ipc), OPENREG_IPC_VERSION as compiled into the driver */

    /* Bytes of a handle: 1 to OPENREG_IPC_HANDLE_MAX, constant from open() to close(). */
    openreg_status (*handle_size)(openreg_instance, uint32_t *out);
    /* Makes a handle of a whole allocation: `ptr` is what mem_alloc() returned, or a reservation of openreg/vmm.h, of which
     * the handle covers all memory that is mapped now, up to the last piece. If it has grown it is exported once more, and
     * both handles may be open at once. The allocation must outlive its use elsewhere; mem_free() does not wait for other
     * processes. `processes` will import it; `count` 0: any that may. E_INVALID: no such allocation. E_UNSUPPORTED: the
     * vendor can't share this memory (perhaps no reservation at all), or must know the processes. */
    openreg_status (*memory_export)(openreg_instance, int32_t dev, void *ptr, const int32_t *processes, uint32_t count,
                                    void *handle);
    /* The allocation's address in this process. The driver must not trust sizes and offsets in a handle: it may have been
     * altered on its way. E_INVALID: no such handle, it was made by this very process, or the vendor refuses this
     * process. E_UNSUPPORTED: the machine can't. */
    openreg_status (*memory_open)(openreg_instance, int32_t dev, const void *handle, void **out);
    /* Ends the use of what memory_open() returned, after work queued on it has ended. The memory lives on. */
    openreg_status (*memory_close)(openreg_instance, int32_t dev, void *ptr);
} openreg_ipc;

#define OPENREG_IPC_SIZE_1 40u
static_assert(sizeof(openreg_ipc) == OPENREG_IPC_SIZE_1, "append a function, then freeze its size");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_IPC_H */
