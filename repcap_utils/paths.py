"""Where things lie, anchored on this file, so that no caller depends on its working directory."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from repcap_utils.errors import RepcapError

ROOT = Path(__file__).resolve().parents[1]


def _folder(variable: str, default: str) -> Path:
    # anchored on the root, so that a notebook, which runs in its own folder, means the same place as a shell
    return (ROOT / Path(os.environ.get(variable) or default).expanduser()).resolve()


OUTPUT = _folder("REPCAP_OUTPUT", ".")
"""Where measured models, records and figures go: `REPCAP_OUTPUT` (from the root if relative), or this project's own folders."""

NOTEBOOKS = ROOT / "notebooks"
DATA = ROOT / "data"
FIGURES = OUTPUT / "figures"
PUBLISHED = DATA / "published"
RECORDS = OUTPUT / "data" / "records"
SWEEPS = DATA / "sweeps"
SURVEY = OUTPUT / "data" / "survey"
BUILD = OUTPUT / "build"


def models_dir() -> Path:
    """The folder of downloaded weights: `REPCAP_MODELS` (from the root if relative), or `data/models` (ignored by git)."""
    return _folder("REPCAP_MODELS", "data/models")


def reference_dir() -> Path:
    """The folder of the published sweeps: `REPCAP_REFERENCE` (from the root if relative), or `data/reference` (ignored)."""
    return _folder("REPCAP_REFERENCE", "data/reference")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes `path`'s place on success and is removed on any failure.

    Raises:
        RepcapError: the folder cannot be created or written (permissions, full disk).
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise RepcapError(
            f"cannot write {path}: {error.strerror or error}; check the folder's permissions and free space"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that guards read-modify-write of `path`, against other processes too.

    Raises:
        RepcapError: the folder cannot be created or written.
    """
    lock = FileLock(path.parent / f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise RepcapError(f"cannot write beside {path}: {error.strerror or error}; check the folder") from error
    try:
        yield
    finally:
        lock.release()


def write_bytes(path: Path, content: bytes) -> bool:
    """Write `content` to `path` atomically unless it already holds just that; say whether anything was written.

    An unchanged file keeps its time stamp, so make does not redo what depends on it.
    """
    path = Path(path)
    if path.is_file() and path.read_bytes() == content:
        return False
    with atomic(path) as temporary:
        temporary.write_bytes(content)
    return True


def write_text(path: Path, content: str) -> bool:
    """`write_bytes` for UTF-8 text with Unix line ends."""
    return write_bytes(path, content.encode("utf-8"))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
