/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/vmm.h: device memory that grows in place: the driver extension "openreg.vmm", version 1. Valid C11 and
 * C++17.
 *
 *   const openreg_vmm *vmm = table->extension(instance, OPENREG_VMM_NAME, OPENREG_VMM_VERSION);
 *
 * NULL: the driver has none, as one whose devices have memory in pieces of which 2 MiB are no whole number; the caching
 * allocator then goes on without. driver.h's rules on threads, devices, errors and ownership hold here too; the runtime
 * never calls two of these functions for one reservation at a time. With it the caching allocator can have segments that grow
 * and shrink (PYTORCH_ALLOC_CONF=expandable_segments:True), which wastes less memory on requests of changing sizes. */
#ifndef OPENREG_VMM_H
#define OPENREG_VMM_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_VMM_NAME "openreg.vmm"
#define OPENREG_VMM_VERSION 1u
#define OPENREG_VMM_GRANULARITY (UINT64_C(2) << 20) /* of all sizes here, and the alignment of a reservation */

typedef struct openreg_vmm {
    uint32_t struct_size, version; /* sizeof(openreg_vmm), OPENREG_VMM_VERSION as compiled into the driver */

    /* Addresses of the device without memory behind them. host_alias() holds for them too. E_NOMEM: not so many are
     * free; the runtime asks for fewer, or does without. */
    openreg_status (*reserve)(openreg_instance, int32_t dev, uint64_t size, void **out);
    /* From now on the first `size` bytes of a reservation are device memory; what was memory before and still is keeps
     * its contents. Where it becomes smaller, returns after work queued on the rest has ended. E_NOMEM: as mem_alloc().
     * E_INVALID: no reservation, more than it has, or not a multiple of OPENREG_VMM_GRANULARITY. */
    openreg_status (*resize)(openreg_instance, int32_t dev, void *ptr, uint64_t size);
    /* Ends a reservation with the memory that it has, as mem_free(). */
    openreg_status (*release)(openreg_instance, int32_t dev, void *ptr);
} openreg_vmm;

#define OPENREG_VMM_SIZE_1 32u
static_assert(sizeof(openreg_vmm) == OPENREG_VMM_SIZE_1, "append a function, then freeze its size");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_VMM_H */
