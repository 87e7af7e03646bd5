/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg-check: says whether a driver keeps the rules of driver.h: each rule a check, each check a process.
 *
 * Usage: openreg-check DRIVER [options], see usage below and docs/verifying-a-driver.md.
 * Exit status: 0 it conforms (or no check of --only failed), 1 it does not, 2 a wrong argument, 77 there is no device to
 * check on. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fixtures.h"
#include "report.h"

#define MOST_PATTERNS 64

static const char usage[] =
    "usage: openreg-check DRIVER [--level N] [--only NAME[,NAME...]] [--seed N] [--time SECONDS] [--timeout "
    "SECONDS]\n"
    "                     [--option KEY=VALUE]... [--known NAME=REASON]... [--json FILE] [--junit FILE] [--verbose]\n"
    "       openreg-check DRIVER --perf [--option KEY=VALUE]... [--json FILE]\n"
    "       openreg-check --list | --explain NAME | --explain all\n"
    "\n"
    "DRIVER   a library (./libopenreg_mychip.so), or the name of a driver of this installation (sim, cuda)\n"
    "--level    1: the table alone. 2 (default): also the driver behind the runtime, its extensions and kernels. 3: "
    "also\n"
    "           PyTorch on it, by python -m torch_openreg check\n"
    "--only     checks whose names begin so: copy, event.query\n"
    "--seed     of everything random, default 1\n"
    "--time     for each check that runs for a time, default 0.3 s\n"
    "--timeout  of a call, after which a check hangs, default 30 s; longer with more than 8 devices, where calls are "
    "slow, and "
    "for\n"
    "           sizes above 4 GiB\n"
    "--option   given to the driver's open(), before those of variables OPENREG_<DRIVER>_<KEY>\n"
    "--perf     no checks: what calls, copies, events and allocations take, beside the host's\n"
    "--known    this check fails, for that reason: it is shown in the verdict, and is an error once it passes\n";

typedef struct arguments {
    check_target target;
    const char *driver, *json, *junit, *explain;
    const char *only[MOST_PATTERNS];
    openreg_option options[CHECK_OPTIONS], known[CHECK_OPTIONS]; /* of a check: its name and the reason */
    size_t only_count;
    uint32_t known_count;
    int level, timeout;
    bool is_list, is_verbose, is_perf;
} arguments;

static int
refuse(const char *what, const char *argument)
{
    (void)fprintf(stderr, "openreg-check: %s%s%s\n%s", what, argument != NULL ? " " : "",
                  argument != NULL ? argument : "", usage);
    return 2;
}

static bool
read_number(const char *text, double least, double most, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= least && *out <= most;
}

/* Splits "a,b" in place. */
static bool
read_only(arguments *a, char *list)
{
    for (char *name = strtok(list, ","); name != NULL; name = strtok(NULL, ",")) {
        if (a->only_count == MOST_PATTERNS)
            return false;
        a->only[a->only_count++] = name;
    }
    return true;
}

/* Splits "key=value" in place. */
static bool
read_option(openreg_option *list, uint32_t *count, char *text)
{
    char *const sign = strchr(text, '=');
    if (sign == NULL || sign == text || *count == CHECK_OPTIONS)
        return false;
    *sign = '\0';
    list[(*count)++] = (openreg_option){text, sign + 1};
    return true;
}

static bool
is_check(const char *name)
{
    for (const check_group *const *group = check_groups; *group != NULL; ++group)
        for (size_t i = 0; i < (*group)->count; ++i)
            if (strcmp((*group)->cases[i].name, name) == 0)
                return true;
    return false;
}

