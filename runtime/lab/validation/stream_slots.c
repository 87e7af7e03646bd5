/* SPDX-License-Identifier: BSD-3-Clause */
/* stream_slots.c: streams and waits for them, checked (validated.h).
 *
 * Two effects of a wait can be checked: a stream without new work since has no work, and its host functions have returned. */
#include <string.h>

#include "base/error.h"
#include "validation/validated.h"

#define POISON_DONE INT32_C(0x5a5a5a5a)

openreg_status
openreg_validation_stream(openreg_instance v, const char *slot, int32_t dev, openreg_driver_stream stream,
                          openreg_handle **entry, openreg_stream_state **state)
{
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    *entry = NULL;
    if (stream == NULL) {
        *state = &v->devices[dev].stream;
        return OPENREG_OK;
    }
    openreg_handle *found = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, slot, OPENREG_MADE_BY_STREAM_CREATE, stream, &found));
    if (found->dev != dev) {
        const int32_t owner = found->dev;
        openreg_handle_release(v, found);
        return openreg_validation_refuse(v, OPENREG_RULE_HANDLE_ALIVE, OPENREG_E_INVALID, slot,
                                         "stream %p of device %d was used for device %d", (void *)stream, owner, dev);
    }
    *entry = found;
    *state = found->stream;
    return OPENREG_OK;
}

/* ---------------------------------------------------------------------------------------------------------- waiting */

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
    const unsigned long long ended = atomic_load(&state->functions_ended);
    if (ended < before.functions && !atomic_load(&v->devices[dev].has_failed))
        openreg_validation_report(v, rule, slot, "%llu host functions of the stream have not returned",
                                  before.functions - ended);
    unsigned long long drained = atomic_load(&state->drained);
    while (drained < before.queued && !atomic_compare_exchange_weak(&state->drained, &drained, before.queued)) {
    }
}

static void
note_failure(openreg_instance v, int32_t dev, openreg_status status)
{
    if (status != OPENREG_OK && status != OPENREG_E_CAPTURE)
        atomic_store(&v->devices[dev].has_failed, 1);
}

static openreg_status
validated_stream_query(openreg_instance v, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    static const char slot[] = "stream_query";
    openreg_handle *entry = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &entry, &state));
    const unsigned long long drained = atomic_load(&state->drained);
    const wait_marks before = mark(state);
    const int32_t poison = POISON_DONE;
    int32_t answer = poison;
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, stream_query, (v->instance, dev, stream, &answer));
    openreg_validation_untouched(v, slot, status, &answer, &poison, sizeof answer);
    note_failure(v, dev, status);
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
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_stream_sync(openreg_instance v, int32_t dev, openreg_driver_stream stream)
{
    static const char slot[] = "stream_sync";
    openreg_handle *entry = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &entry, &state));
    const wait_marks before = mark(state);
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, stream_sync, (v->instance, dev, stream));
    note_failure(v, dev, status);
    openreg_validation_judge_refusal(v, slot, atomic_load(&state->capture), status);
    if (status == OPENREG_OK)
        check_ended(v, slot, OPENREG_RULE_STREAM_WAITS, dev, state, before);
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_device_sync(openreg_instance v, int32_t dev)
{
    static const char slot[] = "device_sync";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    openreg_device_state *const device = &v->devices[dev];
    const unsigned long long functions = atomic_load(&device->functions);
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, device_sync, (v->instance, dev));
    note_failure(v, dev, status);
    const unsigned long long ended = atomic_load(&device->functions_ended);
    if (status == OPENREG_OK && ended < functions && !atomic_load(&device->has_failed))
        openreg_validation_report(v, OPENREG_RULE_DEVICE_WAITS, slot, "%llu host functions have not returned",
                                  functions - ended);
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
    openreg_driver_stream const poison = (openreg_driver_stream)(void *)entry;
    openreg_driver_stream stream = poison;
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, stream_create, (v->instance, dev, flags, priority, &stream));
    openreg_validation_untouched(v, slot, status, &stream, &poison, sizeof stream);
    status = openreg_handle_made(v, slot, OPENREG_RULE_STREAM_HANDLE, status, stream, entry);
    if (status == OPENREG_OK)
        *out = stream;
    return status;
}

static openreg_status
validated_stream_destroy(openreg_instance v, int32_t dev, openreg_driver_stream stream)
{
    static const char slot[] = "stream_destroy";
    openreg_handle *entry = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &entry, &state));
    openreg_handle_release(v, entry);
    OPENREG_RETURN_NOT_OK(openreg_handle_begin_destroy(v, slot, OPENREG_MADE_BY_STREAM_CREATE, stream, &entry));
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, stream_destroy, (v->instance, dev, stream));
    return openreg_handle_end_destroy(v, status, stream, entry);
}

static openreg_status
validated_stream_native(openreg_instance v, int32_t dev, openreg_driver_stream stream, void **out)
{
    static const char slot[] = "stream_native";
    openreg_handle *entry = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &entry, &state));
    atomic_store(&state->is_shared, 1);
    void *const poison = (void *)&poison;
    void *native = poison;
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, stream_native, (v->instance, dev, stream, &native));
    openreg_validation_untouched(v, slot, status, &native, &poison, sizeof native);
    if (status == OPENREG_OK && native != poison)
        *out = native;
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_stream_wait(openreg_instance v, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    static const char slot[] = "stream_wait";
    openreg_handle *entry = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &entry, &state));
    openreg_handle *waited = NULL;
    openreg_status status = openreg_handle_use(v, slot, OPENREG_MADE_BY_EVENT_CREATE, event, &waited);
    if (status == OPENREG_OK) {
        atomic_fetch_add(&state->queued, 1);
        OPENREG_VALIDATED_CALL(status, v, stream_wait, (v->instance, dev, stream, event));
        if (status == OPENREG_OK)
            openreg_validation_join(v, state, waited);
    }
    openreg_handle_release(v, waited);
    openreg_handle_release(v, entry);
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
