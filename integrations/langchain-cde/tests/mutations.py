"""What each guard of langchain-cde is for: without it, its test fails.

Run with: python integrations/langchain-cde/tests/mutations.py [word of a guard]
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "langchain_cde"
ROOT = HERE.parents[2]


@dataclass(frozen=True)
class Mutation:
    """A guard taken out, and the test that misses it.

    Attributes:
        module: In langchain_cde.
        guard: Text that stands there once.
        replacement: What comes in its place.
        test: Of `tests`, as pytest names it.
    """

    module: str
    guard: str
    replacement: str
    test: str


EMBEDDINGS = "unit_tests/test_langchain_embeddings.py"
KEEPERS = "unit_tests/test_langchain_keepers.py"
STORE = "integration_tests/test_langchain_vector_store.py"
QDRANT = "integration_tests/test_langchain_qdrant.py"
STAMPS = "integration_tests/test_langchain_stamps.py"

SYNC_DOCUMENTS = """        require_named_space(self.fingerprint, "document")
        check_fits"""
SYNC_QUERY = """        require_named_space(self.fingerprint, "query")
        (vector,)"""
ASYNC_DOCUMENTS = """        require_named_space(self.fingerprint, "document")
        return await super().aembed_documents"""
ASYNC_QUERY = """        require_named_space(self.fingerprint, "query")
        return await super().aembed_query"""

MUTATIONS = (
    # No context is made by accident
    Mutation(
        "embeddings.py",
        "if self._embedder is None:",
        "if self._embedder is None and (made := CDEEmbeddings.from_texts(['dummy_text'])):\n"
        "            return made.embedder\n        if self._embedder is None:",
        f"{EMBEDDINGS}::test_without_a_context_every_call_says_how_to_get_one",
    ),
    Mutation(
        "embeddings.py",
        "self.embedder.embed_queries([text])",
        "self.embedder.embed_documents([text])",
        f"{EMBEDDINGS}::test_a_query_is_not_a_document",
    ),
    # Without one, it is that of the store
    Mutation(
        "keepers.py",
        '    "langchain_community.vectorstores.faiss": stamp_of_faiss,\n',
        "",
        f"{STAMPS}::test_without_a_context_a_store_is_searched_and_filled_in_its_own",
    ),
    Mutation(
        "embeddings.py",
        "        contexts.cache(embedder.context)\n",
        "",
        "integration_tests/test_langchain_processes.py::test_a_fresh_process_that_says_of_no_context_finds_the_same",
    ),
    # Names tell context and role
    Mutation(
        "space.py",
        'f"cde/{fingerprint}/{role}/"',
        'f"cde/{role}/"',
        f"{KEEPERS}::test_two_contexts_share_a_cache_and_keep_apart",
    ),
    Mutation(
        "space.py",
        'f"cde/{fingerprint}/{role}/"',
        'f"cde/{fingerprint}/"',
        f"{EMBEDDINGS}::test_names_tell_context_and_role",
    ),
    Mutation(
        "space.py",
        'f"cde/{fingerprint}/{record_name(name)}"',
        'f"cde/{record_name(name)}"',
        f"{KEEPERS}::test_in_a_new_context_nothing_is_skipped",
    ),
    Mutation(
        "space.py",
        "/{record_name(name)}",
        "/{name}",
        f"{EMBEDDINGS}::test_a_record_managers_namespace_moves_to_a_new_context",
    ),
    Mutation(
        "keepers.py",
        "{record_name(namespace)!r}",
        "{namespace!r:.80}",
        f"{KEEPERS}::test_the_namespace_that_the_refusal_advises_is_the_right_one",
    ),
    # Caches
    Mutation(
        "keepers.py",
        '"langchain_classic.embeddings.cache": _check_cache,',
        "",
        f"{KEEPERS}::test_a_cache_without_the_context_in_its_keys_is_refused",
    ),
    Mutation(
        "keepers.py",
        "if expected not in found:",
        "if False:",
        f"{KEEPERS}::test_texts_for_keys_are_refused",
    ),
    Mutation(
        "keepers.py",
        ', "query": cache.query_embedding_store}',
        "}",
        f"{KEEPERS}::test_a_query_does_not_come_out_as_a_document",
    ),
    Mutation(
        "embeddings.py",
        SYNC_DOCUMENTS,
        "        check_fits",
        f"{KEEPERS}::test_a_cache_without_the_context_in_its_keys_is_refused",
    ),
    Mutation(
        "embeddings.py",
        SYNC_QUERY,
        "        (vector,)",
        f"{KEEPERS}::test_vectors_of_another_context_are_refused_with_the_first_query",
    ),
    Mutation(
        "embeddings.py",
        ASYNC_DOCUMENTS,
        "        return await super().aembed_documents",
        f"{KEEPERS}::test_a_cache_without_the_context_in_its_keys_is_refused_async",
    ),
    Mutation(
        "embeddings.py",
        ASYNC_QUERY,
        "        return await super().aembed_query",
        f"{KEEPERS}::test_vectors_of_another_context_are_refused_with_the_first_query_async",
    ),
    # Record managers
    Mutation(
        "keepers.py",
        '"langchain_core.indexing.api": _check_records,',
        "",
        f"{KEEPERS}::test_a_record_manager_of_no_context_is_refused_before_anything_is_stored",
    ),
    Mutation(
        "keepers.py",
        "if expected not in namespace:",
        'if "cde" not in namespace:',
        f"{KEEPERS}::test_a_record_manager_of_no_context_is_refused_before_anything_is_stored",
    ),
    Mutation(
        "vector_store.py",
        '        require_named_space(self.collection.embedder.fingerprint, "document")\n'
        "        return super().add_documents",
        "        return super().add_documents",
        f"{STORE}::test_index_skips_nothing_for_what_another_context_has_seen",
    ),
    Mutation(
        "vector_store.py",
        '        require_named_space(self.collection.embedder.fingerprint, "document")\n'
        "        return super().aadd_documents",
        "        return super().aadd_documents",
        f"{STORE}::test_index_skips_nothing_for_what_another_context_has_seen",
    ),
    # FAISS and Chroma
    Mutation(
        "stamps.py",
        'variables["kwargs"].setdefault("docstore", InMemoryDocstore())',
        'variables["kwargs"].get("docstore", InMemoryDocstore())',
        f"{STAMPS}::test_the_same_context_finds_what_it_added[faiss]",
    ),
    Mutation(
        "stamps.py",
        '"this FAISS index", empty=not store.index.ntotal)',
        '"this FAISS index", empty=not store.index.ntotal) if False else None',
        f"{STAMPS}::test_another_context_neither_reads_nor_writes[faiss]",
    ),
    Mutation(
        "stamps.py",
        "    _check(collection.metadata, fingerprint, where, empty=not collection.count())\n",
        "",
        f"{STAMPS}::test_another_context_neither_reads_nor_writes[chroma]",
    ),
    Mutation(
        "stamps.py",
        "found == fingerprint or (found is None and empty)",
        "found == fingerprint or empty",
        f"{STAMPS}::test_two_that_fill_an_empty_store_at_once_do_not_mix",
    ),
    Mutation(
        "stamps.py",
        "if now.id != held.id:",
        "if False:",
        f"{STAMPS}::test_a_collection_that_was_renamed_is_opened_again",
    ),
    Mutation(
        "stamps.py",
        "if not replace and ",
        "if replace and ",
        f"{STAMPS}::test_what_has_no_stamp_is_refused_until_it_is_stamped",
    ),
    Mutation(
        "keepers.py",
        "    if stores and not kept:",
        "    if stores and kept:",
        f"{STAMPS}::test_a_store_that_keeps_nothing_is_told_of_once",
    ),
    # Qdrant
    Mutation(
        "keepers.py",
        '"langchain_qdrant.qdrant": _check_qdrant,',
        "",
        f"{QDRANT}::test_a_vector_without_our_name_is_refused",
    ),
    Mutation(
        "keepers.py",
        '"langchain_qdrant.vectorstores": _check_qdrant,',
        "",
        f"{QDRANT}::test_the_older_class_too",
    ),
    Mutation(
        "keepers.py",
        "if found != expected:",
        'if not found.startswith("cde_"):',
        f"{QDRANT}::test_another_context_is_refused",
    ),
    Mutation(
        "contexts.py",
        "read_context(client, collection, fingerprint)",
        "read_context(client, collection)",
        f"{QDRANT}::test_of_several_contexts_one_has_to_be_named",
    ),
    # The vector store
    Mutation(
        "vector_store.py",
        "if isinstance(collection, str | PathLike | Store | Embeddings):",
        "if False:",
        f"{STORE}::test_a_path_or_a_store_is_not_taken_for_a_collection",
    ),
    Mutation(
        "vector_store.py",
        "if not isinstance(store, Store | str | Path | None):",
        "if False:",
        f"{STORE}::test_a_path_is_a_place_for_a_store",
    ),
    Mutation(
        "vector_store.py",
        '.replace("Collection.open(…)", "CDEVectorStore(Collection.open(store))")',
        "",
        f"{STORE}::test_a_store_in_use_is_not_filled_from_another_context",
    ),
    Mutation(
        "vector_store.py",
        "if not isinstance(embedding, CDEEmbeddings):",
        "if False:",
        f"{STORE}::test_a_store_is_made_of_what_it_can_use_or_not_at_all",
    ),
    Mutation(
        "space.py",
        "vector.fingerprint != fingerprint",
        "False",
        f"{STORE}::test_a_vector_of_another_context_finds_nothing",
    ),
    Mutation(
        "vector_store.py",
        "        require_same_space(embedding, fingerprint)\n",
        "",
        f"{STORE}::test_an_open_store_follows_to_a_new_context_and_old_vectors_do_not",
    ),
    Mutation(
        "embeddings.py",
        "return SpaceVector(vector.tolist(), self.fingerprint)",
        "return vector.tolist()",
        f"{EMBEDDINGS}::test_a_vector_is_a_list_that_knows_its_space",
    ),
    Mutation(
        "space.py",
        "return SpaceVector(self, self.fingerprint)",
        "return super().copy()",
        f"{EMBEDDINGS}::test_a_vector_is_a_list_that_knows_its_space",
    ),
    Mutation(
        "vector_store.py",
        'check_positive(fetch_k, "fetch_k")',
        "pass",
        f"{STORE}::test_no_search_is_for_no_documents",
    ),
    Mutation(
        "vector_store.py",
        'parent_key: str | None = "source"',
        "parent_key: str | None = None",
        f"{STORE}::test_siblings_are_the_documents_of_the_same_source",
    ),
    Mutation(
        "vector_store.py",
        'check_narrows(filter, "To delete all documents, call delete().")',
        "pass",
        f"{STORE}::test_delete",
    ),
    Mutation(
        "vector_store.py",
        "records = restored(self.collection, list(made))",
        "records = list(made)",
        f"{STORE}::test_documents_of_records_with_titles_are_added_again",
    ),
    Mutation(
        "vector_store.py",
        'check_list(texts, call="add_texts")',
        "pass",
        f"{STORE}::test_what_cannot_be_stored_is_refused_with_its_place",
    ),
    Mutation(
        "vector_store.py",
        "min(max((1 + cosine) / 2, 0.0), 1.0)",
        "(1 + cosine) / 2",
        f"{STORE}::test_rounding_does_not_lead_out_of_the_scale",
    ),
    Mutation(
        "retriever.py",
        'ConfigDict(extra="forbid")',
        "ConfigDict()",
        f"{STORE}::test_a_retriever_refuses_settings_that_it_does_not_have",
    ),
)


def survives(mutation: Mutation) -> bool:
    """Whether the test passes without the guard; raises where the guard does not stand in its module once."""
    with tempfile.TemporaryDirectory() as folder:
        module = _copy(folder) / mutation.module
        source = module.read_text(encoding="utf-8")
        if (times := source.count(mutation.guard)) != 1:
            raise ValueError(f"{mutation.module}: expected {mutation.guard!r} once, found {times}")
        module.write_text(source.replace(mutation.guard, mutation.replacement), encoding="utf-8")
        return passes([mutation.test], folder)


def all_pass(tests: Iterable[str]) -> bool:
    """Whether the tests pass on a copy that has all its guards."""
    with tempfile.TemporaryDirectory() as folder:
        _copy(folder)
        return passes(tests, folder)


def passes(tests: Iterable[str], folder: str) -> bool:
    """Whether all tests pass on the copy in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / test) for test in tests)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):  # passed or failed, and not that nothing was run
        raise RuntimeError(f"pytest did not run {tests}\n{done.stdout}\n{done.stderr}")
    return done.returncode == 0


def _copy(folder: str) -> Path:
    return Path(shutil.copytree(PACKAGE, Path(folder) / "langchain_cde", ignore=shutil.ignore_patterns("__pycache__")))


def main() -> None:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutation for mutation in MUTATIONS if word in f"{mutation.module} {mutation.guard} {mutation.test}"]
    if not all_pass(dict.fromkeys(mutation.test for mutation in chosen)):
        sys.exit("The tests do not pass as things are; first mend that.")
    left = [mutation for mutation in chosen if survives(mutation)]
    for mutation in left:
        print(f"nobody misses {mutation.guard!r} of {mutation.module}: {mutation.test} passes", file=sys.stderr)
    print(f"{len(chosen) - len(left)} of {len(chosen)} guards are missed by their tests")
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
