"""What each guard of the two LlamaIndex packages is for: without it, its test fails.

Run with: python integrations/llama-index-embeddings-cde/tests/llama_index_mutations.py [word of a guard]
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

INTEGRATIONS = Path(__file__).resolve().parents[2]
EMBEDDING = INTEGRATIONS / "llama-index-embeddings-cde"
STORE = INTEGRATIONS / "llama-index-vector-stores-cde"


@dataclass(frozen=True)
class Mutation:
    """A guard taken out, and the test that misses it.

    Attributes:
        module: Of the package.
        guard: Text that stands there once.
        replacement: What comes in its place.
        test: As pytest names it, without "test_llama_index_".
        package: Its folder.
    """

    module: str
    guard: str
    replacement: str
    test: str
    package: Path = EMBEDDING

    @property
    def node(self) -> str:
        """The test, as pytest finds it."""
        return str(self.package / f"tests/test_llama_index_{self.test}")


MUTATIONS = (
    # Of what no context is made
    Mutation(
        "callers.py",
        "    if caller.component is not None:\n        return",
        "    if False:\n        return",
        "building.py::test_a_splitters_sentences_never_become_the_context",
    ),
    Mutation(
        "callers.py",
        "    if caller.component is not None:\n        return",
        "    if False:\n        return",
        "building.py::test_an_applications_transformation_never_makes_the_context",
    ),
    Mutation(
        "callers.py",
        "    if caller.adds:",
        "    if False:",
        "building.py::test_an_insert_through_a_transformation_never_becomes_the_context",
    ),
    Mutation(
        "callers.py",
        "if caller.index is not None and not (",
        "if False and (",
        "building.py::test_an_index_that_embeds_piece_by_piece_never_makes_the_context",
    ),
    Mutation(
        "callers.py",
        "if caller.sample or any(",
        "if caller.sample or False and any(",
        "building.py::test_a_store_with_vectors_gets_no_second_context",
    ),
    Mutation(
        "callers.py",
        "if caller.sample or any(",
        "if any(",
        "finding.py::test_a_store_of_other_vectors_is_warned_of",
    ),
    Mutation(
        "callers.py",
        "isinstance(store, SimplePropertyGraphStore) and",
        "False and",
        "building.py::test_a_property_graph_has_one_context_for_texts_and_names",
    ),
    Mutation(
        "callers.py",
        "if docstore is not None and",
        "if False and",
        "building.py::test_later_runs_of_a_pipeline_never_become_the_context",
    ),
    Mutation(
        "binding.py",
        ', "auto_fit": False}',
        "}",
        "keeping.py::test_a_pickled_copy_never_makes_a_context",
    ),
    Mutation("fitting.py", " if self.auto_fit else ", " if True else ", "building.py::test_auto_fit_can_be_off"),
    # Of users' own embeddings
    Mutation(
        "own_model.py",
        "    if own and model is None and not is_served(model_name):",
        "    if False:",
        "own.py::test_a_built_index_takes_no_other_model",
    ),
    Mutation(
        "own_model.py",
        "    if model is not None and not own:",
        "    if False:",
        "own.py::test_vectors_of_a_bundled_model_are_not_taken_over",
    ),
    Mutation(
        "own_model.py",
        "    if model.embeddings_cache is not None:",
        "    if False:",
        "own.py::test_a_cache_that_would_hide_a_changed_model_is_refused",
    ),
    Mutation(
        "binding.py",
        "        exclude=True,  # it may hold a key\n",
        "",
        "own.py::test_each_text_is_sent_once",
    ),
    Mutation(
        "binding.py",
        '{**fields, "model": self.model}',
        "fields",
        "own.py::test_a_context_goes_to_files_dictionaries_and_workers",
    ),
    Mutation(
        "fitting.py",
        " - set(PROBE_DIGESTS)",
        "",
        "own.py::test_the_same_few_documents_are_no_other_corpus",
    ),
    Mutation(
        "base.py",
        " or not embedder.max_siblings else",
        " else",
        "own.py::test_without_a_weight_a_transformation_reads_no_siblings",
    ),
    # Of what is warned
    Mutation(
        "fitting.py",
        "        if partial:\n",
        "        if False:\n",
        "building.py::test_the_first_slice_warns_of_both_remedies",
    ),
    Mutation(
        "fitting.py",
        " caller.index not in self._builds and",
        "",
        "building.py::test_the_first_slice_warns_of_both_remedies",
    ),
    Mutation(
        "fitting.py",
        "    if 2 * shared",
        "    if False and 2 * shared",
        "building.py::test_both_remedies_of_the_first_slice_see_all",
    ),
    Mutation(
        "fitting.py",
        "    if 2 * shared",
        "    if True or 2 * shared",
        "building.py::test_what_comes_after_the_context_was_made_is_compared_with_it",
    ),
    Mutation(
        "fitting.py",
        " * min(len(unique), seen):",
        " * seen:",
        "building.py::test_a_part_of_a_large_corpus_is_known",
    ),
    Mutation(
        "callers.py",
        "    if caller.pipeline is None:\n        return caller.builds",
        "    if True:\n        return caller.builds",
        "building.py::test_what_comes_after_the_context_was_made_is_compared_with_it",
    ),
    Mutation(
        "callers.py",
        "if isinstance(made, type) and issubclass(made, BaseIndex):",
        "if False:",
        "building.py::test_a_part_of_the_framework_may_build_an_index",
    ),
    Mutation(
        "fitting.py",
        "                _warn_reused(",
        "                id(self) or _warn_reused(",
        "building.py::test_a_second_build_warns_that_the_context_is_reused",
    ),
    Mutation(
        "callers.py",
        "self.traces[-1:] == (BUILD,)",
        "True",
        "keeping.py::test_a_path_is_written_in_the_first_build_and_read_after_that",
    ),
    # Spaces are kept apart
    Mutation(
        "spaces.py",
        "        for mark in marks_of(caller) - {fingerprint}:",
        "        for mark in ():",
        "mixing.py::test_a_reloaded_index_with_another_context_is_refused",
    ),
    Mutation(
        "base.py",
        "        self._check(caller)\n",
        "",
        "mixing.py::test_a_retriever_with_another_embedding_is_refused",
    ),
    Mutation(
        "fitting.py",
        "            self._check(caller)\n",
        "",
        "mixing.py::test_a_reloaded_index_with_another_context_is_refused",
    ),
    Mutation(
        "callers.py",
        "if isinstance(owner, BaseRetriever) and",
        "if False and",
        "routes.py::test_a_retriever_asks_its_index_where_the_store_tells_nothing",
    ),
    Mutation(
        "fitting.py",
        "                self._mark(caller)",
        "                pass",
        "mixing.py::test_the_mark_is_there_by_every_way_to_build",
    ),
    Mutation(
        "marks.py",
        "{named(store) for store in caller.stores}",
        "set()",
        "qdrant.py::test_the_context_is_found_by_the_name_of_the_vectors",
    ),
    Mutation(
        "marks.py",
        "{named(store) for store in caller.stores}",
        "set()",
        "qdrant.py::test_another_context_is_refused_before_qdrant_is_asked",
    ),
    Mutation(
        "callers.py",
        "        if self.queries:  # of",
        "        if False:  # of",
        "routes.py::test_a_reloaded_property_graph_with_another_context_is_refused",
    ),
    Mutation(
        "marks.py",
        "        spaces.set(store, fingerprint)",
        "        pass",
        "routes.py::test_a_graph_store_of_another_context_is_refused",
    ),
    Mutation(
        "marks.py",
        '        store.data.metadata_dict[KEY] = {**_marked(store), "fingerprint": fingerprint}',
        "        pass",
        "routes.py::test_one_store_takes_vectors_of_one_context",
    ),
    Mutation(
        "marks.py",
        "{**_marked(store), ",
        "{",
        "moved.py::test_a_moved_index_names_its_context_and_is_never_warned_of",
    ),
    Mutation(
        "marks.py",
        "if _is_moved(store)}",
        "if False}",
        "moved.py::test_a_moved_index_names_its_context_and_is_never_warned_of",
    ),
    Mutation(
        "marks.py",
        "    if any(holds_vectors(store) for store in caller.stores):",
        "    if True:",
        "routes.py::test_one_store_takes_vectors_of_one_context",
    ),
    Mutation(
        "marks.py",
        "    if _unmarked(caller):\n        warnings",
        "    if False:\n        warnings",
        "routes.py::test_vectors_without_a_mark_are_warned_of",
    ),
    Mutation(
        "marks.py",
        "    if _unmarked(caller):\n        return False\n",
        "",
        "routes.py::test_vectors_without_a_mark_are_warned_of",
    ),
    Mutation(
        "marks.py",
        "holds = bool(caller.sample) or any(",
        "holds = any(",
        "routes.py::test_vectors_without_a_mark_are_warned_of",
    ),
    Mutation(
        "marks.py",
        "holds = bool(caller.sample) or any(",
        "holds = any(",
        "finding.py::test_a_store_of_other_vectors_is_warned_of",
    ),
    Mutation(
        "marks.py",
        "    found = SUMMARY.search(",
        "    found = SUMMARY.fullmatch(",
        "routes.py::test_the_summary_of_an_index_that_an_older_version_built_names_its_context",
    ),
    Mutation(
        "samples.py",
        "        return _from_docstore(caller)\n",
        "        return caller\n",
        "routes.py::test_a_retriever_asks_its_index_where_the_store_tells_nothing",
    ),
    Mutation(
        "samples.py",
        "    if not store.stores_text:\n        return _from",
        "    if True:\n        return _from",
        "routes.py::test_nodes_beside_a_store_of_texts_tell_nothing",
    ),
    Mutation(
        "samples.py",
        "or isinstance(caller.index, PropertyGraphIndex)",
        "",
        "routes.py::test_a_property_graph_over_a_store_of_texts_is_built_and_searched_without_a_warning",
    ),
    Mutation(
        "base.py",
        "            mark_nodes((node for node, _ in full), self._bound().fingerprint)\n",
        "",
        "routes.py::test_nodes_with_vectors_of_another_context_are_refused",
    ),
    Mutation(
        "fitting.py",
        "            check_brought(caller, self.fingerprint)\n",
        "",
        "routes.py::test_nodes_with_vectors_of_another_context_are_refused",
    ),
    Mutation(
        "base.py",
        "            check_alike(",
        "            print(",
        "routes.py::test_a_build_has_one_embedding",
    ),
    Mutation(
        "base.py",
        "of_index.space()",
        "of_index.fingerprint",
        "routes.py::test_equal_embeddings_are_one",
    ),
    Mutation(
        "binding.py",
        "                self._check(caller)\n",
        "",
        "routes.py::test_what_a_pipelines_cache_gives_is_of_the_stores_context",
    ),
    Mutation(
        "binding.py",
        "                self._mark(caller)\n",
        "",
        "routes.py::test_what_a_pipelines_cache_gives_is_of_the_stores_context",
    ),
    # A context goes with its embedding
    Mutation(
        "fitting.py",
        "            write(embedder.context, self.context_path)",
        "            self._bind(embedder.context, embedder)\n            write(embedder.context, self.context_path)",
        "keeping.py::test_a_context_that_cannot_be_written_is_not_used",
    ),
    Mutation("binding.py", 'extra="forbid"', 'extra="ignore"', "keeping.py::test_an_unknown_field_is_refused"),
    Mutation(
        "binding.py",
        "if self.fingerprint not in (None, context.fingerprint):",
        "if False:",
        "keeping.py::test_a_context_is_never_replaced",
    ),
    Mutation(
        "binding.py",
        "if Path(path).exists() and",
        "if False and",
        "keeping.py::test_another_context_is_not_overwritten",
    ),
    Mutation(
        "binding.py",
        "            self._load()\n            if self._context is None:",
        "            if self._context is None:",
        "keeping.py::test_a_path_is_written_in_the_first_build_and_read_after_that",
    ),
    Mutation(
        "fitting.py",
        "if self.context_path is not None:",
        "if False:",
        "keeping.py::test_a_path_is_written_in_the_first_build_and_read_after_that",
    ),
    Mutation(
        "binding.py",
        'state["context"] is not None:',
        "False:",
        "keeping.py::test_a_pickled_copy_has_the_same_context",
    ),
    Mutation("binding.py", "def __deepcopy__(", "def __copied__(", "keeping.py::test_copies_keep_the_context"),
    Mutation(
        "binding.py",
        "if self.model_name == DEFAULT_MODEL:",
        "if False:",
        "keeping.py::test_the_alias_of_the_newest_model_becomes_its_exact_name",
    ),
    # A context is found with its vectors
    Mutation(
        "marks.py",
        '[*others, f"cde_context:{fingerprint}"]',
        "others",
        "finding.py::test_a_store_of_texts_is_opened_in_the_context_of_its_vectors",
    ),
    Mutation(
        "marks.py",
        "    mark_nodes((node for node in caller.nodes if node.embedding is None), fingerprint)\n",
        "",
        "finding.py::test_a_store_of_texts_is_opened_in_the_context_of_its_vectors",
    ),
    Mutation(
        "marks.py",
        "for node in caller.nodes if node.embedding is None",
        "for node in caller.nodes",
        "finding.py::test_nodes_without_vectors_are_embedded_and_marked_anew",
    ),
    Mutation(
        "marks.py",
        " if not ON_NODE.fullmatch(key)",
        "",
        "finding.py::test_a_mark_is_that_of_the_newest_vector",
    ),
    Mutation(
        "marks.py",
        " | marks_on(caller.sample)",
        "",
        "finding.py::test_another_context_is_refused_by_a_store_of_texts",
    ),
    Mutation(
        "spaces.py",
        " if node.embedding is not None",
        "",
        "finding.py::test_nodes_without_vectors_are_embedded_and_marked_anew",
    ),
    Mutation(
        "base.py",
        "self._query(query, self._sampled(caller_of(self)))",
        "self._query(query, caller_of(self))",
        "finding.py::test_another_context_is_refused_by_a_store_of_texts",
    ),
    Mutation(
        "base.py",
        "self._batch(texts, self._sampled(caller_of(self)), show_progress)",
        "self._batch(texts, caller_of(self), show_progress)",
        "finding.py::test_another_context_is_refused_by_a_store_of_texts",
    ),
    Mutation(
        "base.py",
        "self._transform(nodes, self._sampled(caller_of(self)), kwargs)",
        "self._transform(nodes, caller_of(self), kwargs)",
        "finding.py::test_another_context_is_refused_by_a_store_of_texts",
    ),
    Mutation(
        "binding.py",
        "                caller = self._sampled(caller)\n",
        "",
        "finding.py::test_what_a_pipelines_cache_gives_is_of_the_context_of_a_store_of_texts",
    ),
    Mutation(
        "base.py",
        "self._query, query, await self._asampled(caller_of(self)))",
        "self._query, query, caller_of(self))",
        "finding.py::test_a_store_of_texts_is_opened_in_its_context_async",
    ),
    Mutation(
        "binding.py",
        "                if others:",
        "                if False:",
        "finding.py::test_vectors_of_two_contexts_in_one_store_are_refused",
    ),
    Mutation(
        "binding.py",
        'spaces.get(store) == (self.fingerprint or "")',
        "spaces.get(store)",
        "finding.py::test_a_store_that_was_filled_anew_is_looked_at_again",
    ),
    Mutation(
        "binding.py",
        "            spaces.set(store, self.fingerprint)",
        "            pass",
        "finding.py::test_a_store_is_looked_at_before_the_first_query_only",
    ),
    Mutation(
        "binding.py",
        "        cache(context)\n",
        "",
        "finding.py::test_a_store_of_texts_is_opened_in_the_context_of_its_vectors",
    ),
    Mutation(
        "copies.py",
        " or cached_context(fingerprint)",
        "",
        "finding.py::test_a_store_of_texts_is_opened_in_the_context_of_its_vectors",
    ),
    Mutation(
        "copies.py",
        "_in_index(caller, fingerprint) or ",
        "",
        "finding.py::test_the_context_is_persisted_with_the_index",
    ),
    Mutation(
        "copies.py",
        "_in_qdrant(caller, fingerprint) or ",
        "",
        "qdrant.py::test_the_context_is_found_by_the_name_of_the_vectors",
    ),
    Mutation(
        "copies.py",
        "    if context.fingerprint != fingerprint:",
        "    if False:",
        "finding.py::test_a_damaged_copy_in_the_index_is_an_error",
    ),
    Mutation(
        "samples.py",
        "        if caller.queries:",
        "        if False:",
        "finding.py::test_a_store_that_cannot_be_searched_says_so",
    ),
    Mutation(
        "samples.py",
        "        if not caller.builds and caller.pipeline is None:",
        "        if False:",
        "finding.py::test_a_store_that_cannot_be_searched_says_so",
    ),
    # Caches and events
    Mutation(
        "binding.py",
        "data[UNFITTED] = uuid4().hex",
        "pass",
        "keeping.py::test_a_pipelines_cache_gives_no_vectors_to_an_embedding_without_context",
    ),
    Mutation(
        "base.py",
        'f"{self.fingerprint}:{role}"',
        "role",
        "keeping.py::test_cached_embeddings_are_of_one_space_and_role",
    ),
    Mutation(
        "base.py",
        'f"{self.fingerprint}:{role}"',
        "str(self.fingerprint)",
        "keeping.py::test_cached_embeddings_are_of_one_space_and_role",
    ),
    Mutation(
        "base.py",
        "        if given:\n            return embed_documents(",
        "        if given:\n            return self._cached('document', texts, lambda part: embed_documents("
        "embedder, part, None, progress=False))\n            embed_documents(",
        "keeping.py::test_what_depends_on_siblings_is_not_cached",
    ),
    Mutation(
        "binding.py",
        '{**super().to_payload(), "fingerprint": self.fingerprint}',
        "super().to_payload()",
        "keeping.py::test_events_name_the_space_and_tell_no_texts",
    ),
    # Parents
    Mutation(
        "base.py",
        "[node.ref_doc_id for node, _ in full]",
        "None",
        "parents.py::test_a_transformation_gives_each_node_its_siblings",
    ),
    # The vector store
    Mutation(
        "base.py",
        "key = SOURCE if embedder.max_siblings else None",
        "key = None",
        "vector_store.py::test_every_node_is_embedded_given_its_siblings",
        STORE,
    ),
    Mutation(
        "nodes.py",
        "**sources, ",
        "",
        "vector_store.py::test_nodes_without_a_source_are_no_siblings",
        STORE,
    ),
    Mutation(
        "base.py",
        "if embedded := sum(bool(node.embedding) for node in nodes):",
        "if embedded := 0:",
        "vector_store.py::test_foreign_vectors_are_not_taken",
        STORE,
    ),
    Mutation(
        "base.py",
        "super().__init__(stores_text=True, is_embedding_query=False)",
        "super().__init__(stores_text=True, is_embedding_query=True)",
        "vector_store.py::test_an_index_without_an_embedding_answers",
        STORE,
    ),
    Mutation(
        "base.py",
        "if not query.query_str or unknown:",
        "if unknown:",
        "vector_store.py::test_a_query_vector_is_not_taken",
        STORE,
    ),
    Mutation(
        "base.py",
        "if not isinstance(ref_doc_id, str) or not ref_doc_id:",
        "if False:",
        "vector_store.py::test_the_nodes_of_no_source_are_not_deleted",
        STORE,
    ),
    Mutation(
        "base.py",
        'check_narrows(where, "To remove all nodes, call clear().")',
        "pass",
        "vector_store.py::test_nodes_are_deleted_by_id_and_filter",
        STORE,
    ),
    Mutation(
        "base.py",
        "records = restored(self._collection, [record_of(node) for node in nodes])",
        "records = [record_of(node) for node in nodes]",
        "vector_store.py::test_records_with_titles_come_and_go_unchanged",
        STORE,
    ),
    Mutation(
        "base.py",
        "_ids(query.node_ids or None)",
        "_ids(query.node_ids)",
        "vector_store.py::test_queries_are_filtered",
        STORE,
    ),
    Mutation(
        "deferring.py",
        "if isinstance(store, EmbeddingStore):",
        "if True:",
        "vector_store.py::test_the_embedding_of_a_collection_goes_to_no_other_store",
        STORE,
    ),
    Mutation(
        "deferring.py",
        "        if _for_collection():\n            return [",
        "        if False:\n            return [",
        "vector_store.py::test_documents_are_embedded_once",
        STORE,
    ),
    Mutation(
        "deferring.py",
        'raise ContextError("The embedding of a collection stays',
        'return super().__getstate__()\n        raise ContextError("The embedding of a collection stays',
        "vector_store.py::test_the_embedding_of_a_collection_goes_to_no_other_store",
        STORE,
    ),
    Mutation(
        "deferring.py",
        '"deferred": uuid4().hex',
        '"deferred": "the same"',
        "vector_store.py::test_no_cache_keeps_what_the_embedding_of_a_collection_gives",
        STORE,
    ),
    Mutation(
        "nodes.py",
        "except (TypeError, ValueError) as error:",
        "except KeyError as error:",
        "vector_store.py::test_what_json_cannot_hold_is_refused",
        STORE,
    ),
    Mutation(
        "conditions.py",
        'return {"not": {key: {DENIED',
        'return {key: {"nin": value if isinstance(value, list) else [value]}}\n        return {"not": {key: {DENIED',
        "conditions.py::test_filters_agree_with_llama_index",
        STORE,
    ),
)


def survives(mutation: Mutation) -> bool:
    """Whether the test passes without the guard; raises where the guard does not stand in its module once."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(mutation.package / "src", folder, dirs_exist_ok=True)
        (module,) = Path(folder).glob(f"llama_index/*/cde/{mutation.module}")
        source = module.read_text(encoding="utf-8")
        if (times := source.count(mutation.guard)) != 1:
            raise ValueError(f"{mutation.module}: expected {mutation.guard!r} once, found {times}")
        module.write_text(source.replace(mutation.guard, mutation.replacement), encoding="utf-8")
        return passes([mutation.node], folder)


