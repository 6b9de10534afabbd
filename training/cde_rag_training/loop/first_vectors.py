"""First-stage vectors of documents and passages, for a finished first stage: computed once, kept on disk, looked up."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor

from cde_rag_training.data.array_folder import open_array, write_array
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.transformations import PLAIN, DocumentTokens
from cde_rag_training.loop.prefixes import Prefix, Prefixes
from cde_rag_training.networks.stages import Stages
from cde_rag_training.processes import first_one_first


class FirstStageVectors:
    """Looks a document's vector up by its text row. Only plain documents are kept, no transformed ones.

    Args:
        stages: Whose first stage made, or makes, the vectors: float32.
        prepared: The data.
        prefixes: Task prefixes of the documents; None: the model's own for all.
        folder: The vectors lie in it, in a file that is named for weights and texts; made where it is missing.
        mini_batch_size: Texts per forward pass.
    """

    def __init__(
        self,
        stages: Stages,
        prepared: Prepared,
        folder: Path,
        *,
        prefixes: Prefixes | None = None,
        mini_batch_size: int,
    ) -> None:
        self._device = stages.device
        passages = [] if prepared.passages is None else prepared.passages[:, 0]
        self._rows = np.union1d(prepared.documents, passages).astype(np.int64)
        with first_one_first():
            before = [None] * len(self._rows) if prefixes is None else prefixes.of_rows(self._rows)
            path = folder / f"first-stage-{_digest(stages, prepared, self._rows, before)}.npy"
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                documents = DocumentTokens(prepared)(self._rows, PLAIN)
                ids = [stages.first_ids(*each) for each in zip(documents, before, strict=True)]
                write_array(path, stages.read(ids, mini_batch_size=mini_batch_size).cpu().numpy())
            self._vectors = open_array(path)

    def __call__(self, rows: Sequence[int]) -> Float[Tensor, "rows dim"]:
        """Look up the vectors of some documents.

        Raises:
            KeyError: A text row that is neither a pair's document nor a passage.
        """
        places = np.searchsorted(self._rows, rows)
        if len(rows) and not np.array_equal(self._rows[np.minimum(places, len(self._rows) - 1)], rows):
            raise KeyError("Expected text rows of pairs' documents or of passages, found others.")
        return torch.from_numpy(self._vectors[places]).to(self._device)


def _digest(stages: Stages, prepared: Prepared, rows: np.ndarray, before: Sequence[Prefix]) -> str:
    """Hash all that determines the vectors: the weights used by the first stage, and token ids with their prefixes."""
    network = stages.network
    read = {
        name: value for name, value in network.state_dict().items() if name.startswith(("first_stage.", "embeddings."))
    }
    found = hashlib.sha256(save({name: value.contiguous() for name, value in read.items()}))
    found.update(repr(network.config).encode())
    found.update(rows.tobytes())
    found.update(np.ascontiguousarray(prepared.texts.starts).tobytes())
    found.update(np.ascontiguousarray(prepared.texts.ids).tobytes())
    if any(prefix is not None for prefix in before):
        found.update(repr(before).encode())
    return found.hexdigest()[:16]
