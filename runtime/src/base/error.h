/* SPDX-License-Identifier: BSD-3-Clause */
/* error.h: the thread-local error record behind openreg_last_error(). Internal. */
#ifndef OPENREG_SRC_ERROR_H
#define OPENREG_SRC_ERROR_H

#include <openreg/driver.h>
#include <openreg/openreg.h>

#define OPENREG_RETURN_NOT_OK(expression)                                                                              \
    do {                                                                                                               \
        const openreg_status return_not_ok_status = (expression);                                                      \
        if (return_not_ok_status != OPENREG_OK)                                                                        \
            return return_not_ok_status;                                                                               \
    } while (0)

/* Stores (code, no vendor code, no driver, text) as this thread's error and returns `code`. Truncates, never fails. */
openreg_status openreg_error_set(openreg_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "<prefix>: " in front of the thread's error and returns its code. */
openreg_status openreg_error_prefix(const char *prefix);

/* The calling thread's record, to be read or rewritten in place. Never NULL. */
openreg_error *openreg_error_record(void);

/* Called around every driver slot by driver_calls.c, around a driver's kernels by kernels.c: begin() marks the record as "not set by a driver"; end()
 * maps an unknown code to OPENREG_E_INTERNAL, supplies a text if the driver gave none, and rewrites the record as
 * "<call>: driver \"<name>\": <text> (<CODE NAME>)". */
void openreg_error_begin_call(void);
openreg_status openreg_error_end_call(const char *driver, const char *call, openreg_status code);

/* What drivers get: set_error() writes this thread's record, log() goes to log.h. Static. */
extern const openreg_host openreg_host_services;

#endif
