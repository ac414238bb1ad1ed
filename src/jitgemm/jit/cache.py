"""The object cache on disk.

Contract 21: owner-only directory, atomic writes, a checksum over every file, keys made of the
generator's source, LLVM, CPU and features.  A damaged or foreign file is ignored with a warning and
rebuilt; a read-only or missing home directory is no error.

The folder holds at most ``cache_bytes``: whoever stores an object removes those used least
recently, by their time of modification, which loading renews.  Other processes may load, store and
remove at any moment: a file that is gone was never there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pkgutil
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from jitgemm import errors, tuning

__all__ = [
    "Stored", "WarningsLater", "directory", "limit", "load", "location", "remove", "source_digest",
    "store", "stored",
]  # fmt: skip

_MAGIC = b"jitgemm-object-1\n"
# How files of any version begin, and what they are called.
_KIND = b"jitgemm-object-"
_OBJECT = re.compile(r"[0-9a-f]{40}\.o")
_UNFINISHED = re.compile(r"[0-9a-f]{40}\.\w+\.tmp")
# How exactly loading records the time, and how long a file may take to be written.
_HOUR_S = 3600.0
_DIGEST = hashlib.sha256().digest_size
_PACKAGE = __name__.split(".", 1)[0]
_GENERATORS = ("isa", "lang", "kernels", "jit", "runtime")
_IMPORTED = time.time_ns()
_PYC_HEADER = 16  # with the time of the source

# What a code object does, wherever it was compiled.
_CODE = (
    "co_name", "co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars",
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_exceptiontable",
)  # fmt: skip


def _describe(x: object) -> bytes:
    """A constant of a code object, or the object itself, as bytes that say all about it."""
    if isinstance(x, CodeType):
        return _describe(tuple(getattr(x, name) for name in _CODE))
    if isinstance(x, (tuple, frozenset)):
        parts = [_describe(item) for item in x]
        parts = sorted(parts) if isinstance(x, frozenset) else parts
        return b"".join([f"{type(x).__name__} {len(parts)} ".encode(), *parts])
    text = repr(x).encode()
    return f"{type(x).__name__} {len(text)} ".encode() + text


def _unchanged(spec: ModuleSpec) -> bool:
    """Whether the file a module comes from, or its archive, is that which was imported."""
    if not spec.has_location or spec.origin is None:
        return True
    origin = Path(spec.origin)
    file = next((p for p in (origin, *origin.parents) if p.is_file()), None)
    return file is None or file.stat().st_ctime_ns <= _IMPORTED


def _content(name: str) -> bytes:
    """What a module consists of, from wherever the import system has it.

    Raises:
        ImportError: that cannot be told.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None or not _unchanged(spec):
        raise ImportError(name)
    loader: Any = spec.loader
    try:
        data: bytes = loader.get_data(spec.origin)
    except (AttributeError, TypeError, OSError):  # frozen: there is only the code
        code = loader.get_code(name)
        if code is None:
            raise ImportError(name) from None
        return _describe(code)
    # Byte code beside the source is what runs, even if it is that of another source.
    if spec.cached and spec.cached != spec.origin and Path(spec.cached).is_file():
        data += Path(spec.cached).read_bytes()[_PYC_HEADER:]
    return data


def _modules() -> Iterator[str]:
    """Every module that can change the generated code, imported or not.

    Raises:
        ImportError: they cannot be listed.
    """
    # Its own code says which version it is.
    yield _PACKAGE
    for folder in _GENERATORS:
        package = f"{_PACKAGE}.{folder}"
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ImportError(package)
        found = {x.name for x in pkgutil.iter_modules(spec.submodule_search_locations)}
        names = {f"{package}.{name}" for name in found}
        if not {x for x in sys.modules if x.startswith(f"{package}.")} <= names:
            raise ImportError(package)
        yield package
        yield from sorted(names)


@cache
def source_digest() -> str | None:
    """Digest of every module that can change the generated code; ``None`` if there is none."""
    digest = hashlib.sha256()
    try:
        for name in _modules():
            content = _content(name)
            digest.update(f"{name} {len(content)} ".encode() + content)
    except Exception:  # noqa: BLE001  # loaders raise what they like, and none may do harm here
        _warn("the package's own code cannot be read, or changed since; the disk cache is not used")
        return None
    return digest.hexdigest()


