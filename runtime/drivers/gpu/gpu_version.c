/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_version.c: comparison of versions (gpu_version.h). Knows no vendor. */
#include "gpu_version.h"

bool
openreg_version_ok(int64_t built, int64_t found, int64_t scale)
{
    return found / scale >= built / scale;
}

openreg_status
openreg_version_check(const openreg_host *host, const char *name, int64_t built, int64_t found, int64_t scale,
                      const char *advice)
{
    if (openreg_version_ok(built, found, scale))
        return OPENREG_OK;
    return openreg_fail(host, OPENREG_E_INCOMPATIBLE, 0,
                        "Found %s version %lld, but torch_openreg was built against version %lld, which is newer. The "
                        "copy of %s that is installed must be at least as new as the version against which "
                        "torch_openreg was built.%s",
                        name, (long long)found, (long long)built, name, advice);
}
