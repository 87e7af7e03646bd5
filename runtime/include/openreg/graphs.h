/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/graphs.h: work of streams that is recorded once and launched many times. Part of the C API: the rules of
 * openreg.h on errors, threads and start hold here. Not stable: it is version 0, and may change in any release. Valid
 * C11 and C++17.
 *
 *   openreg_graph_begin(device, stream, OPENREG_CAPTURE_GLOBAL);
 *   ... openreg_memcpy_async(), openreg_kernel_run() on `stream`: nothing runs ...
 *   openreg_graph_end(device, stream, &graph);
 *   openreg_graph_instantiate(graph, &exec);
 *   openreg_graph_launch(exec, stream);     all of it runs, with the memory's contents at that time
 *
 * A driver with openreg/graph.h captures by itself. For any other driver the runtime records: copies, fills, host functions,
 * kernels of the driver (kernels.h) and collectives (communicators.h) on a captured stream become nodes with their arguments
 * copied, openreg_event_record() and openreg_stream_wait_event() edges, and a stream that waits for an event of the capture
 * joins it. A launch repeats the calls in the order of the capture: those of the stream that began on the stream of the
 * launch, the other branches on further streams, which the stream of the launch waits for at the end. So layers, observers
 * and fault plans see its work. Whether a kernel refuses its arguments is only found by the launch.
 *
 * A call that can't be captured fails with OPENREG_E_CAPTURE, which names it, and makes the capture invalid;
 * openreg_graph_end() then fails with the same reason. Stream, events and allocator go on as before. In captures that the
 * runtime records these are: openreg_memcpy(), a copy of host memory that is not pinned, waiting for a captured stream or
 * its device, querying it, query, synchronisation and elapsed time of events that were recorded in the capture, waiting for
 * an event that was recorded outside of it, joining two captures, and releasing segments to the driver
 * (openreg_memory_empty_cache()) unless the mode allows it. After the capture an event's record in it no longer counts.
 *
 * Memory: what nodes use must stay allocated until the graph and its executable graphs are destroyed, as in a private
 * pool (allocator.h). Graphs, and captures that the runtime records, pin the device table, as allocations do.
 *
 * The functions are in a library of their own, libopenreg_graph.so, beside libopenreg.so, which their first use loads. They
 * are inline and call the table openreg_graphs. */
#ifndef OPENREG_GRAPHS_H
#define OPENREG_GRAPHS_H

#include <openreg/graph.h>
#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct openreg_graph_s *openreg_graph;           /* from openreg_graph_end() to openreg_graph_destroy() */
typedef struct openreg_graph_exec_s *openreg_graph_exec; /* from openreg_graph_instantiate() to _exec_destroy() */

/* Judges a call on a held stream, in the thread that makes it. 1: the call is refused, 0: it is done. Must not wait. */
typedef int (*openreg_hold_fn)(int32_t device, openreg_stream stream, const char *call);

typedef struct openreg_graphs {
    uint32_t struct_size, reserved;
    openreg_status (*begin)(int32_t device, openreg_stream stream, int32_t mode);
    openreg_status (*end)(int32_t device, openreg_stream stream, openreg_graph *out);
    openreg_status (*status)(int32_t device, openreg_stream stream, int32_t *out);
    openreg_status (*instantiate)(openreg_graph graph, openreg_graph_exec *out);
    openreg_status (*launch)(openreg_graph_exec exec, openreg_stream stream);
    openreg_status (*update)(openreg_graph_exec exec, openreg_graph graph, int32_t *fits);
    openreg_status (*destroy)(openreg_graph graph);
    openreg_status (*exec_destroy)(openreg_graph_exec exec);
    openreg_status (*dump)(openreg_graph graph, const char *path);
    openreg_status (*exchange_mode)(int32_t device, int32_t *mode);
    openreg_status (*hold)(int32_t device, openreg_stream stream, openreg_hold_fn judge);
    int32_t (*pass)(int32_t change);
} openreg_graphs;

#define OPENREG_GRAPHS_SIZE_1 104u
static_assert(sizeof(openreg_graphs) == OPENREG_GRAPHS_SIZE_1, "append a function, then freeze its size");

/* Loads the library, unless it is loaded. NULL: it can't be; openreg_last_error() then has OPENREG_E_INCOMPATIBLE. */
OPENREG_API const openreg_graphs *openreg_graphs_get(void);

#define OPENREG_GRAPHS_CALL(function, ...)                                                                             \
    const openreg_graphs *const graphs = openreg_graphs_get();                                                         \
    return graphs != NULL ? graphs->function(__VA_ARGS__) : OPENREG_E_INCOMPATIBLE

