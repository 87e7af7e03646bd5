/* SPDX-License-Identifier: BSD-3-Clause */
/* copy_slots.c: copies and fills, checked (validated.h). */
#include "base/error.h"
#include "validation/validated.h"

openreg_status
openreg_validation_range(openreg_instance v, const char *slot, const void *ptr, int32_t dev, uint64_t size,
                         const char *what)
{
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    openreg_ledger_range range;
    const int is_found = openreg_ledger_find(v, ptr, &range);
    if (!is_found || (range.kind == OPENREG_MADE_BY_MEMORY_OPEN && range.dev != dev)) {
        openreg_validation_report(v, OPENREG_RULE_ALLOCATION_ALIVE, slot, "%s %p is in no allocation of device %d",
                                  what, ptr, dev);
        return OPENREG_OK;
    }
    if (range.dev != dev)
        return openreg_validation_refuse(v, OPENREG_RULE_ALLOCATION_ALIVE, OPENREG_E_INVALID, slot,
                                         "%s %p is memory of device %d (-1: the host), not of device %d", what, ptr,
                                         range.dev, dev);
    if (range.kind != OPENREG_MADE_BY_MEMORY_OPEN && !openreg_ledger_holds(v, ptr, size))
        return openreg_validation_refuse(v, OPENREG_RULE_ALLOCATION_ALIVE, OPENREG_E_INVALID, slot,
                                         "%llu bytes at %s %p end beyond its allocation of %llu bytes at %p",
                                         (unsigned long long)size, what, ptr, (unsigned long long)range.size,
                                         (void *)range.start);
    return OPENREG_OK;
}

static openreg_status
check_copy(openreg_instance v, const void *dst, int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size)
{
    static const char slot[] = "copy";
    if (dst_dev == -1 && src_dev == -1)
        openreg_validation_report(v, OPENREG_RULE_COPY_HOST, slot, "both devices are -1");
    if (size == 0)
        return OPENREG_OK;
    if (dst_dev != -1)
        OPENREG_RETURN_NOT_OK(openreg_validation_range(v, slot, dst, dst_dev, size, "the destination"));
    if (src_dev != -1)
        OPENREG_RETURN_NOT_OK(openreg_validation_range(v, slot, src, src_dev, size, "the source"));
    const uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
    if (dst_dev == src_dev && to < from + size && from < to + size)
        openreg_validation_report(v, OPENREG_RULE_COPY_OVERLAP, slot, "%llu bytes from %p to %p overlap",
                                  (unsigned long long)size, src, dst);
    return OPENREG_OK;
}

static openreg_status
validated_copy(openreg_instance v, int32_t stream_dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
               const void *src, int32_t src_dev, uint64_t size)
{
    openreg_handle *entry = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(check_copy(v, dst, dst_dev, src, src_dev, size));
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, "copy", stream_dev, stream, &entry, &state));
    openreg_status status;
    atomic_fetch_add_explicit(&state->queued, 1, memory_order_relaxed);
    if (size > 0) {
        openreg_validation_capture_range(v, state, dst);
        openreg_validation_capture_range(v, state, src);
    }
    OPENREG_VALIDATED_CALL(status, v, copy, (v->instance, stream_dev, stream, dst, dst_dev, src, src_dev, size));
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_fill(openreg_instance v, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value, uint64_t size)
{
    openreg_handle *entry = NULL;
    openreg_stream_state *state = NULL;
    if (size > 0)
        OPENREG_RETURN_NOT_OK(openreg_validation_range(v, "fill", dst, dev, size, "the destination"));
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, "fill", dev, stream, &entry, &state));
    openreg_status status;
    atomic_fetch_add_explicit(&state->queued, 1, memory_order_relaxed);
    if (size > 0)
        openreg_validation_capture_range(v, state, dst);
    OPENREG_VALIDATED_CALL(status, v, fill, (v->instance, dev, stream, dst, value, size));
    openreg_handle_release(v, entry);
    return status;
}

void
openreg_validation_wrap_copies(openreg_driver *table)
{
    table->copy = validated_copy;
    OPENREG_VALIDATED_SLOT(table, fill);
}
