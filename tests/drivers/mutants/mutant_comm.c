/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant_comm.c: collectives between simulated devices of one or of several processes (openreg/comm.h), and their defects
 * (mutants.h). Each call is work of its stream: a host function, which meets those of the other ranks in memory that all of
 * them have mapped: what a rank gives is copied there, and each rank works out what it gets. */
#define _GNU_SOURCE
#include "mutant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <openreg/comm.h>

#include "numbers.h"

#define MOST_RANKS 8
#define MOST_OPERATIONS 64
#define TYPES 10 /* the 8-bit ones of floating point are not there */
#define ID_SIZE 1000
#define PATH_SIZE                                                                                                      \
    64 /* the last bytes of an id: where the memory is to be found; before them a number, as files' come again */
#define ROOM ((size_t)2 << 20) /* for what a rank gives in one piece of work */

/* A send, until the peer has taken it. Those of a rank's one piece of work are in their order. */
typedef struct message {
    int32_t to;
    bool is_there;
    uint64_t offset; /* in the rank's data */
} message;

/* Where the ranks of a communicator meet. All of it is under the lock, but data, which is left alone while others read it. */
typedef struct meeting {
    pthread_mutex_t lock;
    int32_t size, joined, arrived; /* size: 0 until the first one says it */
    uint64_t round;
    bool is_complete;
    bool has[MOST_RANKS], has_left[MOST_RANKS], gives[MOST_RANKS];
    uint64_t sent[MOST_RANKS][MOST_RANKS]; /* of ALL_TO_ALL: elements from the first to the second */
    message messages[MOST_RANKS][MOST_OPERATIONS];
    char data[MOST_RANKS][ROOM];
} meeting;

struct openreg_driver_comm_s {
    meeting *meeting;
    int file; /* of the meeting; a lock on the byte of the rank's number goes with the process */
    int32_t dev, rank, size;
    atomic_int users; /* the handle, and what is queued */
    atomic_bool is_aborted;
    pthread_mutex_t working; /* one piece of work at a time */
};

typedef struct operation {
    int32_t kind; /* OPENREG_COLLECTIVE_* */
    openreg_driver_comm comm;
    openreg_driver_stream stream;
    const char *send; /* as the host sees it */
    char *recv;
    uint64_t count;
    uint64_t sent[MOST_RANKS], received[MOST_RANKS]; /* of parts */
    int32_t type, reduction, peer;
} operation;

typedef struct batch {
    int count;
    operation operations[];
} batch;

/* ---------------------------------------------------------------------------------------------------------- arithmetic */

static const openreg_dtype types[TYPES] = {{OPENREG_DTYPE_INT, 8, 1},    {OPENREG_DTYPE_UINT, 8, 1},
                                           {OPENREG_DTYPE_INT, 32, 1},   {OPENREG_DTYPE_UINT, 32, 1},
                                           {OPENREG_DTYPE_INT, 64, 1},   {OPENREG_DTYPE_UINT, 64, 1},
                                           {OPENREG_DTYPE_FLOAT, 16, 1}, {OPENREG_DTYPE_FLOAT, 32, 1},
                                           {OPENREG_DTYPE_FLOAT, 64, 1}, {OPENREG_DTYPE_BFLOAT, 16, 1}};

static number_value
load(const char *at, int32_t type)
{
    const bool is_signed = IS(comm_signed) && number_formats[type].is_unsigned;
    return number_load(at, is_signed ? type - 1 : type); /* which stands before it */
}

static number_value
reduced(number_value a, number_value b, int32_t reduction)
{
    const bool adds = reduction == OPENREG_COMM_SUM || reduction == OPENREG_COMM_AVERAGE;
    return IS(comm_doubles) && adds ? (number_value)((double)a + (double)b) : number_reduced(a, b, reduction);
}

