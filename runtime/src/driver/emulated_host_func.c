/* SPDX-License-Identifier: BSD-3-Clause */
/* emulated_host_func.c: host functions of a stream, by the driver or, where it has no host_func() or refuses the call,
 * by a thread of the runtime (driver_calls.h).
 *
 * Without host_func() only the driver's own work can hold a stream back, so the caller waits: for the stream, then for the
 * function. Work that it queues afterwards is behind the function, on this stream and on every one that waits for an event
 * of this stream. */
#define _GNU_SOURCE
#include <string.h>

#include "base/error.h"
#include "driver/driver_calls.h"

typedef struct host_call {
    void (*function)(void *argument);
    void *argument;
} host_call;

static void *
run(void *argument)
{
    const host_call *const wanted = argument;
    wanted->function(wanted->argument);
    return NULL;
}

/* Runs the function on a thread of its own, whose signals are blocked, and waits for it: locks and thread-local state of the
 * caller must not be available on some drivers only. */
static openreg_status
run_on_thread(const char *call, host_call *wanted)
{
    pthread_t thread;
    const int error = openreg_thread_start(&thread, run, wanted);
    if (error != 0)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no thread for a host function: %s", strerror(error));
    (void)pthread_join(thread, NULL);
    return OPENREG_OK;
}

static openreg_status
emulate(openreg_device *device, const char *call, openreg_driver_stream stream, void (*function)(void *argument),
        void *argument)
{
    host_call wanted = {.function = function, .argument = argument};
    OPENREG_RETURN_NOT_OK(openreg_call_stream_sync(device, call, stream));
    return run_on_thread(call, &wanted);
}

openreg_status
openreg_call_host_func(openreg_device *device, const char *call, openreg_driver_stream stream,
                       void (*function)(void *argument), void *argument)
{
    openreg_opened_driver *const driver = device->driver;
    if (driver->table->host_func == NULL)
        return emulate(device, call, stream, function, argument);
    const openreg_status status = OPENREG_DEVICE_CALL(
        device, call, driver->table->host_func(driver->instance, device->ordinal, stream, function, argument));
    if (status == OPENREG_E_UNSUPPORTED)
        return emulate(device, call, stream, function, argument);
    OPENREG_RETURN_NOT_OK(status);
    if (!atomic_load_explicit(&device->active, memory_order_relaxed))
        atomic_store_explicit(&device->active, 1, memory_order_relaxed);
    return OPENREG_OK;
}
