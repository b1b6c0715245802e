"""One tensor out of a safetensors repository on the Hugging Face hub, by byte ranges: pinned, verified, resumable.

Session, authentication, endpoint, offline mode and caches are those of huggingface_hub and its environment variables.
What is read: the repository's listing (which pins the commit), the index, the header of the shard that the index names,
the bytes of the tensor, which become a safetensors file of its own, with its provenance beside it, in
`$HF_HOME/assets/repcap/OWNER--NAME/COMMIT/`, where the next reader finds it without a network.

Traffic is the tensor and at most 1 MB besides, as long as the shard's header (0.1 MB for a thousand tensors) allows it. Of
an index above INDEX_BYTES, as mixtures of many experts have, only the two ends are read, where embedding and head stand
both in the order of modules and in that of names; the rest is read when what is sought is not there. Whether a stored head
equals the embedding is decided by a sample: a few rows in several places (`HubContainer.sample`), unless the head itself is
asked for.
"""

import itertools
import json
import math
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import torch
from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # of httpx or httpx2, whichever this version of huggingface_hub is built on
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, validate_repo_id
from safetensors import SafetensorError, safe_open

from repcap_utils import __version__, containers, paths
from repcap_utils.containers import Container, Entry
from repcap_utils.errors import RepcapError

CHUNK_BYTES = 8 << 20
"""Bytes asked for in one request, and the most that an interrupted reading reads again."""
WORKERS = 8
_PIECES = 2 * WORKERS
"""Parts of a chunk that are recorded one by one; what all workers together hold unrecorded stays below a chunk."""
TRIES = 5
BACKOFF_S = 1.0
"""Wait before the second try; it doubles with each further one."""
LONGEST_WAIT_S = 60.0
"""What a server may ask for at most by Retry-After."""
SLACK_BYTES = 1 << 20
"""What may be read besides the tensor: index, header, or the rest of a file whose server knows no byte ranges."""
INDEX_BYTES = 256 << 10
"""What is read of an index before the sought tensor is known to be in neither of its ends."""
MAX_HEADER_BYTES = 100 << 20
SAMPLE_BYTES = SLACK_BYTES // 2
"""What a sample of a matrix may take, unless its rows are longer than that."""
_SAMPLE_SPANS, _SAMPLE_SPAN_ROWS = 4, 4

_SINGLE, _INDEX = constants.SAFETENSORS_SINGLE_FILE, constants.SAFETENSORS_INDEX_FILE
_PICKLED, _PICKLED_INDEX = constants.PYTORCH_WEIGHTS_NAME, f"{constants.PYTORCH_WEIGHTS_NAME}.index.json"
_TOKEN_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
_FILE_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".json")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_INDEX_PAIR = re.compile(rb'"([^"\\]+)"\s*:\s*"([^"\\]+\.safetensors)"')
_SHARD = re.compile(r"(.+)-\d+-of-(\d+\.safetensors)")
_TYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3", 1),
    "F8_E5M2": ("float8_e5m2", 1),
}

T = TypeVar("T")


