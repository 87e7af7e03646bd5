/* selection.h: which drivers are opened, and the life of the device table. Internal. */
#ifndef OPENREG_SRC_SELECTION_H
#define OPENREG_SRC_SELECTION_H

#include <openreg/openreg.h>

#include "registry.h"

/* openreg_init() on behalf of `call`. */
openreg_status openreg_initialize(const char *call);

/* How a driver came to be tried. */
typedef enum openreg_choice {
    OPENREG_CHOICE_LISTED,    /* OPENREG_DRIVERS names it */
    OPENREG_CHOICE_BY_PATH,   /* OPENREG_DRIVER_LIBRARIES gives its library */
    OPENREG_CHOICE_BY_CALL,   /* it was registered */
    OPENREG_CHOICE_DISCOVERED /* found; its failure is quiet */
} openreg_choice;

/* Sets the error of rule L6 for a candidate that has failed: what was asked for by what, every place of that name with
 * its reason, the other drivers, and a way out. Returns the candidate's code. */
openreg_status openreg_report_asked_for(const char *call, const openreg_candidate *candidate, openreg_choice choice);

/* Sets the error for OPENREG_DRIVERS with a name that nobody knows. */
openreg_status openreg_report_unknown(const char *call, const char *name);

/* Sets the error for an automatic choice that found nothing. */
openreg_status openreg_report_none(const char *call);

#endif
