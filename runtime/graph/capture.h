/* SPDX-License-Identifier: BSD-3-Clause */
/* capture.h: captures of streams whose drivers don't capture by themselves: the runtime's calls are recorded. Internal to
 * runtime/graph. Any thread; errors are set on behalf of `call`. */
#ifndef OPENREG_GRAPH_CAPTURE_H
#define OPENREG_GRAPH_CAPTURE_H

#include <openreg/graphs.h>

#include "nodes.h"

openreg_status openreg_capture_begin(const char *call, int32_t device, openreg_stream stream, int32_t mode);
/* The nodes have one reference. *ended: whether the capture no longer exists. */
openreg_status openreg_capture_end(const char *call, int32_t device, openreg_stream stream, openreg_nodes **out,
                                   bool *ended);
/* OPENREG_CAPTURE_NONE, _ACTIVE or _INVALIDATED. */
int32_t openreg_capture_status(int32_t device, openreg_stream stream);
/* As openreg_graph_hold(). */
openreg_status openreg_capture_hold(const char *call, int32_t device, openreg_stream stream, openreg_hold_fn judge);
/* As openreg_graph_pass(). */
int32_t openreg_capture_pass(int32_t change);
/* This thread's mode, which decides whether memory may be released. */
int32_t openreg_capture_exchange_mode(int32_t mode);

#endif
