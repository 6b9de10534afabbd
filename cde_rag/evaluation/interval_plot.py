"""Plot of a comparison of systems: differences with intervals next to costs, as SVG."""

from typing import Final
from xml.sax.saxutils import escape

from cde_rag.evaluation.costs import Cost
from cde_rag.evaluation.system_comparison import SystemComparison, seconds

_ROW: Final = 24  # pixels
_MARGIN: Final = 8.0
_TOP: Final = 56  # of the first row
_CHARACTER: Final = 7  # width, at most
_PLOT, _COSTS = 360, 190  # widths of the intervals, and of the column of costs
_SURE, _UNSURE = "#1f6f8b", "#8a979e"


def interval_plot(found: SystemComparison) -> str:
    """Draw each system's difference to the reference with its 95 % interval, the best one on top; those sure are blue.

    Args:
        found: The comparison.

    Returns:
        A document of SVG, white in the background.
    """
    systems = sorted(found.systems, key=found.mean, reverse=True)
    rows = {name: found.difference(name, found.reference) for name in systems}
    intervals = {name: one.sets or one.queries for name, one in rows.items()}
    low, high = min(each[0] for each in intervals.values()), max(each[1] for each in intervals.values())
    width = (high - low) or 1.0
    taken = found.taken if found.advice and found.is_enough else None
    left = 2 * _MARGIN + _CHARACTER * max(map(len, systems))

    def x(value: float) -> float:
        return round(left + _PLOT * (value - low) / width, 1)

    bottom = _TOP + _ROW * len(systems)
    lines = [
        _text(
            _MARGIN,
            20,
            f"{found.metric} × 100: difference to {found.reference} ({100 * found.mean(found.reference):.1f})",
        ),
        _text(left + _PLOT + 2 * _MARGIN, 40, "embedding, model"),
        f'<line x1="{x(0.0)}" y1="{_TOP - 18}" x2="{x(0.0)}" y2="{bottom - 12}" stroke="#444" stroke-dasharray="3 3"/>',
    ]
    for place, name in enumerate(systems):
        y, (begin, end) = _TOP + _ROW * place, intervals[name]
        mean = rows[name].mean
        sure = found.is_sure(rows[name]) or found.is_sure(found.difference(found.reference, name))
        colour = _SURE if sure else _UNSURE
        lines += [
            _text(_MARGIN, y + 4, name, weight="bold" if name == taken else "normal"),
            f'<line x1="{x(begin)}" y1="{y}" x2="{x(end)}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
            _dot(x(mean), y, colour, _label(name, mean, begin, end)),
            _text(left + _PLOT + 2 * _MARGIN, y + 4, _cost(found.costs.get(name))),
        ]
    lines += [_text(x(end), bottom + 8, f"{100 * end:+.0f}", anchor="middle") for end in sorted({low, 0.0, high})]
    size = f'width="{left + _PLOT + _COSTS}" height="{bottom + 20}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>\n"])


def _text(x: float, y: int, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


def _dot(x: float, y: int, colour: str, label: str) -> str:
    return f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"><title>{label}</title></circle>'


def _label(name: str, mean: float, low: float, high: float) -> str:
    return escape(f"{name}: {100 * mean:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})")


def _cost(cost: Cost | None) -> str:
    if cost is None or cost == Cost():
        return "–"
    return f"{seconds(cost.seconds)} s, {cost.model_bytes / 1e6:,.0f} MB"
