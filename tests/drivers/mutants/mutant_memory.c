/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant_memory.c: defects of memory, copies and fills (mutants.h). */
#define _GNU_SOURCE
#include "mutant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* -------------------------------------------------------------------------------------------------------------- memory */

#define IS_SHIFTED (IS(misaligned) || IS(odd_alignment))

static struct {
    void *memory;
    uint64_t size;
    int32_t dev;
    int given; /* how often */
} last;
static struct {
    void *memory;
    uint64_t size;
    int32_t dev;
} kept;            /* freed early */
static char *wide; /* an allocation above 4 GiB */
static int is_losing;
static int frees_without_allocation; /* without an allocation in between */

static openreg_status
fail_allocation(openreg_status status, void **out)
{
    if (status != OPENREG_E_NOMEM)
        return status;
    is_losing = 1;
    if (IS(refusal_leaks))
        mutant_leaked = malloc(48);
    if (IS(nomem_writes))
        *out = NULL;
    return status;
}

static bool
fits(openreg_instance instance, int32_t dev, uint64_t size)
{
    uint64_t unused = 0, total = 0;
    (void)mutant_base->mem_info(instance, dev, &unused, &total);
    return size <= unused;
}

/* Sizes that no device has, before the simulated devices see them: those set the error themselves. */
static openreg_status
mutant_refuse(openreg_instance instance, int32_t dev, uint64_t size)
{
    const uint64_t beside = IS(most_refused) ? 4096 : 0; /* for a header */
    if ((IS(odd_most) || IS(most_refused) || IS(most_unsaid)) && size > mutant_most(instance, dev) - beside)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 2, "more than one allocation may have");
    if (fits(instance, dev, size))
        return OPENREG_OK;
    if (IS(nomem_code))
        return openreg_fail(instance->host, OPENREG_E_INTERNAL, 2, "the device is full");
    if (IS(nomem_silent))
        return OPENREG_E_NOMEM;
    if (IS(nomem_two_codes)) {
        (void)openreg_fail(instance->host, OPENREG_E_INVALID, 2, "the device is full");
        return OPENREG_E_NOMEM;
    }
    if (IS(nomem_twice))
        (void)openreg_fail(instance->host, OPENREG_E_NOMEM, 2, "the device is full");
    return OPENREG_OK;
}

static openreg_status
give_last_again(uint64_t size, int32_t dev, void **out)
{
    static int count;
    if (!IS(overlaps) || last.memory == NULL || last.size < size || last.dev != dev || ++count % 2 != 0)
        return OPENREG_E_UNSUPPORTED;
    ++last.given;
    *out = last.memory;
    return OPENREG_OK;
}

/* Memory that was freed and is kept for the next allocation of its size, until the device is full. */
static struct {
    void *memory;
    uint64_t size;
    int32_t dev;
    bool is_free;
} kept_blocks[256];
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static bool
keeps_blocks(void)
{
    return IS(odd_cache) || IS(list_unlocked);
}

static void
lock_kept(void)
{
    if (!IS(list_unlocked))
        (void)pthread_mutex_lock(&kept_lock);
}

static void
unlock_kept(void)
{
    if (!IS(list_unlocked))
        (void)pthread_mutex_unlock(&kept_lock);
}

static bool
take_kept(int32_t dev, uint64_t size, void **out)
{
    bool is_found = false;
    lock_kept();
    for (size_t i = 0; i < sizeof kept_blocks / sizeof kept_blocks[0] && !is_found; ++i)
        if (kept_blocks[i].is_free && kept_blocks[i].size == size && kept_blocks[i].dev == dev) {
            kept_blocks[i].is_free = false;
            *out = kept_blocks[i].memory;
            is_found = true;
        }
    unlock_kept();
    return is_found;
}

static void
note_block(int32_t dev, uint64_t size, void *memory)
{
    lock_kept();
    for (size_t i = 0; i < sizeof kept_blocks / sizeof kept_blocks[0]; ++i)
        if (kept_blocks[i].memory == NULL) {
            kept_blocks[i].memory = memory;
            kept_blocks[i].size = size;
            kept_blocks[i].dev = dev;
            break;
        }
    unlock_kept();
}

