/* SPDX-License-Identifier: BSD-3-Clause */
/* graph_checks.c: graphs that are captured from streams and launched again: by the driver's openreg.graph, or, where it has
 * none, by the runtime, which records. */
#include <stdio.h>
#include <string.h>

#include <openreg/graphs.h>

#include "behind_runtime.h"

#define SIZE 40001

/* What each check begins with: streams, events, device and pinned memory. */
static struct {
    openreg_stream stream, other;
    openreg_event event, joined;
    openreg_graph graph; /* none */
    char *a, *b;
    unsigned char *host, *seen;
} s;

static void
begin_scene(check_context *c)
{
    check_start_runtime(c);
    s.stream = check_pool_stream(0);
    s.other = check_pool_stream(0);
    s.event = check_runtime_event(0, 0);
    s.joined = check_runtime_event(0, 0);
    s.a = check_allocate_block(0, SIZE);
    s.b = check_allocate_block(0, SIZE);
    s.host = check_pinned_block(0, SIZE);
    s.seen = check_pinned_block(0, SIZE);
    OK(openreg_memset_async(0, s.stream, s.a, 1, SIZE));
    OK(openreg_memset_async(0, s.stream, s.b, 2, SIZE));
    OK(openreg_stream_synchronize(0, s.stream));
}

static void
refused(openreg_status status, const char *what)
{
    REQUIRE(status == OPENREG_E_CAPTURE, "%s: %s instead of OPENREG_E_CAPTURE", what, openreg_status_name(status));
}

static void
begin(void)
{
    OK(openreg_graph_begin(0, s.stream, OPENREG_CAPTURE_GLOBAL));
}

static void
begin_capture(check_context *c)
{
    begin_scene(c);
    begin();
}

static openreg_graph_exec
end(void)
{
    openreg_graph graph = NULL;
    openreg_graph_exec exec = NULL;
    OK(openreg_graph_end(0, s.stream, &graph));
    REQUIRE(graph != NULL, "openreg_graph_end() gives no graph");
    OK(openreg_graph_instantiate(graph, &exec));
    OK(openreg_graph_destroy(graph));
    return exec;
}

static void
fill(char *memory, uint8_t value, openreg_stream stream)
{
    OK(openreg_memset_async(0, stream, memory, value, SIZE));
}

static void
copy(char *to, const char *from, openreg_stream stream)
{
    OK(openreg_memcpy_async(0, stream, to, 0, from, 0, SIZE));
}

/* Waits for the stream, and looks at all bytes of `memory`. */
static void
has(const char *memory, unsigned char value, openreg_stream stream, const char *what)
{
    OK(openreg_memcpy_async(0, stream, s.seen, OPENREG_HOST, memory, 0, SIZE));
    OK(openreg_stream_synchronize(0, stream));
    check_is_value(s.seen, SIZE, value, what);
}

static void
status_is(openreg_stream stream, int32_t wanted, const char *what)
{
    int32_t status = -1;
    OK(openreg_graph_status(0, stream, &status));
    REQUIRE(status == wanted, "%s is %d, not %s", what, status,
            wanted == OPENREG_CAPTURE_NONE     ? "none"
            : wanted == OPENREG_CAPTURE_ACTIVE ? "active"
                                               : "invalidated");
}

/* The capture has become invalid; then everything works as before. */
static void
is_invalid(const char *after)
{
    char what[120];
    openreg_graph graph = (openreg_graph)(void *)s.host;
    (void)snprintf(what, sizeof what, "after %s the capture's status", after);
    status_is(s.stream, OPENREG_CAPTURE_INVALIDATED, what);
    refused(openreg_graph_end(0, s.stream, &graph), "the end of a capture that is invalid");
    REQUIRE(graph == NULL, "a capture that is invalid gives a graph");
    status_is(s.stream, OPENREG_CAPTURE_NONE, "after its end the capture's status");
    fill(s.a, 77, s.stream);
    has(s.a, 77, s.stream, "a fill behind a capture that was invalid");
}

