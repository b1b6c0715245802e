"""Where things lie, anchored on this file, so that no caller depends on its working directory."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repcap_utils.errors import RepcapError

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
DATA = ROOT / "data"
FIGURES = ROOT / "figures"
BUILD = ROOT / "build"
PUBLISHED = DATA / "published"
RECORDS = DATA / "records"
SWEEPS = DATA / "sweeps"
SURVEY = DATA / "survey"


def models_dir() -> Path:
    """The folder of downloaded weights: `REPCAP_MODELS`, or `data/models` (ignored by git)."""
    return Path(os.environ.get("REPCAP_MODELS") or DATA / "models").expanduser().resolve()


def reference_dir() -> Path:
    """The folder of the published sweeps: `REPCAP_REFERENCE`, or `data/reference` (ignored by git)."""
    return Path(os.environ.get("REPCAP_REFERENCE") or DATA / "reference").expanduser().resolve()


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
