/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_graph.c: the extension "openreg.graph" (openreg/graph.h): captures by the vendor, a call each. So what PyTorch's own
 * kernels queue on a captured stream is captured, too. */
#include "gpu.h"

#include <openreg/graph.h>
#include <stdlib.h>

struct openreg_driver_graph_s {
    int32_t device;
    GPU(Graph_t) native;
};

struct openreg_driver_graph_exec_s {
    int32_t device;
    GPU(GraphExec_t) native;
};

static_assert(OPENREG_CAPTURE_GLOBAL == (int)GPU(StreamCaptureModeGlobal) &&
                  OPENREG_CAPTURE_THREAD_LOCAL == (int)GPU(StreamCaptureModeThreadLocal) &&
                  OPENREG_CAPTURE_RELAXED == (int)GPU(StreamCaptureModeRelaxed) &&
                  OPENREG_CAPTURE_NONE == (int)GPU(StreamCaptureStatusNone) &&
                  OPENREG_CAPTURE_ACTIVE == (int)GPU(StreamCaptureStatusActive) &&
                  OPENREG_CAPTURE_INVALIDATED == (int)GPU(StreamCaptureStatusInvalidated),
              "the vendor has other numbers");

/* Of a capture: what the vendor calls an illegal state is what the ABI calls E_CAPTURE. */
static openreg_status
check_capture(const openreg_gpu_scope *scope, openreg_gpu_code code, const char *function)
{
    if (code != GPU(ErrorIllegalState))
        return openreg_gpu_check(scope, code, function);
    openreg_gpu_forget(scope, code);
    return openreg_fail(scope->instance->host, OPENREG_E_CAPTURE, (int64_t)code,
                        "%s: the stream is captured already, or isn't captured", function);
}

static openreg_status
graph_begin(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t mode)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_status status = check_capture(
        &scope, GPU_CALL(StreamBeginCapture)((GPU(Stream_t))stream, (openreg_gpu_capture_mode)mode),
        GPU_NAME(StreamBeginCapture));
    openreg_gpu_leave(&scope);
    return status;
}

static openreg_status
graph_end(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_graph *out)
{
    openreg_driver_graph const made = calloc(1, sizeof *made);
    if (made == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for a graph of device %d", dev);
    made->device = dev;
    openreg_gpu_scope scope;
    openreg_status status = openreg_gpu_enter(&scope, instance, dev);
    if (status == OPENREG_OK) {
        status = check_capture(&scope, GPU_CALL(StreamEndCapture)((GPU(Stream_t))stream, &made->native),
                               GPU_NAME(StreamEndCapture));
        openreg_gpu_leave(&scope);
    }
    if (status != OPENREG_OK) {
        free(made);
        return status;
    }
    *out = made;
    return OPENREG_OK;
}

static openreg_status
graph_status(openreg_instance instance, int32_t dev, openreg_driver_stream stream, int32_t *out)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    openreg_gpu_capture_status found = GPU(StreamCaptureStatusNone);
    const openreg_status status = OPENREG_GPU_TRY(&scope, StreamIsCapturing, (GPU(Stream_t))stream, &found);
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK)
        *out = (int32_t)found;
    return status;
}

static openreg_status
graph_instantiate(openreg_instance instance, openreg_driver_graph graph, uint32_t flags, openreg_driver_graph_exec *out)
{
    openreg_driver_graph_exec const made = calloc(1, sizeof *made);
    if (made == NULL)
        return openreg_fail(instance->host, OPENREG_E_NOMEM, 0, "no host memory for a graph of device %d",
                            graph->device);
    made->device = graph->device;
    openreg_gpu_scope scope;
    openreg_status status = openreg_gpu_enter(&scope, instance, graph->device);
    if (status == OPENREG_OK) {
        const openreg_gpu_capture_mode mode = openreg_gpu_relax_capture();
        status = OPENREG_GPU_TRY(&scope, GraphInstantiateWithFlags, &made->native, graph->native, flags);
        openreg_gpu_restore_capture(mode);
        openreg_gpu_leave(&scope);
    }
    if (status != OPENREG_OK) {
        free(made);
        return status;
    }
    *out = made;
    return OPENREG_OK;
}

static openreg_status
graph_launch(openreg_instance instance, int32_t dev, openreg_driver_stream stream, openreg_driver_graph_exec exec)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, dev));
    const openreg_status status = OPENREG_GPU_TRY(&scope, GraphLaunch, exec->native, (GPU(Stream_t))stream);
    openreg_gpu_leave(&scope);
    return status;
}