static void
nothing_runs(check_context *c)
{
    begin_capture(c);
    fill(s.a, 9, s.stream);
    copy(s.b, s.a, s.stream);
    check_sleep(20);
    openreg_graph_exec exec = end();
    has(s.a, 1, s.stream, "memory that a captured fill names, before any launch");
    has(s.b, 2, s.stream, "memory that a captured copy names, before any launch");
    OK(openreg_graph_exec_destroy(exec));
    has(s.a, 1, s.stream, "memory of a graph that was never launched");
}

static void
launches_read_what_is_there(check_context *c)
{
    begin_capture(c);
    OK(openreg_memcpy_async(0, s.stream, s.a, 0, s.host, OPENREG_HOST, SIZE));
    copy(s.b, s.a, s.stream);
    openreg_graph_exec exec = end();
    for (uint64_t i = 0; i < 5; ++i) {
        check_pattern(s.host, SIZE, i);
        fill(s.b, 0, s.stream);
        OK(openreg_graph_launch(exec, s.stream));
        OK(openreg_memcpy_async(0, s.stream, s.seen, OPENREG_HOST, s.b, 0, SIZE));
        OK(openreg_stream_synchronize(0, s.stream));
        check_is_pattern(s.seen, SIZE, i, "what a launch copied of memory that was written before it");
    }
    OK(openreg_graph_exec_destroy(exec));
}

static void
nodes_keep_their_order(check_context *c)
{
    enum { STEPS = 40 };
    begin_capture(c);
    for (int i = 0; i < STEPS; ++i) {
        fill(s.a, (uint8_t)(100 + i), s.stream);
        copy(s.b, s.a, s.stream);
    }
    fill(s.a, 5, s.stream);
    openreg_graph_exec exec = end();
    for (int i = 0; i < 3; ++i) {
        OK(openreg_graph_launch(exec, s.stream));
        has(s.b, 100 + STEPS - 1, s.stream, "a copy of the last of forty fills");
        has(s.a, 5, s.stream, "a fill behind them");
    }
    OK(openreg_graph_exec_destroy(exec));
}

static void
delay(openreg_stream stream, int milliseconds)
{
    OK(openreg_stream_launch_host_func(0, stream, check_sleep_some, (void *)(intptr_t)milliseconds));
}

static void
launch_is_work_of_its_stream(check_context *c)
{
    begin_capture(c);
    copy(s.b, s.a, s.stream);
    openreg_graph_exec exec = end();
    for (uint8_t i = 10; i < 20; ++i) {
        delay(s.other, 3);
        fill(s.a, i, s.other);
        OK(openreg_graph_launch(exec, s.other));
        fill(s.a, 0, s.other);
        has(s.b, i, s.other, "what a launch on another stream copied between two fills of it");
    }
    OK(openreg_graph_launch(exec, OPENREG_STREAM_DEFAULT));
    has(s.b, 0, OPENREG_STREAM_DEFAULT, "what a launch on the default stream copied");
    OK(openreg_graph_exec_destroy(exec));
}

static void
empty_graph_launches(check_context *c)
{
    begin_capture(c);
    openreg_graph_exec exec = end();
    OK(openreg_graph_launch(exec, s.stream));
    OK(openreg_graph_launch(exec, s.other));
    has(s.a, 1, s.stream, "memory beside an empty graph");
    OK(openreg_graph_exec_destroy(exec));
}

static void
host_function_runs_each_time(check_context *c)
{
    static atomic_int calls;
    begin_capture(c);
    fill(s.a, 3, s.stream);
    OK(openreg_stream_launch_host_func(0, s.stream, check_count_call, &calls));
    openreg_graph_exec exec = end();
    check_sleep(20);
    REQUIRE(atomic_load(&calls) == 0, "a host function ran %d times before any launch", atomic_load(&calls));
    for (int i = 1; i <= 4; ++i) {
        OK(openreg_graph_launch(exec, s.stream));
        OK(openreg_stream_synchronize(0, s.stream));
        REQUIRE(atomic_load(&calls) == i, "after %d launches a host function has run %d times", i, atomic_load(&calls));
    }
    OK(openreg_graph_exec_destroy(exec));
}