/* 0, or the exit status of a wrong command line. */
static int
read_value(arguments *a, const char *name, char *value)
{
    double number = 0;
    bool is_valid = true;
    if (strcmp(name, "--level") == 0 && strcmp(value, "3") == 0) {
        return refuse("level 3 needs PyTorch: python -m torch_openreg check DRIVER --level 3", NULL);
    } else if (strcmp(name, "--level") == 0) {
        is_valid = read_number(value, 1, 2, &number) && (number == 1 || number == 2);
        a->level = (int)number;
    } else if (strcmp(name, "--seed") == 0) {
        char *end;
        a->target.seed = strtoull(value, &end, 0);
        is_valid = *value != '\0' && *value != '-' && *end == '\0';
    } else if (strcmp(name, "--time") == 0) {
        is_valid = read_number(value, 0, 3600, &a->target.seconds);
    } else if (strcmp(name, "--timeout") == 0) {
        is_valid = read_number(value, 1, 36000, &number);
        a->timeout = (int)number;
    } else if (strcmp(name, "--only") == 0) {
        is_valid = read_only(a, value);
    } else if (strcmp(name, "--option") == 0) {
        is_valid = read_option(a->options, &a->target.option_count, value);
    } else if (strcmp(name, "--known") == 0) {
        if (!read_option(a->known, &a->known_count, value) || a->known[a->known_count - 1].value[0] == '\0')
            return refuse("--known takes the name of a check, =, and the reason:", value);
        if (!is_check(a->known[a->known_count - 1].key))
            return refuse("no check has the name", a->known[a->known_count - 1].key);
    } else if (strcmp(name, "--json") == 0) {
        a->json = value;
    } else if (strcmp(name, "--junit") == 0) {
        a->junit = value;
    } else if (strcmp(name, "--explain") == 0) {
        a->explain = value;
    } else {
        return refuse("unknown option", name);
    }
    return is_valid ? 0 : refuse("wrong value of", name);
}

static int
read_arguments(arguments *a, int count, char **values)
{
    for (int i = 1; i < count; ++i) {
        char *const at = values[i];
        if (strcmp(at, "--list") == 0) {
            a->is_list = true;
        } else if (strcmp(at, "--perf") == 0) {
            a->is_perf = true;
        } else if (strcmp(at, "--verbose") == 0) {
            a->is_verbose = true;
        } else if (strncmp(at, "--", 2) == 0) {
            char *value = strchr(at, '=');
            if (value != NULL)
                *value++ = '\0';
            else if (i + 1 < count)
                value = values[++i];
            else
                return refuse("no value after", at);
            const int status = read_value(a, at, value);
            if (status != 0)
                return status;
        } else if (a->driver == NULL) {
            a->driver = at;
        } else {
            return refuse("a second driver:", at);
        }
    }
    return 0;
}

static bool
is_wanted(const arguments *a, const char *name)
{
    for (size_t i = 0; i < a->only_count; ++i)
        if (strncmp(name, a->only[i], strlen(a->only[i])) == 0)
            return true;
    return a->only_count == 0;
}

static int
count_wanted(const arguments *a)
{
    int count = 0;
    for (const check_group *const *group = check_groups; *group != NULL; ++group)
        for (size_t i = 0; (*group)->level <= a->level && i < (*group)->count; ++i)
            count += is_wanted(a, (*group)->cases[i].name);
    return count;
}

/* Seconds after which a check hangs. Most checks do their work on each device, in a number of calls. */
static int
limit_of(const arguments *a, const check_report *report, const check_case *check)
{
    const int shares = report->identity.devices > 8 ? report->identity.devices / 4 : 1;
    const double slowness = report->identity.slowness < 20 ? report->identity.slowness : 20;
    return (int)(a->timeout * shares * slowness) * ((check->needs & CHECK_LONG) != 0 ? 10 : 1);
}

/* A waiver turns a failure into what is known, and a success into a failure: it has to go then. */
static void
apply_known(const arguments *a, check_result *result)
{
    for (size_t i = 0; i < a->known_count; ++i) {
        if (strcmp(a->known[i].key, result->check->name) != 0)
            continue;
        if (result->outcome == CHECK_FAILED) {
            result->outcome = CHECK_KNOWN;
            result->known = a->known[i].value;
        } else if (result->outcome == CHECK_PASSED) {
            result->outcome = CHECK_FAILED;
            (void)snprintf(result->message, sizeof result->message,
                           "it passes, and --known says that it fails (%.400s): take that away", a->known[i].value);
        }
    }
}

static void
run_all(const arguments *a, check_report *report)
{
    const double begin = check_now();
    for (const check_group *const *group = check_groups; *group != NULL; ++group)
        for (size_t i = 0; (*group)->level <= a->level && i < (*group)->count; ++i) {
            if (!is_wanted(a, (*group)->cases[i].name))
                continue;
            check_result *const result = &report->results[report->count++];
            const check_case *const wanted = &(*group)->cases[i];
            check_run(wanted, (*group)->level, &a->target, limit_of(a, report, wanted), result);
            apply_known(a, result);
            check_report_result(result, a->is_verbose);
        }
    report->seconds = check_now() - begin;
    report->is_finished = true;
}

