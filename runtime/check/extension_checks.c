/* SPDX-License-Identifier: BSD-3-Clause */
/* extension_checks.c: the extensions openreg.ipc and openreg.vmm. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openreg/ipc.h>
#include <openreg/vmm.h>

#include "check.h"
#include "runner.h"
#include "work.h"

#define CALL(name, call) check_succeeded(name, (check_begin_call(name), (call)))
#define REFUSES(name, call) check_failed_with(name, OPENREG_E_INVALID, (check_begin_call(name), (call)))

/* --------------------------------------------------------------------------------------------------------------- ipc */

#define SIZE 300000

static const openreg_ipc *
find_ipc(check_context *c)
{
    const openreg_ipc *const ipc = c->table.extension(c->instance, OPENREG_IPC_NAME, OPENREG_IPC_VERSION);
    if (ipc == NULL)
        check_skip("the driver has no extension openreg.ipc");
    REQUIRE(ipc->struct_size >= OPENREG_IPC_SIZE_1 && ipc->version == OPENREG_IPC_VERSION,
            "the table of openreg.ipc says version %u and %u bytes", (unsigned)ipc->version,
            (unsigned)ipc->struct_size);
    REQUIRE(ipc->memory_export != NULL && ipc->memory_open != NULL && ipc->memory_close != NULL,
            "the table of openreg.ipc has a function missing");
    return ipc;
}

/* The other process: sees the pattern, and writes another one. */
static void
import_and_answer(check_context *c, int from_exporter, int to_exporter)
{
    openreg_ipc_handle handle;
    unsigned char *const host = malloc(SIZE);
    if (host == NULL || read(from_exporter, &handle, sizeof handle) != (ssize_t)sizeof handle)
        _exit(CHECK_EXIT_PASS); /* the exporter has ended, and says why */
    check_open(c);
    const openreg_ipc *const ipc = find_ipc(c);
    void *memory = NULL;
    check_begin_call("memory_open");
    const openreg_status status = check_ended("memory_open", ipc->memory_open(c->instance, 0, &handle, &memory));
    if (status == OPENREG_E_UNSUPPORTED)
        check_skip("memory_open() says that the machine can't: %s", check_error_text());
    check_succeeded("memory_open", status);
    memset(host, 0, SIZE);
    check_read(c, 0, host, memory, SIZE);
    check_is_pattern(host, SIZE, 1, "memory of another process");
    check_pattern(host, SIZE, 2);
    check_write(c, 0, memory, host, SIZE);
    CALL("memory_close", ipc->memory_close(c->instance, 0, memory));
    check_close(c);
    if (write(to_exporter, "x", 1) != 1)
        check_skip("the exporter has ended");
    _exit(CHECK_EXIT_PASS);
}

static void
memory_goes_to_another_process(check_context *c)
{
    int there[2], back[2];
    if (pipe(there) != 0 || pipe(back) != 0)
        check_skip("no pipe could be made");
    const pid_t child = fork(); /* before open(): the two have an instance each */
    if (child == 0) {
        (void)close(there[1]);
        import_and_answer(c, there[0], back[1]);
    }
    (void)close(back[1]);
    (void)close(there[0]);
    check_open(c);
    const openreg_ipc *const ipc = find_ipc(c);
    unsigned char *const host = malloc(SIZE);
    char *const before = check_alloc(c, 0, 5000), *const memory = check_alloc(c, 0, SIZE);
    (void)before; /* so that the memory is not the first of the device */
    check_pattern(host, SIZE, 1);
    check_write(c, 0, memory, host, SIZE);
    openreg_ipc_handle handle;
    memset(&handle, 0, sizeof handle);
    CALL("memory_export", ipc->memory_export(c->instance, 0, memory, &handle));
    void *own = host;
    REFUSES("memory_open", ipc->memory_open(c->instance, 0, &handle, &own));
    REQUIRE(own == host, "memory_open() failed and wrote its out-parameter");
    if (write(there[1], &handle, sizeof handle) != (ssize_t)sizeof handle)
        check_skip("nothing could be written into a pipe");
    char answer = 0;
    const bool is_answered = read(back[0], &answer, 1) == 1;
    int status = 0;
    (void)waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) != CHECK_EXIT_PASS)
        _exit(WEXITSTATUS(status)); /* it has said why */
    REQUIRE(WIFEXITED(status) && is_answered, "the process that opened the handle crashed");
    check_read(c, 0, host, memory, SIZE);
    check_is_pattern(host, SIZE, 2, "memory that another process has written");
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
    REFUSES("memory_export", ipc->memory_export(c->instance, 0, &handle, &handle));
    REQUIRE(memcmp(&before, &handle, sizeof handle) == 0, "memory_export() failed and wrote its out-parameter");
}

/* --------------------------------------------------------------------------------------------------------------- vmm */

static const openreg_vmm *
find_vmm(check_context *c)
{
    const openreg_vmm *const vmm = c->table.extension(c->instance, OPENREG_VMM_NAME, OPENREG_VMM_VERSION);
    if (vmm == NULL)
        check_skip("the driver has no extension openreg.vmm");
    REQUIRE(vmm->struct_size >= OPENREG_VMM_SIZE_1 && vmm->version == OPENREG_VMM_VERSION,
            "the table of openreg.vmm says version %u and %u bytes", (unsigned)vmm->version,
            (unsigned)vmm->struct_size);
    REQUIRE(vmm->reserve != NULL && vmm->resize != NULL && vmm->release != NULL,
            "the table of openreg.vmm has a function missing");
    return vmm;
}

#define STEP OPENREG_VMM_GRANULARITY

