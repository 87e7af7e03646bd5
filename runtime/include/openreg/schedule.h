/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/schedule.h: a driver whose devices run their work in an order of the driver's choice, to show waits that a
 * program forgets: the driver extension "openreg.schedule", version 1. Not promised: it is version 0, and may change in
 * any release. Valid C11 and C++17.
 *
 *   const openreg_schedule *schedule = table->extension(instance, OPENREG_SCHEDULE_NAME, OPENREG_SCHEDULE_VERSION);
 *
 * NULL: the driver has none, as every one that is for work rather than for finding defects. With it the driver is told what it
 * can't see by itself, as it is the runtime's. driver.h's rules on threads, devices, errors
 * and ownership hold here too. */
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

    /* A block that the caching allocator keeps has been freed by the program. Work of `stream`, as a fill: overwrites
     * [ptr, ptr + size), which lies in one allocation, with bytes of the driver's choice, once what was queued on the
     * stream before has ended, and before what is queued later. The stream is the one that the block was allocated for;
     * what other streams were recorded on it has ended. The runtime ignores a failure: the old bytes are left then. */
    openreg_status (*poison)(openreg_instance, int32_t dev, openreg_driver_stream stream, void *ptr, uint64_t size);
} openreg_schedule;

#define OPENREG_SCHEDULE_SIZE_1 16u
static_assert(sizeof(openreg_schedule) == OPENREG_SCHEDULE_SIZE_1, "append a function, then freeze its size");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_SCHEDULE_H */
