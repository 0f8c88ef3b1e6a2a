"""What the command line takes: its parser, its help, and what it says of arguments that do not parse."""

import re
from importlib.metadata import version

from jsonargparse import ArgumentParser

from suture.cli.evidence_commands_options import compare_parser, complexity_parser, explain_parser, localise_parser
from suture.cli.export_commands import export_parser
from suture.cli.options import MODEL, add_json, add_measuring, add_running, new_parser, out_help
from suture.cli.report_commands_options import report_parser
from suture.cli.setup_commands_options import completion_parser, doctor_parser
from suture.cli.study_commands_options import claims_parser, run_parser, studies_parser
from suture.cli.suggestions import meant
from suture.cli.train_commands_options import ZOO, add_zoo, data_parser, train_parser, zoo_parser

COMMANDS = (
    *("demo", "cuts", "curve", "matrix", "localise", "compare", "complexity", "plan"),
    *("status", "table", "explain", "verify", "data", "train", "zoo"),
    *("studies", "run", "claims"),
    *("report", "export", "doctor", "completion"),
)
#: The commands as the help shows them; those in no group come last.
GROUPS = {
    "measuring": ("demo", "curve", "matrix", "localise", "compare", "complexity", "plan"),
    "networks and data": ("cuts", "train", "zoo", "data"),
    "looking at a run": ("status", "table", "explain", "report", "export", "verify"),
    "experiments of the papers": ("studies", "run", "claims"),
    "this installation": ("doctor", "completion"),
}
EXIT_CODES = (
    "exit codes:\n"
    "  0 done, 1 something failed, is damaged or is missing, 2 wrong input, or what\n"
    "  cannot go on (a full disk, a training that diverged), 3 some trials are not\n"
    "  measured yet, 70 a fault of Suture's own, 130 interrupted, 141 nobody reads\n"
    "  the results (as head does), 143 terminated"
)
PLANNED = ("curve", "matrix")  #: the commands whose cost can be asked for
_INNER = {"plan": PLANNED, "zoo": ZOO}  #: commands that have commands
_NO_SETTING = "--config: no setting"
_POSITIONAL = {
    "model": "MODEL",
    "sender": "SENDER",
    "receiver": "RECEIVER",
    "senders": "SENDER",
    "folder": "FOLDER",
    "recipe": "RECIPE",
    "source": "DATA",
    "results": "RUN",
    "first": "SENDER",
    "second": "RECEIVER",
    "trait": "TRAIT",
    "carrier": "CARRIER",
    "reference": "REFERENCE",
    "measured": "RUN or NETWORK",
    "ids": "ID",
    "folders": "FOLDER",
}


def plainly(message: str, given: list[str]) -> str:
    """A message of the parser in the words of this one's user."""
    for found, instead in (
        (r'^Parser key "([\w.]+)":', r"--\1:"),
        (r"^argument COMMAND: invalid choice: ('.*') \(choose from (.*)\)", r"no command \1; valid commands: \2"),
        (r'^expected "plan.what" to be one of .*', "missing COMMAND, which is curve or matrix"),
        (r'^expected "zoo.what" to be one of .*', f"missing COMMAND, which is one of {', '.join(ZOO)}"),
        (r"Expected a <class 'float'>\. Got value: (.*)", r"expected a number, got \1"),
        (r"Expected a <class 'int'>\. Got value: (.*)", r"expected a whole number, got \1"),
        (r"^Unexpected config: .*", "--config: the file has no settings; write one to a line, such as 'seeds: 3'"),
        (r"^Problems parsing config: (.*)", r"--config: the file is no YAML: \1"),
        (r"^Subcommand '.*' does not accept option '(.*)'", rf"{_NO_SETTING} '\1'"),
    ):
        message = re.sub(found, instead, message, flags=re.DOTALL)
    missing = re.fullmatch(r"the following arguments are required: (.*)", message)
    if missing:
        names = [name.rpartition(".")[2] for name in missing[1].split(", ")]
        message = f"missing {', '.join(_POSITIONAL.get(name, f'--{name}') for name in names)}"
    words = given[:2] if given[1:2] and given[1] in _INNER.get(given[0], ()) else given[:1]
    command = " ".join(words) + " " if given[0] in COMMANDS else ""
    remedy = meant(message, words, parser() if message.startswith(("unrecognized", _NO_SETTING)) else None)
    return f"{message}{remedy or ';'} see suture {command}--help"


