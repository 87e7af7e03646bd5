/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_memory.c: memory of a simulated device: the file, its two mappings, and its pieces. */
#define _GNU_SOURCE
#include "sim_schedule.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif

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

/* ---------------------------------------------------------------------------------------------------------- pieces */

#define SPARES 2 /* needed to cut a piece out of the middle of another */

static openreg_sim_piece *
take_spare(openreg_sim_device *device)
{
    openreg_sim_piece *piece = device->spares;
    device->spares = piece->next_spare;
    *piece = (openreg_sim_piece){.size = 0};
    return piece;
}

/* Makes sure that there are enough spares for cut_piece(), which then needs no memory. */
static bool
reserve_spares(openreg_sim_device *device)
{
    int count = 0;
    for (const openreg_sim_piece *spare = device->spares; spare != NULL && count < SPARES; spare = spare->next_spare)
        count++;
    for (; count < SPARES; count++) {
        openreg_sim_piece *piece = calloc(1, sizeof *piece);
        if (piece == NULL)
            return false;
        piece->next_spare = device->spares;
        device->spares = piece;
    }
    return true;
}

/* The bytes of a piece from its first large page on. */
static uint64_t
aligned_size(const openreg_sim_piece *piece)
{
    const uint64_t skipped = round_up(piece->offset, OPENREG_SIM_LARGE_PAGE) - piece->offset;
    return piece->size > skipped ? piece->size - skipped : 0;
}

/* Adds a piece, whose `offset` and `size` are set, as a free one. */
static void
insert_free(openreg_sim_device *device, openreg_sim_piece *piece)
{
    piece->by_offset.key = piece->offset;
    piece->by_size.key = piece->size;
    piece->by_aligned_size.key = aligned_size(piece);
    piece->by_size.second = piece->by_aligned_size.second = piece->offset;
    openreg_sim_tree_insert(&device->pieces, &piece->by_offset);
    openreg_sim_tree_insert(&device->free_by_size, &piece->by_size);
    openreg_sim_tree_insert(&device->free_by_aligned_size, &piece->by_aligned_size);
}

static void
remove_free(openreg_sim_device *device, openreg_sim_piece *piece)
{
    openreg_sim_tree_remove(&device->pieces, &piece->by_offset);
    openreg_sim_tree_remove(&device->free_by_size, &piece->by_size);
    openreg_sim_tree_remove(&device->free_by_aligned_size, &piece->by_aligned_size);
}

/* The smallest free piece that holds `size` bytes (sizes of a large page or more start at one); NULL if none does. Sizes and
 * offsets are multiples of the page. */
static openreg_sim_piece *
find_free_piece(const openreg_sim_device *device, uint64_t size, uint64_t *start)
{
    const bool is_large = size >= OPENREG_SIM_LARGE_PAGE;
    openreg_sim_node *node = openreg_sim_tree_at_least(is_large ? device->free_by_aligned_size : device->free_by_size,
                                                       size);
    openreg_sim_piece *piece = is_large ? OPENREG_SIM_OWNER(node, openreg_sim_piece, by_aligned_size)
                                        : OPENREG_SIM_OWNER(node, openreg_sim_piece, by_size);
    if (piece != NULL)
        *start = is_large ? round_up(piece->offset, OPENREG_SIM_LARGE_PAGE) : piece->offset;
    return piece;
}

static void
insert_free_range(openreg_sim_device *device, uint64_t offset, uint64_t size)
{
    if (size == 0)
        return;
    openreg_sim_piece *piece = take_spare(device);
    piece->offset = offset;
    piece->size = size;
    insert_free(device, piece);
}

/* Cuts [start, start + size) out of a free piece and returns it as a used one. Spares have been reserved. */
static openreg_sim_piece *
cut_piece(openreg_sim_device *device, openreg_sim_piece *piece, uint64_t start, uint64_t size)
{
    const uint64_t before = start - piece->offset, after = piece->size - before - size;
    remove_free(device, piece);
    insert_free_range(device, piece->offset, before);
    insert_free_range(device, start + size, after);
    *piece = (openreg_sim_piece){.offset = start, .size = size, .used = true, .memory = size};
    piece->by_offset.key = start;
    openreg_sim_tree_insert(&device->pieces, &piece->by_offset);
    return piece;
}

