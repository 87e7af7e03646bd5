/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_error.c: what the vendor's errors mean, and whose they are (gpu.h).
 *
 * The vendor's runtime keeps the last error of each thread until somebody asks for it, and PyTorch's own CUDA code asks
 * after each kernel that it starts. So an error that a call of ours made is taken back: it is reported by us, and would
 * be blamed on that kernel. An error that was there before stays, unless the vendor has put ours in its place; then it
 * is logged. An error that ends a context can't be taken back, and nothing here tries. */
#include "gpu.h"

#include <string.h>

typedef struct error_rule {
    int code;
    openreg_status status;
    const char *advice;
} error_rule;

#define ADVICE_LOST "the device is lost to this process; CUDA_LAUNCH_BLOCKING=1 shows which operation it was"
#define ADVICE_HARDWARE "the device is lost to this process; see the kernel's log (dmesg) and the vendor's tools"
#define ADVICE_DRIVER "install a newer driver for the device"
#define ADVICE_BUSY "another process holds the device; see the vendor's tools"
#define ADVICE_START                                                                                                   \
    "a process made by fork() can't use a device that its parent has used: use spawn; else see the kernel's log "      \
    "(dmesg), and whether this user may open the device files"
#define ADVICE_MPS "see the MPS server's log"

/* The numbers are those of both vendors, and of CUDA's driver API too. */
static const error_rule rules[] = {
    {1, OPENREG_E_INVALID, ""},                                               /* InvalidValue */
    {2, OPENREG_E_NOMEM, "free memory of the device, or use less at a time"}, /* MemoryAllocation */
    {3, OPENREG_E_NO_DEVICE, ADVICE_START},
    {4, OPENREG_E_INTERNAL, "the process is ending, and the vendor's library has ended before"},
    {17, OPENREG_E_INVALID, ""}, /* InvalidDevicePointer */
    {21, OPENREG_E_INVALID, ""}, /* InvalidMemcpyDirection */
    {34, OPENREG_E_INCOMPATIBLE, "a stub of the driver's library was loaded: check LD_LIBRARY_PATH"},
    {35, OPENREG_E_INCOMPATIBLE, ADVICE_DRIVER}, /* InsufficientDriver */
    {36, OPENREG_E_INCOMPATIBLE, ADVICE_DRIVER}, /* CallRequiresNewerDriver */
    {46, OPENREG_E_NO_DEVICE, ADVICE_BUSY},      /* DevicesUnavailable */
    {100, OPENREG_E_NO_DEVICE, "the vendor's variable of visible devices may hide those that there are"},
    {101, OPENREG_E_INVALID, ""},                               /* InvalidDevice */
    {102, OPENREG_E_INCOMPATIBLE, "the device has no licence"}, /* DeviceNotLicensed */
    {201, OPENREG_E_INVALID, ""},                               /* DeviceUninitialized */
    {209, OPENREG_E_INCOMPATIBLE, ""},                          /* NoKernelImageForDevice */
    {214, OPENREG_E_DEVICE_LOST, ADVICE_HARDWARE},              /* ECCUncorrectable */
    {215, OPENREG_E_UNSUPPORTED, ""},                           /* UnsupportedLimit */
    {216, OPENREG_E_NO_DEVICE, ADVICE_BUSY},                    /* DeviceAlreadyInUse */
    {217, OPENREG_E_UNSUPPORTED, ""},                           /* PeerAccessUnsupported */
    {220, OPENREG_E_DEVICE_LOST, ADVICE_HARDWARE},              /* NvlinkUncorrectable */
    {226, OPENREG_E_DEVICE_LOST, ADVICE_HARDWARE},              /* Contained */
    {400, OPENREG_E_INVALID, ""},                               /* InvalidResourceHandle */
    {401, OPENREG_E_INVALID, ""},                               /* IllegalState */
    {500, OPENREG_E_INCOMPATIBLE, ADVICE_DRIVER},               /* SymbolNotFound */
    {700, OPENREG_E_DEVICE_LOST, ADVICE_LOST},                  /* IllegalAddress */
    {701, OPENREG_E_NOMEM, ""},                                 /* LaunchOutOfResources */
    {702, OPENREG_E_DEVICE_LOST, ADVICE_LOST},                  /* LaunchTimeout */
    {708, OPENREG_E_INVALID, ""},                               /* SetOnActiveProcess */
    {709, OPENREG_E_DEVICE_LOST, "the device was reset by another part of this process"},
    {710, OPENREG_E_DEVICE_LOST, ADVICE_LOST}, /* Assert */
    {712, OPENREG_E_INVALID, ""},              /* HostMemoryAlreadyRegistered */
    {713, OPENREG_E_INVALID, ""},              /* HostMemoryNotRegistered */
    {714, OPENREG_E_DEVICE_LOST, ADVICE_LOST}, /* HardwareStackError */
    {715, OPENREG_E_DEVICE_LOST, ADVICE_LOST}, /* IllegalInstruction */
    {716, OPENREG_E_DEVICE_LOST, ADVICE_LOST}, /* MisalignedAddress */
    {717, OPENREG_E_DEVICE_LOST, ADVICE_LOST}, /* InvalidAddressSpace */
    {718, OPENREG_E_DEVICE_LOST, ADVICE_LOST}, /* InvalidPc */
    {719, OPENREG_E_DEVICE_LOST, ADVICE_LOST}, /* LaunchFailure */
    {721, OPENREG_E_DEVICE_LOST, ADVICE_LOST}, /* TensorMemoryLeak */
    {801, OPENREG_E_UNSUPPORTED, ""},          /* NotSupported */
    {802, OPENREG_E_NO_DEVICE, "on machines with NVSwitch the fabric manager must run"}, /* SystemNotReady */
    {803, OPENREG_E_INCOMPATIBLE, "the driver's library and kernel module differ: restart the machine"},
    {804, OPENREG_E_INCOMPATIBLE, "remove the compatibility package from LD_LIBRARY_PATH"},
    {805, OPENREG_E_NO_DEVICE, ADVICE_MPS},   /* MpsConnectionFailed */
    {806, OPENREG_E_DEVICE_LOST, ADVICE_MPS}, /* MpsRpcFailure */
    {807, OPENREG_E_NO_DEVICE, ADVICE_MPS},   /* MpsServerNotReady */
    {808, OPENREG_E_NO_DEVICE, ADVICE_MPS},   /* MpsMaxClientsReached */
    {809, OPENREG_E_NO_DEVICE, ADVICE_MPS},   /* MpsMaxConnectionsReached */
    {810, OPENREG_E_DEVICE_LOST, ADVICE_MPS}, /* MpsClientTerminated */
    {900, OPENREG_E_CAPTURE, ""},             /* StreamCaptureUnsupported */
    {901, OPENREG_E_CAPTURE, ""},             /* StreamCaptureInvalidated */
    {902, OPENREG_E_CAPTURE, ""},             /* StreamCaptureMerge */
    {903, OPENREG_E_CAPTURE, ""},             /* StreamCaptureUnmatched */
    {904, OPENREG_E_CAPTURE, ""},             /* StreamCaptureUnjoined */
    {905, OPENREG_E_CAPTURE, ""},             /* StreamCaptureIsolation */
    {906, OPENREG_E_CAPTURE, ""},             /* StreamCaptureImplicit */
    {907, OPENREG_E_CAPTURE, ""},             /* CapturedEvent */
    {908, OPENREG_E_CAPTURE, ""},             /* StreamCaptureWrongThread */
    {909, OPENREG_E_TIMEOUT, ""},             /* Timeout */
    {999, OPENREG_E_INTERNAL, "the vendor doesn't say what failed; see the kernel's log (dmesg)"},
};

