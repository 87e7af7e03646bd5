// SPDX-License-Identifier: BSD-3-Clause
// Log lines of the runtime to a Python function.
//
// The runtime may log from any thread, with its locks held, and a thread that has the GIL may be waiting for one of
// those locks: the callback must not take the GIL. So it queues the line, and asks the interpreter to hand the queue
// over at its next safe point.
//
// The main thread may be far from that point: it waits in C for a driver that takes minutes to open, and the line says
// so. Warnings are therefore handed over by a thread of their own if that has not happened after a moment. Whoever
// hands over, one does it at a time, until nothing is queued: the order of the lines is kept.
#include <openreg/openreg.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

// Long enough for a main thread that runs Python to do it itself, so that a line that a call caused is there when the
// call returns.
constexpr std::chrono::milliseconds patience(50);

struct Line {
  int32_t level;
  std::string text;
};

struct Queue {
  std::mutex mutex;                // guards the next five; Python is never called under it
  std::condition_variable changed; // lines were taken, or the end has come
  std::vector<Line> lines;
  bool scheduled = false;
  bool is_ending = false; // no thread starts any more, and the one that runs ends
  enum { none, running, ended } thread_state = none;
  pthread_t thread{};           // to be joined unless thread_state is `none`
  PyObject* callback = nullptr; // guarded by the GIL, as is the next
  bool delivering = false;
};

std::atomic<Queue*>& current_queue() {
  static auto& instance = *new std::atomic<Queue*>(new Queue); // never destroyed: the runtime may log until the end
  return instance;
}

Queue& queue() {
  return *current_queue().load(std::memory_order_acquire);
}

// The child of a fork() has no thread of ours, and another thread of the parent may have been in the old queue. Its
// lines are the parent's.
void renew_queue_in_child() {
  auto* fresh = new Queue;
  fresh->callback = queue().callback;
  current_queue().store(fresh, std::memory_order_release);
}

std::vector<Line> take_lines(Queue& from) {
  std::vector<Line> lines;
  const std::lock_guard<std::mutex> lock(from.mutex);
  lines.swap(from.lines);
  from.scheduled = false;
  from.changed.notify_all();
  return lines;
}

void call(const py::object& callback, const Line& line) {
  try {
    callback(
        line.level,
        py::reinterpret_steal<py::object>(
            PyUnicode_DecodeUTF8(line.text.data(), static_cast<Py_ssize_t>(line.text.size()), "replace")));
  } catch (py::error_already_set& error) {
    pass_on(error, "torch_openreg's log");
  }
}

// Runs with the GIL. The callback may let go of it; what another thread finds then is delivered here.
void deliver() {
  Queue& from = queue();
  if (from.delivering) {
    return;
  }
  from.delivering = true;
  const auto callback = py::reinterpret_borrow<py::object>(from.callback);
  for (std::vector<Line> lines = take_lines(from); !lines.empty(); lines = take_lines(from)) {
    for (const Line& line : lines) {
      if (callback) {
        call(callback, line);
      }
    }
  }
  from.delivering = false;
}

void deliver_or_lose() noexcept {
  try {
    deliver();
  } catch (...) { // no memory: the lines are lost
    queue().delivering = false;
  }
}

int deliver_pending(void* /*unused*/) {
  deliver_or_lose();
  return 0;
}

void* deliver_in_thread(void* argument) {
  Queue& from = *static_cast<Queue*>(argument);
  std::unique_lock<std::mutex> lock(from.mutex);
  while (!from.lines.empty() && !from.is_ending) {
    from.changed.wait_for(lock, patience, [&from] { return from.lines.empty() || from.is_ending; });
    if (from.lines.empty() || from.is_ending || !interpreter_is_alive()) {
      break;
    }
    lock.unlock();
    const PyGILState_STATE gil = PyGILState_Ensure();
    deliver_or_lose();
    PyGILState_Release(gil);
    lock.lock();
  }
  from.thread_state = Queue::ended;
  return nullptr;
}

// The caller holds the mutex. Where no thread can be had the line waits for the main thread.
void start_thread(Queue& target) {
  if (target.is_ending || target.thread_state == Queue::running) {
    return;
  }
  if (target.thread_state == Queue::ended) {
    (void)pthread_join(target.thread, nullptr);
    target.thread_state = Queue::none;
  }
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_BLOCK, &all, &before); // signals are the main thread's
  if (pthread_create(&target.thread, nullptr, &deliver_in_thread, &target) == 0) {
    target.thread_state = Queue::running;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Called by the runtime.
void enqueue(void* /*context*/, int32_t level, const char* utf8) {
  try {
    Queue& target = queue();
    bool schedule = false;
    {
      const std::lock_guard<std::mutex> lock(target.mutex);
      target.lines.push_back({level, utf8});
      schedule = !std::exchange(target.scheduled, true);
      if (level >= OPENREG_LOG_WARNING) {
        start_thread(target);
      }
    }
    if (schedule && Py_AddPendingCall(&deliver_pending, nullptr) != 0) {
      const std::lock_guard<std::mutex> lock(target.mutex);
      target.scheduled = false; // the interpreter's list is full: the next line tries again
    }
  } catch (...) { // no memory: the line is lost
  }
}

void join_thread(Queue& target) {
  bool is_there = false;
  {
    const std::lock_guard<std::mutex> lock(target.mutex);
    target.is_ending = true;
    target.changed.notify_all();
    is_there = target.thread_state != Queue::none;
  }
  if (is_there) {
    const py::gil_scoped_release no_gil;
    (void)pthread_join(target.thread, nullptr);
  }
  const std::lock_guard<std::mutex> lock(target.mutex);
  target.thread_state = Queue::none;
}

} // namespace

PyObject* _setLogCallback(PyObject* /*self*/, PyObject* callback) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(callback == Py_None || PyCallable_Check(callback), "invalid argument to setLogCallback");
  static const int fork_handler = pthread_atfork(nullptr, nullptr, &renew_queue_in_child);
  (void)fork_handler; // fails only without memory; then a child's lines may be lost
  Queue& target = queue();
  if (callback == Py_None) {
    openreg_set_log_callback(nullptr, nullptr);
    join_thread(target);
    deliver(); // what is queued still goes to the old callback
  }
  PyObject* next = callback == Py_None ? nullptr : Py_NewRef(callback);
  Py_XDECREF(std::exchange(target.callback, next));
  if (next != nullptr) {
    {
      const std::lock_guard<std::mutex> lock(target.mutex);
      target.is_ending = false;
    }
    openreg_set_log_callback(&enqueue, nullptr);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace torch_openreg
