/* SPDX-License-Identifier: BSD-3-Clause */
/* fence_signal.h: names the device and block when host code touches fenced device memory. Internal. */
#ifndef OPENREG_SRC_FENCE_SIGNAL_H
#define OPENREG_SRC_FENCE_SIGNAL_H
/* Called once by activation.c when a device with OPENREG_CAP_FENCED becomes active: installs a SIGSEGV handler that writes one
 * message and hands on to the handler that was there before. Does nothing if OPENREG_FENCE_SIGNAL=0. */
void openreg_fence_signal_install(void);
#endif
