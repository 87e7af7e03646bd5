/* SPDX-License-Identifier: BSD-3-Clause */
/* leases.c: the words that count the holders of exported memory (leases.h).
 *
 * A word is (use << 32) | (1 << 31 if not imported yet) | holders. `use` distinguishes the uses of a word, so that a
 * handle which outlives its memory is refused and not mistaken for another.
 *
 * The processes that hold a word are noted beside it, with their start times, because process ids are reused: when the
 * exporter checks, it drops the holds of processes that have ended. A process notes itself after it has counted itself,
 * and removes its note before its count at a release, so that one which dies in between is counted for ever, rather than
 * dropped twice. */
#define _GNU_SOURCE
#include "leases.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"

#define SLOTS 65536u
#define HOLDERS_NOTED 4 /* noted holders of a handle; further ones are only counted */
#define NOT_IMPORTED (UINT64_C(1) << 31)
#define HOLDERS (NOT_IMPORTED - 1)
#define TIMES_MASK UINT64_C(0xffffffff)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif

typedef struct lease_holder {
    atomic_uint_least64_t who;   /* (process << 32) | times that it holds the handle; 0: unused */
    atomic_uint_least64_t began; /* start of the process, in the kernel's ticks; 0: unknown */
} lease_holder;

typedef struct lease_slot {
    atomic_uint_least64_t word;
    lease_holder holders[HOLDERS_NOTED];
    openreg_handle_fields handle; /* the handle as exported; written before the word */
} lease_slot;

/* The exporter's result about a process, during one check. */
typedef struct seen_process {
    uint32_t process;
    uint64_t began;
    bool has_ended;
} seen_process;

#define FILE_SIZE (SLOTS * sizeof(lease_slot))

struct openreg_lease_file {
    lease_slot *slots;
    bool notes_holders; /* the process has the same id for the exporter */
    dev_t device;
    ino_t inode;
    int references; /* guarded by `lock` */
    openreg_lease_file *next;
};

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* guards the variables below, and the lists of words */
static struct {
    openreg_lease_file file; /* of this process; `slots` is NULL until the first export */
    int number;
    pid_t process;
    uint32_t used_slots; /* words that were used at least once */
    uint32_t free_count, free_slots[SLOTS];
} own;
static openreg_lease_file *others;
static seen_process looked_at[16]; /* since openreg_lease_look(); written by the exporter, with its lock held */
static int looked_at_count;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_LEASES, &lock);
}

/* -------------------------------------------------------------------------------------------------------- processes */

/* The start of a process in the kernel's ticks since the machine started; 0 if that can't be read. *is_running: it exists
 * and is not a zombie. */
static uint64_t
read_start(uint32_t process, bool *is_running)
{
    char path[32], text[1024];
    (void)snprintf(path, sizeof path, "/proc/%u/stat", process);
    const int number = open(path, O_RDONLY | O_CLOEXEC);
    *is_running = number >= 0 || errno != ENOENT;
    if (number < 0)
        return 0;
    const ssize_t length = read(number, text, sizeof text - 1);
    *is_running = length > 0 || errno != ESRCH; /* it has ended since */
    (void)close(number);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    /* "pid (name) state ..."; the name may hold anything, and the start is field 22. */
    const char *field = strrchr(text, ')');
    if (field == NULL || field[1] == '\0')
        return 0;
    *is_running = field[2] != 'Z' && field[2] != 'X';
    for (int i = 2; i < 22 && field != NULL; ++i)
        field = strchr(field + 1, ' ');
    return field != NULL ? strtoull(field + 1, NULL, 10) : 0;
}

static bool
has_ended(uint32_t process, uint64_t began)
{
    for (int i = 0; i < looked_at_count; ++i)
        if (looked_at[i].process == process && looked_at[i].began == began)
            return looked_at[i].has_ended;
    bool is_running;
    const uint64_t start = read_start(process, &is_running);
    const bool ended = !is_running || (began != 0 && start != 0 && start != began);
    if (looked_at_count < (int)(sizeof looked_at / sizeof looked_at[0]))
        looked_at[looked_at_count++] = (seen_process){process, began, ended};
    return ended;
}

/* Whether both processes are in the same PID namespace. */
static bool
shares_numbers(int32_t process)
{
    char path[48];
    struct stat own_numbers, others_numbers;
    (void)snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)process);
    return stat("/proc/self/ns/pid", &own_numbers) == 0 && stat(path, &others_numbers) == 0 &&
           own_numbers.st_ino == others_numbers.st_ino && own_numbers.st_dev == others_numbers.st_dev;
}

