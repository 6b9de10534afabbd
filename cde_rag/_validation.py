"""Validation of arguments, and digests of texts."""

import functools
import hashlib
import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any, Final, ParamSpec, SupportsIndex, TypeVar, cast

from cde_rag.errors import CorpusError

_MEANT: Final = (  # words for one thing, ours first or LangChain's
    ("k", "top_k", "limit", "n_results", "similarity_top_k", "num_results", "size", "n"),
    ("where", "filter", "filters", "query_filter", "expr"),
    ("score_threshold", "min_score", "threshold", "similarity_cutoff"),
    ("by", "mode", "search_type", "query_mode", "ranking"),
    ("texts", "documents", "docs"),
    ("metadata", "metadatas", "payloads", "payload"),
    ("ids", "id", "doc_ids"),
    ("store", "path", "persist_directory", "persist_dir", "collection_name"),
    ("context_path", "context_file"),
    ("model", "model_name", "embed_model"),
    ("embedder", "embedding", "embeddings", "embedding_function"),
    ("offset", "skip", "start"),
    ("group_by", "group_key"),
    ("diversity", "lambda_mult"),
    ("candidates", "fetch_k", "prefetch_k", "num_candidates"),
    ("context_size", "size", "sample_size", "num_documents"),
)
_EXPECTED: Final = re.compile(r"^\w+ should ")  # begins pydantic's messages, with the kind of the value
_NEAR: Final = 0.8  # similarity of a misspelt name, from 0 to 1

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class RepeatedKeyError(ValueError):
    """A JSON object has a key twice."""


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these keys and values: the `object_pairs_hook` of `json.loads` for JSON of users.

    Raises:
        RepeatedKeyError: A key stands twice, of which JSON's readers would keep the last one.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKeyError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.80} stands twice")
    return values


def check_list(texts: Iterable[object], *, call: str, what: str = "texts") -> None:
    """Refuse a single text in place of a list, which would be read letter by letter, and non-iterables.

    Args:
        texts: Argument of the caller.
        call: Name of the called function, for the message.
        what: Noun for the strings, for the message.

    Raises:
        TypeError: `texts` is a `str`, or cannot be iterated over.
    """
    if isinstance(texts, str):
        raise TypeError(f'{call} takes a list of {what} and was given one str; pass ["…", …].')
    if not isinstance(cast(object, texts), Iterable):
        raise TypeError(f"{call} takes a list of {what} and was given {type(texts).__name__}.")


def check_ids(ids: Iterable[object], *, call: str) -> list[str]:
    """Return ids as a list; raises where they are no strings, which no record has as its id.

    Args:
        ids: Argument of the caller.
        call: Name of the called function, for the message.

    Raises:
        TypeError: `ids` is a `str`, cannot be iterated over, or holds anything but strings.
    """
    check_list(ids, call=call, what="ids")
    listed = list(ids)
    for place, id_ in enumerate(listed):
        if not isinstance(id_, str):
            raise TypeError(
                f"{call} takes ids that are strings, and was given {id_!r:.80}, a {type(id_).__name__}, at position "
                f"{place}. Records have the ids that they were added with: str(…) of a number."
            )
    return cast("list[str]", listed)


def check_str(text: object, *, where: str) -> None:
    """Refuse values that are no str; `where` names the value in the message.

    Raises:
        TypeError: `text` is no `str`.
    """
    if not isinstance(text, str):
        raise TypeError(f"{where} has to be a str, found {type(text).__name__}.")


def utf8(text: str, *, where: str) -> bytes:
    """Encode a text as UTF-8.

    Args:
        text: Any text, NUL included.
        where: Name of the text in the message, such as `"text 3"`.

    Raises:
        CorpusError: The text holds a lone surrogate, which no encoding can write.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{where} is not valid Unicode: a lone surrogate {text[error.start]!r} at character {error.start}. "
            "Read the source with its right encoding, or with errors='replace'."
        ) from error


def check_texts(texts: Sequence[str], *, first: int = 0) -> None:
    """Refuse texts that cannot be embedded.

    Args:
        texts: Argument of the caller.
        first: Position of the first of them in the caller's list, for messages.

    Raises:
        CorpusError: A text is empty, blank, or no valid Unicode; the message gives its position.
        TypeError: A text is no str.
    """
    for position, text in enumerate(texts, start=first):
        check_str(text, where=f"Text {position}")
        if not text.strip():
            raise CorpusError(f"Text {position} is empty or blank; leave it out or give it content.")
        utf8(text, where=f"Text {position}")


def digest(text: str, *, where: str = "The text") -> bytes:
    """Compute the sha256 of a text's UTF-8 bytes, 32 bytes. Raises like `utf8`."""
    return hashlib.sha256(utf8(text, where=where)).digest()


def check_number(number: object, name: str) -> None:
    """Refuse values that are no real numbers, such as strings and bools.

    Raises:
        TypeError: `number` is none.
    """
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name} must be a number, not {number!r:.80}")


