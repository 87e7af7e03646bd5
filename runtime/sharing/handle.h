/* SPDX-License-Identifier: BSD-3-Clause */
/* handle.h: the contents of an openreg_memory_handle (openreg/sharing.h). Internal to this folder. */
#ifndef OPENREG_SHARING_HANDLE_H
#define OPENREG_SHARING_HANDLE_H

#include <openreg/sharing.h>

#define OPENREG_HANDLE_VERSION 1u /* raised by each change of the structures below */

typedef struct openreg_handle_fields {
    uint32_t struct_size, version;
    uint64_t size;
    /* openreg_memory_handle.name */
    int32_t process; /* the exporter */
    int32_t ordinal; /* of the device, inside its driver */
    uint64_t leases_inode;
    uint64_t address; /* of the memory, in the exporter */
    /* openreg_memory_handle.bytes */
    int32_t leases;            /* a file of the exporter: its number, device and inode */
    uint32_t slot, use;        /* index of the count of the memory's holders in that file */
    uint32_t allocation_bytes; /* of `allocation`, the size of ipc.h's handle_size(); the rest is 0 */
    uint64_t leases_device;
    uint64_t offset; /* of the memory in the driver's allocation */
    uint64_t allocation_size;
    char uuid[16]; /* of the device */
    char driver[32];
    openreg_ipc_handle allocation;
} openreg_handle_fields;

static_assert(sizeof(openreg_handle_fields) == sizeof(openreg_memory_handle) &&
                  offsetof(openreg_handle_fields, process) == offsetof(openreg_memory_handle, name) &&
                  offsetof(openreg_handle_fields, leases) == offsetof(openreg_memory_handle, bytes),
              "a handle of memory and its fields");

#endif
