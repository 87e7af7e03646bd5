/* SPDX-License-Identifier: BSD-3-Clause */
/* memory_checks.c: mem_alloc, mem_free, the host's view of device memory, and pinned host memory. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"

static const uint64_t sizes[] = {1, 3, 8, 100, 511, 512, 4095, 4097, 65536, 100001, 2097152, 2097153, 5000000};
#define SIZES (sizeof sizes / sizeof sizes[0])

static void
addresses_are_aligned(check_context *c)
{
    const uint64_t least = check_info(c, c->dev).min_alignment, alignment = least != 0 ? least : 16; /* of malloc() */
    void *held[3 * SIZES];
    for (size_t i = 0; i < 3 * SIZES; ++i) {
        const uint64_t size = check_share(c, c->dev, 32, sizes[i % SIZES]);
        held[i] = check_alloc(c, c->dev, size);
        REQUIRE((uintptr_t)held[i] % alignment == 0, "memory of %llu bytes on device %d is at %p, no multiple of %llu",
                (unsigned long long)size, c->dev, held[i], (unsigned long long)alignment);
    }
    for (size_t i = 0; i < 3 * SIZES; ++i)
        check_free(c, c->dev, held[i]);
}

typedef struct range {
    uintptr_t start;
    uint64_t size;
    int32_t dev;
} range;

static int
compare_ranges(const void *one, const void *other)
{
    const uintptr_t a = ((const range *)one)->start, b = ((const range *)other)->start;
    return a < b ? -1 : a > b;
}

#define RANGES 400

static void
ranges_are_disjoint(check_context *c)
{
    static range ranges[RANGES];
    for (int i = 0; i < RANGES; ++i) {
        const int32_t dev = (int32_t)check_random_below(c, (uint64_t)c->devices);
        const uint64_t wanted = i % 10 == 0 ? sizes[check_random_below(c, SIZES)] : 1 + check_random_below(c, 20000);
        const uint64_t size = check_share(c, dev, i % 10 == 0 ? 32 : 1024, wanted);
        ranges[i] = (range){(uintptr_t)check_alloc(c, dev, size), size, dev};
        if (i % 3 == 2) { /* another one in its place */
            check_free(c, dev, (void *)ranges[i].start);
            ranges[i].start = (uintptr_t)check_alloc(c, dev, size);
        }
    }
    qsort(ranges, RANGES, sizeof ranges[0], compare_ranges);
    for (int i = 1; i < RANGES; ++i)
        REQUIRE(ranges[i - 1].start + ranges[i - 1].size <= ranges[i].start,
                "%llu bytes at %p of device %d and %llu bytes at %p of device %d overlap",
                (unsigned long long)ranges[i - 1].size, (void *)ranges[i - 1].start, ranges[i - 1].dev,
                (unsigned long long)ranges[i].size, (void *)ranges[i].start, ranges[i].dev);
    /* Nor with the host's own memory: the stack, this program, and what malloc() returns now. */
    for (int i = 0; i < RANGES; ++i) {
        const uintptr_t inside[] = {(uintptr_t)&c, (uintptr_t)ranges, (uintptr_t)malloc(10000), (uintptr_t)c->given};
        for (size_t k = 0; k < sizeof inside / sizeof inside[0]; ++k)
            REQUIRE(inside[k] < ranges[i].start || inside[k] >= ranges[i].start + ranges[i].size,
                    "memory of device %d at %p lies over the host's own memory", ranges[i].dev,
                    (void *)ranges[i].start);
    }
}

#define BLOCKS 48

static void
contents_stay(check_context *c)
{
    check_block blocks[BLOCKS] = {{.memory = NULL}};
    for (uint64_t round = 0; round < 1200; ++round) {
        const size_t i = (size_t)check_random_below(c, BLOCKS);
        if (blocks[i].memory != NULL) {
            check_holds_pattern(c, blocks[i].dev, blocks[i].memory, blocks[i].size, blocks[i].seed,
                                "contents of memory while other memory was allocated and freed");
            check_free(c, blocks[i].dev, blocks[i].memory);
            blocks[i].memory = NULL;
            continue;
        }
        blocks[i].dev = (int32_t)check_random_below(c, (uint64_t)c->devices);
        blocks[i].size = (size_t)(1 + check_random_below(c, 20000));
        blocks[i].seed = round;
        blocks[i].memory = check_alloc(c, blocks[i].dev, blocks[i].size);
        check_write_pattern(c, blocks[i].dev, blocks[i].memory, blocks[i].size, round);
    }
}

