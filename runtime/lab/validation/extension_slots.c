/* SPDX-License-Identifier: BSD-3-Clause */
/* extension_slots.c: the tables that extension() returns, checked (validated.h). Those of openreg.ipc, openreg.vmm,
 * openreg.schedule, openreg.kernels, openreg.comm (comm_slots.c) and openreg.graph (graph_slots.c) are replaced by tables of
 * the layer, which pass the driver its own instance. The runtime requests no others; for an unknown one the layer returns
 * NULL. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "driver/extensions.h"
#include "validation/validated.h"

static openreg_status
refuse_address(openreg_instance v, const char *slot, int32_t dev, const void *ptr)
{
    return openreg_validation_refuse(v, OPENREG_RULE_ALLOCATION_ALIVE, OPENREG_E_INVALID, slot,
                                     "%p is not live memory of device %d", ptr, dev);
}

static bool
begins_at(openreg_instance v, int32_t dev, const void *ptr, openreg_ledger_range *out)
{
    return openreg_ledger_find(v, ptr, out) && out->start == (uintptr_t)ptr && out->dev == dev;
}

/* ------------------------------------------------------------------------------------------------------------- ipc */

#define IPC(v) ((const openreg_ipc *)atomic_load(&(v)->extensions[OPENREG_WRAPPED_IPC]))

static openreg_status
validated_handle_size(openreg_instance v, uint32_t *out)
{
    uint32_t size;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, IPC(v), handle_size, size, &size);
    if (status == OPENREG_OK && (size == 0 || size > OPENREG_IPC_HANDLE_MAX))
        return openreg_validation_refuse(v, OPENREG_RULE_IPC_HANDLE, OPENREG_E_INTERNAL, "handle_size",
                                         "it gave %u bytes", (unsigned)size);
    if (status == OPENREG_OK)
        *out = size;
    return status;
}

static openreg_status
validated_export(openreg_instance v, int32_t dev, void *ptr, const int32_t *processes, uint32_t count, void *out)
{
    static const char slot[] = "memory_export";
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (!begins_at(v, dev, ptr, &range) ||
        (range.kind != OPENREG_MADE_BY_MEM_ALLOC && range.kind != OPENREG_MADE_BY_RESERVE))
        return refuse_address(v, slot, dev, ptr);
    unsigned char handle[OPENREG_IPC_HANDLE_MAX + 8];
    uint32_t size = 0;
    OPENREG_RETURN_NOT_OK(validated_handle_size(v, &size));
    const openreg_status status = OPENREG_VALIDATED_OUT(v, IPC(v), memory_export, handle, dev, ptr, processes, count,
                                                        handle);
    if (!openreg_validation_is_unwritten(handle + size, sizeof handle - size))
        openreg_validation_report(v, OPENREG_RULE_IPC_HANDLE, slot, "it wrote beyond the %u bytes of a handle",
                                  (unsigned)size);
    if (status == OPENREG_OK)
        memcpy(out, handle, size);
    return status;
}

