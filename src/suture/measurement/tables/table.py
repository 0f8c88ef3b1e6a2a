"""The tidy table of measurements, one row per trial and score.

The column names are a promise; see ``COLUMNS``. Intervals in a row are 95 % over test samples; ``summary`` aggregates
over seeds into a table of the same columns plus ``seeds`` and ``interval``.
"""

from collections.abc import Iterable
from io import BytesIO
from math import hypot, isnan
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from suture.common.atomic import whole
from suture.common.constants import OUTPUT
from suture.common.errors import DataError, OutputError
from suture.common.sealed import SEAL, is_sound, seal
from suture.common.validation import check_kind
from suture.common.visible import as_cell
from suture.measurement.scores.alone import find_doubts
from suture.measurement.scores.in_distribution import APART, MEASURES
from suture.measurement.scores.intervals import t_interval
from suture.measurement.tables.averages import LEAST, SIDE, average_numbered
from suture.measurement.tables.described import Described, Record

Row = dict[str, object]
Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Every column, in order, with its type.
COLUMNS: dict[str, str] = {
    "trial": "str",  # its key
    "study": "str",
    "status": "str",  # ok, failed
    "sender": "str",  # name; empty for a noise sender
    "receiver": "str",
    "sender_cut": "str",  # empty for a noise sender, and so is its depth
    "receiver_cut": "str",
    "sender_depth": "float64",  # index of the cut / number of cuts, in (0, 1]
    "receiver_depth": "float64",
    "stitch": "str",
    "fit": "str",
    "control": "str",  # empty for the plain trial
    "network_seed": "Int64",
    "seed": "Int64",  # of the stitch
    "fit_data": "str",
    "score_data": "str",
    "score": "str",
    "unit": "str",  # fraction, nats, bits, raw
    "stitched": "float64",  # in the unit, as the two scores below
    "stitched_low": "float64",
    "stitched_high": "float64",
    "sender_score": "float64",  # empty if undefined
    "receiver_score": "float64",
    "chance": "float64",  # of guessing, a constant answer; empty if unknown
    "penalty": "float64",  # pp if the unit is a fraction, else the unit; positive is worse
    "penalty_low": "float64",
    "penalty_high": "float64",
    "representation_error": "float64",  # relative squared error to the receiver's own activations
    "apart_mahalanobis": "float64",  # AUROC by which stitched activations are told from the receiver's own: 0.5 not
    "apart_mahalanobis_low": "float64",
    "apart_mahalanobis_high": "float64",
    "apart_knn": "float64",  # likewise, by the distance to the nearest of the receiver's own
    "apart_knn_low": "float64",
    "apart_knn_high": "float64",
    "n": "Int64",  # samples scored
    "steps": "Int64",
    "start": "str",  # of the descent: closed form, random; empty if unknown
    "converged": "boolean",  # empty if the fit cannot say
    "gained": "float64",  # pp, on the validation samples: what the last doubling of the fit's work gained
    "gained_error": "float64",  # its standard error
    "task": "str",  # what outputs and labels mean; empty if unknown, which is classification
    "plan": "str",  # curve, matrix or trait; empty if it was planned by hand
    "versions": "str",  # of the parts that the trial used, such as Converged 3; empty if unknown
    "outcomes": "str",  # of every scored sample, packed: see suture.outcomes; empty if unknown
    "device": "str",  # cpu or cuda
    "seconds": "float64",
    "error": "str",  # why a trial failed
    "warning": "str",  # why the networks are not to be trusted, empty if they are
}