static void
exhaustion_is_survived(check_context *c)
{
    for (int32_t dev = 0; dev < c->devices && dev < 2; ++dev) {
        const uint64_t total = check_total_memory(c, dev);
        check_skip_if(total == 0, "the driver does not say how much memory a device has");
        enum { MOST = 4096 };
        const uint64_t size = check_within(c, dev, total / 32);
        static void *held[MOST];
        const int most = total / size < MOST / 3 ? (int)(3 * total / size) : MOST;
        int first = 0, count = 0;
        for (int round = 0; round < 3; ++round) {
            openreg_status status = OPENREG_OK;
            for (count = 0; count < most && status == OPENREG_OK; ++count) {
                held[count] = held; /* what must stay when it fails */
                status = MAY(c, mem_alloc, c->instance, dev, BYTES(size), &held[count]);
            }
            check_skip_if(status == OPENREG_OK, "device %d gave out three times its memory", dev);
            --count;
            REQUIRE(status == OPENREG_E_NOMEM, "mem_alloc() of a full device returned %s", check_status_name(status));
            REQUIRE(held[count] == held, "mem_alloc() failed and wrote its out-parameter");
            REQUIRE(round == 0 || count + 1 >= first,
                    "device %d took %d allocations when it was filled first, and %d after all were freed", dev, first,
                    count);
            if (round == 0)
                first = count;
            REQUIRE(count > 0, "not one piece of %llu bytes of device %d can be allocated", (unsigned long long)size,
                    dev);
            check_free(c, dev, held[count - 1]);
            held[count - 1] = check_alloc(c, dev, size); /* there is room for that one again */
            while (count > 0)
                check_free(c, dev, held[--count]);
        }
    }
}

/* What was freed may be used anew at once, so that a copy from or to it must be over: on the default stream and another one,
 * or on one of another device. */
static void
free_waits(check_context *c)
{
    const bool is_other = strcmp(c->check->name, "memory.free_waits_devices") == 0;
    const size_t size = 100000;
    unsigned char *const new = check_host_alloc(c, size, true);
    check_pattern(new, size, 2);
    for (int i = 0; i < 4; ++i) {
        const int32_t dev = is_other ? i / 2 : 0, other = is_other ? 1 - dev : 0, their_dev = is_other ? other : -1;
        openreg_driver_stream const made = check_stream(c, other), user = is_other || i / 2 != 0 ? made : NULL;
        void *const theirs = check_alloc_at(c, their_dev, size, true);
        void *memory = check_alloc(c, dev, size);
        check_write_pattern(c, dev, memory, size, 1);
        check_write_pattern(c, their_dev, theirs, size, 1);
        check_delay(c, other, user, 60);
        if (i % 2 == 0)
            MUST(c, copy, c->instance, other, user, memory, dev, theirs, their_dev, size);
        else
            MUST(c, copy, c->instance, other, user, theirs, their_dev, memory, dev, size);
        check_free(c, dev, memory);
        memory = check_alloc(c, dev, size);
        check_copy(c, dev, user == NULL ? made : NULL, memory, dev, new, -1, size);
        check_sync(c, other, user);
        check_holds_pattern(c, dev, memory, size, 2, "memory that was allocated after mem_free() with a copy queued");
        check_holds_pattern(c, their_dev, theirs, size, 1, "what a copy read of memory that was freed behind it");
        check_free(c, dev, memory);
        check_free_at(c, their_dev, theirs, true);
    }
}

static void
memory_is_ready_at_once(check_context *c)
{
    const size_t size = 50000;
    unsigned char *const host = check_host_alloc(c, size, true);
    openreg_driver_stream const other = check_stream(c, 0);
    for (uint64_t i = 0; i < 20; ++i) {
        check_pattern(host, size, i);
        if (i % 5 == 0)
            check_ballast(c, 0, NULL, 5);
        void *const memory = check_alloc(c, 0, size);
        check_copy(c, 0, other, memory, 0, host, -1, size);
        MUST(c, device_sync, c->instance, 0);
        check_holds_pattern(c, 0, memory, size, i, "what a stream wrote to memory that was just allocated");
        check_free(c, 0, memory);
    }
}

