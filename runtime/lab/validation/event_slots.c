/* SPDX-License-Identifier: BSD-3-Clause */
/* event_slots.c: events, checked (validated.h). */
#include "base/error.h"
#include "validation/validated.h"

static openreg_status
use_event(openreg_instance v, const char *slot, int32_t dev, openreg_driver_event event, openreg_handle **out)
{
    return openreg_handle_use_on(v, slot, OPENREG_MADE_BY_EVENT_CREATE, event, dev, out);
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
    openreg_driver_event event;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, &v->inner, event_create, event, dev, flags, &event);
    return openreg_handle_made(v, slot, status, event, entry, out);
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
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, event_destroy, dev, event);
    return openreg_handle_end_destroy(v, status, event, entry);
}

static openreg_status
validated_event_record(openreg_instance v, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    static const char slot[] = "event_record";
    openreg_handle *on = NULL, *recorded = NULL;
    OPENREG_RETURN_NOT_OK(openreg_validation_stream(v, slot, dev, stream, &on));
    openreg_status status = use_event(v, slot, dev, event, &recorded);
    if (status == OPENREG_OK) {
        openreg_stream_state *const state = on->stream;
        /* A record in a capture is a place in the graph: it does not concern the stream's work. */
        const unsigned long long capture = atomic_load(&state->capture);
        const unsigned long long functions = capture == 0 ? atomic_load(&state->functions) : 0;
        atomic_fetch_add(&recorded->records, 1);
        atomic_fetch_add(&state->queued, 1);
        status = OPENREG_VALIDATED(v, &v->inner, event_record, dev, stream, event);
        if (status == OPENREG_OK) {
            atomic_store(&recorded->stream, state);
            atomic_store(&recorded->functions, functions);
            atomic_store(&recorded->capture, capture);
        }
        atomic_fetch_add(&recorded->records, 1);
    }
    openreg_handle_release(v, recorded);
    openreg_handle_release(v, on);
    return status;
}

/* The latest record of an event, before a call. */
typedef struct record_marks {
    unsigned long long records, functions;
    const openreg_stream_state *stream;
} record_marks;

static record_marks
mark(openreg_handle *entry)
{
    const record_marks marks = {atomic_load(&entry->records), atomic_load(&entry->functions),
                                atomic_load(&entry->stream)};
    return marks;
}

/* Called after `slot` has reported that this record is complete. */
static void
check_passed(openreg_instance v, const char *slot, openreg_rule rule, openreg_handle *entry, record_marks before)
{
    if (before.records % 2 != 0 || atomic_load(&entry->records) != before.records)
        return;
    if (before.stream != NULL)
        openreg_validation_check_functions(v, rule, slot, entry->dev, before.functions,
                                           atomic_load(&before.stream->functions_ended), " before the record");
    atomic_store(&entry->complete, before.records);
}

static openreg_status
validated_event_query(openreg_instance v, int32_t dev, openreg_driver_event event, int32_t *done)
{
    static const char slot[] = "event_query";
    openreg_handle *entry = NULL;
    OPENREG_RETURN_NOT_OK(use_event(v, slot, dev, event, &entry));
    const unsigned long long complete = atomic_load(&entry->complete);
    const record_marks before = mark(entry);
    int32_t answer;
    const openreg_status status = OPENREG_VALIDATED_OUT(v, &v->inner, event_query, answer, dev, event, &answer);
    openreg_validation_note_failure(v, dev, status);
    if (status == OPENREG_OK) {
        if (answer != 0 && answer != 1)
            openreg_validation_report(v, OPENREG_RULE_EVENT_DONE, slot, "it gave %d", answer);
        else if (answer == 1)
            check_passed(v, slot, OPENREG_RULE_EVENT_DONE, entry, before);
        else if (complete == before.records && atomic_load(&entry->records) == before.records)
            openreg_validation_report(v, OPENREG_RULE_EVENT_DONE, slot, "it gave 0, but %s",
                                      before.records == 0 ? "the event was never recorded"
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
    const record_marks before = mark(entry);
    const openreg_status status = OPENREG_VALIDATED(v, &v->inner, event_sync, dev, event);
    openreg_validation_note_failure(v, dev, status);
    if (status == OPENREG_OK)
        check_passed(v, slot, OPENREG_RULE_EVENT_WAITS, entry, before);
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
        int64_t answer;
        status = OPENREG_VALIDATED_OUT(v, &v->inner, event_elapsed, answer, dev, start, end, &answer);
        if (!may_work && status != OPENREG_E_INVALID)
            openreg_validation_report(v, OPENREG_RULE_ELAPSED_EVENTS, slot, "it returned %s for other events",
                                      openreg_status_name(status));
        if (status == OPENREG_OK && openreg_validation_is_unwritten(&answer, sizeof answer))
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