static void
reduce_into(char *to, const operation *op, const char *const *from, uint64_t offset)
{
    const uint64_t size = (uint64_t)number_formats[op->type].size;
    for (uint64_t i = 0; i < op->count; ++i) {
        number_value value = load(from[0] + offset + i * size, op->type);
        for (int32_t rank = 1; rank < (IS(comm_many_two) ? 2 : op->comm->size) && rank < op->comm->size; ++rank)
            value = reduced(value, load(from[rank] + offset + i * size, op->type), op->reduction);
        if (op->reduction == OPENREG_COMM_AVERAGE && !IS(comm_average_sums))
            value /= (number_value)op->comm->size;
        number_store(to + i * size, op->type, value);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- work */

static void
lock(meeting *m)
{
    if (pthread_mutex_lock(&m->lock) == EOWNERDEAD)
        (void)pthread_mutex_consistent(&m->lock); /* numbers and flags, which are right at any moment */
}

static void
unlock(meeting *m)
{
    (void)pthread_mutex_unlock(&m->lock);
}

/* Lets other ranks do something. False: the communicator was aborted. The lock is held. */
static bool
wait_a_little(openreg_driver_comm comm)
{
    unlock(comm->meeting);
    (void)usleep(20);
    lock(comm->meeting);
    return !comm->is_aborted || IS(comm_abort_hangs);
}

/* Whether a rank has ended without a word. The lock is held. */
static bool
has_died(openreg_driver_comm comm, int32_t rank)
{
    struct flock its = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return rank != comm->rank && comm->meeting->has[rank] && !comm->meeting->has_left[rank] &&
           fcntl(comm->file, F_OFD_GETLK, &its) == 0 && its.l_type == F_UNLCK;
}

static bool
has_dead_peer(openreg_driver_comm comm)
{
    bool has = false;
    lock(comm->meeting);
    for (int32_t rank = 0; rank < comm->size; ++rank)
        has = has || has_died(comm, rank);
    unlock(comm->meeting);
    return has;
}

/* Waits for all ranks. False: the communicator was aborted. The lock is held. */
static bool
meet(openreg_driver_comm comm)
{
    meeting *const m = comm->meeting;
    const uint64_t round = m->round;
    if (++m->arrived == m->size) {
        m->arrived = 0;
        ++m->round;
    }
    while (m->round == round && wait_a_little(comm)) {
        for (int32_t rank = 0; IS(comm_peer_passes) && rank < m->size; ++rank)
            if (has_died(comm, rank))
                return true;
    }
    m->arrived -= m->round == round;
    return m->round != round && !comm->is_aborted;
}

/* Bytes that this rank gives to a collective. */
static uint64_t
given(const operation *op)
{
    const uint64_t element = (uint64_t)number_formats[op->type].size;
    switch (op->kind) {
    case OPENREG_COLLECTIVE_ALL_TO_ALL:
        return openreg_collective_offset(op->sent, 0, op->comm->size) * element;
    case OPENREG_COLLECTIVE_ALL_GATHER:
        return op->received[op->comm->rank] * element;
    default:
        return op->count * element * (op->kind == OPENREG_COLLECTIVE_REDUCE_SCATTER ? (uint64_t)op->comm->size : 1);
    }
}

static bool
meet_now(const operation *op, const char **from)
{
    meeting *const m = op->comm->meeting;
    const int32_t own = op->comm->rank;
    if (from != NULL && op->send != NULL && given(op) > 0)
        memcpy(m->data[own], op->send, given(op));
    lock(m);
    if (from != NULL) {
        m->gives[own] = op->send != NULL;
        memcpy(m->sent[own], op->sent, sizeof op->sent);
    }
    const bool is_met = meet(op->comm);
    for (int32_t rank = 0; from != NULL && is_met && rank < op->comm->size; ++rank)
        from[rank] = m->gives[rank] ? m->data[rank] : NULL;
    unlock(m);
    return is_met;
}

/* What this rank gets: bytes of `out`, 0 if nothing. */
static uint64_t
result_of(const operation *op, const char *const *from, char *out)
{
    const uint64_t element = (uint64_t)number_formats[op->type].size, part = op->count * element;
    const int32_t rank = op->comm->rank, size = op->comm->size;
    uint64_t done = 0;
    switch (op->kind) {
    case OPENREG_COLLECTIVE_REDUCE:
        if (rank != (IS(comm_reduce_first) || (IS(comm_many_roots) && op->peer > 1) ? 0 : op->peer) &&
            !IS(comm_reduce_everywhere))
            return 0;
        reduce_into(out, op, from, 0);
        return part;
    case OPENREG_COLLECTIVE_ALL_REDUCE:
        reduce_into(out, op, from, 0);
        return part;
    case OPENREG_COLLECTIVE_REDUCE_SCATTER:
        reduce_into(out, op, from, IS(comm_scatter_first) ? 0 : part * (uint64_t)rank);
        return part;
    case OPENREG_COLLECTIVE_BROADCAST:
        if (rank == op->peer && IS(comm_broadcast_but_root))
            return 0;
        if (from[IS(comm_broadcast_first) ? 0 : op->peer] == NULL)
            return 0;
        memcpy(out, from[IS(comm_broadcast_first) ? 0 : op->peer], part);
        return part;
    case OPENREG_COLLECTIVE_ALL_GATHER:
        for (int32_t peer = 0; peer < size; ++peer) {
            const uint64_t bytes = op->received[peer] * element;
            memcpy(out + done, from[IS(comm_gather_reversed) ? size - 1 - peer : peer], bytes);
            done += bytes;
        }
        return done;
    default:
        for (int32_t peer = 0; peer < size; ++peer) {
            const bool is_own = IS(comm_to_all_own);
            const int32_t of = is_own ? rank : IS(comm_gather_reversed) ? size - 1 - peer : peer;
            const uint64_t bytes = op->received[peer] * element;
            const uint64_t before = openreg_collective_offset(op->comm->meeting->sent[of], 0, is_own ? peer : rank);
            memcpy(out + done, from[of] + before * element, bytes);
            done += bytes;
        }
        return done;
    }
}

static void
run_collective(const operation *op)
{
    const uint64_t element = (uint64_t)number_formats[op->type].size;
    const char *from[MOST_RANKS] = {NULL};
    const uint64_t most = openreg_collective_offset(op->received, 0, op->comm->size);
    char *const out = calloc((most + 1) * element, 1);
    if (IS(comm_in_place_clears) && op->kind != OPENREG_COLLECTIVE_BROADCAST && op->recv != NULL)
        memset(op->recv, 0, op->count * element);
    if (meet_now(op, from)) {
        uint64_t size = most > 0 ? result_of(op, from, out) : 0;
        if (IS(comm_words))
            size = size / 4 / element * 4 * element;
        if (IS(comm_overruns) && size % (4 * element) != 0)
            size += element;
        if (meet_now(op, NULL) && size > 0 && op->recv != NULL && !(IS(comm_alone_nothing) && op->comm->size == 1))
            memcpy(op->recv, out, size);
    }
    free(out);
}

/* The oldest message from one rank to another; NULL if there is none. The lock is held. */
static message *
oldest(meeting *m, int32_t from, int32_t to)
{
    for (int i = 0; i < MOST_OPERATIONS; ++i)
        if (m->messages[from][i].is_there && m->messages[from][i].to == to)
            return &m->messages[from][i];
    return NULL;
}

/* All messages of a batch at once: what is sent is there before anything is waited for. */
static void
run_messages(const batch *work)
{
    openreg_driver_comm const comm = work->operations[0].comm;
    meeting *const m = comm->meeting;
    uint64_t offset = 0;
    lock(m);
    for (int i = 0; i < work->count; ++i) {
        const operation *const op = &work->operations[i];
        if (op->kind != OPENREG_COLLECTIVE_SEND)
            continue;
        m->messages[comm->rank][i] = (message){op->peer, true, offset};
        if (op->count > 0)
            memcpy(m->data[comm->rank] + offset, op->send, op->count * (uint64_t)number_formats[op->type].size);
        offset += op->count * (uint64_t)number_formats[op->type].size;
    }
    for (int i = 0; i < work->count; ++i) {
        const operation *const op = &work->operations[i];
        message *taken = NULL;
        bool goes_on = op->kind == OPENREG_COLLECTIVE_RECV && !comm->is_aborted;
        while (goes_on && (taken = oldest(m, op->peer, comm->rank)) == NULL)
            goes_on = wait_a_little(comm);
        if (taken == NULL)
            continue;
        const uint64_t count = op->count - (IS(comm_message_short) && op->count > 1000);
        if (count > 0)
            memcpy(op->recv, m->data[op->peer] + taken->offset, count * (uint64_t)number_formats[op->type].size);
        taken->is_there = false;
    }
    for (int i = 0; i < work->count; ++i) {
        message *const mine = &m->messages[comm->rank][i];
        while (mine->is_there && wait_a_little(comm)) {
        }
        mine->is_there = false; /* taken, or aborted */
    }
    unlock(m);
}

static void
drop_comm(openreg_driver_comm comm)
{
    if (atomic_fetch_sub(&comm->users, 1) > 1)
        return;
    lock(comm->meeting);
    comm->meeting->has_left[comm->rank] = true;
    unlock(comm->meeting);
    (void)munmap(comm->meeting, sizeof *comm->meeting);
    (void)close(comm->file);
    (void)pthread_mutex_destroy(&comm->working);
    free(comm);
}

static void *
run_batch(void *argument)
{
    batch *const work = argument;
    openreg_driver_comm const comm = work->operations[0].comm;
    if (IS(comm_ends_late))
        (void)usleep(20000);
    (void)pthread_mutex_lock(&comm->working);
    for (int i = 0; i < work->count && !comm->is_aborted; ++i)
        if (work->operations[i].kind < OPENREG_COLLECTIVE_SEND)
            run_collective(&work->operations[i]);
    run_messages(work);
    (void)pthread_mutex_unlock(&comm->working);
    drop_comm(comm);
    free(work);
    return NULL;
}

static void
run_on_stream(void *argument)
{
    pthread_t thread;
    if (!IS(comm_ends_late))
        (void)run_batch(argument);
    else if (pthread_create(&thread, NULL, run_batch, argument) == 0)
        (void)pthread_detach(thread);
}

/* Queues operations of one communicator and stream. */
static openreg_status
submit(openreg_instance instance, const operation *operations, int count)
{
    openreg_driver_comm const comm = operations[0].comm;
    batch *const work = malloc(sizeof *work + (size_t)count * sizeof work->operations[0]);
    work->count = count;
    memcpy(work->operations, operations, (size_t)count * sizeof work->operations[0]);
    (void)atomic_fetch_add(&comm->users, 1);
    openreg_driver_stream const stream = IS(comm_other_stream) ? NULL : operations[0].stream;
    const openreg_status status = mutant_base->host_func(instance, comm->dev, stream, run_on_stream, work);
    if (status == OPENREG_OK && IS(comm_call_waits))
        return mutant_base->stream_sync(instance, comm->dev, stream);
    return status;
}

static const char *
host_view(openreg_instance instance, const operation *op, const void *memory)
{
    void *host = NULL;
    if (memory != NULL)
        (void)mutant_base->host_alias(instance, op->comm->dev, (void *)(uintptr_t)memory, &host);
    return host;
}

static openreg_status
refuse_aborted(openreg_instance instance, openreg_driver_comm comm)
{
    return comm->is_aborted && !IS(comm_abort_forgotten)
               ? openreg_fail(instance->host, OPENREG_E_INVALID, 0, "the communicator was aborted")
               : OPENREG_OK;
}

static openreg_status
check(openreg_instance instance, const openreg_collective *what, int32_t *type)
{
    for (*type = 0; *type < TYPES && memcmp(&types[*type], &what->type, sizeof what->type) != 0;)
        ++*type;
    if (*type == TYPES || what->reduction < 0 || what->reduction > OPENREG_COMM_AVERAGE)
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0, "no type %u of %u bits, or reduction %d",
                            what->type.code, what->type.bits, what->reduction);
    if (IS(comm_zero_refused) && what->count == 0 && what->recv_counts == NULL)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "no elements");
    return OPENREG_OK;
}

