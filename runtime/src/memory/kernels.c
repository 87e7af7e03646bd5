/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels.c: the operators that a driver runs itself (openreg.h, kernels.h). */
#define _GNU_SOURCE
#include <openreg/kernels.h>

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/inside.h"
#include "base/sized_struct.h"
#include "base/text.h"
#include "device/stream.h"
#include "driver/driver_calls.h"
#include "driver/span.h"
#include "watch/capture.h"
#include "watch/interceptors.h"

#define KNOWN_FLAGS OPENREG_KERNEL_ELEMENTWISE

static openreg_status
reject_table(const char *call, const openreg_opened_driver *driver, const char *fault, const char *name)
{
    return openreg_error_set_driver(OPENREG_E_INCOMPATIBLE, call, driver->name, "its table of kernels %s%s", fault,
                                    name);
}

static const openreg_kernel *
entry(const openreg_kernels *kernels, uint64_t i)
{
    return (const openreg_kernel *)((const char *)kernels->list + i * kernels->kernel_size);
}

/* A name that is in the table twice, or NULL. Tables are read once and are short enough to compare all with all. */
static const char *
find_double(const openreg_kernels *kernels)
{
    for (uint64_t i = 1; i < kernels->count; ++i)
        for (uint64_t k = 0; k < i; ++k)
            if (strcmp(entry(kernels, i)->name, entry(kernels, k)->name) == 0)
                return entry(kernels, i)->name;
    return NULL;
}

static openreg_status
check(const char *call, const openreg_opened_driver *driver, const openreg_kernels *kernels)
{
    if (kernels->struct_size < OPENREG_KERNELS_SIZE_1)
        return reject_table(call, driver, "is too short: set .struct_size = sizeof(openreg_kernels)", "");
    if (kernels->version < 1)
        return reject_table(call, driver, "has no version: set .version = OPENREG_KERNELS_VERSION", "");
    if (kernels->kernel_size < OPENREG_KERNEL_SIZE_1 || kernels->kernel_size % sizeof(void *) != 0)
        return reject_table(call, driver, "has no size of entries: set .kernel_size = sizeof(openreg_kernel)", "");
    if (kernels->count == 0)
        return OPENREG_OK;
    if (kernels->list == NULL)
        return reject_table(call, driver, "has no list", "");
    for (uint64_t i = 0; i < kernels->count; ++i) {
        const openreg_kernel *const kernel = entry(kernels, i);
        if (kernel->name == NULL || strstr(kernel->name, "::") == NULL)
            return reject_table(call, driver, "has an entry without an operator's name", "");
        if (kernel->run == NULL)
            return reject_table(call, driver, "has no function for ", kernel->name);
        if ((kernel->flags & ~KNOWN_FLAGS) != 0)
            return reject_table(call, driver, "has unknown flags for ", kernel->name);
    }
    const char *const found = find_double(kernels);
    return found != NULL ? reject_table(call, driver, "has two kernels for ", found) : OPENREG_OK;
}

openreg_status
openreg_device_get_kernels(int32_t index, const openreg_kernels **out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_device_get_kernels";
    openreg_device *device = NULL;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    const openreg_opened_driver *const driver = device->driver;
    /* Here a table that is too short is an error, not the same as none. */
    const openreg_kernels *const kernels = driver->table->extension == NULL
                                               ? NULL
                                               : driver->table->extension(driver->instance, OPENREG_KERNELS_NAME,
                                                                          OPENREG_KERNELS_VERSION);
    if (kernels != NULL)
        OPENREG_RETURN_NOT_OK(check(call, driver, kernels));
    *out = kernels;
    return OPENREG_OK;
}

typedef struct running_kernel {
    openreg_instance instance;
    const openreg_kernel_call *what;
} running_kernel;

static openreg_status
run(void *argument)
{
    const running_kernel *const running = argument;
    return running->what->kernel->run(running->instance, running->what);
}

/* Scratch memory of one call of a kernel. */
typedef struct scratch_list {
    int32_t device;
    openreg_stream stream;
    uint64_t count, room;
    void **blocks;
    openreg_status failure; /* why workspace() returned NULL; then `reason` and `vendor_code` are set */
    int64_t vendor_code;
    char reason[sizeof(((openreg_error *)NULL)->message)];
} scratch_list;

static openreg_status
take_block(scratch_list *scratch, uint64_t size, void **out)
{
    static const char call[] = "workspace";
    if (scratch->count == scratch->room) {
        const uint64_t room = scratch->room == 0 ? 4 : 2 * scratch->room;
        void **const grown = realloc(scratch->blocks, room * sizeof *grown);
        if (grown == NULL)
            return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory");
        scratch->blocks = grown;
        scratch->room = room;
    }
    if (size > SIZE_MAX)
        return openreg_error_set(OPENREG_E_NOMEM, call, "size overflows the address space");
    OPENREG_RETURN_NOT_OK(openreg_malloc(scratch->device, scratch->stream, size == 0 ? 1 : (size_t)size, out));
    scratch->blocks[scratch->count++] = *out;
    return OPENREG_OK;
}

