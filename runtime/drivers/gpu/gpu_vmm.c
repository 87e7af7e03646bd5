/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_vmm.c: reserved addresses whose memory comes and goes (openreg/vmm.h, gpu.h), in pieces that the vendor maps one by
 * one: it unmaps no part of what was mapped at once.
 *
 * A handle is kept as long as its piece is mapped: CUDA would keep the memory without it, not every version of HIP does.
 * Access is the device's own, and that of the devices whose memory it exchanges copies with (gpu_peer.c): for mapped
 * memory the vendors' peer access alone gives none.
 *
 * The vendor may refuse to release a piece after it has released others. A failed call must change nothing, which is then
 * impossible; so the call succeeds and logs the vendor's error. The pieces that are left serve the next map() there, or are
 * released when the next reservation is made, at the latest at close(). */
#include "gpu.h"

#include <assert.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_PIECE (UINT64_C(2) << 20) /* a call for each of HIP's pages of 4 KiB would be slow */

#define VMM_MEMBER(name) __typeof__(&GPU_VMM(name)) GPU_JOIN(call_, name);
typedef struct vmm_functions {
    OPENREG_GPU_VMM_FUNCTIONS(VMM_MEMBER)
} vmm_functions;

typedef struct piece {
    openreg_gpu_memory_handle handle;
    bool is_created, is_mapped; /* as the vendor knows it */
    bool is_memory;             /* as the runtime does; then all three */
    bool is_leaving;            /* about to be none */
} piece;

typedef struct reservation {
    struct reservation *next;
    int32_t device;
    bool ended; /* as far as the runtime is concerned */
    char *start;
    uint64_t step; /* bytes of a piece */
    size_t count;
    piece pieces[];
} reservation;

enum { UNKNOWN, ABSENT, PRESENT };

struct openreg_gpu_vmm {
    pthread_mutex_t
        lock; /* guards the reservations and what is mapped, with the peers' access: openreg_gpu_vmm_enable_access() */
    atomic_int state;
    bool is_early; /* the order of openreg_gpu_memory_properties that the library reads: properties_of() */
    uint64_t steps[OPENREG_GPU_MAX_DEVICES]; /* PRESENT: granularity of each device */
    vmm_functions functions;                 /* PRESENT: all there */
    reservation *reservations;
};

#define VMM_CALL(instance, name) (instance)->vmm->functions.GPU_JOIN(call_, name)
#define VMM_TRY(scope, name, ...)                                                                                      \
    openreg_gpu_check((scope), (openreg_gpu_code)VMM_CALL((scope)->instance, name)(__VA_ARGS__), GPU_VMM_NAME(name))

static openreg_gpu_address
address_of(const reservation *reserved, size_t index)
{
    return GPU_ADDRESS(reserved->start + index * reserved->step);
}

/* Pinned memory of a device. HIP has put the fields in another order since 5.2, and one binary serves all versions; so they are
 * set by their places, and not by the order in the headers that this is compiled with. */
#define PROPERTY(name) offsetof(openreg_gpu_memory_properties, name)
static_assert(sizeof(openreg_gpu_memory_properties) == 32 &&
                  ((PROPERTY(type) == 0 && PROPERTY(location) == 8) ||
                   (!OPENREG_GPU_CUDART && PROPERTY(type) == 16 && PROPERTY(location) == 4)),
              "a third order of the fields: set it in properties_of()");

static openreg_gpu_memory_properties
properties_of(openreg_instance instance, int32_t dev)
{
    const uint32_t late[8] = {[0] = GPU_MEMORY_PINNED, [2] = GPU_MEMORY_OF_DEVICE, [3] = (uint32_t)dev};
    const uint32_t early[8] = {[1] = GPU_MEMORY_OF_DEVICE, [2] = (uint32_t)dev, [4] = GPU_MEMORY_PINNED};
    openreg_gpu_memory_properties properties;
    memcpy(&properties, instance->vmm->is_early ? early : late, sizeof properties);
    return properties;
}

static openreg_gpu_memory_access
access_of(int32_t dev)
{
    openreg_gpu_memory_access access = {.flags = GPU_MEMORY_READ_WRITE};
    access.location.type = GPU_MEMORY_OF_DEVICE;
    access.location.id = dev;
    return access;
}

/* ----------------------------------------------------------------------------------- whether the machine can do that */

