/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_visible.c: the vendors' lists of visible devices, CUDA_VISIBLE_DEVICES and the like (gpu_census.h). */
#include "gpu_census.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The ordinal that a list's item means, or -1. */
static int32_t
find_ordinal(const openreg_gpu_census *census, const char *item, size_t length, openreg_gpu_visible_rule rule)
{
    size_t i = 0;
    int32_t value = 0;
    while (i < length && (item[i] == ' ' || item[i] == '\t'))
        ++i;
    const size_t first = i;
    if (rule == OPENREG_GPU_VISIBLE_CUDA && i < length && item[i] == '+')
        ++i;
    const size_t digits = i;
    for (; i < length && is_digit(item[i]); ++i)
        if (value < census->count)
            value = value * 10 + (item[i] - '0');
    if (i == digits || (rule == OPENREG_GPU_VISIBLE_HIP && (first != 0 || i != length)))
        return -1;
    return value < census->count ? value : -1;
}

/* The device whose UUID begins with the item, or -1 if none or several do. HIP: is the item. */
static int32_t
find_uuid(const openreg_gpu_census *census, const char *item, size_t length, openreg_gpu_visible_rule rule)
{
    int32_t found = -1;
    for (int32_t i = 0; i < census->count; ++i) {
        const char *const uuid = census->devices[i].uuid;
        if (strncmp(uuid, item, length) != 0 || (rule == OPENREG_GPU_VISIBLE_HIP && uuid[length] != '\0'))
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

/* The ordinals of a list in its order. */
static int32_t
read_list(const openreg_gpu_census *census, const char *list, openreg_gpu_visible_rule rule, int32_t *chosen)
{
    int32_t count = 0;
    for (const char *item = list;; ++item) {
        const size_t length = strcspn(item, ",");
        const bool is_uuid = length > 4 && strncmp(item, "GPU-", 4) == 0;
        const int32_t ordinal = is_uuid ? find_uuid(census, item, length, rule)
                                        : find_ordinal(census, item, length, rule);
        if (ordinal < 0)
            return count;
        bool is_new = true;
        for (int32_t i = 0; i < count; ++i)
            is_new &= chosen[i] != ordinal;
        if (is_new)
            chosen[count++] = ordinal;
        else if (rule == OPENREG_GPU_VISIBLE_CUDA)
            return 0;
        item += length;
        if (*item == '\0')
            return count;
    }
}

void
openreg_gpu_census_keep(openreg_gpu_census *census, const int32_t *chosen, int32_t count)
{
    openreg_gpu_census *const all = malloc(sizeof *all);
    if (all == NULL) {
        census->count = 0; /* nothing is better than devices that must not be shown */
        return;
    }
    *all = *census;
    for (int32_t i = 0; i < count; ++i) {
        census->devices[i] = all->devices[chosen[i]];
        for (int32_t k = 0; k < count; ++k)
            census->peers[i][k] = all->peers[chosen[i]][chosen[k]];
    }
    census->count = count;
    free(all);
}

void
openreg_gpu_visible_apply(openreg_gpu_census *census, const char *list, openreg_gpu_visible_rule rule)
{
    int32_t chosen[OPENREG_GPU_CENSUS_MAX];
    const int32_t count = read_list(census, list, rule, chosen);
    openreg_gpu_census_keep(census, chosen, count);
}
