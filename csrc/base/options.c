/* SPDX-License-Identifier: BSD-3-Clause */
#include "csrc/base/options.h"

#include "csrc/base/python_support.h"

static int unpack_item(PyObject* item, const char* function, openreg_option* to) {
  to->key = openreg_unpack_text(PyTuple_GET_ITEM(item, 0), function);
  if (to->key == NULL) {
    return -1;
  }
  to->value = openreg_unpack_text(PyTuple_GET_ITEM(item, 1), function);
  return to->value == NULL ? -1 : 0;
}

int openreg_unpack_options(PyObject* dict, const char* function, struct openreg_option_list* to) {
  const struct openreg_option_list none = {NULL, 0, NULL};
  *to = none;
  to->items = PyDict_Items(dict);
  if (to->items == NULL) {
    return -1;
  }
  to->count = (size_t)PyList_GET_SIZE(to->items);
  to->options = PyMem_Calloc(to->count, sizeof *to->options);
  if (to->options == NULL) {
    PyErr_NoMemory();
    goto fail;
  }
  for (size_t i = 0; i < to->count; ++i) {
    if (unpack_item(PyList_GET_ITEM(to->items, (Py_ssize_t)i), function, &to->options[i]) != 0) {
      goto fail;
    }
  }
  return 0;

fail:
  openreg_free_options(to);
  return -1;
}

void openreg_free_options(struct openreg_option_list* list) {
  PyMem_Free(list->options);
  Py_CLEAR(list->items);
  list->options = NULL;
  list->count = 0;
}
