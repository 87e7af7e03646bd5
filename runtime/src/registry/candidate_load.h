/* SPDX-License-Identifier: BSD-3-Clause */
/* candidate_load.h: from a candidate to its table. Internal. */
#ifndef OPENREG_SRC_CANDIDATE_LOAD_H
#define OPENREG_SRC_CANDIDATE_LOAD_H

#include "registry/candidates.h"

/* Reads the candidate's table, or asks its factory, if that has not been done. On failure the candidate remembers why.
 * The caller holds the driver lock. Errors: those of loader.h, the factory's own, OPENREG_E_NO_DEVICE (it gave
 * nothing). */
openreg_status openreg_candidate_load(const char *call, openreg_candidate *candidate);

#endif