static_assert(GPU(Success) == 0 && GPU(ErrorMemoryAllocation) == 2 && GPU(ErrorInsufficientDriver) == 35 &&
                  GPU(ErrorNoDevice) == 100 && GPU(ErrorPeerAccessUnsupported) == 217 &&
                  GPU(ErrorInvalidResourceHandle) == 400 && GPU(ErrorIllegalAddress) == 700 &&
                  GPU(ErrorLaunchFailure) == 719 && GPU(ErrorNotSupported) == 801,
              "the vendor has other numbers");

static const error_rule *
rule_of(int code)
{
    static const error_rule unknown = {0, OPENREG_E_INTERNAL, ""};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i)
        if (rules[i].code == code)
            return &rules[i];
    return &unknown;
}

const char *
openreg_gpu_error_name(openreg_gpu_code code)
{
    const char *const name = GPU_CALL(GetErrorName)(code);
    return name != NULL ? name : "an unknown error";
}

static const char *
error_text(openreg_gpu_code code)
{
    const char *const text = GPU_CALL(GetErrorString)(code);
    return text != NULL ? text : "no text";
}

/* " (text)" in *out, or "" where the text is the name again, as HIP's was before 5.3. */
static const char *
bracketed_text(openreg_gpu_code code, char *out, size_t size)
{
    const char *const text = error_text(code);
    if (strcmp(text, openreg_gpu_error_name(code)) == 0)
        return "";
    (void)snprintf(out, size, " (%s)", text);
    return out;
}

