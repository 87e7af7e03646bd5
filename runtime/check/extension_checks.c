/* SPDX-License-Identifier: BSD-3-Clause */
/* extension_checks.c: the extensions openreg.ipc and openreg.vmm. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openreg/ipc.h>
#include <openreg/vmm.h>

#include "fixtures.h"
#include "runner.h"

#define SIZE 300000

static const openreg_ipc *
find_ipc(check_context *c)
{
    return check_extension(c, OPENREG_IPC_NAME, OPENREG_IPC_VERSION, OPENREG_IPC_SIZE_1);
}

/* The other process: sees the pattern, and writes another one. */
static void
import_and_answer(check_context *c, int from_exporter, int to_exporter)
{
    openreg_ipc_handle handle;
    if (read(from_exporter, &handle, sizeof handle) != (ssize_t)sizeof handle)
        _exit(CHECK_EXIT_PASS); /* the exporter has ended, and says why */
    check_open(c);
    const openreg_ipc *const ipc = find_ipc(c);
    void *memory = NULL;
    const openreg_status status = TRY("memory_open", ipc->memory_open(c->instance, 0, &handle, &memory));
    check_skip_if(status == OPENREG_E_UNSUPPORTED, "memory_open() says that the machine can't: %s", check_error_text());
    check_succeeded("memory_open", status);
    check_holds_pattern(c, 0, memory, SIZE, 1, "memory of another process");
    check_write_pattern(c, 0, memory, SIZE, 2);
    CALL("memory_close", ipc->memory_close(c->instance, 0, memory));
    check_close(c);
    check_skip_if(write(to_exporter, "x", 1) != 1, "the exporter has ended");
    _exit(CHECK_EXIT_PASS);
}

static void
memory_goes_to_another_process(check_context *c)
{
    int there[2], back[2];
    check_skip_if(pipe(there) != 0 || pipe(back) != 0, "no pipe could be made");
    const pid_t child = fork(); /* before open(): the two have an instance each */
    if (child == 0) {
        (void)close(there[1]);
        import_and_answer(c, there[0], back[1]);
    }
    (void)close(back[1]);
    (void)close(there[0]);
    check_open(c);
    const openreg_ipc *const ipc = find_ipc(c);
    char *const before = check_alloc(c, 0, 5000), /* so that the memory is not the first of the device */
        *const memory = check_alloc(c, 0, SIZE);
    check_write_pattern(c, 0, memory, SIZE, 1);
    openreg_ipc_handle handle = {{0}};
    const int32_t importer = (int32_t)child;
    CALL("memory_export", ipc->memory_export(c->instance, 0, memory, &importer, 1, &handle));
    void *own = before;
    REFUSES("memory_open", ipc->memory_open(c->instance, 0, &handle, &own));
    REQUIRE(own == before, "memory_open() failed and wrote its out-parameter");
    check_skip_if(write(there[1], &handle, sizeof handle) != (ssize_t)sizeof handle,
                  "nothing could be written into a pipe");
    char answer = 0;
    const bool is_answered = read(back[0], &answer, 1) == 1;
    check_await_child(child, 0, CHECK_EXIT_PASS, "the process that opened the handle");
    REQUIRE(is_answered, "the process that opened the handle ended without an answer");
    check_holds_pattern(c, 0, memory, SIZE, 2, "memory that another process has written");
    check_free(c, 0, memory);
}

static void
unknown_handles_are_refused(check_context *c)
{
    const openreg_ipc *const ipc = find_ipc(c);
    openreg_ipc_handle handle;
    void *out = &handle;
    memset(&handle, 0x5a, sizeof handle);
    REFUSES("memory_open", ipc->memory_open(c->instance, 0, &handle, &out));
    REQUIRE(out == &handle, "memory_open() failed and wrote its out-parameter");
    const openreg_ipc_handle before = handle;
    REFUSES("memory_export", ipc->memory_export(c->instance, 0, &handle, NULL, 0, &handle));
    REQUIRE(memcmp(&before, &handle, sizeof handle) == 0, "memory_export() failed and wrote its out-parameter");
}

/* What comes of a handle with one word altered, in the importer: it is refused, or leads to memory of the whole size, which
 * can be read (it may be other memory of the exporter's) and closed. */
