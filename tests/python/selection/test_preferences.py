# SPDX-License-Identifier: BSD-3-Clause
"""The stored preference: LocalPreferences.toml."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_openreg import config
from torch_openreg._discovery import preferences

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomlkit as tomllib

FILE = "LocalPreferences.toml"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process stores the preference during a test."""
    path = tmp_path / FILE
    monkeypatch.setenv("OPENREG_PREFERENCES", str(path))
    monkeypatch.setattr(preferences, "_warned", set())
    return path


def stored(path: Path) -> Any:
    return tomllib.loads(path.read_text())["torch_openreg"].get("gpu_backend")


# acceptance 1.4, 1.8: no name removes the key alone; without a file nothing happens and none is made
def test_no_name_removes_the_preference(python: Any, tmp_path: Path) -> None:
    python(
        """
        openreg.set_preferred_driver("")
        assert not os.path.exists("LocalPreferences.toml")
        openreg.set_preferred_driver("sim")
        assert openreg.get_preferred_driver() == "sim"
        openreg.set_preferred_driver()
        assert openreg.get_preferred_driver() is None
        openreg.set_preferred_driver("sim")
        openreg.set_preferred_driver(None)
        assert openreg.get_preferred_driver() is None
        assert not openreg.drivers_are_initialized()
        """
    )
    assert "gpu_backend" not in (tmp_path / FILE).read_text()


# acceptance 1.5, 1.6: whatever has the text of a name, a driver, a device
def test_what_may_be_preferred(python: Any) -> None:
    python(
        """
        class Name:
            def __str__(self):
                return " SIM"
        def stored():
            return open("LocalPreferences.toml").read()
        openreg.set_preferred_driver(Name())
        assert 'gpu_backend = "sim"' in stored(), stored()
        openreg.set_preferred_driver("AMDGPU")
        assert 'gpu_backend = "hip"' in stored(), stored()
        openreg.set_preferred_driver(torch.device("openreg"))
        assert 'gpu_backend = "sim"' in stored(), stored()
        openreg.set_preferred_driver("cuda")
        openreg.set_preferred_driver(openreg.get_driver("sim"))
        assert 'gpu_backend = "sim"' in stored(), stored()
        with raises(ValueError, "cpu"):
            openreg.set_preferred_driver(torch.device("cpu"))
        """
    )


# acceptance 1.7: other tables, keys, comments and line ends stay
def test_the_rest_of_the_file_stays(file: Path) -> None:
    before = '# mine\r\n[Other]\r\na = 1 # one\r\n\r\n[torch_openreg]\r\nelse = "x"\r\n'
    file.write_bytes(before.encode())
    file.chmod(0o640)
    assert preferences.write("sim") is True
    text = file.read_bytes().decode()
    assert text.startswith(before)
    assert tomllib.loads(text) == {"Other": {"a": 1}, "torch_openreg": {"else": "x", "gpu_backend": "sim"}}
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert preferences.write(None) is True
    assert file.read_bytes().decode() == before
    assert os.listdir(file.parent) == [FILE]  # neither lock nor temporary file is left


# acceptance 1.7: a link to the file stays a link
def test_a_linked_file_is_changed_where_it_is(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.toml"
    target.write_text("[Other]\n")
    file.symlink_to(target)
    preferences.write("sim")
    assert file.is_symlink()
    assert stored(target) == "sim"


# the file of the current folder, which may be somebody else's, is no way to a file outside of it
def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    (folder / "within").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("OPENREG_PREFERENCES", raising=False)
    for target in (tmp_path / "victim.toml", tmp_path / "none.toml", folder / "within" / "own.toml"):
        is_within = target.parent != tmp_path
        if target.name != "none.toml":
            target.write_text("a = 1\n")
        (folder / FILE).symlink_to(os.path.relpath(target, folder))
        if is_within:
            preferences.write("sim")
            assert stored(target) == "sim"
        else:
            with pytest.raises(OSError, match=f"'{FILE}' is a link to '{target}', outside of its folder"):
                preferences.write("sim")
            assert not target.exists() or target.read_text() == "a = 1\n"
        (folder / FILE).unlink()


# whoever holds the lock, and however long: the wait has an end, and the error says for whom
def test_a_lock_that_is_never_released(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preferences, "_PATIENCE", 0.05)
    lock = file.with_name(f".{FILE}.lock")
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match=rf"another process holds '{lock}', for 0.05 s"):
            preferences.write("sim")
    preferences.write("sim")
    if os.geteuid() == 0:
        lock.touch()
        os.chown(lock, 12345, 12345)
        with pytest.raises(OSError, match=f"'{lock}' belongs to another user"):
            preferences.write("cuda")
    assert stored(file) == "sim"