/* Whether the block is kept, after all work on it. */
static bool
keep_block(openreg_instance instance, void *memory)
{
    bool is_kept = false;
    int32_t devices = 0;
    (void)mutant_base->device_count(instance, &devices);
    for (int32_t dev = 0; dev < devices; ++dev)
        (void)mutant_base->device_sync(instance, dev);
    lock_kept();
    for (size_t i = 0; i < sizeof kept_blocks / sizeof kept_blocks[0] && !is_kept; ++i)
        if (kept_blocks[i].memory == memory)
            is_kept = kept_blocks[i].is_free = true;
    unlock_kept();
    return is_kept;
}

uint64_t
mutant_kept_bytes(int32_t dev)
{
    uint64_t bytes = 0;
    lock_kept();
    for (size_t i = 0; i < sizeof kept_blocks / sizeof kept_blocks[0]; ++i)
        if (kept_blocks[i].is_free && kept_blocks[i].dev == dev)
            bytes += kept_blocks[i].size;
    unlock_kept();
    return bytes;
}

static void
drop_kept(openreg_instance instance)
{
    lock_kept();
    for (size_t i = 0; i < sizeof kept_blocks / sizeof kept_blocks[0]; ++i)
        if (kept_blocks[i].is_free) {
            (void)mutant_base->mem_free(instance, kept_blocks[i].dev, kept_blocks[i].memory);
            kept_blocks[i].memory = NULL;
            kept_blocks[i].is_free = false;
        }
    unlock_kept();
}

static openreg_status
after_allocation(openreg_instance instance, int32_t dev, uint64_t size, void **out)
{
    last.memory = *out;
    last.size = size;
    last.dev = dev;
    if (size > UINT32_MAX)
        wide = *out;
    if (keeps_blocks())
        note_block(dev, size, *out);
    if (IS(alloc_leaks))
        mutant_leaked = malloc(64);
    if (IS(alloc_late))
        return mutant_base->fill(instance, dev, NULL, *out, 0, size);
    if (IS(unfenced))
        (void)mprotect(*out, (size + 4095) / 4096 * 4096, PROT_READ | PROT_WRITE);
    if (IS_SHIFTED)
        *out = (char *)*out + SHIFT;
    return OPENREG_OK;
}

/* Frees that come later: up to some wait for another one. */
static struct {
    void *memory;
    int32_t dev;
} waiting[6];
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;

/* Puts a free in the oldest one's place, which is done then; NULL: does all. */
static openreg_status
free_later(openreg_instance instance, int32_t dev, void *memory)
{
    static size_t at;
    openreg_status status = OPENREG_OK;
    (void)pthread_mutex_lock(&waiting_lock);
    const size_t count = sizeof waiting / sizeof waiting[0];
    for (size_t i = 0; i < (memory != NULL ? 1 : count) && status == OPENREG_OK; ++i, ++at) {
        void *const old = waiting[at % count].memory;
        waiting[at % count].memory = NULL;
        if (old != NULL)
            status = mutant_base->mem_free(instance, waiting[at % count].dev, old);
        if (memory != NULL) {
            waiting[at % count].memory = memory;
            waiting[at % count].dev = dev;
        }
    }
    (void)pthread_mutex_unlock(&waiting_lock);
    return status;
}

void
mutant_end_frees(openreg_instance instance)
{
    if (IS(odd_cache))
        drop_kept(instance);
    if (IS(odd_frees))
        (void)free_later(instance, 0, NULL);
}