class _HubError(RepcapError):
    """A refusal of the hub; `status` says which, in the words of `Preflight`."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class _NoRanges(_HubError):
    """A server that sends whole files only."""


class _Cut(Exception):
    """A body that ended before its last byte."""


@dataclass(frozen=True)
class Preflight:
    """What reading one tensor of a repository would take.

    Attributes:
        status: "reachable", "gated", "absent", "unreachable" or "pickled only".
        tensor: the one that would be read, or None.
        shape, storage: of that tensor, or None.
        bytes_to_read: of that tensor; None where there is none.
        cached: whether those bytes are already on this machine.
        total_bytes: all weights of the repository, which a full download would read; None where unknown.
        reason: one line for whoever reads the table; "" where nothing is wrong.
    """

    repo_id: str
    revision: str | None
    status: str
    tensor: str | None = None
    shape: tuple[int, ...] | None = None
    storage: str | None = None
    bytes_to_read: int | None = None
    cached: bool = False
    total_bytes: int | None = None
    reason: str = ""


def is_repo_id(text: str) -> bool:
    """Whether `text` reads as a repository `owner/name` or `owner/name@revision`, and is no path on this machine."""
    repo_id, _, _ = text.partition("@")
    if repo_id.count("/") != 1 or repo_id.endswith(_FILE_SUFFIXES) or _exists(text):
        return False
    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        return False
    return True


def open_repo(repo_id: str, *, revision: str | None = None, allow_download: bool = False) -> "HubContainer":
    """The weights of a repository; its tensors are read when they are asked for, and no others.

    Args:
        repo_id: `owner/name` or `owner/name@revision`.
        revision: branch, tag or commit; the default branch when None.
        allow_download: whether a repository that has pickled weights only may be read by downloading whole files.

    Raises:
        RepcapError: not found, gated, unreachable or offline and not cached; no weights; pickled weights without
            `allow_download`; a damaged index or header.
    """
    repo_id, revision = _split(repo_id, revision)
    remote = _resolve(repo_id, revision)
    files = remote.files
    if _SINGLE in files or _INDEX in files or _lone_safetensors(files):
        return HubContainer(remote)
    pickled = _pickled_files(files)
    if not pickled:
        several = [name for name in files if name.endswith(".safetensors")]
        if several:
            raise _HubError(
                f"{remote}: no {_SINGLE}, no index, and not one file that could stand for them: {_listed(several)}; "
                "download one with `hf download` and name its path",
                "reachable",
            )
        raise _HubError(
            f"{remote}: no weights that can be read from a hub repository ({_SINGLE}, its index, or {_PICKLED}); "
            "download another kind of file with `hf download` and name its path",
            "absent",
        )
    if not allow_download:
        raise _HubError(
            f"{remote}: pickled weights only, which cannot be read in part: --allow-download (allow_download=True) "
            f"downloads what is needed of {_size(_sum(files, pickled))} and unpickles tensors alone",
            "pickled only",
        )
    return _PickledContainer(remote)


def preflight(repo_id: str, choose: Callable[[Container], str], revision: str | None = None) -> Preflight:
    """What it takes to read the tensor that `choose` names; reads index, configuration and header only.

    Where `choose` refuses with a RepcapError, its reason is that of the result.
    """
    repo_id, revision = _split(repo_id, revision)
    try:
        remote = _resolve(repo_id, revision)
    except _HubError as error:
        return Preflight(repo_id, revision, error.status, reason=str(error))
    try:
        container = open_repo(repo_id, revision=remote.commit)
    except _HubError as error:
        total = _sum(remote.files, _pickled_files(remote.files)) if error.status == "pickled only" else None
        return Preflight(repo_id, remote.commit, error.status, total_bytes=total, reason=str(error))
    except RepcapError as error:
        return Preflight(repo_id, remote.commit, "reachable", reason=str(error))
    known = {"repo_id": repo_id, "revision": remote.commit, "total_bytes": container.total_bytes}
    name = None
    try:
        name = choose(container)
        entry, size = container.entry(name), container.byte_count(name)
    except RepcapError as error:
        return Preflight(**known, status=getattr(error, "status", "reachable"), tensor=name, reason=str(error))
    return Preflight(
        **known,
        status="reachable",
        tensor=name,
        shape=entry.shape,
        storage=entry.storage,
        bytes_to_read=size,
        cached=container.is_cached(name),
    )


# --- a commit and its listing -----------------------------------------------------------------------------------------


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long for the file system, ~ of an unknown user, a null character
        return False


def _split(repo_id: str, revision: str | None) -> tuple[str, str | None]:
    """`owner/name@revision` and a revision given apart, as one pair."""
    bare, _, inline = repo_id.partition("@")
    if inline and revision and inline != revision:
        raise RepcapError(f"two revisions for {bare}: {inline!r} and {revision!r}; give one")
    if not is_repo_id(bare):
        raise RepcapError(f"{bare!r} is not the id of a hub repository; it is owner/name, such as Qwen/Qwen2.5-0.5B")
    return bare, revision or inline or None


def _resolve(repo_id: str, revision: str | None) -> "_Remote":
    """The repository at the commit that `revision` stands for now; from the cache when offline or named by commit."""
    home = _cache() / repo_id.replace("/", "--")
    if constants.HF_HUB_OFFLINE:
        commit = _cached_commit(home, revision)
    else:
        commit = revision if revision and _COMMIT.fullmatch(revision) else None
    files = _load_json(home / commit / "repository.json").get("files") if commit else None
    if files:
        return _Remote(repo_id, commit, files, home / commit)
    if constants.HF_HUB_OFFLINE:
        at = f" at revision {revision!r}" if revision else ""
        raise _HubError(
            f"{repo_id}{at}: not in the cache {home}, and HF_HUB_OFFLINE is set; unset it and read the model once",
            "unreachable",
        )
    with _cache_errors(), _translated(repo_id, f"revision {revision!r}" if revision else "the repository"):
        api = HfApi(endpoint=constants.ENDPOINT, library_name="repcap", library_version=__version__)
        info = _persist(
            lambda: api.model_info(
                repo_id, revision=revision, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
            ),
            lost_lines=1,  # a server that is not there should not take long to name
        )
    if not info.sha or not _COMMIT.fullmatch(info.sha):
        raise _HubError(f"{repo_id}: the hub names no commit ({_endpoint()})", "unreachable")
    files = {sibling.rfilename: sibling.size for sibling in info.siblings or []}
    _write(home / info.sha / "repository.json", json.dumps({"repo_id": repo_id, "commit": info.sha, "files": files}))
    _write(_reference(home, revision), info.sha)
    return _Remote(repo_id, info.sha, files, home / info.sha)


def _cache() -> Path:
    # the layout of huggingface_hub.cached_assets_path, which would create the folder even for a reader
    return Path(constants.HF_ASSETS_CACHE) / "repcap"


def _reference(home: Path, revision: str | None) -> Path:
    return home / "refs" / quote(revision or constants.DEFAULT_REVISION, safe="")


def _cached_commit(home: Path, revision: str | None) -> str | None:
    """The commit of `revision` when last read; for None the default branch, or else the newest in the cache."""
    if revision and _COMMIT.fullmatch(revision):
        return revision
    reference = _reference(home, revision)
    if reference.is_file():
        return reference.read_text(encoding="utf-8").strip()
    records = list(home.glob("*/repository.json")) if revision is None else []
    return max(records, key=lambda path: path.stat().st_mtime).parent.name if records else None


def _lone_safetensors(files: dict[str, int | None]) -> str | None:
    """The only .safetensors file at the root, whatever its name, or None."""
    found = [name for name in files if name.endswith(".safetensors") and "/" not in name]
    return found[0] if len(found) == 1 else None


def _pickled_files(files: dict[str, int | None]) -> list[str]:
    if _PICKLED in files:
        return [_PICKLED]
    shards = [name for name in files if re.fullmatch(r"pytorch_model-\d+-of-\d+\.bin", name)]
    return shards if _PICKLED_INDEX in files else []


def _sum(files: dict[str, int | None], names: Sequence[str]) -> int | None:
    """Bytes of the named files together; None when the hub keeps one of the sizes to itself."""
    sizes = [files.get(name) for name in names]
    return None if None in sizes else sum(sizes)


def _size(count: int | None) -> str:
    return "the repository's weights" if count is None else f"{count / 1e6:.0f} MB"


# --- the cache --------------------------------------------------------------------------------------------------------


def _load_json(path: Path) -> dict[str, Any]:
    """A JSON object of the cache; {} where the file is absent or damaged, so that it is read anew."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(path: Path, content: str) -> None:
    with _cache_errors():
        paths.write_text(path, content)


