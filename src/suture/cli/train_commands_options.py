"""What the commands that train networks and show data take: ``data``, ``train``, ``zoo``."""

import shutil
import textwrap

from jsonargparse import ArgumentParser

from suture.cli.options import MODEL, add_json, add_loading, add_running, new_parser

ZOO = ("networks", "recipes", "plan", "train", "table")  #: the commands of ``suture zoo``
_NETWORK = MODEL.partition(" and trained weights")[0]
DATA = "digits, mnist, cifar10, mnist+cifar10, a Hugging Face hub id or a local folder"


def data_parser() -> ArgumentParser:
    """Make the parser of ``suture data``."""
    parser = new_parser(
        "Count the samples of every class in the three roles of a data set, or of a variant of it, and draw some of "
        "each class.",
        "suture data cifar10",
        "suture data cifar10 --variant relabelled,label=truck,to=ship --out pictures",
        "suture data mnist --variant correlated --out pictures",
    )
    parser.add_argument("source", type=str, metavar="DATA", help=DATA)
    add_loading(parser)
    parser.add_argument("--out", type=str, default=None, metavar="FOLDER", help="folder for data.{png,pdf,svg}")
    add_json(parser)
    return parser


def train_parser() -> ArgumentParser:
    """Make the parser of ``suture train``; its help has every recipe."""
    parser = new_parser(
        "Train a network by a recipe, and keep its weights with a card that says how it was trained and what it "
        "reaches on test data. It trains on all training images, validation among them. A training that was stopped "
        "goes on where it was, bit for bit, when the same command is given again.",
        "suture train digits --network zoo:convnet --data digits --out nets/a",
        "suture train fast --network zoo:resnet,width=16 --data cifar10 --out nets/b",
        "suture train fast --network zoo:resnet --data cifar10 --keep 5,10 --out c",
        "suture train fast --network zoo:mlp --data digits --start a --out b",
    )
    parser.more = _recipe_lines
    add = parser.add_argument
    add("recipe", type=str, metavar="RECIPE", help="the fixed settings of the training, see below")
    add("--network", type=str, required=True, metavar="MODEL", help=_NETWORK)
    add("--data", type=str, required=True, help=DATA)
    add_loading(parser)
    add("--out", type=str, required=True, metavar="FOLDER", help="folder for the network and its card")
    add("--seed", type=int, default=0, metavar="N", help="decides initialisation, order and augmentation")
    add("--start", type=str, default=None, metavar="NETWORK", help="begin with a network of another folder, or a file")
    add("--trained", type=str, default=None, metavar="NAMES", help="train only these modules, such as fc or layer4,fc")
    add("--frozen", type=str, default=None, metavar="NAMES", help="train all but these modules, such as layer*")
    add("--taken", type=str, default=None, metavar="NAMES", help="take only these modules of --start")
    add("--keep", type=str, default=None, metavar="EPOCHS", help="also keep the network of these epochs, such as 4,8")
    add("--epochs", type=int, default=None, metavar="N", help="instead of the recipe's")
    add("--batch", type=int, default=None, metavar="N", help="likewise")
    add("--lr", type=float, default=None, metavar="X", help="likewise, the learning rate")
    add("--device", type=str, default="cpu", help="cpu or cuda")
    add_json(parser)
    add("--config", action="config", metavar="FILE", help="a YAML file of these settings")
    return parser


def _recipe_lines() -> str:
    from suture.report.terminal.networks import recipe_words
    from suture.zoo.recipes import RECIPES

    wide = min(shutil.get_terminal_size().columns, 100) - 2
    name = max(map(len, RECIPES)) + 4
    return "recipes:\n" + "\n".join(
        textwrap.fill(recipe_words(recipe), wide, initial_indent=f"  {text:<{name - 2}}", subsequent_indent=" " * name)
        for text, recipe in RECIPES.items()
    )


