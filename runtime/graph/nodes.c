/* SPDX-License-Identifier: BSD-3-Clause */
/* nodes.c: the nodes of a graph (nodes.h). */
#include "nodes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* A piece of memory for copied arguments. */
typedef struct openreg_node_memory {
    struct openreg_node_memory *next;
    max_align_t bytes[];
} openreg_node_memory;

bool
openreg_indices_add(openreg_indices *to, const openreg_indices *from)
{
    for (uint32_t i = 0; i < from->count; ++i) {
        uint32_t at = 0;
        while (at < to->count && to->items[at] != from->items[i])
            ++at;
        if (at < to->count)
            continue;
        if (to->count == to->room) {
            const uint32_t room = to->room == 0 ? 4 : 2 * to->room;
            uint32_t *const grown = realloc(to->items, room * sizeof *grown);
            if (grown == NULL)
                return false;
            to->items = grown;
            to->room = room;
        }
        to->items[to->count++] = from->items[i];
    }
    return true;
}

openreg_nodes *
openreg_nodes_create(int32_t device, openreg_stream stream)
{
    openreg_nodes *const nodes = calloc(1, sizeof *nodes);
    if (nodes != NULL) {
        nodes->device = device;
        nodes->stream = stream;
        atomic_init(&nodes->references, 1);
    }
    return nodes;
}

openreg_nodes *
openreg_nodes_share(openreg_nodes *nodes)
{
    (void)atomic_fetch_add_explicit(&nodes->references, 1, memory_order_relaxed);
    return nodes;
}

static void
free_memory_to(openreg_nodes *nodes, openreg_node_memory *end)
{
    while (nodes->memory != end) {
        openreg_node_memory *const next = nodes->memory->next;
        free(nodes->memory);
        nodes->memory = next;
    }
}

