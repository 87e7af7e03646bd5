/* SPDX-License-Identifier: BSD-3-Clause */
/* text.h: bounded copies of text. Internal. */
#ifndef OPENREG_SRC_TEXT_H
#define OPENREG_SRC_TEXT_H

#include <stddef.h>
#include <stdio.h>
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

/* Bytes of the character that `text` begins with; 0: it is not UTF-8, or a control character. */
static inline size_t
openreg_text_character(const unsigned char *text)
{
    const size_t length = text[0] < 0x80 ? 1 : text[0] < 0xE0 ? 2 : text[0] < 0xF0 ? 3 : 4;
    if (length == 1)
        return (text[0] >= ' ' && text[0] != 0x7F) || text[0] == '\t' ? 1 : 0;
    if (text[0] < 0xC2 || text[0] > 0xF4)
        return 0;
    for (size_t i = 1; i < length; ++i)
        if ((text[i] & 0xC0u) != 0x80u)
            return 0;
    const unsigned second = text[1]; /* overlong, surrogates, beyond Unicode; and U+0080 to U+009F */
    const int is_none = (text[0] == 0xE0 && second < 0xA0) || (text[0] == 0xED && second > 0x9F) ||
                        (text[0] == 0xF0 && second < 0x90) || (text[0] == 0xF4 && second > 0x8F) ||
                        (text[0] == 0xC2 && second < 0xA0);
    return is_none ? 0 : length;
}

/* Copies an untrusted `text` for display: bytes that are no character (above) become \xNN. Line breaks stay in an error
 * (`lines`), as errors of libraries have several lines. In log lines they stay only before an indented line, as in the
 * runtime's own texts: so no text can begin a line that looks like another message. */
static inline void
openreg_text_copy_shown(char *destination, size_t size, const char *text, int lines)
{
    const unsigned char *from = (const unsigned char *)text;
    size_t length = 0;
    while (*from != '\0') {
        size_t bytes = from[0] == '\n' && (lines || from[1] == ' ') ? 1 : openreg_text_character(from);
        char escape[5];
        const void *part = from;
        size_t room = bytes;
        if (bytes == 0) {
            (void)snprintf(escape, sizeof escape, "\\x%02x", (unsigned)*from);
            part = escape;
            room = sizeof escape - 1;
            bytes = 1;
        }
        if (room >= size - length)
            break;
        memcpy(destination + length, part, room);
        length += room;
        from += bytes;
    }
    destination[length] = '\0';
}

#endif
