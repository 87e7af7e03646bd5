/* environment.c: reads OPENREG_* (environment.h). */
#define _GNU_SOURCE
#include "environment.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "error.h"

static const char prefix[] = "OPENREG_";
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
    /* What secure_getenv() asks, for variables whose names are not known here. */
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

static const char *
next_variable(const openreg_environment *environment, const char *variable)
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
    for (const char *v = next_variable(environment, NULL); v != NULL; v = next_variable(environment, v))
        if (strncmp(v, name, length) == 0 && v[length] == '=')
            return v + length + 1;
    return NULL;
}

/* The key of `variable` if it is an option of the driver, else NULL. */
static const char *
option_key(const char *variable, const char *driver)
{
    const char *at = variable + PREFIX_LENGTH;
    for (; *driver != '\0'; ++driver, ++at)
        if (*at != (char)toupper((unsigned char)*driver))
            return NULL;
    if (*at++ != '_' || *at == '=')
        return NULL;
    return strncmp(at, "LIBRARY_PATH=", 13) == 0 ? NULL : at;
}

openreg_status
openreg_options_read(const openreg_environment *environment, const char *driver, openreg_options *out)
{
    openreg_options options = {NULL, 0};
    for (const char *v = next_variable(environment, NULL); v != NULL; v = next_variable(environment, v)) {
        const char *const key = option_key(v, driver);
        if (key == NULL)
            continue;
        openreg_option *const items = realloc(options.items, (options.count + 1) * sizeof *items);
        char *const copy = strdup(key);
        if (items != NULL)
            options.items = items;
        if (items == NULL || copy == NULL) {
            free(copy);
            openreg_options_free(&options);
            return openreg_error_set(OPENREG_E_NOMEM, "driver \"%s\": no host memory for its options", driver);
        }
        char *const equals = strchr(copy, '=');
        *equals = '\0';
        for (char *c = copy; *c != '\0'; ++c)
            *c = (char)tolower((unsigned char)*c);
        options.items[options.count++] = (openreg_option){copy, equals + 1};
    }
    *out = options;
    return OPENREG_OK;
}

void
openreg_options_free(openreg_options *options)
{
    for (size_t i = 0; i < options->count; ++i)
        free((void *)(uintptr_t)options->items[i].key); /* key and value are one block of ours */
    free(options->items);
    *options = (openreg_options){NULL, 0};
}

int
openreg_list_next(const char **cursor, const char **item, size_t *length)
{
    while (*cursor != NULL && **cursor != '\0') {
        const char *start = *cursor;
        const char *end = start + strcspn(start, ",");
        *cursor = *end == ',' ? end + 1 : end;
        while (start < end && isspace((unsigned char)*start))
            ++start;
        while (end > start && isspace((unsigned char)end[-1]))
            --end;
        if (start < end) {
            *item = start;
            *length = (size_t)(end - start);
            return 1;
        }
    }
    return 0;
}

int
openreg_driver_name_read(const char *text, size_t length, char name[32])
{
    char lower[32];
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
