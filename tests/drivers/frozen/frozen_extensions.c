/* SPDX-License-Identifier: BSD-3-Clause */
/* The extensions of the frozen driver, of the headers that it is compiled with: handles of 65 bytes, reservations of host
 * memory, one kernel, and communicators of one rank with ids of 256 bytes. */
#include "frozen_extensions.h"

#include <stdlib.h>
#include <string.h>

#include <openreg/comm.h>
#include <openreg/graph.h>
#include <openreg/ipc.h>
#include <openreg/kernels.h>
#include <openreg/schedule.h>
#include <openreg/vmm.h>

#define ID_SIZE 256u
#define KEY_SIZE 65u

struct openreg_driver_comm_s {
    int32_t dev;
};

static openreg_status
fixed_size(uint32_t *out, uint32_t size)
{
    *out = size;
    return OPENREG_OK;
}

static openreg_status
id_size(openreg_instance instance, uint32_t *out)
{
    (void)instance;
    return fixed_size(out, ID_SIZE);
}

static openreg_status
unique_id(openreg_instance instance, int32_t dev, void *id)
{
    (void)instance;
    (void)dev;
    memset(id, 'i', ID_SIZE);
    return OPENREG_OK;
}

static openreg_status
init(openreg_instance instance, int32_t dev, int32_t rank, int32_t size, const void *id, openreg_driver_comm *out)
{
    (void)instance;
    const unsigned char *const bytes = id;
    if (rank != 0 || size != 1 || bytes[0] != 'i' || bytes[ID_SIZE - 1] != 'i')
        return OPENREG_E_INVALID;
    openreg_driver_comm const comm = malloc(sizeof *comm);
    if (comm == NULL)
        return OPENREG_E_NOMEM;
    comm->dev = dev;
    *out = comm;
    return OPENREG_OK;
}

/* Of one rank: each collective is a copy. */
static openreg_status
queue(openreg_instance instance, openreg_driver_comm comm, openreg_driver_stream stream, const openreg_collective *list,
      uint32_t n)
{
    (void)comm;
    for (uint64_t i = 0; i < n; ++i) {
        const openreg_collective *const one = openreg_collective_at(list, i);
        const uint64_t size = openreg_collective_part(one->recv_counts, one->count, 0) * openreg_dtype_size(one->type);
        (void)frozen_copy(instance, 0, stream, one->recv, 0, one->send, 0, size);
    }
    return OPENREG_OK;
}

static openreg_status
no_error(openreg_instance instance, openreg_driver_comm comm)
{
    (void)instance;
    (void)comm;
    return OPENREG_OK;
}

static openreg_status
destroy(openreg_instance instance, openreg_driver_comm comm)
{
    (void)instance;
    free(comm);
    return OPENREG_OK;
}

static const openreg_comm comm = {
    .struct_size = sizeof comm,
    .version = OPENREG_COMM_VERSION,
    .id_size = id_size,
    .unique_id = unique_id,
    .init = init,
    .queue = queue,
    .get_error = no_error,
    .abort = no_error,
    .destroy = destroy,
};

static openreg_status
handle_size(openreg_instance instance, uint32_t *out)
{
    (void)instance;
    return fixed_size(out, KEY_SIZE);
}

static openreg_status
memory_export(openreg_instance instance, int32_t dev, void *ptr, const int32_t *processes, uint32_t count, void *handle)
{
    (void)instance;
    (void)dev;
    (void)ptr;
    if (count == 0) /* as a vendor that must know the processes */
        return OPENREG_E_UNSUPPORTED;
    memset(handle, 'k', KEY_SIZE);
    return processes[0] > 0 ? OPENREG_OK : OPENREG_E_INVALID;
}

static openreg_status
memory_open(openreg_instance instance, int32_t dev, const void *handle, void **out)
{
    (void)instance;
    (void)dev;
    (void)handle;
    (void)out;
    return OPENREG_E_UNSUPPORTED;
}

static openreg_status
memory_close(openreg_instance instance, int32_t dev, void *ptr)
{
    (void)instance;
    (void)dev;
    (void)ptr;
    return OPENREG_OK;
}

static const openreg_ipc ipc = {
    .struct_size = sizeof ipc,
    .version = OPENREG_IPC_VERSION,
    .handle_size = handle_size,
    .memory_export = memory_export,
    .memory_open = memory_open,
    .memory_close = memory_close,
};

static openreg_status
granularity(openreg_instance instance, int32_t dev, uint64_t *out)
{
    (void)instance;
    (void)dev;
    *out = UINT64_C(2) << 20;
    return OPENREG_OK;
}

static openreg_status
reserve(openreg_instance instance, int32_t dev, uint64_t size, void **out)
{
    (void)instance;
    (void)dev;
    (void)size;
    (void)out;
    return OPENREG_E_NOMEM;
}

static openreg_status
map(openreg_instance instance, int32_t dev, void *ptr, uint64_t offset, uint64_t size)
{
    (void)instance;
    (void)dev;
    (void)ptr;
    (void)offset;
    (void)size;
    return OPENREG_E_INVALID;
}

