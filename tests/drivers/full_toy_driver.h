/* SPDX-License-Identifier: BSD-3-Clause */
/* full_toy_driver.h: the test side of full_toy_driver.c, a driver with all functions. */
#ifndef OPENREG_TESTS_FULL_TOY_DRIVER_H
#define OPENREG_TESTS_FULL_TOY_DRIVER_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of fail(). */
#define FULL_TOY_SILENT 1u  /* without set_error() */
#define FULL_TOY_FOREVER 2u /* this call and all later ones */

/* Got by dlsym("full_toy_test_hooks"), or by calling it where the driver is linked in. Slots are named as in driver.h.
 * Every function may be called from any thread. */
typedef struct full_toy_hooks {
    void (*reset)(void);                /* counters to 0, no failure, 2 devices, nothing held, no callback */
    int (*calls)(const char *slot);     /* since reset() */
    void (*set_devices)(int32_t count); /* what open() and describe() find */
    void (*fail)(const char *slot, int nth, openreg_status code, unsigned flags); /* nth call from now, from 1 */
    void (*hold)(int held);                  /* 1: queued work does not end; 0: it ends now */
    void (*forget)(void);                    /* frees what could not be given back, and counts nothing as alive */
    int (*live)(const char *what);           /* "instance", "memory", "stream", "event", "host" */
    int32_t (*bound)(void);                  /* vendor's current device of this thread */
    void (*on_open)(void (*callback)(void)); /* called inside open() */
    int (*option)(const char *key, char *value, size_t size); /* option of the last open(); 1 if it was there */
    const openreg_driver *(*table)(void);
    int (*queries)(void);          /* calls of openreg_driver_query_v1() since reset() */
    int32_t (*allocated_on)(void); /* ordinal of the last mem_alloc(), -1 after reset() */
} full_toy_hooks;

const full_toy_hooks *full_toy_test_hooks(void);

#ifdef __cplusplus
}
#endif
#endif
