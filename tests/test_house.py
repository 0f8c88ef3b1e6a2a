"""The house of ARCHITECTURE.md, kept in order: its imports are read, not run.

A file imports only from lower layers or from a file above it in its own layer, so there are no circles; packages
re-export and nothing more; files stay small; nothing is unpickled.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "suture"

#: Every file, in the order in which they may import: each only from those before it. A package's own ``__init__`` comes
#: after its last file; the package ``suture`` itself comes last of all.
LAYERS = {
    "definition": "lazily errors checking processor seeds identities spelling writing sizes preprocess cuts graph "
    "layouts pieces encoders held tracing costs freezing hooks probing untrained network stitches.base "
    "stitches.positionwise "
    "stitches.constrained stitches.regridded stitches.flattened stitches.probes stitches.modes stitches.layers "
    "stitches.choice stitches folding.joint folding.layers folding.passing folding.rows folding.melting "
    "folding.folds folding lean saving stitched",
    "evidence": "data.checks data.decode data.samples data.variants.base data.variants.parts data.variants.labels "
    "data.variants.colours data.variants.regions data.variants.stacked data.variants.known data.variants data.hub "
    "data.load data noise tensorfiles memory activation_folder activations intervals scores traits "
    "optimisers fits.problem fits.least_squares fits.standardised fits.descent fits.task_loss fits.match fits.narrower "
    "fits.suffixes fits.coordinates fits.convex fits.logistic fits.fast fits.together fits.best_of fits recipes "
    "scoring indices.matrices indices.index indices.cka indices.grams indices.kernels indices.dissimilarities "
    "indices.neighbours indices.bases indices.canonical indices.aligned indices.ready indices complexity.base "
    "complexity.landscape complexity.curvature complexity.size complexity.ranks complexity.rows complexity",
    "measurement": "cards trial measuring together controls baselines plans localise records table compare onsets "
    "depth",
    "execution": "store_files store_plans store claims inspection forecasts.paces forecasts.expenses "
    "forecasts.footprint forecasts.forecast forecasts runners.base runners.pace runners.progress runners.shipping "
    "runners.tasks runners.worker runners.local runners.ray.cluster runners.ray.remote runners.ray.runner runners.ray "
    "runners.unruly runners.work runners.driver runners",
    "papers": "zoo.networks.parts zoo.networks.plain zoo.networks.residual zoo.networks.transformer "
    "zoo.networks.table zoo.networks zoo.artefacts zoo.checkpoints zoo.sources zoo.building zoo.loading "
    "zoo.training.augment zoo.training.layout zoo.training.objectives zoo.training.penalties zoo.training.stopping "
    "zoo.training.recipe "
    "zoo.training.parts zoo.training.states zoo.training.loop zoo.training zoo.recipes zoo.cards zoo.bases "
    "zoo.ledger.entry zoo.ledger.entries zoo.ledger.making zoo.ledger zoo.inventory zoo studies.quantities "
    "studies.claims studies.scale studies.study studies.making studies.running studies.counting studies.contrasts "
    "studies.bycut studies.bansal2021.folds studies.bansal2021.invariance studies.bansal2021.pretrained "
    "studies.bansal2021.plans studies.bansal2021.reading studies.bansal2021.beyond studies.bansal2021.more "
    "studies.bansal2021.experiments studies.bansal2021 studies.hernandez2022.plans "
    "studies.hernandez2022.experiments studies.hernandez2022 studies.oxford2025.steps studies.oxford2025.plans "
    "studies.oxford2025.claims studies.oxford2025.simplicity studies.oxford2025.specialists "
    "studies.oxford2025.experiments studies.oxford2025 studies.smith2024.plans studies.smith2024.reading "
    "studies.smith2024.experiments studies.smith2024 studies.known studies",
    "faces": "report.curves report.seams report.readings explain report.figures report.pictures report.screen "
    "report.localisations report.complexities report.matrices report.layouts report.heatmaps report.grids "
    "report.similarities report.forecasts report.stores report.networks report.ledgers report.zoo_page "
    "report.study_tables report.study_maps report.study_groups report.studies report.claims_page "
    "report.html.escaping report.html.charts report.html.runs report.html.arranged report.html.words "
    "report.html.parts report.html.panels report.html.claimed report.html.differences report.html.evidence "
    "report.html.page report.html choices mistyped doctor exporting demo parsers output named_models bench.plain "
    "bench.methods bench.peaks bench.spending bench.records bench.cells bench.flops bench.matrix bench.summary "
    "bench.pairwise bench.similarity bench report.bench report training_arguments bench_arguments "
    "comparing_arguments study_arguments report_arguments export_commands completion setup_arguments arguments "
    "training_progress data_commands training_commands zoo_commands measuring_commands comparing_commands "
    "store_commands bench_commands study_commands report_commands setup_commands cli __main__",
    "top": "suture",
}
ORDER = [f"suture.{name}".removesuffix(".suture") for names in LAYERS.values() for name in names.split()]
INSTALLED_AS = {"pillow": "PIL", "scikit-learn": "sklearn"}
FORBIDDEN = {"ray", "transformers", "tests", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def imported(tree: ast.AST, modules: "dict[str, Path] | set[str]") -> Iterator[str]:
    """Every module that a file imports, wherever in it; ``from suture import x`` is ``suture.x`` where that exists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in modules else base


