"""Routes of embeddings: OpenAI's `/v1/embeddings` and `/v1/models`."""

import asyncio
import base64
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, cast

import numpy as np
from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter, Request
from jaxtyping import Float32
from pydantic import Field, field_validator, model_validator

from cde_rag.context.siblings import sibling_texts
from cde_rag.embedders.contextual import contextual
from cde_rag.errors import MissingExtraError
from cde_rag.server.disconnect import while_connected
from cde_rag.server.error_responses import Json, RequestError
from cde_rag.server.json_route import JsonRoute
from cde_rag.server.registry import ServedModel, check_fingerprint
from cde_rag.server.service import RequestBody, Service, Serving
from cde_rag.server.text_limits import REQUEST_TOKENS, TEXT_CHARACTERS, check_length
from cde_rag.server.token_batcher import Role, token_counts

router = APIRouter(prefix="/v1", route_class=JsonRoute)
MAX_INPUTS: Final = 2_048  # OpenAI's bound
_ONLY_FLOAT32: Final = (
    "vectors are served as float32. Send encoding_format float (numbers) or base64 (little-endian float32), and "
    "quantise them yourself"
)


class EmbeddingsRequest(RequestBody):
    """Body of `/v1/embeddings`."""

    model: str = Field(description="MODEL@NAME from /v1/models; the suffix :query or :document sets the input type.")
    input: Annotated[str | list[str], Field(description=f"One text, or up to {MAX_INPUTS}.")]
    input_type: Role | None = Field(None, description="query for texts that search, document for texts to be found.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="First dimensions of each vector, normalised again.")
    truncation: bool = Field(default=True, description="False: refuse texts that fill the model's token limit.")
    fingerprint: str | None = Field(None, description="Expected vector space; another one is refused with 409.")
    output_dimension: int | None = Field(None, ge=1, description="Voyage's name of dimensions.")
    output_dtype: Literal["float"] | None = Field(None, description="Voyage's; float32 alone.")
    user: str | None = Field(None, description="Not used.")
    late_chunking: bool = Field(default=False, description="Jina's: the texts are chunks of one document.")

    @property
    def first(self) -> int | None:
        """First dimensions of each vector; None: all."""
        return self.dimensions or self.output_dimension

    @model_validator(mode="after")
    def _one_length(self) -> "EmbeddingsRequest":
        if self.dimensions and self.output_dimension not in (None, self.dimensions):
            raise ValueError("dimensions and output_dimension are two names of one number; leave one out")
        return self

    @field_validator("input", mode="before")
    @classmethod
    def _texts(cls, given: object) -> object:
        check_inputs(given)
        return given


class ContextualizedRequest(RequestBody):
    """Body of `/v1/contextualizedembeddings`, with Voyage's names of the fields or Perplexity's."""

    model: str = Field(description="As in /v1/embeddings.")
    inputs: list[list[str]] | None = Field(None, description="Each inner list is one document, cut into chunks.")
    input: list[list[str]] | None = Field(None, description="Perplexity's name of inputs; needs encoding_format.")
    input_type: Role | None = Field(None, description="With query, each inner list is one text.")
    encoding_format: Literal["float", "base64"] | None = None
    output_dimension: int | None = Field(None, ge=1, description="First dimensions of each vector, normalised again.")
    dimensions: int | None = Field(None, ge=1, description="Perplexity's name of output_dimension.")
    output_dtype: Literal["float"] | None = None
    truncation: bool = Field(default=True, description="False: refuse texts that fill the model's token limit.")
    fingerprint: str | None = Field(None, description="Expected vector space; another one is refused with 409.")

    @property
    def documents(self) -> list[list[str]]:
        """The documents, each a list of its chunks."""
        return self.inputs or self.input or []

    @property
    def first(self) -> int | None:
        """First dimensions of each vector; None: all."""
        return self.output_dimension or self.dimensions

    @model_validator(mode="after")
    def _one_name(self) -> "ContextualizedRequest":
        if (self.inputs is None) == (self.input is None):
            found = "none" if self.inputs is None else "both"
            raise ValueError(f"expected the documents in inputs (Voyage) or input (Perplexity), found {found}")
        if self.dimensions and self.output_dimension not in (None, self.dimensions):
            raise ValueError("dimensions and output_dimension are two names of one number; leave one out")
        if self.input is not None and self.encoding_format is None:  # Perplexity's default is base64_int8
            raise ValueError(f"input without encoding_format means Perplexity's base64_int8; {_ONLY_FLOAT32}")
        return self

    @field_validator("encoding_format", mode="before")
    @classmethod
    def _not_quantised(cls, given: object) -> object:
        if given in ("base64_int8", "base64_binary"):
            raise ValueError(f"found {given}; {_ONLY_FLOAT32}")
        return given

    @field_validator("inputs", "input", mode="before")
    @classmethod
    def _are_documents(cls, given: object) -> object:
        if given is None:
            return None
        documents = cast(Sequence[object], given) if isinstance(given, list) else ()
        lists = [cast(Sequence[object], one) for one in documents if isinstance(one, list)]
        if len(lists) < len(documents) or not all(lists):
            raise ValueError('expected a list of documents, each a list of its chunks: [["first chunk", "second"], …]')
        check_inputs([chunk for one in lists for chunk in one])
        return cast(object, given)


def check_inputs(given: object) -> None:
    """Refuse inputs that are no texts.

    Raises:
        ValueError: They are token ids, no texts, none, too many, or one is too long.
    """
    items = cast(Sequence[object], given) if isinstance(given, list) else [given]
    inner = [part for item in items[:1] for part in (cast(list[object], item) if isinstance(item, list) else [item])]
    if inner and isinstance(inner[0], int) and not isinstance(inner[0], bool):
        raise ValueError(
            "expected texts, found token ids. They are of another model's tokenizer, and would give wrong vectors. "
            "Send texts; in langchain-openai: OpenAIEmbeddings(check_embedding_ctx_length=False)"
        )
    if not items or len(items) > MAX_INPUTS:
        raise ValueError(f"expected 1 to {MAX_INPUTS} texts, found {len(items)}")
    for place, item in enumerate(items):
        if not isinstance(item, str):
            raise ValueError(f"expected texts, found {type(item).__name__} at position {place}")
        check_length(item, TEXT_CHARACTERS, where=f"text {place}")


@router.get("/models")
async def list_models(service: Serving) -> Json:
    """List the models: each context of a served collection is one."""
    models = await in_thread(service.registry.models)
    return Json({"object": "list", "data": [model.described() for model in models]})


@router.get("/models/{model:path}")
async def retrieve_model(model: str, service: Serving) -> Json:
    """Describe a model."""
    return Json((await in_thread(service.registry.model, model)).described())


@router.post("/embeddings")
async def create_embeddings(request: Request, body: EmbeddingsRequest, service: Serving) -> Json:
    """Embed texts; concurrent requests share batches."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    model, role, tokens, full = await in_thread(_prepared, body, texts, service)
    if body.late_chunking:
        with service.registry.batcher.reserved(sum(tokens)):
            late = partial(_late, texts, role, model, sum(tokens), service)
            vectors = await in_thread(late, limiter=service.one_at_a_time)
        data = _listed(first_dimensions(vectors, body.first), body.encoding_format)
        return _answer(data, model, sum(tokens), full)
    submitted = service.registry.batcher.submit(model.embedder, role, texts, tokens)
    embedded = await while_connected(request, asyncio.wrap_future(submitted))

    def answer() -> Json:
        data = _listed(first_dimensions(embedded.vectors, body.first), body.encoding_format)
        return _answer(data, model, sum(tokens), full)

    return answer() if len(texts) == 1 else await in_thread(answer)  # one vector costs less than a thread


@router.post("/contextualizedembeddings")
async def create_contextualized_embeddings(request: Request, body: ContextualizedRequest, service: Serving) -> Json:
    """Embed the chunks of documents, each with the others of its document as siblings."""
    texts = [chunk for document in body.documents for chunk in document]
    model, role, tokens, full = await in_thread(_prepared, body, texts, service)
    if role == "query" and len(texts) != len(body.documents):
        param = "inputs" if body.input is None else "input"
        message = f"{param}: a query is one text; expected inner lists of one text."
        raise RequestError(400, message, param=param, code="invalid_value")
    siblings = None if role == "query" else await in_thread(_siblings, body.documents, texts, model)
    submitted = service.registry.batcher.submit(model.embedder, role, texts, tokens, siblings)
    embedded = await while_connected(request, asyncio.wrap_future(submitted))

    def answer() -> Json:
        vectors = first_dimensions(embedded.vectors, body.first)
        return _answer(_nested(body.documents, vectors, body.encoding_format or "float"), model, sum(tokens), full)

    return await in_thread(answer)


def _late(
    texts: Sequence[str], role: Role, model: ServedModel, tokens: int, service: Service
) -> Float32[np.ndarray, "chunks dim"]:
    """Embed the chunks of one document together, and count them as a batch."""
    embedder = contextual(model.embedder)
    if role == "query" or embedder is None or embedder.context.identity.is_plain:
        found = "queries" if role == "query" else model.id
        message = f"late_chunking: expected documents and a contextual model, found {found}. Leave it out."
        raise RequestError(400, message, param="late_chunking", code="unsupported_value")
    started = time.monotonic()
    try:
        vectors = embedder.embed_chunks([texts])[0]
    except MissingExtraError as error:
        message = f"late_chunking: {error} Or send the chunks to /v1/contextualizedembeddings."
        raise RequestError(400, message, param="late_chunking", code="unsupported_value") from error
    if (on_batch := service.registry.batcher.on_batch) is not None:
        on_batch(len(texts), tokens, time.monotonic() - started)
    return vectors


def _prepared(
    body: EmbeddingsRequest | ContextualizedRequest, texts: Sequence[str], service: Service
) -> tuple[ServedModel, Role, list[int], int]:
    """Return a request's model, the role of its texts, their tokens, and how many fill the token limit."""
    model = service.registry.model(body.model)
    role = role_of(body.input_type, model, service)
    check_fingerprint(body.fingerprint, model.embedder.fingerprint)
    check_dimensions(body.first, model)
    tokens = token_counts(model.embedder, texts)
    check_total(sum(tokens))
    return model, role, tokens, check_limit(tokens, model, allowed=body.truncation)


def _siblings(documents: Sequence[Sequence[str]], texts: Sequence[str], model: ServedModel) -> list[list[str]]:
    """Return the texts of each chunk's siblings, chosen as for the passages of a collection."""
    embedder = model.embedder
    if not embedder.max_siblings:
        message = f"{model.id} reads no siblings. Send the chunks to /v1/embeddings."
        raise RequestError(400, message, param="model", code="unsupported_value")
    parents = [str(place) for place, document in enumerate(documents) for _ in document]
    return sibling_texts(parents, texts, embedder.max_siblings, rule=embedder.context.manifest.sibling_rule)


def _nested(
    documents: Sequence[Sequence[str]], vectors: Float32[np.ndarray, "chunks dim"], encoding_format: str
) -> list[dict[str, Any]]:
    ends = np.cumsum([len(document) for document in documents])[:-1]
    parts = np.split(vectors, ends)
    return [
        {"object": "list", "index": place, "data": _listed(part, encoding_format)} for place, part in enumerate(parts)
    ]


def _listed(vectors: Float32[np.ndarray, "texts dim"], encoding_format: str) -> list[dict[str, Any]]:
    return [
        {"object": "embedding", "index": place, "embedding": encoded(vector, encoding_format)}
        for place, vector in enumerate(vectors)
    ]


def _answer(data: list[dict[str, Any]], model: ServedModel, tokens: int, full: int) -> Json:
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "inputs_at_limit": full}
    fingerprint = model.embedder.fingerprint
    return Json({"object": "list", "data": data, "model": model.id, "usage": usage, "fingerprint": fingerprint})


