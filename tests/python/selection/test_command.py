# SPDX-License-Identifier: BSD-3-Clause
"""python -m torch_openreg"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from finished import finished
from toys import NO_GPU

from torch_openreg.__main__ import main
from torch_openreg._build_info import OPENREG_VERSION, TORCH_VERSION


def run(folder: Path, *arguments: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "XDG_"))}
    done = finished(
        [sys.executable, "-m", "torch_openreg", *arguments],
        status=status,
        cwd=folder,
        env=clean | NO_GPU | {"XDG_CONFIG_HOME": str(folder / "config")} | environment,
        timeout=120,
    )
    return done


# info tells what is there, aligned, without colours into a pipe, and opens nothing
def test_info(tmp_path: Path) -> None:
    done = run(tmp_path, "info", OPENREG_SIM_DEVICES="5")
    assert "\033" not in done.stdout
    lines = done.stdout.splitlines()
    assert "  5 device(s)" in lines
    (header,) = [line for line in lines if line.split()[:2] == ["name", "state"]]
    (sim,) = [line for line in lines if line.split()[:1] == ["sim"]]
    assert sim.index("built in") == header.index("source")
    assert "OPENREG_SIM_DEVICES" in done.stdout
    facts = json.loads(run(tmp_path, "info", "--json").stdout)
    assert {driver["name"] for driver in facts["drivers"]} == {"cuda", "hip", "sim"}
    assert all(driver["state"] != "open" for driver in facts["drivers"])
    assert facts["selection"]["device_count"] == 2


# diagnose tells how the devices were chosen, and its status says whether there are any
def test_diagnose(tmp_path: Path) -> None:
    done = run(tmp_path, "diagnose")
    assert "driver sim, chosen automatically" in done.stdout
    assert "Advice" in done.stdout
    done = run(tmp_path, "diagnose", "--json", status=1, OPENREG_DRIVERS="cuda")
    facts = json.loads(done.stdout)
    assert "Unable to initialize driver 'cuda'" in facts["error"]
    assert facts["advice"]
    done = run(tmp_path, "diagnose", OPENREG_USE_MOCK_GPU="hip", OPENREG_DRIVERS="hip")
    assert "driver hip, chosen by the variable OPENREG_DRIVERS" in done.stdout


# prefer stores, shows and clears the preference; what can't be stored is an error without a traceback
def test_prefer(tmp_path: Path) -> None:
    file = tmp_path / "LocalPreferences.toml"
    assert run(tmp_path, "prefer", "ROCM").stdout == "hip is preferred (LocalPreferences.toml)\n"
    assert 'gpu_backend = "hip"' in file.read_text()
    done = run(tmp_path, "prefer", "foo", status=1)
    assert "'driver' must be one of ('cuda', 'hip', 'sim'), got 'foo'" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(run(tmp_path, "prefer", "--clear", "--json").stdout)["preference"] is None
    assert "gpu_backend" not in file.read_text()


# a wrong command line has a status of its own
@pytest.mark.parametrize("arguments", [["prefer"], ["prefer", "sim", "--clear"], ["unknown"]])
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: python -m torch_openreg" in capsys.readouterr().err


# without a command there is help, and the version can be had
def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: python -m torch_openreg") and "diagnose" in text
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"torch-openreg {OPENREG_VERSION} for torch {TORCH_VERSION}\n"


# a file that is no TOML is named, and left alone
def test_prefer_with_a_malformed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("= broken")
    monkeypatch.setenv("OPENREG_PREFERENCES", str(file))
    assert main(["prefer", "sim"]) == 1
    assert str(file) in capsys.readouterr().err
    assert file.read_text() == "= broken"


# a variable that nothing reads is named with the one that is meant: by diagnose, and in the log at first use
def test_mistyped_variables(tmp_path: Path) -> None:
    wrong = {"OPENREG_SIM_DEVICEZ": "4", "OPENREG_SIM_RACE": "report", "OPENREG_DEVICES": "4", "OPENREG_ZZZ": "1"}
    done = run(tmp_path, "diagnose", **wrong, OPENREG_HIP_ANY_KEY="1", OPENREG_SIM_DEVICES="3", OPENREG_SIM_FAULTS="")
    for name, meant in (("SIM_DEVICEZ", "SIM_DEVICES"), ("SIM_RACE", "SIM_RACES"), ("DEVICES", "SIM_DEVICES")):
        text = f"Nothing reads the variable OPENREG_{name}. Is OPENREG_{meant} meant?"
        assert text in done.stdout
        assert text in done.stderr
    assert "Nothing reads the variable OPENREG_ZZZ.\n" in done.stdout
    assert "OPENREG_ZZZ" not in done.stderr
    assert "ANY_KEY." not in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("Nothing reads") == 7


# whoever reads the first lines alone gets them without an error
def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "torch_openreg", "info"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


# check opens a package's driver with the options that the package registers, as programs do; those of variables and of the
# command line go before them
def test_check_opens_a_driver_as_programs_do(tmp_path: Path, full_toy: str) -> None:
    package = tmp_path / "site" / "torch_openreg_plugins"
    package.mkdir(parents=True)
    call = f"torch.openreg.register_driver_plugin('toy', library_path={full_toy!r}, options={{'devices': 3}})"
    (package / "toy.py").write_text(f"def initialize():\n    import torch\n    {call}\n")
    words = ("check", "toy", "--only", "table.name")
    site = str(package.parent)
    assert "3 devices," in run(tmp_path, *words, PYTHONPATH=site).stdout
    assert "1 device," in run(tmp_path, *words, PYTHONPATH=site, OPENREG_TOY_DEVICES="1").stdout
    for more in (("--option", "devices=4"), ("--option=devices=4",)):
        assert "4 devices," in run(tmp_path, *words, *more, PYTHONPATH=site, OPENREG_TOY_DEVICES="1").stdout


# a path is somebody else's text: no escape reaches the terminal
def test_paths_are_shown_as_text(tmp_path: Path) -> None:
    done = run(tmp_path, "info", OPENREG_DRIVER_LIBRARIES="chip:/nowhere/\033[31m.so")
    assert "\033" not in done.stdout
    assert "/nowhere/\\x1b[31m.so" in done.stdout


# nor from a file of a foreign folder: not in the log, not in what is printed, and the data stay as they are
@pytest.mark.parametrize("name", ["a\nERROR forged \033[31m", "\033\0"])
def test_a_foreign_preference_is_shown_as_text(tmp_path: Path, name: str) -> None:
    (tmp_path / "LocalPreferences.toml").write_text(f"[torch_openreg]\ngpu_backend = {json.dumps(name)}\n")
    for command in ("info", "diagnose"):
        done = run(tmp_path, command)
        assert not [c for c in done.stdout + done.stderr if not c.isprintable() and c != "\n"]
        assert not [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("ERROR")]
        assert "\\x1b" in done.stdout
    assert json.loads(run(tmp_path, "diagnose", "--json").stdout)["preference"]["stored"] == name


# a link of a foreign folder that leads elsewhere
def test_a_foreign_link_is_shown_as_text(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "LocalPreferences.toml").symlink_to(tmp_path / "\033[31m\nERROR forged")
    said = run(folder, "prefer", "hip", status=1).stderr
    assert "\\x1b[31m\\x0aERROR forged" in said
    assert "\033" not in said


# nor from packages there, which need not be installed; an error of several lines stays among its own
def test_foreign_packages_are_shown_as_text(tmp_path: Path) -> None:
    for folder, name in (("one\033[31m", "first"), ("two\n", "second\033")):
        place = tmp_path / f"{folder}-1.dist-info"
        place.mkdir()
        plugin = f"[torch_openreg.drivers]\nx = no_{folder[:4].strip()}thing\n"
        (place / "entry_points.txt").write_text(f"{plugin}[torch_openreg.device_name]\n{name} = x\n")
    done = run(tmp_path, "diagnose", status=1, OPENREG_DRIVERS="x\ny")
    assert "first (one\\x1b[31m), second\\x1b (two\\x0a)" in done.stderr
    assert "Plugin module no_one\\x1bthing does not exist" in done.stderr
    assert not [c for c in done.stdout + done.stderr if not c.isprintable() and c != "\n"]
    assert not [line for line in done.stdout.splitlines() if line.startswith("y")]
