/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/graph.h: work that is recorded once and launched many times: the driver extension "openreg.graph", version 1.
 * Valid C11 and C++17.
 *
 *   const openreg_graph_table *graph = table->extension(instance, OPENREG_GRAPH_NAME, OPENREG_GRAPH_VERSION);
 *
 * NULL: the driver has none; the runtime then records the calls itself (openreg/graphs.h), and only speed is lost.
 * driver.h's rules on threads, devices, errors, loss and ownership hold here too, with these:
 *
 *   Capture    Between begin() and end() work queued on the stream is not run: it becomes nodes of a graph. Arguments are
 *              copied; memory that they point to stays the caller's, and is read and written by each launch. The slots
 *              copy, fill and host_func, queue() of comm.h and the kernels of kernels.h are recorded; so is work that
 *              PyTorch's kernels queue on the vendor's own stream, if stream_native() returns that.
 *   Events     event_record() on a captured stream marks a place in the graph. A stream that waits for such an event joins
 *              the capture: its work is captured, too, and the stream that began must wait for it before end().
 *   Refused    With OPENREG_E_CAPTURE, after which the capture is invalid: query, sync and stream_destroy of a captured
 *              stream, query and sync of an event that was recorded in it, device_sync of its device, a copy of host
 *              memory that is not pinned, waiting for an event recorded outside or in another capture. A driver may
 *              refuse less; such a call then acts as it does outside of a capture.
 *   Memory     mem_alloc works during a capture as always. Memory and handles that a node uses are not freed or closed
 *              until the graph is destroyed.
 *   Order      A launch is work of its stream, in order with the stream's other work. Launches of one executable graph
 *              run one after the other, whatever their streams.
 *   Host       Captured functions run at each launch, on a thread of the driver or vendor, as described at host_func(). */
#ifndef OPENREG_GRAPH_H
#define OPENREG_GRAPH_H

#include <openreg/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_GRAPH_NAME "openreg.graph"
#define OPENREG_GRAPH_VERSION 1u

/* Modes: in which threads calls that are unsafe during a capture, such as mem_free, are refused: in all, in the one that
 * captures, or in none. The numbers are CUDA's and HIP's. */
#define OPENREG_CAPTURE_GLOBAL 0
#define OPENREG_CAPTURE_THREAD_LOCAL 1
#define OPENREG_CAPTURE_RELAXED 2

/* Results of status(). */
#define OPENREG_CAPTURE_NONE 0
#define OPENREG_CAPTURE_ACTIVE 1
#define OPENREG_CAPTURE_INVALIDATED 2

typedef struct openreg_driver_graph_s *openreg_driver_graph;           /* driver-owned, from end() to destroy_graph() */
typedef struct openreg_driver_graph_exec_s *openreg_driver_graph_exec; /* from instantiate() to destroy_exec() */

/* A function with "optional" may be NULL. */
typedef struct openreg_graph_table {
    uint32_t struct_size, version; /* sizeof(openreg_graph_table), OPENREG_GRAPH_VERSION as compiled into the driver */

    /* Begins a capture. E_CAPTURE: the default stream, which can't be captured, or a stream that is captured already. */
    openreg_status (*begin)(openreg_instance, int32_t dev, openreg_driver_stream, int32_t mode);
    /* Ends the capture that began on the stream, whatever it returns: then its streams run their work again. E_CAPTURE:
     * there is none, the stream has joined another's, the capture is invalid, a joined stream is not waited for, or it is
     * another thread than begin()'s and the mode is not relaxed (only then the capture goes on). */
    openreg_status (*end)(openreg_instance, int32_t dev, openreg_driver_stream, openreg_driver_graph *out);
    /* *out = OPENREG_CAPTURE_NONE, _ACTIVE or _INVALIDATED. */
    openreg_status (*status)(openreg_instance, int32_t dev, openreg_driver_stream, int32_t *out);
    /* Makes what launch() takes, a copy of the graph: that may be destroyed. `flags`: 0. An empty graph is valid. */
    openreg_status (*instantiate)(openreg_instance, openreg_driver_graph, uint32_t flags,
                                  openreg_driver_graph_exec *out);
    /* Queues all of its nodes on a stream of the device that the capture began on. Returns without waiting for them. */
    openreg_status (*launch)(openreg_instance, int32_t dev, openreg_driver_stream, openreg_driver_graph_exec);
    /* Optional. Gives later launches the arguments of a graph with the same nodes and edges. *fits = 0: they differ, and
     * nothing has changed. */
    openreg_status (*update)(openreg_instance, openreg_driver_graph_exec, openreg_driver_graph, int32_t *fits);
    /* NULL is accepted. Launched work still runs. Both succeed also on a device that is lost. */
    openreg_status (*destroy_graph)(openreg_instance, openreg_driver_graph);
    openreg_status (*destroy_exec)(openreg_instance, openreg_driver_graph_exec);
    /* Optional. Writes the graph as text of GraphViz. E_INVALID: the file can't be written. */
    openreg_status (*dump)(openreg_instance, openreg_driver_graph, const char *path);
    /* Optional. Exchanges this thread's mode, by which its calls of other work are judged: OPENREG_CAPTURE_*. */
    openreg_status (*exchange_mode)(openreg_instance, int32_t *mode);
} openreg_graph_table;

#define OPENREG_GRAPH_SIZE_1 88u
static_assert(sizeof(openreg_graph_table) == OPENREG_GRAPH_SIZE_1, "append a function, then freeze its size");

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_GRAPH_H */
