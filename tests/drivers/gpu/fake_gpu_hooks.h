/* SPDX-License-Identifier: BSD-3-Clause */
/* fake_gpu_hooks.h: how a test sees into the fake GPU libraries, libopenreg_cuda_fake.so and the like. Valid C and C++.
 *
 * Those are the drivers' own objects with a fake of the vendor's runtime linked in. The fake reads its variables at the
 * first use and at reset():
 *   FAKE_GPU_DEVICES            number of devices, 2
 *   FAKE_GPU_MEMORY             bytes of each, 256 MiB
 *   FAKE_GPU_GRANULARITY        bytes of the pieces in which memory is mapped, 2 MiB
 *   FAKE_GPU_DRIVER_VERSION, FAKE_GPU_RUNTIME_VERSION   what the vendor's functions of that name answer
 *   FAKE_GPU_DELAY_US           how long each copy and fill takes, 0
 *   FAKE_GPU_PEERS              "all" (default), "none", or pairs as "01,10": device 0 reaches 1 and 1 reaches 0
 *   FAKE_GPU_STAGING            0: a peer copy without access is refused; 1 (default): it is done
 *   FAKE_GPU_FAIL               failures, as "Malloc:3:2,EventSynchronize:0:719": name:nth call:code, 0 is every call;
 *                               "Task" is the work that a stream does
 *   FAKE_GPU_NVML               0: libnvidia-ml.so.1 is not installed; "old": it lacks functions
 *   FAKE_GPU_MIG                a character a device: "-", or the number of its MIG instances, in MIG mode; default all "-"
 *   FAKE_GPU_NCCL               0: libnccl.so.2 (librccl.so.1) is not installed; as "/opt/nccl.so" it always is
 *   FAKE_GPU_NCCL_VERSION       what ncclGetVersion() answers, 22809
 *   FAKE_GPU_NCCL_DELAY_US      how long each collective waits before it begins, 0; of communicators that are made then
 *   FAKE_GPU_LIBRARY            the one soname of libamdhip64 that is installed; 0: it is not installed; default all
 *   FAKE_GPU_OPENED             the soname of libamdhip64 that is in the process already
 *   FAKE_GPU_PLAIN_TEXTS        1: the text of an error is its name, as HIP's before 5.3
 *   FAKE_GPU_EARLY_PROPERTIES   1: the properties of memory that is mapped are in the order that HIP 5.2 has
 *   FAKE_GPU_FORGETS            1: a call that succeeds takes the thread's last error away, as HIP's before 7
 *   FAKE_GPU_MISSING            a function that libamdhip64, CUDA's driver or NCCL lacks
 *   FAKE_GPU_ROOT               directory below which /dev, /proc and /sys are looked for */
#ifndef OPENREG_TESTS_DRIVERS_FAKE_GPU_HOOKS_H
#define OPENREG_TESTS_DRIVERS_FAKE_GPU_HOOKS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_GPU_HOOKS_NAME "fake_gpu_test_hooks"

typedef struct fake_gpu_hooks {
    /* Waits for all work, frees everything, forgets contexts and errors, reads the variables again. */
    void (*reset)(void);
    /* Devices with a context: bit d is device d. */
    uint32_t (*contexts)(void);
    /* The vendor's current device of this thread; never makes a context. */
    int (*current_device)(void);
    /* 1 if this thread has a current context (CUDA; HIP has none to be current). */
    int (*has_current_context)(void);
    /* As another user of the vendor's runtime: changes this thread's device. */
    void (*set_device)(int dev);
    /* The thread's last error, which stays; leaves one there; takes it as GetLastError() does. */
    int (*peek_error)(void);
    void (*leave_error)(int code);
    int (*take_error)(void);
    void (*set_delay)(int microseconds);
    /* Keeps the stream (NULL: the default one) from working, or lets it again. A stream that is held for long goes on
     * by itself, so that a test of a driver that waits for it fails rather than hangs. */
    void (*hold)(int dev, const void *stream, int is_held);
    void (*set_failures)(const char *list);
    /* Number of calls of a vendor's function since reset(). */
    int (*calls)(const char *name);
    /* Live "memory", "host", "stream", "event", "import", "communicator"; of mapped memory "reservation", "handle", "mapping". */
    int (*live)(const char *kind);
    /* How often memory was freed or unmapped while queued work was going to use it, a host function of a stream called
     * the vendor, or something was mapped over what is mapped, unmapped that is not, freed that still is, or copied
     * without access. */
    int (*violations)(void);
    /* The host's view of device memory, NULL if it is none. */
    void *(*alias)(const void *ptr);
    /* Whose memory an address is, -1 if no device's. */
    int (*device_of)(const void *ptr);
    /* As another thread that captures a graph in the global mode, which calls that the vendor takes for unsafe end.
     * end_capture(): 1 if none did, and this thread's own mode is what it was. */
    void (*begin_capture)(void);
    int (*end_capture)(void);
} fake_gpu_hooks;

typedef const fake_gpu_hooks *(*fake_gpu_hooks_fn)(void);

#ifdef __cplusplus
}
#endif
#endif
