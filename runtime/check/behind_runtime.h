/* SPDX-License-Identifier: BSD-3-Clause */
/* behind_runtime.h: what the checks of a driver behind the runtime share. All of it fails the check where the runtime
 * fails. */
#ifndef OPENREG_CHECK_BEHIND_RUNTIME_H
#define OPENREG_CHECK_BEHIND_RUNTIME_H

#include <openreg/openreg.h>

#include "check.h"
#include "fixtures.h"

/* OK(openreg_...()): a call that has to succeed. */
#define OK(call) check_runtime_ok(check_end_call((check_begin_call(#call), call)), #call)
void check_runtime_ok(openreg_status status, const char *call);

/* Selects the driver, alone, with its options. No other variable of OPENREG_* stays set, except OPENREG_LOG_LEVEL. Skips
 * the check if there is no device. With CHECK_EACH each run of the check calls it. */
void check_start_runtime(check_context *c);
openreg_device_properties check_properties(int32_t device);
/* That many bytes, or a third of the largest allocation where that is less. */
uint64_t check_third_within(int32_t device, uint64_t bytes);
/* Skips the check where the device has no room for a block of some MiB, which the caching allocator gives a segment, and a
 * segment of small blocks. */
void check_need_segments(int32_t device);
/* A block of the caching allocator, on the default stream. */
void *check_allocate_block(int32_t device, size_t size);
/* Pinned memory, a stream of the pool, and an event. */
void *check_pinned_block(int32_t device, size_t size);
openreg_stream check_pool_stream(int32_t device);
openreg_event check_runtime_event(int32_t device, uint32_t flags);
/* Bytes go to a block of the device and come back. */
void check_round_trip(int32_t device, uint64_t seed, const char *what);
/* Allocates, writes, reads and frees blocks of all devices for some time, each of whose bytes is looked at. A request may
 * find no memory. `*state`: of the random numbers. */
void check_random_program(check_context *c, uint64_t *state, double seconds);
/* Fails the check if each of five rounds of `what` has left a thread or an open file: some may be made once, and late. */
void check_nothing_is_left(check_counts before, const char *what);

#endif
