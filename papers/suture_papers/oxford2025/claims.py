"""The claims of oxford2025, as data. If they are decided by one of two data that fit the stitch, the other reports.

Thresholds that are this project's: a class counts as unknown at ``NONE`` per cent; a network does as well as its
parents within ``COMPARABLE`` points; a trait is conveyed if half of its carrier's is, and one step makes it if it
makes 0.8 of it, as ``suture.onset`` has both; a trend is monotone at Spearman's ρ of ``MONOTONE``. Untrained networks
know nothing if the trait's score is at most ``CHANCE`` per cent: twice the 10 % of ten classes, and
half of the least that a trained carrier shows.

A fit into a receiver that never learned a class either finds a way to it or does not, from pair to pair. So what is
claimed of a class that should not be named, or of where it appears, is counted (``Claim.counts``). So is an order of
four or five cuts, of which ρ takes few values.
"""

from dataclasses import replace
from typing import Any

from suture.extend import CONVEYED, STEP
from suture_papers.base.cells import NETWORKS, Where
from suture_papers.base.claims import Claim, Roles
from suture_papers.base.quantities import (
    AtCuts,
    Difference,
    Extreme,
    LargestStep,
    Mean,
    Quantity,
    Ratio,
    Slope,
    Step,
    Trend,
    WaysThatHold,
)
from suture_papers.oxford2025.plans import BLIND, CARS, DIGITS, IN_CONV, OTHERS, PICTURES, TRUCKS

ON_CARS, ON_TRUCKS = f"accuracy on {CARS}", f"accuracy on {TRUCKS}"
TRUE, ALTERED, WITHOUT = "cifar10/*", "cifar10 automobile*", "cifar10 without*"
PAIRED = "mnist+cifar10/*"
BOTH, UPPER, LOWER = "mnist+cifar10/*", "*cifar10 blacked out*", "*mnist blacked out*"
NARROW, WIDE = "pool?|fc*", "flatten"
NONE, COMPARABLE, MONOTONE, CHANCE, HALF = 5.0, 10.0, 0.8, 20.0, 0.5

ROLES = {
    TRUE: Roles("training images, true labels of all classes", "test images, true labels"),
    ALTERED: Roles("training images, every car labelled cat", "test images, true labels"),
    WITHOUT: Roles("training images without trucks", "test images, trucks among them"),
    PAIRED: Roles("MNIST-CIFAR, digit and picture of one class", "MNIST-CIFAR, one side black", "none"),
}
_FITS = {"default": "default fit", "published": "the paper's recipe"}


def _report(statement: str, source: str, quantity: Quantity, fitted: str, **settings: Any) -> Claim:
    merged: dict[str, Any] = {"unit": "%", "roles": ROLES[fitted]} | settings
    return Claim(statement, source, quantity, **merged)


# --- 4.1: traits can be inherited -------------------------------------------------------------------------------------


_BOTH_LABELS = "the labels of the fit decide the result: both are decided, for both architectures"


def claim_inherited(network: str, *, recovered: bool, cut: str = "") -> tuple[Claim, ...]:
    """Return the claims of cars and the other nine classes, both ways, by stitches fitted on either set of labels.

    ``recovered`` if the cars of the relabelled sender are to come back.
    """
    blind, made = f"{network} cars as cats", list[Claim]()
    for fitted, labels in ((ALTERED, "the altered labels"), (TRUE, "the true labels")):
        for sender, receiver in ((network, blind), (blind, network)):
            where = Where(score=ON_CARS, sender=sender, receiver=receiver, fit_data=fitted, receiver_cut=cut)
            way = f"{sender} → {receiver}, fitted on {labels}"
            if recovered and sender == blind:
                claim = _claim_recovered(where, way)
            else:
                claim = _claim_unknown(where, way, fitted, "section 4.1", "unable to correctly identify cars")
            made.append(replace(claim, reading=_BOTH_LABELS))
            if not recovered:
                made.append(_claim_comparable(where, way, fitted))
            published = Mean("stitched", replace(where, fit="published"))
            words = f"car accuracy: {way}, by the paper's recipe"
            made.append(_report(words, "section 4.1", published, fitted, fit=_FITS["published"]))
    return tuple(made)


