// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the allocator's history: recording, the snapshot of memory with its stacks, observers of running out.
#include <ATen/record_function.h>
#include <c10/util/ApproximateClock.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/profiler/unwind/unwind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/arguments.h"
#include "csrc/base/bindings.h"
#include "csrc/base/python_support.h"
#include "csrc/memory/memory.h"
#include "shim/base/compat.h"
#include "shim/base/status.h"
#include "shim/device/device.h"
#include "shim/observe/memory_history.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;

std::shared_ptr<c10::GatheredContext> gather_python() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/false);
}

std::shared_ptr<c10::GatheredContext> gather_all() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/true);
}

// Times are exact between its making and its use, so it is made before anything is recorded.
c10::ApproximateClockToUnixTimeConverter& clock_of_events() {
  static auto& clock = *new c10::ApproximateClockToUnixTimeConverter;
  return clock;
}

const char* action_name(TraceEntry::Action action) {
  switch (action) {
    case TraceEntry::ALLOC:
      return "alloc";
    case TraceEntry::FREE_REQUESTED:
      return "free_requested";
    case TraceEntry::FREE_COMPLETED:
      return "free_completed";
    case TraceEntry::SEGMENT_ALLOC:
      return "segment_alloc";
    case TraceEntry::SEGMENT_FREE:
      return "segment_free";
    case TraceEntry::SEGMENT_MAP:
      return "segment_map";
    case TraceEntry::SEGMENT_UNMAP:
      return "segment_unmap";
    case TraceEntry::SNAPSHOT:
      return "snapshot";
    case TraceEntry::OOM:
      return "oom";
    default:
      return action == c10::openreg::compat::kAnnotate ? "annotate" : "unknown";
  }
}

// Collects stacks and where they are to go, so that all are made readable at once: reading debug information is slow,
// and stacks share their frames.
class Frames {
 public:
  void add(const py::dict& to, const c10::openreg::Context& context) {
    auto* traceback = dynamic_cast<torch::CapturedTraceback*>(context.get());
    if (traceback == nullptr) {
      to["frames"] = none_;
      return;
    }
    kept_.push_back(context);
    tracebacks_.push_back(traceback);
    targets_.push_back(to);
  }

  void resolve() {
    const torch::SymbolizedTracebacks symbols = torch::symbolize(tracebacks_);
    std::vector<py::dict> frames;
    for (const auto& frame : symbols.all_frames) {
      py::dict one;
      one["name"] = frame.funcname;
      one["filename"] = frame.filename;
      one["line"] = frame.lineno;
      frames.push_back(std::move(one));
    }
    for (size_t i = 0; i < targets_.size(); ++i) {
      py::list stack;
      for (const uint64_t index : symbols.tracebacks.at(i)) {
        stack.append(frames.at(index));
      }
      targets_[i]["frames"] = std::move(stack);
      if (const auto& forward = tracebacks_[i]->forward_traceback()) {
        targets_[i]["forward_frames"] = py::cast(*forward);
      }
    }
  }

 private:
  py::list none_;
  std::vector<c10::openreg::Context> kept_;
  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::vector<py::dict> targets_;
};

py::list trace_list(c10::DeviceIndex device, Frames& frames) {
  const auto nanoseconds = clock_of_events().makeConverter();
  py::list to;
  for (const TraceEntry& entry : c10::openreg::memory_history(device)) {
    py::dict one;
    frames.add(one, entry.context_);
    one["action"] = action_name(entry.action_);
    one[entry.action_ == TraceEntry::OOM ? "device_free" : "addr"] = entry.addr_;
    one["size"] = entry.size_;
    one["stream"] = reinterpret_cast<intptr_t>(entry.stream_);
    one["pool_id"] = py::make_tuple(entry.mempool_.first, entry.mempool_.second);
    one["time_us"] = nanoseconds(entry.time_.approx_t_) / 1000;
    one["compile_context"] = entry.compile_context_;
    one["user_metadata"] = entry.user_metadata_;
    to.append(std::move(one));
  }
  return to;
}

// Adds their stacks to the segments and blocks of a device. Returns the bytes that are in use.
size_t add_frames(c10::DeviceIndex device, const py::list& segments, Frames& frames) {
  size_t active = 0;
  for (const py::handle segment : segments) {
    const auto dict = py::reinterpret_borrow<py::dict>(segment);
    active += dict["active_size"].cast<size_t>();
    frames.add(dict, c10::openreg::context_of_segment(device, dict["address"].cast<uint64_t>()));
    for (const py::handle block : dict["blocks"]) {
      const auto its = py::reinterpret_borrow<py::dict>(block);
      const bool free = its["state"].cast<std::string>() == "inactive";
      frames.add(its, free ? nullptr : c10::openreg::context_of_block(device, its["address"].cast<uint64_t>()));
    }
  }
  return active;
}

RecordContext level_of(const std::optional<std::string>& context) {
  return !context           ? RecordContext::NEVER
      : *context == "all"   ? RecordContext::ALL
      : *context == "alloc" ? RecordContext::ALLOC
                            : RecordContext::STATE;
}