# nobody else's file is replaced by one's own, unless it is named
def test_a_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENREG_PREFERENCES", raising=False)
    file = tmp_path / FILE
    file.write_text("a = 1\n")
    os.chown(file, 12345, 12345)
    with pytest.raises(OSError, match=f"'{file}' belongs to another user"):
        preferences.write("sim")
    assert file.read_text() == "a = 1\n"
    monkeypatch.setenv("OPENREG_PREFERENCES", str(file))
    assert preferences.write("sim")


# acceptance 1.9, 1.10: valid is what is supported, whether it works or not; else an error, and the file is as before
def test_only_supported_drivers_may_be_preferred(python: Any) -> None:
    python(
        """
        openreg.set_preferred_driver("sim")
        before = open("LocalPreferences.toml", "rb").read()
        with raises(ValueError, "'driver' must be one of ('cuda', 'hip', 'sim'), got 'foo'"):
            openreg.set_preferred_driver("foo")
        assert open("LocalPreferences.toml", "rb").read() == before
        openreg.set_preferred_driver("cuda")
        assert openreg.get_preferred_driver() == "cuda"
        assert not openreg.drivers_are_initialized()
        assert openreg.driver_info("cuda")["state"] != "open"
        """
    )


# acceptance 1.11: a process goes by what it found first; the next one sees what was set
def test_a_new_preference_needs_a_new_process(python: Any) -> None:
    python(
        """
        openreg.set_preferred_driver("hip")
        assert "INFO driver has been set to hip. Restart Python to use the new driver." in lines, lines
        openreg.reset_gpu_device()
        assert openreg.default_driver() == "cuda"
        """,
        OPENREG_USE_MOCK_GPU="cuda,hip",
    )
    python(
        'assert openreg.default_driver() == "hip"; assert _C._selection()["chosen_by"] == "preference"',
        OPENREG_USE_MOCK_GPU="cuda,hip",
    )


# acceptance 1.11: likewise a preference that is removed, or replaced, before anything has read it
@pytest.mark.parametrize("change", ["set_preferred_driver()", "set_preferred_driver('cuda')"])
def test_a_removed_preference_still_counts_in_this_process(python: Any, tmp_path: Path, change: str) -> None:
    (tmp_path / "LocalPreferences.toml").write_text('[torch_openreg]\ngpu_backend = "hip"\n')
    python(
        f"""
        openreg.{change}
        assert openreg.default_driver() == "hip"
        assert _C._selection()["chosen_by"] == "preference"
        """,
        OPENREG_USE_MOCK_GPU="cuda,hip",
    )
    python('assert openreg.default_driver() == "cuda"', OPENREG_USE_MOCK_GPU="cuda,hip")


# the name that is given back is the canonical one, whatever the file's spelling
def test_the_preference_is_a_canonical_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "some.toml"
    monkeypatch.setenv("OPENREG_PREFERENCES", str(file))
    for stored, given in (("AMDGPU", "hip"), (" Cuda ", "cuda"), ("foo", "foo"), ("no name!", "no name!")):
        file.write_text(f'[torch_openreg]\ngpu_backend = "{stored}"\n')
        assert torch.openreg.get_preferred_driver() == given


# neither the new file nor the lock is written through a link that somebody has put there
def test_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, victim = tmp_path / "some.toml", tmp_path / "victim"
    monkeypatch.setenv("OPENREG_PREFERENCES", str(file))
    victim.write_text("kept")
    (tmp_path / ".some.toml.new").symlink_to(victim)
    (tmp_path / ".some.toml.lock").symlink_to(victim)
    with pytest.raises(OSError, match=r"some\.toml\.lock"):
        torch.openreg.set_preferred_driver("sim")
    assert not file.exists()
    (tmp_path / ".some.toml.lock").unlink()
    old = os.umask(0o027)
    try:
        torch.openreg.set_preferred_driver("sim")
    finally:
        os.umask(old)
    assert victim.read_text() == "kept"
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == [".some.toml.new", "some.toml", "victim"]


# acceptance 1.12
def test_setting_the_same_again_writes_nothing(python: Any) -> None:
    python(
        """
        openreg.set_preferred_driver("sim")
        before = os.stat("LocalPreferences.toml")
        del lines[:]
        openreg.set_preferred_driver("sim")
        after = os.stat("LocalPreferences.toml")
        assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
        assert lines == ["INFO driver is already set to sim. No action is required."], lines
        """
    )


