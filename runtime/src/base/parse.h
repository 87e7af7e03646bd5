/* SPDX-License-Identifier: BSD-3-Clause */
/* parse.h: parsers for values of OPENREG_* variables: lists, whole numbers, seconds. Internal.
 *
 * They only return whether a text is valid; the caller, which knows the variable, reports the error. */
#ifndef OPENREG_SRC_VALUES_H
#define OPENREG_SRC_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "base/internal_api.h"

/* Narrows (*text, *length) until it neither starts nor ends with white space. */
OPENREG_INTERNAL void openreg_text_trim(const char **text, size_t *length);

/* Walks a list separated by commas: 1 and the next item, trimmed and not empty, in (*item, *length), or 0 at the end.
 * `*cursor` starts at the text; NULL is an empty list. */
int openreg_list_next(const char **cursor, const char **item, size_t *length);

/* Decimal digits and nothing else, with a value in [least, most], both >= 0: 1, else 0 and *out unchanged. */
OPENREG_INTERNAL int openreg_integer_read(const char *text, size_t length, int64_t least, int64_t most, int64_t *out);

/* Seconds as "60" or "0.25", trimmed, at most 10^9: 1 and milliseconds, rounded up, else 0 and *out unchanged. */
OPENREG_INTERNAL int openreg_seconds_read(const char *text, int64_t *out);

#endif
