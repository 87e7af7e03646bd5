/* SPDX-License-Identifier: BSD-3-Clause */
/* wide_checks.c: sizes and offsets that 32 bits don't hold. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fixtures.h"

#define FOUR_GIB (UINT64_C(1) << 32)
#define TAIL 4097
#define WIDE (FOUR_GIB + TAIL)
#define PART 65536

char *
check_alloc_wide(check_context *c, uint64_t size, uint64_t touched)
{
    check_skip_if(touched != 0 && c->target->seconds < 1,
                  "it writes to %llu GiB, which may take half a minute: --time 1", (unsigned long long)(touched >> 30));
    const uint64_t host = check_host_available();
    check_need(0, check_total_memory(c, 0), size + (size >> 3));
    check_skip_if(touched != 0 && host < touched + (UINT64_C(3) << 30),
                  "the host has %llu MiB of memory left; this may take %llu", (unsigned long long)(host >> 20),
                  (unsigned long long)((touched >> 20) + 3072));
    void *memory = NULL;
    const openreg_status status = MAY(c, mem_alloc, c->instance, 0, BYTES(size), &memory);
    check_skip_if(status == OPENREG_E_NOMEM || (status != OPENREG_OK && check_within(c, 0, size) < size),
                  "device 0 has no %llu MiB in one piece", (unsigned long long)(size >> 20));
    check_succeeded("mem_alloc", status);
    return memory;
}

/* Places on both sides of the border whose low 32 bits are equal. */
static void
offsets_are_wide(check_context *c)
{
    static unsigned char seen[PART];
    const size_t tail = 10001;
    char *const memory = check_alloc_wide(c, FOUR_GIB + 4 * PART, 0);
    check_write_pattern(c, 0, memory + 64, PART, 1);
    check_write_pattern(c, 0, memory + FOUR_GIB + 64, PART, 2);
    check_holds_pattern(c, 0, memory + 64, PART, 1,
                        "bytes at offset 64 of an allocation, after a copy to offset 4 GiB + 64");
    check_holds_pattern(c, 0, memory + FOUR_GIB + 64, PART, 2, "bytes at offset 4 GiB + 64 of an allocation");
    MUST(c, copy, c->instance, 0, NULL, memory + FOUR_GIB + 2 * PART, 0, memory + FOUR_GIB + 64, 0, tail);
    MUST(c, copy, c->instance, 0, NULL, memory + 2 * PART, 0, memory + 64, 0, tail);
    check_holds_pattern(c, 0, memory + FOUR_GIB + 2 * PART, tail, 2,
                        "bytes that were copied on the device from one offset above 4 GiB to another");
    if (c->table.fill != NULL) {
        MUST(c, fill, c->instance, 0, NULL, memory + FOUR_GIB + 2 * PART, 9, tail);
        check_read(c, 0, seen, memory + FOUR_GIB + 2 * PART, tail);
        check_is_value(seen, tail, 9, "the bytes of a fill at an offset above 4 GiB");
    }
    check_holds_pattern(c, 0, memory + 2 * PART, tail, 1, "bytes at a low offset, after work on those 4 GiB behind it");
    check_free(c, 0, memory);
}

/* Host addresses of more than 4 GiB over 1 MiB of memory. */
#define CHUNK ((size_t)1 << 20)

static unsigned char *
map_host(void)
{
    const size_t size = FOUR_GIB + CHUNK;
    const int file = memfd_create("openreg-check", MFD_CLOEXEC);
    char *const all = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check_skip_if(file < 0 || all == MAP_FAILED || ftruncate(file, (off_t)CHUNK) != 0, "no 4 GiB of host addresses");
    for (size_t at = 0; at < size; at += CHUNK)
        check_skip_if(mmap(all + at, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED,
                      "no 4 GiB of host addresses");
    (void)close(file);
    return (unsigned char *)all;
}

/* A place at the start, one inside of each GiB, and the last bytes. */
static void
wide_is(check_context *c, char *memory, unsigned char value, const char *what)
{
    unsigned char seen[64];
    for (uint64_t at = 0; at < WIDE; at += (UINT64_C(1) << 30) - 128) {
        check_read(c, 0, seen, memory + at, sizeof seen);
        check_is_value(seen, sizeof seen, value, what);
    }
    check_read(c, 0, seen, memory + WIDE - sizeof seen, sizeof seen);
    check_is_value(seen, sizeof seen, value, what);
}

static void
sizes_are_wide(check_context *c)
{
    char *const memory = check_alloc_wide(c, WIDE, WIDE);
    unsigned char *const host = map_host();
    memset(host, 3, CHUNK);
    check_write(c, 0, memory, host, WIDE);
    wide_is(c, memory, 3, "the bytes of a copy of 4 GiB + 4097 bytes to the device");
    if (c->table.fill != NULL) {
        MUST(c, fill, c->instance, 0, NULL, memory, 5, WIDE);
        wide_is(c, memory, 5, "the bytes of a fill of 4 GiB + 4097 bytes");
    } else {
        memset(host, 5, CHUNK);
        check_write(c, 0, memory, host, WIDE);
    }
    memset(host, 0, CHUNK);
    check_read(c, 0, host, memory, WIDE);
    check_is_value(host, CHUNK, 5, "the bytes of a copy of 4 GiB + 4097 bytes from the device");
    check_free(c, 0, memory);
}

/* The source is as wide, and is written in two places alone: the start, and what lies behind 4 GiB. */
static void
device_copies_are_wide(check_context *c)
{
    char *const both = check_alloc_wide(c, 2 * (FOUR_GIB + 2 * PART), 2 * WIDE), *const to = both + FOUR_GIB + 2 * PART;
    check_write_pattern(c, 0, both + FOUR_GIB, TAIL, 1);
    check_write_pattern(c, 0, to + FOUR_GIB, TAIL, 2);
    MUST(c, copy, c->instance, 0, NULL, to, 0, both, 0, WIDE);
    check_holds_pattern(c, 0, to + FOUR_GIB, TAIL, 1, "the last bytes of a copy of 4 GiB + 4097 bytes on the device");
    check_free(c, 0, both);
}

static const check_case cases[] = {
    {"wide.offsets", "", 0, "Addresses inside of an allocation are of 64 bits.",
     "An offset from a vendor's object that is kept as int or unsigned.", offsets_are_wide},
    {"wide.sizes", "", CHECK_LONG, "Sizes are of 64 bits, in bytes: copies of the host's memory, and fills.",
     "A vendor's function that takes a size of 32 bits needs more than one call.", sizes_are_wide},
    {"wide.on_device", "", CHECK_LONG, "Sizes are of 64 bits, in bytes: copies on a device.",
     "A vendor's function that takes a size of 32 bits needs more than one call.", device_copies_are_wide},
};
const check_group check_wide_group = CHECK_GROUP(1, cases);
