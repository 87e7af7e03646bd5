/* SPDX-License-Identifier: BSD-3-Clause */
/* leases.c: the words that count who holds exported memory (leases.h).
 *
 * A word is (use << 32) | (1 << 31 if not imported yet) | holders. `use` tells a word from its earlier uses, so that a
 * handle which outlives its memory is refused and not mistaken for another. */
#define _GNU_SOURCE
#include "memory/leases.h"

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
#include "base/lock.h"

#define SLOTS 65536u
#define FILE_SIZE (SLOTS * sizeof(atomic_uint_least64_t))
#define NOT_IMPORTED (UINT64_C(1) << 31)
#define HOLDERS (NOT_IMPORTED - 1)

struct openreg_lease_file {
    atomic_uint_least64_t *words;
    dev_t device;
    ino_t inode;
    int references; /* guarded by `lock` */
    openreg_lease_file *next;
};

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* guards what follows, and the lists of words */
static struct {
    openreg_lease_file file; /* of this process; `words` is NULL until the first export */
    int number;
    pid_t process;
    uint32_t used_slots; /* words that were used at least once */
    uint32_t free_count, free_slots[SLOTS];
} own;
static openreg_lease_file *others;

/* ------------------------------------------------------------------------------------------------- the exporter's half */

/* The lock is held. A child of fork() that may export has a file of its own: its parent uses the words of the other. */
static openreg_status
make_own_file(const char *call)
{
    struct stat status;
    if (own.file.words != NULL && own.process == getpid())
        return OPENREG_OK;
    const int number = memfd_create("openreg-leases", MFD_CLOEXEC);
    void *words = MAP_FAILED;
    if (number >= 0 && ftruncate(number, FILE_SIZE) == 0 && fstat(number, &status) == 0)
        words = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0);
    if (words == MAP_FAILED) {
        const int error = errno;
        if (number >= 0)
            (void)close(number);
        return openreg_error_set(OPENREG_E_NOMEM, call,
                                 "cannot create the file that counts who holds shared memory: %s", strerror(error));
    }
    own.file.words = words;
    own.file.device = status.st_dev;
    own.file.inode = status.st_ino;
    own.number = number;
    own.process = getpid();
    own.used_slots = own.free_count = 0;
    return OPENREG_OK;
}

