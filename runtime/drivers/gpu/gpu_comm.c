/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_comm.c: the extension "openreg.comm" (openreg/comm.h) over NCCL, and over RCCL, which has the same functions. The
 * library is opened at the first query of the extension; a machine without the library has no extension. */
#define _GNU_SOURCE
#include "gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <openreg/comm.h>

#include "gpu_nccl.h"
#include "gpu_signals.h"
#include "gpu_system.h"

static_assert(OPENREG_COMM_AVERAGE + 1 == GPU_NCCL_REDUCTIONS, "numbers are handed on as they are");

/* By the library's numbers. */
static const openreg_dtype types[GPU_NCCL_TYPES] = {
    {OPENREG_DTYPE_INT, 8, 1},     {OPENREG_DTYPE_UINT, 8, 1},          {OPENREG_DTYPE_INT, 32, 1},
    {OPENREG_DTYPE_UINT, 32, 1},   {OPENREG_DTYPE_INT, 64, 1},          {OPENREG_DTYPE_UINT, 64, 1},
    {OPENREG_DTYPE_FLOAT, 16, 1},  {OPENREG_DTYPE_FLOAT, 32, 1},        {OPENREG_DTYPE_FLOAT, 64, 1},
    {OPENREG_DTYPE_BFLOAT, 16, 1}, {OPENREG_DTYPE_FLOAT8_E4M3FN, 8, 1}, {OPENREG_DTYPE_FLOAT8_E5M2, 8, 1},
};

enum { UNKNOWN, ABSENT, PRESENT };

struct openreg_gpu_comm {
    pthread_mutex_t lock; /* held while the library is looked for */
    atomic_int state;
    int version;
    openreg_nccl_functions functions; /* PRESENT: all there */
    char library[512];                /* the option "comm_library", or empty */
};

struct openreg_driver_comm_s {
    int32_t device;
    int32_t size;
    _Atomic(openreg_nccl_comm) native; /* NULL once aborted */
};

/* ------------------------------------------------------------------------------------------------------- the library */

struct openreg_gpu_comm *
openreg_gpu_comm_create(const openreg_option *options, uint32_t n)
{
    struct openreg_gpu_comm *const comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return NULL;
    (void)pthread_mutex_init(&comm->lock, NULL);
    for (size_t i = 0; i < n; ++i)
        if (strcmp(options[i].key, "comm_library") == 0)
            (void)snprintf(comm->library, sizeof comm->library, "%s", options[i].value);
    return comm;
}

void
openreg_gpu_comm_destroy(struct openreg_gpu_comm *comm)
{
    if (comm != NULL)
        (void)pthread_mutex_destroy(&comm->lock);
    free(comm);
}

static void
log_absence(openreg_instance instance, int32_t level, const char *reason)
{
    char text[640];
    (void)snprintf(text, sizeof text,
                   "collectives without " GPU_NCCL_TEXT
                   ", staged through host memory: %s (the option comm_library names "
                   "the library)",
                   reason);
    instance->host->log(instance->host->ctx, level, text);
}

/* NULL if the library has all functions, else the name of one that it lacks. */
static const char *
find_functions(void *library, openreg_nccl_functions *out)
{
    static const struct {
        const char *name;
        size_t offset;
    } wanted[] = {
#define WANTED(name, result, parameters) {"nccl" #name, offsetof(openreg_nccl_functions, name)},
        OPENREG_GPU_NCCL_FUNCTIONS(WANTED)
#undef WANTED
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; ++i)
        if (!openreg_gpu_system_find(library, wanted[i].name, (char *)out + wanted[i].offset))
            return wanted[i].name;
    (void)openreg_gpu_system_find(library, "ncclGetLastError", &out->GetLastError);
    return NULL;
}

/* With the lock held. */
static int
find_library(openreg_instance instance)
{
    struct openreg_gpu_comm *const comm = instance->comm;
    const char *const soname = comm->library[0] != '\0' ? comm->library : GPU_NCCL_LIBRARY;
    char reason[320];
    if (strcmp(comm->library, "0") == 0)
        return ABSENT;
    void *const library = openreg_gpu_system_open(soname, reason, sizeof reason);
    if (library == NULL) { /* usual, unless somebody has named it */
        log_absence(instance, comm->library[0] != '\0' ? OPENREG_LOG_WARNING : OPENREG_LOG_INFO, reason);
        return ABSENT;
    }
    const char *const missing = find_functions(library, &comm->functions);
    const int code = missing == NULL ? comm->functions.GetVersion(&comm->version) : GPU_NCCL_SUCCESS;
    if (missing != NULL)
        (void)snprintf(reason, sizeof reason, "%.200s lacks the function %s", soname, missing);
    else if (code != GPU_NCCL_SUCCESS || comm->version < GPU_NCCL_OLDEST)
        (void)snprintf(reason, sizeof reason, "%.200s is version %d, and %d is the oldest that will do", soname,
                       comm->version, GPU_NCCL_OLDEST);
    else
        return PRESENT;
    log_absence(instance, OPENREG_LOG_WARNING, reason);
    return ABSENT;
}

