"""The kit for a day with a GPU, on a processor with a few images: every stage runs, goes on, and says what it has."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from benchmarks.gpu import main, missing_packages, pack
from PIL import Image

import suture
from benchmarks import gpu, gpu_stages

CLASSES = [str(i) for i in range(10)]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like that of CIFAR-10 from the hub: random images, in two files of each split."""
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    (folder / "cifar10").mkdir()
    features = {"img": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    for split in ("train", "test"):
        for part in range(2):
            images = random.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
            rows = [{"bytes": png(image), "path": None} for image in images]
            columns = {"img": pa.array(rows, IMAGE), "label": [i % 10 for i in range(60)]}
            table = pa.table(columns).replace_schema_metadata(about)
            pq.write_table(table, folder / "cifar10" / f"{split}-0000{part}-of-00002.parquet")
    return folder


@pytest.fixture(scope="module")
def folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kit")
    pack(data, made, {"train": 90, "test": 70})
    return made


def run(stage: str, out: Path, *arguments: object) -> dict[str, Any]:
    """Run a stage on the processor; what it wrote."""
    assert main([stage, *map(str, arguments), "--tiny", "--device", "cpu", "--out", str(out)]) == 0
    (path,) = out.glob(f"*-{stage}-*.json")
    return json.loads(path.read_text())


def test_the_folder_has_the_first_images_as_the_hub_would_give_them(folder: Path) -> None:
    read, by_library = gpu_stages.read_cifar10(folder, False), suture.load_data(folder / "cifar10")
    for role in ("fit", "validation", "score"):
        assert getattr(read, role).fingerprint == getattr(by_library, role).fingerprint
    assert (len(read.training), len(read.score)) == (90, 70)
    assert gpu_stages.find_networks(folder, gpu_stages.LARGEST), "a ResNet-18 of papers/results/networks"


def test_a_folder_that_is_too_large_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LARGEST", 1_000)
    with pytest.raises(SystemExit, match="more than 0"):
        pack(data, tmp_path, {"train": 20, "test": 20})


def test_the_check_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = gpu.importlib.util.find_spec
    monkeypatch.setattr(
        gpu.importlib.util, "find_spec", lambda name: None if name in ("timm", "argcomplete") else find(name)
    )
    missing, notes = missing_packages()
    assert [requirement.partition(">=")[0] for requirement in missing] == ["timm"]
    assert any(note.startswith("argcomplete") and "no stage" in note for note in notes)
    assert main(["check"]) == 2
    assert "pip install 'timm>=" in capsys.readouterr().out


@pytest.mark.slow
def test_the_matrix_by_all_methods_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    begun = run("b", tmp_path, folder, "--minutes", "0")
    assert not begun["complete"]
    assert list(begun["records"]) == ["shared"], "what is shared is always computed"
    whole = run("b", tmp_path, folder)
    assert whole["complete"]
    assert whole["tiny"]
    assert whole["device"] == gpu.device_name("cpu")
    methods = whole["summary"]["methods"]
    assert set(methods) == {"batched", "default", "plain", "least squares + Adam"}
    for found in methods.values():
        assert found["seams"] == 4
        assert 0 <= found["accuracy"] <= 1
        assert found["times_faster"] > 0
    assert run("b", tmp_path, folder) == whole, "nothing is measured twice"
    beside = run("c", tmp_path, folder)
    agreement = beside["summary"]["methods"]["default"]["device_beside_processor"]
    assert agreement["worst_points"] == 0, "the device was the processor"
    assert agreement["agrees"]


def test_records_of_other_work_are_refused(tmp_path: Path) -> None:
    gpu.Stage("b", tmp_path, "cpu", 1, True, {"images": 1}).put("shared", {})
    with pytest.raises(SystemExit, match="of another about"):
        gpu.Stage("b", tmp_path, "cpu", 1, True, {"images": 2})


@pytest.mark.slow
def test_steps_replayed_and_one_by_one(folder: Path, tmp_path: Path) -> None:
    found = run("f", tmp_path, folder)
    assert found["complete"]
    assert found["summary"]["same bits"] == found["summary"]["compared"] == 2, "the processor replays nothing"
    assert found["summary"]["steps a second by processes"]["1 at once"] > 0


@pytest.mark.slow
def test_hernandez_under_four_conditions(folder: Path, tmp_path: Path) -> None:
    found = run("d", tmp_path, folder)
    assert found["complete"]
    assert found["summary"]["seams"] == 4 * 4
    for method in found["summary"]["methods"].values():
        assert method["hours_for_256_pairs"] > 0
    labels = {"as trained", "untrained sender", "untrained receiver", "untrained both"}
    assert set(found["summary"]["methods"]["batched"]["accuracy_by_condition"]) == labels


@pytest.mark.slow
def test_training_leaves_a_network_that_can_be_loaded(data: Path, tmp_path: Path) -> None:
    found = run("e", tmp_path, data)
    assert found["complete"]
    (label,) = found["records"]
    network = suture.load_network(str(tmp_path / "networks" / label), example=torch.zeros(4, 3, 32, 32))
    assert network.outputs == 10


PRETENDING = """
import sys
sys.path.insert(0, "tests/gpu")
import pretend
from benchmarks.gpu import main
sys.exit(main([*sys.argv[1:], "--tiny", "--device", pretend.install()]))
"""


@pytest.mark.slow
def test_every_tensor_is_on_the_device(folder: Path, tmp_path: Path) -> None:
    for stage in ("b", "c"):
        command = [sys.executable, "-c", PRETENDING, stage, str(folder), "--out", str(tmp_path)]
        subprocess.run(command, check=True, cwd=gpu.ROOT)
    for path in tmp_path.glob("*.json"):
        found = json.loads(path.read_text())
        assert found["complete"]
        assert found["device"] == "a device that pretends"


@pytest.mark.slow
def test_the_gpu_tests_are_run_and_without_one_they_skip(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "a", "--tiny", "--out", str(tmp_path)], check=True, cwd=gpu.ROOT
    )
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert found["complete"]
    assert sum(found["summary"].values()) == len(found["records"]) > 0