def claim_one_set() -> Claim:
    """Claim that one set of labels makes both statements of section 4.1 true, that of MLPs and that of CNNs."""
    nothing, ways = float("-inf"), []
    for fitted in (ALTERED, TRUE):

        def cars(sender: str, receiver: str, cut: str = "", fitted: str = fitted) -> Where:
            return Where(score=ON_CARS, sender=sender, receiver=receiver, fit_data=fitted, receiver_cut=cut)

        regained = cars("cnn cars as cats", "cnn", WIDE)
        unknown = [cars("mlp", "mlp cars as cats"), cars("mlp cars as cats", "mlp")]
        unknown.append(cars("cnn", "cnn cars as cats", WIDE))
        none = [(nothing, Extreme((AtCuts("stitched", where),)), NONE) for where in unknown]
        share = Ratio(Mean("stitched", regained), Mean("receiver_score", regained), share=True)
        ways.append((*none, (CONVEYED, share, float("inf"))))
    return Claim(
        "one set of labels makes both statements true: no cars by MLPs either way nor by CNNs that the clean network "
        "sends to, and cars regained by CNNs that the relabelled one sends to (sets of labels, of two)",
        "section 4.1",
        WaysThatHold(tuple(ways)),
        "≥",
        1.0,
        unit="sets",
        ours=True,
        paper="“unable to correctly identify cars”, and “after sufficient training” able",
        roles=Roles("either set of labels", "test images, true labels"),
        reading="the paper does not state which labels it used, so one set has to make both statements true",
        counts=True,
    )


def claim_narrow() -> tuple[Claim, ...]:
    """Report the same of CNNs with a 1×1 convolution alone."""
    made, names = list[Claim](), ("cnn", "cnn cars as cats")
    for fitted, labels in ((TRUE, "the true labels"), (ALTERED, "the altered labels")):
        for sender, receiver in (names, names[::-1]):
            where = Where(score=ON_CARS, sender=sender, receiver=receiver, fit_data=fitted, receiver_cut="pool2")
            statement = f"car accuracy: {sender} → {receiver}, fitted on {labels}, by a 1×1 convolution"
            made.append(_report(statement, "section 4.1", Mean("stitched", where), fitted))
    return tuple(made)


def _claim_unknown(where: Where, way: str, fitted: str, source: str, paper: str, what: str = "car") -> Claim:
    statement = f"{what} accuracy is at most {NONE:g} %: {way}"
    quantity = Extreme((AtCuts("stitched", where),))
    settings: dict[str, Any] = {"unit": "%", "ours": True, "paper": paper, "roles": ROLES[fitted], "counts": True}
    return Claim(statement, source, quantity, "≤", NONE, **settings)


def _claim_recovered(where: Where, way: str) -> Claim:
    return Claim(
        f"car accuracy is at least {CONVEYED:g} of the clean network's own: {way}",
        "section 4.1",
        Ratio(Mean("stitched", where), Mean("receiver_score", where), share=True),
        "≥",
        CONVEYED,
        unit="share",
        ours=True,
        paper="able to correctly identify cars, after sufficient training",
        roles=ROLES[where.fit_data],
    )


def _claim_comparable(where: Where, way: str, fitted: str) -> Claim:
    on = replace(where, score=OTHERS)
    lost = [Difference(Mean(parent, on), Mean("stitched", on)) for parent in ("sender_score", "receiver_score")]
    return Claim(
        f"the other nine classes are at most {COMPARABLE:g} pp below either parent: {way}",
        "section 4.1",
        Extreme(tuple(lost)),
        "≤",
        COMPARABLE,
        ours=True,
        paper="comparably to A and B on the other 9 image categories",
        roles=Roles(ROLES[fitted].fitted, "test images of the other nine classes", "both parents, on the same"),
    )


# --- 4.2: a trait can be located --------------------------------------------------------------------------------------

_AMONG_CUTS = replace(ROLES[TRUE], baseline="none: cuts are compared")
BEFORE = {"fc1": "pool?", "fc2": "pool?|fc1_relu", "fc3": "pool?|fc1_relu|fc2_relu"}
AFTER = {"fc1": "fc*", "fc2": "fc2_relu|fc3_relu", "fc3": "fc3_relu"}


