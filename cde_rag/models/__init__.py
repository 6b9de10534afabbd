"""Two-stage models: config · first_stage · context_path · second_stage · checkpoints · runtimes."""

from cde_rag.models.cde_model import CDEModel

__all__ = ["CDEModel"]