@contextmanager
def _cache_errors() -> Iterator[None]:
    """Names the setting that moves the cache in whatever goes wrong with its files."""
    moved = "or set HF_HOME to another folder"
    try:
        yield
    except (HTTPError, OfflineModeIsEnabled, EntryNotFoundError, _HubError):
        raise  # some of these are OSErrors too, but of the network
    except OSError as error:
        where = error.filename or _cache()
        raise RepcapError(
            f"cannot write the cache at {where}: {error.strerror or error}; check permissions and free space, {moved}"
        ) from error
    except RepcapError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise RepcapError(f"{error}, {moved}") from error


# --- requests ---------------------------------------------------------------------------------------------------------


def _persist(call: Callable[[], T], *, lost_lines: int = TRIES - 1) -> T:
    """The result of `call`, which is tried again after a busy or broken server, and after so many lost lines."""
    for attempt in itertools.count():
        try:
            return call()
        except (HTTPError, _Cut, LocalEntryNotFoundError) as error:
            # the last is a wrapper around what happened on the way, if anything did
            reason = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
            wait = _wait_for(reason, attempt, lost_lines)
            if wait is None or attempt == TRIES - 1:
                raise
            time.sleep(wait)


def _wait_for(error: BaseException | None, attempt: int, lost_lines: int) -> float | None:
    """Seconds to wait before the next try; None for an answer that will not change."""
    wait = BACKOFF_S * 2**attempt
    if not isinstance(error, HfHubHTTPError):
        return wait if isinstance(error, HTTPError | _Cut) and attempt < lost_lines else None
    code = error.response.status_code
    if code not in (408, 429) and code < 500:
        return None
    asked = error.response.headers.get("Retry-After", "")
    return min(float(asked), LONGEST_WAIT_S) if asked.isdigit() else wait


@contextmanager
def _translated(repo_id: str, what: str, *, is_listed: bool = False) -> Iterator[None]:
    """Turns what the hub's client raises into one line that names cause and remedy.

    `is_listed`: `what` is a file of a repository that is known to be there.
    """
    try:
        yield
    except LocalEntryNotFoundError as error:  # a wrapper around what happened on the way
        raise _refusal(error.__cause__ or error, repo_id, what, is_listed) from error
    except (HTTPError, OfflineModeIsEnabled, EntryNotFoundError, _Cut) as error:
        raise _refusal(error, repo_id, what, is_listed) from error
    except OSError as error:
        if error.errno is not None:  # of the file system
            raise
        raise _refusal(error, repo_id, what, is_listed) from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, RepcapError):
            raise
        raise _HubError(
            f"{repo_id}: the answer for {what} is not one of a hub ({_endpoint()})", "unreachable"
        ) from error


def _refusal(error: BaseException, repo_id: str, what: str, is_listed: bool) -> _HubError:
    page = f"{constants.ENDPOINT}/{repo_id}"
    code = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError) or code == 403:
        login = "log in with `hf auth login` and " if code == 401 else ""
        return _HubError(f"{repo_id}: access to {what} is restricted ({code}); {login}ask for it at {page}", "gated")
    if isinstance(error, RevisionNotFoundError):
        return _HubError(f"{repo_id}: no {what} on the hub; see {page}/tree/main for its branches", "absent")
    if isinstance(error, EntryNotFoundError) or (is_listed and code in (404, 410)):
        return _HubError(f"{repo_id}: {what} is not there ({code or 404}); see {page}/tree/main", "absent")
    if code == 401 and (is_listed or not isinstance(error, RepositoryNotFoundError)):
        return _HubError(f"{repo_id}: the hub wants a login for {what} (401); run `hf auth login`", "gated")
    if isinstance(error, RepositoryNotFoundError) or code in (404, 410):
        private = ", or if it is private log in with `hf auth login`"
        return _HubError(f"{repo_id}: no such repository at {constants.ENDPOINT}; check the id{private}", "absent")
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return _HubError(f"{repo_id}: {what} is not cached, and HF_HUB_OFFLINE is set; unset it", "unreachable")
    if code == 429:
        return _HubError(f"{repo_id}: too many requests (429) for {what}; try again in some minutes", "unreachable")
    reason = f"the server answers {code}" if code else _one_line(error) or type(error).__name__
    return _HubError(f"{repo_id}: cannot read {what}: {reason} ({_endpoint()}); try again", "unreachable")


