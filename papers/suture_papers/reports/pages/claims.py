"""Pages about the claims: ``claims.md``, and the filled-in places of the other pages of ``docs/papers``.

A paper has a page, and each of its experiments has one. What a study asks, shows and claims is written by program
between two marks of its page, ``<!-- study: ID -->`` and ``<!-- end -->``, and what became of a paper's studies between
``<!-- paper: NAME -->`` and ``<!-- end -->``; all else on them is written by hand and stays. The same results give the
same pages, to the letter.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import pandas as pd

from suture.common.errors import DataError
from suture.extend import LEAST_NETWORKS as LEAST
from suture.extend import clock
from suture_papers.base.cells import TRIALS
from suture_papers.base.claims import (
    ENOUGH,
    LOOKS,
    MARGIN,
    NEAR,
    NOT_MEASURED,
    NOT_REPRODUCED,
    POWER,
    REPORTED,
    STITCHES,
    Claim,
    Decided,
    Verdict,
    verdict_of,
)
from suture_papers.base.quantities import LEVEL
from suture_papers.base.run import Result
from suture_papers.base.study import PAPERS, Study
from suture_papers.ledger import LEDGER
from suture_papers.reports.terminal import written

SHARED = "What differs from the paper in most experiments"
COMMAND = "suture claims --page docs/papers/claims.md --papers docs/papers"

Results = Mapping[str, Result | None]
_VERDICTS: tuple[Verdict, ...] = ("reproduced", "not reproduced", "undecided", REPORTED, NOT_MEASURED)
_WORDS = {"reproduced": "**reproduced**", "not reproduced": "**not reproduced**", REPORTED: "report"}
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
_TOOK = ["trial", "seconds", "status", "prefix", "receiver", "network_seed", "sender_cut", "receiver_cut", "control"]
_TOOK += ["stitch", "fit", "fit_data", "score_data", "seed"]
_HEADS = (
    *("claim", "where in the paper", "the paper's value", "our value", "threshold"),
    *("by the paper's recipe", "when converged"),
)

RULES = f"""\
Every claim is one quantity with one threshold, and a program decides it. The [terms](../concepts.md) are those of the
instrument.

- **The unit is a trained network**, not a pair: five networks in all ordered pairs are five units. Each pair gives one
  number, and the figure is their mean. Its 95 % interval is the jackknife's over networks. Groups of pairs without a
  common network are units themselves. At least {ENOUGH} units are needed ({LEAST} where the paper has {LEAST}, and for
  exact algebra). Ratios of standard deviations have an F interval, differences counted in standard deviations one by
  the noncentral t.
- **Reproduced**: the whole interval lies on the claimed side of the threshold. **Not reproduced**: all of it lies on
  the other side. **Undecided**: it straddles the threshold, or there are too few networks. The page then gives the
  number of new networks that would decide it in {100 * POWER:.0f} % of cases. **Report**: a figure without a threshold.
- **An experiment** has the verdict of its worst claim: not reproduced, then undecided, not measured, reproduced.
- **Two verdicts.** *By the paper's recipe* reads the published fit, at the length that the paper states and with at
  least {ENOUGH} pairs. *When converged* reads the default fit. A recipe that was cut short gives a figure without a
  verdict.
- **Several claims of one experiment** share the 5 % by Holm's method, separately for each kind of verdict. An interval
  that is not one of 95 % names its level.
- **Looks.** A claim is looked at once, or at {", ".join(map(str, LOOKS[:-1]))} and {LOOKS[-1]} networks if that was
  declared before the first look. Each look then has a 97.8 % interval, so that all looks together are wrong in 2.5 % of
  cases a side.
- **Counted.** A fit into a network that never learned a class either finds a way to it or does not. So the pairs'
  numbers are 0 or far from it, and an interval by t means nothing. Such a claim is decided by the number of pairs of
  which it holds, by an exact interval: reproduced if at least two thirds, not reproduced if fewer.
- **"At every cut"** concerns the cut whose mean is worst. It is reproduced if the interval of every cut lies on the
  claimed side. It is not reproduced if that of some cut, corrected for their number (Bonferroni), lies on the other.
  **"At some cut"** concerns the best. The two ends of an interval can come from different cuts, so the figure need not
  lie in the middle.
- **Equivalence** ("either way") is shown by two one-sided tests at every cut, and refused by a correction for twice
  their number.
- **Near the threshold.** A figure within {NEAR:g} pp of its threshold decides only if all its fits had converged and
  each seam has {STITCHES} stitches, of which the one with the least validation loss counts. If only an end of the
  interval is that near, all fits must have converged. Published fits and closed forms, which never report convergence,
  are stitched once.
