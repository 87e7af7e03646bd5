# SPDX-License-Identifier: BSD-3-Clause
"""What people write into files and arguments: no input makes a parser crash, hang, or fail without naming the input.

Inputs are made from the seeds beside this file by a generator with a fixed seed, so a failure repeats. An input that
once failed is kept as a seed. The variables that the runtime parses are fuzzed in C.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_openreg._discovery import manifests, preferences
from torch_openreg._discovery.options import options_as_text
from torch_openreg.openreg import defaults

SEEDS = Path(__file__).parent / "seeds"
PIECES = ['"', "'", "[", "]", "{", "}", ":", ",", "=", "\n", "\\", "\0", "#", "-", "9" * 40, "é", "\ud7ff", " ", ""]


def mutated(name: str, count: int) -> Iterator[str]:
    """The seeds of a file, then `count` inputs made of them."""
    lines = (SEEDS / name).read_text(encoding="utf-8").splitlines()
    seeds = [line.replace("\\n", "\n").replace("\\r", "\r") if name == "preferences.txt" else line for line in lines]
    yield from seeds
    chance = random.Random(20)
    for _ in range(count):
        text = chance.choice(seeds)
        for _ in range(chance.randint(1, 4)):
            at, end = sorted((chance.randint(0, len(text)), chance.randint(0, len(text))))
            kind = chance.randrange(5)
            if kind == 0:
                text = text[:at] + chance.choice(PIECES) + text[at:]
            elif kind == 1:
                text = text[:at] + text[end:]
            elif kind == 2:
                text = text[:end] + text[at:end] * chance.choice((1, 2, 50)) + text[end:]
            elif kind == 3:
                other = chance.choice(seeds)
                text = text[:at] + other[chance.randint(0, len(other)) :]
            else:
                text = (
                    text[:at] + chr(chance.choice((0, 9, 127, 255, 0x2028, chance.randint(32, 126)))) + text[at + 1 :]
                )
        yield text[:4000]


def write(path: Path, text: str) -> None:
    """Writes text that need not be valid UTF-8."""
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def outcome(call: Callable[[], Any], *expected: type[Exception]) -> Any:
    """What a call returns, or the expected exception that it raises."""
    try:
        return call()
    except expected as error:
        return error


# acceptance 5.36, 5.38
def test_manifests(tmp_path: Path) -> None:
    """A JSON file is read, or refused with a ValueError or TypeError whose text is not empty; options likewise."""
    path = tmp_path / "driver.json"
    read, refused = 0, 0

    def parse() -> dict[str, str]:
        library, options = manifests.read(path)
        assert isinstance(library, Path)
        return options_as_text(options)

    for text in mutated("manifests.txt", 15_000):
        write(path, text)
        result = outcome(parse, ValueError, TypeError)
        if isinstance(result, Exception):
            assert str(result)
            refused += 1
        else:
            assert all(type(value) is str for value in result.values())
            read += 1
    assert read > 100
    assert refused > 100


# acceptance 1.17
def test_preferences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Reading never raises; a file that is ignored is named in a warning."""
    path = tmp_path / "LocalPreferences.toml"
    monkeypatch.setenv("OPENREG_PREFERENCES", str(path))
    read, ignored = 0, 0
    with caplog.at_level(logging.WARNING, logger="torch_openreg"):
        for text in mutated("preferences.txt", 5_000):
            write(path, text)
            caplog.clear()
            preferences._warned.clear()
            name = preferences.read()
            assert name is None or isinstance(name, str)
            read += name is not None
            ignored += bool(caplog.messages)
            assert all(str(path) in message for message in caplog.messages)
    assert read > 40  # most mutations leave no name behind
    assert ignored > 100


# acceptance 3.10
def test_device_strings() -> None:
    """A device, or an error of the right kind that shows the text or the range."""
    accepted, refused = 0, 0
    for text in mutated("devices.txt", 20_000):
        result = outcome(lambda text=text: defaults.as_device(text), ValueError, RuntimeError)
        if isinstance(result, torch.device):
            assert result.type in ("cpu", "openreg")
            assert result.index is None or 0 <= result.index < torch.openreg.device_count()
            accepted += 1
        else:
            shown = text in str(result) or repr(text)[1:-1] in str(result)
            assert shown or (isinstance(result, RuntimeError) and "device" in str(result)), repr(text)
            refused += 1
    assert accepted > 50  # fewer where the device has another name than the seeds say
    assert refused > 100
