/* SPDX-License-Identifier: BSD-3-Clause */
/* device_count.h: the number of devices before there is a table. Internal. */
#ifndef OPENREG_SRC_COUNTING_H
#define OPENREG_SRC_COUNTING_H

/* Forgets the answer of openreg_device_count(). By the holder of the gate. */
void openreg_count_forget(void);

#endif
