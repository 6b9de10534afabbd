"""Words of a query in texts, which the command and the page mark."""

from typing import Final

from cde_rag.stores.text_analysis import NEWEST, WORD

_COMMON: Final = frozenset(  # they stand in most texts, and an analyzer removes fewer, since a search may need them
    NEWEST.terms(
        "about above after again all also am any because been before being below between both can could did do does "
        "doing down during each from further get had has have having he her here his how i its just me more most my "
        "off once only other our out over own same she should so some than them those through too under until up us "
        "very want we were what when where which while who whom whose why would you your"
    )
)


class QueryWords:
    """Words that match a query, whatever their endings; not its common ones, unless it has no others.

    Args:
        query: Query of a search.
    """

    def __init__(self, query: str) -> None:
        terms = frozenset(NEWEST.terms(query))
        self._terms = terms - _COMMON or terms

    def terms_in(self, text: str) -> frozenset[str]:
        """Return the terms of the query that a text has."""
        return self._terms.intersection(NEWEST.terms(text))

    def words_in(self, text: str) -> frozenset[str]:
        """Return the words of a text that match, as they stand in it.

        Examples:
            >>> sorted(QueryWords("How do I get to the banks?").words_in("Do banks flood? The Bank does."))
            ['Bank', 'banks']
            >>> sorted(QueryWords("after").words_in("After that, the bank is dry."))
            ['After']
        """
        return frozenset(word for word in set(WORD.findall(text)) if self.terms_in(word))
