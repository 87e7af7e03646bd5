/* SPDX-License-Identifier: BSD-3-Clause */
/* fault_calls.h: plans of faults, for who opens drivers. Internal. */
#ifndef OPENREG_SRC_FAULT_CALLS_H
#define OPENREG_SRC_FAULT_CALLS_H

#include "laboratory/faults.h"

#define OPENREG_FAULTS "faults" /* key of the option of a driver */

#endif
