"""Whatever JSON a request holds, its answer is one of the API: no internal error, and a sentence for a refusal."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from served import JSON, Running

from cde_rag.server import http_app  # noqa: F401 (all bodies)
from cde_rag.server.service import RequestBody

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"model": "papers:query", "input": "river", "dimensions": 4, "encoding_format": "base64"}),
    ("/v1/contextualizedembeddings", {"model": "papers:document", "inputs": [["river", "bank"]]}),
    ("/v1/vector_stores/papers/search", {"query": "river", "filters": {"type": "eq", "key": "year", "value": 2001}}),
    ("/v1/collections/papers/search", {"query": "river", "k": 3, "where": {"year": 2001}, "group_by": "book"}),
    ("/v1/collections/papers/compare", {"query": "river", "where": {"year": {"gte": 2001}}}),
    ("/v1/collections/notes/records", {"records": [{"id": "a", "text": "river", "metadata": {"year": 2001}}]}),
    ("/v1/collections/notes/records/delete", {"where": {"year": 2001}}),
    ("/v1/collections/papers/recontextualize", {"seed": "no", "strategy": "random"}),
]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**400, -(2**63), 2**64]) | st.floats() | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
OPERATORS = st.sampled_from(["eq", "ne", "in", "nin", "gt", "lt", "exists", "contains"])
FILTERS = st.dictionaries(st.sampled_from(["year", "book", "and", "or", "not", "a.b", ""]), VALUES, max_size=2)
COMPARISONS = st.builds(lambda operator, value: {"year": {operator: value}}, OPERATORS, VALUES)


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_a_key_that_stands_twice_is_refused(unchanged: Running, path: str, body: dict[str, Any]) -> None:
    """At the top and inside of it: another filter would win without a word."""
    field, value = next(iter(body.items()))
    for repeated, key in (
        (json.dumps(body)[:-1] + f", {json.dumps(field)}: {json.dumps(value)}}}", field),
        (json.dumps(body)[:-1] + ', "filter": {"year": 1, "year": 2}}', "year"),
    ):
        with unchanged.client() as client:
            response = client.post(path, content=repeated, headers=JSON)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "invalid_json")
        assert error["message"] == f"The body is no valid JSON: the key {key!r} stands twice. Send it once."


@pytest.mark.filterwarnings("ignore::cde_rag.errors.UnknownFieldWarning")  # filters of fields that no record has
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_no_body_is_an_internal_error(server: Running, data: st.DataObject) -> None:
    path, body = data.draw(st.sampled_from(REQUESTS))
    field = data.draw(st.sampled_from(sorted(body)))
    changed = body | {field: data.draw(VALUES | FILTERS | COMPARISONS)}
    if path.endswith("recontextualize") and field == "seed":
        return  # it may be valid, and would start a job
    with server.client() as client:
        response = client.post(path, content=json.dumps(changed), headers=JSON)
    assert response.status_code < 500, (changed, response.text)
    if response.status_code != 200:
        assert len(response.json()["error"]["message"]) > 10


def bodies(kind: type[RequestBody] = RequestBody) -> Iterator[type[RequestBody]]:
    for each in kind.__subclasses__():
        yield each
        yield from bodies(each)


def test_true_and_false_are_no_numbers_in_any_body() -> None:
    """Python takes them for 1 and 0."""
    numbers = [
        (body, name)
        for body in bodies()
        for name, field in body.model_fields.items()
        if {int, float} & {field.annotation, *get_args(field.annotation)}
    ]
    assert len(numbers) >= 20
    for body, name in numbers:
        for given_value in (True, False):
            with pytest.raises(ValidationError) as refused:
                body.model_validate({name: given_value})
            assert name in {error["loc"][0] for error in refused.value.errors()}, (body, name)
