"""A model adapted to one corpus by questions about it, and compared to doing nothing on pages kept apart."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cde_rag._files import write_durably
from cde_rag._validation import digest
from cde_rag.context.file_format import canonical_json
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import CorpusError, ModelError, counted
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.models import CDEModel
from cde_rag_training.adapt.adaptation import Adaptation, install, silent, updates_of
from cde_rag_training.adapt.before_after import SearchScores, bm25_scores, compared, search_scores
from cde_rag_training.adapt.output_folder import REPORT, claimed
from cde_rag_training.adapt.own_recipe import of_network, own_recipe, settings_of
from cde_rag_training.adapt.question_material import FEWEST, QuestionMaterial, apart
from cde_rag_training.clustering.surrogate import Surrogate, cached, minilm
from cde_rag_training.config import (
    EvaluationConfig,
    GuardConfig,
    LossConfig,
    MachineConfig,
    PhaseConfig,
    RatesConfig,
    ScheduleConfig,
    StartConfig,
    TrainingConfig,
)
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import CorporaConfig
from cde_rag_training.corpora.filtering import FilterConfig
from cde_rag_training.corpora.granularity import GranularityConfig
from cde_rag_training.corpora.parent_batches import ParentConfig
from cde_rag_training.data.array_folder import MANIFEST
from cde_rag_training.data.pairs import CorpusPassage, Pair
from cde_rag_training.data.preparation import PrepareConfig, prepare
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.views import ViewConfig
from cde_rag_training.loop.training import train
from cde_rag_training.networks.interpolation import merge_models
from cde_rag_training.networks.start import MINILM, Start, load_start
from cde_rag_training.questions.hard_negatives import HardNegativesConfig, hard_negatives

QUESTIONS: Final = "questions"  # source of the pairs of questions; the rehearsed ones' is the corpus
TITLED: Final = "questions, titled"  # the same, with titles in front of passages
SURROGATE_TOKENS: Final = 96


@dataclass(frozen=True, kw_only=True)
class QuestionAdaptationConfig:
    """Configuration of an adaptation by questions. Shares and rates of lab/plans/user-questions.toml; epochs ours."""

    model: str = "cde-mini"  # a bundled model, or a model's folder
    epochs: float = 8.0  # over the questions for training
    minutes: float = 0.0  # of training at most; 0: as many as the epochs take
    batch_size: int = 32  # pairs; half of a source where it has few
    max_length: int = 256  # tokens of a text in training, if the model reads as many
    largest_context: int = 256  # passages
    passages: int = 1_000  # of the corpus that are trained on, and that are searched for held-out questions, about
    rehearsal: float = 0.5  # pairs by title, heading, sentence and keywords for each question; the start teaches them
    negatives: HardNegativesConfig = field(default_factory=lambda: HardNegativesConfig(margin=2.0))
    encoder_rate: float = 2e-5
    context_rate: float = 4e-5
    shares: tuple[float, ...] = (0.5, 0.75, 1.0)  # of the way from the start, that the development part chooses from
    mini_batch_size: int = 32  # texts per forward pass
    recipe: TrainingConfig | None = None  # whose losses, batches, filters and rates count in place of the above
    seed: int = 0


def adapt_to_questions(
    material: QuestionMaterial,
    rehearsed: Sequence[Pair],
    config: QuestionAdaptationConfig,
    output: Path,
    *,
    plan: Mapping[str, Any],
    progress: bool = False,
    say: Callable[[str], None] = silent,
) -> Adaptation:
    """Train on questions, and measure on pages kept apart if the adapted model finds more.

    Development questions choose the share of the training to keep; test questions are used once. An interrupted
    adaptation resumes when called again with the same arguments.

    Args:
        material: Questions and passages in three parts.
        rehearsed: Pairs of the training part's pages that are trained on besides.
        config: How to adapt.
        output: Created if missing. Contains the model, if it is better; `report.json`; and intermediate files in
            `work`, which may be deleted.
        plan: Identity of the adaptation (`adaptation_plan`).
        progress: True to show a progress bar of the training.
        say: Called with a message before each step.

    Raises:
        CorpusError: Too few questions are left.
        ModelError: No such model, or one that is no finished one.
        ResumeError: `output` holds something else, or a finished adaptation.
        TrainingError: Training had to stop.
    """
    if config.model == MINILM:
        raise ModelError(f"Expected a finished model to adapt by questions, found {MINILM!r}. Name one, as cde-mini.")
    start = load_start(StartConfig(model=config.model), seed=config.seed)  # before anything is written
    work = claimed(output, plan)
    prepared = _prepared(material, rehearsed, config, start, work, say)
    sizes = Counter(prepared.source_names[code] for code in prepared.sources.tolist())
    recipe = recipe_of(config, sizes, name=output.resolve().name, null=start.network.config.null_embedding)
    recipe = of_network(recipe, start.network)
    say(f"Training: {sum(phase.schedule.updates for phase in recipe.phases)} updates at most")
    began = time.monotonic()
    trained = train(prepared, recipe, work / "run", progress=progress)
    minutes = (time.monotonic() - began) / 60
    say("Choosing how much of the training to keep, on the development part")
    words = word_hits(material.test.corpus.texts, [*material.development.queries, *material.test.queries])
    folders = {share: work / f"share-{share:g}" for share in config.shares}
    for share, folder in folders.items():
        merge_models(config.model, [trained], folder, share=share, name=output.resolve().name)
    few = len(material.development.queries)
    chosen = {
        share: _mean(_scores(str(folder), material.development, words[:few])) for share, folder in folders.items()
    }
    share = max(chosen, key=lambda each: chosen[each])
    say(f"Asking the test questions, of {config.model} and of a model with {share:g} of the training")
    before, after = (_scores(name, material.test, words[few:]) for name in (config.model, str(folders[share])))
    comparison = compared(
        material.test,
        material.kinds,
        {
            "start": before.vectors,
            "adapted": after.vectors,
            "bm25": bm25_scores(material.test),
            "start hybrid": before.hybrid,
            "adapted hybrid": after.hybrid,
        },
        start=config.model,
        shares=chosen,
        share=share,
    )
    done = Adaptation(install(folders[share], output, comparison), comparison, minutes, updates_of(work / "run"))
    told = {"questions": material.counts, "dropped": dict(material.dropped), "config": asdict(config)}
    write_durably(output / REPORT, json.dumps(done.to_json() | told, indent=2).encode())
    return done


def adaptation_plan(
    config: QuestionAdaptationConfig, texts: Sequence[str], questions: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the identity of an adaptation, for its output folder.

    Args:
        config: How to adapt; its time does not matter.
        texts: All texts of the corpus.
        questions: Where the questions come from, as JSON.
    """
    return {
        "config": settings_of(asdict(config)),
        "corpus": digest(canonical_json({"texts": list(texts)})).hex(),
        "questions": questions,
    }