def zoo_parser() -> ArgumentParser:
    """Make the parser of ``suture zoo``, still without its commands."""
    return new_parser(
        "The networks of the papers' experiments: what there is, what training them takes, and what they reach.",
        "suture zoo networks",
        "suture zoo plan",
        "suture zoo train --out runs/zoo --data data",
        "suture zoo table runs/zoo --out networks.parquet --page docs/zoo.md",
    )


def add_zoo(zoo: ArgumentParser) -> None:
    """Add the commands of ``suture zoo``; the parser knows them only once it is a subcommand itself."""
    commands = zoo.add_subcommands(required=True, dest="what", title="commands", metavar="COMMAND", description=None)
    for name, command, about in zip(
        ZOO,
        (_networks_parser(), _recipes_parser(), _plan_parser(), _zoo_train_parser(), _table_parser()),
        (
            "every network, with its arguments and sizes",
            "every recipe of training",
            "what training the networks of the experiments takes",
            "train the networks of the experiments",
            "gather what the networks reach, and write docs/zoo.md",
        ),
        strict=True,
    ):
        commands.add_subcommand(name, command, help=about)
        command.prog = f"suture zoo {name}"


def _networks_parser() -> ArgumentParser:
    parser = new_parser(
        "List every network that zoo:NAME names, with its arguments, the images that it takes, how it normalises them, "
        "and its parameters at the sizes of this project's experiments and of the papers.",
        "suture zoo networks",
    )
    add_json(parser)
    return parser


def _recipes_parser() -> ArgumentParser:
    parser = new_parser("List every recipe of training, in words.", "suture zoo recipes")
    add_json(parser)
    return parser


def _plan_parser() -> ArgumentParser:
    parser = new_parser(
        "List every base network that the experiments need at small scale, each trained once and shared: for which "
        "experiments, from how many seeds, how long it trains on two cores and what it takes on the disk. Nothing is "
        "trained.",
        "suture zoo plan",
        "suture zoo plan --only 'colour*'",
    )
    _add_only(parser)
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="how many are trained beside each other")
    add_json(parser)
    return parser


def _zoo_train_parser() -> ArgumentParser:
    parser = new_parser(
        "Train the base networks of the experiments into the folder of a run. What is there is not trained again, and "
        "what was stopped goes on.",
        "suture zoo train --out runs/zoo --data data",
        "suture zoo train --out runs/zoo --data data --only 'mlp*' --seeds 0",
    )
    add = parser.add_argument
    add("--out", type=str, required=True, metavar="FOLDER", help="of the run")
    add("--data", type=str, default=None, metavar="FOLDER", help="that has mnist and cifar10; by default from the hub")
    _add_only(parser)
    add("--seeds", type=str, default=None, metavar="SEEDS", help="only these, such as 0,1")
    add("--device", type=str, default="cpu", help="cpu or cuda")
    add_running(parser)
    add_json(parser)
    return parser


def _table_parser() -> ArgumentParser:
    parser = new_parser(
        "Gather the cards of trained networks into a table, a row for each network and test set, and write the page "
        "about them. The table alone is enough to write the page again.",
        "suture zoo table runs/zoo --out networks.parquet --page docs/zoo.md",
        "suture zoo table networks.parquet --page docs/zoo.md",
    )
    add = parser.add_argument
    add(
        "results",
        type=str,
        nargs="+",
        metavar="RUN",
        help="the folder of a run, or a table that this command wrote; of one network the last counts",
    )
    add(
        "--out",
        type=str,
        default=None,
        metavar="FILE",
        help="add the rows to a table, as parquet; what it has of other networks stays",
    )
    add("--page", type=str, default=None, metavar="FILE", help="write the page, as Markdown")
    add_json(parser)
    return parser


def _add_only(parser: ArgumentParser) -> None:
    about = "only networks, or experiments, of such names, as in 'smith*'"
    parser.add_argument("--only", type=str, default=None, metavar="PATTERN", help=about)
