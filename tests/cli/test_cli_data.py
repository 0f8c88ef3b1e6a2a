"""``suture data``: the labels of a data set, and its picture."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from suture.data import load_data
from suture.data.changes import vary
from suture.reports.figures.samples import label_statistics
from suture_papers.variants import Relabelled, Subset

Run = Callable[..., tuple[int, str, str]]


def test_the_labels_of_every_role_are_counted(run: Run) -> None:
    code, out, err = run("data digits")
    assert (code, err) == (0, "")
    assert out.startswith("digits: images of 1×8×8, 10 classes\n\nclass ")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if re.match(r"(\d|all) ", line)}
    assert rows["all"] == ["1,080", "120", "597"]
    counts = label_statistics(load_data("digits"))
    assert {name: [int(n.replace(",", "")) for n in row] for name, row in rows.items()} == {
        name: counts[name].tolist() for name in counts.columns
    }


def test_variants_are_applied_in_order(run: Run) -> None:
    out = json.loads(run("data digits --variant relabelled,label=3,to=5 subset,n=100 --json")[1])
    data = vary(load_data("digits"), Relabelled("3", "5"), Subset(100))
    assert out["data"] == data.name == "digits 3 as 5 100 samples"
    assert out["counts"]["fit"]["3"] == 0
    assert out["counts"]["fit"]["all"] == len(data.fit) == 90
    assert out["counts"]["score"] == {str(k): int(v) for k, v in label_statistics(data).loc["score"].items()}
    assert (out["shape"], out["files"]) == ([1, 8, 8], [])


def test_the_picture_is_written(run: Run, tmp_path: Path) -> None:
    code, _, err = run("data digits --variant half,which=1 --out pictures/half")
    assert code == 0
    assert err == "wrote pictures/half/data.png\nwrote pictures/half/data.pdf\nwrote pictures/half/data.svg\n"
    assert (tmp_path / "pictures/half/data.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_input(run: Run, tmp_path: Path) -> None:
    for line, offender in (
        ("data digits --variant without,classes=x", "digits has no class 'x'"),
        ("data digits --variant half,which=2", "no half 2 of the data"),
        ("data digits --size 16 --out x", "'digits'"),
    ):
        code, out, err = run(line)
        assert (code, out) == (2, ""), line
        assert offender in err, (line, err)
    assert not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_written_to(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run("data digits --out file")
    assert (code, "cannot write to file: " in err) == (2, True)


def test_a_file_is_no_data(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "card.json").write_text("{}")
    for line in ("data a/card.json", "curve zoo:mlp zoo:mlp --data a/card.json"):
        assert "a/card.json is a file; give the folder of a data set" in run(line)[2]
