"""``suture explain``: a run explained in words, and the conclusions that it does not support."""

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from suture.cli import output
from suture.cli.options import JSON, RUN, command, option
from suture.common.constants import COMPLEXITY, SIMILARITIES
from suture.common.errors import DataError


@command(
    "explain",
    RUN,
    option("--score", help="which score of the table; by default the accuracy, or the first"),
    option(
        "--margin",
        type=float,
        metavar="M",
        help="largest penalty at which a stitched network still counts as working; by default 3 pp",
    ),
    option("--chance", type=float, metavar="SCORE", help="the score of guessing, such as 0.1"),
    option("--full", action="store_true", help="also list conclusions to avoid and measurements that are missing"),
    JSON,
    examples=("suture explain runs/ab", "suture explain runs/ab --margin 1 --full"),
)
def explain(chosen: Namespace) -> int:
    """Answer five questions about the run in a folder.

    Does it work? Does it need what the sender has learned, what the receiver has learned, the right pairs? Whose
    mistakes does it make? With --full also the conclusions to avoid and the measurements that are missing;
    for these, similarities.parquet and complexity.parquet are read if suture compare and suture complexity wrote them.
    """
    from suture.measurement.tables import table as tables
    from suture.measurement.tables.explain import explain

    folder = Path(chosen.folder).expanduser()
    beside = {"similarities": tables.read(folder / SIMILARITIES), "ranks": tables.read(folder / COMPLEXITY)}
    said = explain(table_of(folder), **beside, score=chosen.score, margin=chosen.margin, chance=chosen.chance)
    if chosen.json:
        output.show_json(asdict(said))
        return 0
    output.show_text(output.in_options(said.full if chosen.full else str(said)))
    return 0


def table_of(folder: Path | str) -> Any:
    """Return the table of the run in a folder. Raises ``DataError`` if nothing is measured."""
    from suture.runs.store.store import Store

    table = Store(folder).table()
    if not len(table):
        raise DataError(f"{folder} has measured nothing yet; see suture status {folder}")
    return table
