/* SPDX-License-Identifier: BSD-3-Clause */
/* host_memory.h: live pinned host blocks. Internal. */
#ifndef OPENREG_SRC_HOST_MEMORY_H
#define OPENREG_SRC_HOST_MEMORY_H

#include <stdbool.h>

#include "driver/device_table.h"

int64_t openreg_host_memory_live_blocks(const openreg_device *device); /* pinned blocks made through this device */

typedef struct openreg_host_block {
    uintptr_t start;
    uint64_t size; /* bytes that were requested */
    openreg_device *device;
} openreg_host_block;

/* The pinned block that holds `address`; false if none does. Takes no lock while there are no pinned blocks, else
 * O(log n) steps in the number of live ones. */
bool openreg_host_memory_find(uintptr_t address, openreg_host_block *out);

/* As memcpy(); the bytes are visible when it returns: streamed_copy.c. Large copies bypass the cache if the processor can: a
 * store through the cache first reads the line that it overwrites, and evicts other lines. Any thread. */
void openreg_copy_on_host(void *destination, const void *source, size_t size);

#endif
