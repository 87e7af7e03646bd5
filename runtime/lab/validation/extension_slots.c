/* SPDX-License-Identifier: BSD-3-Clause */
/* extension_slots.c: the tables that extension() returns, checked (validated.h). Those of openreg.ipc, openreg.vmm,
 * openreg.schedule, openreg.kernels, openreg.comm (comm_slots.c) and openreg.graph (graph_slots.c) are replaced by tables of
 * the layer, which pass the driver its own instance. The runtime requests no others; for an unknown one the layer returns
 * NULL. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/sized_struct.h"
#include "driver/extensions.h"
#include "validation/validated.h"

static openreg_status
refuse_address(openreg_instance v, const char *slot, int32_t dev, const void *ptr)
{
    return openreg_validation_refuse(v, OPENREG_RULE_ALLOCATION_ALIVE, OPENREG_E_INVALID, slot,
                                     "%p is not live memory of device %d", ptr, dev);
}

/* ------------------------------------------------------------------------------------------------------------- ipc */

static openreg_status
validated_handle_size(openreg_instance v, uint32_t *out)
{
    static const char slot[] = "handle_size";
    const uint32_t poison = UINT32_C(0x5a5a5a5a);
    uint32_t size = poison;
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, atomic_load(&v->inner_ipc)->handle_size(v->instance, &size));
    openreg_validation_untouched(v, slot, status, &size, &poison, sizeof size);
    if (status == OPENREG_OK && (size == 0 || size > OPENREG_IPC_HANDLE_MAX))
        return openreg_validation_refuse(v, OPENREG_RULE_IPC_HANDLE, OPENREG_E_INTERNAL, slot, "it gave %u bytes",
                                         (unsigned)size);
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
    if (!openreg_ledger_find(v, ptr, &range) || range.start != (uintptr_t)ptr || range.dev != dev ||
        (range.kind != OPENREG_MADE_BY_MEM_ALLOC && range.kind != OPENREG_MADE_BY_RESERVE))
        return refuse_address(v, slot, dev, ptr);
    unsigned char before[OPENREG_IPC_HANDLE_MAX + 8], handle[OPENREG_IPC_HANDLE_MAX + 8];
    uint32_t size = 0;
    OPENREG_RETURN_NOT_OK(validated_handle_size(v, &size));
    memset(before, 0x5a, sizeof before);
    memcpy(handle, before, sizeof handle);
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(
        status, v, slot, atomic_load(&v->inner_ipc)->memory_export(v->instance, dev, ptr, processes, count, handle));
    openreg_validation_untouched(v, slot, status, handle, before, sizeof handle);
    if (memcmp(handle + size, before + size, sizeof handle - size) != 0)
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
    void *const poison = (void *)&poison;
    void *memory = poison;
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot,
                               atomic_load(&v->inner_ipc)->memory_open(v->instance, dev, handle, &memory));
    openreg_validation_untouched(v, slot, status, &memory, &poison, sizeof memory);
    if (status != OPENREG_OK) {
        openreg_ledger_give_up_room(v);
        return status;
    }
    memory = memory == poison ? NULL : memory;
    const openreg_ledger_range made = {
        .start = (uintptr_t)memory, .size = 1, .dev = dev, .kind = OPENREG_MADE_BY_MEMORY_OPEN};
    openreg_ledger_range other;
    if (memory == NULL)
        openreg_ledger_give_up_room(v);
    if (memory == NULL || !openreg_ledger_add(v, &made, &other))
        return openreg_validation_refuse(v, OPENREG_RULE_OPENED_MEMORY, OPENREG_E_INTERNAL, slot,
                                         "it returned %p, which isn't an address, or is live already", memory);
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
validated_close_memory(openreg_instance v, int32_t dev, void *ptr)
{
    static const char slot[] = "memory_close";
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (!openreg_ledger_remove(v, OPENREG_MADE_BY_MEMORY_OPEN, dev, ptr, &range))
        return refuse_address(v, slot, dev, ptr);
    openreg_validation_range_goes(v, slot, range.start);
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, atomic_load(&v->inner_ipc)->memory_close(v->instance, dev, ptr));
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