def passes(tests: Iterable[str], folder: str | None) -> bool:
    """Whether all tests pass, with the package that is in `folder`: in a fork, since imports take their time."""
    process = os.fork()
    if process == 0:
        if folder is not None:
            sys.path.insert(0, folder)
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        os._exit(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(INTEGRATIONS.parent), *tests]))
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code not in (0, 1):  # passed or failed, and not that nothing was run
        raise RuntimeError(f"pytest ended with {code} for {list(tests)}")
    return code == 0


def main() -> None:
    os.chdir(INTEGRATIONS.parent)
    import llama_index.core  # noqa: F401 - once, for all forks
    import qdrant_client  # noqa: F401
    import torch  # noqa: F401

    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutation for mutation in MUTATIONS if word in f"{mutation.module} {mutation.guard} {mutation.test}"]
    if not chosen:
        sys.exit(f"no guard has {word!r} in its module, text or test")
    if not passes(dict.fromkeys(mutation.node for mutation in chosen), None):
        sys.exit("The tests do not pass as things are; first mend that.")
    left = [mutation for mutation in chosen if survives(mutation)]
    for mutation in left:
        print(f"nobody misses {mutation.guard!r} of {mutation.module}: {mutation.test} passes", file=sys.stderr)
    print(f"{len(chosen) - len(left)} of {len(chosen)} guards are missed by their tests")
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
