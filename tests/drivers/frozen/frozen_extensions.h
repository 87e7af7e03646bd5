/* SPDX-License-Identifier: BSD-3-Clause */
/* frozen_extensions.h: what the two files of the frozen driver share. */
#ifndef OPENREG_TESTS_FROZEN_EXTENSIONS_H
#define OPENREG_TESTS_FROZEN_EXTENSIONS_H

#include <openreg/driver.h>

const void *frozen_extension(openreg_instance instance, const char *name, uint32_t version);
/* The driver's copy(). */
openreg_status frozen_copy(openreg_instance instance, int32_t stream_dev, openreg_driver_stream stream, void *dst,
                           int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size);

#endif
