/* SPDX-License-Identifier: BSD-3-Clause */
/* driver.c: a driver for a vendor unlike CUDA (vendor.h): no addresses, one queue, copies in words, a largest buffer. Each of these
 * is one header of openreg/: handle_addresses.h, software_streams.h, word_copies.h, and max_allocation of driver.h. */
#define _GNU_SOURCE
#include <openreg/handle_addresses.h>
#include <openreg/probe.h>
#include <openreg/software_streams.h>
#include <openreg/word_copies.h>

#include <stdatomic.h>
#include <string.h>

#include "vendor.h"

#define MAX_DEVICES 8
#define LARGEST_ALIGNMENT (UINT64_C(1) << 30)

/* A vendor's buffer with its addresses. Freed by its last user: the program, or a copy. */
typedef struct buffer {
    handles_buffer *of_vendor;
    struct device *device;
    openreg_handle_range range; /* once it is freed */
    atomic_uint users;
} buffer;

typedef struct device {
    handles_device *of_vendor;
    pthread_mutex_t lock;         /* while words are read and written back (word_copies.h) */
    openreg_soft_stream *streams; /* the default stream */
} device;

struct openreg_instance_s {
    const openreg_host *host;
    int32_t count;
    openreg_handle_table table;
    openreg_soft_streams streams;
    device devices[MAX_DEVICES];
};

/* ------------------------------------------------------------------------------------------------------------- probe */

static uint32_t to_fail; /* calls of the vendor's until one fails (probe.h) */

#define TRIED(call) (openreg_probe_fails(&to_fail) ? HANDLES_WRONG_CALL : (call))

static openreg_status
fail_vendor_call(openreg_instance instance, uint32_t nth, uint32_t *left)
{
    (void)instance;
    *left = openreg_probe_fail(&to_fail, nth);
    return OPENREG_OK;
}

static const void *
extension(openreg_instance instance, const char *name, uint32_t version)
{
    static const openreg_probe probe = {
        .struct_size = sizeof probe, .version = OPENREG_PROBE_VERSION, .fail_vendor_call = fail_vendor_call};
    (void)instance;
    return strcmp(name, OPENREG_PROBE_NAME) == 0 && version <= OPENREG_PROBE_VERSION ? &probe : NULL;
}

/* ----------------------------------------------------------------------------------------------------------- buffers */

static void
use(void *handle)
{
    atomic_fetch_add(&((buffer *)handle)->users, 1);
}

static void
let_go(buffer *b)
{
    if (b == NULL || atomic_fetch_sub(&b->users, 1) > 1)
        return;
    handles_destroy(b->device->of_vendor, b->of_vendor);
    openreg_handle_unmap(&b->range);
    free(b);
}

static openreg_status
no_memory(openreg_instance instance, int32_t dev, uint64_t size)
{
    return openreg_fail(instance->host, OPENREG_E_NOMEM, HANDLES_NO_MEMORY, "no room for %llu bytes on device %d",
                        (unsigned long long)size, dev);
}

static openreg_status
mem_alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    const openreg_status fits = openreg_alloc_check(instance->host, info, LARGEST_ALIGNMENT);
    if (fits != OPENREG_OK)
        return fits;
    buffer *const b = calloc(1, sizeof *b);
    if (b == NULL || info->size > HANDLES_LARGEST_BUFFER) {
        free(b);
        return no_memory(instance, dev, info->size);
    }
    b->device = &instance->devices[dev];
    atomic_init(&b->users, 1);
    const uint64_t whole_words = (info->size + HANDLES_WORD - 1) / HANDLES_WORD * HANDLES_WORD;
    void *address = NULL;
    if (TRIED(handles_create(b->device->of_vendor, whole_words, &b->of_vendor)) == 0) {
        address = openreg_handle_reserve(&instance->table, whole_words, info->alignment, b);
        if (address == NULL)
            handles_destroy(b->device->of_vendor, b->of_vendor);
    }
    if (address == NULL) {
        free(b);
        return no_memory(instance, dev, info->size);
    }
    *out = address;
    return OPENREG_OK;
}

