/* SPDX-License-Identifier: BSD-3-Clause */
/* runner.c: a process for each check (runner.h). The parent never loads the driver. */
#define _GNU_SOURCE
#include "runner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openreg/comm.h>

#include "driver/driver_slots.h"
#include "fixtures.h"
#include "layer_bench.h"
#include "processor.h"

/* ------------------------------------------------------------------------------------------------------------- child */

static void
require_needs(check_context *c, const check_case *check)
{
    const char *missing = "";
    if (!check_has_slots(&c->table, check->slots, &missing)) /* which sets what the text says */
        check_skip("the table has no %s", missing);
    if ((check->needs & CHECK_FORK_SAFE) != 0 && (c->table.caps & OPENREG_CAP_FORK_SAFE) == 0)
        check_skip("the table has not the flag OPENREG_CAP_FORK_SAFE");
}

static void
run_in_child(const check_case *check, const check_target *target)
{
    static check_context c;
    check_load(&c, target);
    c.check = check;
    require_needs(&c, check);
    if ((check->needs & (CHECK_CLOSED | CHECK_RUNTIME)) == 0) {
        check_open(&c);
        if ((check->needs & CHECK_COMM) != 0 &&
            c.table.extension(c.instance, OPENREG_COMM_NAME, OPENREG_COMM_VERSION) == NULL)
            check_skip("the driver has no extension openreg.comm");
        check_skip_if((check->needs & CHECK_TWO_DEVICES) != 0 && c.devices < 2, "the driver has one device");
        if ((check->needs & CHECK_GATE) != 0 || strstr(check->slots, "host_func") != NULL) {
            check_drop_refused_host_func(&c);
            require_needs(&c, check);
        }
        uint64_t caps = 0;
        for (int32_t dev = 0; dev < c.devices; ++dev)
            caps |= check_caps(&c, dev);
        if ((check->needs & CHECK_FENCED) != 0 && (caps & OPENREG_CAP_FENCED) == 0)
            check_skip("no device has the flag OPENREG_CAP_FENCED");
        if ((check->needs & CHECK_HOST_VISIBLE) != 0 && (caps & OPENREG_CAP_HOST_VISIBLE) == 0)
            check_skip("no device has the flag OPENREG_CAP_HOST_VISIBLE");
        if ((check->needs & CHECK_GATE) != 0 && !check_has_gate(&c))
            check_skip(c.table.host_func == NULL ? "the table has no host_func, by which a stream can be held"
                                                 : "host_func() runs the function inside the call");
        if ((check->needs & CHECK_KERNELS) != 0 &&
            (c.table.extension == NULL ||
             c.table.extension(c.instance, OPENREG_KERNELS_NAME, OPENREG_KERNELS_VERSION) == NULL))
            check_skip("the driver has no kernels");
    }
    do
        check->run(&c);
    while ((check->needs & CHECK_EACH) != 0 && ++c.dev < c.devices);
    check_pass();
}

/* ------------------------------------------------------------------------------------------------------------ parent */

typedef struct child {
    pid_t process;
    int file;
    check_trail *trail; /* shared */
} child;

static int
start(child *out)
{
    int files[2];
    check_trail *const shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe(files) != 0)
        return -1;
    (void)fflush(NULL);
    out->trail = shared;
    shared->own_time = shared->looked_at = (int64_t)(check_now() * 1e6);
    out->process = fork();
    if (out->process == 0) {
        (void)close(files[0]);
        out->file = files[1];
        return 0;
    }
    (void)close(files[1]);
    out->file = files[0];
    (void)setpgid(out->process, out->process); /* a child that has no processor yet is of that group, too */
    return out->process > 0 ? 1 : -1;
}

/* A check that goes on calling slots is slow and doesn't hang: it ends after this multiple of the limit. */
#define LIMITS_IN_ALL 4

/* Waits for the child's end, and reads its report, for which a pipe has room. False if no call began or ended for `limit`
 * seconds, without those in which it had no processor; it is gone in both cases. */