/* Adds the free neighbour on one side, if there is one, to a piece that is in no tree of free ones. */
static void
absorb(openreg_sim_device *device, openreg_sim_piece *piece, int side)
{
    const uint64_t beside = side == 0 ? piece->offset - 1 : piece->offset + piece->size;
    openreg_sim_node *node = NULL;
    if (side == 1)
        node = openreg_sim_tree_at_least(device->pieces, beside);
    else if (piece->offset != 0)
        node = openreg_sim_tree_at_most(device->pieces, beside);
    openreg_sim_piece *neighbour = OPENREG_SIM_OWNER(node, openreg_sim_piece, by_offset);
    if (neighbour == NULL || neighbour->used)
        return;
    remove_free(device, neighbour);
    piece->size += neighbour->size;
    if (side == 0)
        piece->offset = neighbour->offset;
    free(neighbour);
}

/* Makes a used piece free, and joins it with free neighbours. */
static void
give_piece(openreg_sim_device *device, openreg_sim_piece *piece)
{
    absorb(device, piece, 0);
    absorb(device, piece, 1);
    openreg_sim_tree_remove(&device->pieces, &piece->by_offset);
    *piece = (openreg_sim_piece){.offset = piece->offset, .size = piece->size};
    insert_free(device, piece);
}

/* The used piece that starts at `ptr`, of the device's own memory or not, or NULL. */
static openreg_sim_piece *
find_used_piece(const openreg_sim_device *device, const void *ptr, bool is_foreign)
{
    const uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)device->base);
    openreg_sim_node *node = openreg_sim_tree_at_least(device->pieces, offset);
    openreg_sim_piece *piece = OPENREG_SIM_OWNER(node, openreg_sim_piece, by_offset);
    const bool is_it = piece != NULL && piece->offset == offset && piece->used && piece->is_foreign == is_foreign;
    return is_it ? piece : NULL;
}

/* ---------------------------------------------------------------------------------------------------------- memory */

/* Maps [offset, offset + size) of a file at both addresses, replacing their mapping. 0 or an errno; then the
 * addresses may be left without a file and must not be used. A core dump leaves them out: it would be as large as the
 * address space that a device reserves. */
static int
map_window(char *base, char *alias, int file, uint64_t offset, uint64_t size)
{
    char *const at[2] = {base, alias};
    const int protections[2] = {PROT_NONE, PROT_READ | PROT_WRITE};
    for (int i = 0; i < 2; i++)
        if (mmap(at[i], size, protections[i], MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, (off_t)offset) ==
                MAP_FAILED ||
            madvise(at[i], size, MADV_DONTFORK) != 0 || madvise(at[i], size, MADV_DONTDUMP) != 0)
            return errno;
    return 0;
}

/* `span` bytes of addresses from a large page on: segments then start at large pages, which lets the kernel use them
 * and keeps the runtime's address map one segment an entry. NULL and errno: there are none. */
static char *
reserve_addresses(uint64_t span)
{
    const uint64_t room = span + OPENREG_SIM_LARGE_PAGE; /* to align */
    char *reserved = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return NULL;
    char *start = (char *)round_up((uintptr_t)reserved, OPENREG_SIM_LARGE_PAGE);
    const uint64_t before = (uint64_t)(start - reserved), after = room - before - span;
    if (before > 0)
        (void)munmap(reserved, before);
    if (after > 0)
        (void)munmap(start + span, after);
    return start;
}

static void
unmap_twice(openreg_sim_device *device)
{
    if (device->base != NULL)
        (void)munmap(device->base, device->span);
    if (device->alias != NULL)
        (void)munmap(device->alias, device->span);
    device->base = device->alias = NULL;
}

