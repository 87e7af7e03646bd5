/* SPDX-License-Identifier: BSD-3-Clause */
/* graphs.c: the functions of openreg/graphs.h, by the driver's own extension or by recorded nodes. */
#include <openreg/graphs.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/inside.h"
#include "base/lock.h"
#include "capture.h"
#include "device/lab_access.h"
#include "watch/lab.h"

struct openreg_graph_s {
    openreg_graph_site site; /* its table is NULL: recorded */
    openreg_driver_graph native;
    openreg_nodes *nodes;
};

/* A lane of a launch: the nodes of one stream of the capture, which run beside other lanes. */
typedef struct lane {
    int32_t device;
    openreg_stream captured;
    openreg_stream own;    /* the lane's stream for all launches; the first lane has none */
    openreg_stream stream; /* of the launch in progress */
    openreg_event event;   /* for waits of other lanes */
} lane;

struct openreg_graph_exec_s {
    openreg_graph_site site;
    openreg_driver_graph_exec native;
    openreg_lock lock; /* held during launches and updates, also while drivers are called */
    openreg_nodes *nodes;
    lane *lanes; /* the first is that of the stream on which the capture began: its work runs on the launch's stream */
    uint32_t lane_count;
    uint32_t *lane_of;    /* index, of each node */
    openreg_event *marks; /* an event behind each node that another lane waits for, else NULL */
    bool was_launched;
    openreg_stream last; /* of the latest launch that was not captured */
};

/* Graphs pin the device table. */
static void
count(const openreg_graph_site *site, int change)
{
    (void)atomic_fetch_add_explicit(&site->device->live_graphs, change, memory_order_relaxed);
}

/* -------------------------------------------------------------------------------------------------------- captures */

static openreg_status
check_mode(const char *call, int32_t mode)
{
    return mode >= OPENREG_CAPTURE_GLOBAL && mode <= OPENREG_CAPTURE_RELAXED
               ? OPENREG_OK
               : openreg_error_set(OPENREG_E_INVALID, call, "%d is no mode of capture", mode);
}

static openreg_status
begin(int32_t device, openreg_stream stream, int32_t mode)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_graph_begin";
    openreg_graph_site site;
    OPENREG_RETURN_NOT_OK(check_mode(call, mode));
    OPENREG_RETURN_NOT_OK(openreg_graph_reach(call, device, stream, &site));
    if (site.table != NULL) /* left to the driver until there is a graph */
        return OPENREG_PART_CALL(call, site.device, 0,
                                 site.table->begin(site.instance, site.ordinal, site.handle, mode));
    const openreg_status status = openreg_capture_begin(call, device, stream, mode);
    if (status == OPENREG_OK)
        count(&site, 1);
    return status;
}

static openreg_status
end(int32_t device, openreg_stream stream, openreg_graph *out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_graph_end";
    openreg_graph_site site;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    *out = NULL;
    OPENREG_RETURN_NOT_OK(openreg_graph_reach(call, device, stream, &site));
    openreg_graph const made = calloc(1, sizeof *made);
    if (made == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a graph");
    made->site = site;
    openreg_status status;
    bool ended = false;
    if (site.table == NULL) {
        status = openreg_capture_end(call, device, stream, &made->nodes, &ended);
    } else {
        status = OPENREG_PART_CALL(call, site.device, 0,
                                   site.table->end(site.instance, site.ordinal, site.handle, &made->native));
        if (status == OPENREG_OK && made->native == NULL)
            status = openreg_error_set(OPENREG_E_INTERNAL, call, "driver \"%s\": end returned OK without a graph",
                                       site.device->driver->name);
    }
    if (ended)
        count(&site, -1);
    if (status != OPENREG_OK) {
        free(made);
        return status;
    }
    count(&site, 1);
    *out = made;
    return OPENREG_OK;
}

static openreg_status
status_of(int32_t device, openreg_stream stream, int32_t *out)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_graph_status";
    openreg_graph_site site;
    if (out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "out is NULL");
    OPENREG_RETURN_NOT_OK(openreg_graph_reach(call, device, stream, &site));
    if (site.table != NULL)
        return OPENREG_PART_CALL(call, site.device, 0,
                                 site.table->status(site.instance, site.ordinal, site.handle, out));
    *out = openreg_capture_status(device, stream);
    return OPENREG_OK;
}