static openreg_status
validated_granularity(openreg_instance v, int32_t dev, uint64_t *out)
{
    static const char slot[] = "granularity";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    const uint64_t poison = UINT64_C(0x5a5a5a5a5a5a5a5a);
    uint64_t bytes = poison;
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, atomic_load(&v->inner_vmm)->granularity(v->instance, dev, &bytes));
    openreg_validation_untouched(v, slot, status, &bytes, &poison, sizeof bytes);
    if (status != OPENREG_OK)
        return status;
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
    void *const poison = (void *)&poison;
    void *start = poison;
    unsigned char *const mapped = calloc(size / step + 1, 1);
    openreg_status status = mapped != NULL ? OPENREG_OK : openreg_validation_no_memory();
    if (status == OPENREG_OK) {
        OPENREG_VALIDATED_FUNCTION(status, v, slot,
                                   atomic_load(&v->inner_vmm)->reserve(v->instance, dev, size, &start));
        openreg_validation_untouched(v, slot, status, &start, &poison, sizeof start);
    }
    start = start == poison ? NULL : start;
    const openreg_ledger_range made = {.start = (uintptr_t)start,
                                       .size = size,
                                       .dev = dev,
                                       .kind = OPENREG_MADE_BY_RESERVE,
                                       .mapped = mapped,
                                       .step = step};
    openreg_ledger_range other;
    if (status != OPENREG_OK || start == NULL || made.start % step != 0) {
        openreg_ledger_give_up_room(v);
        free(mapped);
        return status != OPENREG_OK ? status
                                    : openreg_validation_refuse(v, OPENREG_RULE_RESERVATION, OPENREG_E_INTERNAL, slot,
                                                                "it returned %p, which isn't a multiple of %llu bytes",
                                                                start, (unsigned long long)step);
    }
    if (!openreg_ledger_add(v, &made, &other)) {
        free(mapped);
        return openreg_validation_refuse(v, OPENREG_RULE_NO_OVERLAP, OPENREG_E_INTERNAL, slot,
                                         "it gave %llu bytes at %p, where %llu bytes of device %d at %p are live",
                                         (unsigned long long)size, start, (unsigned long long)other.size, other.dev,
                                         (void *)other.start);
    }
    *out = start;
    return OPENREG_OK;
}

static openreg_status
check_reservation(openreg_instance v, const char *slot, int32_t dev, void *ptr)
{
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    return !openreg_ledger_find(v, ptr, &range) || range.start != (uintptr_t)ptr || range.dev != dev ||
                   range.kind != OPENREG_MADE_BY_RESERVE
               ? refuse_address(v, slot, dev, ptr)
               : OPENREG_OK;
}

/* After the call the books follow the driver, which must have refused calls that contradict them. */
static void
note_mapped(openreg_instance v, const char *slot, void *ptr, uint64_t offset, uint64_t size, int mapped)
{
    if (!openreg_ledger_set_mapped(v, ptr, offset, size, mapped))
        openreg_validation_report(v, OPENREG_RULE_MAPPED, slot, "it accepted %llu bytes at %llu of the reservation %p",
                                  (unsigned long long)size, (unsigned long long)offset, ptr);
}

static openreg_status
validated_map(openreg_instance v, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    static const char slot[] = "map";
    OPENREG_RETURN_NOT_OK(check_reservation(v, slot, dev, ptr));
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, atomic_load(&v->inner_vmm)->map(v->instance, dev, ptr, offset, size));
    if (status == OPENREG_OK)
        note_mapped(v, slot, ptr, offset, size, 1);
    return status;
}

static openreg_status
validated_unmap(openreg_instance v, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    static const char slot[] = "unmap";
    OPENREG_RETURN_NOT_OK(check_reservation(v, slot, dev, ptr));
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, atomic_load(&v->inner_vmm)->unmap(v->instance, dev, ptr, offset, size));
    if (status == OPENREG_OK)
        note_mapped(v, slot, ptr, offset, size, 0);
    return status;
}

static openreg_status
validated_release(openreg_instance v, int32_t dev, void *ptr)
{
    static const char slot[] = "release";
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (!openreg_ledger_remove(v, OPENREG_MADE_BY_RESERVE, dev, ptr, &range))
        return refuse_address(v, slot, dev, ptr);
    openreg_validation_range_goes(v, slot, range.start);
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot, atomic_load(&v->inner_vmm)->release(v->instance, dev, ptr));
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