/* dev -1: none. */
static openreg_status
fail(const openreg_host *host, int32_t dev, openreg_gpu_code code, const char *function)
{
    const error_rule *const rule = rule_of((int)code);
    char where[32] = "";
    char text[256];
    if (dev >= 0)
        (void)snprintf(where, sizeof where, " on device %d", dev);
    return openreg_fail(host, rule->status, (int64_t)code, "%s: %s%s%s%s%s", function, openreg_gpu_error_name(code),
                        bracketed_text(code, text, sizeof text), where, rule->advice[0] != '\0' ? "; " : "",
                        rule->advice);
}

void
openreg_gpu_forget(const openreg_gpu_scope *scope, openreg_gpu_code code)
{
    /* Not every function leaves its error there; and an equal one from before is not ours to take. */
    if (GPU_CALL(PeekAtLastError)() != code || scope->pending == code)
        return;
    (void)GPU_CALL(GetLastError)();
    if (scope->pending == GPU(Success))
        return;
    const openreg_host *const host = scope->instance->host;
    char text[256];
    (void)snprintf(text, sizeof text, "%s (%s) of another caller was pending in this thread and is replaced by %s",
                   openreg_gpu_error_name(scope->pending), error_text(scope->pending), openreg_gpu_error_name(code));
    host->log(host->ctx, OPENREG_LOG_WARNING, text);
}

void
openreg_gpu_note_forgotten(const openreg_gpu_scope *scope)
{
    if (scope->pending == GPU(Success) || GPU_CALL(PeekAtLastError)() != GPU(Success))
        return;
    const openreg_host *const host = scope->instance->host;
    char brackets[160], text[512];
    (void)snprintf(
        text, sizeof text,
        "%s%s of another caller was pending in this thread; the vendor's library forgets it at the next call "
        "that succeeds, which was this driver's",
        openreg_gpu_error_name(scope->pending), bracketed_text(scope->pending, brackets, sizeof brackets));
    host->log(host->ctx, OPENREG_LOG_WARNING, text);
}

/* Notes a loss of the device, or takes back the vendor's own note. */
static void
digest(const openreg_gpu_scope *scope, openreg_gpu_code code)
{
    if (rule_of((int)code)->status == OPENREG_E_DEVICE_LOST) {
        int none = 0; /* the first error is the one that counts */
        (void)atomic_compare_exchange_strong(&scope->instance->devices[scope->device].lost, &none, (int)code);
    } else {
        openreg_gpu_forget(scope, code);
    }
}

openreg_status
openreg_gpu_check(const openreg_gpu_scope *scope, openreg_gpu_code code, const char *function)
{
    if (code == GPU(Success))
        return OPENREG_OK;
    digest(scope, code);
    return fail(scope->instance->host, scope->device, code, function);
}

void
openreg_gpu_log_failure(const openreg_gpu_scope *scope, openreg_gpu_code code, const char *function)
{
    const openreg_host *const host = scope->instance->host;
    char text[256];
    digest(scope, code);
    (void)snprintf(text, sizeof text, "%s: error %d, %s (%s) on device %d", function, (int)code,
                   openreg_gpu_error_name(code), error_text(code), scope->device);
    host->log(host->ctx, OPENREG_LOG_WARNING, text);
}

openreg_status
openreg_gpu_check_ready(const openreg_gpu_scope *scope, openreg_gpu_code code, const char *function, int32_t *done)
{
    if (code != GPU(ErrorNotReady))
        OPENREG_GPU_RETURN_NOT_OK(openreg_gpu_check(scope, code, function));
    else
        openreg_gpu_forget(scope, code);
    *done = code != GPU(ErrorNotReady);
    return OPENREG_OK;
}

openreg_status
openreg_gpu_fail_plain(const openreg_host *host, openreg_gpu_code code, const char *function)
{
    if (GPU_CALL(PeekAtLastError)() == code)
        (void)GPU_CALL(GetLastError)();
    return fail(host, -1, code, function);
}

bool
openreg_gpu_is_lost(openreg_instance instance, int32_t dev)
{
    return atomic_load_explicit(&instance->devices[dev].lost, memory_order_relaxed) != 0;
}

openreg_status
openreg_gpu_reject_lost(openreg_instance instance, int32_t dev)
{
    const int code = atomic_load_explicit(&instance->devices[dev].lost, memory_order_relaxed);
    if (code == 0)
        return OPENREG_OK;
    return openreg_fail(instance->host, OPENREG_E_DEVICE_LOST, code,
                        "device %d is lost since an earlier %s (%s); save what is needed and start a new process", dev,
                        openreg_gpu_error_name((openreg_gpu_code)code), error_text((openreg_gpu_code)code));
}
