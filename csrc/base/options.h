/* SPDX-License-Identifier: BSD-3-Clause */
// Options of a driver, from a Python dict of texts.
#pragma once

#include <Python.h>
#include <openreg/driver.h>
#include <stddef.h>

struct openreg_option_list {
  openreg_option* options; // their texts belong to the strs in `items`
  size_t count;
  PyObject* items; // holds them: the dict may change during the call
};

// Fills `to`, which openreg_free_options() frees. Returns -1, with nothing to free and an exception set, for a key or
// value that is no str (TypeError "invalid argument to <function>") or that has a NUL inside (ValueError). Both functions
// need the GIL.
int openreg_unpack_options(PyObject* dict, const char* function, struct openreg_option_list* to);
void openreg_free_options(struct openreg_option_list* list);
