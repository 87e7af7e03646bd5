/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_system.h: what the driver asks of the operating system: libraries, files and the vendor's variables. One file, so
 * that the tests' copy of the driver has another one in its place. Internal to drivers/gpu. */
#ifndef OPENREG_DRIVERS_GPU_SYSTEM_H
#define OPENREG_DRIVERS_GPU_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

/* Opens a library by its soname, never from the current directory. NULL: `reason` says why. Libraries stay open for
 * the life of the process: they have threads and handlers of their own. */
void *openreg_gpu_system_open(const char *soname, char *reason, size_t size);
/* The same for a library that is in the process already; NULL if it is not. */
void *openreg_gpu_system_opened(const char *soname);
/* Stores a function's address in the function pointer `*out`; false, and nothing stored, if the library lacks it. */
bool openreg_gpu_system_find(void *library, const char *name, void *out);
/* Whether a file or device node of that name exists. */
bool openreg_gpu_system_exists(const char *path);
/* Writes the path at which a file of /dev, /proc or /sys is read; false if it does not fit. */
bool openreg_gpu_system_path(const char *path, char *out, size_t size);
/* A variable that the vendor's library reads, or NULL. The driver's own options come through open() alone, but the vendor's
 * library hides devices by this variable: a count that is taken without that library must read it too, or it would
 * contradict open(). */
const char *openreg_gpu_system_vendor_variable(const char *name);

#endif
