/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_nccl.c: a library with NCCL's functions for the fake GPUs (fake_gpu.h), which moves bytes between devices of one or
 * of several processes. Ranks meet in a file of shared memory, whose name is in the id: a ring for each pair of them.
 *
 * As the real one it queues work on a stream and reads and writes memory when the stream comes to it; work waits for its
 * peers on the stream; when a peer dies that shows in CommGetAsyncError(), and the stream stands still until CommAbort().
 * Stricter: each message has a header, so that ranks that disagree about a call are found out, and outputs hold 0xEE while a
 * collective waits. */
#define _GNU_SOURCE
#include "fake_gpu.h"
#include "gpu_nccl.h"
#include "numbers.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 8
#define MAX_GROUP 64
#define RING_SIZE 32768u
#define PATIENCE_MS 30000 /* of what would wait for ever: a test is to fail, not to hang */

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };

typedef struct ring {
    atomic_ullong written, read;
    unsigned char bytes[RING_SIZE];
} ring;

typedef struct meeting {
    atomic_int size; /* 0 until the first rank says it */
    atomic_int attached;
    ring rings[MAX_RANKS][MAX_RANKS]; /* [from][to] */
} meeting;

struct ncclComm {
    int rank, size, device, file;
    meeting *shared;
    atomic_int users, error;
    atomic_bool aborted;
    int delay;
    pthread_mutex_t running; /* one task at a time */
};
typedef struct ncclComm communicator;

typedef enum op_kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV } op_kind;

typedef struct operation {
    op_kind kind;
    const char *send; /* the host's view */
    char *recv;
    fake_block *blocks[2];
    size_t count;
    int type, reduction, peer;
    communicator *comm;
    fake_stream *stream;
} operation;

typedef struct batch {
    communicator *comm;
    size_t count;
    operation operations[];
} batch;

atomic_int fake_live_communicators;

static _Thread_local int group_depth;
static _Thread_local size_t group_count;
static _Thread_local operation group[MAX_GROUP];
static _Thread_local char last_text[160];

/* -------------------------------------------------------------------------------------------------------- arithmetic */

static size_t
size_of(int type)
{
    return (size_t)number_formats[type].size;
}

static void
reduce_into(char *into, const char *from, size_t count, int type, int reduction)
{
    for (size_t i = 0; i < count * size_of(type); i += size_of(type))
        number_store(into + i, type,
                     number_reduced(number_load(into + i, type), number_load(from + i, type), reduction));
}

static void
divide(char *data, size_t count, int type, int by)
{
    for (size_t i = 0; i < count * size_of(type); i += size_of(type))
        number_store(data + i, type, number_load(data + i, type) / (number_value)by);
}

/* ---------------------------------------------------------------------------------------------------------- messages */

typedef struct header {
    uint32_t kind, type;
    uint64_t count;
} header;

/* A message to or from a peer; those of one peer and direction go one after the other. */
typedef struct transfer {
    int peer;
    bool is_send, has_header;
    header head;
    char *data;
    size_t size, done; /* bytes, with the header in front */
} transfer;

typedef struct transfers {
    transfer items[MAX_GROUP * MAX_RANKS];
    size_t count;
} transfers;

static void
add_transfer(transfers *all, const operation *op, int peer, bool is_send, const char *data, size_t count)
{
    transfer *const added = &all->items[all->count++];
    *added = (transfer){.peer = peer,
                        .is_send = is_send,
                        .head = {op->kind == RECV ? SEND : (uint32_t)op->kind, (uint32_t)op->type, count},
                        .data = (char *)(uintptr_t)data,
                        .size = sizeof(header) + count * size_of(op->type)};
}

/* So many bytes of a message from `done` on that lie in one piece. */
static char *
piece_of(transfer *item, header *incoming, size_t *size)
{
    if (item->done < sizeof(header)) {
        *size = sizeof(header) - item->done;
        return (char *)(item->is_send ? &item->head : incoming) + item->done;
    }
    *size = item->size - item->done;
    return item->data + (item->done - sizeof(header));
}

