/* SPDX-License-Identifier: BSD-3-Clause */
/* fence_signal.c: names the device and the block when host code touches fenced device memory (cache.h).
 *
 * The handler uses only async-signal-safe calls, waits for no lock, and leaves the outcome to the previous handler: it
 * restores that one and returns, so that the instruction faults a second time and a debugger, Python's faulthandler, a
 * sanitizer or the default action handles the fault as usual. Faults at other addresses are passed on without a
 * message, and this handler stays. A handler installed later that re-raises the signal by raise() hides the address
 * from this one; then there is no message. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/device_name.h"
#include "memory/cache.h"

typedef struct fault_text {
    char text[512];
    size_t length;
} fault_text;

static struct sigaction previous; /* written once, before the handler can run */
static pthread_once_t install_once = PTHREAD_ONCE_INIT;

static void
append(fault_text *out, const char *text)
{
    while (*text != '\0' && out->length < sizeof out->text)
        out->text[out->length++] = *text++;
}

static void
append_number(fault_text *out, uint64_t value, unsigned base)
{
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do {
        digits[--at] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value > 0);
    append(out, base == 16 ? "0x" : "");
    append(out, &digits[at]);
}

static void
describe(const openreg_found_range *found, uintptr_t address)
{
    fault_text out = {.length = 0};
    openreg_block_view block;
    append(&out, openreg_device_name());
    append(&out, ": host code touched device memory: address ");
    append_number(&out, address, 16);
    if (openreg_cache_try_view(found, address, &block)) {
        append(&out, " is byte ");
        append_number(&out, address - block.address, 10);
        append(&out, block.live ? " of a live block of " : " of a freed block of ");
        append_number(&out, block.live ? block.requested : block.size, 10);
        append(&out, " bytes at ");
        append_number(&out, block.address, 16);
        append(&out, " on");
    } else {
        append(&out, " is on");
    }
    append(&out, " ");
    append(&out, openreg_device_name());
    append(&out, ":");
    append_number(&out, (uint64_t)found->info.device->index, 10);
    append(&out, " (driver \"");
    append(&out, found->info.device->driver->name);
    append(&out, "\"). Copy it to the host first: tensor.cpu() or openreg_memcpy().\n");
    (void)!write(STDERR_FILENO, out.text, out.length);
}

/* Passes a signal of another origin to the earlier handler. */
static void
hand_on(int signal_number, siginfo_t *info, void *context, bool by_instruction)
{
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(signal_number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(signal_number);
    } else if (by_instruction || previous.sa_handler == SIG_DFL) {
        (void)sigaction(signal_number, &previous, NULL);
        if (!by_instruction)            /* else the instruction faults again */
            (void)raise(signal_number); /* delivered when the handler returns */
    }
}

static void
on_fault(int signal_number, siginfo_t *info, void *context)
{
    const int error = errno;
    const bool by_instruction = info->si_code > 0; /* else si_addr means nothing: kill(), raise() */
    openreg_found_range found;
    if (by_instruction && openreg_address_map_find(info->si_addr, &found) && !found.alias &&
        (found.info.flags & OPENREG_RANGE_FENCED) != 0) {
        describe(&found, (uintptr_t)info->si_addr);
        (void)sigaction(signal_number, &previous, NULL);
    } else {
        hand_on(signal_number, info, context, by_instruction);
    }
    errno = error;
}

static void
install(void)
{
    const char *wanted = openreg_variable("OPENREG_FENCE_SIGNAL");
    if (wanted != NULL && strcmp(wanted, "0") == 0)
        return;
    if (sigaction(SIGSEGV, NULL, &previous) != 0)
        return;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGSEGV, &action, NULL);
}

void
openreg_fence_signal_install(void)
{
    (void)pthread_once(&install_once, install);
}