static void
two_graphs_share_memory(check_context *c)
{
    begin_capture(c);
    fill(s.a, 31, s.stream);
    openreg_graph_exec one = end();
    begin();
    copy(s.b, s.a, s.stream);
    fill(s.a, 32, s.stream);
    openreg_graph_exec two = end();
    for (int i = 0; i < 3; ++i) {
        OK(openreg_graph_launch(one, s.stream));
        OK(openreg_graph_launch(two, s.stream));
        has(s.b, 31, s.stream, "what the second of two graphs copied of memory that the first one filled");
        has(s.a, 32, s.stream, "memory that both fill");
    }
    OK(openreg_graph_exec_destroy(one));
    OK(openreg_graph_launch(two, s.stream));
    has(s.b, 32, s.stream, "what a graph copied after another one was destroyed");
    OK(openreg_graph_exec_destroy(two));
}

static void
destroyed_graph_ends_its_work(check_context *c)
{
    begin_capture(c);
    delay(s.stream, 50);
    fill(s.a, 44, s.stream);
    copy(s.b, s.a, s.stream);
    openreg_graph_exec exec = end();
    OK(openreg_graph_launch(exec, s.stream));
    OK(openreg_graph_exec_destroy(exec));
    has(s.b, 44, s.stream, "what a graph copied that was destroyed while it ran");
    OK(openreg_graph_exec_destroy(NULL));
    OK(openreg_graph_destroy(NULL));
}

static void
launches_follow_each_other(check_context *c)
{
    begin_capture(c);
    copy(s.b, s.a, s.stream);
    delay(s.stream, 30);
    fill(s.a, 60, s.stream);
    openreg_graph_exec exec = end();
    for (int i = 0; i < 3; ++i) {
        fill(s.a, 1, s.stream);
        OK(openreg_stream_synchronize(0, s.stream));
        OK(openreg_graph_launch(exec, s.stream));
        OK(openreg_graph_launch(exec, s.other));
        has(s.b, 60, s.other,
            "what the second launch copied of memory that the first one, on another stream, fills last");
        OK(openreg_stream_synchronize(0, s.stream));
    }
    OK(openreg_graph_exec_destroy(exec));
}

static void
forks_are_captured(check_context *c)
{
    begin_capture(c);
    fill(s.a, 21, s.stream);
    OK(openreg_event_record(s.event, 0, s.stream));
    OK(openreg_stream_wait_event(0, s.other, s.event));
    status_is(s.other, OPENREG_CAPTURE_ACTIVE, "the status of a stream that has joined a capture");
    delay(s.other, 20);
    copy(s.b, s.a, s.other);
    OK(openreg_event_record(s.joined, 0, s.other));
    OK(openreg_stream_wait_event(0, s.stream, s.joined));
    fill(s.a, 22, s.stream);
    openreg_graph_exec exec = end();
    status_is(s.other, OPENREG_CAPTURE_NONE, "after the capture the status of a stream that had joined");
    has(s.b, 2, s.other, "memory that a forked stream's captured copy names, before any launch");
    for (int i = 0; i < 3; ++i) {
        fill(s.b, 0, s.stream);
        OK(openreg_graph_launch(exec, s.stream));
        has(s.b, 21, s.stream, "a forked stream's copy between two fills of the stream that forked");
        has(s.a, 22, s.stream, "the fill behind the join");
    }
    OK(openreg_graph_exec_destroy(exec));
    OK(openreg_event_destroy(s.event));
    OK(openreg_event_destroy(s.joined));
}