/* ------------------------------------------------------------------------------------------------------------- errors */

static openreg_status
check(openreg_instance instance, openreg_driver_comm comm, int code, const char *function)
{
    const openreg_nccl_functions *const nccl = &instance->comm->functions;
    if (code == GPU_NCCL_SUCCESS)
        return OPENREG_OK;
    const char *const text = nccl->GetErrorString(code);
    openreg_nccl_comm const native = comm != NULL ? atomic_load(&comm->native) : NULL;
    const char *const last = nccl->GetLastError != NULL ? nccl->GetLastError(native) : NULL;
    const bool is_callers = code == GPU_NCCL_INVALID_ARGUMENT || code == GPU_NCCL_INVALID_USAGE;
    const openreg_status status = is_callers                      ? OPENREG_E_INVALID
                                  : code == GPU_NCCL_REMOTE_ERROR ? OPENREG_E_PEER
                                                                  : OPENREG_E_INTERNAL;
    const char *const advice = status == OPENREG_E_PEER ? "; a peer has ended, or its connection"
                                                        : "; NCCL_DEBUG=WARN shows more";
    char where[32] = "";
    if (comm != NULL)
        (void)snprintf(where, sizeof where, " on device %d", comm->device);
    return openreg_fail(instance->host, status, code, "%s: %s%s%.200s%s%s%s", function,
                        text != NULL ? text : "an unknown error", last != NULL && last[0] != '\0' ? " (" : "",
                        last != NULL ? last : "", last != NULL && last[0] != '\0' ? ")" : "", where, advice);
}

/* Takes back what RCCL leaves as HIP's last error of this thread; NCCL has a CUDA runtime of its own. */
static void
leave(const openreg_gpu_scope *scope)
{
    const openreg_gpu_code left = GPU_CALL(PeekAtLastError)();
    if (left != scope->pending)
        openreg_gpu_forget(scope, left);
    openreg_gpu_leave(scope);
}

/* The communicator's device is the thread's, and *native what the library knows it by. On failure nothing is to be left. */
static openreg_status
enter(openreg_gpu_scope *scope, openreg_instance instance, openreg_driver_comm comm, openreg_nccl_comm *native)
{
    *native = atomic_load(&comm->native);
    if (*native == NULL)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "the communicator of device %d has been aborted",
                            comm->device);
    return openreg_gpu_enter(scope, instance, comm->device);
}

/* The library's number of the type. */
static openreg_status
find_type(openreg_instance instance, const openreg_collective *what, int *out)
{
    const int version = instance->comm->version;
    const int known = version < GPU_NCCL_WITH_FLOAT8 ? GPU_NCCL_FLOAT8 : GPU_NCCL_TYPES;
    int type = 0;
    while (type < known && memcmp(&types[type], &what->type, sizeof types[type]) != 0)
        ++type;
    if (type == known)
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0,
                            GPU_NCCL_TEXT " %d has no elements of DLPack's code %d with %d bits", version,
                            what->type.code, what->type.bits);
    if (what->reduction < 0 || what->reduction >= GPU_NCCL_REDUCTIONS)
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0, GPU_NCCL_TEXT " %d has no reduction %d", version,
                            what->reduction);
    *out = type;
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------------------- collectives */

/* One collective on its way to the library. */
typedef struct call {
    const openreg_nccl_functions *nccl;
    const openreg_collective *what;
    openreg_nccl_comm native;
    int32_t size;
    int type;
    GPU(Stream_t) stream;
    const char *function; /* that was called last */
} call;

#define LIBRARY(c, name, ...) ((c)->function = "nccl" #name, (c)->nccl->name(__VA_ARGS__))

/* As broadcasts: the library's AllGather() has parts of one size. In a group. */
static int
gather_parts(call *c)
{
    const openreg_collective *const what = c->what;
    int code = GPU_NCCL_SUCCESS;
    for (int32_t rank = 0; rank < c->size && code == GPU_NCCL_SUCCESS; ++rank) {
        char *const part = (char *)what->recv +
                           openreg_collective_offset(what->recv_counts, 0, rank) * openreg_dtype_size(what->type);
        if (what->recv_counts[rank] > 0)
            code = LIBRARY(c, Broadcast, what->send, part, (size_t)what->recv_counts[rank], c->type, rank, c->native,
                           c->stream);
    }
    return code;
}

