"""Reading embedding matrices: small files of every layout are built here; damaged ones must be refused in one line."""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from repcap_utils import embeddings, hub, models
from repcap_utils.containers import Entry, VocabularyError
from repcap_utils.errors import RepcapError
from repcap_utils.similarity import cosine_moments, random_floor

ROWS, COLUMNS = 96, 32
MATRIX = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)


def refused(source: object, *, mentions: str, **options: object) -> str:
    """The message of the refusal of `source`, which must be one line that contains `mentions`."""
    with pytest.raises(RepcapError) as caught:
        embeddings.load(source, **options)
    message = str(caught.value)
    assert mentions in message
    assert "\n" not in message
    return message


def write_gguf(
    path: Path,
    tensors: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]],
    *,
    tokens: list[str] | None = None,
    architecture: str = "llama",
    alignment: int | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_context_length(8)
    writer.add_array("numbers", [1.5, 2.5, 3.5])
    if tokens is not None:
        writer.add_token_list(tokens)
        writer.add_token_merges(["a b", "c d"])
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


F32, F16, BF16, Q8_0, Q4_0 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0"))


def ctranslate2(
    variables: dict[str, np.ndarray],
    *,
    aliases: dict[str, str] | None = None,
    version: int = 6,
    kinds: dict | None = None,
) -> bytes:
    """The bytes of a CTranslate2 model.bin."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    codes = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4} | (kinds or {})
    content = struct.pack("<I", version) + text("ToySpec") + struct.pack("<II", 1, len(variables))
    for name, values in variables.items():
        content += text(name) + struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
        content += struct.pack("<BI", codes[values.dtype.name], values.nbytes) + values.tobytes()
    content += struct.pack("<I", len(aliases or {}))
    return content + b"".join(text(alias) + text(target) for alias, target in (aliases or {}).items())


def llama(folder: Path, *, tied: bool, shard: str = "50GB"):
    """A tiny LlamaForCausalLM saved by transformers, and the model itself."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


# --- safetensors ------------------------------------------------------------------------------------------------------


def test_an_untied_sharded_checkpoint_gives_both_matrices(tmp_path):
    model = llama(tmp_path / "tiny", tied=False, shard="8KB")
    assert len(list((tmp_path / "tiny").glob("*.safetensors"))) > 1
    for source in (tmp_path / "tiny", str(tmp_path / "tiny" / "model.safetensors.index.json")):
        found = embeddings.load(source)
        assert torch.equal(found.weight, model.get_input_embeddings().weight)
        assert torch.equal(found.unembedding, model.get_output_embeddings().weight)
        assert (found.tied, found.d_model, found.storage, found.tokens) == (False, 16, "float32", None)
        assert found.name == "tiny"
        assert found.provenance["tensor"] == "model.embed_tokens.weight"
        assert found.provenance["file"].endswith(".safetensors")


def test_an_untied_single_file_checkpoint_gives_both_matrices(tmp_path):
    model = llama(tmp_path / "tiny", tied=False)
    found = embeddings.load(tmp_path / "tiny" / "model.safetensors")
    assert found.tied is False
    assert torch.equal(found.unembedding, model.get_output_embeddings().weight)


def test_a_tied_checkpoint_has_no_unembedding(tmp_path):
    model = llama(tmp_path / "tiny", tied=True)
    found = embeddings.load(tmp_path / "tiny")
    assert torch.equal(found.weight, model.get_input_embeddings().weight)
    assert found.tied is True
    assert found.unembedding is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_stored_type_is_kept(tmp_path, dtype):
    weight = torch.from_numpy(MATRIX).to(dtype)
    save_file({"transformer.wte.weight": weight}, tmp_path / "m.safetensors")
    found = embeddings.load(tmp_path / "m.safetensors")
    assert found.weight.dtype == dtype
    assert torch.equal(found.weight, weight)
    assert found.storage == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("tensors", "tied", "has_unembedding"),
    [
        (("model.embed_tokens.weight",), True, False),
        (("gpt_neox.embed_in.weight", "embed_out.weight"), False, True),
        (("backbone.embeddings.weight", "=lm_head.weight"), True, False),
        (("embeddings.word_embeddings.weight",), None, False),
        (("bert.embeddings.word_embeddings.weight", "=cls.predictions.decoder.weight"), True, False),
        (("embed_tokens.weight",), None, False),
    ],
)
def test_tying_is_judged_by_the_tensors(tmp_path, tensors, tied, has_unembedding):
    """A name after `=` holds a bit-equal copy of the embedding, other heads hold something else."""
    values = {tensors[0]: torch.from_numpy(MATRIX)}
    for name in tensors[1:]:
        values[name.removeprefix("=")] = torch.from_numpy(MATRIX) + (0 if name.startswith("=") else 1)
    save_file({name: value.clone() for name, value in values.items()}, tmp_path / "m.safetensors")
    found = embeddings.load(tmp_path / "m.safetensors")
    assert (found.tied, found.unembedding is not None) == (tied, has_unembedding)
    assert found.provenance["tensor"] == tensors[0]


def test_a_head_of_another_width_is_no_unembedding_of_these_rows(tmp_path):
    save_file({"wte.weight": torch.ones(4, 3), "lm_head.weight": torch.ones(4, 5)}, tmp_path / "m.safetensors")
    found = embeddings.load(tmp_path / "m.safetensors")
    assert (found.tied, found.unembedding) == (False, None)


