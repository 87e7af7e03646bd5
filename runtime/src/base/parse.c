/* SPDX-License-Identifier: BSD-3-Clause */
/* parse.c: lists, whole numbers and seconds (parse.h). Independent of the locale. */
#define _GNU_SOURCE
#include "base/parse.h"

#include <ctype.h>
#include <string.h>

#define MOST_SECONDS INT64_C(1000000000)

void
openreg_text_trim(const char **text, size_t *length)
{
    while (*length > 0 && isspace((unsigned char)**text)) {
        ++*text;
        --*length;
    }
    while (*length > 0 && isspace((unsigned char)(*text)[*length - 1]))
        --*length;
}

int
openreg_list_next(const char **cursor, const char **item, size_t *length)
{
    while (*cursor != NULL && **cursor != '\0') {
        const char *start = *cursor;
        size_t span = strcspn(start, ",");
        *cursor = start[span] == ',' ? start + span + 1 : start + span;
        openreg_text_trim(&start, &span);
        if (span > 0) {
            *item = start;
            *length = span;
            return 1;
        }
    }
    return 0;
}

int
openreg_integer_read(const char *text, size_t length, int64_t least, int64_t most, int64_t *out)
{
    int64_t value = 0;
    if (length == 0)
        return 0;
    for (size_t i = 0; i < length; ++i) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        const int digit = text[i] - '0';
        if (value > (most - digit) / 10)
            return 0;
        value = value * 10 + digit;
    }
    if (value < least || value > most)
        return 0;
    *out = value;
    return 1;
}

int
openreg_seconds_read(const char *text, int64_t *out)
{
    size_t length = strlen(text);
    openreg_text_trim(&text, &length);
    const char *const point = memchr(text, '.', length);
    const size_t whole = point == NULL ? length : (size_t)(point - text);
    const size_t digits = point == NULL ? 0 : length - whole - 1;
    int64_t seconds = 0;
    if (whole + digits == 0 || (whole > 0 && !openreg_integer_read(text, whole, 0, MOST_SECONDS, &seconds)))
        return 0;

    int64_t thousandths = 0;
    int rest = 0;
    for (size_t i = 0; i < digits; ++i) {
        const char digit = point[1 + i];
        if (digit < '0' || digit > '9')
            return 0;
        if (i < 3)
            thousandths = thousandths * 10 + (digit - '0');
        else
            rest |= digit != '0';
    }
    for (size_t i = digits; i < 3; ++i)
        thousandths *= 10;
    *out = seconds * 1000 + thousandths + rest;
    return 1;
}
