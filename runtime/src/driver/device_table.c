/* SPDX-License-Identifier: BSD-3-Clause */
/* device_table.c: reaching a device (device_table.h). */
#include "driver/device_table.h"

#include <openreg/embedding.h>
#include <stddef.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/inside.h"

_Atomic(openreg_device_table *) openreg_device_table_published;
static uint32_t published_generation;

uint32_t
openreg_generation(void)
{
    return __atomic_load_n(&published_generation, __ATOMIC_ACQUIRE);
}

const uint32_t *
openreg_generation_word(void)
{
    return &published_generation;
}

static atomic_uint publications;

static openreg_status (*initialize)(const char *call); /* written while the library is loaded */

void
openreg_device_table_set_first_use(openreg_status (*function)(const char *call))
{
    initialize = function;
}

void
openreg_device_table_publish(openreg_device_table *table)
{
    /* In this order: a thread that reads the new generation finds the table that it belongs to. */
    atomic_store_explicit(&openreg_device_table_published, table, memory_order_release);
    __atomic_store_n(&published_generation, table != NULL ? table->generation : 0, __ATOMIC_RELEASE);
    (void)atomic_fetch_add_explicit(&publications, 1, memory_order_relaxed);
}

uint32_t
openreg_device_table_publications(void)
{
    return atomic_load_explicit(&publications, memory_order_relaxed);
}

int
openreg_is_initialized(void)
{
    return openreg_generation() != 0;
}

/* Makes the table if there is none, or sets the error. Kept apart, so that the usual case needs no stack frame. */
static __attribute__((noinline)) openreg_status
make_table(const char *call, const openreg_device_table *table, int32_t index)
{
    if (table != NULL)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "The device index is out of range. It must be in [0, %d), but got %d.", table->count,
                                 index);
    const uint32_t paused = openreg_inside_pause();
    const openreg_status status = initialize(call);
    openreg_inside_resume(paused);
    return status;
}

static inline openreg_status
find_table(const char *call, int32_t index, const openreg_device_table **out)
{
    for (;;) { /* repeats if another thread has shut down the new table */
        const openreg_device_table *const table = openreg_device_table_peek();
        if (__builtin_expect(table != NULL && (uint32_t)index < (uint32_t)table->count, 1)) {
            *out = table;
            return OPENREG_OK;
        }
        OPENREG_RETURN_NOT_OK(make_table(call, table, index));
    }
}

openreg_status
openreg_device_table_get(const char *call, int32_t index, const openreg_device_table **out)
{
    return find_table(call, index, out);
}

openreg_status
openreg_device_get(const char *call, int32_t index, openreg_device **out)
{
    const openreg_device_table *table = NULL;
    OPENREG_RETURN_NOT_OK(find_table(call, index, &table));
    *out = table->devices[index];
    return OPENREG_OK;
}

static void
after_fork_in_child(void)
{
    if (openreg_in_bad_fork())
        openreg_device_table_publish(NULL);
}

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_handle(OPENREG_FORK_TABLE, &(openreg_fork_handlers){.child = after_fork_in_child});
}
