/* SPDX-License-Identifier: BSD-3-Clause */
/* process_checks.c: what a driver never does to the process that it is in. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "fixtures.h"
#include "runner.h"

static void
writes_nothing(check_context *c)
{
    char path[] = "/tmp/openreg-check-XXXXXX", text[200] = "";
    const int file = mkstemp(path);
    check_skip_if(file < 0, "no file could be made in /tmp");
    (void)unlink(path);
    (void)fflush(NULL);
    check_skip_if(dup2(file, 1) < 0 || dup2(file, 2) < 0, "the output can't be redirected");
    check_whole_slot_tour(c);
    (void)fflush(NULL);
    const off_t written = lseek(file, 0, SEEK_END);
    const ssize_t length = pread(file, text, sizeof text - 1, 0);
    REQUIRE(written == 0, "%lld bytes were written to stdout or stderr: \"%.*s\"", (long long)written,
            length < 0 ? 0 : (int)length, text);
}

static void
installs_no_handlers(check_context *c)
{
    struct sigaction before[65], after;
    for (int i = 1; i < 65; ++i)
        (void)sigaction(i, NULL, &before[i]);
    check_whole_slot_tour(c);
    for (int i = 1; i < 65; ++i) {
        if (i == 32 || i == 33) /* the C library's own, which comes with the first thread */
            continue;
        (void)sigaction(i, NULL, &after);
        REQUIRE(after.sa_handler == before[i].sa_handler, "the handler of signal %d (%s) was changed", i, strsignal(i));
    }
    sigset_t mask;
    (void)pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i < 32; ++i)
        REQUIRE(sigismember(&mask, i) == 0, "the calling thread has signal %d (%s) blocked now", i, strsignal(i));
}

/* The mask of blocked signals of a thread, and its name, from /proc. */
static unsigned long long
blocked_of(const char *task, char name[16])
{
    char path[300], line[200];
    unsigned long long mask = ~0ull;
    name[0] = '\0';
    (void)snprintf(path, sizeof path, "/proc/self/task/%.32s/status", task);
    FILE *const file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Name: %15[^\n]", name) != 1 && sscanf(line, "SigBlk: %llx", &mask) == 1)
            break;
    if (file != NULL)
        (void)fclose(file);
    return mask;
}

/* A thread blocks its signals itself at worst, so it gets a moment. */
static void
threads_block_signals(check_context *c)
{
    openreg_driver_stream const stream = check_stream(c, 0);
    char *const memory = check_alloc(c, 0, 4096), *const other = check_alloc(c, 0, 4096);
    MUST(c, copy, c->instance, 0, stream, other, 0, memory, 0, 4096);
    check_delay(c, 0, stream, 5);
    check_sync(c, 0, stream);
    check_sleep(50);
    DIR *const tasks = opendir("/proc/self/task");
    check_skip_if(tasks == NULL, "/proc is not mounted");
    /* Those that can be blocked, but not those that report a fault of the thread itself. */
    unsigned long long wanted = 0;
    const int signals[] = {SIGINT, SIGTERM, SIGALRM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE, SIGQUIT, SIGPROF};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; ++i)
        wanted |= 1ull << (signals[i] - 1);
    for (const struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        if (entry->d_name[0] == '.' || strtol(entry->d_name, NULL, 10) == (long)getpid())
            continue;
        char name[16];
        const unsigned long long missing = wanted & ~blocked_of(entry->d_name, name);
        REQUIRE(missing == 0, "a thread of the driver, '%s', does not block signal %d (%s)", name,
                __builtin_ctzll(missing) + 1, strsignal(__builtin_ctzll(missing) + 1));
    }
    (void)closedir(tasks);
}

static volatile sig_atomic_t alarms;

static void
count_alarm(int signal)
{
    (void)signal;
    ++alarms;
}