static openreg_status
mem_free(openreg_instance instance, int32_t dev, void *ptr)
{
    openreg_handle_range range;
    buffer *const b = openreg_handle_remove(&instance->table, ptr, &range);
    if (b == NULL)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "%p is not memory of device %d", ptr, dev);
    b->range = range;
    let_go(b); /* copies that are queued hold it longer */
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------- the vendor's side of words */

/* What the functions below work on: a device, and where an error goes. */
typedef struct words_context {
    handles_device *device;
    openreg_soft_failure *failure;
} words_context;

static openreg_status
result(const words_context *at, int code, const char *what)
{
    if (code == 0)
        return OPENREG_OK;
    at->failure->vendor_code = code;
    (void)snprintf(at->failure->text, sizeof at->failure->text, "%s: the vendor's error %d", what, code);
    return code == HANDLES_NO_MEMORY ? OPENREG_E_NOMEM : OPENREG_E_INTERNAL;
}

static openreg_status
read_words(void *ctx, void *handle, uint64_t offset, void *host, uint64_t size)
{
    const words_context *const at = ctx;
    return result(at, TRIED(handles_read(at->device, handle, offset, host, size)), "handles_read");
}

static openreg_status
write_words(void *ctx, void *handle, uint64_t offset, const void *host, uint64_t size)
{
    const words_context *const at = ctx;
    return result(at, TRIED(handles_write(at->device, handle, offset, host, size)), "handles_write");
}

static openreg_status
move_words(void *ctx, void *dst, uint64_t dst_offset, void *src, uint64_t src_offset, uint64_t size)
{
    const words_context *const at = ctx;
    return result(at, TRIED(handles_copy(at->device, dst, dst_offset, src, src_offset, size)), "handles_copy");
}

static openreg_status
fill_words(void *ctx, void *handle, uint64_t offset, uint8_t value, uint64_t size)
{
    const words_context *const at = ctx;
    return result(at, TRIED(handles_fill(at->device, handle, offset, value * UINT32_C(0x01010101), size)),
                  "handles_fill");
}

static openreg_words
words_of(words_context *at)
{
    return (openreg_words){HANDLES_WORD, at, read_words, write_words, move_words, fill_words};
}

/* ------------------------------------------------------------------------------------------------- copies and fills */

/* A place in a buffer, or in host memory. */
typedef struct place {
    buffer *in; /* NULL: the host's */
    uint64_t offset;
    char *host;
} place;

typedef struct transfer {
    place dst, src;
    uint64_t size;
    uint8_t value;
    int is_fill;
} transfer;

static openreg_status
read_from(const place *from, uint64_t at, void *host, uint64_t size, openreg_soft_failure *failure)
{
    words_context context = {from->in->device->of_vendor, failure};
    const openreg_words words = words_of(&context);
    pthread_mutex_lock(&from->in->device->lock);
    const openreg_status status = openreg_words_read(&words, from->in->of_vendor, from->offset + at, host, size);
    pthread_mutex_unlock(&from->in->device->lock);
    return status;
}

static openreg_status
write_to(const place *to, uint64_t at, const void *host, uint64_t size, openreg_soft_failure *failure)
{
    words_context context = {to->in->device->of_vendor, failure};
    const openreg_words words = words_of(&context);
    pthread_mutex_lock(&to->in->device->lock);
    const openreg_status status = openreg_words_write(&words, to->in->of_vendor, to->offset + at, host, size);
    pthread_mutex_unlock(&to->in->device->lock);
    return status;
}

/* Through the host: the vendor's buffers of two devices know nothing of each other. */
static openreg_status
between_devices(const transfer *t, openreg_soft_failure *failure)
{
    char bytes[16384];
    openreg_status status = OPENREG_OK;
    for (uint64_t at = 0; at < t->size && status == OPENREG_OK; at += sizeof bytes) {
        const uint64_t part = t->size - at < sizeof bytes ? t->size - at : sizeof bytes;
        status = read_from(&t->src, at, bytes, part, failure);
        if (status == OPENREG_OK)
            status = write_to(&t->dst, at, bytes, part, failure);
    }
    return status;
}

