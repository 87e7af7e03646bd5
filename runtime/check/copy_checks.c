/* SPDX-License-Identifier: BSD-3-Clause */
/* copy_checks.c: copies and fills, to the last byte and not beyond it. */
#include <string.h>

#include "fixtures.h"

static const size_t sizes[] = {1, 2, 3, 4, 7, 16, 31, 255, 4095, 4096, 4097, 65537, 262144};
#define SIZES (sizeof sizes / sizeof sizes[0])
static const size_t offsets[] = {0, 1, 5, 64};
#define GUARD 64 /* bytes on both sides that a copy must leave alone */
#define ROOM (262144 + 2 * GUARD + 64)
#define GUARD_BYTE 0xee

/* Memory whose contents are known, as the host sees it. */
typedef struct place {
    int32_t dev; /* -1: host */
    bool pinned;
    unsigned char *memory;
} place;

static const char *
kind_of(const place *at)
{
    return at->dev >= 0 ? "device" : at->pinned ? "pinned memory" : "the host";
}

static place
make_place(check_context *c, int32_t dev, bool pinned, size_t size)
{
    return (place){dev, pinned, check_alloc_at(c, dev, size, pinned)};
}

/* The bytes that are copied, those that the target must have, and those that it has. */
static struct {
    unsigned char *bytes, *expected, *seen;
} buffers;

static void
make_buffers(check_context *c, size_t size, bool pinned)
{
    if (buffers.bytes != NULL)
        return;
    buffers.bytes = check_host_alloc(c, size, pinned);
    buffers.expected = check_host_alloc(c, size, pinned);
    buffers.seen = check_host_alloc(c, size, pinned);
}

/* Copies between two places, on a stream of the device `stream_dev`, and compares the first `room` bytes of the target with
 * what they have to be: `bytes` are those of the source from its offset on, `buffers.expected` those of the target before. */
static void
copy_exactly(check_context *c, const place *from, const place *to, const unsigned char *bytes, size_t size,
             size_t from_offset, size_t to_offset, size_t room, int32_t stream_dev, openreg_driver_stream stream)
{
    check_write(c, to->dev, to->memory, buffers.expected, room);
    check_copy(c, stream_dev, stream, to->memory + to_offset, to->dev, from->memory + from_offset, from->dev, size);
    check_read(c, to->dev, buffers.seen, to->memory, room);
    const unsigned char *const seen = buffers.seen;
    size_t i = 0;
    if (memcmp(seen, buffers.expected, to_offset) == 0 && memcmp(seen + to_offset, bytes, size) == 0 &&
        memcmp(seen + to_offset + size, buffers.expected + to_offset + size, room - to_offset - size) == 0)
        return;
    while (seen[i] == (i < to_offset || i >= to_offset + size ? buffers.expected[i] : bytes[i - to_offset]))
        ++i;
    const bool is_beside = i < to_offset || i >= to_offset + size;
    check_fail("a copy of %zu bytes from %s %d, offset %zu, to %s %d, offset %zu: %s %lld is 0x%02x, not 0x%02x", size,
               kind_of(from), from->dev, from_offset, kind_of(to), to->dev, to_offset,
               is_beside ? "the byte beside it at" : "byte", (long long)i - (long long)to_offset, seen[i],
               is_beside ? buffers.expected[i] : bytes[i - to_offset]);
}

static void
copy_once(check_context *c, const place *from, const place *to, size_t size, size_t from_offset, size_t to_offset,
          int32_t stream_dev, openreg_driver_stream stream)
{
    static uint64_t seed;
    make_buffers(c, ROOM, true);
    check_pattern(buffers.bytes, from_offset + GUARD + size, ++seed);
    memset(buffers.expected, GUARD_BYTE, ROOM);
    check_write(c, from->dev, from->memory, buffers.bytes, ROOM);
    copy_exactly(c, from, to, buffers.bytes + GUARD + from_offset, size, GUARD + from_offset, GUARD + to_offset, ROOM,
                 stream_dev, stream);
}

static void
copy_all(check_context *c, const place *from, const place *to, int32_t stream_dev, openreg_driver_stream stream)
{
    for (size_t i = 0; i < SIZES; ++i)
        for (size_t k = 0; k < sizeof offsets / sizeof offsets[0]; ++k)
            if (sizes[i] < 65536 || k == 1)
                copy_once(c, from, to, sizes[i], offsets[k], offsets[(k + i) % 4], stream_dev, stream);
}

