/* SPDX-License-Identifier: BSD-3-Clause */
/* host_calls.c: functions of the host as a part of a stream. The stream waits for a user event; when it has come to the
 * marker before that, the function runs on this driver's thread. OpenCL's callbacks would not do: a platform may run one
 * inside the call that sets it, or on the thread that runs its queues, and a function may block. */
#include <stdlib.h>

#include "opencl.h"

struct host_call {
    host_calls *calls;
    void (*function)(void *argument);
    void *argument;
    cl_event returned; /* a user event */
    host_call *next;
};

static void
run(host_call *call)
{
    if (call->function != NULL)
        call->function(call->argument);
    (void)clSetUserEventStatus(call->returned, CL_COMPLETE);
    (void)clReleaseEvent(call->returned);
    free(call);
}

static void *
serve(void *data)
{
    host_calls *const calls = data;
    (void)pthread_mutex_lock(&calls->lock);
    while (calls->first != NULL || !calls->is_ending) {
        host_call *const call = calls->first;
        if (call == NULL) {
            (void)pthread_cond_wait(&calls->changed, &calls->lock);
            continue;
        }
        calls->first = call->next;
        if (calls->first == NULL)
            calls->last = NULL;
        (void)pthread_mutex_unlock(&calls->lock);
        run(call);
        (void)pthread_mutex_lock(&calls->lock);
    }
    (void)pthread_mutex_unlock(&calls->lock);
    return NULL;
}

/* The stream has come to the call; on whichever thread the platform likes. */
static void CL_CALLBACK
hand_over(cl_event before, cl_int state, void *data)
{
    host_call *const call = data;
    host_calls *const calls = call->calls;
    (void)before;
    if (state != CL_COMPLETE)
        call->function = NULL; /* an asynchronous error: it is not called */
    (void)pthread_mutex_lock(&calls->lock);
    if (calls->last != NULL)
        calls->last->next = call;
    else
        calls->first = call;
    calls->last = call;
    (void)pthread_cond_signal(&calls->changed);
    (void)pthread_mutex_unlock(&calls->lock);
}

static bool
has_thread(host_calls *calls)
{
    sigset_t before;
    (void)pthread_mutex_lock(&calls->lock);
    if (!calls->has_thread) {
        opencl_block_signals(&before);
        calls->has_thread = pthread_create(&calls->thread, NULL, serve, calls) == 0;
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    const bool found = calls->has_thread;
    (void)pthread_mutex_unlock(&calls->lock);
    return found;
}

/* With the stream's lock held. On failure nothing was queued that waits. */
static cl_int
queue(stream *s, host_call *call, cl_event *marker)
{
    cl_event barrier;
    cl_int error = TRIED(clEnqueueMarkerWithWaitList(s->queue, 0, NULL, marker));
    if (error == CL_SUCCESS)
        error = TRIED(clEnqueueBarrierWithWaitList(s->queue, 1, &call->returned, &barrier));
    if (error == CL_SUCCESS)
        opencl_queued(s, barrier);
    return error;
}

openreg_status
opencl_host_func(openreg_instance cl, int32_t dev, openreg_driver_stream handle, void (*function)(void *argument),
                 void *argument)
{
    stream *const s = opencl_stream(cl, dev, handle);
    cl_event marker = NULL;
    sigset_t before;
    cl_int error = CL_OUT_OF_HOST_MEMORY;
    host_call *const call = malloc(sizeof *call);
    if (call != NULL && has_thread(&cl->host_calls))
        *call = (host_call){&cl->host_calls, function, argument, clCreateUserEvent(cl->context, &error), NULL};
    if (error != CL_SUCCESS) {
        free(call);
        return opencl_fail(cl, "clCreateUserEvent", error);
    }
    (void)pthread_mutex_lock(&s->lock);
    error = queue(s, call, &marker);
    (void)pthread_mutex_unlock(&s->lock);
    if (error == CL_SUCCESS) {
        opencl_block_signals(&before); /* the platform may start a thread for callbacks */
        error = clSetEventCallback(marker, CL_COMPLETE, hand_over, call);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (marker != NULL)
        (void)clReleaseEvent(marker);
    if (error == CL_SUCCESS)
        return OPENREG_OK;
    call->function = NULL;
    run(call); /* what was queued would wait for ever */
    return opencl_fail(cl, "clSetEventCallback", error);
}

void
opencl_host_calls_start(host_calls *calls)
{
    (void)pthread_mutex_init(&calls->lock, NULL);
    (void)pthread_cond_init(&calls->changed, NULL);
}

void
opencl_host_calls_end(host_calls *calls)
{
    (void)pthread_mutex_lock(&calls->lock);
    calls->is_ending = true;
    (void)pthread_cond_signal(&calls->changed);
    (void)pthread_mutex_unlock(&calls->lock);
    if (calls->has_thread)
        (void)pthread_join(calls->thread, NULL);
    (void)pthread_cond_destroy(&calls->changed);
    (void)pthread_mutex_destroy(&calls->lock);
}