static bool
await(const child *wanted, double limit, char *text, size_t room, int *status)
{
    check_usage look = {check_now(), 0};
    double own = look.at, end = own + limit;
    const double last = own + LIMITS_IN_ALL * limit;
    int64_t seen = -1;
    bool is_in_time = true;
    for (; waitpid(wanted->process, status, WNOHANG) != wanted->process; check_sleep(1)) {
        const int64_t calls = 2 * (int64_t)__atomic_load_n(&wanted->trail->count, __ATOMIC_RELAXED) +
                              (__atomic_load_n(&wanted->trail->current, __ATOMIC_RELAXED) == 0);
        if (calls != seen) {
            seen = calls;
            end = own + limit;
        }
        if (check_now() > look.at + CHECK_LOOK_EACH) {
            own += check_counted_time(wanted->process, check_now(), &look);
            __atomic_store_n(&wanted->trail->looked_at, (int64_t)(look.at * 1e6), __ATOMIC_RELAXED);
            __atomic_store_n(&wanted->trail->own_time, (int64_t)(own * 1e6), __ATOMIC_RELEASE);
        }
        if (own > end || own > last) {
            is_in_time = false;
            (void)kill(-wanted->process, SIGKILL);
            (void)kill(wanted->process, SIGKILL);
            (void)waitpid(wanted->process, status, 0);
            break;
        }
    }
    (void)kill(-wanted->process, SIGKILL); /* what it has left behind */
    struct pollfd polled = {.fd = wanted->file, .events = POLLIN};
    const ssize_t got = poll(&polled, 1, 0) > 0 ? read(wanted->file, text, room - 1) : 0;
    (void)close(wanted->file);
    text[got > 0 ? got : 0] = '\0';
    for (char *at = text; *at != '\0'; ++at)
        if (*at == '\n' || *at == '\r')
            *at = ' ';
    return is_in_time;
}

static const char *
where(const child *ended, char *buffer, size_t size)
{
    const int current = ended->trail->current;
    if (current == 0)
        return "outside a call of a slot, on a thread or in memory of the driver's";
    (void)snprintf(buffer, size, "in %s()", ended->trail->calls[current - 1].slot);
    return buffer;
}

/* The last calls, the oldest first, with milliseconds before the end. */
static void
write_calls(const check_trail *trail, char *text, size_t size)
{
    const double now = check_now();
    const unsigned first = trail->count > CHECK_CALLS ? trail->count - CHECK_CALLS : 0;
    size_t length = 0;
    for (unsigned i = first; i < trail->count && length < size; ++i) {
        const check_call *const call = &trail->calls[i % CHECK_CALLS];
        if (call->slot[0] == '\0')
            continue;
        const int more = snprintf(text + length, size - length, "%9.1f ms before  thread %d  %.39s()%s%.24s\n",
                                  (now - call->begin) * 1e3, call->thread, call->slot,
                                  call->has_ended ? " " : " has not returned",
                                  call->has_ended ? check_status_name(call->status) : "");
        length += more > 0 ? (size_t)more : 0;
    }
}

static void
read_end(const child *ended, bool is_in_time, int status, int limit, check_result *result)
{
    char buffer[64], *const text = result->message;
    const check_trail *const trail = ended->trail;
    const unsigned last = trail->current > 0 ? (unsigned)trail->current - 1 : (trail->count - 1) % CHECK_CALLS;
    if (trail->count > 0)
        (void)snprintf(result->slot, sizeof result->slot, "%.39s", trail->calls[last].slot);
    result->outcome = CHECK_FAILED;
    if (!is_in_time)
        (void)snprintf(text, sizeof result->message, "it did not go on within %d seconds: it hangs %s", limit,
                       where(ended, buffer, sizeof buffer));
    else if (WIFSIGNALED(status))
        (void)snprintf(text, sizeof result->message, "it crashed by signal %d (%s) %s", WTERMSIG(status),
                       strsignal(WTERMSIG(status)), where(ended, buffer, sizeof buffer));
    else if (WEXITSTATUS(status) == CHECK_EXIT_PASS)
        result->outcome = CHECK_PASSED;
    else if (WEXITSTATUS(status) == CHECK_EXIT_SKIP)
        result->outcome = CHECK_SKIPPED;
    else if (WEXITSTATUS(status) != CHECK_EXIT_FAIL)
        (void)snprintf(text, sizeof result->message, "the process ended with status %d %s", WEXITSTATUS(status),
                       where(ended, buffer, sizeof buffer));
    if (!is_in_time || !WIFEXITED(status) ||
        (result->outcome == CHECK_FAILED && WEXITSTATUS(status) != CHECK_EXIT_FAIL))
        write_calls(trail, result->calls, sizeof result->calls);
}