static void
open_altered(check_context *c, const openreg_ipc *ipc, const openreg_ipc_handle *handle)
{
    static unsigned char host[SIZE];
    void *memory = (void *)host;
    if (TRY("memory_open", ipc->memory_open(c->instance, 0, handle, &memory)) != OPENREG_OK) {
        REQUIRE(memory == host, "memory_open() failed and wrote its out-parameter");
        return;
    }
    check_read(c, 0, host, memory, SIZE);
    CALL("memory_close", ipc->memory_close(c->instance, 0, memory));
}

static void
import_altered(check_context *c, const openreg_ipc_handle *handle)
{
    check_open(c);
    const openreg_ipc *const ipc = find_ipc(c);
    uint32_t size = 0;
    CALL("handle_size", ipc->handle_size(c->instance, &size));
    for (uint32_t at = 0; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, handle->bytes + at, sizeof word);
        const uint64_t altered[] = {0, UINT64_MAX, word + 1, word ^ UINT64_C(1) << 40, ~word};
        for (size_t i = 0; i < sizeof altered / sizeof altered[0]; ++i) {
            openreg_ipc_handle other = *handle;
            memcpy(other.bytes + at, &altered[i], sizeof word);
            open_altered(c, ipc, &other);
            for (uint64_t bytes = 1; bytes <= 4 * SIZE; bytes *= 64) /* the books are as they were */
                check_free(c, 0, check_alloc(c, 0, bytes));
        }
    }
    check_close(c);
    _exit(CHECK_EXIT_PASS);
}

static void
altered_handles_do_no_harm(check_context *c)
{
    int there[2], back[2];
    openreg_ipc_handle handle = {{0}};
    check_skip_if(pipe(there) != 0 || pipe(back) != 0, "no pipe could be made");
    const pid_t exporter = fork(); /* before open() */
    if (exporter == 0) {
        (void)close(back[1]);
        check_open(c);
        const openreg_ipc *const ipc = find_ipc(c);
        const int32_t importer = (int32_t)getppid();
        CALL("memory_export", ipc->memory_export(c->instance, 0, check_alloc(c, 0, SIZE), &importer, 1, &handle));
        char end;
        if (write(there[1], &handle, sizeof handle) == (ssize_t)sizeof handle)
            (void)!read(back[0], &end, 1); /* until the importer has ended */
        _exit(CHECK_EXIT_PASS);
    }
    (void)close(there[1]);
    if (read(there[0], &handle, sizeof handle) == (ssize_t)sizeof handle)
        import_altered(c, &handle);
    check_await_child(exporter, 0, CHECK_EXIT_PASS, "the process that exported the memory");
}

static void
handles_have_their_size(check_context *c)
{
    const openreg_ipc *const ipc = find_ipc(c);
    static unsigned char handle[OPENREG_IPC_HANDLE_MAX + 64], before[sizeof handle];
    uint32_t size = 0, again = 0;
    CALL("handle_size", ipc->handle_size(c->instance, &size));
    CALL("handle_size", ipc->handle_size(c->instance, &again));
    REQUIRE(size > 0 && size <= OPENREG_IPC_HANDLE_MAX, "handle_size() gave %u bytes", (unsigned)size);
    REQUIRE(size == again, "handle_size() gave %u bytes, and then %u", (unsigned)size, (unsigned)again);
    char *const memory = check_alloc(c, 0, SIZE);
    memset(before, 0x5a, sizeof before);
    memcpy(handle, before, sizeof handle);
    const openreg_status status = TRY("memory_export", ipc->memory_export(c->instance, 0, memory, NULL, 0, handle));
    if (status != OPENREG_E_UNSUPPORTED) /* the vendor must know the processes */
        check_succeeded("memory_export", status);
    REQUIRE(memcmp(handle + (status == OPENREG_OK ? size : 0), before,
                   sizeof handle - (status == OPENREG_OK ? size : 0)) == 0,
            "memory_export() wrote beyond the %u bytes of a handle", (unsigned)size);
    check_free(c, 0, memory);
}

static const openreg_vmm *vmm;

/* Finds the extension, which every check of it begins with. Returns the granularity. */
static uint64_t
find_vmm(check_context *c, int32_t dev)
{
    uint64_t step = 0, again = 0;
    vmm = check_extension(c, OPENREG_VMM_NAME, OPENREG_VMM_VERSION, OPENREG_VMM_SIZE_1);
    CALL("granularity", vmm->granularity(c->instance, dev, &step));
    CALL("granularity", vmm->granularity(c->instance, dev, &again));
    REQUIRE(step != 0 && (step & (step - 1)) == 0, "granularity() gave %llu bytes for device %d, no power of two",
            (unsigned long long)step, (int)dev);
    REQUIRE(step == again, "granularity() gave %llu bytes for device %d, and then %llu", (unsigned long long)step,
            (int)dev, (unsigned long long)again);
    check_need(dev, check_total_memory(c, dev), 8 * step);
    return step;
}