static void
unjoined_fork_is_refused(check_context *c)
{
    begin_capture(c);
    OK(openreg_event_record(s.event, 0, s.stream));
    OK(openreg_stream_wait_event(0, s.other, s.event));
    fill(s.a, 21, s.other);
    refused(openreg_graph_end(0, s.stream, &s.graph), "the end of a capture with a fork that isn't joined");
    fill(s.b, 71, s.other);
    has(s.b, 71, s.other, "a fill of the stream that had joined, after that");
    has(s.a, 1, s.stream, "memory of the fork's fill");
    OK(openreg_event_destroy(s.event));
}

static void
foreign_event_is_refused(check_context *c)
{
    begin_scene(c);
    OK(openreg_event_record(s.event, 0, s.other));
    begin();
    refused(openreg_stream_wait_event(0, s.stream, s.event), "a captured stream's wait for an event recorded outside");
    is_invalid("that wait");
    OK(openreg_event_destroy(s.event));
}

static void
captures_are_apart(check_context *c)
{
    begin_capture(c);
    OK(openreg_graph_begin(0, s.other, OPENREG_CAPTURE_GLOBAL));
    OK(openreg_event_record(s.event, 0, s.other));
    refused(openreg_stream_wait_event(0, s.stream, s.event), "a wait for an event of another capture");
    refused(openreg_graph_end(0, s.other, &s.graph), "the end of the other capture");
    is_invalid("a wait for an event of another capture");
    OK(openreg_event_destroy(s.event));
}

static void
begin_is_refused(check_context *c)
{
    begin_scene(c);
    refused(openreg_graph_begin(0, OPENREG_STREAM_DEFAULT, OPENREG_CAPTURE_GLOBAL), "a capture of the default stream");
    refused(openreg_graph_end(0, s.stream, &s.graph), "the end of no capture");
    begin();
    refused(openreg_graph_begin(0, s.stream, OPENREG_CAPTURE_GLOBAL), "a second capture of a stream");
    (void)openreg_graph_end(0, s.stream, &s.graph);
    OK(openreg_graph_destroy(s.graph));
    fill(s.a, 8, s.stream);
    has(s.a, 8, s.stream, "a fill behind captures that were refused");
}

static void *
end_elsewhere(void *argument)
{
    openreg_graph graph = NULL;
    *(openreg_status *)argument = openreg_graph_end(0, s.stream, &graph);
    return NULL;
}

static void
wrong_thread_is_refused(check_context *c)
{
    begin_scene(c);
    openreg_status status = OPENREG_OK;
    OK(openreg_graph_begin(0, s.stream, OPENREG_CAPTURE_THREAD_LOCAL));
    check_run_threads(end_elsewhere, &status, sizeof status, 1);
    refused(status, "the end of a capture in another thread than it was begun in");
    (void)openreg_graph_end(0, s.stream, &s.graph);
    OK(openreg_graph_destroy(s.graph));
    OK(openreg_graph_begin(0, s.stream, OPENREG_CAPTURE_RELAXED));
    fill(s.a, 66, s.stream);
    check_run_threads(end_elsewhere, &status, sizeof status, 1);
    check_runtime_ok(status, "the end of a relaxed capture in another thread");
    has(s.a, 1, s.stream, "memory of a captured fill");
}

/* The call that the check is named after; then everything works as before. */
static void
waits_are_refused(check_context *c)
{
    const char *const call = c->check->name + strlen("graph.");
    int32_t done = -1;
    begin_capture(c);
    fill(s.a, 9, s.stream);
    OK(openreg_event_record(s.event, 0, s.stream));
    if (strcmp(call, "query") == 0) {
        refused(openreg_stream_query(0, s.stream, &done), "querying a captured stream");
    } else if (strcmp(call, "event") == 0) {
        refused(openreg_event_synchronize(s.event), "waiting for an event that was recorded in a capture");
    } else if (strcmp(call, "device_sync") == 0) {
        refused(openreg_device_synchronize(0), "waiting for a device while a stream of it is captured");
    } else {
        refused(openreg_stream_synchronize(0, s.stream), "waiting for a captured stream");
        refused(openreg_memset_async(0, s.stream, s.a, 10, SIZE), "a fill on a stream whose capture is invalid");
    }
    is_invalid("that call");
    OK(openreg_event_record(s.event, 0, s.stream));
    OK(openreg_event_synchronize(s.event));
    OK(openreg_event_destroy(s.event));
    OK(openreg_device_synchronize(0));
}

