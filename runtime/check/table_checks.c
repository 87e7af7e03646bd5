/* SPDX-License-Identifier: BSD-3-Clause */
/* table_checks.c: the library, its entry point and the table. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/driver_slots.h"
#include "fixtures.h"

/* Weak symbols are left out: C++ makes them of the standard library's templates whatever a driver does. */
static void
exports_entry_alone(check_context *c)
{
    check_skip_if(c->target->path == NULL, "the driver is built in");
    const int file = open(c->target->path, O_RDONLY | O_CLOEXEC);
    const off_t end = file >= 0 ? lseek(file, 0, SEEK_END) : -1;
    const size_t size = end > 0 ? (size_t)end : 0;
    const char *const bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0); /* none of no bytes */
    check_skip_if(bytes == MAP_FAILED, "%s can't be read", c->target->path);
    const Elf64_Ehdr *const header = (const void *)bytes;
    REQUIRE(size > sizeof *header && header->e_ident[EI_CLASS] == ELFCLASS64 &&
                header->e_shoff + (uint64_t)header->e_shnum * sizeof(Elf64_Shdr) <= size,
            "the library is not a 64-bit ELF file");
    const Elf64_Shdr *const sections = (const void *)(bytes + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i) {
        if (sections[i].sh_type != SHT_DYNSYM)
            continue;
        const Elf64_Sym *const symbols = (const void *)(bytes + sections[i].sh_offset);
        const char *const names = bytes + sections[sections[i].sh_link].sh_offset;
        for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; ++k) {
            const char *const name = names + symbols[k].st_name;
            const int type = ELF64_ST_TYPE(symbols[k].st_info);
            if (symbols[k].st_shndx == SHN_UNDEF || symbols[k].st_shndx == SHN_ABS ||
                ELF64_ST_BIND(symbols[k].st_info) != STB_GLOBAL || (type != STT_FUNC && type != STT_OBJECT) ||
                strncmp(name, "__", 2) == 0)
                continue;
            REQUIRE(strcmp(name, OPENREG_DRIVER_ENTRY_NAME) == 0, "the library exports %s too", name);
        }
    }
}

static void
query_is_cheap(check_context *c)
{
    const check_counts before = check_count_now();
    for (int i = 0; i < 100; ++i) {
        const openreg_driver *again = NULL;
        check_begin_call("query");
        check_succeeded("openreg_driver_query_v1", check_target_entry(c->target)(c->host, &again));
        REQUIRE(again == c->given, "a second call gave another table");
    }
    const check_counts after = check_count_now();
    REQUIRE(after.threads <= before.threads, "100 calls left %d threads", after.threads - before.threads);
    REQUIRE(after.files <= before.files, "100 calls left %d files open", after.files - before.files);
}

static void
name_is_valid(check_context *c)
{
    const char *const name = c->table.name;
    REQUIRE(name != NULL, "the name is NULL");
    const size_t length = strnlen(name, 32);
    REQUIRE(length >= 1 && length <= 31 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length,
            "the name is \"%.40s\"", name);
}

static void
groups_are_whole(check_context *c)
{
    for (int i = 0; i < OPENREG_SLOT_COUNT; ++i)
        for (int k = 0; k < OPENREG_SLOT_COUNT; ++k)
            REQUIRE(openreg_slots[i].group[0] == '\0' || strcmp(openreg_slots[i].group, openreg_slots[k].group) != 0 ||
                        check_has_slot(&c->table, i) == check_has_slot(&c->table, k),
                    "the table has %s and lacks %s", openreg_slots[check_has_slot(&c->table, i) ? i : k].name,
                    openreg_slots[check_has_slot(&c->table, i) ? k : i].name);
}

/* The flags as text: names of those that there are, the rest as a number. */
static const char *
names_of_flags(uint64_t flags)
{
    static const struct {
        uint64_t flag;
        const char *name;
    } all[] = {{OPENREG_CAP_FORK_SAFE, "OPENREG_CAP_FORK_SAFE"},
               {OPENREG_CAP_SIMULATED, "OPENREG_CAP_SIMULATED"},
               {OPENREG_CAP_HOST_VISIBLE, "OPENREG_CAP_HOST_VISIBLE"},
               {OPENREG_CAP_FENCED, "OPENREG_CAP_FENCED"}};
    static char text[160];
    text[0] = '\0';
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        if ((flags & all[i].flag) != 0) {
            check_append_item(text, sizeof text, all[i].name);
            flags &= ~all[i].flag;
        }
    if (flags != 0)
        check_append(text, sizeof text, "%s0x%llx", text[0] == '\0' ? "" : ", ", (unsigned long long)flags);
    return text;
}

