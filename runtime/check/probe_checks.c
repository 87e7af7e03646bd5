/* SPDX-License-Identifier: BSD-3-Clause */
/* probe_checks.c: what the extension openreg.probe lets the checks see and do at the vendor's library. */
#include <string.h>

#include <openreg/probe.h>

#include "fixtures.h"

#define SIZE 4099 /* odd: a driver's copies in words have a head and a tail */

/* What the uses below need, made while no call fails. */
typedef struct scene {
    char *memory, *spare, *host;
    openreg_driver_stream stream;
    openreg_driver_event event, later;
} scene;

typedef enum use { ALLOC, FREE, TO, FROM, ON, FILL, HOST, FUNC, STREAM, WAIT, EVENT, RECORD, AWAIT, SYNC, USES } use;

static const char *const slots[USES] = {"mem_alloc",    "mem_free",     "copy",       "copy",          "copy",
                                        "fill",         "host_alloc",   "host_func",  "stream_create", "stream_wait",
                                        "event_create", "event_record", "event_sync", "stream_sync"};

/* One call of a slot, which may fail. */
static openreg_status
use_slot(check_context *c, use which, scene *s)
{
    void *memory = NULL;
    openreg_driver_stream stream = NULL;
    openreg_driver_event event = NULL;
    switch (which) {
    case ALLOC:
        return MAY(c, mem_alloc, c->instance, 0, BYTES(SIZE), &memory);
    case FREE:
        return MAY(c, mem_free, c->instance, 0, s->spare);
    case TO:
        return MAY(c, copy, c->instance, 0, s->stream, s->memory + 1, 0, s->host, -1, SIZE);
    case FROM:
        return MAY(c, copy, c->instance, 0, s->stream, s->host, -1, s->memory + 1, 0, SIZE);
    case ON:
        return MAY(c, copy, c->instance, 0, s->stream, s->memory + 1, 0, s->spare + 2, 0, SIZE);
    case FILL:
        return MAY(c, fill, c->instance, 0, s->stream, s->memory + 1, 7, SIZE);
    case HOST:
        return MAY(c, host_alloc, c->instance, 0, BYTES(SIZE), &memory);
    case FUNC:
        return MAY(c, host_func, c->instance, 0, s->stream, check_sleep_some, NULL);
    case STREAM:
        return MAY(c, stream_create, c->instance, 0, 0, 0, &stream);
    case WAIT:
        return MAY(c, stream_wait, c->instance, 0, s->stream, s->event);
    case EVENT:
        return MAY(c, event_create, c->instance, 0, 0, &event);
    case RECORD:
        return MAY(c, event_record, c->instance, 0, s->stream, s->later);
    case AWAIT:
        return MAY(c, event_sync, c->instance, 0, s->event);
    case SYNC:
    case USES:
        break;
    }
    return MAY(c, stream_sync, c->instance, 0, s->stream);
}

static scene
set_scene(check_context *c)
{
    scene s = {.memory = check_alloc(c, 0, SIZE + 8),
               .spare = check_alloc(c, 0, SIZE + 8),
               .host = check_host_alloc(c, SIZE, true),
               .stream = check_stream(c, 0)};
    MUST(c, copy, c->instance, 0, s.stream, s.memory, 0, s.spare, 0, SIZE);
    if (c->table.event_create != NULL) {
        s.event = check_event(c, 0, 0);
        s.later = check_event(c, 0, 0);
        MUST(c, event_record, c->instance, 0, s.stream, s.event);
    }
    MUST(c, device_sync, c->instance, 0);
    return s;
}

static openreg_status
says_why(openreg_status status)
{
    REQUIRE(status == OPENREG_OK || check_error_text()[0] != '\0',
            "a call of the vendor's library failed, and the text of the slot's error is empty");
    return status;
}

/* Whether the slot makes as many calls of the vendor's, with the waits that follow it; the last of them fails. An instance of
 * its own: what a failed call leaves is the driver's. */
static bool
fails_at(check_context *c, use which, uint32_t nth)
{
    uint32_t left = 0;
    check_open(c);
    const openreg_probe *const probe = check_extension_table(c, OPENREG_PROBE_NAME, OPENREG_PROBE_VERSION,
                                                             OPENREG_PROBE_SIZE_1);
    check_skip_if(probe->fail_vendor_call == NULL, "the extension %s has no fail_vendor_call()", OPENREG_PROBE_NAME);
    scene s = set_scene(c);
    CALL("fail_vendor_call", probe->fail_vendor_call(c->instance, nth, &left));
    const openreg_status status = says_why(use_slot(c, which, &s));
    openreg_status waited = OPENREG_OK;
    if (c->table.stream_sync != NULL)
        waited = says_why(MAY(c, stream_sync, c->instance, 0, s.stream));
    const openreg_status synced = says_why(MAY(c, device_sync, c->instance, 0));
    CALL("fail_vendor_call", probe->fail_vendor_call(c->instance, 0, &left));
    const bool has_failed = left == 0;
    REQUIRE(!has_failed || status != OPENREG_OK || waited != OPENREG_OK || synced != OPENREG_OK,
            "call number %u of the vendor's library in %s() and the waits behind it failed, and each slot answered OK",
            (unsigned)nth, slots[which]);
    check_close(c);
    return has_failed;
}

static void
failed_calls_are_reported(check_context *c)
{
    enum { MOST = 40 }; /* calls in a slot */
    const char *missing;
    int failures = 0;
    for (int which = 0; which < USES; ++which)
        if (check_has_slots(&c->table, slots[which], &missing))
            for (uint32_t nth = 1; nth <= MOST && fails_at(c, (use)which, nth); ++nth)
                ++failures;
    REQUIRE(failures > 0, "fail_vendor_call() made no call fail: none is counted");
}

static void
slots_leave_the_device(check_context *c)
{
    const openreg_probe *const probe = check_extension_table(c, OPENREG_PROBE_NAME, OPENREG_PROBE_VERSION,
                                                             OPENREG_PROBE_SIZE_1);
    check_skip_if(probe->vendor_device == NULL, "the extension %s has no vendor_device()", OPENREG_PROBE_NAME);
    const char *name = "";
    for (int which = 0; name != NULL; ++which) {
        int32_t before = -2, after = -2;
        OPTIONAL(c, device_bind, c->instance, 0);
        CALL("vendor_device", probe->vendor_device(c->instance, &before));
        name = check_use_alone(c, 1, which);
        CALL("vendor_device", probe->vendor_device(c->instance, &after));
        const bool binds = name != NULL && strcmp(name, "device_bind") == 0;
        REQUIRE(after == (binds ? 1 : before), "the vendor's current device was %d, and after %s of device 1 %d",
                before, name == NULL ? "nothing" : name, after);
    }
}

static const check_case cases[] = {
    {"probe.errors", "extension", CHECK_CLOSED,
     "A vendor's call that fails is reported by the slot that made it, or by the next query or sync of that stream.",
     "Look at what each of the vendor's functions returns, in threads of the driver's own, too.",
     failed_calls_are_reported},
    {"probe.device", "extension", CHECK_TWO_DEVICES,
     "A slot leaves the vendor's current device of the calling thread as it was; device_bind() alone sets it.",
     "Set the vendor's device at the start of a slot, and put it back at the end, where it fails, too.",
     slots_leave_the_device},
};
const check_group check_probe_group = CHECK_GROUP(1, cases);
