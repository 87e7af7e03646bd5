# SPDX-License-Identifier: BSD-3-Clause
"""The frozen headers of the driver ABI (tests/drivers/frozen): what they say is in today's headers, at the same place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FROZEN = ROOT / "tests/drivers/frozen/1.0/openreg"
TODAY = ROOT / "runtime/include/openreg"

# They are elements of arrays, so they have no room for more.
ELEMENTS = tuple(f"struct openreg_{name}" for name in ("dtype", "option", "tensor", "value"))


def parts_of(text: str) -> dict[str, str]:
    """The structures, the constants and the other types of a header, each by its name, without comments and spacing."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    parts = {f"struct {name}": body for name, body in re.findall(r"struct (\w+) \{\n(.*?)\n\}", text, re.DOTALL)}
    parts |= {
        f"#define {name}": body for name, body in re.findall(r"^#define (\w+)((?:.*\\\n)*.*)", text, re.MULTILINE)
    }
    parts |= {body: body for body in re.findall(r"^typedef [^{;]*;", text, re.MULTILINE)}
    return {" ".join(name.split()): " ".join(body.split()) for name, body in parts.items()}


def changes(frozen: str, today: str) -> list[str]:
    """What a header no longer says as a frozen one did. Structures may have more at their end, and codes be added."""
    now = parts_of(today)
    may_grow = re.compile(r"struct |#define OPENREG_STATUS_MAP")
    return [
        name
        for name, body in parts_of(frozen).items()
        if name != "#define OPENREG_ABI_MINOR"
        and body != now.get(name)
        and not (may_grow.match(name) and name not in ELEMENTS and now.get(name, "").startswith(body))
    ]


@pytest.mark.parametrize("header", sorted(path.name for path in FROZEN.iterdir()))
def test_todays_headers_have_all_of_it(header: str) -> None:
    assert changes((FROZEN / header).read_text(), (TODAY / header).read_text()) == []


# what would break a driver of 1.0 is seen: a field in the middle, another type, another number
@pytest.mark.parametrize(
    ("header", "old", "new", "seen"),
    [
        ("driver.h", "uint64_t min_alignment;", "uint64_t more, min_alignment;", "struct openreg_device_info"),
        ("driver.h", "int32_t dev, void *ptr);", "int64_t dev, void *ptr);", "struct openreg_driver"),
        (
            "driver.h",
            "typedef openreg_status (*",
            "typedef int (*",
            "typedef openreg_status (*openreg_driver_query_fn)",
        ),
        ("kernels.h", "} openreg_value;", "    int32_t more;\n} openreg_value;", "struct openreg_value"),
        ("comm.h", "OPENREG_COMM_MAX 2", "OPENREG_COMM_MAX 20", "#define OPENREG_COMM_MAX"),
        ("status.h", "X(OPENREG_E_BUSY, 9,", "X(OPENREG_E_BUSY, 10,", "#define OPENREG_STATUS_MAP"),
    ],
)
def test_a_change_is_seen(header: str, old: str, new: str, seen: str) -> None:
    frozen = (FROZEN / header).read_text()
    found = changes(frozen, frozen.replace(old, new))
    assert len(found) == 1
    assert found[0].startswith(seen)


# what a later minor version does is no change: a function at the end, another code
def test_more_at_the_end_is_no_change() -> None:
    driver, status = (FROZEN / "driver.h").read_text(), (FROZEN / "status.h").read_text()
    function = "    void (*next)(void);\n} openreg_driver;"
    code = 'is captured") \\\n    X(OPENREG_E_NEXT, 13, "next")'
    assert changes(driver, driver.replace("} openreg_driver;", function)) == []
    assert changes(status, status.replace('is captured")', code)) == []
    assert len(parts_of(driver)) > 15
