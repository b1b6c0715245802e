"""Files of named tensors: safetensors and PyTorch checkpoints (single and sharded), GGUF (single and split), CTranslate2.

Only the tensors that are asked for are read, from mapped files where the format allows. Pickles go through torch's restricted
loader, which runs no code. GGUF and CTranslate2 headers are parsed here, because the parser that comes with gguf visits each
token string in slow steps; every length is checked against the file's size.
"""

import codecs
import json
import math
import mmap
import pickle
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gguf
import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from repcap_utils.errors import RepcapError

SOURCES = (
    "a registered name, a hub id (owner/name), a .gguf or .safetensors file, a PyTorch checkpoint (.bin, .pt, .pth), "
    "a CTranslate2 model.bin, or a folder with one of these or with an index of shards"
)
FLOATS = ("float32", "float16", "bfloat16", "float64")
FLOAT8 = ("float8_e4m3", "float8_e5m2")
SCALE_BLOCK = 128
"""Rows and columns that share one scale of a float8 matrix in blocks."""

_TOKEN_FILES = ("tokenizer.json", "vocab.txt", "vocabulary.txt", "vocabulary.json", "vocab.json")
ADDED_TOKENS = "added_tokens.json"
"""Further tokens beside a vocabulary; a tokenizer.json lists its own."""
_ROWS_PER_STEP = 4096
_INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")
_WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model.bin",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
CONFIGS = ("config.json", "params.json")
"""What states a model's sizes, in order of preference; the second is that of Llama's and Mistral's original layout."""
_DEVICE_PART = re.compile(r"(consolidated\.|mp_rank_)\d\d+(.*)")
_STATE_OF_TRAINING = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*)\.(bin|pt|pth)")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf|\.safetensors|\.bin)")
# What servers and git leave in place of a file, by its first bytes in lower case.
_STAND_INS = {
    b"version https://git-lfs": "a git-lfs pointer, not the {}; run `git lfs pull` there",
    b"<!doctype html": "an HTML page, not the {} (an error or login page that was saved); fetch the file again",
    b"<html": "an HTML page, not the {} (an error or login page that was saved); fetch the file again",
    b"<?xml": "an XML page, not the {} (a server's error that was saved); fetch the file again",
}


class VocabularyError(RepcapError):
    """The vocabulary beside the weights cannot be read; the weights can."""


class Entry(NamedTuple):
    """Shape of a tensor and its element type: one of `FLOATS` or `FLOAT8`, a quantisation, or an unsupported type."""

    shape: tuple[int, ...]
    storage: str


class Container(Protocol):
    """A file of named tensors; `config` is the model's config.json or params.json, {} where there is none."""

    path: Path
    format: str
    is_encoder: bool
    config: dict[str, Any]

    def names(self) -> list[str]: ...
    def entry(self, name: str) -> Entry: ...
    def read(self, name: str) -> torch.Tensor: ...
    def file_of(self, name: str) -> Path: ...
    def tokens(self) -> dict[int, str] | None: ...


def open_container(path: Path) -> Container:
    """The container at `path`: a file, any part of a split file, an index of shards, or the weights in a folder.

    Raises:
        RepcapError: nothing there that can be read, several files to choose from, a missing part, a damaged header.
    """
    path = _weights_in(path) if path.is_dir() else path
    _refuse_device_parts(path)
    index = _index_of(path)
    if index is not None:
        return _Sharded(index)
    if path.suffix not in _WEIGHT_SUFFIXES:
        raise RepcapError(f"{path}: unknown kind of file {path.suffix!r}: a source is {SOURCES}")
    parts = _parts_of(path)
    return _open_file(path) if len(parts) == 1 else _Parts(path, [_open_file(part) for part in parts])