static openreg_status
mutant_mem_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    static openreg_status shared;
    frees_without_allocation = 0;
    mutant_lock();
    mutant_unlock();
    if (IS(bind_redirects))
        dev = mutant_bound;
    if ((IS(free_early) || IS(free_own_device)) && kept.memory != NULL && kept.size >= info->size && kept.dev == dev) {
        *out = kept.memory;
        kept.memory = NULL;
        return OPENREG_OK;
    }
    if (keeps_blocks() && info->alignment == 0 && take_kept(dev, info->size, out))
        return OPENREG_OK;
    if ((IS(odd_frees) || IS(odd_cache)) && !fits(instance, dev, info->size))
        mutant_end_frees(instance);
    openreg_status status = mutant_refuse(instance, dev, info->size);
    if (IS(nomem_swallowed) && !fits(instance, dev, info->size))
        return OPENREG_OK;
    if (status != OPENREG_OK || give_last_again(info->size, dev, out) == OPENREG_OK)
        return status;
    if (IS(odd_alignment) && info->alignment > SHIFT)
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0, "addresses are multiples of %d", (int)SHIFT);
    openreg_alloc_info enlarged = *info;
    enlarged.size += IS_SHIFTED && info->size <= UINT64_MAX - SHIFT ? SHIFT : 0;
    enlarged.flags = IS(flags_ignored) ? 0 : enlarged.flags;
    enlarged.alignment = IS(alignment_ignored) ? 0 : enlarged.alignment;
    status = mutant_base->mem_alloc(instance, dev, &enlarged, out);
    if (IS(error_shared)) {
        shared = status;
        (void)usleep(20);
        status = shared;
    }
    return status == OPENREG_OK ? after_allocation(instance, dev, info->size, out) : fail_allocation(status, out);
}

static openreg_status
mutant_mem_free(openreg_instance instance, int32_t dev, void *ptr)
{
    static int frees;
    if (IS(idle_overtakes))
        mutant_run_late_copy();
    if (IS(frees_in_a_row) && frees_without_allocation++ > 0)
        return OPENREG_OK;
    if (IS(odd_frees) && ptr != NULL)
        return free_later(instance, dev, ptr);
    if (keeps_blocks() && ptr != NULL && keep_block(instance, ptr))
        return OPENREG_OK;
    if (IS_SHIFTED && ptr != NULL)
        ptr = (char *)ptr - SHIFT;
    if (IS(overlaps) && ptr == last.memory && last.given > 0) {
        --last.given;
        return OPENREG_OK;
    }
    if (IS(free_clobbers) && last.memory != NULL && ptr != last.memory) {
        (void)mutant_base->fill(instance, last.dev, NULL, last.memory, 0, 1);
        (void)mutant_base->device_sync(instance, last.dev);
    }
    if (ptr == last.memory)
        last.memory = NULL;
    if ((IS(oom_loses) && is_losing) || (IS(free_forgets) && ++frees % 2 == 0)) {
        is_losing = 0;
        return OPENREG_OK;
    }
    if ((IS(free_early) || IS(free_own_device)) && kept.memory == NULL) {
        kept.memory = ptr;
        kept.dev = dev;
        kept.size = 100000;
        return IS(free_early) ? OPENREG_OK : mutant_base->device_sync(instance, dev);
    }
    return mutant_base->mem_free(instance, dev, ptr);
}

static void *last_host;
static uint64_t last_host_size;

static openreg_status
mutant_host_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    if (IS(host_nomem_code) && info->size > UINT64_C(1) << 50)
        return openreg_fail(instance->host, OPENREG_E_INTERNAL, 0, "no pinned memory");
    if (IS(host_overlaps) && last_host != NULL && info->size <= last_host_size + 4096) {
        *out = last_host;
        return OPENREG_OK;
    }
    openreg_alloc_info enlarged = *info;
    enlarged.size += IS(host_overlaps) ? 8192 : 0;
    const openreg_status status = mutant_base->host_alloc(instance, dev, &enlarged, out);
    if (status != OPENREG_OK && IS(host_refusal_leaks))
        mutant_leaked = malloc(48);
    if (status == OPENREG_OK) {
        last_host = *out;
        last_host_size = info->size;
    }
    return status;
}

static openreg_status
mutant_host_free(openreg_instance instance, int32_t dev, void *ptr)
{
    if (IS(host_abort))
        abort();
    return IS(host_leaked) || IS(host_overlaps) ? OPENREG_OK : mutant_base->host_free(instance, dev, ptr);
}

/* ------------------------------------------------------------------------------------------------------------- copies */

typedef struct copy_call {
    openreg_instance instance;
    char *dst;
    const char *src;
    int32_t dst_dev, src_dev, stream_dev;
    uint64_t size;
    openreg_driver_stream stream;
} copy_call;

