"""``suture report``: a run, a study, or two runs beside each other, as one page."""

from argparse import Namespace
from pathlib import Path

from suture.cli import output
from suture.cli.options import JSON, command, named_path, option
from suture.common.errors import SutureError

NAME = "report.html"  #: the file in the folder, if no other is named


@command(
    "report",
    option(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="folder of a run (its --out) or of results of studies, or one study in it; two folders are compared",
    ),
    option(
        "--out", type=named_path, metavar="FILE", help=f"file for the report; by default {NAME} in the (first) folder"
    ),
    JSON,
    examples=(
        "suture report runs/ab",
        "suture report runs/ab runs/ab-wide --out compared.html",
        "suture report papers/results/small/bansal-2C",
    ),
)
def report(chosen: Namespace) -> int:
    """Write a run, studies or two runs compared as one HTML page.

    Write the results of a run as one HTML file that needs no network: the question, the verdict, the curve or the
    matrix to look into, conclusions to avoid, cost, versions, and how to repeat it; for studies, their claims. For two
    folders, write a comparison of the seams that both measured.
    """
    from suture.common.sizes import in_words
    from suture.reports.html import check_file, read, render
    from suture.runs.store.files import write_page

    if len(chosen.folders) > 2:
        raise SutureError(f"{chosen.folders[2]}: a report is of one run, or compares two; give at most two folders")
    if chosen.out is not None:
        check_file(chosen.out)
    runs = [read(folder) for folder in chosen.folders]
    place = Path(chosen.folders[0]).expanduser()
    own = NAME if place.is_dir() else f"{runs[0].results[0][0].id}.html"  # of a single study, beside its results
    file = check_file(chosen.out or (place if place.is_dir() else place.parent) / own)
    written = write_page(file, render(*runs))
    size = written.stat().st_size
    if chosen.json:
        output.show_json({"file": str(written), "bytes": size})
    else:
        output.say(f"wrote {written} ({in_words(size)}); open it in a browser")
    return 0