def _endpoint() -> str:
    return f"HF_ENDPOINT is {constants.ENDPOINT}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Remote:
    """One commit of a repository: its files, and the means to read them; counts the bytes that arrive.

    Attributes:
        traffic: bytes that arrived.
        needed: bytes that were needed of each index and configuration, whether they arrived now or were cached.
    """

    def __init__(self, repo_id: str, commit: str, files: dict[str, int | None], folder: Path) -> None:
        self.repo_id = repo_id
        self.commit = commit
        self.files = files
        self.folder = folder
        self.traffic = 0
        self.needed: dict[str, int] = {}
        self._counting = threading.Lock()

    def __str__(self) -> str:
        return f"{self.repo_id}@{self.commit[:8]}"

    def downloaded(self, file: str) -> Path | None:
        """Where a whole file lies in the hub's own cache, or None."""
        found = try_to_load_from_cache(self.repo_id, file, cache_dir=constants.HF_HUB_CACHE, revision=self.commit)
        return Path(found) if isinstance(found, str) else None

    def download(self, file: str) -> tuple[Path, int]:
        """The whole of a file, in the hub's own cache, and the bytes that this took."""
        cached = self.downloaded(file)
        if cached is not None:
            return cached, 0
        with _cache_errors(), _translated(self.repo_id, file, is_listed=True):
            path = _persist(
                lambda: hf_hub_download(
                    self.repo_id,
                    file,
                    revision=self.commit,
                    endpoint=constants.ENDPOINT,
                    cache_dir=constants.HF_HUB_CACHE,
                    library_name="repcap",
                    library_version=__version__,
                )
            )
        return Path(path), Path(path).stat().st_size

    def json(self, file: str) -> dict[str, Any]:
        """A small JSON object of the repository."""
        path, size = self.download(file)
        self.count(size)
        self.needed[file] = path.stat().st_size
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise RepcapError(f"{self}, {file}: not JSON; the repository is damaged, name another revision") from error
        if not isinstance(content, dict):
            raise RepcapError(f"{self}, {file}: not a JSON object; the repository is damaged, name another revision")
        return content

    def part(self, file: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a file, which stay below some MB."""
        content = bytearray()
        self.read(file, start, stop, lambda _position, piece: content.extend(piece))
        return bytes(content)

    def count(self, size: int) -> None:
        with self._counting:
            self.traffic += size

    def read(
        self, file: str, start: int, stop: int, accept: Callable[[int, bytes], None], *, whole: bool = False
    ) -> int | None:
        """Hand bytes [start, stop) of a file to `accept` with their positions, in order; a lost line is taken up again.

        With `whole`, a server that ignores the range and sends the file from its start is listened to until `stop`.

        Returns:
            The file's size, if the server says it.
        """
        headers = build_hf_headers(library_name="repcap", library_version=__version__)
        headers["Accept-Encoding"] = "identity"
        url = hf_hub_url(self.repo_id, file, revision=self.commit, endpoint=constants.ENDPOINT)
        position, size = start, None

        def attempt() -> None:
            nonlocal position, size
            headers["Range"] = f"bytes={position}-{stop - 1}"
            timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
            with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
                hf_raise_for_status(response)
                begin, size = self._given(file, response, position)
                if begin != position and not whole:
                    raise self._no_ranges(file, size)
                skip = position - begin
                for piece in response.iter_bytes():
                    self.count(len(piece))
                    wanted = piece[skip : skip + stop - position]
                    skip = max(skip - len(piece), 0)
                    if wanted:
                        accept(position, wanted)
                        position += len(wanted)
                    if position == stop and size != stop and response.status_code == 200:
                        return
            if position < stop:
                raise _Cut(f"the connection closed at byte {position} of {stop}")

        with _translated(self.repo_id, file, is_listed=True):
            _persist(attempt)
        return size

    def _given(self, file: str, response: Any, position: int) -> tuple[int, int | None]:
        """Where an answer begins (at `position`, or at 0 when the server knows no ranges), and the file's size if told."""
        if response.status_code == 200:
            length = response.headers.get("Content-Length", "")
            return 0, int(length) if length.isdigit() else None
        given = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if response.status_code != 206 or given is None or int(given[1]) != position:
            raise _HubError(
                f"{self}, {file}: asked for bytes from {position}, the server answers {response.status_code} with "
                f"range {response.headers.get('Content-Range', 'none')!r} ({_endpoint()}); name another endpoint",
                "unreachable",
            )
        return position, None if given[2] == "*" else int(given[2])

    def _no_ranges(self, file: str, size: int | None) -> _NoRanges:
        return _NoRanges(
            f"{self}, {file}: the server ignores byte ranges and would send the whole file ({_size(size)}); "
            "set HF_ENDPOINT to one that knows them, or download it with `hf download`",
            "unreachable",
        )


# --- headers of safetensors files -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Extent:
    """A tensor in a remote file: its bytes are [start, start + size) of `file`."""

    file: str
    start: int
    size: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Header:
    """The header of a remote safetensors file, which ends at `start`; `size` is the file's, where the server says it."""

    extents: dict[str, _Extent]
    start: int
    size: int | None


def _read_header(remote: _Remote, file: str) -> _Header:
    """The header of `file`: from the cache, or its length (8 bytes) and then itself."""
    record = remote.folder / f"{quote(file, safe='')}.header.json"
    cached = _load_json(record)
    if cached.keys() != {"header", "start", "size"}:
        if file not in remote.files:
            raise RepcapError(
                f"{remote}: the index names the shard {file!r}, which the repository lacks; name another revision"
            )
        cached = _fetch_header(remote, file)
    header = _parse_header(f"{remote}, {file}", file, **cached)
    if not record.is_file():
        _write(record, json.dumps(cached))
    return header


def _fetch_header(remote: _Remote, file: str) -> dict[str, Any]:
    content = bytearray()
    size = remote.files[file]
    if size is not None and size < 8:
        raise RepcapError(f"{remote}, {file}: not an intact safetensors file ({size} bytes); name another revision")
    size = remote.read(file, 0, 8, lambda _position, piece: content.extend(piece), whole=True) or size
    length = struct.unpack("<Q", content)[0]
    if length == 0 or length > MAX_HEADER_BYTES or (size is not None and 8 + length > size):
        first = bytes(content)
        kind = "an HTML page" if first[:1] == b"<" else "a git-lfs pointer" if first == b"version " else None
        found = f"it is {kind}" if kind else f"its header would be {length} bytes of {size or 'an unknown size'}"
        raise RepcapError(f"{remote}, {file}: not an intact safetensors file ({found}); name another revision")
    content.clear()
    remote.read(file, 8, 8 + length, lambda _position, piece: content.extend(piece), whole=True)
    try:
        header = json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise RepcapError(f"{remote}, {file}: its header is not JSON; name another revision") from error
    return {"header": header, "start": 8 + length, "size": size}


def _parse_header(where: str, file: str, header: Any, start: int, size: int | None) -> _Header:
    try:
        extents = {name: _parse_extent(file, start, entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RepcapError(f"{where}: its header is not one of safetensors; name another revision") from error
    for name, extent in extents.items():
        known = extent.dtype in _TYPES
        damaged = known and extent.size != math.prod(extent.shape) * _TYPES[extent.dtype][1]
        if damaged or (size is not None and extent.start + extent.size > size):
            raise RepcapError(
                f"{where}, tensor {name!r}: {extent.size} bytes at {extent.start} do not fit its shape {extent.shape} "
                f"or the file's {size} bytes; the repository is damaged, name another revision"
            )
    return _Header(extents, start, size)


def _parse_extent(file: str, start: int, entry: dict[str, Any]) -> _Extent:
    (begin, end), shape, dtype = entry["data_offsets"], entry["shape"], entry["dtype"]
    if not isinstance(shape, list) or not isinstance(dtype, str):
        raise TypeError("a shape is a list, a type a string")
    if any(type(number) is not int or number < 0 for number in (begin, end, *shape)) or end < begin:
        raise ValueError("sizes and offsets are whole numbers, and not negative")
    return _Extent(file, start + begin, end - begin, dtype, tuple(shape))


# --- containers -------------------------------------------------------------------------------------------------------


class HubContainer:
    """The safetensors weights of a repository at one commit (a `containers.Container`).

    Attributes:
        path: the cache folder of this repository and commit.
        repo_id, revision: the repository and the commit that was resolved, 40 hexadecimal digits.
        tokenizer_traffic: bytes that reading the vocabulary took; `traffic` does not hold them.
    """

    format = "safetensors"
    is_encoder = False

    def __init__(self, remote: _Remote) -> None:
        self._remote = remote
        self.path = remote.folder
        self.repo_id = remote.repo_id
        self.revision = remote.commit
        self.tokenizer_traffic = 0
        self._headers: dict[str, _Header] = {}
        self._ends: tuple[dict[str, str], dict[str, str]] | None = None
        self._file_of = self._locate()

    def _locate(self) -> dict[str, str]:
        """The file of each tensor; of a large index that of the tensors at its ends."""
        files = self._remote.files
        single = _SINGLE if _SINGLE in files else None if _INDEX in files else _lone_safetensors(files)
        if single is not None:
            return dict.fromkeys(self._header(single).extents, single)
        self._ends = _index_ends(self._remote, _INDEX)
        return _weight_map(self._remote, _INDEX) if self._ends is None else self._ends[0] | self._ends[1]

    def complete(self) -> bool:
        """Read all of an index of which only the ends were read; whether `names` may give more than before."""
        if self._ends is None:
            return False
        self._file_of = _weight_map(self._remote, _INDEX)
        self._ends = None
        return True

    def may_name(self, name: str) -> bool:
        """Whether the part of a large index that was not read could name a tensor.

        Not where both ends are in the order of names and the name comes before that part or after it.
        """
        if self._ends is None:
            return False
        first, last = (list(end) for end in self._ends)
        is_sorted = first + last == sorted(first + last)
        return not is_sorted or first[-1] < name < last[0]

    @property
    def unread_index(self) -> int:
        """Bytes in the middle of a large index, whose tensors `names` lacks; 0 where it gives all."""
        return 0 if self._ends is None else self._remote.files[_INDEX] - INDEX_BYTES

    def _has(self, name: str) -> bool:
        return name in self._file_of or (self.complete() and name in self._file_of)

    def _header(self, file: str) -> _Header:
        if file not in self._headers:
            self._headers[file] = _read_header(self._remote, file)
        return self._headers[file]

    def _extent(self, name: str) -> _Extent:
        if not self._has(name):
            raise RepcapError(
                f"{self._remote}: no tensor {name!r}; there are {_listed(sorted(self._file_of))}; choose one with --tensor"
            )
        extents = self._header(self._file_of[name]).extents
        if name not in extents:
            raise RepcapError(
                f"{self._remote}: the shard {self._file_of[name]!r} has no tensor {name!r}, though the index says so; "
                "name another revision"
            )
        return extents[name]

    @property
    def traffic(self) -> int:
        """Bytes of files read from the network so far: index, configuration, headers, tensors."""
        return self._remote.traffic

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all files of weights, which a full download would read; None where the hub does not tell."""
        shards = set(self._file_of.values())
        if self._ends is not None:
            series = {match.groups() if (match := _SHARD.fullmatch(name)) else None for name in shards}
            if None in series:  # the shards that the middle of the index names cannot be told by their names
                return None
            shards |= {
                name for name in self._remote.files if (match := _SHARD.fullmatch(name)) and match.groups() in series
            }
        return _sum(self._remote.files, sorted(shards))

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of the configuration; {} where the repository has none."""
        name = next((name for name in containers.CONFIGS if name in self._remote.files), None)
        return self._remote.json(name) if name else {}

    def names(self) -> list[str]:
        return list(self._file_of)

    def entry(self, name: str) -> Entry:
        extent = self._extent(name)
        return Entry(extent.shape, _TYPES.get(extent.dtype, (extent.dtype,))[0])

    def is_known(self, name: str) -> bool:
        """Whether `entry` tells of a tensor without a request."""
        return self._file_of[name] in self._headers

    def byte_count(self, name: str) -> int:
        """Bytes of a tensor as it is stored, its scale included."""
        scale = self._scale_name(name)
        return self._extent(name).size + (self._extent(scale).size if scale else 0)

    def is_cached(self, name: str) -> bool:
        """Whether a tensor's bytes are on this machine."""
        return _Copy(self._remote, name, self._extent(name), name).is_complete

    def read(self, name: str) -> torch.Tensor:
        """The tensor; float8 times its scale, as float32, where the repository has a scale tensor."""
        extent = self._extent(name)
        if extent.dtype not in _TYPES:
            known = ", ".join(storage for storage, _ in _TYPES.values())
            raise RepcapError(f"{self._remote}, tensor {name!r}: stored as {extent.dtype}; {known} can be read")
        weight = self._stored(name, extent)
        if self.entry(name).storage not in containers.FLOAT8:
            return weight
        scale = self._scale_name(name)
        factors = None if scale is None else self._stored(scale, self._extent(scale))
        return containers.dequantised(weight, factors, f"{self._remote}, tensor {name!r}")

    def needed_bytes(self, name: str) -> int:
        """Bytes that reading a tensor takes when nothing is cached: index and configuration, headers, and its own."""
        scale = self._scale_name(name)
        files = {self._extent(part).file for part in (name, scale) if part is not None}
        headers = sum(self._header(file).start for file in files)
        return sum(self._remote.needed.values()) + headers + self.byte_count(name)

    def is_costly(self, _name: str) -> bool:
        """Whether anything about a tensor can only be told by downloading a whole file of weights."""
        return False

    def sample(self, name: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A few of the first `count` rows of a matrix, in groups from the first to the last: their numbers, and they.

        Not the first ones alone: these are often special or untrained tokens, alike in many models. At most SAMPLE_BYTES
        are read where the server knows byte ranges, but never less than a row of each group.
        """
        extent = self._extent(name)
        starts, rows = self._sample_spans(extent, min(count, extent.shape[0]))
        index = torch.tensor(sorted({row for start in starts for row in range(start, start + rows)}))
        if self.is_cached(name):
            return index, self.read(name)[index]
        try:
            parts = {start: self._rows(name, start, start + rows) for start in starts}
        except _NoRanges:
            return index, self.read(name)[index]
        found = {start + i: row for start, part in parts.items() for i, row in enumerate(part)}
        return index, torch.stack([found[row] for row in index.tolist()])

    def _sample_spans(self, extent: _Extent, count: int) -> tuple[list[int], int]:
        """Where the groups of a sample of the first `count` rows start, and the rows of each."""
        each = SAMPLE_BYTES // _SAMPLE_SPANS // max(1, extent.size // extent.shape[0])
        rows = min(max(1, min(each, _SAMPLE_SPAN_ROWS)), count)
        return sorted({(count - rows) * part // (_SAMPLE_SPANS - 1) for part in range(_SAMPLE_SPANS)}), rows

    def _rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of a matrix, as `read` gives them; no others are read."""
        values = self._stored_rows(name, start, stop)
        if self.entry(name).storage not in containers.FLOAT8:
            return values
        factors = self._scale_rows(name, start, stop)
        return containers.dequantised(values, factors, f"{self._remote}, tensor {name!r}")

    def _stored_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        extent = self._extent(name)
        size = extent.size // extent.shape[0]
        shape = (stop - start, *extent.shape[1:])
        part = replace(extent, start=extent.start + start * size, size=(stop - start) * size, shape=shape)
        return self._stored(name, part, f"{name}.rows-{start}-{stop}")

    def _scale_rows(self, name: str, start: int, stop: int) -> torch.Tensor | None:
        """The factors of rows [start, stop) of a float8 matrix, one line each, or a single number; None without a scale."""
        scale = self._scale_name(name)
        if scale is None:
            return None
        shape = self._extent(scale).shape
        if math.prod(shape) == 1:
            return self._stored(scale, self._extent(scale))
        height = containers.block_size(self._extent(name).shape[0], shape[0])
        if height is None:
            return self._stored(scale, self._extent(scale))  # fits nothing, which the caller says
        first, last = start // height, -(-stop // height)
        factors = self._stored_rows(scale, first, last).float()
        return factors.repeat_interleave(height, dim=0)[start - first * height : stop - first * height]

    def _scale_name(self, name: str) -> str | None:
        """The scale of a float8 tensor, or None."""
        if self.entry(name).storage not in containers.FLOAT8:
            return None
        names = containers.scale_names(name)
        present = next((scale for scale in names if scale in self._file_of), None)
        if present is None and any(map(self.may_name, names)):
            self.complete()
            present = next((scale for scale in names if scale in self._file_of), None)
        return present

    def _stored(self, name: str, extent: _Extent, label: str | None = None) -> torch.Tensor:
        """A tensor, or a part of one, as it is stored, out of the cache once it is there under its label."""
        copy = _Copy(self._remote, name, extent, label or name)
        if not copy.is_complete:
            try:
                copy.fetch()
            except _NoRanges:
                size = self._header(extent.file).size
                is_part = label is not None  # the next part would read the file from its start once more
                if is_part or size is None or size > extent.size + SLACK_BYTES:
                    raise
                copy.fetch(in_one_piece=True)
        try:
            with safe_open(copy.path, framework="pt") as file:
                return file.get_tensor(name)
        except SafetensorError as error:
            raise RepcapError(f"{copy.path}: the cached tensor is damaged; remove the file and read again") from error

    def file_of(self, name: str) -> Path:
        """Where the tensor's file would lie beside the cached tensors; its name is the one in the repository."""
        return self.path / self._file_of[name]

    def tokens(self) -> dict[int, str] | None:
        """The vocabulary by token id; None where the repository, or offline the cache, has none.

        Raises:
            VocabularyError: the hub refuses the file; see `containers.read_vocabulary`.
        """
        file = next((name for name in _TOKEN_FILES if name in self._remote.files), None)
        if file is None:
            return None
        added = containers.ADDED_TOKENS
        wanted = [file, added] if file != "tokenizer.json" and added in self._remote.files else [file]
        for name in wanted:
            try:
                path, size = self._remote.download(name)
            except _HubError as error:
                if constants.HF_HUB_OFFLINE:
                    return None
                raise containers.VocabularyError(str(error)) from error
            self.tokenizer_traffic += size
        return containers.read_vocabulary(path.parent)


class _PickledContainer(HubContainer):
    """The pickled weights of a repository; whole files are downloaded, those that hold a tensor that is asked for."""

    format = "pytorch"

    def _locate(self) -> dict[str, str]:
        self._opened: dict[str, Container] = {}
        if _PICKLED in self._remote.files:
            return dict.fromkeys(self._whole(_PICKLED).names(), _PICKLED)
        return _weight_map(self._remote, _PICKLED_INDEX)

    def _whole(self, file: str) -> Container:
        if file not in self._opened:
            if file not in self._remote.files:
                raise RepcapError(
                    f"{self._remote}: the index names the shard {file!r}, which the repository lacks; "
                    "name another revision"
                )
            path, size = self._remote.download(file)
            self._remote.count(size)
            self._opened[file] = containers.open_container(path)
        return self._opened[file]

    def entry(self, name: str) -> Entry:
        return self._whole(self._file_of[name]).entry(name)

    def is_known(self, name: str) -> bool:
        return self._file_of[name] in self._opened

    def byte_count(self, name: str) -> int:
        weight = self.read(name)
        return weight.numel() * weight.element_size()

    def is_cached(self, name: str) -> bool:
        return self._file_of[name] in self._opened

    def read(self, name: str) -> torch.Tensor:
        return self._whole(self._file_of[name]).read(name)

    def needed_bytes(self, name: str) -> int:
        return sum(self._remote.needed.values()) + self._whole(self._file_of[name]).file_of(name).stat().st_size

    def is_costly(self, name: str) -> bool:
        return self._file_of[name] not in self._opened

    def sample(self, name: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.read(name)[:count]
        return torch.arange(len(rows)), rows


def _weight_map(remote: _Remote, index: str) -> dict[str, str]:
    """The file of each tensor, by an index."""
    try:
        return {str(name): str(shard) for name, shard in remote.json(index)["weight_map"].items()}
    except (KeyError, AttributeError) as error:
        raise RepcapError(f"{remote}, {index}: no 'weight_map'; the repository is damaged") from error


def _index_ends(remote: _Remote, index: str) -> tuple[dict[str, str], dict[str, str]] | None:
    """The file of each tensor that the first and that the last bytes of a large index name, INDEX_BYTES together.

    None where the index is not large, or lies on this machine whole, and where its ends cannot be read or understood.
    """
    size = remote.files[index]
    if size is None or size <= INDEX_BYTES or remote.downloaded(index) is not None:
        return None
    record = remote.folder / f"{quote(index, safe='')}.ends.json"
    kept = _load_json(record)
    ends = [kept.get("first"), kept.get("last")]
    if not all(map(_names_files, ends)):
        try:
            spans = ((0, INDEX_BYTES // 2), (size - INDEX_BYTES // 2, size))
            ends = [_pairs(remote.part(index, *span)) for span in spans]
        except _NoRanges:
            return None
        if not all(map(_names_files, ends)):
            return None
        _write(record, json.dumps({"first": ends[0], "last": ends[1]}))
    remote.needed[index] = INDEX_BYTES
    return ends[0], ends[1]


def _pairs(part: bytes) -> dict[str, str]:
    """The pairs of tensor and file in a part of an index; {} for text with escapes, or that is none."""
    try:
        return {} if b"\\" in part else {name.decode(): file.decode() for name, file in _INDEX_PAIR.findall(part)}
    except UnicodeDecodeError:
        return {}


def _names_files(content: object) -> bool:
    """Whether something read from the cache is a mapping of names, and not empty."""
    is_mapping = isinstance(content, dict) and bool(content)
    return is_mapping and all(isinstance(text, str) for pair in content.items() for text in pair)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


# --- the copy of a tensor in the cache --------------------------------------------------------------------------------


class _Copy:
    """A safetensors file in the cache, called after `label`, of one tensor: whole, or a part that grows.

    The part has its final size from the start; a record beside it lists the pieces that are safe on disk, so that a
    reading that is killed loses less than CHUNK_BYTES.
    """

    def __init__(self, remote: _Remote, name: str, extent: _Extent, label: str) -> None:
        self._remote = remote
        self._name = name
        self._extent = extent
        stem = quote(label, safe="")
        self.path = remote.folder / f"{stem}.safetensors"
        self._part = remote.folder / f"{stem}.part"
        self._record = remote.folder / f"{stem}.part.pieces"
        self._head = self._build_head()
        self._piece = max(1, CHUNK_BYTES // _PIECES)
        self._in_one_piece = False
        self._stopped = threading.Event()
        self._recording = threading.Lock()

    def _build_head(self) -> bytes:
        """Length and header of the file, padded so that the tensor is aligned to 8 bytes."""
        extent = self._extent
        origin = {"repository": self._remote.repo_id, "commit": self._remote.commit, "file": extent.file}
        header = {
            "__metadata__": origin | {"start": str(extent.start), "stop": str(extent.start + extent.size)},
            self._name: {"dtype": extent.dtype, "shape": extent.shape, "data_offsets": [0, extent.size]},
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    @property
    def is_complete(self) -> bool:
        try:
            with self.path.open("rb") as stream:
                whole = self.path.stat().st_size == len(self._head) + self._extent.size
                return whole and stream.read(len(self._head)) == self._head
        except OSError:
            return False

    def fetch(self, *, in_one_piece: bool = False) -> None:
        """Read the tensor's missing bytes; another process that wants the same tensor waits.

        `in_one_piece` is for a server that sends whole files only.

        Raises:
            RepcapError: the network or the cache fails. What has been read stays for the next try.
        """
        self._in_one_piece = in_one_piece
        self._stopped.clear()
        if in_one_piece:
            self._piece = max(1, self._extent.size)
        with _cache_errors(), paths.locked(self.path):
            if self.is_complete:
                return
            runs = self._runs(self._lay_out())
            with ThreadPoolExecutor(WORKERS) as pool:
                try:
                    for _ in pool.map(self._read_run, runs):
                        pass
                except BaseException:
                    self._stopped.set()
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
            self._finish()

    def _lay_out(self) -> list[int]:
        """The pieces still to be read; makes the part and its record where there are none of this plan."""
        total = len(self._head) + self._extent.size
        plan = json.dumps([self._piece, self._head.decode("utf-8", "replace")])
        lines = self._record.read_text(encoding="utf-8").split("\n")[:-1] if self._record.is_file() else []
        if lines[:1] == [plan] and self._part.is_file() and self._part.stat().st_size == total:
            done = sorted({int(line) for line in lines[1:] if line.isdigit()})
        else:
            done = []
            self._record.unlink(missing_ok=True)
            with self._part.open("wb") as stream:
                stream.write(self._head)
                stream.truncate(total)
        # written anew, because the last line may be torn
        self._record.write_text("".join(f"{line}\n" for line in [plan, *done]), encoding="utf-8")
        return sorted(set(range(-(-self._extent.size // self._piece))) - set(done))

    def _runs(self, missing: Sequence[int]) -> list[tuple[int, int]]:
        """Runs [first, last] of missing neighbours, each at most one request long."""
        runs: list[tuple[int, int]] = []
        for piece in missing:
            if runs and runs[-1][1] == piece - 1 and piece - runs[-1][0] < _PIECES:
                runs[-1] = (runs[-1][0], piece)
            else:
                runs.append((piece, piece))
        return runs

    def _read_run(self, run: tuple[int, int]) -> None:
        """Read the pieces of a run into the part, recording each when it is on disk."""
        if self._stopped.is_set():
            return
        origin, size = self._extent.start, self._extent.size
        first, last = run
        piece = first
        with self._part.open("r+b") as stream:
            stream.seek(len(self._head) + first * self._piece)

            def accept(position: int, content: bytes) -> None:
                nonlocal piece
                if self._stopped.is_set():
                    raise _HubError(f"{self._remote}: reading stopped; try again", "unreachable")
                stream.write(content)
                while piece <= last and position + len(content) >= origin + min((piece + 1) * self._piece, size):
                    stream.flush()
                    os.fsync(stream.fileno())
                    self._mark(piece)
                    piece += 1

            start, stop = origin + first * self._piece, origin + min((last + 1) * self._piece, size)
            self._remote.read(self._extent.file, start, stop, accept, whole=self._in_one_piece)

    def _mark(self, piece: int) -> None:
        with self._recording, self._record.open("a", encoding="utf-8") as record:
            record.write(f"{piece}\n")

    def _finish(self) -> None:
        """Give the part its name, and write where it came from."""
        self._part.replace(self.path)
        self._record.unlink()
        extent = self._extent
        provenance = {
            "repo_id": self._remote.repo_id,
            "commit": self._remote.commit,
            "file": extent.file,
            "tensor": self._name,
            "dtype": extent.dtype,
            "shape": extent.shape,
            "bytes": [extent.start, extent.start + extent.size],
            "endpoint": constants.ENDPOINT,
            "read_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": __version__,
        }
        _write(self.path.with_suffix(".json"), json.dumps(provenance, indent=1))