_IDENTITY = [
    *("study", "status", "sender", "receiver", "sender_cut", "receiver_cut", "sender_depth", "receiver_depth"),
    *("stitch", "fit", "control", "fit_data", "score_data", "score", "unit"),
]
_SETTINGS = ("stitch", "fit", "study", "fit_data", "score_data")  #: that tell measurements at one seam apart
_SIDES = ("low", "high")
_APART = [f"apart_{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
_LATER = ("chance", "gained", "gained_error")  #: numbers that tables of measurements may lack: unknown

MARGIN = 3.0  #: pp: how much worse a network may be and still count as doing as well

OVER_NETWORKS = "t over network seeds"
OVER_STITCHES = "t over stitch seeds and test samples"
OVER_SAMPLES = "test samples"
_AVERAGED = [
    *("stitched", "sender_score", "receiver_score", "chance", "penalty", "representation_error", *_APART),
    *("steps", "gained", "gained_error", "seconds"),
]


def table_of(results: Iterable[tuple[Described, Record]]) -> pd.DataFrame:
    """Make the table of records, each with the trial that it is shown for."""
    rows = [row for trial, result in results for row in _rows(trial, result)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _rows(trial: Described, result: Record) -> list[Row]:
    unknown = {"plan": "", "versions": ""}  # of plans that an older store holds
    common = {"trial": trial.key, **unknown, **trial.labels, "status": result["status"], "seconds": result["seconds"]}
    common |= {"device": result.get("device", "")}
    scores = [common | {"score": name, "unit": unit} for name, unit in trial.scores]
    if result["status"] == "failed":
        return [row | {"error": result["error"], "start": "", "outcomes": "", "warning": ""} for row in scores]
    doubts = find_doubts(trial.labels, result.get("alone", {}), result["scores"])
    measured = {"error": "", "warning": "; ".join(doubts), "outcomes": result.get("outcomes", "")}
    measured |= {name: result[name] for name in ("representation_error", "steps", "converged")}
    for name, found in result.get("apart", {}).items():
        measured |= {f"apart_{name}{end and '_'}{end}": found[end or "value"] for end in ("", *_SIDES)}
    measured["start"] = result.get("start", "")
    if (gained := result.get("gained")) is not None:  # records written before have neither
        measured |= {"gained": 100 * gained["value"], "gained_error": 100 * gained["error"]}
    chances = result.get("chance") or {"accuracy": result.get("alone", {}).get("chance")}  # where older records have it
    return [
        row | measured | _estimates(result["scores"][row["score"]]) | {"chance": chances.get(row["score"])}
        for row in scores
    ]


def _estimates(score: Record) -> Row:
    stitched, penalty = score["stitched"], score["penalty"] or {}
    return {
        "stitched": stitched["value"],
        "stitched_low": stitched["low"],
        "stitched_high": stitched["high"],
        "sender_score": score["sender"]["value"] if score["sender"] is not None else None,
        "receiver_score": score["receiver"]["value"],
        "penalty": penalty.get("value"),
        "penalty_low": penalty.get("low"),
        "penalty_high": penalty.get("high"),
        "n": stitched["n"],
    }


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Aggregate over seeds: means, with 95 % intervals over seeds.

    Stitch seeds of the same networks are averaged first, so that the units of a t interval are independent: the network
    seeds if there are several, else the stitch seeds. Stitches of one pair of networks were all scored on the same test
    samples, whose luck they share: their t interval is widened by the interval over test samples, the mean of theirs,
    by the root of the sum of squares on either side. With one unit, or units that all gave the same (a closed form
    does, and so do networks that all make no error), the interval over test samples stays: equal units do not make the
    mean certain. An interval of fractions ends at 0 and 1, where a t interval of few would go beyond. The column
    ``interval`` says which it is: ``t over network seeds``, ``t over stitch seeds and test samples`` or ``test
    samples``; ``seeds`` counts the units. ``converged`` is whether all did, missing if that is unknown; ``trial`` and
    ``error`` are empty.

    Raises ``DataError`` if two trials differ in no column but ``trial``: networks or data of one name; and if the
    table is a summary already.
    """
    check_columns(table)
    table = add_later_columns(table)
    if "interval" in table:
        raise DataError("this table is a summary already; give the table as it was measured, a row per trial and score")
    table = table.reset_index(drop=True)
    _check_names_tell_trials(table)
    types = {**COLUMNS, "steps": "float64", "seeds": "Int64", "interval": "str"}
    repeated = table.duplicated(_IDENTITY, keep=False)
    # Rows without another seed are most of a large table, and stay as they are, all at once.
    alone = table[~repeated].assign(trial="", error="", seeds=1, interval=OVER_SAMPLES)
    groups = list(table[repeated].groupby(_IDENTITY, sort=False, dropna=False))
    rows = [dict(zip(_IDENTITY, names, strict=True)) | _aggregate(group) for names, group in groups]
    places = [group.index[0] for _, group in groups]
    several = pd.DataFrame(rows, index=places, columns=list(types)).astype(types)
    return pd.concat([alone[list(types)].astype(types), several]).sort_index().reset_index(drop=True)


def _check_names_tell_trials(table: pd.DataFrame) -> None:
    seeds = [*_IDENTITY, "network_seed", "seed"]
    trials = table[table["trial"] != ""].drop_duplicates([*seeds, "trial"])
    twice = trials[trials.duplicated(seeds)]
    if len(twice):
        one = twice.iloc[0]
        raise DataError(
            f"the table has two trials of {one['sender']} → {one['receiver']} at {one['receiver_cut']} that differ in "
            "nothing but their key, so two networks or data sets share a name; give each its own name and "
            "measure into a new folder, or select rows by the column trial"
        )


def check_columns(table: pd.DataFrame, names: Iterable[str] = COLUMNS, what: str = "measurements") -> None:
    """Raise ``DataError`` if a table lacks columns that every table of its kind has."""
    check_kind(
        "table", table, pd.DataFrame, f"a table of {what}, such as pandas.read_parquet reads from a run's folder"
    )
    missing = [name for name in names if name not in table and name not in _LATER]
    if missing:
        raise DataError(f"this is not a table of {what}: it has no column {', '.join(map(repr, missing))}")


def add_later_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of measurements with the columns that some lack, at their places and unknown."""
    missing = [name for name in _LATER if name not in table]
    if not missing or not {*COLUMNS} <= {*table, *_LATER}:
        return table
    added = table.assign(**dict.fromkeys(missing, float("nan")))
    return added[[*COLUMNS, *(name for name in added if name not in COLUMNS)]]


def not_converged(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return which rows are of a fit that reports that it did not converge."""
    if "converged" not in rows:
        return pd.Series(False, index=rows.index)
    return ~rows["converged"].astype("boolean").fillna(True).astype(bool)


def never_known(rows: pd.DataFrame) -> list[str]:
    """Name the fits of rows that were measured and cannot say whether they have converged, such as ``Quick()``."""
    silent = rows["converged"].isna() & rows["stitched"].notna()
    return sorted(map(str, rows.loc[silent, "fit"].dropna().unique()))


def told_from_own(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return where stitched activations certainly differ from the receiver's own, by either measure."""
    ends = rows[_APART].astype("float64")
    either = pd.Series(False, index=rows.index)
    for name in MEASURES:
        either |= (ends[f"apart_{name}_low"] > APART) | (ends[f"apart_{name}_high"] < 1 - APART)
    return either


def say_quick(table: pd.DataFrame) -> str:
    """Return the quick fits of a table, in words for its readers; empty if there are none."""
    quick = sorted(fit for fit in map(str, table["fit"].dropna().unique()) if fit.startswith("Quick("))
    return f"fitted by {' and '.join(quick)}" if quick else ""


def main_score(table: pd.DataFrame) -> str:
    """Return the score that is shown if none is named: the accuracy, or the first of the table."""
    check_columns(table, ("score",))
    held = list(dict.fromkeys(map(str, table["score"])))
    return "accuracy" if "accuracy" in held or not held else held[0]


def write_score(value: float, unit: str) -> str:
    """Write a score with its unit: ``98.3 %``, ``2.310 nats``, ``0.512``."""
    return f"{100 * value:.1f} %" if unit == "fraction" else f"{value:.3f} {unit.replace('raw', '')}".strip()


def rows_of(table: pd.DataFrame, score: str) -> pd.DataFrame:
    """Return the rows of a score. Raises ``DataError`` with the scores of the table if it is none of them."""
    rows = table[table["score"] == score]
    if rows.empty:
        held = ", ".join(map(repr, dict.fromkeys(table["score"]))) or "none"
        raise DataError(f"the table has no measurement of '{score}'; its scores: {held}")
    return rows


def ends_at_output(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return which rows, or cells, are of baselines that end at ``OUTPUT``, behind the receiver's layers.

    If the trials themselves end there too, the receiver has a cut of that name, and it is shown as any other.
    """
    there = rows["receiver_cut"] == OUTPUT
    return there & ~rows["receiver"].isin(rows.loc[there & (rows["control"] == ""), "receiver"])


def say_warnings(table: pd.DataFrame) -> list[str]:
    """Say why networks are not to be trusted, a sentence for each reason; nothing if they are."""
    told = table["warning"].fillna("") if "warning" in table else ()
    return [f"Warning: {said}." for said in dict.fromkeys(said for text in told for said in text.split("; ") if said)]


def check_single(rows: pd.DataFrame, place: list[str]) -> None:
    """Raise ``DataError``, naming the columns that differ, if rows agree in the columns of their ``place``."""
    twice = rows[rows.duplicated(place, keep=False)]
    if len(twice):
        first = twice.iloc[0]
        same = twice[(twice[place] == first[place]).all(axis=1)]
        differ = [name for name in ("sender_cut", "receiver_cut", *_SETTINGS) if same[name].nunique() > 1]
        raise DataError(
            f"the table has several measurements at {first['sender_cut']} → {first['receiver_cut']}, which differ in "
            f"{', '.join(differ)}; select the rows of one"
        )


def _aggregate(group: pd.DataFrame) -> Row:
    several_networks = group["network_seed"].nunique() > 1
    unit = "network_seed" if several_networks else "seed"
    units = group.astype(dict.fromkeys(_AVERAGED, "float64")).groupby(unit, dropna=False)[_AVERAGED].mean()
    first = group.iloc[0]
    pairs = several_networks and bool(first["study"]) and group["network_seed"].min() >= SIDE
    shared = {
        "trial": "",
        "error": "",
        "warning": "; ".join(dict.fromkeys(filter(None, group["warning"]))),
        "network_seed": None if several_networks else first["network_seed"],
        "seed": first["seed"] if group["seed"].nunique() == 1 else None,
        "n": first["n"],
        "converged": False if (group["converged"] == False).any() else group["converged"].all(skipna=False),  # noqa: E712
        "start": " or ".join(dict.fromkeys(group["start"])),
        **{name: first[name] if group[name].nunique() == 1 else "" for name in ("device", "plan", "versions")},
        "outcomes": "",
        "seeds": average_numbered(units.index, units["stitched"]).networks if pairs else len(units),
    }
    means = {str(name): value for name, value in units.mean().items()}
    alike = [name for name in ("stitched", "penalty") if units[name].nunique() == 1]
    if len(units) == 1 or ("stitched" in alike and (not several_networks or units["penalty"].nunique() <= 1)):
        own = {str(name): value for name, value in first.items()}
        bounds = _own_bounds(group, alike if several_networks else ("stitched", "penalty"))
        return {**own, **means, **shared, **bounds, "interval": OVER_SAMPLES}
    both = {name: _interval_of(units[name], pairs) for name in ("stitched", "penalty")}
    bounds = {f"{name}_{side}": end for name, ends in both.items() for side, end in zip(_SIDES, ends, strict=True)}
    if not several_networks:
        bounds = _widen(bounds, means, _own_bounds(group, both))
    if first["unit"] == "fraction":
        bounds |= {name: min(max(bounds[name], 0.0), 1.0) for name in ("stitched_low", "stitched_high")}
    bounds |= _own_bounds(group, alike) if several_networks else {}
    return {**means, **shared, **bounds, "interval": OVER_NETWORKS if several_networks else OVER_STITCHES}


def _interval_of(units: "pd.Series[float]", pairs: bool) -> tuple[float, float]:
    """Return the t interval of a mean; of a study's ``pairs`` of networks one whose unit is the network.

    A study numbers its pairs by their networks: five networks in all ordered pairs are five units, not twenty.
    """
    found = average_numbered(units.index, units) if pairs else None
    if found is None or found.networks == len(units) < LEAST:
        return t_interval(units)
    return found.value - found.reach(0.95), found.value + found.reach(0.95)


def _own_bounds(group: pd.DataFrame, columns: Iterable[str]) -> dict[str, float]:
    """Return the mean ends of the rows' own intervals, over test samples."""
    ends = group[[f"{name}_{side}" for name in columns for side in _SIDES]].astype("float64")
    # of equal ends that end, which their mean is not always
    return {
        str(name): float(end.iloc[0] if end.nunique(dropna=False) == 1 else end.mean()) for name, end in ends.items()
    }


def _widen(bounds: dict[str, float], means: dict[str, float], own: dict[str, float]) -> dict[str, float]:
    """Return the ends over seeds, widened by those over test samples, if there are such."""
    wide = {}
    for name, end in bounds.items():
        mean = means[name.rpartition("_")[0]]
        further = hypot(mean - end, 0.0 if isnan(own[name]) else mean - own[name])
        wide[name] = mean - further if name.endswith("low") else mean + further
    return wide


def for_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the columns that only a program reads, for a file or a screen of text."""
    return table.drop(columns="outcomes", errors="ignore")


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, such that all of its texts are seen and none is a formula to a spreadsheet."""
    seen = for_text(table)
    texts = [name for name in seen if not pd.api.types.is_numeric_dtype(seen[name])]
    for name in texts:
        seen = seen.assign(**{str(name): seen[name].map(lambda cell: as_cell(cell) if isinstance(cell, str) else cell)})
    seen.rename(columns=lambda name: as_cell(str(name))).to_csv(path, index=False)


def save(table: pd.DataFrame, path: str | Path) -> Path:
    """Write a table as sealed parquet; a reader sees the old file or the new one, whole. Raises ``OutputError``."""
    path, content = Path(path), BytesIO()
    made = pa.Table.from_pandas(table, preserve_index=False)
    parquet.write_table(made.replace_schema_metadata({**(made.schema.metadata or {}), **SEAL}), content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as temporary:
            temporary.write_bytes(seal(content.getvalue()))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; name another folder") from error
    return path


def read(path: str | Path) -> pd.DataFrame | None:
    """Read any table from parquet; ``None`` if there is no file. Raises ``DataError`` if it is damaged."""
    path = Path(path)
    if not path.is_file():
        return None
    try:
        if not is_sound(content := path.read_bytes()):
            raise OSError("it has changed since it was written")
        return add_later_columns(pd.read_parquet(BytesIO(content)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is not a table, or is damaged ({error}); write it again") from error


def load(path: str | Path) -> pd.DataFrame:
    """Read a table of measurements, or its summary. Raises ``DataError`` if there is none."""
    table = read(path)
    if table is None:
        raise DataError(f"no table at {path}; it is the file table.parquet in a run's folder")
    check_columns(table)
    return table
