/* SPDX-License-Identifier: BSD-3-Clause */
/* event_slots.c: events, checked (validated.h). */
#include <string.h>

#include "base/error.h"
#include "validation/validated.h"

static openreg_status
use_event(openreg_instance v, const char *slot, int32_t dev, openreg_driver_event event, openreg_handle **out)
{
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(openreg_handle_use(v, slot, OPENREG_MADE_BY_EVENT_CREATE, event, &entry));
    if (entry->dev != dev) {
        const int32_t owner = entry->dev;
        openreg_handle_release(v, entry);
        return openreg_validation_refuse(v, OPENREG_RULE_EVENT_DEVICE, OPENREG_E_INVALID, slot,
                                         "event %p of device %d was given with device %d", (void *)event, owner, dev);
    }
    *out = entry;
    return OPENREG_OK;
}

static openreg_status
validated_event_create(openreg_instance v, int32_t dev, uint32_t flags, openreg_driver_event *out)
{
    static const char slot[] = "event_create";
    OPENREG_RETURN_NOT_OK(openreg_validation_device(v, slot, dev));
    openreg_handle *const entry = openreg_handle_make(v, OPENREG_MADE_BY_EVENT_CREATE, dev);
    if (entry == NULL)
        return OPENREG_E_NOMEM;
    entry->flags = flags;
    openreg_driver_event const poison = (openreg_driver_event)(void *)entry;
    openreg_driver_event event = poison;
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, event_create, (v->instance, dev, flags, &event));
    openreg_validation_untouched(v, slot, status, &event, &poison, sizeof event);
    status = openreg_handle_made(v, slot, OPENREG_RULE_EVENT_HANDLE, status, event, entry);
    if (status == OPENREG_OK)
        *out = event;
    return status;
}

static openreg_status
validated_event_destroy(openreg_instance v, int32_t dev, openreg_driver_event event)
{
    static const char slot[] = "event_destroy";
    openreg_handle *entry = NULL;
    if (event != NULL) {
        OPENREG_RETURN_NOT_OK(use_event(v, slot, dev, event, &entry));
        openreg_handle_release(v, entry);
    }
    OPENREG_RETURN_NOT_OK(openreg_handle_begin_destroy(v, slot, OPENREG_MADE_BY_EVENT_CREATE, event, &entry));
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, event_destroy, (v->instance, dev, event));
    return openreg_handle_end_destroy(v, status, event, entry);
}

static openreg_status
validated_event_record(openreg_instance v, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    static const char slot[] = "event_record";
    openreg_handle *entry = NULL, *recorded = NULL;
    openreg_stream_state *state = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &entry, &state));
    openreg_status status = use_event(v, slot, dev, event, &recorded);
    if (status == OPENREG_OK) {
        /* A record in a capture is a place in the graph: it does not concern the stream's work. */
        const unsigned long long capture = atomic_load(&state->capture);
        const unsigned long long functions = capture == 0 ? atomic_load(&state->functions) : 0;
        atomic_fetch_add(&recorded->records, 1);
        atomic_fetch_add(&state->queued, 1);
        OPENREG_VALIDATED_CALL(status, v, event_record, (v->instance, dev, stream, event));
        if (status == OPENREG_OK) {
            atomic_store(&recorded->stream, state);
            atomic_store(&recorded->functions, functions);
            atomic_store(&recorded->capture, capture);
        }
        atomic_fetch_add(&recorded->records, 1);
    }
    openreg_handle_release(v, recorded);
    openreg_handle_release(v, entry);
    return status;
}

/* Called after `slot` has reported that the record which was the latest before is complete. */
static void
check_passed(openreg_instance v, const char *slot, openreg_rule rule, openreg_handle *entry, unsigned long long before,
             const openreg_stream_state *stream, unsigned long long functions)
{
    if (before % 2 != 0 || atomic_load(&entry->records) != before)
        return;
    const unsigned long long ended = stream != NULL ? atomic_load(&stream->functions_ended) : 0;
    if (stream != NULL && ended < functions && !atomic_load(&v->devices[entry->dev].has_failed))
        openreg_validation_report(v, rule, slot, "%llu host functions before the record have not returned",
                                  functions - ended);
    atomic_store(&entry->complete, before);
}