static void
flags_fit(check_context *c)
{
    const uint64_t of_driver = OPENREG_CAP_FORK_SAFE | OPENREG_CAP_SIMULATED;
    const uint64_t of_device = OPENREG_CAP_HOST_VISIBLE | OPENREG_CAP_FENCED;
    const bool is_newer = c->table.abi_minor > OPENREG_ABI_MINOR;
    REQUIRE(is_newer || (c->table.caps & ~of_driver) == 0, "%s: not in openreg_driver.caps of version 1.%u",
            names_of_flags(c->table.caps & ~of_driver), (unsigned)c->table.abi_minor);
    for (int32_t dev = 0; dev < c->devices; ++dev) {
        const uint64_t caps = check_caps(c, dev);
        REQUIRE(is_newer || (caps & ~of_device) == 0, "%s: not in openreg_device_info.caps (device %d) of version 1.%u",
                names_of_flags(caps & ~of_device), dev, (unsigned)c->table.abi_minor);
        REQUIRE((caps & OPENREG_CAP_HOST_VISIBLE) == 0 || c->table.host_alias != NULL,
                "OPENREG_CAP_HOST_VISIBLE is set for device %d and host_alias is NULL", dev);
    }
}

static void
size_fits_minor(check_context *c)
{
    const uint32_t minor = c->given->abi_minor, size = c->given->struct_size;
    if (minor <= OPENREG_ABI_MINOR)
        REQUIRE(size == sizeof(openreg_driver), "the table says version 1.%u, whose size is %zu, and %u bytes",
                (unsigned)minor, sizeof(openreg_driver), (unsigned)size);
    else
        REQUIRE(size > sizeof(openreg_driver), "the table says version 1.%u and %u bytes", (unsigned)minor,
                (unsigned)size);
}

static void
table_is_constant(check_context *c)
{
    const openreg_driver before = c->table;
    check_whole_slot_tour(c);
    REQUIRE(memcmp(&before, c->given, c->given->struct_size < sizeof before ? c->given->struct_size : sizeof before) ==
                0,
            "the table differs after the driver was used");
}

static const check_case cases[] = {
    {"table.exports", "", CHECK_CLOSED, "openreg_driver_query_v1 is the only symbol that a driver library exports.",
     "Compile with -fvisibility=hidden, or link with a version script; openreg_add_driver() of the CMake package does.",
     exports_entry_alone},
    {"table.query", "", CHECK_CLOSED,
     "openreg_driver_query_v1() is cheap: it opens no vendor library, starts no thread, touches no device, and gives "
     "the same static table each time.",
     "Move the work to open().", query_is_cheap},
    {"table.name", "", CHECK_CLOSED, "The name is lower case, [a-z0-9_], 1 to 31 characters.",
     "Variables and messages are made of it.", name_is_valid},
    {"table.groups", "", CHECK_CLOSED,
     "The stream slots come together (create, destroy, query, sync), and so do the event slots and those of pinned "
     "memory.",
     "Fill in all slots of a group, or none.", groups_are_whole},
    {"table.flags", "", 0,
     "OPENREG_CAP_HOST_VISIBLE: host_alias() gives the host a view. Flags are those of the version that the driver was "
     "compiled with: FORK_SAFE and SIMULATED of the driver, HOST_VISIBLE and FENCED of a device.",
     "Take flags from driver.h alone; set those of a device in device_info().", flags_fit},
    {"table.size", "", CHECK_CLOSED,
     "struct_size is sizeof(openreg_driver), abi_minor OPENREG_ABI_MINOR, both as compiled into the driver.",
     "Write .struct_size = sizeof(openreg_driver), .abi_minor = OPENREG_ABI_MINOR.", size_fits_minor},
    {"table.constant", "", CHECK_CLOSED, "The table is constant.",
     "Make it static const, and put state into the instance.", table_is_constant},
};
const check_group check_table_group = CHECK_GROUP(1, cases);
