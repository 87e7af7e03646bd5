/* SPDX-License-Identifier: BSD-3-Clause */
/* attached_layers.c: the tables of open drivers, with and without the lab's layer around them (attached_layers.h). */
#define _GNU_SOURCE
#include "driver/attached_layers.h"

#include "base/fork.h"
#include "base/lock.h"
#include "driver/driver_calls.h"

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* serialises changes. A leaf */
static openreg_opened_driver *drivers;
static unsigned users;
static void (*wrap_table)(openreg_driver *table); /* NULL until a layer was attached */

_Thread_local openreg_current_call openreg_current;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_LAYERS, &lock);
}

/* Called with the lock held. */
static void
set_table(openreg_opened_driver *driver)
{
    if (users != 0 && !driver->is_wrapped) {
        driver->wrapped = driver->own;
        wrap_table(&driver->wrapped);
        driver->is_wrapped = 1;
    }
    atomic_store_explicit(&driver->table, users != 0 ? &driver->wrapped : &driver->own, memory_order_release);
}

void
openreg_layers_attach(unsigned user, int on, void (*wrap)(openreg_driver *table))
{
    openreg_lock_acquire(&lock);
    wrap_table = wrap;
    users = on ? users | user : users & ~user;
    for (openreg_opened_driver *driver = drivers; driver != NULL; driver = driver->next_opened)
        set_table(driver);
    openreg_lock_release(&lock);
}

openreg_caller
openreg_layers_caller(void)
{
    const openreg_device *const device = openreg_current.device;
    return (openreg_caller){&device->driver->own, device->driver, device->index, openreg_current.call};
}

void
openreg_layers_add(openreg_opened_driver *driver)
{
    openreg_lock_acquire(&lock);
    driver->next_opened = drivers;
    drivers = driver;
    set_table(driver);
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