static openreg_status
grant_locked(const char *call, openreg_memory_handle *handle)
{
    OPENREG_RETURN_NOT_OK(make_own_file(call));
    if (own.free_count == 0 && own.used_slots == SLOTS)
        return openreg_error_set(OPENREG_E_NOMEM, call, "%u handles of shared memory are held already", SLOTS);
    const uint32_t slot = own.free_count > 0 ? own.free_slots[--own.free_count] : own.used_slots++;
    atomic_uint_least64_t *word = &own.file.words[slot];
    const uint64_t use = (atomic_load_explicit(word, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(word, use << 32 | NOT_IMPORTED | 1, memory_order_release);
    handle->process = (int32_t)own.process;
    handle->leases = own.number;
    handle->leases_device = (uint64_t)own.file.device;
    handle->leases_inode = (uint64_t)own.file.inode;
    handle->slot = slot;
    handle->use = (uint32_t)use;
    return OPENREG_OK;
}

openreg_status
openreg_lease_grant(const char *call, openreg_memory_handle *handle)
{
    openreg_lock_acquire(&lock);
    const openreg_status status = grant_locked(call, handle);
    openreg_lock_release(&lock);
    return status;
}

bool
openreg_lease_is_held(uint32_t slot)
{
    return (atomic_load_explicit(&own.file.words[slot], memory_order_acquire) & HOLDERS) != 0;
}

void
openreg_lease_end(uint32_t slot)
{
    openreg_lock_acquire(&lock);
    /* The use number stays, so a late importer finds nobody holding it. */
    (void)atomic_fetch_and_explicit(&own.file.words[slot], ~(NOT_IMPORTED | HOLDERS), memory_order_acq_rel);
    own.free_slots[own.free_count++] = slot;
    openreg_lock_release(&lock);
}

bool
openreg_lease_is_ours(const openreg_memory_handle *handle)
{
    openreg_lock_acquire(&lock);
    const bool ours = own.file.words != NULL && own.process == getpid() && handle->process == (int32_t)own.process &&
                      handle->leases_inode == (uint64_t)own.file.inode &&
                      handle->leases_device == (uint64_t)own.file.device;
    openreg_lock_release(&lock);
    return ours;
}

/* ------------------------------------------------------------------------------------------------- the importer's half */

static openreg_status
reject_released(const char *call, const openreg_memory_handle *handle)
{
    return openreg_error_set(OPENREG_E_INVALID, call,
                             "process %d, which has exported this memory, has ended; it must live until the memory "
                             "was imported",
                             (int)handle->process);
}

/* Opens the exporter's file and makes sure that it is the one meant: numbers of processes and files are used again. */
static openreg_status
open_file(const char *call, const openreg_memory_handle *handle, openreg_lease_file **out)
{
    char path[64];
    struct stat status;
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle->process, (int)handle->leases);
    const int number = open(path, O_RDWR | O_CLOEXEC);
    if (number < 0 && errno != ENOENT)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, call,
                                 "files of process %d can't be opened: %s; memory is shared "
                                 "between processes of one user on one machine",
                                 (int)handle->process, strerror(errno));
    if (number < 0)
        return reject_released(call, handle);
    const bool is_same_file = fstat(number, &status) == 0 && (uint64_t)status.st_ino == handle->leases_inode &&
                              (uint64_t)status.st_dev == handle->leases_device && status.st_size == (off_t)FILE_SIZE;
    openreg_lease_file *file = is_same_file ? calloc(1, sizeof *file) : NULL;
    void *words = file == NULL ? MAP_FAILED : mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0);
    (void)close(number);
    if (words == MAP_FAILED) {
        free(file);
        return is_same_file ? openreg_error_set(OPENREG_E_NOMEM, call, "no host memory to import memory")
                            : reject_released(call, handle);
    }
    file->words = words;
    file->device = status.st_dev;
    file->inode = status.st_ino;
    *out = file;
    return OPENREG_OK;
}

/* The exporter's file, with a reference. The lock is held. */
static openreg_status
reach_file(const char *call, const openreg_memory_handle *handle, openreg_lease_file **out)
{
    openreg_lease_file *file = others;
    if (own.file.words != NULL && handle->leases_inode == (uint64_t)own.file.inode &&
        handle->leases_device == (uint64_t)own.file.device) {
        *out = &own.file;
        return OPENREG_OK;
    }
    while (file != NULL &&
           ((uint64_t)file->inode != handle->leases_inode || (uint64_t)file->device != handle->leases_device))
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
        (void)munmap(file->words, FILE_SIZE);
        free(file);
    }
    openreg_lock_release(&lock);
}

openreg_status
openreg_lease_take(const char *call, const openreg_memory_handle *handle, openreg_lease_file **out, bool *was_first)
{
    openreg_lease_file *file;
    if (handle->slot >= SLOTS)
        return openreg_error_set(OPENREG_E_INVALID, call, "this is not a handle of memory");
    openreg_lock_acquire(&lock);
    const openreg_status status = reach_file(call, handle, &file);
    openreg_lock_release(&lock);
    if (status != OPENREG_OK)
        return status;
    atomic_uint_least64_t *word = &file->words[handle->slot];
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
    *was_first = (seen & NOT_IMPORTED) != 0;
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
    (void)atomic_fetch_or_explicit(&file->words[slot], NOT_IMPORTED, memory_order_release);
    let_file_go(file);
}

void
openreg_lease_release(openreg_lease_file *file, uint32_t slot)
{
    (void)atomic_fetch_sub_explicit(&file->words[slot], 1, memory_order_release);
    let_file_go(file);
}
