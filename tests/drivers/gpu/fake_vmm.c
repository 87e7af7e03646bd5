/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_vmm.c: the fake vendor's memory that is mapped piece by piece (fake_gpu.h): CUDA's driver API and HIP's
 * functions. A reservation is two stretches of addresses: one that the host can't touch, which the driver is given, and
 * one for the streams; a handle is a memory file, which mapping puts in both.
 *
 * Stricter than the vendor: a device's pieces are mapped with its context current, and only what was mapped at once is
 * unmapped at once. */
#define _GNU_SOURCE
#include "fake_gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef openreg_gpu_vmm_code code;
#define OK ((code)0)
#define INVALID ((code)1)
#define NO_MEMORY ((code)2)
#define NO_CONTEXT ((code)201)

typedef struct handle {
    struct handle *next;
    size_t size;
    int device, file;
    int mappings;
    bool released;
} handle;

typedef struct mapping {
    struct mapping *next;
    size_t offset, size;
    handle *memory;
    bool access[FAKE_MAX_DEVICES];
} mapping;

typedef struct reservation {
    struct reservation *next;
    char *address, *alias;
    size_t size;
    mapping *mappings;
} reservation;

static pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of them; taken before fake_memory.c's */
static handle *handles;
static reservation *reservations;
static fake_block *views; /* that queued work uses */

/* A call that works in a device's context. */
static code
begin(const char *name, int *dev)
{
#if OPENREG_GPU_CUDART
    if (!fake_has_current_context())
        return NO_CONTEXT;
#endif
    return (code)fake_begin_work(name, dev);
}

/* HIP's functions leave a thread's last error, CUDA's driver API none. */
static code
end(code result)
{
#if OPENREG_GPU_CUDART
    return result;
#else
    return fake_end(result);
#endif
}

static code
reject(void)
{
    (void)atomic_fetch_add(&fake_violations, 1);
    return INVALID;
}

static bool
is_whole(size_t size)
{
    return size != 0 && size % fake_settings_get()->granularity == 0;
}

/* ------------------------------------------------------------------------------------------------------ under the lock */

static reservation *
find_reservation(const char *address, size_t size)
{
    for (reservation *found = reservations; found != NULL; found = found->next)
        if (address >= found->address && address < found->address + found->size)
            return size <= found->size - (size_t)(address - found->address) ? found : NULL;
    return NULL;
}

static mapping *
mapping_at(const reservation *in, size_t offset)
{
    mapping *found = in->mappings;
    while (found != NULL && (offset < found->offset || offset - found->offset >= found->size))
        found = found->next;
    return found;
}

/* Whether all of the bytes are mapped, with access of the device if dev >= 0. */
static bool
is_mapped(const reservation *in, size_t offset, size_t size, int dev)
{
    for (const size_t end_at = offset + size; offset < end_at;) {
        const mapping *const part = mapping_at(in, offset);
        if (part == NULL || (dev >= 0 && !part->access[dev]))
            return false;
        offset = part->offset + part->size;
    }
    return true;
}

static void
drop_handle(handle *memory)
{
    if (!memory->released || memory->mappings > 0)
        return; /* CUDA counts references */
    handle **link = &handles;
    while (*link != memory)
        link = &(*link)->next;
    *link = memory->next;
    fake_memory_give(memory->device, memory->size);
    (void)close(memory->file);
    free(memory);
}

static bool
is_in_use(const char *address, size_t size)
{
    for (const fake_block *view = views; view != NULL; view = view->next)
        if (view->address < address + size && address < view->address + view->size)
            return true;
    return false;
}

static void
remove_mapping(reservation *in, mapping *part)
{
    mapping **link = &in->mappings;
    while (*link != part)
        link = &(*link)->next;
    *link = part->next;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    (void)mmap(in->address + part->offset, part->size, PROT_NONE, flags, -1, 0);
    if (!is_in_use(in->address + part->offset, part->size)) /* else the streams would fall over the driver's mistake */
        (void)mmap(in->alias + part->offset, part->size, PROT_NONE, flags, -1, 0);
    --part->memory->mappings;
    drop_handle(part->memory);
    free(part);
}

static void
remove_reservation(reservation *gone)
{
    reservation **link = &reservations;
    while (*link != gone)
        link = &(*link)->next;
    *link = gone->next;
    while (gone->mappings != NULL)
        remove_mapping(gone, gone->mappings);
    (void)munmap(gone->address, gone->size);
    if (!is_in_use(gone->address, gone->size))
        (void)munmap(gone->alias, gone->size);
    free(gone);
}

