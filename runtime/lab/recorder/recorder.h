/* SPDX-License-Identifier: BSD-3-Clause */
/* recorder.h: inputs of the flight recorder (openreg/flight_recorder.h). Internal. Takes no lock. */
#ifndef OPENREG_SRC_RECORDER_H
#define OPENREG_SRC_RECORDER_H

#include <openreg/flight_recorder.h>

#include "calls.h"

/* A call begins: its ticket, 0 if the recorder is off. Texts are copied. */
uint64_t openreg_recorder_begin(uint32_t kind, const char *call, const char *name, int32_t device, const void *stream,
                                uint64_t bytes);
/* The call of that ticket has ended; 0 is accepted. */
void openreg_recorder_end(uint64_t ticket, openreg_status status);

/* A failure: writes the file, but only the first few times in a process. */
void openreg_recorder_alarm(void);

/* The functions of openreg/flight_recorder.h. */
openreg_status openreg_lab_recorder_start(uint32_t calls);
openreg_status openreg_lab_recorder_write(const char *path);

/* Attaches the layer to all drivers, or detaches it; call_layer.c. Any thread. */
void openreg_recorder_layer_switch(int on);

/* Applies the value of OPENREG_FLIGHT_RECORDER; no effect for NULL and "". Warns about a bad value. */
void openreg_recorder_read_variable(const char *text);

#endif
