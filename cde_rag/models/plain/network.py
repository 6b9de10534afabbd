"""Sentence-transformers models run by sentence-transformers itself, in torch."""

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open  # pyright: ignore[reportUnknownVariableType]
from tokenizers import Tokenizer
from tqdm import tqdm

from cde_rag.errors import ModelError, require
from cde_rag.models.batching import length_buckets
from cde_rag.models.plain.checkpoint import EXTRA, UNLIMITED, ModelFiles, check_shortened
from cde_rag.models.plain.modules import route
from cde_rag.models.plain.settings import OtherArchitectureError
from cde_rag.models.plain.text_model import ReadText
from cde_rag.models.runtimes.attention import AUTO, use_attention
from cde_rag.models.runtimes.threads import batch_threads, limited_threads
from cde_rag.models.tokenizer import CHARACTERS_A_TOKEN, MARGIN, beginning

POOLER: Final = "pooler."  # weights that files often lack, and that no module of sentence-transformers reads


@contextmanager
def no_bars() -> Generator[None, None, None]:
    """Load a model of transformers without its bar on stderr, "Loading weights: 100%"."""
    logging: Any = require("transformers.utils.logging", EXTRA)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def loaded_in_torch(files: ModelFiles, load: Callable[[Any], Any]) -> Any:
    """Load a model by sentence-transformers; its weights on the CPU are copies, which no writer of the files changes.

    Args:
        files: Files of the model.
        load: The package sentence_transformers in, the model out.

    Raises:
        MissingExtraError: The extra `interop` is not installed.
        ModelError: sentence-transformers cannot load it, or a file was written meanwhile.
    """
    sentence_transformers: Any = require("sentence_transformers", EXTRA)
    try:
        with no_bars():
            model = load(sentence_transformers)
    except (
        OSError,
        ValueError,
        RuntimeError,
        LookupError,
        TypeError,
        AttributeError,
        ImportError,
        SafetensorError,
        OtherArchitectureError,
    ) as error:
        raise ModelError(f"{files.folder}: sentence-transformers cannot load it: {error}") from error
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()
    files.check_unchanged()
    return model


def check_weights(network: Any, files: ModelFiles, *, unused: str) -> None:
    """Refuse a network some of whose weights its files lack, since transformers draws these anew each time.

    Args:
        network: Network of transformers; others are passed over, since torch loads them completely or not at all.
        files: Files that it was loaded from.
        unused: Beginning of the names of weights that no module reads; "" if all are read.

    Raises:
        ModelError: Its files lack weights; with their names.
    """
    if not hasattr(network, "name_or_path"):
        return
    stored = set[str]()
    for path in files.digests:
        if path.endswith(".safetensors"):
            with cast(Any, safe_open)(files.folder / path, framework="numpy") as file:
                stored.update(file.keys())

    def drawn(names: Iterable[str]) -> list[str]:
        return sorted(name for name in names if not unused or not name.startswith(unused))

    if stored.issuperset(drawn(name for name, _ in network.named_parameters())):
        return
    with no_bars():  # files may have other names, which transformers knows: it is asked, at the price of a second load
        _, report = cast(Any, type(network)).from_pretrained(
            network.name_or_path, config=network.config, local_files_only=True, output_loading_info=True
        )
    if lacking := drawn(report["missing_keys"]):
        raise ModelError(
            f"{files.name}: expected all weights in its files, found none for {', '.join(lacking):.200}, which "
            "transformers would draw at random. Download or save the model again."
        )


