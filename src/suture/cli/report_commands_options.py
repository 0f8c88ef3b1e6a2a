"""What ``suture report`` takes."""

from jsonargparse import ArgumentParser

from suture.cli.options import add_json, new_parser


def report_parser() -> ArgumentParser:
    """Make the parser of ``suture report``."""
    parser = new_parser(
        "Write what the run in a folder measured as one HTML file that needs no network: what was asked, the verdict, "
        "the curve or the matrix to look into, what must not be concluded, cost, versions, and how to repeat it; of "
        "studies, their claims. Of two folders, write a comparison of what both measured.",
        "suture report runs/ab",
        "suture report runs/ab runs/ab-wide --out compared.html",
        "suture report runs/papers --study bansal-2A",
        "suture report results/small/bansal-2C",
    )
    add = parser.add_argument
    folders = "of a run (what its command was given as --out) or of results of studies; two are compared"
    add("folders", type=str, nargs="+", metavar="FOLDER", help=folders)
    add("--study", type=str, default=None, metavar="IDS", help="of these studies alone, such as bansal-2A,smith-4.1")
    add("--out", type=str, default=None, metavar="FILE", help="by default report.html in the (first) folder")
    add_json(parser)
    return parser