def test_a_chosen_tensor_is_read(tmp_path):
    tensors = {"wte.weight": torch.ones(4, 3), "lm_head.weight": torch.rand(4, 3), "extra": torch.rand(5, 3)}
    save_file(tensors, tmp_path / "m.safetensors")
    head = embeddings.load(tmp_path / "m.safetensors", tensor="lm_head.weight")
    assert torch.equal(head.weight, tensors["lm_head.weight"])
    assert (head.tied, head.unembedding) == (None, None)
    extra = embeddings.load(tmp_path / "m.safetensors", tensor="extra")
    assert torch.equal(extra.weight, tensors["extra"])
    assert (extra.tied, extra.unembedding) == (None, None)


def test_without_a_known_name_the_matrices_are_listed(tmp_path):
    tensors = {f"layer.{i}.weight": torch.ones(i + 2, 3) for i in range(10)} | {"bias": torch.ones(99)}
    save_file(tensors, tmp_path / "m.safetensors")
    message = refused(tmp_path / "m.safetensors", mentions="tensor= (--tensor)")
    assert "layer.9.weight 11 x 3" in message
    assert "and 2 more" in message
    assert "bias" not in message
    assert message.count(" x 3") == 8
    refused(tmp_path / "m.safetensors", tensor="absent", mentions="tensor 'absent': there is none")


@pytest.mark.parametrize(
    ("tensor", "mentions"),
    [
        (torch.ones(7), "shape (7,) is not a V x d matrix"),
        (torch.ones(0, 4), "shape (0, 4)"),
        (torch.ones(4, 0), "shape (4, 0)"),
        (torch.ones(1, 4), "shape (1, 4) is not a V x d matrix with V >= 2"),
        (torch.ones(2, 2, 2), "shape (2, 2, 2)"),
        (torch.ones(4, 4, dtype=torch.int64), "stored as I64"),
        (torch.tensor([[1.0, float("nan")], [0.0, 1.0]]), "NaN or infinite"),
        (torch.tensor([[1.0, float("inf")], [0.0, 1.0]]), "NaN or infinite"),
    ],
)
def test_a_tensor_that_is_no_embedding_is_refused(tmp_path, tensor, mentions):
    save_file({"wte.weight": tensor}, tmp_path / "bad.safetensors")
    message = refused(tmp_path / "bad.safetensors", mentions=mentions)
    assert "bad.safetensors" in message
    assert "wte.weight" in message


