/* SPDX-License-Identifier: BSD-3-Clause */
/* fault_plan.c: reads fault plans (fault_plan.h). Independent of the locale. */
#define _GNU_SOURCE
#include "faults/fault_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openreg/openreg.h>

#include "base/device_name.h"
#include "base/parse.h"
#include "base/text.h"
#include "calls.h"

#define MOST_ITEMS 64
#define MOST_CALLS INT64_C(1000000000000)

typedef struct word {
    const char *text;
    size_t length;
} word;

/* One item of a plan, word by word. */
typedef struct reader {
    const char *at, *end; /* the rest of the item */
    word now;             /* no text at the end */
    const char *item;
    size_t item_length;
    char *why;
    size_t size;
} reader;

static int
is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void
next_word(reader *in)
{
    while (in->at < in->end && is_blank(*in->at))
        in->at++;
    in->now = (word){in->at, 0};
    while (in->at < in->end && !is_blank(*in->at)) {
        in->at++;
        in->now.length++;
    }
}

static int
is_word(const reader *in, const char *text)
{
    return in->now.length == strlen(text) && memcmp(in->now.text, text, in->now.length) == 0;
}

/* Consumes a word if it is that one. */
static int
accept(reader *in, const char *text)
{
    const int is_it = is_word(in, text);
    if (is_it)
        next_word(in);
    return is_it;
}

static int
refuse(reader *in, const char *expected)
{
    if (in->now.length == 0)
        (void)snprintf(in->why, in->size, "%s is missing at the end of \"%.*s\"", expected, (int)in->item_length,
                       in->item);
    else
        (void)snprintf(in->why, in->size, "\"%.*s\" in \"%.*s\" is not %s", (int)in->now.length, in->now.text,
                       (int)in->item_length, in->item, expected);
    return 0;
}

/* ------------------------------------------------------------------------------------------------------- the words */

static const struct {
    const char *one, *many;
    uint32_t calls;
} kinds[] = {
    {"copy", "copies", OPENREG_CALL_COPY},
    {"fill", "fills", OPENREG_CALL_FILL},
    {"kernel", "kernels", OPENREG_CALL_KERNEL},
    {"function", "functions", OPENREG_CALL_FUNCTION},
    {"work", "work", OPENREG_CALLS_WORK},
    {"op", "ops", OPENREG_CALL_OPERATOR | OPENREG_CALL_KERNEL},
    {"operator", "operators", OPENREG_CALL_OPERATOR | OPENREG_CALL_KERNEL},
    {"record", "records", OPENREG_CALL_RECORD},
    {"wait", "waits", OPENREG_CALLS_WAITS},
    {"call", "calls", OPENREG_CALLS_WORK | OPENREG_CALL_RECORD | OPENREG_CALLS_WAITS | OPENREG_CALL_SEGMENT},
    {"allocation", "allocations", OPENREG_CALL_ALLOCATION},
    {"segment", "segments", OPENREG_CALL_SEGMENT},
    {"collective", "collectives", OPENREG_CALL_COLLECTIVE},
};

#define OUTSIDE_LOCKS                                                                                                  \
    (OPENREG_CALL_COLLECTIVE | OPENREG_CALL_OPERATOR | OPENREG_CALLS_WORK | OPENREG_CALL_RECORD | OPENREG_CALLS_WAITS)

