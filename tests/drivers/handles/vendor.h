/* SPDX-License-Identifier: BSD-3-Clause */
/* vendor.h: a vendor's library made for the tests, of WebGPU's kind: buffers are handles without addresses, of 512 MiB at most;
 * a device has one queue, in order; copies have offsets and sizes that are multiples of four bytes. Devices are host memory.
 *
 * Functions return 0, or one of the codes below. Any thread. */
#ifndef OPENREG_TEST_HANDLES_VENDOR_H
#define OPENREG_TEST_HANDLES_VENDOR_H

#include <stddef.h>
#include <stdint.h>

#define HANDLES_WORD 4u
#define HANDLES_LARGEST_BUFFER (UINT64_C(512) << 20)
#define HANDLES_MEMORY (UINT64_C(4) << 30) /* bytes of a device */

#define HANDLES_NO_MEMORY 1
#define HANDLES_WRONG_CALL 2 /* an offset, a size or a range that is not possible */

typedef struct handles_device handles_device;
typedef struct handles_buffer handles_buffer;

/* Starts the queue's thread, with the signal mask of the caller. NULL: no memory, or no thread. */
handles_device *handles_open(void);
/* After the queue's end. Buffers must have been destroyed. */
void handles_close(handles_device *device);

int handles_create(handles_device *device, uint64_t size, handles_buffer **out);
/* The memory is freed after the commands that use it. */
void handles_destroy(handles_device *device, handles_buffer *buffer);
uint64_t handles_used(handles_device *device); /* bytes of its buffers */

/* Queued; the bytes of `host` are copied at once. */
int handles_write(handles_device *device, handles_buffer *buffer, uint64_t offset, const void *host, uint64_t size);
/* Queued. The ranges don't overlap. */
int handles_copy(handles_device *device, handles_buffer *dst, uint64_t dst_offset, handles_buffer *src,
                 uint64_t src_offset, uint64_t size);
/* Queued: each word becomes `word`. */
int handles_fill(handles_device *device, handles_buffer *buffer, uint64_t offset, uint32_t word, uint64_t size);
/* Waits for the queue, then reads. */
int handles_read(handles_device *device, handles_buffer *buffer, uint64_t offset, void *host, uint64_t size);

#endif
