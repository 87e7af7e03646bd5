/* SPDX-License-Identifier: BSD-3-Clause */
/* host_memory_checks.c: pinned host memory. */
#include <string.h>

#include "check.h"
#include "fixtures.h"

static const size_t sizes[] = {1, 100, 4095, 4096, 4097, 70000, 3000000};
#define SIZES (sizeof sizes / sizeof sizes[0])

static void
pinned_memory_is_memory(check_context *c)
{
    unsigned char *blocks[SIZES];
    for (size_t i = 0; i < SIZES; ++i) {
        blocks[i] = check_host_alloc(c, sizes[i], true);
        REQUIRE((uintptr_t)blocks[i] % 16 == 0, "pinned memory of %zu bytes is at %p, no multiple of 16", sizes[i],
                (void *)blocks[i]);
        check_pattern(blocks[i], sizes[i], i);
    }
    for (size_t i = 0; i < SIZES; ++i)
        check_is_pattern(blocks[i], sizes[i], i, "pinned memory while more of it was allocated and written");
    for (size_t i = 0; i < SIZES; i += 2)
        check_host_free(c, blocks[i], true);
    for (size_t i = 1; i < SIZES; i += 2)
        check_is_pattern(blocks[i], sizes[i], i, "pinned memory while other such memory was freed");
}

static void
every_device_uses_it(check_context *c)
{
    const size_t size = 70001;
    unsigned char *const from = check_host_alloc(c, size, true), *const to = check_host_alloc(c, size, true);
    for (int32_t dev = 0; dev < c->devices; ++dev) {
        char *const memory = check_alloc(c, dev, size);
        check_pattern(from, size, (uint64_t)dev + 9);
        memset(to, 0, size);
        check_write(c, dev, memory, from, size);
        check_read(c, dev, to, memory, size);
        check_is_pattern(to, size, (uint64_t)dev + 9, "bytes that went from pinned memory to a device and back");
        /* From and to places inside, at odd offsets. */
        check_write(c, dev, memory + 13, from + 4099, 4097);
        check_read(c, dev, to + 1, memory + 13, 4097);
        REQUIRE(memcmp(to + 1, from + 4099, 4097) == 0, "bytes from inside of pinned memory came back changed");
        check_free(c, dev, memory);
    }
}

static const check_case cases[] = {
    {"host_memory.contents", "host_alloc", 0, "host_alloc(): pinned host memory, which the host reads and writes.",
     "It has the requested size, and is aligned as malloc()'s.", pinned_memory_is_memory},
    {"host_memory.devices", "host_alloc", 0, "Pinned memory is usable by every device of this driver.",
     "CUDA: cudaHostAllocPortable.", every_device_uses_it},
};
const check_group check_host_memory_group = CHECK_GROUP(1, cases);