static openreg_status
validated_open_memory(openreg_instance v, int32_t dev, const void *handle, void **out)
{
    static const char slot[] = "memory_open";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    OPENREG_RETURN_NOT_OK(openreg_ledger_make_room(v));
    void *memory;
    openreg_status status = OPENREG_VALIDATED_OUT(v, IPC(v), memory_open, memory, dev, handle, &memory);
    const openreg_ledger_range made = {
        .start = openreg_written_address(memory), .size = 1, .dev = dev, .kind = OPENREG_MADE_BY_MEMORY_OPEN};
    if (status == OPENREG_OK && made.start == 0)
        status = openreg_validation_refuse(v, OPENREG_RULE_OPENED_MEMORY, OPENREG_E_INTERNAL, slot,
                                           "it returned OK without an address");
    OPENREG_RETURN_NOT_OK(openreg_ledger_made(v, slot, status, &made));
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
validated_close_memory(openreg_instance v, int32_t dev, void *ptr)
{
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(
        openreg_ledger_begin_remove(v, "memory_close", OPENREG_MADE_BY_MEMORY_OPEN, dev, ptr, &range));
    const openreg_status status = OPENREG_VALIDATED(v, IPC(v), memory_close, dev, ptr);
    return openreg_ledger_end_remove(v, status, &range);
}

static const openreg_ipc ipc_table = {
    .struct_size = sizeof(openreg_ipc),
    .version = OPENREG_IPC_VERSION,
    .handle_size = validated_handle_size,
    .memory_export = validated_export,
    .memory_open = validated_open_memory,
    .memory_close = validated_close_memory,
};

/* ------------------------------------------------------------------------------------------------------------- vmm */

#define VMM(v) ((const openreg_vmm *)atomic_load(&(v)->extensions[OPENREG_WRAPPED_VMM]))

static openreg_status
validated_granularity(openreg_instance v, int32_t dev, uint64_t *out)
{
    static const char slot[] = "granularity";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    uint64_t bytes;
    OPENREG_RETURN_NOT_OK(OPENREG_VALIDATED_OUT(v, VMM(v), granularity, bytes, dev, &bytes));
    const uint64_t before = atomic_exchange(&v->devices[dev].granularity, bytes);
    if (bytes == 0 || (bytes & (bytes - 1)) != 0 || (before != 0 && before != bytes))
        return openreg_validation_refuse(v, OPENREG_RULE_GRANULARITY, OPENREG_E_INTERNAL, slot,
                                         "it gave %llu bytes, and %llu before", (unsigned long long)bytes,
                                         (unsigned long long)before);
    *out = bytes;
    return OPENREG_OK;
}

static openreg_status
validated_reserve(openreg_instance v, int32_t dev, uint64_t size, void **out)
{
    static const char slot[] = "reserve";
    uint64_t step = 0;
    OPENREG_RETURN_NOT_OK(validated_granularity(v, dev, &step));
    OPENREG_RETURN_NOT_OK(openreg_ledger_make_room(v));
    void *start = NULL;
    unsigned char *const mapped = calloc(size / step + 1, 1);
    openreg_status status = mapped == NULL ? openreg_validation_no_memory()
                                           : OPENREG_VALIDATED_OUT(v, VMM(v), reserve, start, dev, size, &start);
    const openreg_ledger_range made = {.start = openreg_written_address(start),
                                       .size = size,
                                       .dev = dev,
                                       .kind = OPENREG_MADE_BY_RESERVE,
                                       .mapped = mapped,
                                       .step = step};
    if (status == OPENREG_OK && (made.start == 0 || made.start % step != 0))
        status = openreg_validation_refuse(v, OPENREG_RULE_RESERVATION, OPENREG_E_INTERNAL, slot,
                                           "it returned %p, which isn't a multiple of %llu bytes", (void *)made.start,
                                           (unsigned long long)step);
    status = openreg_ledger_made(v, slot, status, &made);
    if (status == OPENREG_OK)
        *out = start;
    else
        free(mapped);
    return status;
}

/* Before map() or unmap(). */
static openreg_status
check_reservation(openreg_instance v, const char *slot, int32_t dev, void *ptr)
{
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    return begins_at(v, dev, ptr, &range) && range.kind == OPENREG_MADE_BY_RESERVE ? OPENREG_OK
                                                                                   : refuse_address(v, slot, dev, ptr);
}

/* After it: the books follow the driver, which must have refused calls that contradict them. Returns `status`. */
static openreg_status
note_mapped(openreg_instance v, const char *slot, openreg_status status, void *ptr, uint64_t offset, uint64_t size,
            int mapped)
{
    if (status == OPENREG_OK && !openreg_ledger_set_mapped(v, ptr, offset, size, mapped))
        openreg_validation_report(v, OPENREG_RULE_MAPPED, slot, "it accepted %llu bytes at %llu of the reservation %p",
                                  (unsigned long long)size, (unsigned long long)offset, ptr);
    return status;
}

static openreg_status
validated_map(openreg_instance v, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    OPENREG_RETURN_NOT_OK(check_reservation(v, "map", dev, ptr));
    return note_mapped(v, "map", OPENREG_VALIDATED(v, VMM(v), map, dev, ptr, offset, size), ptr, offset, size, 1);
}

static openreg_status
validated_unmap(openreg_instance v, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    OPENREG_RETURN_NOT_OK(check_reservation(v, "unmap", dev, ptr));
    return note_mapped(v, "unmap", OPENREG_VALIDATED(v, VMM(v), unmap, dev, ptr, offset, size), ptr, offset, size, 0);
}

static openreg_status
validated_release(openreg_instance v, int32_t dev, void *ptr)
{
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(openreg_ledger_begin_remove(v, "release", OPENREG_MADE_BY_RESERVE, dev, ptr, &range));
    const openreg_status status = OPENREG_VALIDATED(v, VMM(v), release, dev, ptr);
    return openreg_ledger_end_remove(v, status, &range);
}

static const openreg_vmm vmm_table = {
    .struct_size = sizeof(openreg_vmm),
    .version = OPENREG_VMM_VERSION,
    .granularity = validated_granularity,
    .reserve = validated_reserve,
    .map = validated_map,
    .unmap = validated_unmap,
    .release = validated_release,
};

/* ---------------------------------------------------------------------------------------------------------- schedule */

#define SCHEDULE(v) ((const openreg_schedule *)atomic_load(&(v)->extensions[OPENREG_WRAPPED_SCHEDULE]))

static openreg_status
validated_poison(openreg_instance v, int32_t dev, openreg_driver_stream stream, void *ptr, uint64_t size)
{
    static const char slot[] = "poison";
    openreg_ledger_range range;
    openreg_handle *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (!openreg_ledger_find(v, ptr, &range) || range.dev != dev || !openreg_ledger_holds(v, ptr, size))
        return refuse_address(v, slot, dev, ptr);
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on));
    atomic_fetch_add(&on->stream->queued, 1);
    const openreg_status status = OPENREG_VALIDATED(v, SCHEDULE(v), poison, dev, stream, ptr, size);
    openreg_handle_release(v, on);
    return status;
}

