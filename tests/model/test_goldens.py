"""The published models' arithmetic, against numbers that the paper's code gave for tiny models of random weights.

Contract: both families, both semantics of each, every set of numbers, at 1e-4 in float32 on a CPU. What the reference
does silently (the first N of more vectors, fewer vectors as they are) the network only does when told.
"""

import pytest
import torch
from golden import V1, V2, golden, tiny_two_way

from cde_rag.errors import ContextError

READINGS = [(V1, "train"), (V1, "hf_model_py"), (V2, "train"), (V2, "hub")]
ROLES = ["query", "doc", "noprefix"]
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
CYCLE = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])


@pytest.fixture(params=READINGS, ids="-".join)
def reading(request, monkeypatch):
    name, semantics = request.param
    outputs = golden(name, "outputs")
    found = {key.removeprefix(f"{semantics}."): value for key, value in outputs.items() if key.startswith(semantics)}
    return tiny_two_way(monkeypatch, name, semantics), golden(name, "inputs"), found


def text(inputs, role):
    return inputs[f"{role}_input_ids"], inputs[f"{role}_attention_mask"].bool()


def close(found, expected):
    torch.testing.assert_close(found, expected, **TOLERANCE)


def contexts(outputs):
    """Each variant's context embeddings, as the goldens' README describes them."""
    own, extra = outputs["first_stage.context_embeddings"], outputs["first_stage.context_extra_embeddings"]
    return {
        "full_context": own,
        "more_context": torch.cat([own, extra])[:8],  # the reference does the cut itself
        "cycled_context": own[CYCLE],
        "reversed_context": own.flip(0),
        "fewer_context": own[:5],
    }


def test_first_stage(reading):
    network, inputs, outputs = reading
    for name in ("context", "context_extra"):
        close(network.read(*text(inputs, name)), outputs[f"first_stage.{name}_embeddings"])
    ids, mask = text(inputs, "context")
    states = network.first_stage.backbone.read(ids, mask) * mask[..., None]
    close(states, outputs["first_stage.last_hidden_state_masked"])


def test_what_comes_before_a_text(reading):
    network, _, outputs = reading
    prepared = network.second_stage.prepare(outputs["first_stage.context_embeddings"][None])
    close(prepared.tokens[0], outputs["second_stage.prefix_tokens_row0"])


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "variant", ["full_context", "more_context", "cycled_context", "reversed_context", "fewer_context"]
)
def test_second_stage(reading, role, variant):
    network, inputs, outputs = reading
    expected = outputs.get(f"second_stage.{role}.{variant}")
    if expected is None:
        assert network.config.semantics == "hf_model_py"  # the reference refuses fewer vectors there
        assert variant == "fewer_context"
        return
    prepared = network.second_stage.prepare(contexts(outputs)[variant][None])
    close(network.second_stage(*text(inputs, role), prepared), expected)


@pytest.mark.parametrize("role", ROLES)
def test_a_context_for_each_text(reading, role):
    network, inputs, outputs = reading
    own = outputs["first_stage.context_embeddings"]
    ids, mask = text(inputs, role)
    rolled = torch.stack([own.roll(row, dims=0) for row in range(len(ids))])
    found = network.second_stage(ids, mask, network.second_stage.prepare(rolled))
    close(found, outputs[f"second_stage.{role}.per_example_context"])


@pytest.mark.parametrize("role", ROLES)
def test_null_context(reading, role):
    network, inputs, outputs = reading
    dim = network.config.dim
    nothing = torch.empty(0, dim), torch.empty(0, dtype=torch.long)
    if not network.config.null_embedding:
        with pytest.raises(ContextError, match=r"no null embedding.*Context\.generic"):
            network.prepare(*nothing)
        return
    found = network.second_stage(*text(inputs, role), network.prepare(*nothing))
    close(found, outputs[f"second_stage.{role}.null_context"])


def test_padding_changes_nothing(reading):
    network, inputs, outputs = reading
    ids, mask = text(inputs, "query")
    length = int(mask[1].sum())
    prepared = network.second_stage.prepare(outputs["first_stage.context_embeddings"][None])
    found = network.second_stage(ids[1:2, :length], mask[1:2, :length], prepared)
    close(found, outputs["second_stage.query_row1_trimmed.full_context"])
    close(found, outputs["second_stage.query.full_context"][1:2])


def test_states_of_the_text(reading):
    network, inputs, outputs = reading
    ids, mask = text(inputs, "doc")
    given = network.second_stage.prepare(outputs["first_stage.context_embeddings"][None]).tokens.expand(
        len(ids), -1, -1
    )
    whole = torch.cat([mask.new_ones(given.shape[:2]), mask], dim=1)
    states = network.second_stage.backbone.read_after(given, ids, whole)[:, given.shape[1] :] * mask[..., None]
    close(states, outputs["second_stage.doc.text_hidden_states_masked"])


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("pool_ignore_instruction_tokens", "residual_no_exclusion"),
        ("pool_ignore_contextual_tokens", "residual_pool_all_tokens"),
    ],
)
def test_flags_of_the_training_code(monkeypatch, flag, name):
    flags = {flag: False}
    network = tiny_two_way(monkeypatch, V2, "train", **flags)
    inputs, outputs = golden(V2, "inputs"), golden(V2, "outputs")
    prepared = network.second_stage.prepare(outputs["train.first_stage.context_embeddings"][None])
    close(network.second_stage(*text(inputs, "doc"), prepared), outputs[f"ablate.{name}.doc.full_context"])


def test_semantics_differ(reading):
    """Neither reading could pass for the other."""
    network, _, outputs = reading
    name = V1 if network.config.family == "nomic_bert" else V2
    other = next(semantics for each, semantics in READINGS if each == name and semantics != network.config.semantics)
    moved = golden(name, "outputs")[f"{other}.second_stage.doc.full_context"] - outputs["second_stage.doc.full_context"]
    assert moved.abs().max() > 1e-2


def test_counts_are_cycles(reading):
    network, _, outputs = reading
    own = outputs["first_stage.context_embeddings"][:5]
    prepared = network.prepare(own, torch.tensor([2, 2, 2, 1, 1]))
    torch.testing.assert_close(prepared.tokens[0, :8], own[CYCLE])


@pytest.mark.parametrize("counts", [[1] * 5, [2] * 5, [1] * 3])
def test_other_numbers_of_context_embeddings_are_refused(reading, counts):
    network, _, outputs = reading
    own = outputs["first_stage.context_embeddings"][: len(counts)]
    with pytest.raises(ContextError, match=rf"context of 8 documents, found {sum(counts)}.*context_size=8"):
        network.prepare(own, torch.tensor(counts))
