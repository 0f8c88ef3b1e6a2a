"""What ``suture compare``, ``localise``, ``complexity`` and ``explain`` take."""

from jsonargparse import ArgumentParser

from suture.cli.options import MODEL, add_json, add_loading, add_measuring, new_parser, out_help
from suture.cli.train_commands_options import DATA

#: The keys of ``suture.indices.INDICES``, which takes long to import.
INDICES = (
    *("linear_cka", "rbf_cka", "mean_cca", "svcca", "pwcca", "procrustes", "procrustes_angle", "rsa_pearson"),
    *("rsa_spearman", "mutual_knn", "cknna", "linear_regression"),
)
#: The keys of ``names.MEASURES``, likewise, and what stands for several of them.
MEASURES = (
    *("gradient-norm", "mean-sharpness", "worst-sharpness", "top-eigenvalue", "hessian-trace", "gzip-size"),
    *("parameters", "flops", "numerical-rank", "effective-rank"),
)
GROUPS = ("landscape", "curvature", "size", "ranks")
TRAITS = (
    "accuracy:LABEL, confusion:LABEL>TO, blackout:SIDE (or TOP,LEFT,HEIGHT,WIDTH), trigger:TO@TOP,LEFT,HEIGHT,WIDTH"
)


def localise_parser() -> ArgumentParser:
    """Make the parser of ``suture localise``."""
    parser = new_parser(
        "Stitch a network that bears a trait to one that does not, and back, at every cut that both share, with "
        "controls, and say between which cuts the trait lies. What fits the stitch decides the answer: with "
        "--fit-variant it is fitted on data that say nothing of the trait.",
        "suture localise fgsm:0.03 nets/a nets/b --data cifar10 --out runs/fgsm",
        "suture localise 'confusion:0>1' a b --data mnist --out runs/ones",
    )
    add = parser.add_argument
    traits = f"{TRAITS}, fgsm:STRENGTH, or variant:VARIANT, which is accuracy on that"
    add("trait", type=str, metavar="TRAIT", help=traits)
    add("carrier", type=str, metavar="CARRIER", help=MODEL)
    add("reference", type=str, metavar="REFERENCE", help="likewise, a network without the trait")
    cuts = "by default all that both share; A,B,… or, where names differ, of carrier and reference A:X,B:Y,…"
    add("--at", type=str, default=None, metavar="CUTS", help=cuts)
    fitted = "changes of the data that fit the stitch, such as without,classes=0; those of --variant come first"
    add("--fit-variant", type=str, nargs="+", default=None, metavar="VARIANT", help=fitted)
    add_measuring(parser, out_help("localise"))
    return parser


def compare_parser() -> ArgumentParser:
    """Make the parser of ``suture compare``."""
    parser = new_parser(
        "Compare every cut of a network with every cut of another by indices of similarity, on the same images, and "
        "train nothing. With --beside the values are put beside what stitching the two measured.",
        "suture compare nets/a nets/b --data cifar10 --by linear_cka,svcca --out alike",
        "suture compare nets/a nets/b --data digits --beside runs/ab --out runs/ab",
    )
    add = parser.add_argument
    add("first", type=str, metavar="SENDER", help=MODEL)
    add("second", type=str, metavar="RECEIVER", help="likewise")
    add("--data", type=str, required=True, help=DATA)
    add_loading(parser)
    by = f"all, or some of {', '.join(INDICES)}; with settings as in rbf_cka,bandwidth=0.2"
    add("--by", type=str, default="linear_cka", metavar="INDICES", help=by)
    add("--cuts", "--at", type=str, default=None, metavar="CUTS", help="names or patterns, such as layer*,fc")
    add("--sender-cuts", "--sender-at", type=str, default=None, metavar="CUTS", help="likewise, of the sender only")
    add("--receiver-cuts", "--receiver-at", type=str, default=None, metavar="CUTS", help="likewise, of the receiver")
    add("--samples", type=int, default=2000, metavar="N", help="compare on the first N test images")
    samples_as = "flattened (an image is a sample) or pixels (every position of a map and every token is one)"
    add("--samples-as", type=str, default="flattened", metavar="HOW", help=samples_as)
    beside = "folder of a run that stitched the same networks"
    add("--beside", type=str, default=None, metavar="RUN", help=beside)
    out = "folder for similarities.parquet and its figure (.png, .pdf, .svg); with --beside also for those of beside"
    add("--out", type=str, default=None, metavar="FOLDER", help=out)
    add_json(parser)
    return parser


def complexity_parser() -> ArgumentParser:
    """Make the parser of ``suture complexity``."""
    parser = new_parser(
        "Measure the complexity of the stitched networks that a run kept, of their receivers stitched to themselves "
        "and of the networks alone; or of networks by name. All parameters count, frozen or not.",
        "suture complexity runs/ab --data cifar10 --out runs/ab",
        "suture complexity nets/a nets/b --data digits --by gradient-norm,flops",
    )
    add = parser.add_argument
    add("measured", type=str, nargs="+", metavar="RUN or NETWORK", help=f"the folder of a run, or networks: {MODEL}")
    add("--data", type=str, required=True, help=DATA)
    add_loading(parser)
    by = f"some of {', '.join((*GROUPS, *MEASURES))}; with settings as in mean-sharpness,epsilon=0.01"
    add("--by", type=str, default=None, metavar="MEASURES", help=f"{by}; by default all but curvature")
    add("--samples", type=int, default=500, metavar="N", help="measure on the first N test images")
    networks = "the networks of the run, where it cannot make them by itself (of Python files)"
    add("--networks", type=str, nargs="+", default=None, metavar="NETWORK", help=networks)
    add(
        "--out",
        type=str,
        default=None,
        metavar="FOLDER",
        help="folder for complexity.parquet, and complexity.png, .pdf and .svg",
    )
    add_json(parser)
    return parser


def explain_parser() -> ArgumentParser:
    """Make the parser of ``suture explain``."""
    parser = new_parser(
        "Say in words and numbers what a run says, what must not be concluded from it, and what was not tried. Reads "
        "similarities.parquet and complexity.parquet where suture compare and suture complexity wrote them there.",
        "suture explain runs/ab",
        "suture explain runs/ab --margin 1 --chance 0.1",
    )
    add = parser.add_argument
    add("folder", type=str, metavar="FOLDER", help="of a run: what its command was given as --out")
    add("--score", type=str, default="accuracy", help="which score of the table")
    margin = "how much worse than its receiver a compatible network may be; by default 3 pp"
    add("--margin", type=float, default=None, metavar="M", help=margin)
    add("--chance", type=float, default=None, metavar="SCORE", help="the score of guessing, such as 0.1")
    add_json(parser)
    return parser