def parser() -> ArgumentParser:
    """Make the parser of ``suture``, with a subcommand for each of ``COMMANDS``."""
    made = new_parser(
        "Model stitching: join the first layers of one trained network to the last layers of another by a small "
        "trainable stitch, and measure, beside controls, what the first network's representation is worth to the "
        "second.",
        "suture demo",
        "suture doctor",
        "suture cuts timm:resnet50",
        "suture curve --help",
        "suture status runs/ab",
        prog="suture",
        version=version("suture"),
    )
    made.epilog = f"{made.epilog}\n\n{EXIT_CODES}"
    commands = made.add_subcommands(
        required=True, dest="command", title="commands", metavar="COMMAND", description=None
    )
    vars(commands)["groups"] = GROUPS
    plan, zoo = _plan_parser(), zoo_parser()
    for name, command, about in (
        ("demo", _demo_parser(), "two small networks on real handwritten digits, stitched at every cut"),
        ("cuts", _cuts_parser(), "where a network can be cut"),
        ("curve", _curve_parser(), "stitch one network to another at every cut that they share"),
        ("matrix", _matrix_parser(), "stitch every cut of networks to every cut of networks"),
        ("localise", localise_parser(), "find the layers of a network in which a trait lies"),
        ("compare", compare_parser(), "similarity indices of every cut of a network and every cut of another"),
        ("complexity", complexity_parser(), "rank, sharpness, gradient norm and size of stitched networks, or of any"),
        ("plan", plan, "say what a curve or a matrix will cost, and measure nothing"),
        ("status", _status_parser(), "say how far the run in a folder is, and how to go on"),
        ("table", _table_parser(), "show what is measured so far of the run in a folder"),
        ("explain", explain_parser(), "say in words what the run in a folder says, and what it does not"),
        ("verify", _verify_parser(), "check that what the run in a folder has kept is sound"),
        ("data", data_parser(), "count and draw the samples of a data set, or of a variant of it"),
        ("train", train_parser(), "train a network by a recipe, and keep it with its card"),
        ("zoo", zoo, "the networks of the papers' experiments: what they take, and what they reach"),
        ("studies", studies_parser(), "the papers' experiments, and what they take"),
        ("run", run_parser(), "run experiments of the papers"),
        ("claims", claims_parser(), "what became of the papers' claims"),
        ("report", report_parser(), "write a run, studies or two runs compared as one HTML page"),
        ("export", export_parser(), "write a run's tables as CSV, parquet or feather"),
        ("doctor", doctor_parser(), "say what is there and what is missing: versions, devices, data, extras"),
        ("completion", completion_parser(), "print what lets a shell complete commands and options"),
    ):
        commands.add_subcommand(name, command, help=about)
        command.prog = f"suture {name}"
    _add_planned(plan)
    add_zoo(zoo)
    return made


def _demo_parser() -> ArgumentParser:
    parser = new_parser(
        "Train two small networks on scikit-learn's handwritten digits, stitch them at every cut, with controls, print "
        "the table and write it, with a figure, to a folder. It takes about a minute and downloads nothing.",
        "suture demo --out digits",
    )
    parser.add_argument("--out", type=str, default="suture-demo", metavar="FOLDER", help=out_help("curve"))
    add_running(parser)
    add_json(parser)
    return parser


def _cuts_parser() -> ArgumentParser:
    parser = new_parser(
        "List every place in a network through which exactly one tensor passes, with its shape, its depth, and the "
        "parameters and FLOPs up to it.",
        "suture cuts timm:resnet50",
        "suture cuts timm:vit_tiny_patch16_224,img_size=32,patch_size=4",
        "suture cuts models.py:make_net,width=8 --shape 3x32x32",
    )
    parser.add_argument("model", type=str, metavar="MODEL", help=MODEL)
    parser.add_argument(
        "--shape",
        type=str,
        default=None,
        help="of one raw image, such as 3x224x224, or a number of tokens",
    )
    parser.add_argument("--dropped", action="store_true", help="also say which tensors are no cuts, and why")
    add_json(parser)
    return parser


