"""The house of ARCHITECTURE.md, kept in order: its imports are read, not run.

A folder imports only from those before it, no two files import each other, packages re-export and nothing more, what
is private stays in its file, and nothing is unpickled.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "suture"

#: The folders are the layers: each imports only from those before it, and from itself.
FOLDERS = ("common", "data", "core", "fits", "measurement", "runs", "zoo", "reports", "cli")
INSTALLED_AS = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
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


def folder_of(module: str) -> str:
    """The folder that a module lies in; the files beside the folders are ``suture`` itself."""
    first = ([*module.split("."), ""])[1]
    return first if first in FOLDERS else "suture"


def upward(trees: dict[str, ast.AST]) -> list[str]:
    """The imports that go from a folder to one further down in the list, or to ``suture`` itself."""
    place = {name: i for i, name in enumerate([*FOLDERS, "suture"])}
    return [
        f"{name} imports {other}"
        for name, tree in trees.items()
        for other in dict.fromkeys(imported(tree, set(trees)))
        if other.partition(".")[0] in ("suture", "") and place[folder_of(other)] > place[folder_of(name)]
    ]


def test_the_top_of_the_package_is_its_folders_and_four_files() -> None:
    here = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert here == {*FOLDERS, "__init__.py", "__main__.py", "extend.py", "py.typed"}


def test_imports_only_go_up_the_list_of_folders() -> None:
    assert upward(TREES) == []


def test_an_import_that_goes_the_wrong_way_would_be_seen() -> None:
    cases = {
        "from suture.data import x": [],
        "from suture.fits.converged import x": ["suture.core.middle imports suture.fits.converged"],
        "import suture.fits": ["suture.core.middle imports suture.fits"],
        "def f():\n    from suture.cli import x": ["suture.core.middle imports suture.cli"],
        "from suture import anything": ["suture.core.middle imports suture"],
        "import torch": [],
    }
    for source, found in cases.items():
        assert upward({"suture.core.middle": ast.parse(source)}) == found, source


def test_no_two_files_import_each_other() -> None:
    edges = {name: {o for o in imported(tree, set(TREES)) if o in TREES and o != name} for name, tree in TREES.items()}
    edges.pop("suture")
    done: set[str] = set()
    while free := [name for name in edges if name not in done and edges[name] <= done | {"suture"}]:
        done |= set(free)
    assert set(edges) - done == set()


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


def test_taking_what_is_private_would_be_seen() -> None:
    for source in (
        "from suture.low import _x",
        "from suture.low import x, _x as y",
        "from suture import low\nlow._x()",
        "def f():\n    from suture import low as below\n    return below._x",
    ):
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


def test_a_package_re_exports_and_nothing_more() -> None:
    for name, path in FILES.items():
        if path.name == "__init__.py":
            check_package(name)


LAZY = ("suture", "suture.extend")


def check_package(name: str) -> None:
    docstring, *body = TREES[name].body  # type: ignore[attr-defined]
    assert isinstance(docstring, ast.Expr)
    if name in LAZY:  # whose imports wait until they are asked for
        types = next(node for node in body if isinstance(node, ast.If))
        before, after = body[: body.index(types)], body[body.index(types) + 1 :]
        assert all(alias.asname.startswith("_") for node in before for alias in node.names)
        assert ast.unparse(after.pop()).startswith("if not _typing.TYPE_CHECKING:")
        private = ("_MOVED",)
        body = [*types.body, *(node for node in after if getattr(node.targets[0], "id", "") not in private)]
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


SENDING = "suture.runs.runners.transport"  #: speaks pickle with workers, never with files
OPTIONAL = {
    "ray": "suture.runs.runners.ray",
    "transformers": "suture.zoo.published",
    "jinja2": "suture.reports.html.",
    "markupsafe": "suture.reports.html.",
}  #: extras, and who may import them


def test_what_is_imported_is_installed_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [entry.partition(">")[0].partition("[")[0] for entry in project["dependencies"]]
    allowed = {INSTALLED_AS.get(name, name) for name in names} | sys.stdlib_module_names | {"suture"}
    used = {(name, other.partition(".")[0]) for name, tree in TREES.items() for other in imported(tree, FILES)}
    used -= {(name, extra) for extra, room in OPTIONAL.items() for name in FILES if name.startswith(room)}
    assert {other for _, other in used} - allowed == set()
    assert {other for name, other in used if name != SENDING} & FORBIDDEN == set()


def unsafe_loads(tree: ast.AST) -> list[str]:
    """Calls that may unpickle and that ruff does not know: ``torch.load`` of more than weights, NumPy's objects."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="torch", names=names):
                found += [alias.name for alias in names if alias.name == "load"]
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "jit"), attr="load"), keywords=keywords):
                safe = [k for k in keywords if k.arg == "weights_only" and ast.unparse(k.value) == "True"]
                found += [] if safe else ["torch.load"]
            case ast.keyword(arg="allow_pickle", value=value) if ast.unparse(value) != "False":
                found.append("allow_pickle")
    return found


def test_nothing_is_unpickled() -> None:
    """Ruff's S301 sees pickle itself; here is what it does not see."""
    assert {name: found for name, tree in TREES.items() if (found := unsafe_loads(tree))} == {}
    for source in ("torch.load(path)", "torch.load(p, weights_only=False)", "from torch import load"):
        assert len(unsafe_loads(ast.parse(source))) == 1, source
    assert unsafe_loads(ast.parse("np.load(path, allow_pickle=True)")) == ["allow_pickle"]
    assert unsafe_loads(ast.parse("torch.load(p, weights_only=True)")) == []


def test_the_table_in_architecture_is_what_the_folders_say_of_themselves() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    said = [f"| `{name}/` | {ast.get_docstring(TREES[f'suture.{name}']).split(chr(10))[0]} |" for name in FOLDERS]  # type: ignore[arg-type, union-attr]
    assert "\n".join(said) in page


def test_a_class_name_is_defined_once_in_the_package() -> None:
    names = [n.name for tree in TREES.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    assert sorted({name for name in names if names.count(name) > 1}) == []
