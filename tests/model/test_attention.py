"""Flash attention: where it is chosen, and that unpadded attention gives the states of padded attention.

`flash-attn` needs a CUDA device. Here functions of its signature, made of SDPA, stand in for it, under the calls that
transformers makes; the last test runs where device and package are.
"""

import importlib.util
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from golden import PREFIX_END, V1, V2, tiny_two_way, write_folder
from plain_replicas import write_encoder
from sentence_transformers import SentenceTransformer
from torch import Tensor

from cde_rag import CDEModel, ContextualEmbedder, EmbedderOptions, PlainEmbedder
from cde_rag.errors import ModelError
from cde_rag.models.runtimes import attention
from cde_rag.models.runtimes.attention import FLASH, SDPA, flash_missing, use_attention
from cde_rag.models.two_way.network import TwoWay

flash_utils: Any = pytest.importorskip("transformers.modeling_flash_attention_utils")
CORPUS = [f"document {number} is about a river" for number in range(9)]
TEXTS = ["river", "the bank of the river", "a loan of water and money in the delta " * 3, "fish"]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """Attention of (batch, tokens, heads, dim), by the documentation of flash-attn 2."""
    assert not causal
    assert (dropout_p, softcap, deterministic) == (0.0, 0.0, False)
    apart = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])[None]
    left, right = window_size
    seen = ((left < 0) | (apart <= left)) & ((right < 0) | (-apart <= right))
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    scaled = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=softmax_scale)
    return scaled.transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """Attention within each of several sequences that stand one after the other, (all tokens, heads, dim)."""
    ends = cu_seqlens_q.tolist()
    assert ends == cu_seqlens_k.tolist()
    assert ends[-1] == len(q)
    assert max_seqlen_q == max_seqlen_k == max(np.diff(ends))
    parts = [
        flash_attn_func(q[None, a:b], k[None, a:b], v[None, a:b], dropout_p, softmax_scale, causal, window_size)
        for a, b in itertools.pairwise(ends)
    ]
    return torch.cat([part[0] for part in parts])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put the functions in the place of flash-attn's; returns the list of calls."""
    made: list[str] = []

    def noting(function: Any) -> Any:
        def _noted(*arguments: Any, **named: Any) -> Tensor:
            made.append(function.__name__)
            return function(*arguments, **named)

        _noted.__signature__ = flash_utils.inspect.signature(function)  # type: ignore[attr-defined]
        return _noted

    whole, parts = noting(flash_attn_func), noting(flash_attn_varlen_func)
    for name, value in (
        ("_loaded_implementation", FLASH),
        ("_flash_fn", whole),
        ("_flash_varlen_fn", parts),
        ("_pad_fn", flash_utils._pad_input),
        ("_unpad_fn", flash_utils._unpad_input),
        ("_process_flash_kwargs_fn", flash_utils._lazy_define_process_function(flash_attn_varlen_func)),
    ):
        monkeypatch.setattr(flash_utils, name, value, raising=False)
    return made


def with_flash(encoder: Any) -> None:
    """Set flash attention as transformers does, without its questions about device and package."""
    encoder.config._attn_implementation_internal = FLASH


