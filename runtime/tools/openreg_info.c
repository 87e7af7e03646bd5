/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg-info: prints which drivers were found, where, why one cannot be used, which were chosen and by which rule, and
 * the devices.
 *
 * Usage: openreg-info [--json] [--help]
 * Exit status: 0 if there is a device, 1 if there is none, 2 for a wrong argument. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openreg/openreg.h>

#include "base/text.h"
#include "driver/driver_slots.h"

/* A bit of a set, and its name. */
typedef struct word {
    uint64_t bit;
    const char *name;
} word;

static const word caps[] = {
    {OPENREG_CAP_FORK_SAFE, "fork_safe"},
    {OPENREG_CAP_HOST_VISIBLE, "host_visible"},
    {OPENREG_CAP_FENCED, "fenced"},
    {OPENREG_CAP_SIMULATED, "simulated"},
};
static const word flags[] = {
    {OPENREG_DRIVER_FLAG_ACTIVE, "active"},
    {OPENREG_DRIVER_FLAG_GPU, "gpu"},
    {OPENREG_DRIVER_FLAG_MOCK, "mock"},
    {OPENREG_DRIVER_FLAG_REQUIRED, "required"},
    {OPENREG_DRIVER_FLAG_EXPERIMENTAL, "experimental"},
    {OPENREG_DRIVER_FLAG_PLUGIN, "plugin"},
};

typedef enum set { CAPS, FLAGS, SLOTS } set;

static size_t
size_of(set words)
{
    return words == SLOTS ? (size_t)OPENREG_SLOT_COUNT
                          : (words == CAPS ? sizeof caps / sizeof caps[0] : sizeof flags / sizeof flags[0]);
}

static word
word_of(set words, size_t i)
{
    if (words == SLOTS)
        return (word){UINT64_C(1) << i, openreg_slots[i].name};
    return words == CAPS ? caps[i] : flags[i];
}

/* ------------------------------------------------------------------------------------------------------------ text */

/* A text that is somebody else's, as a terminal may get it. Valid until the next call. */
static const char *
shown(const char *text)
{
    static char copy[8192];
    openreg_text_copy_shown(copy, sizeof copy, text, 0);
    return copy;
}

static void
print_words(const char *label, uint64_t bits, set words, int want)
{
    int printed = 0;
    printf("    %-10s", label);
    for (size_t i = 0; i < size_of(words); ++i)
        if (((bits & word_of(words, i).bit) != 0) == want)
            printf("%s%s", printed++ == 0 ? "" : " ", word_of(words, i).name);
    printf("%s\n", printed == 0 ? "-" : "");
}

static void
print_driver(const openreg_driver_record *record)
{
    printf("  %s: %s, %s, priority %d", record->name, openreg_driver_state_name(record->state), shown(record->source),
           record->priority);
    if (record->device_count >= 0)
        printf(", %d device%s", record->device_count, record->device_count == 1 ? "" : "s");
    printf("\n");
    if ((record->flags &
         ~(OPENREG_DRIVER_FLAG_HAS_TABLE | OPENREG_DRIVER_FLAG_UNLOADABLE | OPENREG_DRIVER_FLAG_UNTRIED)) != 0)
        print_words("flags", record->flags, FLAGS, 1);
    if (record->version[0] != '\0')
        printf("    version   %s\n", shown(record->version));
    if (record->path[0] != '\0')
        printf("    path      %s\n", shown(record->path));
    if (record->message[0] != '\0') {
        const char *const code = openreg_status_name(record->code);
        printf("    why not   %s", record->message);
        if (strstr(record->message, code) == NULL) /* a driver's own error has it */
            printf(" (%s)", code);
        printf("\n");
    }
    if (record->slots != 0) {
        printf("    ABI       %u.%u\n", OPENREG_ABI_MAJOR, record->abi_minor);
        print_words("caps", record->caps, CAPS, 1);
        print_words("native", record->slots, SLOTS, 1);
        print_words("emulated", record->slots, SLOTS, 0);
    }
}

static void
print_device(int32_t index, const openreg_device_properties *device)
{
    printf("  openreg:%d: %s, driver %s, ordinal %d\n", index, shown(device->name), device->driver, device->ordinal);
    if (device->total_memory != 0)
        printf("    memory    %" PRIu64 " bytes (%.1f MiB)\n", device->total_memory,
               (double)device->total_memory / 1048576.0);
    else
        printf("    memory    unknown\n");
    printf("    priority  %d (most urgent) to %d\n", device->priority_high, device->priority_low);
    if (device->capability_major != 0)
        printf("    capability %d.%d\n", device->capability_major, device->capability_minor);
    print_words("caps", device->caps, CAPS, 1);
}

static void
print_selection(const openreg_selection *selection)
{
    printf("\nselection\n  rule      %s\n  default   %s\n", openreg_selection_chosen_by_name(selection->chosen_by),
           selection->default_driver[0] != '\0' ? selection->default_driver : "-");
    if (selection->preference[0] != '\0')
        printf("  preferred %s\n", selection->preference);
}

/* ------------------------------------------------------------------------------------------------------------ JSON */

