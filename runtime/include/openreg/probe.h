/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/probe.h: what openreg-check can't see or do at a vendor's library, and a driver can: the driver extension
 * "openreg.probe", version 1. Not stable: it may change in any release. Valid C11 and C++17.
 *
 *   const openreg_probe *probe = table->extension(instance, OPENREG_PROBE_NAME, OPENREG_PROBE_VERSION);
 *
 * NULL: the driver has none. The runtime never asks for it. driver.h's rules on threads and errors hold here too. */
#ifndef OPENREG_PROBE_H
#define OPENREG_PROBE_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_PROBE_NAME "openreg.probe"
#define OPENREG_PROBE_VERSION 1u

typedef struct openreg_probe {
    uint32_t struct_size, version; /* sizeof(openreg_probe), OPENREG_PROBE_VERSION as compiled into the driver */

    /* The vendor's current device of the calling thread, as the vendor's library says it; -1: none. NULL: the vendor has no
     * such thing. */
    openreg_status (*vendor_device)(openreg_instance, int32_t *dev);

    /* From now on the call number `nth` that the driver makes of the vendor's functions, in any thread, fails as the vendor's
     * calls do, and isn't made; 0: none fails. Counted are those calls whose failure a program has to learn. *left: how far
     * the call that was to fail before is off; 0: it has failed. NULL: the driver has no such switch. */
    openreg_status (*fail_vendor_call)(openreg_instance, uint32_t nth, uint32_t *left);
} openreg_probe;

#define OPENREG_PROBE_SIZE_1 24u
static_assert(sizeof(openreg_probe) == OPENREG_PROBE_SIZE_1, "append a function, then freeze its size");

/* For drivers: around a vendor's call whose code they look at, with `left` as fail_vendor_call() sets it. Any thread.
 *   #define TRIED(call) (openreg_probe_fails(&left) ? VENDOR_ERROR : (call)) */
OPENREG_HELPER int
openreg_probe_fails(uint32_t *left)
{
    uint32_t n = __atomic_load_n(left, __ATOMIC_RELAXED);
    while (n != 0)
        if (__atomic_compare_exchange_n(left, &n, n - 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return n == 1;
    return 0;
}

/* For drivers: what fail_vendor_call() does with `left`, and answers in *left. Any thread. */
OPENREG_HELPER uint32_t
openreg_probe_fail(uint32_t *left, uint32_t nth)
{
    return __atomic_exchange_n(left, nth, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_PROBE_H */
