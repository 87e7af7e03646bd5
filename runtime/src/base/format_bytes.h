/* SPDX-License-Identifier: BSD-3-Clause */
/* format_bytes.h: formats a number of bytes, in the units of PyTorch's messages. Internal. */
#ifndef OPENREG_SRC_SIZE_TEXT_H
#define OPENREG_SRC_SIZE_TEXT_H

#include <stdint.h>
#include <stdio.h>

typedef struct openreg_byte_text {
    char text[32];
} openreg_byte_text;

static inline openreg_byte_text
openreg_format_bytes(uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    openreg_byte_text out;
    if (bytes <= 1024) {
        (void)snprintf(out.text, sizeof out.text, "%u bytes", (unsigned)bytes);
        return out;
    }
    double value = (double)bytes / 1024;
    int unit = 0;
    for (; value >= 1024 && unit < 5; unit++)
        value /= 1024;
    (void)snprintf(out.text, sizeof out.text, "%.2f %s", value, units[unit]);
    return out;
}

#endif
