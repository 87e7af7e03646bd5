/* SPDX-License-Identifier: BSD-3-Clause */
/* checks.c: all groups of checks, in the order in which they run (check.h). */
#include "check.h"

/* clang-format off */
const check_group *const check_groups[] = {
    &check_table_group,
    &check_lifecycle_group,
    &check_process_group,
    &check_error_group,
    &check_info_group,
    &check_memory_group,
    &check_copy_group,
    &check_wide_group,
    &check_stream_group,
    &check_event_group,
    &check_host_func_group,
    &check_thread_group,
    &check_leak_group,
    &check_probe_group,
    &check_extension_group,
    &check_comm_group,
    &check_comm_process_group,
    &check_kernel_group,
    &check_kernel_shape_group,
    &check_layer_group,
    &check_runtime_group,
    &check_fault_group,
    &check_graph_group,
    NULL,
};
/* clang-format on */
