/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a frozen header has the functions of the table and the fields of the other structures; compiled once with each. */
#include <openreg/driver.h>

#include "frozen_slots.h"

#define OFFSET(slot) offsetof(openreg_driver, slot),

extern const size_t FROZEN_OFFSETS[];
const size_t FROZEN_OFFSETS[] = {
    FROZEN_SLOTS(OFFSET) offsetof(openreg_driver, struct_size),
    offsetof(openreg_driver, abi_minor),
    offsetof(openreg_driver, name),
    offsetof(openreg_driver, version),
    offsetof(openreg_driver, caps),
    offsetof(openreg_host, struct_size),
    offsetof(openreg_host, abi_minor),
    offsetof(openreg_host, ctx),
    offsetof(openreg_host, set_error),
    offsetof(openreg_host, log),
    offsetof(openreg_option, key),
    offsetof(openreg_option, value),
    offsetof(openreg_device_info, total_bytes),
    offsetof(openreg_device_info, min_alignment),
    offsetof(openreg_device_info, priority_low),
    offsetof(openreg_device_info, priority_high),
    offsetof(openreg_device_info, multi_processor_count),
    offsetof(openreg_device_info, capability_major),
    offsetof(openreg_device_info, capability_minor),
    offsetof(openreg_device_info, caps),
    offsetof(openreg_device_info, torch_device_type),
    offsetof(openreg_device_info, uuid),
    offsetof(openreg_device_info, name),
    OPENREG_CAP_FORK_SAFE,
    OPENREG_CAP_HOST_VISIBLE,
    OPENREG_CAP_FENCED,
    OPENREG_CAP_SIMULATED,
    OPENREG_EVENT_TIMING,
    (size_t)OPENREG_OK,
    (size_t)OPENREG_E_INVALID,
    (size_t)OPENREG_E_NOMEM,
    (size_t)OPENREG_E_NO_DEVICE,
    (size_t)OPENREG_E_UNSUPPORTED,
    (size_t)OPENREG_E_DEVICE_LOST,
    (size_t)OPENREG_E_INCOMPATIBLE,
    (size_t)OPENREG_E_INTERNAL,
    SIZE_MAX,
};
