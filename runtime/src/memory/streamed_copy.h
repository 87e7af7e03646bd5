/* SPDX-License-Identifier: BSD-3-Clause */
/* streamed_copy.h: copies between memory that the host sees. */
#ifndef OPENREG_STREAMED_COPY_H
#define OPENREG_STREAMED_COPY_H

#include <stddef.h>

/* As memcpy(), whole before it returns. Large copies go past the cache where the processor can do that: a store that goes
 * through the cache first reads what it overwrites, and puts out of the cache what was there. Threads: any. */
void openreg_copy_on_host(void *destination, const void *source, size_t size);

#endif
