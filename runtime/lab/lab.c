/* SPDX-License-Identifier: BSD-3-Clause */
/* lab.c: the only symbol that libopenreg_lab.so exports: its functions for the runtime (watch/lab.h). */
#include "watch/lab.h"

#include "base/internal_api.h"
#include "faults/faults.h"
#include "races/races.h"
#include "recorder/recorder.h"
#include "trace/trace.h"
#include "validation/validation.h"

static const openreg_lab functions = {
    .struct_size = sizeof functions,
    .races_flags = openreg_lab_races_flags,
    .races_set = openreg_lab_races_set,
    .races_visit = openreg_lab_races_visit,
    .races_count = openreg_lab_races_count,
    .races_clear = openreg_lab_races_clear,
    .races_allow = openreg_lab_races_allow,
    .races_mute = openreg_lab_races_mute,
    .races_is_muted = openreg_lab_races_is_muted,
    .races_origin = openreg_lab_races_origin,
    .races_use = openreg_lab_races_use,
    .races_use_tensor = openreg_lab_races_use_tensor,
    .races_host_use = openreg_lab_races_host_use,
    .races_knows = openreg_lab_races_knows,
    .races_host_waits = openreg_lab_races_host_waits,
    .races_stream_waits = openreg_lab_races_stream_waits,
    .races_forget = openreg_lab_races_forget,
    .faults_begin = openreg_lab_faults_begin,
    .faults_end = openreg_lab_faults_end,
    .faults_hits = openreg_lab_faults_hits,
    .faults_of_collective = openreg_lab_faults_of_collective,
    .operator_ended = openreg_lab_operator_ended,
    .recorder_start = openreg_lab_recorder_start,
    .recorder_write = openreg_lab_recorder_write,
    .recorder_alarm = openreg_recorder_alarm,
    .trace_start = openreg_lab_trace_start,
    .trace_flush = openreg_lab_trace_flush,
    .trace_stop = openreg_lab_trace_stop,
};

static const openreg_lab_parts parts = {
    .version = OPENREG_VERSION_STRING,
    .functions = &functions,
    .validation = &openreg_validation_layer,
    .read_recorder = openreg_recorder_read_variable,
    .begin_faults = openreg_faults_add,
};

OPENREG_INTERNAL const openreg_lab_parts *openreg_lab_query(void);

const openreg_lab_parts *
openreg_lab_query(void)
{
    return &parts;
}