def sequence(network: TwoWay, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Given tokens, token ids of texts of some lengths, and the mask of both."""
    config, backbone = network.config, network.second_stage.backbone
    random = torch.Generator().manual_seed(0)
    given = torch.randn(len(lengths), config.context_size + 2, config.dim, generator=random)
    ids = torch.randint(PREFIX_END + 1, 40, (len(lengths), max(lengths)), generator=random)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    assert backbone.native.config._attn_implementation == SDPA
    return given, ids, torch.cat([mask.new_ones(given.shape[:2]), mask], dim=1)


@pytest.mark.parametrize("lengths", [[9], [9, 9], [3, 12, 1, 7], [30, 2]])
def test_states_of_modernbert_are_the_same_without_padding(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], lengths: list[int]
):
    network = tiny_two_way(monkeypatch, V2, "train")
    backbone = network.second_stage.backbone
    assert network.native_encoder is backbone.native
    given, ids, mask = sequence(network, lengths)
    padded = backbone.read_after(given, ids, mask)
    with_flash(backbone.native)
    unpadded = backbone.read_after(given, ids, mask)
    assert set(calls) == {"flash_attn_func" if len(set(lengths)) == 1 else "flash_attn_varlen_func"}
    assert len(calls) == network.config.layers
    torch.testing.assert_close(unpadded[mask], padded[mask], atol=1e-5, rtol=1e-4)


def test_a_row_whose_positions_begin_anew_would_be_cut(monkeypatch: pytest.MonkeyPatch, calls: list[str]):
    """So NomicBERT keeps SDPA: a single query would attend to nothing but one token at each place."""
    network = tiny_two_way(monkeypatch, V1, "train")
    backbone = network.second_stage.backbone
    given, ids, mask = sequence(network, [9])
    padded = backbone.read_after(given, ids, mask)
    with_flash(backbone.native)
    cut = backbone.read_after(given, ids, mask)
    assert "flash_attn_varlen_func" in calls
    assert (cut - padded).abs().max() > 1e-2
    assert network.native_encoder is None


@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert"])
def test_vectors_of_plain_models_are_the_same_without_padding(architecture: str, tmp_path: Any, calls: list[str]):
    model = SentenceTransformer(str(write_encoder(tmp_path / "model", architecture, "mean")), device="cpu")
    padded = model.encode(TEXTS)
    with_flash(model[0].model)
    np.testing.assert_allclose(model.encode(TEXTS), padded, atol=1e-5)
    assert set(calls) == {"flash_attn_varlen_func"}


class Encoder:
    """Notes its attention."""

    _supports_flash_attn = True

    def __init__(self) -> None:
        self.set: list[str] = []
        self.dtype, self.config = torch.float16, SimpleNamespace(dtype=None)

    def set_attn_implementation(self, name: str) -> None:
        self.set.append(name)


def test_choice(monkeypatch: pytest.MonkeyPatch):
    """Flash attention where all is there; else SDPA, or an error that says the first thing that is missing."""
    there: dict[str, object] = {"flash_attn": object()}
    monkeypatch.setattr(attention, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=there.get)))

    def chosen(asked: str, device: str = "cuda", dtype: str = "float16", encoder: Any = None) -> tuple[str, list[str]]:
        used = Encoder() if encoder is None else encoder
        return use_attention(used, asked, device=device, dtype=dtype), used.set

    assert chosen("auto") == chosen(FLASH, "cuda:1", "bfloat16") == (FLASH, [FLASH])
    assert chosen(SDPA) == (SDPA, [SDPA])
    assert chosen("auto", "cpu") == chosen("auto", dtype="float32") == (SDPA, [])  # as the model was loaded
    for missing, change in (
        ("needs a CUDA device, found cpu", {"device": "cpu"}),
        ("found float32", {"dtype": "float32"}),
    ):
        with pytest.raises(ModelError, match=missing):
            chosen(FLASH, **change)
    there.clear()
    assert chosen("auto") == (SDPA, [])
    with pytest.raises(ModelError, match="the package flash-attn, which is not installed"):
        chosen(FLASH)
    assert use_attention(None, "auto", device="cuda", dtype="float16") == SDPA
    assert "computes attention by SDPA" in (flash_missing(None, device="cuda", dtype="float16") or "")


@pytest.mark.usefixtures("tiny_backbones", "unchecked")
def test_the_option_comes_to_the_model(tmp_path: Any):
    """In every family, in Python's constructors; with another runtime, and with a loaded model."""
    plain, published = write_encoder(tmp_path / "plain", "bert", "mean"), write_folder(tmp_path / "published", V2)
    flash = EmbedderOptions(device="cpu", runtime="torch", attn_implementation=FLASH)
    with pytest.raises(ModelError, match="needs a CUDA device, found cpu"):
        PlainEmbedder(plain, options=flash)
    with pytest.raises(ModelError, match="needs a CUDA device, found cpu"):
        ContextualEmbedder.from_corpus(CORPUS, model=str(plain), options=flash)
    with pytest.raises(ModelError, match="needs a CUDA device, found cpu"):
        CDEModel.from_pretrained(published, device="cpu", runtime="torch", attn_implementation=FLASH)
    with pytest.raises(ModelError, match="computes attention by SDPA"):
        ContextualEmbedder.from_corpus(CORPUS, model="cde-mini", options=flash)
    with pytest.raises(ModelError, match="is of torch, found the runtime 'onnx'"):
        PlainEmbedder(plain, options=EmbedderOptions(runtime="onnx", attn_implementation=FLASH))
    with pytest.raises(ModelError, match="is of torch, found the runtime 'onnx'"):
        CDEModel.from_pretrained("cde-mini", runtime="onnx", attn_implementation=FLASH)
    with pytest.raises(ValueError, match="Expected attn_implementation auto, sdpa, flash_attention_2, found 'eager'"):
        EmbedderOptions(attn_implementation="eager")
    loaded = CDEModel.from_pretrained(published, device="cpu", runtime="torch", attn_implementation=SDPA)
    assert loaded.stages.attention == SDPA  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="attn_implementation are chosen where a model is loaded"):
        ContextualEmbedder.from_corpus(CORPUS, model=loaded, options=EmbedderOptions(attn_implementation=SDPA))


@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("flash_attn") is None,
    reason="needs a CUDA device and the package flash-attn",
)
@pytest.mark.usefixtures("tiny_backbones")
def test_vectors_on_a_gpu(tmp_path: Any):
    folder = write_folder(tmp_path / "published", V2)
    made = {
        name: ContextualEmbedder.from_corpus(
            CORPUS,
            model=str(folder),
            options=EmbedderOptions(device="cuda", dtype="float16", runtime="torch", attn_implementation=name),
        )
        for name in (SDPA, FLASH)
    }
    vectors = [each.embed_documents(TEXTS) for each in made.values()]
    assert made[SDPA].fingerprint == made[FLASH].fingerprint
    assert (vectors[0] * vectors[1]).sum(axis=1).min() > 0.9999