static const openreg_schedule schedule_table = {
    .struct_size = sizeof(openreg_schedule),
    .version = OPENREG_SCHEDULE_VERSION,
    .poison = validated_poison,
};

/* --------------------------------------------------------------------------------------------------------- kernels */

/* The memory of tensors that a kernel is given. */
static void
capture_values(openreg_instance v, const openreg_stream_state *state, const openreg_value *const *values,
               uint64_t count)
{
    for (uint64_t i = 0; i < count; ++i) {
        if (values[i]->tensor != NULL)
            openreg_validation_capture_range(v, state, values[i]->tensor->data);
        for (uint64_t k = 0; values[i]->tensors != NULL && k < values[i]->count; ++k)
            if (values[i]->tensors[k] != NULL)
                openreg_validation_capture_range(v, state, values[i]->tensors[k]->data);
    }
}

static openreg_status
validated_run(openreg_instance v, const openreg_kernel_call *what)
{
    openreg_handle *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, what->name, what->dev, what->stream, &on));
    /* The driver gets its own entry, which is at the same place of its list. */
    const ptrdiff_t place = (const char *)what->kernel - (const char *)v->kernels->list;
    union {
        openreg_kernel_call call;
        unsigned char bytes[512]; /* including functions that a later version appends */
    } copy;
    const uint32_t size = what->struct_size < sizeof copy ? what->struct_size : (uint32_t)sizeof copy;
    memcpy(&copy, what, size);
    copy.call.struct_size = size;
    copy.call.kernel = (const openreg_kernel *)((const char *)v->inner_kernels->list + place);
    atomic_fetch_add(&on->stream->queued, 1);
    capture_values(v, on->stream, copy.call.arguments, copy.call.argument_count);
    capture_values(v, on->stream, copy.call.results, copy.call.result_count);
    const openreg_call_span span = openreg_validation_begin(v, what->name, NULL, 0);
    const openreg_status status = openreg_validation_end(v, what->name, span,
                                                         copy.call.kernel->run(v->instance, &copy.call), 1);
    openreg_handle_release(v, on);
    return status;
}

