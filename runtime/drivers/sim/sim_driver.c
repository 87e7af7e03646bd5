/* SPDX-License-Identifier: BSD-3-Clause */
/* sim_driver.c: the simulated devices' table, options, open and close. */
#define _GNU_SOURCE
#include "sim_schedule.h"

#include <openreg/schedule.h>
#include <openreg/vmm.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct sim_settings {
    int32_t devices;
    uint64_t memory;                    /* bytes a device */
    char label[OPENREG_SIM_LABEL_SIZE]; /* upper case: name of the mocked driver, or "SIM" */
    openreg_sim_plan plan;
} sim_settings;

bool
openreg_sim_read_number(const char *text, uint64_t most, const char **end, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        const uint64_t digit = (uint64_t)(*at - '0');
        if (digit > most || value > (most - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    if (at == text || (end == NULL && *at != '\0'))
        return false;
    if (end != NULL)
        *end = at;
    *out = value;
    return true;
}

static char
upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static bool
read_memory(const char *text, uint64_t *out)
{
    static const char suffixes[] = "KMGT";
    const char *end;
    uint64_t value;
    if (!openreg_sim_read_number(text, UINT64_MAX, &end, &value))
        return false;
    if (*end != '\0') {
        const char *found = strchr(suffixes, upper(*end));
        if (found == NULL || end[1] != '\0')
            return false;
        const unsigned shift = 10u * (unsigned)(found - suffixes + 1);
        if (value > (UINT64_MAX >> shift))
            return false;
        value <<= shift;
    }
    if (value < OPENREG_SIM_MIN_MEMORY || value > OPENREG_SIM_MAX_MEMORY)
        return false;
    *out = value;
    return true;
}

static uint64_t
default_memory(int32_t devices)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_C(1) << 30;
    bytes = bytes / (uint64_t)(devices > 0 ? devices : 1) / OPENREG_SIM_LARGE_PAGE * OPENREG_SIM_LARGE_PAGE;
    if (bytes < OPENREG_SIM_MIN_MEMORY)
        return OPENREG_SIM_MIN_MEMORY;
    return bytes > OPENREG_SIM_MAX_MEMORY ? OPENREG_SIM_MAX_MEMORY : bytes;
}

/* The name of the driver that is mocked, in upper case; unmocked, the simulator's own. */
static void
read_label(const openreg_option *options, uint32_t n, char label[OPENREG_SIM_LABEL_SIZE])
{
    const char *name = "sim";
    for (size_t i = 0; i < n; i++)
        if (strcmp(options[i].key, "mock") == 0)
            name = options[i].value;
    size_t length = 0;
    for (; name[length] != '\0' && length < OPENREG_SIM_LABEL_SIZE - 1; length++)
        label[length] = upper(name[length]);
    label[length] = '\0';
}

static openreg_status
read_option(const openreg_host *host, const openreg_option *option, sim_settings *settings)
{
    const char *const value = option->value;
    uint64_t devices = (uint64_t)settings->devices;
    if (strcmp(option->key, "devices") == 0 && !openreg_sim_read_number(value, OPENREG_SIM_MAX_DEVICES, NULL, &devices))
        return openreg_fail(host, OPENREG_E_INVALID, 0,
                            "OPENREG_%s_DEVICES must be an integer from 0 to %d, but is \"%.64s\"", settings->label,
                            OPENREG_SIM_MAX_DEVICES, value);
    settings->devices = (int32_t)devices;
    if (strcmp(option->key, "memory") == 0 && !read_memory(value, &settings->memory))
        return openreg_fail(host, OPENREG_E_INVALID, 0,
                            "OPENREG_%s_MEMORY must be a number of bytes from 2M to 16T, written as an integer that "
                            "K, M, G or T may follow, but is \"%.64s\"",
                            settings->label, value);
    const char *expected = "";
    if (!openreg_sim_plan_read(&settings->plan, option, &expected)) {
        char key[16] = "";
        for (size_t i = 0; i < sizeof key - 1 && option->key[i] != '\0'; i++)
            key[i] = upper(option->key[i]);
        return openreg_fail(host, OPENREG_E_INVALID, 0, "OPENREG_%s_%s must be %s, but is \"%.64s\"", settings->label,
                            key, expected, value);
    }
    return OPENREG_OK;
}

static openreg_status
read_options(const openreg_host *host, const openreg_option *options, uint32_t n, sim_settings *out)
{
    sim_settings settings = {2, 0, "", {false, 0, OPENREG_SIM_ORDER_BY_SEED, -1, NULL}};
    read_label(options, n, settings.label);
    for (size_t i = 0; i < n; i++)
        OPENREG_SIM_RETURN_NOT_OK(read_option(host, &options[i], &settings));
    if (settings.memory == 0)
        settings.memory = default_memory(settings.devices);
    openreg_sim_plan_complete(&settings.plan);
    *out = settings;
    return OPENREG_OK;
}

static void
destroy_device(openreg_sim_device *device)
{
    openreg_sim_streams_destroy(device);
    openreg_sim_memory_destroy(device);
    (void)pthread_mutex_destroy(&device->list_lock);
    (void)pthread_mutex_destroy(&device->memory_lock);
}

static openreg_status
create_device(openreg_instance instance, int32_t ordinal, uint64_t capacity)
{
    openreg_sim_device *device = &instance->devices[ordinal];
    device->instance = instance;
    device->ordinal = ordinal;
    device->file = -1;
    device->capacity = capacity;
    (void)pthread_mutex_init(&device->memory_lock, NULL);
    (void)pthread_mutex_init(&device->list_lock, NULL);
    openreg_status status = openreg_sim_memory_create(device);
    if (status == OPENREG_OK) {
        status = openreg_sim_stream_create(instance, ordinal, 0, 0, &device->default_stream);
        atomic_store_explicit(&device->active, 0, memory_order_relaxed); /* the default stream is no context */
    }
    if (status != OPENREG_OK)
        destroy_device(device);
    return status;
}

static openreg_status
sim_close(openreg_instance instance)
{
    openreg_sim_await_all(instance);
    for (int32_t i = 0; i < instance->device_count; i++)
        destroy_device(&instance->devices[i]);
    (void)pthread_mutex_destroy(&instance->pinned_lock);
    openreg_sim_host_destroy(instance);
    openreg_sim_schedule_destroy(instance);
    free(instance->devices);
    free(instance);
    return OPENREG_OK;
}

static openreg_status
sim_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    sim_settings settings;
    OPENREG_SIM_RETURN_NOT_OK(read_options(host, options, n, &settings));
    openreg_instance instance = calloc(1, sizeof *instance);
    openreg_sim_device *devices = calloc((size_t)settings.devices + 1, sizeof *devices); /* none is a number, too */
    if (instance == NULL || devices == NULL) {
        free(instance);
        free(devices);
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory for %d simulated devices", settings.devices);
    }
    instance->host = host;
    instance->devices = devices;
    memcpy(instance->label, settings.label, sizeof instance->label);
    (void)pthread_mutex_init(&instance->pinned_lock, NULL);
    openreg_status status = openreg_sim_schedule_create(instance, &settings.plan);
    for (int32_t i = 0; i < settings.devices && status == OPENREG_OK; i++) {
        status = create_device(instance, i, settings.memory);
        if (status == OPENREG_OK)
            instance->device_count = i + 1;
    }
    if (status == OPENREG_OK)
        *out = instance;
    else
        (void)sim_close(instance);
    return status;
}

