/* SPDX-License-Identifier: BSD-3-Clause */
/* leases.h: who, of all processes, holds memory that this one has exported. Internal to this folder.
 *
 * Every process that exports has a file in memory with a word a handle. The word counts the holders; a handle that has
 * not been imported yet is one. Importers open the file through /proc, change the word themselves and note their number
 * there, so the exporter needs no thread, and learns of releases, and of importers that have ended, whenever it looks. */
#ifndef OPENREG_SHARING_LEASES_H
#define OPENREG_SHARING_LEASES_H

#include <stdbool.h>

#include "handle.h"

typedef struct openreg_lease_file openreg_lease_file; /* another process's, or this one's */

/* The exporter's half. Takes an unused word, held once, completes the handle and notes it there. E_NOMEM: none is left. */
openreg_status openreg_lease_grant(const char *call, openreg_handle_fields *handle);
/* Before a number of calls of is_held(): each process that holds something is then looked at once. By one thread at a
 * time, as is_held(). */
void openreg_lease_look(void);
/* Whether a process that is still running holds it, or one that is not known may. */
bool openreg_lease_is_held(uint32_t slot);
/* Makes the word of a handle that nobody holds usable again; also one that was granted and never given away. */
void openreg_lease_end(uint32_t slot);

/* Whether this very process has exported the handle. */
bool openreg_lease_is_ours(const openreg_handle_fields *handle);

/* The importer's half. Holds the handle once more; the first time, takes over the count of the export. *was_first is for
 * undo(). After it the handle is byte for byte what the exporter has given away.
 * Errors: OPENREG_E_INVALID, OPENREG_E_UNSUPPORTED, OPENREG_E_NOMEM. */
openreg_status openreg_lease_take(const char *call, const openreg_handle_fields *handle, openreg_lease_file **out,
                                  bool *was_first);
/* As if take() had not been called. */
void openreg_lease_undo(openreg_lease_file *file, uint32_t slot, bool was_first);
void openreg_lease_release(openreg_lease_file *file, uint32_t slot);

#endif
