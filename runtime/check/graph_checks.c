/* SPDX-License-Identifier: BSD-3-Clause */
/* graph_checks.c: graphs that are captured from streams and launched again: by the driver's openreg.graph, or, where it has
 * none, by the runtime, which records. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openreg/graphs.h>

#include "behind_runtime.h"

#define SIZE 40001

/* What each check begins with: streams, device and pinned memory. */
typedef struct scene {
    openreg_stream stream, other;
    char *a, *b;
    unsigned char *host, *seen;
} scene;

static scene
begin_scene(check_context *c)
{
    scene s;
    check_start_runtime(c);
    OK(openreg_stream_from_pool(0, 0, &s.stream));
    OK(openreg_stream_from_pool(0, 0, &s.other));
    s.a = check_allocate_block(0, SIZE);
    s.b = check_allocate_block(0, SIZE);
    OK(openreg_host_alloc(0, SIZE, (void **)&s.host));
    OK(openreg_host_alloc(0, SIZE, (void **)&s.seen));
    OK(openreg_memset_async(0, s.stream, s.a, 1, SIZE));
    OK(openreg_memset_async(0, s.stream, s.b, 2, SIZE));
    OK(openreg_stream_synchronize(0, s.stream));
    return s;
}

static void
refused(openreg_status status, const char *what)
{
    REQUIRE(status == OPENREG_E_CAPTURE, "%s: %s instead of OPENREG_E_CAPTURE", what, openreg_status_name(status));
}

static void
begin(const scene *s)
{
    OK(openreg_graph_begin(0, s->stream, OPENREG_CAPTURE_GLOBAL));
}

static openreg_graph_exec
end(const scene *s)
{
    openreg_graph graph = NULL;
    openreg_graph_exec exec = NULL;
    OK(openreg_graph_end(0, s->stream, &graph));
    REQUIRE(graph != NULL, "openreg_graph_end() gives no graph");
    OK(openreg_graph_instantiate(graph, &exec));
    OK(openreg_graph_destroy(graph));
    return exec;
}

static void
fill(const scene *s, char *memory, uint8_t value, openreg_stream stream)
{
    (void)s;
    OK(openreg_memset_async(0, stream, memory, value, SIZE));
}

static void
copy(const scene *s, char *to, const char *from, openreg_stream stream)
{
    (void)s;
    OK(openreg_memcpy_async(0, stream, to, 0, from, 0, SIZE));
}

static void
launch(openreg_graph_exec exec, openreg_stream stream)
{
    OK(openreg_graph_launch(exec, stream));
}

/* Waits for the stream, and looks at all bytes of `memory`. */
static void
has(const scene *s, const char *memory, unsigned char value, openreg_stream stream, const char *what)
{
    OK(openreg_memcpy_async(0, stream, s->seen, OPENREG_HOST, memory, 0, SIZE));
    OK(openreg_stream_synchronize(0, stream));
    check_is_value(s->seen, SIZE, value, what);
}

/* The capture has become invalid; then everything works as before. */
static void
is_invalid(const scene *s, const char *after)
{
    int32_t status = -1;
    openreg_graph graph = (openreg_graph)(void *)s->host;
    OK(openreg_graph_status(0, s->stream, &status));
    REQUIRE(status == OPENREG_CAPTURE_INVALIDATED, "after %s the capture's status is %d, not invalidated", after,
            status);
    refused(openreg_graph_end(0, s->stream, &graph), "the end of a capture that is invalid");
    REQUIRE(graph == NULL, "a capture that is invalid gives a graph");
    OK(openreg_graph_status(0, s->stream, &status));
    REQUIRE(status == OPENREG_CAPTURE_NONE, "after its end the capture's status is %d, not none", status);
    fill(s, s->a, 77, s->stream);
    has(s, s->a, 77, s->stream, "a fill behind a capture that was invalid");
}

/* ------------------------------------------------------------------------------------------------------------ launches */