static const struct {
    const char *name;
    openreg_fault_action action;
    uint32_t standard, possible;
    const char *expected; /* what may be counted */
} actions[] = {
    {"lost", OPENREG_FAULT_LOST, OPENREG_CALLS_WORK | OPENREG_CALL_RECORD | OPENREG_CALLS_WAITS | OPENREG_CALL_SEGMENT,
     OPENREG_CALLS_WORK | OPENREG_CALL_RECORD | OPENREG_CALLS_WAITS | OPENREG_CALL_SEGMENT | OPENREG_CALL_OPERATOR,
     "calls, work, operators, records, waits, segments, copies, fills, kernels or functions"},
    {"nomem", OPENREG_FAULT_NOMEM, OPENREG_CALL_ALLOCATION, OPENREG_CALL_ALLOCATION | OPENREG_CALL_SEGMENT,
     "allocations or segments"},
    {"error", OPENREG_FAULT_ERROR, OPENREG_CALL_OPERATOR | OPENREG_CALL_KERNEL,
     OPENREG_CALLS_WORK | OPENREG_CALL_OPERATOR, "operators, work, copies, fills, kernels or functions"},
    {"ecc", OPENREG_FAULT_ECC, OPENREG_CALL_COPY, OPENREG_CALL_COPY, "copies"},
    {"corrupt", OPENREG_FAULT_CORRUPT, OPENREG_CALL_COPY, OPENREG_CALL_COPY, "copies"},
    {"slow", OPENREG_FAULT_SLOW, OPENREG_CALL_COPY, OPENREG_CALL_COPY, "copies"},
    {"peer", OPENREG_FAULT_PEER_DIES, OPENREG_CALL_COLLECTIVE, OPENREG_CALL_COLLECTIVE, "collectives"},
    {"late", OPENREG_FAULT_LATE, OPENREG_CALL_COLLECTIVE, OUTSIDE_LOCKS,
     "collectives, operators, work, records or waits"},
    {"killed", OPENREG_FAULT_KILLED, OPENREG_CALL_COLLECTIVE, OUTSIDE_LOCKS,
     "collectives, operators, work, records or waits"},
};
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* Reads which calls are counted, if given here. */
static int
accept_kind(reader *in, openreg_fault *fault)
{
    for (size_t i = 0; i < COUNT_OF(kinds); ++i)
        if (accept(in, kinds[i].one) || accept(in, kinds[i].many)) {
            fault->calls = kinds[i].calls;
            return 1;
        }
    const char *const colons = memmem(in->now.text, in->now.length, "::", 2);
    if (colons == NULL || in->now.length >= sizeof fault->name)
        return 0;
    memcpy(fault->name, in->now.text, in->now.length);
    fault->name[in->now.length] = '\0';
    fault->calls = OPENREG_CALL_OPERATOR | OPENREG_CALL_KERNEL;
    next_word(in);
    return 1;
}

static int
read_number(reader *in, uint64_t *out)
{
    int64_t number = 0;
    if (!openreg_integer_read(in->now.text, in->now.length, 0, MOST_CALLS, &number))
        return refuse(in, "a number");
    *out = (uint64_t)number;
    next_word(in);
    return 1;
}

/* The number behind "openreg:", or behind the devices' name. 0: there is neither. */
static size_t
prefix_of_device(const word *of)
{
    const char *const names[] = {"openreg", openreg_device_name()};
    for (size_t i = 0; i < 2; ++i) {
        const size_t length = strlen(names[i]);
        if (of->length > length && memcmp(of->text, names[i], length) == 0 && of->text[length] == ':')
            return length + 1;
    }
    return 0;
}

static int
read_device(reader *in, openreg_fault *fault)
{
    const size_t length = prefix_of_device(&in->now);
    int64_t number = 0;
    if (length == 0)
        return 1;
    if (!openreg_integer_read(in->now.text + length, in->now.length - length, 0, OPENREG_MAX_DEVICES - 1, &number)) {
        char expected[64];
        (void)snprintf(expected, sizeof expected, "a device, as %s:0", openreg_device_name());
        return refuse(in, expected);
    }
    fault->device = (int32_t)number;
    next_word(in);
    return 1;
}

static int
read_rank(reader *in, openreg_fault *fault)
{
    uint64_t rank = 0;
    fault->rank = -1;
    if (!accept(in, "rank"))
        return 1;
    if (!read_number(in, &rank))
        return 0;
    fault->rank = rank < INT32_MAX ? (int32_t)rank : INT32_MAX;
    return 1;
}

/* A decimal number, as "10" or "2.5", followed by `suffix`. In thousandths, at most `most`. */
static int
read_decimal(const reader *in, char suffix, int64_t most, int64_t *thousandths)
{
    char text[24];
    const size_t length = in->now.length;
    if (length < 2 || length > sizeof text || in->now.text[length - 1] != suffix)
        return 0;
    memcpy(text, in->now.text, length - 1);
    text[length - 1] = '\0';
    return openreg_seconds_read(text, thousandths) && *thousandths <= most * 1000;
}

/* ------------------------------------------------------------------------------------------------------- the items */

