"""All pictures, drawn by matplotlib: lines or dots on two axes, and tables of shades.

A caller passes numbers and names (``Series``, ``Axis``, ``Table``), gets a ``Figure``, and converts
it to the text of an SVG file with ``svg``. Only this file uses matplotlib, and only its objects,
without a window or a current figure. It is imported by the functions that draw, so that other
commands do not wait for it. The same numbers give the same text.

SVG files are made small and self-contained, with a tooltip on each mark. Matplotlib writes
addresses, a DTD and an id for every group; here only visible elements are kept, with coordinates to
a hundredth of a pixel. A group whose id is a JSON list of texts has a mark for each text, which
becomes the mark's ``<title>``; browsers show it under the pointer.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.foreign import check_installed
from gnnplace.report import html

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Scale
    from matplotlib.figure import Figure

Picture: TypeAlias = "Figure"
"""A picture that `chart` drew and `svg` writes: matplotlib's own."""

SPACE = "http://www.w3.org/2000/svg"
FONT = "font-family: 'DejaVu Sans', sans-serif"
NUMBERS = ("d", "x", "y", "transform", "width", "height")
LONG = re.compile(r"-?\d+\.\d+")
UNTURNED = re.compile(r"rotate\(-?0 [^)]*\)")


def register_tooltips(texts: Sequence[str]) -> str:
    """Return the id of a group whose marks have these tooltips; "" for a mark without one."""
    return json.dumps(list(texts))


def clean_svg(drawn: str, name: str) -> str:
    """Return the picture as the text of an SVG file that may also stand inside a page.

    Args:
        drawn: an SVG document of matplotlib's.
        name: what the picture is called, for who cannot see it.

    Raises:
        ValueError: a group has not as many marks as texts.
    """
    root = ElementTree.fromstring(drawn)
    for element in root.iter():
        _shorten(element)
    for group in root.iter("g"):
        called = group.attrib.pop("id", "")
        if called.startswith("["):
            _tell(group, json.loads(called))
    _flatten(root)
    ElementTree.indent(root, "")
    box = root.get("viewBox", "0 0 0 0")
    size = dict(zip(("width", "height"), box.split()[2:], strict=True))
    look = {"font-family": "DejaVu Sans, sans-serif", "stroke-linejoin": "round"}
    root.attrib = {
        "xmlns": SPACE,
        "viewBox": box,
        **size,
        "role": "img",
        "aria-label": name,
        **look,
    }
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _shorten(element: Element) -> None:
    """Shorten an element: no namespaces, short numbers, no rule that the whole picture has."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {key.rpartition("}")[2]: text for key, text in element.attrib.items()}
    for key in attributes.keys() & set(NUMBERS):
        text = " ".join(UNTURNED.sub("", attributes[key]).split())
        attributes[key] = LONG.sub(
            lambda number: f"{round(float(number[0]), 2):g}", text
        )
    if "C" not in attributes.get("d", "C"):  # a move's further points are lines
        attributes["d"] = attributes["d"].replace(" L ", " ")
    rules = [rule for rule in attributes.get("style", "").split("; ") if rule != FONT]
    attributes["style"] = ";".join(rules).replace(": ", ":").replace("#ffffff", "#fff")
    element.attrib = {key: text for key, text in attributes.items() if text}


def _tell(group: Element, texts: Sequence[str]) -> None:
    """Put a title into each of the group's marks: its markers, or its paths if it has none."""
    marks = group.findall(".//use") or group.findall(".//path")
    for mark, text in zip(marks, texts, strict=True):
        if text:
            title = Element("title")
            title.text = text
            mark.insert(0, title)


def _flatten(element: Element) -> None:
    """Take out what is not seen, and groups without attributes."""
    children: list[Element] = []
    for child in element:
        _flatten(child)
        if child.tag == "g" and not child.attrib:
            children += list(child)
        elif child.tag not in ("metadata", "style") and (
            child.tag != "defs" or len(child)
        ):
            children.append(child)
    element[:] = children


