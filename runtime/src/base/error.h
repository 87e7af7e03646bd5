/* SPDX-License-Identifier: BSD-3-Clause */
/* error.h: the thread-local error record behind openreg_last_error(). Internal. */
#ifndef OPENREG_SRC_ERROR_H
#define OPENREG_SRC_ERROR_H

#include <openreg/driver.h>
#include <openreg/openreg.h>

#include "base/internal_api.h"

#define OPENREG_RETURN_NOT_OK(expression)                                                                              \
    do {                                                                                                               \
        const openreg_status return_not_ok_status = (expression);                                                      \
        if (return_not_ok_status != OPENREG_OK)                                                                        \
            return return_not_ok_status;                                                                               \
    } while (0)

/* A thread's error in its parts. The message that openreg_last_error() shows is put together from them in error.c and
 * nowhere else:
 *   [<call>: ][driver "<driver>": ]<text>[ (<CODE NAME><note>)]
 * Name and code are shown where is_drivers is set. */
typedef struct openreg_error_fields {
    openreg_status code;  /* OPENREG_OK: no error */
    int32_t is_drivers;   /* 1: `text` is a driver's own, or of what a driver did */
    int32_t names_driver; /* 1: `text` holds the driver's name */
    int32_t names_code;   /* 1: `text` holds the code's name */
    int32_t names_path;   /* 1: `text` holds the path of the library that it is about */
    int64_t vendor_code;
    char driver[32];
    char call[64]; /* the public function that failed, or "" */
    char note[48]; /* what else is to be said of the code, or "" */
    char text[1024];
} openreg_error_fields;

/* Stores (code, no vendor code, no driver, call, text) as this thread's error and returns `code`. `call` may be NULL.
 * Truncates, never fails. */
OPENREG_INTERNAL openreg_status openreg_error_set(openreg_status code, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Likewise, of something that a driver did. */
OPENREG_INTERNAL openreg_status openreg_error_set_driver(openreg_status code, const char *call, const char *driver,
                                                         const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The text of the thread's error names that driver, whose number of it is `vendor_code`. Returns the error's code. */
openreg_status openreg_error_names_driver(const char *driver, int64_t vendor_code);

/* Whether that text names the error's code. */
void openreg_error_names_code(int it_does);
/* It names the path of the library. Returns the error's code. */
openreg_status openreg_error_names_path(void);

/* The function on whose behalf an error without a call has happened. Returns the error's code. */
openreg_status openreg_error_set_call(const char *call);

/* Makes the message so far, with "<prefix>: " in front, the text of the thread's error, and returns its code. */
openreg_status openreg_error_prefix(const char *prefix);

/* The thread's error, to be put back after calls whose failures are nobody's concern. */
OPENREG_INTERNAL openreg_error_fields openreg_error_save(void);
OPENREG_INTERNAL void openreg_error_restore(const openreg_error_fields *saved);

/* The message of an error for someone who knows already that `call` failed, and that `driver` is meant: without them. */
void openreg_error_reason(const openreg_error_fields *error, const char *call, const char *driver, char *out,
                          size_t size);

/* Called around every driver slot by driver_calls.c, around a driver's kernels by kernels.c: begin() marks the record
 * as "not set by a driver"; end() maps an unknown code to OPENREG_E_INTERNAL, supplies a text if the driver gave none,
 * and stores the parts. */
void openreg_error_begin_call(void);
openreg_status openreg_error_end_call(const char *driver, const char *call, openreg_status code);

/* How often this thread's driver has called set_error() since begin_call(), and the last code that it gave. */
OPENREG_INTERNAL uint32_t openreg_error_times_set(openreg_status *code);
/* 1 if status.h has the code, else 0. */
OPENREG_INTERNAL int openreg_error_is_known(openreg_status code);

/* What drivers get: set_error() writes this thread's record, log() goes to log.h. Static. */
OPENREG_INTERNAL extern const openreg_host openreg_host_services;

#endif
