/* SPDX-License-Identifier: BSD-3-Clause */
/* candidates.c: the list of candidate drivers and their states (candidates.h). */
#define _GNU_SOURCE
#include "registry/candidates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/text.h"

static openreg_lock lock = OPENREG_LOCK_INITIALIZER;
static openreg_candidate *candidates[OPENREG_CANDIDATES_MAX];
static int candidate_count;
static unsigned changes;

void
openreg_candidates_lock(void)
{
    openreg_lock_acquire(&lock);
}

void
openreg_candidates_unlock(void)
{
    openreg_lock_release(&lock);
}

/* Held over fork(), so that the child's list is consistent. Only held briefly, and never while foreign code runs. */
__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_handle(OPENREG_FORK_CANDIDATES, &(openreg_fork_handlers){.prepare = openreg_candidates_lock,
                                                                          .parent = openreg_candidates_unlock,
                                                                          .child = openreg_candidates_unlock});
}

/* -------------------------------------------------------------------------------------------------------- the list */

openreg_candidate *
openreg_candidate_create(const char *name, openreg_source source, const char *origin, int32_t priority,
                         const char *path)
{
    openreg_candidate *const candidate = calloc(1, sizeof *candidate);
    if (candidate == NULL)
        return NULL;
    if (path != NULL && (candidate->wanted_path = strdup(path)) == NULL) {
        free(candidate);
        return NULL;
    }
    openreg_text_copy(candidate->name, sizeof candidate->name, name);
    openreg_text_copy(candidate->origin, sizeof candidate->origin, origin);
    candidate->path = openreg_loader_keep_path(path);
    candidate->source = source;
    candidate->priority = priority;
    candidate->device_count = candidate->first_device = -1;
    return candidate;
}

void
openreg_candidate_discard(openreg_candidate *candidate)
{
    if (candidate == NULL)
        return;
    openreg_options_free(&candidate->options);
    free(candidate->wanted_path);
    free(candidate);
}

static int
is_bundled_or_mock(const openreg_candidate *candidate)
{
    return candidate->source == OPENREG_SOURCE_BUNDLED || candidate->source == OPENREG_SOURCE_MOCK;
}

/* The position of a new one: a mock, or another path of a bundled library, takes the place of the one that it replaces, so
 * that the order of equal priorities stays; all others come last. */
static int
place_of(const openreg_candidate *candidate)
{
    for (int i = candidate_count; is_bundled_or_mock(candidate) && i > 0; --i)
        if (is_bundled_or_mock(candidates[i - 1]) && strcmp(candidates[i - 1]->name, candidate->name) == 0)
            return i;
    return candidate_count;
}

int
openreg_candidates_add_locked(openreg_candidate *candidate)
{
    if (candidate_count == OPENREG_CANDIDATES_MAX)
        return 0;
    const int place = place_of(candidate);
    memmove(&candidates[place + 1], &candidates[place], (size_t)(candidate_count - place) * sizeof candidates[0]);
    candidates[place] = candidate;
    ++candidate_count;
    return 1;
}

openreg_candidate *
openreg_candidates_at_locked(int i)
{
    return i < candidate_count ? candidates[i] : NULL;
}

openreg_candidate *
openreg_candidates_find_locked(const char *name)
{
    openreg_candidate *best = NULL;
    for (int i = 0; i < candidate_count; ++i) {
        openreg_candidate *const candidate = candidates[i];
        if (!candidate->hidden && strcmp(candidate->name, name) == 0 &&
            (best == NULL || candidate->source >= best->source))
            best = candidate;
    }
    return best;
}

openreg_candidate *
openreg_candidates_find_member_locked(const char *name)
{
    const char *const *members;
    const size_t count = openreg_driver_names_meant(&name, &members);
    openreg_candidate *first = NULL;
    for (size_t i = 0; i < count; ++i) {
        openreg_candidate *const member = openreg_candidates_find_locked(members[i]);
        if (member != NULL && member->state == OPENREG_DRIVER_STATE_OPEN)
            return member;
        first = first == NULL ? member : first;
    }
    return first;
}

openreg_candidate *
openreg_candidates_find_open_locked(const char *name)
{
    const char *const *members;
    const size_t count = openreg_driver_names_meant(&name, &members);
    for (size_t m = 0; m < count; ++m)
        for (int i = 0; i < candidate_count; ++i)
            if (candidates[i]->state == OPENREG_DRIVER_STATE_OPEN && strcmp(candidates[i]->name, members[m]) == 0)
                return candidates[i];
    return NULL;
}

int
openreg_candidate_is_listed_locked(const openreg_candidate *candidate)
{
    return !candidate->hidden || candidate->state == OPENREG_DRIVER_STATE_OPEN;
}

int
openreg_candidate_is_plugin(const openreg_candidate *candidate)
{
    return candidate->source == OPENREG_SOURCE_REGISTERED || candidate->source == OPENREG_SOURCE_LIBRARIES;
}

int
openreg_candidate_is_named(const openreg_candidate *candidate)
{
    return candidate->source == OPENREG_SOURCE_LIBRARIES || (candidate->flags & OPENREG_REGISTER_NAMED) != 0;
}

