"""The charts of a cost report, as SVG that lies inside a page: text stays text, colours tell apart in grey.

Each function draws what it is given and returns one `<svg>` element without an id, a script or an address.
Everything in it is escaped. The same input gives the same text. Thread-safe: matplotlib's settings are the
process's own, so one chart is drawn at a time.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from kvsdk.cost.reports.page_text import dollars, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

CLASSES = ("input", "cache read", "cache write", "output", "other")
"""What a request's cost is made of; `other` is storage, server tools, and what is known only as a whole."""

_LOOKS: dict[str, Any] = dict(
    zip(
        CLASSES,
        (
            {"facecolor": "#16324f"},
            {"facecolor": "#bcd9ee"},
            {"facecolor": "#5b93bf", "hatch": "////"},
            {"facecolor": "#f0c36d", "hatch": "\\\\\\\\"},
            {"facecolor": "#f4f4f4", "hatch": "xxxx"},
        ),
        strict=True,
    )
)
"""From dark to light, and with a hatch where two come close: in grey they stay apart."""

_DARK, _LIGHT, _LINE = "#1f4e79", "#e3b9a4", "#555555"
_STYLE = {
    "axes.edgecolor": _LINE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 8,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "hatch.color": "#444444",
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.parse_math": False,
    **{f"{axis}tick.color": _LINE for axis in "xy"},
    **{f"{axis}tick.labelcolor": "black" for axis in "xy"},
}
_WIDTH_IN = 5.6
_MAX_TICKS = 8
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_lock = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time: the dollars spent in it by class, and its hit rate where anything was metered."""

    start: datetime
    cost_usd: Mapping[str, Decimal]
    hit_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a session saved. `is_rest` marks the line that stands for all the others."""

    name: str
    saved_usd: Decimal
    is_rest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """How many requests cost from `low_usd` up to, and not including, `high_usd`."""

    low_usd: Decimal
    high_usd: Decimal
    requests: int


def cost_chart(spans: Sequence[Span], *, title: str, step: str, form: str) -> str:
    """Dollars by time, stacked by class.

    Args:
        spans: Without holes: one for each step, in order.
        title: What the chart shows, for those who cannot see it.
        step: What a span is, such as `day`.
        form: How its start is written, for `strftime`.
    """

    def draw(axes: Axes) -> None:
        places = range(len(spans))
        below = [0.0] * len(spans)
        for name in CLASSES:
            heights = [max(0.0, float(span.cost_usd.get(name, 0))) for span in spans]
            if any(heights):
                axes.bar(places, heights, 0.8, below, label=name, edgecolor="white", lw=0.3, **_LOOKS[name])
            below = [low + height for low, height in zip(below, heights, strict=True)]
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=5, handlelength=1.6, columnspacing=1)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("cost, US dollars")
        _label_dollars(axes.yaxis)
        _time_axis(axes, spans, step, form)

    return _svg(draw, title=title, height_in=2.6)


def hit_chart(spans: Sequence[Span], *, title: str, step: str, form: str) -> str:
    """The hit rate by time; a span without metered requests is a gap in the line."""

    def draw(axes: Axes) -> None:
        rates = [float("nan") if span.hit_rate is None else span.hit_rate * 100 for span in spans]
        size = 3.5 if len(spans) <= 40 else 2
        axes.plot(range(len(spans)), rates, color=_DARK, marker="o", markersize=size, linewidth=1.2)
        top = max(100.0, *(span.hit_rate * 100 for span in spans if span.hit_rate is not None))
        axes.set_ylim(0, top * 1.04)
        axes.set_ylabel("hit rate, % of input tokens")
        _time_axis(axes, spans, step, form)

    return _svg(draw, title=title, height_in=2.3)


