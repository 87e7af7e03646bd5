// Log lines of the runtime to a Python function.
//
// The runtime may log from any thread, with its locks held, and a thread that has the GIL may be waiting for one of
// those locks: the callback must not take the GIL. So it queues the line, and asks the interpreter to hand the queue
// over at its next safe point.
#include <openreg/openreg.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

struct Line {
  int32_t level;
  std::string text;
};

struct Queue {
  std::mutex mutex; // guards lines and scheduled; Python is never called under it
  std::vector<Line> lines;
  bool scheduled = false;
  PyObject* callback = nullptr; // guarded by the GIL
};

Queue& queue() {
  static auto& instance = *new Queue; // never destroyed: the runtime may log until the process ends
  return instance;
}

// Runs with the GIL.
void deliver() {
  std::vector<Line> lines;
  {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    lines.swap(queue().lines);
    queue().scheduled = false;
  }
  const auto callback = py::reinterpret_borrow<py::object>(queue().callback);
  if (!callback) {
    return;
  }
  for (const Line& line : lines) {
    try {
      callback(line.level, py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
                               line.text.data(), static_cast<Py_ssize_t>(line.text.size()), "replace")));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(callback);
    }
  }
}

int deliver_pending(void* /*unused*/) {
  try {
    deliver();
  } catch (...) { // no memory: the lines are lost
  }
  return 0;
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
    }
    if (schedule && Py_AddPendingCall(&deliver_pending, nullptr) != 0) {
      const std::lock_guard<std::mutex> lock(target.mutex);
      target.scheduled = false; // the interpreter's list is full: the next line tries again
    }
  } catch (...) { // no memory: the line is lost
  }
}

} // namespace

PyObject* _setLogCallback(PyObject* /*self*/, PyObject* callback) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(callback == Py_None || PyCallable_Check(callback), "invalid argument to setLogCallback");
  if (callback == Py_None) {
    openreg_set_log_callback(nullptr, nullptr);
    deliver(); // what is queued still goes to the old callback
  }
  PyObject* next = callback == Py_None ? nullptr : Py_NewRef(callback);
  Py_XDECREF(std::exchange(queue().callback, next));
  if (next != nullptr) {
    openreg_set_log_callback(&enqueue, nullptr);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace torch_openreg
