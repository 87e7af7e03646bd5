/* SPDX-License-Identifier: BSD-3-Clause */
/* interceptors.h: parts of this build (libopenreg_lab.so) that change what a call does: they refuse it, or run around it.
 * Internal. Observers (observers.h) change nothing.
 *
 * Callers check `if (openreg_is_observed(event))` first; these functions are the slow path. */
#ifndef OPENREG_SRC_INTERCEPTORS_H
#define OPENREG_SRC_INTERCEPTORS_H

#include <openreg/kernels.h>

#include "watch/observers.h"

/* Events beside those of observer.h, in the same word. OPENREG_OBSERVE_USES is use() and kernel(), _WORK is run(). */
#define OPENREG_INTERCEPT_ALLOCATIONS 16u /* allocate() */
#define OPENREG_INTERCEPT_COPIES                                                                                       \
    32u /* no function: the host does no copy that a driver can do, so that layers get it */

/* Bytes that a call is about to use. */
typedef struct openreg_used_range {
    const void *address;
    uint64_t size;
    int32_t writes, reserved;
} openreg_used_range;

/* Work that a driver gets through a table of an extension, which layers don't get; and a driver's open(), with `device`
 * OPENREG_HOST and `name` the driver's. */
typedef struct openreg_work {
    const char *call; /* "openreg_kernel_run" */
    const char *name; /* "aten::mm", "all_reduce" */
    int32_t device;
    openreg_driver_stream stream;
    const openreg_host *host; /* for set_error() by run() */
} openreg_work;

/* Each function may be NULL. Static: never removed. */
typedef struct openreg_interceptor {
    /* 1: the request fails for lack of memory; `text` says why. Called under the cache's lock. */
    int (*allocate)(int32_t device, uint64_t size, char *text, size_t text_size);
    /* The work of a call on `stream` is about to use memory. 1: it fails before it has begun, with OPENREG_E_INVALID and
     * that `text`. */
    int (*use)(const char *call, int32_t device, openreg_stream stream, const openreg_used_range *ranges, size_t count,
               char *text, size_t text_size);
    /* The same for a driver's kernel. */
    int (*kernel)(int32_t device, openreg_stream stream, const openreg_kernel_call *call, char *text, size_t text_size);
    /* Called in place of next(argument): calls it and returns its result, or sets an error. */
    openreg_status (*run)(const openreg_work *work, openreg_status (*next)(void *argument), void *argument);
} openreg_interceptor;

#define OPENREG_INTERCEPTORS_MAX 4

/* Sets which events it gets from now on. Never fails: there are fewer than OPENREG_INTERCEPTORS_MAX in a build. */
OPENREG_INTERNAL void openreg_intercept(const openreg_interceptor *interceptor, uint32_t events);

/* 1: refused, with the text. */
int openreg_intercepted_allocate(int32_t device, uint64_t size, char *text, size_t text_size);
/* OPENREG_E_INVALID with a text if one refuses. */
openreg_status openreg_intercepted_use(const char *call, int32_t device, openreg_stream stream,
                                       const openreg_used_range *ranges, size_t count);
openreg_status openreg_intercepted_kernel(int32_t device, openreg_stream stream, const openreg_kernel_call *call);
openreg_status openreg_intercepted_run(const openreg_work *work, openreg_status (*next)(void *argument),
                                       void *argument);

#endif
