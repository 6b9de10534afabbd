"""`python -m cde_rag_training`, for torchrun: the command `cde-rag-train`."""

from cde_rag_training.cli import app

if __name__ == "__main__":
    app(prog_name="cde-rag-train")
