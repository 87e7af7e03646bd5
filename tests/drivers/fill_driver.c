/* SPDX-License-Identifier: BSD-3-Clause */
/* fill_driver.c: a driver of eight functions, those of toy_common.h and `fill`. It counts the fills. With DROPS_BYTES its
 * copies leave out the last byte, for the test that a fuzzer finds that. */
#include "toy_common.h"

static int64_t fills;
static uint64_t filled_bytes;

EXPORT int64_t fill_driver_fills(void);
EXPORT uint64_t fill_driver_bytes(void);

/* Fills so far, and what they wrote. For tests. */
int64_t
fill_driver_fills(void)
{
    return __atomic_load_n(&fills, __ATOMIC_RELAXED);
}

uint64_t
fill_driver_bytes(void)
{
    return __atomic_load_n(&filled_bytes, __ATOMIC_RELAXED);
}

static openreg_status
counted_fill(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value,
             uint64_t size)
{
    (void)instance;
    (void)dev;
    (void)stream;
    memset(on_host(dst), value, size);
    __atomic_fetch_add(&fills, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&filled_bytes, size, __ATOMIC_RELAXED);
    return OPENREG_OK;
}

#ifdef DROPS_BYTES
static openreg_status
short_copy(openreg_instance instance, int32_t stream_dev, openreg_driver_stream stream, void *dst, int32_t dst_dev,
           const void *src, int32_t src_dev, uint64_t size)
{
    return toy_copy(instance, stream_dev, stream, dst, dst_dev, src, src_dev, size - 1);
}
#endif

static openreg_driver fill_table = {
    .struct_size = sizeof(openreg_driver),
    .abi_minor = OPENREG_ABI_MINOR,
    .name = "fill",
    .version = "1.0",
    TOY_SLOTS,
    .fill = counted_fill,
};

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    (void)host;
#ifdef DROPS_BYTES
    fill_table.copy = short_copy;
#endif
    *out = &fill_table;
    return OPENREG_OK;
}
