import pytest

pytest.register_assert_rewrite("contract", "text_contract")