class TorchTextModel:
    """A SentenceTransformer of any architecture; see `TextModel`.

    Args:
        files: Files of the model.
        role: "query" or "document", the way of a router that is taken; other models have one for both.
        max_length: Maximum tokens of a text; by default the model's own.
        device: Such as "cpu"; by default CUDA if available.
        dtype: "float32", "bfloat16" or "float16"; as sentence-transformers loads it by default.
        attention: Attention of its encoder, as in `use_attention`.

    Attributes:
        model: The SentenceTransformer.
        dim: Length of a vector.
        prompts: The model's own prompts, by name.
        attention: "sdpa" or "flash_attention_2".
        max_length: Maximum tokens of a text; `UNLIMITED` if texts are never cut.

    Raises:
        MissingExtraError: The extra `interop` is not installed.
        ModelError: sentence-transformers cannot load it, its files lack weights, a file was written meanwhile, it reads
            fewer tokens, or flash attention is asked for and something is missing.
    """

    def __init__(
        self,
        files: ModelFiles,
        role: str,
        *,
        max_length: int | None,
        device: str | None,
        dtype: str | None,
        attention: str = AUTO,
    ) -> None:
        def load(package: Any) -> Any:
            model = package.SentenceTransformer(str(files.folder), device=device, local_files_only=True)
            if not files.is_routed:
                return model
            way, _ = route(files, role)
            ways, *others = model.children()
            parts = [*ways.sub_modules[way], *others]
            return package.SentenceTransformer(modules=parts, device=device, prompts=model.prompts)

        model = loaded_in_torch(files, load)
        encoder = getattr(model[0], "model", None)  # of sentence-transformers' own module Transformer
        check_weights(encoder, files, unused=POOLER)
        if max_length is not None:
            check_shortened(max_length, model.max_seq_length)
            model.max_seq_length = max_length
        self.model = model if dtype is None else model.to(getattr(require("torch", "torch"), dtype))
        self.runtime, self.device = "torch", str(model.device)
        self.dtype = str(next(iter(model.parameters())).dtype).removeprefix("torch.")
        self.attention = use_attention(encoder, attention, device=self.device, dtype=self.dtype)
        length, tokenizer = model.max_seq_length, model.tokenizer
        if length is not None and (isinstance(length, bool) or not length >= 1):
            raise ModelError(f"{files.name}: expected texts of 1 token or more, found a max_seq_length of {length}.")
        self.max_length = int(length) if length and np.isfinite(length) else UNLIMITED
        static = isinstance(tokenizer, Tokenizer)
        self.has_offsets = static or bool(tokenizer.is_fast)
        self.special_tokens = int(
            tokenizer.num_special_tokens_to_add(is_pair=False)
            if static
            else tokenizer.num_special_tokens_to_add(pair=False)
        )
        self.dim = int(model.get_embedding_dimension())
        if (cut := model.truncate_dim) is not None and (isinstance(cut, bool) or self.dim < 1):
            raise ModelError(f"{files.name}: expected vectors of 1 number or more, found a truncate_dim of {cut}.")
        self.prompts: Mapping[str, str] = model.prompts
        self._encoding = threading.Lock()  # tokenizers of transformers are changed by every call

    def lengths(self, texts: Sequence[str], prefix: str) -> list[int]:
        """Count the tokens of each text without truncation, prefix and special tokens included."""
        tokenizer, given = self.model.tokenizer, [prefix + text for text in texts]
        if not given:  # which transformers cannot tokenize
            return []
        if isinstance(tokenizer, Tokenizer):  # of static vectors
            return [len(encoding.ids) for encoding in tokenizer.encode_batch(given)]
        with self._encoding:
            return [len(ids) for ids in tokenizer(given, truncation=False, padding=False, verbose=False)["input_ids"]]

    def read(self, texts: Sequence[str], prefix: str) -> list[ReadText]:
        """Cut texts well beyond the token limit, and count their tokens."""
        limit = self.max_length
        if not limit:
            return [ReadText(text, 0, is_cut) for text, is_cut in zip(texts, self._cut(texts, prefix), strict=True)]
        shown = [beginning(text, CHARACTERS_A_TOKEN * limit) for text in texts]
        lengths = self.lengths(shown, prefix)
        for place, text in enumerate(texts):
            if len(shown[place]) < len(text) and lengths[place] <= limit + MARGIN:  # mostly of what is no token
                shown[place] = text
                (lengths[place],) = self.lengths([text], prefix)
        return [ReadText(text, length) for text, length in zip(shown, lengths, strict=True)]

    def _cut(self, texts: Sequence[str], prefix: str) -> list[bool]:
        """Return True for each text that a tokenizer of static vectors cuts by its own file."""
        tokenizer = self.model.tokenizer
        if not isinstance(tokenizer, Tokenizer) or cast(Any, tokenizer).truncation is None:
            return [False] * len(texts)
        encodings = tokenizer.encode_batch_fast([prefix + text for text in texts], add_special_tokens=False)
        return [bool(encoding.overflowing) for encoding in encodings]

    def reach(self, text: str, tokens: int) -> int:
        """Return the number of characters of a text that its first tokens take, special tokens apart."""
        with self._encoding:
            given = self.model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = given["offset_mapping"]
        return int(offsets[tokens - 1][1]) if len(offsets) > tokens else len(text)

    def embed(
        self, texts: Sequence[ReadText], *, role: str, prefix: str, batch_size: int, progress: bool
    ) -> Float32[np.ndarray, "texts dim"]:
        """Embed texts as `encode_query` or `encode_document` does."""
        encode = self.model.encode_query if role == "query" else self.model.encode_document
        threads = 1 if role == "query" and len(texts) == 1 else batch_threads()
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        with tqdm(total=len(texts), unit="text", disable=not progress) as bar:
            for bucket in length_buckets([text.tokens or len(text.content) for text in texts], batch_size):
                shown = [texts[place].content for place in bucket]
                with self._encoding, limited_threads(threads):  # one batch: others that use the model take turns
                    vectors[bucket] = encode(shown, prompt=prefix, batch_size=batch_size, show_progress_bar=False)
                bar.update(len(bucket))
        return vectors