static void
granularity_is_the_devices(check_context *c)
{
    const uint64_t step = find_vmm(c, c->dev);
    for (uint64_t pieces = 1; pieces <= 3; ++pieces) {
        void *memory = NULL;
        CALL("reserve", vmm->reserve(c->instance, c->dev, pieces * step, &memory));
        REQUIRE((uintptr_t)memory % step == 0, "reserve() gave the address %p, no multiple of %llu", memory,
                (unsigned long long)step);
        CALL("map", vmm->map(c->instance, c->dev, memory, (pieces - 1) * step, step));
        CALL("release", vmm->release(c->instance, c->dev, memory));
    }
}

#define SAMPLE 4000

static void
memory_comes_and_goes(check_context *c)
{
    const uint64_t step = find_vmm(c, c->dev);
    void *start = NULL;
    CALL("reserve", vmm->reserve(c->instance, c->dev, 8 * step, &start));
    char *const memory = start;
    CALL("map", vmm->map(c->instance, c->dev, memory, 0, step));
    check_write_pattern(c, c->dev, memory + step - SAMPLE, SAMPLE, 1);
    CALL("map", vmm->map(c->instance, c->dev, memory, step, 3 * step));
    check_write_pattern(c, c->dev, memory + 4 * step - SAMPLE, SAMPLE, 2);
    char *const other = check_alloc(c, c->dev, step);
    check_write_pattern(c, c->dev, other, SAMPLE, 3);
    CALL("map", vmm->map(c->instance, c->dev, memory, 4 * step, step));
    check_holds_pattern(c, c->dev, memory + step - SAMPLE, SAMPLE, 1,
                        "memory of a reservation beside what map() added");
    check_holds_pattern(c, c->dev, memory + 4 * step - SAMPLE, SAMPLE, 2,
                        "memory of a reservation beside what map() added");
    CALL("unmap", vmm->unmap(c->instance, c->dev, memory, 4 * step, step));
    CALL("unmap", vmm->unmap(c->instance, c->dev, memory, step, 2 * step)); /* part of what came at once */
    check_holds_pattern(c, c->dev, memory + step - SAMPLE, SAMPLE, 1, "memory before what unmap() took");
    check_holds_pattern(c, c->dev, memory + 4 * step - SAMPLE, SAMPLE, 2, "memory behind what unmap() took");
    CALL("map", vmm->map(c->instance, c->dev, memory, 2 * step, step));
    check_write_pattern(c, c->dev, memory + 2 * step, SAMPLE, 4);
    check_write_pattern(c, c->dev, memory + 3 * step - SAMPLE, SAMPLE, 5);
    check_holds_pattern(c, c->dev, memory + 2 * step, SAMPLE, 4,
                        "memory in the middle of a reservation that came again");
    check_holds_pattern(c, c->dev, memory + 3 * step - SAMPLE, SAMPLE, 5,
                        "memory in the middle of a reservation that came again");
    check_holds_pattern(c, c->dev, memory + step - SAMPLE, SAMPLE, 1, "memory before what map() added again");
    check_holds_pattern(c, c->dev, memory + 4 * step - SAMPLE, SAMPLE, 2, "memory behind what map() added again");
    check_holds_pattern(c, c->dev, other, SAMPLE, 3, "memory beside a reservation");
    CALL("release", vmm->release(c->instance, c->dev, memory));
    check_free(c, c->dev, other);
}

static void
wrong_ranges_are_refused(check_context *c)
{
    const uint64_t step = find_vmm(c, 0);
    void *memory = NULL;
    CALL("reserve", vmm->reserve(c->instance, 0, 4 * step, &memory));
    REFUSES("map", vmm->map(c->instance, 0, memory, 0, step + 1));
    REFUSES("map", vmm->map(c->instance, 0, memory, step / 2, step));
    REFUSES("map", vmm->map(c->instance, 0, memory, 0, 5 * step));
    REFUSES("map", vmm->map(c->instance, 0, memory, 4 * step, step));
    REFUSES("unmap", vmm->unmap(c->instance, 0, memory, 0, step));
    CALL("map", vmm->map(c->instance, 0, memory, step, step));
    REFUSES("map", vmm->map(c->instance, 0, memory, step, step));
    REFUSES("map", vmm->map(c->instance, 0, memory, 0, 2 * step));
    REFUSES("unmap", vmm->unmap(c->instance, 0, memory, step, 2 * step));
    char *const plain = check_alloc(c, 0, step);
    REFUSES("map", vmm->map(c->instance, 0, plain, 0, step));
    CALL("map", vmm->map(c->instance, 0, memory, 0, step)); /* what was refused has changed nothing */
    CALL("map", vmm->map(c->instance, 0, memory, 2 * step, 2 * step));
    CALL("release", vmm->release(c->instance, 0, memory));
}

