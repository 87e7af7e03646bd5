/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/sharing.h: device memory in several processes at once. Valid C11 and C++17.
 *
 * One process exports, another imports; both use the same driver, which has the extension "openreg.ipc" (ipc.h), and run
 * as the same user on one machine. openreg.h's rules hold here too.
 *
 *   exporter:  openreg_memory_handle handle = {.struct_size = sizeof handle};
 *              openreg_memory_export(block, &handle);    // then send the bytes of the handle to the other process
 *   importer:  openreg_memory_import(&handle, &import, &device, &pointer);
 *              ... openreg_import_release(import);
 *
 * The exporter may free its block at any time: openreg_free() keeps it from reuse while another process holds it or may
 * still import it. A handle is held from its export until its last import is released, or until the processes that have
 * imported it have ended, in any way (openreg_memory_collect_exports() notices that). A handle that is never imported keeps
 * its block until the exporter ends; so does one that a process of another PID namespace, or a fifth process at once, has
 * imported and not released.
 * Writes by one process are visible to the other; the programs must synchronise them. The cost of an export, and of freeing
 * an exported block, grows with the number of exports. */
#ifndef OPENREG_SHARING_H
#define OPENREG_SHARING_H

#include <openreg/ipc.h>
#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Plain bytes, which are sent to the other process unchanged. */
typedef struct openreg_memory_handle {
    uint32_t struct_size;     /* set by the caller of openreg_memory_export() */
    uint32_t version;         /* of what is in `bytes` */
    uint64_t size;            /* bytes from the exported pointer to the end of the block as it was requested */
    uint64_t name[3];         /* the same in every handle of this memory, and in no other handle */
    unsigned char bytes[344]; /* private to the runtime */
} openreg_memory_handle;

#define OPENREG_MEMORY_HANDLE_SIZE_1 384u
static_assert(sizeof(openreg_memory_handle) == OPENREG_MEMORY_HANDLE_SIZE_1, "append a field, then freeze its size");

typedef struct openreg_import_s *openreg_import; /* owned by the caller until openreg_import_release() */

/* The functions in libopenreg_sharing.so, which the first call below loads from the folder of libopenreg.so. */
typedef struct openreg_sharing {
    uint32_t struct_size, reserved;
    openreg_status (*export_to)(const void *ptr, const int32_t *processes, uint32_t count,
                                openreg_memory_handle *inout);
    openreg_status (*import_from)(const openreg_memory_handle *handle, openreg_import *out, int32_t *device,
                                  void **ptr);
    openreg_status (*release)(openreg_import held);
} openreg_sharing;

#define OPENREG_SHARING_SIZE_1 32u
static_assert(sizeof(openreg_sharing) == OPENREG_SHARING_SIZE_1, "append a function, then freeze its size");

/* Loads the library, unless it is loaded. NULL: it can't be; openreg_last_error() then has OPENREG_E_INCOMPATIBLE. */
OPENREG_API const openreg_sharing *openreg_sharing_get(void);

#define OPENREG_SHARING_CALL(function, ...)                                                                            \
    const openreg_sharing *const sharing = openreg_sharing_get();                                                      \
    return sharing != NULL ? sharing->function(__VA_ARGS__) : OPENREG_E_INCOMPATIBLE

/* Makes a handle of the memory that begins at `ptr`, anywhere in a live block. The caller first waits for its work on the
 * memory. Errors: OPENREG_E_INVALID (not in a live block of this process, NULL, struct_size not set), OPENREG_E_UNSUPPORTED
 * (the driver can't share memory), OPENREG_E_NOMEM (too many handles are held), the driver's. */
static inline OPENREG_WARN_UNUSED openreg_status
openreg_memory_export(const void *ptr, openreg_memory_handle *inout)
{
    OPENREG_SHARING_CALL(export_to, ptr, NULL, 0, inout);
}

/* The same for known processes, as some vendors require (ipc.h). `count` 0: as openreg_memory_export(). */
static inline OPENREG_WARN_UNUSED openreg_status
openreg_memory_export_to(const void *ptr, const int32_t *processes, uint32_t count, openreg_memory_handle *inout)
{
    OPENREG_SHARING_CALL(export_to, ptr, processes, count, inout);
}

/* Imports the memory of a handle, on this process's device that is the exporter's. A process may import one handle
 * repeatedly. The exporter may import its own, and gets its own address. Until the release the memory is like a block of
 * openreg_malloc(), but can't be freed.
 * Errors: OPENREG_E_INVALID (no such handle: the exporter has ended, or it was imported and released already),
 * OPENREG_E_NO_DEVICE (this process does not have the device), OPENREG_E_UNSUPPORTED (the driver or the system refuses),
 * OPENREG_E_NOMEM, the driver's. */
static inline OPENREG_WARN_UNUSED openreg_status
openreg_memory_import(const openreg_memory_handle *handle, openreg_import *out, int32_t *device, void **ptr)
{
    OPENREG_SHARING_CALL(import_from, handle, out, device, ptr);
}

/* Waits for the work of the device, and releases the memory. NULL is accepted. Errors: OPENREG_E_FORKED (the import belongs
 * to the parent process and is not released), the driver's (the import is released all the same). */
static inline openreg_status
openreg_import_release(openreg_import held)
{
    OPENREG_SHARING_CALL(release, held);
}

/* Makes blocks reusable that were freed while other processes held them, and that these have released since (a process that
 * has ended has released everything). openreg_free() of an exported block, openreg_memory_export(),
 * openreg_memory_empty_cache() and an openreg_malloc() that finds no memory do it too.
 * Never fails. Returns the number of blocks freed. */
OPENREG_API int32_t openreg_memory_collect_exports(void);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_SHARING_H */