static openreg_status
sim_device_count(openreg_instance instance, int32_t *out)
{
    *out = instance->device_count;
    return OPENREG_OK;
}

/* A mock shows in the name and the UUID. */
static void
fill_info(const char *label, int32_t dev, uint64_t capacity, openreg_device_info *inout)
{
    const uint32_t size = inout->struct_size < sizeof *inout ? inout->struct_size : (uint32_t)sizeof *inout;
    const int is_mock = strcmp(label, "SIM") != 0;
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    openreg_device_info info = {
        .struct_size = inout->struct_size,
        .total_bytes = capacity,
        .min_alignment = (uint64_t)sysconf(_SC_PAGESIZE),
        .caps = OPENREG_CAP_HOST_VISIBLE | OPENREG_CAP_FENCED,
        .priority_high = -1,
        .multi_processor_count = processors > 0 ? (int32_t)processors : 0,
        .capability_major = 1,
    };
    /* A version 8 (vendor-defined) UUID: the same device has the same one in every process. */
    static const unsigned char uuid[16] = {'o', 'p', 'e', 'n', 'r', 'e', 0x80, 'g', 0x80, 's', 'i', 'm', 0, 0, 0, 0};
    memcpy(info.uuid, uuid, sizeof uuid);
    for (int i = 0; is_mock && i < 3 && label[i] != '\0'; i++)
        info.uuid[12 + i] = label[i];
    info.uuid[15] = (char)dev;
    if (is_mock)
        (void)snprintf(info.name, sizeof info.name, "OpenReg mock %s device %d", label, dev);
    else
        (void)snprintf(info.name, sizeof info.name, "OpenReg simulated device %d", dev);
    memcpy(inout, &info, size);
}

