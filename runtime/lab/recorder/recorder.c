/* SPDX-License-Identifier: BSD-3-Clause */
/* recorder.c: a ring of the last calls, and writing it (recorder.h).
 *
 * A thread takes the next entry by one atomic addition and fills it, during which the entry's sequence number is 0. A reader
 * copies an entry and checks that the number is unchanged. Writing the file uses only open(), write() and close(), so that a
 * signal handler may do it. */
#define _GNU_SOURCE
#include "recorder/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/device_name.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/text.h"
#include "watch/observers.h"

#define ALARMS 16
#define STREAMS 256 /* of a device that get numbers of their own in a file */
#define PATH_SIZE 4096

typedef struct record {
    uint64_t begin, end; /* nanoseconds; end 0: it has not ended */
    uint64_t stream, bytes;
    uint32_t kind;
    int32_t device, status, thread;
    char call[40];
    char name[48];
    char place[80];
} record;
#define WORDS (sizeof(record) / sizeof(uint64_t))
static_assert(sizeof(record) % sizeof(uint64_t) == 0, "records are copied by words");
static_assert(offsetof(record, end) == sizeof(uint64_t), "openreg_recorder_end() writes one word");

typedef union record_words {
    record now;
    uint64_t words[WORDS];
} record_words;

typedef struct place {
    atomic_ullong number; /* of the call + 1; 0: being written, or empty */
    atomic_ullong words[WORDS];
} place;

typedef struct ring {
    uint64_t mask;
    struct ring *earlier; /* rings stay: a thread may be writing there */
    char *prefix;         /* of the file that errors are written to */
    place places[];
} ring;

static _Atomic(ring *) current;
static atomic_ullong
    last_number; /* for all rings, so that a call that ends after a change of rings ends no other call */
static atomic_int alarms;

static int32_t
this_thread(void)
{
    static _Thread_local int32_t number;
    static _Thread_local unsigned forks; /* a child's thread has another number */
    const unsigned now = atomic_load_explicit(&openreg_fork_epoch, memory_order_relaxed);
    if (number == 0 || forks != now) {
        number = (int32_t)syscall(SYS_gettid);
        forks = now;
    }
    return number;
}

/* ------------------------------------------------------------------------------------------------------- recording */

uint64_t
openreg_recorder_begin(uint32_t kind, const char *call, const char *name, int32_t device, const void *stream,
                       uint64_t bytes)
{
    ring *const into = atomic_load_explicit(&current, memory_order_acquire);
    if (into == NULL)
        return 0;
    record_words what = {.now = {.begin = openreg_clock_ns(),
                                 .stream = (uintptr_t)stream,
                                 .bytes = bytes,
                                 .kind = kind,
                                 .device = device,
                                 .status = OPENREG_OK,
                                 .thread = this_thread()}};
    record *const now = &what.now;
    openreg_text_copy(now->call, sizeof now->call, call);
    openreg_text_copy(now->name, sizeof now->name, name);
    openreg_observers_place(now->place, sizeof now->place);
    const uint64_t number = atomic_fetch_add_explicit(&last_number, 1, memory_order_relaxed) + 1;
    place *const to = &into->places[(number - 1) & into->mask];
    atomic_store_explicit(&to->number, 0, memory_order_relaxed);
    /* A reader that gets one of these words also gets the changed number. */
    for (size_t i = 0; i < WORDS; ++i)
        atomic_store_explicit(&to->words[i], what.words[i], memory_order_release);
    atomic_store_explicit(&to->number, number, memory_order_release);
    return number;
}

void
openreg_recorder_end(uint64_t number, openreg_status status)
{
    ring *const into = atomic_load_explicit(&current, memory_order_acquire);
    if (number == 0 || into == NULL)
        return;
    place *const to = &into->places[(number - 1) & into->mask];
    if (atomic_load_explicit(&to->number, memory_order_relaxed) != number)
        return; /* many calls later */
    union {
        int32_t halves[2];
        uint64_t word;
    } status_and_thread = {.halves = {status, this_thread()}};
    atomic_store_explicit(&to->words[offsetof(record, status) / sizeof(uint64_t)], status_and_thread.word,
                          memory_order_relaxed);
    atomic_store_explicit(&to->words[1], openreg_clock_ns(), memory_order_relaxed);
}
static_assert(offsetof(record, status) % sizeof(uint64_t) == 0 &&
                  offsetof(record, thread) == offsetof(record, status) + sizeof(int32_t),
              "openreg_recorder_end() writes one word");

