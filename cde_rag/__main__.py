"""`python -m cde_rag`: the command `cde-rag`."""

from cde_rag.cli import app

if __name__ == "__main__":
    app(prog_name="cde-rag")
