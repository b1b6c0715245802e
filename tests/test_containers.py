"""Files of named tensors: PyTorch checkpoints, float8 with scales, split and sharded files, and what is no weights at all."""

import collections
import io
import json
import pickle
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from repcap_utils.containers import dequantised, open_container
from repcap_utils.errors import RepcapError

NAME = "model.embed_tokens.weight"
WEIGHT = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))


def refused(path: Path, *, mentions: str) -> str:
    with pytest.raises(RepcapError) as caught:
        open_container(path)
    message = str(caught.value)
    assert mentions in message
    assert "\n" not in message
    return message


def split_gguf(folder: Path, tensors: list[dict[str, np.ndarray]]) -> list[Path]:
    """A GGUF file in parts, with the vocabulary in the first one."""
    paths = []
    for number, part in enumerate(tensors, 1):
        writer = gguf.GGUFWriter(folder / f"m-{number:05d}-of-{len(tensors):05d}.gguf", "llama")
        writer.add_uint16("split.no", number - 1)
        if number == 1:
            writer.add_embedding_length(4)
            writer.add_vocab_size(12)
            writer.add_token_list([f"t{i}" for i in range(12)])
        for name, values in part.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(folder / f"m-{number:05d}-of-{len(tensors):05d}.gguf")
    return paths


# --- PyTorch checkpoints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.bin", "weights.pt", "weights.pth"])
@pytest.mark.parametrize("is_archive", [True, False])
def test_a_pytorch_checkpoint_is_read(tmp_path, name, is_archive):
    torch.save({NAME: WEIGHT}, tmp_path / name, _use_new_zipfile_serialization=is_archive)
    for source in (tmp_path, tmp_path / name):
        container = open_container(source)
        assert (container.format, container.names()) == ("pytorch", [NAME])
        assert container.entry(NAME) == ((12, 4), "float32")
        assert torch.equal(container.read(NAME), WEIGHT)
        assert container.file_of(NAME) == tmp_path / name


def test_nested_dictionaries_become_dotted_names(tmp_path):
    content = {"state_dict": collections.OrderedDict({NAME: torch.nn.Parameter(WEIGHT)}), "step": 7, "loss": [1.0]}
    content["itself"] = content
    torch.save(content, tmp_path / "last.pt")
    container = open_container(tmp_path / "last.pt")
    assert f"state_dict.{NAME}" in container.names()
    assert torch.equal(container.read(f"state_dict.{NAME}"), WEIGHT)
    assert not container.read(f"state_dict.{NAME}").requires_grad