/* ---------------------------------------------------------------------------------------------------------- identity */

/* False if it has no room. */
static bool
add_word(char *list, size_t size, const char *word)
{
    const size_t length = strlen(list);
    if (length + strlen(word) + 2 > size)
        return false;
    (void)snprintf(list + length, size - length, "%s%s", length == 0 ? "" : " ", word);
    return true;
}

#define USUAL_CALL 100e-6 /* seconds for a small copy and a wait, on a driver that is not slow */

/* By what a small copy and a wait take, after the first ones. */
static double
measure_slowness(check_context *c)
{
    static char host[64];
    char *const memory = check_alloc(c, 0, sizeof host);
    double begin = 0;
    for (int i = 0; i < 40; ++i) {
        if (i == 8)
            begin = check_now();
        check_write(c, 0, memory, host, sizeof host);
    }
    const double each = (check_now() - begin) / 32;
    check_free(c, 0, memory);
    return each > USUAL_CALL ? each / USUAL_CALL : 1;
}

static void
identify_in_child(const check_target *target, check_identity *identity)
{
    static check_context c;
    check_load(&c, target);
    identity->is_loaded = true;
    (void)snprintf(identity->name, sizeof identity->name, "%.31s", c.table.name != NULL ? c.table.name : "?");
    (void)snprintf(identity->version, sizeof identity->version, "%.63s",
                   c.table.version != NULL ? c.table.version : "");
    identity->abi_minor = c.table.abi_minor;
    identity->caps = c.table.caps;
    for (int i = 0; i < OPENREG_SLOT_COUNT; ++i)
        if (!check_has_slot(&c.table, i))
            (void)add_word(identity->slots, sizeof identity->slots, openreg_slots[i].name);
    check_open(&c);
    identity->devices = c.devices;
    const openreg_kernels *kernels = NULL;
    if (c.table.extension != NULL)
        kernels = c.table.extension(c.instance, OPENREG_KERNELS_NAME, OPENREG_KERNELS_VERSION);
    for (uint64_t i = 0; kernels != NULL && i < kernels->count; ++i) {
        const char *const name = check_kernel_at(kernels, i)->name;
        if (name != NULL && check_layer_find(name) == NULL &&
            !add_word(identity->kernels, sizeof identity->kernels, name))
            ++identity->kernels_left_out;
    }
    identity->slowness = measure_slowness(&c);
    check_pass();
}

/* ------------------------------------------------------------------------------------------------------------ results */

/* A check in a process of its own, or, where `check` is NULL, what fills in the identity. */
static void
run_process(const check_case *check, const check_target *target, check_identity *identity, int limit,
            check_result *result)
{
    child started;
    int status = 0;
    const int which = start(&started);
    if (which == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* no child outlives an interrupted run */
        (void)setpgid(0, 0);
        check_begin(started.file, started.trail);
        if (check != NULL)
            run_in_child(check, target);
        else
            identify_in_child(target, identity);
    }
    if (which < 0) {
        result->outcome = CHECK_FAILED;
        (void)snprintf(result->message, sizeof result->message, "no process could be made: %s", strerror(errno));
        return;
    }
    const bool is_in_time = await(&started, limit, result->message, sizeof result->message, &status);
    read_end(&started, is_in_time, status, limit, result);
    (void)munmap(started.trail, sizeof *started.trail);
}

void
check_run(const check_case *check, int level, const check_target *target, int limit, check_result *result)
{
    const double begin = check_now();
    memset(result, 0, sizeof *result);
    result->check = check;
    result->level = level;
    run_process(check, target, NULL, limit, result);
    result->seconds = check_now() - begin;
}

void
check_identify(const check_target *target, int limit, check_identity *identity)
{
    check_identity *const shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                                        0);
    check_result result = {.check = NULL};
    memset(identity, 0, sizeof *identity);
    identity->devices = -1;
    identity->slowness = 1;
    if (shared == MAP_FAILED)
        return;
    *shared = *identity;
    run_process(NULL, target, shared, limit, &result);
    *identity = *shared;
    (void)snprintf(identity->message, sizeof identity->message, "%s", result.message);
    (void)munmap(shared, sizeof *shared);
}