/* Begins a capture on a stream of the device, in mode OPENREG_CAPTURE_GLOBAL, _THREAD_LOCAL or _RELAXED (graph.h).
 * Errors: OPENREG_E_CAPTURE (the default stream, one that is captured already), OPENREG_E_INVALID (no such stream or mode),
 * OPENREG_E_NOMEM, the driver's, common ones. */
static inline openreg_status
openreg_graph_begin(int32_t device, openreg_stream stream, int32_t mode)
{
    OPENREG_GRAPHS_CALL(begin, device, stream, mode);
}

/* Ends a capture. On failure *out is NULL and the streams run their work again, unless the wrong thread has called.
 * Errors: OPENREG_E_CAPTURE (no capture began on this stream, the capture is invalid, a joined stream is not waited for, not
 * the thread that began and the mode is not relaxed), OPENREG_E_INVALID (out is NULL), common ones. */
static inline openreg_status
openreg_graph_end(int32_t device, openreg_stream stream, openreg_graph *out)
{
    OPENREG_GRAPHS_CALL(end, device, stream, out);
}

/* *out = OPENREG_CAPTURE_NONE, _ACTIVE or _INVALIDATED. */
static inline openreg_status
openreg_graph_status(int32_t device, openreg_stream stream, int32_t *out)
{
    OPENREG_GRAPHS_CALL(status, device, stream, out);
}

/* Makes an executable graph; the graph may then be destroyed. Errors: OPENREG_E_NOMEM, the driver's. */
static inline openreg_status
openreg_graph_instantiate(openreg_graph graph, openreg_graph_exec *out)
{
    OPENREG_GRAPHS_CALL(instantiate, graph, out);
}

/* Queues the graph's work on a stream of the device that the capture began on, and returns. Launches of one `exec` run one
 * after the other. On a stream that is being captured its nodes are captured.
 * Errors: OPENREG_E_INVALID (memory of a node was freed, a stream of another device), OPENREG_E_UNSUPPORTED (a kernel of the
 * driver refuses what was captured), those of the calls that were captured. Nodes before the failure are queued. */
static inline openreg_status
openreg_graph_launch(openreg_graph_exec exec, openreg_stream stream)
{
    OPENREG_GRAPHS_CALL(launch, exec, stream);
}

/* Gives later launches the arguments of `graph`, if it has the same nodes and edges on the same devices. *fits = 0: they
 * differ, and nothing has changed. Errors: OPENREG_E_UNSUPPORTED (the driver can't), the driver's. */
static inline openreg_status
openreg_graph_update(openreg_graph_exec exec, openreg_graph graph, int32_t *fits)
{
    OPENREG_GRAPHS_CALL(update, exec, graph, fits);
}

/* NULL is accepted. Launched work still runs. */
static inline openreg_status
openreg_graph_destroy(openreg_graph graph)
{
    OPENREG_GRAPHS_CALL(destroy, graph);
}
static inline openreg_status
openreg_graph_exec_destroy(openreg_graph_exec exec)
{
    OPENREG_GRAPHS_CALL(exec_destroy, exec);
}

/* Writes nodes and edges as text of GraphViz. Errors: OPENREG_E_INVALID (the file can't be written), OPENREG_E_UNSUPPORTED
 * (the driver can't). */
static inline openreg_status
openreg_graph_dump(openreg_graph graph, const char *path)
{
    OPENREG_GRAPHS_CALL(dump, graph, path);
}

/* Exchanges the mode by which this thread's calls are judged while others capture: with OPENREG_CAPTURE_RELAXED it may free
 * memory. A new thread has OPENREG_CAPTURE_GLOBAL. Errors: OPENREG_E_INVALID (no such mode), common ones. */
static inline openreg_status
openreg_graph_exchange_mode(int32_t device, int32_t *mode)
{
    OPENREG_GRAPHS_CALL(exchange_mode, device, mode);
}

/* Holds a stream, for captures that are made above this API, as PyTorch's are: a call of openreg.h that queues work on it,
 * waits for it or queries it fails with OPENREG_E_CAPTURE, unless its thread passes (openreg_graph_pass()) or `judge`
 * allows it. `judge` NULL: releases the stream if it is held.
 * Errors: OPENREG_E_CAPTURE (it is held or captured already), OPENREG_E_NOMEM. */
static inline openreg_status
openreg_graph_hold(int32_t device, openreg_stream stream, openreg_hold_fn judge)
{
    OPENREG_GRAPHS_CALL(hold, device, stream, judge);
}

/* While the sum of this thread's `change` is positive, its calls pass: they are neither refused on held streams nor
 * recorded on captured ones. Returns 1 if the thread, since its last call of this function and while a stream was held, did
 * more than queue work on held streams: it waited, queried, or queued work elsewhere. Else 0. */
static inline int32_t
openreg_graph_pass(int32_t change)
{
    const openreg_graphs *const graphs = openreg_graphs_get();
    return graphs != NULL ? graphs->pass(change) : 0;
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_GRAPHS_H */