- **An older version of the fit** decides only if its [drift](versions.md) cannot turn the verdict.
- **"No worse than", "at least the baseline" and "= 1.0"** have a margin of {MARGIN} percentage points in the claim's
  favour.
- **The share of pairs** of which a claim holds stands beside the mean, with an exact interval (Clopper & Pearson). It
  has as many cases as there are networks, or half as many if networks are on both sides.
- *All alike*: every pair gave the same number, so there is no spread to make an interval of. A share of images then has
  the exact interval of one network's images. Otherwise pairs are counted. Only of exact algebra does the number decide
  by itself.
- **†** marks a threshold of ours, where the paper gives no exact one.
- **‡** marks a claim with a changed reading. The experiment's page gives the reason, and the old reading is a report
  beside it. All readings but one were changed before any trial of the networks that decide them. The reading of
  [oxford-4.3a](oxford-4.3a.md) was changed after its figures had been seen.
- **Not run**: an experiment without a table. **Not measured**: a claim without a figure in its table, with failed
  trials, or with figures by an older version of a part. Those are shown and decide nothing, unless verdicts by that
  version [stand](versions.md).

Each verdict is wrong in at most 2.5 % of cases if the claim lies exactly on its threshold and the networks' numbers are
normal. `python benchmarks/decisions.py` simulates the error [rates](../over-networks.md#error-rates) of these rules."""


def page(results: Results, studies: Sequence[Study], networks: pd.DataFrame | None = None) -> str:
    """Write the page about all claims.

    ``results`` are by study, ``None`` if a study was not run; ``networks`` is the table of trained networks, for the
    time that they took.
    """
    decided = {study.id: _decided(study, results) for study in studies}
    parts = [
        "# The papers' claims",
        f"Made by `{COMMAND}`; do not edit by hand. The experiments of four papers about model stitching are run again "
        "at small scale: real MNIST and CIFAR-10, smaller networks and shorter training ([networks](zoo.md)). Each "
        "paper's page lists its experiments and the claim that decides each. An experiment's page has all its claims.",
        _short(studies, decided),
        _took(results, networks),
        _versions(results),
        "## How a verdict is made",
        RULES,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def paper_page(template: str, paper: str, results: Results, studies: Sequence[Study]) -> str:
    """Fill the place of a paper's page with a line for each experiment: its verdict, and the claim that decides it.

    Below stand the differences from the paper that most of its experiments share. Raises ``DataError`` unless
    the page has the place once.
    """
    lines = []
    for study in studies:
        if study.paper != paper:
            continue
        made = _decided(study, results)
        experiment = f"[{study.id}]({study.id}.md): {study.title}"
        if made is None:
            lines.append([experiment, "", "", "", "", "not run"])
            continue
        one = _decisive(made)
        lines.append([experiment, _statement(one.claim), _figure(one), threshold(one.claim), *_line(one)[-2:]])
    heads = ["experiment", "the claim that decides", "our value", "threshold", *_HEADS[-2:]]
    differs = [f"- {words}{_but(without)}" for words, without in shared_differences(paper, studies).items()]
    below = [f"## {SHARED}", "\n".join(differs)] if differs else []
    return _fill(template, "paper", paper, "\n\n".join([grid(heads, lines), *below]))


def study_page(
    template: str,
    study: Study,
    results: Results,
    drawn: Collection[str] = (),
    studies: Sequence[Study] = (),
) -> str:
    """Fill the place of an experiment's page: its question, figure and verdict, and folded, all that it rests on.

    ``drawn`` are the ids of those that have a figure. A difference from the paper that most of ``studies`` share is
    left to the paper's page. Raises ``DataError`` unless the page has the place once.
    """
    shared = shared_differences(study.paper, studies)
    return _fill(template, "study", study.id, _block(study, results, study.id in drawn, shared))


def shared_differences(paper: str, studies: Sequence[Study]) -> dict[str, list[str]]:
    """Return the differences from a paper that most of its experiments share, with the names of those that do not.

    Most are more than two thirds.
    """
    of = {study.id: _differs(study) for study in studies if study.paper == paper}
    counts = Counter(words for differs in of.values() for words in dict.fromkeys(differs))
    often = [words for words, count in counts.items() if 3 * count > 2 * len(of) > 2]
    return {words: [name for name, differs in of.items() if words not in differs] for words in often}


def _but(without: Sequence[str]) -> str:
    return f" (Not in {', '.join(without)}.)" if without else ""


def _fill(template: str, kind: str, name: str, made: str) -> str:
    """Return the page with its one place filled; the text between the place's marks is replaced, all else stays."""
    mark = f"<!-- {kind}: {name} -->"
    places = re.findall(rf"{re.escape(mark)}\n.*?<!-- end -->", template, re.DOTALL)
    if len(places) != 1:
        raise DataError(
            f"the page of {name} has {len(places)} places for the tables' results, and needs one; write '{mark}' and "
            "'<!-- end -->' on lines of their own"
        )
    return template.replace(places[0], f"{mark}\n\n{made}\n\n<!-- end -->")


def _decided(study: Study, results: Results) -> tuple[Decided, ...] | None:
    result = results.get(study.id)
    return None if result is None else result.decide(study)


# --- in short ---------------------------------------------------------------------------------------------------------


def _short(studies: Sequence[Study], decided: Mapping[str, tuple[Decided, ...] | None]) -> str:
    """Report how many experiments were run, and their verdicts, by paper."""
    heads = ["paper", "experiments", "run", *(_plain(verdict) for verdict in _VERDICTS), "not run"]
    lines = []
    for paper in PAPERS.values():
        own = [decided[study.id] for study in studies if study.paper == paper]
        if own:
            lines.append([f"[{paper}]({paper}.md)", *map(str, _counts(own))])
    total = _counts([decided[study.id] for study in studies])
    lines.append(["all", *map(str, total)])
    claims = [one for made in decided.values() for one in made or ()]
    of = [
        f"{sum(one.verdict == verdict for one in claims)} {_plain(verdict)}{'s' * (verdict == REPORTED)}"
        for verdict in _VERDICTS
    ]
    said = (
        f"Of {total[0]} experiments {total[1]} were run. Their {len(claims)} claims, when converged: {', '.join(of)}."
    )
    twins = [(one.verdict, one.recipe.verdict) for one in claims if one.recipe is not None]
    if twins:
        counts = Counter(recipe for _, recipe in twins if recipe != REPORTED)
        of = [f"{counts[verdict]} {verdict}" for verdict in _VERDICTS if counts[verdict]]
        cut = sum(recipe == REPORTED for _, recipe in twins)
        said += f" By the papers' own recipes at the length they state: {', '.join(of) or 'none'}"
        said += f". Of {cut} there is a figure by a recipe that was cut short." if cut else "."
    return said + "\n\n" + grid(heads, lines, right=range(1, len(heads)))


def _counts(decided: Sequence[tuple[Decided, ...] | None]) -> list[int]:
    there = [verdict_of(made) for made in decided if made is not None]
    return [len(decided), len(there), *(there.count(verdict) for verdict in _VERDICTS), len(decided) - len(there)]


def _plain(verdict: str) -> str:
    return "report" if verdict == REPORTED else verdict


def _took(results: Results, networks: pd.DataFrame | None) -> str:
    """Report the total cost, each trial and each network counted once."""
    tables = [made.tables[TRIALS] for made in results.values() if made is not None and TRIALS in made.tables]
    if not tables:
        return ""
    once = pd.concat([table.reindex(columns=_TOOK) for table in tables]).drop_duplicates("trial")
    said = f"{len(once):,} trials, {clock(float(once['seconds'].sum()))} of one thread"
    with_prefix = once[once["prefix"].notna() & (once["prefix"] != "")]
    repeats = int(with_prefix.duplicated(_TOOK[3:]).sum())
    said += f", of which {repeats} repeat another of an equal sender" if repeats else ""
    failed = int((once["status"] == "failed").sum())
    said += f", of which {failed} failed" if failed else ""
    said += "; shared trials are counted once."
    if networks is not None:
        own = networks[networks["own"].astype(bool) & networks["until"].isna()]
        own = own.sort_values("device", key=lambda devices: devices != "cpu", kind="stable").drop_duplicates("key")
        kinds = [
            f"{len(rows)} on {'a GPU' if device == 'cuda' else 'one core'} in {clock(float(rows['seconds'].sum()))}"
            for device, rows in own.groupby("device", sort=True)
        ]
        said += f" {len(own)} networks were trained: {' and '.join(kinds)}."
    return said


def _versions(results: Results) -> str:
    """Say of how many experiments the parts that measured them have changed since; nothing if of none."""
    measured = {name: made for name, made in results.items() if made is not None}
    older = [name for name, made in measured.items() if not made.stands]
    if not older:
        return ""
    standing = ", ".join(name for name in sorted(measured) if name not in older) or "none"
    return (
        f"Of {len(measured)} experiments, {len(older)} were measured by parts that have changed since. The verdicts of "
        f"these [stand](versions.md): {standing}."
    )


# --- an experiment on its page ----------------------------------------------------------------------------------------


def _decisive(made: tuple[Decided, ...]) -> Decided:
    """Return the claim that decides an experiment: the first with its verdict, of refuted ones the surest by Holm."""
    verdict = verdict_of(made)
    with_it = [one for one in made if one.verdict == verdict]
    if verdict == NOT_REPRODUCED:
        return max(with_it, key=lambda one: one.figure.level if one.figure else 0.0)
    return with_it[0] if with_it else made[0]


def _tally(made: tuple[Decided, ...]) -> str:
    """Say how many claims have which verdict, if some were decided otherwise than the experiment."""
    counts = Counter(one.verdict for one in made if one.verdict != REPORTED)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _VERDICTS if counts[verdict])
    return f" Of {counts.total()} claims with a threshold: {said}." if len(counts) > 1 else ""


def _differs(study: Study) -> list[str]:
    """Describe the differences from the paper, in sentences."""
    said = [*study.deviations, *study.small, *_networks(study)]
    return list(map(_sentence, said))


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def _networks(study: Study) -> list[str]:
    """Describe the differences of the ledger's networks that the study asks for."""
    said = dict.fromkeys(entry.deviation for entry in LEDGER if study.id in entry.experiments and entry.deviation)
    return [f"networks: {one}" for one in said]


def _block(study: Study, results: Results, drawn: bool, shared: Collection[str]) -> str:
    made, result = _decided(study, results), results[study.id]
    shown = [f"**Question.** {study.question}"]
    if drawn:
        shown.append(f"![{study.id}: {study.title}](images/{study.id}.png)")
    if made is None:
        shown.append(f"**Not run** at small scale{f': it needs {study.needs}' if study.needs else ''}.")
    else:
        one = _decisive(made)
        figure = f"{_figure(one)}{_share(one) if one.counted else ''}" or "no figure"
        said = f"{_statement(one.claim)}. Measured: {figure} (threshold {threshold(one.claim) or 'none'})"
        recipe = f" By the paper's recipe: {_of_recipe(one)}." if one.recipe is not None else ""
        verdict = _line(one)[-1].strip("*")
        shown.append(f"**Verdict: {verdict}.**{_tally(made)} It rests on this claim: {said}.{recipe}")
        shown.append(_repeat(study.id, result.tables if result is not None else ()))
    lines = [_line(one) for one in made] if made is not None else [_unmeasured(claim) for claim in study.claims]
    parts = [grid(_HEADS, lines), _roles(study.claims), _of_networks(result)]
    if any(claim.ours for claim in study.claims):
        parts.append("† Our own threshold.")
    if readings := dict.fromkeys(claim.reading for claim in study.claims if claim.reading):
        parts.append("**‡ Read otherwise than before.**\n\n" + "\n".join(f"- {_sentence(part)}" for part in readings))
    everywhere = _differs(study)
    own = [words for words in everywhere if words not in shared]
    differs = [*own, *_by_recipe(result)]
    if len(own) < len(everywhere):
        anchor = re.sub(r"\W+", "-", SHARED.lower())
        differs.append(f"[Differences that most experiments share]({study.paper}.md#{anchor}).")
    if differs:
        when = "" if result is None or result.stands else ", once it is measured again"
        parts.append(f"**What differs from the paper{when}.**\n\n" + "\n".join(f"- {part}" for part in differs))
    many = f"All {len(lines)} claims" if len(lines) > 1 else "The claim"
    folded = fold(f"{many}, data and differences", *parts)
    return "\n\n".join([*shown, folded])


def _repeat(name: str, kinds: Iterable[str]) -> str:
    """Return the command that measures an experiment again, and links to its tables."""
    tables = ", ".join(f"[{kind}](../../papers/results/small/{name}.{kind}.parquet)" for kind in sorted(kinds))
    return f"`suture run {name} --scale small --data DATA --out runs/{name}` (table: {tables})"


def _by_recipe(result: Result | None) -> list[str]:
    """Report at how many cuts and in how many pairs the published fit was measured, if the default fit has more."""
    table = result.tables.get(TRIALS) if result is not None and result.stands else None
    if table is None:
        return []
    plain = table[(table["status"] == "ok") & (table["control"] == "")]
    recipe, default = plain[plain["published"].eq(True)], plain[plain["published"].eq(False)]
    cuts, all_cuts = (rows.groupby(["sender_cut", "receiver_cut"]).ngroups for rows in (recipe, default))
    pairs, all_pairs = (rows.groupby(["sender", "receiver", "network_seed"]).ngroups for rows in (recipe, default))
    if recipe.empty or (cuts >= all_cuts and pairs >= all_pairs):
        return []
    return [
        f"So far the published fit has been measured at {cuts} of {all_cuts} seams, in {pairs} of {all_pairs} pairs."
    ]


def _roles(claims: Iterable[Claim]) -> str:
    """Return a table of the data that fitted, scored and gave the baseline: a row for each kind of claim."""
    roles = dict.fromkeys(claim.roles for claim in claims)
    lines = [[one.fitted, one.scored, one.baseline] for one in roles]
    return grid(["stitches are fitted on", "scored on", "baseline"], lines) if lines else ""


# --- one claim --------------------------------------------------------------------------------------------------------


def _line(one: Decided) -> list[str]:
    claim = one.claim
    verdict = _WORDS.get(one.verdict, one.said)
    return [_statement(claim), claim.source, claim.paper, _ours(one), threshold(claim), _recipe(one), verdict]


def _recipe(one: Decided) -> str:
    """Return the figure and the verdict by the paper's recipe; empty if that was not measured."""
    twin = one.recipe
    if twin is None:
        return ""
    said = "cut short, so no verdict" if twin.verdict == REPORTED else _WORDS.get(twin.verdict, twin.said)
    return f"{_figure(twin)}{_share(twin) if twin.counted else ''}; {said}"


def _of_recipe(one: Decided) -> str:
    """Return the same below the verdict on the default fit, the figure alone if neither was measured again."""
    said = _recipe(one).replace("**", "")
    return said.removesuffix(f"; {one.said}") if one.verdict == NOT_MEASURED else said


def _unmeasured(claim: Claim) -> list[str]:
    return [_statement(claim), claim.source, claim.paper, _by(claim).strip(), threshold(claim), "", "not run"]


def _statement(claim: Claim) -> str:
    return f"{claim.statement}{' ‡' * bool(claim.reading)}"


def _of_networks(result: Result | None) -> str:
    """Return a table of the networks behind the figures and their seeds; cards of before do not know."""
    of = {} if result is None else result.card.get("of", {})
    lines = [[name, ", ".join(map(str, seeds))] for name, seeds in of.items()]
    return grid(["networks", "seeds"], lines) if lines else ""


def _figure(one: Decided) -> str:
    """Return the figure as ``1.4 pp [0.9, 1.9], 5 pairs``; empty if there is none."""
    if one.figure is None:
        return ""
    unit = one.claim.unit if one.claim.unit != "ρ" else ""
    return f"{_MINUS.sub('−', written(one.figure, unit))}, {one.figure.units}"


def _ours(one: Decided) -> str:
    """Return the figure with its share of pairs and its fits."""
    if one.figure is None:
        return ""
    fits = f"; {one.fits}" if one.fits else ""
    return f"{_figure(one)}{_share(one)}{fits}{_by(one.claim)}"


def _share(one: Decided) -> str:
    """Say of how many pairs by themselves it holds; that is counted if it decides."""
    if one.share is None or one.share.pairs < 2:
        return ""
    if not one.counted:
        return f"; holds of {written(one.share, '%')} of pairs"
    held = round(one.share.value * one.share.pairs / 100)
    at = f" at {100 * one.share.level:.3g} %" if one.share.level != LEVEL else ""
    return f"; holds of {held} of {one.share.pairs} pairs [{one.share.low:.0f}, {one.share.high:.0f} %{at}]"


def _by(claim: Claim) -> str:
    """Say by which fit, if that is not the default one; empty if nothing is fitted."""
    return "" if claim.fit in ("default", "") else f" (fit: {claim.fit})"


def threshold(claim: Claim) -> str:
    """Return the threshold as ``≤ 3 pp``, with its margin, and with † if it is ours; empty for a report."""
    if claim.threshold is None:
        return ""
    unit = _unit(claim)
    margin = f" (margin {claim.margin:g})" if claim.margin else ""
    return f"{claim.direction} {_MINUS.sub('−', f'{claim.threshold:g}')}{unit}{margin}{'†' if claim.ours else ''}"


def _unit(claim: Claim) -> str:
    """Return the unit after a number; correlations have none."""
    return f" {claim.unit}" if claim.unit not in ("", "ρ") else ""


def fold(summary: str, *parts: str) -> str:
    """Return parts of a page, each a block of Markdown, that are shown one click away; empty ones are left out."""
    opened = f'<details markdown="1">\n<summary>{summary}</summary>'
    return "\n\n".join([opened, *filter(None, parts), "</details>"])


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return a table in Markdown."""
    rules = ["---:" if place in right else "---" for place in range(len(heads))]
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (heads, rules, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