static bool
find_functions(const openreg_gpu_scope *scope, vmm_functions *out)
{
    static const struct {
        const char *name;
        size_t offset;
    } wanted[] = {
#define WANTED(name) {GPU_VMM_NAME(name), offsetof(vmm_functions, GPU_JOIN(call_, name))},
        OPENREG_GPU_VMM_FUNCTIONS(WANTED)
#undef WANTED
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; ++i)
        if (!openreg_gpu_find_optional(scope, wanted[i].name, (char *)out + wanted[i].offset))
            return false;
    return true;
}

/* The question names the device: no context is needed. 0: the device can't map. */
static uint64_t
step_of(openreg_instance instance, int32_t dev)
{
    const openreg_gpu_scope scope = {.instance = instance, .device = dev, .pending = GPU_CALL(PeekAtLastError)()};
    const openreg_gpu_memory_properties properties = properties_of(instance, dev);
    size_t granularity = 0; /* what HIP says of devices that can't map */
    const openreg_gpu_code code = (openreg_gpu_code)VMM_CALL(instance, MemGetAllocationGranularity)(
        &granularity, &properties, GPU_MEMORY_LEAST_GRANULARITY);
    if (code != GPU(Success))
        openreg_gpu_forget(&scope, code);
    if (code != GPU(Success) || (granularity & (granularity - 1)) != 0)
        return 0;
    return granularity == 0 || granularity > LEAST_PIECE ? granularity : LEAST_PIECE;
}

static bool
can_map(openreg_instance instance)
{
    for (int32_t dev = 0; dev < instance->device_count; ++dev)
        if ((instance->vmm->steps[dev] = step_of(instance, dev)) == 0)
            return false;
    return true;
}

/* A library refuses properties in the other order: where it looks for the type there is none. */
static bool
is_possible(openreg_instance instance)
{
    const openreg_gpu_scope scope = {.instance = instance, .pending = GPU_CALL(PeekAtLastError)()};
    if (!find_functions(&scope, &instance->vmm->functions))
        return false;
    if (can_map(instance))
        return true;
    instance->vmm->is_early = !OPENREG_GPU_CUDART;
    return instance->vmm->is_early && can_map(instance);
}

/* ---------------------------------------------------------------------------------- mapping; the lock is held for all */

static reservation *
find_reservation(openreg_instance instance, int32_t dev, const void *ptr)
{
    reservation *reserved = instance->vmm->reservations;
    while (reserved != NULL && (reserved->device != dev || reserved->start != ptr || reserved->ended))
        reserved = reserved->next;
    return reserved;
}

static void
forget_reservation(openreg_instance instance, reservation *reserved)
{
    reservation **link = &instance->vmm->reservations;
    while (*link != reserved)
        link = &(*link)->next;
    *link = reserved->next;
    free(reserved);
}

static bool
has_access(openreg_instance instance, int32_t owner, int32_t other)
{
    const size_t count = (size_t)instance->device_count;
    atomic_uchar *const there = &instance->peers[(size_t)owner * count + (size_t)other];
    atomic_uchar *const back = &instance->peers[(size_t)other * count + (size_t)owner];
    return owner == other || atomic_load_explicit(there, memory_order_relaxed) == OPENREG_GPU_PEER_ENABLED ||
           atomic_load_explicit(back, memory_order_relaxed) == OPENREG_GPU_PEER_ENABLED;
}

/* Access to the pieces from `first` up to `end`. */
static openreg_status
give_access(const openreg_gpu_scope *scope, const reservation *reserved, size_t first, size_t end)
{
    openreg_gpu_memory_access all[OPENREG_GPU_MAX_DEVICES];
    size_t count = 0;
    for (int32_t dev = 0; dev < scope->instance->device_count; ++dev)
        if (has_access(scope->instance, reserved->device, dev))
            all[count++] = access_of(dev);
    return VMM_TRY(scope, MemSetAccess, address_of(reserved, first), (size_t)((end - first) * reserved->step), all,
                   count);
}

/* Releases the pieces that are no memory, or are leaving, the last one first, until the vendor's *function refuses.
 * *has_changed: at least one call has succeeded. */
static openreg_gpu_code
drop_pieces(openreg_instance instance, reservation *reserved, const char **function, bool *has_changed)
{
    for (size_t i = reserved->count; i > 0; --i) {
        piece *const last = &reserved->pieces[i - 1];
        if (last->is_memory && !last->is_leaving)
            continue;
        if (last->is_mapped) {
            *function = GPU_VMM_NAME(MemUnmap);
            const openreg_gpu_code code = (openreg_gpu_code)VMM_CALL(instance, MemUnmap)(address_of(reserved, i - 1),
                                                                                         (size_t)reserved->step);
            if (code != GPU(Success))
                return code;
            last->is_mapped = false;
            *has_changed = true;
        }
        if (last->is_created) {
            *function = GPU_VMM_NAME(MemRelease);
            const openreg_gpu_code code = (openreg_gpu_code)VMM_CALL(instance, MemRelease)(last->handle);
            if (code != GPU(Success))
                return code;
            last->is_created = false;
            *has_changed = true;
        }
    }
    return GPU(Success);
}

