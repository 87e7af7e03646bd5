/* SPDX-License-Identifier: BSD-3-Clause */
/* words.h: reads the value of OPENREG_RACES. Internal to races/. */
#ifndef OPENREG_SRC_RACE_WORDS_H
#define OPENREG_SRC_RACE_WORDS_H

#include <stdbool.h>
#include <stdint.h>

/* Flags OPENREG_RACES_* of words separated by commas; NULL, "" and "0" are none. False: a word is unknown. */
bool openreg_race_words_read(const char *text, uint32_t *flags);

#endif
