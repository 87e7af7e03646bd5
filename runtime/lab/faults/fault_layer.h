/* SPDX-License-Identifier: BSD-3-Clause */
/* fault_layer.h: the layer that acts faults out, around each open driver while there is a plan. Internal. */
#ifndef OPENREG_LAB_FAULT_LAYER_H
#define OPENREG_LAB_FAULT_LAYER_H

#include "faults/faults.h"

/* Puts it around all drivers, with the observer of what these are not called for; or takes both away. Any thread. */
void openreg_fault_layer_switch(int on);

#endif