static openreg_status
sim_device_info(openreg_instance instance, int32_t dev, openreg_device_info *inout)
{
    fill_info(instance->label, dev, instance->devices[dev].capacity, inout);
    return OPENREG_OK;
}

/* Every device copies to every other one. */
static openreg_status
sim_describe(const openreg_host *host, const openreg_option *options, uint32_t n, const char *topology,
             int32_t capacity, openreg_device_info *const *infos, uint8_t *peers, int32_t *count)
{
    sim_settings settings;
    if (topology[0] != '\0')
        return openreg_fail(host, OPENREG_E_INVALID, 0, "there is no topology \"%.64s\"; \"\" is the only one",
                            topology);
    OPENREG_SIM_RETURN_NOT_OK(read_options(host, options, n, &settings));
    const int32_t described = settings.devices < capacity ? settings.devices : capacity;
    for (int32_t i = 0; i < described; i++) {
        fill_info(settings.label, i, settings.memory, infos[i]);
        if (peers != NULL)
            memset(&peers[(size_t)i * (size_t)capacity], 1, (size_t)described);
    }
    *count = settings.devices;
    return OPENREG_OK;
}

static openreg_status
sim_device_active(openreg_instance instance, int32_t dev, int32_t *out)
{
    *out = atomic_load_explicit(&instance->devices[dev].active, memory_order_relaxed);
    return OPENREG_OK;
}

static const void *
sim_extension(openreg_instance instance, const char *name, uint32_t version)
{
    static const openreg_vmm growing = {
        .struct_size = sizeof(openreg_vmm),
        .version = OPENREG_VMM_VERSION,
        .granularity = openreg_sim_granularity,
        .reserve = openreg_sim_reserve,
        .map = openreg_sim_map,
        .unmap = openreg_sim_unmap,
        .release = openreg_sim_mem_free,
    };
    static const openreg_schedule by_seed = {
        .struct_size = sizeof(openreg_schedule),
        .version = OPENREG_SCHEDULE_VERSION,
        .poison = openreg_sim_poison,
    };
    if (strcmp(name, OPENREG_SCHEDULE_NAME) == 0 && version <= OPENREG_SCHEDULE_VERSION)
        return instance->schedule != NULL ? &by_seed : NULL;
    if (strcmp(name, OPENREG_VMM_NAME) == 0 && version <= OPENREG_VMM_VERSION)
        return &growing;
    return strcmp(name, OPENREG_IPC_NAME) == 0 && version <= OPENREG_IPC_VERSION ? openreg_sim_ipc() : NULL;
}

openreg_status
openreg_sim_query(const openreg_host *host, const openreg_driver **out)
{
    static const openreg_driver table = {
        .struct_size = sizeof(openreg_driver),
        .abi_minor = OPENREG_ABI_MINOR,
        .name = "sim",
        .version = "1.0",
        .caps = OPENREG_CAP_SIMULATED,
        .open = sim_open,
        .close = sim_close,
        .device_count = sim_device_count,
        .mem_alloc = openreg_sim_mem_alloc,
        .mem_free = openreg_sim_mem_free,
        .copy = openreg_sim_copy,
        .device_sync = openreg_sim_device_sync,
        .device_info = sim_device_info,
        .fill = openreg_sim_fill,
        .stream_create = openreg_sim_stream_create,
        .stream_destroy = openreg_sim_stream_destroy,
        .stream_query = openreg_sim_stream_query,
        .stream_sync = openreg_sim_stream_sync,
        .stream_wait = openreg_sim_stream_wait,
        .event_create = openreg_sim_event_create,
        .event_destroy = openreg_sim_event_destroy,
        .event_record = openreg_sim_event_record,
        .event_query = openreg_sim_event_query,
        .event_sync = openreg_sim_event_sync,
        .device_active = sim_device_active,
        .host_alloc = openreg_sim_host_alloc,
        .host_free = openreg_sim_host_free,
        .mem_info = openreg_sim_mem_info,
        .event_elapsed = openreg_sim_event_elapsed,
        .host_alias = openreg_sim_host_alias,
        .extension = sim_extension,
        .describe = sim_describe,
        .host_func = openreg_sim_host_func,
    };
    (void)host;
    *out = &table;
    return OPENREG_OK;
}