/* With pinned memory in the checks that need host_alloc(). */
static void
copies_on_one_device(check_context *c)
{
    const bool from_host = strncmp(c->check->name, "copy.to", 7) == 0,
               to_host = strncmp(c->check->name, "copy.from", 9) == 0;
    const bool pinned = strcmp(c->check->slots, "host_alloc") == 0;
    const place from = make_place(c, from_host ? -1 : c->dev, pinned, ROOM),
                to = make_place(c, to_host ? -1 : c->dev, pinned, ROOM);
    copy_all(c, &from, &to, c->dev, NULL);
    copy_once(c, &from, &to, 4097, 1, 3, c->dev, check_stream(c, c->dev));
}

/* The source is written late on a stream of its device, and copied behind that: on the same stream, on which it is
 * overwritten then, or on one of the other device that waits for an event. */
static void
copy_behind_work(check_context *c, const place *from, const place *to, bool is_waiting)
{
    unsigned char *const bytes = buffers.bytes, *const later = buffers.expected; /* of copy_once() */
    check_pattern(bytes, ROOM, 1);
    memset(later, GUARD_BYTE, ROOM);
    openreg_driver_stream const writer = check_stream(c, from->dev),
                                reader = is_waiting ? check_stream(c, to->dev) : writer;
    const int32_t dev = is_waiting ? to->dev : from->dev;
    check_write(c, from->dev, from->memory, later, ROOM);
    check_write(c, to->dev, to->memory, later, ROOM);
    check_delay(c, from->dev, writer, 10);
    MUST(c, copy, c->instance, from->dev, writer, from->memory, from->dev, bytes, -1, ROOM);
    if (is_waiting) {
        openreg_driver_event const event = check_event(c, from->dev, 0);
        MUST(c, event_record, c->instance, from->dev, writer, event);
        MUST(c, stream_wait, c->instance, dev, reader, event);
    }
    MUST(c, copy, c->instance, dev, reader, to->memory, to->dev, from->memory, from->dev, ROOM);
    if (!is_waiting)
        MUST(c, copy, c->instance, dev, reader, from->memory, from->dev, later, -1, ROOM);
    check_sync(c, dev, reader);
    check_read(c, to->dev, buffers.seen, to->memory, ROOM);
    check_is_pattern(buffers.seen, ROOM, 1,
                     is_waiting ? "a copy between devices behind an event of the source's device"
                                : "a copy between devices, between two writes on its stream");
}

/* On a stream of either device. */
static void
between_devices(check_context *c)
{
    for (int32_t one = 0; one < c->devices && one < 3; ++one)
        for (int32_t other = 0; other < c->devices && other < 3; ++other) {
            if (one == other)
                continue;
            const place from = make_place(c, one, false, ROOM), to = make_place(c, other, false, ROOM);
            copy_all(c, &from, &to, one, NULL);
            copy_all(c, &from, &to, other, NULL);
            copy_once(c, &from, &to, 4097, 1, 3, other, check_stream(c, other));
            copy_behind_work(c, &from, &to, false);
            if (c->table.event_create != NULL && c->table.stream_wait != NULL)
                copy_behind_work(c, &from, &to, true);
        }
}

static void
within_an_allocation(check_context *c)
{
    static unsigned char bytes[6000], seen[6000];
    char *const memory = check_alloc(c, 0, sizeof bytes);
    for (int is_up = 0; is_up < 2; ++is_up) {
        check_pattern(bytes, sizeof bytes, (uint64_t)is_up);
        check_write(c, 0, memory, bytes, sizeof bytes);
        const size_t from = is_up ? 101 : 3103, to = is_up ? 3103 : 101, size = 2801;
        MUST(c, copy, c->instance, 0, NULL, memory + to, 0, memory + from, 0, size);
        check_read(c, 0, seen, memory, sizeof seen);
        memmove(bytes + to, bytes + from, size);
        REQUIRE(memcmp(seen, bytes, sizeof bytes) == 0, "a copy from one part of an allocation to another is wrong");
    }
}

#define LARGE (((size_t)128 << 20) + 4099)
#define SAMPLE 64 /* bytes in each of some places, all over it, of which the last are its end */
#define SAMPLES 61

static size_t
sample_at(size_t size, size_t i)
{
    return i == SAMPLES - 1 ? size - SAMPLE : size / SAMPLES * i;
}

/* The other bytes are undefined: memory that has much is touched where it has to be. */
static void
put_samples(check_context *c, const place *at, size_t size, uint64_t seed)
{
    for (size_t i = 0; i < SAMPLES; ++i)
        check_write_pattern(c, at->dev, at->memory + sample_at(size, i), SAMPLE, seed + i);
}

