"""``suture run``, ``studies`` and ``claims`` as their users meet them: results, messages, exit codes."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from faulty import Faulty
from suture.cli.main import main
from suture.core.network.network import Network
from suture.fits import LeastSquares
from suture_papers import STUDIES, Claim, Panel, Result, Scale, Study, Where
from suture_papers.base.plans import pair_in_circle, plan_curves
from suture_papers.base.quantities import AtCuts, Extreme, Mean
from suture_papers.base.scale import stand_in
from suture_papers.base.study import Beside, Made, Part
from suture_papers.cli.studies import NETWORKS

ROOT = Path(__file__).parents[3]
Run = Callable[..., tuple[int, str, str]]


def quick(scale: Scale) -> list[Part]:
    """MLPs, cut once, in five pairs."""
    seeds = pair_in_circle(scale, "mlp")
    return [*plan_curves(scale, "mlp", "mlp", scale.data("cifar10"), cuts=("block5.relu",), seeds=seeds)]


def in_vain(scale: Scale) -> list[Part]:
    """The same, and a table that is interrupted."""

    def make(stitched: Made, *networks: Network) -> pd.DataFrame:
        raise KeyboardInterrupt

    return [*quick(scale), Beside("networks", "x", (scale.base("mlp", 10),), make)]


def planted(name: str, plan: Callable[[Scale], list[Part]] = quick, needs: str = "") -> Study:
    claims = (
        Claim("the penalty is at most 1,000 pp", "section 9", Extreme((AtCuts("penalty"),)), "≤", 1000.0),
        Claim("it is above 1,000 pp", "section 9", Mean("penalty"), "≥", 1000.0, ours=True),
        Claim("the penalty of others", "section 9", Mean("penalty", Where(sender="cnn"))),
    )
    panel = Panel("lines", "penalty", "penalty [pp]", (("all", Where()),))
    return Study(name, "Planted", "Is it so?", "section 9", plan, claims, (panel,), needs=needs)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> str:
    """A study with a claim that holds, one that does not, and one that cannot be read; small images stand in."""
    monkeypatch.setitem(STUDIES, "oxford-quick", planted("oxford-quick"))
    monkeypatch.setattr("suture_papers.cli.studies.loader_of", lambda folder: stand_in)
    return "oxford-quick"


@pytest.fixture
def _closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of a run is not how it is fitted, and the default fit goes on for minutes on stand-ins."""
    monkeypatch.setattr(Scale, "fit", LeastSquares())


# run


def test_tiny_runs_and_decides_nothing(run: Run, study: str, tmp_path: Path) -> None:
    code, out, err = run(f"run {study} --scale tiny --out run --workers 1")
    assert code == 0
    assert out.startswith("tiny scale shows that everything runs; its figures mean nothing, and no claim is\ndecided")
    assert re.search(r"(?m)^2 trials, \d+ s of one thread; 2 networks, \d+ s$", out)
    assert "reproduced" not in out
    assert err.startswith("oxford-quick: Planted (oxford2025, section 9)\n")
    names = [f"oxford-quick.{ending}" for ending in ("json", "pdf", "png", "svg", "trials.parquet")]
    assert sorted(path.name for path in (tmp_path / "run/results").iterdir()) == names
    assert sorted(re.findall(r"wrote run/results/(\S+)", err)) == names


@pytest.mark.usefixtures("_closed_form")
def test_small_shows_every_claim_with_its_figure_threshold_and_verdict(run: Run, study: str, tmp_path: Path) -> None:
    line = f"run {study} --out run --results kept --figures drawn --workers 1"
    code, out, _ = run(line)
    assert code == 0
    figure, end = r"-?[\d.]+ (?:\[-?[\d.]+, -?[\d.]+\]|\(all alike\))", r"(?: +\(all alike\))?$"
    most = rf"^the penalty is at( most)? +{figure} +pp +≤ 1000 +reproduced\n(?(1)|most )1,000 pp{end}"
    assert re.search(rf"(?m){most}", out), out
    assert re.search(rf"(?m)^it is above 1,000 pp +{figure} +pp +≥ 1000† +not reproduced$", out)
    assert re.search(r"(?m)^the penalty of others +pp +not measured$", out)
    assert max(map(len, out.splitlines())) <= 80
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [f"{study}.json", f"{study}.trials.parquet"]
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == [
        f"{study}.{kind}" for kind in ("pdf", "png", "svg")
    ]
    code, out, err = run(f"{line} --json")
    (made,) = json.loads(out)
    assert (code, "done before" in err) == (0, True)
    assert (made["study"], made["card"]["trials"]) == (study, 5)
    assert [claim["verdict"] for claim in made["claims"]] == ["reproduced", "not reproduced", "not measured"]
    assert made["claims"][0]["low"] <= made["claims"][0]["value"] <= made["claims"][0]["high"]
    assert made["files"][0] == "kept/oxford-quick.trials.parquet"


