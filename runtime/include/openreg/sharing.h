/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/sharing.h: device memory in several processes at once. Valid C11 and C++17.
 *
 * One process exports, another imports; both use the same driver, which has the extension "openreg.ipc" (ipc.h), and run
 * as the same user of one machine. openreg.h's rules hold here too.
 *
 *   exporter:  openreg_memory_handle handle = {.struct_size = sizeof handle};
 *              openreg_memory_export(block, &handle);    // then the bytes of the handle go to the other process
 *   importer:  openreg_memory_import(&handle, &import, &device, &pointer);
 *              ... openreg_import_release(import);
 *
 * The exporter may free its block at any time: openreg_free() keeps it from reuse as long as another process holds it,
 * or may still import it. Each handle counts as held from its export to the last release of what was imported from it,
 * or the end of the processes that have imported it, whichever way they end (the exporter notices when it looks:
 * openreg_memory_collect_exports()). One that is never imported keeps its block until the exporter ends; so does one that a
 * process of another PID namespace, or a fifth process at once, has imported and not released.
 * What is written on one side is seen on the other; synchronisation is up to the programs. An
 * export, and a free of what was exported, looks at all that is exported. */
#ifndef OPENREG_SHARING_H
#define OPENREG_SHARING_H

#include <openreg/ipc.h>
#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Plain bytes, which another process may read, and which go there unchanged. */
typedef struct openreg_memory_handle {
    uint32_t struct_size;     /* set by the caller of openreg_memory_export() */
    uint32_t version;         /* of what is in `bytes` */
    uint64_t size;            /* bytes from where the memory begins to the end of the block as it was asked for */
    uint64_t name[3];         /* the same in every handle of this memory, and in no other's */
    unsigned char bytes[344]; /* the runtime's */
} openreg_memory_handle;

#define OPENREG_MEMORY_HANDLE_SIZE_1 384u
static_assert(sizeof(openreg_memory_handle) == OPENREG_MEMORY_HANDLE_SIZE_1, "append a field, then freeze its size");

typedef struct openreg_import_s *openreg_import; /* owned by the caller until openreg_import_release() */

/* What the functions below call, in libopenreg_sharing.so: the first call loads it, from the folder of libopenreg.so. */
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

/* NULL: it can't be loaded: OPENREG_E_INCOMPATIBLE, which openreg_last_error() has. */
OPENREG_API const openreg_sharing *openreg_sharing_get(void);

#define OPENREG_SHARING_CALL(function, ...)                                                                            \
    const openreg_sharing *const sharing = openreg_sharing_get();                                                      \
    return sharing != NULL ? sharing->function(__VA_ARGS__) : OPENREG_E_INCOMPATIBLE

/* A handle of the memory that begins at `ptr`, anywhere in a live block. The caller waits for what it has queued on the
 * memory first. Errors: OPENREG_E_INVALID (not in a live block of this process, NULL, struct_size not set), OPENREG_E_UNSUPPORTED (the driver
 * can't share memory), OPENREG_E_NOMEM (too many handles are held), the driver's. */
static inline OPENREG_WARN_UNUSED openreg_status
openreg_memory_export(const void *ptr, openreg_memory_handle *inout)
{
    OPENREG_SHARING_CALL(export_to, ptr, NULL, 0, inout);
}

/* The same for processes that are known: some vendors let in no others (ipc.h). `count` 0 is openreg_memory_export(). */
static inline OPENREG_WARN_UNUSED openreg_status
openreg_memory_export_to(const void *ptr, const int32_t *processes, uint32_t count, openreg_memory_handle *inout)
{
    OPENREG_SHARING_CALL(export_to, ptr, processes, count, inout);
}

/* The memory of a handle, on the device of this process that is the exporter's. A process may import one handle
 * repeatedly, and the exporter itself may import it; it gets its own address. Until the release the memory is like a
 * block of openreg_malloc(), but can't be freed.
 * Errors: OPENREG_E_INVALID (no such handle: the exporter has ended, or it was imported and released already),
 * OPENREG_E_NO_DEVICE (this process does not have the device), OPENREG_E_UNSUPPORTED (the driver or the system refuses),
 * OPENREG_E_NOMEM, the driver's. */
static inline OPENREG_WARN_UNUSED openreg_status
openreg_memory_import(const openreg_memory_handle *handle, openreg_import *out, int32_t *device, void **ptr)
{
    OPENREG_SHARING_CALL(import_from, handle, out, device, ptr);
}

/* Waits for the work of the device, and releases the memory. NULL is accepted. Errors: OPENREG_E_FORKED, the driver's;
 * the import is released all the same, but with OPENREG_E_FORKED, where it belongs to the parent. */
static inline openreg_status
openreg_import_release(openreg_import held)
{
    OPENREG_SHARING_CALL(release, held);
}

/* Frees what was freed while other processes held it and that they have released since. openreg_free() of an exported
 * block, openreg_memory_export(), openreg_memory_empty_cache() and an openreg_malloc() that finds no memory do it too. What a
 * process that has ended held counts as released.
 * Never fails. Returns the number of blocks freed. */
OPENREG_API int32_t openreg_memory_collect_exports(void);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_SHARING_H */