static void
survives_signals(check_context *c)
{
    const struct sigaction action = {.sa_handler = count_alarm}; /* without SA_RESTART: system calls end with EINTR */
    (void)sigaction(SIGALRM, &action, NULL);
    const struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    (void)setitimer(ITIMER_REAL, &often, NULL);
    const double end = check_now() + 0.3;
    int rounds = 0;
    openreg_driver_stream const stream = check_stream(c, 0);
    for (; rounds < 20 || (check_now() < end && rounds < 100000); ++rounds) {
        check_slot_tour(c);
        if (rounds % 4 == 0) { /* a wait that a signal interrupts */
            check_delay(c, 0, stream, 2);
            check_sync(c, 0, stream);
        }
    }
    (void)setitimer(ITIMER_REAL, &never, NULL);
    REQUIRE(alarms > 0, "no signal came: the driver blocked SIGALRM in the calling thread");
}

static void
end_is_clean(check_context *c)
{
    const pid_t child = fork();
    if (child == 0) {
        check_open(c);
        check_slot_tour(c);
        (void)check_alloc(c, 0, 4096);
        check_delay(c, 0, check_stream(c, 0), 30);
        exit(77);
    }
    check_await_child(child, CHECK_PATIENCE, 77, "a process that called exit(77) with an open instance");
}

static void
parent_survives_fork(check_context *c)
{
    openreg_driver_stream const stream = check_stream(c, 0);
    const size_t size = 1 << 16;
    unsigned char *const from = check_host_alloc(c, size, true), *const to = check_host_alloc(c, size, true);
    char *const memory = check_alloc(c, 0, size);
    check_pattern(from, size, 3);
    check_delay(c, 0, stream, 20);
    MUST(c, copy, c->instance, 0, stream, memory, 0, from, -1, size);
    for (int i = 0; i < 3; ++i) {
        const pid_t child = fork();
        if (child == 0)
            _exit(0);
        check_await_child(child, 0, 0, "a child that called nothing but _exit()");
    }
    check_copy(c, 0, stream, to, -1, memory, 0, size);
    check_is_pattern(to, size, 3, "a copy that was queued before fork()");
    check_slot_tour(c);
}

static void
child_works(check_context *c)
{
    check_slot_tour(c);
    const pid_t child = fork();
    if (child == 0) {
        check_slot_tour(c);
        check_pass();
    }
    check_await_child(child, CHECK_PATIENCE, CHECK_EXIT_PASS,
                      "a child made by fork(), which used the instance as the flag allows,");
    check_slot_tour(c);
}

static const check_case cases[] = {
    {"process.output", "", CHECK_CLOSED, "A driver never writes to stdout or stderr.",
     "Use host->log(); where the vendor's library writes, its own option or variable turns that off.", writes_nothing},
    {"process.handlers", "", CHECK_CLOSED,
     "A driver never installs signal handlers, and leaves the calling thread's mask as it was.",
     "A vendor's library may do it: find the option that turns it off.", installs_no_handlers},
    {"process.thread_signals", "", 0, "A driver's own threads block all signals.",
     "Block them by pthread_sigmask() around pthread_create(), which hands the mask on.", threads_block_signals},
    {"process.interrupted", "", 0, "A signal in the calling thread is no failure of a slot.",
     "Repeat system calls that end with EINTR; also with the time that is left.", survives_signals},
    {"process.exit", "", CHECK_CLOSED,
     "A driver never uses atexit() or destructors that touch a device: a process ends with an open instance and queued "
     "work.",
     "Nothing has to be released at the end of a process.", end_is_clean},
    {"process.fork_parent", "", 0,
     "A child made by fork() that does not use the driver leaves the parent's devices alone.",
     "Handlers of pthread_atfork(), and memory shared with the child.", parent_survives_fork},
    {"process.fork_child", "", CHECK_FORK_SAFE,
     "OPENREG_CAP_FORK_SAFE: an open instance stays usable in a child made by fork().",
     "Threads don't exist in the child. Leave the flag out unless everything is made again there.", child_works},
};
const check_group check_process_group = CHECK_GROUP(1, cases);
