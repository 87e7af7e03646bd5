/* SPDX-License-Identifier: BSD-3-Clause */
/* observers.h: calls observers (openreg/observer.h). Internal.
 *
 * Callers check `if (openreg_is_observed(event))` first; these functions are the slow path. */
#ifndef OPENREG_SRC_OBSERVERS_H
#define OPENREG_SRC_OBSERVERS_H

#include <stdbool.h>

#include <openreg/observer.h>

#include "base/internal_api.h"

/* The word of openreg_observed_word(): hidden, which saves each place a load of its address. */
extern uint32_t openreg_watched_events;

/* One load. */
static inline uint32_t
openreg_watched(void)
{
    return __atomic_load_n(&openreg_watched_events, __ATOMIC_RELAXED);
}

static inline bool
openreg_is_observed(uint32_t events)
{
    return __builtin_expect((openreg_watched() & events) != 0, 0);
}

void openreg_observers_memory(const openreg_memory_event *event);
void openreg_observers_block(int32_t what, const void *address, uint64_t size, int32_t device, openreg_stream stream);
void openreg_observers_order(const openreg_order *order);
void openreg_observers_lost(const char *call, int32_t device, openreg_stream stream, const char *first_call,
                            const char *first_place);
/* The observers' data of a span, and the number of removals when it began. */
typedef struct openreg_span_keepers {
    void *kept[OPENREG_OBSERVERS_MAX];
    uint32_t removals;
} openreg_span_keepers;
void openreg_observers_span(int32_t step, const openreg_span *span, openreg_span_keepers *keepers);
void openreg_observers_alarm(int32_t device, openreg_status status);
void openreg_observers_table(int32_t is_published);

/* For interceptors.c: takes the lock for changes, and releases it with the events that all interceptors want. */
void openreg_observers_lock(void);
void openreg_observers_unlock(uint32_t events);

/* The line of the program that this thread is at, with any lock held; "" if not known. `size` is at least 80. */
OPENREG_INTERNAL void openreg_observers_place(char *out, size_t size);
/* The same as a number (0: not known), and its text; NULL: not known. The stack's text is "" without one. */
OPENREG_INTERNAL uint32_t openreg_observers_here(int32_t wants_stack);
OPENREG_INTERNAL const char *openreg_observers_here_text(uint32_t here, int32_t *allowed);
OPENREG_INTERNAL const char *openreg_observers_here_stack(uint32_t here);

#endif
