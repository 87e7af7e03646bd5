/* SPDX-License-Identifier: BSD-3-Clause */
/* reports.c: origins of uses, and reports (reports.h). */
#define _GNU_SOURCE
#include "races/reports.h"
#include "base/device_name.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openreg/openreg.h>

/* A set of 64-bit keys, numbered from 1 in the order in which they came. */
typedef struct key_set {
    uint64_t *keys;  /* by number - 1 */
    uint32_t *slots; /* numbers by hash; 0: empty */
    uint32_t count, room, slot_count;
} key_set;

static key_set origins; /* name << 33 | place << 1 | allowed */
static key_set pairs;   /* kind, first and second origin, mixed: of reports */

/* Operators' names, numbered from 1. */
static const char **names;
static uint32_t name_count, name_room;
static key_set name_hashes; /* with the same numbers; two names with one hash share a number */

static openreg_race reports[OPENREG_RACES_MAX];
static uint64_t report_count;

static uint64_t
mix(uint64_t key)
{
    key ^= key >> 31;
    key *= UINT64_C(0x9E3779B97F4A7C15);
    return key ^ key >> 29;
}

static uint32_t *
slot_of(const key_set *set, uint64_t key)
{
    uint32_t at = (uint32_t)(mix(key) & (set->slot_count - 1));
    while (set->slots[at] != 0 && set->keys[set->slots[at] - 1] != key)
        at = (at + 1) & (set->slot_count - 1);
    return &set->slots[at];
}

static bool
make_room(key_set *set)
{
    if (set->count < set->room)
        return true;
    const uint32_t room = set->room == 0 ? 256 : 2 * set->room;
    uint64_t *const keys = realloc(set->keys, room * sizeof *keys);
    if (keys == NULL)
        return false;
    set->keys = keys;
    uint32_t *const slots = calloc(2 * (size_t)room, sizeof *slots);
    if (slots == NULL)
        return false;
    free(set->slots);
    set->slots = slots;
    set->slot_count = 2 * room;
    set->room = room;
    for (uint32_t i = 0; i < set->count; ++i)
        *slot_of(set, set->keys[i]) = i + 1;
    return true;
}

/* The key's number: if it was added, the set's new count. 0: memory is short. */
static uint32_t
number_of(key_set *set, uint64_t key)
{
    if (!make_room(set))
        return 0;
    uint32_t *const slot = slot_of(set, key);
    if (*slot == 0) {
        set->keys[set->count] = key;
        *slot = ++set->count;
    }
    return *slot;
}

static uint32_t
name_number(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *at = name; *at != '\0'; ++at)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    if (name_count == name_room) {
        const uint32_t room = name_room == 0 ? 256 : 2 * name_room;
        const char **const more = realloc(names, room * sizeof *more);
        if (more == NULL)
            return 0;
        names = more;
        name_room = room;
    }
    const uint32_t number = number_of(&name_hashes, hash);
    if (number > name_count) {
        const char *const copy = strdup(name);
        names[name_count++] = copy == NULL ? "" : copy;
    }
    return number;
}

uint32_t
openreg_race_origin(const char *what, uint32_t place, bool allowed)
{
    return number_of(&origins, (uint64_t)name_number(what) << 33 | (uint64_t)place << 1 | (uint64_t)allowed);
}

bool
openreg_race_origin_is_allowed(uint32_t origin)
{
    return origin != 0 && (origins.keys[origin - 1] & 1) != 0;
}

const char *
openreg_race_origin_what(uint32_t origin)
{
    const uint64_t name = origin == 0 ? 0 : origins.keys[origin - 1] >> 33;
    return name == 0 ? "" : names[name - 1];
}

uint32_t
openreg_race_origin_place(uint32_t origin)
{
    return origin == 0 ? 0 : (uint32_t)(origins.keys[origin - 1] >> 1);
}

/* --------------------------------------------------------------------------------------------------------- the text */

typedef struct text {
    char bytes[OPENREG_RACE_TEXT];
    size_t length;
} text;

__attribute__((format(printf, 2, 3))) static void
say(text *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int written = vsnprintf(to->bytes + to->length, sizeof to->bytes - to->length, format, arguments);
    va_end(arguments);
    if (written > 0)
        to->length += (size_t)written < sizeof to->bytes - to->length ? (size_t)written
                                                                      : sizeof to->bytes - to->length - 1;
}

static void
say_stream(text *to, const openreg_race_use *use)
{
    if (use->device == OPENREG_HOST)
        say(to, "the host");
    else if (use->stream == OPENREG_RACES_COLLECTIVES)
        say(to, "the collectives' stream of %s:%d", openreg_device_name(), use->device);
    else if (use->stream == OPENREG_STREAM_DEFAULT)
        say(to, "the default stream of %s:%d", openreg_device_name(), use->device);
    else
        say(to, "stream 0x%" PRIx64 " of %s:%d", (uint64_t)use->stream, openreg_device_name(), use->device);
}

static void
say_use(text *to, const char *label, const openreg_race *race, const openreg_race_use *use)
{
    say(to, "\n  %s: %s %s on ", label, use->what[0] == '\0' ? "an operation" : use->what,
        race->kind == OPENREG_RACE_LOST_DEVICE ? "is called"
        : use->writes                          ? "writes"
                                               : "reads");
    if (race->kind == OPENREG_RACE_LOST_DEVICE && use == &race->first)
        say(to, "%s:%d", openreg_device_name(), use->device);
    else
        say_stream(to, use);
    if (use->place[0] != '\0')
        say(to, ", at %s", use->place);
}

