/* SPDX-License-Identifier: BSD-3-Clause */
/* info_checks.c: what a driver says of its devices, of each of them. */
#include <string.h>

#include "fixtures.h"

/* A device without max_allocation allocates that many free bytes, or nothing of that size in pieces either. */
static void
all_can_be_allocated(check_context *c, int32_t dev, uint64_t all)
{
    void *memory[2];
    char why[200] = "";
    for (uint64_t size = all; size > 0; size /= 2) {
        const openreg_alloc_info info = openreg_alloc_bytes(size);
        int made = 0;
        while (made < (size == all ? 1 : 2) && MAY(c, mem_alloc, c->instance, dev, &info, &memory[made]) == OPENREG_OK)
            ++made;
        for (int i = 0; i < made; ++i)
            check_free(c, dev, memory[i]);
        REQUIRE(size == all || made < 2,
                "max_allocation of device %d is 0, but it refused %llu bytes (%s), and then gave %llu twice", dev,
                (unsigned long long)size * 2, why, (unsigned long long)size);
        if (made > 0)
            return;
        (void)snprintf(why, sizeof why, "%.199s", check_error_text());
    }
}

static void
fields_are_sound(check_context *c)
{
    const openreg_device_info info = check_info(c, c->dev);
    const uint64_t alignment = info.min_alignment;
    REQUIRE((alignment & (alignment - 1)) == 0, "min_alignment of device %d is %llu, no power of two", c->dev,
            (unsigned long long)alignment);
    REQUIRE(info.max_allocation <= info.total_bytes || info.total_bytes == 0,
            "max_allocation of device %d is %llu, more than its total_bytes", c->dev,
            (unsigned long long)info.max_allocation);
    REQUIRE(info.priority_high <= info.priority_low,
            "priority_high of device %d, the most urgent, is %d, greater than priority_low, %d", c->dev,
            info.priority_high, info.priority_low);
    REQUIRE(memchr(info.name, '\0', sizeof info.name) != NULL, "the name of device %d has no end", c->dev);
    REQUIRE(info.name[0] != '\0', "device %d has an empty name", c->dev);
    REQUIRE(info.multi_processor_count >= 0 && info.capability_major >= 0 && info.capability_minor >= 0,
            "device %d has a negative number of processors or a negative capability", c->dev);
    const uint64_t host = check_host_available() / 4;
    const uint64_t unused = info.max_allocation <= host ? check_free_memory(c, c->dev) : 0;
    if (info.max_allocation == 0) {
        all_can_be_allocated(c, c->dev, unused / 2 < host ? unused / 2 : host);
    } else if (unused / 2 >= info.max_allocation) { /* small enough to try */
        char *const memory = check_alloc(c, c->dev, info.max_allocation);
        check_write(c, c->dev, memory + info.max_allocation - 1, "1", 1);
        check_free(c, c->dev, memory);
    }
}

static void
structure_keeps_its_size(check_context *c)
{
    struct {
        openreg_device_info info;
        unsigned char behind[64];
    } big;
    memset(&big, 0xa5, sizeof big);
    memset(&big.info, 0, sizeof big.info);
    big.info.struct_size = sizeof big.info;
    MUST(c, device_info, c->instance, 0, &big.info);
    check_is_value(big.behind, sizeof big.behind, 0xa5, "what lies behind an openreg_device_info");
    /* A longer one, of a later version of the runtime. */
    memset(&big, 0, sizeof big);
    big.info.struct_size = sizeof big;
    MUST(c, device_info, c->instance, 0, &big.info);
    check_is_value(big.behind, sizeof big.behind, 0, "fields of a later version, which the driver does not know");
    REQUIRE(big.info.struct_size == sizeof big, "device_info() changed struct_size from %u to %u", (unsigned)sizeof big,
            (unsigned)big.info.struct_size);
}

static void
devices_differ(check_context *c)
{
    static const char none[16];
    for (int32_t i = 0; i < c->devices; ++i)
        for (int32_t k = 0; k < i; ++k) {
            const openreg_device_info one = check_info(c, i), other = check_info(c, k);
            REQUIRE(memcmp(one.uuid, none, sizeof none) == 0 || memcmp(one.uuid, other.uuid, sizeof none) != 0,
                    "devices %d and %d have the same UUID", k, i);
        }
}