static void
memory_is_allocated(check_context *c)
{
    void *block = NULL;
    begin_scene(c);
    check_need_segments(0);
    begin();
    OK(openreg_malloc(0, s.stream, (size_t)5 << 20, &block));
    OK(openreg_memset_async(0, s.stream, block, 50, SIZE));
    copy(s.a, block, s.stream);
    openreg_graph_exec exec = end();
    OK(openreg_graph_launch(exec, s.stream));
    has(s.a, 50, s.stream, "what a graph copied of memory that was allocated during its capture");
    OK(openreg_graph_exec_destroy(exec));
    OK(openreg_free(block));
}

static openreg_graph
capture_fill_and_copy(uint8_t value, int copies)
{
    openreg_graph graph = NULL;
    begin();
    fill(s.a, value, s.stream);
    for (int i = 0; i < copies; ++i)
        copy(s.b, s.a, s.stream);
    OK(openreg_graph_end(0, s.stream, &graph));
    return graph;
}

/* With a graph of the same nodes, or of one more. */
static void
update_fits_or_changes_nothing(check_context *c)
{
    const bool differs = strcmp(c->check->name, "graph.update_differs") == 0;
    begin_scene(c);
    openreg_graph first = capture_fill_and_copy(11, 1), other = capture_fill_and_copy(12, differs ? 2 : 1);
    openreg_graph_exec exec = NULL;
    int32_t fits = -1;
    OK(openreg_graph_instantiate(first, &exec));
    OK(openreg_graph_launch(exec, s.stream));
    has(s.b, 11, s.stream, "what a graph copied before it was updated");
    const openreg_status status = openreg_graph_update(exec, other, &fits);
    check_skip_if(status == OPENREG_E_UNSUPPORTED, "the driver updates no graphs");
    check_runtime_ok(status, "openreg_graph_update()");
    REQUIRE(fits == !differs, "a graph with %s", differs ? "a node more is said to fit" : "the same nodes doesn't fit");
    OK(openreg_graph_launch(exec, s.stream));
    has(s.b, differs ? 11 : 12, s.stream,
        differs ? "what a graph copied after an update that doesn't fit" : "what a graph copied after it was updated");
    OK(openreg_graph_destroy(first));
    OK(openreg_graph_destroy(other));
    OK(openreg_graph_launch(exec, s.stream));
    OK(openreg_graph_exec_destroy(exec));
}

static void
use_graph(check_context *c, int i)
{
    (void)c;
    openreg_graph graph = capture_fill_and_copy((uint8_t)i, 3);
    openreg_graph_exec exec = NULL;
    OK(openreg_graph_instantiate(graph, &exec));
    OK(openreg_graph_launch(exec, s.stream));
    OK(openreg_graph_launch(exec, s.stream));
    OK(openreg_stream_synchronize(0, s.stream));
    OK(openreg_graph_exec_destroy(exec));
    OK(openreg_graph_destroy(graph));
}

static void
graphs_leave_nothing(check_context *c)
{
    check_count_exactly();
    begin_scene(c);
    check_slope(c, 400, 6, use_graph, "capturing a graph, launching it twice and destroying it");
}

#define HINT_NULL "The driver's, openreg/graph.h; without it the runtime records, and openreg_graph_*() are its."