static int
read_place(const ring *from, uint64_t number, record_words *out)
{
    const place *const at = &from->places[(number - 1) & from->mask];
    if (atomic_load_explicit(&at->number, memory_order_acquire) != number)
        return 0;
    for (size_t i = 0; i < WORDS; ++i)
        out->words[i] = atomic_load_explicit(&at->words[i], memory_order_acquire);
    return atomic_load_explicit(&at->number, memory_order_relaxed) == number;
}

/* --------------------------------------------------------------------------------------------------------- writing */

typedef struct writer {
    int file;
    int error; /* errno of the first failure */
    size_t used;
    char buffer[2048];
} writer;

static void
flush(writer *out)
{
    for (size_t done = 0; done < out->used && out->error == 0;) {
        const ssize_t written = write(out->file, out->buffer + done, out->used - done);
        if (written < 0 && errno != EINTR)
            out->error = errno;
        done += written > 0 ? (size_t)written : 0;
    }
    out->used = 0;
}

static void
put(writer *out, const char *text)
{
    for (; *text != '\0'; ++text) {
        if (out->used == sizeof out->buffer)
            flush(out);
        out->buffer[out->used++] = *text;
    }
}

/* Between quotation marks, behind `before`. */
static void
put_text(writer *out, const char *before, const char *text)
{
    char safe[2] = "";
    put(out, before);
    put(out, "\"");
    for (; *text != '\0'; ++text) {
        safe[0] = *text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? '_' : *text;
        put(out, safe);
    }
    put(out, "\"");
}

#define NUMBER_SIZE 24

/* Its digits, which end where `text` ends. */
static const char *
digits_of(uint64_t number, int least_digits, char text[NUMBER_SIZE])
{
    char *at = text + NUMBER_SIZE - 1;
    *at = '\0';
    for (; number > 0 || least_digits > 0; number /= 10, --least_digits)
        *--at = (char)('0' + number % 10);
    return at;
}

static void
put_number(writer *out, const char *before, uint64_t number, int least_digits)
{
    char text[NUMBER_SIZE];
    put(out, before);
    put(out, digits_of(number, least_digits, text));
}

/* Microseconds. */
static void
put_time(writer *out, const char *before, uint64_t nanoseconds)
{
    put_number(out, before, nanoseconds / 1000, 1);
    put_number(out, ".", nanoseconds % 1000, 3);
}

