"""What the commands about the papers' experiments take: ``run``, ``studies``, ``claims``."""

from jsonargparse import ArgumentParser

from suture.cli.options import add_json, add_running, new_parser

SCALES = ("tiny", "small", "paper")  #: those of ``suture.studies``, which takes long to import
RESULTS = "results/small"  #: the folder of what was measured, within the project


def run_parser() -> ArgumentParser:
    """Make the parser of ``suture run``."""
    parser = new_parser(
        "Run experiments of the papers: train the networks that they need, measure their trials, decide their claims, "
        "and write tables, a card and a figure for each. What is in the folder --out already is not done again, and "
        "what was stopped goes on, so that experiments which share networks had better share a folder.",
        "suture run bansal-2A --scale small --out runs/small --data data",
        "suture run 'smith-*' oxford-4.2 --out runs/small",
        "suture run all --scale tiny --out runs/tiny",
        "suture run bansal-2A --out runs/small --results results/small",
    )
    add = parser.add_argument
    add("ids", type=str, nargs="+", metavar="ID", help="of experiments, as suture studies lists them; 'smith-*'; all")
    _add_scale(parser, "small")
    add("--out", type=str, required=True, metavar="FOLDER", help="of the run")
    add("--data", type=str, default=None, metavar="FOLDER", help="that has mnist and cifar10; by default from the hub")
    add(
        "--results",
        type=str,
        default=None,
        metavar="FOLDER",
        help="for tables and cards; by default results within --out",
    )
    add("--figures", type=str, default=None, metavar="FOLDER", help="for figures; by default that of tables and cards")
    add_running(parser)
    add_json(parser)
    add("--config", action="config", metavar="FILE", help="a YAML file of these settings")
    return parser


def studies_parser() -> ArgumentParser:
    """Make the parser of ``suture studies``."""
    parser = new_parser(
        "List the papers' experiments. With --scale, say what each takes at that scale: networks, data, trials, claims "
        "and time. Nothing is trained, measured or loaded for that.",
        "suture studies",
        "suture studies --scale small",
        "suture studies --scale paper --only 'hernandez-*'",
    )
    add = parser.add_argument
    _add_scale(parser, None)
    add("--only", type=str, default=None, metavar="PATTERN", help="only experiments of such ids, as in 'smith*'")
    _add_results(parser, "of what was measured, whose times are told")
    add_json(parser)
    return parser


def claims_parser() -> ArgumentParser:
    """Make the parser of ``suture claims``."""
    parser = new_parser(
        "Decide the claims of the papers by the tables that were measured: reproduced, not reproduced, or undecided. "
        "With --page and --papers, write the pages that say so. With --check, write nothing; the exit code is 1 where "
        "a page is not what the tables give.",
        "suture claims",
        "suture claims --results results/small --page docs/claims.md",
        "suture claims --page docs/claims.md --papers docs/papers --check",
    )
    add = parser.add_argument
    _add_results(parser, "of the tables and cards that suture run wrote")
    add("--page", type=str, default=None, metavar="FILE", help="the page of all claims, as Markdown")
    add(
        "--papers", type=str, default=None, metavar="FOLDER", help="of a page for each paper, filled where it is marked"
    )
    add(
        "--figures",
        type=str,
        default="docs/images/studies",
        metavar="FOLDER",
        help="of the figures that the pages show, where they are there",
    )
    add("--check", action="store_true", help="only say whether the pages are what the tables give")
    add_json(parser)
    return parser


def _add_scale(parser: ArgumentParser, default: str | None) -> None:
    about = "tiny (seconds, its figures mean nothing), small (two cores) or paper"
    parser.add_argument("--scale", type=str, default=default, metavar="SCALE", help=about)


def _add_results(parser: ArgumentParser, about: str) -> None:
    parser.add_argument("--results", type=str, default=RESULTS, metavar="FOLDER", help=about)
