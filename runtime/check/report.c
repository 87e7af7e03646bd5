/* SPDX-License-Identifier: BSD-3-Clause */
/* report.c: what openreg-check prints and writes (report.h). */
#include "report.h"

#include <inttypes.h>
#include <string.h>

#include <openreg/openreg.h>

static const char *const outcomes[] = {"pass", "FAIL", "skip", "know"};

int
check_report_count(const check_report *report, check_outcome outcome)
{
    int count = 0;
    for (int i = 0; i < report->count; ++i)
        count += report->results[i].outcome == outcome;
    return count;
}

typedef enum verdict { CONFORMS, HAS_FAILED, PART, NOTHING, NO_DEVICE, NO_DRIVER, UNFINISHED } verdict;

static verdict
verdict_of(const check_report *report)
{
    if (!report->identity.is_loaded)
        return NO_DRIVER;
    if (!report->is_finished)
        return UNFINISHED;
    if (check_report_count(report, CHECK_FAILED) > 0)
        return HAS_FAILED;
    if (report->identity.devices < 0)
        return NO_DEVICE;
    if (check_report_count(report, CHECK_SKIPPED) == report->count)
        return NOTHING;
    return report->is_whole ? CONFORMS : PART;
}

void
check_report_begin(const check_report *report)
{
    const check_identity *const who = &report->identity;
    printf("openreg-check %s: driver \"%s\" %s (%s), ABI %u.%u", OPENREG_VERSION_STRING, who->name, who->version,
           report->target->path != NULL ? report->target->path : "built in", OPENREG_ABI_MAJOR,
           (unsigned)who->abi_minor);
    if (who->devices >= 0)
        printf(", %d device%s", who->devices, who->devices == 1 ? "" : "s");
    printf(", level %d, seed %" PRIu64 "\n", report->level, report->target->seed);
    (void)fflush(stdout);
}

void
check_report_result(const check_result *result, bool is_verbose)
{
    if (is_verbose || result->outcome != CHECK_PASSED)
        printf("%s  %-26s %6.2f s%s%s\n", outcomes[result->outcome], result->check->name, result->seconds,
               result->message[0] != '\0' ? "  " : "", result->message);
    if (result->outcome == CHECK_FAILED)
        printf("      rule  %s\n      hint  %s\n", result->check->rule, result->check->hint);
    if (result->outcome == CHECK_KNOWN)
        printf("      known %s\n", result->known);
    if (result->calls[0] != '\0')
        printf("      last calls\n%s", result->calls);
    (void)fflush(stdout);
}

static void
print_wrapped(const char *label, const char *text)
{
    const int indent = (int)strlen(label) + 3;
    int column = printf("  %s ", label);
    for (const char *word = text; *word != '\0';) {
        const int length = (int)strcspn(word, " ");
        if (column + 1 + length > 100)
            column = printf("\n%*s", indent, "") - 1;
        column += printf(" %.*s", length, word);
        word += length;
        word += strspn(word, " ");
    }
    printf("\n");
}

/* The names of the checks that were skipped. */
static void
print_skipped(const check_report *report)
{
    char names[8192] = "";
    for (int i = 0; i < report->count; ++i)
        if (report->results[i].outcome == CHECK_SKIPPED)
            check_append_item(names, sizeof names, report->results[i].check->name);
    if (names[0] != '\0')
        print_wrapped("skipped, for the reasons above:", names);
}

/* What no check can see, and what this driver did not show. */
static void
print_not_checked(const check_report *report)
{
    printf("\nnot checked\n");
    print_skipped(report);
    printf("  what random programs show after more than %g s, or with other sizes and orders: --time, --seed\n",
           report->target->seconds);
    if (report->identity.slots[0] != '\0')
        printf("  slots that the table lacks, which the runtime emulates: %s\n", report->identity.slots);
    if (report->identity.kernels[0] != '\0')
        printf("  kernels without a reference here: %s\n", report->identity.kernels);
    if (report->identity.kernels_left_out > 0)
        printf("    and %d more\n", report->identity.kernels_left_out);
    printf("  lost devices, which no check can cause\n"
           "  that open() alone decides: variables of the environment, exceptions across the boundary\n");
    if (report->level < 2)
        printf("  the driver behind the runtime, its extensions and kernels: --level 2\n");
    printf("  PyTorch on it, operators, autograd and training: python -m torch_openreg check --level 3\n");
}