/* False: a file that the command line asks for can't be written. */
static bool
write_files(const arguments *a, const check_report *report)
{
    if ((a->json == NULL || check_report_json(report, a->json) == 0) &&
        (a->junit == NULL || check_report_junit(report, a->junit) == 0))
        return true;
    (void)fprintf(stderr, "openreg-check: the report can't be written\n");
    return false;
}

/* A variable that asks for what checks don't do, as a layer around the driver, which they look at alone. NULL: none.
 * `driver`: "" before its name is known; then variables of it are looked at, too. */
static const char *
unheeded_variable(const char *driver)
{
    static const char *const names[] = {"COMM=",   "FENCE_SIGNAL=", "FLIGHT_RECORDER=", "INIT_WARN_SECS=",
                                        "LAYERS=", "RACES=",        "USE_MOCK_GPU=",    "VALIDATE="};
    static const char *const keys[] = {"_FAULTS=", "_RACES=", "_VISIBLE_DEVICES="}; /* of a driver */
    extern char **environ;
    for (char **at = environ; *at != NULL; ++at) {
        const char *const sign = strchr(*at, '=');
        if (strncmp(*at, "OPENREG_", 8) != 0 || sign == NULL || sign[1] == '\0')
            continue;
        for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
            if (strncmp(*at + 8, names[i], strlen(names[i])) == 0)
                return *at;
        const size_t length = strlen(driver);
        if (length == 0 || strncasecmp(*at + 8, driver, length) != 0)
            continue;
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i)
            if (strncmp(*at + 8 + length, keys[i], strlen(keys[i])) == 0)
                return *at;
    }
    return NULL;
}

/* Whether such a variable is set, and said to be. */
static bool
is_refused(const char *driver)
{
    const char *const unheeded = unheeded_variable(driver);
    if (unheeded != NULL)
        (void)fprintf(stderr, "openreg-check: checks don't heed the variable %.*s: unset it\n",
                      (int)strcspn(unheeded, "="), unheeded);
    return unheeded != NULL;
}

static int
check(arguments *a)
{
    if (is_refused(""))
        return 2;
    const char *const why = check_target_find(a->driver, &a->target);
    if (why != NULL) {
        (void)fprintf(stderr, "openreg-check: %s: %s\n", a->driver, why);
        return 2;
    }
    if (a->is_perf)
        return check_perf(&a->target, a->timeout * 4, a->json);
    const int count = count_wanted(a);
    if (count == 0)
        return refuse("no check has such a name", NULL);
    check_report report = {.target = &a->target, .level = a->level, .is_whole = a->only_count == 0};
    report.results = calloc((size_t)count, sizeof *report.results);
    if (report.results == NULL) {
        (void)fprintf(stderr, "openreg-check: no memory\n");
        return 2;
    }
    check_identify(&a->target, a->timeout, &report.identity);
    int status = 1;
    if (is_refused(report.identity.name) ||
        !write_files(a, &report)) { /* a run that is ended by force leaves these, and not an earlier run's */
        status = 2;
    } else if (!report.identity.is_loaded) {
        printf("openreg-check: %s is no driver: %s\n", a->driver, report.identity.message);
    } else {
        check_report_begin(&report);
        run_all(a, &report);
        check_report_end(&report);
        if (check_report_count(&report, CHECK_FAILED) == 0)
            status = report.identity.devices < 0 ? 77 : 0; /* the table was looked at; nothing could be opened */
        if (!write_files(a, &report))
            status = 2;
    }
    free(report.results);
    return status;
}

int
main(int count, char **values)
{
    static arguments a = {.level = 2, .timeout = 30, .target = {.seed = 1, .seconds = 0.3}};
    a.target.options = a.options;
    if (count == 2 && strcmp(values[1], "--help") == 0) {
        printf("%s", usage);
        return 0;
    }
    const int status = read_arguments(&a, count, values);
    if (status != 0)
        return status;
    if (a.is_list) {
        check_list(a.level);
        return 0;
    }
    if (a.explain != NULL)
        return check_explain(strcmp(a.explain, "all") == 0 ? NULL : a.explain) > 0
                   ? 0
                   : refuse("no check has the name", a.explain);
    return a.driver != NULL ? check(&a) : refuse("no driver was given", NULL);
}