def _default_directory() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        if not Path(base).is_absolute():  # to be ignored, says its specification
            base = str(Path.home() / ".cache")
    return Path(base) / "jitgemm"


def location() -> Path | None:
    """The cache folder, which need not exist nor be used; ``None``: there is no home.

    ``JITGEMM_CACHE_DIR`` names another than the platform's.
    """
    try:
        return tuning.folder("cache_dir") or _default_directory()
    except RuntimeError:
        return None


def directory() -> Path | None:
    """The cache folder, created if need be; ``None`` where there can be none.

    ``JITGEMM_CACHE=off`` switches the disk cache off.
    """
    if not tuning.switch("cache", default=True):
        return None
    path = location()
    if path is None:
        return None
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix":
            info = path.stat()
            if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o022:
                _warn(f"cache folder {path} can be written by others; not used")
                return None
    except OSError as e:
        # Read-only, or not a folder: work without.
        if tuning.folder("cache_dir") is not None:
            _warn(f"cache folder {path} cannot be used ({e.strerror}); machine code is not kept")
        return None
    return path


def load(key: str) -> bytes | None:
    """The object stored under ``key``, if there is an undamaged one."""
    folder = directory()
    if folder is None:
        return None
    path = folder / f"{key}.o"
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) :][:_DIGEST] != _seal(key, body):
        _warn(f"cache file {path} is damaged or foreign; rebuilt")
        return None
    # In a read-only folder, or without the file by now, there is nothing to record.
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _HOUR_S:
            os.utime(path)
    return body


def store(key: str, body: bytes) -> None:
    """Keep ``body`` under ``key``; failure to write is no error."""
    folder = directory()
    if folder is None:
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f"{key}.", suffix=".tmp", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _seal(key, body) + body)
            Path(name).replace(folder / f"{key}.o")
        except BaseException:
            Path(name).unlink()
            raise
        _trim(folder)
    except OSError:
        return


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of this package in the cache folder."""

    path: Path
    nbytes: int
    used: float
    """When it was stored or loaded, to the hour, in seconds since the epoch."""
    finished: bool
    """False: left behind by a process that died while it wrote."""


def stored(folder: Path) -> list[Stored]:
    """The package's files in a folder by their names, least recently used first.

    Raises:
        OSError: the folder cannot be listed.
    """
    found, started_before = [], time.time() - _HOUR_S
    with os.scandir(folder) as entries:
        for entry in entries:
            finished = _OBJECT.fullmatch(entry.name) is not None
            if not finished and _UNFINISHED.fullmatch(entry.name) is None:
                continue
            with suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) and (finished or info.st_mtime < started_before):
                    file = Stored(Path(entry.path), info.st_size, info.st_mtime, finished)
                    found.append(file)
    return sorted(found, key=lambda x: x.used)


def remove(file: Stored, *, dry_run: bool = False) -> bool:
    """Remove a file, if it is one of this package by its content too; whether it was (or would be).

    Raises:
        OSError: it cannot be read or removed.
    """
    try:
        with file.path.open("rb") as content:
            start = content.read(len(_KIND))
        if start != _KIND and not (start == b"" and not file.finished):
            return False
        if not dry_run:
            file.path.unlink()
    except FileNotFoundError:
        return False
    return True


@cache
def limit() -> int:
    """How many bytes the folder may hold."""
    return tuning.environment("cache_bytes")


def _trim(folder: Path) -> None:
    """Remove what was left unfinished, and the objects used least recently beyond the limit."""
    files = stored(folder)
    total = sum(x.nbytes for x in files)
    for file in files:
        if file.finished and total <= limit():
            continue
        with suppress(OSError):
            remove(file)
        # Also if it stays, because others have to be readable: no other goes in its place.
        total -= file.nbytes


def _seal(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + body).digest()


class _Later(threading.local):
    texts: list[str] | None = None


_later = _Later()


class WarningsLater:
    """Keeps this thread's warnings for the end: what shows them may run any Python."""

    def __enter__(self) -> None:
        self._mine = _later.texts is None
        if self._mine:
            _later.texts = []

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._mine:
            texts, _later.texts = _later.texts, None
            for text in texts or () if kind is None else ():
                errors.warn(text)


def _warn(text: str) -> None:
    if _later.texts is None:
        errors.warn(text)
    else:
        _later.texts.append(text)
