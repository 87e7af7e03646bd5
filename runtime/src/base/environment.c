/* SPDX-License-Identifier: BSD-3-Clause */
/* environment.c: reads OPENREG_* (environment.h). */
#define _GNU_SOURCE
#include "base/environment.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <openreg/openreg.h>

static const char prefix[] = OPENREG_VARIABLE_PREFIX;
#define PREFIX_LENGTH (sizeof prefix - 1)

struct openreg_environment {
    size_t size; /* bytes in `text` */
    char *text;  /* "NAME=value\0NAME=value\0" */
};

openreg_environment *
openreg_environment_read(void)
{
    openreg_environment *const environment = calloc(1, sizeof *environment);
    if (environment == NULL)
        return NULL;
    /* The condition of secure_getenv(), for variables whose names are not known here. */
    char **const variables = getauxval(AT_SECURE) != 0 ? NULL : environ;
    for (char **variable = variables; variable != NULL && *variable != NULL; ++variable) {
        if (strncmp(*variable, prefix, PREFIX_LENGTH) != 0 || strchr(*variable, '=') == NULL)
            continue;
        const size_t length = strlen(*variable) + 1;
        char *const text = realloc(environment->text, environment->size + length);
        if (text == NULL) {
            openreg_environment_free(environment);
            return NULL;
        }
        memcpy(text + environment->size, *variable, length);
        environment->text = text;
        environment->size += length;
    }
    return environment;
}

void
openreg_environment_free(openreg_environment *environment)
{
    if (environment == NULL)
        return;
    free(environment->text);
    free(environment);
}

int
openreg_environment_equal(const openreg_environment *a, const openreg_environment *b)
{
    const size_t size_a = a == NULL ? 0 : a->size;
    const size_t size_b = b == NULL ? 0 : b->size;
    return size_a == size_b && (size_a == 0 || memcmp(a->text, b->text, size_a) == 0);
}

const char *
openreg_variable(const char *name)
{
    return name != NULL && strncmp(name, prefix, PREFIX_LENGTH) == 0 ? secure_getenv(name) : NULL;
}

const char *
openreg_environment_next(const openreg_environment *environment, const char *variable)
{
    if (environment == NULL || environment->size == 0)
        return NULL;
    const char *const next = variable == NULL ? environment->text : variable + strlen(variable) + 1;
    return next < environment->text + environment->size ? next : NULL;
}

const char *
openreg_environment_get(const openreg_environment *environment, const char *name)
{
    const size_t length = strlen(name);
    const char *v = NULL;
    while ((v = openreg_environment_next(environment, v)) != NULL)
        if (strncmp(v, name, length) == 0 && v[length] == '=')
            return v + length + 1;
    return NULL;
}

const char *
openreg_environment_option(const char *variable, const char *driver)
{
    const char *at = variable + PREFIX_LENGTH;
    for (; *driver != '\0'; ++driver, ++at)
        if (*at != (char)toupper((unsigned char)*driver))
            return NULL;
    return *at == '_' && at[1] != '=' ? at + 1 : NULL;
}

const char *
openreg_environment_get_option(const openreg_environment *environment, const char *driver, const char *key)
{
    const size_t length = strlen(key);
    const char *v = NULL;
    while ((v = openreg_environment_next(environment, v)) != NULL) {
        const char *const option = openreg_environment_option(v, driver);
        if (option != NULL && strncasecmp(option, key, length) == 0 && option[length] == '=')
            return option + length + 1;
    }
    return NULL;
}
