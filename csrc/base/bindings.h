/* SPDX-License-Identifier: BSD-3-Clause */
// The files of torch_openreg._C. Valid C11 and C++20. Those of optional/ are modules of their own, torch_openreg._C_<part>.
//
// A file that uses Python and the runtime alone is C; a file is C++ where it has tensors, storages or other classes of
// PyTorch. In both languages a binding is a plain function of Python's C API, listed in its file's table of methods:
// current_device() and its like are called in the inner loops of user code. pybind11 makes the module and holds
// references in C++; the classes that it binds are derived from one of PyTorch's (collectives.cpp).
//
// In C, what may wait is called between Py_BEGIN_ALLOW_THREADS and Py_END_ALLOW_THREADS, a status becomes an exception
// by openreg_raise() (torch_calls.h), and dicts and lists are filled by python_support.h. In C++ a binding's body is
// between HANDLE_TH_ERRORS and END_HANDLE_TH_ERRORS.
#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

// The functions of each file, ended by a row of zeros.
extern PyMethodDef openreg_autograd_methods[];
extern PyMethodDef openreg_discovery_methods[];
extern PyMethodDef openreg_driver_methods[];
extern PyMethodDef openreg_event_methods[];
extern PyMethodDef openreg_laboratory_methods[];
extern PyMethodDef openreg_log_methods[];
extern PyMethodDef openreg_memory_methods[];
extern PyMethodDef openreg_memory_history_methods[];
extern PyMethodDef openreg_memory_pool_methods[];
extern PyMethodDef openreg_operator_methods[];
extern PyMethodDef openreg_trace_methods[];
extern PyMethodDef openreg_race_methods[];
extern PyMethodDef openreg_record_methods[];
extern PyMethodDef openreg_registration_methods[];
extern PyMethodDef openreg_sharing_methods[];
extern PyMethodDef openreg_stream_methods[];

// recorder_places.c: has the flight recorder note lines of the program. Once, when the module is loaded.
void openreg_tell_recorder_places(void);
// "file:line in function" of the calling thread, as openreg_set_places() wants it. Only where openreg_walking_takes_gil (frames.h) is 0.
int openreg_find_place(char* out, size_t size);

// races.cpp: holds the lock of its lines over each fork. Once, when the module is loaded and the runtime is not used yet: so
// the runtime's locks, under which it is taken, are held before it.
void openreg_hold_race_places_over_forks(void);

// gil.c: lets threads that wait inside the runtime release the GIL. Once, when the module is loaded.
void openreg_install_wait_hooks(void);
// What these call: NULL, and nothing to take back, in a thread that doesn't hold the GIL.
void* openreg_release_gil(void);
void openreg_take_gil_back(void* thread_state);
// drivers.c: closes the drivers. None, or NULL with an exception set. The caller forgets what it derived from them.
PyObject* openreg_close_drivers(void);

#ifdef __cplusplus
}
#endif