void
check_report_end(const check_report *report)
{
    const int known = check_report_count(report, CHECK_KNOWN);
    print_not_checked(report);
    printf("\n%d passed, %d failed, %d skipped", check_report_count(report, CHECK_PASSED),
           check_report_count(report, CHECK_FAILED), check_report_count(report, CHECK_SKIPPED));
    if (known > 0)
        printf(", %d known", known);
    printf(" in %.1f s\n", report->seconds);
    switch (verdict_of(report)) {
    case HAS_FAILED:
        printf("does not conform to driver.h %u.%u: see docs/verifying-a-driver.md, or --explain CHECK\n",
               OPENREG_ABI_MAJOR, (unsigned)report->identity.abi_minor);
        break;
    case NO_DEVICE:
        printf("there is no device: nothing was checked but the table and what open() and describe() say\n");
        break;
    case NOTHING:
        printf("nothing was checked\n");
        break;
    case PART:
        printf("no failure in the requested checks\n");
        break;
    default:
        printf("conforms to driver.h %u.%u, level %d, seed %" PRIu64 "%s\n", OPENREG_ABI_MAJOR,
               (unsigned)report->identity.abi_minor, report->level, report->target->seed,
               known > 0 ? ", but for what is known:" : "");
    }
    for (int i = 0; i < report->count; ++i)
        if (report->results[i].outcome == CHECK_KNOWN)
            printf("  known: %s (%s)\n", report->results[i].check->name, report->results[i].known);
}

/* Slots and what else a check needs, "a, b, c". */
static void
list_needs(const check_case *check, char *text, size_t size)
{
    static const struct {
        uint32_t need;
        const char *text;
    } needs[] = {
        {CHECK_TWO_DEVICES, "two devices"},
        {CHECK_GATE, "a host_func that runs while its caller goes on"},
        {CHECK_FORK_SAFE, "OPENREG_CAP_FORK_SAFE"},
        {CHECK_FENCED, "OPENREG_CAP_FENCED"},
        {CHECK_HOST_VISIBLE, "OPENREG_CAP_HOST_VISIBLE"},
        {CHECK_KERNELS, "kernels"},
        {CHECK_COMM, "openreg.comm"},
    };
    text[0] = '\0';
    for (const char *at = check->slots; *at != '\0'; ++at)
        check_append(text, size, *at == ' ' ? ", " : "%c", *at);
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; ++i)
        if ((check->needs & needs[i].need) != 0)
            check_append_item(text, size, needs[i].text);
}

static void
write_escaped(FILE *file, const char *text, bool is_xml)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; ++at) {
        if (is_xml && (*at == '<' || *at == '&' || *at == '"'))
            (void)fprintf(file, "&#%u;", *at);
        else if (!is_xml && (*at == '"' || *at == '\\'))
            (void)fprintf(file, "\\%c", *at);
        else if (*at < 0x20)
            (void)fprintf(file, is_xml ? " " : "\\u%04x", *at);
        else
            (void)fputc(*at, file);
    }
}

static void
write_member(FILE *file, const char *key, const char *text, const char *end)
{
    (void)fprintf(file, "\"%s\": \"", key);
    write_escaped(file, text, false);
    (void)fprintf(file, "\"%s", end);
}

/* A list of texts, which `text` has with `separator` between them; none if it is empty. */
static void
write_list(FILE *file, const char *key, const char *text, const char *separator, const char *end)
{
    const size_t length = strlen(separator);
    const char *const quote = text[0] != '\0' ? "\"" : "";
    (void)fprintf(file, "\"%s\": [%s", key, quote);
    while (*text != '\0') {
        const char one[] = {*text, '\0'};
        const bool is_between = strncmp(text, separator, length) == 0;
        if (is_between)
            (void)fprintf(file, "\", \"");
        else
            write_escaped(file, one, false);
        text += is_between ? length : 1;
    }
    (void)fprintf(file, "%s]%s", quote, end);
}

static int
close_file(FILE *file)
{
    const int is_broken = ferror(file);
    return fclose(file) != 0 || is_broken ? -1 : 0;
}