static openreg_status
graph_update(openreg_instance instance, openreg_driver_graph_exec exec, openreg_driver_graph graph, int32_t *fits)
{
    if (!GPU_HAS(GraphExecUpdate))
        return openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0,
                            "the installed " GPU_VENDOR_TEXT " lacks the function " GPU_NAME(GraphExecUpdate));
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, exec->device));
#if !defined(OPENREG_GPU_HIP)
    cudaGraphExecUpdateResultInfo info;
    const openreg_gpu_code code = GPU_CALL(GraphExecUpdate)(exec->native, graph->native, &info);
#else
    GPU(GraphNode_t) node = NULL;
    GPU(GraphExecUpdateResult) result;
    const openreg_gpu_code code = GPU_CALL(GraphExecUpdate)(exec->native, graph->native, &node, &result);
#endif
    openreg_status status = OPENREG_OK;
    if (code == GPU(ErrorGraphExecUpdateFailure))
        openreg_gpu_forget(&scope, code);
    else
        status = openreg_gpu_check(&scope, code, GPU_NAME(GraphExecUpdate));
    openreg_gpu_leave(&scope);
    if (status == OPENREG_OK)
        *fits = code == GPU(Success);
    return status;
}

static openreg_status
graph_destroy(openreg_instance instance, openreg_driver_graph graph)
{
    if (graph == NULL)
        return OPENREG_OK;
    if (!openreg_gpu_is_lost(instance, graph->device)) {
        openreg_gpu_scope scope;
        OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, graph->device));
        const openreg_status status = OPENREG_GPU_TRY(&scope, GraphDestroy, graph->native);
        openreg_gpu_leave(&scope);
        OPENREG_GPU_RETURN_NOT_OK(status);
    }
    free(graph);
    return OPENREG_OK;
}

/* What was launched still runs: the vendor keeps it. */
static openreg_status
exec_destroy(openreg_instance instance, openreg_driver_graph_exec exec)
{
    if (exec == NULL)
        return OPENREG_OK;
    if (!openreg_gpu_is_lost(instance, exec->device)) {
        openreg_gpu_scope scope;
        OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, exec->device));
        const openreg_status status = OPENREG_GPU_TRY(&scope, GraphExecDestroy, exec->native);
        openreg_gpu_leave(&scope);
        OPENREG_GPU_RETURN_NOT_OK(status);
    }
    free(exec);
    return OPENREG_OK;
}

static openreg_status
graph_exchange_mode(openreg_instance instance, int32_t *mode)
{
    (void)instance;
    openreg_gpu_capture_mode exchanged = (openreg_gpu_capture_mode)*mode;
    (void)GPU_CALL(ThreadExchangeStreamCaptureMode)(&exchanged);
    *mode = (int32_t)exchanged;
    return OPENREG_OK;
}

/* HIP's headers before 5.5 don't have the function. */
static openreg_status
graph_dump(openreg_instance instance, openreg_driver_graph graph, const char *path)
{
    openreg_gpu_scope scope;
    OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_enter(&scope, instance, graph->device));
    openreg_gpu_code (*print)(GPU(Graph_t), const char *, unsigned) = NULL;
#if OPENREG_GPU_CUDART
    print = cudaGraphDebugDotPrint;
#else
    (void)openreg_gpu_find_optional(&scope, GPU_NAME(GraphDebugDotPrint), &print);
#endif
    const openreg_status status =
        print == NULL
            ? openreg_fail(instance->host, OPENREG_E_UNSUPPORTED, 0,
                           "the installed " GPU_VENDOR_TEXT " lacks the function " GPU_NAME(GraphDebugDotPrint))
            : openreg_gpu_check(&scope, print(graph->native, path, 0), GPU_NAME(GraphDebugDotPrint));
    openreg_gpu_leave(&scope);
    return status;
}

const openreg_graph_table *
openreg_gpu_graph_extension(void)
{
    static const openreg_graph_table table = {
        .struct_size = sizeof(openreg_graph_table),
        .version = OPENREG_GRAPH_VERSION,
        .begin = graph_begin,
        .end = graph_end,
        .status = graph_status,
        .instantiate = graph_instantiate,
        .launch = graph_launch,
        .update = graph_update,
        .destroy_graph = graph_destroy,
        .destroy_exec = exec_destroy,
        .dump = graph_dump,
        .exchange_mode = graph_exchange_mode,
    };
    return GPU_HAS(StreamBeginCapture) && GPU_HAS(StreamEndCapture) && GPU_HAS(StreamIsCapturing) &&
                   GPU_HAS(GraphInstantiateWithFlags) && GPU_HAS(GraphLaunch) && GPU_HAS(GraphDestroy) &&
                   GPU_HAS(GraphExecDestroy)
               ? &table
               : NULL;
}
