/* SPDX-License-Identifier: BSD-3-Clause */
/* device_count.c: counts devices before there is a table, opening as little as possible. */
#define _GNU_SOURCE
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "registry/discovery.h"
#include "registry/driver_lock.h"
#include "selection/activation.h"

/* The count without a table. Written by the holder of the driver lock. */
static struct {
    int is_valid;
    int32_t count;
    openreg_error_fields error; /* why it is 0 */
    uint32_t of;                /* openreg_activation_changes() at that time */
} counted;

/* The latest result of openreg_device_count(), for the child of a fork(); -1: not known. */
static atomic_int last_known_count = -1;

void
openreg_device_count_note(int32_t count)
{
    atomic_store_explicit(&last_known_count, count, memory_order_relaxed);
}

static int32_t
remember(openreg_status status, int64_t count, const openreg_error_fields *before)
{
    counted.is_valid = status != OPENREG_E_NOMEM; /* which may not hold the next time */
    counted.of = openreg_activation_changes();
    counted.count = status == OPENREG_OK ? (int32_t)count : 0;
    openreg_device_count_note(counted.count);
    if (status != OPENREG_OK) {
        counted.error = openreg_error_save();
        openreg_log(OPENREG_LOG_WARNING, "Device initialization: %s", openreg_last_error()->message);
    } else {
        openreg_error_restore(before);
    }
    return counted.count;
}

static openreg_status
count_selected(const char *call, openreg_decision *decision)
{
    OPENREG_RETURN_NOT_OK(openreg_select(call, openreg_activation_list(), openreg_driver_open_count, decision));
    if (!decision->must_open && decision->devices > OPENREG_MAX_DEVICES)
        return openreg_error_set(OPENREG_E_NO_DEVICE, call,
                                 "the drivers have %lld devices together; PyTorch can count to %d",
                                 (long long)decision->devices, OPENREG_MAX_DEVICES);
    return OPENREG_OK;
}

static int32_t
count_locked(const char *call)
{
    const openreg_error_fields before = openreg_error_save();
    openreg_status status = openreg_discovery_refresh(call, 0);
    if (status == OPENREG_OK && counted.is_valid && counted.of == openreg_activation_changes()) {
        if (counted.count == 0)
            openreg_error_restore(&counted.error);
        return counted.count;
    }
    int64_t count = 0;
    openreg_decision decision;
    if (status == OPENREG_OK)
        status = count_selected(call, &decision);
    if (status == OPENREG_OK && decision.must_open) {
        status = openreg_activation_select(call);
        count = status == OPENREG_OK ? openreg_device_table_peek()->count : 0;
    } else if (status == OPENREG_OK) {
        count = decision.devices;
    }
    return remember(status, count, &before);
}

int32_t
openreg_device_count(void)
{
    static const char call[] = "openreg_device_count";
    const openreg_device_table *const table = openreg_device_table_peek();
    if (table != NULL)
        return table->count;
    if (openreg_in_bad_fork()) {
        const int32_t known = atomic_load_explicit(&last_known_count, memory_order_relaxed);
        return known > 0 ? known : 0;
    }
    if (openreg_driver_lock_acquire_discovering(call) != OPENREG_OK)
        return 0;
    const openreg_device_table *const raced = openreg_device_table_peek();
    const int32_t count = raced != NULL ? raced->count : count_locked(call);
    openreg_driver_lock_release();
    return count;
}
