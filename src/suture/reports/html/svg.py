"""Figures as SVG inside a page: matplotlib's own, made small, with a ``<title>`` wherever a mark says something.

A browser shows a title beside the pointer, and a reader of screens speaks it. Nothing of the figure is styled by
itself, so a Content-Security-Policy need not allow styles: whatever matplotlib writes as a style becomes an attribute.
"""

import re
from io import StringIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from suture.common.visible import visible
from suture.reports.figures.curve import ALL_NAMES, ASIDE, FEW_NAMES, Picture, Told, styled

_CLASSES = (ASIDE, FEW_NAMES, ALL_NAMES)  #: ids that the style sheet knows, as classes
_NUMBER = re.compile(r"-?\d+\.\d+")
_REFERENCE = re.compile(r"(?:^|url\()#([\w-]+)")
_REACH = 7.0  #: points around a point within which it is pointed at
_SCALE = 2.0  #: pixels for a point, where a figure is not fitted to the page


def draw(figure: Figure, label: str, prefix: str) -> str:
    """Return a figure as an ``<svg>`` element called ``label``, whose ids begin with ``prefix``."""
    figure.set_dpi(72)  # as SVG has it: points
    figure.patch.set_visible(False)
    for axes in figure.findobj(Axes):
        if same_color(axes.get_facecolor(), "white"):
            axes.patch.set_visible(False)
    written = StringIO()
    with styled():
        figure.savefig(written, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(visible(written.getvalue()))
    for one in root.iter():
        one.tag = one.tag.rpartition("}")[2]
        one.attrib = {name.rpartition("}")[2]: value for name, value in one.attrib.items()}
    referred = {name for one in root.iter() for value in one.attrib.values() for name in _REFERENCE.findall(value)}
    _tidy(root, referred, prefix)
    width, height = (float(end) for end in root.attrib["viewBox"].split()[2:])
    root.attrib = {
        "viewBox": f"0 0 {_short(width)} {_short(height)}",
        "width": _short(_SCALE * width),
        "height": _short(_SCALE * height),
        "role": "group",
        "aria-label": label,
    }
    if isinstance(figure, Picture) and figure.told:
        marks = SubElement(root, "g", {"class": "told"})
        for told in figure.told:
            _add(marks, told, height)
    return ElementTree.tostring(root, encoding="unicode")


def _tidy(parent: Element, referred: set[str], prefix: str) -> None:
    """Drop elements that a page does not need, shorten numbers, and make styles attributes and known ids classes."""
    kept: list[Element] = []
    for one in parent:
        if one.tag in ("metadata", "style"):
            continue
        _tidy(one, referred, prefix)
        held = one.attrib
        name = held.pop("id", "")
        for part in filter(None, held.pop("style", "").split(";")):
            key, _, value = part.partition(":")
            held[key.strip()] = value.strip()
        held.pop("font-family", None)  # the style sheet has one for all
        for key, value in held.items():
            held[key] = _NUMBER.sub(lambda found: _short(float(found[0])), value).replace("url(#", f"url(#{prefix}")
        if "href" in held:
            held["href"] = held["href"].replace("#", f"#{prefix}")
        if "d" in held:
            held["d"] = " ".join(held["d"].split())
        if name in _CLASSES:
            held["class"] = name
        elif name in referred:
            held["id"] = prefix + name
        one.attrib = {key: value for key, value in held.items() if not value.startswith("rotate(-0 ")}
        one.tail = None
        if one.tag not in ("text", "tspan") or (one.text and not one.text.strip()):
            one.text = None
        if one.tag in ("g", "defs") and not len(one):
            continue
        kept += list(one) if one.tag == "g" and not one.attrib else [one]
    parent[:] = kept


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _add(marks: Element, told: Told, height: float) -> None:
    """Add an unseen shape over a mark, with its title; nothing where the mark lies outside of its axes."""
    wide, tall = told.size or (0.0, 0.0)
    corners = told.axes.transData.transform([(told.x, told.y), (told.x + wide, told.y + tall)])
    (left, low), (right, high) = corners.min(0), corners.max(0)
    box = told.axes.get_window_extent()
    if not (box.x0 - 1 <= (left + right) / 2 <= box.x1 + 1 and box.y0 - 1 <= (low + high) / 2 <= box.y1 + 1):
        return
    if told.size is None:
        (here, _), (next_, _) = told.axes.transData.transform([(0, 0), (1, 0)])
        reach = min(_REACH, abs(next_ - here) / 2)  # not beyond the middle between two places
        shape = SubElement(marks, "circle", {"cx": _short(left), "cy": _short(height - low), "r": _short(reach)})
    else:
        ends = {"x": left, "y": height - high, "width": right - left, "height": high - low}
        shape = SubElement(marks, "rect", {name: _short(end) for name, end in ends.items()})
    if told.aside:
        shape.set("class", ASIDE)
    shape.set("role", "img")
    SubElement(shape, "title").text = visible(told.said)
