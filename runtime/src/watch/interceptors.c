/* SPDX-License-Identifier: BSD-3-Clause */
/* interceptors.c: the list of interceptors, read without a lock (interceptors.h). */
#include "watch/interceptors.h"

#include <stdatomic.h>

#include "base/error.h"

typedef struct interceptor_entry {
    _Atomic(const openreg_interceptor *) interceptor;
    _Atomic uint32_t events;
} interceptor_entry;

static interceptor_entry entries[OPENREG_INTERCEPTORS_MAX];

void
openreg_intercept(const openreg_interceptor *interceptor, uint32_t events)
{
    openreg_observers_lock();
    uint32_t all = 0;
    bool is_known = false;
    for (int i = 0; i < OPENREG_INTERCEPTORS_MAX; ++i) {
        const openreg_interceptor *known = atomic_load_explicit(&entries[i].interceptor, memory_order_relaxed);
        if (!is_known && (known == interceptor || known == NULL)) {
            is_known = true;
            atomic_store_explicit(&entries[i].interceptor, interceptor, memory_order_release);
            atomic_store_explicit(&entries[i].events, events, memory_order_release);
        }
        all |= atomic_load_explicit(&entries[i].events, memory_order_relaxed);
    }
    openreg_observers_unlock(all);
}

/* The interceptor at place i that wants one of the events, or NULL. */
static const openreg_interceptor *
wants(int i, uint32_t events)
{
    return (atomic_load_explicit(&entries[i].events, memory_order_acquire) & events) == 0
               ? NULL
               : atomic_load_explicit(&entries[i].interceptor, memory_order_acquire);
}

int
openreg_intercepted_allocate(int32_t device, uint64_t size, char *text, size_t text_size)
{
    for (int i = 0; i < OPENREG_INTERCEPTORS_MAX; ++i) {
        const openreg_interceptor *const one = wants(i, OPENREG_INTERCEPT_ALLOCATIONS);
        if (one != NULL && one->allocate != NULL && one->allocate(device, size, text, text_size))
            return 1;
    }
    return 0;
}

openreg_status
openreg_intercepted_use(const char *call, int32_t device, openreg_stream stream, const openreg_used_range *ranges,
                        size_t count)
{
    char text[sizeof((openreg_error_fields *)NULL)->text];
    for (int i = 0; i < OPENREG_INTERCEPTORS_MAX; ++i) {
        const openreg_interceptor *const one = wants(i, OPENREG_OBSERVE_USES);
        if (one != NULL && one->use != NULL && one->use(call, device, stream, ranges, count, text, sizeof text))
            return openreg_error_set(OPENREG_E_INVALID, NULL, "%s", text);
    }
    return OPENREG_OK;
}

openreg_status
openreg_intercepted_kernel(int32_t device, openreg_stream stream, const openreg_kernel_call *call)
{
    char text[sizeof((openreg_error_fields *)NULL)->text];
    for (int i = 0; i < OPENREG_INTERCEPTORS_MAX; ++i) {
        const openreg_interceptor *const one = wants(i, OPENREG_OBSERVE_USES);
        if (one != NULL && one->kernel != NULL && one->kernel(device, stream, call, text, sizeof text))
            return openreg_error_set(OPENREG_E_INVALID, NULL, "%s", text);
    }
    return OPENREG_OK;
}

/* The rest of the interceptors around the work. */
typedef struct work_behind {
    const openreg_work *work;
    openreg_status (*next)(void *argument);
    void *argument;
    int from;
} work_behind;

static openreg_status
run_behind(void *argument)
{
    const work_behind *const rest = argument;
    for (int i = rest->from; i < OPENREG_INTERCEPTORS_MAX; ++i) {
        const openreg_interceptor *const one = wants(i, OPENREG_OBSERVE_WORK);
        if (one != NULL && one->run != NULL) {
            work_behind behind = {rest->work, rest->next, rest->argument, i + 1};
            return one->run(rest->work, run_behind, &behind);
        }
    }
    return rest->next(rest->argument);
}

openreg_status
openreg_intercepted_run(const openreg_work *work, openreg_status (*next)(void *argument), void *argument)
{
    work_behind all = {work, next, argument, 0};
    return run_behind(&all);
}
