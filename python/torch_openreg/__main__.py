# SPDX-License-Identifier: BSD-3-Clause
"""The command ``python -m torch_openreg``: information, diagnosis, the preferred driver, and a new driver's project.

The exit status is 0, 1 if the command fails (``diagnose``: no device can be used, or a plugin has failed; ``prefer``:
the choice can't be stored; ``new``: the folder exists, or the name is unfit; ``explore``: a seed fails), and 2 for a
wrong command line. Without a command it prints its usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import torch_openreg
from torch_openreg import _C, _new
from torch_openreg._build_info import OPENREG_VERSION, TORCH_VERSION
from torch_openreg._discovery import preferences
from torch_openreg.openreg import diagnosis, selection
from torch_openreg_lab import explore

_BOLD, _PLAIN = "\033[1m", "\033[0m"


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for line in diagnosis.text_of(facts).splitlines():
        is_heading = bool(line) and not line.startswith(" ")
        print(f"{_BOLD}{line}{_PLAIN}" if is_heading and sys.stdout.isatty() else line)


def _info(arguments: argparse.Namespace) -> int:
    _print(diagnosis.summary(), arguments.json)
    return 0


def _diagnose(arguments: argparse.Namespace) -> int:
    facts = torch_openreg.openreg.diagnose(as_dict=True)
    _print(facts, arguments.json)
    return 1 if facts["error"] or diagnosis.failed_plugins(facts) else 0


def _prefer(arguments: argparse.Namespace) -> int:
    try:
        selection.set_preferred_driver(arguments.name)
    except (OSError, ValueError) as error:
        print(f"python -m torch_openreg prefer: {error}", file=sys.stderr)
        return 1
    stored, path = selection.get_preferred_driver(), str(preferences.path_to_read())
    if arguments.json:
        print(json.dumps({"preference": stored, "path": path}, indent=2))
    elif stored is None:
        print("no driver is preferred")
    else:
        print(f"{stored} is preferred ({path})")
    return 0


def _new_driver(arguments: argparse.Namespace) -> int:
    try:
        folder = _new.make_driver(arguments.name, arguments.directory)
    except (OSError, ValueError) as error:
        print(f"python -m torch_openreg new: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: a driver for {arguments.name}, which works as it is. Next:")
    print(f"  cd {folder} && python -m pip install .")
    print(f"  python -m torch_openreg check {arguments.name}")
    print(f'  grep -n "{arguments.name.upper()}:" -r .   # the places to fill in')
    return 0


_OF_THE_RUNTIME = ("node_id", "num_nodes", "visible_devices")  # options that no package's driver alone is given


def _words_of_plugin(name: str, given: str) -> list[str]:
    """The library of a driver that a Python package has registered, with its options, else the name itself.

    Args:
        name: The driver's name.
        given: The words of the command line, each in a line: options that it has go before those of the package.

    Raises:
        RuntimeError: Neither torch-openreg nor a package has such a driver.
    """
    record = torch_openreg.openreg.driver_info(name)
    if not record["is_plugin"] or not record["path"]:
        return [name]
    options = [f"{key}={value}" for key, value in _C._driver_options(name).items() if key not in _OF_THE_RUNTIME]
    own = set(re.findall(r"^--option[=\n]([^=\n]+)=", given, re.MULTILINE))
    return [str(record["path"]), *(f"--option={each}" for each in options if each.partition("=")[0] not in own)]


def _check(words: list[str]) -> int:
    """Runs the program ``openreg-check`` of this package, with its own command line, and level 3 in Python.

    The program knows paths and the drivers of this package; names of plugins are replaced by their libraries here.
    """
    given = "\n".join(words)
    try:
        of_words = [_words_of_plugin(word, given) if _is_name(words, i) else [word] for i, word in enumerate(words)]
    except RuntimeError as error:
        print(f"python -m torch_openreg check: {error}", file=sys.stderr)
        return 2
    words = [each for of_word in of_words for each in of_word]
    from torch_openreg_lab.check import level3

    return level3.main(words)


def _is_name(words: list[str], i: int) -> bool:
    """Whether a word of openreg-check's command line is a driver's name: no option, no option's value, no path."""
    flags = ("--help", "--list", "--verbose", "--version")
    is_value = i > 0 and words[i - 1].startswith("--") and words[i - 1] not in flags
    return not is_value and re.fullmatch(r"[a-z0-9_]+", words[i]) is not None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_openreg", description="Inspects the drivers of torch-openreg and chooses one."
    )
    parser.add_argument(
        "--version", action="version", version=f"torch-openreg {OPENREG_VERSION} for torch {TORCH_VERSION}"
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("check", help="whether a driver keeps the rules of driver.h: the program openreg-check")
    info = commands.add_parser("info", help="lists drivers and devices, opening as few as possible")
    diagnose = commands.add_parser("diagnose", help="what is chosen and why, and what could be done; opens drivers")
    new = commands.add_parser("new", help="writes a repository for a driver: in C, with a wheel, tests and the checks")
    new.add_argument("name", metavar="NAME", help="name of the driver: a-z, 0-9 and _")
    new.add_argument("--directory", type=Path, help="folder to make (torch-NAME)")
    new.set_defaults(function=_new_driver)
    explore.add_command(commands)
    prefer = commands.add_parser("prefer", help="stores the driver to choose if it works")
    which = prefer.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", metavar="NAME", help="name of the driver")
    which.add_argument("--clear", action="store_true", help="removes the stored preference")
    for command, function in ((info, _info), (diagnose, _diagnose), (prefer, _prefer)):
        command.add_argument("--json", action="store_true", help="writes JSON")
        command.set_defaults(function=function)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: Command line; ``sys.argv[1:]`` if None.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["check"]:
        return _check(words[1:])
    parser = _parser()
    parsed = parser.parse_args(words)
    if parsed.command is None:
        parser.print_help()
        return 0
    return int(parsed.function(parsed))


def _run() -> int:
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # as `diagnose | head` does: the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again when it ends
        return 128 + signal.SIGPIPE
    return status


if __name__ == "__main__":
    sys.exit(_run())
