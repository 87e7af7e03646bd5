/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_signals.h: around what makes the vendor's library start threads, which block the signals that the calling thread blocks
 * (driver.h: a driver's own threads block all). Internal to drivers/gpu. */
#ifndef OPENREG_DRIVERS_GPU_SIGNALS_H
#define OPENREG_DRIVERS_GPU_SIGNALS_H

#include <signal.h>

static inline void
openreg_gpu_block_signals(sigset_t *before)
{
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, before);
}

static inline void
openreg_gpu_restore_signals(const sigset_t *before)
{
    (void)pthread_sigmask(SIG_SETMASK, before, NULL);
}

#endif