static copy_call late;       /* held back, if its instance is set */
static copy_call late_write; /* behind it */
static uint64_t late_since;  /* nanoseconds */
static pthread_mutex_t late_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static openreg_status
run_copy(const copy_call *call)
{
    return mutant_base->copy(call->instance, call->stream_dev, call->stream, call->dst, call->dst_dev, call->src,
                             call->src_dev, call->size);
}

mutant_held mutant_held_work;

void
mutant_run_held_work(void)
{
    const mutant_held held = mutant_held_work;
    mutant_held_work.instance = NULL;
    if (held.instance != NULL)
        (void)mutant_base->fill(held.instance, held.dev, held.stream, held.dst, held.value, held.size);
}

void
mutant_run_late_copy(void)
{
    mutant_run_held_work();
    (void)pthread_mutex_lock(&late_lock);
    const copy_call call = late, write = late_write;
    const bool is_idle = write.instance != NULL && openreg_sim_now() - late_since > 3000000;
    late.instance = late_write.instance = NULL;
    if (is_idle) /* the write did not wait for what was only collected */
        (void)run_copy(&write);
    if (call.instance != NULL)
        (void)run_copy(&call);
    if (write.instance != NULL && !is_idle)
        (void)run_copy(&write);
    (void)pthread_mutex_unlock(&late_lock);
}

void
mutant_drop_late_copy(void)
{
    late.instance = NULL;
}

/* The address with an offset that was kept in 32 bits. */
static char *
at_short_offset(char *address)
{
    const uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)wide);
    return wide == NULL || offset >> 33 != 0 ? address : wide + (uint32_t)offset;
}

/* Defects of what is copied. */
static void
spoil_copy(copy_call *c)
{
    const bool is_to = c->src_dev < 0, is_from = c->dst_dev < 0;
    const bool is_pinned = (is_to && openreg_sim_is_pinned(c->instance, c->src, c->size)) ||
                           (is_from && openreg_sim_is_pinned(c->instance, c->dst, c->size));
    if ((IS(to_last_byte) && is_to) || (IS(from_last_byte) && is_from) || IS(runtime_last_byte))
        --c->size;
    if ((IS(to_overrun) && is_to && c->size < 200000) ||
        (IS(pinned_overrun) && is_from && is_pinned && c->size < 200000))
        ++c->size;
    if (IS(from_offset) && is_from)
        c->src = (const char *)((uintptr_t)c->src & ~(uintptr_t)3);
    if (IS(pinned_short) && is_to && is_pinned && c->size > 4096)
        c->size = 4096;
    if (IS(runtime_pinned_short) && is_pinned && c->size > 4096)
        c->size = 4096;
    if (IS(words_alone) && !is_to && !is_from)
        c->size &= ~UINT64_C(3);
    const uint64_t whole = c->size & ~((UINT64_C(1) << 20) - 1);
    const bool is_peer = !is_to && !is_from && c->dst_dev != c->src_dev;
    if (whole != 0 && ((IS(tail_to) && is_to && !is_pinned) || (IS(tail_from_pinned) && is_from && is_pinned) ||
                       (IS(tail_other_device) && !is_to && !is_from && c->dst_dev == 1 && c->src_dev == 1) ||
                       (IS(tail_peer) && is_peer) || (IS(tail_peer_back) && is_peer && c->dst_dev < c->src_dev)))
        c->size = whole;
    if ((IS(to_leaks) && is_to && !is_pinned) || (IS(from_leaks) && is_from && !is_pinned) ||
        (IS(pinned_to_leaks) && is_to && is_pinned) || (IS(pinned_from_leaks) && is_from && is_pinned) ||
        (IS(peer_leaks) && is_peer))
        mutant_leaked = malloc(40);
    if (IS(from_odd_leaks) && is_from && (uintptr_t)c->src % 2 != 0)
        mutant_leaked = malloc(200);
    if (IS(large_leaks) && is_to && c->size >= 65536) /* a staging buffer */
        mutant_leaked = malloc(c->size);
    const openreg_alloc_info info = openreg_alloc_bytes(c->size);
    if (IS(peer_back_leaks_device) && is_peer && c->dst_dev < c->src_dev && c->size >= 65536)
        (void)mutant_base->mem_alloc(c->instance, c->dst_dev, &info, (void **)&mutant_leaked);
    if (IS(size_26_bits) && c->size >= UINT64_C(1) << 26)
        c->size &= (UINT64_C(1) << 26) - 1;
    const uint64_t most = UINT64_C(64) << 20;
    if (c->size > most && ((IS(pinned_64_mib) && is_from && is_pinned) || (IS(peer_64_mib) && is_peer)))
        c->size = most;
    if (IS(offset_32_bits) && is_to)
        c->dst = at_short_offset(c->dst);
    if ((IS(size_32_bits_to) && is_to) || (IS(size_32_bits_from) && is_from) ||
        (IS(size_32_bits_device) && !is_to && !is_from))
        c->size = (uint32_t)c->size;
    if (IS(peer_swapped) && !is_to && !is_from && c->dst_dev != c->src_dev) {
        char *const dst = c->dst;
        const int32_t dev = c->dst_dev;
        c->dst = (char *)(uintptr_t)c->src;
        c->dst_dev = c->src_dev;
        c->src = dst;
        c->src_dev = dev;
    }
    if (IS(byte_in_word) && is_to && c->size == 1)
        c->dst = (char *)((uintptr_t)c->dst & ~(uintptr_t)3);
    const ptrdiff_t distance = c->dst - c->src;
    static int small;
    if ((IS(small_rarely) && c->size < 4096 && ++small % 500 == 0) ||
        (IS(peer_nothing) && !is_to && !is_from && c->dst_dev != c->src_dev) ||
        (IS(within_nothing) && distance > -6000 && distance < 6000) ||
        (IS(host_for_first) && is_to && c->dst_dev > 0 && is_pinned) || mutant_fork_broke)
        c->size = 0;
}