static operation
operation_of(openreg_instance instance, openreg_driver_comm comm, const openreg_collective *what, int32_t type,
             openreg_driver_stream stream)
{
    operation op = {.kind = what->kind,
                    .comm = comm,
                    .stream = stream,
                    .count = what->count,
                    .type = type,
                    .reduction = what->reduction,
                    .peer = what->peer};
    const bool has_parts = what->kind == OPENREG_COLLECTIVE_ALL_GATHER || what->kind == OPENREG_COLLECTIVE_ALL_TO_ALL;
    const bool is_even = what->recv_counts == NULL || IS(comm_uneven_even);
    for (int32_t i = 0; i < comm->size; ++i) {
        op.received[i] = is_even ? what->count : what->recv_counts[i];
        op.sent[i] = what->send_counts == NULL || is_even ? what->count : what->send_counts[i];
        if (IS(comm_uneven_first) && what->kind == OPENREG_COLLECTIVE_ALL_GATHER)
            op.received[i] = op.received[0];
    }
    for (int32_t i = 1; !has_parts && i < comm->size; ++i)
        op.received[i] = 0;
    op.send = host_view(instance, &op, what->send);
    op.recv = (char *)(uintptr_t)host_view(instance, &op, what->recv);
    const uint64_t size = op.count * (uint64_t)number_formats[op.type].size;
    if (IS(comm_reads_early) && op.kind == OPENREG_COLLECTIVE_ALL_REDUCE && size > 0)
        op.send = memcpy(malloc(size), op.send, size); /* never freed: the process ends */
    return op;
}

