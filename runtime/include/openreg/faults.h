/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/faults.h: injected failures of devices, to test how a program handles them: memory runs out, work fails, a device
 * or a peer is lost. Part of the C API: the rules of openreg.h on errors, threads and start hold here. Not stable: it
 * is version 0, and may change in any release. Valid C11 and C++17.
 *
 *   openreg_faults faults;
 *   openreg_faults_begin("openreg:1 lost after 200 copies; nomem 5%", &faults);
 *   ...
 *   openreg_faults_end(faults);
 *
 * A plan is also the option `faults` of a driver, for its own devices, from open() to close(): OPENREG_SIM_FAULTS for
 * the simulated ones, OPENREG_<NAME>_FAULTS for any other driver. A layer between the runtime and the driver injects the
 * faults; it appears in no report. Without a plan there is no such layer.
 *
 * A plan is a list of faults, separated by ";", each of words in this order:
 *   [rank N] [openreg:N] [WHAT] ACTION [at [WHAT] N | after N [WHAT] | P%] [of WHAT]
 *   rank N      in processes whose variable RANK is N, as torchrun sets it; without it, in all
 *   openreg:N   on this device only; without it, on all
 *   WHAT        which calls are counted and hit: copies, fills, kernels, functions (host functions), work (all four),
 *               operators (that PyTorch runs, and kernels), records, waits (of the host), calls (work, records, waits
 *               and segments), allocations (requested by the program), segments (requested from the driver by the
 *               allocator), collectives; or the name of an operator or kernel, "aten::mm". "op" is short for operators;
 *               the singular works too.
 *   at N        hits the N-th call, once; after N: each one behind the N-th; P%: each one with that probability,
 *               which follows the seed; nothing: each one
 *   ACTION      lost     the call fails with OPENREG_E_DEVICE_LOST, and with it all others of the device (calls)
 *               nomem    there is no memory (allocations, or segments, of which the allocator survives one)
 *               error    the work is not done, and the next query or wait of that stream, or wait of the device, fails
 *                        with OPENREG_E_INTERNAL; an operator that the host runs is done, but the error is reported all
 *                        the same (operators, work or one of its parts)
 *               ecc      one copied byte is wrong, and an error is reported as for `error` (copies)
 *               corrupt  one copied byte is wrong, and no error is reported (copies)
 *               slow Fx  takes F times as long (copies)
 *               peer dies, peer silent   a collective fails at once, or after its group's timeout (collectives)
 *               late Ts  the call first waits T seconds (collectives, operators, work, records, waits)
 *               killed   SIGKILL ends the process (the same calls)
 * "seed N" as an item of its own is the seed of the probabilities and of which byte is hit; without it that is
 * OPENREG_SIM_SEED, else 0. So a plan hits the same calls in each run of a program that makes the same calls. */
#ifndef OPENREG_FAULTS_H
#define OPENREG_FAULTS_H

#include <openreg/lab.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Adds a plan for all devices. Several plans may be active; each counts calls on its own. Needs no device.
 * Errors: OPENREG_E_INVALID (not a plan: the text names the word), OPENREG_E_NOMEM. */
OPENREG_WARN_UNUSED static inline openreg_status
openreg_faults_begin(const char *plan, openreg_faults *out)
{
    const openreg_lab *const lab = openreg_lab_get();
    return lab != NULL ? lab->faults_begin(plan, out) : OPENREG_E_INCOMPATIBLE;
}

/* Ends a plan. Devices that it made lost, and no others, are usable again; an error that no call has reported is
 * forgotten. NULL is accepted. Never fails. */
static inline void
openreg_faults_end(openreg_faults faults)
{
    const openreg_lab *const lab = openreg_lab_peek();
    if (lab != NULL)
        lab->faults_end(faults);
}

/* How often the plan's faults have hit. 0 for NULL. */
static inline uint64_t
openreg_faults_hits(openreg_faults faults)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->faults_hits(faults) : 0;
}

#define OPENREG_PEER_OK 0
#define OPENREG_PEER_DIES 1
#define OPENREG_PEER_IS_SILENT 2

/* For libraries that run collectives. Counts one, and returns what its peer does (OPENREG_PEER_*). `device` is where the
 * tensors are, or OPENREG_HOST. Never fails. */
static inline int32_t
openreg_faults_of_collective(int32_t device)
{
    const openreg_lab *const lab = openreg_lab_peek();
    return lab != NULL ? lab->faults_of_collective(device) : OPENREG_PEER_OK;
}

/* For libraries that run operators on the host in a device's memory: one has ended on the stream. Never fails: the stream
 * reports the error of a fault. `name` is the operator's, "aten::mm". */
static inline void
openreg_operator_ended(int32_t device, openreg_stream stream, const char *name)
{
    const openreg_lab *const lab = openreg_lab_peek();
    if (lab != NULL)
        lab->operator_ended(device, stream, name);
}

/* 1 while openreg_operator_ended() and openreg_faults_of_collective() have an effect, else 0: one load. */
static inline int
openreg_is_instrumented(void)
{
    return (openreg_observed() & OPENREG_OBSERVE_WORK) != 0;
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_FAULTS_H */
