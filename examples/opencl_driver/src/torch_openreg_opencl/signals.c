/* SPDX-License-Identifier: BSD-3-Clause */
/* signals.c: the process's signals, around calls in which a platform starts threads and sets handlers of its own. */
#include "opencl.h"

void
opencl_block_signals(sigset_t *before)
{
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, before);
}

void
opencl_enter_platform(signal_state *before)
{
    for (int i = 1; i < SIGNALS; ++i)
        (void)sigaction(i, NULL, &before->handlers[i]);
    opencl_block_signals(&before->mask);
}

void
opencl_leave_platform(const signal_state *before)
{
    for (int i = 1; i < SIGNALS; ++i) {
        struct sigaction now;
        if (sigaction(i, NULL, &now) == 0 && now.sa_sigaction != before->handlers[i].sa_sigaction)
            (void)sigaction(i, &before->handlers[i], NULL);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
}