/* As messages: only NCCL 2.28 and RCCL have a function for it, for parts of one size. In a group. */
static int
exchange_parts(call *c)
{
    const openreg_collective *const w = c->what;
    const uint64_t bytes = openreg_dtype_size(w->type);
    int code = GPU_NCCL_SUCCESS;
    for (int32_t rank = 0; rank < c->size && code == GPU_NCCL_SUCCESS; ++rank) {
        const char *const from = (const char *)w->send +
                                 openreg_collective_offset(w->send_counts, w->count, rank) * bytes;
        char *const to = (char *)w->recv + openreg_collective_offset(w->recv_counts, w->count, rank) * bytes;
        const size_t sent = (size_t)openreg_collective_part(w->send_counts, w->count, rank),
                     received = (size_t)openreg_collective_part(w->recv_counts, w->count, rank);
        if (sent > 0)
            code = LIBRARY(c, Send, from, sent, c->type, rank, c->native, c->stream);
        if (code == GPU_NCCL_SUCCESS && received > 0)
            code = LIBRARY(c, Recv, to, received, c->type, rank, c->native, c->stream);
    }
    return code;
}

static int
hand_on(call *c)
{
    const openreg_collective *const w = c->what;
    const size_t count = (size_t)w->count;
    switch (w->kind) {
    case OPENREG_COLLECTIVE_ALL_REDUCE:
        return LIBRARY(c, AllReduce, w->send, w->recv, count, c->type, w->reduction, c->native, c->stream);
    case OPENREG_COLLECTIVE_REDUCE:
        return LIBRARY(c, Reduce, w->send, w->recv, count, c->type, w->reduction, w->peer, c->native, c->stream);
    case OPENREG_COLLECTIVE_BROADCAST:
        return LIBRARY(c, Broadcast, w->send, w->recv, count, c->type, w->peer, c->native, c->stream);
    case OPENREG_COLLECTIVE_ALL_GATHER:
        return w->recv_counts != NULL ? gather_parts(c)
                                      : LIBRARY(c, AllGather, w->send, w->recv, count, c->type, c->native, c->stream);
    case OPENREG_COLLECTIVE_REDUCE_SCATTER:
        return LIBRARY(c, ReduceScatter, w->send, w->recv, count, c->type, w->reduction, c->native, c->stream);
    case OPENREG_COLLECTIVE_ALL_TO_ALL:
        return exchange_parts(c);
    case OPENREG_COLLECTIVE_SEND:
        return LIBRARY(c, Send, w->send, count, c->type, w->peer, c->native, c->stream);
    default:
        return LIBRARY(c, Recv, w->recv, count, c->type, w->peer, c->native, c->stream);
    }
}

static openreg_status
comm_queue(openreg_instance instance, openreg_driver_comm comm, openreg_driver_stream stream,
           const openreg_collective *list, uint32_t n)
{
    openreg_gpu_scope scope;
    call c = {.nccl = &instance->comm->functions, .size = comm->size, .stream = (GPU(Stream_t))stream};
    for (uint64_t i = 0; i < n; ++i)
        OPENREG_GPU_RETURN_NOT_OK(find_type(instance, openreg_collective_at(list, i), &c.type));
    OPENREG_GPU_RETURN_NOT_OK(enter(&scope, instance, comm, &c.native));
    const bool is_group = n > 1 || list->kind == OPENREG_COLLECTIVE_ALL_TO_ALL || list->recv_counts != NULL;
    int code = is_group ? (c.function = "ncclGroupStart", c.nccl->GroupStart()) : GPU_NCCL_SUCCESS;
    const bool has_group = is_group && code == GPU_NCCL_SUCCESS;
    for (uint64_t i = 0; i < n && code == GPU_NCCL_SUCCESS; ++i) {
        c.what = openreg_collective_at(list, i);
        (void)find_type(instance, c.what, &c.type);
        code = hand_on(&c);
    }
    if (has_group) {
        const char *const failed = c.function;
        const int ended = (c.function = "ncclGroupEnd", c.nccl->GroupEnd());
        c.function = code == GPU_NCCL_SUCCESS ? c.function : failed;
        code = code == GPU_NCCL_SUCCESS ? ended : code;
    }
    leave(&scope);
    return check(instance, comm, code, c.function);
}

/* ------------------------------------------------------------------------------------------------------ communicators */

static openreg_status
comm_id_size(openreg_instance instance, uint32_t *out)
{
    (void)instance;
    *out = sizeof(openreg_nccl_id);
    return OPENREG_OK;
}

static openreg_status
comm_unique_id(openreg_instance instance, int32_t dev, void *id)
{
    openreg_nccl_id native;
    (void)dev;
    sigset_t signals;
    openreg_gpu_block_signals(&signals);
    const int code = instance->comm->functions.GetUniqueId(&native);
    openreg_gpu_restore_signals(&signals);
    OPENREG_GPU_RETURN_NOT_OK(check(instance, NULL, code, "ncclGetUniqueId"));
    memcpy(id, &native, sizeof native);
    return OPENREG_OK;
}

