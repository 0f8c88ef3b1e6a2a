"""``suture report`` as its user meets it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from suture_papers.networks.architectures import convnet

pytest.importorskip("jinja2", reason="no jinja2: pip install 'suture[report]'")

NET = "zoo:convnet,width=2"
FEW = "--data digits --fit-samples 60 --score-samples 50 --fit least-squares --controls itself --workers 1"
Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    for name, seed in (("a", 0), ("b", 1)):
        torch.manual_seed(seed)
        save_file(convnet(width=2).state_dict(), folder / f"{name}.safetensors")
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command among the networks, where two runs were measured."""
    from suture.cli.main import main

    monkeypatch.chdir(folder)

    def command(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    for name, at in (("ab", "stage3.pool,flatten"), ("ab2", "flatten")):
        if not Path(name).exists():
            networks = f"{NET}@a.safetensors {NET}@b.safetensors"
            assert command(f"curve {networks} {FEW} --at {at} --out {name}")[0] == 0
    return command


def test_a_report_is_written_into_the_folder(run: Run) -> None:
    code, out, err = run("report ab")
    assert (code, out) == (0, "")
    assert "wrote ab/report.html" in err
    assert "open it in a browser" in err
    content = Path("ab/report.html").read_text(encoding="utf-8")
    assert "suture curve" in content  # how to repeat it
    assert "digits/fit[:60]" in content
    assert run("report ab")[0] == 0  # again


@pytest.mark.slow
def test_a_report_goes_where_it_is_told(run: Run) -> None:
    code, out, _ = run("report ab --out elsewhere/one.html --json")
    assert code == 0
    told = json.loads(out)
    assert told == {"file": "elsewhere/one.html", "bytes": Path("elsewhere/one.html").stat().st_size}


def test_two_runs_are_compared(run: Run) -> None:
    assert run("report ab ab2 --out compared.html")[0] == 0
    content = Path("compared.html").read_text(encoding="utf-8")
    assert "ab and ab2 compared" in content


def test_what_cannot_be_reported_is_refused(run: Run) -> None:
    for line, offender in (
        ("report a.safetensors", "a.safetensors"),
        ("report ab --out .", ". is a folder"),
        ("report ab/results/bansal-2A", "bansal-2A"),
    ):
        code, out, err = run(line)
        assert (code, out) == (2, ""), line
        assert offender in err, (line, err)


@pytest.mark.slow
def test_a_study_is_reported_from_its_folder_and_from_its_results(run: Run) -> None:
    from suture_papers import run_study, scale_named, study_named

    run_study(study_named("smith-4.2"), scale_named("tiny"), "papers").save("papers/results")
    assert run("report papers")[0] == 0
    assert "No verdict is given" in Path("papers/report.html").read_text(encoding="utf-8")
    code, _, err = run("report papers/results/smith-4.2")
    assert code == 0
    assert "wrote papers/results/smith-4.2.html" in err
    assert run("report papers/results/smith-4.2.json --out one.html")[0] == 0
