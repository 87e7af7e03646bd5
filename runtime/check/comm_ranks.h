/* SPDX-License-Identifier: BSD-3-Clause */
/* comm_ranks.h: ranks of openreg.comm, a device each, and calls with known input and known results, for the checks of that
 * extension. All ranks are in this process, in a thread each, or this process has one of them. */
#ifndef OPENREG_CHECK_COMM_RANKS_H
#define OPENREG_CHECK_COMM_RANKS_H

#include <pthread.h>
#include <stdatomic.h>

#include <openreg/comm.h>

#include "check.h"

#define CHECK_COMM_MOST 4                  /* ranks of any */
#define CHECK_COMM_ROOM (1u << 20)         /* bytes of a block */
#define CHECK_SOON (CHECK_PATIENCE * 1000) /* milliseconds, for what doesn't wait */
#define CHECK_COMM_TYPES 12
#define CHECK_COMM_FLOAT32 0 /* its place in the list of types */
#define CHECK_COMM_REDUCTIONS (OPENREG_COMM_AVERAGE + 1)

/* MESSAGES: as many as there are ranks, one after the other, from `root`. EXCHANGE: what ALL_TO_ALL does, by messages in a
 * group. */
typedef enum check_comm_kind {
    CHECK_ALL_REDUCE,
    CHECK_REDUCE,
    CHECK_REDUCE_SCATTER, /* the last one that reduces */
    CHECK_BROADCAST,
    CHECK_ALL_GATHER,
    CHECK_ALL_TO_ALL,
    CHECK_EXCHANGE,
    CHECK_MESSAGES,
    CHECK_COMM_KINDS
} check_comm_kind;

/* One call, the same of all ranks. What it leaves out is 0: a sum of float32 in every rank. */
typedef struct check_plan {
    check_comm_kind kind;
    int32_t type; /* a place in the list of types */
    int32_t reduction, root;
    uint64_t count;
    bool in_place;
    bool uneven; /* parts have other sizes than `count`, by the ranks that send and receive them */
    int shift;   /* elements by which the memory is off the alignment of its allocation */
} check_plan;

typedef struct check_rank check_rank;
typedef void check_rank_function(check_rank *r);
struct check_rank {
    check_context *c;
    const openreg_comm *comm;
    const unsigned char *id; /* OPENREG_COMM_ID_MAX bytes, with zeros behind the id's own */
    int32_t number, size, dev;
    openreg_driver_comm handle;
    openreg_driver_stream stream;
    char *send, *recv;                      /* blocks of the device */
    unsigned char *staging, *wanted, *seen; /* of the host */
    const check_plan *plan;
    int served; /* plans that the driver didn't refuse */
    pthread_t thread;
    check_rank_function *function; /* that runs in the thread */
    atomic_bool is_done;
};

check_comm_kind check_comm_kind_named(const char *name); /* "all_reduce" */
/* Queues one collective of that rank; of those that reduce, a sum. */
openreg_status check_queue(const check_rank *r, int32_t kind, const void *send, void *recv, uint64_t count,
                           int32_t type, int32_t peer);

/* A sum of 2000 numbers in every rank. */
extern const check_plan check_simple_plan;

/* Bytes that rank `number` gives, or gets. */
uint64_t check_plan_size(const check_rank *r, const check_plan *p, int32_t number, bool gets);
/* What rank `number` sends: numbers where they are reduced, else any bytes. */
void check_plan_input(const check_rank *r, const check_plan *p, int32_t number, unsigned char *to);
/* What this rank has to get; nothing is written where it gets nothing. `room` is for the input of another rank. */
void check_plan_output(const check_rank *r, const check_plan *p, unsigned char *to, unsigned char *room);
/* The call alone. E_UNSUPPORTED is an answer, and no other error. */
openreg_status check_plan_call(const check_rank *r, const check_plan *p, const void *send, void *recv);
/* From its input to the comparison, with the bytes around the result. What is refused must leave the memory as it was. */
void check_plan_run(check_rank *r, const check_plan *p);

/* The table, of a driver that has it. */
const openreg_comm *check_comm(check_context *c);
/* A rank of this process without a communicator, on the device of its number. */
void check_rank_prepare(check_context *c, check_rank *r, int32_t number, int32_t size, const unsigned char *id);
/* A new id, and its size. */
uint32_t check_comm_id(check_context *c, int32_t dev, unsigned char *id);
/* All ranks without a communicator. The id is a new one. */
check_rank *check_ranks_prepare(check_context *c, int32_t size);
/* The same, connected. */
check_rank *check_ranks_connect(check_context *c, int32_t size);
void check_rank_init(check_rank *r);
void check_rank_abort(void *rank);
void check_rank_destroy(check_rank *r);
/* Runs a function in the rank's thread; is_done becomes true at its end. */
void check_rank_start(check_rank *r, check_rank_function *function);
/* For all ranks, each in a thread, and waits: a rank that hangs is for the runner to end. */
void check_in_each_rank(check_rank *ranks, check_rank_function *function);
/* One plan in all ranks, by check_plan_run(). */
void check_ranks_follow(check_rank *ranks, check_plan wanted);
/* Destroys the communicator. Fails the check if the driver refused all plans. */
void check_ranks_end(check_rank *ranks);

#endif
