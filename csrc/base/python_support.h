/* SPDX-License-Identifier: BSD-3-Clause */
// What the C files share: Python objects from the runtime's values, the runtime's values from Python objects, errors.
// Valid C11 and C++20. Every function needs the GIL unless it says otherwise. Those that return an object return a new
// reference, or NULL with an exception set; those that return an int return 0, or -1 with an exception set.
#pragma once

#include <Python.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// to[key] = value, and to.append(value). The reference to `value` is the callee's, also after a failure. A `value` of
// NULL is a failure whose exception is set: so a row of calls, joined by ||, stops at the first that fails, and nothing
// leaks.
int openreg_dict_put(PyObject* to, const char* key, PyObject* value);
int openreg_list_put(PyObject* to, PyObject* value);

// A str. What isn't UTF-8 in a text, because a driver wrote it or cut it off, becomes U+FFFD.
PyObject* openreg_text(const char* utf8);

// The characters of a str, valid as long as the str is. NULL with an exception set: TypeError "invalid argument to
// <function>" for any other object, ValueError for a NUL inside or what UTF-8 can't say.
const char* openreg_unpack_text(PyObject* argument, const char* function);

// The exception that is set, which is then set no more, or NULL without an exception; and the way back, which takes the
// reference.
PyObject* openreg_take_error(void);
void openreg_restore_error(PyObject* error);

// For callbacks that no exception may leave. Clears the exception that is set: Ctrl-C is raised by the main thread's
// next instruction instead, anything else is printed, with `where`.
void openreg_pass_on_error(const char* where);

// Whether this process still has a Python to call: false before, during and after its finalisation. Without the GIL.
bool openreg_interpreter_is_alive(void);

#ifdef __cplusplus
}
#endif