/* This process holds the handle once more. The lock is held. */
static void
note_holder(const openreg_lease_file *file, uint32_t slot)
{
    static uint64_t own_start;
    static pid_t own_start_of;
    bool is_running;
    const uint64_t process = (uint64_t)getpid();
    if (!file->notes_holders)
        return;
    if (own_start_of != (pid_t)process) {
        own_start = read_start((uint32_t)process, &is_running);
        own_start_of = (pid_t)process;
    }
    lease_holder *const holders = file->slots[slot].holders;
    for (int i = 0; i < HOLDERS_NOTED; ++i)
        if (atomic_load_explicit(&holders[i].who, memory_order_relaxed) >> 32 == process &&
            atomic_load_explicit(&holders[i].began, memory_order_relaxed) == own_start) {
            (void)atomic_fetch_add_explicit(&holders[i].who, 1, memory_order_relaxed);
            return;
        }
    for (int i = 0; i < HOLDERS_NOTED; ++i) {
        uint64_t unused = 0;
        if (atomic_compare_exchange_strong_explicit(&holders[i].who, &unused, process << 32 | 1, memory_order_acq_rel,
                                                    memory_order_relaxed)) {
            atomic_store_explicit(&holders[i].began, own_start, memory_order_release);
            return;
        }
    }
}

/* The same, once less. */
static void
forget_holder(const openreg_lease_file *file, uint32_t slot)
{
    const uint64_t process = (uint64_t)getpid();
    lease_holder *const holders = file->slots[slot].holders;
    openreg_lock_acquire(&lock);
    for (int i = 0; i < HOLDERS_NOTED && file->notes_holders; ++i) {
        const uint64_t who = atomic_load_explicit(&holders[i].who, memory_order_relaxed);
        if (who >> 32 != process)
            continue;
        const bool is_last = (who & TIMES_MASK) == 1;
        if (is_last) /* before a later holder can use the entry */
            atomic_store_explicit(&holders[i].began, 0, memory_order_relaxed);
        atomic_store_explicit(&holders[i].who, is_last ? 0 : who - 1, memory_order_release);
        break;
    }
    openreg_lock_release(&lock);
}

/* ------------------------------------------------------------------------------------------------- the exporter's half */

static bool
is_file_of(const openreg_lease_file *file, const openreg_handle_fields *handle)
{
    return (uint64_t)file->inode == handle->leases_inode && (uint64_t)file->device == handle->leases_device;
}