/* ------------------------------------------------------------------------------------------------ the vendor's functions */

#if OPENREG_GPU_CUDART
#define FUNCTION(name) static code vmm_##name
#else
#define FUNCTION(name) code hip##name
#endif

/* Whether properties ask for pinned memory of a device, by the places where this version of the library has the fields: those of
 * HIP 5.2 with FAKE_GPU_EARLY_PROPERTIES. */
static bool
are_right(const openreg_gpu_memory_properties *properties, int *dev)
{
    const bool is_early = fake_settings_get()->early_properties;
    uint32_t words[sizeof *properties / sizeof(uint32_t)];
    memcpy(words, properties, sizeof words);
    *dev = (int)words[is_early ? 2 : 3];
    return words[is_early ? 4 : 0] == GPU_MEMORY_PINNED && words[is_early ? 1 : 2] == GPU_MEMORY_OF_DEVICE;
}

FUNCTION(MemGetAllocationGranularity)(size_t *granularity, const openreg_gpu_memory_properties *properties,
                                      openreg_gpu_granularity_kind kind)
{
    int dev = -1;
    code result = (code)fake_begin("MemGetAllocationGranularity");
    if (result == OK && (kind != GPU_MEMORY_LEAST_GRANULARITY || !are_right(properties, &dev) || !fake_is_device(dev)))
        result = INVALID;
    if (result == OK)
        *granularity = fake_settings_get()->granularity;
    return end(result);
}

FUNCTION(MemAddressReserve)(openreg_gpu_address *out, size_t size, size_t alignment, openreg_gpu_address wanted,
                            unsigned long long flags)
{
    code result = (code)fake_begin("MemAddressReserve");
    if (result == OK && (!is_whole(size) || wanted != GPU_ADDRESS(NULL) || flags != 0))
        result = INVALID;
    if (result != OK)
        return end(result);
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *const room = mmap(NULL, size + alignment, PROT_NONE, how, -1, 0);
    char *const alias = mmap(NULL, size, PROT_NONE, how, -1, 0);
    if (room == MAP_FAILED || alias == MAP_FAILED)
        return end(NO_MEMORY);
    const size_t before = (size_t)(0 - (uintptr_t)room) % alignment;
    if (before > 0)
        (void)munmap(room, before);
    (void)munmap(room + before + size, alignment - before);
    reservation *const made = malloc(sizeof *made);
    (void)pthread_mutex_lock(&vmm_lock);
    *made = (reservation){.next = reservations, .address = room + before, .alias = alias, .size = size};
    reservations = made;
    (void)pthread_mutex_unlock(&vmm_lock);
    *out = GPU_ADDRESS(made->address);
    return end(OK);
}

FUNCTION(MemAddressFree)(openreg_gpu_address address, size_t size)
{
    code result = (code)fake_begin("MemAddressFree");
    (void)pthread_mutex_lock(&vmm_lock);
    reservation *const found = find_reservation((char *)(uintptr_t)address, size);
    if (result == OK && (found == NULL || GPU_ADDRESS(found->address) != address || found->size != size))
        result = INVALID;
    else if (result == OK && found->mappings != NULL)
        result = reject();
    else if (result == OK)
        remove_reservation(found);
    (void)pthread_mutex_unlock(&vmm_lock);
    return end(result);
}