/* Maps the file twice over `span` bytes. 0 or an errno. */
static int
map_twice(openreg_sim_device *device, uint64_t span)
{
    if (ftruncate(device->file, (off_t)span) != 0)
        return errno;
    device->span = span;
    device->base = reserve_addresses(span);
    device->alias = device->base != NULL ? reserve_addresses(span) : NULL;
    const int error = device->alias == NULL ? errno : map_window(device->base, device->alias, device->file, 0, span);
    if (error != 0)
        unmap_twice(device);
    else
        device->alias_distance = (ptrdiff_t)((uintptr_t)device->alias - (uintptr_t)device->base);
    return error;
}

openreg_status
openreg_sim_memory_create(openreg_sim_device *device)
{
    const openreg_host *host = device->instance->host;
    char name[32];
    (void)snprintf(name, sizeof name, "openreg-sim-%d", device->ordinal);
    device->file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (device->file < 0 && errno == EINVAL) /* Linux before 6.3 */
        device->file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
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

    /* A process that shortened the file would end this one by SIGBUS. */
    if (fchmod(device->file, 0600) != 0 || fcntl(device->file, F_ADD_SEALS, OPENREG_SIM_SEALS) != 0)
        return openreg_fail(host, OPENREG_E_INCOMPATIBLE, errno, "the memory of device %d can't be sealed: %s",
                            device->ordinal, strerror(errno));
    if (!reserve_spares(device))
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory for device %d", device->ordinal);
    openreg_sim_piece *whole = take_spare(device);
    whole->size = device->span;
    insert_free(device, whole);
    return OPENREG_OK;
}

void
openreg_sim_memory_destroy(openreg_sim_device *device)
{
    unmap_twice(device);
    if (device->file >= 0)
        (void)close(device->file);
    while (device->pieces != NULL) {
        openreg_sim_piece *piece = OPENREG_SIM_OWNER(device->pieces, openreg_sim_piece, by_offset);
        openreg_sim_tree_remove(&device->pieces, &piece->by_offset);
        free(piece->mapped);
        free(piece);
    }
    while (device->spares != NULL)
        free(take_spare(device));
    device->file = -1;
}

openreg_status
openreg_sim_mem_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    openreg_sim_device *device = &instance->devices[dev];
    OPENREG_SIM_RETURN_NOT_OK(openreg_alloc_check(instance->host, info, page_size()));
    (void)pthread_mutex_lock(&device->memory_lock);
    const uint64_t unused = device->capacity - device->used_bytes;
    /* Compared before rounding, which could overflow. */
    const uint64_t rounded = info->size <= unused ? round_up(info->size, page_size()) : UINT64_MAX;
    uint64_t start = 0;
    openreg_sim_piece *piece = rounded <= unused ? find_free_piece(device, rounded, &start) : NULL;
    if (piece == NULL) {
        (void)pthread_mutex_unlock(&device->memory_lock);
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0,
                            "device %d: requested %llu bytes, %llu of %llu bytes are free%s", dev,
                            (unsigned long long)info->size, (unsigned long long)unused,
                            (unsigned long long)device->capacity, rounded <= unused ? ", but not in one piece" : "");
    }
    if (!reserve_spares(device)) {
        (void)pthread_mutex_unlock(&device->memory_lock);
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "out of host memory for metadata of device %d", dev);
    }
    (void)cut_piece(device, piece, start, rounded);
    device->used_bytes += rounded;
    (void)pthread_mutex_unlock(&device->memory_lock);
    atomic_store_explicit(&device->active, 1, memory_order_relaxed);
    openreg_sim_schedule_poison(instance, device->alias + start, info->size);
    *out = device->base + start;
    return OPENREG_OK;
}

