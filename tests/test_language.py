"""Texts in other languages than the bundled models' are told from English ones."""

import pytest

from cde_rag.readers.languages import is_english, is_english_query
from cde_rag.search.query_language import foreign_query

OTHER = (
    "Это русский текст о птицах и машинах.",
    "これは鳥と車についての日本語の文章です。",
    "Dies ist ein Text über Vögel, die auf dem Dach sitzen und nicht singen.",
    "Les oiseaux sont sur le toit et la voiture est dans la rue avec une roue.",
    "Los pájaros están en el tejado y el coche es del vecino, con una rueda para el camino.",
    "Het is een tekst van vogels die niet zingen en voor het huis zijn.",
)
ENGLISH = (
    "Swifts sleep on the wing, and the young ones are fed by both parents for six weeks.",
    "def f(a, b):\n    return [x for x in a if x not in b]  # das",
    "| a | b |\n| --- | --- |\n| 1 | 2 |",
    "Straße, Ärger, naïve",
    "Привет",
    "",
    "pip install package-one package-two package-three package-four package-five package-six",
)


@pytest.mark.parametrize("text", OTHER)
def test_another_language_is_seen(text: str):
    assert not is_english(text)


@pytest.mark.parametrize("text", ENGLISH)
def test_english_code_tables_and_short_texts_are_not_warned_of(text: str):
    assert is_english(text)


@pytest.mark.parametrize(
    "query",
    ["Wie storniere ich eine gebuchte Lieferung?", "Où est mon colis", "¿Dónde está mi pedido?", "Rückgabe", "配送"],
)
def test_a_query_of_few_words_in_another_language_names_the_model_that_reads_it(query: str):
    assert not is_english_query(query)
    assert "--model cde-multilingual" in foreign_query(query, "cde-mini-2")
    assert foreign_query(query, "a-model-of-the-hub") == ""


@pytest.mark.parametrize(
    "query", ["how do i cancel", "what is a café", "E-4021", "die casting", "do per diem rates apply?"]
)
def test_a_query_in_english_or_of_names_is_left_alone(query: str):
    assert is_english_query(query)
    assert foreign_query(query, "cde-mini-2") == ""
