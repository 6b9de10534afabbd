"""Retrieval sets in the layout of ConTEB: chunks of longer documents, in order, and queries that name their chunks.

A set is a dataset of the Hugging Face hub, or a folder in the same layout, with two configurations: `documents`
(`chunk_id`, `chunk`) and `queries` (`query`, and `chunk_id` or `chunk_ids`: the relevant one, or a list). A chunk's id
is its document's, an underscore, and its number in the document.

Source: Conti et al. (2025), Context is Gold to find the Gold Passage.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from cde_rag._files import user_path
from cde_rag.errors import CorpusError, require
from cde_rag.evaluation.beir import Corpus, RetrievalSet

PREFIX: Final = "conteb/"  # of a set's name: conteb/covid-qa
OWNER: Final = "illuin-conteb"  # of the sets on the hub
DOCUMENTS, QUERIES = "documents", "queries"


def is_conteb(name: str | Path) -> bool:
    """Return True for the name of a set, such as "conteb/covid-qa", or a folder in ConTEB's layout."""
    path = user_path(name)
    if path.is_dir():
        return not any(path.glob("corpus.jsonl*")) and all((path / part).is_dir() for part in (DOCUMENTS, QUERIES))
    return path.as_posix().startswith(PREFIX) and len(path.parts) == 2


def read_conteb(name: str | Path, *, split: str = "test") -> RetrievalSet:
    """Read a set of ConTEB; the chunks of a document are each other's siblings.

    Args:
        name: "conteb/NAME" for the dataset `illuin-conteb/NAME` of the hub, which is downloaded once; or a folder.
        split: Split of both configurations, where a configuration has several.

    Raises:
        CorpusError: There is no such dataset, it cannot be downloaded, or it has another layout.
        MissingExtraError: The extra `evaluation` is not installed.
    """
    path = user_path(name)
    source = str(path) if path.is_dir() else f"{OWNER}/{path.name}"
    chunks = _chunks(source, _rows(source, DOCUMENTS, split))
    queries: list[str] = []
    judgments: list[Mapping[str, int]] = []
    for number, row in enumerate(_rows(source, QUERIES, split)):
        query = row.get("query")
        if not isinstance(query, str) or not query.strip():
            raise CorpusError(f"{source}: expected a query's text in 'query', found {query!r} in row {number}.")
        queries.append(query)
        judgments.append(dict.fromkeys(_relevant(source, row, number), 1))
    if not queries or not any(judged.keys() & chunks.keys() for judged in judgments):
        raise CorpusError(f"{source}: expected queries that name chunks of the documents, found none.")
    parents = {chunk: _parent(source, chunk)[0] for chunk in chunks}
    order = {parent: place for place, parent in enumerate(dict.fromkeys(parents.values()))}
    ids = sorted(chunks, key=lambda chunk: (order[parents[chunk]], _parent(source, chunk)[1]))
    corpus = Corpus(
        name=path.resolve().name if path.is_dir() else path.name,
        ids=tuple(ids),
        texts=tuple(chunks[chunk] for chunk in ids),
        parents=tuple(parents[chunk] for chunk in ids),
    )
    numbered = tuple(f"query {number}" for number in range(len(queries)))
    return RetrievalSet(corpus, numbered, tuple(queries), tuple(judgments))


def _chunks(source: str, rows: Iterator[Mapping[str, Any]]) -> dict[str, str]:
    """Return the text of each chunk that is not blank, by its id."""
    chunks: dict[str, str] = {}
    for number, row in enumerate(rows):
        chunk, text = row.get("chunk_id"), row.get("chunk")
        if not isinstance(chunk, str) or not isinstance(text, str):
            raise CorpusError(
                f"{source}: expected strings in 'chunk_id' and 'chunk', found {chunk!r} and {text!r:.40} in row "
                f"{number}."
            )
        if chunk in chunks:
            raise CorpusError(f"{source}: expected unique ids of chunks, found {chunk!r} again in row {number}.")
        if text.strip():
            chunks[chunk] = text
    if not chunks:
        raise CorpusError(f"{source}: expected chunks in 'chunk', found none.")
    return chunks


def _relevant(source: str, row: Mapping[str, Any], number: int) -> list[str]:
    """Return the ids of a query's relevant chunks."""
    named: Any = row.get("chunk_ids") if row.get("chunk_id") is None else row["chunk_id"]
    found: list[Any] = [named] if isinstance(named, str) else list(cast("Sequence[Any]", named or ()))
    if not found or not all(isinstance(chunk, str) for chunk in found):
        raise CorpusError(
            f"{source}: expected ids of chunks in 'chunk_id' or 'chunk_ids', found {named!r} in row {number}."
        )
    return found


def _parent(source: str, chunk: str) -> tuple[str, int]:
    """Return the document of a chunk, and the chunk's number in it."""
    document, _, number = chunk.rpartition("_")
    if not document or not number.isdecimal():
        raise CorpusError(f"{source}: expected ids of chunks such as 'document_3', found {chunk!r}.")
    return document, int(number)


def _rows(source: str, part: str, split: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a configuration."""
    datasets: Any = require("datasets", "evaluation")
    try:
        splits: list[str] = datasets.get_dataset_split_names(source, part)
        if split not in splits and len(splits) != 1:
            raise CorpusError(f"{source}: expected the split {split!r} of {part}, found {', '.join(splits)}. Name one.")
        loaded: Any = datasets.load_dataset(source, part, split=split if split in splits else splits[0])
    except (OSError, ValueError, LookupError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise CorpusError(
            f"{source}: expected a dataset of ConTEB with the configurations {DOCUMENTS} and {QUERIES}, found: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}. Without a network, give the folder "
            "of a download."
        ) from error
    yield from loaded
