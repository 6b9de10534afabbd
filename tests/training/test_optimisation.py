"""Rates, schedules, averages and what lies between two models: small cases that can be checked by hand."""

import pytest
import torch
from tiny import tiny_network
from torch import nn

from cde_rag_training.config import AdaptersConfig, RatesConfig, ScheduleConfig
from cde_rag_training.loop.averaging import WeightAverage
from cde_rag_training.loop.optimiser import Optimiser, ParameterGroup, groups_of
from cde_rag_training.loop.trainer import Schedule
from cde_rag_training.networks.interpolation import average, interpolate

RATES = RatesConfig(encoder=1.0, layer_decay=0.5, embeddings=2.0, first_stage=3.0, context=4.0, gates=5.0)


def by_name(groups):
    return {name: (group.rate, group.decay) for group in groups for name in group.parameters}


def test_every_part_has_its_rate():
    network = tiny_network()
    found = by_name(groups_of(network, 2, RATES, AdaptersConfig()))
    assert found.keys() == dict(network.named_parameters()).keys()
    assert found["second_stage.layers.1.up.weight"] == (1.0, 0.01)
    assert found["second_stage.layers.0.up.weight"] == (0.5, 0.01)
    assert found["second_stage.layers.0.up.bias"] == (0.5, 0.0)
    assert found["second_stage.layers.0.output_norm.weight"] == (0.5, 0.0)
    assert found["embeddings.word.weight"] == (2.0, 0.01)
    assert found["first_stage.layers.0.down.weight"] == (3.0, 0.01)
    assert found["second_stage.given.1.weight"] == found["set_attention.query.weight"] == (4.0, 0.01)
    assert found["second_stage.roles"] == found["set_attention.latents"] == (4.0, 0.0)
    assert found["second_stage.gates"] == found["output_map.exponent"] == (5.0, 0.0)


def test_a_rate_of_zero_freezes():
    network = tiny_network()
    groups = groups_of(network, 2, RatesConfig(encoder=0.0, gates=0.0), AdaptersConfig())
    assert {group.part for group in groups} == {"context"}
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert trained == set(by_name(groups))


def test_an_update_is_that_of_adamw():
    """Twice the rate for one part is twice the step; what has no gradient is not pushed by earlier ones' absence."""
    network = tiny_network()
    before = {name: value.clone() for name, value in network.named_parameters()}
    optimiser = Optimiser(groups_of(network, 2, RatesConfig(weight_decay=0.0), AdaptersConfig()), clip=1e9)
    optimiser.zero_grad()
    for parameter in optimiser.parameters:
        parameter.grad.fill_(0.5)
    optimiser.step(0.5)
    for group in optimiser.groups:
        for name, parameter in group.parameters.items():  # Adam's first step is as long as the rate
            torch.testing.assert_close(
                before[name] - parameter, torch.full_like(parameter, group.rate / 2), rtol=1e-2, atol=1e-7
            )


def updated(optimiser, updates):
    for update in updates:
        optimiser.zero_grad()
        for number, parameter in enumerate(optimiser.parameters):
            parameter.grad.fill_(1 + update * number)
        optimiser.step(1.0)