void
openreg_nodes_release(openreg_nodes *nodes)
{
    if (nodes == NULL || atomic_fetch_sub_explicit(&nodes->references, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < nodes->count; ++i)
        free(nodes->list[i].after.items);
    free(nodes->list);
    free_memory_to(nodes, NULL);
    free(nodes);
}

/* ---------------------------------------------------------------------------------------------------------- copies */

/* A copy of `size` bytes that lives as long as the nodes; NULL stays NULL. */
static bool
copy_bytes(openreg_nodes *nodes, const void *from, uint64_t size, void *out)
{
    void *copy = NULL;
    if (from != NULL) {
        openreg_node_memory *const piece = malloc(sizeof *piece + (size_t)size);
        if (piece == NULL)
            return false;
        piece->next = nodes->memory;
        nodes->memory = piece;
        copy = piece->bytes;
        memcpy(copy, from, (size_t)size);
    }
    memcpy(out, &copy, sizeof copy);
    return true;
}

static bool
copy_text(openreg_nodes *nodes, const char *text, const char **out)
{
    return copy_bytes(nodes, text, text != NULL ? strlen(text) + 1 : 0, out);
}

static bool
copy_tensor(openreg_nodes *nodes, const openreg_tensor *from, const openreg_tensor **out)
{
    openreg_tensor *copy = NULL;
    if (!copy_bytes(nodes, from, sizeof *from, &copy))
        return false;
    *out = copy;
    return copy == NULL ||
           (copy_bytes(nodes, from->shape, (uint64_t)from->ndim * sizeof *from->shape, &copy->shape) &&
            copy_bytes(nodes, from->strides, (uint64_t)from->ndim * sizeof *from->strides, &copy->strides));
}

static bool
copy_tensors(openreg_nodes *nodes, const openreg_tensor *const *from, uint64_t count, const openreg_tensor *const **out)
{
    const openreg_tensor **copy = NULL;
    if (!copy_bytes(nodes, from, count * sizeof(const openreg_tensor *), &copy))
        return false;
    for (uint64_t i = 0; copy != NULL && i < count; ++i)
        if (!copy_tensor(nodes, from[i], &copy[i]))
            return false;
    *out = copy;
    return true;
}

static bool
copy_values(openreg_nodes *nodes, const openreg_value *const *from, uint64_t count, const openreg_value *const **out)
{
    const openreg_value **copy = NULL;
    if (!copy_bytes(nodes, from, count * sizeof(const openreg_value *), &copy))
        return false;
    *out = copy;
    for (uint64_t i = 0; copy != NULL && i < count; ++i) {
        openreg_value *v = NULL;
        if (!copy_bytes(nodes, from[i], sizeof *v, &v))
            return false;
        copy[i] = v;
        const uint64_t many = v->count;
        if (!copy_tensor(nodes, v->tensor, &v->tensor) || !copy_tensors(nodes, v->tensors, many, &v->tensors) ||
            !copy_bytes(nodes, v->integers, many * sizeof *v->integers, &v->integers) ||
            !copy_bytes(nodes, v->reals, many * sizeof *v->reals, &v->reals) ||
            !copy_bytes(nodes, v->text, many + 1, &v->text))
            return false;
    }
    return true;
}

static bool
copy_kernel_call(openreg_nodes *nodes, const openreg_kernel_call **call)
{
    openreg_kernel_call *copy = NULL;
    const char **names = NULL;
    if (!copy_bytes(nodes, *call, (*call)->struct_size, &copy))
        return false;
    *call = copy;
    if (!copy_text(nodes, copy->name, &copy->name) ||
        !copy_values(nodes, copy->arguments, copy->argument_count, &copy->arguments) ||
        !copy_values(nodes, copy->results, copy->result_count, &copy->results) ||
        !copy_bytes(nodes, copy->argument_names, copy->argument_count * sizeof *names, &names))
        return false;
    for (uint64_t i = 0; names != NULL && i < copy->argument_count; ++i)
        if (!copy_text(nodes, names[i], &names[i]))
            return false;
    copy->argument_names = names;
    return true;
}

static bool
copy_collectives(openreg_nodes *nodes, openreg_captured_call *call)
{
    const uint64_t distance = call->list->struct_size;
    char *copy = NULL;
    if (!copy_bytes(nodes, call->list, call->count * distance, &copy))
        return false;
    call->list = (const openreg_collective *)(const void *)copy;
    for (uint64_t i = 0; i < call->count; ++i) {
        openreg_collective *const each = (openreg_collective *)(void *)(copy + i * distance);
        const uint64_t size = call->size * sizeof(uint64_t);
        if (!copy_bytes(nodes, each->send_counts, size, &each->send_counts) ||
            !copy_bytes(nodes, each->recv_counts, size, &each->recv_counts))
            return false;
    }
    return true;
}

bool
openreg_nodes_add(openreg_nodes *nodes, const openreg_captured_call *call, openreg_indices *tail)
{
    if (nodes->count == nodes->room) {
        const uint32_t room = nodes->room == 0 ? 16 : 2 * nodes->room;
        openreg_node *const grown = realloc(nodes->list, room * sizeof *grown);
        if (grown == NULL)
            return false;
        nodes->list = grown;
        nodes->room = room;
    }
    openreg_node_memory *const before = nodes->memory;
    openreg_node node = {.call = *call};
    const openreg_indices itself = {&nodes->count, 1, 1};
    openreg_indices next = {NULL, 0, 0};
    bool is_copied = openreg_indices_add(&node.after, tail) && openreg_indices_add(&next, &itself) &&
                     copy_text(nodes, call->call, &node.call.call);
    if (is_copied && call->kind == OPENREG_CAPTURED_KERNEL)
        is_copied = copy_kernel_call(nodes, &node.call.kernel_call);
    if (is_copied && call->kind == OPENREG_CAPTURED_COLLECTIVES)
        is_copied = copy_collectives(nodes, &node.call);
    if (!is_copied) {
        free(node.after.items);
        free(next.items);
        free_memory_to(nodes, before);
        return false;
    }
    nodes->list[nodes->count++] = node;
    free(tail->items);
    *tail = next;
    return true;
}

/* --------------------------------------------------------------------------------------------------------- use */

bool
openreg_nodes_match(const openreg_nodes *a, const openreg_nodes *b)
{
    if (a->count != b->count || a->device != b->device)
        return false;
    for (uint32_t i = 0; i < a->count; ++i) {
        const openreg_node *const x = &a->list[i], *const y = &b->list[i];
        if (x->call.kind != y->call.kind || x->call.device != y->call.device || x->call.kernel != y->call.kernel ||
            x->call.dst_device != y->call.dst_device || x->call.src_device != y->call.src_device ||
            x->call.communicator != y->call.communicator || x->after.count != y->after.count)
            return false;
        if (x->after.count > 0 && memcmp(x->after.items, y->after.items, x->after.count * sizeof *x->after.items) != 0)
            return false;
    }
    return true;
}

static openreg_status
run_kernel(const openreg_captured_call *c, openreg_stream stream)
{
    /* The runtime writes its own fields of the call. */
    openreg_kernel_call *const own = malloc(c->kernel_call->struct_size);
    if (own == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, "openreg_graph_launch", "no host memory for a kernel's call");
    memcpy(own, c->kernel_call, c->kernel_call->struct_size);
    openreg_status status = openreg_kernel_run(c->kernel, c->device, stream, own);
    free(own);
    if (status == OPENREG_E_UNSUPPORTED)
        status = openreg_error_set(status, "openreg_graph_launch", "the driver's kernel %s refuses these arguments",
                                   c->call);
    return status;
}

openreg_status
openreg_node_run(const openreg_node *node, openreg_stream stream)
{
    const openreg_captured_call *const c = &node->call;
    switch (c->kind) {
    case OPENREG_CAPTURED_COPY:
        return openreg_memcpy_async(c->device, stream, c->dst, c->dst_device, c->src, c->src_device, (size_t)c->size);
    case OPENREG_CAPTURED_FILL:
        return openreg_memset_async(c->device, stream, c->dst, c->value, (size_t)c->size);
    case OPENREG_CAPTURED_FUNCTION:
        return openreg_stream_launch_host_func(c->device, stream, c->function, c->argument);
    case OPENREG_CAPTURED_KERNEL:
        return run_kernel(c, stream);
    default:
        return openreg_communicator_queue(c->communicator, stream, c->list, c->count);
    }
}

bool
openreg_nodes_dump(const openreg_nodes *nodes, const char *path)
{
    FILE *const file = fopen(path, "w");
    if (file == NULL)
        return false;
    (void)fprintf(file, "digraph openreg {\n");
    for (uint32_t i = 0; i < nodes->count; ++i) {
        const openreg_node *const node = &nodes->list[i];
        (void)fprintf(file, "  n%" PRIu32 " [label=\"%s\\ndevice %d", i, node->call.call, node->call.device);
        if (node->call.kind <= OPENREG_CAPTURED_FILL)
            (void)fprintf(file, ", %" PRIu64 " bytes", node->call.size);
        (void)fprintf(file, "\"];\n");
        for (uint32_t k = 0; k < node->after.count; ++k)
            (void)fprintf(file, "  n%" PRIu32 " -> n%" PRIu32 ";\n", node->after.items[k], i);
    }
    (void)fprintf(file, "}\n");
    const bool is_written = ferror(file) == 0;
    return fclose(file) == 0 && is_written;
}