@pytest.mark.parametrize(
    "content",
    [b"", b"abc", struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", 8) + b"not json", struct.pack("<Q", 2) + b"[]"],
)
def test_a_corrupt_safetensors_header_is_refused(tmp_path, content):
    (tmp_path / "bad.safetensors").write_bytes(content)
    refused(tmp_path / "bad.safetensors", mentions="bad.safetensors: not an intact safetensors file")


def test_a_truncated_safetensors_file_is_refused(tmp_path):
    save_file({"wte.weight": torch.from_numpy(MATRIX)}, tmp_path / "bad.safetensors")
    content = (tmp_path / "bad.safetensors").read_bytes()
    (tmp_path / "bad.safetensors").write_bytes(content[:-100])
    refused(tmp_path / "bad.safetensors", mentions="not an intact safetensors file")


@pytest.mark.parametrize(
    ("index", "mentions"),
    [
        ("{", "not an index of shards"),
        ("[]", "not an index of shards"),
        ('{"weight_map": 3}', "not an index of shards"),
        (
            '{"weight_map": {"wte.weight": "gone.safetensors"}}',
            "shard 'gone.safetensors' with tensor 'wte.weight' is m",
        ),
        ('{"weight_map": {"wte.weight": "../up.safetensors"}}', "outside the folder: '../up.safetensors'"),
        ('{"weight_map": {"wte.weight": "one.safetensors"}}', "'one.safetensors' has no tensor 'wte.weight'"),
    ],
)
def test_a_bad_index_is_refused(tmp_path, index, mentions):
    save_file({"other": torch.ones(4, 4)}, tmp_path / "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    refused(tmp_path, mentions=mentions)


# --- which tensor it is -----------------------------------------------------------------------------------------------

SHAPES = {"tall": (12, 4), "small": (9, 3), "wide": (4, 12), "narrow": (12, 2), "part": (6, 4), "odd": (12, 3)}


def checkpoint(folder: Path, config: dict | None = None, **shapes: str) -> Path:
    """A folder with a random tensor of a named shape under each name (`__` stands for a dot)."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{name.replace('__', '.')}.weight": torch.randn(*SHAPES[shape], generator=generator)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("name", "head", "tied"),
    [
        ("model.embed_tokens", "lm_head", False),  # Llama, Qwen, Gemma, Mistral, Phi-3
        ("model.language_model.embed_tokens", "lm_head", False),  # Qwen-VL, Gemma 3
        ("language_model.model.embed_tokens", "language_model.lm_head", False),  # LLaVA, InternVL
        ("thinker.model.embed_tokens", "thinker.lm_head", False),  # Qwen-Omni
        ("transformer.wte", "lm_head", False),  # GPT-2, MPT, Falcon's predecessors
        ("wte", None, True),
        ("transformer.embd.wte", None, True),  # Phi-1
        ("gpt_neox.embed_in", "embed_out", False),
        ("model.decoder.embed_tokens", "lm_head", False),  # OPT
        ("decoder.embed_tokens", None, True),
        ("transformer.word_embeddings", "lm_head", False),  # Falcon, BLOOM
        ("word_embeddings", None, True),
        ("transformer.embedding.word_embeddings", "transformer.output_layer", False),  # ChatGLM
        ("backbone.embeddings", "lm_head", False),  # Mamba, Nemotron-H
        ("backbone.embedding", None, True),
        ("model.tok_embeddings", "output", False),  # InternLM2
        ("model.transformer.wte", "model.transformer.ff_out", False),  # OLMo
        ("shared", "lm_head", False),  # T5
        ("shared", None, None),
        ("bert.embeddings.word_embeddings", "cls.predictions.decoder", False),
        ("electra.embeddings.word_embeddings", None, None),
        ("text_model.embeddings.token_embedding", None, None),  # CLIP
    ],
)
def test_every_architecture_is_known_by_its_names(tmp_path, name, head, tied):
    generator = torch.Generator().manual_seed(0)
    names = [f"{part}.weight" for part in (name, head) if part]
    tensors = {part: torch.randn(12, 4, generator=generator) for part in names}
    others = {"model.layers.0.mlp.weight": torch.ones(99, 4), "encoder.attention.output.weight": torch.ones(4, 4)}
    save_file(tensors | others, tmp_path / "model.safetensors")
    found = embeddings.load(tmp_path)
    assert found.provenance["tensor"] == names[0]
    assert torch.equal(found.weight, tensors[names[0]])
    assert found.tied is tied
    if head:
        assert torch.equal(found.unembedding, tensors[names[1]])


def test_the_decoder_of_an_encoder_decoder_is_tied_without_a_head(tmp_path):
    checkpoint(tmp_path / "m", shared="tall", decoder__block__0="small")
    assert embeddings.load(tmp_path / "m").head == "absent"
    checkpoint(tmp_path / "m", shared="tall", encoder__block__0="small")
    assert embeddings.load(tmp_path / "m").head is None


@pytest.mark.parametrize(
    ("head", "state", "tied"), [(None, "absent", True), ("equal", "equal", True), ("other", "different", False)]
)
@pytest.mark.parametrize("keep", [True, False])
def test_the_states_of_the_head_come_from_the_tensors(tmp_path, head, state, tied, keep):
    weight = torch.from_numpy(MATRIX)
    tensors = {"model.embed_tokens.weight": weight}
    if head:
        tensors["lm_head.weight"] = weight.clone()
        tensors["lm_head.weight"][-1] += 1.0 if head == "other" else 0.0
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": state == "different"}))
    found = embeddings.load(tmp_path, unembedding=keep)
    assert (found.head, found.tied) == (state, tied)
    assert (found.unembedding is not None) == (keep and head == "other")


SIZES = {"vocab_size": 12, "hidden_size": 4}


@pytest.mark.parametrize(
    ("config", "shape", "expected"),
    [
        (SIZES, "tall", "upright"),
        (SIZES, "wide", "turned"),
        (SIZES, "narrow", "columns are a part of the model's 4: one of several shards by columns"),
        (SIZES, "part", "its 6 rows are fewer than the 12 tokens"),
        (SIZES, "small", "disagrees with the configuration in both sizes: 12 x 4"),
        (SIZES, "odd", "its 3 columns are a part of the model's 4"),
        (SIZES | {"emb_dim": 3}, "odd", "upright"),
        ({"vocab_size": 12, "hidden_size": 2}, "odd", "upright"),
        ({"vocab_size": 10, "n_embd": 4}, "tall", "upright"),
        ({"vocab_size": 10, "n_embd": 4}, "wide", "turned"),
        ({"hidden_size": 8, "word_embed_proj_dim": 4, "vocab_size": 12}, "tall", "upright"),
        ({"hidden_size": 8, "embedding_size": 4, "vocab_size": 12}, "tall", "upright"),
        ({"vocab_size": 7, "hidden_size": 9, "text_config": SIZES}, "wide", "turned"),
        ({"llm_config": {"hidden_size": 4}, "vocab_size": 12}, "wide", "turned"),
        ({"thinker_config": {"text_config": SIZES}}, "narrow", "shards by columns"),
        ({"d_model": 4}, "wide", "turned"),
        ({"vocab_size": 12}, "wide", "turned"),
        ({"vocab_size": 12}, "part", "fewer than the 12 tokens"),
        ({"vocab_size": True, "hidden_size": "4"}, "tall", "upright"),
        ({}, "tall", "upright"),
        ({}, "wide", "more columns than rows, and no config.json says which is which"),
        (None, "wide", "more columns than rows"),
    ],
)
def test_shapes_are_checked_against_the_configuration(tmp_path, config, shape, expected):
    folder = checkpoint(tmp_path / "m", config, model__embed_tokens=shape)
    if expected not in ("upright", "turned"):
        assert "model.embed_tokens.weight" in refused(folder, mentions=expected)
        plain = embeddings.load(folder, tensor="model.embed_tokens.weight")
        assert tuple(plain.weight.shape) == SHAPES[shape]
        assert expected in plain.notes[0] and len(plain.notes) == 1
        return
    found = embeddings.load(folder)
    rows = SHAPES[shape] if expected == "upright" else SHAPES[shape][::-1]
    assert (tuple(found.weight.shape), found.d_model) == (rows, rows[1])
    assert found.provenance["transposed"] is (expected == "turned")


def test_a_width_that_disagrees_is_noted(tmp_path):
    folder = checkpoint(tmp_path / "m", {"vocab_size": 12, "hidden_size": 2}, model__embed_tokens="odd")
    assert embeddings.load(folder).notes == (
        "tensor model.embed_tokens.weight is read as it is: its 3 columns are not 2",
    )
    assert embeddings.load(checkpoint(tmp_path / "n", SIZES, model__embed_tokens="tall")).notes == ()


@pytest.mark.parametrize(
    "names",
    [
        ("consolidated.00.pth", "consolidated.01.pth"),
        ("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"),
        ("mp_rank_00/model.pt", "mp_rank_01/model.pt"),
    ],
)
def test_parts_of_a_model_split_between_devices_are_refused(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save({"tok_embeddings.weight": torch.ones(12, 2)}, tmp_path / name)
    reason = "one of 2 parts of a model that is split by columns or rows"
    refused(tmp_path / names[1], mentions=reason)
    if "/" not in names[0]:
        refused(tmp_path, mentions=reason)


def test_the_original_layout_states_its_sizes_in_params_json(tmp_path):
    torch.save({"tok_embeddings.weight": torch.randn(12, 2)}, tmp_path / "consolidated.00.pth")
    (tmp_path / "params.json").write_text(json.dumps({"dim": 4, "vocab_size": -1}))
    refused(tmp_path, mentions="its 2 columns are a part of the model's 4")
    (tmp_path / "params.json").write_text(json.dumps({"dim": 2, "vocab_size": 12}))
    assert (embeddings.load(tmp_path).d_model, embeddings.load(tmp_path).vocab_size) == (2, 12)


def test_a_matrix_left_unused_is_named(tmp_path):
    names = ("model.embed_tokens.weight", "ema.model.embed_tokens.weight")
    weight = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    save_file({names[0]: weight, names[1]: weight.clone()}, tmp_path / "model.safetensors")
    assert embeddings.load(tmp_path).notes == ()
    save_file({names[0]: weight, names[1]: -weight}, tmp_path / "model.safetensors")
    found = embeddings.load(tmp_path)
    assert found.provenance["tensor"] == names[0]
    assert found.notes == (f"also there, of the same size, and not used: {names[1]}; --tensor reads it",)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    ("head", "rows"),
    [
        (MATRIX.T.copy(), ROWS),
        (np.concatenate([MATRIX, np.zeros((24, COLUMNS), np.float32)]), ROWS),
        (np.concatenate([MATRIX, np.zeros((24, COLUMNS), np.float32)]).T.copy(), ROWS),
        (MATRIX[:-6], ROWS - 6),
        (MATRIX.astype(np.float64), ROWS),
    ],
)
@pytest.mark.parametrize("config", [None, {"vocab_size": ROWS, "hidden_size": COLUMNS}])
def test_an_equal_head_is_equal_however_it_is_stored(tmp_path, keep, head, rows, config):
    tensors = {"model.embed_tokens.weight": torch.from_numpy(MATRIX), "lm_head.weight": torch.from_numpy(head)}
    save_file(tensors, tmp_path / "model.safetensors")
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    found = embeddings.load(tmp_path, unembedding=keep)
    assert (found.head, found.tied, found.head_rows, found.unembedding) == ("equal", True, rows, None)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].clone()
    tensors["lm_head.weight"][COLUMNS // 2, 0] += 1.0
    save_file(tensors, tmp_path / "model.safetensors")
    found = embeddings.load(tmp_path, unembedding=keep)
    assert (found.head, found.tied) == ("different", False)
    assert found.unembedding is None or found.unembedding.shape[1] == COLUMNS


def test_a_transposed_pair_is_turned_and_compared(tmp_path):
    tensors = {"wte.weight": torch.from_numpy(MATRIX.T.copy()), "lm_head.weight": torch.from_numpy(MATRIX.T.copy())}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": ROWS, "n_embd": COLUMNS}))
    for keep in (True, False):
        found = embeddings.load(tmp_path, unembedding=keep)
        assert np.array_equal(found.weight.numpy(), MATRIX)
        assert found.head == "equal"


def test_the_tokenizer_tells_rows_from_columns_where_nothing_else_does(tmp_path):
    folder = checkpoint(tmp_path / "m", wte="wide")
    (folder / "vocab.txt").write_text("".join(f"t{i}\n" for i in range(12)))
    assert embeddings.load(folder).provenance["transposed"] is True
    (folder / "vocab.txt").write_text("".join(f"t{i}\n" for i in range(4)))
    assert embeddings.load(folder).provenance["transposed"] is False


def test_padding_is_told_by_the_configuration(tmp_path):
    found = embeddings.load(checkpoint(tmp_path / "m", {"vocab_size": 10, "hidden_size": 4}, wte="tall"))
    assert (found.vocab_size, len(found.weight)) == (10, 12)


def test_two_models_in_one_checkpoint_need_a_choice(tmp_path):
    names = {"model__embed_tokens": "tall", "draft__model__embed_tokens": "small"}
    message = refused(checkpoint(tmp_path / "m", **names), mentions="several token embeddings of different sizes")
    assert "model.embed_tokens.weight 12 x 4, draft.model.embed_tokens.weight 9 x 3" in message
    assert embeddings.load(tmp_path / "m", tensor="draft.model.embed_tokens.weight").d_model == 3
    by_config = embeddings.load(checkpoint(tmp_path / "n", {"vocab_size": 9, "hidden_size": 3}, **names))
    assert by_config.provenance["tensor"] == "draft.model.embed_tokens.weight"


@pytest.mark.parametrize(
    "names",
    [
        ("actor.model.embed_tokens.weight", "critic.model.embed_tokens.weight"),
        ("ema.wte.weight", "model.transformer.wte.weight"),
        ("decoder.embed_tokens.weight", "shared.weight"),
    ],
)
def test_models_of_one_size_need_a_choice_unless_they_are_equal(tmp_path, names):
    weight = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    save_file({names[0]: weight, names[1]: weight.clone()}, tmp_path / "model.safetensors")
    assert embeddings.load(tmp_path).provenance["tensor"] in names
    save_file({names[0]: weight, names[1]: -weight}, tmp_path / "model.safetensors")
    message = refused(tmp_path, mentions="several models, whose token embeddings differ; choose one with tensor=")
    assert all(name in message for name in names)
    assert embeddings.load(tmp_path, tensor=names[1]).weight.equal(-weight)


def test_copies_of_one_size_are_no_ambiguity(tmp_path):
    names = {"model__embed_tokens": "tall", "model__layers__61__embed_tokens": "tall"}
    found = embeddings.load(checkpoint(tmp_path / "m", **names))
    assert found.provenance["tensor"] == "model.embed_tokens.weight"


# --- one matrix, many formats -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clusters() -> np.ndarray:
    """1500 rows of 64 columns around common centres, off the origin: epsilon is far above the random floor."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(30, 64)) + 0.5
    return (centres[rng.integers(30, size=1500)] + 0.7 * rng.normal(size=(1500, 64))).astype(np.float32)


@pytest.mark.parametrize("storage", ["float16", "bfloat16", "pytorch", "GGUF F16", "GGUF BF16", "GGUF Q8_0"])
def test_the_format_hardly_moves_epsilon(tmp_path, clusters, storage):
    exact = cosine_moments(torch.from_numpy(clusters)).epsilon
    assert exact > 1.5 * random_floor(64)
    path = tmp_path / "m.safetensors"
    if storage.startswith("GGUF"):
        kind = gguf.GGMLQuantizationType[storage.removeprefix("GGUF ")]
        path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": (clusters, kind)})
    elif storage == "pytorch":
        path = tmp_path / "m.pt"
        torch.save({"wte.weight": torch.from_numpy(clusters)}, path)
    else:
        save_file({"wte.weight": torch.from_numpy(clusters).to(getattr(torch, storage))}, path)
    assert cosine_moments(embeddings.load(path).weight).epsilon == pytest.approx(exact, abs=2e-4)


# --- hub ids ----------------------------------------------------------------------------------------------------------


class Remote:
    """A stand-in for a hub repository: one head, of which only a sample may be read."""

    format, is_encoder, config, repo_id, revision = "safetensors", False, {}, "owner/name", "c0ffee"
    path, traffic, total_bytes = Path("/cache/owner--name"), 12345, 10**9

    def __init__(self, equal: bool):
        weight = torch.from_numpy(MATRIX)
        self.tensors = {"model.embed_tokens.weight": weight, "lm_head.weight": weight if equal else -weight}
        self.whole = []

    def names(self):
        return list(self.tensors)

    def entry(self, name):
        return Entry(tuple(self.tensors[name].shape), "float32")

    def read(self, name):
        self.whole.append(name)
        return self.tensors[name]

    def sample(self, name, count):
        index = torch.tensor([0, 1, count - 1])
        return index, self.tensors[name][index]

    def is_costly(self, name):
        return False

    def needed_bytes(self, name):
        return 23456

    def file_of(self, name):
        return self.path / "model.safetensors"

    def tokens(self):
        return None


@pytest.mark.parametrize(
    ("equal", "keep", "head", "compared", "whole"),
    [
        (False, False, "different", 3, 1),
        (False, True, "different", len(MATRIX), 2),
        (True, False, "equal", 3, 1),
        (True, True, "equal", len(MATRIX), 2),
    ],
)
def test_a_hub_id_is_read_by_the_tensor(monkeypatch, equal, keep, head, compared, whole):
    remote, asked = Remote(equal), []
    monkeypatch.setattr(hub, "open_repo", lambda text, **options: asked.append((text, options)) or remote)
    found = embeddings.load("owner/name", revision="main", allow_download=True, unembedding=keep)
    assert asked == [("owner/name", {"revision": "main", "allow_download": True})]
    assert (found.name, found.head, found.head_rows, len(remote.whole)) == ("owner/name", head, compared, whole)
    facts = {key: found.provenance[key] for key in ("source", "revision", "traffic", "total_bytes")}
    assert facts == {"source": "hub", "revision": "c0ffee", "traffic": 12345, "total_bytes": 10**9}


def test_what_the_hub_says_is_passed_on_with_a_hint(monkeypatch):
    def absent(text, **options):
        raise hub._HubError(f"{text}: no such repository", "absent")

    monkeypatch.setattr(hub, "open_repo", absent)
    message = refused("google/gemma-3-270m", mentions="google/gemma-3-270m: no such repository; and no such path here;")
    assert message.endswith("did you mean the registered name 'gemma-3-270m'?")


def test_a_repository_that_is_there_gets_no_hint(monkeypatch):
    def gated(text, **options):
        raise hub._HubError(f"{text}: access is restricted", "gated")

    monkeypatch.setattr(hub, "open_repo", gated)
    assert refused("google/gemma-3-270m", mentions="restricted").endswith("restricted")


def test_only_a_hub_id_has_revisions(tmp_path):
    refused(checkpoint(tmp_path / "m", wte="tall"), revision="main", mentions="only a hub repository")


# --- token strings beside the weights ---------------------------------------------------------------------------------


def folder_with(path: Path, rows: int, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    save_file({"wte.weight": torch.ones(rows, 3), "position": torch.ones(2, 3)}, path / "model.safetensors")
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content.encode("utf-8"))
    return path


def tokenizer(vocabulary: object, added: list | None = None) -> str:
    return json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added or []})


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"vocab__txt": "a\nb\u2028c\nd\n"}, ["a", "b\u2028c", "d"]),
        ({"vocabulary__txt": "a\r\nb\r\nc"}, ["a", "b", "c"]),
        ({"vocabulary__json": '["a", "b", "c"]'}, ["a", "b", "c"]),
        ({"vocab__json": '{"c": 2, "a": 0, "b": 1}'}, ["a", "b", "c"]),
        ({"tokenizer__json": tokenizer({"b": 1, "a": 0}, [{"id": 2, "content": "<e>"}])}, ["a", "b", "<e>"]),
        ({"tokenizer__json": tokenizer([["a", -1.0], ["b", -2.0], ["c", -3.0]])}, ["a", "b", "c"]),
        ({"vocab__txt": "a\nb"}, ["a", "b", "<row 2>"]),
        ({"vocab__json": '{"a": 0, "b": 1}', "added_tokens__json": '{"<e>": 2}'}, ["a", "b", "<e>"]),
        ({"vocab__txt": "a\nb", "added_tokens__json": '{"<e>": 2}'}, ["a", "b", "<e>"]),
        ({"tokenizer__json": tokenizer({"a": 0, "b": 1}), "added_tokens__json": '{"x": 1}'}, ["a", "b", "<row 2>"]),
        ({"vocab__txt": "a\nb\nc\nd\ne\n"}, ["a", "b", "c"]),
        ({"vocab__json": '{"a": 0, "far": 4000000000, "c": 2}'}, ["a", "<row 1>", "c"]),
        ({"vocabulary__json": '["\\ud800", "é", "c"]'}, ["?", "é", "c"]),
        ({}, None),
    ],
)
def test_tokens_come_from_the_vocabulary_beside_the_weights(tmp_path, files, expected):
    found = embeddings.load(folder_with(tmp_path / "m", 3, **files))
    assert found.tokens == expected
    assert embeddings.load(tmp_path / "m", tokens=False).tokens is None


