/* SPDX-License-Identifier: BSD-3-Clause */
/* driver_hints.c: looks for GPUs without a driver (selection.h). */
#define _GNU_SOURCE
#include "selection/selection.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "registry/discovery.h"

#define DISPLAY_CLASS 0x03u /* the upper byte of a PCI class */

typedef struct vendor {
    const char *driver, *title, *gpu; /* "cuda", "CUDA", "An NVIDIA GPU" */
    unsigned pci;
    const char *files[3];
} vendor;

static const vendor vendors[] = {
    {"cuda", "CUDA", "An NVIDIA GPU", 0x10deu, {"dev/nvidia0", "dev/nvidiactl", "dev/dxg"}},
    {"hip", "HIP", "An AMD GPU", 0x1002u, {"dev/kfd", NULL, NULL}},
};
#define VENDORS (sizeof vendors / sizeof vendors[0])

static int was_suggested[VENDORS]; /* guarded by the driver lock */

static int
has_file(const char *root, const vendor *v)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof v->files / sizeof v->files[0] && v->files[i] != NULL; ++i)
        if (snprintf(path, sizeof path, "%s/%s", root, v->files[i]) < (int)sizeof path && access(path, F_OK) == 0)
            return 1;
    return 0;
}

/* A number in the format of sysfs, 0x10de; 0 if there is none. */
static unsigned
read_number(int directory, const char *device, const char *name)
{
    char path[NAME_MAX + 16], text[32];
    if (snprintf(path, sizeof path, "%s/%s", device, name) >= (int)sizeof path)
        return 0;
    const int file = openat(directory, path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    const ssize_t length = read(file, text, sizeof text - 1);
    (void)close(file);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    return (unsigned)strtoul(text, NULL, 16);
}

static int
is_on_the_bus(const char *root, const vendor *v)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/sys/bus/pci/devices", root) >= (int)sizeof path)
        return 0;
    DIR *const devices = opendir(path);
    if (devices == NULL)
        return 0;
    int found = 0;
    for (const struct dirent *device; !found && (device = readdir(devices)) != NULL;)
        found = read_number(dirfd(devices), device->d_name, "vendor") == v->pci &&
                read_number(dirfd(devices), device->d_name, "class") >> 16 == DISPLAY_CLASS;
    (void)closedir(devices);
    return found;
}

static void
suggest(const vendor *v)
{
    const openreg_candidate *const candidate = openreg_candidates_find(v->driver);
    if (candidate->is_absent)
        openreg_log(OPENREG_LOG_WARNING,
                    "%s may be present on this machine, but torch_openreg was built without %s support. Falling back "
                    "to sim.",
                    v->gpu, v->title);
    else
        openreg_log(OPENREG_LOG_WARNING,
                    "%s driver failed to initialize: %s (Set OPENREG_LOG_LEVEL=debug and rerun for more info.)",
                    v->title, candidate->failure.text);
}

void
openreg_suggest_missing_drivers(void)
{
    const char *const set = openreg_environment_get(openreg_discovery_environment(), "OPENREG_SYSTEM_ROOT");
    const char *const root = set == NULL || set[0] == '\0' ? "" : set;
    for (size_t i = 0; i < VENDORS; ++i) {
        const openreg_candidate *const candidate = openreg_candidates_find(vendors[i].driver);
        if (was_suggested[i] || candidate->state != OPENREG_DRIVER_STATE_FAILED)
            continue;
        was_suggested[i] = has_file(root, &vendors[i]) || is_on_the_bus(root, &vendors[i]);
        if (was_suggested[i])
            suggest(&vendors[i]);
    }
}