def dequantised(values: torch.Tensor, scale: torch.Tensor | None, where: str) -> torch.Tensor:
    """A float8 matrix (V x d) times its scale, float32.

    Args:
        values: V x d, float8.
        scale: one number, one a row, or one a block: of 128 x 128 with the last ones cut, as in DeepSeek-V3, or of
            equal blocks. It multiplies, also under the name `weight_scale_inv`. None leaves the values as they are.
        where: names the tensor in an error.

    Raises:
        RepcapError: a scale of another shape.
    """
    result = torch.empty(values.shape, dtype=torch.float32)
    if scale is None or scale.numel() == 1:
        return result.copy_(values).mul_(1.0 if scale is None else scale.float().reshape(()))
    grid = scale.float().reshape(-1, 1) if scale.ndim == 1 else scale.float()
    sizes = [block_size(*pair) for pair in zip(values.shape, grid.shape, strict=False)]
    if grid.ndim != values.ndim or values.ndim != 2 or None in sizes:
        raise RepcapError(
            f"{where}: its scale of shape {tuple(scale.shape)} fits no matrix of shape {tuple(values.shape)}"
        )
    height, width = sizes
    for i, factors in enumerate(grid):
        slab = slice(i * height, (i + 1) * height)
        result[slab] = values[slab].float() * factors.repeat_interleave(width)[: values.shape[1]]
    return result


