"""The API as its OpenAPI document describes it: no request that it allows or forbids is an internal error."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from served import make, running

schema = schemathesis.pytest.from_fixture("described")


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    service, _ = make(tmp_path_factory.mktemp("openapi"))
    with running(service) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.mark.filterwarnings("ignore")
@schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_is_an_internal_error(case: Any) -> None:
    response = case.call()
    case.validate_response(response, checks=[not_a_server_error])