# Okabe and Ito's colours, told apart by colour-blind readers; in turn where there are more lines.
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#999999",
)
BLUE = COLOURS[0]
VERMILION = COLOURS[1]
GREY = COLOURS[-1]
DASHES, MARKERS = ("-", "--", ":"), ("o", "s", "^")  # a set of colours each
KINDS = (".svg", ".html")
WIDE, SQUARE = (10.5, 5.8), (8.6, 5.8)  # Sizes of pictures, in units of 72 pixels
LETTERS = 95  # The letters of a title's line
DECADES = 2.5  # From as many on, an axis names powers of ten alone
Table = Mapping[str, Sequence[float]]  # numbers by a row's name; nan for an empty cell
PALE, DEEP = "#ebf5eb", "#b2182b"  # The least and the most shade
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "gnnplace",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.edgecolor": "#444444",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Series:
    """Numbers that are drawn alike.

    Attributes:
        name: The name in the legend; empty for what needs no entry.
        x: the horizontal place of each point.
        y: the vertical place of each point.
        told: tooltip of each dot, or one of the line where it has no dots.
        low: lower end of each point's interval, if it is shaded.
        high: upper end of it.
        joined: Whether points are joined by straight lines, by steps that keep a point's y up to
            the next x, or not.
        dots: whether points are marked.
        colour: the next of ``COLOURS`` where none is given.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    told: Sequence[str] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    joined: str = "straight"
    dots: bool = True
    colour: str = ""


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        name: The name, with its unit.
        logarithmic: or linear.
        limits: its ends; by the numbers, where none are given.
        ticks: numbers that are named; round ones, where none are given.
        text: how a number is named.
    """

    name: str
    logarithmic: bool = False
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] = ()
    text: Callable[[float], str] = "{:g}".format


@contextmanager
def _style() -> Iterator[None]:
    """Use our settings of matplotlib inside, and restore the former ones."""
    from matplotlib import rc_context

    with rc_context(SETTINGS):
        yield


@_style()
def chart(
    series: Sequence[Series],
    axes: tuple[Axis, Axis],
    *,
    title: str,
    note: str = "",
    square: bool = False,
) -> Figure:
    """Draw lines and dots, with a legend if they have names.

    Args:
        series: The series in the order of the legend.
        axes: x and y.
        title: first line.
        note: second line, smaller.
        square: whether both axes are equally long.
    """
    figure = _figure(title, SQUARE if square else WIDE)
    plot = figure.add_subplot(box_aspect=1 if square else None)
    plot.set_title(fill(note, LETTERS), loc="left", fontsize=9, color="#555555")
    plot.grid(visible=True)
    for number, one in enumerate(series):
        _draw(plot, one, number)
    for letter, axis in zip("xy", axes, strict=True):
        _scale(plot, letter, axis)
    if any(one.name for one in series):
        plot.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)
    return figure