def block_size(length: int, count: int) -> int | None:
    """Entries of each of `count` blocks that cover `length`, or None when no size does."""
    sizes = (SCALE_BLOCK, length // max(count, 1))
    return next((size for size in sizes if size > 0 and -(-length // size) == count), None)


def scale_names(name: str) -> tuple[str, str]:
    """The names under which the scale of a float8 tensor may lie beside it."""
    return f"{name}_scale_inv", f"{name}_scale"


# --- from a path to the files of one model ----------------------------------------------------------------------------


def _weights_in(folder: Path) -> Path:
    """The file, index or first part to open in a folder."""
    known = next((folder / name for name in _FOLDER_FILES if (folder / name).is_file()), None)
    if known is not None:
        return known
    found: dict[str, Path] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if path.name.endswith(_INDEX_SUFFIXES):
            found[path.name.removesuffix(".index.json")] = path
        elif path.suffix in _WEIGHT_SUFFIXES and not _STATE_OF_TRAINING.fullmatch(path.name):
            whole = _DEVICE_PART.sub(r"\1\2", _PART.sub(r"\g<stem>\g<suffix>", path.name))
            found.setdefault(whole, path)
    if len(found) > 1:
        raise RepcapError(f"the folder {folder} holds several models: {_listed(found)}; name one of the files")
    if not found:
        below = [path.parent.name for path in sorted(folder.glob("*/*")) if path.name in _FOLDER_FILES]
        hint = f"its subfolders do ({_listed(dict.fromkeys(below))})" if below else f"a source is {SOURCES}"
        raise RepcapError(f"the folder {folder} holds no weights that can be read: {hint}")
    return next(iter(found.values()))


def _listed(names, most: int = 8) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _index_of(path: Path) -> Path | None:
    """The index of shards that `path` is, or that lies beside it when it is a shard."""
    if path.name.endswith(_INDEX_SUFFIXES):
        return path
    part = _PART.fullmatch(path.name)
    beside = path.with_name(f"{part['stem']}{part['suffix']}.index.json") if part else None
    return beside if beside is not None and beside.is_file() else None


def _parts_of(path: Path) -> list[Path]:
    """All parts of the split file that `path` is a part of, in order; `path` alone where it is whole."""
    part = _PART.fullmatch(path.name)
    count = int(part["count"]) if part else 1
    if part is None or not 1 <= int(part["number"]) <= count:
        return [path]
    parts = [path.with_name(f"{part['stem']}-{i:05d}-of-{count:05d}{part['suffix']}") for i in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise RepcapError(
            f"{path}: one of {count} parts, of which {_listed(missing, 4)} {'is' if len(missing) == 1 else 'are'} "
            "missing; fetch the rest into the same folder"
        )
    return parts


def _refuse_device_parts(path: Path) -> None:
    """Refuse one of several files that each hold some columns, or some rows, of every matrix of one model."""
    for place in (path, path.parent):  # the files are numbered, or the folders that they lie in
        part = _DEVICE_PART.fullmatch(place.name)
        beside = map(_DEVICE_PART.fullmatch, (other.name for other in place.parent.iterdir())) if part else ()
        count = sum(other is not None and other.groups() == part.groups() for other in beside)
        if count > 1:
            raise RepcapError(
                f"{path}: one of {count} parts of a model that is split by columns or rows for several devices "
                f"({place.name} and others); convert it to one checkpoint, as transformers saves it"
            )


def _open_file(path: Path) -> Container:
    start = _first_bytes(path)
    if path.suffix in (".gguf", ".safetensors"):
        return {".gguf": _Gguf, ".safetensors": _Safetensors}[path.suffix](path)
    if start.startswith((b"PK", b"\x80")):
        return _Torch(path)
    if path.suffix == ".bin" and not path.name.startswith("pytorch_model"):
        return _Ctranslate2(path)
    raise RepcapError(f"{path}: not a PyTorch checkpoint (neither a zip archive nor a pickle); fetch it again")


def _first_bytes(path: Path) -> bytes:
    """The start of a file that is neither a page nor a pointer put in its place."""
    with path.open("rb") as stream:
        start = stream.read(512)
    meaning = _stand_in(start, "weights")
    if meaning is not None:
        raise RepcapError(f"{path}: {meaning}")
    return start


def _stand_in(start: bytes, wanted: str) -> str | None:
    """What a file is, by its first bytes, that was put in place of the one that is wanted; None for any other."""
    bare = start.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    return next((meaning.format(wanted) for sign, meaning in _STAND_INS.items() if bare.startswith(sign)), None)


# --- what lies beside the weights -------------------------------------------------------------------------------------


def _read_config(folder: Path) -> dict[str, Any]:
    path = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
    if path is None:
        return {}
    try:
        content = json.loads(path.read_bytes())
        if isinstance(content, dict):
            return content
    except (ValueError, RecursionError):
        pass
    raise RepcapError(f"{path}: not a JSON object; fetch it again, or remove it to do without")


def read_vocabulary(folder: Path) -> dict[int, str] | None:
    """The vocabulary beside the weights, by token id, or None when there is no vocabulary file.

    Raises:
        VocabularyError: a file in no known form, without tokens, or with something else put in its place.
    """
    path = next((folder / name for name in _TOKEN_FILES if (folder / name).is_file()), None)
    if path is None:
        return None
    strings = _strings_in(path)
    added = path.with_name(ADDED_TOKENS)
    if path.name != "tokenizer.json" and added.is_file():
        strings |= _strings_in(added)
    if not strings:
        raise VocabularyError(f"{path}: holds no tokens; fetch it again, or pass tokens=False to do without")
    return strings


def _strings_in(path: Path) -> dict[int, str]:
    """The tokens of one file, by id; {} where it is empty."""
    content = path.read_bytes()
    meaning = _stand_in(content[:512], "vocabulary")
    if meaning is not None:
        raise VocabularyError(f"{path}: {meaning}")
    text = content.decode("utf-8", "replace")
    if path.suffix == ".txt":
        lines = text.removesuffix("\n").split("\n") if text.strip() else []
        return dict(enumerate(line.removesuffix("\r") for line in lines))
    try:
        return _vocabulary(json.loads(text))
    except (ValueError, OverflowError, RecursionError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise VocabularyError(f"{path}: not a vocabulary in a known form; pass tokens=False to do without") from error


def _vocabulary(content: Any) -> dict[int, str]:
    """Token strings by id from a JSON list, a JSON map of string to id, or the content of a tokenizer.json."""
    if isinstance(content, list):
        return {index: str(token) for index, token in enumerate(content)}
    if "model" not in content or not isinstance(content["model"], dict):
        return {int(index): token for token, index in content.items()}
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):
        strings = {index: _piece(entry) for index, entry in enumerate(vocabulary)}
    else:
        strings = {int(index): token for token, index in vocabulary.items()}
    return strings | {int(added["id"]): str(added["content"]) for added in content.get("added_tokens") or []}


def _piece(entry: Any) -> str:
    """The string of a token that is listed with its score."""
    if not isinstance(entry, list) or not isinstance(entry[0], str):
        raise TypeError("a piece is a list of a string and a score")
    return entry[0]


class _File:
    """A file with its config and its vocabulary in the same folder."""

    format = ""
    is_encoder = False
    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        return _read_config(self.path.parent)

    def file_of(self, _name: str) -> Path:
        return self.path

    def tokens(self) -> dict[int, str] | None:
        return read_vocabulary(self.path.parent)


# --- safetensors and PyTorch checkpoints ------------------------------------------------------------------------------

_SAFETENSORS_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3",
    "F8_E5M2": "float8_e5m2",
}


class _Unscaled(_File):
    """Tensors as they are stored; `read` applies the scale of a float8 one, where one lies beside it."""

    def names(self) -> list[str]:
        raise NotImplementedError

    def entry(self, name: str) -> Entry:
        raise NotImplementedError

    def stored(self, name: str) -> torch.Tensor:
        raise NotImplementedError

    def read(self, name: str) -> torch.Tensor:
        storage = self.entry(name).storage
        if storage not in FLOAT8:
            _require_float(self.path, name, storage)
            return self.stored(name)
        present = set(self.names())
        scale = next((self.stored(other) for other in scale_names(name) if other in present), None)
        return dequantised(self.stored(name), scale, f"{self.path}, tensor {name!r}")


class _Safetensors(_Unscaled):
    """One .safetensors file."""

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            self._names = list(file.keys())

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with safe_open(self.path, framework="pt") as file:
                yield file
        except SafetensorError as error:
            message = " ".join(str(error).split())
            raise RepcapError(f"{self.path}: not an intact safetensors file ({message}); fetch it again") from error

    def names(self) -> list[str]:
        return self._names

    def entry(self, name: str) -> Entry:
        with self._opened() as file:
            part = file.get_slice(name)
            stored = part.get_dtype()
            return Entry(tuple(part.get_shape()), _SAFETENSORS_TYPES.get(stored, stored))

    def stored(self, name: str) -> torch.Tensor:
        with self._opened() as file:
            return file.get_tensor(name)


class _Torch(_Unscaled):
    """A PyTorch checkpoint. Only tensors in dictionaries are looked at; their names are joined by dots."""

    format = "pytorch"

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            is_archive = stream.read(2) == b"PK"  # older files are a bare pickle, which cannot be mapped
        try:
            with warnings.catch_warnings(action="ignore"):
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
        except pickle.UnpicklingError as error:
            raise RepcapError(
                f"{path}: holds more than tensors ({_reason(error)}), and unpickling that could run code; "
                "it is refused: convert it to safetensors"
            ) from error
        except (
            RuntimeError,
            OSError,
            EOFError,
            ValueError,
            LookupError,
            AttributeError,
            TypeError,
            ImportError,
        ) as error:
            raise RepcapError(f"{path}: not an intact PyTorch checkpoint ({_reason(error)}); fetch it again") from error
        self._tensors = dict(_tensors_in(content))

    def names(self) -> list[str]:
        return list(self._tensors)

    def entry(self, name: str) -> Entry:
        tensor = self._tensors[name]
        return Entry(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.").removesuffix("fn"))

    def stored(self, name: str) -> torch.Tensor:
        return self._tensors[name].detach()


def _tensors_in(content: object, prefix: str = "", depth: int = 8) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor) and content.layout == torch.strided and not content.is_quantized:
        yield prefix, content
    elif isinstance(content, dict) and depth > 0:
        for key, value in content.items():
            yield from _tensors_in(value, f"{prefix}.{key}" if prefix else str(key), depth - 1)


def _reason(error: Exception) -> str:
    """The gist of one of torch's long messages."""
    text = " ".join(str(error).split())
    gist = re.search(r"WeightsUnpickler error: (.+?)(?: was not an allowed|\. Please|\.? Check the doc|$)", text)
    return gist[1] if gist else text[:120] or type(error).__name__


class _Sharded(_Unscaled):
    """An index of shards; only shards that hold a wanted tensor are opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.format = "safetensors" if path.name.endswith(_INDEX_SUFFIXES[0]) else "pytorch"
        _first_bytes(path)
        try:
            content = json.loads(path.read_bytes())
            self._shard_of = {str(name): str(shard) for name, shard in content["weight_map"].items()}
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
            raise RepcapError(f"{path}: not an index of shards (no 'weight_map' in JSON); fetch it again") from error
        self._opened: dict[str, Container] = {}

    def _shard(self, name: str) -> Container:
        shard = self._shard_of[name]
        if shard not in self._opened:
            if Path(shard).name != shard or Path(shard).suffix not in _WEIGHT_SUFFIXES:
                raise RepcapError(f"{self.path}: tensor {name!r} names a shard outside the folder: {shard!r}")
            if not (self.path.parent / shard).is_file():
                raise RepcapError(f"{self.path}: the shard {shard!r} with tensor {name!r} is missing; fetch it")
            self._opened[shard] = _open_file(self.path.parent / shard)
        if name not in self._opened[shard].names():
            raise RepcapError(f"{self.path}: the shard {shard!r} has no tensor {name!r}, though the index says so")
        return self._opened[shard]

    def names(self) -> list[str]:
        return list(self._shard_of)

    def entry(self, name: str) -> Entry:
        return self._shard(name).entry(name)

    def stored(self, name: str) -> torch.Tensor:
        return self._shard(name).stored(name)

    def file_of(self, name: str) -> Path:
        return self._shard(name).path


class _Parts:
    """A model split into files that each list their own tensors."""

    def __init__(self, path: Path, parts: list[Container]) -> None:
        self.path, self.format, self.config = path, parts[0].format, parts[0].config
        self.is_encoder = any(part.is_encoder for part in parts)
        self._parts = parts
        self._part_of = {name: part for part in reversed(parts) for name in part.names()}

    def names(self) -> list[str]:
        return list(self._part_of)

    def entry(self, name: str) -> Entry:
        return self._part_of[name].entry(name)

    def read(self, name: str) -> torch.Tensor:
        return self._part_of[name].read(name)

    def file_of(self, name: str) -> Path:
        return self._part_of[name].path

    def tokens(self) -> dict[int, str] | None:
        return next((strings for strings in (part.tokens() for part in self._parts) if strings is not None), None)


def _require_float(path: Path, name: str, storage: str) -> None:
    if storage not in FLOATS:
        raise RepcapError(f"{path}, tensor {name!r}: stored as {storage}; {', '.join(FLOATS)} can be read")


# --- binary layouts: a bounds-checked cursor, GGUF, CTranslate2 -------------------------------------------------------

_U8, _U16, _U32, _U64 = (struct.Struct(code) for code in ("<B", "<H", "<I", "<Q"))


class _Cursor:
    """Reads little-endian values from a mapped file; whatever would pass the file's end is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            self.size = path.stat().st_size
            if self.size == 0:
                raise RepcapError(f"{path}: the file is empty; fetch it again")
            self.data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self.position = 0

    def skip(self, count: int) -> int:
        """Move over `count` bytes; the position before the move."""
        start = self.position
        if count > self.size - start:
            raise RepcapError(
                f"{self.path}: truncated or damaged: {count} bytes are announced at offset {start}, "
                f"but the file ends at {self.size}; fetch it again"
            )
        self.position = start + count
        return start

    def take(self, count: int) -> bytes:
        start = self.skip(count)
        return self.data[start : start + count]

    def number(self, kind: struct.Struct) -> int:
        return kind.unpack_from(self.data, self.skip(kind.size))[0]

    def floats(self, start: int, shape: tuple[int, ...], storage: str) -> torch.Tensor:
        """A copy of the little-endian floats at `start`, whose extent has been checked."""
        code = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<i2"}[storage]
        values = np.frombuffer(self.data, code, count=math.prod(shape), offset=start).reshape(shape)
        tensor = torch.from_numpy(values.astype(values.dtype.newbyteorder("="), copy=True))
        return tensor.view(torch.bfloat16) if storage == "bfloat16" else tensor


_GGUF_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_UINT32, _GGUF_STRING, _GGUF_ARRAY = 4, 8, 9
_GGML_KINDS = {int(kind): kind for kind in gguf.GGMLQuantizationType}
_GGML_FLOATS = {0: "float32", 1: "float16", 28: "float64", 30: "bfloat16"}
_CTRANSLATE2_KINDS = dict(
    enumerate([("float32", 4), ("int8", 1), ("int16", 2), ("int32", 4), ("float16", 2), ("bfloat16", 2)])
)


class _Stored(NamedTuple):
    """Where a tensor lies in a mapped file; `kind` is the format's number for the element type."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class _Gguf(_File):
    """A GGUF file, version 2 or 3, little-endian."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cursor = _Cursor(path)
        self._architecture = ""
        self._numbers: dict[str, int] = {}
        self._alignment = gguf.GGUF_DEFAULT_ALIGNMENT
        self._strings: list[bytes] | None = None
        self._read_header()
        self.is_encoder = "bert" in self._architecture or "encoder" in self._architecture

    def _read_header(self) -> None:
        cursor = self._cursor
        if cursor.take(4) != b"GGUF":
            raise RepcapError(f"{self.path}: not a GGUF file (wrong magic); fetch it again")
        version = cursor.number(_U32)
        if version not in (2, 3):
            raise RepcapError(f"{self.path}: GGUF version {version}; versions 2 and 3, little-endian, can be read")
        tensors, pairs = cursor.number(_U64), cursor.number(_U64)
        for _ in range(pairs):
            self._read_pair()
        infos = dict(self._read_info() for _ in range(tensors))
        start = -(-cursor.position // self._alignment) * self._alignment
        self._tensors = {name: info._replace(offset=start + info.offset) for name, info in infos.items()}
        for name, info in self._tensors.items():
            self._check_extent(name, info)

    def _read_pair(self) -> None:
        cursor = self._cursor
        key, kind = cursor.take(cursor.number(_U64)), cursor.number(_U32)
        if key == b"general.alignment" and kind == _GGUF_UINT32:
            self._alignment = cursor.number(_U32)
            if self._alignment == 0 or self._alignment & (self._alignment - 1):
                raise RepcapError(f"{self.path}: alignment {self._alignment} is not a power of two; fetch it again")
        elif key == b"general.architecture" and kind == _GGUF_STRING:
            self._architecture = cursor.take(cursor.number(_U64)).decode("utf-8", "replace")
        elif key == b"tokenizer.ggml.tokens" and kind == _GGUF_ARRAY:
            self._strings = self._read_array(keep=True)
        elif kind == _GGUF_UINT32:
            self._numbers[key.decode("utf-8", "replace")] = cursor.number(_U32)
        else:
            self._skip_value(kind)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The sizes that the header states: the config.json of a repository of GGUF files may describe other files."""
        keys = {
            "hidden_size": f"{self._architecture}.embedding_length",
            "vocab_size": f"{self._architecture}.vocab_size",
        }
        return {size: self._numbers[key] for size, key in keys.items() if key in self._numbers}

    def _skip_value(self, kind: int) -> None:
        cursor = self._cursor
        if kind == _GGUF_STRING:
            cursor.skip(cursor.number(_U64))
        elif kind == _GGUF_ARRAY:
            self._read_array(keep=False)
        elif kind in _GGUF_SCALAR_BYTES:
            cursor.skip(_GGUF_SCALAR_BYTES[kind])
        else:
            raise RepcapError(f"{self.path}: damaged header (value type {kind} at {cursor.position}); fetch it again")

    def _read_array(self, *, keep: bool) -> list[bytes] | None:
        """Move over an array; its elements when they are strings and `keep` is set."""
        cursor = self._cursor
        kind, count = cursor.number(_U32), cursor.number(_U64)
        if kind in _GGUF_SCALAR_BYTES:
            cursor.skip(count * _GGUF_SCALAR_BYTES[kind])
            return None
        if kind != _GGUF_STRING:
            raise RepcapError(f"{self.path}: damaged header (array of type {kind}); fetch it again")
        if keep:
            return [cursor.take(cursor.number(_U64)) for _ in range(count)]
        for _ in range(count):
            cursor.skip(cursor.number(_U64))
        return None

    def _read_info(self) -> tuple[str, _Stored]:
        cursor = self._cursor
        name = cursor.take(cursor.number(_U64)).decode("utf-8", "replace")
        dimensions = cursor.number(_U32)
        if dimensions > 4:
            raise RepcapError(f"{self.path}, tensor {name!r}: {dimensions} dimensions; damaged header, fetch it again")
        shape = tuple(cursor.number(_U64) for _ in range(dimensions))[::-1]
        kind, offset = cursor.number(_U32), cursor.number(_U64)
        return name, _Stored(shape, kind, offset)

    def _check_extent(self, name: str, info: _Stored) -> None:
        if info.kind not in _GGML_KINDS:
            return
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[_GGML_KINDS[info.kind]]
        end = info.offset + math.prod(info.shape) // per_block * block_bytes
        if end > self._cursor.size:
            raise RepcapError(
                f"{self.path}: truncated: tensor {name!r} ends at byte {end}, the file at {self._cursor.size}; "
                "fetch it again"
            )

    def names(self) -> list[str]:
        return list(self._tensors)

    def entry(self, name: str) -> Entry:
        info = self._tensors[name]
        if info.kind in _GGML_FLOATS:
            return Entry(info.shape, _GGML_FLOATS[info.kind])
        known = _GGML_KINDS.get(info.kind)
        return Entry(info.shape, known.name if known is not None else f"type {info.kind}")

    def read(self, name: str) -> torch.Tensor:
        info, storage = self._tensors[name], self.entry(name).storage
        if storage in FLOATS:
            return self._cursor.floats(info.offset, info.shape, storage)
        return self._dequantised(name, info, storage)

    def _dequantised(self, name: str, info: _Stored, storage: str) -> torch.Tensor:
        """The matrix in float32, a slab of rows at a time so that memory stays near that of the result."""
        where = f"{self.path}, tensor {name!r}"
        rows, columns = info.shape
        if info.kind not in _GGML_KINDS:
            raise RepcapError(f"{where}: stored as {storage}, which is not known here")
        kind = _GGML_KINDS[info.kind]
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        if columns % per_block:
            raise RepcapError(f"{where}: {columns} columns are no multiple of the {storage} block of {per_block}")
        row_bytes = columns // per_block * block_bytes
        raw = np.frombuffer(self._cursor.data, np.uint8, count=rows * row_bytes, offset=info.offset)
        raw = raw.reshape(rows, row_bytes)
        result = np.empty((rows, columns), np.float32)
        try:
            # Damaged scales may overflow here; the check for finite entries names the tensor afterwards.
            with np.errstate(all="ignore"):
                for first in range(0, rows, _ROWS_PER_STEP):
                    slab = slice(first, first + _ROWS_PER_STEP)
                    result[slab] = gguf.dequantize(raw[slab], kind)
        except NotImplementedError as error:
            raise RepcapError(
                f"{where}: stored as {storage}, which is not a floating-point storage gguf decodes"
            ) from error
        return torch.from_numpy(result)

    def tokens(self) -> dict[int, str] | None:
        if self._strings is None:
            return None
        return {index: string.decode("utf-8", "replace") for index, string in enumerate(self._strings)}


class _Ctranslate2(_File):
    """A CTranslate2 model.bin, binary versions 4 to 6: a header, variables one after another, then aliases."""

    format = "ctranslate2"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cursor = _Cursor(path)
        version = self._cursor.number(_U32)
        if version not in (4, 5, 6):
            raise RepcapError(f"{path}: not a CTranslate2 model of binary version 4 to 6 (it says {version})")
        self._string()
        self._cursor.number(_U32)
        self._variables = dict(self._read_variable() for _ in range(self._cursor.number(_U32)))
        for _ in range(self._cursor.number(_U32)):
            alias, target = self._string(), self._string()
            if target not in self._variables:
                raise RepcapError(
                    f"{path}: damaged: {alias!r} stands for {target!r}, which is not there; fetch it again"
                )
            self._variables[alias] = self._variables[target]
        if self._cursor.position != self._cursor.size:
            left = self._cursor.size - self._cursor.position
            raise RepcapError(f"{path}: damaged: {left} bytes follow the last record; fetch it again")

    def _string(self) -> str:
        return self._cursor.take(self._cursor.number(_U16)).rstrip(b"\0").decode("utf-8", "replace")

    def _read_variable(self) -> tuple[str, _Stored]:
        cursor = self._cursor
        name = self._string()
        rank = cursor.number(_U8)
        shape = tuple(cursor.number(_U32) for _ in range(rank))
        kind, count = cursor.number(_U8), cursor.number(_U32)
        if kind in _CTRANSLATE2_KINDS and count != math.prod(shape) * _CTRANSLATE2_KINDS[kind][1]:
            raise RepcapError(f"{self.path}, tensor {name!r}: damaged: {count} bytes do not fit the shape {shape}")
        return name, _Stored(shape, kind, cursor.skip(count))

    def names(self) -> list[str]:
        return list(self._variables)

    def entry(self, name: str) -> Entry:
        variable = self._variables[name]
        return Entry(variable.shape, _CTRANSLATE2_KINDS.get(variable.kind, (f"type {variable.kind}", 0))[0])

    def read(self, name: str) -> torch.Tensor:
        storage = self.entry(name).storage
        _require_float(self.path, name, storage)
        variable = self._variables[name]
        return self._cursor.floats(variable.offset, variable.shape, storage)
