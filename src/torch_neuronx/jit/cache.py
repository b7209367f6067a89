"""Object code on disk, by content: one file per key, shared by all processes of a user.

A file that is missing, damaged or not ours counts as absent, and a directory that cannot be written as empty: a cache
is never the reason for a failure.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["ObjectCache", "default_directory"]

# In front of every file; the digest of what follows comes next. Another layout gets another number.
_MAGIC = b"neuron-jit-1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


def default_directory() -> Path | None:
    """`torchneuron` in the user's directory for caches (XDG Base Directory Specification); None when he has none."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the specification asks to ignore a relative one
        return Path(base) / "torchneuron"
    try:
        return Path.home() / ".cache" / "torchneuron"
    except RuntimeError:
        return None


class ObjectCache:
    """Object code below `directory`, which need not exist.

    Keys are file names, such as hexadecimal digests.
    """

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "stages"

    def load(self, key: str) -> bytes | None:
        """What was stored as `key`, else None."""
        try:
            with open(self._path(key), "rb") as file:
                # The code will run: what another user could have written is not taken.
                status = os.fstat(file.fileno())
                if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return None
                content = file.read()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        code = content[start:]
        return code if content[:start] == _head(code) else None

    def store(self, key: str, code: bytes) -> None:
        """Keeps `code` as `key`, replacing what was there; readers see the old file or the new one, never a part."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=f".{key}-")
            try:
                with open(descriptor, "wb") as file:
                    file.write(_head(code) + code)
                os.replace(temporary, self._path(key))
            except OSError:
                os.unlink(temporary)
                raise

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.o"


def _head(code: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(code).digest()