def claim_located(layer: str, figure: str) -> tuple[Claim, ...]:
    """Return the claims of trucks before and behind the one layer that was trained on them, and of the step to it."""
    sender, made, source = f"cnn trucks in {layer}", list[Claim](), f"section 4.2, figure {figure}"
    for fitted in (TRUE, WITHOUT):
        labels = "all classes" if fitted == TRUE else "all classes but trucks"
        before, after, line = (
            Where(score=ON_TRUCKS, sender=sender, fit_data=fitted, receiver_cut=cut)
            for cut in (BEFORE[layer], AFTER[layer], NARROW)
        )
        way = f"trucks in {layer}, fitted on {labels}"
        unseen = f"before {layer}, where the sender never saw a truck"
        step = Step("stitched", line, cut=f"{layer}_relu")
        worst = Extreme((AtCuts("stitched", before),))
        if fitted == WITHOUT:
            made += [
                _report(f"most truck accuracy {unseen}: {way}", source, worst, fitted),
                _report(f"truck accuracy from {layer} on: {way}", source, Mean("stitched", after), fitted),
                _report(f"share of it that the step to {layer} makes: {way}", source, step, fitted, unit="share"),
            ]
        else:
            enough = AtCuts("stitched", after, minus=("sender_score", after), times=CONVEYED)
            conveyed = f"from {layer} on truck accuracy is above {CONVEYED:g} of the sender's own at every cut: {way}"
            localised = f"the step to {layer} makes at least {STEP:g} of the most truck accuracy: {way}"
            of_sender = replace(ROLES[fitted], baseline="the sender, on the same test images")
            paper = "comparable performance on trucks to the other 9 categories"
            made += [
                _claim_unknown(before, f"{unseen}, {way}", fitted, source, "unable to recognise trucks", "truck"),
                Claim(
                    *(conveyed, source, Extreme((enough,), True), "≥", 0.0),
                    ours=True,
                    paper=paper,
                    roles=of_sender,
                ),
                Claim(
                    *(localised, source, step, "≥", STEP),
                    unit="share",
                    ours=True,
                    paper="the performance jumps up",
                    roles=_AMONG_CUTS,
                    counts=True,
                ),
            ]
    own = Where(score=ON_TRUCKS, sender=sender, fit_data=TRUE, receiver_cut=NARROW)
    after = Where(score=ON_TRUCKS, sender=sender, fit_data=TRUE, receiver_cut=AFTER[layer])
    short = Difference(Mean("stitched", replace(after, score=OTHERS)), Mean("stitched", after))
    words = f"from {layer} on, the other nine classes minus trucks: trucks in {layer}, fitted on all classes"
    made.append(_report(words, source, short, TRUE, unit="pp"))
    made.append(_report(f"truck accuracy of the sender itself: trucks in {layer}", source, _mean_of_sender(own), TRUE))
    return (*made, *_report_by_recipe(layer, source, replace(own, fit="published")))


def claim_blind() -> tuple[Claim, ...]:
    """Return the claims on a special layer's addition to the blind network around it, and on convolutions alone."""
    made = list[Claim]()
    for layer in AFTER:
        after = Where(score=ON_TRUCKS, sender=f"cnn trucks in {layer}", fit_data=TRUE, receiver_cut=AFTER[layer])
        more = AtCuts("stitched", after, minus=("stitched", replace(after, sender=BLIND)))
        words = f"from {layer} on, trucks in {layer} are named more than by the blind network, at every cut"
        settings: dict[str, Any] = {"ours": True, "roles": _AMONG_CUTS, "counts": True}
        made.append(Claim(words, "section 4.2", Extreme((more,), smallest=True), ">", 0.0, **settings))
    line = Where(score=ON_TRUCKS, sender=BLIND, fit_data=TRUE, receiver_cut=NARROW)
    words = "blind into blind: most truck accuracy at a cut, of two networks that never saw a truck"
    made.append(_report(words, "section 4.2", Extreme((AtCuts("stitched", line),)), TRUE))
    own = Mean("accuracy", Where(table=NETWORKS, sender=IN_CONV))
    words = f"a blind network whose convolutions alone were trained on all classes names at most {NONE:g} % of trucks"
    alone = Roles("nothing: no stitch", "test images of trucks", "none")
    paper = "“just training the convolutional layers cannot produce a model capable of recognising trucks”"
    settings = {"unit": "%", "ours": True, "paper": paper, "roles": alone, "fit": "", "counts": True}
    return (*made, Claim(words, "section 4.2", own, "≤", NONE, **settings))


def _report_by_recipe(layer: str, source: str, line: Where) -> tuple[Claim, ...]:
    """Report the same by the paper's recipe."""
    parts = (
        (
            f"most truck accuracy before {layer}",
            Extreme((AtCuts("stitched", replace(line, receiver_cut=BEFORE[layer])),)),
        ),
        (f"truck accuracy at {layer}", Mean("stitched", replace(line, receiver_cut=f"{layer}_relu"))),
        (f"truck accuracy from {layer} on", Mean("stitched", replace(line, receiver_cut=AFTER[layer]))),
    )
    way = f"trucks in {layer}, fitted on all classes, by the paper's recipe"
    return tuple(
        _report(f"{words}: {way}", source, quantity, TRUE, fit=_FITS["published"]) for words, quantity in parts
    )


def _mean_of_sender(where: Where) -> Mean:
    return Mean("sender_score", where)