static bool
progress(communicator *comm, transfer *item, header *incoming)
{
    ring *const way = item->is_send ? &comm->shared->rings[comm->rank][item->peer]
                                    : &comm->shared->rings[item->peer][comm->rank];
    bool moved = false;
    while (item->done < item->size) {
        const unsigned long long written = atomic_load_explicit(&way->written, memory_order_acquire);
        const unsigned long long read = atomic_load_explicit(&way->read, memory_order_acquire);
        size_t room = (size_t)(item->is_send ? RING_SIZE - (written - read) : written - read);
        const size_t at = (size_t)((item->is_send ? written : read) % RING_SIZE);
        size_t size;
        char *const piece = piece_of(item, incoming, &size);
        size = size < room ? size : room;
        size = size < RING_SIZE - at ? size : RING_SIZE - at;
        if (size == 0)
            break;
        if (item->is_send) {
            memcpy(way->bytes + at, piece, size);
            atomic_store_explicit(&way->written, written + size, memory_order_release);
        } else {
            memcpy(piece, way->bytes + at, size);
            atomic_store_explicit(&way->read, read + size, memory_order_release);
        }
        item->done += size;
        moved = true;
        if (!item->is_send && item->done == sizeof(header) && memcmp(incoming, &item->head, sizeof *incoming) != 0) {
            atomic_store(&comm->error, INVALID_USAGE); /* the ranks have made different calls */
            return false;
        }
    }
    return moved;
}

