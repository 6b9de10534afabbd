"""The commands together."""

from cde_rag.cli.commands import command_line
from cde_rag_training.cli import adapt, cluster, distil, inspect, interpolate, prepare, rotate, train

app = command_line()


@app.callback()
def main() -> None:
    """Train contextual embedding models, and adapt one to a corpus of your own.

    \b
    Your documents, and nothing else:
      cde-rag-train adapt docs/ --output my-model          # ten minutes; reports if it is better
      cde-rag index docs/ docs.faiss --model my-model

    \b
    Pairs of queries and documents:
      cde-rag-train prepare pairs.jsonl --output prepared  # once: tokens, vectors, clusters
      cde-rag-train inspect prepared                       # contents of a batch
      cde-rag-train train prepared --output runs/first     # run again to resume after a stop
      cde-rag evaluate scifact/ --model runs/first/model

    \b
    The embeddings of a larger model:
      cde-rag-train distil prepare pairs.jsonl --output texts
      cde-rag-train distil run texts --output runs/small   # run again to resume after a stop

    Data goes to stdout (as JSON with --json), everything else to stderr. Exit codes: 0 success, 1 error, 2 wrong usage,
    3 adapted, but not better than the start model.
    """


for command in (
    prepare.prepare,
    cluster.cluster,
    inspect.inspect,
    train.train,
    train.presets,
    interpolate.interpolate,
    rotate.rotate,
    adapt.adapt,
):
    app.command()(command)
app.add_typer(distil.app, name="distil")
