"""A recipe of the user's own in an adaptation: its losses, batches and filters, with the data and time of `adapt`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.nn import Module

from cde_rag.models.two_way.network import TwoWay
from cde_rag_training.config import PhaseConfig, RatesConfig, TrainingConfig
from cde_rag_training.recipe import RecipeError


def own_recipe(own: TrainingConfig, given: TrainingConfig | None, *, largest: int, null: bool) -> TrainingConfig:
    """Return an adaptation's recipe with the phases of a given one; unchanged without one.

    Of the given recipe count its adapters and those phases that name no data of their own: losses, batches, filters,
    rates, averages. They share the adaptation's time in equal parts. Start model, share, evaluation and machine stay
    those of the adaptation; batches and contexts are made as small as its corpus needs.

    Args:
        own: Recipe of the adaptation; of its one phase the schedule counts, and the sizes of contexts.
        given: The user's recipe.
        largest: Largest batch that the corpus allows, in pairs.
        null: True if the start model knows a null context. Otherwise none is shown, and it is no teacher.

    Raises:
        RecipeError: Every phase of the given recipe names data of its own.
    """
    if given is None:
        return own
    phases = [phase for phase in given.phases if not phase.data]
    if not phases:
        raise RecipeError(
            "Expected a recipe with a phase for the corpus, found data of their own in all phases. Remove `data` "
            "from one."
        )
    fitted = tuple(_fitted(phase, own.phases[0], len(phases), largest=largest, null=null) for phase in phases)
    machine = replace(own.machine, gradient_caching=True)  # its batches may be larger than memory allows
    return replace(own, phases=fitted, adapters=given.adapters, machine=machine)


def of_network(recipe: TrainingConfig, network: Module) -> TrainingConfig:
    """Return an adaptation's recipe as its start model can be trained: two-way ones have no gates, and no rate of them.

    Args:
        recipe: Recipe of the adaptation.
        network: Network of the start model.
    """
    if not isinstance(network, TwoWay):
        return recipe
    usual = RatesConfig().gates
    phases = tuple(replace(phase, rates=replace(phase.rates, gates=usual)) for phase in recipe.phases)
    return replace(recipe, phases=phases)


def _fitted(phase: PhaseConfig, own: PhaseConfig, parts: int, *, largest: int, null: bool) -> PhaseConfig:
    given, fits = phase.corpora.context, own.corpora.context
    smallest = min(given.smallest, fits.smallest)
    context = replace(
        given,
        smallest=smallest,
        largest=max(smallest, min(given.largest, fits.largest)),
        null_share=given.null_share if null else 0.0,
    )
    corpora = replace(phase.corpora, context=context)
    if phase.batches == "corpora":
        corpora = replace(corpora, batch_size=min(corpora.batch_size, largest))
    time = own.schedule
    updates = max(1, time.updates // parts) if time.updates else 0
    return replace(
        phase,
        corpora=corpora,
        packing=replace(phase.packing, batch_size=min(phase.packing.batch_size, largest)),
        loss=replace(phase.loss, teacher="none") if phase.loss.teacher == "start" and not null else phase.loss,
        schedule=replace(time, updates=updates, minutes=time.minutes / parts),
        context_dropout=phase.context_dropout if null else 0.0,
    )


def settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an adaptation's settings for its plan: without its time, and without a recipe that is not given."""
    left_out = {"minutes", *(["recipe"] if settings["recipe"] is None else [])}
    return {name: value for name, value in settings.items() if name not in left_out}
