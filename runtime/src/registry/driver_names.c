/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_names.c: names, synonyms and groups (driver_names.h), and the public functions for them. */
#define _GNU_SOURCE
#include "registry/driver_names.h"

#include <ctype.h>
#include <string.h>

#include <openreg/openreg.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/parse.h"
#include "base/text.h"

#define GROUP "gpu"

/* The runtime's variables OPENREG_<WORD>_... (python/torch_openreg/_discovery/variables.py has all). */
static const char *const variables[] = {
    "OPENREG_AS_CUDA",       "OPENREG_BLOCKING_WAIT",           "OPENREG_DEVICE_NAME",      "OPENREG_DRIVER_LIBRARIES",
    "OPENREG_FENCE_SIGNAL",  "OPENREG_FLIGHT_RECORDER_FILE",    "OPENREG_INIT_WARN_SECS",   "OPENREG_LOG_LEVEL",
    "OPENREG_MOCK_NUM_GPUS", "OPENREG_OPERATORS_POLICY",        "OPENREG_OPERATORS_REPORT", "OPENREG_SYSTEM_ROOT",
    "OPENREG_USE_MOCK_GPU",  "OPENREG_ENABLE_GLOO_COLLECTIVES",
};

static const char *const group_members[] = {"cuda", "hip"};
#define GROUP_SIZE (sizeof group_members / sizeof group_members[0])

static const struct {
    const char *synonym, *name;
} synonyms[] = {{"rocm", "hip"}, {"amdgpu", "hip"}};

int
openreg_driver_name_read(const char *text, size_t length, char name[OPENREG_NAME_SIZE])
{
    char lower[OPENREG_NAME_SIZE];
    if (length < 1 || length > sizeof lower - 1)
        return 0;
    for (size_t i = 0; i < length; ++i) {
        const int c = tolower((unsigned char)text[i]);
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_')
            return 0;
        lower[i] = (char)c;
    }
    lower[length] = '\0';
    memcpy(name, lower, length + 1);
    return 1;
}

int
openreg_driver_name_resolve(const char *text, size_t length, char name[OPENREG_NAME_SIZE])
{
    openreg_text_trim(&text, &length);
    if (!openreg_driver_name_read(text, length, name))
        return 0;
    for (size_t i = 0; i < sizeof synonyms / sizeof synonyms[0]; ++i)
        if (strcmp(name, synonyms[i].synonym) == 0)
            openreg_text_copy(name, OPENREG_NAME_SIZE, synonyms[i].name);
    return 1;
}

void
openreg_driver_name_upper(const char *name, char *out, size_t size)
{
    openreg_text_copy(out, size, name);
    for (char *c = out; *c != '\0'; ++c)
        *c = (char)toupper((unsigned char)*c);
}

const char *
openreg_driver_name_reserved(const char *name)
{
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; ++i)
        if (openreg_environment_option(variables[i], name) != NULL)
            return variables[i];
    return NULL;
}

size_t
openreg_driver_group(const char *name, const char *const **members)
{
    *members = group_members;
    return strcmp(name, GROUP) == 0 ? GROUP_SIZE : 0;
}

size_t
openreg_driver_names_meant(const char *const *name, const char *const **names)
{
    const size_t count = openreg_driver_group(*name, names);
    if (count > 0)
        return count;
    *names = name;
    return 1;
}

int
openreg_driver_is_gpu_name(const char *name)
{
    for (size_t i = 0; i < GROUP_SIZE; ++i)
        if (strcmp(name, group_members[i]) == 0)
            return 1;
    return 0;
}

openreg_status
openreg_driver_canonical_name(const char *name, char out[OPENREG_NAME_SIZE])
{
    static const char call[] = "openreg_driver_canonical_name";
    if (name == NULL || out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "an argument is NULL");
    if (!openreg_driver_name_resolve(name, strlen(name), out))
        return openreg_error_set(OPENREG_E_INVALID, call, "the name \"%.40s\" is not 1 to 31 characters of [a-z0-9_]",
                                 name);
    return OPENREG_OK;
}

int32_t
openreg_driver_expand_name(const char *name, char (*out)[OPENREG_NAME_SIZE], int32_t capacity)
{
    char canonical[OPENREG_NAME_SIZE];
    if (name == NULL || !openreg_driver_name_resolve(name, strlen(name), canonical))
        return 0;
    const char *const meant = canonical;
    const char *const *names;
    const size_t count = openreg_driver_names_meant(&meant, &names);
    for (size_t i = 0; i < count && (int64_t)i < capacity; ++i)
        openreg_text_copy(out[i], OPENREG_NAME_SIZE, names[i]);
    return (int32_t)count;
}