int
openreg_candidate_is_gpu(const openreg_candidate *candidate)
{
    const int is_simulated = candidate->has_table && (candidate->table.caps & OPENREG_CAP_SIMULATED) != 0;
    return openreg_candidate_is_plugin(candidate) ? !is_simulated && strcmp(candidate->name, "sim") != 0
                                                  : candidate->source != OPENREG_SOURCE_BUILT_IN;
}

openreg_candidate *
openreg_candidates_find(const char *name)
{
    openreg_candidates_lock();
    openreg_candidate *const found = openreg_candidates_find_locked(name);
    openreg_candidates_unlock();
    return found;
}

int
openreg_candidates_sorted(openreg_candidate *out[OPENREG_CANDIDATES_MAX])
{
    int count = 0;
    openreg_candidates_lock();
    for (int i = 0; i < candidate_count; ++i) {
        openreg_candidate *const candidate = candidates[i];
        if (openreg_candidates_find_locked(candidate->name) != candidate)
            continue;
        int at = count++; /* a stable insertion: equal priorities stay in order of age */
        for (; at > 0 && out[at - 1]->priority < candidate->priority; --at)
            out[at] = out[at - 1];
        out[at] = candidate;
    }
    openreg_candidates_unlock();
    return count;
}

int
openreg_candidates_namesakes(const char *name, openreg_candidate *out[OPENREG_CANDIDATES_MAX])
{
    int count = 0;
    openreg_candidates_lock();
    for (int i = 0; i < candidate_count; ++i)
        if (!candidates[i]->hidden && strcmp(candidates[i]->name, name) == 0)
            out[count++] = candidates[i];
    openreg_candidates_unlock();
    return count;
}

unsigned
openreg_candidates_changes(void)
{
    openreg_candidates_lock();
    const unsigned now = changes;
    openreg_candidates_unlock();
    return now;
}

void
openreg_candidates_note_change(void)
{
    openreg_candidates_lock();
    ++changes;
    openreg_candidates_unlock();
}

/* ---------------------------------------------------------------------------------------------------------- states */

static void
fail_locked(openreg_candidate *candidate, const openreg_error_fields *failure)
{
    candidate->state = OPENREG_DRIVER_STATE_FAILED;
    candidate->failure = *failure;
    candidate->failed_at = changes;
    candidate->device_count = candidate->first_device = -1;
}

void
openreg_candidate_fail_with(openreg_candidate *candidate, openreg_status code, const char *message)
{
    openreg_error_fields failure = {.code = code};
    openreg_text_copy(failure.text, sizeof failure.text, message);
    openreg_candidates_lock();
    fail_locked(candidate, &failure);
    openreg_candidates_unlock();
}

openreg_error_fields
openreg_candidate_failure(const openreg_candidate *candidate, const char *call, const openreg_error_fields *error)
{
    openreg_error_fields failure = *error;
    openreg_error_reason(error, call, candidate->name, failure.text, sizeof failure.text);
    failure.names_code = error->is_drivers || error->names_code;
    return failure;
}

void
openreg_candidate_fail(openreg_candidate *candidate, const char *call)
{
    const openreg_error_fields error = openreg_error_save();
    const openreg_error_fields failure = openreg_candidate_failure(candidate, call, &error);
    openreg_candidates_lock();
    fail_locked(candidate, &failure);
    candidate->was_tried = 1;
    openreg_candidates_unlock();
}

static void
set_state_locked(openreg_candidate *candidate, int32_t state, int32_t device_count)
{
    candidate->state = state;
    candidate->failure = (openreg_error_fields){.code = OPENREG_OK};
    candidate->device_count = device_count;
}

void
openreg_candidate_set_open(openreg_candidate *candidate, openreg_opened_driver *opened, int32_t device_count)
{
    openreg_candidates_lock();
    candidate->opened = opened;
    set_state_locked(candidate, OPENREG_DRIVER_STATE_OPEN, device_count);
    openreg_candidates_unlock();
}

void
openreg_candidate_set_state(openreg_candidate *candidate, int32_t state, int32_t device_count)
{
    openreg_candidates_lock();
    set_state_locked(candidate, state, device_count);
    openreg_candidates_unlock();
}

void
openreg_candidate_reset(openreg_candidate *candidate)
{
    openreg_candidates_lock();
    candidate->opened = NULL;
    if (candidate->factory != NULL)
        candidate->has_table = candidate->is_described = 0; /* it is called again */
    candidate->is_unloadable = candidate->is_missing = candidate->is_absent = candidate->was_tried = 0;
    candidate->first_device = -1;
    set_state_locked(candidate, candidate->has_table ? OPENREG_DRIVER_STATE_LOADED : OPENREG_DRIVER_STATE_FOUND, -1);
    openreg_candidates_unlock();
}

int
openreg_candidate_failed_before(const openreg_candidate *candidate)
{
    return candidate->state == OPENREG_DRIVER_STATE_FAILED && candidate->failure.code != OPENREG_E_NOMEM &&
           candidate->failed_at == openreg_candidates_changes();
}

void
openreg_candidate_note_tried(openreg_candidate *candidate)
{
    openreg_candidates_lock();
    candidate->was_tried = 1;
    openreg_candidates_unlock();
}