/* The lock is held. A child of fork() that may export gets a file of its own: its parent uses the words of the other. */
static openreg_status
make_own_file(const char *call)
{
    struct stat status;
    if (own.file.slots != NULL && own.process == getpid())
        return OPENREG_OK;
    int number = memfd_create("openreg-leases", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (number < 0 && errno == EINVAL) /* Linux before 6.3 */
        number = memfd_create("openreg-leases", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *words = MAP_FAILED;
    if (number >= 0 && ftruncate(number, FILE_SIZE) == 0 && fchmod(number, 0600) == 0 &&
        fcntl(number, F_ADD_SEALS, SEALS) == 0 && fstat(number, &status) == 0)
        words = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0);
    if (words == MAP_FAILED) {
        const int error = errno;
        if (number >= 0)
            (void)close(number);
        return openreg_error_set(OPENREG_E_NOMEM, call,
                                 "cannot create the file that counts who holds shared memory: %s", strerror(error));
    }
    own.file.slots = words;
    own.file.device = status.st_dev;
    own.file.inode = status.st_ino;
    own.number = number;
    own.process = getpid();
    own.used_slots = own.free_count = 0;
    return OPENREG_OK;
}

static openreg_status
grant_locked(const char *call, openreg_handle_fields *handle)
{
    OPENREG_RETURN_NOT_OK(make_own_file(call));
    if (own.free_count == 0 && own.used_slots == SLOTS)
        return openreg_error_set(OPENREG_E_NOMEM, call, "too many handles of shared memory (limit %u)", SLOTS);
    const uint32_t slot = own.free_count > 0 ? own.free_slots[--own.free_count] : own.used_slots++;
    atomic_uint_least64_t *word = &own.file.slots[slot].word;
    const uint64_t use = (atomic_load_explicit(word, memory_order_relaxed) >> 32) + 1;
    handle->process = (int32_t)own.process;
    handle->leases = own.number;
    handle->leases_device = (uint64_t)own.file.device;
    handle->leases_inode = (uint64_t)own.file.inode;
    handle->slot = slot;
    handle->use = (uint32_t)use;
    own.file.slots[slot].handle = *handle;
    atomic_store_explicit(word, use << 32 | NOT_IMPORTED | 1, memory_order_release);
    return OPENREG_OK;
}

openreg_status
openreg_lease_grant(const char *call, openreg_handle_fields *handle)
{
    openreg_lock_acquire(&lock);
    const openreg_status status = grant_locked(call, handle);
    openreg_lock_release(&lock);
    return status;
}

void
openreg_lease_look(void)
{
    looked_at_count = 0;
}

/* Drops the holds of processes that have ended. */
static void
take_back(lease_slot *slot)
{
    for (int i = 0; i < HOLDERS_NOTED; ++i) {
        lease_holder *const holder = &slot->holders[i];
        uint64_t who = atomic_load_explicit(&holder->who, memory_order_acquire);
        if (who == 0 || !has_ended((uint32_t)(who >> 32), atomic_load_explicit(&holder->began, memory_order_acquire)))
            continue;
        atomic_store_explicit(&holder->began, 0, memory_order_relaxed);
        if (atomic_compare_exchange_strong_explicit(&holder->who, &who, 0, memory_order_acq_rel, memory_order_relaxed))
            (void)atomic_fetch_sub_explicit(&slot->word, who & TIMES_MASK, memory_order_acq_rel);
    }
}

bool
openreg_lease_is_held(uint32_t slot)
{
    lease_slot *const lease = &own.file.slots[slot];
    if ((atomic_load_explicit(&lease->word, memory_order_acquire) & HOLDERS) != 0)
        take_back(lease);
    return (atomic_load_explicit(&lease->word, memory_order_acquire) & HOLDERS) != 0;
}

void
openreg_lease_end(uint32_t slot)
{
    openreg_lock_acquire(&lock);
    /* The use number stays, so a late importer finds no holder. */
    (void)atomic_fetch_and_explicit(&own.file.slots[slot].word, ~(NOT_IMPORTED | HOLDERS), memory_order_acq_rel);
    for (int i = 0; i < HOLDERS_NOTED; ++i) {
        atomic_store_explicit(&own.file.slots[slot].holders[i].began, 0, memory_order_relaxed);
        atomic_store_explicit(&own.file.slots[slot].holders[i].who, 0, memory_order_relaxed);
    }
    own.free_slots[own.free_count++] = slot;
    openreg_lock_release(&lock);
}

bool
openreg_lease_is_ours(const openreg_handle_fields *handle)
{
    openreg_lock_acquire(&lock);
    const bool ours = own.file.slots != NULL && own.process == getpid() && handle->process == (int32_t)own.process &&
                      is_file_of(&own.file, handle);
    openreg_lock_release(&lock);
    return ours;
}

/* ------------------------------------------------------------------------------------------------- the importer's half */

/* The handle's file, or -1 and errno; ESTALE: it is another file, because ids of processes and files are reused, or the
 * handle was altered. Only a file in memory that belongs to this user and can't be shortened is opened for writing. */
static int
open_sealed(const openreg_handle_fields *handle, struct stat *status)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle->process, (int)handle->leases);
    const int place = open(path, O_PATH | O_CLOEXEC); /* no effect on existing memory */
    if (place < 0)
        return -1;
    int reader = -1, file = -1, seals = -1;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", place);
    if (fstat(place, status) == 0 && S_ISREG(status->st_mode) && status->st_uid == geteuid() &&
        (uint64_t)status->st_ino == handle->leases_inode && (uint64_t)status->st_dev == handle->leases_device &&
        status->st_size == (off_t)FILE_SIZE)
        reader = open(path, O_RDONLY | O_CLOEXEC);
    if (reader >= 0) {
        seals = fcntl(reader, F_GET_SEALS);
        (void)close(reader);
    }
    if (seals >= 0 && (seals & SEALS) == SEALS)
        file = open(path, O_RDWR | O_CLOEXEC);
    (void)close(place);
    if (file < 0)
        errno = ESTALE;
    return file;
}

