/* SPDX-License-Identifier: BSD-3-Clause */
/* fault_calls.c: fault plans for all devices, and counting of calls that reach no driver (openreg/faults.h). */
#define _GNU_SOURCE
#include <string.h>

#include "base/error.h"
#include "device/lab_access.h"
#include "faults/faults.h"
#include "recorder/recorder.h"

openreg_status
openreg_lab_faults_begin(const char *plan, openreg_faults *out)
{
    static const char call[] = "openreg_faults_begin";
    if (plan == NULL || out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "plan and out must not be NULL");
    return openreg_faults_add(call, "the text", plan, NULL, out);
}

void
openreg_lab_faults_end(openreg_faults faults)
{
    unsigned char lost[OPENREG_MAX_DEVICES];
    memset(lost, 0, sizeof lost);
    openreg_faults_remove(faults, lost);
    for (int32_t i = 0; i < OPENREG_MAX_DEVICES; ++i)
        if (lost[i])
            openreg_lab_heal(i);
}

int32_t
openreg_lab_faults_of_collective(int32_t device)
{
    static const char call[] = "openreg_faults_of_collective";
    if (device >= 0) /* of the CPU's tensors it is nothing of a device */
        openreg_recorder_end(openreg_recorder_begin(OPENREG_CALL_COLLECTIVE, call, "", device, NULL, 0), OPENREG_OK);
    const openreg_fault_site site = {openreg_lab_driver_of(device), device, OPENREG_CALL_COLLECTIVE, NULL, NULL};
    openreg_fault_verdict verdict;
    (void)openreg_faults_ask(&site, &verdict);
    return verdict.peer;
}

/* The recorder gets it at its end, as its begin is not known. */
void
openreg_lab_operator_ended(int32_t device, openreg_stream stream, const char *name)
{
    const void *driver = NULL;
    openreg_driver_stream handle = NULL;
    openreg_fault_verdict verdict;
    if (!openreg_is_instrumented() || name == NULL || !openreg_lab_stream_of(device, stream, &driver, &handle))
        return;
    openreg_recorder_end(openreg_recorder_begin(OPENREG_CALL_OPERATOR, "", name, device, handle, 0), OPENREG_OK);
    const openreg_fault_site site = {driver, device, OPENREG_CALL_OPERATOR, handle, name};
    (void)openreg_faults_ask(&site, &verdict);
}