// (enabled, context, stacks, max_entries, clear_history, skip_actions); torch.openreg.memory has checked the strings.
PyObject* _recordMemoryHistory(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const auto [enabled, context, stacks, max_entries, clear, skip] = argument_as<std::tuple<
      std::optional<std::string>,
      std::optional<std::string>,
      std::string,
      size_t,
      bool,
      std::vector<std::string>>>(arguments, "recordMemoryHistory");
  (void)clock_of_events();
  c10::openreg::HistorySettings settings;
  settings.enabled = enabled.has_value();
  settings.max_entries = enabled == "all" ? max_entries : 1; // "state": as PyTorch, which keeps the last event
  settings.when = level_of(context);
  settings.gather = stacks == "all" ? &gather_all : &gather_python;
  for (const std::string& action : skip) {
    settings.skipped
        [action == "annotate" ? c10::openreg::compat::kAnnotate
                              : c10::CachingDeviceAllocator::parseTraceEntryAction(action)] = true;
  }
  if (settings.enabled && context && stacks == "all") {
    (void)torch::unwind::unwind(); // the first call reads tables, which is better done before anything is timed
  }
  {
    const py::gil_scoped_release no_gil; // an allocation of another thread may wait for the GIL with a lock held
    c10::openreg::record_memory_history(settings, clear);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// (devices, traces): a dict with the segments of these devices and, unless `traces` is False, the events of all.
PyObject* _memorySnapshot(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const auto [devices, traces] = argument_as<std::pair<std::vector<int>, bool>>(arguments, "memorySnapshot");
  Frames frames;
  py::list segments;
  py::list histories;
  for (const int device : devices) {
    const auto index = c10::openreg::narrow_device_index(device);
    const auto its = py::reinterpret_steal<py::list>(openreg_memory_segments(index));
    if (!its) {
      throw python_error();
    }
    const size_t active = add_frames(index, its, frames);
    segments += its;
    if (traces) {
      c10::openreg::note_snapshot(index, active);
      histories.append(trace_list(index, frames));
    }
  }
  frames.resolve();
  py::dict to;
  to["segments"] = std::move(segments);
  to["device_traces"] = std::move(histories);
  return to.release().ptr();
  END_HANDLE_TH_ERRORS
}

// (device, address): the frames of the allocation of a live block, or None.
PyObject* _allocationTraceback(PyObject* /*self*/, PyObject* address) {
  HANDLE_TH_ERRORS
  openreg_pointer_info info{};
  info.struct_size = sizeof info;
  const auto number = argument_as<uintptr_t>(address, "allocationTraceback");
  OPENREG_CHECK(openreg_pointer_get_info(reinterpret_cast<const void*>(number), &info));
  if (info.kind != OPENREG_POINTER_DEVICE || info.live == 0) {
    Py_RETURN_NONE;
  }
  const auto context = c10::openreg::context_of_block(static_cast<c10::DeviceIndex>(info.device), number);
  if (context == nullptr) {
    Py_RETURN_NONE;
  }
  Frames frames;
  py::dict holder;
  frames.add(holder, context);
  frames.resolve();
  return py::object(holder["frames"]).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* _setMemoryMetadata(PyObject* /*self*/, PyObject* text) {
  HANDLE_TH_ERRORS
  c10::openreg::set_memory_metadata(argument_as<std::string>(text, "setMemoryMetadata"));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _getMemoryMetadata(PyObject* /*self*/, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  return py::str(c10::openreg::memory_metadata()).release().ptr();
  END_HANDLE_TH_ERRORS
}

// (device, address, text)
PyObject* _annotateMemory(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const auto [device, address, text] = argument_as<std::tuple<int, uint64_t, std::string>>(arguments, "annotateMemory");
  c10::openreg::annotate_memory(c10::openreg::narrow_device_index(device), address, text);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* _attachOutOfMemoryObserver(PyObject* /*self*/, PyObject* observer) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyCallable_Check(observer) != 0, "an out-of-memory observer must be callable");
  // The list of observers outlives the interpreter, so this reference is never released.
  PyObject* const function = Py_NewRef(observer);
  c10::openreg::attach_out_of_memory_observer([function](int64_t device, int64_t asked, int64_t allowed, int64_t free) {
    if (!openreg_interpreter_is_alive()) {
      return;
    }
    const py::gil_scoped_acquire gil;
    try {
      py::reinterpret_borrow<py::function>(function)(device, asked, allowed, free);
    } catch (py::error_already_set& error) { // OutOfMemoryError is what the program is to see
      error.restore();
      openreg_pass_on_error("an out-of-memory observer");
    }
  });
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

} // namespace

} // namespace torch_openreg

PyMethodDef openreg_memory_history_methods[] = {
    {"_record_memory_history",
     torch_openreg::_recordMemoryHistory,
     METH_VARARGS,
     "(enabled, context, stacks, max_entries, clear_history, skip_actions)"},
    {"_memory_snapshot",
     torch_openreg::_memorySnapshot,
     METH_VARARGS,
     "(devices, traces): segments and events, with stacks."},
    {"_allocation_traceback",
     torch_openreg::_allocationTraceback,
     METH_O,
     "Frames of the allocation of a live block, or None."},
    {"_set_memory_metadata", torch_openreg::_setMemoryMetadata, METH_O, "Text that later events of this thread carry."},
    {"_get_memory_metadata", torch_openreg::_getMemoryMetadata, METH_NOARGS, "That text."},
    {"_annotate_memory",
     torch_openreg::_annotateMemory,
     METH_VARARGS,
     "(device, address, text): an event for memory in use, if recording."},
    {"_attach_out_of_memory_observer",
     torch_openreg::_attachOutOfMemoryObserver,
     METH_O,
     "Function of (device, asked, allowed, free) bytes."},
    {nullptr, nullptr, 0, nullptr},
};
