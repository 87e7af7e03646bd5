/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/lab.h: the table behind races.h, faults.h, flight_recorder.h and trace.h, whose functions are in a library of
 * their own, libopenreg_lab.so, beside libopenreg.so: it is loaded when one of them is first used, or if a variable needs
 * it (OPENREG_VALIDATE, OPENREG_RACES, OPENREG_FLIGHT_RECORDER, OPENREG_<NAME>_FAULTS). Part of the C API: the
 * rules of openreg.h on errors, threads and start hold here. Not stable: it is version 0, and may change in any
 * release. Valid C11 and C++17.
 *
 * Programs call the functions of those headers, which are inline and call this table. */
#ifndef OPENREG_LAB_H
#define OPENREG_LAB_H

#include <openreg/observer.h>

#ifdef __cplusplus
extern "C" {
#endif

struct openreg_race;
struct openreg_tracer;
typedef struct openreg_faults_s *openreg_faults;

typedef struct openreg_lab {
    uint32_t struct_size, reserved;
    /* races.h */
    uint32_t (*races_flags)(void);
    openreg_status (*races_set)(uint32_t flags, uint32_t *before);
    openreg_status (*races_visit)(uint64_t from, int (*visit)(void *ctx, const struct openreg_race *race), void *ctx);
    uint64_t (*races_count)(void);
    void (*races_clear)(void);
    void (*races_allow)(int change);
    void (*races_mute)(int change);
    int (*races_is_muted)(void);
    uint32_t (*races_origin)(const char *what);
    openreg_status (*races_use)(uint32_t origin, int32_t device, openreg_stream stream, const void *address,
                                uint64_t size, int32_t writes);
    openreg_status (*races_use_tensor)(uint32_t origin, int32_t device, openreg_stream stream, const void *address,
                                       int32_t dimensions, const int64_t *sizes, const int64_t *strides, uint64_t item,
                                       int32_t writes);
    openreg_status (*races_host_use)(uint32_t origin, const void *address, uint64_t size, int32_t writes);
    int (*races_knows)(const void *address, uint64_t size);
    void (*races_host_waits)(int32_t device, openreg_stream stream);
    void (*races_stream_waits)(int32_t later_device, openreg_stream later, int32_t first_device, openreg_stream first);
    void (*races_forget)(const void *address, uint64_t size);
    /* faults.h */
    openreg_status (*faults_begin)(const char *plan, openreg_faults *out);
    void (*faults_end)(openreg_faults faults);
    uint64_t (*faults_hits)(openreg_faults faults);
    int32_t (*faults_of_collective)(int32_t device);
    void (*operator_ended)(int32_t device, openreg_stream stream, const char *name);
    /* flight_recorder.h */
    openreg_status (*recorder_start)(uint32_t calls);
    openreg_status (*recorder_write)(const char *path);
    void (*recorder_alarm)(void);
    /* trace.h */
    openreg_status (*trace_start)(const struct openreg_tracer *tracer);
    openreg_status (*trace_flush)(void);
    openreg_status (*trace_stop)(void);
} openreg_lab;

#define OPENREG_LAB_SIZE_1 224u
static_assert(sizeof(openreg_lab) == OPENREG_LAB_SIZE_1, "append a function, then freeze its size");

/* Loads the library, unless it is loaded. NULL: it can't be; openreg_last_error() then has OPENREG_E_INCOMPATIBLE. */
OPENREG_API const openreg_lab *openreg_lab_get(void);
/* NULL: the library is not loaded, so none of its tools is on. Never fails. */
OPENREG_API const openreg_lab *openreg_lab_peek(void);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_LAB_H */
