/* SPDX-License-Identifier: BSD-3-Clause */
/* device_table.h: the table of devices that openreg_init() builds, and how the rest of the runtime reaches a device.
 * Internal. Made by selection/built_table.c and published by activation.c; entries never move or change while the table is
 * published. */
#ifndef OPENREG_SRC_DEVICE_TABLE_H
#define OPENREG_SRC_DEVICE_TABLE_H

#include <stdatomic.h>

#include <openreg/driver.h>
#include <openreg/openreg.h>

#include "driver/visible_devices.h"

/* An open driver. */
typedef struct openreg_opened_driver {
    _Atomic(const openreg_driver *) table; /* `own` or `wrapped` */
    openreg_instance instance;
    /* The table of the driver, or of the layers that it was opened through, cut or zero-extended to this size; optional slots
     * may be NULL. */
    openreg_driver own;
    openreg_driver wrapped; /* with the lab's layer, once it was attached: attached_layers.c */
    int is_wrapped;
    struct openreg_opened_driver *next_opened;
    struct openreg_layer_level *levels; /* of the layers that it was opened through, or NULL */
    char name[32];
    openreg_visible_devices visible;
    openreg_device_info *infos;      /* of the visible devices, until it is closed */
    int was_published;               /* 1 once its devices were in a published table */
    struct openreg_faults_s *faults; /* of its option `faults`, or NULL */
} openreg_opened_driver;

#define OPENREG_LOSS_NONE 0
#define OPENREG_LOSS_SEEN 1  /* a slot has returned OPENREG_E_DEVICE_LOST */
#define OPENREG_LOSS_KNOWN 2 /* the same, and its text is stored */

typedef struct openreg_device {
    int32_t index;   /* openreg:index */
    int32_t ordinal; /* inside its driver */
    openreg_opened_driver *driver;
    openreg_device_info info;
    atomic_int active;               /* 1 once memory or a stream was made on it */
    atomic_int loss;                 /* OPENREG_LOSS_*; driver_calls.c */
    atomic_llong live_events;        /* openreg_event objects alive */
    atomic_llong live_pinned;        /* pinned blocks made through it; host_memory.c */
    atomic_llong live_imports;       /* openreg_import objects alive */
    atomic_llong live_communicators; /* openreg_communicator objects alive, also while one is made */
    atomic_llong live_graphs;        /* captures, openreg_graph and openreg_graph_exec objects alive */
    atomic_ullong syncs_started;     /* emulated events: device_sync calls begun, and the greatest number of one that */
    atomic_ullong syncs_ended;       /* has returned; driver_calls.c */
    struct openreg_cache *cache;     /* cache.h; never NULL */
    struct openreg_stream_set *streams; /* stream.h; never NULL */
    char loss_text[256]; /* the driver's error when it was lost, with its number; valid with LOSS_KNOWN */
    int64_t loss_vendor_code;
    char loss_call[64], loss_place[80]; /* the same: the call that lost it, and its line of the program where races are
                                         * looked for */
} openreg_device;

typedef struct openreg_device_table {
    uint32_t generation; /* differs from every earlier table's: stale thread-local indices read as 0 */
    int32_t count;
    int32_t binds; /* 1 if any driver has device_bind */
    openreg_device *devices[OPENREG_MAX_DEVICES];
    struct openreg_device_table *retired; /* tables are never freed: lock-free readers may still hold one */
} openreg_device_table;

/* Whether a call of the device has returned OPENREG_E_DEVICE_LOST. */
static inline int
openreg_device_is_lost(const openreg_device *device)
{
    return __builtin_expect(atomic_load_explicit(&device->loss, memory_order_relaxed) != OPENREG_LOSS_NONE, 0);
}

/* Written only by openreg_device_table_publish(). */
extern _Atomic(openreg_device_table *) openreg_device_table_published;

/* The published table, or NULL before openreg_init(), after openreg_shutdown() and in a bad fork. One acquire load. */
static inline openreg_device_table *
openreg_device_table_peek(void)
{
    return atomic_load_explicit(&openreg_device_table_published, memory_order_acquire);
}

/* Publishes the table (NULL: none) and its generation. For the holder of the driver lock, or the child of a fork(). */
void openreg_device_table_publish(openreg_device_table *table);
/* The number of publications. */
uint32_t openreg_device_table_publications(void);

/* openreg:index for use: initialises if needed, refuses a bad fork and an index outside [0, count) with the standard
 * texts ("<call>: The device index is out of range. It must be in [0, N), but got i."). Lock-free once initialised. */
openreg_status openreg_device_get(const char *call, int32_t index, openreg_device **out);
/* The table of that device; otherwise the same. */
openreg_status openreg_device_table_get(const char *call, int32_t index, const openreg_device_table **out);

/* Sets what openreg_device_get() calls if there is no table yet: openreg_init() on behalf of `call`, which a room above
 * this one has. Called by a constructor of activation.c. */
void openreg_device_table_set_first_use(openreg_status (*initialize)(const char *call));

#endif