/* The same, of a reservation without memory, and then the addresses. */
static openreg_gpu_code
drop_all(openreg_instance instance, reservation *reserved, const char **function, bool *has_changed)
{
    const openreg_gpu_code code = drop_pieces(instance, reserved, function, has_changed);
    if (code != GPU(Success))
        return code;
    *function = GPU_VMM_NAME(MemAddressFree);
    return (openreg_gpu_code)VMM_CALL(instance, MemAddressFree)(GPU_ADDRESS(reserved->start),
                                                                (size_t)(reserved->count * reserved->step));
}

static openreg_status
add_piece(const openreg_gpu_scope *scope, reservation *reserved, size_t index)
{
    const openreg_gpu_memory_properties properties = properties_of(scope->instance, reserved->device);
    piece *const added = &reserved->pieces[index];
    if (!added->is_created)
        OPENREG_GPU_RETURN_NOT_OK(VMM_TRY(scope, MemCreate, &added->handle, (size_t)reserved->step, &properties, 0));
    added->is_created = true;
    if (!added->is_mapped)
        OPENREG_GPU_RETURN_NOT_OK(
            VMM_TRY(scope, MemMap, address_of(reserved, index), (size_t)reserved->step, 0, added->handle, 0));
    added->is_mapped = true;
    return OPENREG_OK;
}

static void
set_memory(reservation *reserved, size_t first, size_t end, bool is_memory)
{
    for (size_t i = first; i < end; ++i)
        reserved->pieces[i].is_memory = is_memory;
}

static void
set_leaving(reservation *reserved, size_t first, size_t end, bool is_leaving)
{
    for (size_t i = first; i < end; ++i)
        reserved->pieces[i].is_leaving = is_leaving;
}

static openreg_status
add_pieces(const openreg_gpu_scope *scope, reservation *reserved, size_t first, size_t end)
{
    openreg_status status = OPENREG_OK;
    for (size_t i = first; status == OPENREG_OK && i < end; ++i)
        status = add_piece(scope, reserved, i);
    if (status == OPENREG_OK)
        status = give_access(scope, reserved, first, end);
    if (status == OPENREG_OK) {
        set_memory(reserved, first, end, true);
        return OPENREG_OK;
    }
    const char *function = NULL;
    bool has_changed = false;
    const openreg_gpu_code code = drop_pieces(scope->instance, reserved, &function, &has_changed);
    if (code != GPU(Success))
        openreg_gpu_log_failure(scope, code, function);
    return status;
}

/* `ends`: all of them, and the reservation too. */
static openreg_status
take_pieces(const openreg_gpu_scope *scope, reservation *reserved, size_t first, size_t end, bool ends)
{
    const char *function = NULL;
    bool has_changed = false;
    set_leaving(reserved, first, end, true);
    const openreg_gpu_code code = ends ? drop_all(scope->instance, reserved, &function, &has_changed)
                                       : drop_pieces(scope->instance, reserved, &function, &has_changed);
    set_leaving(reserved, first, end, false);
    if (code != GPU(Success) && !has_changed)
        return openreg_gpu_check(scope, code, function);
    if (code != GPU(Success))
        openreg_gpu_log_failure(scope, code, function);
    set_memory(reserved, first, end, false);
    reserved->ended = ends;
    if (ends && code == GPU(Success))
        forget_reservation(scope->instance, reserved);
    return OPENREG_OK;
}

/* Tries again to release what take_pieces() could not. */
static void
sweep(const openreg_gpu_scope *scope)
{
    reservation *next = NULL;
    for (reservation *reserved = scope->instance->vmm->reservations; reserved != NULL; reserved = next) {
        const char *function = NULL;
        bool has_changed = false;
        next = reserved->next;
        if (!reserved->ended || reserved->device != scope->device)
            continue;
        const openreg_gpu_code code = drop_all(scope->instance, reserved, &function, &has_changed);
        if (code == GPU(Success))
            forget_reservation(scope->instance, reserved);
        else
            openreg_gpu_log_failure(scope, code, function);
    }
}

