/* SPDX-License-Identifier: BSD-3-Clause */
/* reports.h: origins of uses, and reported races. Internal to races/; its lock is held. */
#ifndef OPENREG_SRC_RACE_REPORTS_H
#define OPENREG_SRC_RACE_REPORTS_H

#include <stdbool.h>
#include <stdint.h>

#include <openreg/races.h>

/* The number of an operator at a place, made on first use. 0: unknown, or memory is short. */
uint32_t openreg_race_origin(const char *what, uint32_t place, bool allowed);
bool openreg_race_origin_is_allowed(uint32_t origin);
/* Strings live as long as the process. */
const char *openreg_race_origin_what(uint32_t origin);
uint32_t openreg_race_origin_place(uint32_t origin);

/* Keeps a report, unless the pair of origins has one of this kind. `race` has all fields but `text` and `remedy`. If the
 * report is new or `always` is set, returns the text without stacks, valid while the lock is held, else NULL. */
#define OPENREG_RACE_TEXT 2048
const char *openreg_race_report(const openreg_race *race, uint32_t first_origin, uint32_t second_origin, bool always);

uint64_t openreg_race_reports(void);
/* A copy of a report, freed by openreg_race_free(); false: there is none of that number. If memory is short the copy's
 * text or remedy is NULL. */
bool openreg_race_report_at(uint64_t number, openreg_race *out);
void openreg_race_free(openreg_race *copy);
void openreg_race_reports_clear(void);

#endif
