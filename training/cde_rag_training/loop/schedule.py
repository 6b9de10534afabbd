"""Progress of a training phase, and its learning-rate factor."""

from cde_rag_training.config import ScheduleConfig


class Schedule:
    """Schedule of a phase from 0 to 1, by updates, by time, or by whichever ends first.

    Args:
        config: How long it lasts.

    Example:
        >>> schedule = Schedule(ScheduleConfig(updates=10, warmup=0.2))
        >>> [schedule.factor(update, seconds=0.0) for update in (0, 1, 2, 6, 10)]
        [0.5, 1.0, 1.0, 0.5, 0.0]
    """

    def __init__(self, config: ScheduleConfig) -> None:
        self._config = config

    def share(self, update: int, *, seconds: float) -> float:
        """Return the finished share of the phase, 1 at the end.

        Args:
            update: Updates done.
            seconds: Time spent, resumed parts included.
        """
        by_updates = update / self._config.updates if self._config.updates else 0.0
        by_time = seconds / (60 * self._config.minutes) if self._config.minutes else 0.0
        return min(1.0, max(by_updates, by_time))

    def factor(self, update: int, *, seconds: float) -> float:
        """Return the factor of the learning rates: linear warm-up, then linear decay to 0 at the end.

        The first update of a phase has a rate above 0.

        Args:
            update: Updates done.
            seconds: Time spent.

        Source: paper §5.
        """
        share, warmup = self.share(update, seconds=seconds), self._config.warmup
        first = self.share(update + 1, seconds=seconds) if self._config.updates else share + 0.01 * warmup
        rising = first / warmup if warmup else 1.0
        return min(1.0, rising, (1 - share) / (1 - warmup))

    def left(self, update: int, *, seconds: float) -> float:
        """Estimate the seconds to the end from the speed so far; infinite before the first update.

        Args:
            update: Updates done.
            seconds: Time spent.
        """
        share = self.share(update, seconds=seconds)
        return seconds * (1 - share) / share if share else float("inf")
