/* SPDX-License-Identifier: BSD-3-Clause */
/* mutant_driver.c: the table with the defect that the variable names, and the defects of its life (mutants.h). */
#define _GNU_SOURCE
#include "mutant.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "../../../runtime/src/driver/driver_slots.h"

mutant mutant_current;
const openreg_driver *mutant_base;
int mutant_fork_broke;
int mutant_opens;
void *volatile mutant_leaked;

static openreg_driver table;
static pthread_mutex_t big_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t unmasked;
static atomic_int stopping;
static pid_t counted_by;

#ifdef MUTANT_EXPORTS
__attribute__((visibility("default"))) int mutant_exported_by_mistake(void);

int
mutant_exported_by_mistake(void)
{
    return 1;
}
#endif

void
mutant_lock(void)
{
    if (IS(odd_slow))
        (void)usleep(1000);
    if (IS(func_locked) || IS(sync_locked) || IS(odd_lock))
        (void)pthread_mutex_lock(&big_lock);
}

void
mutant_unlock(void)
{
    if (IS(func_locked) || IS(sync_locked) || IS(odd_lock))
        (void)pthread_mutex_unlock(&big_lock);
}

void
mutant_keep_at_first_use(int *seen)
{
    if (*seen != mutant_opens)
        mutant_leaked = malloc(300);
    *seen = mutant_opens;
}

static void *
idle(void *argument)
{
    (void)argument;
    while (!atomic_load(&stopping))
        (void)usleep(1000);
    return NULL;
}

static void
start_thread(void)
{
    (void)pthread_create(&unmasked, NULL, idle, NULL);
}

static void
ignore_signal(int number)
{
    (void)number;
}

static void
after_fork(void)
{
    mutant_fork_broke = 1;
}

/* The first defect that keeps open() from succeeding, or OPENREG_OK. */
static openreg_status
refuse_open(const openreg_host *host, const openreg_option *options, uint32_t n)
{
    for (size_t i = 0; i < n; ++i) {
        const int is_bad = strcmp(options[i].value, "not a number") == 0;
        if (IS(option_refused) && strcmp(options[i].key, "openreg_check_unknown") == 0)
            return openreg_fail(host, OPENREG_E_INVALID, 0, "openreg_check_unknown is unknown");
        if (IS(option_hides) && strcmp(options[i].key, "openreg_check_unknown") == 0)
            return openreg_fail(host, OPENREG_E_NO_DEVICE, 0, "no device of this name");
        if (IS(option_unnamed) && is_bad)
            return openreg_fail(host, OPENREG_E_INVALID, 0, "an option is wrong");
        if (IS(option_other_code) && is_bad)
            return openreg_fail(host, OPENREG_E_INTERNAL, 0, "devices, memory: wrong");
    }
    if (IS(count_spoils_fork) && counted_by != 0 && counted_by != getpid())
        return openreg_fail(host, OPENREG_E_INTERNAL, 0, "initialised in the parent");
    return OPENREG_OK;
}

static openreg_status
mutant_open(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    openreg_status status = refuse_open(host, options, n);
    if (status != OPENREG_OK)
        return status;
    openreg_option changed[32];
    if ((IS(option_zero) || IS(option_prefix)) && n <= 32) { /* as strtol() without a look at where it stopped */
        static char numbers[32][24];
        for (size_t i = 0; i < n; ++i) {
            char *end;
            const long number = strtol(options[i].value, &end, 10);
            const bool is_taken = *end != '\0' && number >= 0 && (IS(option_zero) ? number == 0 : number > 0);
            (void)snprintf(numbers[i], sizeof numbers[i], "%ld", number);
            changed[i] = (openreg_option){options[i].key, is_taken ? numbers[i] : options[i].value};
        }
        options = changed;
    }
    static const openreg_option one_device = {"devices", "1"};
    const int is_second = mutant_opens++ > 0;
    status = IS(opens_differently) && is_second ? mutant_base->open(host, &one_device, 1, out)
                                                : mutant_base->open(host, options, n, out);
    if (status == OPENREG_OK && IS(option_unused)) { /* looked at, and no more */
        (void)mutant_base->close(*out);
        status = mutant_base->open(host, NULL, 0, out);
    }
    if (status != OPENREG_OK && IS(open_refusal_leaks))
        mutant_leaked = malloc(2000);
    if (status != OPENREG_OK)
        return status;
    if ((IS(open_leaks_file) || (IS(odd_first_opens) && mutant_opens == 5)) && open("/dev/null", O_RDONLY) < 0)
        return OPENREG_OK;
    if (IS(open_leaks_memory) || (IS(odd_first_opens) && mutant_opens <= 21)) /* what a vendor's library makes once */
        mutant_leaked = malloc(IS(odd_first_opens) ? 3753 : 2000);
    atomic_store(&stopping, 0);
    if (IS(open_leaks_thread))
        start_thread();
    if (IS(thread_unmasked) && !is_second)
        start_thread();
    if (IS(handler))
        (void)signal(SIGUSR1, ignore_signal);
    if (IS(prints))
        (void)fprintf(stderr, "mutant: opened\n");
    if (IS(exit_aborts) && !is_second)
        (void)atexit(abort);
    if (IS(fork_breaks_parent) && !is_second)
        (void)pthread_atfork(NULL, after_fork, NULL);
    if (IS(table_changes))
        table.version = "changed";
    return OPENREG_OK;
}

