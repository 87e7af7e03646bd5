/* SPDX-License-Identifier: BSD-3-Clause */
/* observer.c: the race detector's observer of the runtime (openreg/observer.h). */
#define _GNU_SOURCE
#include <stdio.h>

#include <openreg/observer.h>

#include "base/error.h"
#include "base/text.h"
#include "races/races.h"
#include "watch/interceptors.h"

/* Whether a call must fail because of a race, and the text. */
static int
refuse(openreg_status status, char *text, size_t size)
{
    if (status == OPENREG_OK)
        return 0;
    openreg_text_copy(text, size, openreg_error_save().text);
    return 1;
}

static void
see_block(void *ctx, int32_t what, const void *address, uint64_t size, int32_t device, openreg_stream stream)
{
    (void)ctx;
    switch (what) {
    case OPENREG_BLOCK_ALLOCATED:
        openreg_races_block_given(address, size);
        break;
    case OPENREG_BLOCK_RECORDED:
        openreg_races_block_recorded(address, size, device, stream);
        break;
    case OPENREG_BLOCK_FREE:
        openreg_races_block_freed(address, size);
        break;
    default:
        openreg_lab_races_forget(address, size);
        break;
    }
}

static int
see_use(const char *call, int32_t device, openreg_stream stream, const openreg_used_range *ranges, size_t count,
        char *text, size_t text_size)
{
    if (openreg_lab_races_is_muted())
        return 0;
    const uint32_t origin = openreg_lab_races_origin(call);
    openreg_status status = OPENREG_OK;
    for (size_t i = 0; i < count && status == OPENREG_OK; ++i)
        status = openreg_lab_races_use(origin, device, stream, ranges[i].address, ranges[i].size, ranges[i].writes);
    return refuse(status, text, text_size);
}

static openreg_status
note_tensor(uint32_t origin, int32_t device, openreg_stream stream, const openreg_tensor *tensor, int writes)
{
    if (tensor == NULL || tensor->data == NULL)
        return OPENREG_OK;
    const uint64_t item = ((uint64_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
    return openreg_lab_races_use_tensor(origin, device, stream, (const char *)tensor->data + tensor->byte_offset,
                                        tensor->ndim, tensor->shape, tensor->strides, item, writes);
}

static openreg_status
note_values(uint32_t origin, int32_t device, openreg_stream stream, const openreg_value *const *values, uint64_t count,
            int writes)
{
    for (uint64_t i = 0; i < count; ++i) {
        if (values[i]->kind == OPENREG_VALUE_TENSOR)
            OPENREG_RETURN_NOT_OK(note_tensor(origin, device, stream, values[i]->tensor, writes));
        for (uint64_t k = 0; values[i]->kind == OPENREG_VALUE_TENSORS && k < values[i]->count; ++k)
            OPENREG_RETURN_NOT_OK(note_tensor(origin, device, stream, values[i]->tensors[k], writes));
    }
    return OPENREG_OK;
}

/* Arguments that are written are also results, for which a race of the read is one of the write. */
static int
see_kernel(int32_t device, openreg_stream stream, const openreg_kernel_call *what, char *text, size_t text_size)
{
    if (openreg_lab_races_is_muted())
        return 0;
    const uint32_t origin = openreg_lab_races_origin(what->name);
    openreg_status status = note_values(origin, device, stream, what->results, what->result_count, 1);
    if (status == OPENREG_OK)
        status = note_values(origin, device, stream, what->arguments, what->argument_count, 0);
    return refuse(status, text, text_size);
}

static void
see_order(void *ctx, const openreg_order *order)
{
    (void)ctx;
    switch (order->what) {
    case OPENREG_ORDER_HOST_STREAM:
        openreg_lab_races_host_waits(order->device, order->stream);
        break;
    case OPENREG_ORDER_HOST_DEVICE:
        openreg_races_host_waits_device(order->device);
        break;
    case OPENREG_ORDER_STREAMS:
        openreg_lab_races_stream_waits(order->device, order->stream, order->first_device, order->first_stream);
        break;
    case OPENREG_ORDER_MARK:
        openreg_races_mark(order->mark, order->device, order->stream);
        break;
    case OPENREG_ORDER_HOST_MARK:
        openreg_races_host_waits_mark(order->mark);
        break;
    case OPENREG_ORDER_STREAM_MARK:
        openreg_races_stream_waits_mark(order->device, order->stream, order->mark);
        break;
    case OPENREG_ORDER_MARK_GONE:
        openreg_races_mark_gone(order->mark);
        break;
    default:
        break;
    }
}

static void
see_lost(void *ctx, const char *call, int32_t device, openreg_stream stream, const char *first_call,
         const char *first_place)
{
    (void)ctx;
    const openreg_race_use loss = {.what = first_call, .place = first_place, .stack = "", .device = device};
    openreg_races_lost_device_used(&loss, call, stream);
}

static void
see_table(void *ctx, int32_t is_published)
{
    (void)ctx;
    openreg_races_follow_variable(is_published);
}

static const openreg_observer observer = {
    .struct_size = sizeof observer,
    .block = see_block,
    .order = see_order,
    .lost = see_lost,
    .table = see_table,
};

void
openreg_races_observe(bool on)
{
    static const openreg_interceptor interceptor = {.use = see_use, .kernel = see_kernel};
    openreg_intercept(&interceptor, on ? OPENREG_OBSERVE_USES : 0);
    (void)openreg_observe(&observer, OPENREG_OBSERVE_TABLE | (on ? OPENREG_OBSERVE_USES : 0));
}

/* So that it is notified of tables before detection is on. */
__attribute__((constructor)) static void
register_observer(void)
{
    openreg_races_observe(false);
}
