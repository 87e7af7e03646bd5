/* SPDX-License-Identifier: BSD-3-Clause */
/* lifecycle_checks.c: describe, open, device_count and close. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures.h"
#include "runner.h"

#define REPEATED_SECONDS 8.0 /* for windows of one slot each: a driver that is slow to open has fewer */

#define STREAM_BOOKS 256u /* bytes: a vendor may know the handle of each stream that there was */

static int alone; /* what a round uses; -1: all that there is */

static void
open_and_close(check_context *c, int i)
{
    check_open(c);
    if (alone < 0)
        check_slot_tour(c);
    else
        (void)check_use_alone(c, i % c->devices, alone);
    check_close(c);
}

/* Each window's rounds begin with another slot: what is made at its first use is another than what others have made. */
static void
open_use_and_close(check_context *c)
{
    const double end = check_now() + REPEATED_SECONDS;
    const char *name = "every slot";
    char what[80];
    for (alone = -1; check_now() < end; ++alone) {
        check_open(c);
        name = alone < 0 ? name : check_use_alone(c, 0, alone);
        check_close(c);
        if (name == NULL)
            break;
        const unsigned streams = alone < 0 ? 3 * (unsigned)c->devices : strncmp(name, "stream", 6) == 0;
        (void)snprintf(what, sizeof what, "open(), %s and close()", name);
        if (*name != '\0')
            check_slope(c, alone < 0 ? 50 : 100, 48 + STREAM_BOOKS * streams, open_and_close, what);
    }
}

/* What is destroyed with work goes with the instance, if it hasn't gone before. No device_sync()
 * or mem_free() comes in between, where a driver may clear away; the work has ended all the same. */
static void
close_after_busy_stream(check_context *c, int i)
{
    (void)i;
    openreg_driver_stream const stream = check_stream(c, 0);
    openreg_driver_event const event = c->table.event_create == NULL ? NULL : check_event(c, 0, 0);
    char *const memory = check_alloc(c, 0, 8192);
    MUST(c, copy, c->instance, 0, stream, memory, 0, memory + 4096, 0, 4096);
    check_free(c, 0, memory);
    check_delay(c, 0, stream, 2); /* no gate: stream_destroy() may wait */
    if (event != NULL)
        MUST(c, event_record, c->instance, 0, stream, event);
    MUST(c, stream_destroy, c->instance, 0, stream);
    if (event != NULL) {
        MUST(c, event_sync, c->instance, 0, event);
        MUST(c, event_destroy, c->instance, 0, event);
    } else {
        MUST(c, device_sync, c->instance, 0);
    }
    check_close(c);
    check_open(c);
}

static void
busy_streams_are_closed(check_context *c)
{
    check_slope(c, 40, 48, close_after_busy_stream, "a stream destroyed with work, and close()");
}

static void
opens_again_as_before(check_context *c)
{
    check_open(c);
    const int32_t devices = c->devices;
    check_close(c);
    check_whole_slot_tour(c);
    REQUIRE(c->devices == devices, "the first instance had %d devices, the second %d", devices, c->devices);
}

/* What an option can change, for those that see the driver's devices alone. */
typedef struct offer {
    openreg_status status;
    int32_t devices;
    uint64_t memory;
} offer;

static offer
offer_with(check_context *c, const openreg_option *options, uint32_t count)
{
    openreg_instance const poison = (openreg_instance)(uintptr_t)0x5eed;
    openreg_instance instance = poison;
    offer found = {.status = check_open_with(c, options, count, &instance)};
    if (found.status != OPENREG_OK) {
        REQUIRE(instance == poison, "open() failed and wrote its out-parameter");
        return found;
    }
    c->instance = instance;
    MUST(c, device_count, instance, &found.devices);
    if (found.devices > 0)
        found.memory = check_total_memory(c, 0);
    check_close(c);
    return found;
}

