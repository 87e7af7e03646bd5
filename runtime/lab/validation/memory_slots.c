/* SPDX-License-Identifier: BSD-3-Clause */
/* memory_slots.c: device memory, pinned memory, copies and fills, checked (validated.h). */
#include "base/error.h"
#include "validation/validated.h"

#define LEAST_ALIGNMENT 16u /* malloc()'s */

/* `slot` has returned `status` and memory, for which room was made. NULL and misaligned addresses are refused by the
 * runtime. */
static openreg_status
enter(openreg_instance v, const char *slot, openreg_rule rule, openreg_status status, const openreg_ledger_range *made,
      uint64_t alignment, void **out)
{
    if (status == OPENREG_OK && made->start == 0)
        openreg_validation_report(v, rule, slot, "it returned OK with a NULL pointer");
    if (status == OPENREG_OK && made->start % alignment != 0)
        openreg_validation_report(v, rule, slot, "it returned the address %p, which isn't a multiple of %llu",
                                  (void *)made->start, (unsigned long long)alignment);
    OPENREG_RETURN_NOT_OK(openreg_ledger_made(v, slot, status, made));
    *out = (void *)made->start;
    return OPENREG_OK;
}

static openreg_status
validated_mem_alloc(openreg_instance v, int32_t dev, const openreg_alloc_info *info, void **out)
{
    static const char slot[] = "mem_alloc";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (info->size == 0)
        openreg_validation_report(v, OPENREG_RULE_SIZE_NOT_ZERO, slot, "0 bytes were requested");
    OPENREG_RETURN_NOT_OK(openreg_ledger_make_room(v));
    void *memory;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, &v->inner, mem_alloc, memory, dev, info, &memory);
    const uint64_t least = v->devices[dev].info.min_alignment;
    const openreg_ledger_range made = {
        .start = openreg_written_address(memory), .size = info->size, .dev = dev, .kind = OPENREG_MADE_BY_MEM_ALLOC};
    return enter(v, slot, OPENREG_RULE_ALIGNMENT, status, &made, least == 0 ? LEAST_ALIGNMENT : least, out);
}

static openreg_status
validated_mem_free(openreg_instance v, int32_t dev, void *ptr)
{
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(openreg_ledger_begin_remove(v, "mem_free", OPENREG_MADE_BY_MEM_ALLOC, dev, ptr, &range));
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, mem_free, dev, ptr);
    return openreg_ledger_end_remove(v, status, &range);
}

static openreg_status
validated_host_alloc(openreg_instance v, int32_t dev, const openreg_alloc_info *info, void **out)
{
    static const char slot[] = "host_alloc";
    if (info->size == 0)
        openreg_validation_report(v, OPENREG_RULE_HOST_MEMORY, slot, "0 bytes were requested");
    OPENREG_RETURN_NOT_OK(openreg_ledger_make_room(v));
    void *memory;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, &v->inner, host_alloc, memory, dev, info, &memory);
    const openreg_ledger_range made = {
        .start = openreg_written_address(memory), .size = info->size, .dev = -1, .kind = OPENREG_MADE_BY_HOST_ALLOC};
    return enter(v, slot, OPENREG_RULE_HOST_MEMORY, status, &made, LEAST_ALIGNMENT, out);
}

static openreg_status
validated_host_free(openreg_instance v, int32_t dev, void *ptr)
{
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(openreg_ledger_begin_remove(v, "host_free", OPENREG_MADE_BY_HOST_ALLOC, -1, ptr, &range));
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, host_free, dev, ptr);
    return openreg_ledger_end_remove(v, status, &range);
}

static openreg_status
validated_host_alias(openreg_instance v, int32_t dev, void *ptr, void **out)
{
    static const char slot[] = "host_alias";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    openreg_ledger_range range;
    const int is_known = openreg_ledger_find(v, ptr, &range) && range.dev == dev;
    if (!is_known)
        openreg_validation_report(v, OPENREG_RULE_ALLOCATION_ALIVE, slot, "%p is in no allocation of device %d", ptr,
                                  dev);
    void *alias;
    OPENREG_RETURN_NOT_OK(OPENREG_VALIDATED_OUT(v, &v->inner, host_alias, alias, dev, ptr, &alias));
    alias = (void *)openreg_written_address(alias);
    const uintptr_t distance = (uintptr_t)alias - (uintptr_t)ptr;
    if (alias == NULL) /* which the runtime refuses */
        openreg_validation_report(v, OPENREG_RULE_ALIAS_DISTANCE, slot, "it returned OK with a NULL address");
    else if (is_known && range.has_distance && distance != range.distance)
        return openreg_validation_refuse(v, OPENREG_RULE_ALIAS_DISTANCE, OPENREG_E_INTERNAL, slot,
                                         "it gave %p for %p, and another distance before in the same allocation", alias,
                                         ptr);
    else if (is_known)
        openreg_ledger_set_distance(v, (void *)range.start, distance);
    *out = alias;
    return OPENREG_OK;
}

static openreg_status
validated_mem_info(openreg_instance v, int32_t dev, uint64_t *free_bytes, uint64_t *total)
{
    static const char slot[] = "mem_info";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    uint64_t now[2];
    OPENREG_RETURN_NOT_OK(OPENREG_VALIDATED_OUT(v, &v->inner, mem_info, now, dev, &now[0], &now[1]));
    if (now[0] > now[1] || openreg_validation_is_unwritten(&now[1], sizeof now[1]))
        openreg_validation_report(v, OPENREG_RULE_MEMORY_INFO, slot, "it gave %llu free bytes of %llu",
                                  (unsigned long long)now[0], (unsigned long long)now[1]);
    *free_bytes = now[0];
    *total = now[1];
    return OPENREG_OK;
}

/* ---------------------------------------------------------------------------------------------------------- copies */

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
    openreg_handle *on = NULL;
    OPENREG_RETURN_NOT_OK(check_copy(v, dst, dst_dev, src, src_dev, size));
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, "copy", stream_dev, stream, &on));
    atomic_fetch_add(&on->stream->queued, 1);
    if (size > 0) {
        openreg_validation_capture_range(v, on->stream, dst);
        openreg_validation_capture_range(v, on->stream, src);
    }
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, copy, stream_dev, stream, dst, dst_dev, src, src_dev,
                                                    size);
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_fill(openreg_instance v, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value, uint64_t size)
{
    openreg_handle *on = NULL;
    if (size > 0)
        OPENREG_RETURN_NOT_OK(openreg_validation_range(v, "fill", dst, dev, size, "the destination"));
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, "fill", dev, stream, &on));
    atomic_fetch_add(&on->stream->queued, 1);
    if (size > 0)
        openreg_validation_capture_range(v, on->stream, dst);
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, fill, dev, stream, dst, value, size);
    openreg_handle_release(v, on);
    return status;
}

void
openreg_validation_wrap_memory(openreg_driver *table)
{
    OPENREG_VALIDATED_SLOT(table, mem_alloc);
    OPENREG_VALIDATED_SLOT(table, mem_free);
    OPENREG_VALIDATED_SLOT(table, host_alloc);
    OPENREG_VALIDATED_SLOT(table, host_free);
    OPENREG_VALIDATED_SLOT(table, host_alias);
    OPENREG_VALIDATED_SLOT(table, mem_info);
    OPENREG_VALIDATED_SLOT(table, copy);
    OPENREG_VALIDATED_SLOT(table, fill);
}
