// SPDX-License-Identifier: BSD-3-Clause
// The line of the program for the flight recorder: place() of openreg_set_places() (openreg/embedding.h). Any call of a
// driver may call it, with any lock held, so it takes neither the GIL nor a reference: it finds lines only where frames can
// be read without the GIL (frames.h). As the recorder limits how long a call may take, each thread keeps the lines that it
// has found: finding one again costs no more than the walk to its frame.
#include <Python.h>

#include <openreg/embedding.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "csrc/base/bindings.h"
#include "csrc/base/frames.h"

enum { KNOWN_CODE = 256, KNOWN_LINES = 64, TEXT = 80 };

// Code objects go, and their addresses come back: the name of their file and their first line tell most others apart. One
// that is taken for another shows a wrong line and does no harm.
typedef struct identity {
  const PyCodeObject* code;
  const PyObject* file;
  int first_line;
} identity;

static _Thread_local struct {
  struct {
    identity of;
    bool is_library;
  } code[KNOWN_CODE];
  struct {
    identity of;
    int offset;
    char text[TEXT];
  } lines[KNOWN_LINES];
} known;

static identity identify(const PyCodeObject* code) {
  return (identity){code, code->co_filename, code->co_firstlineno};
}

static bool is_same(const identity* a, const identity* b) {
  return a->code == b->code && a->file == b->file && a->first_line == b->first_line;
}

// The characters of a str that is ASCII, which every such object has; NULL for others.
static const char* ascii(const PyObject* text) {
  return PyUnicode_IS_COMPACT_ASCII(text) ? (const char*)((const PyASCIIObject*)text + 1) : NULL;
}

static bool names_library(const char* file) {
  return file == NULL || file[0] == '<' || strstr(file, "/site-packages/") != NULL ||
      strstr(file, "/lib/python3") != NULL || strstr(file, "/torch_openreg/") != NULL;
}

static bool is_library(const PyCodeObject* code) {
  const identity now = identify(code);
  const size_t at = ((uintptr_t)code >> 4) % KNOWN_CODE;
  if (!is_same(&known.code[at].of, &now)) {
    known.code[at].of = now;
    known.code[at].is_library = names_library(ascii(code->co_filename));
  }
  return known.code[at].is_library;
}

// The innermost line of the program's own; in libraries alone, the innermost.
static int see_frame(void* context, const openreg_frame* frame) {
  openreg_frame* const found = context;
  const bool library = is_library(frame->code);
  if (found->code == NULL || !library) {
    *found = *frame;
  }
  return library ? 0 : 1;
}

static void describe(const openreg_frame* frame, char* text) {
  const char* const file = ascii(frame->code->co_filename);
  const char* const function = ascii(frame->code->co_name);
  const char* const slash = file == NULL ? NULL : strrchr(file, '/');
  const char* const name = slash != NULL ? slash + 1 : file;
  (void)snprintf(
      text,
      TEXT,
      "%.38s:%d in %.30s",
      name == NULL ? "?" : name,
      PyCode_Addr2Line(frame->code, frame->offset),
      function == NULL ? "?" : function);
}

int openreg_find_place(char* out, size_t size) {
  openreg_frame found = {NULL, 0};
  openreg_walk_frames(see_frame, &found);
  if (found.code == NULL) {
    return 0;
  }
  const identity now = identify(found.code);
  const size_t at = (((uintptr_t)found.code >> 4) + (size_t)found.offset / 2) % KNOWN_LINES;
  if (!is_same(&known.lines[at].of, &now) || known.lines[at].offset != found.offset) {
    describe(&found, known.lines[at].text);
    known.lines[at].of = now;
    known.lines[at].offset = found.offset;
  }
  if (size < TEXT) {
    return 0;
  }
  memcpy(out, known.lines[at].text, TEXT);
  return 1;
}

void openreg_tell_recorder_places(void) {
  static const openreg_places places = {.place = openreg_find_place};
  if (openreg_walking_takes_gil == 0) {
    openreg_set_places(&places);
  }
}