static openreg_status
inside_device(const transfer *t, openreg_soft_failure *failure)
{
    device *const d = t->dst.in->device;
    words_context context = {d->of_vendor, failure};
    const openreg_words words = words_of(&context);
    pthread_mutex_lock(&d->lock);
    const openreg_status status = t->is_fill ? openreg_words_fill(&words, t->dst.in->of_vendor, t->dst.offset, t->value,
                                                                  t->size)
                                             : openreg_words_move(&words, t->dst.in->of_vendor, t->dst.offset,
                                                                  t->src.in->of_vendor, t->src.offset, t->size);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static void
drop(transfer *t)
{
    let_go(t->dst.in);
    let_go(t->src.in);
    free(t);
}

static openreg_status
run_transfer(void *argument, openreg_soft_failure *failure)
{
    transfer *const t = argument;
    openreg_status status;
    if (t->dst.in == NULL)
        status = read_from(&t->src, 0, t->dst.host, t->size, failure);
    else if (!t->is_fill && t->src.in == NULL)
        status = write_to(&t->dst, 0, t->src.host, t->size, failure);
    else if (t->is_fill || t->dst.in->device == t->src.in->device)
        status = inside_device(t, failure);
    else
        status = between_devices(t, failure);
    drop(t);
    return status;
}

/* Counts a user of the buffer. */
static openreg_status
find(openreg_instance instance, int32_t dev, const void *ptr, uint64_t size, place *out)
{
    if (dev < 0) {
        *out = (place){NULL, 0, (char *)(uintptr_t)ptr};
        return OPENREG_OK;
    }
    uint64_t left = 0;
    buffer *const b = openreg_handle_find(&instance->table, ptr, &out->offset, &left, use);
    if (b != NULL && b->device == &instance->devices[dev] && size <= left) {
        out->in = b;
        return OPENREG_OK;
    }
    let_go(b);
    out->in = NULL;
    return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "%llu bytes at %p are not memory of device %d",
                        (unsigned long long)size, ptr, dev);
}

static openreg_soft_stream *
stream_of(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    return stream != NULL ? (openreg_soft_stream *)stream : instance->devices[dev].streams;
}

/* Queues the transfer, or drops it. */
static openreg_status
queue_transfer(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_status status, transfer *t)
{
    if (status == OPENREG_OK)
        status = openreg_soft_push(&instance->streams, stream_of(instance, dev, stream), run_transfer, t);
    if (status != OPENREG_OK)
        drop(t);
    return status;
}

static openreg_status
copy(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, int32_t dst_dev, const void *src,
     int32_t src_dev, uint64_t size)
{
    if (size == 0)
        return OPENREG_OK;
    transfer *const t = calloc(1, sizeof *t);
    if (t == NULL)
        return no_memory(instance, dev, size);
    t->size = size;
    openreg_status status = find(instance, dst_dev, dst, size, &t->dst);
    if (status == OPENREG_OK)
        status = find(instance, src_dev, src, size, &t->src);
    return queue_transfer(instance, dev, stream, status, t);
}

static openreg_status
fill(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *dst, uint8_t value, uint64_t size)
{
    if (size == 0)
        return OPENREG_OK;
    transfer *const t = calloc(1, sizeof *t);
    if (t == NULL)
        return no_memory(instance, dev, size);
    t->size = size;
    t->value = value;
    t->is_fill = 1;
    return queue_transfer(instance, dev, stream, find(instance, dev, dst, size, &t->dst), t);
}

/* ------------------------------------------------------------------------------------------------ streams and events */

static openreg_status
device_sync(openreg_instance instance, int32_t dev)
{
    return openreg_soft_device_sync(&instance->streams, dev);
}

static openreg_status
stream_create(openreg_instance instance, int32_t dev, uint32_t flags, int32_t priority, openreg_driver_stream *out)
{
    (void)flags, (void)priority;
    openreg_soft_stream *stream = NULL;
    const openreg_status status = openreg_soft_stream_create(&instance->streams, dev, &stream);
    if (status == OPENREG_OK)
        *out = (openreg_driver_stream)stream;
    return status;
}

