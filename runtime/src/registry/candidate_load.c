/* SPDX-License-Identifier: BSD-3-Clause */
/* candidate_load.c: tables of candidates: built in, from libraries, or made by factories (candidates.h). */
#define _GNU_SOURCE
#include "registry/candidates.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"

typedef struct loaded {
    openreg_driver table;
    int has_table;
    int32_t described_devices; /* of a driver without a table */
    char version[64];
    const char *path; /* kept */
} loaded;

/* What a factory said when it failed. */
static openreg_status
factory_failure(const char *call, openreg_status status, const openreg_factory_result *result)
{
    const char *const text = result->message[0] != '\0' ? result->message : "its factory failed without a reason";
    const int is_known = status == OPENREG_E_INTERNAL || strcmp(openreg_status_name(status), "OPENREG_E_INTERNAL") != 0;
    return openreg_error_set(is_known ? status : OPENREG_E_INTERNAL, call, "%s", text);
}

static openreg_status
ask_factory(const char *call, openreg_candidate *candidate, loaded *out)
{
    openreg_factory_result result;
    memset(&result, 0, sizeof result);
    result.struct_size = sizeof result;
    const openreg_status status = candidate->factory(candidate->factory_context, &result);
    result.version[sizeof result.version - 1] = result.message[sizeof result.message - 1] = '\0';
    if (status != OPENREG_OK)
        return factory_failure(call, status, &result);

    const int given = (result.table != NULL) + (result.library_path != NULL) + (result.device_count != 0);
    if (given == 0)
        return openreg_error_set(OPENREG_E_NO_DEVICE, call, "Could not initialize driver '%s'", candidate->name);
    if (given > 1)
        return openreg_error_set(OPENREG_E_INVALID, call,
                                 "the factory gave more than one of table, library and devices");
    if (result.device_count < 0) {
        (void)openreg_error_set(OPENREG_E_NO_DEVICE, call, "Driver '%s' provides no devices.", candidate->name);
        return openreg_error_names_driver(candidate->name, 0);
    }
    if (result.device_count > 0) {
        out->described_devices = result.device_count;
        openreg_text_copy(out->version, sizeof out->version, result.version);
        return OPENREG_OK;
    }
    out->has_table = 1;
    const openreg_status accepted = result.table != NULL
                                        ? openreg_loader_accept(result.table, &out->table)
                                        : openreg_loader_load(result.library_path, candidate->name, &out->table,
                                                              &out->path, &candidate->is_missing);
    candidate->is_unloadable = accepted != OPENREG_OK;
    return accepted;
}

static openreg_status
read_table(const char *call, openreg_candidate *candidate, loaded *out)
{
    if (candidate->factory != NULL)
        return ask_factory(call, candidate, out);
    out->has_table = 1;
    const openreg_status status = candidate->query != NULL
                                      ? openreg_loader_query(candidate->query, candidate->name, &out->table)
                                      : openreg_loader_load(candidate->wanted_path, candidate->name, &out->table,
                                                            &out->path, &candidate->is_missing);
    candidate->is_unloadable = status != OPENREG_OK;
    return status;
}

openreg_status
openreg_candidate_load(const char *call, openreg_candidate *candidate)
{
    if (candidate->has_table || candidate->is_described)
        return OPENREG_OK;
    loaded now = {.path = ""};
    candidate->is_unloadable = candidate->is_missing = 0;
    const openreg_status status = read_table(call, candidate, &now);
    if (status != OPENREG_OK) {
        openreg_candidate_fail(candidate, call);
        return status;
    }
    openreg_candidates_lock();
    candidate->table = now.table;
    candidate->has_table = now.has_table;
    candidate->is_described = !now.has_table;
    openreg_text_copy(candidate->version, sizeof candidate->version, now.has_table ? now.table.version : now.version);
    candidate->path = now.path;
    openreg_candidates_unlock();
    openreg_candidate_set_state(candidate, OPENREG_DRIVER_STATE_LOADED, now.has_table ? -1 : now.described_devices);
    return OPENREG_OK;
}