/* Copied from the other place, or filled. */
static void
move_much(check_context *c, const place *from, const place *to, size_t size)
{
    const int32_t dev = to->dev >= 0 ? to->dev : from->dev;
    unsigned char bytes[SAMPLE], wanted[SAMPLE];
    put_samples(c, to, size, 1000);
    if (from != NULL)
        put_samples(c, from, size, 1);
    if (from != NULL)
        MUST(c, copy, c->instance, dev, NULL, to->memory, to->dev, from->memory, from->dev, size);
    else
        MUST(c, fill, c->instance, dev, NULL, to->memory, 0x77, size);
    check_sync(c, dev, NULL);
    for (size_t i = 0; i < SAMPLES; ++i) {
        check_read(c, to->dev, bytes, to->memory + sample_at(size, i), SAMPLE);
        memset(wanted, 0x77, SAMPLE);
        if (from != NULL)
            check_pattern(wanted, SAMPLE, 1 + i);
        if (memcmp(bytes, wanted, SAMPLE) != 0 && from == NULL)
            check_fail("a fill of %zu bytes: those from offset %zu on are wrong", size, sample_at(size, i));
        REQUIRE(memcmp(bytes, wanted, SAMPLE) == 0,
                "a copy of %zu bytes from %s %d to %s %d: those from offset %zu on are wrong", size, kind_of(from),
                from->dev, kind_of(to), to->dev, sample_at(size, i));
    }
}

/* The largest that all places have room for at once: an eighth of each memory. */
static size_t
largest(check_context *c)
{
    const uint64_t host = check_host_available() / 8;
    uint64_t size = host != 0 ? host : LARGE;
    for (int32_t dev = 0; dev < c->devices && dev < 2; ++dev)
        size = check_share(c, dev, 8, size);
    return (size_t)size;
}

/* Each way that a driver may have of its own, with sizes that double while there is time. */
static void
large_moves(check_context *c)
{
    const bool is_fill = strcmp(c->check->name, "fill.large") == 0;
    const double end = check_now() + c->target->seconds;
    const size_t most = largest(c);
    for (size_t size = LARGE < most ? LARGE : most | 1; size != 0;
         size = size * 2 < most && check_now() < end ? size * 2 + 1 : 0) {
        const place device = make_place(c, 0, false, size);
        for (int kind = 0; kind < (is_fill ? 0 : 4); ++kind) { /* the host's, pinned, the same device's, another's */
            if ((kind == 1 && c->table.host_alloc == NULL) || (kind == 3 && c->devices < 2))
                continue;
            const place other = make_place(c, kind < 2 ? -1 : kind - 2, kind == 1, size);
            move_much(c, &other, &device, size);
            if (kind != 2)
                move_much(c, &device, &other, size);
            check_free_at(c, other.dev, other.memory, other.pinned);
        }
        if (is_fill)
            move_much(c, NULL, &device, size);
        check_free_at(c, device.dev, device.memory, device.pinned);
    }
}

#define TAILS ((size_t)17 << 20)
#define TURNS 4096

/* Pieces, rings and staging buffers of vendors and drivers end at round sizes: sizes around those, from odd offsets. */
static void
copy_tails(check_context *c, int32_t from_dev, int32_t to_dev, bool pinned)
{
    static const size_t wanted[] = {((size_t)1 << 20) - 1, ((size_t)1 << 20) + 1, ((size_t)4 << 20) + 5,
                                    ((size_t)16 << 20) + 9};
    static size_t turn; /* each has other bytes */
    if (buffers.bytes == NULL) {
        make_buffers(c, TAILS + TURNS, false);
        check_pattern(buffers.bytes, TAILS + TURNS, 1);
        memset(buffers.expected, GUARD_BYTE, TAILS);
    }
    turn = (turn + 61) % TURNS;
    const unsigned char *const bytes = buffers.bytes + turn;
    const int32_t dev = to_dev >= 0 ? to_dev : from_dev;
    const size_t room = (size_t)check_share(c, dev, 8, TAILS);
    const place from = make_place(c, from_dev, pinned, room), to = make_place(c, to_dev, pinned, room);
    check_write(c, from_dev, from.memory, bytes, room);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; ++i) {
        const size_t from_offset = i * 3, to_offset = GUARD + (i & 1), end = to_offset + wanted[i];
        if (from_offset + wanted[i] > room || end + GUARD > room)
            break;
        copy_exactly(c, &from, &to, bytes + from_offset, wanted[i], from_offset, to_offset, end + GUARD, dev, NULL);
    }
    check_free_at(c, from.dev, from.memory, from.pinned);
    check_free_at(c, to.dev, to.memory, to.pinned);
}

