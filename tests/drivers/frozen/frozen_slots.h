/* SPDX-License-Identifier: BSD-3-Clause */
/* frozen_slots.h: the functions of the driver's table in the order of their places, by the minor that has them first. */
#ifndef OPENREG_TESTS_FROZEN_SLOTS_H
#define OPENREG_TESTS_FROZEN_SLOTS_H

#define FROZEN_SLOTS_1_0(X)                                                                                            \
    X(open)                                                                                                            \
    X(close)                                                                                                           \
    X(device_count)                                                                                                    \
    X(mem_alloc)                                                                                                       \
    X(mem_free)                                                                                                        \
    X(copy)                                                                                                            \
    X(device_sync)                                                                                                     \
    X(device_info)                                                                                                     \
    X(fill)                                                                                                            \
    X(stream_create)                                                                                                   \
    X(stream_destroy)                                                                                                  \
    X(stream_query)                                                                                                    \
    X(stream_sync)                                                                                                     \
    X(stream_wait)                                                                                                     \
    X(event_create)                                                                                                    \
    X(event_destroy)                                                                                                   \
    X(event_record)                                                                                                    \
    X(event_query)                                                                                                     \
    X(event_sync)                                                                                                      \
    X(event_elapsed)                                                                                                   \
    X(host_func)                                                                                                       \
    X(device_active)                                                                                                   \
    X(device_bind)                                                                                                     \
    X(host_alloc)                                                                                                      \
    X(host_free)                                                                                                       \
    X(mem_info)                                                                                                        \
    X(host_alias)                                                                                                      \
    X(stream_native)                                                                                                   \
    X(describe)                                                                                                        \
    X(extension)

#endif