def _figure(title: str, size: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(fill(title, LETTERS), x=0.01, ha="left", fontsize=12)
    return figure


def _draw(plot: Axes, one: Series, number: int) -> None:
    colour = one.colour or COLOURS[number % len(COLOURS)]
    turn = number // len(COLOURS) % 3
    [line] = plot.plot(
        one.x,
        one.y,
        color=colour,
        label=one.name,
        linestyle="none" if one.joined == "none" else DASHES[turn],
        drawstyle="steps-post" if one.joined == "steps" else "default",
        marker=MARKERS[turn] if one.dots else "",
        markersize=6 if len(one.x) < 50 else 3.5,
        markeredgewidth=0,
        clip_on=not one.dots,
    )
    if one.told:
        line.set_gid(register_tooltips(one.told))
    if one.low:
        plot.fill_between(
            one.x, one.low, one.high, color=colour, alpha=0.12, linewidth=0
        )


def _scale(plot: Axes, letter: str, axis: Axis) -> None:
    """Set up the x or the y axis, after its lines are drawn."""
    from matplotlib import ticker

    kind = "log" if axis.logarithmic else "linear"
    plot.set(**{f"{letter}label": axis.name, f"{letter}scale": kind})
    if axis.limits is not None:
        plot.set(**{f"{letter}lim": axis.limits})
    scale: Scale = getattr(plot, f"{letter}axis")
    if axis.logarithmic:
        low, high = scale.get_view_interval()
        is_short = np.log10(high / low) < DECADES
        scale.set_major_locator(
            ticker.LogLocator(subs=(1, 2, 5) if is_short else (1,), numticks=20)
        )
    if axis.ticks:
        scale.set_major_locator(ticker.FixedLocator(list(axis.ticks)))
    scale.set_minor_locator(ticker.NullLocator())
    scale.set_major_formatter(ticker.FuncFormatter(lambda value, _: axis.text(value)))


@_style()
def mark(figure: Figure, across: float, up: float, text: str, tooltip: str) -> None:
    """Mark a point of a chart by a larger dot and a text on the side with more room."""
    [plot] = figure.axes
    [dot] = plot.plot(
        [across], [up], "o", color=VERMILION, markersize=10, markeredgewidth=0
    )
    dot.set_gid(register_tooltips([tooltip]))
    plot.autoscale_view()
    to_axes = plot.transScale + plot.transLimits
    is_right_half = to_axes.transform((across, up))[0] > 0.5
    plot.annotate(
        text,
        (across, up),
        xytext=(-10 if is_right_half else 10, 10),
        textcoords="offset points",
        ha="right" if is_right_half else "left",
        color=VERMILION,
    )


@_style()
def heat(
    tables: Mapping[str, Table],
    columns: Sequence[str],
    *,
    title: str,
    unit: str,
    most: float,
) -> Figure:
    """Draw tables of numbers below one another. Larger numbers are darker.

    Args:
        tables: The tables by heading, from top to bottom.
        columns: names, which all tables share.
        title: first line.
        unit: the unit of the numbers, for the tooltips.
        most: number from which on shades are the darkest.
    """
    heights = [len(table) for table in tables.values()]
    figure = _figure(
        title, (2.2 + 0.62 * len(columns), 1.8 + 0.27 * (sum(heights) + len(tables)))
    )
    plots = figure.subplots(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
    for plot, (name, table) in zip(plots, tables.items(), strict=True):
        _shade(plot, table, columns, unit, most)
        plot.set_title(name, loc="left", x=-0.01, y=1.0, ha="right", fontweight="bold")
        plot.set_yticks([0.5 + row for row in range(len(table))], list(table))
        plot.set_xticks([])
    centres = [0.5 + column for column in range(len(columns))]
    plots[0].set_xticks(
        centres, columns, rotation=50, ha="left", rotation_mode="anchor"
    )
    plots[0].xaxis.set_ticks_position("top")
    return figure


def _shade(
    plot: Axes, table: Table, columns: Sequence[str], unit: str, most: float
) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("shades", [PALE, DEEP])
    values = np.array(list(table.values()))
    names = list(table)
    shown = np.ma.masked_invalid(values)
    cells = plot.pcolormesh(
        shown, cmap=colours, vmin=0, vmax=most, edgecolors="w", clip_on=False
    )
    texts = dict.fromkeys(np.ndindex(values.shape), "")
    for row, column in np.argwhere(np.isfinite(values)).tolist():
        number = f"{values[row, column]:.1f}"
        texts[row, column] = f"{names[row]}, {columns[column]}: {number} {unit}"
        if values[row, column] > 0.6 * most:
            colour = "w"
        else:
            colour = "#222222"
        place = (column + 0.5, row + 0.5)
        plot.text(*place, number, ha="center", va="center", fontsize=8, color=colour)
    cells.set_gid(register_tooltips(list(texts.values())))
    plot.invert_yaxis()
    plot.spines[:].set_visible(False)
    plot.tick_params(length=0)


@_style()
def svg(figure: Figure) -> str:
    """Return the picture as the text of an SVG file with tooltips, which needs nothing else."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return clean_svg(file.getvalue(), _title(figure))


def _title(figure: Figure) -> str:
    return figure.get_suptitle().replace("\n", " ")


def check_drawable(path: str | Path) -> None:
    """Check, before the work, that a picture or a page with pictures can be drawn.

    Raises:
        InputError: The file's name ends neither in .svg nor in .html.
        MissingExtraError: matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in KINDS:
        raise InputError(f"{path}: a picture is drawn as {' or '.join(KINDS)}")
    check_installed("matplotlib")


def write_picture(path: str | Path, figure: Figure) -> None:
    """Write NAME.svg, or NAME.html with the picture in it.

    Raises:
        InputError: another kind of file, or one that can't be written.
    """
    check_drawable(path)
    text = svg(figure)
    if Path(path).suffix.lower() == ".html":
        text = html.page(_title(figure), [html.figure(text)])
    write_text(path, text)
