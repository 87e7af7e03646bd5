/* SPDX-License-Identifier: BSD-3-Clause */
// Walks the frames of the calling thread.
//
// A thread's frames change only while it runs Python, so it may read them without the GIL; what it mustn't do is count
// references. Python has no function for that: the layout is known here for one version.
#define PY_SSIZE_T_CLEAN
#if defined(__has_include)
#if __has_include(<internal/pycore_frame.h>)
#define OPENREG_HAS_INTERNAL_FRAMES
#endif
#endif
#ifdef OPENREG_HAS_INTERNAL_FRAMES
#define Py_BUILD_CORE
#endif
#include "csrc/frames.h"

#include "csrc/python_support.h"

#if defined(OPENREG_HAS_INTERNAL_FRAMES) && PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wshadow"
#include <internal/pycore_frame.h>
#pragma GCC diagnostic pop

const int openreg_walking_takes_gil = 0;

void openreg_walk_frames(int (*see)(void* context, const openreg_frame* frame), void* context) {
  const PyThreadState* const state = PyGILState_GetThisThreadState();
  if (state == NULL || state->cframe == NULL) {
    return;
  }
  for (_PyInterpreterFrame* at = state->cframe->current_frame; at != NULL; at = at->previous) {
    if (_PyFrame_IsIncomplete(at)) {
      continue;
    }
    const openreg_frame frame = {at->f_code, _PyInterpreterFrame_LASTI(at) * (int)sizeof(_Py_CODEUNIT)};
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
#if PY_VERSION_HEX >= 0x030B0000
    const int offset = PyFrame_GetLasti(at);
#else
    const int offset = at->f_lasti * 2;
#endif
    const openreg_frame frame = {code, offset};
    is_done = is_done != 0 || see(context, &frame) != 0;
    Py_DECREF(code); // the frame has another reference
    PyFrameObject* const outer = is_done ? NULL : PyFrame_GetBack(at);
    Py_DECREF(at);
    at = outer;
  }
  PyGILState_Release(gil);
}

#endif
