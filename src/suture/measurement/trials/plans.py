"""Plans of trials. Nothing here trains or measures.

``curve`` (cuts that two networks share) and ``matrix`` (every cut of every sender into every cut of every receiver)
only choose seams. The other settings of their trials are one ``Settings``, and ``plan_seam`` makes the trials
of one seam from it: for every seed the trial itself, then each of its controls.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import overload

from suture.common.errors import (
    CutError,
    DataError,
    FitError,
    LeftOut,
    NetworkError,
    NoClassesError,
    ShapeError,
    SutureError,
    UntrainedError,
)
from suture.common.names import named, split_names
from suture.common.validation import check_kind, check_whole
from suture.common.warning import warn
from suture.core.network.cuts import Cut, shared_cuts
from suture.core.network.network import Network
from suture.core.stitched import At, Seam, check_networks, cuts_for_views
from suture.core.stitches import AffineStitch, Identity, Stitch
from suture.data import Data, Samples
from suture.data.roles import VALIDATED
from suture.fits import Converged, Fit, LeastSquares, Quick
from suture.measurement.scores.pooled import default_scores
from suture.measurement.scores.scores import Score
from suture.measurement.scores.traits import Trait
from suture.measurement.trials import controls as control
from suture.measurement.trials.controls import Control
from suture.measurement.trials.trial import Trial

WORK = 5e13
"""FLOPs that the validation samples of a seam may cost in its two networks, each once: minutes on two cores.

Two ResNet-18s of double width on CIFAR-10, the dearest convolutional pair of the four papers, take 4.4e13 for 5,000
samples, which so are all kept. Two ViT-B/16 at 224 pixels take as many for 625; 5,000 took twelve minutes.
"""
FIT_WORK = 2e14
"""FLOPs that the fit samples of a seam may cost in its two networks: four times what validation may.

