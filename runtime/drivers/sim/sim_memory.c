/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_memory.c: memory of a simulated device: the file, its two mappings, and the pieces handed out. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t
page_size(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t
round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* Maps the file twice over `span` bytes, both at multiples of the large page. Returns 0 or an errno. A core dump leaves
 * them out: it would be as large as the address space that a device reserves. */
static int
map_twice(openreg_sim_device *device, uint64_t span)
{
    const int protections[2] = {PROT_NONE, PROT_READ | PROT_WRITE};
    char *mapped[2] = {NULL, NULL};
    if (ftruncate(device->file, (off_t)span) != 0)
        return errno;
    for (int i = 0; i < 2; i++) {
        /* Reserve with room to align, then replace the aligned part: segments then start at large pages, which lets
         * the kernel use them and keeps the runtime's address map one segment an entry. */
        const uint64_t room = span + OPENREG_SIM_LARGE_PAGE;
        char *reserved = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserved == MAP_FAILED) {
            const int error = errno;
            if (i == 1)
                (void)munmap(mapped[0], span);
            return error;
        }
        char *start = (char *)round_up((uintptr_t)reserved, OPENREG_SIM_LARGE_PAGE);
        const uint64_t before = (uint64_t)(start - reserved), after = room - before - span;
        if (before > 0)
            (void)munmap(reserved, before);
        if (after > 0)
            (void)munmap(start + span, after);
        if (mmap(start, span, protections[i], MAP_SHARED | MAP_NORESERVE | MAP_FIXED, device->file, 0) == MAP_FAILED ||
            madvise(start, span, MADV_DONTFORK) != 0 || madvise(start, span, MADV_DONTDUMP) != 0) {
            const int error = errno;
            (void)munmap(start, span);
            if (i == 1)
                (void)munmap(mapped[0], span);
            return error;
        }
        mapped[i] = start;
    }
    device->base = mapped[0];
    device->alias = mapped[1];
    device->alias_distance = (ptrdiff_t)((uintptr_t)mapped[1] - (uintptr_t)mapped[0]);
    device->span = span;
    return 0;
}

openreg_status
openreg_sim_memory_create(openreg_sim_device *device)
{
    const openreg_host *host = device->instance->host;
    char name[32];
    (void)snprintf(name, sizeof name, "openreg-sim-%d", device->ordinal);
    device->file = memfd_create(name, MFD_CLOEXEC);
    if (device->file < 0)
        return openreg_fail(host, OPENREG_E_INCOMPATIBLE, errno, "memfd_create() failed: %s", strerror(errno));

    const uint64_t once = round_up(device->capacity, OPENREG_SIM_LARGE_PAGE);
    int error = map_twice(device, 2 * once);
    if (error != 0)
        error = map_twice(device, once);
    if (error != 0)
        return openreg_fail(host, OPENREG_E_NOMEM, error,
                            "cannot reserve twice %llu bytes of address space for device %d: %s; OPENREG_SIM_MEMORY "
                            "sets the bytes of a device",
                            (unsigned long long)once, device->ordinal, strerror(error));

    device->pieces = malloc(8 * sizeof *device->pieces);
    if (device->pieces == NULL)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory for device %d", device->ordinal);
    device->piece_room = 8;
    device->piece_count = 1;
    device->pieces[0] = (openreg_sim_piece){.size = device->span};
    return OPENREG_OK;
}

void
openreg_sim_memory_destroy(openreg_sim_device *device)
{
    if (device->base != NULL)
        (void)munmap(device->base, device->span);
    if (device->alias != NULL)
        (void)munmap(device->alias, device->span);
    if (device->file >= 0)
        (void)close(device->file);
    free(device->pieces);
    device->base = device->alias = NULL;
    device->pieces = NULL;
    device->file = -1;
}

/* Index of the smallest free piece that holds `size` aligned bytes, or piece_count. */
static size_t
find_free_piece(const openreg_sim_device *device, uint64_t size, uint64_t alignment, uint64_t *start)
{
    size_t best = device->piece_count;
    for (size_t i = 0; i < device->piece_count; i++) {
        const openreg_sim_piece *piece = &device->pieces[i];
        if (piece->used)
            continue;
        const uint64_t aligned = round_up(piece->offset, alignment), skipped = aligned - piece->offset;
        if (skipped > piece->size || piece->size - skipped < size)
            continue;
        if (best == device->piece_count || piece->size < device->pieces[best].size) {
            best = i;
            *start = aligned;
        }
    }
    return best;
}