static void
info_is_constant(check_context *c)
{
    const openreg_device_info before = check_info(c, c->dev);
    check_slot_tour(c);
    const openreg_device_info after = check_info(c, c->dev);
    REQUIRE(memcmp(&before, &after, sizeof before) == 0, "what device_info() says of device %d has changed", c->dev);
}

static void
free_is_below_total(check_context *c)
{
    uint64_t unused = 0, total = 0, again = 0, same = 0;
    MUST(c, mem_info, c->instance, c->dev, &unused, &total);
    REQUIRE(total > 0, "mem_info() said that device %d has no memory", c->dev);
    REQUIRE(unused <= total, "mem_info() said that %llu of %llu bytes of device %d are free",
            (unsigned long long)unused, (unsigned long long)total, c->dev);
    void *const memory = check_alloc(c, c->dev, check_within(c, c->dev, total / 64 + 1));
    MUST(c, mem_info, c->instance, c->dev, &again, &same);
    REQUIRE(same == total, "the total bytes of device %d were %llu, and with memory in use %llu", c->dev,
            (unsigned long long)total, (unsigned long long)same);
    REQUIRE(again <= same, "mem_info() said that %llu of %llu bytes of device %d are free", (unsigned long long)again,
            (unsigned long long)same, c->dev);
    check_free(c, c->dev, memory);
}

/* Of the device that is allocated on, or of the other one, which stays as it is. Other processes may use the devices too: one
 * of five attempts has to show it. */
static void
free_follows_use(check_context *c)
{
    const bool is_other = strcmp(c->check->name, "info.memory_devices") == 0;
    for (int32_t dev = 0; dev < (is_other ? 2 : c->devices); ++dev) {
        const int32_t watched = is_other ? 1 - dev : dev;
        uint64_t before = 0, during = 0, after = 0, size = 0;
        bool is_seen = false;
        for (int i = 0; i < 5 && !is_seen; ++i) {
            before = check_free_memory(c, watched);
            size = check_within(c, dev, before / 8);
            void *const memory = check_alloc(c, dev, size);
            during = check_free_memory(c, watched);
            check_free(c, dev, memory);
            after = check_free_memory(c, watched);
            is_seen = is_other ? during + size / 2 > before
                               : before >= during + size - size / 4 && after >= during + size - size / 4;
        }
        REQUIRE(is_seen,
                "device %d had %llu bytes free before an allocation of %llu bytes on device %d, %llu during and %llu "
                "after it",
                watched, (unsigned long long)before, (unsigned long long)size, dev, (unsigned long long)during,
                (unsigned long long)after);
    }
}

static void
totals_agree(check_context *c)
{
    const uint64_t one = check_info(c, c->dev).total_bytes, other = check_total_memory(c, c->dev);
    REQUIRE(one == 0 || one == other, "device %d has %llu bytes for device_info() and %llu for mem_info()", c->dev,
            (unsigned long long)one, (unsigned long long)other);
}

static void
active_with_memory(check_context *c)
{
    int32_t active = -7;
    MUST(c, device_active, c->instance, c->dev, &active);
    REQUIRE(active == 0 || active == 1, "device_active() said %d", active);
    void *const memory = check_alloc(c, c->dev, 4096);
    MUST(c, device_active, c->instance, c->dev, &active);
    REQUIRE(active == 1, "device %d has memory, and device_active() said %d", c->dev, active);
    check_free(c, c->dev, memory);
}

static void
asking_makes_no_context(check_context *c)
{
    for (int32_t dev = 0; dev < c->devices; ++dev) {
        int32_t first = -7, active = -7;
        MUST(c, device_active, c->instance, dev, &first);
        for (int i = 0; i < 3; ++i)
            MUST(c, device_active, c->instance, dev, &active);
        REQUIRE(active == first, "device_active() of device %d said %d, and %d when called again", dev, first, active);
    }
    if (c->devices < 2)
        return;
    int32_t before = -7, after = -7;
    MUST(c, device_active, c->instance, 1, &before);
    void *const memory = check_alloc(c, 0, 4096);
    MUST(c, device_active, c->instance, 1, &after);
    REQUIRE(before != 0 || after == 0, "memory of device 0 made device 1 active");
    check_free(c, 0, memory);
}

/* Whatever is bound, the slots go by their argument. */
static void
binding_changes_nothing(check_context *c)
{
    MUST(c, device_bind, c->instance, c->dev);
    for (int32_t other = 0; other < c->devices; ++other) {
        const uint64_t before = check_free_memory(c, other);
        void *const memory = check_alloc(c, other, check_within(c, other, before / 8 + 1));
        REQUIRE(c->table.mem_info == NULL || check_free_memory(c, other) < before,
                "with device %d bound, memory of device %d did not come from that device", c->dev, other);
        check_free(c, other, memory);
    }
    check_slot_tour(c);
}

