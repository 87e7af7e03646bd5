/* SPDX-License-Identifier: BSD-3-Clause */
/* fault_calls.c: plans of faults for all devices, and what is counted that no driver is called for (openreg/faults.h). */
#define _GNU_SOURCE
#include "device/fault_calls.h"

#include <string.h>

#include "base/error.h"
#include "device/stream.h"
#include "driver/device_table.h"
#include "laboratory/recorder.h"

openreg_status
openreg_faults_begin(const char *plan, openreg_faults *out)
{
    static const char call[] = "openreg_faults_begin";
    if (plan == NULL || out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "plan and out must not be NULL");
    return openreg_faults_add(call, "the text", plan, NULL, out);
}

void
openreg_faults_end(openreg_faults faults)
{
    unsigned char lost[OPENREG_MAX_DEVICES];
    memset(lost, 0, sizeof lost);
    openreg_faults_remove(faults, lost);
    const openreg_device_table *const table = openreg_device_table_peek();
    for (int32_t i = 0; table != NULL && i < table->count; ++i)
        if (lost[i])
            atomic_store_explicit(&table->devices[i]->loss, OPENREG_LOSS_NONE, memory_order_release);
}

int32_t
openreg_faults_of_collective(int32_t device)
{
    static const char call[] = "openreg_faults_of_collective";
    const openreg_device_table *const table = openreg_device_table_peek();
    if (device >= 0) /* of the CPU's tensors it is nothing of a device */
        openreg_recorder_end(openreg_recorder_begin(OPENREG_CALL_COLLECTIVE, call, "", device, NULL, 0), OPENREG_OK);
    if ((openreg_instruments() & OPENREG_INSTRUMENT_FAULTS) == 0)
        return OPENREG_PEER_OK;
    const void *const driver = table != NULL && device >= 0 && device < table->count ? table->devices[device]->driver
                                                                                     : NULL;
    const openreg_fault_site site = {driver, device, OPENREG_CALL_COLLECTIVE, NULL, NULL};
    openreg_fault_verdict verdict;
    (void)openreg_faults_ask(&site, &verdict);
    return verdict.peer;
}

/* At its end: when it has begun is not known. */
static void
record_operator(openreg_device *device, openreg_stream stream, const char *name)
{
    openreg_driver_stream handle = NULL;
    if (stream == OPENREG_STREAM_DEFAULT ||
        openreg_stream_resolve(device, "openreg_operator_ended", stream, &handle) == OPENREG_OK)
        openreg_recorder_end(openreg_recorder_begin(OPENREG_CALL_OPERATOR, "", name, device->index, handle, 0),
                             OPENREG_OK);
}

void
openreg_operator_ended(int32_t index, openreg_stream stream, const char *name)
{
    static const char call[] = "openreg_operator_ended";
    openreg_driver_stream handle = NULL;
    openreg_fault_verdict verdict;
    const openreg_device_table *const table = openreg_device_table_peek();
    if (!openreg_is_instrumented() || table == NULL || index < 0 || index >= table->count)
        return;
    openreg_device *const device = table->devices[index];
    if ((openreg_instruments() & OPENREG_INSTRUMENT_RECORDER) != 0)
        record_operator(device, stream, name);
    if ((openreg_instruments() & OPENREG_INSTRUMENT_FAULTS) == 0)
        return;
    const openreg_error_fields before = openreg_error_save();
    if (openreg_stream_resolve(device, call, stream, &handle) == OPENREG_OK) {
        const openreg_fault_site site = {device->driver, index, OPENREG_CALL_OPERATOR, handle, name};
        (void)openreg_faults_ask(&site, &verdict);
    }
    openreg_error_restore(&before);
}