openreg_status
openreg_sim_mem_free(openreg_instance instance, int32_t dev, void *ptr)
{
    openreg_sim_device *device = &instance->devices[dev];
    (void)pthread_mutex_lock(&device->memory_lock);
    openreg_sim_piece *piece = find_used_piece(device, ptr, false);
    const uint64_t offset = piece == NULL ? 0 : piece->offset, size = piece == NULL ? 0 : piece->size;
    (void)pthread_mutex_unlock(&device->memory_lock);
    if (piece == NULL)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "mem_free: %p is not an allocation of device %d", ptr,
                            dev);

    openreg_sim_await_all(instance);
    /* Frees the pages. If the kernel refuses, the piece stays usable all the same. */
    (void)fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size);

    (void)pthread_mutex_lock(&device->memory_lock);
    device->used_bytes -= piece->memory;
    if (piece->mapped != NULL)
        device->reserved_bytes -= size;
    free(piece->mapped);
    give_piece(device, piece);
    (void)pthread_mutex_unlock(&device->memory_lock);
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------- other processes' memory */

bool
openreg_sim_find_memory(openreg_sim_device *device, const void *ptr, uint64_t *offset, uint64_t *size)
{
    (void)pthread_mutex_lock(&device->memory_lock);
    const openreg_sim_piece *piece = find_used_piece(device, ptr, false);
    if (piece != NULL) {
        *offset = piece->offset;
        *size = piece->memory;
        for (uint64_t i = 0; piece->mapped != NULL && i < piece->size / OPENREG_SIM_LARGE_PAGE; i++)
            if (piece->mapped[i]) /* up to the last one */
                *size = (i + 1) * OPENREG_SIM_LARGE_PAGE;
    }
    (void)pthread_mutex_unlock(&device->memory_lock);
    return piece != NULL;
}

/* Shows a file's bytes at `start` of the device's addresses. */
static int
show(openreg_sim_device *device, uint64_t start, int file, uint64_t offset, uint64_t size)
{
    return map_window(device->base + start, device->alias + start, file, offset, size);
}

openreg_status
openreg_sim_map_foreign(openreg_sim_device *device, int file, uint64_t offset, uint64_t size, void **out)
{
    const openreg_host *host = device->instance->host;
    uint64_t start = 0;
    int error = ENOMEM;
    (void)pthread_mutex_lock(&device->memory_lock);
    openreg_sim_piece *piece = reserve_spares(device) ? find_free_piece(device, size, &start) : NULL;
    if (piece != NULL) {
        cut_piece(device, piece, start, size)->is_foreign = true;
        error = show(device, start, file, offset, size);
        if (error != 0 && show(device, start, device->file, start, size) == 0)
            give_piece(device, piece);
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
    openreg_sim_piece *piece = find_used_piece(device, ptr, true);
    const bool found = piece != NULL;
    /* If the kernel refuses, the addresses are lost until close(). */
    if (found && show(device, piece->offset, device->file, piece->offset, piece->size) == 0)
        give_piece(device, piece);
    (void)pthread_mutex_unlock(&device->memory_lock);
    if (!found)
        return openreg_fail(device->instance->host, OPENREG_E_INVALID, 0,
                            "memory_close: %p is not memory of another process on device %d", ptr, device->ordinal);
    return OPENREG_OK;
}

/* Addresses for growing segments are taken from those beyond the device's capacity, so that they never keep mem_alloc()
 * from using the memory. */
openreg_status
openreg_sim_reserve(openreg_instance instance, int32_t dev, uint64_t size, void **out)
{
    openreg_sim_device *device = &instance->devices[dev];
    uint64_t start = 0;
    if (size == 0 || size % OPENREG_SIM_LARGE_PAGE != 0)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "reserve: %llu bytes are not a multiple of 2 MiB",
                            (unsigned long long)size);
    bool *const mapped = calloc(size / OPENREG_SIM_LARGE_PAGE + 1, sizeof *mapped);
    (void)pthread_mutex_lock(&device->memory_lock);
    openreg_sim_piece *piece = NULL;
    if (size <= device->span - round_up(device->capacity, OPENREG_SIM_LARGE_PAGE) - device->reserved_bytes)
        piece = find_free_piece(device, size, &start);
    if (piece == NULL || mapped == NULL || !reserve_spares(device)) {
        (void)pthread_mutex_unlock(&device->memory_lock);
        free(mapped);
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "device %d: cannot reserve %llu bytes of addresses",
                            dev, (unsigned long long)size);
    }
    piece = cut_piece(device, piece, start, size);
    piece->mapped = mapped;
    piece->memory = 0;
    device->reserved_bytes += size;
    (void)pthread_mutex_unlock(&device->memory_lock);
    *out = device->base + start;
    return OPENREG_OK;
}

