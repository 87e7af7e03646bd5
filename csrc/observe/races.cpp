// SPDX-License-Identifier: BSD-3-Clause
// Bindings of the race detector (openreg/races.h): its reports, and what it needs of Python: the line of the program that a
// use comes from, and the exception of a race.
//
// Each operator looks up its line, most often without the GIL. Code objects are kept once they were found, and their lines
// have numbers; only a new line takes the GIL. Whole stacks, where they are wanted, are kept the same way.
#include "csrc/base/frames.h"

#include <openreg/embedding.h>
#include <openreg/races.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/base/bindings.h"
#include "csrc/base/python_support.h"
#include "csrc/base/torch_calls.h"
#include "shim/base/status.h"
#include "shim/observe/races.h"

namespace torch_openreg {

namespace py = pybind11;

namespace {

constexpr size_t kMostPlaces = 1 << 20; // for programs that generate code without end: further lines are unknown

constexpr size_t kMostStacks = 1 << 17; // for the same programs: further uses have their line alone, without a stack
constexpr size_t kDeepest = 256;        // the outer frames of a deeper stack are left out

struct Instruction {
  const void* code;
  int offset;
  bool operator==(const Instruction& other) const {
    return code == other.code && offset == other.offset;
  }
};
struct HashOfInstruction {
  size_t operator()(const Instruction& at) const {
    return (reinterpret_cast<size_t>(at.code) >> 4) * 1000003 + static_cast<size_t>(at.offset);
  }
};

// Innermost first.
using Stack = std::vector<Instruction>;

struct HashOfStack {
  size_t operator()(const Stack& stack) const {
    size_t hash = 0;
    for (const Instruction& at : stack) {
      hash = (hash ^ HashOfInstruction()(at)) * 0x9E3779B97F4A7C15;
    }
    return hash ^ hash >> 32;
  }
};

struct Place {
  std::string text;
  bool allowed = false;
  const Stack* stack = nullptr; // where it is one of a whole stack
  std::string stack_text;       // made when it is first needed
};

struct Book {
  std::shared_mutex lock;                     // guards the rest; never held where the GIL is waited for
  std::unordered_map<const void*, bool> code; // known code objects, which are kept: whether a library's
  std::unordered_map<Instruction, uint32_t, HashOfInstruction> places;
  std::unordered_map<Stack, uint32_t, HashOfStack> stacks; // places of whole stacks; their code is kept, too
  std::deque<Place> by_number;                             // from 1
  std::vector<std::string> libraries;                      // folders whose lines are not the program's own
  PyObject* exception = nullptr;
};

Book& book() {
  static auto& only = *new Book; // leaked: threads may work until the process ends
  return only;
}

void lock_for_fork() {
  book().lock.lock();
}

void unlock_after_fork() {
  book().lock.unlock();
}

// The lock remembers its thread by a number that the child's only thread has not.
void renew_lock_in_child() {
  new (&book().lock) std::shared_mutex;
}

// The innermost line of the program's own, or, in libraries alone, the innermost. Looks code up under the lock.
struct Search {
  Instruction found{nullptr, 0};
  const openreg_frame* unknown = nullptr; // code that is not known yet: the search has stopped there
  openreg_frame kept{};
};

int see_frame(void* context, const openreg_frame* frame) {
  auto& search = *static_cast<Search*>(context);
  const auto known = book().code.find(frame->code);
  if (known == book().code.end()) {
    search.kept = *frame;
    search.unknown = &search.kept;
    return 1;
  }
  if (search.found.code == nullptr || !known->second) {
    search.found = {frame->code, frame->offset};
  }
  return known->second ? 0 : 1;
}

std::string file_of(PyCodeObject* code) {
  const char* const name = PyUnicode_AsUTF8(code->co_filename);
  if (name == nullptr) {
    PyErr_Clear();
    return "?";
  }
  return name;
}

bool is_in_library(const std::string& file) {
  if (!file.empty() && file.front() == '<') { // frozen modules; code that was made from text
    return true;
  }
  for (const std::string& folder : book().libraries) {
    if (file.compare(0, folder.size(), folder) == 0) {
      return true;
    }
  }
  return false;
}

// With the GIL.
void learn_code(PyCodeObject* code) {
  const std::string file = file_of(code);
  const std::unique_lock<std::shared_mutex> guard(book().lock);
  if (book().code.emplace(code, is_in_library(file)).second) {
    Py_INCREF(code); // so that its address means nothing else, ever
  }
}

bool has_permission(const std::string& file, int line) {
  static const std::string kComment = "# openreg: race-ok";
  const py::object text = py::module_::import("linecache").attr("getline")(file, line);
  const auto words = text.cast<std::string>();
  const auto at = words.find(kComment);
  return at != std::string::npos && words.find_first_not_of(" \t\r\n", at + kComment.size()) != std::string::npos;
}

// With the GIL.
Place describe(PyCodeObject* code, int offset) {
  Place place;
  const std::string file = file_of(code);
  const int line = PyCode_Addr2Line(code, offset);
  const char* const name = PyUnicode_AsUTF8(code->co_name);
  place.text = file + ":" + std::to_string(line) + " in " + (name == nullptr ? "?" : name);
  try {
    place.allowed = has_permission(file, line);
  } catch (py::error_already_set&) { // a line that can't be read allows nothing
  } catch (py::cast_error&) {
  }
  PyErr_Clear();
  return place;
}

uint32_t number_of(const Search& search) {
  const auto known = book().places.find(search.found);
  return known == book().places.end() ? 0 : known->second;
}

// Takes the GIL with an exception of the thread's put aside.
class WithPython {
 public:
  WithPython() : gil_(PyGILState_Ensure()) {
    PyErr_Fetch(&type_, &value_, &traceback_);
  }
  ~WithPython() {
    PyErr_Restore(type_, value_, traceback_);
    PyGILState_Release(gil_);
  }
  WithPython(const WithPython&) = delete;
  WithPython& operator=(const WithPython&) = delete;