# --- 4.3: a distributed trait -----------------------------------------------------------------------------------------


def claim_steadily() -> tuple[Claim, ...]:
    """Claim that truck accuracy rises with the number of layers from the network that knows trucks."""
    made = list[Claim]()
    for fitted in (TRUE, WITHOUT):
        labels = "all classes" if fitted == TRUE else "all classes but trucks"
        where = Where(score=ON_TRUCKS, sender="cnn", fit_data=fitted, receiver_cut=NARROW)
        trend, slope = Trend("stitched", where, along="sender_depth"), Slope("stitched", where, along="sender_depth")
        source, way = "section 4.3, figure 3a", f"fitted on {labels}"
        statement = f"truck accuracy rises with the number of layers that the network with trucks gives: {way}"
        if fitted == TRUE:
            made.append(_claim_monotone(f"{statement} (Spearman's ρ ≥ {MONOTONE:g})", source, trend, fitted))
            made.append(_claim_gradual(where, way, source, fitted))
        else:
            made.append(_report(f"{statement} (Spearman's ρ)", source, trend, fitted, unit="ρ"))
        words = f"slope of truck accuracy, for the whole depth from input to output: {way}"
        made.append(_report(words, source, slope, fitted, unit="pp"))
        if fitted == TRUE:
            trend = replace(trend, where=replace(where, fit="published"))
            words = f"{statement} (Spearman's ρ), by the paper's recipe"
            made.append(_report(words, source, trend, fitted, unit="ρ", fit=_FITS["published"]))
    return tuple(made)


def _claim_gradual(where: Where, way: str, source: str, fitted: str) -> Claim:
    return Claim(
        f"no step between cuts makes more than {HALF:g} of the truck accuracy at the last one: {way}",
        source,
        LargestStep("stitched", where),
        "≤",
        HALF,
        unit="share",
        ours=True,
        paper="gets progressively worse as the number of layers from A decreases",
        roles=ROLES[fitted],
        counts=True,
        reading="a single jump has a perfect order too, so the largest step of a pair counts. This was changed after "
        "the figures had been seen",
    )


def _claim_monotone(statement: str, source: str, trend: Trend, fitted: str, rises: bool = True) -> Claim:
    paper = "steadily" if fitted == PAIRED else "gets progressively worse as the number of layers from A decreases"
    direction, threshold = ("≥", MONOTONE) if rises else ("≤", -MONOTONE)
    settings: dict[str, Any] = {"unit": "ρ", "ours": True, "paper": paper, "roles": ROLES[fitted]}
    return Claim(statement, source, trend, direction, threshold, counts=True, **settings)  # type: ignore[arg-type]


_SIDES = (("MNIST", UPPER, True), ("CIFAR", LOWER, False))


def claim_opposite() -> tuple[Claim, ...]:
    """Return the claims of both sides along the cuts, and of the stitch of high capacity."""
    made = list[Claim]()
    for side, scored, rises in _SIDES:
        where = Where(sender=DIGITS, fit_data=PAIRED, score_data=scored, receiver_cut=NARROW)
        trend, moves = Trend("stitched", where, along="sender_depth"), "rises" if rises else "falls"
        bound = f"ρ {'≥' if rises else '≤'} {MONOTONE if rises else -MONOTONE:g}"
        statement = f"{side}-side accuracy {moves} with the number of layers from the network of digits"
        made.append(_claim_monotone(f"{statement} ({bound})", "section 4.3, figure 3b", trend, PAIRED, rises))
    alike = AtCuts("stitched", Where(sender=PICTURES, score_data=LOWER, receiver_cut=NARROW))
    words = "CIFAR-side accuracy at the worst cut of a network of pictures into another, where nothing is to be lost"
    made.append(_report(words, "section 4.3", Extreme((alike,), True), PAIRED))
    return (*made, *(_claim_lifted(side, scored) for side, scored, _ in _SIDES))


def _claim_lifted(side: str, scored: str) -> Claim:
    wide, narrow = (
        Where(sender=DIGITS, fit_data=PAIRED, score_data=scored, sender_cut="pool2", receiver_cut=cut)
        for cut in (WIDE, "pool2")
    )
    quantity = Difference(Mean("stitched", wide), Mean("stitched", narrow))
    statement = (
        f"at Pool2 the linear stitch of high capacity lifts {side}-side accuracy above that of the 1×1 convolution"
    )
    return Claim(
        statement, "section 4.3, figure 3b", quantity, ">", 0.0, paper="increases across the board", roles=ROLES[PAIRED]
    )


