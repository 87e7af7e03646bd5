/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_vmm.c: device memory that grows in place (openreg/vmm.h, gpu.h), from pieces of OPENREG_VMM_GRANULARITY that the
 * vendor maps one by one: it unmaps no part of what was mapped at once, and a segment may become smaller by any number
 * of pieces.
 *
 * A handle is kept as long as its piece is mapped: CUDA would keep the memory without it, not every version of HIP does.
 * Access is the device's own, and that of the devices whose memory it exchanges copies with (gpu_peer.c): for mapped
 * memory the vendors' peer access alone gives none.
 *
 * The vendor may refuse to take pieces back after it has taken some. A failure must leave things as they were, which is
 * then out of reach; so the call succeeds, logs what the vendor said, and what is left serves the next growth or is
 * given back with the next reservation, at the latest at close(). */
#include "gpu.h"

#include <pthread.h>
#include <stdlib.h>

#define PIECE OPENREG_VMM_GRANULARITY

#define VMM_MEMBER(name) __typeof__(&GPU_VMM(name)) GPU_JOIN(call_, name);
typedef struct vmm_functions {
    OPENREG_GPU_VMM_FUNCTIONS(VMM_MEMBER)
} vmm_functions;

typedef struct reservation {
    struct reservation *next;
    int32_t device;
    bool ended; /* as far as the runtime is concerned */
    char *start;
    uint64_t size;  /* of the addresses */
    size_t pieces;  /* the memory that the runtime asked for */
    size_t mapped;  /* at least `pieces`, from the start on */
    size_t created; /* at least `mapped`: those that have a handle */
    openreg_gpu_memory_handle handles[];
} reservation;

enum { UNKNOWN, ABSENT, PRESENT };

struct openreg_gpu_vmm {
    pthread_mutex_t
        lock; /* guards the reservations and what is mapped, with the peers' access: openreg_gpu_vmm_enable_access() */
    atomic_int state;
    vmm_functions functions; /* PRESENT: all there */
    reservation *reservations;
};

#define VMM_CALL(instance, name) (instance)->vmm->functions.GPU_JOIN(call_, name)
#define VMM_TRY(scope, name, ...)                                                                                      \
    openreg_gpu_check((scope), (openreg_gpu_code)VMM_CALL((scope)->instance, name)(__VA_ARGS__), GPU_VMM_NAME(name))

static openreg_gpu_address
address_of(const reservation *reserved, size_t piece)
{
    return GPU_ADDRESS(reserved->start + piece * PIECE);
}