def test_the_state_of_an_optimiser_comes_back():
    """Three updates at once, or two, a new optimiser, and the third."""
    whole, halves = tiny_network(), tiny_network()
    updated(Optimiser(groups_of(whole, 2, RATES, AdaptersConfig()), clip=1.0), range(3))
    first = Optimiser(groups_of(halves, 2, RATES, AdaptersConfig()), clip=1.0)
    updated(first, range(2))
    second = Optimiser(groups_of(halves, 2, RATES, AdaptersConfig()), clip=1.0)
    second.restore(dict(first.state()))
    updated(second, [2])
    for (name, mine), theirs in zip(halves.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_clipping_shortens_all_gradients_together():
    network = nn.Linear(3, 1, bias=False)
    optimiser = Optimiser([ParameterGroup("context", 1.0, 0.0, {"weight": network.weight})], clip=1.0)
    optimiser.zero_grad()
    network.weight.grad.copy_(torch.tensor([[3.0, 4.0, 0.0]]))
    assert optimiser.clip() == pytest.approx(5.0)
    torch.testing.assert_close(network.weight.grad, torch.tensor([[0.6, 0.8, 0.0]]), rtol=1e-4, atol=1e-4)


def test_a_schedule_by_updates():
    schedule = Schedule(ScheduleConfig(updates=10, warmup=0.2))
    factors = [schedule.factor(update, seconds=1e9) for update in range(11)]
    assert factors == pytest.approx([0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0])
    assert schedule.share(5, seconds=0.0) == 0.5
    assert schedule.left(5, seconds=60.0) == pytest.approx(60.0)
    assert schedule.left(0, seconds=0.0) == float("inf")
    assert Schedule(ScheduleConfig(updates=4, warmup=0.0)).factor(0, seconds=0.0) == 1


def test_a_schedule_by_the_clock():
    """Whatever the number of updates, it ends in time; of both limits, what comes first counts."""
    clock = Schedule(ScheduleConfig(updates=0, minutes=2.0, warmup=0.1))
    assert 0 < clock.factor(0, seconds=0.0) < 0.1
    assert [clock.factor(7, seconds=each) for each in (6.0, 12.0, 66.0, 120.0, 500.0)] == pytest.approx(
        [0.51, 1.0, 0.5, 0.0, 0.0], abs=1e-9
    )
    both = Schedule(ScheduleConfig(updates=10, minutes=2.0))
    assert both.share(9, seconds=0.0) == 0.9
    assert both.share(1, seconds=120.0) == 1


def test_the_average_of_weights():
    weight = nn.Parameter(torch.tensor([0.0]))
    average = WeightAverage({"weight": weight}, decay=0.5)
    expected, values = 0.0, [1.0, 2.0, -1.0] * 6
    for number, value in enumerate(values, start=1):
        weight.data.fill_(value)
        average.update(number)
        decay = min(0.5, number / (number + 9))
        expected = decay * expected + (1 - decay) * value
        assert float(average.weights["weight"]) == pytest.approx(expected, abs=1e-6)
    again = WeightAverage({"weight": weight}, decay=0.5)
    again.restore(average.weights)
    again.apply()
    assert float(weight.detach()) == pytest.approx(expected, abs=1e-6)


def test_interpolation_touches_the_encoder_only():
    start, trained = (tiny_network(seed=seed).state_dict() for seed in (0, 1))
    half = interpolate(start, trained, 0.5)
    for name, value in half.items():
        expected = (start[name] + trained[name]) / 2 if name.startswith("second_stage.layers.") else trained[name]
        torch.testing.assert_close(value, expected)
    assert all(torch.equal(value, trained[name]) for name, value in interpolate(start, trained, 1.0).items())
    with pytest.raises(ValueError, match="a share in 0"):
        interpolate(start, trained, 1.5)
    with pytest.raises(ValueError, match="two states of one network"):
        interpolate({**start, "other": torch.zeros(1)}, trained, 0.5)


def test_the_average_of_trainings_is_that_of_every_tensor():
    states = [tiny_network(seed=seed).state_dict() for seed in range(3)]
    for name, value in average(states).items():
        torch.testing.assert_close(value, sum(state[name] for state in states) / 3)
    assert all(torch.equal(value, states[0][name]) for name, value in average(states[:1]).items())
    assert average([{"gates": torch.ones(2, dtype=torch.bfloat16)}])["gates"].dtype == torch.bfloat16
    for other in ({**states[1], "gates": torch.zeros(1)}, {name: value[None] for name, value in states[1].items()}):
        with pytest.raises(ValueError, match="of one network"):
            average([states[0], other])