/* ------------------------------------------------------------------------------------------------------ the extension */

static void
lock(openreg_instance instance)
{
    (void)pthread_mutex_lock(&instance->vmm->lock);
}

static void
unlock(openreg_instance instance)
{
    (void)pthread_mutex_unlock(&instance->vmm->lock);
}

static openreg_status
vmm_granularity(openreg_instance instance, int32_t dev, uint64_t *out)
{
    *out = instance->vmm->steps[dev];
    return OPENREG_OK;
}

static openreg_status
vmm_reserve(openreg_instance instance, int32_t dev, uint64_t size, void **out)
{
    const uint64_t step = instance->vmm->steps[dev];
    if (size == 0 || size % step != 0)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "reserve: %llu bytes are not a multiple of %llu",
                            (unsigned long long)size, (unsigned long long)step);
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    reservation *const reserved = calloc(1, sizeof *reserved + size / step * sizeof reserved->pieces[0]);
    openreg_gpu_address start = GPU_ADDRESS(NULL);
    openreg_status status;
    lock(instance);
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    sweep(&scope);
    if (reserved == NULL)
        status = openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for a reservation of %llu bytes",
                              (unsigned long long)size);
    else
        status = VMM_TRY(&scope, MemAddressReserve, &start, (size_t)size, (size_t)step, GPU_ADDRESS(NULL), 0);
    if (status == OPENREG_OK) {
        reserved->next = instance->vmm->reservations;
        reserved->device = dev;
        reserved->start = (char *)(uintptr_t)start;
        reserved->step = step;
        reserved->count = size / step;
        instance->vmm->reservations = reserved;
        *out = reserved->start;
    } else {
        free(reserved);
    }
    openreg_gpu_restore_capture(mode);
    unlock(instance);
    openreg_gpu_leave(&scope);
    return status;
}

/* Under the lock: the reservation, where all pieces of the range are memory or none is, else NULL and an error. */
static reservation *
check_range(openreg_instance instance, int32_t dev, const void *ptr, uint64_t offset, uint64_t size, bool are_memory,
            openreg_status *status)
{
    reservation *const reserved = find_reservation(instance, dev, ptr);
    *status = OPENREG_OK;
    bool fits = reserved != NULL && offset % reserved->step == 0 && size % reserved->step == 0 &&
                offset / reserved->step <= reserved->count &&
                size / reserved->step <= reserved->count - offset / reserved->step;
    for (uint64_t i = 0; fits && i < size / reserved->step; ++i)
        fits = reserved->pieces[offset / reserved->step + i].is_memory == are_memory;
    if (fits)
        return reserved;
    *status = openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                           "the reservation %p of device %d has no %llu bytes at %llu that are %s, in units of %llu",
                           ptr, dev, (unsigned long long)size, (unsigned long long)offset,
                           are_memory ? "memory" : "none yet", (unsigned long long)instance->vmm->steps[dev]);
    return NULL;
}

static openreg_status
vmm_map(openreg_instance instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    openreg_status status;
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    lock(instance);
    reservation *const reserved = check_range(instance, dev, ptr, offset, size, false, &status);
    if (status == OPENREG_OK && size > 0) {
        const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
        status = add_pieces(&scope, reserved, offset / reserved->step, (offset + size) / reserved->step);
        openreg_gpu_restore_capture(mode);
    }
    unlock(instance);
    openreg_gpu_leave(&scope);
    return status;
}

/* What vmm_unmap() and vmm_release() have in common. */
static openreg_status
take(openreg_instance instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size, bool ends)
{
    openreg_status status = OPENREG_OK;
    const bool is_lost = openreg_gpu_is_lost(instance, dev);
    lock(instance);
    reservation *const reserved = ends ? check_range(instance, dev, ptr, 0, 0, true, &status)
                                       : check_range(instance, dev, ptr, offset, size, true, &status);
    const size_t first = reserved != NULL ? offset / reserved->step : 0;
    const size_t end = reserved == NULL ? 0 : ends ? reserved->count : (offset + size) / reserved->step;
    if (reserved != NULL && is_lost) { /* its memory went with it */
        set_memory(reserved, first, end, false);
        if (ends)
            forget_reservation(instance, reserved);
    }
    unlock(instance);
    if (status != OPENREG_OK || is_lost || (!ends && size == 0))
        return status;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_peer_await(instance, dev));
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    lock(instance);
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    status = take_pieces(&scope, reserved, first, end, ends);
    openreg_gpu_restore_capture(mode);
    unlock(instance);
    openreg_gpu_leave(&scope);
    return status;
}

