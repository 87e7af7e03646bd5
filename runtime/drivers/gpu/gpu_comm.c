/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_comm.c: the extension "openreg.comm" (openreg/comm.h) over NCCL, and over RCCL, which has the same functions. The
 * library is opened when the extension is asked for the first time; a machine without it has no extension. */
#include "gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <openreg/comm.h>

#include "gpu_nccl.h"
#include "gpu_system.h"

static_assert(sizeof(openreg_nccl_id) == OPENREG_COMM_ID_SIZE, "the library's ids have another size");
static_assert(OPENREG_COMM_FLOAT8_E5M2 + 1 == GPU_NCCL_TYPES && OPENREG_COMM_FLOAT8_E4M3 == GPU_NCCL_FLOAT8 &&
                  OPENREG_COMM_AVERAGE + 1 == GPU_NCCL_REDUCTIONS,
              "numbers are handed on as they are");

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
openreg_gpu_comm_create(const openreg_option *options, size_t n)
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

/* NULL: all are there; else the name of one that is not. */
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

static openreg_status
reject_type(openreg_instance instance, int32_t type, int32_t reduction)
{
    const bool is_float8 = type >= GPU_NCCL_FLOAT8;
    if (type < 0 || type >= GPU_NCCL_TYPES || (is_float8 && instance->comm->version < GPU_NCCL_WITH_FLOAT8))
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0, GPU_NCCL_TEXT " %d has no elements of type %d",
                            instance->comm->version, type);
    if (reduction < 0 || reduction >= GPU_NCCL_REDUCTIONS)
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0, GPU_NCCL_TEXT " %d has no reduction %d",
                            instance->comm->version, reduction);
    return OPENREG_OK;
}

/* ------------------------------------------------------------------------------------------------------- collectives */