static void *
take_workspace(const openreg_kernel_call *what, uint64_t size)
{
    scratch_list *const scratch = what->scratch;
    const openreg_current_call outer = openreg_current;
    void *block = NULL;
    const openreg_status status = take_block(scratch, size, &block);
    openreg_current = outer;
    openreg_error_begin_call(); /* the driver's error of mem_alloc() is not an error of the kernel */
    if (status == OPENREG_OK)
        return block;
    const openreg_error *const error = openreg_last_error();
    scratch->failure = status;
    scratch->vendor_code = error->vendor_code;
    openreg_text_copy(scratch->reason, sizeof scratch->reason, error->message);
    return NULL;
}

/* The kernel returned `status`: if it set no error for OPENREG_E_NOMEM, that of workspace() is used. */
static void
explain(const scratch_list *scratch, openreg_status status)
{
    openreg_status said;
    if (status == OPENREG_E_NOMEM && scratch->failure != OPENREG_OK && openreg_error_times_set(&said) == 0)
        openreg_host_services.set_error(openreg_host_services.ctx, status, scratch->vendor_code, scratch->reason);
}

/* Frees in the order of the stream: work that reuses the memory is queued behind the kernel's. Returns `status`, or if that
 * is OPENREG_OK the first error of its own. */
static openreg_status
give_back(scratch_list *scratch, openreg_status status)
{
    while (scratch->count > 0) {
        const openreg_error_fields before = openreg_error_save();
        const openreg_status freed = openreg_free(scratch->blocks[--scratch->count]);
        if (freed == OPENREG_OK)
            continue;
        if (status == OPENREG_OK || status == OPENREG_E_UNSUPPORTED)
            status = freed;
        else
            openreg_error_restore(&before);
    }
    free(scratch->blocks);
    return status;
}

openreg_status
openreg_kernel_run(const openreg_kernel *kernel, int32_t index, openreg_stream stream, openreg_kernel_call *what)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_kernel_run";
    openreg_device *device = NULL;
    if (kernel == NULL || !openreg_sized_is_valid(what, OPENREG_KERNEL_CALL_SIZE_1) || what->name == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "kernel or call is NULL, or the call is incomplete");
    OPENREG_RETURN_NOT_OK(openreg_device_get(call, index, &device));
    OPENREG_RETURN_NOT_OK(openreg_stream_resolve(device, call, stream, &what->stream));
    OPENREG_CAPTURE(.kind = OPENREG_CAPTURED_KERNEL, .call = what->name, .device = index, .stream = stream,
                    .kernel = kernel, .kernel_call = what);
    openreg_stream_is_used(device, what->name, stream);
    if (openreg_is_observed(OPENREG_OBSERVE_USES))
        OPENREG_RETURN_NOT_OK(openreg_intercepted_kernel(index, stream, what));
    what->dev = device->ordinal;
    what->kernel = kernel;
    scratch_list scratch;
    scratch.device = index;
    scratch.stream = stream;
    scratch.count = scratch.room = 0;
    scratch.blocks = NULL;
    scratch.failure = OPENREG_OK;
    what->workspace = take_workspace;
    what->scratch = &scratch;
    openreg_watched_span span;
    openreg_span_begin(&span, OPENREG_TRACE_KERNEL, call, what->name, device, stream, 0, OPENREG_HOST, OPENREG_HOST);
    openreg_span_queues(&span, what->stream);
    openreg_status status = OPENREG_E_DEVICE_LOST;
    if (openreg_device_is_lost(device)) {
        (void)openreg_call_lost(device, what->name);
    } else {
        openreg_call_begin(device, what->name);
        if (openreg_is_observed(OPENREG_OBSERVE_WORK)) {
            running_kernel running = {device->driver->instance, what};
            const openreg_work work = {call, what->name, index, what->stream, &openreg_host_services};
            status = openreg_intercepted_run(&work, run, &running);
        } else {
            status = kernel->run(device->driver->instance, what);
        }
        /* A refusal is a result, not an error: the caller has another way. */
        if (status != OPENREG_E_UNSUPPORTED) {
            explain(&scratch, status);
            status = openreg_call_end(device, what->name, status);
        }
    }
    status = give_back(&scratch, status);
    what->workspace = NULL;
    what->scratch = NULL;
    return openreg_span_end(&span, status);
}
