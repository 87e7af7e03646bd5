/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant_info.c: defects of what a driver says of its devices (mutants.h). */
#include "mutant.h"

#include <string.h>

int32_t mutant_bound;
static int has_allocated;

static openreg_status
mutant_device_count(openreg_instance instance, int32_t *out)
{
    const openreg_status status = mutant_base->device_count(instance, out);
    for (int32_t i = 0; IS(count_by_state) && i < *out && !has_allocated; ++i) {
        int32_t active = 0;
        (void)mutant_base->device_active(instance, i, &active);
        has_allocated = active;
    }
    if (IS(count_by_state) && has_allocated)
        ++*out;
    return status;
}

uint64_t
mutant_most(openreg_instance instance, int32_t dev)
{
    uint64_t unused, total = 0;
    (void)mutant_base->mem_info(instance, dev, &unused, &total);
    return IS(odd_most) ? total / 16 : (uint64_t)64 << 20;
}

static openreg_status
mutant_device_info(openreg_instance instance, int32_t dev, openreg_device_info *inout)
{
    static int asked;
    const openreg_status status = mutant_base->device_info(instance, IS(info_of_first) ? 0 : dev, inout);
    if (mutant_current >= mutant_runtime_last_byte)
        inout->caps &= ~OPENREG_CAP_HOST_VISIBLE;
    if (IS(odd_most) || IS(most_refused))
        inout->max_allocation = mutant_most(instance, dev);
    if (IS(alignment_odd))
        inout->min_alignment = 3;
    if (IS(priorities_swapped)) {
        inout->priority_low = -1;
        inout->priority_high = 0;
    }
    if (IS(odd_alignment))
        inout->min_alignment = SHIFT;
    if (IS(odd_priorities)) {
        inout->priority_low = INT32_MAX;
        inout->priority_high = INT32_MIN;
    }
    if (IS(name_empty))
        inout->name[0] = '\0';
    if (IS(info_overruns))
        memset(inout + 1, 0, 8);
    if (IS(info_changes))
        inout->multi_processor_count = ++asked;
    return status;
}

static openreg_status
mutant_mem_info(openreg_instance instance, int32_t dev, uint64_t *free_bytes, uint64_t *total)
{
    if (IS(odd_frees))
        mutant_end_frees(instance);
    const openreg_status status = mutant_base->mem_info(instance, IS(memory_of_first) ? 0 : dev, free_bytes, total);
    *free_bytes += mutant_kept_bytes(dev);
    if (IS(memory_swapped)) {
        const uint64_t swapped = *free_bytes;
        *free_bytes = *total;
        *total = swapped;
    }
    if (IS(memory_constant))
        *free_bytes = *total / 2;
    if (IS(total_in_kib)) {
        *free_bytes /= 1024;
        *total /= 1024;
    }
    return status;
}

static openreg_status
mutant_device_active(openreg_instance instance, int32_t dev, int32_t *out)
{
    static int asked[OPENREG_SIM_MAX_DEVICES];
    const openreg_status status = mutant_base->device_active(instance, dev, out);
    if (IS(active_never))
        *out = 0;
    if (IS(active_by_asking) && asked[dev]++ > 0)
        *out = 1;
    return status;
}

static openreg_status
mutant_device_bind(openreg_instance instance, int32_t dev)
{
    (void)instance;
    mutant_bound = dev;
    return OPENREG_OK;
}

static openreg_status
mutant_stream_native(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void **out)
{
    *out = openreg_sim_stream_of(instance, dev, IS(native_same) ? NULL : stream);
    return OPENREG_OK;
}

static openreg_status
mutant_host_alias(openreg_instance instance, int32_t dev, void *ptr, void **out)
{
    static char other[8 << 20];
    const openreg_status status = mutant_base->host_alias(instance, dev, ptr, out);
    if (status == OPENREG_OK && IS(alias_off) && (uintptr_t)ptr % 4096 != 0)
        *out = (char *)*out + 4096;
    if (status == OPENREG_OK && IS(alias_other))
        *out = other;
    return status;
}

void
mutant_wrap_info(openreg_driver *table)
{
    table->device_count = mutant_device_count;
    table->device_info = mutant_device_info;
    table->mem_info = mutant_mem_info;
    table->device_active = mutant_device_active;
    table->device_bind = mutant_device_bind;
    table->stream_native = mutant_stream_native;
    table->host_alias = mutant_host_alias;
}
