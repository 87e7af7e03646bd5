/* SPDX-License-Identifier: BSD-3-Clause */
/* comm_process_checks.c: the extension openreg.comm between processes, which is what it is for: a rank and a device each, and
 * a rank whose process ends. The processes are made before the driver is opened. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm_ranks.h"
#include "fixtures.h"
#include "runner.h"

#define MOST CHECK_COMM_MOST

/* What the processes have in common: torch.distributed has a store for it. */
typedef struct common {
    atomic_int devices, arrived[8];
    unsigned char ids[MOST][OPENREG_COMM_ID_MAX]; /* one by each rank */
    pid_t processes[MOST];
} common;

/* Waits for the other ranks, at a place that has a number. */
static void
meet(common *shared, int place, int ranks)
{
    const double end = check_own_time() + CHECK_PATIENCE;
    (void)atomic_fetch_add(&shared->arrived[place], 1);
    while (atomic_load(&shared->arrived[place]) < ranks) {
        REQUIRE(check_own_time() < end, "not all of %d processes came to the same place within %d seconds", ranks,
                CHECK_PATIENCE);
        check_sleep(1);
    }
}

/* Opens the driver in this process. */
static void
open_rank(check_context *c, check_rank *r, common *shared, int32_t number, int32_t size)
{
    check_open(c);
    REQUIRE(c->devices >= size, "one process has %d devices, and another %d", c->devices,
            atomic_load(&shared->devices));
    (void)check_comm_id(c, number, shared->ids[number]);
    meet(shared, 0, size);
    for (int32_t i = 0; i < number; ++i)
        REQUIRE(memcmp(shared->ids[i], shared->ids[number], OPENREG_COMM_ID_MAX) != 0,
                "two processes were given the same id by unique_id()");
    check_rank_prepare(c, r, number, size, shared->ids[0]);
    check_rank_init(r);
}

/* How many devices a process finds: in one that doesn't go on. */
static int32_t
count_devices(check_context *c, common *shared)
{
    const pid_t child = fork();
    if (child == 0) {
        check_open(c);
        (void)check_comm(c);
        check_skip_if(c->devices < 2, "the driver has one device");
        atomic_store(&shared->devices, c->devices);
        check_close(c);
        check_pass();
    }
    check_await_child(child, 0, CHECK_EXIT_PASS, "the process that counts the devices");
    return atomic_load(&shared->devices);
}

static void
make_all_calls(check_rank *r, common *shared)
{
    static const uint64_t counts[] = {1, 61, 20011};
    for (int k = CHECK_ALL_REDUCE; k < CHECK_MESSAGES; ++k) {
        const bool has_root = k == CHECK_REDUCE || k == CHECK_BROADCAST,
                   has_parts = k == CHECK_ALL_GATHER || k == CHECK_ALL_TO_ALL;
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; ++i)
            for (int32_t root = 0; root < (has_root ? r->size : 1); ++root)
                for (int uneven = 0; uneven < (has_parts ? 2 : 1); ++uneven)
                    check_plan_run(r, &(check_plan){(check_comm_kind)k, CHECK_COMM_FLOAT32, OPENREG_COMM_SUM, root,
                                                    counts[i], false, uneven != 0, 0});
    }
    CALL("get_error", r->comm->get_error(r->c->instance, r->handle));
    check_rank_destroy(r);
    meet(shared, 1, r->size);
}

/* In a surviving rank: whether a call that was made after the peer's end is complete on its stream. */
static atomic_bool has_passed;

static void
call_and_wait(check_rank *r)
{
    if (check_plan_call(r, &check_simple_plan, r->send, r->recv) != OPENREG_OK) /* the call may report it, too */
        return;
    check_sync(r->c, r->dev, r->stream);
    atomic_store(&has_passed, true);
}

/* The last rank dies between two calls. */
static void
lose_a_peer(check_rank *r, common *shared)
{
    const pid_t victim = shared->processes[r->size - 1];
    check_plan_run(r, &check_simple_plan);
    meet(shared, 1, r->size);
    if (getpid() == victim)
        (void)kill(victim, SIGKILL);
    while (kill(victim, 0) == 0)
        check_sleep(1);
    check_rank_start(r, call_and_wait);
    openreg_status status = OPENREG_OK;
    for (const double end = check_now() + 2; status == OPENREG_OK && check_now() < end; check_sleep(5)) {
        const bool is_over = atomic_load(&has_passed);
        status = TRY("get_error", r->comm->get_error(r->c->instance, r->handle));
        REQUIRE(status != OPENREG_OK || !is_over,
                "the stream ended an all_reduce() with a rank whose process had ended, and get_error() returned OK");
    }
    /* A library may report it later than that. */
    REQUIRE(status == OPENREG_OK || status == OPENREG_E_PEER || status == OPENREG_E_TIMEOUT,
            "when the process of a rank had ended, get_error() returned %s: %s", check_status_name(status),
            check_error_text());
    REQUIRE(check_returns_within(2 * CHECK_SOON, check_rank_abort, r),
            "abort() did not return when a rank's process had ended");
    REQUIRE(check_sync_returns(r->c, r->dev, r->stream, NULL), "after abort() the stream did not go on");
    (void)pthread_join(r->thread, NULL);
    check_rank_destroy(r);
    static unsigned char id[OPENREG_COMM_ID_MAX];
    (void)check_comm_id(r->c, r->dev, id); /* the device can have a new one */
    r->id = id;
    r->number = 0;
    r->size = 1;
    check_rank_init(r);
    check_plan_run(r, &check_simple_plan);
    check_rank_destroy(r);
}

/* A process for each rank, as many as there are devices. The victim is the last one: it may be killed. */
static void
ranks_are_processes(check_context *c)
{
    const bool has_victim = strcmp(c->check->name, "comm.peer") == 0;
    common *const shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check_skip_if(shared == MAP_FAILED, "no memory that processes share");
    const int32_t devices = count_devices(c, shared), size = devices < MOST ? devices : MOST;
    for (int32_t number = 0; number < size; ++number) {
        const pid_t process = fork();
        if (process == 0) {
            static check_rank rank;
            shared->processes[number] = getpid();
            open_rank(c, &rank, shared, number, size);
            (has_victim ? lose_a_peer : make_all_calls)(&rank, shared);
            check_pass();
        }
        REQUIRE(process > 0, "no process could be made");
    }
    for (int32_t left = size; left > 0;) {
        int status = 0;
        const pid_t ended = waitpid(-1, &status, 0);
        if (ended < 0 && errno == EINTR)
            continue;
        --left;
        if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
            _exit(WEXITSTATUS(status)); /* it has said why */
        REQUIRE(WIFEXITED(status) || (has_victim && ended == shared->processes[size - 1]),
                "the process of a rank was ended by signal %d", WTERMSIG(status));
    }
}

static const check_case cases[] = {
    {"comm.processes", "extension", CHECK_CLOSED,
     "comm.h: communicators connect ranks of several processes; an id goes to the others as it is, without pointers, "
     "and is that of one communicator.",
     "Nothing that one process alone can use may stand in an id; numbers made in one process are no ids of the "
     "machine.",
     ranks_are_processes},
    {"comm.peer", "extension", CHECK_CLOSED,
     "comm.h: get_error() gives E_PEER for a peer that died, E_TIMEOUT for one that didn't come in the library's own "
     "time; abort() ends what is queued, and the streams go on.",
     "Let no stream pass a call that a peer has not made; abort() waits for nobody.", ranks_are_processes},
};
const check_group check_comm_process_group = CHECK_GROUP(2, cases);