int
check_report_json(const check_report *report, const char *path)
{
    static const char *const words[] = {"passed", "failed", "skipped", "known"};
    static const char *const verdicts[] = {
        [CONFORMS] = "conforms",       [HAS_FAILED] = "fails",    [PART] = "no failure",
        [NOTHING] = "nothing checked", [NO_DEVICE] = "no device", [NO_DRIVER] = "no driver",
        [UNFINISHED] = "unfinished",
    };
    const verdict found = verdict_of(report);
    char needs[256], hint[600];
    FILE *const file = fopen(path, "w");
    if (file == NULL)
        return -1;
    (void)fprintf(file, "{");
    write_member(file, "driver", report->identity.name, ", ");
    write_member(file, "version", report->identity.version, ", ");
    write_member(file, "path", report->target->path != NULL ? report->target->path : "", ", ");
    (void)fprintf(file,
                  "\"abi\": \"%u.%u\", \"devices\": %d, \"level\": %d, \"seed\": %" PRIu64
                  ", \"seconds\": %.3f, \"conforms\": %s, ",
                  OPENREG_ABI_MAJOR, (unsigned)report->identity.abi_minor, report->identity.devices, report->level,
                  report->target->seed, report->seconds, found == CONFORMS ? "true" : "false");
    write_member(file, "verdict", verdicts[found], ", ");
    write_member(file, "message", found == NO_DRIVER ? report->identity.message : "", ",\n ");
    write_list(file, "slots_missing", report->identity.slots, " ", ",\n ");
    write_list(file, "kernels_without_reference", report->identity.kernels, " ", ",\n ");
    (void)fprintf(file, "\"kernels_left_out\": %d,\n \"checks\": [", report->identity.kernels_left_out);
    for (int i = 0; i < report->count; ++i) {
        const check_result *const result = &report->results[i];
        (void)fprintf(file, "%s\n  {", i == 0 ? "" : ",");
        write_member(file, "name", result->check->name, ", ");
        (void)fprintf(file, "\"level\": %d, ", result->level);
        write_member(file, "outcome", words[result->outcome], ", ");
        (void)fprintf(file, "\"seconds\": %.3f, ", result->seconds);
        write_member(file, "message", result->message, ", ");
        if (result->known != NULL)
            write_member(file, "known", result->known, ", ");
        write_member(file, "calls", result->calls, ", ");
        if (result->outcome == CHECK_SKIPPED) {
            list_needs(result->check, needs, sizeof needs);
            write_list(file, "needs", needs, ", ", ", ");
        }
        if (result->outcome == CHECK_FAILED || result->outcome == CHECK_KNOWN) {
            write_member(file, "slot", result->slot, ", ");
            (void)snprintf(hint, sizeof hint, "%s", result->check->hint);
            if (result->calls[0] != '\0') /* the check's own is about what it compares, and it did not come to that */
                (void)snprintf(hint, sizeof hint, "It ended in or after %s(): look there first. %s", result->slot,
                               result->check->hint);
            write_member(file, "hint", hint, ", ");
        }
        write_member(file, "rule", result->check->rule, "}");
    }
    (void)fprintf(file, "\n ]\n}\n");
    return close_file(file);
}

int
check_report_junit(const check_report *report, const char *path)
{
    FILE *const file = fopen(path, "w");
    if (file == NULL)
        return -1;
    (void)fprintf(file,
                  "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"openreg-check %s\" tests=\"%d\" "
                  "failures=\"%d\" skipped=\"%d\" time=\"%.3f\">\n",
                  report->identity.name, report->count, check_report_count(report, CHECK_FAILED),
                  check_report_count(report, CHECK_SKIPPED), report->seconds);
    for (int i = 0; i < report->count; ++i) {
        const check_result *const result = &report->results[i];
        (void)fprintf(file, "  <testcase classname=\"openreg-check.level%d\" name=\"%s\" time=\"%.3f\"", result->level,
                      result->check->name, result->seconds);
        if (result->outcome == CHECK_PASSED) {
            (void)fprintf(file, "/>\n");
            continue;
        }
        const char *const element = result->outcome == CHECK_FAILED ? "failure" : "skipped";
        (void)fprintf(file, "><%s message=\"", element);
        write_escaped(file, result->message, true);
        (void)fprintf(file, "\">");
        write_escaped(file, result->check->rule, true);
        (void)fprintf(file, "</%s></testcase>\n", element);
    }
    (void)fprintf(file, "</testsuite>\n");
    return close_file(file);
}

void
check_list(int level)
{
    for (const check_group *const *group = check_groups; *group != NULL; ++group)
        for (size_t i = 0; (*group)->level <= level && i < (*group)->count; ++i)
            printf("%d  %s\n", (*group)->level, (*group)->cases[i].name);
}

static void
explain(int level, const check_case *check)
{
    char wanted[256];
    list_needs(check, wanted, sizeof wanted);
    printf("%s  (level %d)\n", check->name, level);
    print_wrapped("rule ", check->rule);
    print_wrapped("hint ", check->hint);
    if (wanted[0] != '\0')
        print_wrapped("needs", wanted);
}

int
check_explain(const char *name)
{
    int count = 0;
    for (const check_group *const *group = check_groups; *group != NULL; ++group)
        for (size_t i = 0; i < (*group)->count; ++i)
            if (name == NULL || strncmp((*group)->cases[i].name, name, strlen(name)) == 0) {
                explain((*group)->level, &(*group)->cases[i]);
                ++count;
            }
    return count;
}
