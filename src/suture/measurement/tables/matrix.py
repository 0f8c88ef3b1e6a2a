"""A table of sender cuts × receiver cuts and one score, arranged as matrices, for figures and screens.

Rows are the senders' cuts, columns the receivers', both from input to output, network by network. A control whose
sender depends on the receiver's cut alone (``itself``, clustered noise) has no matrix but a strip of one row.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import at_least_as_deep, cells
from suture.measurement.tables.curve import PLAIN, more_is_better, without_sender
from suture.measurement.tables.similarities import check_similarities
from suture.measurement.tables.table import Mask, Numbers, check_single, ends_at_output, main_score


@dataclass(frozen=True, eq=False)
class Block:
    """The rows, or the columns, of one network."""

    name: str
    cuts: tuple[str, ...]  #: from input to output
    depths: Numbers  #: of the cuts, (cuts,)
    start: int  #: the place of the first cut among all rows, or columns

    @property
    def stop(self) -> int:
        """The place after the last cut."""
        return self.start + len(self.cuts)

    @property
    def places(self) -> slice:
        """Its slice of all rows, or columns."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, eq=False)
class Matrix:
    """The measurements of one score, averaged over seeds; in the score's unit, nan where there are none."""

    score: str
    unit: str
    senders: tuple[Block, ...]
    receivers: tuple[Block, ...]
    panels: dict[str, Numbers]  #: by control, the plain one first: (sender cuts, receiver cuts)
    strips: dict[str, Numbers]  #: by control: (receiver cuts,)
    failed: dict[str, Mask]  #: by control, shaped as its panel or strip: where a trial failed
    open: dict[str, Mask]  #: by control, likewise: where a fit had not converged, of those that can say so
    parents: dict[str, tuple[Numbers, Numbers]]  #: by control with a panel: senders alone and receivers alone
    rises: bool  #: whether more of the score is better
    table: pd.DataFrame  #: that it was arranged from

    @property
    def percent(self) -> bool:
        """Whether the score is a fraction, to be shown in per cent."""
        return self.unit == "fraction"

    @property
    def single(self) -> bool:
        """Whether there is one sender and one receiver."""
        return len(self.senders) == len(self.receivers) == 1

    @property
    def plain(self) -> Numbers:
        """The trials themselves, (sender cuts, receiver cuts); all missing if there are none."""
        shape = (self.senders[-1].stop, self.receivers[-1].stop) if self.senders else (0, self.receivers[-1].stop)
        return self.panels.get(PLAIN, np.full(shape, np.nan))

    @property
    def title(self) -> str:
        """The networks in words: ``A → B``, ``A, B → C``."""
        senders, receivers = (", ".join(block.name for block in side) for side in (self.senders, self.receivers))
        return f"{senders or 'no sender'} → {receivers}"

    @property
    def alone(self) -> dict[str, float]:
        """The score of each network by itself, by its name, if it has one."""
        sides = zip((self.senders, self.receivers), self.parents.get(PLAIN, ()), strict=False)
        named = (zip(blocks, values, strict=True) for blocks, values in sides)
        found = {block.name: float(value) for side in named for block, value in side}
        return {name: value for name, value in found.items() if np.isfinite(value)}

    def values(self) -> Numbers:
        """Return every value there is: of panels, strips and parents."""
        parts = [
            *self.panels.values(),
            *self.strips.values(),
            *(side for pair in self.parents.values() for side in pair),
        ]
        every = np.concatenate([part.ravel() for part in parts])
        return np.asarray(every[np.isfinite(every)])


def staircase(sender: Block, receiver: Block) -> tuple[list[int], list[int]]:
    """Return the line right of the cells whose sender cut is at least as deep as the receiver's."""
    reach = at_least_as_deep(sender.depths[:, None], receiver.depths[None, :]).sum(1)
    x, y = [receiver.start], [sender.start]
    for i, columns in enumerate(reach):
        x += [receiver.start + int(columns)] * 2
        y += [sender.start + i, sender.start + i + 1]
    x, y = [*x, receiver.stop], [*y, sender.stop]
    return x, y


