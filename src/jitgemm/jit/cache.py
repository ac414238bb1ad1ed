"""The object cache on disk.

Contract 21: owner-only directory, atomic writes, a checksum over every file, keys made of the
generator's source, LLVM, CPU and features.  A damaged or foreign file is ignored with a warning and
rebuilt; a read-only or missing home directory is no error.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path

from jitgemm import tuning
from jitgemm.errors import JitGemmWarning

__all__ = ["directory", "load", "source_digest", "store"]

_MAGIC = b"jitgemm-object-1\n"
_DIGEST = hashlib.sha256().digest_size
_GENERATORS = ("isa", "lang", "kernels", "jit", "runtime")


@cache
def source_digest() -> str:
    """Digest of every module that can change the generated code."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for folder in _GENERATORS:
        for path in sorted((root / folder).glob("*.py")):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
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


def directory() -> Path | None:
    """The cache folder, created if need be; ``None`` where there can be none.

    ``JITGEMM_CACHE_DIR`` names another folder; ``JITGEMM_CACHE=off`` switches the disk cache off.
    """
    if not tuning.switch("cache", default=True):
        return None
    named = tuning.folder("cache_dir")
    try:
        path = named or _default_directory()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix":
            info = path.stat()
            if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o022:
                _warn(f"cache folder {path} can be written by others; not used")
                return None
    except RuntimeError:
        return None  # no home
    except OSError as e:
        # Read-only, or not a folder: work without.
        if named is not None:
            _warn(f"cache folder {named} cannot be used ({e.strerror}); machine code is not kept")
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
    return body


def store(key: str, body: bytes) -> None:
    """Keep ``body`` under ``key``; failure to write is no error."""
    folder = directory()
    if folder is None:
        return
    try:
        handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _seal(key, body) + body)
            Path(name).replace(folder / f"{key}.o")
        except BaseException:
            Path(name).unlink()
            raise
    except OSError:
        return


def _seal(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + body).digest()


def _warn(text: str) -> None:
    warnings.warn(f"jitgemm: {text}", JitGemmWarning, stacklevel=4)
