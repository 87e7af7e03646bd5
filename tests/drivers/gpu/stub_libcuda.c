/* SPDX-License-Identifier: BSD-3-Clause */
/* stub_libcuda.c: a libcuda.so.1 without devices below NVIDIA's own runtime library, which the driver for CUDA has in it:
 * STUB_CUDA_VERSION is what NVIDIA's driver serves (13000), STUB_CUDA_INIT what cuInit() answers (100: no device). */
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100, NOT_FOUND = 500, NEWEST = 13000 };

static int
number_of(const char *variable, int otherwise)
{
    const char *value = getenv(variable);
    return value == NULL ? otherwise : atoi(value);
}

static int
init(unsigned flags)
{
    (void)flags;
    return number_of("STUB_CUDA_INIT", NO_DEVICE);
}

static int
driver_version(int *version)
{
    *version = number_of("STUB_CUDA_VERSION", NEWEST);
    return 0;
}

static int
device_count(int *count)
{
    *count = 0;
    return 0;
}

static int
not_found(void)
{
    return NOT_FOUND;
}

/* The runtime library asks here for every function; those of cuda.h, which the test is compiled without. */
extern int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found);

int
cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found)
{
    (void)version, (void)flags;
    typedef void (*any)(void);
    any result = (any)not_found;
    if (strcmp(name, "cuInit") == 0)
        result = (any)init;
    else if (strcmp(name, "cuDriverGetVersion") == 0)
        result = (any)driver_version;
    else if (strcmp(name, "cuDeviceGetCount") == 0)
        result = (any)device_count;
    else if (strcmp(name, "cuGetProcAddress") == 0)
        result = (any)cuGetProcAddress_v2;
    memcpy(function, &result, sizeof result);
    if (found != NULL)
        *found = 0;
    return 0;
}

extern int cuInit(unsigned flags);
extern int cuDriverGetVersion(int *version);

int
cuInit(unsigned flags)
{
    return init(flags);
}

int
cuDriverGetVersion(int *version)
{
    return driver_version(version);
}
