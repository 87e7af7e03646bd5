/* SPDX-License-Identifier: BSD-3-Clause */
/* toy_streams.h: streams of drivers whose work has ended when it is queued; each has a number, from 1. TOY_STREAM_SLOTS are
 * their functions' places in a table. */
#ifndef OPENREG_TESTS_TOY_STREAMS_H
#define OPENREG_TESTS_TOY_STREAMS_H

#include "toy_common.h"

struct openreg_driver_stream_s {
    int number;
};

static openreg_status
toy_stream_create(openreg_instance instance, int32_t dev, uint32_t flags, int32_t priority, openreg_driver_stream *out)
{
    (void)dev;
    (void)flags;
    (void)priority;
    static int streams;
    openreg_driver_stream const stream = malloc(sizeof *stream);
    if (stream == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for a stream");
    stream->number = __atomic_add_fetch(&streams, 1, __ATOMIC_RELAXED);
    *out = stream;
    return OPENREG_OK;
}

static openreg_status
toy_stream_destroy(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    (void)instance;
    (void)dev;
    free(stream);
    return OPENREG_OK;
}

static openreg_status
toy_stream_query(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    (void)instance;
    (void)dev;
    (void)stream;
    *done = 1;
    return OPENREG_OK;
}

static openreg_status
toy_stream_sync(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    (void)instance;
    (void)dev;
    (void)stream;
    return OPENREG_OK;
}

#define TOY_STREAM_SLOTS                                                                                               \
    .stream_create = toy_stream_create, .stream_destroy = toy_stream_destroy, .stream_query = toy_stream_query,        \
    .stream_sync = toy_stream_sync

#endif