static openreg_status
validated_poison(openreg_instance v, int32_t dev, openreg_driver_stream stream, void *ptr, uint64_t size)
{
    static const char slot[] = "poison";
    openreg_ledger_range range;
    openreg_handle *entry = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (!openreg_ledger_find(v, ptr, &range) || range.dev != dev || !openreg_ledger_holds(v, ptr, size))
        return refuse_address(v, slot, dev, ptr);
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &entry, &state));
    atomic_fetch_add_explicit(&state->queued, 1, memory_order_relaxed);
    openreg_status status;
    OPENREG_VALIDATED_FUNCTION(status, v, slot,
                               atomic_load(&v->inner_schedule)->poison(v->instance, dev, stream, ptr, size));
    openreg_handle_release(v, entry);
    return status;
}

static const openreg_schedule schedule_table = {
    .struct_size = sizeof(openreg_schedule),
    .version = OPENREG_SCHEDULE_VERSION,
    .poison = validated_poison,
};

/* --------------------------------------------------------------------------------------------------------- kernels */

static const openreg_kernel *
kernel_at(const openreg_kernels *kernels, uint64_t i)
{
    return (const openreg_kernel *)((const char *)kernels->list + i * kernels->kernel_size);
}

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
    openreg_handle *entry = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, what->name, what->dev, what->stream, &entry, &state));
    /* The driver gets its own entry. */
    const uint64_t index = (uint64_t)((const char *)what->kernel - (const char *)v->kernels->list) /
                           v->kernels->kernel_size;
    union {
        openreg_kernel_call call;
        unsigned char bytes[512]; /* including functions that a later version appends */
    } copy;
    const uint32_t size = what->struct_size < sizeof copy ? what->struct_size : (uint32_t)sizeof copy;
    memcpy(&copy, what, size);
    copy.call.struct_size = size;
    copy.call.kernel = kernel_at(v->inner_kernels, index);
    atomic_fetch_add(&state->queued, 1);
    capture_values(v, state, copy.call.arguments, copy.call.argument_count);
    capture_values(v, state, copy.call.results, copy.call.result_count);
    const openreg_call_span span = openreg_validation_begin(v, what->name);
    const openreg_status status = copy.call.kernel->run(v->instance, &copy.call);
    openreg_validation_end(v, what->name, span, status, 1);
    openreg_handle_release(v, entry);
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

static int
is_fit(openreg_instance v, const openreg_extension *what, const void *table)
{
    char why[160];
    const int fits = openreg_extension_is_fit(what, table, why, sizeof why);
    if (!fits)
        openreg_validation_report(v, OPENREG_RULE_EXTENSION_TABLE, "extension", "%s", why);
    return fits;
}

static const void *
wrap(openreg_instance v, const char *name, const void *table)
{
    /* The runtime refuses an unfit table, with a reason. */
    if (strcmp(name, OPENREG_IPC_NAME) == 0) {
        if (!is_fit(v, &openreg_extension_ipc, table))
            return table;
        atomic_store(&v->inner_ipc, table);
        return &ipc_table;
    }
    if (strcmp(name, OPENREG_VMM_NAME) == 0) {
        if (!is_fit(v, &openreg_extension_vmm, table))
            return table;
        atomic_store(&v->inner_vmm, table);
        return &vmm_table;
    }
    if (strcmp(name, OPENREG_SCHEDULE_NAME) == 0) {
        if (!is_fit(v, &openreg_extension_schedule, table))
            return table;
        atomic_store(&v->inner_schedule, table);
        return &schedule_table;
    }
    if (strcmp(name, OPENREG_COMM_NAME) == 0) {
        if (!is_fit(v, &openreg_extension_comm, table))
            return table;
        atomic_store(&v->inner_comm, table);
        return &openreg_validated_comm;
    }
    if (strcmp(name, OPENREG_KERNELS_NAME) == 0)
        return wrap_kernels(v, table);
    if (strcmp(name, OPENREG_GRAPH_NAME) == 0)
        return is_fit(v, &openreg_extension_graph, table) ? openreg_validation_graph(v, table) : table;
    openreg_log(OPENREG_LOG_WARNING, "driver \"%s\": its table %s is not used with OPENREG_VALIDATE", v->name, name);
    return NULL;
}

static const void *
validated_extension(openreg_instance v, const char *name, uint32_t version)
{
    static const char slot[] = "extension";
    const openreg_call_span span = openreg_validation_begin(v, slot);
    const void *const table = v->inner.extension(v->instance, name, version);
    openreg_validation_end(v, slot, span, OPENREG_OK, 0);
    if (table == NULL)
        return NULL;
    return wrap(v, name, table);
}

void
openreg_validation_wrap_extensions(openreg_driver *table)
{
    if (table->extension != NULL)
        table->extension = validated_extension;
}
