/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/vmm.h: reserved device addresses with memory mapped on demand: the driver extension "openreg.vmm", version 1.
 * Valid C11 and C++17.
 *
 *   const openreg_vmm *vmm = table->extension(instance, OPENREG_VMM_NAME, OPENREG_VMM_VERSION);
 *
 * NULL: the driver has none; the caching allocator works without. Every function is required. driver.h's rules on threads,
 * devices, errors and ownership hold here too; the runtime never calls two of these functions for one reservation at a
 * time. With it the caching allocator can have segments that grow and shrink (PYTORCH_ALLOC_CONF=expandable_segments:True),
 * which waste less memory on requests of changing sizes. */
#ifndef OPENREG_VMM_H
#define OPENREG_VMM_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_VMM_NAME "openreg.vmm"
#define OPENREG_VMM_VERSION 1u

typedef struct openreg_vmm {
    uint32_t struct_size, version; /* sizeof(openreg_vmm), OPENREG_VMM_VERSION as compiled into the driver */

    /* Bytes of the smallest piece that can be mapped: a power of two, constant from open() to close(). Offsets and sizes
     * below are multiples of it, and so is the address of a reservation. */
    openreg_status (*granularity)(openreg_instance, int32_t dev, uint64_t *out);
    /* Reserves addresses of the device, without memory. host_alias() works for them too. E_NOMEM: not enough addresses are
     * free; the runtime tries fewer, or works without. */
    openreg_status (*reserve)(openreg_instance, int32_t dev, uint64_t size, void **out);
    /* Maps device memory, contents undefined, at [ptr + offset, ptr + offset + size) of the reservation at `ptr`; the rest
     * of the reservation stays as it is. E_NOMEM: as mem_alloc(). E_INVALID: no reservation, beyond its end, not a
     * multiple of the granularity, or memory already, in part or as a whole. */
    openreg_status (*map)(openreg_instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size);
    /* Unmaps any part of the reservation's memory, which several calls of map() may have mapped, and returns after work
     * queued on it has ended; the addresses stay reserved. E_INVALID: as map(), or not all of the range is memory. */
    openreg_status (*unmap)(openreg_instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size);
    /* Frees a reservation and its memory, as mem_free(). */
    openreg_status (*release)(openreg_instance, int32_t dev, void *ptr);
} openreg_vmm;

#define OPENREG_VMM_SIZE_1 48u
static_assert(sizeof(openreg_vmm) == OPENREG_VMM_SIZE_1, "append a function, then freeze its size");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_VMM_H */
