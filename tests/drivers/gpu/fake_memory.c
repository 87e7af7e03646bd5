/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_memory.c: the fake vendor's device and pinned memory, and copies (fake_gpu.h). Device memory is a memory file,
 * mapped once without any access, at the address that the driver gives out, and once for the streams. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the blocks and fake_device.used */
static fake_block *blocks;
atomic_int fake_violations;

static size_t
room_of(size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

/* Under the lock, with no users left. */
static void
destroy_block(fake_block *block)
{
    fake_block **link = &blocks;
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    if (block->device >= 0) {
        (void)munmap(block->address, room_of(block->size));
        (void)munmap(block->alias, room_of(block->size));
        (void)close(block->file);
        if (!block->imported)
            fake_devices[block->device].used -= block->size;
    } else {
        free(block->address);
    }
    free(block);
}

/* Under the lock. */
static fake_block *
find_block(const void *ptr)
{
    for (fake_block *block = blocks; block != NULL; block = block->next)
        if (!block->freed && (const char *)ptr >= block->address && (const char *)ptr < block->address + block->size)
            return block;
    return NULL;
}

bool
fake_block_find(const void *ptr, void **start, size_t *size)
{
    (void)pthread_mutex_lock(&memory_lock);
    const fake_block *const block = find_block(ptr);
    if (block != NULL) {
        *start = block->address;
        *size = block->size;
    }
    (void)pthread_mutex_unlock(&memory_lock);
    return block != NULL;
}

fake_block *
fake_block_use(const void *ptr, size_t size)
{
    (void)pthread_mutex_lock(&memory_lock);
    fake_block *block = find_block(ptr);
    if (block != NULL && size > block->size - (size_t)((const char *)ptr - block->address))
        block = NULL;
    if (block != NULL)
        ++block->users;
    (void)pthread_mutex_unlock(&memory_lock);
    return block != NULL ? block : fake_vmm_use(ptr, size);
}

void
fake_block_release(fake_block *block)
{
    if (block->is_view) {
        fake_vmm_release(block);
        return;
    }
    (void)pthread_mutex_lock(&memory_lock);
    if (--block->users == 0 && block->freed)
        destroy_block(block);
    (void)pthread_mutex_unlock(&memory_lock);
}

char *
fake_block_alias(const fake_block *block, const void *ptr)
{
    return block->alias + ((const char *)ptr - block->address);
}

static void
add_block(fake_block block)
{
    fake_block *const added = malloc(sizeof *added);
    *added = block;
    (void)pthread_mutex_lock(&memory_lock);
    added->next = blocks;
    blocks = added;
    (void)pthread_mutex_unlock(&memory_lock);
}

/* Maps a file twice. */
static bool
map_block(int file, size_t size, int dev, bool imported, void **out)
{
    const size_t room = room_of(size);
    void *const address = mmap(NULL, room, PROT_NONE, MAP_SHARED, file, 0);
    void *const alias = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (address == MAP_FAILED || alias == MAP_FAILED)
        return false;
    if (!imported)
        memset(alias, 0xCD, size);
    add_block((fake_block){
        .address = address, .alias = alias, .size = size, .device = dev, .file = file, .imported = imported});
    *out = address;
    return true;
}

bool
fake_memory_take(int dev, size_t size)
{
    (void)pthread_mutex_lock(&memory_lock);
    const bool fits = size <= fake_settings_get()->memory - fake_devices[dev].used;
    if (fits)
        fake_devices[dev].used += size;
    (void)pthread_mutex_unlock(&memory_lock);
    return fits;
}

void
fake_memory_give(int dev, size_t size)
{
    (void)pthread_mutex_lock(&memory_lock);
    fake_devices[dev].used -= size;
    (void)pthread_mutex_unlock(&memory_lock);
}

static fake_code
allocate(int dev, size_t size, void **out)
{
    if (!fake_memory_take(dev, size))
        return GPU(ErrorMemoryAllocation);
    const int file = memfd_create("fake_gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)room_of(size)) != 0 || !map_block(file, size, dev, false, out))
        return GPU(ErrorUnknown);
    return GPU(Success);
}

fake_code
GPU(Malloc)(void **out, size_t size)
{
    int dev;
    fake_code code = fake_begin_work("Malloc", &dev);
    if (code == GPU(Success) && size == 0) {
        *out = NULL;
        return GPU(Success);
    }
    if (code == GPU(Success))
        code = allocate(dev, size, out);
    return fake_end(code);
}

/* Takes a block away; queued work that still uses it is a mistake of the driver's, and is counted. */
static fake_code
give_back(void *ptr, int dev, bool imported)
{
    fake_code code = GPU(Success);
    (void)pthread_mutex_lock(&memory_lock);
    fake_block *const block = find_block(ptr);
    if (block == NULL || block->address != ptr || (block->device >= 0 && block->device != dev) ||
        (dev < 0) != (block->device < 0) || block->imported != imported) {
        code = GPU(ErrorInvalidValue);
    } else {
        block->freed = true;
        if (block->users == 0)
            destroy_block(block);
        else if (dev >= 0)
            (void)atomic_fetch_add(&fake_violations, 1);
    }
    (void)pthread_mutex_unlock(&memory_lock);
    return code;
}

fake_code
GPU(Free)(void *ptr)
{
    int dev;
    fake_code code = fake_begin_work("Free", &dev);
    if (code == GPU(Success) && ptr != NULL)
        code = give_back(ptr, dev, false);
    return fake_end(code);
}

fake_code
GPU(GPU_HOST_ALLOC)(void **out, size_t size, unsigned flags)
{
    int dev;
    fake_code code = fake_begin_wait("HostAlloc", &dev);
    if (code == GPU(Success) && (flags & GPU_HOST_PORTABLE) == 0)
        code = GPU(ErrorInvalidValue); /* stricter than the vendor: every device must be able to use it */
    if (code != GPU(Success))
        return fake_end(code);
    char *memory = NULL;
    if (posix_memalign((void **)&memory, 4096, size) != 0)
        return fake_end(GPU(ErrorMemoryAllocation));
    memset(memory, 0xCD, size);
    add_block((fake_block){.address = memory, .alias = memory, .size = size, .device = -1, .file = -1});
    *out = memory;
    return fake_end(GPU(Success));
}

fake_code
GPU(GPU_HOST_FREE)(void *ptr)
{
    int dev;
    fake_code code = fake_begin_wait("FreeHost", &dev);
    if (code == GPU(Success))
        code = give_back(ptr, -1, false);
    return fake_end(code);
}

fake_code
GPU(MemGetInfo)(size_t *free_bytes, size_t *total)
{
    int dev;
    const fake_code code = fake_begin_work("MemGetInfo", &dev);
    if (code == GPU(Success)) {
        (void)pthread_mutex_lock(&memory_lock);
        *total = fake_settings_get()->memory;
        *free_bytes = *total - fake_devices[dev].used;
        (void)pthread_mutex_unlock(&memory_lock);
    }
    return fake_end(code);
}

/* ------------------------------------------------------------------------------------------------- copies and fills */

static bool
is_device_block(const fake_block *block)
{
    return block != NULL && block->device >= 0;
}

static void
release_both(fake_block *a, fake_block *b)
{
    if (a != NULL)
        fake_block_release(a);
    if (b != NULL)
        fake_block_release(b);
}

/* Queues the copy. Of pageable memory the stream must not know: it is read before the call returns, or the call waits
 * until it has been written. */
static void
queue_copy(fake_stream *stream, fake_block *to, void *dst, fake_block *from, const void *src, size_t size)
{
    fake_task task = {.kind = FAKE_COPY, .size = size, .blocks = {to, from}};
    task.target = to != NULL ? fake_block_alias(to, dst) : dst;
    task.source = from != NULL ? fake_block_alias(from, src) : src;
    if (from == NULL) {
        task.owned = malloc(size);
        memcpy(task.owned, src, size);
        task.source = task.owned;
    }
    fake_stream_submit(stream, &task);
    if (to == NULL)
        fake_stream_await(stream);
}

/* Stricter than the vendor: a captured copy of pageable memory is always refused. */
static fake_code
state_for_copy(const fake_stream *stream, const fake_block *to, const fake_block *from)
{
    return to == NULL || from == NULL ? fake_graph_host_waits(stream, -1) : fake_graph_state(stream);
}

fake_code
GPU(MemcpyAsync)(void *dst, const void *src, size_t size, openreg_gpu_copy_kind kind, GPU(Stream_t) handle)
{
    int dev;
    fake_code code = fake_begin_work("MemcpyAsync", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_stream *const stream = fake_stream_of(handle, dev);
    fake_block *const to = fake_block_use(dst, size);
    fake_block *const from = fake_block_use(src, size);
    const bool to_device = kind == GPU(MemcpyHostToDevice) || kind == GPU(MemcpyDeviceToDevice);
    const bool from_device = kind == GPU(MemcpyDeviceToHost) || kind == GPU(MemcpyDeviceToDevice);
    if (stream == NULL)
        code = GPU(ErrorInvalidResourceHandle);
    else if (is_device_block(to) != to_device || is_device_block(from) != from_device ||
             (to_device && to->device != dev) || (from_device && from->device != dev))
        code = GPU(ErrorInvalidValue);
    else
        code = state_for_copy(stream, to, from);
    if (code == GPU(Success)) {
        queue_copy(stream, to, dst, from, src, size);
        if (to == NULL)
            code = (fake_code)atomic_load(&fake_devices[dev].sticky);
    } else {
        release_both(to, from);
    }
    return fake_end(code);
}

fake_code
GPU(MemcpyPeerAsync)(void *dst, int dst_dev, const void *src, int src_dev, size_t size, GPU(Stream_t) handle)
{
    int dev;
    fake_code code = fake_begin_work("MemcpyPeerAsync", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_stream *const stream = fake_stream_of(handle, dev);
    fake_block *const to = fake_block_use(dst, size);
    fake_block *const from = fake_block_use(src, size);
    if (stream == NULL)
        code = GPU(ErrorInvalidResourceHandle);
    else if (!is_device_block(to) || !is_device_block(from) || to->device != dst_dev || from->device != src_dev)
        code = GPU(ErrorInvalidValue);
    else if (dst_dev != src_dev && !atomic_load(&fake_devices[src_dev].access[dst_dev]) &&
             !fake_settings_get()->staging)
        code = GPU(ErrorPeerAccessUnsupported);
    /* Where two devices have access to each other's memory, all of it must be within reach of kernels. */
    else if (dst_dev != src_dev &&
             ((atomic_load(&fake_devices[src_dev].access[dst_dev]) && !fake_vmm_reaches(to, src_dev)) ||
              (atomic_load(&fake_devices[dst_dev].access[src_dev]) && !fake_vmm_reaches(from, dst_dev))))
        (void)atomic_fetch_add(&fake_violations, 1);
    if (code == GPU(Success))
        queue_copy(stream, to, dst, from, src, size);
    else
        release_both(to, from);
    return fake_end(code);
}

fake_code
GPU(MemsetAsync)(void *dst, int value, size_t size, GPU(Stream_t) handle)
{
    int dev;
    fake_code code = fake_begin_work("MemsetAsync", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    fake_stream *const stream = fake_stream_of(handle, dev);
    fake_block *const to = fake_block_use(dst, size);
    if (stream == NULL || !is_device_block(to) || to->device != dev) {
        release_both(to, NULL);
        return fake_end(stream == NULL ? GPU(ErrorInvalidResourceHandle) : GPU(ErrorInvalidValue));
    }
    if (fake_graph_state(stream) != GPU(Success)) {
        release_both(to, NULL);
        return fake_end(fake_graph_state(stream));
    }
    fake_stream_submit(stream, &(fake_task){.kind = FAKE_FILL,
                                            .value = (uint8_t)value,
                                            .target = fake_block_alias(to, dst),
                                            .size = size,
                                            .blocks = {to, NULL}});
    return fake_end(code);
}

/* --------------------------------------------------------------------------------------- memory of other processes */

typedef struct memory_handle {
    char magic[8];
    int pid, file, device;
    size_t size;
} memory_handle;

static const char magic[8] = "fakemem";

fake_code
GPU(IpcGetMemHandle)(GPU(IpcMemHandle_t) * out, void *ptr)
{
    int dev;
    fake_code code = fake_begin_work("IpcGetMemHandle", &dev);
    if (code != GPU(Success))
        return fake_end(code);
    memory_handle handle = {.pid = getpid()};
    memcpy(handle.magic, magic, sizeof magic);
    (void)pthread_mutex_lock(&memory_lock);
    const fake_block *const block = find_block(ptr);
    if (block == NULL || block->device != dev || block->address != ptr) {
        code = GPU(ErrorInvalidValue);
    } else {
        handle.file = block->file;
        handle.device = block->device;
        handle.size = block->size;
    }
    (void)pthread_mutex_unlock(&memory_lock);
    if (code == GPU(Success)) {
        memset(out, 0, sizeof *out);
        memcpy(out, &handle, sizeof handle);
    }
    return fake_end(code);
}

static unsigned
ipc_flag(void)
{
#if OPENREG_GPU_CUDART
    return GPU(IpcMemLazyEnablePeerAccess);
#else
    return fake_settings_get()->runtime_version / 10000000 >= 6; /* 0 in the headers of HIP 5, 1 in those of 6 */
#endif
}

fake_code
GPU(IpcOpenMemHandle)(void **out, GPU(IpcMemHandle_t) native, unsigned flags)
{
    int dev;
    const fake_code code = fake_begin_work("IpcOpenMemHandle", &dev);
    memory_handle handle;
    char path[64];
    if (code != GPU(Success))
        return fake_end(code);
    memcpy(&handle, &native, sizeof handle);
    if (flags != ipc_flag() || memcmp(handle.magic, magic, sizeof magic) != 0 || handle.device != dev)
        return fake_end(GPU(ErrorInvalidValue));
    if (handle.pid == getpid())
        return fake_end((fake_code)201);
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || !map_block(file, handle.size, dev, true, out))
        return fake_end(GPU(ErrorInvalidValue));
    return fake_end(GPU(Success));
}

fake_code
GPU(IpcCloseMemHandle)(void *ptr)
{
    int dev;
    fake_code code = fake_begin_work("IpcCloseMemHandle", &dev);
    if (code == GPU(Success))
        code = give_back(ptr, dev, true);
    return fake_end(code);
}

/* ----------------------------------------------------------------------------------------------------------- hooks */

void
fake_memory_reset(void)
{
    (void)pthread_mutex_lock(&memory_lock);
    while (blocks != NULL)
        destroy_block(blocks);
    (void)pthread_mutex_unlock(&memory_lock);
}

int
fake_live_blocks(const char *kind)
{
    int count = 0;
    (void)pthread_mutex_lock(&memory_lock);
    for (const fake_block *block = blocks; block != NULL; block = block->next) {
        const char *const own = block->device < 0 ? "host" : block->imported ? "import" : "memory";
        count += !block->freed && strcmp(own, kind) == 0;
    }
    (void)pthread_mutex_unlock(&memory_lock);
    return count;
}
