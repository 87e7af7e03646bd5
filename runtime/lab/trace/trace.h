/* SPDX-License-Identifier: BSD-3-Clause */
/* trace.h: the functions of openreg/trace.h. Internal. */
#ifndef OPENREG_LAB_TRACE_H
#define OPENREG_LAB_TRACE_H

#include <openreg/trace.h>

openreg_status openreg_lab_trace_start(const openreg_tracer *tracer);
openreg_status openreg_lab_trace_flush(void);
openreg_status openreg_lab_trace_stop(void);

#endif
