/* SPDX-License-Identifier: BSD-3-Clause */
/* fault.h: names the device and block when host code touches fenced device memory. Internal. */
#ifndef OPENREG_SRC_FAULT_H
#define OPENREG_SRC_FAULT_H
/* Called once by activation.c when a device with OPENREG_CAP_FENCED becomes active: installs a SIGSEGV handler that writes one
 * message and hands on to the handler that was there before. Does nothing if OPENREG_FAULT_HANDLER=0. */
void openreg_fault_handler_install(void);
#endif
