"""`cde-rag convert`: a folder that works without network, and one sentence where there is none."""

import pytest
from golden import V1, write_folder
from typer.testing import CliRunner

from cde_rag import CDEModel
from cde_rag.cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def test_convert(tmp_path, tiny_backbones):
    source, target = write_folder(tmp_path / "source", V1), tmp_path / "made"
    result = run(source, target)
    assert (result.exit_code, result.stdout.strip()) == (0, str(target))
    assert (
        CDEModel.from_pretrained(target).identity.weights_sha256
        == CDEModel.from_pretrained(source).identity.weights_sha256
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [("cde-mini", "works without network as it is"), ("nothing-here", "Expected a bundled model")],
)
def test_what_cannot_be_converted(tmp_path, model, message):
    result = run(model, tmp_path / "made")
    assert result.exit_code == 1
    assert message in result.stderr


def test_options_come_later(tmp_path):
    assert run("somebody/tiny?semantics=hub", tmp_path / "made").exit_code == 2