static const check_case cases[] = {
    {"graph.nothing_runs", "", CHECK_RUNTIME,
     "Between begin() and end() the work that is given to the stream is not run.",
     "Look at the capture's state before a call is queued.", nothing_runs},
    {"graph.replay", "", CHECK_RUNTIME, "Each launch reads and writes the memory that was captured, as it is then.",
     "Copy arguments, never contents.", launches_read_what_is_there},
    {"graph.nodes", "", CHECK_RUNTIME, "Nodes of one stream keep their order.", HINT_NULL, nodes_keep_their_order},
    {"graph.stream", "", CHECK_RUNTIME, "A launch is work of its stream, in order with the stream's other work.",
     "Use the stream of launch(), not that of begin().", launch_is_work_of_its_stream},
    {"graph.empty", "", CHECK_RUNTIME, "An empty graph is valid.", HINT_NULL, empty_graph_launches},
    {"graph.host_func", "", CHECK_RUNTIME, "Host functions that were captured run at each launch, once.",
     "Not at the capture; and keep the argument until the graph is gone.", host_function_runs_each_time},
    {"graph.two", "", CHECK_RUNTIME, "Two graphs use the same memory, one after the other.", HINT_NULL,
     two_graphs_share_memory},
    {"graph.destroy", "", CHECK_RUNTIME, "What was launched of a graph that is destroyed still runs; NULL is accepted.",
     "Wait in destroy_exec(), or keep what is queued.", destroyed_graph_ends_its_work},
    {"graph.launches", "", CHECK_RUNTIME,
     "Launches of one executable graph run one after the other, whatever their streams.",
     "Wait for an event behind the launch before.", launches_follow_each_other},
    {"graph.fork", "", CHECK_RUNTIME,
     "A stream that waits for an event of a capture joins it, and its work keeps its place between fork and join.",
     "Events that are recorded on a captured stream are edges.", forks_are_captured},
    {"graph.unjoined", "", CHECK_RUNTIME, "The stream that began has to wait for joined ones before end(): E_CAPTURE.",
     "After it the streams run their work again.", unjoined_fork_is_refused},
    {"graph.isolation", "", CHECK_RUNTIME, "A captured stream can't wait for what was recorded outside: E_CAPTURE.",
     HINT_NULL, foreign_event_is_refused},
    {"graph.merge", "", CHECK_RUNTIME, "Two captures can't be joined: E_CAPTURE, and both are invalid.", HINT_NULL,
     captures_are_apart},
    {"graph.begin", "", CHECK_RUNTIME,
     "begin() refuses the default stream and one that is captured already, end() a stream that isn't: E_CAPTURE.",
     HINT_NULL, begin_is_refused},
    {"graph.thread", "", CHECK_RUNTIME, "Unless its mode is relaxed, a capture ends in the thread that began it.",
     HINT_NULL, wrong_thread_is_refused},
    {"graph.sync", "", CHECK_RUNTIME,
     "Waiting for a captured stream is E_CAPTURE, and the capture is invalid; then the stream works as before.",
     HINT_NULL, waits_are_refused},
    {"graph.query", "", CHECK_RUNTIME, "Querying a captured stream is E_CAPTURE, and the capture is invalid.",
     HINT_NULL, waits_are_refused},
    {"graph.event", "", CHECK_RUNTIME, "So is waiting for an event that was recorded in a capture.", HINT_NULL,
     waits_are_refused},
    {"graph.device_sync", "", CHECK_RUNTIME, "So is device_sync of a captured stream's device.", HINT_NULL,
     waits_are_refused},
    {"graph.memory", "", CHECK_RUNTIME, "mem_alloc works during a capture.",
     "Where the vendor takes it for unsafe, exchange the thread's mode around it.", memory_is_allocated},
    {"graph.update", "", CHECK_RUNTIME, "update() gives later launches the arguments of a graph with the same nodes.",
     HINT_NULL, update_fits_or_changes_nothing},
    {"graph.update_differs", "", CHECK_RUNTIME, "A graph with other nodes doesn't fit, and nothing has changed.",
     HINT_NULL, update_fits_or_changes_nothing},
    {"graph.leaks", "", CHECK_RUNTIME, "Graphs that are destroyed leave nothing.", HINT_NULL, graphs_leave_nothing},
};
const check_group check_graph_group = CHECK_GROUP(2, cases);
