/* SPDX-License-Identifier: BSD-3-Clause */
/* A driver with streams, events and pinned memory, compiled with each frozen header and with two of the future: what a
 * vendor shipped for that version. Work has ended when it is queued; streams and events count what passed them. */
#include <pthread.h>
#include <stdio.h>

#include "../toy_streams.h"
#include "frozen_extensions.h"

struct openreg_driver_event_s {
    int64_t records;
};

static openreg_status
info(openreg_instance instance, int32_t dev, openreg_device_info *inout)
{
    (void)instance;
    inout->total_bytes = UINT64_C(64) << 20;
    (void)snprintf(inout->name, sizeof inout->name, "frozen device %d", dev);
    return OPENREG_OK;
}

static openreg_status
fill(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value, uint64_t size)
{
    (void)instance;
    (void)dev;
    (void)stream;
    if (size != 0)
        memset(on_host(dst), value, size);
    return OPENREG_OK;
}

static openreg_status
stream_wait(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    (void)instance;
    (void)dev;
    (void)stream;
    (void)event;
    return OPENREG_OK;
}

static openreg_status
event_create(openreg_instance instance, int32_t dev, uint32_t flags, openreg_driver_event *out)
{
    (void)dev;
    (void)flags;
    openreg_driver_event const event = calloc(1, sizeof *event);
    if (event == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for an event");
    *out = event;
    return OPENREG_OK;
}

static openreg_status
event_destroy(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    (void)instance;
    (void)dev;
    free(event);
    return OPENREG_OK;
}

static openreg_status
event_record(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    (void)instance;
    (void)dev;
    (void)stream;
    ++event->records;
    return OPENREG_OK;
}

static openreg_status
event_query(openreg_instance instance, int32_t dev, openreg_driver_event event, int32_t *done)
{
    (void)instance;
    (void)dev;
    (void)event;
    *done = 1;
    return OPENREG_OK;
}

static openreg_status
event_sync(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    (void)instance;
    (void)dev;
    (void)event;
    return OPENREG_OK;
}

static openreg_status
host_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    (void)dev;
    const openreg_status fits = openreg_alloc_check(instance->host, info, 64);
    if (fits != OPENREG_OK)
        return fits;
    /* Larger ones overflow what rounds them up. */
    void *const memory = info->size > SIZE_MAX / 2 ? NULL : aligned_alloc(64, (info->size + 63) / 64 * 64);
    if (memory == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no pinned memory");
    *out = memory;
    return OPENREG_OK;
}

static openreg_status
host_free(openreg_instance instance, int32_t dev, void *ptr)
{
    (void)dev;
    (void)instance;
    free(ptr);
    return OPENREG_OK;
}

static openreg_status
describe(const openreg_host *host, const openreg_option *options, uint32_t n, const char *topology, int32_t capacity,
         openreg_device_info *const *infos, uint8_t *peers, int32_t *count)
{
    (void)options;
    (void)n;
    if (topology[0] != '\0')
        return openreg_fail(host, OPENREG_E_INVALID, 0, "unknown topology \"%s\"", topology);
    for (int32_t i = 0; i < capacity && i < 2; ++i)
        (void)info(NULL, i, infos[i]);
    for (int32_t i = 0; peers != NULL && i < capacity && i < 2; ++i)
        for (int32_t j = 0; j < capacity && j < 2; ++j)
            peers[i * capacity + j] = 1;
    *count = 2;
    return OPENREG_OK;
}

struct call {
    void (*function)(void *argument);
    void *argument;
};

static void *
run(void *argument)
{
    const struct call *const call = argument;
    call->function(call->argument);
    return NULL;
}

/* On a thread of its own, as driver.h has it; which has ended when this returns. */
static openreg_status
host_func(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void (*function)(void *argument),
          void *argument)
{
    (void)dev;
    (void)stream;
    struct call call = {function, argument};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &call) != 0)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no thread");
    (void)pthread_join(thread, NULL);
    return OPENREG_OK;
}

openreg_status
frozen_copy(openreg_instance instance, int32_t stream_dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
            const void *src, int32_t src_dev, uint64_t size)
{
    return toy_copy(instance, stream_dev, stream, dst, dst_dev, src, src_dev, size);
}

static const openreg_driver table = {
    .struct_size = sizeof table,
    .abi_minor = OPENREG_ABI_MINOR,
    .name = "frozen",
    .version = "1.0",
    TOY_SLOTS,
    .device_info = info,
    .fill = fill,
    TOY_STREAM_SLOTS,
    .stream_wait = stream_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_sync = event_sync,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .describe = describe,
    .host_func = host_func,
    .extension = frozen_extension,
#ifdef OPENREG_NEXT_SLOT
    .next = toy_close, /* what a runtime of today must neither copy nor call */
#endif
};

EXPORT openreg_status FROZEN_ENTRY(const openreg_host *host, const openreg_driver **out);

openreg_status
FROZEN_ENTRY(const openreg_host *host, const openreg_driver **out)
{
    (void)host;
    *out = &table;
    return OPENREG_OK;
}