FUNCTION(MemCreate)(openreg_gpu_memory_handle *out, size_t size, const openreg_gpu_memory_properties *properties,
                    unsigned long long flags)
{
    int dev = -1, wanted = -1;
    code result = begin("MemCreate", &dev);
    if (result == OK && (!is_whole(size) || !are_right(properties, &wanted) || wanted != dev || flags != 0))
        result = INVALID;
    else if (result == OK && !fake_memory_take(dev, size))
        result = NO_MEMORY;
    if (result != OK)
        return end(result);
    const int file = memfd_create("fake_gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size) != 0)
        return end((code)999);
    char *const contents = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memset(contents, 0xCD, size);
    (void)munmap(contents, size);
    handle *const made = malloc(sizeof *made);
    (void)pthread_mutex_lock(&vmm_lock);
    *made = (handle){.next = handles, .size = size, .device = dev, .file = file};
    handles = made;
    (void)pthread_mutex_unlock(&vmm_lock);
    *out = (openreg_gpu_memory_handle)(uintptr_t)made;
    return end(OK);
}

/* Under the lock. NULL if it was released. */
static handle *
handle_of(openreg_gpu_memory_handle native)
{
    handle *found = handles;
    while (found != NULL && ((uintptr_t)found != (uintptr_t)native || found->released))
        found = found->next;
    return found;
}

FUNCTION(MemRelease)(openreg_gpu_memory_handle native)
{
    int dev = -1;
    code result = begin("MemRelease", &dev);
    (void)pthread_mutex_lock(&vmm_lock);
    handle *const found = handle_of(native);
    if (result == OK && found == NULL) {
        result = reject();
    } else if (result == OK) {
        found->released = true;
        drop_handle(found);
    }
    (void)pthread_mutex_unlock(&vmm_lock);
    return end(result);
}

/* Under the lock. */
static code
map(char *address, size_t size, handle *memory)
{
    reservation *const in = find_reservation(address, size);
    if (in == NULL || memory == NULL || size != memory->size)
        return INVALID;
    const size_t offset = (size_t)(address - in->address);
    for (const mapping *other = in->mappings; other != NULL; other = other->next)
        if (other->offset < offset + size && offset < other->offset + other->size)
            return reject();
    mapping *const made = malloc(sizeof *made);
    *made = (mapping){.next = in->mappings, .offset = offset, .size = size, .memory = memory};
    in->mappings = made;
    ++memory->mappings;
    const int flags = MAP_SHARED | MAP_FIXED;
    if (mmap(address, size, PROT_NONE, flags, memory->file, 0) == MAP_FAILED ||
        mmap(in->alias + offset, size, PROT_READ | PROT_WRITE, flags, memory->file, 0) == MAP_FAILED)
        return (code)999;
    return OK;
}

FUNCTION(MemMap)(openreg_gpu_address address, size_t size, size_t offset, openreg_gpu_memory_handle native,
                 unsigned long long flags)
{
    int dev = -1;
    code result = begin("MemMap", &dev);
    if (result == OK && (!is_whole(size) || offset != 0 || flags != 0))
        result = INVALID;
    (void)pthread_mutex_lock(&vmm_lock);
    if (result == OK)
        result = map((char *)(uintptr_t)address, size, handle_of(native));
    (void)pthread_mutex_unlock(&vmm_lock);
    return end(result);
}

FUNCTION(MemUnmap)(openreg_gpu_address address, size_t size)
{
    int dev = -1;
    code result = begin("MemUnmap", &dev);
    (void)pthread_mutex_lock(&vmm_lock);
    char *const start = (char *)(uintptr_t)address;
    reservation *const in = result == OK ? find_reservation(start, size) : NULL;
    mapping *const part = in != NULL ? mapping_at(in, (size_t)(start - in->address)) : NULL;
    if (result == OK && (part == NULL || in->address + part->offset != start || part->size != size)) {
        result = reject();
    } else if (result == OK) {
        if (is_in_use(start, size))
            (void)atomic_fetch_add(&fake_violations, 1);
        remove_mapping(in, part);
    }
    (void)pthread_mutex_unlock(&vmm_lock);
    return end(result);
}

FUNCTION(MemSetAccess)(openreg_gpu_address address, size_t size, const openreg_gpu_memory_access *all, size_t count)
{
    int dev = -1;
    code result = begin("MemSetAccess", &dev);
    const char *const start = (char *)(uintptr_t)address;
    (void)pthread_mutex_lock(&vmm_lock);
    const reservation *const in = result == OK ? find_reservation(start, size) : NULL;
    if (result == OK && (in == NULL || !is_whole(size) || !is_mapped(in, (size_t)(start - in->address), size, -1)))
        result = reject();
    for (size_t i = 0; result == OK && i < count; ++i)
        if (all[i].flags != GPU_MEMORY_READ_WRITE || all[i].location.type != GPU_MEMORY_OF_DEVICE ||
            !fake_is_device(all[i].location.id))
            result = INVALID;
    if (result == OK)
        for (size_t at = (size_t)(start - in->address), last = at + size; at < last;) {
            mapping *const part = mapping_at(in, at);
            for (size_t i = 0; i < count; ++i)
                part->access[all[i].location.id] = true;
            at = part->offset + part->size;
        }
    (void)pthread_mutex_unlock(&vmm_lock);
    return end(result);
}

FUNCTION(MemGetAddressRange)(openreg_gpu_address *start, size_t *size, openreg_gpu_address inside)
{
    int dev = -1;
    void *first = NULL;
    code result = begin("MemGetAddressRange", &dev);
    if (result == OK && !fake_block_find((const void *)(uintptr_t)inside, &first, size))
        result = INVALID;
    if (result == OK)
        *start = GPU_ADDRESS(first);
    return end(result);
}

#if OPENREG_GPU_CUDART
void (*fake_vmm_entry(const char *name))(void)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } entries[] = {
#define ENTRY(name) {GPU_VMM_NAME(name), (void (*)(void))vmm_##name},
        OPENREG_GPU_VMM_FUNCTIONS(ENTRY) ENTRY(MemGetAddressRange)
#undef ENTRY
    };