def _curve_parser() -> ArgumentParser:
    parser = new_parser(
        "Stitch the sender's first layers to the receiver's last layers at every cut that both share, each with its "
        "controls, and print the stitched network's test accuracy and its penalty, with 95 % intervals.",
        "suture curve zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --out runs/ab",
        "suture curve models.py:net@a.pt models.py:net@b.pt --data photos --at layer2.0",
    )
    parser.add_argument("sender", type=str, metavar="SENDER", help=MODEL)
    parser.add_argument("receiver", type=str, metavar="RECEIVER", help="likewise")
    parser.add_argument(
        "--at",
        type=str,
        default=None,
        metavar="CUTS",
        help="by default all that both share; names or patterns, A,layer*,… or, where names differ, A:X,B:Y,…",
    )
    add_measuring(parser, out_help("curve"))
    return parser


def _matrix_parser() -> ArgumentParser:
    parser = new_parser(
        "Stitch every cut of every sender to every cut of every receiver, each with its controls, and print the "
        "matrices (rows sender, columns receiver) and their means by depth. Without --into every network is stitched "
        "to every network, itself included.",
        "suture matrix zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --out grid",
        "suture matrix zoo:mlp@a.pt zoo:mlp@b.pt --into zoo:mlp@c.pt --data digits",
        "suture matrix zoo:resnet@a.pt m.py:vit@v.pt --data photos --at 'layer*,block*'",
        "suture matrix zoo:mlp@a.pt zoo:mlp@b.pt --data digits --stitch low-rank,rank=8",
    )
    add = parser.add_argument
    add("senders", type=str, nargs="+", metavar="SENDER", help=MODEL)
    add("--into", type=str, nargs="+", default=None, metavar="RECEIVER", help="likewise; by default the senders")
    add(
        "--at", type=str, default=None, metavar="CUTS", help="names or patterns, such as layer*,fc; by default all cuts"
    )
    add("--sender-at", type=str, default=None, metavar="CUTS", help="likewise, of the senders only")
    add("--receiver-at", type=str, default=None, metavar="CUTS", help="likewise, of the receivers only")
    add_measuring(parser, out_help("matrix", "depth.parquet"))
    return parser


def _plan_parser() -> ArgumentParser:
    return new_parser(
        "Say what a curve or a matrix will cost, in time, RAM and disk, before anything of it is measured.",
        "suture plan curve zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --workers 8",
    )


def _add_planned(plan: ArgumentParser) -> None:
    """Add the commands whose cost ``plan`` says; the parser knows them only once it is a subcommand itself."""
    commands = plan.add_subcommands(required=True, dest="what", title="commands", metavar="COMMAND", description=None)
    for name, command in zip(PLANNED, (_curve_parser(), _matrix_parser()), strict=True):
        command.description = (
            f"Say what suture {name} will cost with the same arguments, in time, RAM and disk, and measure nothing. "
            "What is measured in the folder --out already counts as done."
        )
        first = (command.epilog or "").splitlines()[1]
        command.epilog = "example:\n" + first.replace("suture ", "suture plan ")
        commands.add_subcommand(name, command, help=f"what suture {name} will cost")
        command.prog = f"suture plan {name}"


_FOLDER = "of a run: what its command was given as --out"


def _status_parser() -> ArgumentParser:
    parser = new_parser(
        "Say how far the run in a folder is: what is measured, has failed, is missing and is being worked on, what it "
        "takes on the disk, and the command to go on. The exit code is 0 where all is measured, 1 where some trials "
        "failed, 3 where some are not measured yet.",
        "suture status runs/ab",
    )
    parser.add_argument("folder", type=str, metavar="FOLDER", help=_FOLDER)
    add_json(parser)
    return parser


def _table_parser() -> ArgumentParser:
    parser = new_parser(
        "Show what is measured so far of the run in a folder, whether it is over, stopped or going on, and write its "
        "table.parquet anew. The exit code is that of suture status.",
        "suture table runs/ab",
        "suture table runs/ab --csv ab.csv",
    )
    parser.add_argument("folder", type=str, metavar="FOLDER", help=_FOLDER)
    parser.add_argument("--csv", type=str, default=None, metavar="FILE", help="also write the rows to a file, as CSV")
    add_json(parser)
    return parser


def _verify_parser() -> ArgumentParser:
    parser = new_parser(
        "Read all that the run in a folder has kept, compare it with the checksums written beside it, and say what is "
        "damaged and what to do. The exit code is 0 where all is sound, 1 where something is damaged.",
        "suture verify runs/ab",
    )
    parser.add_argument("folder", type=str, metavar="FOLDER", help=_FOLDER)
    add_json(parser)
    return parser
