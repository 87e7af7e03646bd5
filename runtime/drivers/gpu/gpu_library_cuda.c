/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_library_cuda.c: CUDA's runtime, which is linked in, so that its own version says nothing about the machine. What
 * is installed is the driver: it tells for which version of CUDA it is made, and CUDA promises that a driver serves
 * every runtime of the same major version ("minor version compatibility"). So the major is what counts. */
#include "gpu.h"

#define MAJOR_SCALE 1000

openreg_status
openreg_gpu_library_open(const openreg_host *host)
{
    int found = 0; /* it stays 0, without an error, where libcuda.so.1 can't be opened */
    const openreg_gpu_code code = GPU_CALL(DriverGetVersion)(&found);
    return openreg_gpu_version_check(host, code, GPU_NAME(DriverGetVersion), found, CUDART_VERSION, MAJOR_SCALE);
}
