/* SPDX-License-Identifier: BSD-3-Clause */
/* device_count.c: openreg_device_count(), which never fails and opens as little as possible (device_count.h). */
#define _GNU_SOURCE
#include "selection/device_count.h"

#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "registry/discovery.h"
#include "registry/driver_lock.h"
#include "selection/activation.h"
#include "selection/preference.h"
#include "selection/selection.h"

/* Differs after each change of what a selection depends on. */
typedef struct basis {
    unsigned candidates, preference, list;
} basis;

/* The answer without a table. Of the holder of the gate. */
static struct {
    int is_valid;
    int32_t count;
    openreg_error error; /* why it is 0 */
    basis of;
} counted;

void
openreg_count_forget(void)
{
    counted.is_valid = 0;
}

static basis
present_basis(void)
{
    char preferred[OPENREG_NAME_SIZE];
    basis now = {.candidates = openreg_candidates_changes(), .preference = openreg_preference_get(preferred)};
    (void)openreg_chosen_list(&now.list);
    return now;
}

static int
is_same(basis a, basis b)
{
    return a.candidates == b.candidates && a.preference == b.preference && a.list == b.list;
}

static int32_t
remember(openreg_status status, int64_t count, const openreg_error *before)
{
    counted.is_valid = status != OPENREG_E_NOMEM; /* that may be gone the next time */
    counted.of = present_basis();
    counted.count = status == OPENREG_OK ? (int32_t)count : 0;
    openreg_fork_note_count(counted.count);
    if (status != OPENREG_OK) {
        counted.error = *openreg_error_record();
        openreg_log(OPENREG_LOG_WARNING, "Device initialization: %s", counted.error.message);
    } else {
        *openreg_error_record() = *before;
    }
    return counted.count;
}

static openreg_status
count_selected(const char *call, openreg_decision *decision)
{
    unsigned ignored;
    OPENREG_RETURN_NOT_OK(openreg_select(call, openreg_chosen_list(&ignored), openreg_driver_open_count, decision));
    if (!decision->must_open && decision->devices > OPENREG_MAX_DEVICES)
        return openreg_error_set(OPENREG_E_NO_DEVICE,
                                 "%s: the drivers have %lld devices together; PyTorch can count to %d", call,
                                 (long long)decision->devices, OPENREG_MAX_DEVICES);
    return OPENREG_OK;
}

static int32_t
count_gated(const char *call)
{
    const openreg_error before = *openreg_last_error();
    openreg_status status = openreg_discovery_refresh(call, 0);
    if (status == OPENREG_OK && counted.is_valid && is_same(counted.of, present_basis())) {
        if (counted.count == 0)
            *openreg_error_record() = counted.error;
        return counted.count;
    }
    int64_t count = 0;
    openreg_decision decision;
    if (status == OPENREG_OK)
        status = count_selected(call, &decision);
    if (status == OPENREG_OK && decision.must_open) {
        status = openreg_initialize_gated(call);
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
        const int32_t known = openreg_fork_parent_count();
        return known > 0 ? known : 0;
    }
    if (openreg_driver_lock_acquire_discovering(call) != OPENREG_OK)
        return 0;
    const openreg_device_table *const raced = openreg_device_table_peek();
    const int32_t count = raced != NULL ? raced->count : count_gated(call);
    openreg_driver_lock_release();
    return count;
}
