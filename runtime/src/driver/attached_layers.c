/* SPDX-License-Identifier: BSD-3-Clause */
/* attached_layers.c: the tables of open drivers, one for each set of attached layers (attached_layers.h). */
#define _GNU_SOURCE
#include "driver/attached_layers.h"

#include "base/fork.h"
#include "base/lock.h"
#include "driver/driver_calls.h"

#define LAYERS (OPENREG_ATTACHED_RECORDER + 1)

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* of changes. A leaf */
static openreg_opened_driver *drivers;
static void (*wraps[LAYERS])(openreg_driver *table); /* of those that were attached once */
static _Atomic unsigned attached;

OPENREG_HOT_TLS openreg_current_call openreg_current;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_LAYERS, &lock);
}

/* Those of sets whose layers were all attached once. The lock is held. */
static void
make_tables(openreg_opened_driver *driver)
{
    unsigned known = 0;
    for (int layer = 0; layer < LAYERS; ++layer)
        known |= wraps[layer] != NULL ? 1u << layer : 0;
    for (unsigned set = 1; set < OPENREG_ATTACHED_SETS; ++set) {
        if (driver->is_made[set] || (set & ~known) != 0)
            continue;
        driver->with_layers[set] = driver->own;
        for (int layer = 0; layer < LAYERS; ++layer)
            if ((set & 1u << layer) != 0)
                wraps[layer](&driver->with_layers[set]);
        driver->is_made[set] = 1;
    }
}

static const openreg_driver *
table_with(const openreg_opened_driver *driver, unsigned set)
{
    return set == 0 ? &driver->own : &driver->with_layers[set];
}

void
openreg_layers_attach(int layer, void (*wrap)(openreg_driver *table))
{
    const unsigned bit = 1u << layer;
    openreg_lock_acquire(&lock);
    if (wrap != NULL)
        wraps[layer] = wrap;
    unsigned set = atomic_load_explicit(&attached, memory_order_relaxed);
    set = wrap != NULL ? set | bit : set & ~bit;
    for (openreg_opened_driver *driver = drivers; driver != NULL; driver = driver->next_opened)
        make_tables(driver);
    atomic_store_explicit(&attached, set, memory_order_release);
    for (openreg_opened_driver *driver = drivers; driver != NULL; driver = driver->next_opened)
        atomic_store_explicit(&driver->table, table_with(driver, set), memory_order_release);
    openreg_lock_release(&lock);
}

openreg_caller
openreg_layers_caller(int layer)
{
    const openreg_device *const device = openreg_current.device;
    const unsigned set = atomic_load_explicit(&attached, memory_order_acquire) & ((1u << layer) - 1);
    return (openreg_caller){table_with(device->driver, set), device->driver, device->index, openreg_current.call};
}

void
openreg_layers_add(openreg_opened_driver *driver)
{
    openreg_lock_acquire(&lock);
    driver->next_opened = drivers;
    drivers = driver;
    make_tables(driver);
    const unsigned set = atomic_load_explicit(&attached, memory_order_relaxed);
    atomic_store_explicit(&driver->table, table_with(driver, set), memory_order_release);
    openreg_lock_release(&lock);
}

void
openreg_layers_remove(openreg_opened_driver *driver)
{
    openreg_lock_acquire(&lock);
    openreg_opened_driver **at = &drivers;
    while (*at != NULL && *at != driver)
        at = &(*at)->next_opened;
    if (*at != NULL)
        *at = driver->next_opened;
    atomic_store_explicit(&driver->table, &driver->own, memory_order_release);
    openreg_lock_release(&lock);
}