static openreg_status
open_file(const char *call, const openreg_handle_fields *handle, openreg_lease_file **out)
{
    struct stat status;
    const int number = open_sealed(handle, &status);
    if (number < 0 && errno != ENOENT && errno != ESTALE)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, call,
                                 "files of process %d can't be opened: %s; memory is shared "
                                 "between processes of one user on one machine",
                                 (int)handle->process, strerror(errno));
    if (number < 0)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "process %d, which has exported this memory, has ended; it must live until the memory "
                                 "was imported",
                                 (int)handle->process);
    openreg_lease_file *file = calloc(1, sizeof *file);
    void *words = file == NULL ? MAP_FAILED : mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0);
    (void)close(number);
    if (words == MAP_FAILED) {
        free(file);
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory to import memory");
    }
    file->slots = words;
    file->notes_holders = shares_numbers(handle->process);
    file->device = status.st_dev;
    file->inode = status.st_ino;
    *out = file;
    return OPENREG_OK;
}

/* The exporter's file, with a reference. The lock is held. */
static openreg_status
reach_file(const char *call, const openreg_handle_fields *handle, openreg_lease_file **out)
{
    openreg_lease_file *file = others;
    if (own.file.slots != NULL && is_file_of(&own.file, handle)) {
        *out = &own.file;
        return OPENREG_OK;
    }
    while (file != NULL && !is_file_of(file, handle))
        file = file->next;
    if (file == NULL) {
        OPENREG_RETURN_NOT_OK(open_file(call, handle, &file));
        file->next = others;
        others = file;
    }
    file->references++;
    *out = file;
    return OPENREG_OK;
}

static void
let_file_go(openreg_lease_file *file)
{
    if (file == &own.file)
        return;
    openreg_lock_acquire(&lock);
    if (--file->references == 0) {
        openreg_lease_file **link = &others;
        while (*link != file)
            link = &(*link)->next;
        *link = file->next;
        (void)munmap(file->slots, FILE_SIZE);
        free(file);
    }
    openreg_lock_release(&lock);
}

openreg_status
openreg_lease_take(const char *call, const openreg_handle_fields *handle, openreg_lease_file **out, bool *was_first)
{
    openreg_lease_file *file;
    if (handle->slot >= SLOTS)
        return openreg_error_set(OPENREG_E_INVALID, call, "invalid memory handle");
    openreg_lock_acquire(&lock);
    const openreg_status status = reach_file(call, handle, &file);
    openreg_lock_release(&lock);
    if (status != OPENREG_OK)
        return status;
    atomic_uint_least64_t *word = &file->slots[handle->slot].word;
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed), next;
    do {
        if ((uint32_t)(seen >> 32) != handle->use || (seen & HOLDERS) == 0) {
            let_file_go(file);
            return openreg_error_set(OPENREG_E_INVALID, call,
                                     "this memory of process %d was imported and released already; export it again "
                                     "for every time that it is sent",
                                     (int)handle->process);
        }
        next = (seen & NOT_IMPORTED) != 0 ? seen & ~NOT_IMPORTED : seen + 1;
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, next, memory_order_acq_rel, memory_order_relaxed));
    openreg_lock_acquire(&lock);
    note_holder(file, handle->slot);
    openreg_lock_release(&lock);
    *was_first = (seen & NOT_IMPORTED) != 0;
    /* Sizes, device and the driver's bytes are taken from the exporter's file, not from the handle, which may be altered. */
    openreg_handle_fields granted = file->slots[handle->slot].handle;
    granted.struct_size = handle->struct_size; /* that of who holds the bytes */
    if (memcmp(&granted, handle, sizeof granted) != 0) {
        openreg_lease_undo(file, handle->slot, *was_first);
        return openreg_error_set(OPENREG_E_INVALID, call, "invalid memory handle");
    }
    *out = file;
    return OPENREG_OK;
}

void
openreg_lease_undo(openreg_lease_file *file, uint32_t slot, bool was_first)
{
    if (!was_first) {
        openreg_lease_release(file, slot);
        return;
    }
    forget_holder(file, slot);
    (void)atomic_fetch_or_explicit(&file->slots[slot].word, NOT_IMPORTED, memory_order_release);
    let_file_go(file);
}

void
openreg_lease_release(openreg_lease_file *file, uint32_t slot)
{
    forget_holder(file, slot);
    atomic_uint_least64_t *const word = &file->slots[slot].word;
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    while ((seen & HOLDERS) != 0 &&
           !atomic_compare_exchange_weak_explicit(word, &seen, seen - 1, memory_order_release, memory_order_relaxed)) {
    }
    let_file_go(file);
}