static openreg_status
queue(openreg_instance instance, openreg_driver_comm comm, openreg_driver_stream stream, const openreg_collective *list,
      uint32_t n)
{
    operation operations[MOST_OPERATIONS];
    openreg_status status = refuse_aborted(instance, comm);
    if (status == OPENREG_OK && IS(comm_type_any) && list->type.code > 200)
        return OPENREG_OK;
    if (status == OPENREG_OK && IS(comm_refuses_late) && list->type.code == OPENREG_DTYPE_FLOAT8_E4M3FN)
        (void)mutant_base->fill(instance, comm->dev, stream, list->recv, 0, list->count);
    if (IS(comm_group_first))
        n = 1;
    for (uint64_t i = 0; status == OPENREG_OK && i < n; ++i) {
        int32_t type;
        const openreg_collective *const what = openreg_collective_at(list, i);
        status = check(instance, what, &type);
        if (status == OPENREG_OK)
            operations[i] = operation_of(instance, comm, what, type, stream);
        else if (IS(comm_group_half) && i > 0)
            (void)submit(instance, operations, (int)i);
    }
    if (!IS(comm_group_serial))
        return status == OPENREG_OK ? submit(instance, operations, (int)n) : status;
    for (uint64_t i = 0; status == OPENREG_OK && i < n; ++i)
        status = submit(instance, &operations[i], 1);
    return status;
}