static bool
is_same(const offer *a, const offer *b)
{
    return a->status == b->status && a->devices == b->devices && a->memory == b->memory;
}

static void
unknown_option_is_ignored(check_context *c)
{
    openreg_option options[33];
    const size_t given = c->target->option_count < 30 ? c->target->option_count : 30;
    for (size_t i = 0; i < given; ++i)
        options[i] = c->target->options[i];
    options[given] = (openreg_option){"openreg_check_unknown", "1"};
    options[given + 1] = (openreg_option){"node_id", "0"};
    options[given + 2] = (openreg_option){"num_nodes", "1"};
    const offer usual = offer_with(c, options, given), found = offer_with(c, options, given + 3);
    check_skip_if(usual.status == OPENREG_E_NO_DEVICE && found.status == OPENREG_E_NO_DEVICE,
                  "open() found no device: %s", check_error_text());
    REQUIRE(
        is_same(&found, &usual),
        "open() with the option openreg_check_unknown returned %s (%d devices, %llu bytes), without it %s (%d, %llu)",
        check_status_name(found.status), found.devices, (unsigned long long)found.memory,
        check_status_name(usual.status), usual.devices, (unsigned long long)usual.memory);
}

/* A value that isn't one is E_INVALID where the driver has the option, and changes nothing where it doesn't. */
static int
refuse_value(check_context *c, const char *key, const char *value, const offer *usual)
{
    const openreg_option option = {key, value};
    const offer found = offer_with(c, &option, 1);
    if (is_same(&found, usual))
        return 0;
    REQUIRE(found.status == OPENREG_E_INVALID,
            "open() with %s=\"%s\" returned %s (%d devices, %llu bytes), without the option %s (%d, %llu): the value "
            "was taken for another",
            key, value, check_status_name(found.status), found.devices, (unsigned long long)found.memory,
            check_status_name(usual->status), usual->devices, (unsigned long long)usual->memory);
    char upper[64] = "";
    for (size_t k = 0; key[k] != '\0' && k + 1 < sizeof upper; ++k)
        upper[k] = key[k] >= 'a' && key[k] <= 'z' ? (char)(key[k] - 'a' + 'A') : key[k];
    REQUIRE(strstr(check_error_text(), key) != NULL || strstr(check_error_text(), upper) != NULL,
            "open() refused the option %s, but the text does not name it: \"%s\"", key, check_error_text());
    return 1;
}

static void
bad_option_is_named(check_context *c)
{
    static const char *const keys[] = {"devices", "memory"}, *const values[] = {"not a number", "3x", "-1", ""};
    const offer usual = offer_with(c, NULL, 0);
    int refused = 0;
    for (size_t v = 0; v < sizeof values / sizeof values[0]; ++v) {
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i)
            refused += refuse_value(c, keys[i], values[v], &usual);
        /* Options of the command line, if what they are given is a number. */
        for (size_t i = 0; i < c->target->option_count; ++i) {
            char *end;
            (void)strtod(c->target->options[i].value, &end);
            if (end != c->target->options[i].value)
                refused += refuse_value(c, c->target->options[i].key, values[v], &usual);
        }
    }
    if (refuse_value(c, "devices", "not a number", &usual) != 0) {
        const offer one = offer_with(c, &(const openreg_option){"devices", "1"}, 1);
        REQUIRE(one.status != OPENREG_OK || one.devices == 1, "open() with devices=\"1\" has %d devices", one.devices);
    }
    check_skip_if(refused == 0,
                  "the driver has neither of the options devices and memory, and none was given by --option");
}

static void *
count_often(void *argument)
{
    check_context *const c = argument;
    for (int i = 0; i < 500; ++i) {
        int32_t count = -1;
        MUST(c, device_count, c->instance, &count);
        REQUIRE(count == c->devices, "device_count() said %d, and now %d", c->devices, count);
    }
    return NULL;
}

