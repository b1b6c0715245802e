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

from repcap_utils import embeddings, models
from repcap_utils.errors import RepcapError

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
        (torch.ones(4, 4, dtype=torch.float8_e4m3fn), "stored as F8_E4M3"),
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
        ({"vocab__txt": "a"}, ["a", "<row 1>", "<row 2>"]),
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
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": (MATRIX, F32)}, tokens=["ab", "QQ"])
    path.write_bytes(path.read_bytes().replace(b"QQ", b"\xff\xfe"))
    assert embeddings.load(path).tokens[:3] == ["ab", "\ufffd\ufffd", "<row 2>"]


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
        (b"\x80\x02}q\x00.", "a pickled checkpoint, which is never read"),
        (b"PK\x03\x04 archive/data.pkl", "a pickled checkpoint, which is never read"),
    ],
)
def test_a_bad_model_bin_is_refused(tmp_path, content, mentions):
    (tmp_path / "model.bin").write_bytes(content)
    refused(tmp_path / "model.bin", mentions=mentions)


# --- sources and devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["gemma-3-270", "google/gemma-3-270m", "/nowhere/gemma-3-270m"])
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
    refused(tmp_path / "x.pt", mentions="unknown kind of file '.pt'")


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