static openreg_status
stream_destroy(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    (void)dev;
    openreg_soft_stream_destroy(&instance->streams, (openreg_soft_stream *)stream);
    return OPENREG_OK;
}

static openreg_status
stream_query(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *done)
{
    return openreg_soft_stream_query(&instance->streams, stream_of(instance, dev, stream), done);
}

static openreg_status
stream_sync(openreg_instance instance, int32_t dev, openreg_driver_stream stream)
{
    return openreg_soft_stream_sync(&instance->streams, stream_of(instance, dev, stream));
}

static openreg_status
stream_wait(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    return openreg_soft_stream_wait(&instance->streams, stream_of(instance, dev, stream), (openreg_soft_event *)event);
}

static openreg_status
event_create(openreg_instance instance, int32_t dev, uint32_t flags, openreg_driver_event *out)
{
    openreg_soft_event *event = NULL;
    const openreg_status status = openreg_soft_event_create(&instance->streams, dev, flags, &event);
    if (status == OPENREG_OK)
        *out = (openreg_driver_event)event;
    return status;
}

static openreg_status
event_destroy(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    (void)dev;
    openreg_soft_event_destroy(&instance->streams, (openreg_soft_event *)event);
    return OPENREG_OK;
}

static openreg_status
event_record(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_event event)
{
    return openreg_soft_event_record(&instance->streams, stream_of(instance, dev, stream), (openreg_soft_event *)event);
}

static openreg_status
event_query(openreg_instance instance, int32_t dev, openreg_driver_event event, int32_t *done)
{
    (void)dev;
    return openreg_soft_event_query(&instance->streams, (openreg_soft_event *)event, done);
}

static openreg_status
event_sync(openreg_instance instance, int32_t dev, openreg_driver_event event)
{
    (void)dev;
    return openreg_soft_event_sync(&instance->streams, (openreg_soft_event *)event);
}

static openreg_status
event_elapsed(openreg_instance instance, int32_t dev, openreg_driver_event start, openreg_driver_event end,
              int64_t *out)
{
    (void)dev;
    return openreg_soft_event_elapsed(&instance->streams, (openreg_soft_event *)start, (openreg_soft_event *)end, out);
}

typedef struct host_call {
    void (*function)(void *argument);
    void *argument;
} host_call;

static openreg_status
run_host_call(void *argument, openreg_soft_failure *failure)
{
    const host_call call = *(host_call *)argument;
    (void)failure;
    free(argument);
    call.function(call.argument);
    return OPENREG_OK;
}

static openreg_status
host_func(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void (*function)(void *argument),
          void *argument)
{
    host_call *const call = malloc(sizeof *call);
    if (call == NULL)
        return no_memory(instance, dev, sizeof *call);
    *call = (host_call){function, argument};
    const openreg_status status = openreg_soft_push(&instance->streams, stream_of(instance, dev, stream), run_host_call,
                                                    call);
    if (status != OPENREG_OK)
        free(call);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- devices */

static void
describe_one(int32_t dev, openreg_device_info *info)
{
    openreg_device_info told = {.struct_size = info->struct_size,
                                .total_bytes = HANDLES_MEMORY,
                                .min_alignment = 4096,
                                .max_allocation = HANDLES_LARGEST_BUFFER};
    (void)snprintf(told.name, sizeof told.name, "Handles %d", dev);
    memcpy(info, &told, info->struct_size < sizeof told ? info->struct_size : sizeof told);
}

static openreg_status
device_info(openreg_instance instance, int32_t dev, openreg_device_info *info)
{
    (void)instance;
    describe_one(dev, info);
    return OPENREG_OK;
}

static openreg_status
mem_info(openreg_instance instance, int32_t dev, uint64_t *free_bytes, uint64_t *total)
{
    *total = HANDLES_MEMORY;
    *free_bytes = HANDLES_MEMORY - handles_used(instance->devices[dev].of_vendor);
    return OPENREG_OK;
}

static openreg_status
read_options(const openreg_host *host, const openreg_option *options, uint32_t n, int32_t *count)
{
    *count = 2;
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(options[i].key, "devices") != 0)
            continue;
        char *end;
        const long devices = strtol(options[i].value, &end, 10);
        if (*options[i].value == '\0' || *end != '\0' || devices < 0 || devices > MAX_DEVICES)
            return openreg_fail(host, OPENREG_E_INVALID, 0, "devices must be an integer from 0 to %d, but is \"%s\"",
                                MAX_DEVICES, options[i].value);
        *count = (int32_t)devices;
    }
    return OPENREG_OK;
}