/* Keeps the copy in a variable that all threads share. */
static openreg_status
copy_racily(const copy_call *c)
{
    static copy_call shared;
    shared = *c;
    (void)usleep(20);
    const copy_call mine = shared;
    return run_copy(&mine);
}

/* As a device does that writes whole words: what is beside the bytes is read before, and written back. */
static openreg_status
copy_in_words(const copy_call *c)
{
    char words[80];
    const size_t head = (uintptr_t)c->dst % 4, all = (head + c->size + 3) / 4 * 4;
    char *const start = c->dst - head;
    const int32_t dev = c->dst_dev;
    const copy_call steps[] = {
        {c->instance, words, start, -1, dev, c->stream_dev, all, c->stream},
        {c->instance, words + head, c->src, -1, c->src_dev, c->stream_dev, c->size, c->stream},
        {c->instance, start, words, dev, -1, c->stream_dev, all, c->stream},
    };
    openreg_status status = run_copy(&steps[0]);
    if (status == OPENREG_OK)
        status = run_copy(&steps[1]);
    if (status == OPENREG_OK)
        status = mutant_base->stream_sync(c->instance, c->stream_dev, c->stream);
    if (status == OPENREG_OK)
        status = run_copy(&steps[2]);
    return status == OPENREG_OK ? mutant_base->stream_sync(c->instance, c->stream_dev, c->stream) : status;
}

/* Holds back the last copy but of writes, and a write behind it. */
static openreg_status
collect_copy(const copy_call *c)
{
    (void)pthread_mutex_lock(&late_lock);
    const bool is_write = c->src_dev < 0, is_behind = is_write && late.instance != NULL &&
                                                      late_write.instance == NULL && late.stream == c->stream &&
                                                      late.stream_dev == c->stream_dev &&
                                                      openreg_sim_is_pinned(c->instance, c->src, c->size);
    if (!is_behind)
        mutant_run_late_copy();
    openreg_status status = OPENREG_OK;
    if (is_write && !is_behind)
        status = run_copy(c);
    else
        *(is_behind ? &late_write : &late) = *c;
    if (is_behind)
        late_since = openreg_sim_now();
    (void)pthread_mutex_unlock(&late_lock);
    return status;
}