static void
reservations_grow(check_context *c)
{
    const openreg_vmm *const vmm = find_vmm(c);
    static unsigned char host[20000];
    for (int32_t dev = 0; dev < c->devices; ++dev) {
        void *memory = NULL;
        CALL("reserve", vmm->reserve(c->instance, dev, 8 * STEP, &memory));
        REQUIRE((uintptr_t)memory % STEP == 0, "reserve() gave the address %p, no multiple of %llu", memory,
                (unsigned long long)STEP);
        CALL("resize", vmm->resize(c->instance, dev, memory, STEP));
        check_pattern(host, sizeof host, 1);
        check_write(c, dev, (char *)memory + 100, host, sizeof host);
        CALL("resize", vmm->resize(c->instance, dev, memory, 4 * STEP));
        check_pattern(host, sizeof host, 2);
        check_write(c, dev, (char *)memory + 4 * STEP - sizeof host, host, sizeof host);
        char *const other = check_alloc(c, dev, STEP);
        check_write(c, dev, other, host, sizeof host);
        CALL("resize", vmm->resize(c->instance, dev, memory, 5 * STEP));
        check_read(c, dev, host, (char *)memory + 100, sizeof host);
        check_is_pattern(host, sizeof host, 1, "memory of a reservation that has grown");
        check_read(c, dev, host, (char *)memory + 4 * STEP - sizeof host, sizeof host);
        check_is_pattern(host, sizeof host, 2, "memory of a reservation that has grown");
        CALL("resize", vmm->resize(c->instance, dev, memory, STEP));
        check_read(c, dev, host, (char *)memory + 100, sizeof host);
        check_is_pattern(host, sizeof host, 1, "memory of a reservation that has shrunk");
        check_read(c, dev, host, other, sizeof host);
        check_is_pattern(host, sizeof host, 2, "memory beside a reservation");
        CALL("release", vmm->release(c->instance, dev, memory));
        check_free(c, dev, other);
    }
}

static void
wrong_sizes_are_refused(check_context *c)
{
    const openreg_vmm *const vmm = find_vmm(c);
    void *memory = NULL;
    CALL("reserve", vmm->reserve(c->instance, 0, 4 * STEP, &memory));
    REFUSES("resize", vmm->resize(c->instance, 0, memory, STEP + 1));
    REFUSES("resize", vmm->resize(c->instance, 0, memory, 5 * STEP));
    char *const plain = check_alloc(c, 0, STEP);
    REFUSES("resize", vmm->resize(c->instance, 0, plain, STEP));
    CALL("resize", vmm->resize(c->instance, 0, memory, 4 * STEP));
    CALL("release", vmm->release(c->instance, 0, memory));
}

static void
reservations_give_memory_back(check_context *c)
{
    const openreg_vmm *const vmm = find_vmm(c);
    const uint64_t total = check_total_memory(c, 0);
    if (total == 0)
        check_skip("the driver does not say how much memory a device has");
    const uint64_t size = total / 8 / STEP * STEP;
    for (int i = 0; i < 40; ++i) {
        void *memory = NULL;
        CALL("reserve", vmm->reserve(c->instance, 0, size + STEP, &memory));
        CALL("resize", vmm->resize(c->instance, 0, memory, size));
        if (i % 2 == 0)
            CALL("resize", vmm->resize(c->instance, 0, memory, 0));
        CALL("release", vmm->release(c->instance, 0, memory));
    }
    uint64_t before = 0, held = 0, after = 0, all = 0;
    if (c->table.mem_info == NULL)
        return;
    void *memory = NULL;
    CALL("reserve", vmm->reserve(c->instance, 0, size, &memory));
    MUST(c, mem_info, c->instance, 0, &before, &all);
    CALL("resize", vmm->resize(c->instance, 0, memory, size));
    MUST(c, mem_info, c->instance, 0, &held, &all);
    CALL("resize", vmm->resize(c->instance, 0, memory, 0));
    MUST(c, mem_info, c->instance, 0, &after, &all);
    REQUIRE(held + size / 2 < before, "a reservation took %llu bytes, and the free bytes went from %llu to %llu",
            (unsigned long long)size, (unsigned long long)before, (unsigned long long)held);
    REQUIRE(after > held + size / 2, "a reservation gave up its memory, and the free bytes went from %llu to %llu",
            (unsigned long long)held, (unsigned long long)after);
}

static const check_case cases[] = {
    {"ipc.memory", "extension", CHECK_CLOSED,
     "ipc.h: memory_open() gives another process the allocation; a handle of this very process is E_INVALID.",
     "A handle holds the offset of the allocation in what the vendor exports.", memory_goes_to_another_process},
    {"ipc.handles", "extension", 0, "ipc.h: E_INVALID: no such handle, no such allocation.",
     "Put a number of your own at the start of a handle.", unknown_handles_are_refused},
    {"vmm.memory", "extension", 0,
     "vmm.h: the first `size` bytes of a reservation are memory; what was memory before and still is keeps its "
     "contents.",
     "Map what is added, unmap what is taken away, and touch nothing between.", reservations_grow},
    {"vmm.sizes", "extension", 0,
     "vmm.h: resize() is E_INVALID for no reservation, more than it has, and what is no multiple of the granularity.",
     "mem_alloc()'s memory is no reservation.", wrong_sizes_are_refused},
    {"vmm.accounts", "extension", 0, "vmm.h: release() ends a reservation with the memory that it has, as mem_free().",
     "The memory of resize() counts as used, the addresses of reserve() don't.", reservations_give_memory_back},
};
const check_group check_extension_group = CHECK_GROUP(2, cases);
