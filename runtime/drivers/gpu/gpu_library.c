/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_library.c: whether the installed copy of the vendor's library will do (gpu.h). Which numbers are compared:
 * gpu_library_cuda.c, gpu_library_hip.c. */
#include "gpu.h"
#include "gpu_version.h"

openreg_status
openreg_gpu_version_check(const openreg_host *host, openreg_gpu_code code, const char *function, int found, int built,
                          int scale)
{
    if (code != GPU(Success))
        return openreg_fail(host, OPENREG_E_INCOMPATIBLE, (int64_t)code,
                            "Unable to load " GPU_VENDOR_TEXT ". Is it installed? (%s: %s)", function,
                            openreg_gpu_error_name(code));
    if (found == 0)
        return openreg_fail(host, OPENREG_E_NO_DEVICE, 0,
                            "Unable to load " GPU_VENDOR_TEXT ". Is it installed? (%s finds no driver)", function);
    return openreg_version_check(host, GPU_VENDOR_TEXT, built, found, scale, GPU_VERSION_ADVICE);
}
