/* SPDX-License-Identifier: BSD-3-Clause */
/* observer.c: the race detector's observer of the runtime (openreg/observer.h). */
#define _GNU_SOURCE
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

static const openreg_observer observer = {
    .struct_size = sizeof observer,
    .block = openreg_races_see_block,
    .order = openreg_races_see_order,
    .lost = openreg_races_see_lost,
    .table = openreg_races_see_table,
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