static void
say_remedy(text *to, const openreg_race *race)
{
    switch (race->kind) {
    case OPENREG_RACE_UNINITIALIZED:
        say(to, "write the memory first");
        return;
    case OPENREG_RACE_LOST_DEVICE:
        say(to, "after the error that reports the loss go on with another device, or select drivers again");
        return;
    case OPENREG_RACE_HOST:
        say(to, "stream.synchronize(), or an event's, before the host's use, where stream is ");
        say_stream(to, &race->first);
        return;
    case OPENREG_RACE_REUSE:
        say(to, "x.record_stream(stream) before the last reference to tensor x goes, where stream is ");
        say_stream(to, &race->first);
        return;
    default:
        say(to, "b.wait_stream(a) between them, where a is ");
        say_stream(to, &race->first);
        say(to, " and b is ");
        say_stream(to, &race->second);
    }
}

static const char *const kinds[] = {
    [OPENREG_RACE_READ_WRITE] = "nothing orders a read and a write",
    [OPENREG_RACE_WRITE_WRITE] = "nothing orders two writes",
    [OPENREG_RACE_REUSE] = "memory was freed and used again while another stream used it",
    [OPENREG_RACE_HOST] = "the host uses pinned memory that a stream still uses",
    [OPENREG_RACE_LOST_DEVICE] = "a stream or event is used of a device that was lost",
    [OPENREG_RACE_UNINITIALIZED] = "memory is read that nothing has written",
};

static void
say_all(text *to, const openreg_race *race)
{
    const bool is_pair = race->kind != OPENREG_RACE_UNINITIALIZED && race->kind != OPENREG_RACE_LOST_DEVICE;
    say(to, "race: %s", kinds[race->kind]);
    if (race->size != 0)
        say(to, ": %" PRIu64 " bytes at 0x%" PRIx64, race->size, race->address);
    if (race->block != 0)
        say(to, ", from byte %" PRIu64 " of the allocation at 0x%" PRIx64, race->offset, race->block);
    if (race->kind == OPENREG_RACE_LOST_DEVICE)
        say_use(to, "lost", race, &race->first);
    else if (is_pair)
        say_use(to, "first", race, &race->first);
    if (race->freed[0] != '\0')
        say(to, "\n  freed at %s", race->freed);
    say_use(to, is_pair ? "second" : "use", race, &race->second);
    say(to, "\n  %s: %s", is_pair ? "what would order them" : "remedy", race->remedy);
}

/* The text and the stacks behind it; NULL: memory is short. */
static char *
with_stacks(const text *all, const openreg_race *race)
{
    static const char first[] = "\n  stack of the first use:\n", second[] = "\n  stack of the second use:\n";
    const char *const parts[] = {all->bytes, race->first.stack[0] == '\0' ? "" : first, race->first.stack,
                                 race->second.stack[0] == '\0' ? "" : second, race->second.stack};
    size_t room = 1;
    for (size_t i = 0; i < 5; ++i)
        room += strlen(parts[i]);
    char *const whole = malloc(room), *end = whole;
    for (size_t i = 0; whole != NULL && i < 5; ++i) {
        const size_t length = strlen(parts[i]);
        memcpy(end, parts[i], length + 1);
        end += length;
    }
    return whole;
}

/* ---------------------------------------------------------------------------------------------------------- reports */

const char *
openreg_race_report(const openreg_race *race, uint32_t first_origin, uint32_t second_origin, bool always)
{
    static text remedy, all; /* written by the holder of the lock */
    const uint32_t known = pairs.count;
    const uint64_t key = mix((uint64_t)first_origin << 32 | second_origin) * 8 + (uint64_t)race->kind;
    const bool is_kept = number_of(&pairs, key) > known && report_count < OPENREG_RACES_MAX;
    if (!is_kept && !always)
        return NULL;
    openreg_race told = *race;
    told.struct_size = sizeof told;
    remedy.length = all.length = 0;
    say_remedy(&remedy, &told);
    told.remedy = remedy.bytes;
    say_all(&all, &told);
    if (is_kept) {
        told.remedy = strdup(remedy.bytes);
        told.text = with_stacks(&all, race);
        if (told.remedy != NULL && told.text != NULL)
            reports[report_count++] = told;
        else
            openreg_race_free(&told);
    }
    return all.bytes;
}

uint64_t
openreg_race_reports(void)
{
    return report_count;
}

bool
openreg_race_report_at(uint64_t number, openreg_race *out)
{
    if (number >= report_count)
        return false;
    *out = reports[number];
    out->remedy = strdup(reports[number].remedy);
    out->text = strdup(reports[number].text);
    return true;
}

void
openreg_race_free(openreg_race *copy)
{
    free((void *)(uintptr_t)copy->remedy);
    free((void *)(uintptr_t)copy->text);
}

void
openreg_race_reports_clear(void)
{
    for (uint64_t i = 0; i < report_count; ++i)
        openreg_race_free(&reports[i]);
    report_count = 0;
    free(pairs.keys);
    free(pairs.slots);
    pairs = (key_set){0};
}
