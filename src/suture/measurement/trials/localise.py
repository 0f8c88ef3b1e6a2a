"""Where in a network a trait lies: the carrier of a trait stitched to a reference network, both ways, at every cut.

Theory. A trait that lies in some layers of its carrier is shown by a stitched network that includes them. From carrier
to reference it includes the layers before the cut, so the trait appears as the cut moves behind them; from reference to
carrier it includes those after the cut, so the trait disappears there. The trait lies where that happens. oxford2025,
sections 4.1 to 4.3.

``suture.onset`` reads the place from the table.

A stitch may teach the trait by itself. So beside every trait stands a control without it, the reference network
stitched to itself at every cut, whatever other controls are chosen: where that shows the trait, the stitch has taught
it. And a carrier may be wrong by design on the images that bring out its trait, so the networks are judged alone on the
data as they were given (``Trial.judged_on``).

The answer depends on the data that fit the stitch. A stitch fitted on the labels of a class may teach that class to a
network that does not have it, and one fitted on labels that contradict a trait may teach its absence; a wide stitch can
do either where a narrow one cannot. Fit it on data that says nothing of the trait (without the class,
``variants.Without``), in a family as narrow as joins the networks (``Diagonal`` if the carrier was made from the
reference network), and look at the controls. Which data it was is in the column ``fit_data``.
"""

from collections.abc import Sequence
from dataclasses import replace

from suture.common.errors import DataError, NetworkError
from suture.common.validation import check_kind
from suture.core.network.cuts import Cut
from suture.core.network.network import Network
from suture.core.stitched import At
from suture.core.stitches import Stitch
from suture.data import Data
from suture.fits import Fit
from suture.measurement.scores.scores import Accuracy, Score
from suture.measurement.scores.traits import Trait
from suture.measurement.trials import controls as control
from suture.measurement.trials.controls import Control
from suture.measurement.trials.plans import Plan, Settings, plan_curve

BESIDE: tuple[Score, ...] = (Accuracy(),)  #: what is scored beside the trait


def localise(
    trait: Trait,
    carrier: Network,
    reference: Network,
    *,
    data: Data,
    fit_data: Data | None = None,
    at: str | Cut | Sequence[At] | None = None,
    stitch: Stitch | str | None = None,
    fit: Fit | str | None = None,
    scores: Sequence[Score] = BESIDE,
    controls: Sequence[Control | str] | str = control.DEFAULT,
    seeds: int | Sequence[int] = 1,
    network_seed: int | None = None,
) -> Plan:
    """Plan both directions at every cut that the two networks share, or at those in ``at``, with controls.

    The trait is scored on what it makes of ``data``, and so are the other ``scores``. ``fit_data``, whose fit and
    validation samples fit the stitch, is ``data`` unless told otherwise, and decides the answer. ``at`` may pair a cut
    of the carrier with one of the reference network. The reference network stitched to itself is always among the
    ``controls``. Raises ``NetworkError`` if the table could not tell the networks apart, ``DataError`` if the trait
    cannot be scored on the data, and whatever ``curve`` does.
    """
    check_kind("trait", trait, Trait, "a trait, such as traits.knows(data, 'cat')")
    for role, given, kind in (("data", data, Data), ("fit_data", fit_data, Data | None)):
        check_kind(role, given, kind, "data with a split to fit and one to score: load_data(…)")
        if given is not None and given.fit.sent is not None:
            raise DataError(
                f"{given.name} has a view for each network, and a trait is looked for in both directions, in which the "
                "views would change places; give data that both networks read"
            )
    for role, network in (("carrier", carrier), ("reference", reference)):
        check_kind(role, network, Network, "a network: Network(model, example=data.example)", NetworkError)
    if carrier.name == reference.name:
        raise NetworkError(
            f"carrier and reference network are both called '{reference.name}'; name them: Network(…, name=…)"
        )
    fitted = fit_data if fit_data is not None else data
    used = Data(data.name, fit=fitted.fit, validation=fitted.validation, score=trait.samples(data))
    all_scores = (trait, *(score for score in scores if score.name != trait.name))
    settings = replace(
        Settings.of(stitch, fit, all_scores[1:], controls, seeds, network_seed), scores=all_scores, plan="trait"
    )
    back = at if at is None or isinstance(at, str | Cut) else [c[::-1] if isinstance(c, tuple) else c for c in at]
    asked = settings.controls
    checked = asked if control.itself in asked else (control.itself, *asked)
    there = plan_curve(carrier, reference, at, used, replace(settings, controls=checked))
    planned = there + plan_curve(reference, carrier, back, used, settings)
    if trait.on is None:
        return planned
    return Plan(tuple(replace(trial, judged_on=data.score) for trial in planned))
