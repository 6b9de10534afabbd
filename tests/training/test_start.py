"""Training starts exactly at all-MiniLM-L6-v2, under every context."""

import gzip
import itertools
import json

import numpy as np
import pytest

from cde_rag import Context, ContextualEmbedder
from cde_rag.embedder import fit
from cde_rag.model import CDEModel
from cde_rag.model.config import ModelConfig
from cde_rag.model.tokenizer import TextTokenizer
from cde_rag.sampling import Sample
from cde_rag_training.start import bert_tokenizer, from_bert
from cde_rag_training.surrogate import minilm_folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of sentence-transformers
def test_start_is_minilm(shared_data):
    import sentence_transformers

    with gzip.open(shared_data / "eval" / "cisi" / "corpus.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in itertools.islice(lines, 60)]
    network = from_bert(minilm_folder(), ModelConfig(name="start"), seed=0)
    model = CDEModel(network, TextTokenizer(bert_tokenizer(minilm_folder())), "0" * 64, device="cpu", dtype="float32")
    theirs = sentence_transformers.SentenceTransformer(str(minilm_folder()), device="cpu", local_files_only=True)
    theirs.max_seq_length = 256
    expected = theirs.encode(texts, normalize_embeddings=True)
    for context in (Context.null(model), fit(model, Sample(texts[:40], 40), strategy="random", seed=0)):
        vectors = ContextualEmbedder(model, context).embed_passages(texts, [[]] * len(texts)).vectors
        assert (vectors * expected).sum(axis=1).min() > 0.9999
    cosines = (model.first_stage(texts) * np.asarray(expected)).sum(axis=1)
    assert cosines.max() < 0.9  # the first stage is another, smaller network, which has to be taught