def claim_robust() -> tuple[Claim, ...]:
    """Report the figures of section 6.1, and those of its two networks by themselves."""
    made = list[Claim]()
    scored = (
        ("both sides", BOTH, "98 %"),
        ("the MNIST side alone", UPPER, "82 %"),
        ("the CIFAR side alone", LOWER, "42 %"),
    )
    for fit in ("default", "published"):
        for words, data, paper in scored:
            where = Where(sender=DIGITS, fit_data=PAIRED, score_data=data, receiver_cut=WIDE, fit=fit)
            statement = f"accuracy of the stitched network on {words}: {_FITS[fit]}"
            made.append(_report(statement, "section 6.1", Mean("stitched", where), PAIRED, paper=paper, fit=_FITS[fit]))
    own = (
        ("the network of digits", "sender_score", ("97 %", "97 %", "0 %")),
        ("the network of pictures", "receiver_score", ("63 %", "0 %", "63 %")),
    )
    for network, column, papers in own:
        for (words, data, _), paper in zip(scored, papers, strict=True):
            where = Where(sender=DIGITS, fit_data=PAIRED, score_data=data, receiver_cut=WIDE)
            made.append(
                _report(f"{network} itself on {words}", "section 6.1", Mean(column, where), PAIRED, paper=paper)
            )
    return tuple(made)


# --- the control ------------------------------------------------------------------------------------------------------


def claim_controlled() -> tuple[Claim, ...]:
    """Return the claims of every trait of untrained networks, at the worst cut, by both fits.

    A network that calls every image a car knows all cars, and none from the rest. So of a class counts the lesser of
    its own accuracy and that on all classes, which for such a network is chance.
    """
    made, line = list[Claim](), {"receiver_cut": NARROW}
    traits = (
        ("cars, MLP behind the fifth layer", {"score": ON_CARS, "sender": "*mlp*"}, TRUE),
        ("cars, CNN at the worst cut of the line", {"score": ON_CARS, "sender": "*cnn*", **line}, TRUE),
        ("trucks, CNN at the worst cut of the line", {"score": ON_TRUCKS, "sender": "*cnn*", **line}, TRUE),
        ("the MNIST side, at the worst cut of the line", {"score_data": UPPER, **line}, PAIRED),
        ("the CIFAR side, at the worst cut of the line", {"score_data": LOWER, **line}, PAIRED),
    )
    for words, settings, fitted in traits:
        for fit in ("default", "published"):
            where = Where(control="untrained both", fit_data=fitted, fit=fit, **settings)  # type: ignore[arg-type]
            made += _claim_learned(words, where, fitted, _FITS[fit], decided=fit == "default")
    wide: tuple[tuple[str, dict[str, str], str], ...] = (
        ("cars, CNN", {"score": ON_CARS}, TRUE),
        ("trucks, CNN", {"score": ON_TRUCKS}, TRUE),
        ("the MNIST side", {"score_data": UPPER}, PAIRED),
        ("the CIFAR side", {"score_data": LOWER}, PAIRED),
    )
    for words, settings, fitted in wide:
        where = Where(control="untrained both", fit_data=fitted, receiver_cut=WIDE, **settings)  # type: ignore[arg-type]
        words = f"{words}, stitch from Pool2 to the flattened vector"
        made += _claim_learned(words, where, fitted, _FITS["default"], decided=False)
    return tuple(made)


def _claim_learned(words: str, where: Where, fitted: str, fit: str, decided: bool) -> list[Claim]:
    """Return the claims on a trait in untrained networks: at most ``CHANCE`` if that is ``decided``."""
    by = "" if fit == _FITS["default"] else ", by the paper's recipe"
    statement = f"untrained networks: accuracy on {words}{by}"
    settings: dict[str, Any] = {"unit": "%", "roles": ROLES[fitted], "fit": "default" if not by else fit}
    plain = Extreme((AtCuts("stitched", where),))
    of_class = where.score in (ON_CARS, ON_TRUCKS)
    on_all = ("stitched", replace(where, score="accuracy"))
    quantity = Extreme((AtCuts("stitched", where, least=on_all),)) if of_class else plain
    if of_class:
        statement = f"{statement}, or on all classes where that is less"
    if decided:
        settings |= {"ours": True, "paper": "cannot learn the traits"}
        made = [Claim(f"{statement}: at most {CHANCE:g} %", "section 3", quantity, "≤", CHANCE, **settings)]
    else:
        made = [Claim(statement, "section 3", quantity, **settings)]
    if of_class:
        settings |= {"ours": False, "paper": ""}
        alone = f"untrained networks: accuracy on {words}{by}, counting only images of the class"
        made.append(Claim(alone, "section 3", plain, **settings))
    return made