def upward(trees: dict[str, ast.AST], order: list[str]) -> list[str]:
    """The imports of the files in the order that go up, or sideways to a file below."""
    return [
        f"{name} imports {other}"
        for place, name in enumerate(order)
        for other in dict.fromkeys(imported(trees[name], set(trees)))
        if other.partition(".")[0] in ("suture", "") and other not in order[:place]
    ]


def test_every_file_belongs_to_a_layer() -> None:
    assert sorted(FILES) == sorted(ORDER), "say in LAYERS, and in ARCHITECTURE.md, where a new file belongs"


def test_imports_only_go_down() -> None:
    assert upward(TREES, ORDER) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from suture.low import x", []),
        ("from suture import low", []),
        ("import suture.high", ["suture.middle imports suture.high"]),
        ("def f():\n    from suture import high", ["suture.middle imports suture.high"]),
        ("from suture import anything", ["suture.middle imports suture"]),
        ("from suture.middle import x", ["suture.middle imports suture.middle"]),
        ("from .low import x", ["suture.middle imports .low"]),
        ("import torch", []),
    ],
)
def test_an_import_that_goes_up_would_be_seen(source: str, found: list[str]) -> None:
    trees: dict[str, ast.AST] = {"suture.middle": ast.parse(source)}
    order = ["suture.low", "suture.middle", "suture.high", "suture"]
    assert upward(trees | {name: ast.parse("") for name in order if name not in trees}, order) == found


