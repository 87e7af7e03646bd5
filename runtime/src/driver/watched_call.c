/* SPDX-License-Identifier: BSD-3-Clause */
/* watched_call.c: what the laboratory's instruments do around a driver's call (watched_call.h). */
#define _GNU_SOURCE
#include "driver/watched_call.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

static OPENREG_HOT_TLS int is_paused;

void
openreg_watched_pause(int on)
{
    is_paused = on;
}

static openreg_status
say(openreg_status code, const char *text)
{
    openreg_host_services.set_error(openreg_host_services.ctx, code, 0, text);
    return code;
}

int
openreg_watched_begin_on(openreg_watched *watched, openreg_device *device, const char *call, uint32_t kind,
                         openreg_driver_stream stream, uint64_t bytes, const char *name)
{
    if (is_paused) {
        watched->instruments = 0;
        return 1;
    }
    watched->device = device;
    watched->kind = kind;
    watched->stream = stream;
    watched->verdict.status = OPENREG_OK;
    watched->verdict.is_skipped = watched->verdict.corrupts = 0;
    watched->verdict.factor = 1;
    watched->ticket = (watched->instruments & OPENREG_INSTRUMENT_RECORDER) != 0 && kind != OPENREG_CALL_STREAM_QUERY
                          ? openreg_recorder_begin(kind, call, name, device->index, stream, bytes)
                          : 0;
    if ((watched->instruments & OPENREG_INSTRUMENT_FAULTS) == 0)
        return 1;
    const openreg_fault_site site = {device->driver, device->index, kind, stream, name};
    (void)openreg_faults_ask(&site, &watched->verdict);
    return watched->verdict.status == OPENREG_OK && !watched->verdict.is_skipped;
}

/* What the call ends with: its own error, that of a fault, or that of work before it. */
static openreg_status
end_of(const openreg_watched *watched, openreg_status status)
{
    char text[OPENREG_LEFT_TEXT_SIZE];
    openreg_status code = OPENREG_OK;
    if (watched->verdict.status != OPENREG_OK)
        return say(watched->verdict.status, watched->verdict.text);
    const uint32_t tells = OPENREG_CALL_STREAM_SYNC | OPENREG_CALL_STREAM_QUERY | OPENREG_CALL_DEVICE_SYNC;
    if ((watched->instruments & OPENREG_INSTRUMENT_FAULTS) != 0 && status == OPENREG_OK &&
        (watched->kind & tells) != 0 &&
        openreg_faults_take_error(watched->device->index, watched->stream, watched->kind == OPENREG_CALL_DEVICE_SYNC,
                                  &code, text, sizeof text))
        return say(code, text);
    return status;
}

/* Whether the last calls are worth keeping. */
static int
is_alarming(openreg_status status)
{
    return status == OPENREG_E_DEVICE_LOST || status == OPENREG_E_INTERNAL || status == OPENREG_E_PEER ||
           status == OPENREG_E_TIMEOUT;
}

openreg_status
openreg_watched_end_on(openreg_watched *watched, openreg_status status)
{
    status = end_of(watched, status);
    openreg_recorder_end(watched->ticket, status);
    if (is_alarming(status))
        openreg_recorder_alarm();
    return status;
}

openreg_status
openreg_watched_tell(const openreg_device *device, openreg_driver_stream stream, int whole, openreg_status status)
{
    char text[OPENREG_LEFT_TEXT_SIZE];
    openreg_status code = OPENREG_OK;
    if (status != OPENREG_OK || is_paused ||
        !openreg_faults_take_error(device->index, stream, whole, &code, text, sizeof text))
        return status;
    if (is_alarming(code))
        openreg_recorder_alarm();
    return say(code, text);
}

/* ----------------------------------------------------------------------------------------------------------- copies */

/* Of one slow copy: freed by the function behind it. */
typedef struct slow_copy {
    uint64_t begin;
    double factor;
} slow_copy;

static void
note_begin(void *argument)
{
    ((slow_copy *)argument)->begin = openreg_clock_ns();
}

static void
wait_longer(void *argument)
{
    slow_copy *const slow = argument;
    const double rest = (double)(openreg_clock_ns() - slow->begin) * (slow->factor - 1);
    const struct timespec time = {(time_t)(rest / 1e9), (long)(rest - (double)(time_t)(rest / 1e9) * 1e9)};
    (void)nanosleep(&time, NULL);
    free(slow);
}

/* One bit of one byte. What the driver holds is read and written back. */
static openreg_status
corrupt(const openreg_watched *watched, const char *call, void *dst, openreg_device *dst_device, uint64_t size)
{
    openreg_device *const on = watched->device;
    unsigned char *const at = (unsigned char *)dst + watched->verdict.byte % size;
    const unsigned char bit = (unsigned char)(1u << (watched->verdict.byte >> 61));
    OPENREG_RETURN_NOT_OK(openreg_call_stream_sync(on, call, watched->stream));
    if (dst_device == NULL) {
        *at ^= bit;
        return OPENREG_OK;
    }
    unsigned char byte = 0;
    OPENREG_RETURN_NOT_OK(openreg_call_copy(on, call, &byte, NULL, at, dst_device, 1, watched->stream));
    OPENREG_RETURN_NOT_OK(openreg_call_stream_sync(on, call, watched->stream));
    byte ^= bit;
    OPENREG_RETURN_NOT_OK(openreg_call_copy(on, call, at, dst_device, &byte, NULL, 1, watched->stream));
    return openreg_call_stream_sync(on, call, watched->stream);
}

static openreg_status
copy_and_disturb(const openreg_watched *watched, const char *call, void *dst, openreg_device *dst_device,
                 const void *src, openreg_device *src_device, uint64_t size)
{
    openreg_device *const on = watched->device;
    slow_copy *const slow = watched->verdict.factor > 1 ? calloc(1, sizeof *slow) : NULL;
    openreg_status status = OPENREG_OK;
    if (slow != NULL) {
        slow->factor = watched->verdict.factor;
        status = openreg_call_host_func(on, call, watched->stream, note_begin, slow);
        if (status != OPENREG_OK) {
            free(slow);
            return status;
        }
    }
    status = openreg_call_copy(on, call, dst, dst_device, src, src_device, size, watched->stream);
    if (slow != NULL) {
        const openreg_error_fields first = openreg_error_save();
        const openreg_status queued = openreg_call_host_func(on, call, watched->stream, wait_longer, slow);
        if (queued != OPENREG_OK) { /* note_begin() may be still to come */
            (void)openreg_call_device_drain(on, call);
            free(slow);
        }
        if (status != OPENREG_OK)
            openreg_error_restore(&first);
        else
            status = queued;
    }
    return status != OPENREG_OK || !watched->verdict.corrupts ? status : corrupt(watched, call, dst, dst_device, size);
}

openreg_status
openreg_watched_copy(const openreg_watched *watched, const char *call, void *dst, openreg_device *dst_device,
                     const void *src, openreg_device *src_device, uint64_t size)
{
    openreg_watched_pause(1);
    const openreg_status status = copy_and_disturb(watched, call, dst, dst_device, src, src_device, size);
    openreg_watched_pause(0);
    return status;
}