static void
json_string(const char *text)
{
    size_t left = 0; /* bytes of a character that has begun */
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; ++c) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < 0x20)
            printf("\\u%04x", *c);
        else if (*c >= 0x80 && left == 0 && (left = openreg_text_character(c)) == 0)
            printf("\\udc%02x", *c); /* no UTF-8: as os.fsdecode() */
        else
            putchar(*c);
        left -= left > 0;
    }
    putchar('"');
}

static void
json_field(const char *key, const char *value)
{
    printf("\"%s\": ", key);
    json_string(value);
    printf(", ");
}

static void
json_words(const char *key, uint64_t bits, set words, int want)
{
    int printed = 0;
    printf("\"%s\": [", key);
    for (size_t i = 0; i < size_of(words); ++i)
        if (((bits & word_of(words, i).bit) != 0) == want)
            printf("%s\"%s\"", printed++ == 0 ? "" : ", ", word_of(words, i).name);
    printf("]");
}

static void
json_driver(const openreg_driver_record *record)
{
    printf("    {");
    json_field("name", record->name);
    json_field("state", openreg_driver_state_name(record->state));
    json_field("source", record->source);
    json_field("version", record->version);
    json_field("path", record->path);
    json_field("code", openreg_status_name(record->code));
    json_field("message", record->message);
    printf("\"priority\": %d, \"device_count\": %d, \"first_device\": %d, \"abi_minor\": %u, ", record->priority,
           record->device_count, record->first_device, record->abi_minor);
    json_words("flags", record->flags, FLAGS, 1);
    printf(", ");
    json_words("caps", record->caps, CAPS, 1);
    printf(", ");
    json_words("native", record->slots, SLOTS, 1);
    printf(", ");
    json_words("made_up", record->slots != 0 ? record->slots : ~UINT64_C(0), SLOTS, 0);
    printf("}");
}

static void
json_device(int32_t index, const openreg_device_properties *device)
{
    printf("    {\"index\": %d, ", index);
    json_field("name", device->name);
    json_field("driver", device->driver);
    json_field("driver_version", device->driver_version);
    json_field("torch_device_type", device->torch_device_type);
    printf("\"ordinal\": %d, \"total_memory\": %" PRIu64 ", \"priority_high\": %d, \"priority_low\": %d, "
           "\"multi_processor_count\": %d, \"capability\": [%d, %d], ",
           device->ordinal, device->total_memory, device->priority_high, device->priority_low,
           device->multi_processor_count, device->capability_major, device->capability_minor);
    json_words("caps", device->caps, CAPS, 1);
    printf("}");
}

static void
json_selection(const openreg_selection *selection)
{
    printf("  \"selection\": {");
    json_field("chosen_by", openreg_selection_chosen_by_name(selection->chosen_by));
    json_field("default_driver", selection->default_driver);
    json_field("preference", selection->preference);
    printf("\"live_objects\": %" PRId64 "},\n", selection->live_objects);
}

/* ------------------------------------------------------------------------------------------------------------ main */

static int
usage(FILE *to, int status)
{
    fprintf(to, "usage: openreg-info [--json]\n"
                "Prints the drivers that were found, where, why one cannot be used, which were chosen and by which\n"
                "rule, and the devices.\n"
                "Exit status: 0 if there is a device, 1 if there is none, 2 for a wrong argument.\n");
    return status;
}

static void
show_drivers(int json)
{
    const int32_t drivers = openreg_driver_count();
    for (int32_t i = 0; i < drivers; ++i) {
        openreg_driver_record record = {.struct_size = sizeof record};
        if (openreg_driver_get_record(i, &record) != OPENREG_OK)
            break;
        if (json) {
            json_driver(&record);
            printf("%s\n", i + 1 < drivers ? "," : "");
        } else {
            print_driver(&record);
        }
    }
}

static void
show_devices(int json, int32_t devices)
{
    for (int32_t i = 0; i < devices; ++i) {
        openreg_device_properties device = {.struct_size = sizeof device};
        if (openreg_device_get_properties(i, &device) != OPENREG_OK)
            break;
        if (json) {
            json_device(i, &device);
            printf("%s\n", i + 1 < devices ? "," : "");
        } else {
            print_device(i, &device);
        }
    }
}

static void
show_selection(int json)
{
    openreg_selection selection = {.struct_size = sizeof selection};
    if (openreg_selection_get(&selection) != OPENREG_OK)
        return;
    if (json)
        json_selection(&selection);
    else
        print_selection(&selection);
}

int
main(int argc, char **argv)
{
    int json = 0;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--json") == 0)
            json = 1;
        else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return usage(stdout, 0);
        else
            return usage(stderr, 2);
    }

    const openreg_status status = openreg_init();
    const char *const reason = status == OPENREG_OK ? "" : openreg_last_error()->message;
    const int32_t devices = status == OPENREG_OK ? openreg_device_count() : 0;

    if (json) {
        printf("{\n  ");
        json_field("version", openreg_version());
        json_field("status", openreg_status_name(status));
        json_field("error", reason);
        printf("\n  \"drivers\": [\n");
    } else {
        printf("openreg %s\n\ndrivers\n", openreg_version());
    }
    show_drivers(json);
    if (json)
        printf("  ],\n");
    show_selection(json);
    printf(json ? "  \"devices\": [\n" : "\ndevices\n");
    show_devices(json, devices);
    if (json)
        printf("  ]\n}\n");
    else if (devices == 0)
        printf("  none: %s\n", reason);
    return devices > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
