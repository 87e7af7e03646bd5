/* SPDX-License-Identifier: BSD-3-Clause */
/* stream_slots.c: streams and waits for them, checked (validated.h).
 *
 * Two effects of a wait can be checked: a stream without new work since has no work, and its host functions have returned. */
#include "base/error.h"
#include "validation/validated.h"

openreg_status
openreg_validation_stream(openreg_instance v, const char *slot, int32_t dev, openreg_driver_stream stream,
                          openreg_handle **out)
{
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    if (stream != NULL)
        return openreg_handle_use_on(v, slot, OPENREG_MADE_BY_STREAM_CREATE, stream, dev, out);
    *out = v->devices[dev].stream;
    openreg_lock_acquire(&v->lock);
    ++(*out)->uses;
    openreg_lock_release(&v->lock);
    return OPENREG_OK;
}

/* ---------------------------------------------------------------------------------------------------------- waiting */

void
openreg_validation_check_functions(openreg_instance v, openreg_rule rule, const char *slot, int32_t dev,
                                   unsigned long long functions, unsigned long long ended, const char *which)
{
    if (ended < functions && !atomic_load(&v->devices[dev].has_failed))
        openreg_validation_report(v, rule, slot, "%llu host functions%s have not returned", functions - ended, which);
}

void
openreg_validation_note_failure(openreg_instance v, int32_t dev, openreg_status status)
{
    if (status != OPENREG_OK && status != OPENREG_E_CAPTURE)
        atomic_store(&v->devices[dev].has_failed, 1);
}

typedef struct wait_marks {
    unsigned long long queued, functions;
} wait_marks;

static wait_marks
mark(openreg_stream_state *state)
{
    const wait_marks marks = {atomic_load(&state->queued), atomic_load(&state->functions)};
    return marks;
}

/* Called after `slot` has reported that the stream's work has ended. */
static void
check_ended(openreg_instance v, const char *slot, openreg_rule rule, int32_t dev, openreg_stream_state *state,
            wait_marks before)
{
    openreg_validation_check_functions(v, rule, slot, dev, before.functions, atomic_load(&state->functions_ended),
                                       " of the stream");
    unsigned long long drained = atomic_load(&state->drained);
    while (drained < before.queued && !atomic_compare_exchange_weak(&state->drained, &drained, before.queued)) {
    }
}

static openreg_status
validated_stream_query(openreg_instance v, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    static const char slot[] = "stream_query";
    openreg_handle *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on));
    openreg_stream_state *const state = on->stream;
    const unsigned long long drained = atomic_load(&state->drained);
    const wait_marks before = mark(state);
    int32_t answer;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, &v->inner, stream_query, answer, dev, stream, &answer);
    openreg_validation_note_failure(v, dev, status);
    openreg_validation_judge_refusal(v, slot, atomic_load(&state->capture), status);
    if (status == OPENREG_OK) {
        if (answer != 0 && answer != 1)
            openreg_validation_report(v, OPENREG_RULE_STREAM_DONE, slot, "it gave %d", answer);
        else if (answer == 1)
            check_ended(v, slot, OPENREG_RULE_STREAM_DONE, dev, state, before);
        else if (drained == before.queued && atomic_load(&state->queued) == before.queued &&
                 !atomic_load(&state->is_shared))
            openreg_validation_report(v, OPENREG_RULE_STREAM_DONE, slot,
                                      "it gave 0, but the stream was waited for and has no work since");
        *done = answer;
    }
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_stream_sync(openreg_instance v, int32_t dev, openreg_driver_stream stream)
{
    static const char slot[] = "stream_sync";
    openreg_handle *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on));
    openreg_stream_state *const state = on->stream;
    const wait_marks before = mark(state);
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, stream_sync, dev, stream);
    openreg_validation_note_failure(v, dev, status);
    openreg_validation_judge_refusal(v, slot, atomic_load(&state->capture), status);
    if (status == OPENREG_OK)
        check_ended(v, slot, OPENREG_RULE_STREAM_WAITS, dev, state, before);
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_device_sync(openreg_instance v, int32_t dev)
{
    static const char slot[] = "device_sync";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    openreg_device_state *const device = &v->devices[dev];
    const unsigned long long functions = atomic_load(&device->functions);
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, device_sync, dev);
    openreg_validation_note_failure(v, dev, status);
    if (status == OPENREG_OK)
        openreg_validation_check_functions(v, OPENREG_RULE_DEVICE_WAITS, slot, dev, functions,
                                           atomic_load(&device->functions_ended), "");
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- handles */

static openreg_status
validated_stream_create(openreg_instance v, int32_t dev, uint32_t flags, int32_t priority, openreg_driver_stream *out)
{
    static const char slot[] = "stream_create";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    const openreg_device_info *const info = &v->devices[dev].info;
    if (flags != 0 || priority < info->priority_high || priority > info->priority_low)
        openreg_validation_report(v, OPENREG_RULE_STREAM_ARGUMENTS, slot, "flags are %u, the priority is %d", flags,
                                  priority);
    openreg_handle *const entry = openreg_handle_make(v, OPENREG_MADE_BY_STREAM_CREATE, dev);
    if (entry == NULL)
        return OPENREG_E_NOMEM;
    openreg_driver_stream made;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, &v->inner, stream_create, made, dev, flags, priority, &made);
    return openreg_handle_made(v, slot, status, made, entry, out);
}

static openreg_status
validated_stream_destroy(openreg_instance v, int32_t dev, openreg_driver_stream stream)
{
    static const char slot[] = "stream_destroy";
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &entry));
    openreg_handle_release(v, entry);
    OPENREG_RETURN_NOT_OK(openreg_handle_begin_destroy(v, slot, OPENREG_MADE_BY_STREAM_CREATE, stream, &entry));
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, stream_destroy, dev, stream);
    return openreg_handle_end_destroy(v, status, stream, entry);
}

static openreg_status
validated_stream_native(openreg_instance v, int32_t dev, openreg_driver_stream stream, void **out)
{
    openreg_handle *on = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, "stream_native", dev, stream, &on));
    atomic_store(&on->stream->is_shared, 1);
    void *native;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, &v->inner, stream_native, native, dev, stream, &native);
    if (status == OPENREG_OK && !openreg_validation_is_unwritten(&native, sizeof native))
        *out = native;
    openreg_handle_release(v, on);
    return status;
}

static openreg_status
validated_stream_wait(openreg_instance v, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    static const char slot[] = "stream_wait";
    openreg_handle *on = NULL, *waited = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on));
    openreg_status status = openreg_handle_use(v, slot, OPENREG_MADE_BY_EVENT_CREATE, event, &waited);
    if (status == OPENREG_OK) {
        atomic_fetch_add(&on->stream->queued, 1);
        status = OPENREG_VALIDATED(v, &v->inner, stream_wait, dev, stream, event);
        if (status == OPENREG_OK)
            openreg_validation_join(v, on->stream, waited);
    }
    openreg_handle_release(v, waited);
    openreg_handle_release(v, on);
    return status;
}

void
openreg_validation_wrap_streams(openreg_driver *table)
{
    table->device_sync = validated_device_sync;
    OPENREG_VALIDATED_SLOT(table, stream_create);
    OPENREG_VALIDATED_SLOT(table, stream_destroy);
    OPENREG_VALIDATED_SLOT(table, stream_query);
    OPENREG_VALIDATED_SLOT(table, stream_sync);
    OPENREG_VALIDATED_SLOT(table, stream_wait);
    OPENREG_VALIDATED_SLOT(table, stream_native);
}
