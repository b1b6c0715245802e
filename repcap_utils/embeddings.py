"""A source of weights (registered name, file or folder) -> its token-embedding matrix, with the facts that go with it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from repcap_utils import models
from repcap_utils.containers import SOURCES, Container, open_container
from repcap_utils.errors import RepcapError
from repcap_utils.resources import torch_device

DECODER_TENSORS = (
    "token_embd.weight",
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.text_model.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "transformer.wte.weight",
    "wte.weight",
    "gpt_neox.embed_in.weight",
    "backbone.embeddings.weight",
    "backbone.embedding.weight",
    "tok_embeddings.weight",
    "transformer.word_embeddings.weight",
    "word_embeddings.weight",
    "transformer.embedding.word_embeddings.weight",
    "decoder/embeddings/weight",
)
"""Names of the token embedding in models with a language-model head, in order of preference."""

OTHER_TENSORS = (
    "embeddings.word_embeddings.weight",
    "bert.embeddings.word_embeddings.weight",
    "roberta.embeddings.word_embeddings.weight",
    "distilbert.embeddings.word_embeddings.weight",
    "model.embeddings.tok_embeddings.weight",
    "shared.weight",
    "embed_tokens.weight",
    "encoder/embeddings/weight",
    "encoder/embeddings_0/weight",
)
"""Names of the token embedding in encoders and in bare models, whose head may be absent rather than tied."""

UNEMBEDDING_TENSORS = (
    "output.weight",
    "lm_head.weight",
    "model.lm_head.weight",
    "language_model.lm_head.weight",
    "proj_out.weight",
    "embed_out.weight",
    "transformer.output_layer.weight",
    "cls.predictions.decoder.weight",
    "decoder/projection/weight",
)
"""Names of the unembedding (the head's matrix, V x d)."""

_ROWS_PER_STEP = 4096


@dataclass(frozen=True, eq=False)
class Embedding:
    """The token-embedding matrix of a model.

    Attributes:
        weight: V x d tensor in the stored type (float32, float16, bfloat16 or float64); block-quantised storage is
            dequantised to float32. All entries are finite.
        tokens: V strings, as the tokenizer stores them (so with its markers for spaces and bytes), or None. Rows that
            no token owns, which some models have as padding, are called `<row i>`.
        unembedding: V' x d tensor of a head that differs from the embedding, or None.
        tied: True when the head is the embedding: the source holds no head, or a bit-equal one. False when it holds
            another. None when the source says nothing about a head (encoders, bare models, other tensors).
        name: the registered name, or the name of the file or folder.
        d_model: the number of columns.
        storage: element type or quantisation in the file, such as `float16` or `Q8_0`.
        provenance: `source` ("registry" or "file"), `format`, `file`, `tensor`, and the file's `sha256` where the
            registry knows it, else None.
    """

    weight: torch.Tensor = field(repr=False)
    tokens: list[str] | None = field(repr=False)
    unembedding: torch.Tensor | None = field(repr=False)
    tied: bool | None
    name: str
    d_model: int
    storage: str
    provenance: dict[str, str | None]


def load(
    source: str | Path, *, tensor: str | None = None, device: str | torch.device | None = None, tokens: bool = True
) -> Embedding:
    """Read the token-embedding matrix of `source`.

    Args:
        source: the name of a registered model, or a path: a .gguf or .safetensors file, a CTranslate2 model.bin, or a
            folder that holds model.safetensors, model.safetensors.index.json (shards) or model.bin.
        tensor: the tensor to read instead of the one found by name.
        device: where the tensors are put; the CPU when None.
        tokens: whether to read the token strings too.

    Raises:
        RepcapError: unknown source, model not fetched, unreadable or damaged file, no such tensor, or a tensor that is
            not a finite floating-point matrix with at least two rows.
    """
    target = torch_device(device)
    model, path = _locate(source)
    with _refusing_os_errors(path):
        container = open_container(path)
        name = tensor or (model.tensor if model else None) or _find(container)
        weight = _matrix(container, name)
        tied, unembedding = _head(container, name, weight)
        strings = _tokens(container, name, weight.shape[0]) if tokens else None
    return Embedding(
        weight=weight.to(target),
        tokens=strings,
        unembedding=None if unembedding is None else unembedding.to(target),
        tied=tied,
        name=model.name if model else _label(path),
        d_model=weight.shape[1],
        storage=container.entry(name).storage,
        provenance={
            "source": "registry" if model else "file",
            "format": container.format,
            "file": container.file_of(name).name,
            "tensor": name,
            "sha256": model.file_sha256 if model else None,
        },
    )


# --- from a source to a file ------------------------------------------------------------------------------------------


def _locate(source: str | Path) -> tuple[models.Model | None, Path]:
    text = str(source)
    registered = models.registry()
    if text in registered:
        model = registered[text]
        if not model.is_present:
            raise RepcapError(f"model {text!r} is not on this machine; run `repcap models fetch {text}`")
        models.verify(text)
        return model, model.path
    path = _existing(text)
    if path is not None:
        return None, path
    nearest = models.suggest(text)
    hint = f"did you mean the registered name {nearest!r}? " if nearest else ""
    raise RepcapError(f"no source {text!r}: {hint}a source is {SOURCES}; registered: {', '.join(registered)}")


def _existing(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        return path if text.strip() and (path.is_file() or path.is_dir()) else None
    except (OSError, RuntimeError):  # a name too long for the file system, or ~ of an unknown user
        return None


def _label(path: Path) -> str:
    stem = path.name.removesuffix(".json").removesuffix(".index")
    stem = stem if path.is_dir() else Path(stem).stem
    return path.resolve().parent.name if stem == "model" else stem or path.resolve().name


@contextmanager
def _refusing_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RepcapError(f"cannot read {error.filename or path}: {error.strerror or error}") from error


# --- from a file to the matrix and its head ---------------------------------------------------------------------------


def _find(container: Container) -> str:
    names = set(container.names())
    for candidate in DECODER_TENSORS + OTHER_TENSORS:
        if candidate in names:
            return candidate
    raise RepcapError(
        f"{container.path}: no token embedding under a known name; choose one with tensor= (--tensor): "
        f"{_matrices(container)}"
    )


def _matrices(container: Container) -> str:
    """Up to 8 matrices of the file, those with the most rows first, for an error message."""
    shapes = {name: container.entry(name).shape for name in container.names()}
    matrices = sorted((name for name in shapes if len(shapes[name]) == 2), key=lambda name: (-shapes[name][0], name))
    listed = ", ".join(f"{name} {shapes[name][0]} x {shapes[name][1]}" for name in matrices[:8])
    more = f" and {len(matrices) - 8} more" if len(matrices) > 8 else ""
    return listed + more if listed else "but the file holds no matrix"


def _matrix(container: Container, name: str) -> torch.Tensor:
    """The tensor `name`, checked to be a finite floating-point matrix with at least two rows."""
    where = f"{container.path}, tensor {name!r}"
    if name not in container.names():
        raise RepcapError(f"{where}: there is none; choose one with tensor= (--tensor): {_matrices(container)}")
    shape = container.entry(name).shape
    if len(shape) != 2 or shape[0] < 2 or shape[1] < 1:
        raise RepcapError(f"{where}: its shape {shape} is not a V x d matrix with V >= 2; choose another with tensor=")
    weight = container.read(name)
    bad = _first_bad_row(weight)
    if bad is not None:
        raise RepcapError(
            f"{where}: row {bad} holds NaN or infinite entries; the file is damaged or its storage is not known"
        )
    return weight


def _first_bad_row(weight: torch.Tensor) -> int | None:
    """The first row with an entry that is NaN or infinite, looked for in slabs of rows."""
    for start, rows in zip(range(0, len(weight), _ROWS_PER_STEP), weight.split(_ROWS_PER_STEP), strict=True):
        low, high = torch.aminmax(rows)
        if not (math.isfinite(low.item()) and math.isfinite(high.item())):
            return start + int((~torch.isfinite(rows).all(dim=1)).nonzero()[0])
    return None


def _head(container: Container, name: str, weight: torch.Tensor) -> tuple[bool | None, torch.Tensor | None]:
    """`tied` and `unembedding`, judged by the tensors alone: configurations are often wrong about tying."""
    if name in UNEMBEDDING_TENSORS:
        return None, None
    names = set(container.names())
    head = next((candidate for candidate in UNEMBEDDING_TENSORS if candidate in names), None)
    if head is None:
        return (True if name in DECODER_TENSORS and not container.is_encoder else None), None
    shape = container.entry(head).shape
    if name not in DECODER_TENSORS + OTHER_TENSORS and shape != weight.shape:
        return None, None
    if shape[1:] != weight.shape[1:]:
        return (False if name in DECODER_TENSORS else None), None
    unembedding = _matrix(container, head)
    if unembedding.dtype == weight.dtype and torch.equal(unembedding, weight):
        return True, None
    return False, unembedding


# --- token strings ----------------------------------------------------------------------------------------------------


def _tokens(container: Container, name: str, rows: int) -> list[str] | None:
    """One string a row; None when no vocabulary is there or, for an unfamiliar tensor, when the counts differ."""
    strings = container.tokens()
    if strings is None:
        return None
    if name not in DECODER_TENSORS + OTHER_TENSORS + UNEMBEDDING_TENSORS and len(strings) != rows:
        return None
    return [_clean(strings[row]) if row in strings else f"<row {row}>" for row in range(rows)]


def _clean(text: str) -> str:
    """The same string with lone surrogates replaced, so that it can always be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