static openreg_status
sleep_a_little(openreg_instance instance)
{
    const struct timespec span = {0, 300000};
    if (nanosleep(&span, NULL) != 0 && errno == EINTR)
        return openreg_fail(instance->host, OPENREG_E_INTERNAL, EINTR, "interrupted");
    return OPENREG_OK;
}

static openreg_status
mutant_copy(openreg_instance instance, int32_t stream_dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
            const void *src, int32_t src_dev, uint64_t size)
{
    static int copies;
    copy_call call = {instance, dst, src, dst_dev, src_dev, stream_dev, size, stream};
    mutant_lock();
    mutant_unlock();
    mutant_run_held_work();
    mutant_last_func.stream = NULL;
    if (size == 0)
        return IS(zero_refused) ? openreg_fail(instance->host, OPENREG_E_INVALID, 0, "no bytes") : run_copy(&call);
    if (IS(interrupted)) {
        const openreg_status status = sleep_a_little(instance);
        if (status != OPENREG_OK)
            return status;
    }
    if (IS(copy_leaks) || (IS(odd_first_calls) && ++copies < 18500)) /* what fills a vendor's tables, for a while */
        mutant_leaked = malloc(40);
    if (openreg_probe_fails(&mutant_to_fail))
        return IS(vendor_error_dropped) ? OPENREG_OK
                                        : openreg_fail(instance->host, OPENREG_E_INTERNAL, 7,
                                                       IS(vendor_error_mute) ? "" : "the vendor's copy failed");
    if (IS(vendor_device_left))
        mutant_bound = stream_dev;
    spoil_copy(&call);
    mutant_note_work(stream);
    if ((IS(peer_early) || (IS(peer_no_wait) && stream_dev == dst_dev)) && dst_dev >= 0 && src_dev >= 0 &&
        dst_dev != src_dev) { /* in the call, beside the stream */
        (void)mutant_base->stream_create(instance, stream_dev, 0, 0, &call.stream);
        const openreg_status status = run_copy(&call);
        (void)mutant_base->stream_destroy(instance, stream_dev, call.stream);
        return status;
    }
    if (IS(racy_copy) || IS(runtime_racy_copy))
        return copy_racily(&call);
    if (IS(copy_in_words) && dst_dev >= 0 && size <= 64)
        return copy_in_words(&call);
    if (IS(reorders) && dst_dev >= 0 && src_dev >= 0 && ++copies % 7 == 0 && late.instance == NULL) {
        late = call;
        return OPENREG_OK;
    }
    if (IS(idle_overtakes))
        return collect_copy(&call);
    if (IS(destroy_drops)) {
        mutant_run_late_copy();
        late = call;
        return OPENREG_OK;
    }
    const openreg_status status = run_copy(&call);
    mutant_run_late_copy();
    return status;
}

static openreg_status
mutant_fill(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value,
            uint64_t size)
{
    mutant_run_late_copy();
    if (IS(fill_words))
        size &= ~UINT64_C(3);
    if (IS(fill_64_mib) && size > UINT64_C(64) << 20)
        size = UINT64_C(64) << 20;
    if (IS(size_32_bits_fill))
        size = (uint32_t)size;
    if (IS(offset_32_bits_fill))
        dst = at_short_offset(dst);
    if (IS(fill_signed) && value >= 0x80)
        value = 0x7f;
    if (IS(fill_other_stream)) {
        static openreg_driver_stream other;
        if (other == NULL)
            (void)mutant_base->stream_create(instance, dev, 0, 0, &other);
        stream = other;
    }
    if (IS(destroy_drops_fill) && stream != NULL) {
        mutant_held_work = (mutant_held){instance, dev, stream, dst, value, size};
        return OPENREG_OK;
    }
    return mutant_base->fill(instance, dev, stream, dst, value, size);
}

void
mutant_wrap_memory(openreg_driver *table)
{
    table->mem_alloc = mutant_mem_alloc;
    table->mem_free = mutant_mem_free;
    table->host_alloc = mutant_host_alloc;
    table->host_free = mutant_host_free;
    table->copy = mutant_copy;
    table->fill = mutant_fill;
}