def arrange_matrix(table: pd.DataFrame, score: str | None = None) -> Matrix:
    """Arrange a table as matrices; baselines that end at no cut of the receiver have no place in one.

    Raises ``DataError`` if the table lacks the score, or holds several measurements of a seam and a control that
    differ in more than their seeds.
    """
    score = score or main_score(table)
    held = cells(table, score)
    ended = ends_at_output(held)
    held = held if ended.all() else held[~ended]
    check_single(held, ["control", "sender", "sender_cut", "receiver", "receiver_cut"])
    is_strip = without_sender(held)
    held, apart = held[~is_strip], held[is_strip]
    senders = _blocks(held, "sender")
    receivers = _blocks(pd.concat([held, apart]), "receiver")
    panels = {kind: held[held["control"] == kind] for kind in sorted(dict.fromkeys(held["control"]), key=bool)}
    strips = {kind: apart[apart["control"] == kind] for kind in dict.fromkeys(apart["control"])}
    failed, open_ = (
        {kind: lay_cells(rows, counted, senders, receivers) > 0 for kind, rows in panels.items()}
        | {kind: lay_strip(rows, counted, receivers) > 0 for kind, rows in strips.items()}
        for counted in ("failed", "open")
    )
    return Matrix(
        score=score,
        unit=str(pd.concat([held, apart])["unit"].iloc[0]),
        senders=senders,
        receivers=receivers,
        panels={kind: lay_cells(rows, "stitched", senders, receivers) for kind, rows in panels.items()},
        strips={kind: lay_strip(rows, "stitched", receivers) for kind, rows in strips.items()},
        failed=failed,
        open=open_,
        parents={
            kind: (_alone(rows, "sender", senders), _alone(rows, "receiver", receivers))
            for kind, rows in panels.items()
        },
        rises=more_is_better(table[table["score"] == score], bool((held["unit"] == "fraction").any())),
        table=table,
    )


def _blocks(held: pd.DataFrame, role: str) -> tuple[Block, ...]:
    blocks: list[Block] = []
    for name in dict.fromkeys(held[role]):
        cuts = held[held[role] == name][[f"{role}_cut", f"{role}_depth"]].drop_duplicates(f"{role}_cut")
        cuts = cuts.sort_values(f"{role}_depth", kind="stable")
        depths = cuts[f"{role}_depth"].to_numpy(float)
        blocks.append(Block(name, tuple(cuts[f"{role}_cut"]), depths, blocks[-1].stop if blocks else 0))
    return tuple(blocks)


def places_of(blocks: tuple[Block, ...]) -> dict[tuple[str, str], int]:
    """Return the row or column of each network and cut."""
    return {(block.name, cut): block.start + i for block in blocks for i, cut in enumerate(block.cuts)}


def lay_cells(rows: pd.DataFrame, column: str, senders: tuple[Block, ...], receivers: tuple[Block, ...]) -> Numbers:
    """Return a column of the cells at their places; nan if there is no cell."""
    down, across = places_of(senders), places_of(receivers)
    laid = np.full((len(down), len(across)), np.nan)
    i = [down[key] for key in zip(rows["sender"], rows["sender_cut"], strict=True)]
    j = [across[key] for key in zip(rows["receiver"], rows["receiver_cut"], strict=True)]
    laid[i, j] = rows[column].to_numpy(float)
    return laid


def lay_strip(rows: pd.DataFrame, column: str, receivers: tuple[Block, ...]) -> Numbers:
    """Return a column of controls without a sender at the places of the receivers' cuts; nan if there is none."""
    across = places_of(receivers)
    laid = np.full(len(across), np.nan)
    j = [across[key] for key in zip(rows["receiver"], rows["receiver_cut"], strict=True)]
    laid[j] = rows[column].to_numpy(float)
    return laid


def _alone(rows: pd.DataFrame, role: str, blocks: tuple[Block, ...]) -> Numbers:
    """Return the score of every network on its own; nan if it has none."""
    means = rows.groupby(role)[f"{role}_score"].mean()
    return np.array([means.get(block.name, np.nan) for block in blocks], float)


# --- similarities -----------------------------------------------------------------------------------------------------


def arrange_similarities(similarities: pd.DataFrame) -> dict[str, Matrix]:
    """Return every index as a matrix of one sender and one receiver, in a table of ``compare``."""
    check_similarities(similarities)
    for role in ("sender", "receiver"):
        names = dict.fromkeys(map(str, similarities[role]))
        if len(names) > 1:
            raise DataError(f"the table has {', '.join(names)} as {role}; select the rows of one")
    senders, receivers = _blocks(similarities, "sender"), _blocks(similarities, "receiver")
    made = {}
    for index, held in similarities.groupby("index", sort=False):
        shown = show_of(held)
        values = lay_cells(held, shown.column, senders, receivers)
        failed = {PLAIN: np.zeros(values.shape, bool)}
        panels = {PLAIN: values}
        name = f"{index}{shown.words}"
        made[name] = Matrix(
            name, "raw", senders, receivers, panels, {}, failed, failed, {}, rises=True, table=similarities
        )
    return made


@dataclass(frozen=True)
class IndexLook:
    """The display of an index: its column, an addition to its name, the ends of its colours, whether low is alike."""

    column: str
    words: str
    span: tuple[float, float]
    distance: bool


def show_of(rows: pd.DataFrame) -> IndexLook:
    """Say how the rows of an index are shown: calibrated, or its values if it was not."""
    column = "calibrated" if rows["calibrated"].notna().any() else "value"
    distance = column == "value" and bool((rows["direction"] == "distance").any())
    words = ", calibrated" if column == "calibrated" else " (distance: 0 is alike)" if distance else ""
    low, high = rows[column].min(), rows[column].max()
    return IndexLook(column, words, (min(0.0, float(low)), float(high) if distance else 1.0), distance)
