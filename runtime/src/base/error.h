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

/* A thread's error in parts. Only error.c joins them to the message of openreg_last_error():
 *   [<call>: ][driver "<driver>": ]<text>[ (<CODE NAME><note>)]
 * Driver and code appear if is_drivers is set. */
typedef struct openreg_error_fields {
    openreg_status code;  /* OPENREG_OK: no error */
    int32_t is_drivers;   /* 1: `text` is from a driver, or about one */
    int32_t names_driver; /* 1: `text` holds the driver's name */
    int32_t names_code;   /* 1: `text` holds the code's name */
    int32_t names_path;   /* 1: `text` holds the path of the library concerned */
    int64_t vendor_code;
    char driver[32];
    char call[64]; /* the public function that failed, or "" */
    char note[48]; /* an addition to the code, or "" */
    char text[1024];
} openreg_error_fields;

/* Stores (code, no vendor code, no driver, call, text) as this thread's error and returns `code`. `call` may be NULL.
 * Truncates, never fails. */
OPENREG_INTERNAL openreg_status openreg_error_set(openreg_status code, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same, for an error that a driver caused. */
OPENREG_INTERNAL openreg_status openreg_error_set_driver(openreg_status code, const char *call, const char *driver,
                                                         const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Notes that the text of the thread's error names that driver, and the vendor's number. Returns the error's code. */
openreg_status openreg_error_names_driver(const char *driver, int64_t vendor_code);

/* Whether that text names the error's code. */
void openreg_error_names_code(int it_does);
/* Notes that the text names the path of the library. Returns the error's code. */
openreg_status openreg_error_names_path(void);

/* Sets the function on whose behalf an error without a call has happened. Returns the error's code. */
openreg_status openreg_error_set_call(const char *call);

/* Replaces the text of the thread's error by "<prefix>: " and its message so far. Returns the error's code. */
openreg_status openreg_error_prefix(const char *prefix);

/* Saves and restores the thread's error around calls whose failures are ignored. */
OPENREG_INTERNAL openreg_error_fields openreg_error_save(void);
OPENREG_INTERNAL void openreg_error_restore(const openreg_error_fields *saved);

/* The message of an error without the names of `call` and `driver`, for a reader who knows them already. */
void openreg_error_reason(const openreg_error_fields *error, const char *call, const char *driver, char *out,
                          size_t size);

/* Called around every driver slot by driver_calls.c, around a driver's kernels by kernels.c: begin() marks the record
 * as "not set by a driver"; end() maps an unknown code to OPENREG_E_INTERNAL, supplies a text if the driver gave none,
 * and stores the parts. */
void openreg_error_begin_call(void);
openreg_status openreg_error_end_call(const char *driver, const char *call, openreg_status code);

/* How often this thread's driver has called set_error() since begin_call(), and its last code. */
OPENREG_INTERNAL uint32_t openreg_error_times_set(openreg_status *code);
/* 1 if status.h has the code, else 0. */
OPENREG_INTERNAL int openreg_error_is_known(openreg_status code);

/* The host table for drivers: set_error() writes this thread's record, log() calls log.h. Static. */
OPENREG_INTERNAL extern const openreg_host openreg_host_services;

#endif
