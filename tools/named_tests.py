# SPDX-License-Identifier: BSD-3-Clause
"""Runs the Python tests with the device under another name, as a vendor's users have it.

A copy of the tests, the examples and the programs of the pages is made in which each word for the device has the new
name: in strings of Python, where it stands alone, before a number or before a noun, and in ``x.openreg()`` and
``x.is_openreg``. The tests themselves say "openreg" and need to know nothing of this. The name is declared as a package
of a driver declares it, so that no variable has to reach the processes that tests start.

``python tools/named_tests.py mychip -n 2 tests/python/devices``: what follows the name is for pytest.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What runs as it is: it is about the name, or about texts of the checkout.
LEFT_OUT = {
    "devices/test_device_name.py": "gives the device names itself",
    "devices/test_words.py": "gives the device a name itself",
    "devices/test_under_a_name.py": "runs this program",
    "selection/test_new_driver.py": "makes packages that declare names themselves",
    "selection/test_driver_package.py": "has environments of its own, in which nobody declares a name",
    **{
        f"tools/test_{name}.py": "is about the checkout and its tools, not about devices"
        for name in ("acceptance", "check_rooms", "mutate", "package", "sdist", "source", "torch_versions")
    },
}

# In a string: the whole of it, a quoted word in it, a device with its index, a name made of it, a noun's attribute.
_WORD = (
    # The allocator in PyTorch's place is the library's, "openreg" or "torch".
    (re.compile(r"""(?<!allocator\(\) == ")(?<!allocator"\] == ")(?<=['"`=])openreg(?=['"`,])"""), "{}"),
    (re.compile(r"\bopenreg:(?![: ])|\bopenreg:(?= (?:warning|error|info|debug|host code|drivers))"), "{}:"),
    (re.compile(r"\b[Aa]n openreg(?= )"), "{a} {}"),
    (re.compile(r"(?<!name=\")\bopenreg_(?=gloo\b|ddp\b)"), "{}_"),
    (
        re.compile(
            r"\bopenreg(?= (?:tensors?|devices?|operators?|or all of|is being profiled)\b)"
            r"|(?<=(?:for|ype| on) )openreg\b"
        ),
        "{}",
    ),
    (
        re.compile(
            r"\btorch\.openreg\.(?=\w+Tensor\b|use_driver\('\w+'(?:\) or|, '\w+'\) chooses))"
            r"|(?<=')torch\.openreg\.(?=set_operator_policy)|(?<=<)torch\.openreg\."
        ),
        "torch.{}.",
    ),
    (re.compile(r"(?<=,)openreg(?=:)"), "{}"),
    (re.compile(r"\bOpenReg(?= (?:in forked|with multiprocessing|functionality)\b)"), "{}"),
    (re.compile(r"\bOPENREG(?= device \d|_GLOO\b)|(?<=Self )OPENREG\b"), "{upper}"),
    (re.compile(r"(?<= but )torch\.openreg(?=\.device_count)"), "torch.{}"),
)
_PROGRAM = re.compile(r"(^```python\n|^<!-- run with: )(.*?)(?=^```$| -->$)", re.DOTALL | re.MULTILINE)
# In code, also that in strings.
_METHOD = ((re.compile(r"(?<!torch)\.openreg(?=\()"), ".{}"), (re.compile(r"\bis_openreg\b"), "is_{}"))


def _replace(text: str, patterns: tuple[tuple[re.Pattern[str], str], ...], name: str) -> str:
    for pattern, new in patterns:
        text = pattern.sub(new.format(name, upper=name.upper(), a="an" if name[0] in "aeiou" else "a"), text)
    return text


def translate(source: str, name: str) -> str:
    """A file of Python in which the device has another name."""
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    pieces, done = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            begin, end = (offsets[row - 1] + column for row, column in (token.start, token.end))
            text = source[begin:end]
            is_path = source[:begin].endswith("/ ")
            pieces += [source[done:begin], text if is_path else _replace(text, _WORD, name)]
            done = end
    return _replace("".join((*pieces, source[done:])), _METHOD, name)


def translate_page(text: str, name: str) -> str:
    """A page whose programs in Python have the new name."""
    return _PROGRAM.sub(lambda found: found[1] + translate(found[2], name), text)


def make_copy(folder: Path, name: str) -> None:
    """Fills a new folder with the checkout: tests, examples and pages' programs are translated, the rest are links."""
    shutil.rmtree(folder, ignore_errors=True)
    copied = ("tests", "examples", "docs", "README.md")
    for part in copied[:-1]:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / copied[-1], folder)
    for suffix, change in ((".py", translate), (".md", translate_page)):
        for path in folder.rglob(f"*{suffix}"):
            path.write_text(change(path.read_text(encoding="utf-8"), name), encoding="utf-8")
    for path in ROOT.iterdir():
        if path.name not in (*copied, ".git"):
            (folder / path.name).symlink_to(path)
    information = folder / "declared" / "named-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: named\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[torch_openreg.device_name]\n{name} = named\n")


def main() -> int:
    """Runs pytest in the copy; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, help="of the copy: build-named/NAME")
    options, arguments = parser.parse_known_args()
    folder = (options.folder or ROOT / "build-named" / options.name).resolve()
    make_copy(folder, options.name)
    left_out = [f"--ignore=tests/python/{path}" for path in LEFT_OUT]
    environment = {key: value for key, value in os.environ.items() if key != "OPENREG_DEVICE_NAME"}
    # Under a vendor's name only his own drivers are chosen without a variable.
    environment["OPENREG_DRIVERS"] = environment["TEST_OPENREG_DRIVERS"] = "sim"
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(folder / "declared"), environment.get("PYTHONPATH", "")))
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *left_out, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
