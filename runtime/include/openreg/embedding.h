/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/embedding.h: what serves the libraries that come with this runtime, PyTorch's device and Python's bindings, and
 * changes with them: no promise, in no version. Programs and drivers need openreg.h and driver.h alone. The rules of openreg.h
 * on errors and threads hold. Valid C11 and C++17. */
#ifndef OPENREG_EMBEDDING_H
#define OPENREG_EMBEDDING_H

#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* openreg_generation() without a call, for every operator: two loads. The word is written by the runtime alone. */
OPENREG_API const uint32_t *openreg_generation_word(void);
static inline uint32_t
openreg_generation_now(void)
{
    static const uint32_t *word;
    const uint32_t *known = __atomic_load_n(&word, __ATOMIC_RELAXED);
    if (known == NULL) {
        known = openreg_generation_word();
        __atomic_store_n(&word, known, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(known, __ATOMIC_ACQUIRE);
}

/* ------------------------------------------------------------------------------------------ an embedding language */

/* Sets the word for devices in errors, log lines, reports and traces, which is "openreg" otherwise, as in "openreg:1". Once
 * in a process; the same name again changes nothing. `name`: 1 to 31 of a-z and _, copied. Errors: OPENREG_E_INVALID (no
 * such name, or another one is set), OPENREG_E_NOMEM. */
OPENREG_API openreg_status openreg_set_device_name(const char *name);

/* Copies a text that may be anybody's as the runtime's own log shows it: what is no UTF-8 or controls a terminal as \xNN.
 * `size`: of `shown`, at least 1; four times the text's length and 1 has room for all. Never fails. */
OPENREG_API void openreg_show_text(char *shown, size_t size, const char *text);

/* Lets plugins alone (openreg/registry.h) be chosen by rule 4: under a vendor's name nothing else answers for his devices. What
 * is named by a call, a variable or the preference is used as ever. Call it before the first choice; never fails. */
OPENREG_API void openreg_choose_plugins_alone(void);

/* Called before the list of drivers is looked at to choose, count, open or list drivers (each time, by any thread,
 * no lock held), so that an embedding language can register what it finds; calls from inside it do not recur. */
OPENREG_API void openreg_set_discovery_callback(void (*discover)(void *ctx), void *ctx);

/* For an embedding language's discovery. Item i, 0 <= i, of OPENREG_DRIVER_LIBRARIES whose path ends in .json: the driver's
 * canonical name, and the path in at most `size` bytes. Errors: OPENREG_E_INVALID (an argument; behind the last item). */
OPENREG_API openreg_status openreg_get_driver_description(int32_t i, char name[32], char *path, size_t size);

/* A plugin that could not register its drivers, and why: named where somebody asks for a driver that is not known. Both
 * texts are copied, as far as there is room. Never fails. */
OPENREG_API void openreg_note_plugin_failure(const char *plugin, const char *reason);

/* Around everything here that may wait for another thread or run foreign code: `before` is called by the thread that is
 * about to, without a lock held, and what it returned is given to `after`. A language with a global lock (Python's GIL)
 * can release it meanwhile. NULL, NULL removes them. */
OPENREG_API void openreg_set_blocking_hooks(void *(*before)(void), void (*after)(void *token));

/* Where in the program the calling thread is. Called from any thread, several at once. */
typedef struct openreg_places {
    /* As text of at most `size` - 1 bytes, ASCII, in at most a microsecond, without waiting for anything; 0: not known. */
    int (*place)(char *out, size_t size);
    /* As a number; 0: not known. With no lock held. `wants_stack`: of the whole stack there. */
    uint32_t (*here)(int32_t wants_stack);
    /* The text of such a number, which lives as long as the process, and whether uses there are allowed to race. With a
     * lock held: waits for nothing that waits for a call of the runtime. */
    const char *(*here_text)(uint32_t here, int32_t *allowed);
    const char *(*here_stack)(uint32_t here); /* likewise; "" without one */
} openreg_places;

/* Sets them; functions that are NULL stay as they are. NULL: none is called by what begins from now on. */
OPENREG_API void openreg_set_places(const openreg_places *places);

/* This process among those of a distributed program: the options node_id and num_nodes of every driver opened later
 * (0 and 1 until set). Errors: OPENREG_E_INVALID unless 0 <= index < count. */
OPENREG_API openreg_status openreg_set_process(int32_t index, int32_t count);

/* --------------------------------------------------------------------------------------------- torch.openreg's GPU */

/* For another choice by openreg_select_gpu(): openreg_drivers_forget_failures(), and a GPU that was chosen automatically is chosen
 * again. Opens nothing. Errors: OPENREG_E_BUSY "1 live allocation(s) on driver 'cuda'" (such a GPU is in use; nothing is
 * forgotten). */
OPENREG_API openreg_status openreg_reset_gpu(void);

/* Makes a GPU active if one works: chooses as openreg_drivers_reselect() does, but leaves `sim` unopened where no GPU was found.
 * *found = 1 if the default driver counts as a GPU or was chosen explicitly (by openreg_drivers_use(), OPENREG_DRIVERS or
 * the preference, `sim` too), else 0; a pinned table stays. Errors: those of openreg_drivers_reselect(). */
OPENREG_API openreg_status openreg_select_gpu(int32_t *found);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_EMBEDDING_H */