static bool
reserve_pieces(openreg_sim_device *device, size_t count)
{
    if (count <= device->piece_room)
        return true;
    const size_t room = 2 * count;
    openreg_sim_piece *pieces = realloc(device->pieces, room * sizeof *pieces);
    if (pieces == NULL)
        return false;
    device->pieces = pieces;
    device->piece_room = room;
    return true;
}

static void
insert_piece(openreg_sim_device *device, size_t at, openreg_sim_piece piece)
{
    memmove(&device->pieces[at + 1], &device->pieces[at], (device->piece_count - at) * sizeof piece);
    device->pieces[at] = piece;
    device->piece_count++;
}

static void
remove_piece(openreg_sim_device *device, size_t at)
{
    device->piece_count--;
    memmove(&device->pieces[at], &device->pieces[at + 1], (device->piece_count - at) * sizeof device->pieces[0]);
}

/* Cuts [start, start + size) out of the free piece `at`. Room for two more pieces has been reserved. */
static void
cut_piece(openreg_sim_device *device, size_t at, uint64_t start, uint64_t size)
{
    const openreg_sim_piece whole = device->pieces[at];
    const uint64_t before = start - whole.offset, after = whole.size - before - size;
    device->pieces[at] = (openreg_sim_piece){.offset = start, .size = size, .used = true, .memory = size};
    if (after > 0)
        insert_piece(device, at + 1, (openreg_sim_piece){.offset = start + size, .size = after});
    if (before > 0)
        insert_piece(device, at, (openreg_sim_piece){.offset = whole.offset, .size = before});
}

/* Makes a used piece free, and joins it with free neighbours. */
static void
give_piece(openreg_sim_device *device, size_t at)
{
    openreg_sim_piece *piece = &device->pieces[at];
    *piece = (openreg_sim_piece){.offset = piece->offset, .size = piece->size};
    if (at + 1 < device->piece_count && !device->pieces[at + 1].used) {
        device->pieces[at].size += device->pieces[at + 1].size;
        remove_piece(device, at + 1);
    }
    if (at > 0 && !device->pieces[at - 1].used) {
        device->pieces[at - 1].size += device->pieces[at].size;
        remove_piece(device, at);
    }
}

/* The used piece that starts at `ptr`, of the device's own memory or not, or piece_count. */
static size_t
find_used_piece(const openreg_sim_device *device, const void *ptr, bool is_foreign)
{
    const uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)device->base);
    size_t low = 0, high = device->piece_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (device->pieces[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < device->piece_count && device->pieces[low].used && device->pieces[low].is_foreign == is_foreign &&
        device->pieces[low].offset == offset)
        return low;
    return device->piece_count;
}

openreg_status
openreg_sim_mem_alloc(openreg_instance instance, int32_t dev, uint64_t size, openreg_driver_stream stream, void **out)
{
    openreg_sim_device *device = &instance->devices[dev];
    (void)stream;
    (void)pthread_mutex_lock(&device->memory_lock);
    const uint64_t unused = device->capacity - device->used_bytes;
    /* Compared before rounding, which could overflow. */
    const uint64_t rounded = size <= unused ? round_up(size, page_size()) : UINT64_MAX;
    uint64_t start = 0;
    size_t at = device->piece_count;
    if (rounded <= unused)
        at = find_free_piece(device, rounded, rounded >= OPENREG_SIM_LARGE_PAGE ? OPENREG_SIM_LARGE_PAGE : 1, &start);
    if (at == device->piece_count) {
        (void)pthread_mutex_unlock(&device->memory_lock);
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0,
                            "device %d: asked for %llu bytes, %llu of %llu bytes are free%s", dev,
                            (unsigned long long)size, (unsigned long long)unused, (unsigned long long)device->capacity,
                            rounded <= unused ? ", but not in one piece" : "");
    }
    if (!reserve_pieces(device, device->piece_count + 2)) {
        (void)pthread_mutex_unlock(&device->memory_lock);
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "out of host memory for metadata of device %d", dev);
    }
    cut_piece(device, at, start, rounded);
    device->used_bytes += rounded;
    (void)pthread_mutex_unlock(&device->memory_lock);
    atomic_store_explicit(&device->active, 1, memory_order_relaxed);
    *out = device->base + start;
    return OPENREG_OK;
}