static openreg_gpu_memory_properties
properties_of(int32_t dev)
{
    openreg_gpu_memory_properties properties = {.type = GPU_MEMORY_PINNED};
    properties.location.type = GPU_MEMORY_OF_DEVICE;
    properties.location.id = dev;
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

/* The question names the device: no context is needed. */
static bool
is_granularity_right(openreg_instance instance, int32_t dev)
{
    const openreg_gpu_scope scope = {.instance = instance, .device = dev, .pending = GPU_CALL(PeekAtLastError)()};
    const openreg_gpu_memory_properties properties = properties_of(dev);
    size_t granularity = 0; /* what HIP says of devices that can't map */
    const openreg_gpu_code code = (openreg_gpu_code)VMM_CALL(instance, MemGetAllocationGranularity)(
        &granularity, &properties, GPU_MEMORY_LEAST_GRANULARITY);
    if (code != GPU(Success))
        openreg_gpu_forget(&scope, code);
    return code == GPU(Success) && granularity != 0 && PIECE % granularity == 0;
}

static bool
is_possible(openreg_instance instance)
{
    const openreg_gpu_scope scope = {.instance = instance, .pending = GPU_CALL(PeekAtLastError)()};
    if (!find_functions(&scope, &instance->vmm->functions))
        return false;
    for (int32_t dev = 0; dev < instance->device_count; ++dev)
        if (!is_granularity_right(instance, dev))
            return false;
    return true;
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
    return VMM_TRY(scope, MemSetAccess, address_of(reserved, first), (size_t)((end - first) * PIECE), all, count);
}

/* Gives pieces at the end back until there are so many, or until the vendor refuses, in *function. */
static openreg_gpu_code
drop_pieces(openreg_instance instance, reservation *reserved, size_t pieces, const char **function)
{
    while (reserved->created > pieces) {
        const size_t last = reserved->created - 1;
        if (reserved->mapped == reserved->created) {
            *function = GPU_VMM_NAME(MemUnmap);
            const openreg_gpu_code code = (openreg_gpu_code)VMM_CALL(instance, MemUnmap)(address_of(reserved, last),
                                                                                         (size_t)PIECE);
            if (code != GPU(Success))
                return code;
            --reserved->mapped;
        }
        *function = GPU_VMM_NAME(MemRelease);
        const openreg_gpu_code code = (openreg_gpu_code)VMM_CALL(instance, MemRelease)(reserved->handles[last]);
        if (code != GPU(Success))
            return code;
        --reserved->created;
    }
    return GPU(Success);
}

/* The same to the end, with the addresses. */
static openreg_gpu_code
drop_all(openreg_instance instance, reservation *reserved, const char **function)
{
    const openreg_gpu_code code = drop_pieces(instance, reserved, 0, function);
    if (code != GPU(Success))
        return code;
    *function = GPU_VMM_NAME(MemAddressFree);
    return (openreg_gpu_code)VMM_CALL(instance, MemAddressFree)(GPU_ADDRESS(reserved->start), (size_t)reserved->size);
}

static openreg_status
add_piece(const openreg_gpu_scope *scope, reservation *reserved)
{
    const openreg_gpu_memory_properties properties = properties_of(reserved->device);
    if (reserved->created == reserved->mapped) {
        OPENREG_GPU_RETURN_NOT_OK(
            VMM_TRY(scope, MemCreate, &reserved->handles[reserved->created], (size_t)PIECE, &properties, 0));
        ++reserved->created;
    }
    OPENREG_GPU_RETURN_NOT_OK(VMM_TRY(scope, MemMap, address_of(reserved, reserved->mapped), (size_t)PIECE, 0,
                                      reserved->handles[reserved->mapped], 0));
    ++reserved->mapped;
    return OPENREG_OK;
}

static openreg_status
grow(const openreg_gpu_scope *scope, reservation *reserved, size_t pieces)
{
    openreg_status status = OPENREG_OK;
    while (status == OPENREG_OK && reserved->mapped < pieces)
        status = add_piece(scope, reserved);
    if (status == OPENREG_OK)
        status = give_access(scope, reserved, reserved->pieces, pieces);
    if (status == OPENREG_OK) {
        reserved->pieces = pieces;
        return OPENREG_OK;
    }
    const char *function = NULL;
    const openreg_gpu_code code = drop_pieces(scope->instance, reserved, reserved->pieces, &function);
    if (code != GPU(Success))
        openreg_gpu_log_failure(scope, code, function);
    return status;
}

/* `ends`: the reservation too. */
static openreg_status
shrink(const openreg_gpu_scope *scope, reservation *reserved, size_t pieces, bool ends)
{
    const size_t mapped = reserved->mapped;
    const size_t created = reserved->created;
    const char *function = NULL;
    const openreg_gpu_code code = ends ? drop_all(scope->instance, reserved, &function)
                                       : drop_pieces(scope->instance, reserved, pieces, &function);
    if (code != GPU(Success) && reserved->mapped == mapped && reserved->created == created)
        return openreg_gpu_check(scope, code, function);
    if (code != GPU(Success))
        openreg_gpu_log_failure(scope, code, function);
    reserved->pieces = pieces;
    reserved->ended = ends;
    if (ends && code == GPU(Success))
        forget_reservation(scope->instance, reserved);
    return OPENREG_OK;
}

/* Tries again what shrink() could not give back. */
static void
sweep(const openreg_gpu_scope *scope)
{
    reservation *next = NULL;
    for (reservation *reserved = scope->instance->vmm->reservations; reserved != NULL; reserved = next) {
        const char *function = NULL;
        next = reserved->next;
        if (!reserved->ended || reserved->device != scope->device)
            continue;
        const openreg_gpu_code code = drop_all(scope->instance, reserved, &function);
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
vmm_reserve(openreg_instance instance, int32_t dev, uint64_t size, void **out)
{
    if (size == 0 || size % PIECE != 0)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "reserve: %llu bytes are not a multiple of 2 MiB",
                            (unsigned long long)size);
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    reservation *const reserved = calloc(1, sizeof *reserved + size / PIECE * sizeof reserved->handles[0]);
    openreg_gpu_address start = GPU_ADDRESS(NULL);
    openreg_status status;
    lock(instance);
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    sweep(&scope);
    if (reserved == NULL)
        status = openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for a reservation of %llu bytes",
                              (unsigned long long)size);
    else
        status = VMM_TRY(&scope, MemAddressReserve, &start, (size_t)size, (size_t)PIECE, GPU_ADDRESS(NULL), 0);
    if (status == OPENREG_OK) {
        reserved->next = instance->vmm->reservations;
        reserved->device = dev;
        reserved->start = (char *)(uintptr_t)start;
        reserved->size = size;
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

/* Under the lock: the reservation, where it has so many bytes, else NULL and an error. */
static reservation *
check_reservation(openreg_instance instance, int32_t dev, const void *ptr, uint64_t size, openreg_status *status)
{
    reservation *const reserved = find_reservation(instance, dev, ptr);
    *status = OPENREG_OK;
    if (reserved != NULL && size <= reserved->size && size % PIECE == 0)
        return reserved;
    *status = openreg_fail(instance->host, OPENREG_E_INVALID, 0,
                           "%p is not a reservation of device %d for %llu bytes, in units of 2 MiB", ptr, dev,
                           (unsigned long long)size);
    return NULL;
}

/* What vmm_resize() and vmm_release() have in common. */
static openreg_status
change(openreg_instance instance, int32_t dev, void *ptr, uint64_t size, bool ends)
{
    openreg_status status;
    lock(instance);
    reservation *const reserved = check_reservation(instance, dev, ptr, size, &status);
    const size_t before = reserved != NULL ? reserved->pieces : 0;
    const size_t pieces = (size_t)(size / PIECE);
    const bool drops = ends || pieces < before;
    const bool is_lost = openreg_gpu_is_lost(instance, dev);
    if (reserved != NULL && is_lost && drops) { /* its memory went with it */
        reserved->pieces = pieces;
        if (ends)
            forget_reservation(instance, reserved);
    }
    unlock(instance);
    const bool is_done = (is_lost && drops) || (pieces == before && !ends);
    if (status != OPENREG_OK || is_done)
        return status;
    if (drops)
        OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_peer_await(instance, dev));
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    lock(instance);
    const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
    status = drops ? shrink(&scope, reserved, pieces, ends) : grow(&scope, reserved, pieces);
    openreg_gpu_restore_capture(mode);
    unlock(instance);
    openreg_gpu_leave(&scope);
    return status;
}

static openreg_status
vmm_resize(openreg_instance instance, int32_t dev, void *ptr, uint64_t size)
{
    return change(instance, dev, ptr, size, false);
}

static openreg_status
vmm_release(openreg_instance instance, int32_t dev, void *ptr)
{
    return change(instance, dev, ptr, 0, true);
}

const openreg_vmm *
openreg_gpu_vmm_extension(openreg_instance instance)
{
    static const openreg_vmm table = {
        .struct_size = sizeof(openreg_vmm),
        .version = OPENREG_VMM_VERSION,
        .reserve = vmm_reserve,
        .resize = vmm_resize,
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
                 address - (uintptr_t)reserved->start < reserved->size;
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
    const openreg_status status = VMM_TRY(&scope, MemSetAccess, address_of(reserved, 0),
                                          (size_t)(reserved->pieces * PIECE), &access, 1);
    openreg_gpu_restore_capture(mode);
    openreg_gpu_leave(&scope);
    return status;
}

openreg_status
openreg_gpu_vmm_enable_access(openreg_instance instance, int32_t a, int32_t b, atomic_uchar *way)
{
    openreg_status status = OPENREG_OK;
    lock(instance); /* a segment that grows meanwhile has it either from here or by *way */
    for (const reservation *reserved = instance->vmm->reservations; reserved != NULL && status == OPENREG_OK;
         reserved = reserved->next)
        if (!reserved->ended && reserved->pieces > 0 && (reserved->device == a || reserved->device == b))
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
            const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
            const openreg_gpu_code code = drop_all(instance, first, &function);
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