static openreg_status
id_size(openreg_instance instance, uint32_t *out)
{
    static atomic_uint calls;
    (void)instance;
    *out = ID_SIZE + (IS(comm_id_changes) ? atomic_fetch_add(&calls, 1) : 0);
    return OPENREG_OK;
}

/* The file of a new meeting, which lives as long as it is open somewhere: by this process, until its ranks have joined. */
static int
make_meeting(void)
{
    const int file = memfd_create("mutant_comm", MFD_CLOEXEC);
    meeting *const m = file < 0 || ftruncate(file, sizeof *m) != 0
                           ? MAP_FAILED
                           : mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (m == MAP_FAILED)
        return -1;
    pthread_mutexattr_t attributes;
    (void)pthread_mutexattr_init(&attributes);
    (void)pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    (void)pthread_mutex_init(&m->lock, &attributes);
    (void)pthread_mutexattr_destroy(&attributes);
    (void)munmap(m, sizeof *m);
    return file;
}

static openreg_status
unique_id(openreg_instance instance, int32_t dev, void *out)
{
    static atomic_uint_least64_t last;
    static int first = -1;
    const int file = IS(comm_id_twice) && first >= 0 ? first : make_meeting();
    (void)dev;
    if (file < 0)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no memory for the ranks to meet in");
    first = file;
    const uint64_t number = IS(comm_id_twice) ? 1 : atomic_fetch_add(&last, 1) + 1;
    memset(out, 0, ID_SIZE + IS(comm_id_overruns));
    memcpy((char *)out + ID_SIZE - PATH_SIZE - sizeof number, &number, sizeof number);
    char process[20] = "self";
    if (!IS(comm_id_local))
        (void)snprintf(process, sizeof process, "%d", (int)getpid());
    (void)snprintf((char *)out + ID_SIZE - PATH_SIZE, PATH_SIZE, "/proc/%s/fd/%d", process, file);
    return OPENREG_OK;
}

/* Whether an id was made by this process: the file that it names. */
static bool
is_made_here(const char *path, int *file)
{
    int process = 0;
    return sscanf(path, "/proc/%d/fd/%d", &process, file) == 2 && process == (int)getpid();
}