def test_several_run_in_the_order_given_each_once(run: Run, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDIES, "oxford-quick2", planted("oxford-quick2"))
    code, out, err = run("run oxford-quick2 oxford-quick* --scale tiny --out run --workers 1")
    assert code == 0
    assert re.findall(r"(?m)^(oxford-\S+), (\d of \d): Planted$", err) == [
        ("oxford-quick2", "1 of 2"),
        ("oxford-quick", "2 of 2"),
    ]
    assert out.count("2 networks") == 2
    assert err.count("2 networks, 2 done before\n2 trials, 2 measured before\n") == 1


@pytest.mark.kills
def test_an_interruption_says_how_to_go_on(run: Run, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"run {study} --scale tiny --out run"
    with monkeypatch.context() as patch:
        patch.setattr("suture_papers.cli.studies.runner_of", lambda chosen: Faulty(stops_after=1))
        code, out, err = run(line)
    assert (code, out) == (130, "")
    assert f"continue with: suture {line}" in err
    monkeypatch.setitem(STUDIES, "oxford-vain", planted("oxford-vain", in_vain))
    code, _, err = run("run oxford-vain --scale tiny --out run --workers 1")
    assert code == 130
    assert err.splitlines()[-1] == (
        "suture: interrupted in oxford-vain; continue with: suture run oxford-vain --scale tiny --out run --workers 1"
    )
    assert run(f"{line} --workers 1")[0] == 0


def test_failed_trials_are_told(run: Run, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("suture.measurement.trials.measure.measure", broken)
    code, _, err = run(f"run {study} --scale tiny --out run --workers 1")
    assert code == 1
    assert "suture: oxford-quick: 2 of 2 trials failed: " in err
    assert "out of luck" in err


@pytest.mark.usefixtures("_closed_form")
def test_what_needs_what_is_not_there(run: Run, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUTURE_IMAGENET", raising=False)
    monkeypatch.delenv("SUTURE_RESNET50", raising=False)
    code, out, err = run("run bansal-2B --out run")
    assert (code, out) == (2, "")
    assert err.startswith("suture: bansal-2B needs ImageNet")
    monkeypatch.setattr("suture_papers.cli.studies.studies_of", lambda texts: [STUDIES["bansal-2B"], STUDIES[study]])
    code, _, err = run("run all --scale small --out run --workers 1")
    assert code == 0
    assert err.startswith("suture: bansal-2B is left out: bansal-2B needs ImageNet")


def test_wrong_input_is_said_before_any_work(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*given: object, **settings: object) -> None:
        raise SystemExit("work was begun")

    (tmp_path / "half/mnist").mkdir(parents=True)
    monkeypatch.setattr("suture_papers.run_study", work)
    monkeypatch.setattr("suture_papers.base.scale.load_data", work)
    for line, offender in (
        ("run oxford-6.1 --out run --data half", "--data half has no folder cifar10"),
        ("studies --scale tiny --only smith-C5 --results nowhere", "--results nowhere is not a folder"),
    ):
        code, out, err = run(line)
        assert (code, out) == (2, ""), line
        assert offender in err, (line, err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--results", "--figures"])
def test_what_cannot_be_written_to_is_said_before_any_work(run: Run, study: str, tmp_path: Path, option: str) -> None:
    (tmp_path / "notes.txt").touch()
    code, out, err = run(f"run {study} --scale tiny --out out {option} notes.txt")
    assert (code, out) == (2, "")
    assert (
        err
        == "suture: cannot write to notes.txt: there is a file in its place; move that away, or name another folder\n"
    )
    assert not any((tmp_path / "out/trials").iterdir())


# studies


def test_the_list_of_studies(run: Run) -> None:
    code, out, err = run("studies")
    assert (code, err) == (0, "")
    assert re.findall(r"(?m)^(?:bansal|hernandez|oxford|smith)-\S+", out) == list(STUDIES)
    assert re.findall(r"(?m)^\S+20\d\d", out) == ["bansal2021", "hernandez2022", "oxford2025", "smith2024"]
    assert max(map(len, out.splitlines())) <= 80
    made = json.loads(run("studies --only smith* --json")[1])
    assert [one["id"] for one in made] == [name for name in STUDIES if name.startswith("smith")]
    assert made[0]["claims"][0]["statement"] == STUDIES["smith-4.1"].claims[0].statement


def test_what_a_study_takes(run: Run, study: str, tmp_path: Path) -> None:
    code, out, err = run(f"studies --scale small --only {study}")
    assert (code, err) == (0, "")
    head, line, *details = out.splitlines()
    assert head.split() == ["study", "networks", "trials", "claims", "time"]
    assert line.split() == [study, "5", "5", "3", "not", "run"]
    assert details[:3] == [
        "    5 × mlp",
        "    cifar10: at most 10,000 to fit, 10,000 to score",
        "    5 by the default fit",
    ]
    card = {"scale": "small", "tables": [], "seconds": 7200.0, "training_seconds": 60.0}
    (tmp_path / "kept").mkdir()
    Result(study, "small", {}, card).save(tmp_path / "kept")
    assert run(f"studies --scale small --only {study} --results kept")[1].splitlines()[1].endswith("   2.0 h")
    assert run(f"studies --scale paper --only {study} --results kept")[1].splitlines()[1].endswith("not run")
    (made,) = json.loads(run(f"studies --scale small --only {study} --results kept --json")[1])
    assert made["networks"] == {"mlp": 5}
    assert (made["trials"], made["measured_seconds"]) == ({"the default fit": 5}, 7200.0)


def test_what_studies_share_is_counted_once_in_all(run: Run, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDIES, "oxford-quick2", planted("oxford-quick2"))
    _, out, err = run("studies --scale small --only oxford-quick*")
    assert "2 experiments share 5 networks." in out
    assert err == f"counting {study}, 1 of 2 …\ncounting oxford-quick2, 2 of 2 …\n"


def test_a_study_that_cannot_be_planned_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUTURE_IMAGENET", raising=False)
    code, out, _ = run("studies --scale small --only bansal-2B")
    assert code == 0
    assert "cannot be planned here\n    bansal-2B needs ImageNet" in out


# claims


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Results of one study, planted: penalties of 1, 2 and 3 pp."""
    rows = pd.DataFrame({"network_seed": [0, 1, 2], "penalty": [1.0, 2.0, 3.0], "receiver_cut": "layer1.0"})
    plain = {"trial": ["a", "b", "c"], "status": "ok", "score": "accuracy", "control": "", "published": False}
    plain |= {"fit": "Converged()", "converged": True, "versions": "cuts 2"}
    labels = {"sender": "s", "receiver": "r", "sender_cut": "layer1.0", "unit": "fraction"}
    depths = {"sender_depth": 0.2, "receiver_depth": 0.2, "seconds": 60.0, "fit_data": "f", "score_data": "s"}
    card = {"scale": "small", "tables": ["trials"], "trials": 3, "failed": 0, "seconds": 180.0}
    table = rows.assign(**plain, **labels, **depths)
    Result("bansal-2A-disjoint", "small", {"trials": table}, card).save(tmp_path / "kept")
    return tmp_path / "kept"


def test_the_ledger_has_a_line_for_each_claim(run: Run, kept: Path) -> None:
    code, out, err = run("claims --results kept")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    place = lines.index("bansal-2A-disjoint: Stitching connectivity across disjoint halves of the data: …")
    claims = STUDIES["bansal-2A-disjoint"].claims
    assert re.match(r"  undecided +2\.00 \[-0\.48, 4\.48\]  ≤ 3 +penalty ≤ 3 pp at every cut", lines[place + 1])
    assert sum(line.startswith("  ") for line in lines) == len(claims)
    assert max(map(len, lines)) <= 80
    assert re.search(rf"(?m)^1 of {len(STUDIES)} experiments were run: 1 undecided", out)
    made = json.loads(run("claims --results kept --json")[1])
    assert list(made) == list(STUDIES)
    assert made["bansal-2A-disjoint"][0]["value"] == 2.0
    assert made["smith-C5"] is None


def test_pages_are_written_and_checked(run: Run, kept: Path, tmp_path: Path) -> None:
    papers = tmp_path / "papers"
    papers.mkdir()
    for name in ("bansal2021", "hernandez2022", "oxford2025", "smith2024"):
        (papers / f"{name}.md").write_text(f"# By hand\n<!-- paper: {name} -->\n<!-- end -->\n")
    for study in STUDIES:
        (papers / f"{study}.md").write_text(f"# By hand\n<!-- study: {study} -->\n<!-- end -->\n")
    line = "claims --results kept --page claims.md --papers papers"
    code, _, err = run(f"{line} --check")
    assert (code, err.count("does not match the tables")) == (1, 48)
    assert not (tmp_path / "claims.md").exists()
    assert run(line)[0] == 0
    assert run(f"{line} --check") == (0, "", "48 pages as the tables give\n")
    assert "undecided" in (tmp_path / "claims.md").read_text()
    assert (papers / "bansal-2A-disjoint.md").read_text().startswith("# By hand\n")
    page = (papers / "bansal-2A-disjoint.md").read_text()
    (papers / "bansal-2A-disjoint.md").write_text(page.replace("# By hand", "# Better"))
    assert run(f"{line} --check")[0] == 0  # what is written by hand stays
    (papers / "bansal-2A-disjoint.md").write_text(page.replace("undecided", "reproduced"))
    code, _, err = run(f"{line} --check")
    assert (code, re.findall(r"suture: (\S+) does not match", err)) == (1, ["papers/bansal-2A-disjoint.md"])


def test_tiny_results_have_no_verdict(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    Result("smith-C5", "tiny", {}, {"scale": "tiny", "tables": []}).save(tmp_path / "kept")
    code, out, err = run("claims --results kept")
    assert (code, out) == (2, "")
    assert "smith-C5 was run at tiny scale, of which no verdict is computed" in err


@pytest.mark.slow
def test_the_committed_pages_are_what_the_committed_tables_give(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert (ROOT / "papers/results/small" / NETWORKS).is_file()
    code = main(shlex.split("claims --page docs/papers/claims.md --papers docs/papers --check"))
    assert (code, capsys.readouterr().err) == (0, "48 pages as the tables give\n")
