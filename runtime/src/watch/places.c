/* SPDX-License-Identifier: BSD-3-Clause */
/* places.c: the calling thread's place in the program, from an embedding language (observers.h). */
#include <stdatomic.h>
#include <string.h>

#include <openreg/embedding.h>

#include "watch/observers.h"

static _Atomic(int (*)(char *, size_t)) place;
static _Atomic(uint32_t (*)(int32_t)) here;
static _Atomic(const char *(*)(uint32_t, int32_t *)) here_text;
static _Atomic(const char *(*)(uint32_t)) here_stack;

void
openreg_set_places(const openreg_places *places)
{
    static const openreg_places none;
    const openreg_places *const given = places != NULL ? places : &none;
#define TAKE(function)                                                                                                 \
    if (places == NULL || given->function != NULL)                                                                     \
    atomic_store_explicit(&function, given->function, memory_order_release)
    TAKE(place);
    TAKE(here);
    TAKE(here_text);
    TAKE(here_stack);
#undef TAKE
}

void
openreg_observers_place(char *out, size_t size)
{
    int (*const find)(char *, size_t) = atomic_load_explicit(&place, memory_order_acquire);
    if (find == NULL || !find(out, size))
        out[0] = '\0';
    out[size - 1] = '\0';
}

uint32_t
openreg_observers_here(int32_t wants_stack)
{
    uint32_t (*const find)(int32_t) = atomic_load_explicit(&here, memory_order_acquire);
    return find != NULL ? find(wants_stack) : 0;
}

const char *
openreg_observers_here_text(uint32_t number, int32_t *allowed)
{
    const char *(*const find)(uint32_t, int32_t *) = atomic_load_explicit(&here_text, memory_order_acquire);
    *allowed = 0;
    return find != NULL ? find(number, allowed) : NULL;
}

const char *
openreg_observers_here_stack(uint32_t number)
{
    const char *(*const find)(uint32_t) = atomic_load_explicit(&here_stack, memory_order_acquire);
    return find != NULL ? find(number) : "";
}