static void
count_is_constant(check_context *c)
{
    void *const memory = check_alloc(c, 0, 4096);
    check_run_threads(count_often, c, 0, 8); /* all have the same context */
    check_slot_tour(c);
    (void)count_often(c);
    check_free(c, 0, memory);
}

#define DESCRIBED 16

/* What describe() fills in, and bytes behind each that it must leave alone. */
static struct {
    openreg_device_info info;
    unsigned char guard[64];
} all[DESCRIBED];
static openreg_device_info *infos[DESCRIBED];
static uint8_t peers[DESCRIBED * DESCRIBED];
static const openreg_device_info untouched = {.struct_size = sizeof untouched};

/* `to`: NULL, or the peers. What lies beyond the capacity stays 0xa5. */
static openreg_status
describe(check_context *c, int32_t capacity, uint8_t *to, int32_t *count)
{
    memset(all, 0xa5, sizeof all);
    for (int i = 0; i < DESCRIBED; ++i) {
        infos[i] = &all[i].info;
        if (i < capacity)
            all[i].info = untouched;
    }
    return MAY(c, describe, c->host, c->target->options, c->target->option_count, "", capacity,
               capacity > 0 ? infos : NULL, to, count);
}

/* Before open(): describe(), which counts. Skips the check where only open() can tell. */
static int32_t
described(check_context *c, int32_t capacity, uint8_t *to)
{
    int32_t count = -7;
    const openreg_status status = describe(c, capacity, to, &count);
    check_skip_if(status == OPENREG_E_UNSUPPORTED || status == OPENREG_E_NO_DEVICE, "describe()%s returned %s",
                  capacity == 0 ? " with capacity 0" : "", check_status_name(status));
    check_succeeded("describe", status);
    return count;
}

static void
count_agrees(check_context *c)
{
    const int32_t count = described(c, 0, NULL);
    check_open(c);
    REQUIRE(count == c->devices, "describe() with capacity 0 counted %d devices, device_count() %d", count, c->devices);
}

/* The child opens the driver, as a worker process of a program does that has only counted. */
static void
count_leaves_fork_safe(check_context *c)
{
    (void)described(c, 0, NULL);
    const pid_t child = fork();
    if (child == 0) {
        check_whole_slot_tour(c);
        check_pass();
    }
    check_await_child(child, 0, CHECK_EXIT_PASS,
                      "a child made after describe() with capacity 0, which opened the driver,");
}

static void
describe_agrees(check_context *c)
{
    const int32_t again = described(c, DESCRIBED, NULL), count = described(c, DESCRIBED, peers);
    for (int i = 0; i < DESCRIBED; ++i) {
        check_is_value(all[i].guard, sizeof all[i].guard, 0xa5, "what lies behind an openreg_device_info");
        REQUIRE(i < count || memcmp(&all[i].info, &untouched, sizeof untouched) == 0,
                "describe() counted %d devices, and filled infos[%d]", count, i);
    }
    REQUIRE(again == count, "describe() counted %d devices, and %d where peers is NULL", count, again);
    check_open(c);
    REQUIRE(count == c->devices, "describe() counted %d devices, device_count() %d", count, c->devices);
    for (int32_t i = 0; i < count && i < DESCRIBED; ++i) {
        if (c->table.device_info == NULL)
            break;
        const openreg_device_info info = check_info(c, i);
        REQUIRE(strcmp(all[i].info.name, info.name) == 0,
                "device %d is \"%.60s\" for describe() and \"%.60s\" for device_info()", i, all[i].info.name,
                info.name);
        static const char none[sizeof info.uuid];
        REQUIRE(memcmp(all[i].info.uuid, none, sizeof none) == 0 || memcmp(info.uuid, none, sizeof none) == 0 ||
                    memcmp(all[i].info.uuid, info.uuid, sizeof none) == 0,
                "device %d has one UUID for describe() and another for device_info()", i);
    }
    for (size_t i = 0; i < sizeof peers; ++i)
        REQUIRE(peers[i] <= 1, "describe() set peers[%zu] to %u", i, peers[i]);
}

