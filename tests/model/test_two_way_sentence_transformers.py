"""A published model as a SentenceTransformer: its prefixes are its roles, and a folder keeps how it is to be read."""

import numpy as np
import pytest
from golden import V2, write_folder

from cde_rag import CDEModel, ContextualEmbedder
from cde_rag.embedders.as_sentence_transformer import load, sentence_transformer
from cde_rag.errors import ModelError

pytestmark = [pytest.mark.usefixtures("tiny_backbones"), pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")]
TEXTS = ["a river", "a bank", "money", "a flood of risk"]


def test_a_folder_keeps_options_and_prefixes(tmp_path):
    write_folder(tmp_path / "source", V2)
    model = CDEModel.from_pretrained(
        tmp_path / "source",
        device="cpu",
        dtype="float32",
        context_size=3,
        semantics="hub",
        prefixes={"query": "clustering: ", "document": "clustering: "},
    )
    embedder = ContextualEmbedder.from_corpus(TEXTS, model=model)
    made = sentence_transformer(embedder)
    np.testing.assert_allclose(made.encode_query(TEXTS), embedder.embed_queries(TEXTS), atol=1e-5)
    np.testing.assert_allclose(
        made.encode_query(TEXTS, prompt="clustering: "), embedder.embed_queries(TEXTS), atol=1e-5
    )
    with pytest.raises(ModelError, match="no prompt but 'clustering: '"):
        made.encode_document(TEXTS, prompt="search_document: ")
    made.save_pretrained(str(tmp_path / "saved"))
    again = load(tmp_path / "saved")[0].embedder
    assert again.fingerprint == embedder.fingerprint
    assert again.context.identity == embedder.context.identity
    assert (again.embed_queries(TEXTS) * embedder.embed_queries(TEXTS)).sum(axis=1).min() > 0.99