def test_tokens_are_not_pinned_on_an_unrelated_tensor(tmp_path):
    assert embeddings.load(folder_with(tmp_path, 3, vocab__txt="a\nb\nc"), tensor="position").tokens is None


@pytest.mark.parametrize(
    "content", ["{", "3", '{"model": {}}', '{"a": "x"}', '{"model": {"vocab": 5}}', '{"a": 1e999}']
)
def test_a_vocabulary_in_no_known_form_is_refused(tmp_path, content):
    folder_with(tmp_path, 3, tokenizer__json=content)
    refused(tmp_path, mentions="tokenizer.json: not a vocabulary in a known form")
    assert embeddings.load(tmp_path, tokens=False).weight.shape == (3, 3)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 231508\n"


@pytest.mark.parametrize(
    ("files", "mentions"),
    [
        ({"vocab__txt": POINTER}, "vocab.txt: a git-lfs pointer, not the vocabulary"),
        ({"tokenizer__json": POINTER}, "tokenizer.json: a git-lfs pointer, not the vocabulary"),
        ({"vocab__txt": "<!DOCTYPE html>\n<html>\n</html>\n"}, "vocab.txt: an HTML page, not the vocabulary"),
        ({"vocab__txt": ""}, "vocab.txt: holds no tokens"),
        ({"vocab__json": "{}"}, "vocab.json: holds no tokens"),
        ({"vocab__json": "[]"}, "vocab.json: holds no tokens"),
        ({"vocab__txt": "a"}, "the vocabulary has tokens for 1 of 3 rows"),
        ({"tokenizer__json": tokenizer(["abc", "de"])}, "tokenizer.json: not a vocabulary in a known form"),
        ({"vocab__json": '{"a": 0}', "added_tokens__json": POINTER}, "added_tokens.json: a git-lfs pointer"),
    ],
)
def test_a_damaged_vocabulary_is_no_tokenizer(tmp_path, files, mentions):
    folder = folder_with(tmp_path, 3, **files)
    with pytest.raises(VocabularyError, match=mentions.replace(".", r"\.")):
        embeddings.load(folder)
    assert embeddings.load(folder, tokens=False).weight.shape == (3, 3)