# acceptance 1.17: a file edited by hand; warned of once, never an error
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"../x.so"', "driver '../x.so' set via preferences is not a valid driver. Valid drivers are ("),
        ("3", "gpu_backend must be a string, but is 3"),
    ],
)
def test_a_preference_that_is_no_driver(python: Any, tmp_path: Path, value: str, text: str) -> None:
    (tmp_path / FILE).write_text(f"[torch_openreg]\ngpu_backend = {value}\n")
    python(
        f"""
        text = {text!r}
        assert openreg.gpu_device() == torch.device("openreg")
        assert openreg.default_driver() == "hip"
        openreg.reset_gpu_device()
        openreg._clear_drivers()
        openreg.gpu_device()
        warned = [line for line in lines if line.startswith("WARNING") and text in line]
        assert len(warned) == 1, lines
        """,
        OPENREG_USE_MOCK_GPU="hip",
    )


# a broken file is named, ignored when it is read, and left alone when it is to be written
@pytest.mark.parametrize("content", [b"= nothing [", b"\xff\xfe\x00", b"torch_openreg = 3\n"])
def test_a_malformed_file(file: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    file.write_bytes(content)
    assert preferences.read() is None
    assert preferences.read() is None
    warnings = [record.getMessage() for record in caplog.records]
    if content.startswith(b"torch_openreg"):
        assert warnings == []  # TOML, without a preference
    else:
        assert len(warnings) == 1
        assert str(file) in warnings[0]
    with pytest.raises(ValueError) as error:
        preferences.write("sim")
    assert str(file) in str(error.value)
    assert file.read_bytes() == content
    assert os.listdir(file.parent) == [FILE]


# acceptance 2.10: where the file is looked for, and where it is written
def test_where_the_file_is(python: Any, tmp_path: Path) -> None:
    config = tmp_path / "config" / "torch_openreg"
    config.mkdir(parents=True)
    (config / FILE).write_text('[torch_openreg]\ngpu_backend = "hip"\n')
    python(
        """
        assert openreg.get_preferred_driver() == "hip"  # of the user
        openreg.set_preferred_driver("sim")  # of this folder
        assert openreg.get_preferred_driver() == "sim"
        os.environ["OPENREG_PREFERENCES"] = "named.toml"
        assert openreg.get_preferred_driver() is None
        openreg.set_preferred_driver("cuda")
        assert openreg.get_preferred_driver() == "cuda"
        """
    )
    assert stored(config / FILE) == "hip"
    assert stored(tmp_path / FILE) == "sim"
    assert stored(tmp_path / "named.toml") == "cuda"


WRITE = """
import os, sys, types
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch  # whose libraries torch_openreg._C needs
package = types.ModuleType("torch_openreg")
package.__path__ = sys.argv[1].split(os.pathsep)
sys.modules["torch_openreg"] = package  # this file alone
from torch_openreg._discovery import preferences
"""
PACKAGE = os.pathsep.join((str(Path(preferences.__file__).parents[1]), config.torch_lib_dir()))


# a crash at any moment leaves the old file or the new one, and the next write works
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_file(file: Path, moment: str) -> None:
    before = '[Other]\na = 1\n\n[torch_openreg]\ngpu_backend = "sim"\n'
    file.write_text(before)
    kill = f"""
import os, signal
os.{moment} = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
preferences.write("hip")
"""
    done = subprocess.run([sys.executable, "-c", WRITE + kill, PACKAGE], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert file.read_text() == before
    assert preferences.write("cuda") is True
    assert tomllib.loads(file.read_text()) == {"Other": {"a": 1}, "torch_openreg": {"gpu_backend": "cuda"}}
    assert os.listdir(file.parent) == [FILE]


# two processes that write at once: neither loses what the other has written
def test_two_writers_lose_nothing(file: Path) -> None:
    turns = 60
    work = f"""
import tomlkit
key = sys.argv[2]
for turn in range({turns}):
    path = preferences.path_to_write()
    preferences.KEY = f"{{key}}{{turn}}"
    preferences.write(key)
"""
    writers = [subprocess.Popen([sys.executable, "-c", WRITE + work, PACKAGE, key]) for key in ("a", "b", "c")]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    table = tomllib.loads(file.read_text())["torch_openreg"]
    assert sorted(table) == sorted(f"{key}{turn}" for key in "abc" for turn in range(turns))
    assert os.listdir(file.parent) == [FILE]


# what is no regular file is neither waited for nor read without end: it is ignored, with one warning
@pytest.mark.parametrize("kind", ["fifo", "device", "large"])
def test_a_file_that_never_ends_is_ignored(file: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with file.open("wb") as large:
            large.truncate(1 << 30)
    assert preferences.read() is None
    assert f"The preferences in '{file}' are ignored: the file can't be read" in caplog.text
    with pytest.raises(OSError, match="regular file|larger"):
        preferences.write("sim")
