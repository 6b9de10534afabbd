"""Models by name: bundled ones, folders and hub ids of any family, and models that an API serves."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from cde_rag._files import user_path
from cde_rag.errors import ModelError
from cde_rag.models.cde_model import CDEModel
from cde_rag.models.families import two_stage_family
from cde_rag.models.files import hub, model_files
from cde_rag.models.files.model_files import CONFIG
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import MODULES, read_json
from cde_rag.models.model import Model
from cde_rag.models.plain.api_model import api_client, api_model
from cde_rag.models.plain.checkpoint import carried
from cde_rag.models.plain.sentence_transformer_model import QUERY_MODEL, SentenceTransformerModel
from cde_rag.models.runtimes.attention import AUTO, Attention
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import Dtype

OPENAI: Final = "openai:"  # begins the names of models of OpenAI's own API
ADDRESSES: Final = ("http://", "https://")  # of other APIs of its form; the model's name follows a "#"
_LOCAL_KEY: Final = "none"  # of servers that ask for any


def named_model(
    name: str | Path,
    *,
    device: str | None = None,
    dtype: Dtype | None = None,
    runtime: Runtime | None = None,
    attn_implementation: Attention = AUTO,
    prefixes: Mapping[str, str] | None = None,
) -> Model:
    """Load a model by its name, of whatever family it is; contextual ones are shared by the embedders of the process.

    Args:
        name: A bundled name, a folder, a hub id such as "BAAI/bge-small-en-v1.5", "openai:text-embedding-3-small", or
            an address and a name such as "http://localhost:8000/v1#bge-m3". The key of an API is the environment's
            OPENAI_API_KEY; it is stored nowhere, and neither is an address.
        device: Device of the computation; by default CUDA if available, else the CPU.
        dtype: Dtype of the model's layers; by default the fastest in the same vector space.
        runtime: "torch", "openvino" or "onnx"; by default the fastest that is installed.
        attn_implementation: As in `EmbedderOptions`.
        prefixes: Prefixes of a "query" and a "document", of a model that reads no context; by default its own.

    Raises:
        MissingExtraError: The runtime, or the extra `hub` or `openai`, is not installed.
        ModelError: There is no such model, its files are damaged, or the API does not answer; or prefixes for a
            contextual model, or for other roles.
        TypeError: A device, dtype or runtime for a model that an API serves.
    """
    text = str(name)
    if is_served(text):
        if (device, dtype, runtime, attn_implementation) != (None, None, None, AUTO):
            raise TypeError(f"{text} runs elsewhere: leave device, dtype, runtime and attn_implementation out.")
        return _served(text, prefixes)
    exact, is_plain = (text, True) if QUERY_MODEL in text else _recognised(text)
    if is_plain:
        return SentenceTransformerModel(
            exact,
            prefixes=prefixes,
            device=device,
            dtype=dtype,
            runtime=runtime,
            attn_implementation=attn_implementation,
        )
    if prefixes is not None:
        raise ModelError(f"{text} is a contextual model, with prefixes of its own. Leave prefixes out.")
    return CDEModel.shared(exact, device=device, dtype=dtype, runtime=runtime, attn_implementation=attn_implementation)


def is_served(name: object) -> bool:
    """Return True for the name of a model that an API serves."""
    return isinstance(name, str) and name.startswith((OPENAI, *ADDRESSES))


def _served(name: str, prefixes: Mapping[str, str] | None) -> Model:
    if name.startswith(OPENAI):
        address, model = None, name.removeprefix(OPENAI)
    else:
        address, _, model = name.partition("#")
    if not model:
        raise ModelError(
            f"Expected a model's name, as in {OPENAI}text-embedding-3-small or http://localhost:8000/v1#bge-m3, found "
            f"{name!r}."
        )
    key = os.environ.get("OPENAI_API_KEY") or (address and _LOCAL_KEY)
    return api_model(api_client(address, key), model, prefixes=prefixes)


def _recognised(name: str) -> tuple[str, bool]:
    """Return a model's name, a hub id with the commit whose config was read, and True if it is no contextual model."""
    folder = model_files.local(name)
    if folder is None and (Path(name).expanduser() / MODULES).is_file():
        return name, True  # without a config of its own, as static tables may be
    if folder is None:
        if carried(name) is not None:
            return name, True
        parsed = ModelName.parse(name)
        if not parsed.is_hub_id or parsed.has_options or user_path(parsed.base).is_dir():
            return name, False
        folder = hub.fetch_config(parsed.base, revision=parsed.revision)
        if folder is None:
            return name, True
        name = str(replace(parsed, revision=folder.name))  # so that its other files are of the same commit
    return name, two_stage_family(read_json(folder / CONFIG)) is None