/* Calls a function of the library in the communicator's device. */
#define QUEUE(function, type, reduction, ...)                                                                          \
    do {                                                                                                               \
        openreg_gpu_scope scope;                                                                                       \
        openreg_nccl_comm native = NULL;                                                                               \
        OPENREG_GPU_RETURN_NOT_OK(reject_type(instance, (type), (reduction)));                                         \
        OPENREG_GPU_RETURN_NOT_OK(enter(&scope, instance, comm, &native));                                             \
        const int code = instance->comm->functions.function(__VA_ARGS__);                                              \
        leave(&scope);                                                                                                 \
        return check(instance, comm, code, "nccl" #function);                                                          \
    } while (0)

static openreg_status
comm_all_reduce(openreg_instance instance, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                int32_t type, int32_t reduction, openreg_driver_stream stream)
{
    QUEUE(AllReduce, type, reduction, send, recv, (size_t)count, type, reduction, native, (GPU(Stream_t))stream);
}

static openreg_status
comm_reduce(openreg_instance instance, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
            int32_t type, int32_t reduction, int32_t root, openreg_driver_stream stream)
{
    QUEUE(Reduce, type, reduction, send, recv, (size_t)count, type, reduction, root, native, (GPU(Stream_t))stream);
}

static openreg_status
comm_broadcast(openreg_instance instance, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
               int32_t type, int32_t root, openreg_driver_stream stream)
{
    QUEUE(Broadcast, type, 0, send, recv, (size_t)count, type, root, native, (GPU(Stream_t))stream);
}

static openreg_status
comm_all_gather(openreg_instance instance, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                int32_t type, openreg_driver_stream stream)
{
    QUEUE(AllGather, type, 0, send, recv, (size_t)count, type, native, (GPU(Stream_t))stream);
}

static openreg_status
comm_reduce_scatter(openreg_instance instance, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                    int32_t type, int32_t reduction, openreg_driver_stream stream)
{
    QUEUE(ReduceScatter, type, reduction, send, recv, (size_t)count, type, reduction, native, (GPU(Stream_t))stream);
}

static openreg_status
comm_send(openreg_instance instance, openreg_driver_comm comm, const void *send, uint64_t count, int32_t type,
          int32_t peer, openreg_driver_stream stream)
{
    QUEUE(Send, type, 0, send, (size_t)count, type, peer, native, (GPU(Stream_t))stream);
}

static openreg_status
comm_recv(openreg_instance instance, openreg_driver_comm comm, void *recv, uint64_t count, int32_t type, int32_t peer,
          openreg_driver_stream stream)
{
    QUEUE(Recv, type, 0, recv, (size_t)count, type, peer, native, (GPU(Stream_t))stream);
}

/* As messages: only NCCL 2.28 and RCCL have a function for it. */
static openreg_status
comm_all_to_all(openreg_instance instance, openreg_driver_comm comm, const void *send, void *recv, uint64_t count,
                int32_t type, openreg_driver_stream stream)
{
    static const unsigned char sizes[GPU_NCCL_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    const openreg_nccl_functions *const nccl = &instance->comm->functions;
    openreg_gpu_scope scope;
    openreg_nccl_comm native = NULL;
    OPENREG_GPU_RETURN_NOT_OK(reject_type(instance, type, 0));
    OPENREG_GPU_RETURN_NOT_OK(enter(&scope, instance, comm, &native));
    const size_t part = (size_t)count * sizes[type];
    int code = nccl->GroupStart();
    const char *function = "ncclGroupStart";
    if (code == GPU_NCCL_SUCCESS) {
        for (int32_t rank = 0; rank < comm->size && code == GPU_NCCL_SUCCESS; ++rank) {
            const size_t offset = (size_t)rank * part;
            function = "ncclSend";
            code = nccl->Send((const char *)send + offset, (size_t)count, type, rank, native, (GPU(Stream_t))stream);
            if (code != GPU_NCCL_SUCCESS)
                break;
            function = "ncclRecv";
            code = nccl->Recv((char *)recv + offset, (size_t)count, type, rank, native, (GPU(Stream_t))stream);
        }
        const int ended = nccl->GroupEnd();
        if (code == GPU_NCCL_SUCCESS) {
            code = ended;
            function = "ncclGroupEnd";
        }
    }
    leave(&scope);
    return check(instance, comm, code, function);
}

static openreg_status
comm_group_start(openreg_instance instance)
{
    return check(instance, NULL, instance->comm->functions.GroupStart(), "ncclGroupStart");
}

/* The library switches to the device of each communicator itself, and back. */
static openreg_status
comm_group_end(openreg_instance instance)
{
    return check(instance, NULL, instance->comm->functions.GroupEnd(), "ncclGroupEnd");
}

/* ------------------------------------------------------------------------------------------------------ communicators */

static openreg_status
comm_unique_id(openreg_instance instance, openreg_comm_id *out)
{
    openreg_nccl_id id;
    OPENREG_GPU_RETURN_NOT_OK(check(instance, NULL, instance->comm->functions.GetUniqueId(&id), "ncclGetUniqueId"));
    memcpy(out, &id, sizeof *out);
    return OPENREG_OK;
}

static openreg_status
comm_init(openreg_instance instance, int32_t dev, int32_t rank, int32_t size, const openreg_comm_id *id,
          openreg_driver_comm *out)
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
        const int code = instance->comm->functions.CommInitRank(&native, size, native_id, rank);
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

/* On a device that is lost the library is told without the device being the thread's: it ends its threads and connections. */
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
        .unique_id = comm_unique_id,
        .init = comm_init,
        .all_reduce = comm_all_reduce,
        .reduce = comm_reduce,
        .broadcast = comm_broadcast,
        .all_gather = comm_all_gather,
        .reduce_scatter = comm_reduce_scatter,
        .all_to_all = comm_all_to_all,
        .send = comm_send,
        .recv = comm_recv,
        .group_start = comm_group_start,
        .group_end = comm_group_end,
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
