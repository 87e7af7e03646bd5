/* gate.h: the one thread at a time that loads, opens or closes drivers (rule L7). Internal.
 *
 * Others wait on a condition, and a driver that calls back is refused. The wait hooks of openreg_set_wait_hooks() run
 * around the waiting and the whole time that the gate is held; no lock is held then. */
#ifndef OPENREG_SRC_GATE_H
#define OPENREG_SRC_GATE_H

#include <openreg/openreg.h>

/* Waits for the gate. Errors: OPENREG_E_FORKED; OPENREG_E_BUSY if this thread holds it already (a driver or factory
 * calls the runtime). */
openreg_status openreg_gate_enter(const char *call);
void openreg_gate_leave(void);

/* The errors of openreg_gate_enter(), without waiting. */
openreg_status openreg_gate_refuse(const char *call);
/* 1 while a thread holds it. */
int openreg_gate_is_held(void);

/* Runs the discovery callback, unless this thread is inside it; not with the gate held. */
void openreg_gate_discover(void);
/* openreg_gate_refuse(), openreg_gate_discover(), openreg_gate_enter(). */
openreg_status openreg_gate_enter_discovering(const char *call);

void openreg_gate_after_fork(void); /* in the child: nobody holds it any more */

#endif
