/* SPDX-License-Identifier: BSD-3-Clause */
/* faults.c: decides which calls a plan hits (faults.h). */
#define _GNU_SOURCE
#include "faults/faults.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/parse.h"
#include "base/text.h"
#include "device/lab_access.h"
#include "driver/host_errors.h"
#include "recorder/recorder.h"

struct openreg_faults_s {
    openreg_fault_plan plan;
    const void *driver; /* NULL: every one */
    uint64_t hits;
    unsigned char lost[OPENREG_MAX_DEVICES];
    openreg_faults next;
};

static openreg_lock lock = OPENREG_LOCK_INITIALIZER; /* guards the variables below */
static openreg_faults plans;
static atomic_bool has_plans;

__attribute__((constructor)) static void
handle_forks(void)
{
    openreg_fork_hold(OPENREG_FORK_FAULTS, &lock);
}

/* ------------------------------------------------------------------------------------------------------- decisions */

/* A number determined by the seed, the fault and the count of its calls: splitmix64's finish. */
static uint64_t
draw(uint64_t seed, size_t item, uint64_t count)
{
    uint64_t z = seed * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)item * UINT64_C(0xd1b54a32d192ed03) + count;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z = (z ^ (z >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    return z ^ (z >> 31);
}

static int
hits(const openreg_fault *fault, uint64_t count, uint64_t drawn)
{
    if (fault->trigger == OPENREG_FAULT_AT)
        return count == fault->number;
    if (fault->trigger == OPENREG_FAULT_AFTER)
        return count > fault->number;
    return fault->trigger != OPENREG_FAULT_CHANCE || (drawn >> 32) < fault->number;
}

/* Read at each call: a program may set it after its start. */
static int
is_of_rank(int32_t rank)
{
    const char *const text = getenv("RANK");
    int64_t own = -1;
    return text != NULL && openreg_integer_read(text, strlen(text), 0, INT32_MAX, &own) && own == rank;
}

static int
concerns(const openreg_fault *fault, const openreg_fault_site *site)
{
    return (fault->calls & site->kind) != 0 && (fault->rank < 0 || is_of_rank(fault->rank)) &&
           (fault->device < 0 || fault->device == site->device) &&
           (fault->name[0] == '\0' || (site->name != NULL && strcmp(fault->name, site->name) == 0));
}

/* A fault hits the call; the lock is held. */
static void
act(openreg_faults from, const openreg_fault *fault, const openreg_fault_site *site, uint64_t count, uint64_t drawn,
    openreg_fault_verdict *out)
{
    char text[sizeof out->text];
    const int is_asynchronous = site->kind == OPENREG_CALL_OPERATOR;
    (void)snprintf(text, sizeof text, "a fault was planned for this: \"%s\" (call %llu)", fault->text,
                   (unsigned long long)count);
    openreg_status code = OPENREG_OK;
    switch (fault->action) {
    case OPENREG_FAULT_LOST:
        code = OPENREG_E_DEVICE_LOST;
        if (site->device >= 0)
            from->lost[site->device] = 1;
        break;
    case OPENREG_FAULT_NOMEM:
        code = OPENREG_E_NOMEM;
        break;
    case OPENREG_FAULT_ECC:
    case OPENREG_FAULT_CORRUPT:
        out->corrupts = 1;
        out->byte = draw(drawn, 0, 0);
        break;
    case OPENREG_FAULT_SLOW:
        out->factor = fault->factor > out->factor ? fault->factor : out->factor;
        break;
    case OPENREG_FAULT_PEER_DIES:
        out->peer = OPENREG_PEER_DIES;
        break;
    case OPENREG_FAULT_PEER_SILENT:
        out->peer = OPENREG_PEER_IS_SILENT;
        break;
    case OPENREG_FAULT_LATE:
        out->milliseconds += fault->milliseconds;
        break;
    case OPENREG_FAULT_KILLED:
        (void)kill(getpid(), SIGKILL);
        break;
    case OPENREG_FAULT_ERROR:
        out->is_skipped = !is_asynchronous;
        break;
    }
    if (fault->action == OPENREG_FAULT_ERROR || fault->action == OPENREG_FAULT_ECC)
        openreg_host_error_leave(from, site->device, site->stream, OPENREG_E_INTERNAL, text);
    else if (code != OPENREG_OK && is_asynchronous)
        openreg_host_error_leave(from, site->device, site->stream, code, text);
    else if (code != OPENREG_OK && out->status == OPENREG_OK)
        out->status = code;
    openreg_text_copy(out->text, sizeof out->text, text);
}

void
openreg_faults_ask(const openreg_fault_site *site, openreg_fault_verdict *out)
{
    *out = (openreg_fault_verdict){.status = OPENREG_OK, .factor = 1};
    if (!atomic_load_explicit(&has_plans, memory_order_relaxed)) /* only the flight recorder uses the layer */
        return;
    openreg_lock_acquire(&lock);
    for (openreg_faults from = plans; from != NULL; from = from->next) {
        if (from->driver != NULL && from->driver != site->driver)
            continue;
        for (size_t i = 0; i < from->plan.count; ++i) {
            openreg_fault *const fault = &from->plan.items[i];
            if (!concerns(fault, site))
                continue;
            const uint64_t count = ++fault->seen;
            const uint64_t drawn = draw(from->plan.seed, i, count);
            if (!hits(fault, count, drawn))
                continue;
            from->hits++;
            act(from, fault, site, count, drawn, out);
        }
    }
    openreg_lock_release(&lock);
    struct timespec left = {out->milliseconds / 1000, out->milliseconds % 1000 * 1000000L};
    while (out->milliseconds > 0 && nanosleep(&left, &left) != 0) {
    }
}

/* ------------------------------------------------------------------------------------------------------------ plans */

openreg_status
openreg_faults_add(const char *call, const char *what, const char *plan, const void *driver, openreg_faults *out)
{
    char why[640];
    openreg_faults const faults = calloc(1, sizeof *faults);
    why[0] = '\0';
    if (faults == NULL || !openreg_fault_plan_read(plan, &faults->plan, why, sizeof why)) {
        if (faults != NULL)
            free(faults->plan.items);
        free(faults);
        return why[0] == '\0'
                   ? openreg_error_set(OPENREG_E_NOMEM, call, "no host memory for a plan of faults")
                   : openreg_error_set(OPENREG_E_INVALID, call, "%s is not a valid fault plan: %s", what, why);
    }
    const char *const seed = faults->plan.has_seed ? NULL : openreg_variable("OPENREG_SIM_SEED");
    int64_t value = 0;
    if (seed != NULL && openreg_integer_read(seed, strlen(seed), 0, INT64_MAX, &value))
        faults->plan.seed = (uint64_t)value;
    faults->driver = driver;
    openreg_lock_acquire(&lock);
    faults->next = plans;
    plans = faults;
    atomic_store_explicit(&has_plans, true, memory_order_relaxed);
    openreg_fault_layer_switch(1);
    openreg_lock_release(&lock);
    *out = faults;
    return OPENREG_OK;
}

openreg_status
openreg_lab_faults_begin(const char *plan, openreg_faults *out)
{
    static const char call[] = "openreg_faults_begin";
    if (plan == NULL || out == NULL)
        return openreg_error_set(OPENREG_E_INVALID, call, "plan and out must not be NULL");
    return openreg_faults_add(call, "the text", plan, NULL, out);
}

void
openreg_lab_faults_end(openreg_faults faults)
{
    if (faults == NULL)
        return;
    openreg_lock_acquire(&lock);
    openreg_faults *at = &plans;
    while (*at != faults)
        at = &(*at)->next;
    *at = faults->next;
    openreg_host_errors_drop(faults);
    atomic_store_explicit(&has_plans, plans != NULL, memory_order_relaxed);
    if (plans == NULL)
        openreg_fault_layer_switch(0);
    openreg_lock_release(&lock);
    for (int32_t i = 0; i < OPENREG_MAX_DEVICES; ++i)
        if (faults->lost[i])
            openreg_lab_heal(i);
    free(faults->plan.items);
    free(faults);
}

uint64_t
openreg_lab_faults_hits(openreg_faults faults)
{
    if (faults == NULL)
        return 0;
    openreg_lock_acquire(&lock);
    const uint64_t count = faults->hits;
    openreg_lock_release(&lock);
    return count;
}

/* ------------------------------------------------------------------------------------- calls that reach no driver */

int32_t
openreg_lab_faults_of_collective(int32_t device)
{
    static const char call[] = "openreg_faults_of_collective";
    if (device >= 0) /* of the CPU's tensors it is nothing of a device */
        openreg_recorder_end(openreg_recorder_begin(OPENREG_CALL_COLLECTIVE, call, "", device, NULL, 0), OPENREG_OK);
    const openreg_fault_site site = {openreg_lab_driver_of(device), device, OPENREG_CALL_COLLECTIVE, NULL, NULL};
    openreg_fault_verdict verdict;
    openreg_faults_ask(&site, &verdict);
    return verdict.peer;
}

/* The recorder gets it at its end, as its begin is not known. */
void
openreg_lab_operator_ended(int32_t device, openreg_stream stream, const char *name)
{
    const void *driver = NULL;
    openreg_driver_stream handle = NULL;
    openreg_fault_verdict verdict;
    if (!openreg_is_instrumented() || name == NULL || !openreg_lab_stream_of(device, stream, &driver, &handle))
        return;
    openreg_recorder_end(openreg_recorder_begin(OPENREG_CALL_OPERATOR, "", name, device, handle, 0), OPENREG_OK);
    const openreg_fault_site site = {driver, device, OPENREG_CALL_OPERATOR, handle, name};
    openreg_faults_ask(&site, &verdict);
}