static openreg_status
mutant_close(openreg_instance instance)
{
    mutant_end_frees(instance);
    mutant_free_kept();
    return mutant_base->close(instance);
}

static openreg_status
mutant_describe(const openreg_host *host, const openreg_option *options, uint32_t n, const char *topology,
                int32_t capacity, openreg_device_info *const *infos, uint8_t *peers, int32_t *count)
{
    const openreg_status status = mutant_base->describe(host, options, n, topology, capacity, infos, peers, count);
    if (capacity > 0 && IS(describe_leaks_memory))
        mutant_leaked = malloc(2000);
    if (IS(describe_leaks_thread))
        start_thread();
    if (capacity == 0) {
        if (status == OPENREG_OK && IS(count_one_more))
            ++*count;
        counted_by = getpid();
        return status;
    }
    if (status == OPENREG_OK && IS(describe_other_name))
        infos[0]->name[0] = '?';
    if (status == OPENREG_OK && IS(describe_beyond) && capacity == 1)
        infos[1]->total_bytes = 1;
    if (status == OPENREG_OK && IS(describe_all))
        for (int32_t i = *count; i < capacity; ++i)
            infos[i]->total_bytes = 1;
    return status;
}

static void
choose(void)
{
#define MUTANT_NAME(name, checks) #name,
    static const char *const names[] = {"", OPENREG_MUTANTS_OF_LEVEL_3(MUTANT_NAME) OPENREG_ODD(MUTANT_NAME)
                                                OPENREG_MUTANTS(MUTANT_NAME)};
    const char *const wanted = getenv(OPENREG_MUTANT_VARIABLE);
    for (int i = 1; wanted != NULL && i < mutant_count; ++i)
        if (strcmp(names[i], wanted) == 0)
            mutant_current = (mutant)i;
    if (wanted != NULL && *wanted != '\0' && mutant_current == mutant_none)
        (void)fprintf(stderr, "there is no mutant %s\n", wanted);
}

static void
make_table(const openreg_host *host)
{
    (void)openreg_sim_query(host, &mutant_base);
    table = *mutant_base;
    table.name = IS(name_upper) ? "Mutants" : "mutants";
    table.open = mutant_open;
    table.close = mutant_close;
    table.describe = mutant_describe;
    mutant_wrap_memory(&table);
    mutant_wrap_queues(&table);
    mutant_wrap_info(&table);
    mutant_wrap_extensions(&table);
    mutant_wrap_graphs(&table);
    if (IS(half_group))
        table.event_sync = NULL;
    if (IS(flag_unknown))
        table.caps |= UINT64_C(1) << 50;
    if (IS(flag_of_device))
        table.caps |= OPENREG_CAP_FENCED;
    if (IS(alias_missing) || mutant_current >= mutant_runtime_last_byte)
        table.host_alias = NULL;
    for (int i = 0; i < OPENREG_SLOT_COUNT && IS(odd_queues); ++i)
        if (strncmp(openreg_slots[i].name, "stream_", 7) == 0 || strncmp(openreg_slots[i].name, "event_", 6) == 0 ||
            strcmp(openreg_slots[i].name, "host_func") == 0)
            memset((char *)&table + openreg_slots[i].offset, 0, sizeof(void (*)(void)));
    if (IS(odd_host_memory) || IS(unpinned_wait_latest) || IS(unpinned_wait_dropped) || IS(unpinned_func_apart)) {
        table.host_alloc = NULL;
        table.host_free = NULL;
    }
    if (IS(size_of_later))
        table.struct_size += 8;
    if (IS(fork_safe_claimed))
        table.caps |= OPENREG_CAP_FORK_SAFE;
}

__attribute__((visibility("default"))) openreg_status openreg_driver_query_v1(const openreg_host *host,
                                                                              const openreg_driver **out);

openreg_status
openreg_driver_query_v1(const openreg_host *host, const openreg_driver **out)
{
    static openreg_driver copies[2];
    static int queries;
    if (queries++ == 0) {
        choose();
        make_table(host);
    }
    if (IS(query_thread))
        start_thread();
    *out = &table;
    if (IS(query_new_table)) {
        copies[queries % 2] = table;
        *out = &copies[queries % 2];
    }
    return OPENREG_OK;
}