def borrowed(name: str, tree: ast.AST, others: set[str]) -> list[str]:
    """What one file takes of another's private names, by import or as an attribute of the module."""
    modules, found = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            of = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            modules |= {called: full for called, full in of.items() if full in others}
            found += [full for full in of.values() if node.module in others and _is_private(full)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found += [f"{modules[node.value.id]}.{node.attr}"] * _is_private(node.attr)
    return [f"{name} takes {full}" for full in found]


def _is_private(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__")


def test_what_is_private_stays_in_its_file() -> None:
    assert [line for name, tree in TREES.items() for line in borrowed(name, tree, set(TREES))] == []


@pytest.mark.parametrize(
    "source",
    [
        "from suture.low import _x",
        "from suture.low import x, _x as y",
        "from suture import low\nlow._x()",
        "def f():\n    from suture import low as below\n    return below._x",
    ],
)
def test_taking_what_is_private_would_be_seen(source: str) -> None:
    assert borrowed("suture.high", ast.parse(source), {"suture.low"}) == ["suture.high takes suture.low._x"]


def reached(trees: dict[str, ast.AST]) -> list[str]:
    """Private attributes of objects that another file gives them."""
    attributes = {
        name: [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_private(node.attr)]
        for name, tree in trees.items()
    }
    given = {name: {a.attr for a in found if ast.unparse(a.value) == "self"} for name, found in attributes.items()}
    methods = {name: {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)} for name, tree in trees.items()}
    others = {
        name: set().union(*(given[other] for other in given if other != name)) - given[name] - methods[name]
        for name in given
    }
    return [
        f"{name} reaches for {ast.unparse(attribute)}"
        for name, found in attributes.items()
        for attribute in found
        if attribute.attr in others[name]
    ]


def test_a_private_attribute_stays_in_its_file() -> None:
    assert reached(TREES) == []


def test_reaching_for_a_private_attribute_would_be_seen() -> None:
    low = ast.parse("class Low:\n    def __init__(self):\n        self._x = self.y = 1")
    high = ast.parse("def f(low, self):\n    return low.y, low._x, self._z, f._version")
    assert reached({"suture.low": low, "suture.high": high}) == ["suture.high reaches for low._x"]


@pytest.mark.parametrize("name", [name for name, path in FILES.items() if path.name == "__init__.py"])
def test_a_package_re_exports_and_nothing_more(name: str) -> None:
    docstring, *body = TREES[name].body  # type: ignore[attr-defined]
    assert isinstance(docstring, ast.Expr)
    if name == "suture":  # whose imports wait until they are asked for
        typing, lazily, *body, call = [inner for node in body for inner in getattr(node, "body", [node])]
        assert [ast.unparse(node) for node in (typing, lazily, call)] == [
            "import typing", "from suture.lazily import make_lazy as _make_lazy", "_make_lazy(__name__)"
        ]  # fmt: skip
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    assert all((node.module or "").startswith("suture") for node in imports)
    assigned = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert len(imports) + len(assigned) == len(body)
    assert set(assigned) <= {"__all__", "__version__"}
    exported = [alias.asname or alias.name for node in imports for alias in node.names]
    assert sorted(assigned.get("__all__", [])) == sorted(exported)


def test_no_file_has_two_ideas_in_it() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in FILES.items()}
    assert {name: count for name, count in lines.items() if count > 400} == {}


SENDING = "suture.runners.shipping"  #: speaks pickle with workers, never with files
OPTIONAL = {
    "ray": "suture.runners.ray.",
    "plotly": "suture.report.html.",
    "mlflow": "suture.exporting",
    "wandb": "suture.exporting",
    "tensorboard": "suture.exporting",
}  #: extras, and who may import them


def test_what_is_imported_is_installed_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [entry.partition(">")[0].partition("[")[0] for entry in project["dependencies"]]
    allowed = {INSTALLED_AS.get(name, name) for name in names} | sys.stdlib_module_names | {"suture"}
    used = {(name, other.partition(".")[0]) for name, tree in TREES.items() for other in imported(tree, FILES)}
    used -= {(name, extra) for extra, room in OPTIONAL.items() for name in FILES if name.startswith(room)}
    assert {other for _, other in used} - allowed == set()
    assert {other for name, other in used if name != SENDING} & FORBIDDEN == set()


def unpickling(tree: ast.AST) -> list[str]:
    """Whatever in a file may unpickle; ``pickle`` may be imported for its errors."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="pickle" | "torch", names=names):
                found += [alias.name for alias in names if alias.name in ("load", "loads", "Unpickler", "*")]
            case ast.Attribute(value=ast.Name(id="pickle"), attr="load" | "loads" | "Unpickler" as attribute):
                found.append(f"pickle.{attribute}")
            case ast.Attribute(attr="read_pickle" | "read_hdf" as attribute):
                found.append(attribute)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "jit"), attr="load"), keywords=keywords):
                safe = [k for k in keywords if k.arg == "weights_only" and ast.unparse(k.value) == "True"]
                found += [] if safe else ["torch.load"]
            case ast.keyword(arg="allow_pickle", value=value) if ast.unparse(value) != "False":
                found.append("allow_pickle")
    return found


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_unpickled(name: str) -> None:
    assert unpickling(TREES[name]) == ["pickle.Unpickler"] * (name == SENDING)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(f)",
        "import pickle\nread = pickle.loads",
        "from pickle import loads as read",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "pd.read_pickle(path)",
    ],
)
def test_unpickling_would_be_seen(source: str) -> None:
    assert len(unpickling(ast.parse(source))) == 1


def test_loading_weights_alone_is_not_unpickling() -> None:
    assert unpickling(ast.parse("torch.load(p, weights_only=True)\npickle.UnpicklingError\nload_file(p)")) == []