static openreg_status
exchange_mode(int32_t device, int32_t *mode)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_graph_exchange_mode";
    openreg_graph_site site;
    if (mode == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "mode is NULL");
    OPENREG_RETURN_NOT_OK(check_mode(call, *mode));
    OPENREG_RETURN_NOT_OK(openreg_graph_reach(call, device, OPENREG_STREAM_DEFAULT, &site));
    if (site.table != NULL && site.table->exchange_mode != NULL)
        return OPENREG_PART_CALL(call, site.device, 0, site.table->exchange_mode(site.instance, mode));
    *mode = openreg_capture_exchange_mode(*mode);
    return OPENREG_OK;
}

static openreg_status
hold(int32_t device, openreg_stream stream, openreg_hold_fn judge)
{
    return openreg_capture_hold("openreg_graph_hold", device, stream, judge);
}

/* ---------------------------------------------------------------------------------------------------------- launches */

static void
free_exec(openreg_graph_exec exec)
{
    const openreg_error_fields before = openreg_error_save();
    for (uint32_t i = 0; i < exec->lane_count; ++i)
        (void)openreg_event_destroy(exec->lanes[i].event);
    for (uint32_t i = 0; exec->marks != NULL && i < exec->nodes->count; ++i)
        (void)openreg_event_destroy(exec->marks[i]);
    openreg_error_restore(&before);
    free(exec->lanes);
    free(exec->lane_of);
    free(exec->marks);
    openreg_nodes_release(exec->nodes);
    openreg_lock_destroy(&exec->lock);
    free(exec);
}