static openreg_status
vmm_unmap(openreg_instance instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    return take(instance, dev, ptr, offset, size, false);
}

static openreg_status
vmm_release(openreg_instance instance, int32_t dev, void *ptr)
{
    return take(instance, dev, ptr, 0, 0, true);
}

const openreg_vmm *
openreg_gpu_vmm_extension(openreg_instance instance)
{
    static const openreg_vmm table = {
        .struct_size = sizeof(openreg_vmm),
        .version = OPENREG_VMM_VERSION,
        .granularity = vmm_granularity,
        .reserve = vmm_reserve,
        .map = vmm_map,
        .unmap = vmm_unmap,
        .release = vmm_release,
    };
    atomic_int *const state = &instance->vmm->state;
    if (atomic_load_explicit(state, memory_order_acquire) == UNKNOWN) {
        lock(instance);
        if (atomic_load_explicit(state, memory_order_relaxed) == UNKNOWN)
            atomic_store_explicit(state, is_possible(instance) ? PRESENT : ABSENT, memory_order_release);
        unlock(instance);
    }
    return atomic_load_explicit(state, memory_order_acquire) == PRESENT ? &table : NULL;
}

bool
openreg_gpu_vmm_has(openreg_instance instance, int32_t dev, const void *ptr)
{
    const uintptr_t address = (uintptr_t)ptr;
    bool found = false;
    lock(instance);
    for (const reservation *reserved = instance->vmm->reservations; reserved != NULL; reserved = reserved->next)
        found |= reserved->device == dev && address >= (uintptr_t)reserved->start &&
                 address - (uintptr_t)reserved->start < reserved->count * reserved->step;
    unlock(instance);
    return found;
}

/* Access of `other` to the memory that the reservation has; the lock is held. */
static openreg_status
give_access_to(openreg_instance instance, const reservation *reserved, int32_t other)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, reserved->device));
    const openreg_gpu_memory_access access = access_of(other);
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    openreg_status status = OPENREG_OK;
    for (size_t first = 0, end; first < reserved->count && status == OPENREG_OK; first = end + 1) {
        for (end = first; end < reserved->count && reserved->pieces[end].is_memory; ++end) {
        }
        if (end > first)
            status = VMM_TRY(&scope, MemSetAccess, address_of(reserved, first),
                             (size_t)((end - first) * reserved->step), &access, 1);
    }
    openreg_gpu_restore_capture(mode);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_vmm_enable_access(openreg_instance instance, int32_t a, int32_t b, atomic_uchar *way)
{
    openreg_status status = OPENREG_OK;
    lock(instance); /* a segment that grows at the same time gets access either here or by *way */
    for (const reservation *reserved = instance->vmm->reservations; reserved != NULL && status == OPENREG_OK;
         reserved = reserved->next)
        if (!reserved->ended && (reserved->device == a || reserved->device == b))
            status = give_access_to(instance, reserved, reserved->device == a ? b : a);
    if (status == OPENREG_OK)
        atomic_store_explicit(way, OPENREG_GPU_PEER_ENABLED, memory_order_relaxed);
    unlock(instance);
    return status;
}

struct openreg_gpu_vmm *
openreg_gpu_vmm_create(void)
{
    struct openreg_gpu_vmm *const vmm = calloc(1, sizeof *vmm);
    if (vmm != NULL && pthread_mutex_init(&vmm->lock, NULL) != 0) {
        free(vmm);
        return NULL;
    }
    return vmm;
}

void
openreg_gpu_vmm_destroy(openreg_instance instance)
{
    struct openreg_gpu_vmm *const vmm = instance->vmm;
    while (vmm->reservations != NULL) {
        reservation *const first = vmm->reservations;
        openreg_gpu_scope scope;
        if (first->ended && !openreg_gpu_is_lost(instance, first->device) &&
            openreg_gpu_enter(&scope, instance, first->device) == OPENREG_OK) {
            const char *function = NULL;
            bool has_changed = false;
            const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
            const openreg_gpu_code code = drop_all(instance, first, &function, &has_changed);
            openreg_gpu_restore_capture(mode);
            if (code != GPU(Success))
                openreg_gpu_log_failure(&scope, code, function);
            openreg_gpu_leave(&scope);
        }
        forget_reservation(instance, first);
    }
    (void)pthread_mutex_destroy(&vmm->lock);
    free(vmm);
}