def test_a_sharded_pytorch_checkpoint_opens_only_what_is_needed(tmp_path):
    torch.save({NAME: WEIGHT}, tmp_path / "pytorch_model-00001-of-00002.bin")
    shards = {NAME: "pytorch_model-00001-of-00002.bin", "lm_head.weight": "pytorch_model-00002-of-00002.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    for source in (tmp_path, tmp_path / "pytorch_model-00001-of-00002.bin"):
        container = open_container(source)
        assert container.format == "pytorch"
        assert torch.equal(container.read(NAME), WEIGHT)
        with pytest.raises(RepcapError, match=r"00002-of-00002.bin' with tensor 'lm_head.weight' is missing"):
            container.read("lm_head.weight")


class Harmful:
    def __reduce__(self):
        return eval, ("1 + 1",)


def archive_of(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3")
    return buffer.getvalue()


@pytest.mark.parametrize("wrap", [bytes, archive_of])
def test_a_pickle_that_would_run_code_is_refused(tmp_path, wrap):
    content = pickle.dumps({"wte.weight": Harmful()}, protocol=2)
    if wrap is bytes:  # torch's older layout: a magic number, a protocol, the system, then the object
        head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
        content = b"".join(pickle.dumps(part, protocol=2) for part in head) + content
    (tmp_path / "pytorch_model.bin").write_bytes(wrap(content))
    message = refused(tmp_path, mentions="holds more than tensors")
    assert "eval" in message
    assert "convert it to safetensors" in message


def test_garbage_is_told_by_the_kind_of_file_that_its_name_promises(tmp_path):
    for name, kind in (("pytorch_model.bin", "not a PyTorch checkpoint"), ("model.bin", "not a CTranslate2 model")):
        (tmp_path / name).write_bytes(b"garbage" * 9)
        refused(tmp_path / name, mentions=kind)


@pytest.mark.parametrize("size", [100, 600, 20_000])
def test_a_truncated_checkpoint_is_refused(tmp_path, size):
    torch.save({"first": torch.zeros(300, 16), NAME: torch.ones(300, 16)}, tmp_path / "m.pt")
    (tmp_path / "m.pt").write_bytes((tmp_path / "m.pt").read_bytes()[:size])
    refused(tmp_path / "m.pt", mentions="not an intact PyTorch checkpoint")


# --- float8 -----------------------------------------------------------------------------------------------------------

F8 = torch.randn(260, 150, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("scale_name", ["_scale_inv", "_scale"])
@pytest.mark.parametrize("shape", [(), (1,), (260,), (260, 1), (3, 2), (2, 3), (1, 150)])
def test_float8_is_multiplied_by_its_scale(tmp_path, scale_name, shape):
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(2)) + 0.5
    save_file({NAME: F8, NAME + scale_name: scale}, tmp_path / "m.safetensors")
    container = open_container(tmp_path / "m.safetensors")
    assert container.entry(NAME) == ((260, 150), "float8_e4m3")
    grid = scale.reshape(-1, 1) if len(shape) < 2 else scale
    sizes = [128 if -(-n // 128) == count else n // count for n, count in zip((260, 150), grid.shape, strict=True)]
    factors = grid.repeat_interleave(sizes[0], 0).repeat_interleave(sizes[1], 1)[:260, :150]
    if grid.numel() == 1:
        factors = grid
    assert torch.equal(container.read(NAME), F8.float() * factors)


def test_float8_without_a_scale_is_read_as_it_is(tmp_path):
    save_file({NAME: F8}, tmp_path / "m.safetensors")
    torch.save({NAME: F8.float().to(torch.float8_e5m2)}, tmp_path / "m.pt")
    assert torch.equal(open_container(tmp_path / "m.safetensors").read(NAME), F8.float())
    container = open_container(tmp_path / "m.pt")
    assert container.entry(NAME).storage == "float8_e5m2"
    assert container.read(NAME).dtype == torch.float32


@pytest.mark.parametrize("shape", [(7,), (4, 4), (1, 1, 2)])
def test_a_scale_that_does_not_fit_is_refused(shape):
    with pytest.raises(RepcapError, match=r"here: its scale of shape .* fits no matrix of shape \(260, 150\)"):
        dequantised(F8, torch.ones(shape), "here")


# --- split files ------------------------------------------------------------------------------------------------------


def test_all_parts_of_a_split_gguf_are_read(tmp_path):
    first, second = {"token_embd.weight": WEIGHT.numpy()}, {"output.weight": -WEIGHT.numpy()}
    parts = split_gguf(tmp_path, [first, second, {"norm": np.ones(4, np.float32)}])
    for source in (tmp_path, *parts):
        container = open_container(source)
        assert set(container.names()) == {"token_embd.weight", "output.weight", "norm"}
        assert torch.equal(container.read("output.weight"), -WEIGHT)
        assert container.file_of("output.weight") == parts[1]
        assert container.tokens()[11] == "t11"
        assert container.config == {"hidden_size": 4, "vocab_size": 12}
    parts[1].unlink()
    message = refused(parts[0], mentions="one of 3 parts, of which m-00002-of-00003.gguf is missing")
    assert "fetch" in message
    parts[2].unlink()
    refused(tmp_path, mentions="m-00002-of-00003.gguf, m-00003-of-00003.gguf are missing")


def test_shards_without_an_index_are_read_together(tmp_path):
    save_file({NAME: WEIGHT}, tmp_path / "model-00001-of-00002.safetensors")
    refused(tmp_path, mentions="model-00002-of-00002.safetensors is missing")
    save_file({"lm_head.weight": -WEIGHT}, tmp_path / "model-00002-of-00002.safetensors")
    assert torch.equal(open_container(tmp_path).read("lm_head.weight"), -WEIGHT)


# --- what a folder holds ----------------------------------------------------------------------------------------------


def test_a_folder_with_one_file_of_any_name_is_enough(tmp_path):
    save_file({NAME: WEIGHT}, tmp_path / "consolidated.safetensors")
    for name in ("training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        (tmp_path / name).write_bytes(b"x")
    assert open_container(tmp_path).names() == [NAME]
    save_file({NAME: WEIGHT}, tmp_path / "other.safetensors")
    refused(tmp_path, mentions="holds several models: consolidated.safetensors, other.safetensors; name one")


def test_an_index_of_another_name_stands_for_its_shards(tmp_path):
    save_file({NAME: WEIGHT}, tmp_path / "x-00001-of-00002.safetensors")
    index = {"weight_map": {NAME: "x-00001-of-00002.safetensors"}}
    (tmp_path / "x.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(open_container(tmp_path).read(NAME), WEIGHT)


def test_weights_in_a_subfolder_are_pointed_to(tmp_path):
    (tmp_path / "text_encoder").mkdir()
    save_file({NAME: WEIGHT}, tmp_path / "text_encoder" / "model.safetensors")
    refused(tmp_path, mentions="holds no weights that can be read: its subfolders do (text_encoder)")


@pytest.mark.parametrize(
    ("content", "mentions"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a git-lfs pointer, not the weights"),
        (b"<!DOCTYPE html>\n<html>", "an HTML page, not the weights"),
        (b"\n  <HTML><body>Sign in", "an HTML page, not the weights"),
        (b'<?xml version="1.0"?><Error>', "an XML page, not the weights"),
    ],
)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "m.gguf", "pytorch_model.bin", "m.pt", "model.safetensors.index.json"]
)
def test_pages_and_pointers_are_told_from_weights(tmp_path, name, content, mentions):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, mentions=mentions)


def test_a_pointer_in_place_of_a_shard_is_told(tmp_path):
    (tmp_path / "one.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    index = {"weight_map": {NAME: "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RepcapError, match=r"one.safetensors: a git-lfs pointer"):
        open_container(tmp_path).read(NAME)


@pytest.mark.parametrize("content", ["[]", "{", "<html>"])
def test_a_damaged_config_is_told(tmp_path, content):
    save_file({NAME: WEIGHT}, tmp_path / "model.safetensors")
    assert open_container(tmp_path).config == {}
    (tmp_path / "config.json").write_text('{"vocab_size": 12}')
    assert open_container(tmp_path).config == {"vocab_size": 12}
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RepcapError, match=r"config.json: not a JSON object"):
        open_container(tmp_path).config  # noqa: B018