/* A rank's file is locked at its number as long as its process lives. */
static bool
is_alive(const communicator *comm, int rank)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(comm->file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void
short_sleep(void)
{
    const struct timespec time = {.tv_nsec = 50000};
    (void)nanosleep(&time, NULL);
}

static bool
exchange(communicator *comm, transfers *all)
{
    header incoming[MAX_RANKS];
    for (int idle = 0; !atomic_load(&comm->aborted) && idle < PATIENCE_MS * 20;) {
        bool is_done = true;
        bool moved = false;
        bool busy[2][MAX_RANKS] = {{false}};
        for (size_t i = 0; i < all->count; ++i) {
            transfer *const item = &all->items[i];
            if (item->done == item->size || busy[item->is_send][item->peer])
                continue;
            if (atomic_load(&comm->error) == SUCCESS)
                moved |= progress(comm, item, &incoming[item->peer]);
            if (item->done < item->size) {
                is_done = false;
                busy[item->is_send][item->peer] = true;
                if (idle % 256 == 255 && !is_alive(comm, item->peer)) {
                    int none = SUCCESS;
                    (void)atomic_compare_exchange_strong(&comm->error, &none, REMOTE_ERROR);
                }
            }
        }
        if (is_done)
            return true;
        idle = moved ? 0 : idle + 1;
        if (!moved)
            short_sleep();
    }
    return false;
}

/* -------------------------------------------------------------------------------------------------------- operations */

static size_t
bytes_of(const operation *op, size_t count)
{
    return count * size_of(op->type);
}

/* Own input of an operation that reduces, and what each peer has, as `inputs`. */
static void
reduce_all(const operation *op, const char *own, char *const *inputs, char *out)
{
    char *const sum = malloc(bytes_of(op, op->count) + 1);
    for (int rank = 0; rank < op->comm->size; ++rank) {
        const char *const input = rank == op->comm->rank ? own : inputs[rank];
        if (rank == 0)
            memcpy(sum, input, bytes_of(op, op->count));
        else
            reduce_into(sum, input, op->count, op->type, op->reduction);
    }
    if (op->reduction == 4)
        divide(sum, op->count, op->type, op->comm->size);
    memcpy(out, sum, bytes_of(op, op->count));
    free(sum);
}

static void
run_collective(const operation *op)
{
    communicator *const comm = op->comm;
    const size_t part = bytes_of(op, op->count);
    const int own = comm->rank;
    const bool is_root = op->peer == own;
    char *temporary[MAX_RANKS] = {NULL};
    transfers all = {.count = 0};
    char *const input = malloc(part * (size_t)comm->size + 1); /* it may be overwritten by what arrives */
    const size_t whole = op->kind == REDUCE_SCATTER ? part * (size_t)comm->size : part;
    if (op->send != NULL && part > 0)
        memcpy(input, op->send, whole);
    if (op->recv != NULL && part > 0 && (op->kind != REDUCE || is_root))
        memset(op->recv, 0xEE, op->kind == ALL_GATHER ? part * (size_t)comm->size : part);
    for (int rank = 0; rank < comm->size; ++rank) {
        if (rank == own)
            continue;
        switch (op->kind) {
        case REDUCE:
        case ALL_REDUCE:
        case REDUCE_SCATTER:
            if (op->kind != REDUCE || rank == op->peer)
                add_transfer(&all, op, rank, true, input + (op->kind == REDUCE_SCATTER ? part * (size_t)rank : 0),
                             op->count);
            if (op->kind != REDUCE || is_root) {
                temporary[rank] = malloc(part + 1);
                add_transfer(&all, op, rank, false, temporary[rank], op->count);
            }
            break;
        case BROADCAST:
            if (is_root)
                add_transfer(&all, op, rank, true, input, op->count);
            else if (rank == op->peer)
                add_transfer(&all, op, rank, false, op->recv, op->count);
            break;
        default: /* ALL_GATHER */
            add_transfer(&all, op, rank, true, input, op->count);
            add_transfer(&all, op, rank, false, op->recv + part * (size_t)rank, op->count);
            break;
        }
    }
    if (exchange(comm, &all) && part > 0) {
        if (op->kind == BROADCAST && is_root)
            memcpy(op->recv, input, part);
        else if (op->kind == ALL_GATHER)
            memcpy(op->recv + part * (size_t)own, input, part);
        else if (op->kind == REDUCE_SCATTER)
            reduce_all(op, input + part * (size_t)own, temporary, op->recv);
        else if (op->kind == ALL_REDUCE || (op->kind == REDUCE && is_root))
            reduce_all(op, input, temporary, op->recv);
    }
    for (int rank = 0; rank < comm->size; ++rank)
        free(temporary[rank]);
    free(input);
}

/* All messages of a group at once; those to itself are copied, the first send to the first receive. */
static void
run_messages(const batch *work)
{
    communicator *const comm = work->comm;
    transfers all = {.count = 0};
    size_t next = 0;
    for (size_t i = 0; i < work->count; ++i) {
        const operation *const op = &work->operations[i];
        if (op->kind != SEND && op->kind != RECV)
            continue;
        if (op->peer != comm->rank) {
            add_transfer(&all, op, op->peer, op->kind == SEND, op->kind == SEND ? op->send : op->recv, op->count);
            continue;
        }
        if (op->kind != SEND)
            continue;
        while (next < work->count && (work->operations[next].kind != RECV || work->operations[next].peer != comm->rank))
            ++next;
        if (next == work->count) {
            atomic_store(&comm->error, INVALID_USAGE);
            return;
        }
        if (op->count > 0)
            memcpy(work->operations[next].recv, op->send, bytes_of(op, op->count));
        ++next;
    }
    (void)exchange(comm, &all);
}

static void
run_batch(void *argument)
{
    const batch *const work = argument;
    communicator *const comm = work->comm;
    if (comm->delay > 0)
        (void)usleep((useconds_t)comm->delay);
    (void)pthread_mutex_lock(&comm->running);
    for (size_t i = 0; i < work->count && !atomic_load(&comm->aborted); ++i)
        if (work->operations[i].kind != SEND && work->operations[i].kind != RECV)
            run_collective(&work->operations[i]);
    if (!atomic_load(&comm->aborted))
        run_messages(work);
    (void)pthread_mutex_unlock(&comm->running);
}

static void
drop_communicator(communicator *comm)
{
    if (atomic_fetch_sub(&comm->users, 1) != 1)
        return;
    (void)munmap(comm->shared, sizeof *comm->shared);
    (void)close(comm->file);
    (void)pthread_mutex_destroy(&comm->running);
    free(comm);
}

static void
drop_operation(const operation *op)
{
    for (int i = 0; i < 2; ++i)
        if (op->blocks[i] != NULL)
            fake_block_release(op->blocks[i]);
}

static void
release_batch(void *argument)
{
    batch *const work = argument;
    for (size_t i = 0; i < work->count; ++i)
        drop_operation(&work->operations[i]);
    drop_communicator(work->comm);
    free(work);
}

/* Queues operations of one communicator and stream. */
static void
submit(const operation *operations, size_t count)
{
    batch *const work = malloc(sizeof *work + count * sizeof work->operations[0]);
    work->comm = operations[0].comm;
    work->count = count;
    memcpy(work->operations, operations, count * sizeof work->operations[0]);
    (void)atomic_fetch_add(&work->comm->users, 1);
    fake_stream_submit(
        operations[0].stream,
        &(fake_task){.kind = FAKE_COLLECTIVE, .function = run_batch, .release = release_batch, .argument = work});
}

static int
fail(int code, const char *text)
{
    (void)snprintf(last_text, sizeof last_text, "%s", text);
    return code;
}

/* Memory of the communicator's device, as the host sees it; NULL is accepted where nothing is to be read or written. */
static bool
reach(operation *op, int which, const void *ptr, size_t size, char **out)
{
    *out = NULL;
    if (ptr == NULL || size == 0)
        return size == 0;
    op->blocks[which] = fake_block_use(ptr, size);
    if (op->blocks[which] == NULL || op->blocks[which]->device != op->comm->device)
        return false;
    *out = fake_block_alias(op->blocks[which], ptr);
    return true;
}

static int
queue(const char *name, operation op, const void *send, size_t send_parts, void *recv, size_t recv_parts,
      GPU(Stream_t) stream)
{
    const int code = (int)fake_begin(name);
    char *from = NULL;
    if (code != SUCCESS)
        return fail(code, "text of the fake");
    if (op.comm == NULL || atomic_load(&op.comm->aborted))
        return fail(INVALID_ARGUMENT, "no communicator");
    if (op.type < 0 || op.type >= GPU_NCCL_TYPES || op.reduction < 0 || op.reduction > 4 || op.peer < 0 ||
        op.peer >= op.comm->size)
        return fail(INVALID_ARGUMENT, "type, reduction or rank");
    op.stream = fake_stream_of(stream, op.comm->device);
    if (op.stream == NULL)
        return fail(INVALID_USAGE, "a stream of another device");
    const bool is_reached = reach(&op, 0, send, send_parts * bytes_of(&op, op.count), &from) &&
                            reach(&op, 1, recv, recv_parts * bytes_of(&op, op.count), &op.recv);
    op.send = from;
    if (!is_reached || group_count == MAX_GROUP) {
        drop_operation(&op);
        return fail(INVALID_ARGUMENT, "memory that is not of the communicator's device");
    }
    if (group_depth > 0)
        group[group_count++] = op;
    else
        submit(&op, 1);
    return SUCCESS;
}

/* --------------------------------------------------------------------------------------------- the library's functions */

static int
nccl_GetVersion(int *version)
{
    const char *const text = getenv("FAKE_GPU_NCCL_VERSION");
    *version = text != NULL ? atoi(text) : 22809;
    return (int)fake_begin("ncclGetVersion");
}

static int
nccl_GetUniqueId(openreg_nccl_id *id)
{
    const int code = (int)fake_begin("ncclGetUniqueId");
    if (code != SUCCESS)
        return fail(code, "text of the fake");
    memset(id, 0, sizeof *id);
    /* Not a name made from the process's number: one that died before its ranks met leaves its file behind, and a
     * later process may have the same number. */
    (void)snprintf(id->internal, sizeof id->internal, "/dev/shm/fake_nccl_XXXXXX");
    const int file = mkostemp(id->internal, O_CLOEXEC);
    const bool is_made = file >= 0 && ftruncate(file, (off_t)sizeof(meeting)) == 0;
    if (file >= 0)
        (void)close(file);
    return is_made ? SUCCESS : fail(SYSTEM_ERROR, "no file to meet in");
}

static int
nccl_CommInitRank(openreg_nccl_comm *out, int size, openreg_nccl_id id, int rank)
{
    const int code = (int)fake_begin("ncclCommInitRank");
    const char *const delay = getenv("FAKE_GPU_NCCL_DELAY_US");
    if (code != SUCCESS)
        return fail(code, "text of the fake");
    if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size)
        return fail(INVALID_ARGUMENT, "ranks");
    const int file = open(id.internal, O_RDWR | O_CLOEXEC);
    meeting *const shared = file < 0 ? MAP_FAILED
                                     : mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED)
        return fail(SYSTEM_ERROR, "no such id");
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    int none = 0;
    const bool is_same = atomic_compare_exchange_strong(&shared->size, &none, size) || none == size;
    if (!is_same || fcntl(file, F_OFD_SETLK, &lock) != 0) {
        (void)munmap(shared, sizeof *shared);
        (void)close(file);
        return fail(is_same ? INVALID_USAGE : INVALID_ARGUMENT, is_same ? "the rank is there already" : "sizes differ");
    }
    if (atomic_fetch_add(&shared->attached, 1) + 1 == size)
        (void)unlink(id.internal);
    for (int i = 0; i < PATIENCE_MS * 20 && atomic_load(&shared->attached) < size; ++i)
        short_sleep();
    communicator *const comm = calloc(1, sizeof *comm);
    *comm = (communicator){.rank = rank, .size = size, .device = fake_current_device(), .file = file, .shared = shared};
    atomic_store(&comm->users, 1);
    comm->delay = delay != NULL ? atoi(delay) : 0;
    (void)pthread_mutex_init(&comm->running, NULL);
    (void)atomic_fetch_add(&fake_live_communicators, 1);
    *out = comm;
    return SUCCESS;
}