def check_positive(number: object, name: str) -> int:
    """Return a count of at least one as an int; errors as of `check_whole`."""
    return check_whole(number, name, least=1)


def check_whole(number: object, name: str, *, least: int) -> int:
    """Return a count as an int: an int, or another whole number with `__index__`, such as NumPy's.

    Args:
        number: Argument of the caller.
        name: Name of the argument, for messages.
        least: Smallest valid number.

    Raises:
        TypeError: `number` is no whole number.
        ValueError: `number` is below `least`.
    """
    try:
        count = operator.index(cast(SupportsIndex, number))
    except TypeError:
        count = None
    if count is None or isinstance(number, bool):
        raise TypeError(f"{name} must be an int, not {number!r}")
    if count < least:
        raise ValueError(f"{name} must be at least {least}, not {count}")
    return count


def named_keywords(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function's TypeError for an unknown keyword name the one that is meant, or those that there are.

    Arguments that are missing, and those by position that the function takes by name alone, are named, too.
    """
    return _named(function, "")


def named_keywords_with(remedy: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Return `named_keywords` with a last sentence for missing arguments, and for keywords of which none is meant."""
    return lambda function: _named(function, remedy)


def meant_by(name: str, known: Iterable[str]) -> str | None:
    """Return the known name for the same thing as `name` of another library; None if there is none."""
    named = set(known)
    return next((word for words in _MEANT if name in words for word in words if word in named), None)


def unknown_keyword(function: str, name: str, known: Iterable[str], remedy: str = "") -> TypeError:
    """Return the error of an unknown keyword.

    Args:
        function: Name of the called function or class.
        name: The keyword.
        known: Keywords that the function takes.
        remedy: Last sentence, if no known keyword is meant.
    """
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=_NEAR)
    if (meant := meant_by(name, known) or next(iter(near), None)) is not None:
        return TypeError(f"{function} has no argument {name!r}: write {meant}=… for it.")
    return TypeError(f"{function} has no argument {name!r}: it takes {', '.join(known)}. {remedy}".rstrip())


def unknown_attribute(owner: object, name: str, meant: Mapping[str, str]) -> AttributeError:
    """Return the error of an attribute that an object does not have.

    Args:
        owner: The object.
        name: The attribute.
        meant: Code to write for names of other libraries.
    """
    hint = f". Write {meant[name]} for it." if name in meant else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner)


def wrong_argument(function: str, problem: Mapping[str, Any], known: Iterable[str]) -> TypeError:
    """Return the error of an argument that pydantic refuses.

    Args:
        function: Name of the called function or class.
        problem: One of the `errors()` of pydantic's ValidationError.
        known: Arguments that the function takes.
    """
    name = ".".join(map(str, problem["loc"])) or "its arguments"
    if problem["type"] == "extra_forbidden":
        return unknown_keyword(function, name, known)
    if problem["type"] == "missing":
        return TypeError(f"{function} needs the argument {name!r}. Give it.")
    expected, count = _EXPECTED.subn(f"{name} has to ", str(problem["msg"]).partition(" after validation")[0])
    said = expected if count else f"{name}: {expected.removeprefix('Value error, ').rstrip('.')}"
    return TypeError(f"{function}: {said}, found {problem['input']!r:.80}.")


def _named(function: Callable[Arguments, Result], remedy: str) -> Callable[Arguments, Result]:
    parameters = inspect.signature(function).parameters
    single = {name: each for name, each in parameters.items() if each.kind is not each.VAR_POSITIONAL}
    known = [name for name in single if name not in ("self", "cls")]
    by_place = [name for name, each in single.items() if each.kind is not each.KEYWORD_ONLY]
    needed = [(place, name) for place, (name, each) in enumerate(single.items()) if each.default is each.empty]
    of_class = function.__name__ == "__init__"
    shown = function.__qualname__.split(".")[-2] if of_class else function.__name__

    @functools.wraps(function)
    def _call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        for name in named:
            if name not in known:
                raise unknown_keyword(shown, name, known, remedy)
        given = len(arguments)
        if given > len(by_place) and len(single) == len(parameters):
            raise _by_name_alone(shown, by_place, known, given)
        for place, name in needed:
            if place >= given and name not in named:
                raise TypeError(f"{shown} needs the argument {name!r}. {remedy or 'Give it.'}")
        return function(*arguments, **named)

    return _call


def _by_name_alone(function: str, by_place: Sequence[str], known: Sequence[str], given: int) -> TypeError:
    """Return the error of more arguments by position than a function takes."""
    unnamed = [name for name in by_place if name in known]
    extra = given - len(by_place) + len(unnamed)
    takes = f"{function} takes {' and '.join(unnamed) or 'nothing'} by position, and was given {extra} arguments"
    others = ", ".join(f"{name}=…" for name in known if name not in unnamed)
    return TypeError(f"{takes}. {f'Name the others: {others}' if others else 'Leave the others out'}.")