static void
tails_are_copied(check_context *c)
{
    for (int32_t dev = 0; dev < c->devices && dev < 3; ++dev) {
        for (int pinned = 0; pinned < (c->table.host_alloc != NULL ? 2 : 1); ++pinned) {
            copy_tails(c, -1, dev, pinned != 0);
            copy_tails(c, dev, -1, pinned != 0);
        }
        copy_tails(c, dev, dev, false);
    }
}

/* Both ways of each pair of the first three; behind them neighbours. */
static void
peer_tails_are_copied(check_context *c)
{
    for (int32_t one = 0; one < c->devices && one < 3; ++one)
        for (int32_t other = 0; other < c->devices && other < 3; ++other)
            if (one != other)
                copy_tails(c, one, other, false);
    for (int32_t dev = 3; dev < c->devices && dev < 8; ++dev)
        copy_tails(c, dev, dev - 1, false);
}

#define LINKS 400

/* Each link reads what the one before wrote. */
static void
copies_are_in_order(check_context *c)
{
    enum { SIZE = 3001, PLACES = 5 };
    unsigned char *const first = check_host_alloc(c, SIZE, true), *const second = check_host_alloc(c, SIZE, true),
                         *const seen = check_host_alloc(c, SIZE, true);
    uint64_t way = check_random_below(c, 3);
    check_pattern(first, SIZE, 1);
    check_pattern(second, SIZE, 2);
    openreg_driver_stream const streams[] = {NULL, check_stream(c, c->dev)};
    char *const memory = check_alloc(c, c->dev, SIZE * PLACES);
    for (int s = 0; s < 2; ++s)
        for (int round = 0; round < 4; ++round) {
            const unsigned char *const source = round % 2 == 0 ? first : second;
            if (round == 0)
                check_delay(c, c->dev, streams[s], 10);
            MUST(c, copy, c->instance, c->dev, streams[s], memory, c->dev, source, -1, SIZE);
            size_t at = 0;
            for (int i = 0; i < LINKS; ++i) {
                const size_t next = (at + 1 + check_random_below(c, PLACES - 1)) % PLACES;
                MUST(c, copy, c->instance, c->dev, streams[s], memory + next * SIZE, c->dev, memory + at * SIZE, c->dev,
                     SIZE);
                at = next;
            }
            MUST(c, copy, c->instance, c->dev, streams[s], seen, -1, memory + at * SIZE, c->dev, SIZE);
            /* The way back overwrites what the chain has read. */
            MUST(c, copy, c->instance, c->dev, streams[s], memory + at * SIZE, c->dev, round % 2 == 0 ? second : first,
                 -1, SIZE);
            check_sync_late(c, c->dev, streams[s], c->dev < 4 ? way++ : 0);
            check_is_pattern(seen, SIZE, round % 2 == 0 ? 1 : 2, "the end of a chain of copies on one stream");
            check_holds_pattern(c, c->dev, memory + at * SIZE, SIZE, round % 2 == 0 ? 2 : 1,
                                "what was written behind a chain of copies");
        }
}

static void
fills_exactly(check_context *c)
{
    static const size_t lengths[] = {1, 2, 3, 5, 17, 255, 1023, 4096, 4097, 65535};
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    static unsigned char seen[65535 + 64];
    char *const memory = check_alloc(c, c->dev, sizeof seen);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; ++i)
        for (size_t offset = 0; offset < 9; offset += 1 + 2 * (i % 3)) {
            const uint8_t value = values[(i + offset) % sizeof values];
            memset(seen, 0xee, sizeof seen);
            check_write(c, c->dev, memory, seen, sizeof seen);
            MUST(c, fill, c->instance, c->dev, NULL, memory + 16 + offset, value, lengths[i]);
            check_read(c, c->dev, seen, memory, sizeof seen);
            check_is_value(seen, 16 + offset, 0xee, "the bytes in front of a fill");
            check_is_value(seen + 16 + offset, lengths[i], value, "the bytes of a fill");
            check_is_value(seen + 16 + offset + lengths[i], sizeof seen - 16 - offset - lengths[i], 0xee,
                           "the bytes behind a fill");
        }
    check_free(c, c->dev, memory);
}

