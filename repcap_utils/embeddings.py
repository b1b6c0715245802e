"""A source of weights (registered name, file, folder or hub id) -> its token-embedding matrix, with the facts that go with it."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from repcap_utils import models
from repcap_utils.containers import SOURCES, Container, VocabularyError, open_container
from repcap_utils.errors import RepcapError
from repcap_utils.resources import torch_device

DECODER_TENSORS = (
    "token_embd.weight",
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.text_model.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "transformer.wte.weight",
    "transformer.embd.wte.weight",
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
    "shared.weight",
    "model.shared.weight",
    "embeddings.word_embeddings.weight",
    "bert.embeddings.word_embeddings.weight",
    "roberta.embeddings.word_embeddings.weight",
    "distilbert.embeddings.word_embeddings.weight",
    "model.embeddings.tok_embeddings.weight",
    "embeddings.tok_embeddings.weight",
    "text_model.embeddings.token_embedding.weight",
    "embed_tokens.weight",
    "embedder.weight",
    "encoder/embeddings/weight",
    "encoder/embeddings_0/weight",
)
"""Names of the token embedding in encoders, encoder-decoders and bare models, whose head may be absent rather than tied."""

UNEMBEDDING_TENSORS = (
    "output.weight",
    "lm_head.weight",
    "model.lm_head.weight",
    "language_model.lm_head.weight",
    "model.language_model.lm_head.weight",
    "proj_out.weight",
    "embed_out.weight",
    "transformer.output_layer.weight",
    "transformer.ff_out.weight",
    "cls.predictions.decoder.weight",
    "lm_head.decoder.weight",
    "vocab_projector.weight",
    "decoder/projection/weight",
)
"""Names of the unembedding (the head's matrix, V x d)."""

VOCABULARY_SIZES = ("vocab_size", "padded_vocab_size", "n_vocab", "n_words")
HIDDEN_SIZES = (
    "word_embed_proj_dim",
    "embedding_size",
    "emb_dim",
    "hidden_size",
    "n_embd",
    "d_model",
    "model_dim",
    "dim",
)
"""Keys of a configuration for the two sizes of the embedding; a width of the embedding's own comes before the model's."""
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")

_EXACT_ONLY = ("shared.weight", "embedder.weight")
_LIKELY = re.compile(r"emb|wte|head|shared|tok|output|word")
_ROWS_PER_STEP = 4096
_LEAST_VOCABULARY = 0.5
"""A vocabulary for fewer than this part of the rows is damaged, or another model's."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """The token-embedding matrix of a model.

    Attributes:
        weight: V x d tensor in the stored type (float32, float16, bfloat16 or float64); block-quantised and float8
            storage is dequantised to float32. All entries are finite.
        tokens: V strings, as the tokenizer stores them (so with its markers for spaces and bytes), or None. Rows that
            no token owns, which some models have as padding, are called `<row i>`.
        unembedding: V' x d tensor of a head that differs from the embedding, or None.
        tied: True when the head is the embedding: the source holds no head, or one of the same numbers. False when it
            holds another. None when the source says nothing about a head (encoders, bare models, other tensors), or
            the head was not compared.
        name: the registered name, the hub id, or the name of the file or folder.
        d_model: the number of columns.
        storage: element type or quantisation in the file, such as `float16` or `Q8_0`.
        provenance: `source` ("registry", "file" or "hub"), `format`, `file`, `tensor`, the file's `sha256` where the
            registry knows it, else None; `transposed`, True where the file holds d x V; for a hub repository `repo`,
            `revision` (the commit), `traffic` (bytes read from the network now), `needed_bytes` (read for the embedding
            when nothing is cached) and `total_bytes` (of all its weights).
        head: "absent" (no head is stored: tied), "equal" (stored, and the same numbers in the rows that both have: tied),
            "different", "not compared" (to tell would take more of the network than the embedding), or None.
        head_rows: how many rows of a stored head were compared: all that both have, or of a remote one a few that are
            spread over these; 0 without one.
        vocab_size: what the configuration says, or None. A matrix with more rows is padded.
        notes: doubts about the choice of the tensor, one line each: a shape that disagrees with the configuration, other
            matrices that could have been meant, a part of the index that was not read.
    """

    weight: torch.Tensor = field(repr=False)
    tokens: list[str] | None = field(repr=False)
    unembedding: torch.Tensor | None = field(repr=False)
    tied: bool | None
    name: str
    d_model: int
    storage: str
    provenance: dict[str, Any]
    head: str | None = None
    head_rows: int = 0
    vocab_size: int | None = None
    notes: tuple[str, ...] = ()


def load(
    source: str | Path,
    *,
    tensor: str | None = None,
    device: str | torch.device | None = None,
    tokens: bool = True,
    unembedding: bool = True,
    revision: str | None = None,
    allow_download: bool = False,
) -> Embedding:
    """Read the token-embedding matrix of `source`.

    Args:
        source: the name of a registered model; a path: a .gguf or .safetensors file, a PyTorch checkpoint, a CTranslate2
            model.bin, any part of a split file, or a folder; or a hub id, owner/name or owner/name@revision, of which
            only the tensor is read.
        tensor: the tensor to read instead of the one found by name.
        device: where the tensors are put; the CPU when None.
        tokens: whether to read the token strings too.
        unembedding: whether to keep a head that differs. Without, a hub repository's head is judged by a sample of its
            rows, and one that cannot be read by rows (transposed, pickled) is not compared.
        revision: branch, tag or commit of a hub repository.
        allow_download: whether whole files of a hub repository may be downloaded where it has only pickled weights.

    Raises:
        RepcapError: unknown source, model not fetched, unreadable or damaged file, no such tensor, several that could be
            meant, one that is not a finite floating-point matrix with at least two rows, or not all of it.
        VocabularyError: with `tokens`, a damaged vocabulary, or one for less than half of the rows.
    """
    target = torch_device(device)
    with _refusing_os_errors(source):
        model, container, label = _open(source, revision, allow_download)
        name, turned, notes = _chosen(container, tensor or (model.tensor if model else None))
        weight = _matrix(container, name, turned)
        head = _head(container, name, weight, turned, keep=unembedding)
        strings = _tokens(container, name, weight.shape[0]) if tokens else None
    return Embedding(
        weight=weight.to(target),
        tokens=strings,
        unembedding=None if head.other is None else head.other.to(target),
        tied={"absent": True, "equal": True, "different": False}.get(head.state),
        name=label,
        d_model=weight.shape[1],
        storage=container.entry(name).storage,
        provenance={
            "source": "registry" if model else "file",
            "format": container.format,
            "file": container.file_of(name).name,
            "tensor": name,
            "sha256": model.file_sha256 if model else None,
            "transposed": turned,
        }
        | _hub_facts(container, name),
        head=head.state,
        head_rows=head.rows,
        vocab_size=_declared(container.config).rows,
        notes=(*notes, *_unread_names(container)),
    )


def is_remote(source: str | Path) -> bool:
    """Whether `load` would ask the hub for `source`: it is no registered name, no path here, and reads as a hub id."""
    text = str(source)
    if "/" not in text or text in models.registry() or _existing(text) is not None:
        return False
    from repcap_utils import hub  # loaded late: it takes a second, and only a hub id needs it

    return hub.is_repo_id(text)


def embedding_tensor(container: Container) -> str:
    """The name of the tensor that `load` would take for the embedding.

    Raises:
        RepcapError: there is none, or several could be meant.
    """
    return _chosen(container, None).name


# --- from a source to a file ------------------------------------------------------------------------------------------


def _open(source: str | Path, revision: str | None, allow_download: bool) -> tuple[models.Model | None, Container, str]:
    """The registry's entry, the container and the name of a source."""
    text = str(source)
    registered = models.registry()
    if is_remote(text):
        container = _open_repo(text, revision, allow_download)
        return None, container, container.repo_id
    if revision is not None:
        raise RepcapError(f"revision {revision!r} of {text!r}: only a hub repository (owner/name) has revisions")
    if text in registered:
        model = registered[text]
        if not model.is_present:
            raise RepcapError(f"model {text!r} is not on this machine; run `repcap models fetch {text}`")
        models.verify(text)
        return model, open_container(model.path), model.name
    path = _existing(text)
    if path is not None:
        container = open_container(path)
        return None, container, _label(path)
    raise RepcapError(f"no source {text!r}: {_hint(text)}a source is {SOURCES}; registered: {', '.join(registered)}")


def _hint(text: str) -> str:
    nearest = models.suggest(text)
    return f"did you mean the registered name {nearest!r}? " if nearest else ""


def _open_repo(text: str, revision: str | None, allow_download: bool):
    from repcap_utils import hub

    try:
        return hub.open_repo(text, revision=revision, allow_download=allow_download)
    except RepcapError as error:
        if getattr(error, "status", "") != "absent":
            raise
        hint = "; ".join(filter(None, ("and no such path here", _hint(text).strip())))
        raise RepcapError(f"{error}; {hint}") from error


def _hub_facts(container: Container, name: str) -> dict[str, Any]:
    repo_id = getattr(container, "repo_id", None)
    if repo_id is None:
        return {}
    return {
        "source": "hub",
        "repo": repo_id,
        "revision": container.revision,
        "traffic": container.traffic,
        "needed_bytes": container.needed_bytes(name),
        "total_bytes": container.total_bytes,
    }


def _unread_names(container: Container) -> tuple[str, ...]:
    """The note that a part of a remote repository's index was not read, where a head could still be named."""
    unread = getattr(container, "unread_index", 0)
    if not unread:
        return ()
    return (
        f"of the index, {unread / 1e6:.1f} MB in its middle were not read: another embedding or head that they alone name "
        "would not be seen",
    )


def _existing(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        return path if text.strip() and (path.is_file() or path.is_dir()) else None
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # a name too long for the file system, ~ of an unknown user, a null byte
        return None


def _label(path: Path) -> str:
    stem = path.name.removesuffix(".json").removesuffix(".index")
    stem = stem if path.is_dir() else Path(stem).stem
    return path.resolve().parent.name if stem in ("model", "pytorch_model") else stem or path.resolve().name


@contextmanager
def _refusing_os_errors(source: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RepcapError(f"cannot read {error.filename or source}: {error.strerror or error}") from error


def _where(container: Container) -> str:
    """What an error calls a container: its path, or the hub's repository and commit."""
    repo_id = getattr(container, "repo_id", None)
    return str(container.path) if repo_id is None else f"{repo_id}@{container.revision[:8]}"


# --- which tensor -----------------------------------------------------------------------------------------------------


class _Sizes(NamedTuple):
    """Rows and columns of the embedding by the configuration, each None where it is silent."""

    rows: int | None
    columns: int | None


class _Fit(NamedTuple):
    """Whether a tensor is d x V rather than V x d, why it cannot be the embedding (None: it can), if it agrees in width."""

    turned: bool = False
    reason: str | None = None
    agrees: bool = True


class _Choice(NamedTuple):
    """The name of the embedding tensor, whether the file holds it as d x V, and `notes` of an `Embedding`."""

    name: str
    turned: bool
    notes: tuple[str, ...] = ()


def _chosen(container: Container, tensor: str | None) -> _Choice:
    """The embedding tensor: the one asked for, or the only one that names and shapes allow."""
    sizes = _declared(container.config)
    if tensor is not None:
        _require(container, tensor)
        shape = container.entry(tensor).shape
        fit = _fit(shape, sizes, lambda: None)
        return _Choice(tensor, fit.turned, _doubts(tensor, shape, fit, sizes))
    names = _candidates(container.names())
    if not names or names[0] not in DECODER_TENSORS:  # a better one may be named where the index was not read
        names = _candidates(_all_names(container))
    if not names:
        raise RepcapError(
            f"{_where(container)}: no token embedding under a known name; choose one with tensor= (--tensor): "
            f"{_matrices(container)}"
        )
    fits = {name: _fit(container.entry(name).shape, sizes, lambda: _token_count(container)) for name in names}
    able = [name for name in names if fits[name].reason is None]
    able = [name for name in able if fits[name].agrees] or able
    if not able:
        raise RepcapError(
            f"{_where(container)}, tensor {names[0]!r}: {fits[names[0]].reason}; choose with tensor= (--tensor): "
            f"{_matrices(container)}"
        )
    if len({container.entry(name).shape for name in able}) > 1:
        listed = ", ".join(f"{name} {_times(container.entry(name).shape)}" for name in able)
        raise RepcapError(
            f"{_where(container)}: several token embeddings of different sizes; choose one with tensor= (--tensor): {listed}"
        )
    rivals = [name for name in able if _is_wrapped(name) == _is_wrapped(able[0])]
    if not all(_alike(container, able[0], other) for other in rivals[1:]):
        raise RepcapError(
            f"{_where(container)}: several models, whose token embeddings differ; choose one with tensor= (--tensor): "
            f"{', '.join(rivals)}"
        )
    name, shape = able[0], container.entry(able[0]).shape
    unused = [other for other in able if other not in rivals and _seems_another(container, name, other)]
    notes = [f"also there, of the same size, and not used: {', '.join(unused)}; --tensor reads it"] if unused else []
    return _Choice(name, fits[name].turned, (*_doubts(name, shape, fits[name], sizes), *notes))


def _doubts(name: str, shape: tuple[int, ...], fit: _Fit, sizes: _Sizes) -> tuple[str, ...]:
    """The note that a tensor is read in spite of what the configuration says of its size."""
    if len(shape) != 2 or (fit.reason is None and fit.agrees):
        return ()
    return (f"tensor {name} is read as it is: {fit.reason or f'its {shape[1]} columns are not {sizes.columns}'}",)


def _seems_another(container: Container, name: str, other: str) -> bool:
    """Whether a matrix is not known to be a copy of the chosen one; a remote one is not read to tell."""
    return hasattr(container, "repo_id") or not _alike(container, name, other)


def _is_wrapped(name: str) -> bool:
    """Whether a known name stands behind a prefix, as in a part of a larger model, or in one of several."""
    return _split(name)[0] != ""


def _alike(container: Container, one: str, other: str) -> bool:
    """Whether two matrices of one shape are equal; of a remote repository only a sample of rows is compared."""
    if container.entry(one).storage != container.entry(other).storage:
        return False
    sample = getattr(container, "sample", None)
    if sample is None:
        return torch.equal(container.read(one), container.read(other))
    count = container.entry(one).shape[0]
    return torch.equal(sample(one, count)[1], sample(other, count)[1])


def _candidates(names: list[str]) -> list[str]:
    """The tensors under known names, the most preferred first; a wrapper may put a prefix before such a name."""
    ranked = [(split, name) for name in names if (split := _split(name)) is not None]
    rank = {known: i for i, known in enumerate(DECODER_TENSORS + OTHER_TENSORS)}
    ranked.sort(key=lambda pair: (pair[0][0] != "", rank[pair[0][1]], pair[1]))
    return [name for _, name in ranked]


def _split(name: str) -> tuple[str, str] | None:
    """A name as the prefix of a wrapper ("" without) and a known name, or None."""
    known = DECODER_TENSORS + OTHER_TENSORS
    if name in known:
        return "", name
    ends = [end for end in known if name.endswith(f".{end}") and end not in _EXACT_ONLY]
    return (name.removesuffix(longest := max(ends, key=len)), longest) if ends else None


def _declared(config: Mapping[str, Any]) -> _Sizes:
    """What a configuration says, the text model's part of a multimodal one first."""

    def parts(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        for key in _TEXT_CONFIGS:
            if isinstance(content.get(key), dict):
                yield from parts(content[key])
        yield content

    def first(keys: tuple[str, ...]) -> int | None:
        values = (part.get(key) for part in parts(config) for key in keys)
        return next((value for value in values if type(value) is int and value > 0), None)

    return _Sizes(first(VOCABULARY_SIZES), first(HIDDEN_SIZES))


def _fit(shape: tuple[int, ...], sizes: _Sizes, token_count: Callable[[], int | None]) -> _Fit:
    """How a tensor of that shape compares with the sizes by the configuration, or by the tokenizer where it has none."""
    if len(shape) != 2 or shape[0] < 2 or shape[1] < 1:
        return _Fit(reason=f"its shape {shape} is not a V x d matrix with V >= 2")
    rows, columns = shape
    vocabulary, hidden = sizes
    if vocabulary is None and hidden is None and rows < columns:
        vocabulary = token_count()
        if vocabulary is None:
            return _Fit(reason=f"its shape {shape} has more columns than rows, and no config.json says which is which")

    def enough(count: int) -> bool:
        return vocabulary is None or count >= vocabulary

    if hidden in (None, columns) and enough(rows):
        return _Fit()
    if hidden in (None, rows) and enough(columns):
        return _Fit(turned=True)
    if hidden in (None, columns):
        return _Fit(reason=f"its {rows} rows are fewer than the {vocabulary} tokens: a part of the matrix, it seems")
    if enough(rows) and columns > hidden:
        return _Fit(agrees=False)  # no part, but a width of its own under a key that is not known here
    if enough(rows):
        return _Fit(
            reason=f"its {columns} columns are a part of the model's {hidden}: one of several shards by columns, or a "
            "width of its own under an unknown key"
        )
    return _Fit(reason=f"its shape {shape} disagrees with the configuration in both sizes: {vocabulary} x {hidden}")


def _token_count(container: Container) -> int | None:
    try:
        strings = container.tokens()
    except VocabularyError:
        return None
    return len(strings) if strings else None


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _all_names(container: Container) -> list[str]:
    """Every tensor, also those that a remote repository's large index names in the part that was left out at first."""
    getattr(container, "complete", lambda: False)()
    return container.names()


def _matrices(container: Container) -> str:
    """Up to 8 matrices of the file, those with the most rows first, for an error message.

    Of a remote repository only shards whose header was read already tell shapes: one request each would be too many.
    """
    is_known = getattr(container, "is_known", lambda _name: True)
    shapes, unread = {}, []
    for name in container.names():
        if is_known(name):
            with suppress(RepcapError):  # a shard that is not here
                shapes[name] = container.entry(name).shape
        else:
            unread.append(name)
    matrices = sorted((name for name in shapes if len(shapes[name]) == 2), key=lambda name: (-shapes[name][0], name))
    found = [f"{name} {_times(shapes[name])}" for name in matrices]
    found += list(filter(_LIKELY.search, unread)) or (unread if not found else [])
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return ", ".join(found[:8]) + more if found else "none, the file holds no matrix"


def _require(container: Container, name: str) -> None:
    if name not in container.names() and name not in _all_names(container):
        raise RepcapError(
            f"{_where(container)}, tensor {name!r}: there is none; choose one with tensor= (--tensor): "
            f"{_matrices(container)}"
        )


# --- the matrix and its head ------------------------------------------------------------------------------------------


def _matrix(container: Container, name: str, turned: bool = False) -> torch.Tensor:
    """The tensor `name` as V x d, checked to be a finite floating-point matrix with at least two rows."""
    where = f"{_where(container)}, tensor {name!r}"
    _require(container, name)
    shape = container.entry(name).shape
    if len(shape) != 2 or shape[0] < 2 or shape[1] < 1:
        raise RepcapError(f"{where}: its shape {shape} is not a V x d matrix with V >= 2; choose another with tensor=")
    weight = container.read(name)
    weight = weight.T.contiguous() if turned else weight
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


class _Head(NamedTuple):
    """`head`, `head_rows` and `unembedding` of an `Embedding`."""

    state: str | None
    rows: int = 0
    other: torch.Tensor | None = None


def _head(container: Container, name: str, weight: torch.Tensor, turned: bool, *, keep: bool) -> _Head:
    """The head, judged by the tensors alone: configurations are often wrong about tying."""
    if name in UNEMBEDDING_TENSORS:
        return _Head(None)
    prefix, known = _split(name) or ("", None)
    heads = [start + head for start in dict.fromkeys((prefix, "")) for head in UNEMBEDDING_TENSORS]
    names = container.names()
    if not set(heads) & set(names) and any(map(getattr(container, "may_name", lambda _name: False), heads)):
        if not keep:
            return _Head("not compared")
        names = _all_names(container)
    head = next((candidate for candidate in heads if candidate in set(names)), None)
    is_decoder = known in DECODER_TENSORS or (known in ("shared.weight", "model.shared.weight") and _decodes(names))
    if head is None:
        return _Head("absent" if is_decoder and not container.is_encoder else None)
    if not keep and getattr(container, "is_costly", lambda _name: False)(head):
        return _Head("not compared")
    shape = container.entry(head).shape
    fit = _fit(shape, _Sizes(None, weight.shape[1]), lambda: None)  # a head may be stored another way round
    if known is None and (shape[::-1] if fit.turned else shape) != weight.shape:
        return _Head(None)
    if fit.reason is not None or not fit.agrees:
        return _Head("different" if is_decoder else None)
    if not keep and hasattr(container, "sample"):
        return _sampled_head(container, head, weight, fit.turned)
    other = _matrix(container, head, fit.turned)
    common = min(len(other), len(weight))
    if _same(other[:common], weight[:common]):
        return _Head("equal", common)
    return _Head("different", common, other if keep else None)


def _decodes(names: list[str]) -> bool:
    """Whether an encoder-decoder's layers of the decoder are there, which its encoder alone lacks."""
    return any(name.startswith(("decoder.", "model.decoder.")) for name in names)


def _sampled_head(container: Container, head: str, weight: torch.Tensor, turned: bool) -> _Head:
    """A head that is not on this machine, beside the embedding: all of it would double the traffic."""
    if turned:
        return _Head("not compared")
    index, rows = container.sample(head, len(weight))
    return _Head("equal" if _same(rows, weight[index]) else "different", len(index))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two matrices of one shape hold the same numbers, also in different types."""
    if one.dtype == other.dtype:
        return torch.equal(one, other)
    blocks = zip(one.split(_ROWS_PER_STEP), other.split(_ROWS_PER_STEP), strict=True)
    return all(torch.equal(a.double(), b.double()) for a, b in blocks)


# --- token strings ----------------------------------------------------------------------------------------------------


def _tokens(container: Container, name: str, rows: int) -> list[str] | None:
    """One string a row; None when no vocabulary is there or, for an unfamiliar tensor, when the counts differ."""
    strings = container.tokens()
    if strings is None:
        return None
    if _split(name) is None and name not in UNEMBEDDING_TENSORS and len(strings) != rows:
        return None
    owned = sum(row in strings for row in range(rows))
    if owned < _LEAST_VOCABULARY * rows:
        raise VocabularyError(
            f"{_where(container)}: the vocabulary has tokens for {owned} of {rows} rows: damaged, or of another model; "
            "fetch it again, or pass tokens=False to do without"
        )
    return [_clean(strings[row]) if row in strings else f"<row {row}>" for row in range(rows)]


def _clean(text: str) -> str:
    """The same string with lone surrogates replaced, so that it can always be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
