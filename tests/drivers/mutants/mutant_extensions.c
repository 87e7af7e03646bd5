/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant_extensions.c: defects of the extensions, and the kernels that the driver with defects has (mutants.h). */
#include "mutant.h"

#include <stdlib.h>
#include <string.h>

#include <openreg/kernels.h>
#include <openreg/vmm.h>

/* ----------------------------------------------------------------------------------------------------------------- ipc */

static openreg_status
mutant_memory_export(openreg_instance instance, int32_t dev, void *ptr, openreg_ipc_handle *out)
{
    const openreg_status status = openreg_sim_ipc()->memory_export(instance, dev, ptr, out);
    if (status == OPENREG_OK && IS(ipc_offset)) /* the offset in the file */
        memset(&out->bytes[32], 0, 8);
    return status;
}

static openreg_status
mutant_memory_open(openreg_instance instance, int32_t dev, const openreg_ipc_handle *handle, void **out)
{
    static int opened;
    if ((IS(ipc_own) && opened++ == 0) || (IS(ipc_any) && handle->bytes[0] == 0x5a)) {
        *out = &opened;
        return OPENREG_OK;
    }
    return openreg_sim_ipc()->memory_open(instance, dev, handle, out);
}

static openreg_status
mutant_memory_close(openreg_instance instance, int32_t dev, void *ptr)
{
    return openreg_sim_ipc()->memory_close(instance, dev, ptr);
}

/* ----------------------------------------------------------------------------------------------------------------- vmm */

static openreg_status
mutant_resize(openreg_instance instance, int32_t dev, void *ptr, uint64_t size)
{
    if (IS(vmm_any_size))
        size = size / OPENREG_VMM_GRANULARITY * OPENREG_VMM_GRANULARITY;
    const openreg_status status = openreg_sim_resize(instance, dev, ptr, size);
    if (status == OPENREG_OK && IS(vmm_loses) && size > OPENREG_VMM_GRANULARITY) {
        (void)mutant_base->fill(instance, dev, ptr, 0, 4096, NULL);
        (void)mutant_base->device_sync(instance, dev);
    }
    return status;
}

static openreg_status
mutant_release(openreg_instance instance, int32_t dev, void *ptr)
{
    return IS(vmm_keeps) ? OPENREG_OK : openreg_sim_release(instance, dev, ptr);
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

static bool
is_known(const openreg_tensor *tensor)
{
    return openreg_has_dtype(tensor, OPENREG_DTYPE_FLOAT, 32) || openreg_has_dtype(tensor, OPENREG_DTYPE_FLOAT, 64) ||
           openreg_has_dtype(tensor, OPENREG_DTYPE_INT, 64) ||
           (IS(kernel_types) && tensor->dtype.code == 99 && tensor->dtype.bits == 64);
}

static char *
element(openreg_instance instance, const openreg_tensor *tensor, int64_t i)
{
    void *host = NULL;
    int64_t offset = 0;
    (void)mutant_base->host_alias(instance, tensor->device_id, tensor->data, &host);
    if (IS(kernel_strides))
        offset = i;
    else
        for (int32_t d = tensor->ndim - 1; d >= 0; --d) {
            offset += i % tensor->shape[d] * tensor->strides[d];
            i /= tensor->shape[d];
        }
    return (char *)host + offset * (tensor->dtype.bits / 8);
}

static double
load(openreg_instance instance, const openreg_value *value, int64_t i)
{
    if (value->tensor == NULL)
        return value->real;
    const char *const at = element(instance, value->tensor, i);
    float f;
    double d;
    int64_t l;
    if (value->tensor->dtype.bits == 32)
        return memcpy(&f, at, sizeof f), (double)f;
    if (value->tensor->dtype.code == OPENREG_DTYPE_FLOAT)
        return memcpy(&d, at, sizeof d), d;
    return memcpy(&l, at, sizeof l), (double)l;
}

static void
store(openreg_instance instance, const openreg_tensor *tensor, int64_t i, double value)
{
    char *const at = element(instance, tensor, i);
    const float f = (float)value;
    const int64_t l = (int64_t)value;
    if (tensor->dtype.bits == 32)
        memcpy(at, &f, sizeof f);
    else if (tensor->dtype.code == OPENREG_DTYPE_FLOAT)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &l, sizeof l);
}

/* aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor */
static openreg_status
kernel_add(openreg_instance instance, const openreg_kernel_call *call)
{
    const openreg_tensor *const result = call->results[0].tensor;
    const int64_t count = openreg_element_count(result);
    if (!is_known(result)) {
        if (IS(kernel_refuses_late))
            store(instance, result, 0, 0);
        return OPENREG_E_UNSUPPORTED;
    }
    if (!IS(kernel_stream)) {
        const openreg_status status = mutant_base->stream_sync(instance, call->dev, call->stream);
        if (status != OPENREG_OK)
            return status;
    }
    const double alpha = IS(kernel_alpha) ? 1 : call->arguments[2].real;
    for (int64_t i = 0; IS(kernel_clears) && i < count; ++i)
        store(instance, result, i, 0);
    for (int64_t i = 0; i < count; ++i)
        store(instance, result, i,
              load(instance, &call->arguments[0], i) + alpha * load(instance, &call->arguments[1], i));
    if (IS(kernel_beside) && !openreg_is_contiguous(result))
        element(instance, result, 0)[result->dtype.bits / 8] = 1;
    return OPENREG_OK;
}

static const void *
mutant_extension(openreg_instance instance, const char *name, uint32_t version)
{
    static const openreg_ipc ipc = {.struct_size = sizeof ipc,
                                    .version = OPENREG_IPC_VERSION,
                                    .memory_export = mutant_memory_export,
                                    .memory_open = mutant_memory_open,
                                    .memory_close = mutant_memory_close};
    static const openreg_vmm vmm = {.struct_size = sizeof vmm,
                                    .version = OPENREG_VMM_VERSION,
                                    .reserve = openreg_sim_reserve,
                                    .resize = mutant_resize,
                                    .release = mutant_release};
    static const openreg_kernel list[] = {
        {.name = "aten::add.Tensor", .run = kernel_add, .flags = OPENREG_KERNEL_ELEMENTWISE},
        {.name = "aten::add.Tensor", .run = kernel_add, .flags = OPENREG_KERNEL_ELEMENTWISE}};
    static const openreg_kernels once = {
        .struct_size = sizeof once, .kernel_size = sizeof list[0], .count = 1, .list = list};
    static const openreg_kernels twice = {
        .struct_size = sizeof twice, .kernel_size = sizeof list[0], .count = 2, .list = list};
    if (IS(extension_any) && name[0] == '\0')
        return &ipc;
    if (strcmp(name, OPENREG_IPC_NAME) == 0 && version == OPENREG_IPC_VERSION)
        return &ipc;
    if (strcmp(name, OPENREG_VMM_NAME) == 0 && version == OPENREG_VMM_VERSION)
        return &vmm;
    if (strcmp(name, OPENREG_KERNELS_NAME) == 0 && version == OPENREG_KERNELS_VERSION)
        return IS(kernel_name_twice) ? &twice : &once;
    return mutant_base->extension(instance, name, version);
}

void
mutant_wrap_extensions(openreg_driver *table)
{
    table->extension = mutant_extension;
}
