/* SPDX-License-Identifier: BSD-3-Clause */
/* error_checks.c: what a slot that fails returns, says and leaves alone. */
#include <string.h>

#include "fixtures.h"

static void
memory_runs_out(check_context *c)
{
    const bool is_host = strcmp(c->check->name, "errors.host_memory") == 0;
    const uint64_t sizes[] = {UINT64_C(1) << 60, UINT64_MAX, UINT64_MAX - 4095, (UINT64_C(1) << 63) + 1};
    for (int32_t dev = 0; dev < (is_host ? 1 : c->devices); ++dev)
        for (size_t i = 0; i < (is_host ? 3 : sizeof sizes / sizeof sizes[0]); ++i) {
            void *memory = c; /* must stay */
            if (is_host)
                FAILS(c, OPENREG_E_NOMEM, host_alloc, c->instance, 0, BYTES(sizes[i]), &memory);
            else
                FAILS(c, OPENREG_E_NOMEM, mem_alloc, c->instance, dev, BYTES(sizes[i]), &memory);
            REQUIRE(memory == c, "%s() failed and wrote its out-parameter", is_host ? "host_alloc" : "mem_alloc");
            REQUIRE(is_host || check_error_text()[0] != '\0',
                    "mem_alloc() failed and gave an empty text to set_error()");
        }
    check_slot_tour(c);
}

static void
time_of_unfit_events(check_context *c)
{
    openreg_driver_event const timed = check_event(c, 0, OPENREG_EVENT_TIMING);
    openreg_driver_event const other = check_event(c, 0, OPENREG_EVENT_TIMING);
    openreg_driver_event const plain = check_event(c, 0, 0);
    int64_t ns = -77;
    MUST(c, event_record, c->instance, 0, NULL, timed);
    MUST(c, event_record, c->instance, 0, NULL, plain);
    MUST(c, device_sync, c->instance, 0);
    FAILS(c, OPENREG_E_INVALID, event_elapsed, c->instance, 0, timed, other, &ns); /* never recorded */
    FAILS(c, OPENREG_E_INVALID, event_elapsed, c->instance, 0, other, timed, &ns);
    FAILS(c, OPENREG_E_INVALID, event_elapsed, c->instance, 0, timed, plain, &ns); /* not timed */
    FAILS(c, OPENREG_E_INVALID, event_elapsed, c->instance, 0, plain, timed, &ns);
    REQUIRE(ns == -77, "event_elapsed() failed and wrote its out-parameter");
    MUST(c, event_record, c->instance, 0, NULL, other);
    MUST(c, device_sync, c->instance, 0);
    MUST(c, event_elapsed, c->instance, 0, timed, other, &ns); /* the failures have changed nothing */
}

/* To an event that is pending, or to a complete one of another device. */
static void
time_to_unfit_event(check_context *c)
{
    const bool is_pending = strcmp(c->check->name, "errors.elapsed_pending") == 0;
    const int32_t dev = is_pending ? 0 : 1;
    openreg_driver_event const start = check_event(c, 0, OPENREG_EVENT_TIMING);
    openreg_driver_event const end = check_event(c, dev, OPENREG_EVENT_TIMING);
    int64_t ns = -77;
    MUST(c, event_record, c->instance, 0, NULL, start);
    check_gate *const gate = is_pending ? check_gate_close(c, 0, NULL) : NULL;
    MUST(c, event_record, c->instance, dev, NULL, end);
    if (!is_pending) {
        MUST(c, device_sync, c->instance, 0);
        MUST(c, device_sync, c->instance, 1);
    }
    FAILS(c, OPENREG_E_INVALID, event_elapsed, c->instance, 0, start, end, &ns);
    REQUIRE(ns == -77, "event_elapsed() failed and wrote its out-parameter");
    if (!is_pending)
        return;
    check_gate_open(gate);
    MUST(c, event_sync, c->instance, 0, end);
    MUST(c, event_elapsed, c->instance, 0, start, end, &ns);
}

static void
zero_bytes(check_context *c)
{
    unsigned char *const host = check_host_alloc(c, 64, true);
    char *const memory = check_alloc(c, c->dev, 64);
    MUST(c, copy, c->instance, c->dev, NULL, memory, c->dev, host, -1, 0);
    MUST(c, copy, c->instance, c->dev, NULL, host, -1, memory, c->dev, 0);
    MUST(c, copy, c->instance, c->dev, NULL, memory + 32, c->dev, memory, c->dev, 0);
    MUST(c, copy, c->instance, c->dev, NULL, memory + 64, c->dev, host + 64, -1, 0); /* one past the end */
    OPTIONAL(c, fill, c->instance, c->dev, NULL, memory, 1, 0);
    MUST(c, device_sync, c->instance, c->dev);
    check_free(c, c->dev, memory);
}

static const check_case cases[] = {
    {"errors.success", "", 0, "set_error() is never called before OPENREG_OK.",
     "A helper that sets the error before it looks at the vendor's code; a first attempt that fails and a second that "
     "works.",
     check_slot_tour}, /* each call compares */
    {"errors.memory", "", 0,
     "Out of device memory is OPENREG_E_NOMEM, after exactly one set_error(); on failure nothing has changed and no "
     "out-parameter has been written.",
     "The caching allocator frees and asks again on this code alone. Compare sizes before rounding, which may "
     "overflow.",
     memory_runs_out},
    {"errors.host_memory", "host_alloc", 0, "Out of pinned memory is OPENREG_E_NOMEM.",
     "Vendors have a code of their own for it, and some give a general one.", memory_runs_out},
    {"errors.elapsed", "event_create event_elapsed", 0,
     "event_elapsed(): both events created with OPENREG_EVENT_TIMING and recorded, else E_INVALID.",
     "Keep the flag and whether there was a record with the event.", time_of_unfit_events},
    {"errors.elapsed_pending", "event_create event_elapsed host_func", CHECK_GATE,
     "event_elapsed(): both events complete, else E_INVALID.", "Query both events first.", time_to_unfit_event},
    {"errors.elapsed_devices", "event_create event_elapsed", CHECK_TWO_DEVICES,
     "event_elapsed(): both events of one device, else E_INVALID.", "Keep the device with the event.",
     time_to_unfit_event},
    {"errors.zero_size", "", CHECK_EACH, "A size of 0 is valid, succeeds and does nothing.",
     "Vendors refuse it: return before they are called.", zero_bytes},
};
const check_group check_error_group = CHECK_GROUP(1, cases);