static int
nccl_CommDestroy(openreg_nccl_comm comm)
{
    if (atomic_load(&comm->users) > 1)
        (void)atomic_fetch_add(&fake_violations, 1); /* work is queued */
    (void)atomic_fetch_sub(&fake_live_communicators, 1);
    drop_communicator(comm);
    return (int)fake_begin("ncclCommDestroy");
}

static int
nccl_CommAbort(openreg_nccl_comm comm)
{
    atomic_store(&comm->aborted, true);
    (void)atomic_fetch_sub(&fake_live_communicators, 1);
    drop_communicator(comm);
    return (int)fake_begin("ncclCommAbort");
}

static int
nccl_CommGetAsyncError(openreg_nccl_comm comm, int *result)
{
    *result = atomic_load(&comm->error);
    if (*result != SUCCESS)
        (void)fail(*result, *result == REMOTE_ERROR ? "a rank has ended" : "ranks have made different calls");
    return (int)fake_begin("ncclCommGetAsyncError");
}

static const char *
nccl_GetErrorString(int result)
{
    return result == REMOTE_ERROR ? "remote process exited or there was a network error" : "error of the fake";
}

static const char *
nccl_GetLastError(openreg_nccl_comm comm)
{
    (void)comm;
    return last_text;
}

static int
nccl_AllReduce(const void *send, void *recv, size_t count, int type, int reduction, openreg_nccl_comm comm,
               GPU(Stream_t) stream)
{
    return queue("ncclAllReduce",
                 (operation){ALL_REDUCE, .count = count, .type = type, .reduction = reduction, .comm = comm}, send, 1,
                 recv, 1, stream);
}

