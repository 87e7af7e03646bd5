# SPDX-License-Identifier: BSD-3-Clause
"""The stored preference for a driver: ``gpu_backend`` in the table ``[torch_openreg]`` of ``LocalPreferences.toml``.

Read from ``$OPENREG_PREFERENCES`` if that is set, else from ``./LocalPreferences.toml`` if that exists, else from
``$XDG_CONFIG_HOME/torch_openreg/LocalPreferences.toml``. Written to the first if it is set, else to the second. Only
a driver's name is ever read from it, never a path.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _torch_openreg_device_name import shown

from torch_openreg import _C, _after_fork
from torch_openreg._discovery.files import read_text

if TYPE_CHECKING:
    import tomlkit

_logger = logging.getLogger("torch_openreg")

FILE_NAME = "LocalPreferences.toml"
TABLE = "torch_openreg"
KEY = "gpu_backend"
_PATIENCE = 10.0  # seconds that another process may hold the lock of the file; writing it takes milliseconds

_lock = threading.Lock()
_after_fork.renew(globals(), _lock=threading.Lock)
_snapshot: str | None = None
_is_snapshot_taken = False
_warned: set[str] = set()  # what was said of a file once is not said again


def path_to_write() -> Path:
    """The file that a preference is written to."""
    return Path(_C._variable("OPENREG_PREFERENCES") or FILE_NAME)


def path_to_read() -> Path:
    """The file that a preference is read from. It need not exist."""
    path = path_to_write()
    if _C._variable("OPENREG_PREFERENCES") or os.path.exists(path):
        return path
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(folder) / TABLE / FILE_NAME


def _parse(text: str) -> tomlkit.TOMLDocument:
    import tomlkit  # takes a while, and most processes have no file

    try:
        return tomlkit.parse(text)
    except Exception as error:  # not only tomlkit's own: deep nesting is a RecursionError
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        _logger.warning("%s", shown(text))


def _name_in(document: MutableMapping[str, Any]) -> Any:
    table = document.get(TABLE)
    return table.get(KEY) if isinstance(table, MutableMapping) else None


def read() -> str | None:
    """Returns the stored name, or None.

    A file that can't be read, or is no TOML, is ignored with one warning that names it.
    """
    path = path_to_read()
    try:
        text = read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        _warn_once(f"The preferences in '{path}' are ignored: the file can't be read: {error}")
        return None
    try:
        name = _name_in(_parse(text))
    except (ValueError, ImportError) as error:
        _warn_once(f"The preferences in '{path}' are ignored: the file can't be parsed: {error}")
        return None
    if name is not None and not isinstance(name, str):
        _warn_once(f"The preferences in '{path}' are ignored: {KEY} must be a string, but is {name!r}.")
        return None
    return str(name) if name else None


def snapshot() -> str | None:
    """Returns what was stored when this process first read or wrote the preference: what selection goes by."""
    global _snapshot, _is_snapshot_taken
    with _lock:
        if not _is_snapshot_taken:
            _snapshot = read()
            _is_snapshot_taken = True
        return _snapshot


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other processes from writing the file.

    The lock is on a file beside it, because the file itself is replaced: a process that waited for a lock on the old
    one would then hold nothing. For the same reason the lock file, which is removed in the end, must be looked at
    again once it is locked.
    """
    lock_path = path.with_name(f".{path.name}.lock")
    end = time.monotonic() + _PATIENCE
    while True:
        # Never through a link that somebody else may have put there. The name must be one that all processes know.
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise OSError(f"'{shown(lock_path)}' belongs to another user; remove it")
            while not _try_lock(descriptor):
                if time.monotonic() > end:
                    raise OSError(f"another process holds '{shown(lock_path)}', for {_PATIENCE} s already")
                time.sleep(0.01)
            if _is_same_file(descriptor, lock_path):
                try:
                    yield
                finally:
                    os.unlink(lock_path)
                return
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _umask() -> int:
    """The mode bits that new files lack. Read where reading doesn't set it: other threads make files, too."""
    with open("/proc/self/status", encoding="utf-8") as status:
        found = (line.partition(":")[2] for line in status if line.startswith("Umask:"))
        return int(next(found, "022"), 8)


def _replace(path: Path, text: str) -> None:
    """Replaces the content, all or nothing, by a new file with an unpredictable name. The caller holds the lock."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.new"):  # by a process that crashed
        with contextlib.suppress(OSError):
            os.unlink(left)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)  # O_EXCL and O_NOFOLLOW
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _load_to_edit(path: Path) -> tomlkit.TOMLDocument:
    try:
        return _parse(read_text(path) if path.exists() else "")
    except ValueError as error:
        raise ValueError(shown(f"'{path}' can't be changed, because it is not valid TOML: {error}")) from error


def _edit(path: Path, name: str | None) -> bool:
    """Sets or removes the name. Returns whether that changed the file."""
    import tomlkit

    document = _load_to_edit(path)
    if _name_in(document) == name:
        return False
    table = document.setdefault(TABLE, tomlkit.table())
    if not isinstance(table, MutableMapping):
        raise ValueError(f"'{shown(path)}' can't be changed, because '{TABLE}' in it is not a table.")
    if name is None:
        del table[KEY]
    else:
        table[KEY] = name
    _replace(path, tomlkit.dumps(document))
    return True


def write(name: str | None) -> bool:
    """Stores a name, or with None removes the one that is stored. Returns whether the file was changed.

    All else in the file stays as it is. It is replaced at once: readers see the old one or the new one, also after a
    crash at any moment.

    Raises:
        OSError: The file can't be read or written, another process keeps it locked, or it is that of the current
            folder and another user's, or a link that leads out of it.
        ValueError: It is not valid TOML. It is left as it is.
    """
    snapshot()  # what this process goes by is what was there before
    given = path_to_write()
    path = Path(os.path.realpath(given))  # a link stays one
    if not _C._variable("OPENREG_PREFERENCES") and not path.is_relative_to(os.path.realpath(given.parent)):
        raise OSError(
            f"'{given}' is a link to '{shown(path)}', outside of its folder; OPENREG_PREFERENCES names a file elsewhere"
        )
    if name is None and not path.exists():
        return False
    if not _C._variable("OPENREG_PREFERENCES") and path.exists() and path.stat().st_uid != os.geteuid():
        raise OSError(f"'{shown(path)}' belongs to another user; OPENREG_PREFERENCES names a file of your own")
    with _locked(path):
        return _edit(path, name)
