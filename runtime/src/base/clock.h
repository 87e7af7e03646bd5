/* SPDX-License-Identifier: BSD-3-Clause */
/* clock.h: the host's clock for emulated events and traces. Internal. */
#ifndef OPENREG_SRC_CLOCK_H
#define OPENREG_SRC_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in nanoseconds. Never fails. */
static inline uint64_t
openreg_clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

#endif