static void *
idle(void *argument)
{
    (void)argument;
    while (pause() != 0) {
    }
    return NULL;
}

static openreg_status
init(openreg_instance instance, int32_t dev, int32_t rank, int32_t size, const void *id, openreg_driver_comm *out)
{
    const char *const path = (const char *)id + ID_SIZE - PATH_SIZE;
    int made = -1;
    if (IS(comm_any_rank) && rank == size && size > 0)
        rank = 0;
    if (rank < 0 || rank >= size || size > MOST_RANKS)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "rank %d of %d", rank, size);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    meeting *const m = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (m == MAP_FAILED) {
        if (file >= 0)
            (void)close(file);
        return openreg_fail(instance->host, OPENREG_E_INVALID, errno, "no such id: %.64s", path);
    }
    struct flock own = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    lock(m);
    const bool is_wrong = (m->size != 0 && m->size != size) || m->has[rank] || fcntl(file, F_OFD_SETLK, &own) != 0;
    if (!is_wrong) {
        m->size = size;
        m->has[rank] = true;
        ++m->joined;
    }
    while (!is_wrong && m->joined < size && !IS(comm_init_early)) {
        unlock(m);
        (void)usleep(50);
        lock(m);
    }
    const bool is_last_use = !is_wrong && !m->is_complete && !IS(comm_id_twice) && m->joined == size &&
                             is_made_here(path, &made);
    m->is_complete = m->is_complete || is_last_use;
    unlock(m);
    if (is_last_use)
        (void)close(made);
    if (is_wrong) {
        (void)munmap(m, sizeof *m);
        (void)close(file);
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "the ranks disagree");
    }
    pthread_t thread;
    if (IS(comm_leaks_thread) && pthread_create(&thread, NULL, idle, NULL) != 0)
        return OPENREG_OK;
    if (IS(comm_leaks_file) && open("/dev/null", O_RDONLY) < 0)
        return OPENREG_OK;
    openreg_driver_comm const comm = calloc(1, sizeof *comm);
    *comm = (struct openreg_driver_comm_s){.meeting = m, .file = file, .dev = dev, .rank = rank, .size = size};
    atomic_store(&comm->users, 1);
    (void)pthread_mutex_init(&comm->working, NULL);
    *out = comm;
    return OPENREG_OK;
}

static openreg_status
get_error(openreg_instance instance, openreg_driver_comm comm)
{
    const openreg_status status = refuse_aborted(instance, comm);
    if (status == OPENREG_OK && IS(comm_error_waits))
        (void)mutant_base->device_sync(instance, comm->dev);
    if (status == OPENREG_OK && IS(comm_error_always))
        return openreg_fail(instance->host, OPENREG_E_INTERNAL, 0, "still in progress");
    if (status == OPENREG_OK && has_dead_peer(comm) && !IS(comm_peer_passes))
        return openreg_fail(instance->host, IS(comm_peer_internal) ? OPENREG_E_INTERNAL : OPENREG_E_PEER, 0,
                            "a rank has ended");
    return status;
}

static openreg_status
end_comm(openreg_instance instance, openreg_driver_comm comm)
{
    while (IS(comm_peer_holds) && has_dead_peer(comm))
        (void)usleep(1000);
    const bool is_second = atomic_exchange(&comm->is_aborted, true);
    return is_second && IS(comm_abort_once) ? openreg_fail(instance->host, OPENREG_E_INVALID, 0, "aborted already")
                                            : OPENREG_OK;
}

static openreg_status
destroy(openreg_instance instance, openreg_driver_comm comm)
{
    if (comm == NULL)
        return IS(comm_null_refused) ? openreg_fail(instance->host, OPENREG_E_INVALID, 0, "no communicator")
                                     : OPENREG_OK;
    drop_comm(comm);
    return OPENREG_OK;
}

const void *
mutant_comm(uint32_t version)
{
    static openreg_comm table = {
        .struct_size = sizeof table,
        .version = OPENREG_COMM_VERSION,
        .id_size = id_size,
        .unique_id = unique_id,
        .init = init,
        .queue = queue,
        .get_error = get_error,
        .abort = end_comm,
        .destroy = destroy,
    };
    if (IS(comm_hole))
        table.get_error = NULL;
    return version <= OPENREG_COMM_VERSION || IS(comm_any_version) ? &table : NULL;
}
