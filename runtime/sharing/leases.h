/* SPDX-License-Identifier: BSD-3-Clause */
/* leases.h: which processes hold memory that this one has exported. Internal to this folder.
 *
 * Every process that exports has a file in memory with a word for each handle. The word counts the holders; a handle that
 * has not been imported yet counts as one. Importers open the file through /proc, change the word and note their process id
 * there, so the exporter needs no thread: it finds releases, and importers that have ended, whenever it checks. */
#ifndef OPENREG_SHARING_LEASES_H
#define OPENREG_SHARING_LEASES_H

#include <stdbool.h>

#include "handle.h"

typedef struct openreg_lease_file openreg_lease_file; /* another process's, or this one's */

/* For the exporter. Takes an unused word, held once, completes the handle and stores it there. E_NOMEM: none is left. */
openreg_status openreg_lease_grant(const char *call, openreg_handle_fields *handle);
/* Called before a series of is_held(), so that each holder's process is checked only once. By one thread at a time, as
 * is_held(). */
void openreg_lease_look(void);
/* Whether a running process holds it, or an unknown one may. */
bool openreg_lease_is_held(uint32_t slot);
/* Frees the word of a handle without holders, or of one that was granted and never handed out. */
void openreg_lease_end(uint32_t slot);

/* Whether this very process has exported the handle. */
bool openreg_lease_is_ours(const openreg_handle_fields *handle);

/* For the importer. Holds the handle once more; the first import takes over the count of the export. *was_first is for
 * undo(). Afterwards the handle equals the exporter's, byte for byte.
 * Errors: OPENREG_E_INVALID, OPENREG_E_UNSUPPORTED, OPENREG_E_NOMEM. */
openreg_status openreg_lease_take(const char *call, const openreg_handle_fields *handle, openreg_lease_file **out,
                                  bool *was_first);
/* Undoes take(). */
void openreg_lease_undo(openreg_lease_file *file, uint32_t slot, bool was_first);
void openreg_lease_release(openreg_lease_file *file, uint32_t slot);

#endif