At five tuned seams all 45,000 images of CIFAR-10 read up to 3.2 points more than 10,000, in 0.7 to 7 times the seconds,
and cost their activations. Two ResNet-18s of full width take 1e14 for 45,000, two ViT-B/16 1e15 for 15,000.
"""
FITTED = 60_000  #: samples that are fitted at most, unless somebody says how many: all of CIFAR-10 and of MNIST
LEAST_FITTED = 15_000  #: that are kept whatever they cost
PREVIEWED = 2_000  #: samples that a first picture is fitted, validated and scored on, at most
DRAWN = (control.untrained_sender, control.untrained_receiver)  #: in a first picture; the others only answer questions
CLOSED = Quick(steps=0)  #: the closed form from which the default fit descends; ``LeastSquares`` takes every position
LEAST = 512  #: validation samples that are kept whatever they cost: one of them is 0.2 pp, which still tells fits apart

Networks = Network | Sequence[Network]
Patterns = str | Cut | Sequence[str | Cut]
Which = Patterns | Mapping[str, Patterns]


@dataclass(frozen=True)
class Plan(Sequence[Trial]):
    """Trials to be measured, in order; plans add up, and a slice of one is a plan."""

    trials: tuple[Trial, ...]

    @overload
    def __getitem__(self, index: int) -> Trial: ...
    @overload
    def __getitem__(self, index: slice) -> "Plan": ...
    def __getitem__(self, index: int | slice) -> "Trial | Plan":
        return Plan(self.trials[index]) if isinstance(index, slice) else self.trials[index]

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def __add__(self, other: "Plan") -> "Plan":
        return Plan(self.trials + other.trials)

    def __repr__(self) -> str:
        kinds = {trial.control or "plain": None for trial in self}
        return f"Plan({len(self)} trials: {', '.join(kinds)})"


@dataclass(frozen=True)
class Settings:
    """The settings that all trials of a plan share, beside networks, cuts and data.

    ``stitch=None`` takes the family that the shapes at each seam suggest, ``fit=None`` is ``Converged()``,
    ``scores=None`` are those of the data's task. ``seeds`` is a number of seeds (0, 1, …), or the seeds themselves.
    ``network_seed``, the seed of the networks' training, and ``plan``, its kind, are labels for the table. Raises
    ``DataError`` if scores or controls are of the wrong kind.
    """

    stitch: Stitch | None = None
    fit: Fit | None = None
    scores: Sequence[Score] | None = None
    controls: Sequence[Control] = control.DEFAULT
    seeds: int | Sequence[int] = 1
    network_seed: int | None = None
    plan: str = ""

    @classmethod
    def of(
        cls,
        stitch: Stitch | str | None,
        fit: Fit | str | None,
        scores: Sequence[Score] | None,
        controls: Sequence[Control | str] | str,
        seeds: int | Sequence[int],
        network_seed: int | None = None,
    ) -> "Settings":
        """Return settings some of which are named as on the command line: ``"conv:3"``, ``"bansal2021,steps=4000"``.

        Controls may be named together, ``"default,linear-probe"`` or ``"none"``. Raises ``DataError`` for a trait that
        is scored on other data than these, which only ``localise`` makes.
        """
        made = cls(named("stitch", stitch), named("fit", fit), scores, name_controls(controls), seeds, network_seed)
        for score in made.scores or ():
            if isinstance(score, Trait) and score.on is not None:
                raise DataError(
                    f"'{score.name}' is scored on other images than those of the data, which localise makes of them; "
                    "elsewhere give data whose score samples are such (variants), and the trait's own score"
                )
        return made

    def __post_init__(self) -> None:
        for name in ("scores", "controls"):
            check_kind(name, getattr(self, name) or (), tuple | list, f"a tuple, {name}=(…,)")
        for one in self.controls:
            check_kind("one of controls", one, Callable, "functions of a trial, such as controls.itself")


def name_controls(given: Sequence[Control | str] | str, where: str = "") -> tuple[Control, ...]:
    """Return the controls that a text, or some texts, name; ``where`` they were given is said in errors.

    Raises ``SutureError`` for a name that there is not, and for ``none`` beside others.
    """
    check_kind("controls", given, str | tuple | list, "a tuple, controls=(…,)")
    words: Sequence[Control | str] = split_names(given) if isinstance(given, str) else given
    where = where or f"controls={given!r}"
    if list(words) == ["none"]:
        return ()
    if "none" in words:
        raise SutureError(f"{where}: 'none' stands alone; leave it out, or give nothing else")
    groups = [control.DEFAULT if word == "default" else (named("control", word, where),) for word in words]
    return tuple(dict.fromkeys(one for group in groups for one in group))


def plan_seam(seam: Seam, data: Data, settings: Settings) -> Plan:
    """Plan one seam: for every seed the trial, followed by its controls.

    Dear networks are validated on fewer samples, the first of the data's, so that validation does not cost more than
    ``WORK``; and they are fitted on fewer, unless the data say how many (``choose_fitted``).
    A control that needs an untrained network, or classes, where there is none is left out, with a warning, ``LeftOut``,
    that has the reason. Raises ``ShapeError`` with the seam if a stitch cannot join it.
    """
    check_kind("data", data, Data, "data with a split to fit and one to score: load_data(…)")
    fit = settings.fit if settings.fit is not None else Converged()
    validation, fitted = choose_validation(seam, data.validation), choose_fitted(seam, data, fit)
    trials: list[Trial] = []
    for seed in _list_seeds(settings.seeds):
        try:
            trial = Trial(
                seam,
                fitted,
                validation,
                data.score,
                stitch=settings.stitch,
                fit=fit,
                scores=default_scores(data.fit.task) if settings.scores is None else tuple(settings.scores),
                seed=seed,
                network_seed=settings.network_seed,
                plan=settings.plan,
            )
        except ShapeError as error:
            at = f"{seam.sender.name} → {seam.receiver.name} at {seam.sender_cut} → {seam.receiver_cut}"
            raise ShapeError(f"{at}: {error}; choose other cuts, or another stitch=") from error
        trials.append(trial)
        for make in settings.controls:
            name = str(getattr(make, "__name__", make))
            try:
                made = make(trial)
            except (UntrainedError, NoClassesError) as error:
                control_name = name.replace("_", " ")
                warn(f"the control {control_name} is left out: {error}", LeftOut)
                continue
            check_kind(
                f"what the control {name} makes", made, Trial, "a function that returns the trial that it changes"
            )
            trials.append(made)
    return Plan(tuple(trials))


def curve(
    sender: Network,
    receiver: Network,
    *,
    data: Data,
    at: str | Cut | Sequence[At] | None = None,
    stitch: Stitch | str | None = None,
    fit: Fit | str | None = None,
    scores: Sequence[Score] | None = None,
    controls: Sequence[Control | str] | str = control.DEFAULT,
    seeds: int | Sequence[int] = 1,
    network_seed: int | None = None,
) -> Plan:
    """Plan the seams at every cut that both networks share, or at those named in ``at``, with controls.

    ``at`` has cuts, pairs of them ``(sender cut, receiver cut)``, and patterns such as ``layer*``, for all shared cuts
    of such names. Where each network reads its own view of a sample, it is by default all shared cuts at which the
    receiver has one vector of a sample. The other keywords are those of ``Settings``. Raises ``CutError`` if they
    share none, or none is named, and ``NetworkError`` if two different networks have one name.
    """
    settings = Settings.of(stitch, fit, scores, controls, seeds, network_seed)
    return plan_curve(sender, receiver, at, data, replace(settings, plan="curve"))


def plan_curve(
    sender: Network, receiver: Network, at: str | Cut | Sequence[At] | None, data: Data, settings: Settings
) -> Plan:
    """Plan the seams of ``curve``."""
    check_networks(sender, receiver)
    cuts: Sequence[At] = ["*"] if at is None else [at] if isinstance(at, str | Cut) else at  # "*": all that are shared
    check_kind("at", cuts, Sequence, "cuts, at=[…], or pairs of them, at=[(sender cut, receiver cut), …]")
    if not cuts:
        raise CutError(f"at={at} names no cut; leave it out for all cuts that both networks share")
    tell_networks_apart(network for network in (sender, receiver) if isinstance(network, Network))
    found = expand_patterns(cuts, sender, receiver)
    if at is None and isinstance(data, Data) and data.fit.sent is not None:
        names = [cut.name for cut in cuts_for_views(receiver)]
        found = tuple(cut for cut in found if cut in names)
        if not found:
            raise CutError(
                f"{sender.name} and {receiver.name} each read their own view of a sample, and share no cut where a "
                f"sample is one vector; give pairs, at=[(a cut of {sender.name}, a cut of {receiver.name}), …]: such "
                f"cuts of {receiver.name} are {', '.join(names) or 'none'}"
            )
    seams = [Seam.at(sender, receiver, cut) for cut in found]
    return Plan(tuple(trial for seam in seams for trial in plan_seam(seam, data, settings)))


def preview(own: Plan, data: Data, controls: Sequence[Control]) -> tuple[Plan, ...]:
    """Plan the previews that are shown while a plan is measured: closed forms of few samples, then ``Quick``.

    They show roughly where the lines will lie, and answer no question. A plan that fits no more samples than these, or
    fits by closed forms itself, has no previews; ``Quick`` comes before the default fit only, and without controls,
    which would take as long as a third of the plan. ``controls`` are those of the plan, of which a picture draws the
    untrained networks. Families without a closed form are left out. A matrix has many seams, so only its own closed
    forms come before it.
    """
    is_matrix = own[0].plan == "matrix"
    beside = [] if is_matrix else [make for make in controls if make in DRAWN]
    first = {trial.seam: trial for trial in reversed(own) if not trial.control and trial.seed == own[0].seed}
    seams = list(reversed(first.values()))
    most = max(len(trial.fit_data) for trial in seams)
    counts = {role: min(PREVIEWED, len(getattr(data, role))) for role in ("fit", "score")}

    def plan_by(fit: Fit, data: Data, trials: Iterable[Trial], beside: Sequence[Control] = ()) -> Plan:
        settings = [Settings(one.stitch, fit, one.scores, beside, (one.seed,), plan=one.plan) for one in trials]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeftOut)  # the plan itself has said so
            planned = [plan_seam(one.seam, data, each) for one, each in zip(trials, settings, strict=True)]
        return Plan(tuple(trial for plan in planned for trial in plan))

    plans = []
    if most > PREVIEWED and own[0].fit != CLOSED and not isinstance(own[0].fit, LeastSquares):
        less = data.limited(**counts)
        less = replace(less, validation=less.validation.first(min(PREVIEWED, len(less.validation))))
        affine = [trial for trial in seams if isinstance(trial.family, AffineStitch | Identity)]
        plans.append(plan_by(CLOSED, less, affine, beside))
    if not is_matrix and isinstance(own[0].fit, Converged) and most > (Quick.fitted_on or 0):
        plans.append(plan_by(Quick(), data, seams))
    return tuple(plan for plan in plans if len(plan))


def matrix(
    senders: Networks,
    receivers: Networks | None = None,
    *,
    data: Data,
    cuts: Which | None = None,
    sender_cuts: Which | None = None,
    receiver_cuts: Which | None = None,
    stitch: Stitch | str | None = None,
    fit: Fit | str | None = None,
    scores: Sequence[Score] | None = None,
    controls: Sequence[Control | str] | str = control.DEFAULT,
    seeds: int | Sequence[int] = 1,
    network_seed: int | None = None,
) -> Plan:
    """Plan every sender cut × every receiver cut of every sender into every receiver, with controls.

    Without ``receivers`` every sender also receives, itself included; with a view of a sample for senders and one for
    receivers, give both. ``cuts`` chooses the cuts, all by default: names,
    aliases or glob patterns (``"layer*"``) for every network, or a mapping from names of networks to such;
    ``sender_cuts`` and ``receiver_cuts`` do so for one role, in place of ``cuts``. A trial that is the same for several
    seams (``itself`` depends on the receiver's cut alone) is planned once. The other keywords are those of
    ``Settings``. hernandez2022, section 1.5.

    Raises ``NetworkError`` if two networks have one name, ``CutError`` if a network has no cut that is asked for, or a
    pattern matches nothing, ``ShapeError`` with the seam if a stitch cannot join it.
    """
    settings = replace(Settings.of(stitch, fit, scores, controls, seeds, network_seed), plan="matrix")
    sending = _list_networks(senders)
    has_views = isinstance(data, Data) and data.fit.sent is not None
    if has_views and receivers is None:
        raise DataError(f"of {data.name} senders read one view and receivers another; give receivers=, too")
    receiving = _list_networks(receivers) if receivers is not None else sending
    starts, ends = cuts_of_roles(sending, receiving, cuts, sender_cuts, receiver_cuts)
    if has_views and cuts is None and receiver_cuts is None:
        ends = {one.name: tuple(cut.name for cut in cuts_for_views(one)) or ends[one.name] for one in receiving}
    trials: dict[tuple[str, ...], Trial] = {}
    for sender, receiver in product(sending, receiving):
        for start, end in product(starts[sender.name], ends[receiver.name]):
            for trial in plan_seam(Seam(sender, receiver, start, end), data, settings):
                trials.setdefault((trial.key, trial.control, trial.sender.name, trial.receiver.name), trial)
    return Plan(tuple(trials.values()))


def choose_fitted(seam: Seam, data: Data, fit: Fit) -> Samples:
    """Return the samples that a seam is fitted on: those that the data name by ``limited``, else the first of them.

    These are ``FITTED``, or as many as a short fit is ``fitted_on``, halved until they cost ``FIT_WORK``, but not below
    ``LEAST_FITTED``. The cost is counted as for validation, so the number is the same on every machine.
    """
    check_kind("fit", fit, Fit, "a fit such as Converged()", FitError)
    samples, count = data.fit, fit.fitted_on or FITTED
    if data.counted or samples.pairing is not None:
        return samples
    flops = _count_flops(seam)
    while count * flops > FIT_WORK and count // 2 >= LEAST_FITTED:
        count //= 2
    return samples.first(count) if count < len(samples) else samples


def _count_flops(seam: Seam) -> int:
    """Return the FLOPs of one sample in both networks."""
    return sum(cut.flops for network in seam.networks for cut in list(network.cuts)[-1:])


def choose_validation(seam: Seam, samples: Samples) -> Samples:
    """Return the validation samples for a seam: all, or the first ``VALIDATED``, halved until they cost ``WORK``.

    The cost is counted in FLOPs of the two networks, so it is the same on every machine. Few sizes, each the first
    samples of the larger one, let seams share activations. At least ``LEAST`` samples are kept, if there are as many.
    """
    flops = _count_flops(seam)
    if samples.pairing is not None or len(samples) * flops <= WORK:
        return samples
    count = VALIDATED
    while count * flops > WORK and count // 2 >= LEAST:
        count //= 2
    return samples.first(min(count, len(samples)))


# --- which networks, cuts and seeds -----------------------------------------------------------------------------------


def _list_networks(networks: Networks) -> tuple[Network, ...]:
    """Return the networks, each once."""
    check_kind("networks", networks, Network | tuple | list, "a network or several, such as [a, b]", NetworkError)
    given = (networks,) if isinstance(networks, Network) else tuple(networks)
    if not given:
        raise NetworkError("a matrix needs at least one sender and one receiver; give networks")
    return tuple(dict.fromkeys(given))


def tell_networks_apart(networks: Iterable[Network]) -> tuple[Network, ...]:
    """Return the networks, each once; refuse two that a table could not tell apart."""
    named: dict[str, Network] = {}
    for network in networks:
        check_kind(
            "one of the networks", network, Network, "networks: Network(model, example=data.example)", NetworkError
        )
        other = named.setdefault(network.name, network)
        if other is not network and other.fingerprint != network.fingerprint:
            raise NetworkError(f"two networks are called '{network.name}'; tell them apart: Network(…, name=…)")
    return tuple(named.values())


def cuts_of(networks: Sequence[Network], which: Which | None) -> dict[str, tuple[str, ...]]:
    """Return the names of the chosen cuts of every network, from input to output.

    Each network must have a cut that one of the patterns matches, and each pattern match a cut of some network.
    """
    if which is None:
        return {network.name: network.cuts.names for network in networks}
    if isinstance(which, Mapping):
        own = {network.name: network for network in networks}
        for name in which:
            if name not in own:
                known = ", ".join(map(repr, own))
                raise CutError(f"cuts are given for '{name}', and the networks are {known}")
        return {name: cuts_of([network], which.get(name))[name] for name, network in own.items()}
    check_kind("cuts", which, str | Cut | Iterable, "names or patterns, such as ('layer*', 'fc')", CutError)
    given = [which] if isinstance(which, str | Cut) else which
    patterns = [cut.name if isinstance(cut, Cut) else cut for cut in given]
    if not patterns:
        raise CutError("cuts=[] names no cut; leave it out for all cuts")
    chosen: dict[str, tuple[str, ...]] = {}
    for network in networks:
        found = set().union(*(_match(network, pattern) for pattern in patterns))
        if not found:
            asked, there = ", ".join(map(repr, patterns)), ", ".join(network.cuts.names)
            raise CutError(f"{asked} matches no cut of {network.name}; its cuts: {there}")
        chosen[network.name] = tuple(name for name in network.cuts.names if name in found)
    for pattern in patterns:
        if not any(_match(network, pattern) for network in networks):
            raise CutError(f"'{pattern}' matches no cut of {' or '.join(chosen)}; leave it out, or correct it")
    return chosen


def cuts_of_roles(
    senders: Sequence[Network],
    receivers: Sequence[Network],
    cuts: Which | None,
    sender_cuts: Which | None,
    receiver_cuts: Which | None,
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return the cuts of every sender and of every receiver: ``cuts``, unless a role has its own.

    Raises ``NetworkError`` if two networks have one name.
    """
    everyone = tell_networks_apart((*senders, *receivers))
    both = sender_cuts is None and receiver_cuts is None
    starts = cuts_of(everyone if both else senders, cuts if sender_cuts is None else sender_cuts)
    ends = cuts_of(everyone if both else receivers, cuts if receiver_cuts is None else receiver_cuts)
    return starts, ends


def _match(network: Network, pattern: str) -> set[str]:
    """Return the cuts that a name, an alias or a glob pattern means."""
    names = {cut.name: (cut.name, *cut.aliases) for cut in network.cuts}
    if any(pattern in known for known in names.values()):
        return {network.cuts.find(pattern).name}
    return {name for name, known in names.items() if any(fnmatchcase(one, pattern) for one in known)}


def expand_patterns(cuts: Iterable[At], sender: Network, receiver: Network) -> tuple[At, ...]:
    """Return the cuts, each once, and for a glob pattern all cuts that it matches and both networks share.

    Raises ``CutError`` if one matches none.
    """
    found: list[At] = []
    for cut in cuts:
        if isinstance(cut, str) and not set("*?[").isdisjoint(cut):
            if not isinstance(sender, Network):
                raise CutError("noise has no cuts; name those of the receiver: at=[('', receiver cut), …]")
            both = shared_cuts(sender.cuts, receiver.cuts)
            matched = [name for name in both if name in _match(sender, cut)]
            if not matched:
                raise CutError(f"'{cut}' matches no cut that both networks share; these are {', '.join(both)}")
            found += matched
        else:
            found.append(cut)
    return tuple(cut for i, cut in enumerate(found) if cut not in found[:i])


def _list_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds for a number of seeds, or for a list of them. Raises ``DataError`` if there is none."""
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        chosen = tuple(check_whole("one of seeds", seed) for seed in seeds)
    else:
        chosen = tuple(range(check_whole("seeds", seeds)))
    if not chosen:
        raise DataError(f"seeds={seeds} plans no trial; give how many, at least 1, or which")
    return chosen