#define CHECK(name)                                                                                                    \
    const __typeof__(&GPU_VMM(name)) own_##name = vmm_##name; /* the compiler compares the prototypes */               \
    (void)own_##name;
    OPENREG_GPU_VMM_FUNCTIONS(CHECK)
    CHECK(MemGetAddressRange)
#undef CHECK
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; ++i)
        if (strcmp(entries[i].name, name) == 0)
            return entries[i].function;
    return NULL;
}
#endif

/* ------------------------------------------------------------------------------------------------- use by the streams */

fake_block *
fake_vmm_use(const void *ptr, size_t size)
{
    const char *const start = ptr;
    fake_block *view = NULL;
    (void)pthread_mutex_lock(&vmm_lock);
    const reservation *const in = find_reservation(start, size);
    const size_t offset = in != NULL ? (size_t)(start - in->address) : 0;
    if (in != NULL && is_mapped(in, offset, size, -1)) {
        const int dev = mapping_at(in, offset)->memory->device;
        if (is_mapped(in, offset, size, dev)) {
            view = malloc(sizeof *view);
            *view = (fake_block){.next = views,
                                 .address = in->address + offset,
                                 .alias = in->alias + offset,
                                 .size = size,
                                 .device = dev,
                                 .file = -1,
                                 .is_view = true,
                                 .users = 1};
            views = view;
        } else {
            (void)atomic_fetch_add(&fake_violations, 1);
        }
    }
    (void)pthread_mutex_unlock(&vmm_lock);
    return view;
}

void
fake_vmm_release(fake_block *view)
{
    (void)pthread_mutex_lock(&vmm_lock);
    fake_block **link = &views;
    while (*link != view)
        link = &(*link)->next;
    *link = view->next;
    (void)pthread_mutex_unlock(&vmm_lock);
    free(view);
}

bool
fake_vmm_reaches(const fake_block *block, int dev)
{
    if (!block->is_view)
        return true;
    (void)pthread_mutex_lock(&vmm_lock);
    const reservation *const in = find_reservation(block->address, block->size);
    const bool reaches = in != NULL && is_mapped(in, (size_t)(block->address - in->address), block->size, dev);
    (void)pthread_mutex_unlock(&vmm_lock);
    return reaches;
}

/* ----------------------------------------------------------------------------------------------------------- hooks */

/* -1: no such kind here. */
int
fake_vmm_live(const char *kind)
{
    const bool counts_reservations = strcmp(kind, "reservation") == 0;
    const bool counts_mappings = strcmp(kind, "mapping") == 0;
    if (!counts_reservations && !counts_mappings && strcmp(kind, "handle") != 0)
        return -1;
    int found = 0;
    (void)pthread_mutex_lock(&vmm_lock);
    for (const reservation *in = reservations; in != NULL; in = in->next) {
        found += counts_reservations;
        for (const mapping *part = in->mappings; counts_mappings && part != NULL; part = part->next)
            ++found;
    }
    if (!counts_reservations && !counts_mappings)
        for (const handle *memory = handles; memory != NULL; memory = memory->next)
            ++found; /* one that was released is there as long as it is mapped */
    (void)pthread_mutex_unlock(&vmm_lock);
    return found;
}

/* After the streams have ended. */
void
fake_vmm_reset(void)
{
    (void)pthread_mutex_lock(&vmm_lock);
    while (reservations != NULL)
        remove_reservation(reservations);
    while (handles != NULL) {
        handles->released = true;
        drop_handle(handles);
    }
    (void)pthread_mutex_unlock(&vmm_lock);
}
