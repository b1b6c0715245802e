"""Files of named tensors: safetensors (single and sharded), GGUF, CTranslate2. Data only: nothing is unpickled.

Only the tensors that are asked for are read. GGUF and CTranslate2 headers are parsed here, because the parser that comes
with gguf visits each token string in slow steps; every length is checked against the file's size.
"""

import json
import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gguf
import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from repcap_utils.errors import RepcapError

SOURCES = (
    "a registered name, a .gguf or .safetensors file, a CTranslate2 model.bin, "
    "or a folder with model.safetensors, model.safetensors.index.json or model.bin"
)
_TOKEN_FILES = ("tokenizer.json", "vocab.txt", "vocabulary.txt", "vocabulary.json", "vocab.json")
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_ROWS_PER_STEP = 4096


class Entry(NamedTuple):
    """Shape of a tensor and its element type: one of `_FLOATS`, a quantisation's name, or an unsupported type."""

    shape: tuple[int, ...]
    storage: str


class Container(Protocol):
    """A file of named tensors."""

    path: Path
    format: str
    is_encoder: bool

    def names(self) -> list[str]: ...
    def entry(self, name: str) -> Entry: ...
    def read(self, name: str) -> torch.Tensor: ...
    def file_of(self, name: str) -> Path: ...
    def tokens(self) -> dict[int, str] | None: ...


def open_container(path: Path) -> Container:
    """The container at `path`: a file, or the weights in a folder.

    Raises:
        RepcapError: nothing there that can be read, or a damaged header.
    """
    if path.is_dir():
        found = [path / name for name in ("model.safetensors", "model.safetensors.index.json", "model.bin")]
        present = [file for file in found if file.is_file()]
        if not present:
            raise RepcapError(f"the folder {path} holds no weights that can be read: a source is {SOURCES}")
        path = present[0]
    if path.name.endswith(".safetensors.index.json"):
        return _ShardedSafetensors(path)
    readers = {".gguf": _Gguf, ".safetensors": _Safetensors, ".bin": _Ctranslate2}
    if path.suffix not in readers:
        raise RepcapError(f"{path}: unknown kind of file {path.suffix!r}: a source is {SOURCES}")
    return readers[path.suffix](path)


def _read_vocabulary(folder: Path) -> dict[int, str] | None:
    """The vocabulary beside the weights, by token id, or None when there is no vocabulary file."""
    path = next((folder / name for name in _TOKEN_FILES if (folder / name).is_file()), None)
    if path is None:
        return None
    text = path.read_bytes().decode("utf-8", "replace")
    if path.suffix == ".txt":
        return dict(enumerate(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")))
    try:
        return _vocabulary(json.loads(text))
    except (ValueError, OverflowError, RecursionError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise RepcapError(f"{path}: not a vocabulary in a known form; pass tokens=False to do without") from error


def _vocabulary(content: Any) -> dict[int, str]:
    """Token strings by id from a JSON list, a JSON map of string to id, or the content of a tokenizer.json."""
    if isinstance(content, list):
        return {index: str(token) for index, token in enumerate(content)}
    if "model" not in content or not isinstance(content["model"], dict):
        return {int(index): token for token, index in content.items()}
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):
        strings = {index: str(piece[0]) for index, piece in enumerate(vocabulary)}
    else:
        strings = {int(index): token for token, index in vocabulary.items()}
    return strings | {int(added["id"]): str(added["content"]) for added in content.get("added_tokens") or []}


# --- safetensors ------------------------------------------------------------------------------------------------------

_SAFETENSORS_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _Safetensors:
    """One .safetensors file."""

    format = "safetensors"
    is_encoder = False

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
            return Entry(tuple(part.get_shape()), _SAFETENSORS_FLOATS.get(stored, stored))

    def read(self, name: str) -> torch.Tensor:
        _require_float(self.path, name, self.entry(name).storage)
        with self._opened() as file:
            return file.get_tensor(name)

    def file_of(self, _name: str) -> Path:
        return self.path

    def tokens(self) -> dict[int, str] | None:
        return _read_vocabulary(self.path.parent)


class _ShardedSafetensors:
    """A model.safetensors.index.json and its shards; only shards that hold a wanted tensor are opened."""

    format = "safetensors"
    is_encoder = False

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            content = json.loads(path.read_bytes())
            self._shard_of = {str(name): str(shard) for name, shard in content["weight_map"].items()}
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
            raise RepcapError(f"{path}: not an index of shards (no 'weight_map' in JSON); fetch it again") from error
        self._opened: dict[str, _Safetensors] = {}

    def _shard(self, name: str) -> _Safetensors:
        shard = self._shard_of[name]
        if shard not in self._opened:
            if Path(shard).name != shard:
                raise RepcapError(f"{self.path}: tensor {name!r} names a shard outside the folder: {shard!r}")
            if not (self.path.parent / shard).is_file():
                raise RepcapError(f"{self.path}: the shard {shard!r} with tensor {name!r} is missing; fetch it")
            self._opened[shard] = _Safetensors(self.path.parent / shard)
        if name not in self._opened[shard].names():
            raise RepcapError(f"{self.path}: the shard {shard!r} has no tensor {name!r}, though the index says so")
        return self._opened[shard]

    def names(self) -> list[str]:
        return list(self._shard_of)

    def entry(self, name: str) -> Entry:
        return self._shard(name).entry(name)

    def read(self, name: str) -> torch.Tensor:
        return self._shard(name).read(name)

    def file_of(self, name: str) -> Path:
        return self._shard(name).path

    def tokens(self) -> dict[int, str] | None:
        return _read_vocabulary(self.path.parent)


def _require_float(path: Path, name: str, storage: str) -> None:
    if storage not in _FLOATS:
        raise RepcapError(f"{path}, tensor {name!r}: stored as {storage}; {', '.join(_FLOATS)} can be read")


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


class _Gguf:
    """A GGUF file, version 2 or 3, little-endian."""

    format = "gguf"
    is_encoder = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cursor = _Cursor(path)
        self._architecture = ""
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
        else:
            self._skip_value(kind)

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
        if storage in _FLOATS:
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

    def file_of(self, _name: str) -> Path:
        return self.path

    def tokens(self) -> dict[int, str] | None:
        if self._strings is None:
            return None
        return {index: string.decode("utf-8", "replace") for index, string in enumerate(self._strings)}


class _Ctranslate2:
    """A CTranslate2 model.bin, binary versions 4 to 6: a header, variables one after another, then aliases."""

    format = "ctranslate2"
    is_encoder = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cursor = _Cursor(path)
        magic = self._cursor.data[:2]
        if magic == b"PK" or magic[:1] == b"\x80":
            raise RepcapError(f"{path}: a pickled checkpoint, which is never read; convert it to safetensors")
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

    def file_of(self, _name: str) -> Path:
        return self.path

    def tokens(self) -> dict[int, str] | None:
        return _read_vocabulary(self.path.parent)
