"""The API as its OpenAPI document describes it: no request made from it is an internal error."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from served import Running

OPERATIONS = 20  # the API has more; fewer would mean that the document is incomplete


@pytest.mark.filterwarnings("ignore")
def test_no_request_is_an_internal_error(server: Running) -> None:
    described: Any = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in described.get_all_operations()]
    assert len(operations) > OPERATIONS
    for operation in operations:

        @settings(
            max_examples=6,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            database=None,
        )
        @given(case=operation.as_strategy())
        def answered(case: Any) -> None:
            response = case.call()
            assert response.status_code != 500, (case.method, case.path, case.body, response.text)

        answered()
