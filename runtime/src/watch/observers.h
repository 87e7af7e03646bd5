/* SPDX-License-Identifier: BSD-3-Clause */
/* observers.h: calls those who watch (openreg/observer.h). Internal.
 *
 * Around each of these stands `if (openreg_is_observed(event))`; they are the slow half. */
#ifndef OPENREG_SRC_OBSERVERS_H
#define OPENREG_SRC_OBSERVERS_H

#include <stdbool.h>

#include <openreg/observer.h>

#include "base/internal_api.h"

/* As openreg_observed_events, but hidden, which saves each place a load of its address. */
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
/* 1: refused, with the text. */
int openreg_observers_allocate(int32_t device, uint64_t size, char *text, size_t text_size);
void openreg_observers_block(int32_t what, const void *address, uint64_t size, int32_t device, openreg_stream stream);
/* OPENREG_E_INVALID with a text if an observer refuses. */
openreg_status openreg_observers_use(const char *call, int32_t device, openreg_stream stream,
                                     const openreg_used_range *ranges, size_t count);
openreg_status openreg_observers_kernel(int32_t device, openreg_stream stream, const openreg_kernel_call *call);
void openreg_observers_order(const openreg_order *order);
void openreg_observers_lost(const char *call, int32_t device, openreg_stream stream, const char *first_call,
                            const char *first_place);
void openreg_observers_span(int32_t step, const openreg_span *span, void *kept[OPENREG_OBSERVERS_MAX]);
openreg_status openreg_observers_run(const openreg_work *work, openreg_status (*next)(void *argument), void *argument);
void openreg_observers_alarm(int32_t device, openreg_status status);
void openreg_observers_table(int32_t is_published);

/* The line of the program that this thread is at, with any lock held; "" if not known. `size` is at least 80. */
OPENREG_INTERNAL void openreg_observers_place(char *out, size_t size);
/* Likewise as a number (0: not known), and what it means; NULL: nobody knows. */
OPENREG_INTERNAL uint32_t openreg_observers_here(int32_t wants_stack);
OPENREG_INTERNAL const char *openreg_observers_here_text(uint32_t here, int32_t *allowed);
OPENREG_INTERNAL const char *openreg_observers_here_stack(uint32_t here);

#endif
