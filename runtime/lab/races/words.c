/* SPDX-License-Identifier: BSD-3-Clause */
/* words.c: reads the value of OPENREG_RACES (words.h). */
#include "races/words.h"

#include <string.h>

#include <openreg/races.h>

static const struct {
    const char *word;
    uint32_t flags;
} words[] = {
    {"report", OPENREG_RACES_REPORT},
    {"raise", OPENREG_RACES_REPORT | OPENREG_RACES_RAISE},
    {"uninitialized", OPENREG_RACES_REPORT | OPENREG_RACES_UNINITIALIZED},
    {"stacks", OPENREG_RACES_REPORT | OPENREG_RACES_STACKS},
};
#define WORDS (sizeof words / sizeof words[0])

bool
openreg_race_words_read(const char *text, uint32_t *flags)
{
    *flags = 0;
    if (text == NULL || *text == '\0' || strcmp(text, "0") == 0)
        return true;
    for (;;) {
        const size_t length = strcspn(text, ",");
        size_t i = 0;
        while (i < WORDS && (strlen(words[i].word) != length || strncmp(words[i].word, text, length) != 0))
            ++i;
        if (i == WORDS)
            return false;
        *flags |= words[i].flags;
        if (text[length] == '\0')
            return true;
        text += length + 1;
    }
}