def saved_chart(savings: Sequence[Saving], *, title: str) -> str:
    """Dollars saved, a bar for each session; below zero the cache cost more than it saved.

    A rest that would dwarf the sessions has its figure and no bar.
    """

    def draw(axes: Axes) -> None:
        reach = max(abs(saving.saved_usd) for saving in savings if not saving.is_rest)
        for place, saving in enumerate(savings):
            is_drawn = not saving.is_rest or abs(saving.saved_usd) <= 3 * reach
            if is_drawn:
                _saving_bar(axes, place, saving)
            figure = dollars(saving.saved_usd) + ("" if is_drawn else " (no bar)")
            axes.text(1.02, place, figure, transform=axes.get_yaxis_transform(), va="center")
        axes.set_yticks(range(len(savings)), [shortened(saving.name) for saving in savings])
        axes.set_ylim(len(savings) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.axvline(0, color=_LINE, linewidth=0.6)
        axes.set_xlabel("saved, US dollars")
        axes.locator_params(axis="x", nbins=4)
        _label_dollars(axes.xaxis)

    return _svg(draw, title=title, height_in=0.75 + 0.19 * len(savings))


def _saving_bar(axes: Axes, place: int, saving: Saving) -> None:
    is_loss = saving.saved_usd < 0
    colour = "#9a9a9a" if saving.is_rest else _LIGHT if is_loss else _DARK
    hatch = "////" if is_loss else None
    axes.barh(place, float(saving.saved_usd), 0.7, color=colour, edgecolor="white", lw=0.3, hatch=hatch)


def distribution_chart(bins: Sequence[Bin], *, title: str) -> str:
    """How many requests cost how much, on a logarithmic axis."""
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Axes) -> None:
        lows = [float(bin.low_usd) for bin in bins]
        widths = [float(bin.high_usd - bin.low_usd) for bin in bins]
        counts = [bin.requests for bin in bins]
        axes.set_xscale("log")
        axes.bar(lows, counts, widths, align="edge", color=_DARK, edgecolor="white", linewidth=0.4)
        low, high = min(bin.low_usd for bin in bins), max(bin.high_usd for bin in bins)
        axes.set_xlim(float(low) / 1.5, float(high) * 1.5)
        ticks = _decades(low / Decimal("1.5"), high * Decimal("1.5"))
        axes.set_xticks([float(tick) for tick in ticks], [f"${tick.normalize():,f}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("cost per request, US dollars (logarithmic)")
        axes.set_ylabel("requests")
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")
        axes.grid(visible=False, axis="x")

    return _svg(draw, title=title, height_in=2.3)


def _decades(low: Decimal, high: Decimal) -> list[Decimal]:
    """Ticks of a logarithmic axis: 1, 2, 5 in each decade while they are few, else decades, else fewer."""
    for figures, stride in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        exponents = range(low.adjusted(), high.adjusted() + 1)
        ticks = [
            Decimal(figure).scaleb(power) for power in exponents if power % stride == 0 for figure in figures
        ]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= 6:
            break
    return inside


def _time_axis(axes: Axes, spans: Sequence[Span], step: str, form: str) -> None:
    ticks = _time_ticks(spans, step)
    axes.set_xticks(ticks, [spans[tick].start.strftime(form) for tick in ticks])
    margin = max(0.6, (6 - len(spans)) / 2)  # a few bars are not as wide as the page
    axes.set_xlim(-margin, len(spans) - 1 + margin)
    axes.grid(visible=False, axis="x")
    first, last = (span.start.strftime("%Y-%m-%d") for span in (spans[0], spans[-1]))
    axes.set_xlabel(f"{step} (UTC), {first}" + (f" to {last}" if first != last else ""))


def _time_ticks(spans: Sequence[Span], step: str) -> list[int]:
    """Places of a few spans; where they are hours, of round ones."""
    if step != "hour":
        return list(range(0, len(spans), -(-len(spans) // _MAX_TICKS)))
    stride = next(stride for stride in (1, 2, 3, 6, 12, 24) if len(spans) <= stride * 6 or stride == 24)
    ticks = [place for place, span in enumerate(spans) if span.start.hour % stride == 0]
    return ticks or [0]


def _label_dollars(axis: Axis) -> None:
    """Round numbers of dollars with as many places as the finest of them needs, none or at least two."""
    low, high = axis.get_view_interval()
    ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    numbers = [Decimal(f"{tick:.6g}").normalize() for tick in ticks]
    places = max(-int(number.as_tuple().exponent) for number in numbers)
    places = max(places, 2) if places > 0 else 0
    labels = [f"-${-number:,.{places}f}" if number < 0 else f"${number:,.{places}f}" for number in numbers]
    axis.set_ticks(ticks, labels=labels)


def _svg(draw: Callable[[Axes], None], *, title: str, height_in: float) -> str:
    import io

    import matplotlib.style
    from matplotlib.figure import Figure

    style: Any = ["default", {**_STYLE, "svg.hashsalt": title}]
    buffer = io.StringIO()
    with _lock, warnings.catch_warnings(), matplotlib.style.context(style):
        warnings.filterwarnings("ignore", message="Glyph ")  # the reader's fonts draw it, not ours
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        draw(figure.subplots())
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    return _embedded(buffer.getvalue(), title)


def _embedded(document: str, title: str) -> str:
    """A whole SVG document as an element of a page: no namespaces, fonts and sizes of its own."""
    root = ElementTree.fromstring(document)
    for parent in root.iter():
        for style in parent.findall(f"{_SVG}style"):
            parent.remove(style)  # it would hold for the whole page
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        if element.tag == "g":
            element.attrib.pop("id", None)  # each chart has a figure_1
        if _LINK in element.attrib:
            element.set("href", element.attrib.pop(_LINK))
        if element.tag == "text":
            element.set("style", re.sub(r"font-family: [^;]*;", "", element.get("style", "")))
    box = root.get("viewBox", "")
    root.attrib = {"viewBox": box, "role": "img", "aria-label": title}
    name = ElementTree.Element("title")
    name.text = title
    root.insert(0, name)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)