static void
native_streams_differ(check_context *c)
{
    openreg_driver_stream const one = check_stream(c, 0), other = check_stream(c, 0);
    void *of_one = NULL, *of_other = NULL, *again = NULL, *of_default = NULL;
    MUST(c, stream_native, c->instance, 0, one, &of_one);
    MUST(c, stream_native, c->instance, 0, other, &of_other);
    MUST(c, stream_native, c->instance, 0, one, &again);
    MUST(c, stream_native, c->instance, 0, NULL, &of_default);
    REQUIRE(of_one == again, "stream_native() of one stream gave two answers");
    REQUIRE(one == NULL || (of_one != of_other && of_one != of_default && of_other != of_default),
            "stream_native() gave the same answer for two streams");
}

static void
unknown_extensions_are_null(check_context *c)
{
    static const char *const names[] = {
        "openreg.no such extension", "", "openreg.ipc", "openreg.kernels", "openreg.vmm", "openreg.schedule"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        const uint32_t version = i < 2 ? 1 : 4000000;
        check_begin_call("extension");
        const void *const table = c->table.extension(c->instance, names[i], version);
        (void)check_ended("extension", OPENREG_OK); /* no error is set */
        REQUIRE(table == NULL, "extension() gave a table for \"%s\", version %u", names[i], (unsigned)version);
    }
}

static const check_case cases[] = {
    {"info.fields", "device_info", CHECK_EACH,
     "device_info(): min_alignment is 0 or a power of two, priority_high numerically least, the name NUL-terminated; "
     "max_allocation can be allocated; 0: there is no such limit.",
     "Lesser numbers are more urgent, as in CUDA. max_allocation is the vendor's largest buffer.", fields_are_sound},
    {"info.size", "device_info", 0, "A driver that fills in a structure writes no byte beyond its struct_size.",
     "Fill a structure of your own and copy the smaller of both sizes; struct_size stays.", structure_keeps_its_size},
    {"info.devices", "device_info", CHECK_TWO_DEVICES, "A UUID names one device; all zero if unknown.",
     "A slot that looks at device 0, or at the vendor's current one, in place of its argument.", devices_differ},
    {"info.constant", "device_info", CHECK_EACH, "What a device is does not change between open() and close().",
     "Clear what the driver does not know, rather than leave what was in memory.", info_is_constant},
    {"info.memory", "mem_info", CHECK_EACH,
     "mem_info(): free and total bytes of the device, in this order; free <= total.",
     "Compare the order of the arguments.", free_is_below_total},
    {"info.memory_use", "mem_info", 0, "The free bytes fall when memory is allocated and rise when it is freed.",
     "Ask the device, or keep a sum of what mem_alloc() has given out.", free_follows_use},
    {"info.memory_devices", "mem_info", CHECK_TWO_DEVICES, "Each slot speaks of the device that it is given.",
     "A slot that looks at device 0, or at the vendor's current one, in place of its argument.", free_follows_use},
    {"info.totals", "device_info mem_info", CHECK_EACH,
     "total_bytes and mem_info()'s total are both the memory of the device.", "Units: bytes, not KiB or MiB.",
     totals_agree},
    {"info.active", "device_active", CHECK_EACH,
     "device_active(): 1 if the device has a live context; memory needs one.",
     "Vendors tell the state of a primary context.", active_with_memory},
    {"info.active_asks", "device_active", 0, "device_active() never makes a context, and reports on one device.",
     "Most calls of a vendor's library make a context; this one must look without.", asking_makes_no_context},
    {"info.bind", "device_bind", CHECK_EACH,
     "There is no current device: slots go by their argument, whatever device_bind() has made the vendor's current "
     "one.",
     "Set the vendor's device at the start of a slot, and put it back at the end.", binding_changes_nothing},
    {"info.native_stream", "stream_native", 0, "stream_native(): the vendor's own stream; one each.",
     "Also for NULL, the default stream.", native_streams_differ},
    {"info.extension", "extension", 0,
     "extension(): NULL, and no error, for a name or a version that the driver does not have.",
     "Compare the name and the version.", unknown_extensions_are_null},
};
const check_group check_info_group = CHECK_GROUP(1, cases);