static openreg_status
validated_event_query(openreg_instance v, int32_t dev, openreg_driver_event event, int32_t *done)
{
    static const char slot[] = "event_query";
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(use_event(v, slot, dev, event, &entry));
    const unsigned long long complete = atomic_load(&entry->complete);
    const unsigned long long before = atomic_load(&entry->records);
    const openreg_stream_state *const stream = atomic_load(&entry->stream);
    const unsigned long long functions = atomic_load(&entry->functions);
    const int32_t poison = INT32_C(0x5a5a5a5a);
    int32_t answer = poison;
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, event_query, (v->instance, dev, event, &answer));
    openreg_validation_untouched(v, slot, status, &answer, &poison, sizeof answer);
    if (status != OPENREG_OK && status != OPENREG_E_CAPTURE)
        atomic_store(&v->devices[entry->dev].has_failed, 1);
    if (status == OPENREG_OK) {
        if (answer != 0 && answer != 1)
            openreg_validation_report(v, OPENREG_RULE_EVENT_DONE, slot, "it gave %d", answer);
        else if (answer == 1)
            check_passed(v, slot, OPENREG_RULE_EVENT_DONE, entry, before, stream, functions);
        else if (complete == before && atomic_load(&entry->records) == before)
            openreg_validation_report(v, OPENREG_RULE_EVENT_DONE, slot, "it gave 0, but %s",
                                      before == 0 ? "the event was never recorded"
                                                  : "the event was complete and was not recorded since");
        *done = answer;
    }
    openreg_handle_release(v, entry);
    return status;
}

static openreg_status
validated_event_sync(openreg_instance v, int32_t dev, openreg_driver_event event)
{
    static const char slot[] = "event_sync";
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(use_event(v, slot, dev, event, &entry));
    const unsigned long long before = atomic_load(&entry->records);
    const openreg_stream_state *const stream = atomic_load(&entry->stream);
    const unsigned long long functions = atomic_load(&entry->functions);
    openreg_status status;
    OPENREG_VALIDATED_CALL(status, v, event_sync, (v->instance, dev, event));
    if (status != OPENREG_OK && status != OPENREG_E_CAPTURE)
        atomic_store(&v->devices[entry->dev].has_failed, 1);
    else
        check_passed(v, slot, OPENREG_RULE_EVENT_WAITS, entry, before, stream, functions);
    openreg_handle_release(v, entry);
    return status;
}

static int
is_measured(const openreg_handle *entry)
{
    return (entry->flags & OPENREG_EVENT_TIMING) != 0 && atomic_load(&entry->records) > 0;
}

static openreg_status
validated_event_elapsed(openreg_instance v, int32_t dev, openreg_driver_event start, openreg_driver_event end,
                        int64_t *nanoseconds)
{
    static const char slot[] = "event_elapsed";
    openreg_handle *first = NULL, *last = NULL;
    OPENREG_RETURN_NOT_OK(use_event(v, slot, dev, start, &first));
    openreg_status status = openreg_handle_use(v, slot, OPENREG_MADE_BY_EVENT_CREATE, end, &last); /* of any device */
    if (status == OPENREG_OK) {
        const int may_work = is_measured(first) && is_measured(last) && first->dev == last->dev;
        const int64_t poison = INT64_MIN + 12345;
        int64_t answer = poison;
        OPENREG_VALIDATED_CALL(status, v, event_elapsed, (v->instance, dev, start, end, &answer));
        openreg_validation_untouched(v, slot, status, &answer, &poison, sizeof answer);
        if (status == OPENREG_OK ? !may_work : !may_work && status != OPENREG_E_INVALID)
            openreg_validation_report(v, OPENREG_RULE_ELAPSED_EVENTS, slot, "it returned %s for other events",
                                      openreg_status_name(status));
        if (status == OPENREG_OK && answer == poison)
            openreg_validation_report(v, OPENREG_RULE_ELAPSED, slot, "it wrote no time");
        if (status == OPENREG_OK)
            *nanoseconds = answer;
    }
    openreg_handle_release(v, last);
    openreg_handle_release(v, first);
    return status;
}

void
openreg_validation_wrap_events(openreg_driver *table)
{
    OPENREG_VALIDATED_SLOT(table, event_create);
    OPENREG_VALIDATED_SLOT(table, event_destroy);
    OPENREG_VALIDATED_SLOT(table, event_record);
    OPENREG_VALIDATED_SLOT(table, event_query);
    OPENREG_VALIDATED_SLOT(table, event_sync);
    OPENREG_VALIDATED_SLOT(table, event_elapsed);
}