static int
nccl_Reduce(const void *send, void *recv, size_t count, int type, int reduction, int root, openreg_nccl_comm comm,
            GPU(Stream_t) stream)
{
    return queue("ncclReduce",
                 (operation){REDUCE, .count = count, .type = type, .reduction = reduction, .peer = root, .comm = comm},
                 send, 1, recv, comm != NULL && comm->rank == root, stream);
}

static int
nccl_Broadcast(const void *send, void *recv, size_t count, int type, int root, openreg_nccl_comm comm,
               GPU(Stream_t) stream)
{
    return queue("ncclBroadcast", (operation){BROADCAST, .count = count, .type = type, .peer = root, .comm = comm},
                 send, comm != NULL && comm->rank == root, recv, 1, stream);
}

static int
nccl_AllGather(const void *send, void *recv, size_t count, int type, openreg_nccl_comm comm, GPU(Stream_t) stream)
{
    return queue("ncclAllGather", (operation){ALL_GATHER, .count = count, .type = type, .comm = comm}, send, 1, recv,
                 comm != NULL ? (size_t)comm->size : 0, stream);
}

static int
nccl_ReduceScatter(const void *send, void *recv, size_t count, int type, int reduction, openreg_nccl_comm comm,
                   GPU(Stream_t) stream)
{
    return queue("ncclReduceScatter",
                 (operation){REDUCE_SCATTER, .count = count, .type = type, .reduction = reduction, .comm = comm}, send,
                 comm != NULL ? (size_t)comm->size : 0, recv, 1, stream);
}