openreg_status
openreg_sim_granularity(openreg_instance instance, int32_t dev, uint64_t *out)
{
    (void)instance;
    (void)dev;
    *out = OPENREG_SIM_LARGE_PAGE;
    return OPENREG_OK;
}

/* The reservation at `ptr`, where all large pages of the range are `mapped`, or none is; else NULL and an error. */
static openreg_sim_piece *
find_reservation(openreg_sim_device *device, const void *ptr, uint64_t offset, uint64_t size, bool mapped)
{
    openreg_sim_piece *const piece = find_used_piece(device, ptr, false);
    bool valid = piece != NULL && piece->mapped != NULL && offset <= piece->size && size <= piece->size - offset &&
                 offset % OPENREG_SIM_LARGE_PAGE == 0 && size % OPENREG_SIM_LARGE_PAGE == 0;
    for (uint64_t at = offset; valid && at < offset + size; at += OPENREG_SIM_LARGE_PAGE)
        valid = piece->mapped[at / OPENREG_SIM_LARGE_PAGE] == mapped;
    if (valid)
        return piece;
    (void)openreg_fail(device->instance->host, OPENREG_E_INVALID, 0,
                       "%s: %p of device %d has no %llu bytes at %llu that are %s", mapped ? "unmap" : "map", ptr,
                       device->ordinal, (unsigned long long)size, (unsigned long long)offset,
                       mapped ? "memory" : "reserved and no memory yet");
    return NULL;
}

/* The memory lock is held. */
static void
set_mapped(openreg_sim_device *device, openreg_sim_piece *piece, uint64_t offset, uint64_t size, bool mapped)
{
    for (uint64_t at = offset; at < offset + size; at += OPENREG_SIM_LARGE_PAGE)
        piece->mapped[at / OPENREG_SIM_LARGE_PAGE] = mapped;
    piece->memory += mapped ? size : 0 - size;
    device->used_bytes += mapped ? size : 0 - size;
}

openreg_status
openreg_sim_map(openreg_instance instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    openreg_sim_device *device = &instance->devices[dev];
    (void)pthread_mutex_lock(&device->memory_lock);
    openreg_sim_piece *const piece = find_reservation(device, ptr, offset, size, false);
    const uint64_t unused = device->capacity - device->used_bytes, start = piece != NULL ? piece->offset + offset : 0;
    if (piece != NULL && size <= unused)
        set_mapped(device, piece, offset, size, true);
    (void)pthread_mutex_unlock(&device->memory_lock);
    if (piece == NULL)
        return OPENREG_E_INVALID;
    if (size > unused)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "device %d: requested %llu bytes, %llu are free", dev,
                            (unsigned long long)size, (unsigned long long)unused);
    atomic_store_explicit(&device->active, 1, memory_order_relaxed);
    openreg_sim_schedule_poison(instance, device->alias + start, size);
    return OPENREG_OK;
}

openreg_status
openreg_sim_unmap(openreg_instance instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    openreg_sim_device *device = &instance->devices[dev];
    (void)pthread_mutex_lock(&device->memory_lock);
    openreg_sim_piece *const piece = find_reservation(device, ptr, offset, size, true);
    const uint64_t start = piece != NULL ? piece->offset + offset : 0;
    (void)pthread_mutex_unlock(&device->memory_lock);
    if (piece == NULL)
        return OPENREG_E_INVALID;
    openreg_sim_await_all(instance);
    (void)fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)size);
    (void)pthread_mutex_lock(&device->memory_lock);
    set_mapped(device, piece, offset, size, false);
    (void)pthread_mutex_unlock(&device->memory_lock);
    return OPENREG_OK;
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
