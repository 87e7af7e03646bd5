/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/embedding.h: functions for the libraries that come with this runtime, PyTorch's device and Python's bindings. They
 * change with these libraries, without notice. Programs and drivers need only openreg.h and driver.h. The rules of openreg.h
 * on errors and threads hold. Valid C11 and C++17. */
#ifndef OPENREG_EMBEDDING_H
#define OPENREG_EMBEDDING_H

#include <openreg/openreg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* openreg_generation() without a call, for the path of every operator: two loads. Only the runtime writes the word. */
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

/* Sets the name of devices in errors, log lines, reports and traces, which is "openreg" otherwise, as in "openreg:1". Once
 * in a process; repeating the same name is allowed. `name`: 1 to 31 characters of a-z and _, copied.
 * Errors: OPENREG_E_INVALID (a bad name, or another one is set), OPENREG_E_NOMEM. */
OPENREG_API openreg_status openreg_set_device_name(const char *name);

/* Copies a text from an untrusted source as the runtime's own log shows it: bytes that are not UTF-8 and control
 * characters become \xNN. `size` is that of `shown`, at least 1; four times the text's length plus 1 always suffices.
 * Never fails. */
OPENREG_API void openreg_show_text(char *shown, size_t size, const char *text);

/* Restricts rule 4 (openreg/registry.h) to plugins: under a vendor's device name no other driver is chosen automatically.
 * Drivers named by a call, a variable or the preference are used as usual. Call it before the first selection; never fails. */
OPENREG_API void openreg_choose_plugins_alone(void);

/* Sets a callback that runs before drivers are chosen, counted, opened or listed (each time, in any thread, with no lock
 * held), so that an embedding language can register the drivers that it finds. Not called recursively. */
OPENREG_API void openreg_set_discovery_callback(void (*discover)(void *ctx), void *ctx);

/* For an embedding language's discovery: of the items of OPENREG_DRIVER_LIBRARIES whose path ends in .json, item i >= 0: the
 * driver's canonical name, and the path in at most `size` bytes. Errors: OPENREG_E_INVALID (an argument; i is out of range). */
OPENREG_API openreg_status openreg_get_driver_description(int32_t i, char name[32], char *path, size_t size);

/* Notes a plugin that could not register its drivers, and why, for the error about an unknown driver. Both texts are copied,
 * and cut where there is no room. Never fails. */
OPENREG_API void openreg_note_plugin_failure(const char *plugin, const char *reason);

/* Sets functions that are called around every operation that may wait for another thread or run foreign code: `before`
 * by the thread that is about to, with no lock held; its result is passed to `after`. So a language with a global lock
 * (Python's GIL) can release it in between. NULL, NULL removes them. */
OPENREG_API void openreg_set_blocking_hooks(void *(*before)(void), void (*after)(void *token));

/* The calling thread's place in the program. The functions are called from any thread, several at once. */
typedef struct openreg_places {
    /* The place as text of at most `size` - 1 bytes, ASCII, in at most a microsecond, without waiting; 0: not known. */
    int (*place)(char *out, size_t size);
    /* The place as a number; 0: not known. Called with no lock held. `wants_stack`: a number for the whole stack. */
    uint32_t (*here)(int32_t wants_stack);
    /* The text of such a number, valid until the process ends, and whether uses at this place are allowed to race. Called
     * with a lock held: must not wait for anything that waits for a call of the runtime. */
    const char *(*here_text)(uint32_t here, int32_t *allowed);
    const char *(*here_stack)(uint32_t here); /* the stack of such a number, or ""; as here_text() */
} openreg_places;

/* Sets them; functions that are NULL stay as they are. NULL: calls that begin from now on call none. */
OPENREG_API void openreg_set_places(const openreg_places *places);

/* Sets this process's index among the processes of a distributed program, and their count: the options node_id and
 * num_nodes of every driver opened later (0 and 1 until set). Errors: OPENREG_E_INVALID unless 0 <= index < count. */
OPENREG_API openreg_status openreg_set_process(int32_t index, int32_t count);

/* --------------------------------------------------------------------------------------------- torch.openreg's GPU */

/* Lets openreg_select_gpu() choose anew: calls openreg_drivers_forget_failures(), and drops a GPU that was chosen
 * automatically. Opens nothing. Errors: OPENREG_E_BUSY "1 live allocation(s) on driver 'cuda'" (such a GPU is in use; nothing
 * is forgotten). */
OPENREG_API openreg_status openreg_reset_gpu(void);

/* Makes a GPU active if one works: selects as openreg_drivers_reselect() does, but does not open `sim` if no GPU was found.
 * *found = 1 if the default driver counts as a GPU or was chosen explicitly (by openreg_drivers_use(), OPENREG_DRIVERS or
 * the preference, `sim` too), else 0; a pinned table stays. Errors: those of openreg_drivers_reselect(). */
OPENREG_API openreg_status openreg_select_gpu(int32_t *found);

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_EMBEDDING_H */