static openreg_status
comm_init(openreg_instance instance, int32_t dev, int32_t rank, int32_t size, const void *id, openreg_driver_comm *out)
{
    openreg_gpu_scope scope;
    openreg_nccl_id native_id;
    openreg_nccl_comm native = NULL;
    openreg_driver_comm const comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for a communicator");
    openreg_status status = openreg_gpu_enter(&scope, instance, dev);
    if (status == OPENREG_OK) {
        memcpy(&native_id, id, sizeof native_id);
        comm->device = dev;
        comm->size = size;
        sigset_t signals;
        openreg_gpu_block_signals(&signals);
        const int code = instance->comm->functions.CommInitRank(&native, size, native_id, rank);
        openreg_gpu_restore_signals(&signals);
        leave(&scope);
        status = check(instance, comm, code, "ncclCommInitRank");
    }
    if (status != OPENREG_OK) {
        free(comm);
        return status;
    }
    atomic_store(&comm->native, native);
    *out = comm;
    return OPENREG_OK;
}

static openreg_status
comm_get_error(openreg_instance instance, openreg_driver_comm comm)
{
    int result = GPU_NCCL_SUCCESS;
    openreg_nccl_comm const native = atomic_load(&comm->native);
    if (native == NULL)
        return openreg_fail(instance->host, OPENREG_E_INVALID, 0, "the communicator of device %d has been aborted",
                            comm->device);
    const int code = instance->comm->functions.CommGetAsyncError(native, &result);
    OPENREG_GPU_RETURN_NOT_OK(check(instance, comm, code, "ncclCommGetAsyncError"));
    return result == GPU_NCCL_IN_PROGRESS ? OPENREG_OK : check(instance, comm, result, "work of " GPU_NCCL_TEXT);
}

/* On a lost device the library is called without making the device current: it ends its threads and connections. */
static openreg_status
end(openreg_instance instance, openreg_driver_comm comm, int (*function)(openreg_nccl_comm), const char *name)
{
    openreg_nccl_comm const native = atomic_exchange(&comm->native, NULL);
    if (native == NULL)
        return OPENREG_OK;
    openreg_gpu_scope scope;
    const bool is_lost = openreg_gpu_is_lost(instance, comm->device);
    if (!is_lost) {
        const openreg_status status = openreg_gpu_enter(&scope, instance, comm->device);
        if (status != OPENREG_OK) {
            atomic_store(&comm->native, native);
            return status;
        }
    }
    const int code = function(native);
    if (!is_lost)
        leave(&scope);
    if (code != GPU_NCCL_SUCCESS) { /* there is nothing left that a caller could do about it */
        char text[160];
        (void)snprintf(text, sizeof text, "%s: error %d on device %d", name, code, comm->device);
        instance->host->log(instance->host->ctx, OPENREG_LOG_WARNING, text);
    }
    return OPENREG_OK;
}

static openreg_status
comm_abort(openreg_instance instance, openreg_driver_comm comm)
{
    return end(instance, comm, instance->comm->functions.CommAbort, "ncclCommAbort");
}

static openreg_status
comm_destroy(openreg_instance instance, openreg_driver_comm comm)
{
    if (comm == NULL)
        return OPENREG_OK;
    /* CommDestroy() waits for the device's work, which a lost device never ends. */
    const bool is_lost = openreg_gpu_is_lost(instance, comm->device);
    OPENREG_GPU_RETURN_NOT_OK(is_lost ? comm_abort(instance, comm)
                                      : end(instance, comm, instance->comm->functions.CommDestroy, "ncclCommDestroy"));
    free(comm);
    return OPENREG_OK;
}

const openreg_comm *
openreg_gpu_comm_extension(openreg_instance instance)
{
    static const openreg_comm table = {
        .struct_size = sizeof(openreg_comm),
        .version = OPENREG_COMM_VERSION,
        .id_size = comm_id_size,
        .unique_id = comm_unique_id,
        .init = comm_init,
        .queue = comm_queue,
        .get_error = comm_get_error,
        .abort = comm_abort,
        .destroy = comm_destroy,
    };
    struct openreg_gpu_comm *const comm = instance->comm;
    int state = atomic_load_explicit(&comm->state, memory_order_acquire);
    if (state == UNKNOWN) {
        (void)pthread_mutex_lock(&comm->lock);
        state = atomic_load(&comm->state);
        if (state == UNKNOWN) {
            state = find_library(instance);
            atomic_store_explicit(&comm->state, state, memory_order_release);
        }
        (void)pthread_mutex_unlock(&comm->lock);
    }
    return state == PRESENT ? &table : NULL;
}
