/* SPDX-License-Identifier: BSD-3-Clause */
// Log lines of the runtime to a Python function.
//
// The runtime may log from any thread, with its locks held, and a thread that has the GIL may be waiting for one of
// those locks: the callback must not take the GIL. So it queues the line, and requests a pending call of the interpreter,
// which delivers the queue at the next safe point.
//
// The main thread may be far from that point: it may wait in C for a driver that takes minutes to open, and the line says
// so. If a warning is still queued after a moment, a separate thread delivers the queue. Only one thread delivers at a
// time, until nothing is queued: the order of the lines is kept.
#include "csrc/base/bindings.h"
#include "csrc/base/python_support.h"

#include <errno.h>
#include <openreg/openreg.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Long enough for a main thread that runs Python to do it itself, so that a line that a call caused is there when the
// call returns.
#define PATIENCE_NANOSECONDS 50000000

struct line {
  struct line* next;
  int32_t level;
  char text[];
};

enum thread_state { NO_THREAD, THREAD_RUNS, THREAD_ENDED };

struct queue {
  pthread_mutex_t mutex;  // guards the next seven; Python is never called under it
  pthread_cond_t changed; // lines were taken, or the end has come
  struct line* first;
  struct line** end; // where the next line is linked in
  bool scheduled;
  bool is_ending; // no thread starts any more, and the one that runs ends
  enum thread_state thread_state;
  pthread_t thread;   // to be joined unless thread_state is NO_THREAD
  PyObject* callback; // guarded by the GIL, as is the next
  bool delivering;
};

// NULL before the first callback. Never freed: the runtime may log until the end.
static struct queue* _Atomic current_queue;

static struct queue* get_queue(void) {
  return atomic_load_explicit(&current_queue, memory_order_acquire);
}

static struct queue* new_queue(void) {
  struct queue* queue = calloc(1, sizeof *queue);
  if (queue == NULL) {
    return NULL;
  }
  pthread_condattr_t steady;
  (void)pthread_condattr_init(&steady); // none of the four fails on Linux
  (void)pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&queue->changed, &steady);
  (void)pthread_mutex_init(&queue->mutex, NULL);
  (void)pthread_condattr_destroy(&steady);
  queue->end = &queue->first;
  return queue;
}

// The child of a fork() has no thread of ours, and another thread of the parent may have been in the old queue. Its
// lines are the parent's. Without memory the child's lines are lost.
static void renew_queue_in_child(void) {
  const struct queue* before = get_queue();
  struct queue* fresh = before == NULL ? NULL : new_queue();
  if (fresh != NULL) {
    fresh->callback = before->callback;
  }
  atomic_store_explicit(&current_queue, fresh, memory_order_release);
}

static void watch_forks(void) {
  (void)pthread_atfork(NULL, NULL, renew_queue_in_child); // fails only without memory; then a child's lines may be lost
}

static struct line* take_lines(struct queue* from) {
  (void)pthread_mutex_lock(&from->mutex);
  struct line* lines = from->first;
  from->first = NULL;
  from->end = &from->first;
  from->scheduled = false;
  (void)pthread_cond_broadcast(&from->changed);
  (void)pthread_mutex_unlock(&from->mutex);
  return lines;
}

static void call(PyObject* callback, const struct line* line) {
  PyObject* result = PyObject_CallFunction(callback, "iN", (int)line->level, openreg_text(line->text));
  if (result == NULL) {
    openreg_pass_on_error("torch_openreg's log");
  }
  Py_XDECREF(result);
}

// Runs with the GIL. The callback may release it; what another thread finds then is delivered here.
static void deliver(void) {
  struct queue* from = get_queue();
  if (from == NULL || from->delivering) {
    return;
  }
  from->delivering = true;
  PyObject* callback = Py_XNewRef(from->callback);
  for (struct line* lines = take_lines(from); lines != NULL; lines = take_lines(from)) {
    while (lines != NULL) {
      struct line* line = lines;
      lines = line->next;
      if (callback != NULL) {
        call(callback, line);
      }
      free(line);
    }
  }
  from->delivering = false;
  Py_XDECREF(callback);
}

static int deliver_pending(void* unused) {
  (void)unused;
  deliver();
  return 0;
}

// The caller holds the mutex, which is released during the wait.
static void wait_a_moment(struct queue* queue) {
  struct timespec until;
  (void)clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += PATIENCE_NANOSECONDS;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    ++until.tv_sec;
  }
  while (queue->first != NULL && !queue->is_ending &&
         pthread_cond_timedwait(&queue->changed, &queue->mutex, &until) != ETIMEDOUT) {
  }
}