def role_of(input_type: Role | None, model: ServedModel, service: Service) -> Role:
    """Return the role of a request's texts.

    Raises:
        RequestError: The request says none, or two different ones.
    """
    if input_type and model.role and input_type != model.role:
        message = f"input_type says {input_type}, and the model's suffix says {model.role}. Leave one out."
        raise RequestError(400, message, param="input_type", code="invalid_value")
    if role := input_type or model.role or service.options.default_role:
        return role
    message = (
        "Queries and documents are embedded differently, and the request says neither. Add input_type (query or "
        f'document), or name the model "{model.id}:query" or "{model.id}:document"; or start the server with '
        "--default-role."
    )
    raise RequestError(400, message, param="input_type", code="missing_role")


def check_dimensions(dimensions: int | None, model: ServedModel) -> None:
    """Refuse more dimensions than the model has.

    Raises:
        RequestError: 400.
    """
    if dimensions is not None and dimensions > model.embedder.dim:
        message = f"dimensions: {model.id} has {model.embedder.dim}, found {dimensions}."
        raise RequestError(400, message, param="dimensions", code="invalid_value")


def check_limit(tokens: Sequence[int], model: ServedModel, *, allowed: bool) -> int:
    """Count the texts that fill the model's token limit, after which nothing is read; none if they are read in windows.

    Raises:
        RequestError: There are some, and they are not allowed.
    """
    identity = model.embedder.context.identity
    limit = 0 if identity.windows else identity.max_length
    full = [place for place, count in enumerate(tokens) if limit and count >= limit]
    if full and not allowed:
        message = f"input: text {full[0]} fills the {limit} tokens that {model.id} reads. Split it into passages."
        raise RequestError(400, message, param="input", code="context_length_exceeded")
    return len(full)


def check_total(tokens: int) -> None:
    """Refuse more tokens than a request may have.

    Raises:
        RequestError: 400, as OpenAI answers.
    """
    if tokens > REQUEST_TOKENS:
        message = (
            f"input: expected at most {REQUEST_TOKENS:,} tokens in a request, found {tokens:,}. Send fewer texts per "
            "request."
        )
        raise RequestError(400, message, param="input", code="max_tokens_per_request")


def first_dimensions(
    vectors: Float32[np.ndarray, "texts dim"], dimensions: int | None
) -> Float32[np.ndarray, "texts first"]:
    """Return the first dimensions of vectors, of unit norm again."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    first = vectors[:, :dimensions]
    return first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), np.float32(1e-12))


def encoded(vector: Float32[np.ndarray, " dim"], encoding_format: str) -> Any:
    """Return a vector as numbers, or as base64 of little-endian float32."""
    if encoding_format == "float":
        return vector.tolist()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
