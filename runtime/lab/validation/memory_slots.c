/* SPDX-License-Identifier: BSD-3-Clause */
/* memory_slots.c: device memory and pinned memory, checked (validated.h). */
#include <string.h>

#include "base/error.h"
#include "validation/validated.h"

#define LEAST_ALIGNMENT 16u /* malloc()'s */

/* Adds memory from a function that has returned `status`, for which room was made. Overlapping memory is refused: its use would
 * destroy other memory. NULL and misaligned addresses are refused by the runtime. */
static openreg_status
enter(openreg_instance v, const char *slot, openreg_rule rule, openreg_status status, const openreg_ledger_range *made,
      uint64_t alignment)
{
    openreg_ledger_range other;
    void *const address = (void *)made->start;
    if (status != OPENREG_OK || address == NULL)
        openreg_ledger_give_up_room(v);
    OPENREG_RETURN_NOT_OK(status);
    if (address == NULL) {
        openreg_validation_report(v, rule, slot, "it returned OK with a NULL pointer");
        return OPENREG_OK;
    }
    if (made->start % alignment != 0)
        openreg_validation_report(v, rule, slot, "it returned the address %p, which isn't a multiple of %llu", address,
                                  (unsigned long long)alignment);
    if (openreg_ledger_add(v, made, &other))
        return OPENREG_OK;
    return openreg_validation_refuse(v, OPENREG_RULE_NO_OVERLAP, OPENREG_E_INTERNAL, slot,
                                     "it gave %llu bytes at %p, where %llu bytes of device %d at %p are live",
                                     (unsigned long long)made->size, address, (unsigned long long)other.size, other.dev,
                                     (void *)other.start);
}

static openreg_status
validated_mem_alloc(openreg_instance v, int32_t dev, const openreg_alloc_info *info, void **out)
{
    static const char slot[] = "mem_alloc";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (info->size == 0)
        openreg_validation_report(v, OPENREG_RULE_SIZE_NOT_ZERO, slot, "0 bytes were requested");
    OPENREG_RETURN_NOT_OK(openreg_ledger_make_room(v));
    void *const poison = (void *)&poison;
    void *memory = poison;
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, mem_alloc, (v->instance, dev, info, &memory));
    openreg_validation_untouched(v, slot, status, &memory, &poison, sizeof memory);
    const uint64_t least = v->devices[dev].info.min_alignment;
    memory = memory == poison ? NULL : memory;
    const openreg_ledger_range made = {
        .start = (uintptr_t)memory, .size = info->size, .dev = dev, .kind = OPENREG_MADE_BY_MEM_ALLOC};
    OPENREG_RETURN_NOT_OK(enter(v, slot, OPENREG_RULE_ALIGNMENT, status, &made, least == 0 ? LEAST_ALIGNMENT : least));
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
not_alive(openreg_instance v, const char *slot, int32_t dev, const void *ptr)
{
    openreg_ledger_range other;
    if (openreg_ledger_find(v, ptr, &other))
        return openreg_validation_refuse(v, OPENREG_RULE_ALLOCATION_ALIVE, OPENREG_E_INVALID, slot,
                                         "%p of device %d is inside %llu bytes at %p of device %d, of another kind, "
                                         "device or start",
                                         ptr, dev, (unsigned long long)other.size, (void *)other.start, other.dev);
    return openreg_validation_refuse(v, OPENREG_RULE_ALLOCATION_ALIVE, OPENREG_E_INVALID, slot,
                                     "%p of device %d is not live", ptr, dev);
}

static openreg_status
validated_mem_free(openreg_instance v, int32_t dev, void *ptr)
{
    static const char slot[] = "mem_free";
    openreg_ledger_range range;
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (!openreg_ledger_remove(v, OPENREG_MADE_BY_MEM_ALLOC, dev, ptr, &range))
        return not_alive(v, slot, dev, ptr);
    openreg_validation_range_goes(v, slot, range.start);
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, mem_free, (v->instance, dev, ptr));
    return openreg_ledger_end_remove(v, status, &range);
}

static openreg_status
validated_host_alloc(openreg_instance v, int32_t dev, const openreg_alloc_info *info, void **out)
{
    static const char slot[] = "host_alloc";
    if (info->size == 0)
        openreg_validation_report(v, OPENREG_RULE_HOST_MEMORY, slot, "0 bytes were requested");
    OPENREG_RETURN_NOT_OK(openreg_ledger_make_room(v));
    void *const poison = (void *)&poison;
    void *memory = poison;
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, host_alloc, (v->instance, dev, info, &memory));
    openreg_validation_untouched(v, slot, status, &memory, &poison, sizeof memory);
    memory = memory == poison ? NULL : memory;
    const openreg_ledger_range made = {
        .start = (uintptr_t)memory, .size = info->size, .dev = -1, .kind = OPENREG_MADE_BY_HOST_ALLOC};
    OPENREG_RETURN_NOT_OK(enter(v, slot, OPENREG_RULE_HOST_MEMORY, status, &made, LEAST_ALIGNMENT));
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
validated_host_free(openreg_instance v, int32_t dev, void *ptr)
{
    openreg_ledger_range range;
    if (!openreg_ledger_remove(v, OPENREG_MADE_BY_HOST_ALLOC, -1, ptr, &range))
        return not_alive(v, "host_free", -1, ptr);
    openreg_validation_range_goes(v, "host_free", range.start);
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, host_free, (v->instance, dev, ptr));
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
    void *const poison = (void *)&poison;
    void *alias = poison;
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, host_alias, (v->instance, dev, ptr, &alias));
    openreg_validation_untouched(v, slot, status, &alias, &poison, sizeof alias);
    if (status != OPENREG_OK)
        return status;
    alias = alias == poison ? NULL : alias;
    const uintptr_t distance = (uintptr_t)alias - (uintptr_t)ptr;
    if (alias == NULL) /* which the runtime refuses */
        openreg_validation_report(v, OPENREG_RULE_ALIAS_DISTANCE, slot, "it returned OK with a NULL address");
    else if (is_known && range.has_distance && distance != range.distance)
        return openreg_validation_refuse(v, OPENREG_RULE_ALIAS_DISTANCE, OPENREG_E_INTERNAL, slot,
                                         "it gave %p for %p, and another distance before in the same allocation", alias,
                                         ptr);
    else if (is_known)
        openreg_ledger_set_distance(v, range.start, distance);
    *out = alias;
    return OPENREG_OK;
}

static openreg_status
validated_mem_info(openreg_instance v, int32_t dev, uint64_t *free_bytes, uint64_t *total)
{
    static const char slot[] = "mem_info";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    const uint64_t before[2] = {UINT64_C(0x5a5a5a5a5a5a5a5a), UINT64_C(0x5a5a5a5a5a5a5a5b)};
    uint64_t now[2] = {before[0], before[1]};
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, mem_info, (v->instance, dev, &now[0], &now[1]));
    openreg_validation_untouched(v, slot, status, now, before, sizeof now);
    if (status != OPENREG_OK)
        return status;
    if (now[0] > now[1] || now[1] == before[1])
        openreg_validation_report(v, OPENREG_RULE_MEMORY_INFO, slot, "it gave %llu free bytes of %llu",
                                  (unsigned long long)now[0], (unsigned long long)now[1]);
    *free_bytes = now[0];
    *total = now[1];
    return OPENREG_OK;
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
}
