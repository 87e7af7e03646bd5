/* SPDX-License-Identifier: BSD-3-Clause */
// Where the calling thread is in a Python program. Valid C11 and C++20.
#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct openreg_frame {
  PyCodeObject* code; // borrowed: alive while the frame is, so until the calling function returns to Python
  int offset;         // of the instruction, in bytes
} openreg_frame;

// Whether openreg_walk_frames() takes the GIL where the thread has not got it: not on 3.10 to 3.13 with their headers.
extern const int openreg_walking_takes_gil;

// Calls `see` for the thread's frames, the innermost first, until it returns non-zero. Nothing is called in a thread that
// runs no Python.
void openreg_walk_frames(int (*see)(void* context, const openreg_frame* frame), void* context);

#ifdef __cplusplus
}
#endif