static void* deliver_in_thread(void* argument) {
  struct queue* from = argument;
  (void)pthread_mutex_lock(&from->mutex);
  while (from->first != NULL && !from->is_ending) {
    wait_a_moment(from);
    if (from->first == NULL || from->is_ending || !openreg_interpreter_is_alive()) {
      break;
    }
    (void)pthread_mutex_unlock(&from->mutex);
    const PyGILState_STATE gil = PyGILState_Ensure();
    deliver();
    PyGILState_Release(gil);
    (void)pthread_mutex_lock(&from->mutex);
  }
  from->thread_state = THREAD_ENDED;
  (void)pthread_mutex_unlock(&from->mutex);
  return NULL;
}

// The caller holds the mutex. Where no thread can be had the line waits for the main thread.
static void start_thread(struct queue* queue) {
  if (queue->is_ending || queue->thread_state == THREAD_RUNS) {
    return;
  }
  if (queue->thread_state == THREAD_ENDED) {
    (void)pthread_join(queue->thread, NULL);
    queue->thread_state = NO_THREAD;
  }
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_BLOCK, &all, &before); // signals are the main thread's
  if (pthread_create(&queue->thread, NULL, deliver_in_thread, queue) == 0) {
    queue->thread_state = THREAD_RUNS;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static struct line* new_line(int32_t level, const char* utf8) {
  const size_t size = strlen(utf8) + 1;
  struct line* line = malloc(sizeof *line + size);
  if (line != NULL) {
    line->next = NULL;
    line->level = level;
    memcpy(line->text, utf8, size);
  }
  return line;
}

// Called by the runtime.
static void enqueue(void* context, int32_t level, const char* utf8) {
  (void)context;
  struct queue* queue = get_queue();
  struct line* line = new_line(level, utf8);
  if (queue == NULL || line == NULL) { // no memory: the line is lost
    free(line);
    return;
  }
  (void)pthread_mutex_lock(&queue->mutex);
  *queue->end = line;
  queue->end = &line->next;
  const bool schedule = !queue->scheduled;
  queue->scheduled = true;
  if (level >= OPENREG_LOG_WARNING) {
    start_thread(queue);
  }
  (void)pthread_mutex_unlock(&queue->mutex);
  if (schedule && Py_AddPendingCall(deliver_pending, NULL) != 0) {
    (void)pthread_mutex_lock(&queue->mutex);
    queue->scheduled = false; // the interpreter's list is full: the next line tries again
    (void)pthread_mutex_unlock(&queue->mutex);
  }
}

static void join_thread(struct queue* queue) {
  (void)pthread_mutex_lock(&queue->mutex);
  queue->is_ending = true;
  (void)pthread_cond_broadcast(&queue->changed);
  const bool is_there = queue->thread_state != NO_THREAD;
  (void)pthread_mutex_unlock(&queue->mutex);
  if (is_there) {
    Py_BEGIN_ALLOW_THREADS(void)
      pthread_join(queue->thread, NULL);
    Py_END_ALLOW_THREADS
  }
  (void)pthread_mutex_lock(&queue->mutex);
  queue->thread_state = NO_THREAD;
  (void)pthread_mutex_unlock(&queue->mutex);
}

static void remove_callback(struct queue* queue) {
  openreg_log_set_callback(NULL, NULL);
  join_thread(queue);
  deliver(); // what is queued still goes to the old callback
  Py_CLEAR(queue->callback);
}

static void set_callback(struct queue* queue, PyObject* callback) {
  PyObject* before = queue->callback;
  queue->callback = Py_NewRef(callback);
  (void)pthread_mutex_lock(&queue->mutex);
  queue->is_ending = false;
  (void)pthread_mutex_unlock(&queue->mutex);
  openreg_log_set_callback(enqueue, NULL);
  Py_XDECREF(before);
}

static PyObject* set_log_callback(PyObject* self, PyObject* callback) {
  (void)self;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (callback != Py_None && !PyCallable_Check(callback)) {
    PyErr_SetString(PyExc_TypeError, "invalid argument to setLogCallback");
    return NULL;
  }
  (void)pthread_once(&once, watch_forks);
  if (get_queue() == NULL) {
    struct queue* queue = new_queue();
    if (queue == NULL) {
      return PyErr_NoMemory();
    }
    atomic_store_explicit(&current_queue, queue, memory_order_release);
  }
  if (callback == Py_None) {
    remove_callback(get_queue());
  } else {
    set_callback(get_queue(), callback);
  }
  Py_RETURN_NONE;
}

static PyObject* set_log_level(PyObject* self, PyObject* level) {
  (void)self;
  const long value = PyLong_AsLong(level);
  if (value == -1 && PyErr_Occurred()) {
    return NULL;
  }
  openreg_log_set_level((int32_t)value);
  Py_RETURN_NONE;
}

PyMethodDef openreg_log_methods[] = {
    {"_set_log_level", set_log_level, METH_O, "The least level of log lines without OPENREG_LOG_LEVEL."},
    {"_set_log_callback", set_log_callback, METH_O, "Function of (level, text) for log lines; None: stderr."},
    {NULL, NULL, 0, NULL},
};