static int
read_action(reader *in, openreg_fault *fault, size_t *which)
{
    for (size_t i = 0; i < COUNT_OF(actions); ++i) {
        if (!accept(in, actions[i].name))
            continue;
        *which = i;
        fault->action = actions[i].action;
        int64_t thousandths = 0;
        if (fault->action == OPENREG_FAULT_SLOW) {
            if (!read_decimal(in, 'x', 1000000, &thousandths) || thousandths < 1000)
                return refuse(in, "how many times as long it takes, as 10x");
            fault->factor = (double)thousandths / 1000;
            next_word(in);
        } else if (fault->action == OPENREG_FAULT_LATE) {
            if (!read_decimal(in, 's', 1000000, &thousandths))
                return refuse(in, "for how long the call waits, as 0.2s");
            fault->milliseconds = (uint32_t)thousandths;
            next_word(in);
        } else if (fault->action == OPENREG_FAULT_PEER_DIES && accept(in, "silent")) {
            fault->action = OPENREG_FAULT_PEER_SILENT;
        } else if (fault->action == OPENREG_FAULT_PEER_DIES && !accept(in, "dies")) {
            return refuse(in, "\"dies\" or \"silent\"");
        }
        return 1;
    }
    return refuse(
        in, "a fault: lost, nomem, error, ecc, corrupt, slow, peer, late or killed, or what is counted: copies, fills, "
            "kernels, functions, work, operators, records, waits, calls, allocations, segments, collectives, "
            "or an operator's name");
}

static int
read_trigger(reader *in, openreg_fault *fault)
{
    int64_t thousandths = 0;
    if (accept(in, "at")) {
        (void)accept_kind(in, fault);
        fault->trigger = OPENREG_FAULT_AT;
        if (is_word(in, "0"))
            return refuse(in, "a number from 1");
        if (!read_number(in, &fault->number))
            return 0;
    } else if (accept(in, "after")) {
        fault->trigger = OPENREG_FAULT_AFTER;
        if (!read_number(in, &fault->number))
            return 0;
        (void)accept_kind(in, fault);
    } else if (read_decimal(in, '%', 100, &thousandths)) {
        fault->trigger = OPENREG_FAULT_CHANCE;
        fault->number = ((uint64_t)thousandths << 32) / 100000;
        next_word(in);
    }
    if (fault->trigger == OPENREG_FAULT_CHANCE || fault->trigger == OPENREG_FAULT_ALWAYS)
        if (accept(in, "of") && !accept_kind(in, fault))
            return refuse(in, "what is counted");
    return in->now.length == 0 || refuse(in, "\"at\", \"after\" or a percentage, nor the end of the fault");
}

static int
read_fault(reader *in, openreg_fault *fault)
{
    size_t which = 0;
    fault->device = -1;
    if (!read_rank(in, fault) || !read_device(in, fault))
        return 0;
    (void)accept_kind(in, fault);
    if (!read_action(in, fault, &which) || !read_trigger(in, fault))
        return 0;
    if (fault->calls == 0)
        fault->calls = actions[which].standard;
    if ((fault->calls & ~actions[which].possible) != 0) {
        char expected[160];
        (void)snprintf(expected, sizeof expected, "something that \"%s\" can hit, which is %s", actions[which].name,
                       actions[which].expected);
        in->now = (word){in->item, in->item_length};
        return refuse(in, expected);
    }
    return 1;
}

static int
read_item(reader *in, openreg_fault_plan *plan)
{
    next_word(in);
    if (in->now.length == 0)
        return 1;
    if (accept(in, "seed")) {
        plan->has_seed = 1;
        return read_number(in, &plan->seed) && (in->now.length == 0 || refuse(in, "the end of the seed"));
    }
    if (plan->count == MOST_ITEMS)
        return refuse(in, "one of the 64 faults that a plan may have");
    openreg_fault *const items = realloc(plan->items, (plan->count + 1) * sizeof *items);
    if (items == NULL)
        return 0;
    plan->items = items;
    openreg_fault *const fault = &items[plan->count++];
    memset(fault, 0, sizeof *fault);
    (void)snprintf(fault->text, sizeof fault->text, "%.*s", (int)in->item_length, in->item);
    return read_fault(in, fault);
}

int
openreg_fault_plan_read(const char *text, openreg_fault_plan *plan, char *why, size_t size)
{
    while (*text != '\0') {
        const size_t length = strcspn(text, ";");
        reader in = {.at = text, .end = text + length, .item = text, .item_length = length, .why = why, .size = size};
        openreg_text_trim(&in.item, &in.item_length);
        if (!read_item(&in, plan))
            return 0;
        text += length + (text[length] == ';');
    }
    return 1;
}
