/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant_extensions.c: defects of the extensions (mutants.h). */
#include "mutant.h"

#include <string.h>

#include <openreg/comm.h>
#include <openreg/graph.h>
#include <openreg/kernels.h>
#include <openreg/vmm.h>

/* ----------------------------------------------------------------------------------------------------------------- ipc */

static openreg_status
mutant_handle_size(openreg_instance instance, uint32_t *out)
{
    const openreg_status status = openreg_sim_ipc()->handle_size(instance, out);
    if (status == OPENREG_OK && IS(ipc_size_short)) /* without its last field */
        *out -= 8;
    return status;
}

static openreg_status
mutant_memory_export(openreg_instance instance, int32_t dev, void *ptr, const int32_t *processes, uint32_t count,
                     void *out)
{
    const openreg_status status = openreg_sim_ipc()->memory_export(instance, dev, ptr, processes, count, out);
    if (status == OPENREG_OK && IS(ipc_offset)) /* the offset in the file */
        memset((char *)out + 32, 0, 8);
    return status;
}

static openreg_status
mutant_memory_open(openreg_instance instance, int32_t dev, const void *handle, void **out)
{
    static int opened;
    uint64_t offset, size;
    memcpy(&offset, (const char *)handle + 32, sizeof offset);
    memcpy(&size, (const char *)handle + 40, sizeof size);
    if ((IS(ipc_own) && opened++ == 0) || (IS(ipc_any) && *(const unsigned char *)handle == 0x5a) ||
        (IS(ipc_empty) && size == 0) || (IS(ipc_beyond) && offset > INT64_MAX)) {
        *out = &opened;
        return OPENREG_OK;
    }
    return openreg_sim_ipc()->memory_open(instance, dev, handle, out);
}

/* ----------------------------------------------------------------------------------------------------------------- vmm */

#define PIECE (UINT64_C(2) << 20)

static openreg_status
mutant_granularity(openreg_instance instance, int32_t dev, uint64_t *out)
{
    const openreg_status status = openreg_sim_granularity(instance, dev, out);
    if (status == OPENREG_OK && IS(vmm_odd_step))
        *out = 3 * PIECE;
    return status;
}

/* Which call of map() a piece came from, by its address. */
#define MOST_PIECES 4096

static unsigned *
call_of(void *ptr, uint64_t offset)
{
    static unsigned calls[MOST_PIECES];
    return &calls[((uintptr_t)ptr + offset) / PIECE % MOST_PIECES];
}

static openreg_status
mutant_map(openreg_instance instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    static unsigned number;
    if (IS(vmm_any_size))
        size = size / PIECE * PIECE;
    openreg_status status = openreg_sim_map(instance, dev, ptr, offset, size);
    if (status == OPENREG_E_INVALID && IS(vmm_maps_twice) && offset % PIECE == 0 && size == PIECE)
        return OPENREG_OK;
    if (status == OPENREG_E_INVALID && IS(vmm_fills_up) && size > PIECE) /* those that are no memory yet */
        for (uint64_t at = offset; at < offset + size; at += PIECE)
            if (openreg_sim_map(instance, dev, ptr, at, PIECE) == OPENREG_OK)
                status = OPENREG_OK;
    if (status == OPENREG_OK && IS(vmm_loses) && offset > 0) {
        (void)mutant_base->fill(instance, dev, NULL, (char *)ptr + offset - 4096, 0, 4096);
        (void)mutant_base->device_sync(instance, dev);
    }
    ++number;
    for (uint64_t at = offset; status == OPENREG_OK && IS(vmm_one_call) && at < offset + size; at += PIECE)
        *call_of(ptr, at) = number;
    return status;
}

/* As if others had the memory by now. */
static void
spoil(openreg_instance instance, int32_t dev, char *memory)
{
    void *host = NULL;
    (void)mutant_base->host_alias(instance, dev, memory, &host);
    memset(host, 0, 4096);
}