/* Two of three count alone, as programs do that only ask for the number. */
static void
describe_once(check_context *c, int i)
{
    int32_t count = -7;
    (void)describe(c, i % 3 == 0 ? DESCRIBED : 0, peers, &count);
}

static void
describe_leaves_nothing(check_context *c)
{
    (void)described(c, 0, NULL);
    check_slope(c, 40, 0, describe_once, "describe(), which has no instance that close() could end");
}

static void
describe_keeps_to_capacity(check_context *c)
{
    int32_t count = -7;
    memset(peers, 9, sizeof peers);
    (void)described(c, 1, peers);
    check_is_value(&all[1], sizeof all[1], 0xa5, "the second info after describe() with capacity 1");
    check_is_value(peers + 1, sizeof peers - 1, 9, "what lies behind peers[0] after describe() with capacity 1");
    FAILS(c, OPENREG_E_INVALID, describe, c->host, c->target->options, c->target->option_count,
          "openreg-check has no such topology", 1, infos, NULL, &count);
    REQUIRE(count == -7, "describe() failed and wrote its out-parameter");
}

static const check_case cases[] = {
    {"lifecycle.repeated", "", CHECK_CLOSED,
     "close() ends the instance: what open() made is released, and what each slot made at its first use.",
     "Compare what open() and first calls make (files, threads, memory) with what close() ends, on every path.",
     open_use_and_close},
    {"lifecycle.again", "", CHECK_CLOSED, "After close() the driver can be opened again.",
     "A variable that open() sets and close() leaves; a vendor's library that can be started once a process needs a "
     "count.",
     opens_again_as_before},
    {"lifecycle.busy_streams", "stream_create", 0,
     "close() ends the instance with all that it has: also streams that were destroyed while they had work.",
     "What stream_destroy() leaves for later has to go in close(), too.", busy_streams_are_closed},
    {"lifecycle.unknown_option", "", CHECK_CLOSED, "An unknown option is ignored.",
     "Options that every driver gets: node_id, num_nodes, and each variable OPENREG_<DRIVER>_<KEY>.",
     unknown_option_is_ignored},
    {"lifecycle.bad_option", "", CHECK_CLOSED, "E_INVALID: a bad option (the text names it). A right value counts.",
     "strtol() says where it stopped; compare that with the end of the text.", bad_option_is_named},
    {"lifecycle.count", "", 0, "The number of devices is constant from open() to close(), for every thread.",
     "Count once, in open().", count_is_constant},
    {"lifecycle.count_unopened", "describe", CHECK_CLOSED,
     "describe() with capacity 0 counts the devices that open() finds.", "It must read the options as open() does.",
     count_agrees},
    {"lifecycle.count_fork", "describe", CHECK_CLOSED, "describe() with capacity 0 leaves a later fork() safe.",
     "Count from /sys, /dev or a management library; a vendor's runtime that is initialised does not survive fork().",
     count_leaves_fork_safe},
    {"lifecycle.describe", "describe", CHECK_CLOSED,
     "describe() reports the same about the devices as open() and device_info().", "Use one function for both.",
     describe_agrees},
    {"lifecycle.describe_capacity", "describe", CHECK_CLOSED,
     "describe() fills *infos[0..min(*count, capacity)) and peers[i * capacity + j]; a topology that it does not know "
     "is E_INVALID.",
     "*count is the number of devices, also where it is greater than the capacity.", describe_keeps_to_capacity},
    {"lifecycle.describe_repeated", "describe", CHECK_CLOSED,
     "describe() leaves nothing behind: no memory, files or threads.",
     "What it begins with the vendor's library, it ends before it returns, on each path.", describe_leaves_nothing},
};
const check_group check_lifecycle_group = CHECK_GROUP(1, cases);