 private:
  PyGILState_STATE gil_;
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

int collect_frame(void* context, const openreg_frame* frame) {
  auto& frames = *static_cast<std::vector<openreg_frame>*>(context);
  frames.push_back(*frame);
  return frames.size() < kDeepest ? 0 : 1;
}

// Looks for the line. 0 where there is none, or it, or a code object on the way to it, is not known.
uint32_t look_up(Search& search) {
  std::vector<openreg_frame> frames;
  if (openreg_walking_takes_gil != 0) { // not under the lock
    openreg_walk_frames(collect_frame, &frames);
  }
  const std::shared_lock<std::shared_mutex> guard(book().lock);
  if (openreg_walking_takes_gil == 0) {
    openreg_walk_frames(see_frame, &search);
  }
  for (const openreg_frame& frame : frames) {
    if (see_frame(&search, &frame) != 0) {
      break;
    }
  }
  return search.unknown != nullptr || search.found.code == nullptr ? 0 : number_of(search);
}

// The line as a new one.
uint32_t learn_place(const Instruction& at) {
  Place place = describe(static_cast<PyCodeObject*>(const_cast<void*>(at.code)), at.offset);
  const std::unique_lock<std::shared_mutex> guard(book().lock);
  if (book().by_number.size() >= kMostPlaces) {
    return 0;
  }
  const auto [known, is_new] = book().places.emplace(at, static_cast<uint32_t>(book().by_number.size() + 1));
  if (is_new) {
    book().by_number.push_back(std::move(place));
  }
  return known->second;
}

uint32_t find_line() {
  for (;;) {
    Search search;
    if (const uint32_t number = look_up(search); number != 0) {
      return number;
    }
    if ((search.unknown == nullptr && search.found.code == nullptr) || !openreg_interpreter_is_alive()) {
      return 0;
    }
    const WithPython python;
    if (search.unknown == nullptr) {
      return learn_place(search.found);
    }
    learn_code(search.kept.code);
  }
}

int collect_instruction(void* context, const openreg_frame* frame) {
  auto& stack = *static_cast<Stack*>(context);
  stack.push_back({frame->code, frame->offset});
  return stack.size() < kDeepest ? 0 : 1;
}

// The stack as a new one, whose line is known by number.
uint32_t learn_stack(const Stack& stack, uint32_t line) {
  const WithPython python;
  for (const Instruction& at : stack) {
    learn_code(static_cast<PyCodeObject*>(const_cast<void*>(at.code)));
    learn_place(at);
  }
  const std::unique_lock<std::shared_mutex> guard(book().lock);
  if (book().stacks.size() >= kMostStacks || book().by_number.size() >= kMostPlaces) {
    return line;
  }
  const auto [known, is_new] = book().stacks.emplace(stack, static_cast<uint32_t>(book().by_number.size() + 1));
  if (is_new) {
    Place place = book().by_number[line - 1];
    place.stack = &known->first; // stays where it is
    book().by_number.push_back(std::move(place));
  }
  return known->second;
}

uint32_t find_stack() {
  thread_local Stack stack; // keeps its memory
  stack.clear();
  openreg_walk_frames(collect_instruction, &stack);
  if (stack.empty()) {
    return 0;
  }
  {
    const std::shared_lock<std::shared_mutex> guard(book().lock);
    if (const auto known = book().stacks.find(stack); known != book().stacks.end()) {
      return known->second;
    }
  }
  const uint32_t line = find_line();
  return line == 0 || !openreg_interpreter_is_alive() ? line : learn_stack(Stack(stack), line);
}

uint32_t here(int32_t wants_stack) noexcept {
  try {
    return wants_stack != 0 ? find_stack() : find_line();
  } catch (...) { // out of memory: the line is not known
    return 0;
  }
}

const char* text_of(uint32_t place, int32_t* allowed) noexcept {
  *allowed = 0;
  const std::shared_lock<std::shared_mutex> guard(book().lock);
  if (place == 0 || place > book().by_number.size()) {
    return "";
  }
  const Place& found = book().by_number[place - 1]; // stays where it is
  *allowed = found.allowed ? 1 : 0;
  return found.text.c_str();
}

const char* stack_of(uint32_t place) noexcept {
  const std::unique_lock<std::shared_mutex> guard(book().lock);
  if (place == 0 || place > book().by_number.size() || book().by_number[place - 1].stack == nullptr) {
    return "";
  }
  Place& found = book().by_number[place - 1];
  if (found.stack_text.empty()) {
    try {
      std::string text;
      for (const Instruction& at : *found.stack) {
        const auto line = book().places.find(at);
        text += "    " + (line == book().places.end() ? "?" : book().by_number[line->second - 1].text) + "\n";
      }
      found.stack_text = std::move(text);
    } catch (const std::bad_alloc&) {
      return "";
    }
  }
  return found.stack_text.c_str();
}

// Python's class of the exception, by PyTorch's own way through C++.
struct RaceError final : torch::PyTorchError {
  explicit RaceError(const char* message) : torch::PyTorchError(std::string(message)) {}
  PyObject* python_type() override {
    return book().exception;
  }
};

int find_whole_text(void* text, const openreg_race* race) {
  auto& wanted = *static_cast<std::string*>(text);
  if (std::strncmp(race->text, wanted.c_str(), wanted.size()) != 0) {
    return 0;
  }
  wanted = race->text;
  return 1;
}

void throw_race(const char* message) {
  if (std::strncmp(message, "race: ", 6) != 0) {
    return;
  }
  std::string text = message;
  if ((openreg_races_flags() & OPENREG_RACES_STACKS) != 0) { // the report has them, the error has not
    (void)openreg_races_visit(0, find_whole_text, &text);
  }
  throw RaceError(text.c_str());
}

// (class of the exception, folders of libraries): once, by Python.
PyObject* _racesPrepare(PyObject* /*self*/, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject* exception = nullptr;
  PyObject* folders = nullptr;
  if (PyArg_ParseTuple(arguments, "OO!:_races_prepare", &exception, &PyTuple_Type, &folders) == 0) {
    return nullptr;
  }
  TORCH_CHECK_TYPE(PyExceptionClass_Check(exception), "_races_prepare() takes a class of exceptions");
  auto libraries = py::reinterpret_borrow<py::tuple>(folders).cast<std::vector<std::string>>();
  {
    const std::unique_lock<std::shared_mutex> guard(book().lock);
    Py_INCREF(exception);
    Py_XDECREF(std::exchange(book().exception, exception));
    book().libraries = std::move(libraries);
  }
  const openreg_places places{nullptr, &here, &text_of, &stack_of};
  openreg_set_places(&places);
  c10::openreg::set_error_translator(&throw_race);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// (flags) -> the flags before.
PyObject* _racesSet(PyObject* /*self*/, PyObject* argument) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyLong_CheckExact(argument), "_races_set() takes an int");
  const unsigned long flags = PyLong_AsUnsignedLong(argument);
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  uint32_t before = 0;
  OPENREG_CHECK(openreg_races_set(flags > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(flags), &before));
  if (openreg_races_flags() == 0) { // an asynchronous copy switches it on
    c10::openreg::watch_host_uses(false);
    c10::openreg::drop_pending_race();
  }
  return PyLong_FromUnsignedLong(before);
  END_HANDLE_TH_ERRORS
}

PyObject* _racesFlags(PyObject* /*self*/, PyObject* /*unused*/) {
  return PyLong_FromUnsignedLong(openreg_races_flags());
}

PyObject* _racesCount(PyObject* /*self*/, PyObject* /*unused*/) {
  return PyLong_FromUnsignedLongLong(openreg_races_count());
}

PyObject* _racesClear(PyObject* /*self*/, PyObject* /*unused*/) {
  openreg_races_clear();
  Py_RETURN_NONE;
}

PyObject* _racesAllow(PyObject* /*self*/, PyObject* argument) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyBool_Check(argument), "_races_allow() takes a bool");
  openreg_races_allow(argument == Py_True ? 1 : -1);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

py::tuple use_of(const openreg_race_use& use) {
  return py::make_tuple(use.what, use.place, use.stack, use.device, use.stream, use.writes != 0);
}

int add_report(void* list, const openreg_race* race) {
  static_cast<py::list*>(list)->append(py::make_tuple(
      race->kind,
      use_of(race->first),
      use_of(race->second),
      race->address,
      race->size,
      race->block,
      race->offset,
      race->freed,
      race->remedy,
      race->text));
  return 0;
}

// (number of the first) -> the reports from there on, as tuples.
PyObject* _racesList(PyObject* /*self*/, PyObject* argument) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyLong_CheckExact(argument), "_races_list() takes an int");
  const unsigned long long from = PyLong_AsUnsignedLongLong(argument);
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  py::list reports;
  OPENREG_CHECK(openreg_races_visit(from, add_report, &reports));
  return reports.release().ptr();
  END_HANDLE_TH_ERRORS
}

} // namespace
} // namespace torch_openreg

void openreg_hold_race_places_over_forks() {
  (void)pthread_atfork( // fails only without memory; then a child may wait for a thread that it lacks
      torch_openreg::lock_for_fork,
      torch_openreg::unlock_after_fork,
      torch_openreg::renew_lock_in_child);
}

PyMethodDef openreg_race_methods[] = {
    {"_races_prepare", torch_openreg::_racesPrepare, METH_VARARGS, "Says what raises and which folders are libraries."},
    {"_races_set", torch_openreg::_racesSet, METH_O, "Switches detection; returns the flags before."},
    {"_races_flags", torch_openreg::_racesFlags, METH_NOARGS, "The flags of this moment."},
    {"_races_count", torch_openreg::_racesCount, METH_NOARGS, "Number of reports."},
    {"_races_clear", torch_openreg::_racesClear, METH_NOARGS, "Forgets the reports."},
    {"_races_allow", torch_openreg::_racesAllow, METH_O, "Begins (True) or ends (False) uses that are in no report."},
    {"_races_list", torch_openreg::_racesList, METH_O, "Reports from a number on."},
    {nullptr, nullptr, 0, nullptr},
};
