/* SPDX-License-Identifier: BSD-3-Clause */
/* host_errors.c: the list of errors that no wait has reported yet (host_errors.h). */
#define _GNU_SOURCE
#include "driver/host_errors.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/text.h"

typedef struct left_error {
    struct left_error *next;
    const void *from;
    int32_t device;
    openreg_driver_stream stream;
    openreg_status code;
    char text[512];
} left_error;

atomic_uint openreg_host_errors;
static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* guards the list. A leaf */
static left_error *errors, *last;                    /* oldest first */

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_HOST_ERRORS, &lock);
}

void
openreg_host_error_leave(const void *from, int32_t device, openreg_driver_stream stream, openreg_status code,
                         const char *text)
{
    left_error *const error = malloc(sizeof *error);
    if (error == NULL)
        return; /* lost, as on hardware whose queue of errors is full */
    *error = (left_error){.from = from, .device = device, .stream = stream, .code = code};
    openreg_text_copy(error->text, sizeof error->text, text);
    openreg_lock_acquire(&lock);
    *(errors == NULL ? &errors : &last->next) = error;
    last = error;
    atomic_fetch_add_explicit(&openreg_host_errors, 1, memory_order_relaxed);
    openreg_lock_release(&lock);
}

openreg_status
openreg_host_error_take(int32_t device, openreg_driver_stream stream, int whole, openreg_status status)
{
    if (status != OPENREG_OK)
        return status;
    left_error *found = NULL;
    openreg_lock_acquire(&lock);
    left_error *before = NULL;
    for (left_error **at = &errors; *at != NULL; before = *at, at = &(*at)->next)
        if ((*at)->device == device && (whole || (*at)->stream == stream)) {
            found = *at;
            *at = found->next;
            if (last == found)
                last = before;
            atomic_fetch_sub_explicit(&openreg_host_errors, 1, memory_order_relaxed);
            break;
        }
    openreg_lock_release(&lock);
    if (found == NULL)
        return OPENREG_OK;
    const openreg_status code = found->code;
    openreg_host_services.set_error(openreg_host_services.ctx, code, 0, found->text);
    free(found);
    return code;
}

void
openreg_host_errors_drop(const void *from)
{
    openreg_lock_acquire(&lock);
    last = NULL;
    for (left_error **at = &errors; *at != NULL;) {
        left_error *const error = *at;
        if (error->from != from) {
            last = error;
            at = &error->next;
            continue;
        }
        *at = error->next;
        free(error);
        atomic_fetch_sub_explicit(&openreg_host_errors, 1, memory_order_relaxed);
    }
    openreg_lock_release(&lock);
}