/* Ranges of pieces come and go at random in two reservations; a range that is memory in part is refused both ways. */
#define PIECES 10

static void
any_part_comes_and_goes(check_context *c)
{
    const int32_t dev = c->devices - 1;
    const uint64_t step = find_vmm(c, dev);
    unsigned seeds[2][PIECES] = {{0}}, seed = 0; /* 0: no memory */
    void *starts[2] = {NULL, NULL};
    check_need(dev, check_total_memory(c, dev), 4 * PIECES * step);
    for (int r = 0; r < 2; ++r)
        CALL("reserve", vmm->reserve(c->instance, dev, PIECES * step, &starts[r]));
    for (int round = 0; round < 120; ++round) {
        const int r = (int)check_random_below(c, 2), first = (int)check_random_below(c, PIECES);
        const int count = 1 + (int)check_random_below(c, (uint64_t)(PIECES - first));
        char *const memory = starts[r];
        int mapped = 0;
        for (int i = first; i < first + count; ++i)
            mapped += seeds[r][i] != 0;
        const uint64_t offset = (uint64_t)first * step, size = (uint64_t)count * step;
        if (mapped == 0)
            CALL("map", vmm->map(c->instance, dev, memory, offset, size));
        else
            REFUSES("map", vmm->map(c->instance, dev, memory, offset, size));
        if (mapped == count)
            CALL("unmap", vmm->unmap(c->instance, dev, memory, offset, size));
        else if (mapped > 0)
            REFUSES("unmap", vmm->unmap(c->instance, dev, memory, offset, size));
        for (int i = first; i < first + count && (mapped == 0 || mapped == count); ++i) {
            seeds[r][i] = mapped == 0 ? ++seed : 0;
            if (mapped == 0)
                check_write_pattern(c, dev, memory + ((uint64_t)i + 1) * step - SAMPLE, SAMPLE, seed);
        }
        for (int i = 0; i < 2 * PIECES; ++i)
            if (seeds[i / PIECES][i % PIECES] != 0)
                check_holds_pattern(c, dev, (char *)starts[i / PIECES] + ((uint64_t)(i % PIECES) + 1) * step - SAMPLE,
                                    SAMPLE, seeds[i / PIECES][i % PIECES],
                                    "memory of a reservation of which other parts came and went");
    }
    for (int r = 0; r < 2; ++r)
        CALL("release", vmm->release(c->instance, dev, starts[r]));
}

/* A copy that comes late still reads what unmap() takes. */
static void
unmap_waits(check_context *c)
{
    const uint64_t step = find_vmm(c, 0);
    openreg_driver_stream const stream = check_stream(c, 0);
    void *memory = NULL;
    char *const kept = check_alloc(c, 0, SAMPLE);
    CALL("reserve", vmm->reserve(c->instance, 0, 2 * step, &memory));
    for (int is_release = 0; is_release < 2; ++is_release) {
        CALL("map", vmm->map(c->instance, 0, memory, step, step));
        check_write_pattern(c, 0, (char *)memory + step, SAMPLE, 7 + (unsigned)is_release);
        check_delay(c, 0, stream, 60);
        MUST(c, copy, c->instance, 0, stream, kept, 0, (char *)memory + step, 0, SAMPLE);
        if (is_release)
            CALL("release", vmm->release(c->instance, 0, memory));
        else
            CALL("unmap", vmm->unmap(c->instance, 0, memory, step, step));
        check_sync(c, 0, stream);
        check_holds_pattern(c, 0, kept, SAMPLE, 7 + (unsigned)is_release,
                            is_release ? "what a copy read of a reservation that was released behind it"
                                       : "what a copy read of memory that was unmapped behind it");
    }
    check_free(c, 0, kept);
}

