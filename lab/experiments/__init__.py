"""Registry of experiments on prepared pairs, models, recipes and retrieval sets; each writes a CSV and an SVG."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cde_rag.evaluation.beir import RetrievalSet
from cde_rag_training.data.prepared import Prepared
from lab.experiments import (
    cells,
    context_choice,
    context_size,
    difficulty,
    heatmap,
    models,
    movement,
    output_map,
    prompt_prefixes,
    second_pass,
    sibling_count,
    small_corpora,
    training_free,
)
from lab.experiments.laboratory import Laboratory


class PairsExperiment(NamedTuple):
    """Experiment on prepared pairs.

    Attributes:
        question: In one sentence.
        source: In the paper.
        run: Given the pairs, a folder and a seed, writes into the folder and returns the files.
    """

    question: str
    source: str
    run: Callable[[Prepared, Path, int], list[Path]]


class SetsExperiment(NamedTuple):
    """Experiment on one model and some retrieval sets.

    Attributes:
        question: In one sentence.
        source: In the paper, or "ours".
        run: Given the laboratory and a folder, writes into the folder and returns the files.
    """

    question: str
    source: str
    run: Callable[[Laboratory, Path], list[Path]]


class ModelsExperiment(NamedTuple):
    """Experiment that compares several models on the same retrieval sets.

    Attributes:
        question: In one sentence.
        source: In the paper, or "ours".
        run: Given a laboratory for each model and a folder, writes into the folder and returns the files.
    """

    question: str
    source: str
    run: Callable[[Sequence[Laboratory], Path], list[Path]]


class RecipesExperiment(NamedTuple):
    """Experiment that trains one model per recipe and evaluates them on retrieval sets.

    Attributes:
        question: In one sentence.
        source: In the paper.
        run: Given cells, pairs, sets, a folder that keeps runs, the path of table and figure without their suffixes and
            a seed, writes the table and the figure and returns their paths.
    """

    question: str
    source: str
    run: "Callable[[Sequence[cells.Cell], Prepared, Sequence[RetrievalSet], Path, Path, int], list[Path]]"


ON_PAIRS = {
    "difficulty": PairsExperiment(
        "How hard do batches become as clusters shrink, for each size of batch?", "figure 6", difficulty.run
    ),
    "packing": PairsExperiment(
        "Are batches harder along the greedy tour than in random order?", "figure 14", difficulty.run_orders
    ),
}
ON_SETS = {
    "heatmap": SetsExperiment("Is each corpus's own context the best for it?", "figure 7", heatmap.run),
    "context-size": SetsExperiment(
        "How many documents does a context need, and what do they cost?", "figure 16", context_size.run_size
    ),
    "context-tokens": SetsExperiment(
        "How much of each context document has to be read?", "ours", context_size.run_tokens
    ),
    "context-choice": SetsExperiment(
        "Does it matter which documents a context is made of?", "ours", context_choice.run
    ),
    "movement": SetsExperiment("How far do vectors move from context to context?", "figure 15", movement.run),
    "siblings": SetsExperiment("How many siblings help, and what do wrong ones do?", "ours", sibling_count.run),
    "small-corpora": SetsExperiment(
        "Is a small corpus enough, with the answers kept out of its context?", "ours", small_corpora.run
    ),
    "second-pass": SetsExperiment(
        "Are the hundred best a better context for scoring themselves?", "ours", second_pass.run
    ),
    "output-map": SetsExperiment(
        "How strongly should what a corpus's documents share be shortened?", "ours", output_map.run
    ),
    "prefixes": SetsExperiment(
        "What is still found by the first dimensions of an embedding alone?", "ours", prompt_prefixes.run
    ),
    "training-free": SetsExperiment(
        "What do corpus statistics give a plain embedder without training?", "ours", training_free.run
    ),
}
ON_MODELS = {
    "models": ModelsExperiment(
        "What do models find under their corpus, their siblings and none, beside plain MiniLM and the first model?",
        "table 1",
        models.run,
    ),
}
ON_RECIPES = {
    "cells": RecipesExperiment(
        "What does each part of a recipe bring? Models that differ in it, trained with several seeds",
        "tables 1 and 2, figures 3, 4 and 17",
        cells.run,
    ),
}