static void
alias_is_at_constant_distance(check_context *c)
{
    for (size_t i = 0; i < SIZES && (check_caps(c, c->dev) & OPENREG_CAP_HOST_VISIBLE) != 0; ++i) {
        const uint64_t size = check_share(c, c->dev, 32, sizes[i]);
        char *const memory = check_alloc(c, c->dev, size);
        void *start = NULL, *inside = NULL;
        MUST(c, host_alias, c->instance, c->dev, memory, &start);
        for (int k = 0; k < 8; ++k) {
            const uint64_t offset = k == 0 ? size - 1 : check_random_below(c, size);
            MUST(c, host_alias, c->instance, c->dev, memory + offset, &inside);
            REQUIRE((uintptr_t)inside - (uintptr_t)start == offset,
                    "the host's view of byte %llu of an allocation is %lld bytes behind that of byte 0",
                    (unsigned long long)offset, (long long)((intptr_t)inside - (intptr_t)start));
        }
        check_free(c, c->dev, memory);
    }
}

static void
alias_shows_the_memory(check_context *c)
{
    const size_t size = 100000;
    if ((check_caps(c, c->dev) & OPENREG_CAP_HOST_VISIBLE) == 0)
        return;
    char *const memory = check_alloc(c, c->dev, size);
    void *view = NULL;
    check_write_pattern(c, c->dev, memory, size, 5);
    MUST(c, host_alias, c->instance, c->dev, memory, &view);
    check_is_pattern(view, size, 5, "the host's view of what was copied to the device");
    check_pattern(view, size, 6);
    check_holds_pattern(c, c->dev, memory, size, 6, "what the host wrote through its view");
    check_free(c, c->dev, memory);
}

static sigjmp_buf after_fault;

static void
leave_fault(int signal)
{
    siglongjmp(after_fault, signal);
}

/* Here, and not in a child: the memory need not be mapped there at all. */
static bool
touching_faults(volatile char *at, bool is_write)
{
    if (sigsetjmp(after_fault, 1) != 0)
        return true;
    if (is_write)
        *at = 1;
    else
        (void)*at;
    return false;
}

static void
fence_holds(check_context *c)
{
    const struct sigaction action = {.sa_handler = leave_fault};
    (void)sigaction(SIGSEGV, &action, NULL);
    (void)sigaction(SIGBUS, &action, NULL);
    for (int is_write = 0; is_write < 2; ++is_write) {
        char *const memory = check_alloc(c, c->dev, 10000);
        REQUIRE(touching_faults(memory + 5000, is_write != 0), "the host could %s the address %p of device %d",
                is_write ? "write at" : "read", (void *)(memory + 5000), c->dev);
        check_free(c, c->dev, memory);
    }
}

static void
descriptions_are_read(check_context *c)
{
    void *memory = c; /* must stay */
    openreg_alloc_info info = openreg_alloc_bytes(4096);
    info.flags = UINT32_C(1) << 31;
    FAILS(c, OPENREG_E_UNSUPPORTED, mem_alloc, c->instance, c->dev, &info, &memory);
    if (c->table.host_alloc != NULL)
        FAILS(c, OPENREG_E_UNSUPPORTED, host_alloc, c->instance, c->dev, &info, &memory);
    REQUIRE(memory == c, "an allocation failed and wrote its out-parameter");
    info.flags = 0;
    for (info.alignment = 1; info.alignment <= UINT64_C(1) << 24; info.alignment *= 8) {
        const openreg_status status = MAY(c, mem_alloc, c->instance, c->dev, &info, &memory);
        if (status == OPENREG_OK) {
            REQUIRE((uintptr_t)memory % info.alignment == 0, "mem_alloc() gave %p for an alignment of %llu bytes",
                    memory, (unsigned long long)info.alignment);
            check_free(c, c->dev, memory);
        } else {
            REQUIRE(status == OPENREG_E_UNSUPPORTED, "mem_alloc() with an alignment of %llu bytes returned %s",
                    (unsigned long long)info.alignment, check_status_name(status));
        }
    }
}

static const size_t pinned_sizes[] = {1, 100, 4095, 4096, 4097, 70000, 3000000};
#define PINNED_SIZES (sizeof pinned_sizes / sizeof pinned_sizes[0])

static void
pinned_memory_is_memory(check_context *c)
{
    unsigned char *blocks[PINNED_SIZES];
    for (size_t i = 0; i < PINNED_SIZES; ++i) {
        blocks[i] = check_host_alloc(c, pinned_sizes[i], true);
        REQUIRE((uintptr_t)blocks[i] % 16 == 0, "pinned memory of %zu bytes is at %p, no multiple of 16",
                pinned_sizes[i], (void *)blocks[i]);
        check_pattern(blocks[i], pinned_sizes[i], i);
    }
    for (size_t i = 0; i < PINNED_SIZES; ++i)
        check_is_pattern(blocks[i], pinned_sizes[i], i, "pinned memory while more of it was allocated and written");
    for (size_t i = 0; i < PINNED_SIZES; i += 2)
        check_host_free(c, blocks[i], true);
    for (size_t i = 1; i < PINNED_SIZES; i += 2)
        check_is_pattern(blocks[i], pinned_sizes[i], i, "pinned memory while other such memory was freed");
}

