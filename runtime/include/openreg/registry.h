/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/registry.h: which drivers are known, and how the active ones are chosen. Part of openreg.h, which includes it and
 * whose rules on errors and threads hold here. Valid C11 and C++17.
 *
 * A driver is *known* when it is in the list: built in (`sim`), a bundled library (`cuda`, `hip`), a mock
 * one, registered by a call, or named by OPENREG_DRIVER_LIBRARIES. It is *loaded* when its table was read, *open* when
 * its open() succeeded and it has a device, and *active* when its devices are those of the device table. Several may
 * be open; the active ones are chosen by the first of these that applies:
 *   1  openreg_drivers_use()              all that are named, in that order, or an error
 *   2  OPENREG_DRIVERS                    the same; the preference is then ignored
 *   3  openreg_driver_prefer()            if it works; else one warning, and the next rule
 *   4  the driver of highest priority that works; among equals the one that was known first. A driver of priority
 *      OPENREG_PRIORITY_NEVER or less is left out
 * While there are live allocations or events the table is *pinned* and does not change. Drivers that are no longer active
 * stay open until openreg_shutdown(), which also forgets the choice of rule 1.
 *
 * Failures. A driver that was named for this run (rules 1 and 2, OPENREG_DRIVER_LIBRARIES, OPENREG_REGISTER_NAMED), and
 * `sim`, must work: if one fails the call fails, nothing has changed, the text is remembered, and the next call tries again.
 * Any other driver is left out if it has no device here (OPENREG_E_NO_DEVICE), or if its library or its vendor's is not
 * on this machine: this is remembered, logged once, and not tried again until the variables or the registrations change,
 * openreg_drivers_forget_failures() or openreg_shutdown(). Any other failure of it is an error, unless it was registered
 * without OPENREG_REGISTER_REQUIRED, as cuda, hip and mocks are: then it is left out. In a list a group needs one member
 * that works; the others are left out.
 *
 * Names. 1 to 31 characters of [a-z0-9_]; functions that take one trim and lower-case it and resolve synonyms (rocm and
 * amdgpu are hip). "gpu" is a group, cuda and hip: the first of them that works. In lists of names, separated by commas,
 * repeats are left out.
 *
 * Variables, read together at the beginning of each selection:
 *   OPENREG_DRIVERS                 rule 2; an empty list counts as none
 *   OPENREG_DRIVER_LIBRARIES        name:path,...; the last item of a name wins, and a path that ends in .json is left to
 *                                   the embedding language. An item of another number of parts is skipped with a
 *                                   warning; a path without a name, or a bad name, makes every selection fail
 *   OPENREG_<NAME>_LIBRARY_PATH     of cuda and hip: the driver's library, instead of the bundled one
 *   OPENREG_<NAME>_VISIBLE_DEVICES  "all", or the driver's own numbers of the devices to use, in that order ("3,1"). A
 *                                   number that is malformed, unknown or repeated is an error of opening the driver.
 *                                   Not passed to the driver; also the option visible_devices of a registration
 *   OPENREG_<NAME>_<KEY>            the option <key> of the driver; overrides that of its registration
 *   OPENREG_USE_MOCK_GPU            1 (cuda) or a list of cuda, hip and gpu: drivers of these names over simulated memory,
 *                                   instead of the bundled libraries, with OPENREG_MOCK_NUM_GPUS (1) devices
 *   OPENREG_INIT_WARN_SECS          after this time in open() one warning is logged (60; 0: none)
 *   OPENREG_VALIDATE                1: every call between the runtime and a driver is checked, and each rule of driver.h
 *                                   that is broken is logged once, as an error (docs/verifying-a-driver.md)
 *   OPENREG_<NAME>_FAULTS           a plan by which calls of the driver's devices fail (openreg/faults.h)
 *   OPENREG_SIM_SEED                a number: `sim` runs work in an order that it chooses, poisons fresh and freed memory,
 *                                   and has a virtual clock; with OPENREG_SIM_SCHEDULE ("random", "pct", "latest"),
 *                                   OPENREG_SIM_SWITCHES (how many copies and fills are put off) and
 *                                   OPENREG_SIM_SCHEDULE_LOG (a file) (docs/laboratory.md). Also the seed of fault plans
 *                                   that have none
 *   OPENREG_RACES                   "report" or "raise", either with ",uninitialized" behind it: finds unordered uses of
 *                                   memory, on any driver (openreg/races.h)
 *   OPENREG_FLIGHT_RECORDER         a number N: the last N calls of drivers are kept, and written to
 *                                   OPENREG_FLIGHT_RECORDER_FILE.<process>.json when something fails
 *                                   (openreg/flight_recorder.h)
 *   OPENREG_TARGET                  empty or "local"; with another value every selection fails
 *   OPENREG_SYSTEM_ROOT             root of the system files in which GPUs without a driver are looked for ("/"): if `sim`
 *                                   is chosen automatically, a warning names them once a process
 *   OPENREG_LOG_LEVEL               openreg.h
 *
 * The preference is soft: in each of these cases one warning per name is logged (once more after
 * openreg_drivers_forget_failures()), and rule 4 decides: the name is unknown; the driver is "not loaded", because its library
 * or table is missing or unfit, or because a bundled library returned OPENREG_E_NO_DEVICE or OPENREG_E_INCOMPATIBLE (the
 * vendor's library, or the GPU, is missing); the driver is "not functional", because it failed otherwise.
 *
 * Foreign code (libraries' constructors, query(), open(), factories, callbacks) runs without a lock held. A factory or
 * driver that calls one of these functions from there gets OPENREG_E_BUSY, never a deadlock. */
#ifndef OPENREG_REGISTRY_H
#define OPENREG_REGISTRY_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <openreg/export.h>
#include <openreg/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct openreg_driver;            /* driver.h */
struct openreg_option;            /* driver.h */
struct openreg_device_properties; /* openreg.h */

/* --------------------------------------------------------------------------------------------------------- records */

#define OPENREG_DRIVER_STATE_FOUND 0    /* known, nothing loaded yet */
#define OPENREG_DRIVER_STATE_LOADED 1   /* its table was read and accepted */
#define OPENREG_DRIVER_STATE_OPEN 2     /* its devices can be queried, and used if it is active */
#define OPENREG_DRIVER_STATE_FAILED 3   /* `code` and `message` say why */
#define OPENREG_DRIVER_STATE_SHADOWED 4 /* another of the same name, found later, replaced it */

/* Bits of openreg_driver_record.flags. */
#define OPENREG_DRIVER_FLAG_ACTIVE 1u   /* its devices are in the device table */
#define OPENREG_DRIVER_FLAG_GPU 2u      /* counts as a GPU: cuda, hip, and plugins whose devices are not simulated */
#define OPENREG_DRIVER_FLAG_MOCK 4u     /* a GPU driver over simulated memory (OPENREG_USE_MOCK_GPU) */
#define OPENREG_DRIVER_FLAG_REQUIRED 8u /* registered with OPENREG_REGISTER_REQUIRED, `sim`, or named by a variable */
#define OPENREG_DRIVER_FLAG_EXPERIMENTAL 16u
#define OPENREG_DRIVER_FLAG_HAS_TABLE 32u /* its C table was read; an open driver without one is only described */
#define OPENREG_DRIVER_FLAG_UNLOADABLE                                                                                 \
    64u                                  /* failed: its library, or the vendor's that it needs, can't be loaded here */
#define OPENREG_DRIVER_FLAG_PLUGIN 128u  /* registered, or named by OPENREG_DRIVER_LIBRARIES */
#define OPENREG_DRIVER_FLAG_UNTRIED 256u /* failed, because its library is missing, and it hasn't been requested yet */

typedef struct openreg_driver_record {
    uint32_t struct_size; /* set by the caller */
    int32_t state;        /* OPENREG_DRIVER_STATE_* */
    openreg_status code;  /* of the last failure, else OPENREG_OK */
    int32_t priority;     /* higher is preferred */
    int32_t device_count; /* visible devices; -1 if not known yet */
    int32_t first_device; /* its first index in the device table, or -1 */
    uint32_t flags;       /* OPENREG_DRIVER_FLAG_* */
    uint32_t abi_minor;   /* of its table, under OPENREG_ABI_MAJOR; 0 if not loaded */
    uint64_t caps;        /* openreg_driver.caps, 0 if not loaded; those of devices: openreg_device_properties */
    uint64_t slots;       /* bit i: the driver has function i of its table (in order, open is 0) */
    const char *path;     /* resolved path of the library, or ""; valid until the process ends */
    char name[32];
    char source[64]; /* "built in", "bundled", "OPENREG_CUDA_LIBRARY_PATH", "mock", "registered" or what
                           * the registration says, "OPENREG_DRIVER_LIBRARIES" */
    char version[64];
    char message[1024]; /* why it failed, or "" */
} openreg_driver_record;

#define OPENREG_DRIVER_RECORD_SIZE_1 1240u
static_assert(sizeof(openreg_driver_record) == OPENREG_DRIVER_RECORD_SIZE_1, "append a field, then freeze its size");

/* Candidates known so far (finds, but does not load, bundled ones). Never fails. */
OPENREG_API int32_t openreg_driver_count(void);
/* Record i, 0 <= i < openreg_driver_count(), copied. Errors: OPENREG_E_INVALID. */
OPENREG_API openreg_status openreg_driver_get_record(int32_t i, openreg_driver_record *out);
/* The record of a name (synonyms resolved; of a group the first open member, else the first). Loads and opens
 * nothing. Errors: OPENREG_E_INVALID "Driver 'x' is not in the list of known drivers: ['cuda', 'hip', 'sim']". */
OPENREG_API openreg_status openreg_driver_find(const char *name, openreg_driver_record *out);

/* "found", "loaded", "open", "failed" or "shadowed" for OPENREG_DRIVER_STATE_*, else "unknown". Static. Never fails. */
OPENREG_API const char *openreg_driver_state_name(int32_t state);

/* Lower-cases `name`, trims it and resolves synonyms: "AMDGPU" gives "hip". The driver need not exist.
 * Errors: OPENREG_E_INVALID (not 1 to 31 characters of [a-z0-9_]). */
OPENREG_API openreg_status openreg_driver_canonical_name(const char *name, char out[32]);
/* The drivers of a canonical name, in order of preference: "gpu" gives cuda and hip, any other name itself. Writes at most
 * `capacity` names and returns how many there are; 0 if the name is malformed. */
OPENREG_API int32_t openreg_driver_expand_name(const char *name, char (*out)[32], int32_t capacity);

/* ---------------------------------------------------------------------------------------------------- registration */

#define OPENREG_PRIORITY_PLUGIN 400
#define OPENREG_PRIORITY_GPU 200
#define OPENREG_PRIORITY_SIM 0
#define OPENREG_PRIORITY_NEVER (-1000) /* this priority or less: never chosen by rule 4 */

#define OPENREG_REGISTER_REQUIRED 1u     /* its failure is an error, but see "Failures" above */
#define OPENREG_REGISTER_EXPERIMENTAL 2u /* a warning is logged when it is opened */
#define OPENREG_REGISTER_KEEP_FAILED                                                                                   \
    4u /* a library that can't be loaded is no error of openreg_driver_register(): the driver,
                                          * which needs a name, is known as a failed one, with the reason */
#define OPENREG_REGISTER_NAMED 8u /* the user has named it for this run: each failure is an error */

/* A factory's result. The runtime zeroes it and sets struct_size; at most one of `table`, `library_path` and
 * `device_count` may be set. None: the driver is not available here ("Could not initialize driver 'x'"). */
typedef struct openreg_factory_result {
    uint32_t struct_size;
    int32_t device_count;               /* of a driver without a C table: it can be queried, but never be active; < 0:
                                         * it is available and provides no devices, an error */
    const struct openreg_driver *table; /* valid until the process ends */
    const char *library_path;           /* loaded as by openreg_driver_load(); read right after the factory returns,
                                         * and valid until its next call */
    char version[64];                   /* with device_count */
    char message[512];                  /* why the factory failed */
} openreg_factory_result;

#define OPENREG_FACTORY_RESULT_SIZE_1 600u
static_assert(sizeof(openreg_factory_result) == OPENREG_FACTORY_RESULT_SIZE_1, "append a field, then freeze its size");

/* Makes a driver when it is first opened or counted, and once more after openreg_shutdown(). Any code but OPENREG_OK means
 * failure. Called by one thread at a time, with no lock of the runtime held; must not call the runtime (OPENREG_E_BUSY). */
typedef openreg_status (*openreg_driver_factory)(void *ctx, openreg_factory_result *result);

typedef struct openreg_registration {
    uint32_t struct_size; /* set by the caller */
    uint32_t flags;       /* OPENREG_REGISTER_* */
    int32_t priority;
    int32_t reserved;
    const char *name;   /* not a group; may be NULL with `table` or `library_path`: then it is the table's */
    const char *source; /* for records and messages, or NULL: "registered" */
    /* Exactly one of these three. */
    const struct openreg_driver *table; /* valid until the process ends */
    const char *library_path;           /* loaded now */
    openreg_driver_factory factory;
    void *ctx; /* the factory's */
    /* Passed to open(), and overridden by OPENREG_<NAME>_<KEY>. Copied. "visible_devices" is read by the runtime instead. */
    const struct openreg_option *options;
    uint32_t option_count;
} openreg_registration;

#define OPENREG_REGISTRATION_SIZE_1 80u
static_assert(sizeof(openreg_registration) == OPENREG_REGISTRATION_SIZE_1, "append a field, then freeze its size");

/* Adds a driver, before or after initialisation; the last registration of a name wins, and an item of
 * OPENREG_DRIVER_LIBRARIES wins over every registration. Repeating a registration changes nothing. While a table is published
 * a new name takes effect at the next selection (openreg_drivers_reselect(), openreg_drivers_open_all() or
 * openreg_drivers_use()).
 * Errors: OPENREG_E_INVALID (name malformed, not exactly one source), OPENREG_E_INCOMPATIBLE (the table or library is unfit:
 * other ABI, a required slot missing, no such file), OPENREG_E_BUSY "Driver x already initialized" (a driver of this
 * name is open), OPENREG_E_NOMEM (also for more than 256 drivers). */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_driver_register(const openreg_registration *registration);

/* openreg_driver_register() of a table, or of a library, with OPENREG_PRIORITY_PLUGIN and OPENREG_REGISTER_REQUIRED. `name`
 * may be NULL. */
OPENREG_HELPER openreg_status
openreg_driver_register_table(const struct openreg_driver *table)
{
    openreg_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.struct_size = sizeof registration;
    registration.flags = OPENREG_REGISTER_REQUIRED;
    registration.priority = OPENREG_PRIORITY_PLUGIN;
    registration.table = table;
    return openreg_driver_register(&registration);
}

OPENREG_HELPER openreg_status
openreg_driver_load(const char *name, const char *path)
{
    openreg_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.struct_size = sizeof registration;
    registration.flags = OPENREG_REGISTER_REQUIRED;
    registration.priority = OPENREG_PRIORITY_PLUGIN;
    registration.name = name;
    registration.library_path = path;
    return openreg_driver_register(&registration);
}

/* ------------------------------------------------------------------------------------------------------- selection */

#define OPENREG_CHOSEN_NONE 0 /* no table is published */
#define OPENREG_CHOSEN_BY_CALL 1
#define OPENREG_CHOSEN_BY_ENVIRONMENT 2
#define OPENREG_CHOSEN_BY_PREFERENCE 3
#define OPENREG_CHOSEN_AUTOMATICALLY 4

typedef struct openreg_selection {
    uint32_t struct_size; /* set by the caller */
    int32_t chosen_by;    /* OPENREG_CHOSEN_* */
    int64_t live_objects; /* allocations and events; > 0: the table is pinned */
    uint32_t generation;  /* openreg_generation() */
    uint32_t
        requests; /* differs after each openreg_drivers_use(), openreg_drivers_forget_failures() and openreg_shutdown():
                           * cached answers of this API are then stale */
    char default_driver[32]; /* the first active driver, "" without a table */
    char preference[32];     /* of openreg_driver_prefer(), or "" */
} openreg_selection;

#define OPENREG_SELECTION_SIZE_1 88u
static_assert(sizeof(openreg_selection) == OPENREG_SELECTION_SIZE_1, "append a field, then freeze its size");

/* "call", "environment", "preference" or "automatic" for OPENREG_CHOSEN_*, else "none". Static. Never fails. */
OPENREG_API const char *openreg_selection_chosen_by_name(int32_t chosen_by);

/* The current selection. Never initialises, never fails for a valid `out`. Errors: OPENREG_E_INVALID. */
OPENREG_API openreg_status openreg_selection_get(openreg_selection *out);

/* Chooses the active drivers by name ("cuda,sim"; a list as in OPENREG_DRIVERS) and opens them now. NULL or an empty
 * list withdraws the choice, and selects drivers anew if a table is published and not pinned. On failure the drivers
 * that were active stay active, and those that this call has opened are closed.
 * Errors: OPENREG_E_BUSY "1 live allocation(s) on driver 'sim'" (the table is pinned and would change), or as
 * openreg_shutdown() (another thread is inside a call that uses the devices),
 * OPENREG_E_INVALID (unknown name), OPENREG_E_UNSUPPORTED (none has a C table), those of openreg_init(). */
OPENREG_API OPENREG_WARN_UNUSED openreg_status openreg_drivers_use(const char *names);

/* Sets the preference of rule 3 for later selections; a published table stays. NULL or "": none. The name need not be
 * known. Errors: OPENREG_E_INVALID (malformed; there is then no preference). */
OPENREG_API openreg_status openreg_driver_prefer(const char *name);

/* Forgets failures, so that these drivers are tried again. Open drivers stay open. Never fails; waits while another thread
 * opens a driver. */
OPENREG_API void openreg_drivers_forget_failures(void);

/* Repeats the selection, as openreg_init() would make it now; open drivers are not opened twice. A pinned table stays, and
 * so does one of the same drivers. Errors: those of openreg_init(), OPENREG_E_BUSY as openreg_drivers_use(); the published
 * table then stays. */
OPENREG_API openreg_status openreg_drivers_reselect(void);

/* The options that open() of a driver would get by the variables of the last selection, and "visible_devices": texts
 * "key=value", each with its NUL, one after the other in at most `size` bytes; *length is the size of all of them. Loads and
 * opens nothing. Errors: OPENREG_E_INVALID (an unknown driver, a bad variable), OPENREG_E_NOMEM. */
OPENREG_API openreg_status openreg_driver_get_options(const char *driver, char *out, size_t size, size_t *length);

/* Opens a driver, so that it can be queried, without making it active. No effect if it is open. A failure is returned, and
 * remembered as that of an optional driver: further calls return it without trying (until
 * openreg_drivers_forget_failures(), or the variables or registrations change).
 * Errors: OPENREG_E_INVALID (unknown), OPENREG_E_NO_DEVICE, OPENREG_E_INCOMPATIBLE, the driver's own. */
OPENREG_API openreg_status openreg_driver_open(const char *name);

/* Opens every known driver (with openreg_drivers_use() or OPENREG_DRIVERS: only those) and selects as
 * openreg_drivers_reselect(). Failures of optional drivers are remembered; that of a required one fails the call, which
 * then closes the drivers that it has opened. Errors: those of openreg_drivers_reselect(). */
OPENREG_API openreg_status openreg_drivers_open_all(void);

/* Properties of device i of an open driver, active or not, 0 <= i < record.device_count. `inout` as in
 * openreg_device_get_properties(). Errors: OPENREG_E_INVALID (not open, i out of range), OPENREG_E_UNSUPPORTED (a
 * driver that is only described). */
OPENREG_API openreg_status openreg_driver_get_device_properties(const char *driver, int32_t i,
                                                                struct openreg_device_properties *inout);

/* Describes all devices of a driver, visible or not, without opening it: loads its library if need be and calls describe()
 * (driver.h) with the options given here, followed by those of open(). No factory is called. A group means its first open
 * member, else the first that can be opened, which is opened.
 * `topology` may be NULL or "": this machine's. Fills devices[0..min(*count, capacity)); each is devices[0].struct_size
 * bytes long, which the caller has set; and peers[i * capacity + j] (peers may be NULL): 1 if device i copies to device j directly.
 * Errors: OPENREG_E_INVALID (unknown), OPENREG_E_UNSUPPORTED "topology not implemented for x",
 * OPENREG_E_INCOMPATIBLE (the library; of a bundled driver "CUDA support not installed; cannot generate CUDA
 * topology (why)", also if it is the vendor's library that is missing), the driver's own. */
OPENREG_API openreg_status openreg_driver_get_topology(const char *driver, const char *topology,
                                                       const struct openreg_option *options, uint32_t option_count,
                                                       int32_t capacity, struct openreg_device_properties *devices,
                                                       uint8_t *peers, int32_t *count);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_REGISTRY_H */
