/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_library_hip.c: HIP's runtime, found at run time. It promises that programs run with newer minor versions, not
 * with older ones, so major and minor are compared, and the patch, which is a build number, is not. Major versions
 * promise nothing to each other; but of what this driver uses, the functions, numbers and structures of 5.2, 6 and 7 are
 * the same but for one flag (openreg_gpu_ipc_flag()), so that one binary serves all of them. A later one is refused. */
#include "gpu.h"
#include "gpu_system.h"

#include <string.h>

#define MINOR_SCALE 100000
#define MAJOR_SCALE 10000000
#define LIBRARY "libamdhip64.so"
#define NEWEST_MAJOR 7

static_assert(HIP_VERSION_MAJOR <= NEWEST_MAJOR, "compare the new headers with those before, then allow the version");

openreg_gpu_functions openreg_gpu_library;
static void *opened; /* the same library, once its functions were found */
static int version;  /* its own */

static openreg_status
find_functions(const openreg_host *host, void *library, const char *soname)
{
    static const struct {
        const char *name;
        size_t offset;
    } wanted[] = {
#define WANTED(name) {GPU_NAME(name), offsetof(openreg_gpu_functions, GPU_JOIN(call_, name))},
        OPENREG_GPU_FUNCTIONS(WANTED)
#undef WANTED
    };
    openreg_gpu_functions functions;
    memset(&functions, 0, sizeof functions);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; ++i)
        if (!openreg_gpu_system_find(library, wanted[i].name, (char *)&functions + wanted[i].offset))
            return openreg_fail(host, OPENREG_E_INCOMPATIBLE, 0,
                                "Unable to load HIP. Is it installed? (%s lacks the function %s)", soname,
                                wanted[i].name);
#define LOOK_UP(name) (void)openreg_gpu_system_find(library, GPU_NAME(name), &functions.GPU_JOIN(call_, name));
    OPENREG_GPU_OPTIONAL_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    openreg_gpu_library = functions;
    opened = library;
    return OPENREG_OK;
}

bool
openreg_gpu_find_optional(const openreg_gpu_scope *scope, const char *name, void *out)
{
    (void)scope;
    return openreg_gpu_system_find(opened, name, out);
}

static openreg_status
load(const openreg_host *host)
{
    if (GPU_CALL(GetDeviceCount) != NULL)
        return OPENREG_OK;
    /* Asked first: the library takes 80 MB of memory to say the same. */
    if (!openreg_gpu_system_exists("/dev/kfd") && !openreg_gpu_system_exists("/dev/dxg"))
        return openreg_fail(host, OPENREG_E_NO_DEVICE, 0,
                            "no AMD GPU can be used: there is neither /dev/kfd nor /dev/dxg, so the kernel's amdgpu "
                            "driver is not loaded, or this container was not given the device");
    static const char *const sonames[] = {LIBRARY ".7", LIBRARY ".6", LIBRARY ".5", LIBRARY};
    enum { NAMES = sizeof sonames / sizeof sonames[0] };
    /* One that is in the process already, PyTorch's, comes first: two copies would know nothing of each other's streams. */
    for (size_t i = 0; i < NAMES; ++i) {
        void *const library = openreg_gpu_system_opened(sonames[i]);
        if (library != NULL)
            return find_functions(host, library, sonames[i]);
    }
    char reasons[NAMES][160];
    for (size_t i = 0; i < NAMES; ++i) {
        void *const library = openreg_gpu_system_open(sonames[i], reasons[i], sizeof reasons[i]);
        if (library != NULL)
            return find_functions(host, library, sonames[i]);
    }
    return openreg_fail(host, OPENREG_E_NO_DEVICE, 0,
                        LIBRARY " of major version 5, 6 or 7 is not installed: %s; %s; %s; %s", reasons[0], reasons[1],
                        reasons[2], reasons[3]);
}

static openreg_status
check_major(const openreg_host *host, int found)
{
    if (found / MAJOR_SCALE <= NEWEST_MAJOR)
        return OPENREG_OK;
    return openreg_fail(host, OPENREG_E_INCOMPATIBLE, 0,
                        "Found HIP version %d, but torch_openreg was built against version %d and knows no structures "
                        "after major version %d. Install an older " LIBRARY ", or a newer torch_openreg.",
                        found, HIP_VERSION, NEWEST_MAJOR);
}

unsigned
openreg_gpu_ipc_flag(void)
{
    return version / MAJOR_SCALE >= 6;
}

openreg_status
openreg_gpu_library_open(const openreg_host *host)
{
    int found = 0;
    OPENREG_GPU_RETURN_NOT_OK(load(host));
    const openreg_gpu_code code = GPU_CALL(RuntimeGetVersion)(&found);
    OPENREG_GPU_RETURN_NOT_OK(
        openreg_gpu_version_check(host, code, GPU_NAME(RuntimeGetVersion), found, HIP_VERSION, MINOR_SCALE));
    OPENREG_GPU_RETURN_NOT_OK(check_major(host, found));
    version = found;
    return OPENREG_OK;
}
