/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_slots.h: the functions of a driver's table, in order, for code that treats them alike. Internal. */
#ifndef OPENREG_SRC_DRIVER_SLOTS_H
#define OPENREG_SRC_DRIVER_SLOTS_H

#include <openreg/driver.h>

/* X(name, group): a table has all functions of a group or none; "" is a group of its own, REQUIRED must not be NULL. */
#define OPENREG_SLOT_REQUIRED "required"
#define OPENREG_SLOT_MAP(X)                                                                                            \
    X(open, OPENREG_SLOT_REQUIRED)                                                                                     \
    X(close, OPENREG_SLOT_REQUIRED)                                                                                    \
    X(device_count, OPENREG_SLOT_REQUIRED)                                                                             \
    X(mem_alloc, OPENREG_SLOT_REQUIRED)                                                                                \
    X(mem_free, OPENREG_SLOT_REQUIRED)                                                                                 \
    X(copy, OPENREG_SLOT_REQUIRED)                                                                                     \
    X(device_sync, OPENREG_SLOT_REQUIRED)                                                                              \
    X(device_info, "")                                                                                                 \
    X(fill, "")                                                                                                        \
    X(stream_create, "stream")                                                                                         \
    X(stream_destroy, "stream")                                                                                        \
    X(stream_query, "stream")                                                                                          \
    X(stream_sync, "stream")                                                                                           \
    X(stream_wait, "")                                                                                                 \
    X(event_create, "event")                                                                                           \
    X(event_destroy, "event")                                                                                          \
    X(event_record, "event")                                                                                           \
    X(event_query, "event")                                                                                            \
    X(event_sync, "event")                                                                                             \
    X(event_elapsed, "")                                                                                               \
    X(host_func, "")                                                                                                   \
    X(device_active, "")                                                                                               \
    X(device_bind, "")                                                                                                 \
    X(host_alloc, "host memory")                                                                                       \
    X(host_free, "host memory")                                                                                        \
    X(mem_info, "")                                                                                                    \
    X(host_alias, "")                                                                                                  \
    X(stream_native, "")                                                                                               \
    X(describe, "")                                                                                                    \
    X(extension, "")

typedef struct openreg_slot {
    const char *name;
    const char *group;
    size_t offset; /* in openreg_driver */
} openreg_slot;

#define OPENREG_SLOT_ENTRY(name, group) {#name, group, offsetof(openreg_driver, name)},
static const openreg_slot openreg_slots[] = {OPENREG_SLOT_MAP(OPENREG_SLOT_ENTRY)};
#define OPENREG_SLOT_COUNT ((int)(sizeof openreg_slots / sizeof openreg_slots[0]))

static_assert(offsetof(openreg_driver, open) +
                      sizeof openreg_slots / sizeof openreg_slots[0] * sizeof(void (*)(void)) ==
                  sizeof(openreg_driver),
              "a slot is missing here");

#endif