# --- GGUF -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype", "storage"),
    [
        (F32, torch.float32, "float32"),
        (F16, torch.float16, "float16"),
        (BF16, torch.bfloat16, "bfloat16"),
        (Q8_0, torch.float32, "Q8_0"),
        (Q4_0, torch.float32, "Q4_0"),
    ],
)
def test_a_gguf_matrix_is_the_one_that_gguf_decodes(tmp_path, kind, dtype, storage):
    path = write_gguf(tmp_path / "m.gguf", {"norm": (np.ones(3, np.float32), F32), "token_embd.weight": (MATRIX, kind)})
    found = embeddings.load(path)
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}["token_embd.weight"]
    expected = gguf.dequantize(reference.data, kind).reshape(ROWS, COLUMNS)
    assert np.array_equal(found.weight.float().numpy(), expected)
    assert (found.weight.dtype, found.storage, found.d_model) == (dtype, storage, COLUMNS)
    assert (found.tied, found.tokens, found.name) == (True, None, "m")


def test_gguf_rows_are_decoded_alike_across_slabs(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": (MATRIX, Q8_0)})
    whole = embeddings.load(path).weight
    monkeypatch.setattr(embeddings, "_ROWS_PER_STEP", 7)
    assert torch.equal(embeddings.load(path).weight, whole)


def test_gguf_tokens_alignment_and_untied_head(tmp_path):
    tokens = [f"<{i}>" for i in range(ROWS - 2)] + ["▁né", ""]
    tensors = {"output.weight": (-MATRIX, Q8_0), "token_embd.weight": (MATRIX, F16)}
    found = embeddings.load(write_gguf(tmp_path / "m.gguf", tensors, tokens=tokens, alignment=64))
    assert found.tokens == tokens
    assert np.array_equal(found.weight.numpy(), MATRIX.astype(np.float16))
    assert found.tied is False
    assert np.allclose(found.unembedding.numpy(), -MATRIX, atol=0.03)


def test_a_gguf_encoder_is_not_called_tied(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": (MATRIX, F32)}, architecture="nomic-bert")
    assert embeddings.load(path).tied is None


def test_gguf_token_bytes_that_are_not_utf8_become_text(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": (MATRIX[:3], F32)}, tokens=["ab", "QQ"])
    path.write_bytes(path.read_bytes().replace(b"QQ", b"\xff\xfe"))
    assert embeddings.load(path).tokens == ["ab", "\ufffd\ufffd", "<row 2>"]


def test_a_gguf_without_the_tensor_lists_what_it_has(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.weight": (MATRIX, Q8_0)})
    assert "blk.0.weight 96 x 32" in refused(path, mentions="no token embedding under a known name")


def test_a_gguf_of_integers_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(tmp_path / "m.gguf", mentions="stored as I32")


def test_a_gguf_with_infinite_scales_is_refused_without_a_warning(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": (MATRIX, Q8_0)})
    content = bytearray(path.read_bytes())
    content[-34 * ROWS : -34 * ROWS + 2] = np.float16("inf").tobytes()
    path.write_bytes(content)
    refused(path, mentions="NaN or infinite")


@pytest.fixture(scope="module")
def intact_gguf(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    return write_gguf(path, {"token_embd.weight": (MATRIX[:4], Q8_0)}, tokens=["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("change", "mentions"),
    [
        (lambda whole: b"", "the file is empty"),
        (lambda whole: b"GGML" + whole[4:], "not a GGUF file"),
        (lambda whole: b"GGUF\x00\x00\x00\x03" + whole[8:], "GGUF version 50331648"),
        (lambda whole: whole[:-25], "truncated: tensor 'token_embd.weight' ends at byte"),
        (lambda whole: whole[:200], "truncated or damaged"),
        (lambda whole: whole[:16] + struct.pack("<Q", 2**63) + whole[24:], "m.gguf"),
        (lambda whole: whole[:24] + struct.pack("<Q", 2**63) + whole[32:], "truncated or damaged"),
    ],
)
def test_a_damaged_gguf_is_refused(intact_gguf, tmp_path, change, mentions):
    (tmp_path / "m.gguf").write_bytes(change(intact_gguf.read_bytes()))
    refused(tmp_path / "m.gguf", mentions=mentions)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(data=st.data())
def test_any_damage_to_a_gguf_is_an_error_of_ours_or_harmless(intact_gguf, data):
    content = bytearray(intact_gguf.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    path = intact_gguf.parent / "m.gguf"
    path.write_bytes(content)
    try:
        found = embeddings.load(path)
    except RepcapError as error:
        assert "\n" not in str(error)
    else:
        assert bool(torch.isfinite(found.weight).all())


# --- CTranslate2 ------------------------------------------------------------------------------------------------------

CT2_NAME, CT2_HEAD = "decoder/embeddings/weight", "decoder/projection/weight"
CT2_VARIABLES = {
    "decoder/alibi": np.array(1, np.int8),
    CT2_NAME: MATRIX.astype(np.float16),
    "decoder/bias": np.zeros(5, np.float32),
}


def test_a_ctranslate2_model_is_read(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "model.bin").write_bytes(ctranslate2(CT2_VARIABLES, aliases={CT2_HEAD: CT2_NAME}))
    (folder / "vocabulary.txt").write_text("".join(f"t{i}\n" for i in range(ROWS)))
    for source in (folder, folder / "model.bin"):
        found = embeddings.load(source)
        assert np.array_equal(found.weight.numpy(), MATRIX.astype(np.float16))
        assert (found.tied, found.unembedding, found.storage, found.name) == (True, None, "float16", "toy")
        assert found.tokens == [f"t{i}" for i in range(ROWS)]
        assert found.provenance["format"] == "ctranslate2"


def test_a_ctranslate2_head_of_its_own_is_untied(tmp_path):
    (tmp_path / "model.bin").write_bytes(ctranslate2({CT2_NAME: MATRIX, CT2_HEAD: -MATRIX}))
    found = embeddings.load(tmp_path)
    assert found.tied is False
    assert np.array_equal(found.unembedding.numpy(), -MATRIX)


@pytest.mark.parametrize(
    ("content", "mentions"),
    [
        (ctranslate2(CT2_VARIABLES)[:1000], "truncated or damaged"),
        (ctranslate2(CT2_VARIABLES)[:-1], "truncated or damaged"),
        (ctranslate2(CT2_VARIABLES) + b"more", "4 bytes follow the last record"),
        (ctranslate2(CT2_VARIABLES, version=3), "binary version 4 to 6 (it says 3)"),
        (ctranslate2(CT2_VARIABLES, aliases={"x": "y"}), "'x' stands for 'y'"),
        (ctranslate2({CT2_NAME: MATRIX.astype(np.int8)}), "stored as int8"),
        (ctranslate2({CT2_NAME: MATRIX.astype(np.int8)}, kinds={"int8": 9}), "stored as type 9"),
        (ctranslate2({CT2_NAME: MATRIX}, kinds={"float32": 4}), "do not fit the shape (96, 32)"),
        (b"", "the file is empty"),
        (b"\x80\x02}q\x00.", "not an intact PyTorch checkpoint"),
        (b"PK\x03\x04 archive/data.pkl", "not an intact PyTorch checkpoint"),
    ],
)
def test_a_bad_model_bin_is_refused(tmp_path, content, mentions):
    (tmp_path / "model.bin").write_bytes(content)
    refused(tmp_path / "model.bin", mentions=mentions)


# --- sources and devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", ["gemma-3-270", "/nowhere/gemma-3-270m", "nowhere/gemma-3-270m/", "a/b/gemma-3-270m"]
)
def test_an_unknown_source_is_told_what_a_source_is(source):
    message = refused(source, mentions=f"no source '{source}': did you mean the registered name 'gemma-3-270m'?")
    assert "a .gguf or .safetensors file" in message
    assert "smollm2-135m" in message


@pytest.mark.parametrize("source", ["", " ", "~no-such-user/x.gguf", "x" * 5000, "a\0b"])
def test_a_source_that_cannot_be_a_path_is_refused(source):
    refused(source, mentions="no source '")


def test_a_folder_or_a_file_without_weights_is_refused(tmp_path):
    refused(tmp_path, mentions="holds no weights that can be read")
    (tmp_path / "x.pt").write_bytes(b"x")
    refused(tmp_path / "x.pt", mentions="neither a zip archive nor a pickle")
    (tmp_path / "x.npz").write_bytes(b"x")
    refused(tmp_path / "x.npz", mentions="unknown kind of file '.npz'")


def test_a_registered_model_that_is_absent_says_how_to_fetch_it(tmp_path, monkeypatch):
    monkeypatch.setenv("REPCAP_MODELS", str(tmp_path))
    refused("smollm2-135m", mentions="run `repcap models fetch smollm2-135m`")


def test_an_unusable_device_is_refused(tmp_path):
    save_file({"wte.weight": torch.ones(4, 3)}, tmp_path / "m.safetensors")
    refused(tmp_path / "m.safetensors", device="abacus", mentions="device 'abacus' cannot be used")
    assert embeddings.load(tmp_path / "m.safetensors", device="cpu").weight.device.type == "cpu"


# --- the default models, where they have been fetched -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "first_tokens"),
    [
        ("gemma-3-270m", torch.float32, ["<pad>", "<eos>", "<bos>"]),
        ("smollm2-135m", torch.float32, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
        ("all-minilm-l6-v2", torch.float32, ["[PAD]", "[unused0]", "[unused1]"]),
        ("whisper-tiny.en", torch.float16, ["!", '"', "#"]),
    ],
)
def test_a_default_model_agrees_with_the_registry(name, dtype, first_tokens):
    model = models.get(name)
    if not model.is_present:
        pytest.skip(f"{name} is not on this machine; run `repcap models fetch {name}`")
    found = embeddings.load(name)
    assert tuple(found.weight.shape) == (model.rows, model.d_model)
    assert (found.storage, found.tied, found.d_model, found.weight.dtype) == (
        model.storage,
        model.tied,
        model.d_model,
        dtype,
    )
    assert found.tokens[:3] == first_tokens
    assert len(found.tokens) == model.rows
    assert not found.tokens[-1].startswith("<row ")
    assert found.provenance["sha256"] == model.file_sha256