static openreg_status
mutant_unmap(openreg_instance instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    uint64_t end = offset + size;
    if (IS(vmm_end_only)) /* what is behind goes too */
        while (openreg_sim_unmap(instance, dev, ptr, end, PIECE) == OPENREG_OK)
            end += PIECE;
    if (IS(vmm_early))
        spoil(instance, dev, (char *)ptr + offset);
    for (uint64_t at = offset; IS(vmm_one_call) && at < offset + size; at += PIECE)
        if (*call_of(ptr, at) != *call_of(ptr, offset))
            return openreg_sim_unmap(instance, dev, ptr, offset + 1, size); /* its error */
    if (IS(vmm_first_piece))
        size = PIECE;
    openreg_status status = openreg_sim_unmap(instance, dev, ptr, offset, size);
    if (status == OPENREG_E_INVALID && IS(vmm_what_there_is) && size > PIECE)
        for (uint64_t at = offset; at < offset + size; at += PIECE)
            if (openreg_sim_unmap(instance, dev, ptr, at, PIECE) == OPENREG_OK)
                status = OPENREG_OK;
    return status;
}

static openreg_status
mutant_release(openreg_instance instance, int32_t dev, void *ptr)
{
    if (IS(vmm_release_early))
        spoil(instance, dev, (char *)ptr + PIECE);
    return IS(vmm_keeps) ? OPENREG_OK : openreg_sim_mem_free(instance, dev, ptr);
}

/* ------------------------------------------------------------------------------------------------------------- probe */

uint32_t mutant_to_fail;

static openreg_status
mutant_vendor_device(openreg_instance instance, int32_t *dev)
{
    (void)instance;
    *dev = mutant_bound;
    return OPENREG_OK;
}

static openreg_status
mutant_fail_vendor_call(openreg_instance instance, uint32_t nth, uint32_t *left)
{
    (void)instance;
    *left = openreg_probe_fail(&mutant_to_fail, nth);
    return OPENREG_OK;
}

/* --------------------------------------------------------------------------------------------------------- the table */

static openreg_ipc ipc;

static const void *
mutant_extension(openreg_instance instance, const char *name, uint32_t version)
{
    static const openreg_vmm vmm = {.struct_size = sizeof vmm,
                                    .version = OPENREG_VMM_VERSION,
                                    .granularity = mutant_granularity,
                                    .reserve = openreg_sim_reserve,
                                    .map = mutant_map,
                                    .unmap = mutant_unmap,
                                    .release = mutant_release};
    static const openreg_probe probe = {.struct_size = sizeof probe,
                                        .version = OPENREG_PROBE_VERSION,
                                        .vendor_device = mutant_vendor_device,
                                        .fail_vendor_call = mutant_fail_vendor_call};
    if (IS(extension_any) && name[0] == '\0')
        return &ipc;
    if (strcmp(name, OPENREG_IPC_NAME) == 0 && version <= OPENREG_IPC_VERSION)
        return IS(odd_alignment) ? NULL : &ipc; /* of the simulator's own addresses */
    if (strcmp(name, OPENREG_VMM_NAME) == 0 && version <= OPENREG_VMM_VERSION)
        return &vmm;
    if (strcmp(name, OPENREG_PROBE_NAME) == 0 && version <= OPENREG_PROBE_VERSION)
        return &probe;
    if (strcmp(name, OPENREG_KERNELS_NAME) == 0 && version <= OPENREG_KERNELS_VERSION)
        return mutant_kernels();
    if (strcmp(name, OPENREG_COMM_NAME) == 0)
        return mutant_comm(version);
    if (strcmp(name, OPENREG_GRAPH_NAME) == 0)
        return mutant_graph(version);
    return mutant_base->extension(instance, name, version);
}

void
mutant_wrap_extensions(openreg_driver *table)
{
    ipc = *openreg_sim_ipc();
    ipc.handle_size = mutant_handle_size;
    ipc.memory_export = mutant_memory_export;
    ipc.memory_open = mutant_memory_open;
    table->extension = mutant_extension;
}
