/* SPDX-License-Identifier: BSD-3-Clause */
/* text.h: bounded copies of text. Internal. */
#ifndef OPENREG_SRC_TEXT_H
#define OPENREG_SRC_TEXT_H

#include <stddef.h>
#include <string.h>

/* Copies `text`, at most `size` - 1 bytes and no broken UTF-8 character at the end. NULL counts as "". */
static inline void
openreg_text_copy(char *destination, size_t size, const char *text)
{
    size_t length = text == NULL ? 0 : strnlen(text, size);
    if (length == size) {
        --length;
        while (length > 0 && ((unsigned char)text[length] & 0xC0u) == 0x80u)
            --length;
    }
    if (length > 0)
        memcpy(destination, text, length);
    destination[length] = '\0';
}

#endif
