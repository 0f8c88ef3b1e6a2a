"""``suture localise``: the layers of a network in which a trait lies.

A trait is written as its kind, a colon, and what it is of: see ``EXAMPLES``.
"""

from argparse import Namespace
from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any

from suture.cli import output
from suture.cli.measuring import measure, measuring, seams_of, settings_of
from suture.cli.options import NameOption, command, load_with_networks, model_option, option, pictures
from suture.common.errors import DataError, SutureError
from suture.common.names import check_name, make, make_all

if TYPE_CHECKING:
    from suture.data import Data
    from suture.measurement.scores.traits import Trait

EXAMPLES = {
    "accuracy": "accuracy:truck",
    "confusion": "confusion:car>cat",
    "blackout": "blackout:top or blackout:0,0,4,8",
    "trigger": "trigger:cat@0,0,3,3,1.0",
    "fgsm": "fgsm:0.03",
    "variant": "variant:digit",
}
_SIDES = ("top", "bottom", "left", "right")


@command(
    "localise",
    option(
        "trait",
        metavar="TRAIT",
        help="accuracy:LABEL, confusion:LABEL>TO, blackout:SIDE (or TOP,LEFT,HEIGHT,WIDTH), "
        "trigger:TO@TOP,LEFT,HEIGHT,WIDTH, fgsm:STRENGTH, or variant:VARIANT, which is accuracy on that",
        words=[f"{kind}:" for kind in EXAMPLES],
    ),
    model_option("carrier", metavar="CARRIER"),
    model_option("reference", metavar="REFERENCE", help="a network without the trait, named as the carrier is"),
    option(
        "--at",
        metavar="CUTS",
        help="by default all that both share; A,B,… or, if names differ, of carrier and reference A:X,B:Y,…",
    ),
    option(
        "--fit-variant",
        type=NameOption("variant"),
        nargs="+",
        metavar="VARIANT",
        help="changes of the data that fit the stitch, such as without,classes=0; those of --variant come first",
    ),
    *measuring(pictures("localise", "table.parquet")),
    examples=(
        "suture localise fgsm:0.03 nets/a nets/b --data cifar10 --out runs/fgsm",
        "suture localise 'confusion:0>1' a b --data mnist --out runs/ones",
    ),
)
def localise(chosen: Namespace) -> int:
    """Find the layers of a network in which a trait lies.

    Stitch a network that carries a trait to a reference without it, and back, at every cut that both share, with
    controls, and report between which cuts the trait lies, if both directions agree. The reference stitched to itself
    is always among the controls: if it shows the trait, the stitch has taught it. The answer depends on the data that
    fit the stitch: with --fit-variant these can be free of the trait.
    """
    from suture.data.changes import vary
    from suture.measurement.tables.onset import onset
    from suture.measurement.trials.localise import localise
    from suture.reports.figures import curve as figures
    from suture.reports.terminal import curve as screen

    trait, fit_variants = read_trait(chosen.trait), make_all("variant", chosen.fit_variant)
    settings, seams = settings_of(chosen), seams_of(chosen.at, "CARRIER_CUT:REFERENCE_CUT")
    if chosen.carrier == chosen.reference:
        raise SutureError(f"carrier and reference are one network, {chosen.carrier}; give another without the trait")
    data, networks = load_with_networks(chosen, [chosen.carrier, chosen.reference])
    carrier, reference = networks.values()
    made, fitted = trait(data), vary(data, *fit_variants)
    trials = localise(made, carrier, reference, data=data, fit_data=fitted, at=seams, **settings)
    table, folder = measure(chosen, trials, f"{made.name}, {carrier.name} ↔ {reference.name}", fitted)
    files = [folder / "table.parquet"] if folder is not None else []
    record: dict[str, Any] = {}
    try:
        found = onset(table, made, carrier.name, reference.name)
    except DataError as error:  # trials failed, of all seams of one way
        parts: output.Parts = [[f"nothing can be said of where '{made.name}' lies: {error}"]]
    else:
        files += figures.save(figures.localisation(table, found), folder / "localise") if folder is not None else []
        parts = output.trait_parts(found)
        record = screen.trait_record(found)
    return output.hand_over(chosen, table, files, parts, record)


# --- traits -----------------------------------------------------------------------------------------------------------


def read_trait(text: str) -> "Callable[[Data], Trait]":
    """Return a function that makes the trait that a text names from data.

    Raises ``SutureError`` for any other; what it returns raises ``DataError`` if the data have no such class or pixel.
    """
    from suture.measurement.scores import traits

    kind, _, given = (part.strip() for part in text.partition(":"))
    check_name("trait", kind, EXAMPLES)
    wrong = SutureError(f"trait {text}: write {kind} as in {EXAMPLES[kind]}")
    if not given:
        raise wrong
    if kind == "accuracy":
        return lambda data: traits.knows(data, given)
    if kind == "variant":
        on = traits.accuracy_on(make("variant", given))
        return lambda data: on
    if kind == "fgsm":
        attack = traits.falls_to(traits.FGSM(_numbers(given, 1, wrong)[0]))
        return lambda data: attack
    if kind == "blackout":
        if given in _SIDES:
            return lambda data: traits.accuracy_on(_half(text, given, data))
        covered = traits.accuracy_on(_rectangle(given, wrong))
        return lambda data: covered
    first, _, second = (part.strip() for part in given.partition(">" if kind == "confusion" else "@"))
    if not (first and second):
        raise wrong
    if kind == "confusion":
        return lambda data: traits.confuses(data, first, second)
    patch = _rectangle(second, wrong)
    return lambda data: traits.triggered(data, first, patch)


def _half(text: str, side: str, data: "Data") -> Any:
    """Return the variant that covers one half of the images of the data."""
    from suture.data.changes import Covered
    from suture.data.images import check_pictures

    check_pictures(f"trait {text}: blackout", data.fit.images)
    height, width = data.fit.images.shape[2:]
    down, across = (-(-height // 2), width) if side in ("top", "bottom") else (height, -(-width // 2))
    return Covered(height - down if side == "bottom" else 0, width - across if side == "right" else 0, down, across)


def _rectangle(text: str, wrong: SutureError) -> Any:
    """Return a rectangle, ``TOP,LEFT,HEIGHT,WIDTH`` in pixels and, if it is given, the value that covers it."""
    from suture.data.changes import Covered

    numbers = _numbers(text, 5 if text.count(",") == 4 else 4, wrong)
    if any(number != int(number) for number in numbers[:4]):
        raise wrong
    return Covered(*map(int, numbers[:4]), *numbers[4:])


def _numbers(text: str, count: int, wrong: SutureError) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise wrong from None
    if len(numbers) != count or not all(map(isfinite, numbers)):
        raise wrong
    return numbers
