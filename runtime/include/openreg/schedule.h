/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/schedule.h: for a driver that reorders its devices' work, to show waits that a program forgets: the driver
 * extension "openreg.schedule", version 1. Not stable: it may change in any release. Valid C11 and C++17.
 *
 *   const openreg_schedule *schedule = table->extension(instance, OPENREG_SCHEDULE_NAME, OPENREG_SCHEDULE_VERSION);
 *
 * NULL: the driver has none; only drivers for finding defects do. It notifies the driver of events inside the runtime that
 * its slots don't show. driver.h's rules on threads, devices, errors and ownership hold here too. */
#ifndef OPENREG_SCHEDULE_H
#define OPENREG_SCHEDULE_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_SCHEDULE_NAME "openreg.schedule"
#define OPENREG_SCHEDULE_VERSION 1u

typedef struct openreg_schedule {
    uint32_t struct_size, version; /* sizeof(openreg_schedule), OPENREG_SCHEDULE_VERSION as compiled into the driver */

    /* The program has freed a block, which the caching allocator keeps. Queues work on `stream`, as a fill: it overwrites
     * [ptr, ptr + size), which lies in one allocation, with bytes of the driver's choice, after earlier and before later
     * work of the stream. The stream is the one that the block was allocated for; work of other streams recorded on the
     * block has ended. The runtime ignores a failure: the old bytes then stay. */
    openreg_status (*poison)(openreg_instance, int32_t dev, openreg_driver_stream stream, void *ptr, uint64_t size);
} openreg_schedule;

#define OPENREG_SCHEDULE_SIZE_1 16u
static_assert(sizeof(openreg_schedule) == OPENREG_SCHEDULE_SIZE_1, "append a function, then freeze its size");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_SCHEDULE_H */
