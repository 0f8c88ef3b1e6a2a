"""What to measure: plans of trials. Nothing here trains or measures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, overload

from suture.common.errors import CutError, DataError, NetworkError, ShapeError
from suture.common.validation import check_kind, whole_number
from suture.core.network.cuts import Cut, shared_cuts
from suture.core.network.network import Network
from suture.core.seam import At, Seam, check_networks
from suture.core.stitches import Stitch
from suture.data import Data
from suture.fits import Fast, Fit
from suture.measurement.scores.scores import Accuracy, CrossEntropy, Score
from suture.measurement.trials import controls as control
from suture.measurement.trials.controls import Control
from suture.measurement.trials.trial import Trial

Networks = Network | Sequence[Network]
Patterns = str | Cut | Sequence[str | Cut]
Which = Patterns | Mapping[str, Patterns]
Scores = tuple[Score, ...]

DEFAULT_SCORES: Scores = (Accuracy(), CrossEntropy())


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


def seam(
    sender: Network,
    receiver: Network,
    *,
    at: At,
    data: Data,
    stitch: Stitch | None = None,
    fit: Fit | None = None,
    scores: Scores = DEFAULT_SCORES,
    controls: Sequence[Control] = control.DEFAULT,
    seeds: int | Sequence[int] = 1,
    network_seed: int | None = None,
) -> Plan:
    """Plan one seam with its controls, for every seed.

    ``at`` is a cut of both networks, or ``(sender cut, receiver cut)``. ``seeds`` is how many (0, 1, …) or which.
    """
    check_kind("data", data, Data, "data with a split to fit and one to score: load_data(…)")
    settings = {"scores": scores, "controls": controls}
    for name, given in settings.items():
        check_kind(name, given, tuple | list, f"a tuple, {name}=(…,)")
    for one in controls:
        check_kind("one of controls", one, Callable, "functions of a trial, such as controls.itself")
    joined = Seam.at(sender, receiver, at)
    trials = [
        Trial(
            joined,
            data.fit,
            data.validation,
            data.score,
            stitch=stitch,
            fit=fit if fit is not None else Fast(),
            scores=tuple(scores),
            seed=seed,
            network_seed=network_seed,
        )
        for seed in _chosen(seeds)
    ]
    return Plan(tuple(t for trial in trials for t in control.with_controls(trial, tuple(controls))))


def curve(
    sender: Network,
    receiver: Network,
    *,
    data: Data,
    at: str | Cut | Sequence[At] | None = None,
    stitch: Stitch | None = None,
    fit: Fit | None = None,
    scores: Scores = DEFAULT_SCORES,
    controls: Sequence[Control] = control.DEFAULT,
    seeds: int | Sequence[int] = 1,
    network_seed: int | None = None,
) -> Plan:
    """Plan the seams at every cut that both networks share, or at those named in ``at``, with controls.

    ``at`` has cuts, pairs of them ``(sender cut, receiver cut)``, and patterns such as ``layer*``, for all shared cuts
    of such names. Raises ``CutError`` where they share none, or none is named, and ``NetworkError`` where
    two different networks have one name.
    """
    check_networks(sender, receiver)
    if at is None and not isinstance(sender, Network):
        raise CutError("noise has no cuts; name those of the receiver: at=[('', receiver cut), …]")
    cuts: Sequence[At] = (
        shared_cuts(sender.cuts, receiver.cuts) if at is None else [at] if isinstance(at, str | Cut) else at
    )
    check_kind("at", cuts, Sequence, "cuts, at=[…], or pairs of them, at=[(sender cut, receiver cut), …]")
    if not cuts:
        raise CutError(f"at={at} names no cut; leave it out for all cuts that both networks share")
    told_apart(network for network in (sender, receiver) if isinstance(network, Network))
    plan = Plan(())
    for cut in spread(cuts, sender, receiver):
        plan += seam(
            sender,
            receiver,
            at=cut,
            data=data,
            stitch=stitch,
            fit=fit,
            scores=scores,
            controls=controls,
            seeds=seeds,
            network_seed=network_seed,
        )
    return plan


def matrix(
    senders: Networks,
    receivers: Networks | None = None,
    *,
    data: Data,
    cuts: Which | None = None,
    sender_cuts: Which | None = None,
    receiver_cuts: Which | None = None,
    stitch: Stitch | None = None,
    fit: Fit | None = None,
    scores: Scores = DEFAULT_SCORES,
    controls: Sequence[Control] = control.DEFAULT,
    seeds: int | Sequence[int] = 1,
    network_seed: int | None = None,
) -> Plan:
    """Plan every sender cut × every receiver cut of every sender into every receiver, with controls.

    Without ``receivers`` every sender also receives, itself included. ``cuts`` chooses the cuts, all by default: names,
    aliases or glob patterns (``"layer*"``) for every network, or a mapping from names of networks to such;
    ``sender_cuts`` and ``receiver_cuts`` do so for one role, in place of ``cuts``. A trial that is the same for several
    seams (``itself`` depends on the receiver's cut alone) is planned once. hernandez2022, section 2.

    Raises ``NetworkError`` where two networks have one name, ``CutError`` where a network has no cut that is asked for,
    or a pattern matches nothing, ``ShapeError`` with the seam where a stitch cannot join it.
    """
    sending = _several(senders)
    receiving = _several(receivers) if receivers is not None else sending
    everyone = told_apart((*sending, *receiving))
    both = sender_cuts is None and receiver_cuts is None
    starts = cuts_of(everyone if both else sending, cuts if sender_cuts is None else sender_cuts)
    ends = cuts_of(everyone if both else receiving, cuts if receiver_cuts is None else receiver_cuts)
    settings: dict[str, Any] = {"stitch": stitch, "fit": fit, "scores": scores, "controls": controls}
    settings |= {"data": data, "seeds": seeds, "network_seed": network_seed}
    trials: dict[tuple[str, ...], Trial] = {}
    for sender, receiver, at in _seams(sending, receiving, starts, ends):
        try:
            made = seam(sender, receiver, at=at, **settings)
        except ShapeError as error:
            raise ShapeError(f"{sender.name} → {receiver.name} at {at[0]} → {at[1]}: {error}") from error
        for trial in made:
            trials.setdefault((trial.key, trial.control, trial.sender.name, trial.receiver.name), trial)
    return Plan(tuple(trials.values()))


def _several(networks: Networks) -> tuple[Network, ...]:
    """The networks, each once."""
    check_kind("networks", networks, Network | tuple | list, "a network or several, such as [a, b]", NetworkError)
    given = (networks,) if isinstance(networks, Network) else tuple(networks)
    if not given:
        raise NetworkError("a matrix needs at least one sender and one receiver; give networks")
    return tuple(dict.fromkeys(given))


def told_apart(networks: Iterable[Network]) -> tuple[Network, ...]:
    """The networks, each once; refuse two that a table could not tell apart."""
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
    """The names of the chosen cuts of every network, from input to output."""
    if not isinstance(which, Mapping):
        return _chosen_cuts(networks, which)
    unknown = [name for name in which if name not in {network.name for network in networks}]
    if unknown:
        known = ", ".join(repr(network.name) for network in networks)
        raise CutError(f"cuts are given for '{unknown[0]}', and the networks are {known}")
    return {k: v for network in networks for k, v in _chosen_cuts([network], which.get(network.name)).items()}


def _chosen_cuts(networks: Sequence[Network], which: Patterns | None) -> dict[str, tuple[str, ...]]:
    if which is None:
        return {network.name: network.cuts.names for network in networks}
    check_kind("cuts", which, str | Cut | Iterable, "names or patterns, such as ('layer*', 'fc')", CutError)
    patterns = [_name(cut) for cut in ([which] if isinstance(which, str | Cut) else which)]
    if not patterns:
        raise CutError("cuts=[] names no cut; leave it out for all cuts")
    matched = {network.name: [_matches(network, pattern) for pattern in patterns] for network in networks}
    for network in networks:
        if not any(matched[network.name]):
            asked, there = ", ".join(map(repr, patterns)), ", ".join(network.cuts.names)
            raise CutError(f"{asked} matches no cut of {network.name}; its cuts: {there}")
    for i, pattern in enumerate(patterns):
        if not any(found[i] for found in matched.values()):
            raise CutError(f"'{pattern}' matches no cut of {' or '.join(matched)}; leave it out, or correct it")
    return {
        network.name: tuple(name for name in network.cuts.names if name in set().union(*matched[network.name]))
        for network in networks
    }


def _matches(network: Network, pattern: str) -> set[str]:
    """The cuts that a name, an alias or a glob pattern means."""
    names = {cut.name: (cut.name, *cut.aliases) for cut in network.cuts}
    if any(pattern in known for known in names.values()):
        return {network.cuts.find(pattern).name}
    return {name for name, known in names.items() if any(fnmatchcase(one, pattern) for one in known)}


def spread(cuts: Iterable[At], sender: Network, receiver: Network) -> tuple[At, ...]:
    """The cuts, each once, with every glob pattern as all that it matches of those that both networks share.

    Raises ``CutError`` where one matches none.
    """
    found: list[At] = []
    for cut in cuts:
        if isinstance(cut, str) and not set("*?[").isdisjoint(cut):
            both = shared_cuts(sender.cuts, receiver.cuts)
            matched = [name for name in both if name in _matches(sender, cut)]
            if not matched:
                raise CutError(f"'{cut}' matches no cut that both networks share; these are {', '.join(both)}")
            found += matched
        else:
            found.append(cut)
    return tuple(cut for i, cut in enumerate(found) if cut not in found[:i])


def _seams(
    senders: Sequence[Network],
    receivers: Sequence[Network],
    starts: Mapping[str, tuple[str, ...]],
    ends: Mapping[str, tuple[str, ...]],
) -> Iterator[tuple[Network, Network, tuple[str, str]]]:
    for sender in senders:
        for receiver in receivers:
            for start in starts[sender.name]:
                yield from ((sender, receiver, (start, end)) for end in ends[receiver.name])


def _chosen(seeds: int | Sequence[int]) -> Sequence[int]:
    chosen: Sequence[int]
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        chosen = [whole_number("one of seeds", seed) for seed in seeds]
    else:
        chosen = range(whole_number("seeds", seeds))
    if not chosen:
        raise DataError(f"seeds={seeds} plans no trial; give how many, at least 1, or which")
    return chosen


def _name(cut: str | Cut) -> str:
    return cut.name if isinstance(cut, Cut) else cut