openreg_status
openreg_sim_mem_free(openreg_instance instance, int32_t dev, void *ptr, openreg_driver_stream stream)
{
    openreg_sim_device *device = &instance->devices[dev];
    (void)stream;
    (void)pthread_mutex_lock(&device->memory_lock);
    const size_t at = find_used_piece(device, ptr, false);
    const bool found = at < device->piece_count;
    const openreg_sim_piece piece = found ? device->pieces[at] : (openreg_sim_piece){.size = 0};
    (void)pthread_mutex_unlock(&device->memory_lock);
    if (!found)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "mem_free: %p is not an allocation of device %d", ptr,
                            dev);

    /* Peer copies that use this memory may be queued on any device. */
    for (int32_t i = 0; i < instance->device_count; i++)
        openreg_sim_device_await(&instance->devices[i]);
    /* Gives the pages back. If the kernel refuses, the piece stays usable all the same. */
    (void)fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)piece.offset, (off_t)piece.size);

    (void)pthread_mutex_lock(&device->memory_lock);
    device->used_bytes -= piece.memory;
    if (piece.reserved)
        device->reserved_bytes -= piece.size;
    give_piece(device, find_used_piece(device, ptr, false));
    (void)pthread_mutex_unlock(&device->memory_lock);
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------- other processes' memory */

bool
openreg_sim_find_memory(openreg_sim_device *device, const void *ptr, uint64_t *offset, uint64_t *size)
{
    (void)pthread_mutex_lock(&device->memory_lock);
    const size_t at = find_used_piece(device, ptr, false);
    const bool found = at < device->piece_count;
    if (found) {
        *offset = device->pieces[at].offset;
        *size = device->pieces[at].memory;
    }
    (void)pthread_mutex_unlock(&device->memory_lock);
    return found;
}

/* Maps [offset, offset + size) of a file at `start` of the device's addresses, in place of what is there. 0 or an errno;
 * then the addresses may be left without the device's file and must not be used. */
static int
map_window(openreg_sim_device *device, uint64_t start, int file, uint64_t offset, uint64_t size)
{
    char *const at[2] = {device->base + start, device->alias + start};
    const int protections[2] = {PROT_NONE, PROT_READ | PROT_WRITE};
    for (int i = 0; i < 2; i++)
        if (mmap(at[i], size, protections[i], MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, (off_t)offset) ==
                MAP_FAILED ||
            madvise(at[i], size, MADV_DONTFORK) != 0 || madvise(at[i], size, MADV_DONTDUMP) != 0)
            return errno;
    return 0;
}

openreg_status
openreg_sim_map_foreign(openreg_sim_device *device, int file, uint64_t offset, uint64_t size, void **out)
{
    const openreg_host *host = device->instance->host;
    uint64_t start = 0;
    int error = ENOMEM;
    (void)pthread_mutex_lock(&device->memory_lock);
    size_t at = device->piece_count;
    if (reserve_pieces(device, device->piece_count + 2))
        at = find_free_piece(device, size, size >= OPENREG_SIM_LARGE_PAGE ? OPENREG_SIM_LARGE_PAGE : page_size(),
                             &start);
    if (at < device->piece_count) {
        cut_piece(device, at, start, size);
        at = find_used_piece(device, device->base + start, false);
        device->pieces[at].is_foreign = true;
        error = map_window(device, start, file, offset, size);
        if (error != 0 && map_window(device, start, device->file, start, size) == 0)
            give_piece(device, at);
    }
    (void)pthread_mutex_unlock(&device->memory_lock);
    if (error != 0)
        return openreg_fail(host, OPENREG_E_NOMEM, error,
                            "device %d: %llu bytes of another process's memory can't be mapped: %s", device->ordinal,
                            (unsigned long long)size, strerror(error));
    atomic_store_explicit(&device->active, 1, memory_order_relaxed);
    *out = device->base + start;
    return OPENREG_OK;
}

openreg_status
openreg_sim_unmap_foreign(openreg_sim_device *device, void *ptr)
{
    (void)pthread_mutex_lock(&device->memory_lock);
    const size_t at = find_used_piece(device, ptr, true);
    const bool found = at < device->piece_count;
    /* If the kernel refuses, the addresses are lost until close(). */
    if (found && map_window(device, device->pieces[at].offset, device->file, device->pieces[at].offset,
                            device->pieces[at].size) == 0)
        give_piece(device, at);
    (void)pthread_mutex_unlock(&device->memory_lock);
    if (!found)
        return openreg_fail(device->instance->host, OPENREG_E_INVALID, 0,
                            "memory_close: %p is not memory of another process on device %d", ptr, device->ordinal);
    return OPENREG_OK;
}

