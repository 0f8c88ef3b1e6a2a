"""What ``suture bench`` takes: the benchmark of a matrix, and that of similarities."""

from collections.abc import Sequence

from jsonargparse import ArgumentParser

from suture.cli.options import MODEL, add_json, add_loading, new_parser
from suture.cli.train_commands_options import DATA

BENCHES = ("matrix", "similarity")  #: the commands of ``suture bench``


def spelled_out(given: Sequence[str]) -> list[str]:
    """The arguments of a command, with ``bench`` alone as ``bench matrix``, which it stands for."""
    if list(given[:1]) != ["bench"] or (given[1:] and given[1] in (*BENCHES, "--help", "-h")):
        return list(given)
    return ["bench", "matrix", *given[1:]]


def bench_parser() -> ArgumentParser:
    """Make the parser of ``suture bench``, still without its commands."""
    return new_parser(
        "Measure the same by this library and by the loops that people write, in turns, in one process with one "
        "thread. suture bench alone is suture bench matrix, with two small networks of its own.",
        "suture bench",
        "suture bench nets/a nets/b --data cifar10 --fit-samples 9000 --at 'layer*.?'",
        "suture bench matrix --help",
        "suture bench similarity",
    )


def add_benches(bench: ArgumentParser, given: Sequence[str]) -> None:
    """Add the commands of ``suture bench``; what similarities take is imported only where the arguments ask for it."""
    commands = bench.add_subcommands(required=True, dest="what", title="commands", metavar="COMMAND", description=None)
    similarity = _similarity_parser(filled=list(given[:2]) == ["bench", "similarity"])
    for name, command, about in (
        ("matrix", _matrix_parser(), "a matrix of stitches: time, accuracy, memory, share of the machine's peak"),
        ("similarity", similarity, "linear CKA of all pairs of layers"),
    ):
        commands.add_subcommand(name, command, help=about)
        command.prog = f"suture bench {name}"


def _matrix_parser() -> ArgumentParser:
    parser = new_parser(
        "Stitch a sample of the cells of a matrix by several methods, in turns: by the plain loop that one would write "
        "by hand, by least squares followed by Adam, by the default fit, and by any that --fit names. Print what each "
        "takes and reaches, as medians of several repeats. What is measured stays in the folder --out, and the same "
        "command goes on with it.",
        "suture bench",
        "suture bench nets/a nets/b --data cifar10 --fit-samples 9000 --at 'layer*.?'",
        "suture bench nets/a nets/b --data cifar10 --fit bansal2021 --sample all",
    )
    add = parser.add_argument
    add("networks", type=str, nargs="*", metavar="NETWORK", help=f"sender and receiver: {MODEL}; by default our own")
    add("--data", type=str, default=None, help=f"{DATA}; needed where networks are named")
    add_loading(parser)
    cuts = "names or patterns, such as layer*,fc; by default all cuts"
    add("--cuts", "--at", type=str, default=None, metavar="CUTS", help=cuts)
    add("--sender-cuts", "--sender-at", type=str, default=None, metavar="CUTS", help="likewise, of the sender only")
    add("--receiver-cuts", "--receiver-at", type=str, default=None, metavar="CUTS", help="likewise, of the receiver")
    fits = "measure this one too; may be given several times, such as task-loss,steps=100"
    add("--fit", type=str, action="append", default=None, metavar="FIT", help=fits)
    add("--fit-samples", type=int, default=None, metavar="N", help="fit on the first N images only")
    add("--score-samples", type=int, default=None, metavar="N", help="score on the first N images only")
    sample = "how many cells to measure, spread evenly over the matrix, or all"
    add("--sample", type=str, default="6", metavar="N", help=sample)
    add("--repeats", type=int, default=3, metavar="N", help="how often each is measured; the medians count")
    quicker = "leave out least squares + Adam, which takes nearly as long as the plain loop"
    add("--no-least-squares", action="store_true", help=quicker)
    controls = "also measure the controls of each cell, once, by the plain loop and by the default fit"
    add("--controls", action="store_true", help=controls)
    add("--out", type=str, default="suture-bench", metavar="FOLDER", help="folder for what is measured")
    add_json(parser)
    return parser


def _similarity_parser(filled: bool) -> ArgumentParser:
    parser = new_parser(
        "Compute linear CKA of all pairs of layers of two networks, all at once and by the usual loop over pairs, in "
        "turns, and compare their times, and their errors against float64.",
        "suture bench similarity",
        "suture bench similarity nets/a nets/b --data cifar10",
    )
    if filled:
        from suture.cli.bench_similarity import add_arguments

        add_arguments(parser)
    return parser