static void
fills_are_in_order(check_context *c)
{
    enum { SIZE = 5000 };
    unsigned char *const from = check_host_alloc(c, SIZE, true), *const seen = check_host_alloc(c, 2 * SIZE, true);
    check_pattern(from, SIZE, 4);
    openreg_driver_stream const streams[] = {NULL, check_stream(c, c->dev)};
    char *const memory = check_alloc(c, c->dev, SIZE), *const kept = check_alloc(c, c->dev, SIZE);
    for (int round = 0; round < (c->dev < 4 ? 6 : 2); ++round) {
        openreg_driver_stream const stream = streams[round % 2];
        check_delay(c, c->dev, stream, 10);
        MUST(c, fill, c->instance, c->dev, stream, memory, 1, SIZE);
        MUST(c, copy, c->instance, c->dev, stream, memory, c->dev, from, -1, SIZE);
        MUST(c, copy, c->instance, c->dev, stream, kept, c->dev, memory, c->dev, SIZE);
        MUST(c, fill, c->instance, c->dev, stream, memory, 2, SIZE);
        MUST(c, copy, c->instance, c->dev, stream, seen + SIZE, -1, kept, c->dev, SIZE);
        MUST(c, copy, c->instance, c->dev, stream, seen, -1, memory, c->dev, SIZE);
        /* Overwrites what was read. */
        MUST(c, copy, c->instance, c->dev, stream, memory, c->dev, from, -1, SIZE);
        check_sync_late(c, c->dev, stream, (uint64_t)round / 2);
        check_is_value(seen, SIZE, 2, "what a fill left behind a copy on the same stream");
        check_is_pattern(seen + SIZE, SIZE, 4, "what a copy left between two fills on the same stream");
    }
}

static const check_case cases[] = {
    {"copy.to_device", "", CHECK_EACH, "copy() from host memory to a device: all bytes, and none beside them.",
     "Vendors round sizes to words; offsets inside of an allocation are valid addresses.", copies_on_one_device},
    {"copy.from_device", "", CHECK_EACH, "copy() from a device to host memory: all bytes, and none beside them.",
     "Vendors round sizes to words; offsets inside of an allocation are valid addresses.", copies_on_one_device},
    {"copy.to_device_pinned", "host_alloc", CHECK_EACH,
     "copy() from pinned memory to a device: all bytes, and none beside them.", "A path of its own in most drivers.",
     copies_on_one_device},
    {"copy.from_device_pinned", "host_alloc", CHECK_EACH,
     "copy() from a device to pinned memory: all bytes, and none beside them.", "A path of its own in most drivers.",
     copies_on_one_device},
    {"copy.on_device", "", CHECK_EACH, "copy() between two allocations of a device: all bytes, and none beside them.",
     "Offsets inside of an allocation are valid addresses.", copies_on_one_device},
    {"copy.between_devices", "", CHECK_TWO_DEVICES,
     "copy(): devices may differ (a peer copy), on a stream of either of them, in the order of that stream.",
     "Destination comes first, then its device; stage through the host where the vendor has no way between two "
     "devices, on the stream and not in the call.",
     between_devices},
    {"copy.within", "", 0, "copy(): the ranges don't overlap; they may be parts of one allocation.",
     "A look-up by allocation has to keep both offsets apart.", within_an_allocation},
    {"copy.large", "", CHECK_LONG, "Sizes are of 64 bits, in bytes: 128 MiB, and with more --time up to all memory.",
     "Look for int and unsigned between the slot and the vendor, and for pieces that end too early.", large_moves},
    {"fill.large", "fill", CHECK_LONG,
     "Sizes are of 64 bits, in bytes: 128 MiB, and with more --time up to all memory.",
     "Look for int and unsigned between the slot and the vendor, and for a launch that has a limit.", large_moves},
    {"copy.tails", "", 0, "copy(): all bytes, and none beside them, also above 1 MiB and on each device.",
     "Where a copy is made of pieces: the last one, and its offsets.", tails_are_copied},
    {"copy.peer_tails", "", CHECK_TWO_DEVICES,
     "copy() between two devices: all bytes, and none beside them, also above 1 MiB.",
     "Where a copy is made of pieces through the host: the last one, and its offsets.", peer_tails_are_copied},
    {"copy.order", "", CHECK_EACH, "Streams run their work in order, whether or not it is waited for at once.",
     "A queue for each direction, or one out of order, needs events between the two; work that is collected goes "
     "before a write that is not.",
     copies_are_in_order},
    {"fill.bytes", "fill", CHECK_EACH, "fill(): `size` bytes of `value`, and none beside them.",
     "Vendors fill words; the value is a byte without sign.", fills_exactly},
    {"fill.order", "fill", CHECK_EACH,
     "A fill is in order with the copies of its stream, whether or not they are waited for at once.",
     "Pass the stream on, the default one too.", fills_are_in_order},
};
const check_group check_copy_group = CHECK_GROUP(1, cases);