/* A copy of the driver's list with the layer's function in each entry; NULL: host memory is short. */
static openreg_kernels *
copy_kernels(const openreg_kernels *kernels)
{
    openreg_kernels *const copy = malloc(sizeof *copy);
    const size_t bytes = (size_t)kernels->count * kernels->kernel_size;
    char *const list = malloc(bytes + 1);
    if (copy == NULL || list == NULL) {
        free(copy);
        free(list);
        return NULL;
    }
    memcpy(list, kernels->list, bytes);
    for (uint64_t i = 0; i < kernels->count; ++i) {
        openreg_kernel *const entry = (openreg_kernel *)(void *)(list + i * kernels->kernel_size);
        if (entry->run != NULL)
            entry->run = validated_run;
    }
    *copy = (openreg_kernels){.struct_size = sizeof *copy,
                              .version = OPENREG_KERNELS_VERSION,
                              .kernel_size = kernels->kernel_size,
                              .count = kernels->count,
                              .list = (const openreg_kernel *)(void *)list};
    return copy;
}

/* The table for the runtime in place of the driver's; the driver's own if the runtime would refuse it, with a reason. */
static const void *
wrap_kernels(openreg_instance v, const openreg_kernels *kernels)
{
    if (kernels->struct_size < OPENREG_KERNELS_SIZE_1 || kernels->kernel_size < OPENREG_KERNEL_SIZE_1 ||
        kernels->kernel_size % sizeof(void *) != 0 || kernels->count == 0 || kernels->list == NULL)
        return kernels;
    openreg_lock_acquire(&v->lock);
    if (v->kernels == NULL) {
        v->inner_kernels = kernels;
        v->kernels = copy_kernels(kernels);
    }
    openreg_lock_release(&v->lock);
    if (v->kernels == NULL)
        openreg_log(OPENREG_LOG_WARNING, "driver \"%s\": no host memory to check its kernels: not used", v->name);
    return v->kernels;
}

/* ------------------------------------------------------------------------------------------------------- extension() */

/* The driver's extensions, and the runtime's tables in their place. */
static const struct {
    const openreg_extension *what;
    const void *table; /* NULL: that of openreg_validation_graph() */
} wrapped[OPENREG_WRAPPED_COUNT] = {
    [OPENREG_WRAPPED_IPC] = {&openreg_extension_ipc, &ipc_table},
    [OPENREG_WRAPPED_VMM] = {&openreg_extension_vmm, &vmm_table},
    [OPENREG_WRAPPED_SCHEDULE] = {&openreg_extension_schedule, &schedule_table},
    [OPENREG_WRAPPED_COMM] = {&openreg_extension_comm, &openreg_validated_comm},
    [OPENREG_WRAPPED_GRAPH] = {&openreg_extension_graph, NULL},
};

static const void *
wrap(openreg_instance v, const char *name, const void *table)
{
    char why[160];
    if (strcmp(name, OPENREG_KERNELS_NAME) == 0)
        return wrap_kernels(v, table);
    size_t i = 0;
    while (i < OPENREG_WRAPPED_COUNT && strcmp(name, wrapped[i].what->name) != 0)
        ++i;
    if (i == OPENREG_WRAPPED_COUNT) {
        openreg_log(OPENREG_LOG_WARNING, "driver \"%s\": its table %s is not used with OPENREG_VALIDATE", v->name,
                    name);
        return NULL;
    }
    if (!openreg_extension_is_fit(wrapped[i].what, table, why, sizeof why)) {
        openreg_validation_report(v, OPENREG_RULE_EXTENSION_TABLE, "extension", "%s", why);
        return table; /* the runtime refuses it, with a reason */
    }
    if (wrapped[i].table == NULL)
        return openreg_validation_graph(v, table);
    atomic_store(&v->extensions[i], table);
    return wrapped[i].table;
}

static const void *
validated_extension(openreg_instance v, const char *name, uint32_t version)
{
    static const char slot[] = "extension";
    const openreg_call_span span = openreg_validation_begin(v, slot, NULL, 0);
    const void *const table = v->inner.extension(v->instance, name, version);
    (void)openreg_validation_end(v, slot, span, OPENREG_OK, 0);
    return table == NULL ? NULL : wrap(v, name, table);
}

void
openreg_validation_wrap_extensions(openreg_driver *table)
{
    OPENREG_VALIDATED_SLOT(table, extension);
}