static openreg_status
describe(const openreg_host *host, const openreg_option *options, uint32_t n, const char *topology, int32_t capacity,
         openreg_device_info *const *infos, uint8_t *peers, int32_t *count)
{
    int32_t devices;
    if (*topology != '\0')
        return openreg_fail(host, OPENREG_E_INVALID, 0, "there is no topology \"%s\"", topology);
    const openreg_status status = read_options(host, options, n, &devices);
    if (status != OPENREG_OK)
        return status;
    for (int32_t i = 0; i < devices && i < capacity; i++) {
        describe_one(i, infos[i]);
        for (int32_t k = 0; peers != NULL && k < devices && k < capacity; k++)
            peers[i * capacity + k] = 0;
    }
    *count = devices;
    return OPENREG_OK;
}

static openreg_status
device_count(openreg_instance instance, int32_t *out)
{
    *out = instance->count;
    return OPENREG_OK;
}

static openreg_status
close_instance(openreg_instance instance)
{
    openreg_soft_streams_close(&instance->streams);
    openreg_handle_table_free(&instance->table);
    for (int32_t i = 0; i < instance->count; i++) {
        handles_close(instance->devices[i].of_vendor);
        pthread_mutex_destroy(&instance->devices[i].lock);
    }
    pthread_mutex_destroy(&instance->table.lock);
    free(instance);
    return OPENREG_OK;
}

static openreg_status
open_instance(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    int32_t devices;
    openreg_status status = read_options(host, options, n, &devices);
    if (status != OPENREG_OK)
        return status;
    openreg_instance const instance = calloc(1, sizeof *instance);
    if (instance == NULL)
        return openreg_fail(host, OPENREG_E_NOMEM, 0, "no host memory");
    instance->host = host;
    pthread_mutex_init(&instance->table.lock, NULL);
    status = openreg_soft_streams_open(&instance->streams, host);
    if (status != OPENREG_OK) {
        free(instance);
        return status;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the vendor's threads inherit it */
    while (instance->count < devices && status == OPENREG_OK) {
        device *const d = &instance->devices[instance->count];
        d->of_vendor = handles_open();
        if (d->of_vendor == NULL) {
            status = openreg_fail(host, OPENREG_E_NOMEM, 0, "the vendor can't open device %d", instance->count);
            break;
        }
        pthread_mutex_init(&d->lock, NULL);
        status = openreg_soft_stream_create(&instance->streams, instance->count++, &d->streams);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status == OPENREG_OK)
        *out = instance;
    else
        (void)close_instance(instance);
    return status;
}

static const openreg_driver table = {
    .struct_size = sizeof(openreg_driver),
    .abi_minor = OPENREG_ABI_MINOR,
    .name = "handles",
    .version = "1.0",
    .caps = OPENREG_CAP_SIMULATED,
    .open = open_instance,
    .close = close_instance,
    .device_count = device_count,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .copy = copy,
    .device_sync = device_sync,
    .device_info = device_info,
    .fill = fill,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_query = stream_query,
    .stream_sync = stream_sync,
    .stream_wait = stream_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_sync = event_sync,
    .event_elapsed = event_elapsed,
    .host_func = host_func,
    .mem_info = mem_info,
    .describe = describe,
    .extension = extension,
};

__attribute__((visibility("default"))) openreg_status openreg_driver_query_v1(const openreg_host *host,
                                                                              const openreg_driver **out);

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    (void)host;
    *out = &table;
    return OPENREG_OK;
}