static void
nothing_runs(check_context *c)
{
    const scene s = begin_scene(c);
    begin(&s);
    fill(&s, s.a, 9, s.stream);
    copy(&s, s.b, s.a, s.stream);
    check_sleep(20);
    openreg_graph_exec exec = end(&s);
    has(&s, s.a, 1, s.stream, "memory that a captured fill names, before any launch");
    has(&s, s.b, 2, s.stream, "memory that a captured copy names, before any launch");
    OK(openreg_graph_exec_destroy(exec));
    has(&s, s.a, 1, s.stream, "memory of a graph that was never launched");
}

static void
launches_read_what_is_there(check_context *c)
{
    const scene s = begin_scene(c);
    begin(&s);
    OK(openreg_memcpy_async(0, s.stream, s.a, 0, s.host, OPENREG_HOST, SIZE));
    copy(&s, s.b, s.a, s.stream);
    openreg_graph_exec exec = end(&s);
    for (uint64_t i = 0; i < 5; ++i) {
        check_pattern(s.host, SIZE, i);
        fill(&s, s.b, 0, s.stream);
        launch(exec, s.stream);
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
    const scene s = begin_scene(c);
    begin(&s);
    for (int i = 0; i < STEPS; ++i) {
        fill(&s, s.a, (uint8_t)(100 + i), s.stream);
        copy(&s, s.b, s.a, s.stream);
    }
    fill(&s, s.a, 5, s.stream);
    openreg_graph_exec exec = end(&s);
    for (int i = 0; i < 3; ++i) {
        launch(exec, s.stream);
        has(&s, s.b, 100 + STEPS - 1, s.stream, "a copy of the last of forty fills");
        has(&s, s.a, 5, s.stream, "a fill behind them");
    }
    OK(openreg_graph_exec_destroy(exec));
}

static void
delay(void *argument)
{
    (void)usleep(*(const useconds_t *)argument);
}

static void
launch_is_work_of_its_stream(check_context *c)
{
    static const useconds_t microseconds = 3000;
    const scene s = begin_scene(c);
    begin(&s);
    copy(&s, s.b, s.a, s.stream);
    openreg_graph_exec exec = end(&s);
    for (uint8_t i = 10; i < 20; ++i) {
        OK(openreg_stream_launch_host_func(0, s.other, delay, (void *)(uintptr_t)&microseconds));
        fill(&s, s.a, i, s.other);
        launch(exec, s.other);
        fill(&s, s.a, 0, s.other);
        has(&s, s.b, i, s.other, "what a launch on another stream copied between two fills of it");
    }
    launch(exec, OPENREG_STREAM_DEFAULT);
    has(&s, s.b, 0, OPENREG_STREAM_DEFAULT, "what a launch on the default stream copied");
    OK(openreg_graph_exec_destroy(exec));
}

static void
empty_graph_launches(check_context *c)
{
    const scene s = begin_scene(c);
    begin(&s);
    openreg_graph_exec exec = end(&s);
    launch(exec, s.stream);
    launch(exec, s.other);
    has(&s, s.a, 1, s.stream, "memory beside an empty graph");
    OK(openreg_graph_exec_destroy(exec));
}

static void
count_call(void *argument)
{
    (void)atomic_fetch_add((atomic_int *)argument, 1);
}

static void
host_function_runs_each_time(check_context *c)
{
    const scene s = begin_scene(c);
    static atomic_int calls;
    begin(&s);
    fill(&s, s.a, 3, s.stream);
    OK(openreg_stream_launch_host_func(0, s.stream, count_call, &calls));
    openreg_graph_exec exec = end(&s);
    check_sleep(20);
    REQUIRE(atomic_load(&calls) == 0, "a host function ran %d times before any launch", atomic_load(&calls));
    for (int i = 1; i <= 4; ++i) {
        launch(exec, s.stream);
        OK(openreg_stream_synchronize(0, s.stream));
        REQUIRE(atomic_load(&calls) == i, "after %d launches a host function has run %d times", i, atomic_load(&calls));
    }
    OK(openreg_graph_exec_destroy(exec));
}

static void
two_graphs_share_memory(check_context *c)
{
    const scene s = begin_scene(c);
    begin(&s);
    fill(&s, s.a, 31, s.stream);
    openreg_graph_exec one = end(&s);
    begin(&s);
    copy(&s, s.b, s.a, s.stream);
    fill(&s, s.a, 32, s.stream);
    openreg_graph_exec two = end(&s);
    for (int i = 0; i < 3; ++i) {
        launch(one, s.stream);
        launch(two, s.stream);
        has(&s, s.b, 31, s.stream, "what the second of two graphs copied of memory that the first one filled");
        has(&s, s.a, 32, s.stream, "memory that both fill");
    }
    OK(openreg_graph_exec_destroy(one));
    launch(two, s.stream);
    has(&s, s.b, 32, s.stream, "what a graph copied after another one was destroyed");
    OK(openreg_graph_exec_destroy(two));
}

static void
destroyed_graph_ends_its_work(check_context *c)
{
    static const useconds_t microseconds = 50000;
    const scene s = begin_scene(c);
    begin(&s);
    OK(openreg_stream_launch_host_func(0, s.stream, delay, (void *)(uintptr_t)&microseconds));
    fill(&s, s.a, 44, s.stream);
    copy(&s, s.b, s.a, s.stream);
    openreg_graph_exec exec = end(&s);
    launch(exec, s.stream);
    OK(openreg_graph_exec_destroy(exec));
    has(&s, s.b, 44, s.stream, "what a graph copied that was destroyed while it ran");
    OK(openreg_graph_exec_destroy(NULL));
    OK(openreg_graph_destroy(NULL));
}

static void
launches_follow_each_other(check_context *c)
{
    static const useconds_t microseconds = 30000;
    const scene s = begin_scene(c);
    begin(&s);
    copy(&s, s.b, s.a, s.stream);
    OK(openreg_stream_launch_host_func(0, s.stream, delay, (void *)(uintptr_t)&microseconds));
    fill(&s, s.a, 60, s.stream);
    openreg_graph_exec exec = end(&s);
    for (int i = 0; i < 3; ++i) {
        fill(&s, s.a, 1, s.stream);
        OK(openreg_stream_synchronize(0, s.stream));
        launch(exec, s.stream);
        launch(exec, s.other);
        has(&s, s.b, 60, s.other,
            "what the second launch copied of memory that the first one, on another stream, fills last");
        OK(openreg_stream_synchronize(0, s.stream));
    }
    OK(openreg_graph_exec_destroy(exec));
}

/* ------------------------------------------------------------------------------------------------------ forks and joins */

static void
forks_are_captured(check_context *c)
{
    static const useconds_t microseconds = 20000;
    const scene s = begin_scene(c);
    openreg_event forked = NULL, joined = NULL;
    int32_t status = -1;
    OK(openreg_event_create(0, 0, &forked));
    OK(openreg_event_create(0, 0, &joined));
    begin(&s);
    fill(&s, s.a, 21, s.stream);
    OK(openreg_event_record(forked, 0, s.stream));
    OK(openreg_stream_wait_event(0, s.other, forked));
    OK(openreg_graph_status(0, s.other, &status));
    REQUIRE(status == OPENREG_CAPTURE_ACTIVE, "the status of a stream that has joined a capture is %d, not active",
            status);
    OK(openreg_stream_launch_host_func(0, s.other, delay, (void *)(uintptr_t)&microseconds));
    copy(&s, s.b, s.a, s.other);
    OK(openreg_event_record(joined, 0, s.other));
    OK(openreg_stream_wait_event(0, s.stream, joined));
    fill(&s, s.a, 22, s.stream);
    openreg_graph_exec exec = end(&s);
    OK(openreg_graph_status(0, s.other, &status));
    REQUIRE(status == OPENREG_CAPTURE_NONE, "after the capture the status of a stream that had joined is %d, not none",
            status);
    has(&s, s.b, 2, s.other, "memory that a forked stream's captured copy names, before any launch");
    for (int i = 0; i < 3; ++i) {
        fill(&s, s.b, 0, s.stream);
        launch(exec, s.stream);
        has(&s, s.b, 21, s.stream, "a forked stream's copy between two fills of the stream that forked");
        has(&s, s.a, 22, s.stream, "the fill behind the join");
    }
    OK(openreg_graph_exec_destroy(exec));
    OK(openreg_event_destroy(forked));
    OK(openreg_event_destroy(joined));
}

static void
unjoined_fork_is_refused(check_context *c)
{
    const scene s = begin_scene(c);
    openreg_event forked = NULL;
    openreg_graph graph = NULL;
    OK(openreg_event_create(0, 0, &forked));
    begin(&s);
    OK(openreg_event_record(forked, 0, s.stream));
    OK(openreg_stream_wait_event(0, s.other, forked));
    fill(&s, s.a, 21, s.other);
    refused(openreg_graph_end(0, s.stream, &graph), "the end of a capture with a fork that isn't joined");
    fill(&s, s.b, 71, s.other);
    has(&s, s.b, 71, s.other, "a fill of the stream that had joined, after that");
    has(&s, s.a, 1, s.stream, "memory of the fork's fill");
    OK(openreg_event_destroy(forked));
}

static void
foreign_event_is_refused(check_context *c)
{
    const scene s = begin_scene(c);
    openreg_event outside = NULL;
    OK(openreg_event_create(0, 0, &outside));
    OK(openreg_event_record(outside, 0, s.other));
    begin(&s);
    refused(openreg_stream_wait_event(0, s.stream, outside), "a captured stream's wait for an event recorded outside");
    is_invalid(&s, "that wait");
    OK(openreg_event_destroy(outside));
}

static void
captures_are_apart(check_context *c)
{
    const scene s = begin_scene(c);
    openreg_event event = NULL;
    openreg_graph graph = NULL;
    OK(openreg_event_create(0, 0, &event));
    begin(&s);
    OK(openreg_graph_begin(0, s.other, OPENREG_CAPTURE_GLOBAL));
    OK(openreg_event_record(event, 0, s.other));
    refused(openreg_stream_wait_event(0, s.stream, event), "a wait for an event of another capture");
    refused(openreg_graph_end(0, s.other, &graph), "the end of the other capture");
    is_invalid(&s, "a wait for an event of another capture");
    OK(openreg_event_destroy(event));
}

/* ------------------------------------------------------------------------------------------------------- what is refused */

static void
begin_is_refused(check_context *c)
{
    const scene s = begin_scene(c);
    openreg_graph graph = NULL;
    refused(openreg_graph_begin(0, OPENREG_STREAM_DEFAULT, OPENREG_CAPTURE_GLOBAL), "a capture of the default stream");
    refused(openreg_graph_end(0, s.stream, &graph), "the end of no capture");
    begin(&s);
    refused(openreg_graph_begin(0, s.stream, OPENREG_CAPTURE_GLOBAL), "a second capture of a stream");
    (void)openreg_graph_end(0, s.stream, &graph);
    OK(openreg_graph_destroy(graph));
    fill(&s, s.a, 8, s.stream);
    has(&s, s.a, 8, s.stream, "a fill behind captures that were refused");
}

typedef struct other_end {
    const scene *s;
    openreg_status status;
} other_end;

static void *
end_elsewhere(void *argument)
{
    other_end *const o = argument;
    openreg_graph graph = NULL;
    o->status = openreg_graph_end(0, o->s->stream, &graph);
    return NULL;
}

static void
wrong_thread_is_refused(check_context *c)
{
    const scene s = begin_scene(c);
    other_end other = {&s, OPENREG_OK};
    pthread_t thread;
    openreg_graph graph = NULL;
    OK(openreg_graph_begin(0, s.stream, OPENREG_CAPTURE_THREAD_LOCAL));
    if (pthread_create(&thread, NULL, end_elsewhere, &other) != 0)
        check_skip("no thread could be made");
    (void)pthread_join(thread, NULL);
    refused(other.status, "the end of a capture in another thread than it was begun in");
    (void)openreg_graph_end(0, s.stream, &graph);
    OK(openreg_graph_destroy(graph));
    OK(openreg_graph_begin(0, s.stream, OPENREG_CAPTURE_RELAXED));
    fill(&s, s.a, 66, s.stream);
    if (pthread_create(&thread, NULL, end_elsewhere, &other) != 0)
        check_skip("no thread could be made");
    (void)pthread_join(thread, NULL);
    check_runtime_ok(other.status, "the end of a relaxed capture in another thread");
    has(&s, s.a, 1, s.stream, "memory of a captured fill");
}

static void
sync_is_refused(check_context *c)
{
    const scene s = begin_scene(c);
    begin(&s);
    fill(&s, s.a, 9, s.stream);
    refused(openreg_stream_synchronize(0, s.stream), "waiting for a captured stream");
    refused(openreg_memset_async(0, s.stream, s.a, 10, SIZE), "a fill on a stream whose capture is invalid");
    is_invalid(&s, "waiting for the stream");
}

static void
query_is_refused(check_context *c)
{
    const scene s = begin_scene(c);
    int32_t done = -1;
    begin(&s);
    fill(&s, s.a, 9, s.stream);
    refused(openreg_stream_query(0, s.stream, &done), "querying a captured stream");
    is_invalid(&s, "querying the stream");
}

static void
event_wait_is_refused(check_context *c)
{
    const scene s = begin_scene(c);
    openreg_event event = NULL;
    OK(openreg_event_create(0, 0, &event));
    begin(&s);
    OK(openreg_event_record(event, 0, s.stream));
    refused(openreg_event_synchronize(event), "waiting for an event that was recorded in a capture");
    is_invalid(&s, "waiting for its event");
    OK(openreg_event_record(event, 0, s.stream));
    OK(openreg_event_synchronize(event));
    OK(openreg_event_destroy(event));
}

static void
device_sync_is_refused(check_context *c)
{
    const scene s = begin_scene(c);
    begin(&s);
    refused(openreg_device_synchronize(0), "waiting for a device while a stream of it is captured");
    is_invalid(&s, "waiting for its device");
    OK(openreg_device_synchronize(0));
}

static void
memory_is_allocated(check_context *c)
{
    const scene s = begin_scene(c);
    void *block = NULL;
    begin(&s);
    OK(openreg_malloc(0, s.stream, (size_t)5 << 20, &block));
    OK(openreg_memset_async(0, s.stream, block, 50, SIZE));
    copy(&s, s.a, block, s.stream);
    openreg_graph_exec exec = end(&s);
    launch(exec, s.stream);
    has(&s, s.a, 50, s.stream, "what a graph copied of memory that was allocated during its capture");
    OK(openreg_graph_exec_destroy(exec));
    OK(openreg_free(block));
}

/* -------------------------------------------------------------------------------------------------------------- updates */

static openreg_graph
capture_fill_and_copy(const scene *s, uint8_t value, int copies)
{
    openreg_graph graph = NULL;
    begin(s);
    fill(s, s->a, value, s->stream);
    for (int i = 0; i < copies; ++i)
        copy(s, s->b, s->a, s->stream);
    OK(openreg_graph_end(0, s->stream, &graph));
    return graph;
}

static void
update_changes_arguments(check_context *c)
{
    const scene s = begin_scene(c);
    openreg_graph first = capture_fill_and_copy(&s, 11, 1), same = capture_fill_and_copy(&s, 12, 1);
    openreg_graph_exec exec = NULL;
    int32_t fits = -1;
    OK(openreg_graph_instantiate(first, &exec));
    launch(exec, s.stream);
    has(&s, s.b, 11, s.stream, "what a graph copied before it was updated");
    const openreg_status status = openreg_graph_update(exec, same, &fits);
    if (status == OPENREG_E_UNSUPPORTED)
        check_skip("the driver updates no graphs");
    check_runtime_ok(status, "openreg_graph_update()");
    REQUIRE(fits == 1, "a graph with the same nodes doesn't fit");
    launch(exec, s.stream);
    has(&s, s.b, 12, s.stream, "what a graph copied after it was updated");
    OK(openreg_graph_destroy(first));
    OK(openreg_graph_destroy(same));
    launch(exec, s.stream);
    OK(openreg_graph_exec_destroy(exec));
}

static void
update_that_differs_changes_nothing(check_context *c)
{
    const scene s = begin_scene(c);
    openreg_graph first = capture_fill_and_copy(&s, 11, 1), more = capture_fill_and_copy(&s, 12, 2);
    openreg_graph_exec exec = NULL;
    int32_t fits = -1;
    OK(openreg_graph_instantiate(first, &exec));
    const openreg_status status = openreg_graph_update(exec, more, &fits);
    if (status == OPENREG_E_UNSUPPORTED)
        check_skip("the driver updates no graphs");
    check_runtime_ok(status, "openreg_graph_update()");
    REQUIRE(fits == 0, "a graph with a node more is said to fit");
    launch(exec, s.stream);
    has(&s, s.b, 11, s.stream, "what a graph copied after an update that doesn't fit");
    OK(openreg_graph_exec_destroy(exec));
    OK(openreg_graph_destroy(first));
    OK(openreg_graph_destroy(more));
}

static scene of_graphs;

static void
use_graph(check_context *c, int i)
{
    (void)c;
    openreg_graph graph = capture_fill_and_copy(&of_graphs, (uint8_t)i, 3);
    openreg_graph_exec exec = NULL;
    OK(openreg_graph_instantiate(graph, &exec));
    launch(exec, of_graphs.stream);
    launch(exec, of_graphs.stream);
    OK(openreg_stream_synchronize(0, of_graphs.stream));
    OK(openreg_graph_exec_destroy(exec));
    OK(openreg_graph_destroy(graph));
}

static void
graphs_leave_nothing(check_context *c)
{
    check_count_exactly();
    of_graphs = begin_scene(c);
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
     HINT_NULL, sync_is_refused},
    {"graph.query", "", CHECK_RUNTIME, "Querying a captured stream is E_CAPTURE, and the capture is invalid.",
     HINT_NULL, query_is_refused},
    {"graph.event", "", CHECK_RUNTIME, "So is waiting for an event that was recorded in a capture.", HINT_NULL,
     event_wait_is_refused},
    {"graph.device_sync", "", CHECK_RUNTIME, "So is device_sync of a captured stream's device.", HINT_NULL,
     device_sync_is_refused},
    {"graph.memory", "", CHECK_RUNTIME, "mem_alloc works during a capture.",
     "Where the vendor takes it for unsafe, exchange the thread's mode around it.", memory_is_allocated},
    {"graph.update", "", CHECK_RUNTIME, "update() gives later launches the arguments of a graph with the same nodes.",
     HINT_NULL, update_changes_arguments},
    {"graph.update_differs", "", CHECK_RUNTIME, "A graph with other nodes doesn't fit, and nothing has changed.",
     HINT_NULL, update_that_differs_changes_nothing},
    {"graph.leaks", "", CHECK_RUNTIME, "Graphs that are destroyed leave nothing.", HINT_NULL, graphs_leave_nothing},
};
const check_group check_graph_group = CHECK_GROUP(2, cases);