static void
every_device_uses_it(check_context *c)
{
    const size_t size = 70001;
    unsigned char *const from = check_host_alloc(c, size, true), *const to = check_host_alloc(c, size, true);
    char *const memory = check_alloc(c, c->dev, size);
    check_pattern(from, size, (uint64_t)c->dev + 9);
    memset(to, 0, size);
    check_write(c, c->dev, memory, from, size);
    check_read(c, c->dev, to, memory, size);
    check_is_pattern(to, size, (uint64_t)c->dev + 9, "bytes that went from pinned memory to a device and back");
    /* From and to places inside, at odd offsets. */
    check_write(c, c->dev, memory + 13, from + 4099, 4097);
    check_read(c, c->dev, to + 1, memory + 13, 4097);
    REQUIRE(memcmp(to + 1, from + 4099, 4097) == 0, "bytes from inside of pinned memory came back changed");
    check_free(c, c->dev, memory);
}

static const check_case cases[] = {
    {"memory.alignment", "", CHECK_EACH,
     "mem_alloc()'s addresses are multiples of min_alignment; of malloc()'s, 16, where that is 0.",
     "Kernels of PyTorch read 16 bytes at a time at an allocation's start.", addresses_are_aligned},
    {"memory.description", "", CHECK_EACH,
     "openreg_alloc_info: an unknown flag is E_UNSUPPORTED; an alignment is kept, or is E_UNSUPPORTED.",
     "openreg_alloc_check() of driver.h does this, for a driver whose allocations are all alike.",
     descriptions_are_read},
    {"memory.disjoint", "", 0,
     "No two live allocations of a process overlap, on whatever devices, nor does one with the host's own memory.",
     "A vendor without addresses needs reserved address space: mmap() with PROT_NONE, as long as the allocation.",
     ranges_are_disjoint},
    {"memory.contents", "", 0, "Memory keeps its contents while other memory is allocated and freed.",
     "Sizes that are rounded up in one place and not in the other.", contents_stay},
    {"memory.exhaustion", "", 0,
     "A full device returns OPENREG_E_NOMEM and is as before: what is freed can be allocated again.",
     "Release what an allocation had taken before it failed.", exhaustion_is_survived},
    {"memory.free_waits", "", 0,
     "mem_free() returns after the work that is queued on that memory, on any stream, has ended.",
     "Wait for the device before the vendor's function, if that does not.", free_waits},
    {"memory.free_waits_devices", "", CHECK_TWO_DEVICES,
     "mem_free() returns after the work that is queued on that memory has ended: also that of other devices' streams.",
     "A stream of another device may read and write it (a peer copy): wait for every device that can reach it.",
     free_waits},
    {"memory.ready", "", 0, "Every stream of the device may use memory as soon as mem_alloc() returns.",
     "With a vendor's stream-ordered allocator, synchronise that stream before returning.", memory_is_ready_at_once},
    {"memory.alias_distance", "host_alias", CHECK_HOST_VISIBLE | CHECK_EACH,
     "host_alias(): the host's address of a device address, at a constant distance inside one allocation.",
     "The runtime asks once for an allocation and adds offsets itself.", alias_is_at_constant_distance},
    {"memory.alias_contents", "host_alias", CHECK_HOST_VISIBLE | CHECK_EACH,
     "The host may read and write at host_alias() when the streams that use the memory are idle.",
     "Memory that needs a flush or a mapping for the host is not HOST_VISIBLE.", alias_shows_the_memory},
    {"memory.fence", "", CHECK_FENCED | CHECK_EACH,
     "OPENREG_CAP_FENCED: device addresses fault when the host touches them.",
     "Leave the flag out unless the pages are mapped with PROT_NONE.", fence_holds},
    {"host_memory.contents", "host_alloc", 0, "host_alloc(): pinned host memory, which the host reads and writes.",
     "It has the requested size, and is aligned as malloc()'s.", pinned_memory_is_memory},
    {"host_memory.devices", "host_alloc", CHECK_EACH, "Pinned memory is usable by every device of this driver.",
     "CUDA: cudaHostAllocPortable.", every_device_uses_it},
};
const check_group check_memory_group = CHECK_GROUP(1, cases);
