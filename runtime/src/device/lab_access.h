/* SPDX-License-Identifier: BSD-3-Clause */
/* lab_access.h: access to devices for the libraries beside libopenreg.so (lab, graph, sharing). Internal. */
#ifndef OPENREG_SRC_LAB_ACCESS_H
#define OPENREG_SRC_LAB_ACCESS_H

#include <openreg/graph.h>

#include "base/internal_api.h"
#include "driver/device_table.h"

/* The driver of openreg:index, one pointer for all devices of a driver; NULL: no such device. Never initialises. */
OPENREG_INTERNAL const void *openreg_lab_driver_of(int32_t index);

/* The same, and the driver's handle of a stream. 0: there is none. Sets no error. */
OPENREG_INTERNAL int openreg_lab_stream_of(int32_t index, openreg_stream stream, const void **driver,
                                           openreg_driver_stream *handle);

/* Ends the device's loss. */
OPENREG_INTERNAL void openreg_lab_heal(int32_t index);

/* A device, and its driver's graph extension; `table` is NULL if the driver does not capture by itself. */
typedef struct openreg_graph_site {
    openreg_device *device;
    const openreg_graph_table *table;
    openreg_instance instance;
    int32_t ordinal;
    openreg_driver_stream handle;
} openreg_graph_site;

/* Errors: OPENREG_E_INVALID (a stream of another device), OPENREG_E_INCOMPATIBLE (an unfit table). */
OPENREG_INTERNAL openreg_status openreg_graph_reach(const char *call, int32_t index, openreg_stream stream,
                                                    openreg_graph_site *out);

/* openreg_device_get(). */
OPENREG_INTERNAL openreg_status openreg_part_device(const char *call, int32_t index, openreg_device **out);
/* A function of a driver's extension, on behalf of a device, as OPENREG_DEVICE_CALL() and, if it `releases`,
 * OPENREG_RELEASE_CALL() (driver_calls.h). */
#define OPENREG_PART_CALL(call, device, releases, expression)                                                          \
    (openreg_part_call_begin((call), (device), (releases)) != OPENREG_OK                                               \
         ? OPENREG_E_DEVICE_LOST                                                                                       \
         : openreg_part_call_end((call), (device), (expression)))
OPENREG_INTERNAL openreg_status openreg_part_call_begin(const char *call, openreg_device *device, int releases);
OPENREG_INTERNAL openreg_status openreg_part_call_end(const char *call, openreg_device *device, openreg_status status);

#endif