/* Addresses for growing segments come out of those that the device has beyond its capacity, so that they never keep
 * mem_alloc() from using the memory. */
openreg_status
openreg_sim_reserve(openreg_instance instance, int32_t dev, uint64_t size, void **out)
{
    openreg_sim_device *device = &instance->devices[dev];
    uint64_t start = 0;
    (void)pthread_mutex_lock(&device->memory_lock);
    size_t at = device->piece_count;
    if (size <= device->span - round_up(device->capacity, OPENREG_SIM_LARGE_PAGE) - device->reserved_bytes)
        at = find_free_piece(device, size, OPENREG_SIM_LARGE_PAGE, &start);
    if (at == device->piece_count || !reserve_pieces(device, device->piece_count + 2)) {
        (void)pthread_mutex_unlock(&device->memory_lock);
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "device %d: no room for %llu addresses", dev,
                            (unsigned long long)size);
    }
    cut_piece(device, at, start, size);
    at = find_used_piece(device, device->base + start, false);
    device->pieces[at].reserved = true;
    device->pieces[at].memory = 0;
    device->reserved_bytes += size;
    (void)pthread_mutex_unlock(&device->memory_lock);
    *out = device->base + start;
    return OPENREG_OK;
}

openreg_status
openreg_sim_resize(openreg_instance instance, int32_t dev, void *ptr, uint64_t size)
{
    openreg_sim_device *device = &instance->devices[dev];
    (void)pthread_mutex_lock(&device->memory_lock);
    const size_t at = find_used_piece(device, ptr, false);
    const bool valid = at < device->piece_count && device->pieces[at].reserved && size <= device->pieces[at].size &&
                       size % OPENREG_SIM_LARGE_PAGE == 0;
    const openreg_sim_piece piece = valid ? device->pieces[at] : (openreg_sim_piece){.size = 0};
    const uint64_t unused = device->capacity - device->used_bytes;
    const bool full = valid && size > piece.memory && size - piece.memory > unused;
    if (valid && !full && size > piece.memory) {
        device->pieces[at].memory = size;
        device->used_bytes += size - piece.memory;
    }
    (void)pthread_mutex_unlock(&device->memory_lock);
    if (!valid)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                            "resize: %p is not a reservation of device %d for %llu bytes", ptr, dev,
                            (unsigned long long)size);
    if (full)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "device %d: asked for %llu bytes, %llu are free", dev,
                            (unsigned long long)(size - piece.memory), (unsigned long long)unused);
    atomic_store_explicit(&device->active, 1, memory_order_relaxed);
    if (size >= piece.memory)
        return OPENREG_OK;
    for (int32_t i = 0; i < instance->device_count; i++)
        openreg_sim_device_await(&instance->devices[i]);
    (void)fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(piece.offset + size),
                    (off_t)(piece.memory - size));
    (void)pthread_mutex_lock(&device->memory_lock);
    device->pieces[find_used_piece(device, ptr, false)].memory = size;
    device->used_bytes -= piece.memory - size;
    (void)pthread_mutex_unlock(&device->memory_lock);
    return OPENREG_OK;
}

openreg_status
openreg_sim_release(openreg_instance instance, int32_t dev, void *ptr)
{
    return openreg_sim_mem_free(instance, dev, ptr, NULL);
}

openreg_status
openreg_sim_mem_info(openreg_instance instance, int32_t dev, uint64_t *free_bytes, uint64_t *total)
{
    openreg_sim_device *device = &instance->devices[dev];
    (void)pthread_mutex_lock(&device->memory_lock);
    *free_bytes = device->capacity - device->used_bytes;
    (void)pthread_mutex_unlock(&device->memory_lock);
    *total = device->capacity;
    return OPENREG_OK;
}

openreg_status
openreg_sim_host_alias(openreg_instance instance, int32_t dev, void *ptr, void **out)
{
    const openreg_sim_device *device = &instance->devices[dev];
    const uintptr_t offset = (uintptr_t)ptr - (uintptr_t)device->base;
    if (offset >= device->span)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "host_alias: %p is not an address of device %d", ptr,
                            dev);
    *out = device->alias + offset;
    return OPENREG_OK;
}
