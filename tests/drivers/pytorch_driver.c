/* SPDX-License-Identifier: BSD-3-Clause */
/* pytorch_driver.c: a toy driver with the kernels of pytorch_kernels.cpp. */
#include <openreg/kernels.h>

#include "toy_common.h"

const openreg_kernels *pytorch_kernels(void);

static const void *
pytorch_extension(openreg_instance instance, const char *name, uint32_t version)
{
    (void)instance;
    return strcmp(name, OPENREG_KERNELS_NAME) == 0 && version <= OPENREG_KERNELS_VERSION ? pytorch_kernels() : NULL;
}

static const openreg_driver table = {
    .struct_size = sizeof(openreg_driver),
    .abi_minor = OPENREG_ABI_MINOR,
    .name = "pytorch",
    .version = "1.0",
    TOY_SLOTS,
    .extension = pytorch_extension,
};

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    (void)host;
    *out = &table;
    return OPENREG_OK;
}
