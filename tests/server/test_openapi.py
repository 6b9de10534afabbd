"""The API as its OpenAPI document describes it: no request made from it is an internal error.

Half of the requests name a collection and a model that there are, since those of no collection end early.
"""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from served import Running

WRITTEN = ("/v1/collections/{name}", "/v1/vector_stores/{name}")
OPERATIONS = 20  # the API has more; fewer would mean that the document is incomplete


@pytest.mark.filterwarnings("ignore")
def test_no_request_is_an_internal_error(server: Running) -> None:
    described: Any = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in described.get_all_operations()]
    assert len(operations) > OPERATIONS
    for operation in operations:

        @settings(
            max_examples=10,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            database=None,
        )
        @given(case=operation.as_strategy(), named=st.booleans())
        def answered(case: Any, named: bool) -> None:
            if named and case.path.startswith(WRITTEN):
                case.path_parameters = {**case.path_parameters, "name": "notes"}
            if named and isinstance(case.body, dict) and "model" in case.body:
                case.body = {**case.body, "model": "papers:document"}
            response = case.call()
            assert response.status_code != 500, (case.method, case.path, case.body, response.text)

        answered()
