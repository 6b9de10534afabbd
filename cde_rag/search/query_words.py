"""Words of a query in texts, which the command and the page mark."""

from typing import Final

from cde_rag.stores.text_analysis import NEWEST, WORD

_OF_QUESTIONS: Final = frozenset(  # they stand in most texts
    NEWEST.terms(
        "about am any can could did do does from get had has have how i me my our should some them us want we what "
        "when where which who why would you your"
    )
)


class QueryWords:
    """Words that match a query, whatever their endings; of a question without "how do I" and the like.

    Args:
        query: Query of a search.
    """

    def __init__(self, query: str) -> None:
        terms = frozenset(NEWEST.terms(query))
        self._terms = terms - _OF_QUESTIONS or terms

    def terms_in(self, text: str) -> frozenset[str]:
        """Return the terms of the query that a text has."""
        return self._terms.intersection(NEWEST.terms(text))

    def words_in(self, text: str) -> frozenset[str]:
        """Return the words of a text that match, as they stand in it.

        Examples:
            >>> sorted(QueryWords("How do I get to the banks?").words_in("Do banks flood? The Bank does."))
            ['Bank', 'banks']
        """
        return frozenset(word for word in set(WORD.findall(text)) if self.terms_in(word))
