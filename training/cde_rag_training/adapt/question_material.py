"""Parts of a user's questions: training, development and test, by pages, with the passages that each may see."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cde_rag.errors import CorpusError
from cde_rag.evaluation.answer_scores import JudgedPassages
from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag.evaluation.own_questions import OwnCorpus, OwnQuestions, parent_name
from cde_rag_training.adapt.corpus_pairs import ask, to_pairs
from cde_rag_training.adapt.sections import place_of, sections
from cde_rag_training.clustering.near_duplicates import DuplicateConfig
from cde_rag_training.clustering.surrogate import Surrogate
from cde_rag_training.data.duplicates import EvaluationTexts, without_near_duplicates
from cde_rag_training.data.pairs import Pair

SHARES: Final = {"test": 0.3, "development": 0.15}  # of the questions; the rest is trained on
FEWEST: Final = {"training": 24, "development": 8, "test": 20}
NEAR: Final = 2  # passages around each answer that stay, in a cut of a large corpus


@dataclass(frozen=True)
class QuestionMaterial:
    """Questions of a corpus in three parts. No page with an answer of one part answers in another.

    Attributes:
        training: Questions to train on, and passages: none of a page that answers a held-out question, and none with
            the text of one there.
        development: Retrieval set of the questions that choose the share of the training to keep.
        test: Retrieval set of the questions of the verdict, over the same documents.
        kinds: Kind of each test question.
        dropped: Number of questions that are in no part, by reason.
    """

    training: JudgedPassages
    development: RetrievalSet
    test: RetrievalSet
    kinds: tuple[str, ...]
    dropped: Mapping[str, int]

    @property
    def counts(self) -> dict[str, int]:
        """Number of questions in each part."""
        return {
            "training": len(self.training.questions),
            "development": len(self.development.queries),
            "test": len(self.test.queries),
        }


def question_material(given: OwnQuestions, *, seed: int, passages: int) -> QuestionMaterial:
    """Divide questions by the pages that answer them.

    Args:
        given: Questions with answers.
        seed: Random seed of the division, which depends on nothing else but the pages' names.
        passages: About so many are trained on, and about so many searched for the held-out questions: all that answer,
            those around them, and others. Fewer are taken of a smaller corpus.

    Raises:
        CorpusError: Too few questions, or too few pages, for three parts.
    """
    data = given.data
    parts = _parts(data, seed)
    held = [*parts["development"], *parts["test"]]
    page_of = {passage.id: passage.page for passage in data.passages}
    held_pages = {page_of[each] for place in held for each in data.answers[place]}
    held_texts = {_key(passage.text) for passage in data.passages if passage.page in held_pages}
    free = tuple(each for each in data.passages if each.page not in held_pages and _key(each.text) not in held_texts)
    training = replace(_chosen(data, parts["training"]), passages=free)
    known = {passage.id for passage in free}
    answered = [place for place, right in enumerate(training.answers) if right & known]
    training = _chosen(replace(training, answers=tuple(right & known for right in training.answers)), answered)
    lost = len(parts["training"]) - len(answered)
    _check(len(answered), parts)
    searched = _chosen(data, held).part(passages, near=NEAR)
    found = _retrieval_set(searched)
    few = len(parts["development"])
    return QuestionMaterial(
        training=training.part(passages, near=NEAR),
        development=found.select(range(few)),
        test=found.select(range(few, len(held))),
        kinds=tuple(data.questions[place].kind or "question" for place in parts["test"]),
        dropped=dict(given.dropped) | ({"its answer's text is on a held-out page, too": lost} if lost else {}),
    )


def rehearsal_pairs(material: QuestionMaterial, corpus: OwnCorpus, *, parent_key: str | None, seed: int) -> list[Pair]:
    """Return pairs by title, heading, sentence and keywords of the pages that are trained on.

    Args:
        material: Names the passages.
        corpus: Their records.
        parent_key: Metadata field that names the page.
        seed: Random seed of the keywords.
    """
    known = {(passage.page, passage.text) for passage in material.training.passages}
    records = [each for each in corpus.records if (parent_name(each, parent_key), each.text) in known]
    asked = ask(list(sections(records, parent_key=parent_key)), seed=seed)
    return to_pairs([one for one in asked if one is not None])


def apart(pairs: Sequence[Pair], material: QuestionMaterial, *, surrogate: Surrogate) -> list[Pair]:
    """Remove pairs that are near-duplicates of a held-out question or of its answers, or of each other.

    Args:
        pairs: The first of several stays.
        material: Names the held-out questions and answers.
        surrogate: Texts to vectors.
    """
    data = material.test
    relevant = set[str]().union(*data.judgments, *material.development.judgments)
    answers = [text for name, text in zip(data.corpus.ids, data.corpus.texts, strict=True) if name in relevant]
    held_out = EvaluationTexts("held-out pages", answers, [*data.queries, *material.development.queries])
    return without_near_duplicates(pairs, DuplicateConfig(), surrogate=surrogate, against=[held_out]).pairs


def _parts(data: JudgedPassages, seed: int) -> dict[str, list[int]]:
    """Divide the questions: groups that share no page, in an order by the pages' names and the seed."""
    left = {name: round(share * len(data.questions)) for name, share in SHARES.items()}
    parts: dict[str, list[int]] = {"training": [], "development": [], "test": []}
    groups = _groups(data)
    for name in sorted(groups, key=lambda page: place_of(page, seed)):
        part = next((each for each, places in left.items() if places > 0), "training")
        parts[part] += groups[name]
        if part in left:
            left[part] -= len(groups[name])
    return {name: sorted(places) for name, places in parts.items()}