static const char *
name_of(uint32_t kind)
{
    static const struct {
        uint32_t kind;
        const char *name;
    } names[] = {
        {OPENREG_CALL_COPY, "copy"},
        {OPENREG_CALL_FILL, "fill"},
        {OPENREG_CALL_KERNEL, "kernel"},
        {OPENREG_CALL_FUNCTION, "host function"},
        {OPENREG_CALL_OPERATOR, "operator"},
        {OPENREG_CALL_RECORD, "record event"},
        {OPENREG_CALL_STREAM_WAIT, "wait for event"},
        {OPENREG_CALL_STREAM_SYNC, "synchronize stream"},
        {OPENREG_CALL_DEVICE_SYNC, "synchronize device"},
        {OPENREG_CALL_EVENT_SYNC, "synchronize event"},
        {OPENREG_CALL_SEGMENT, "allocate segment"},
        {OPENREG_CALL_COLLECTIVE, "collective"},
        {OPENREG_CALL_OPEN, "open driver"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
        if (names[i].kind == kind)
            return names[i].name;
    return "call";
}

/* Streams by number, in the order in which they occur; the default stream is 0. */
static uint64_t
number_of(uint64_t *streams, size_t *count, uint64_t stream)
{
    size_t i = 0;
    if (stream == 0)
        return 0;
    while (i < *count && streams[i] != stream)
        ++i;
    if (i == *count && i < STREAMS)
        streams[(*count)++] = stream;
    return i + 1;
}

/* Calls without a device come behind all devices. */
static uint64_t
process_of(int32_t device)
{
    return device == OPENREG_HOST ? OPENREG_MAX_DEVICES : (uint64_t)device;
}

static void
put_record(writer *out, const record *what, uint64_t number, uint64_t stream)
{
    const char *const status = what->end == 0 ? "running" : openreg_status_name(what->status);
    put(out, ",\n{\"ph\":\"X\"");
    put_text(out, ",\"cat\":", openreg_device_name());
    put_text(out, ",\"name\":", what->name[0] != '\0' ? what->name : name_of(what->kind));
    put_number(out, ",\"pid\":", process_of(what->device), 1);
    put_number(out, ",\"tid\":", stream, 1);
    put_time(out, ",\"ts\":", what->begin);
    put_time(out, ",\"dur\":", what->end > what->begin ? what->end - what->begin : 0);
    put_number(out, ",\"args\":{\"number\":", number, 1);
    put_text(out, ",\"kind\":", name_of(what->kind));
    put_text(out, ",\"call\":", what->call);
    put_number(out, ",\"bytes\":", what->bytes, 1);
    put_number(out, ",\"thread\":", (uint64_t)what->thread, 1);
    put_text(out, ",\"status\":", status);
    if (what->place[0] != '\0')
        put_text(out, ",\"place\":", what->place);
    put(out, "}}");
}

static void
put_device(writer *out, int32_t device)
{
    put_number(out, ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", process_of(device), 1);
    put(out, ",\"args\":{\"name\":\"");
    put(out, openreg_device_name());
    if (device == OPENREG_HOST)
        put(out, ": drivers");
    else
        put_number(out, ":", (uint64_t)device, 1);
    put(out, "\"}}");
}

/* The work space for writing: too large for the stack of a signal handler. */
typedef struct workspace {
    writer out;
    record_words what;
    size_t count;
    uint64_t streams[STREAMS];
    unsigned char seen[OPENREG_MAX_DEVICES + 1];
    char path[PATH_SIZE];
} workspace;

/* The prefix and the process id, which in a child isn't that of the process that has started the recorder. */
static const char *
own_path(const ring *from, char path[PATH_SIZE])
{
    char number[NUMBER_SIZE];
    const char *const parts[] = {from->prefix, ".", digits_of((uint64_t)getpid(), 1, number), ".json"};
    size_t length = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i)
        for (const char *at = parts[i]; *at != '\0' && length < PATH_SIZE - 1; ++at)
            path[length++] = *at;
    path[length] = '\0';
    return path;
}

/* A file to write to, or -1 and errno. The recorder's own name (`is_own`) is predictable, so an existing file is used only if
 * it is a regular file of this user with no other name, as the system does for core dumps. */
static int
open_to_write(const char *path, bool is_own)
{
    struct stat status;
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (is_own ? O_NOFOLLOW | O_NONBLOCK : O_TRUNC), 0600);
    if (file < 0)
        return -1;
    if (!is_own || (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 1 &&
                    status.st_uid == geteuid() && ftruncate(file, 0) == 0))
        return file;
    (void)close(file);
    errno = EPERM;
    return -1;
}

/* 0, or errno. Also for signal handlers. `to` NULL: this process's file for errors. */
static int
write_ring(const ring *from, const char *to, workspace *in)
{
    writer *const out = &in->out;
    const record *const what = &in->what.now;
    *out = (writer){.file = open_to_write(to != NULL ? to : own_path(from, in->path), to == NULL)};
    in->count = 0;
    memset(in->seen, 0, sizeof in->seen);
    if (out->file < 0)
        return errno;
    put(out, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"recorder\"");
    put_number(out, ",\"args\":{\"process\":", (uint64_t)getpid(), 1);
    put(out, "}}");
    const uint64_t last = atomic_load_explicit(&last_number, memory_order_relaxed);
    for (uint64_t number = last > from->mask ? last - from->mask : 1; number <= last; ++number) {
        if (!read_place(from, number, &in->what) || what->device < OPENREG_HOST || what->device >= OPENREG_MAX_DEVICES)
            continue;
        if (!in->seen[process_of(what->device)]) {
            in->seen[process_of(what->device)] = 1;
            put_device(out, what->device);
        }
        put_record(out, what, number, number_of(in->streams, &in->count, what->stream));
    }
    put(out, "\n]}\n");
    flush(out);
    if (close(out->file) != 0 && out->error == 0)
        out->error = errno;
    return out->error;
}

/* --------------------------------------------------------------------------------------------------------- control */

static ring *
make_ring(uint32_t calls)
{
    uint64_t size = 1;
    while (size < calls)
        size *= 2;
    ring *const fresh = calloc(1, sizeof *fresh + size * sizeof(place));
    const char *const prefix = openreg_variable("OPENREG_FLIGHT_RECORDER_FILE");
    if (fresh == NULL)
        return NULL;
    fresh->mask = size - 1;
    fresh->prefix = strdup(prefix != NULL && *prefix != '\0' ? prefix : "openreg_flight_recorder");
    if (fresh->prefix != NULL)
        return fresh;
    free(fresh);
    return NULL;
}

openreg_status
openreg_lab_recorder_start(uint32_t calls)
{
    static const char call[] = "openreg_flight_recorder_start";
    if (calls > OPENREG_FLIGHT_RECORDER_MOST)
        return openreg_error_set(OPENREG_E_INVALID, call, "%u calls were requested, at most %u can be kept", calls,
                                 OPENREG_FLIGHT_RECORDER_MOST);
    ring *const fresh = calls == 0 ? NULL : make_ring(calls);
    if (calls > 0 && fresh == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for %u calls", calls);
    atomic_store_explicit(&alarms, 0, memory_order_relaxed);
    static _Atomic(ring *) all;
    if (fresh != NULL) {
        fresh->earlier = atomic_load(&all);
        while (!atomic_compare_exchange_weak(&all, &fresh->earlier, fresh)) {
        }
    }
    atomic_store_explicit(&current, fresh, memory_order_release);
    openreg_recorder_layer_switch(fresh != NULL);
    return OPENREG_OK;
}

openreg_status
openreg_lab_recorder_write(const char *to)
{
    static const char call[] = "openreg_flight_recorder_write";
    const ring *const from = atomic_load_explicit(&current, memory_order_acquire);
    if (from == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "the flight recorder is off; OPENREG_FLIGHT_RECORDER=1000 "
                                 "starts it");
    workspace in;
    const int error = write_ring(from, to, &in);
    return error == 0 ? OPENREG_OK
                      : openreg_error_set(OPENREG_E_INVALID, call, "%s can't be written: %s", to != NULL ? to : in.path,
                                          strerror(error));
}

void
openreg_recorder_alarm(void)
{
    const ring *const from = atomic_load_explicit(&current, memory_order_acquire);
    if (from == NULL || atomic_fetch_add_explicit(&alarms, 1, memory_order_relaxed) >= ALARMS)
        return;
    workspace in;
    (void)write_ring(from, NULL, &in);
}

/* --------------------------------------------------------------------------------------------------------- signals */

static const int fatal_signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
#define SIGNALS (sizeof fatal_signals / sizeof fatal_signals[0])
static struct sigaction before[SIGNALS];

static void
write_and_pass_on(int number, siginfo_t *info, void *context)
{
    static atomic_flag was_written = ATOMIC_FLAG_INIT;
    static workspace in; /* the handler may run on a small stack */
    const int error = errno;
    const ring *const from = atomic_load_explicit(&current, memory_order_acquire);
    if (from != NULL && !atomic_flag_test_and_set(&was_written))
        (void)write_ring(from, NULL, &in);
    errno = error;
    for (size_t i = 0; i < SIGNALS; ++i) {
        if (fatal_signals[i] != number)
            continue;
        if ((before[i].sa_flags & SA_SIGINFO) != 0 && before[i].sa_sigaction != NULL) {
            before[i].sa_sigaction(number, info, context);
            return;
        }
        /* The instruction is repeated, or the signal raised once more, with the previous handler. */
        (void)sigaction(number, &before[i], NULL);
        if (info->si_code <= 0)
            (void)raise(number);
    }
}

static void
watch_signals(void)
{
    static atomic_flag is_watched = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&is_watched))
        return;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = write_and_pass_on;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < SIGNALS; ++i)
        (void)sigaction(fatal_signals[i], &action, &before[i]);
}

void
openreg_recorder_read_variable(const char *text)
{
    int64_t calls = 0;
    if (text == NULL || *text == '\0' || atomic_load_explicit(&current, memory_order_relaxed) != NULL)
        return;
    if (!openreg_integer_read(text, strlen(text), 0, OPENREG_FLIGHT_RECORDER_MOST, &calls)) {
        openreg_log(OPENREG_LOG_WARNING, "invalid value %s in env var OPENREG_FLIGHT_RECORDER: it must be from 0 to %u",
                    text, OPENREG_FLIGHT_RECORDER_MOST);
        return;
    }
    if (calls > 0 && openreg_lab_recorder_start((uint32_t)calls) == OPENREG_OK)
        watch_signals();
}