def recipe_of(config: QuestionAdaptationConfig, sizes: Mapping[str, int], *, name: str, null: bool) -> TrainingConfig:
    """Return the training recipe, as lab/plans/user-questions.toml has it.

    Args:
        config: How to adapt.
        sizes: Pairs by source.
        name: Name of the model.
        null: True if it knows a null context; only then can the start be a teacher.
    """
    fewest = min(sizes.values())
    batch = min(config.batch_size, fewest // 2)
    smallest = min(32, fewest - batch)  # documents of a context, apart from the batch
    rehearsed = tuple(sorted(sizes.keys() - {QUESTIONS, TITLED}))
    shown = sizes[QUESTIONS] * (1 + config.rehearsal if rehearsed else 1)  # of a question one of its two forms
    corpora = CorporaConfig(
        batch_size=batch,
        source_exponent=1.0,
        hard_negatives=2,
        granularity=GranularityConfig(cluster=0.15, wide_cluster=0.1, domain=0.6, domains=0.1, source=0.05),
        views=ViewConfig(nameless_share=0.5, sentence_share=0.05, keywords_share=0.05),
        context=ContextConfig(smallest=smallest, largest=config.largest_context, null_share=0.25 if null else 0.0),
        parents=ParentConfig(share=0.0, apart_share=0.5, lone_share=0.1, wrong_share=0.0, siblings=16),
    )
    teacher = LossConfig(teacher="start", teacher_sources=rehearsed, teacher_weight=0.3) if null and rehearsed else None
    phase = PhaseConfig(
        name="questions",
        corpora=corpora,
        filter=FilterConfig(rule="relative", margin=0.1),
        loss=replace(teacher or LossConfig(), temperature=0.05),
        schedule=ScheduleConfig(
            updates=max(1, round(config.epochs * shown / batch)), minutes=config.minutes, warmup=0.06
        ),
        rates=RatesConfig(
            encoder=config.encoder_rate, layer_decay=1.0, context=config.context_rate, gates=config.context_rate
        ),
        context_dropout=0.005 if null else 0.0,
        average=0.9,  # over about ten updates: there are some dozens
    )
    recipe = TrainingConfig(
        seed=config.seed,
        start=StartConfig(model=config.model, name=name),
        phases=(phase,),
        evaluation=EvaluationConfig(every=0, probe_every=0),
        guard=GuardConfig(action="none"),
        machine=MachineConfig(mini_batch_size=config.mini_batch_size, gradient_caching=False, save_every=20),
    )
    return own_recipe(recipe, config.recipe, largest=fewest // 2, null=null)


def _prepared(
    material: QuestionMaterial,
    rehearsed: Sequence[Pair],
    config: QuestionAdaptationConfig,
    start: Start,
    work: Path,
    say: Callable[[str], None],
) -> Prepared:
    """Prepare the pairs, or open the prepared folder of an interrupted call."""
    folder = work / "prepared"
    if (folder / MANIFEST).exists():
        return Prepared.load(folder)
    say(f"Looking for hard negatives among {counted(len(material.training.passages), 'passage')}")
    loaded: list[Surrogate] = []

    def embed(texts: Sequence[str]) -> Any:
        if not loaded:
            loaded.append(minilm(max_length=SURROGATE_TOKENS))
        return loaded[0](texts)

    name = f"minilm-{SURROGATE_TOKENS}"
    surrogate = cached(embed, name, work / "cache")
    pairs = training_pairs(material, rehearsed, config, surrogate=surrogate)
    say(f"Preparing {counted(len(pairs), 'pair')}: tokens, vectors, clusters")
    max_length = min(config.max_length, start.network.config.max_length)
    lexical = config.recipe is not None and config.recipe.is_lexical
    settings = PrepareConfig(max_length=max_length, surrogate=name, lexical=lexical, seed=config.seed)
    shown = {QUESTIONS: [each.text for each in material.training.passages], TITLED: material.training.texts}
    passages = [
        CorpusPassage(text.strip(), source, source, passage.page)
        for source, texts in shown.items()
        for text, passage in zip(texts, material.training.passages, strict=True)
    ]
    return prepare(pairs, start.tokenizer, folder, settings, surrogate=surrogate, passages=passages)


def training_pairs(
    material: QuestionMaterial,
    rehearsed: Sequence[Pair],
    config: QuestionAdaptationConfig,
    *,
    surrogate: Surrogate,
) -> list[Pair]:
    """Pair each question of the training part with its passages, with hard negatives, twice; add rehearsed pairs.

    Of the two sources one has titles in front of all passages.

    Args:
        material: Questions and passages.
        rehearsed: Pairs to choose from, by their order in a digest.
        config: Numbers.
        surrogate: Texts to vectors, for near-duplicates of held-out questions.

    Raises:
        CorpusError: Too few pairs are left.
    """
    data = material.training
    model = CDEModel.from_pretrained(config.model, runtime="torch")
    embedder = ContextualEmbedder.from_corpus(data.texts, model=model, seed=config.seed)
    similarities = embedder.embed_queries(data.queries) @ embedder.embed_documents(data.texts).T
    found = hard_negatives(data, similarities, word_hits(data.texts, data.queries), config.negatives)
    forms = {QUESTIONS: [each.text.strip() for each in data.passages], TITLED: [text.strip() for text in data.texts]}
    places = {name: place for place, name in enumerate(data.ids)}
    pairs: dict[str, list[Pair]] = {source: [] for source in forms}
    for question, right, negatives in zip(data.questions, data.answers, found, strict=True):
        for place in sorted(places[name] for name in right):
            for source, texts in forms.items():
                hard = tuple(texts[each] for each in negatives.passages)
                pairs[source].append(Pair(question.text, texts[place], source, source, data.passages[place].page, hard))
    kept = {id(pair) for pair in apart(pairs[QUESTIONS], material, surrogate=surrogate)}
    stay = [id(pair) in kept for pair in pairs[QUESTIONS]]
    chosen = [pair for source in forms for pair, stays in zip(pairs[source], stay, strict=True) if stays]
    if sum(stay) < FEWEST["training"]:
        raise CorpusError(
            f"Expected at least {FEWEST['training']} questions for training, found {sum(stay)} whose answers are not "
            "nearly those of held-out questions. Give more questions, about more pages."
        )
    wanted = round(config.rehearsal * len(chosen))  # questions stand twice, and are shown in one of the two forms
    old = sorted(apart(rehearsed, material, surrogate=surrogate), key=lambda pair: digest(pair.query))[:wanted]
    return chosen + (old if len(old) >= FEWEST["training"] else [])


def _scores(name: str, data: RetrievalSet, words: Sequence[Any]) -> SearchScores:
    return search_scores(CDEModel.from_pretrained(name, runtime="torch"), data, words)


def _mean(scores: SearchScores) -> float:
    return float(scores.vectors.mean())