static int
nccl_Send(const void *send, size_t count, int type, int peer, openreg_nccl_comm comm, GPU(Stream_t) stream)
{
    return queue("ncclSend", (operation){SEND, .count = count, .type = type, .peer = peer, .comm = comm}, send, 1, NULL,
                 0, stream);
}

static int
nccl_Recv(void *recv, size_t count, int type, int peer, openreg_nccl_comm comm, GPU(Stream_t) stream)
{
    return queue("ncclRecv", (operation){RECV, .count = count, .type = type, .peer = peer, .comm = comm}, NULL, 0, recv,
                 1, stream);
}

static int
nccl_GroupStart(void)
{
    const int code = (int)fake_begin("ncclGroupStart");
    if (code == SUCCESS)
        ++group_depth;
    return code;
}

/* One piece of work for each communicator and stream of the group. */
static int
nccl_GroupEnd(void)
{
    operation batched[MAX_GROUP];
    if (group_depth == 0)
        return fail(INVALID_USAGE, "no group");
    if (--group_depth > 0)
        return SUCCESS;
    const int code = (int)fake_begin("ncclGroupEnd");
    for (size_t i = 0; i < group_count; ++i) {
        size_t count = 0;
        if (group[i].comm == NULL)
            continue;
        const operation first = group[i];
        for (size_t k = i; k < group_count; ++k)
            if (group[k].comm == first.comm && group[k].stream == first.stream) {
                batched[count++] = group[k];
                group[k].comm = NULL;
            }
        for (size_t k = 0; k < count && code != SUCCESS; ++k)
            drop_operation(&batched[k]);
        if (code == SUCCESS)
            submit(batched, count);
    }
    group_count = 0;
    return code;
}

static const struct {
    const char *name;
    void (*function)(void);
} entries[] = {
#define ENTRY(name, result, parameters) {"nccl" #name, (void (*)(void))nccl_##name},
    OPENREG_GPU_NCCL_FUNCTIONS(ENTRY)
#undef ENTRY
        {"ncclGetLastError", (void (*)(void))nccl_GetLastError},
};

/* The compiler compares prototypes here. */
static const openreg_nccl_functions checked = {
#define CHECKED(name, result, parameters) .name = nccl_##name,
    OPENREG_GPU_NCCL_FUNCTIONS(CHECKED)
#undef CHECKED
        .GetLastError = nccl_GetLastError,
};

void (*fake_nccl_entry(const char *name))(void)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; ++i)
        if (strcmp(entries[i].name, name) == 0 && checked.GetVersion != NULL)
            return entries[i].function;
    return NULL;
}
