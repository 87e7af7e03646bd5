/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_ipc.c: the extension "openreg.ipc" (openreg/ipc.h). A handle names a file in memory by process and number; the
 * other process opens it through /proc, which the system allows to processes of the same user. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEMORY_HANDLE UINT32_C(0x53494d4d)

/* The contents of an openreg_ipc_handle. Ids of processes and files are reused; device and inode numbers of a file are not
 * while it is open. */
typedef struct sim_handle {
    uint32_t kind;
    int32_t process, file;
    uint32_t reserved;
    uint64_t file_device, file_inode;
    uint64_t offset, size;
} sim_handle;

static_assert(sizeof(sim_handle) <= sizeof(openreg_ipc_handle), "the handle is too long");

static bool
is_file_of(const sim_handle *handle, int file, struct stat *status)
{
    return fstat(file, status) == 0 && (uint64_t)status->st_dev == handle->file_device &&
           (uint64_t)status->st_ino == handle->file_inode;
}

/* The handle's file, or -1 and errno; ESTALE: it is another file. Only a file in memory that belongs to this user and can't
 * be shortened is opened for writing. */
static int
open_sealed(const sim_handle *handle, struct stat *status)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle->process, (int)handle->file);
    const int place = open(path, O_PATH | O_CLOEXEC); /* no effect on existing memory */
    if (place < 0)
        return -1;
    int reader = -1, file = -1, seals = -1;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", place);
    if (is_file_of(handle, place, status) && S_ISREG(status->st_mode) && status->st_uid == geteuid())
        reader = open(path, O_RDONLY | O_CLOEXEC);
    if (reader >= 0) {
        seals = fcntl(reader, F_GET_SEALS);
        (void)close(reader);
    }
    if (seals >= 0 && (seals & OPENREG_SIM_SEALS) == OPENREG_SIM_SEALS)
        file = open(path, O_RDWR | O_CLOEXEC);
    (void)close(place);
    if (file < 0)
        errno = ESTALE;
    return file;
}

/* Whole pages of a file of `length` bytes, and not none. */
static bool
is_in_file(const sim_handle *handle, off_t length)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = (uint64_t)length;
    return handle->size > 0 && handle->size % page == 0 && handle->offset % page == 0 && handle->offset <= end &&
           handle->size <= end - handle->offset;
}

static openreg_status
open_handle(openreg_instance instance, const void *bytes, sim_handle *handle, int *out)
{
    struct stat status;
    memcpy(handle, bytes, sizeof *handle);
    if (handle->kind != MEMORY_HANDLE)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "invalid handle for simulated devices");
    const int file = open_sealed(handle, &status);
    if (file < 0 && errno != ENOENT && errno != ESTALE)
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, errno, "files of process %d can't be opened: %s",
                            (int)handle->process, strerror(errno));
    if (file < 0)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                            "process %d, which made the handle, has ended or has closed its devices",
                            (int)handle->process);
    if (!is_in_file(handle, status.st_size)) {
        (void)close(file);
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                            "the handle was altered: device memory has no "
                            "%llu bytes at %llu",
                            (unsigned long long)handle->size, (unsigned long long)handle->offset);
    }
    *out = file;
    return OPENREG_OK;
}

static openreg_status
handle_size(openreg_instance instance, uint32_t *out)
{
    (void)instance;
    *out = sizeof(sim_handle);
    return OPENREG_OK;
}

/* Any process of the user may open the file. */
static openreg_status
memory_export(openreg_instance instance, int32_t dev, void *ptr, const int32_t *processes, uint32_t count, void *out)
{
    (void)processes;
    (void)count;
    openreg_sim_device *device = &instance->devices[dev];
    struct stat status;
    uint64_t offset, size;
    if (!openreg_sim_find_memory(device, ptr, &offset, &size) || size == 0)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "memory_export: %p is not an allocation of device %d",
                            ptr, dev);
    if (fstat(device->file, &status) != 0)
        return openreg_fail(instance->host, OPENREG_E_INTERNAL, errno, "fstat() failed: %s", strerror(errno));
    const sim_handle handle = {.kind = MEMORY_HANDLE,
                               .process = (int32_t)getpid(),
                               .file = device->file,
                               .file_device = (uint64_t)status.st_dev,
                               .file_inode = (uint64_t)status.st_ino,
                               .offset = offset,
                               .size = size};
    memcpy(out, &handle, sizeof handle);
    return OPENREG_OK;
}

static openreg_status
memory_open(openreg_instance instance, int32_t dev, const void *bytes, void **out)
{
    sim_handle handle;
    struct stat own;
    int file = -1;
    OPENREG_SIM_RETURN_NOT_OK(open_handle(instance, bytes, &handle, &file));
    openreg_status status = OPENREG_OK;
    for (int32_t i = 0; i < instance->device_count && status == OPENREG_OK; i++)
        if (is_file_of(&handle, instance->devices[i].file, &own))
            status = openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                                  "memory_open: the handle was made by this process");
    if (status == OPENREG_OK)
        status = openreg_sim_map_foreign(&instance->devices[dev], file, handle.offset, handle.size, out);
    (void)close(file);
    return status;
}

static openreg_status
memory_close(openreg_instance instance, int32_t dev, void *ptr)
{
    openreg_sim_await_all(instance);
    return openreg_sim_unmap_foreign(&instance->devices[dev], ptr);
}

const openreg_ipc *
openreg_sim_ipc(void)
{
    static const openreg_ipc ipc = {
        .struct_size = sizeof(openreg_ipc),
        .version = OPENREG_IPC_VERSION,
        .handle_size = handle_size,
        .memory_export = memory_export,
        .memory_open = memory_open,
        .memory_close = memory_close,
    };
    return &ipc;
}