def _groups(data: JudgedPassages) -> dict[str, list[int]]:
    """Return positions of questions by the first of the pages that they, directly or through others, share."""
    page_of = {passage.id: passage.page for passage in data.passages}
    first: dict[str, str] = {}  # of a page: one of its group, itself if it is the first

    def root(page: str) -> str:
        while first.setdefault(page, page) != page:
            page = first[page]
        return page

    named = [sorted({page_of[each] for each in right}) for right in data.answers]
    for pages in named:
        roots = sorted({root(page) for page in pages})
        for other in roots:
            first[other] = roots[0]
    groups: dict[str, list[int]] = {}
    for place, pages in enumerate(named):
        groups.setdefault(root(pages[0]), []).append(place)
    return groups


def _check(training: int, parts: Mapping[str, Sequence[int]]) -> None:
    counts = {name: len(places) for name, places in parts.items()} | {"training": training}
    if any(counts[name] < fewest for name, fewest in FEWEST.items()):
        shown = ", ".join(f"{count} for {name}" for name, count in counts.items())
        fewest = ", ".join(f"{count} for {name}" for name, count in FEWEST.items())
        raise CorpusError(
            f"Expected at least {fewest}, found {shown}: pages are never divided. Give more questions, "
            "about more pages."
        )


def _chosen(data: JudgedPassages, places: Sequence[int]) -> JudgedPassages:
    """Return the same passages with some of the questions."""
    questions = tuple(data.questions[place] for place in places)
    return replace(data, questions=questions, answers=tuple(data.answers[place] for place in places))


def _retrieval_set(data: JudgedPassages) -> RetrievalSet:
    sizes = Counter(passage.page for passage in data.passages)
    parents = tuple(passage.page if sizes[passage.page] > 1 else None for passage in data.passages)
    corpus = Corpus(data.site.name, tuple(data.ids), tuple(data.texts), parents if any(parents) else None)
    judgments = tuple(dict.fromkeys(sorted(right), 1) for right in data.answers)
    return RetrievalSet(corpus, tuple(f"question {each.id}" for each in data.questions), tuple(data.queries), judgments)


def _key(text: str) -> str:
    return " ".join(text.lower().split())