static const openreg_vmm vmm = {
    .struct_size = sizeof vmm,
    .version = OPENREG_VMM_VERSION,
    .granularity = granularity,
    .reserve = reserve,
    .map = map,
    .unmap = map,
    .release = memory_close,
};

static openreg_status
poison(openreg_instance instance, int32_t dev, openreg_driver_stream stream, void *ptr, uint64_t size)
{
    (void)instance;
    (void)dev;
    (void)ptr;
    (void)size;
    (void)stream;
    return OPENREG_OK;
}

static const openreg_schedule schedule = {
    .struct_size = sizeof schedule, .version = OPENREG_SCHEDULE_VERSION, .poison = poison};

/* One graph, of nothing; each function wants what the one before has given. */
static int32_t capture_status;
static char the_graph, the_exec;

static openreg_status
graph_begin(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t mode)
{
    (void)instance;
    (void)dev;
    (void)stream;
    capture_status = OPENREG_CAPTURE_ACTIVE;
    return mode == OPENREG_CAPTURE_RELAXED ? OPENREG_OK : OPENREG_E_INVALID;
}

static openreg_status
graph_end(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_graph *out)
{
    (void)instance;
    (void)dev;
    (void)stream;
    capture_status = OPENREG_CAPTURE_NONE;
    *out = (openreg_driver_graph)(void *)&the_graph;
    return OPENREG_OK;
}

static openreg_status
graph_status(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *out)
{
    (void)instance;
    (void)dev;
    (void)stream;
    *out = capture_status;
    return OPENREG_OK;
}

static openreg_status
graph_destroy(openreg_instance instance, openreg_driver_graph graph)
{
    (void)instance;
    return (void *)graph == &the_graph ? OPENREG_OK : OPENREG_E_INVALID;
}

static openreg_status
graph_instantiate(openreg_instance instance, openreg_driver_graph graph, uint32_t flags, openreg_driver_graph_exec *out)
{
    *out = (openreg_driver_graph_exec)(void *)&the_exec;
    return flags == 0 ? graph_destroy(instance, graph) : OPENREG_E_INVALID;
}

static openreg_status
exec_destroy(openreg_instance instance, openreg_driver_graph_exec exec)
{
    (void)instance;
    return (void *)exec == &the_exec ? OPENREG_OK : OPENREG_E_INVALID;
}

static openreg_status
graph_launch(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_graph_exec exec)
{
    (void)dev;
    (void)stream;
    return exec_destroy(instance, exec);
}

static openreg_status
graph_update(openreg_instance instance, openreg_driver_graph_exec exec, openreg_driver_graph graph, int32_t *fits)
{
    *fits = 1;
    return graph_destroy(instance, graph) == OPENREG_OK ? exec_destroy(instance, exec) : OPENREG_E_INVALID;
}

static const openreg_graph_table graphs = {
    .struct_size = sizeof graphs,
    .version = OPENREG_GRAPH_VERSION,
    .begin = graph_begin,
    .end = graph_end,
    .status = graph_status,
    .instantiate = graph_instantiate,
    .launch = graph_launch,
    .update = graph_update,
    .destroy_graph = graph_destroy,
    .destroy_exec = exec_destroy,
};

/* Says by its status what it has seen. */
static openreg_status
relu(openreg_instance instance, const openreg_kernel_call *call)
{
    (void)instance;
    const openreg_tensor *const input = openreg_tensor_argument(call, 0);
    const int is_whole = input != NULL && input->ndim == 1 && input->shape[0] == 5 && input->strides[0] == 1 &&
                         openreg_has_dtype(input, OPENREG_DTYPE_FLOAT, 32) && call->result_count == 1 &&
                         openreg_find_argument(call, "self") == call->arguments[0];
    return is_whole ? OPENREG_OK : OPENREG_E_INTERNAL;
}

static const openreg_kernel list[] = {{"aten::relu", relu, OPENREG_KERNEL_ELEMENTWISE, NULL}};
static const openreg_kernels kernels = {sizeof kernels, OPENREG_KERNELS_VERSION, sizeof list[0], 1, list};

const void *
frozen_extension(openreg_instance instance, const char *name, uint32_t version)
{
    (void)instance;
    static const struct {
        const char *name;
        uint32_t version;
        const void *table;
    } all[] = {{OPENREG_COMM_NAME, OPENREG_COMM_VERSION, &comm},
               {OPENREG_GRAPH_NAME, OPENREG_GRAPH_VERSION, &graphs},
               {OPENREG_IPC_NAME, OPENREG_IPC_VERSION, &ipc},
               {OPENREG_VMM_NAME, OPENREG_VMM_VERSION, &vmm},
               {OPENREG_SCHEDULE_NAME, OPENREG_SCHEDULE_VERSION, &schedule},
               {OPENREG_KERNELS_NAME, OPENREG_KERNELS_VERSION, &kernels}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        if (strcmp(name, all[i].name) == 0 && version <= all[i].version)
            return all[i].table;
    return NULL;
}