static void
reservations_give_memory_back(check_context *c)
{
    const uint64_t total = check_total_memory(c, 0), step = find_vmm(c, 0);
    check_skip_if(total / 8 < 2 * step, "the driver does not say how much memory a device has, or it is too small");
    const uint64_t size = total / 8 / step * step;
    for (int i = 0; i < 40; ++i) {
        void *memory = NULL;
        CALL("reserve", vmm->reserve(c->instance, 0, size + step, &memory));
        CALL("map", vmm->map(c->instance, 0, memory, 0, size));
        if (i % 2 == 0) {
            CALL("unmap", vmm->unmap(c->instance, 0, memory, 0, step)); /* in two calls what came in one */
            CALL("unmap", vmm->unmap(c->instance, 0, memory, step, size - step));
        }
        CALL("release", vmm->release(c->instance, 0, memory));
    }
    if (c->table.mem_info == NULL)
        return;
    void *memory = NULL;
    CALL("reserve", vmm->reserve(c->instance, 0, size, &memory));
    const uint64_t before = check_free_memory(c, 0);
    CALL("map", vmm->map(c->instance, 0, memory, 0, size));
    const uint64_t held = check_free_memory(c, 0);
    CALL("unmap", vmm->unmap(c->instance, 0, memory, 0, size));
    const uint64_t after = check_free_memory(c, 0);
    REQUIRE(held + size / 2 < before, "a reservation took %llu bytes, and the free bytes went from %llu to %llu",
            (unsigned long long)size, (unsigned long long)before, (unsigned long long)held);
    REQUIRE(after > held + size / 2, "a reservation gave up its memory, and the free bytes went from %llu to %llu",
            (unsigned long long)held, (unsigned long long)after);
    CALL("release", vmm->release(c->instance, 0, memory));
}

static const check_case cases[] = {
    {"ipc.memory", "extension", CHECK_CLOSED,
     "ipc.h: memory_open() gives another process the allocation; a handle of this very process is E_INVALID.",
     "A handle holds the offset of the allocation in what the vendor exports.", memory_goes_to_another_process},
    {"ipc.size", "extension", 0,
     "ipc.h: bytes of a handle: 1 to OPENREG_IPC_HANDLE_MAX, constant from open() to close().",
     "Answer the size of the vendor's handle or key, with its end.", handles_have_their_size},
    {"ipc.handles", "extension", 0, "ipc.h: E_INVALID: no such handle, no such allocation.",
     "Put a number of your own at the start of a handle.", unknown_handles_are_refused},
    {"ipc.altered", "extension", CHECK_CLOSED,
     "ipc.h: E_INVALID: no such handle. One that was altered on its way is refused, or leads to memory of the whole "
     "size; nothing that it says of sizes and offsets is believed.",
     "Compare offset and size with the size of the memory before anything is mapped.", altered_handles_do_no_harm},
    {"vmm.granularity", "extension", CHECK_EACH,
     "vmm.h: a power of two, constant from open() to close(). Offsets and sizes are multiples of it, and so is the "
     "address of a reservation.",
     "Answer what the vendor gives for the smallest piece of that device.", granularity_is_the_devices},
    {"vmm.memory", "extension", CHECK_EACH,
     "vmm.h: from map() on the range is device memory; the rest of the reservation stays as it is. unmap() takes "
     "memory back, wherever it lies and however many calls of map() it came from.",
     "Map pieces of the granularity one by one where the vendor can't unmap parts.", memory_comes_and_goes},
    {"vmm.parts", "extension", 0,
     "vmm.h: memory comes and goes in any part of a reservation, however many calls of map() it came from; E_INVALID "
     "for a range that is memory in part.",
     "Note each piece by itself; look at all of a range before anything is changed.", any_part_comes_and_goes},
    {"vmm.waits", "extension", 0, "vmm.h: unmap() and release() return after work queued on the memory has ended.",
     "As mem_free(): wait for every stream of the device.", unmap_waits},
    {"vmm.ranges", "extension", 0,
     "vmm.h: E_INVALID: no reservation, beyond its end, not a multiple of the granularity, memory already, or for "
     "unmap() not all of it memory.",
     "Note for each piece whether it is memory. mem_alloc()'s memory is no reservation.", wrong_ranges_are_refused},
    {"vmm.accounts", "extension", 0, "vmm.h: release() ends a reservation with the memory that it has, as mem_free().",
     "The memory of map() counts as used, the addresses of reserve() don't.", reservations_give_memory_back},
};
const check_group check_extension_group = CHECK_GROUP(2, cases);
