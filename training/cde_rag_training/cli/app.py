"""The commands together."""

from cde_rag.cli.commands import command_line, moved
from cde_rag_training.cli import adapt, cluster, inspect, interpolate, mine, prepare, questions, rotate, train

app = command_line()


@app.callback()
def main() -> None:
    """Train contextual embedding models, and adapt one to a corpus of your own.

    \b
    Your documents, and questions about them (or nothing else):
      cde-rag-train adapt docs/ --questions judged.zip --output my-model
      cde-rag index docs/ docs.faiss --model my-model

    \b
    Pairs of queries and documents:
      cde-rag-train mine pairs.jsonl --output mined.jsonl  # or have some
      cde-rag-train prepare mined.jsonl --output prepared  # once
      cde-rag-train inspect prepared                       # contents of a batch
      cde-rag-train train prepared --output runs/first     # again to resume
      cde-rag evaluate scifact/ --model runs/first/model

    \b
    Questions with quoted answers:
      cde-rag-train questions my-questions pairs

    Data goes to stdout (as JSON with --json), everything else to stderr. Exit codes: 0 success, 1 error, 2 wrong usage,
    3 adapted, but not better than the start model.
    """


_SHORT = {  # in the list of commands, at 80 columns
    "questions": "Build training pairs from questions with quoted answers.",
    "mine": "Add hard negatives to pairs.",
    "prepare": "Prepare pairs for training: tokens, vectors, clusters.",
    "cluster": "Show the clusters of prepared pairs, or make others.",
    "inspect": "Show one training batch.",
    "train": "Train a model from prepared pairs.",
    "presets": "List the recipes of the package, or print one.",
    "interpolate": "Interpolate between a start model and a trained one.",
    "rotate": "Rotate embeddings, so that they can be shortened.",
    "adapt": "Adapt a model to your own documents.",
}

for command in (
    questions.questions,
    mine.mine,
    prepare.prepare,
    cluster.cluster,
    inspect.inspect,
    train.train,
    train.presets,
    interpolate.interpolate,
    rotate.rotate,
    adapt.adapt,
):
    app.command(short_help=_SHORT[command.__name__])(command)
moved(app, "distil", "python -m lab.distil")
