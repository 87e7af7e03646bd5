/* SPDX-License-Identifier: BSD-3-Clause */
/* fill_checks.c: fill. */
#include <string.h>

#include "check.h"
#include "fixtures.h"

static void
fills_exactly(check_context *c)
{
    static const size_t sizes[] = {1, 2, 3, 5, 17, 255, 1023, 4096, 4097, 65535};
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    static unsigned char seen[65535 + 64];
    for (int32_t dev = 0; dev < c->devices; ++dev) {
        char *const memory = check_alloc(c, dev, sizeof seen);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i)
            for (size_t offset = 0; offset < 9; offset += 1 + 2 * (i % 3)) {
                const uint8_t value = values[(i + offset) % sizeof values];
                memset(seen, 0xee, sizeof seen);
                check_write(c, dev, memory, seen, sizeof seen);
                MUST(c, fill, c->instance, dev, NULL, memory + 16 + offset, value, sizes[i]);
                check_read(c, dev, seen, memory, sizeof seen);
                check_is_value(seen, 16 + offset, 0xee, "the bytes in front of a fill");
                check_is_value(seen + 16 + offset, sizes[i], value, "the bytes of a fill");
                check_is_value(seen + 16 + offset + sizes[i], sizeof seen - 16 - offset - sizes[i], 0xee,
                               "the bytes behind a fill");
            }
        check_free(c, dev, memory);
    }
}

static void
fills_are_in_order(check_context *c)
{
    enum { SIZE = 5000 };
    unsigned char *const from = check_host_alloc(c, SIZE, true), *const seen = check_host_alloc(c, 2 * SIZE, true);
    check_pattern(from, SIZE, 4);
    for (int32_t dev = 0; dev < c->devices; ++dev) {
        openreg_driver_stream const streams[] = {NULL, check_stream(c, dev)};
        char *const memory = check_alloc(c, dev, SIZE), *const kept = check_alloc(c, dev, SIZE);
        for (int round = 0; round < (dev < 4 ? 6 : 2); ++round) {
            openreg_driver_stream const stream = streams[round % 2];
            check_delay(c, dev, stream, 10);
            MUST(c, fill, c->instance, dev, stream, memory, 1, SIZE);
            MUST(c, copy, c->instance, dev, stream, memory, dev, from, -1, SIZE);
            MUST(c, copy, c->instance, dev, stream, kept, dev, memory, dev, SIZE);
            MUST(c, fill, c->instance, dev, stream, memory, 2, SIZE);
            MUST(c, copy, c->instance, dev, stream, seen + SIZE, -1, kept, dev, SIZE);
            MUST(c, copy, c->instance, dev, stream, seen, -1, memory, dev, SIZE);
            /* Overwrites what was read. */
            MUST(c, copy, c->instance, dev, stream, memory, dev, from, -1, SIZE);
            check_sync_late(c, dev, stream, (uint64_t)round / 2);
            check_is_value(seen, SIZE, 2, "what a fill left behind a copy on the same stream");
            check_is_pattern(seen + SIZE, SIZE, 4, "what a copy left between two fills on the same stream");
        }
    }
}

static const check_case cases[] = {
    {"fill.bytes", "fill", 0, "fill(): `size` bytes of `value`, and none beside them.",
     "Vendors fill words; the value is a byte without sign.", fills_exactly},
    {"fill.order", "fill", 0,
     "A fill is in order with the copies of its stream, whether or not they are waited for at once.",
     "Pass the stream on, the default one too.", fills_are_in_order},
};
const check_group check_fill_group = CHECK_GROUP(1, cases);
