/* SPDX-License-Identifier: BSD-3-Clause */
/* vendor.c: buffers, and a thread that runs a device's commands (vendor.h). */
#define _GNU_SOURCE
#include "vendor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct handles_buffer {
    char *bytes;
    uint64_t size;
    uint32_t users; /* the program, and commands */
};

typedef struct command {
    struct command *next;
    handles_buffer *dst, *src; /* src NULL: a write of the bytes below, or a fill */
    uint64_t dst_offset, src_offset, size;
    uint32_t word;
    int is_fill;
    char bytes[];
} command;

struct handles_device {
    pthread_mutex_t lock; /* guards all below, and the buffers' users */
    pthread_cond_t more, progress;
    pthread_t thread;
    command *first, **end;
    uint64_t queued, finished, used;
    int is_closing;
};

/* The lock is held. */
static void
let_go(handles_device *device, handles_buffer *buffer)
{
    if (buffer == NULL || --buffer->users > 0)
        return;
    device->used -= buffer->size;
    munmap(buffer->bytes, buffer->size);
    free(buffer);
}

static void
execute(const command *c)
{
    char *const to = c->dst->bytes + c->dst_offset;
    if (c->is_fill) {
        for (uint64_t i = 0; i < c->size; i += HANDLES_WORD)
            memcpy(to + i, &c->word, HANDLES_WORD);
    } else {
        memcpy(to, c->src != NULL ? c->src->bytes + c->src_offset : c->bytes, c->size);
    }
}

static void *
run_queue(void *argument)
{
    handles_device *const device = argument;
    pthread_mutex_lock(&device->lock);
    for (;;) {
        command *const c = device->first;
        if (c == NULL) {
            if (device->is_closing)
                break;
            pthread_cond_wait(&device->more, &device->lock);
            continue;
        }
        device->first = c->next;
        if (device->first == NULL)
            device->end = &device->first;
        pthread_mutex_unlock(&device->lock);
        execute(c);
        pthread_mutex_lock(&device->lock);
        let_go(device, c->dst);
        let_go(device, c->src);
        free(c);
        device->finished++;
        pthread_cond_broadcast(&device->progress);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

handles_device *
handles_open(void)
{
    handles_device *const device = calloc(1, sizeof *device);
    if (device == NULL)
        return NULL;
    device->end = &device->first;
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->more, NULL);
    pthread_cond_init(&device->progress, NULL);
    if (pthread_create(&device->thread, NULL, run_queue, device) == 0)
        return device;
    free(device);
    return NULL;
}

void
handles_close(handles_device *device)
{
    pthread_mutex_lock(&device->lock);
    device->is_closing = 1;
    pthread_cond_signal(&device->more);
    pthread_mutex_unlock(&device->lock);
    pthread_join(device->thread, NULL);
    pthread_cond_destroy(&device->progress);
    pthread_cond_destroy(&device->more);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

int
handles_create(handles_device *device, uint64_t size, handles_buffer **out)
{
    if (size == 0 || size % HANDLES_WORD != 0 || size > HANDLES_LARGEST_BUFFER)
        return HANDLES_WRONG_CALL;
    pthread_mutex_lock(&device->lock);
    const int is_full = size > HANDLES_MEMORY - device->used;
    if (!is_full)
        device->used += size;
    pthread_mutex_unlock(&device->lock);
    if (is_full)
        return HANDLES_NO_MEMORY;
    handles_buffer *const buffer = calloc(1, sizeof *buffer);
    void *const bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (buffer == NULL || bytes == MAP_FAILED) {
        if (bytes != MAP_FAILED)
            munmap(bytes, size);
        free(buffer);
        pthread_mutex_lock(&device->lock);
        device->used -= size;
        pthread_mutex_unlock(&device->lock);
        return HANDLES_NO_MEMORY;
    }
    *buffer = (handles_buffer){bytes, size, 1};
    *out = buffer;
    return 0;
}

void
handles_destroy(handles_device *device, handles_buffer *buffer)
{
    pthread_mutex_lock(&device->lock);
    let_go(device, buffer);
    pthread_mutex_unlock(&device->lock);
}

uint64_t
handles_used(handles_device *device)
{
    pthread_mutex_lock(&device->lock);
    const uint64_t used = device->used;
    pthread_mutex_unlock(&device->lock);
    return used;
}

static int
is_possible(const handles_buffer *buffer, uint64_t offset, uint64_t size)
{
    return (offset | size) % HANDLES_WORD == 0 && offset <= buffer->size && size <= buffer->size - offset;
}

static int
queue(handles_device *device, const command *what, const void *host)
{
    const uint64_t extra = host != NULL ? what->size : 0;
    if (!is_possible(what->dst, what->dst_offset, what->size) ||
        (what->src != NULL && !is_possible(what->src, what->src_offset, what->size)))
        return HANDLES_WRONG_CALL;
    command *const c = malloc(sizeof *c + extra);
    if (c == NULL)
        return HANDLES_NO_MEMORY;
    *c = *what;
    if (host != NULL)
        memcpy(c->bytes, host, extra);
    pthread_mutex_lock(&device->lock);
    c->dst->users++;
    if (c->src != NULL)
        c->src->users++;
    *device->end = c;
    device->end = &c->next;
    device->queued++;
    pthread_cond_signal(&device->more);
    pthread_mutex_unlock(&device->lock);
    return 0;
}

int
handles_write(handles_device *device, handles_buffer *buffer, uint64_t offset, const void *host, uint64_t size)
{
    return queue(device, &(command){.dst = buffer, .dst_offset = offset, .size = size}, host);
}

int
handles_copy(handles_device *device, handles_buffer *dst, uint64_t dst_offset, handles_buffer *src, uint64_t src_offset,
             uint64_t size)
{
    return queue(device,
                 &(command){.dst = dst, .dst_offset = dst_offset, .src = src, .src_offset = src_offset, .size = size},
                 NULL);
}

int
handles_fill(handles_device *device, handles_buffer *buffer, uint64_t offset, uint32_t word, uint64_t size)
{
    return queue(device, &(command){.dst = buffer, .dst_offset = offset, .size = size, .word = word, .is_fill = 1},
                 NULL);
}

int
handles_read(handles_device *device, handles_buffer *buffer, uint64_t offset, void *host, uint64_t size)
{
    if (!is_possible(buffer, offset, size))
        return HANDLES_WRONG_CALL;
    pthread_mutex_lock(&device->lock);
    const uint64_t last = device->queued;
    while (device->finished < last)
        pthread_cond_wait(&device->progress, &device->lock);
    pthread_mutex_unlock(&device->lock);
    memcpy(host, buffer->bytes + offset, size);
    return 0;
}