/* *out: the index of the lane of a stream of the capture, which is made if needed. */
static openreg_status
find_lane(const char *call, openreg_graph_exec exec, int32_t device, openreg_stream captured, uint32_t *out)
{
    for (*out = 0; *out < exec->lane_count; ++*out)
        if (exec->lanes[*out].device == device && exec->lanes[*out].captured == captured)
            return OPENREG_OK;
    lane *const grown = realloc(exec->lanes, (exec->lane_count + 1) * sizeof *grown);
    if (grown == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a graph");
    exec->lanes = grown;
    lane made = {.device = device, .captured = captured};
    OPENREG_RETURN_NOT_OK(openreg_event_create(device, 0, &made.event));
    exec->lanes[exec->lane_count++] = made;
    if (exec->lane_count == 1)
        return OPENREG_OK;
    openreg_device_properties properties = {.struct_size = sizeof properties};
    OPENREG_RETURN_NOT_OK(openreg_device_get_properties(device, &properties));
    return openreg_stream_from_pool(device, properties.priority_low, &exec->lanes[exec->lane_count - 1].own);
}

/* Sets the lane of a node, and makes events behind its predecessors on other lanes. */
static openreg_status
place_node(const char *call, openreg_graph_exec exec, uint32_t i)
{
    const openreg_node *const node = &exec->nodes->list[i];
    OPENREG_RETURN_NOT_OK(find_lane(call, exec, node->call.device, node->call.stream, &exec->lane_of[i]));
    for (uint32_t k = 0; k < node->after.count; ++k) {
        const uint32_t before = node->after.items[k];
        if (exec->lane_of[before] != exec->lane_of[i] && exec->marks[before] == NULL)
            OPENREG_RETURN_NOT_OK(openreg_event_create(exec->nodes->list[before].call.device, 0, &exec->marks[before]));
    }
    return OPENREG_OK;
}

static openreg_status
place_nodes(const char *call, openreg_graph_exec exec)
{
    const openreg_nodes *const nodes = exec->nodes;
    uint32_t first = 0;
    exec->lane_of = calloc((size_t)nodes->count + 1, sizeof *exec->lane_of);
    exec->marks = calloc((size_t)nodes->count + 1, sizeof(openreg_event));
    if (exec->lane_of == NULL || exec->marks == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a graph");
    openreg_status status = find_lane(call, exec, nodes->device, nodes->stream, &first);
    for (uint32_t i = 0; i < nodes->count && status == OPENREG_OK; ++i)
        status = place_node(call, exec, i);
    return status;
}

static openreg_status
instantiate(openreg_graph graph, openreg_graph_exec *out)
{
    static const char call[] = "openreg_graph_instantiate";
    if (graph == NULL || out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "graph or out is NULL");
    *out = NULL;
    openreg_graph_exec const exec = calloc(1, sizeof *exec);
    if (exec == NULL)
        return openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a graph");
    exec->site = graph->site;
    openreg_lock_init(&exec->lock);
    openreg_status status = OPENREG_OK;
    if (graph->nodes != NULL) {
        exec->nodes = openreg_nodes_share(graph->nodes);
        status = place_nodes(call, exec);
    } else {
        status = OPENREG_PART_CALL(call, exec->site.device, 0,
                                   exec->site.table->instantiate(exec->site.instance, graph->native, 0, &exec->native));
        if (status == OPENREG_OK && exec->native == NULL)
            status = openreg_error_set(OPENREG_E_INTERNAL, call,
                                       "driver \"%s\": instantiate returned OK without a graph",
                                       exec->site.device->driver->name);
    }
    if (status != OPENREG_OK) {
        free_exec(exec);
        return status;
    }
    count(&exec->site, 1);
    *out = exec;
    return OPENREG_OK;
}

static openreg_status
hand_over(const lane *from, const lane *to)
{
    if (from->device == to->device && from->stream == to->stream)
        return OPENREG_OK;
    OPENREG_RETURN_NOT_OK(openreg_event_record(from->event, from->device, from->stream));
    return openreg_stream_wait_event(to->device, to->stream, from->event);
}

/* Queues a node on its lane, behind its predecessors on other lanes. */
static openreg_status
run_node(const struct openreg_graph_exec_s *exec, uint32_t i)
{
    const openreg_node *const node = &exec->nodes->list[i];
    const lane *const on = &exec->lanes[exec->lane_of[i]];
    for (uint32_t k = 0; k < node->after.count; ++k) {
        const uint32_t before = node->after.items[k];
        if (exec->lane_of[before] != exec->lane_of[i])
            OPENREG_RETURN_NOT_OK(openreg_stream_wait_event(on->device, on->stream, exec->marks[before]));
    }
    OPENREG_RETURN_NOT_OK(openreg_node_run(node, on->stream));
    return exec->marks[i] != NULL ? openreg_event_record(exec->marks[i], on->device, on->stream) : OPENREG_OK;
}

/* Queues all nodes in the order of the capture, each on its lane; the first lane waits for all others at the end, even
 * if a call has failed. */
static openreg_status
queue_nodes(const struct openreg_graph_exec_s *exec)
{
    const lane *const first = &exec->lanes[0];
    openreg_status status = OPENREG_OK;
    uint32_t begun = 1;
    for (; begun < exec->lane_count && status == OPENREG_OK; ++begun)
        status = hand_over(first, &exec->lanes[begun]);
    for (uint32_t i = 0; i < exec->nodes->count && status == OPENREG_OK; ++i)
        status = run_node(exec, i);
    const openreg_error_fields failure = openreg_error_save();
    for (uint32_t i = 1; i < begun; ++i) {
        const openreg_status joined = hand_over(&exec->lanes[i], first);
        if (status == OPENREG_OK)
            status = joined;
        else
            openreg_error_restore(&failure);
    }
    return status;
}

/* The lock is held. If the stream is captured, the nodes are added to that capture, and all lanes of its device are one. */
static openreg_status
replay(openreg_graph_exec exec, openreg_stream stream)
{
    const bool is_captured = openreg_capture_status(exec->lanes[0].device, stream) != OPENREG_CAPTURE_NONE;
    for (uint32_t i = 0; i < exec->lane_count; ++i) {
        const bool is_launchs = i == 0 || (is_captured && exec->lanes[i].device == exec->lanes[0].device);
        exec->lanes[i].stream = is_launchs ? stream : exec->lanes[i].own;
    }
    if (is_captured)
        return queue_nodes(exec);
    /* Streams of the pool may be captured at this time: work queued here is not part of such a capture. */
    (void)openreg_capture_pass(1);
    openreg_status status = OPENREG_OK;
    if (exec->was_launched && exec->last != stream) { /* launches run one after the other */
        lane before = exec->lanes[0];
        before.stream = exec->last;
        status = hand_over(&before, &exec->lanes[0]);
    }
    if (status == OPENREG_OK) {
        exec->last = stream;
        exec->was_launched = true;
        status = queue_nodes(exec);
    }
    (void)openreg_capture_pass(-1);
    return status;
}

static openreg_status
launch(openreg_graph_exec exec, openreg_stream stream)
{
    OPENREG_INSIDE;
    static const char call[] = "openreg_graph_launch";
    openreg_graph_site site;
    if (exec == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "exec is NULL");
    OPENREG_RETURN_NOT_OK(openreg_graph_reach(call, exec->site.device->index, stream, &site));
    if (exec->nodes == NULL)
        return OPENREG_PART_CALL(call, site.device, 0,
                                 site.table->launch(site.instance, site.ordinal, site.handle, exec->native));
    openreg_lock_acquire(&exec->lock);
    const openreg_status status = replay(exec, stream);
    openreg_lock_release(&exec->lock);
    return status;
}

static openreg_status
update(openreg_graph_exec exec, openreg_graph graph, int32_t *fits)
{
    static const char call[] = "openreg_graph_update";
    if (exec == NULL || graph == NULL || fits == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "exec, graph or fits is NULL");
    if ((exec->nodes == NULL) != (graph->nodes == NULL) || exec->site.device != graph->site.device) {
        *fits = 0;
        return OPENREG_OK;
    }
    if (exec->nodes == NULL) {
        if (exec->site.table->update == NULL)
            return openreg_error_set(OPENREG_E_UNSUPPORTED, call, "driver '%s' can't update a graph",
                                     exec->site.device->driver->name);
        return OPENREG_PART_CALL(call, exec->site.device, 0,
                                 exec->site.table->update(exec->site.instance, exec->native, graph->native, fits));
    }
    openreg_lock_acquire(&exec->lock);
    *fits = openreg_nodes_match(exec->nodes, graph->nodes);
    if (*fits) {
        openreg_nodes_release(exec->nodes);
        exec->nodes = openreg_nodes_share(graph->nodes);
    }
    openreg_lock_release(&exec->lock);
    return OPENREG_OK;
}

/* ----------------------------------------------------------------------------------------------------------- the rest */

static openreg_status
destroy(openreg_graph graph)
{
    static const char call[] = "openreg_graph_destroy";
    if (graph == NULL)
        return OPENREG_OK;
    if (graph->nodes == NULL)
        OPENREG_RETURN_NOT_OK(OPENREG_PART_CALL(call, graph->site.device, 1,
                                                graph->site.table->destroy_graph(graph->site.instance, graph->native)));
    openreg_nodes_release(graph->nodes);
    count(&graph->site, -1);
    free(graph);
    return OPENREG_OK;
}

static openreg_status
exec_destroy(openreg_graph_exec exec)
{
    static const char call[] = "openreg_graph_exec_destroy";
    if (exec == NULL)
        return OPENREG_OK;
    if (exec->nodes == NULL)
        OPENREG_RETURN_NOT_OK(OPENREG_PART_CALL(call, exec->site.device, 1,
                                                exec->site.table->destroy_exec(exec->site.instance, exec->native)));
    count(&exec->site, -1);
    free_exec(exec);
    return OPENREG_OK;
}

static openreg_status
dump(openreg_graph graph, const char *path)
{
    static const char call[] = "openreg_graph_dump";
    if (graph == NULL || path == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "graph or path is NULL");
    if (graph->nodes != NULL)
        return openreg_nodes_dump(graph->nodes, path)
                   ? OPENREG_OK
                   : openreg_error_set(OPENREG_E_INVALID, call, "%s can't be written: %s", path, strerror(errno));
    if (graph->site.table->dump == NULL)
        return openreg_error_set(OPENREG_E_UNSUPPORTED, call, "driver '%s' can't write a graph",
                                 graph->site.device->driver->name);
    return OPENREG_PART_CALL(call, graph->site.device, 0,
                             graph->site.table->dump(graph->site.instance, graph->native, path));
}

static const openreg_graphs functions = {
    .struct_size = sizeof functions,
    .begin = begin,
    .end = end,
    .status = status_of,
    .instantiate = instantiate,
    .launch = launch,
    .update = update,
    .destroy = destroy,
    .exec_destroy = exec_destroy,
    .dump = dump,
    .exchange_mode = exchange_mode,
    .hold = hold,
    .pass = openreg_capture_pass,
};

OPENREG_INTERNAL const openreg_graph_parts *openreg_graph_query(void);

const openreg_graph_parts *
openreg_graph_query(void)
{
    static const openreg_graph_parts parts = {OPENREG_VERSION_STRING, &functions};
    return &parts;
}
