/* SPDX-License-Identifier: BSD-3-Clause */
// Walks the frames of the calling thread.
//
// A thread's frames change only while it runs Python, so it may read them without the GIL; what it mustn't do is count
// references. Python has no function for that, and the layout differs: it is known here for 3.10 (whose headers have it),
// and for 3.11 to 3.13, from the internal headers that belong to them. For other versions, those without a GIL, and
// Pythons whose internal headers are not installed, the public functions are called with the GIL; so they are, for its
// tests, with OPENREG_FRAMES_BY_PUBLIC_FUNCTIONS.
#if defined(__has_include)
#if __has_include(<internal/pycore_frame.h>)
#define OPENREG_HAS_INTERNAL_FRAMES
#endif
#endif
#ifdef OPENREG_HAS_INTERNAL_FRAMES
#define Py_BUILD_CORE
#endif
#include "csrc/base/frames.h"

#include "csrc/base/python_support.h"

#if PY_VERSION_HEX < 0x030B0000

#include <frameobject.h>

const int openreg_walking_takes_gil = 0;

void openreg_walk_frames(int (*see)(void* context, const openreg_frame* frame), void* context) {
  const PyThreadState* const state = PyGILState_GetThisThreadState();
  for (const PyFrameObject* at = state == NULL ? NULL : state->frame; at != NULL; at = at->f_back) {
    const openreg_frame frame = {at->f_code, at->f_lasti * 2};
    if (see(context, &frame) != 0) {
      return;
    }
  }
}

#elif defined(OPENREG_HAS_INTERNAL_FRAMES) && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED) && \
    !defined(OPENREG_FRAMES_BY_PUBLIC_FUNCTIONS)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wshadow"
#include <internal/pycore_frame.h>
#pragma GCC diagnostic pop

const int openreg_walking_takes_gil = 0;

static _PyInterpreterFrame* innermost(const PyThreadState* state) {
#if PY_VERSION_HEX < 0x030D0000
  return state->cframe == NULL ? NULL : state->cframe->current_frame;
#else
  return state->current_frame;
#endif
}

// Of a complete frame.
static PyCodeObject* code_of(const _PyInterpreterFrame* frame) {
#if PY_VERSION_HEX < 0x030D0000
  return frame->f_code;
#else
  return (PyCodeObject*)frame->f_executable;
#endif
}

void openreg_walk_frames(int (*see)(void* context, const openreg_frame* frame), void* context) {
  const PyThreadState* const state = PyGILState_GetThisThreadState();
  for (_PyInterpreterFrame* at = state == NULL ? NULL : innermost(state); at != NULL; at = at->previous) {
    if (_PyFrame_IsIncomplete(at)) {
      continue;
    }
    const openreg_frame frame = {code_of(at), _PyInterpreterFrame_LASTI(at) * (int)sizeof(_Py_CODEUNIT)};
    if (see(context, &frame) != 0) {
      return;
    }
  }
}

#else

const int openreg_walking_takes_gil = 1;

void openreg_walk_frames(int (*see)(void* context, const openreg_frame* frame), void* context) {
  if (PyGILState_GetThisThreadState() == NULL || !openreg_interpreter_is_alive()) {
    return;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyFrameObject* at = PyThreadState_GetFrame(PyThreadState_Get());
  int is_done = 0;
  while (at != NULL) {
    PyCodeObject* const code = PyFrame_GetCode(at);
    const openreg_frame frame = {code, PyFrame_GetLasti(at)};
    is_done = is_done != 0 || see(context, &frame) != 0;
    Py_DECREF(code); // the frame has another reference
    PyFrameObject* const outer = is_done ? NULL : PyFrame_GetBack(at);
    Py_DECREF(at);
    at = outer;
  }
  PyGILState_Release(gil);
}

#endif
