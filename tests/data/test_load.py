"""Loading: every source against an independent reading of it, and every refusal with its remedy.

Real data is found by the environment variable SUTURE_DATA, else beside the repository in ``shared/data``.
"""

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

from loops import each
from suture.common.errors import DataError
from suture.data import load_data
from suture.data.sources import TrainAndTest

REAL_DATA = Path(os.environ.get("SUTURE_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def real(name: str) -> Path:
    if not (REAL_DATA / name).is_dir():
        pytest.skip(f"no real data: set SUTURE_DATA to a folder that holds {name!r}")
    return REAL_DATA / name


# --- the embedded digits ------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_without_loss() -> None:
    data = load_data("digits")
    assert data.name == "digits"
    assert data.classes == tuple("0123456789")
    assert [len(data.fit), len(data.validation), len(data.score)] == [1080, 120, 597]
    parts = (data.fit, data.validation, data.score)
    images = torch.cat([part.images for part in parts])
    labels = torch.cat([part.labels for part in parts])
    assert images.dtype == torch.uint8
    assert images.shape == (1797, 1, 8, 8)
    restored = (images.double() * 16 / 255).round().reshape(1797, 64)
    original = load_digits()
    ours = np.column_stack([restored.numpy(), labels.numpy()])
    theirs = np.column_stack([original.data, original.target])
    assert np.array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])
    assert set(images.flatten().tolist()) <= {round(v * 255 / 16) for v in range(17)}


def test_digits_are_cut_in_proportion_and_once_and_for_all() -> None:
    data = load_data()
    everything, scored = (np.bincount(y, minlength=10) for y in (load_digits().target, data.score.labels))
    assert np.abs(scored - everything * 597 / 1797).max() < 1
    again = load_data("digits", name="again")
    assert [again.fit.name, again.validation.name, again.score.name] == [
        "again/fit",
        "again/validation",
        "again/score",
    ]
    for first, second in zip(
        (data.fit, data.validation, data.score), (again.fit, again.validation, again.score), strict=True
    ):
        assert first.fingerprint == second.fingerprint
    # Measured once: a library that cuts otherwise would change every result on digits; it must not go unseen.
    assert hashlib.sha256(data.score.images.numpy().tobytes()).hexdigest().startswith("c6a112909e0850a7")


@each(
    ("name", "known"),
    [("digits", "6af9f606f2dc620c"), ("mnist", "9901e7a37c9805b7"), ("cifar10", "6c6dcf7cadf89b4d")],
    few=1,
)
def test_splits_are_those_that_everything_was_measured_on(name: str, known: str) -> None:
    """Recorded before copies were kept together: no image of these three stands twice, so nothing may move."""
    whole = load_data(name if name == "digits" else real(name))
    cuts = (whole, whole.limited(fit=100, score=100), whole.limited(fit=1000, score=100))
    prints = [part.fingerprint for data in cuts for part in (data.fit, data.validation, data.score)]
    assert hashlib.sha256("".join(prints).encode()).hexdigest().startswith(known)


# --- tensors and arrays -------------------------------------------------------------------------------------


def pairs(images: Any, labels: Any = None) -> TrainAndTest:
    labels = np.arange(20) % 3 if labels is None else labels
    return (images, labels), (images[:6], labels[:6])


IMAGES = np.random.default_rng(0).integers(0, 256, (20, 3, 5, 7), dtype=np.uint8)


@each(
    ("images", "shape", "dtype"),
    [
        (IMAGES, (3, 5, 7), torch.uint8),
        (torch.from_numpy(IMAGES), (3, 5, 7), torch.uint8),
        (IMAGES[:, 0], (1, 5, 7), torch.uint8),
        (IMAGES / 255, (3, 5, 7), torch.float32),
        (torch.from_numpy(IMAGES).half() / 255, (3, 5, 7), torch.float32),
        (torch.from_numpy(IMAGES).float().requires_grad_() / 255, (3, 5, 7), torch.float32),
        (IMAGES[::-1, :, ::-1], (3, 5, 7), torch.uint8),
        ((IMAGES / 255).astype(">f4"), (3, 5, 7), torch.float32),
    ],
)
def test_tensors_and_arrays_keep_their_values(images: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    data = load_data(pairs(images), validation_fraction=0.2)
    assert data.fit.images.shape == (16, *shape)
    assert data.fit.images.dtype == dtype
    assert data.fit.labels.dtype == torch.int64
    assert data.classes == ("0", "1", "2")
    assert not data.score.images.requires_grad
    expected = images[:6].detach().numpy() if isinstance(images, torch.Tensor) else images[:6]
    loaded = data.score.images.numpy()
    assert np.array_equal(loaded, expected.reshape(6, *shape).astype(loaded.dtype))


@each("dtype", [np.uint8, np.int16, np.int32, np.int64, ">i4"])
def test_labels_of_any_integer_dtype_become_int64(dtype: Any) -> None:
    data = load_data(pairs(IMAGES, (np.arange(20) % 4).astype(dtype)), name="toy", classes=list("abcd"))
    assert data.score.labels.tolist() == [0, 1, 2, 3, 0, 1]
    assert data.score.labels.dtype == torch.int64
    assert data.classes == ("a", "b", "c", "d")
    assert data.fit.name == "toy/fit"


def test_tensors_are_copied() -> None:
    images, labels = torch.from_numpy(IMAGES.copy()), torch.arange(20) % 3
    data = load_data(pairs(images, labels))
    images.zero_()
    labels.zero_()
    assert np.array_equal(data.score.images.numpy(), IMAGES[:6])
    assert data.score.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_arrays_that_cannot_be_written_to_load_without_a_warning() -> None:
    images = IMAGES.copy()
    images.flags.writeable = False
    assert len(load_data(pairs(images)).fit) == 18


@each(
    ("load", "says"),
    [
        (
            lambda: load_data(pairs(IMAGES.transpose(0, 2, 3, 1))),
            r"looks like \(N, H, W, C\).*\(0, 3, 1, 2\)",
        ),
        (lambda: load_data(pairs(IMAGES.astype(object))), "type array of object.*numpy array of numbers"),
        (
            lambda: load_data(pairs(IMAGES.tolist(), np.arange(20))),
            "images of 'tensors/train' are of type list",
        ),
        (lambda: load_data(pairs(IMAGES, np.ones(20))), "labels of 'tensors/train' have dtype torch.float64"),
        (lambda: load_data(pairs(IMAGES, np.ones(20, bool))), "torch.bool; they must be integers"),
        (lambda: load_data(((IMAGES, None), (IMAGES, None))), "'tensors/train' is data without labels"),  # type: ignore[arg-type]
        (lambda: load_data(pairs(IMAGES, -np.ones(20, int))), "range from -1 to -1"),
        (lambda: load_data(pairs(IMAGES, np.arange(20)), classes=["a"]), "its 1 classes allow 0 to 0"),
        (lambda: load_data(pairs(IMAGES.astype(float))), "divide 0..255 by 255"),
        (lambda: load_data(pairs(IMAGES), size=8), "load_data of tensors takes no size="),
        (lambda: load_data("digits", size=8, score_split="test"), "'digits' takes no score_split=, size="),
        (
            lambda: load_data((IMAGES, IMAGES)),
            "cannot load data from a tuple of ndarray, ndarray; possible",
        ),  # type: ignore[arg-type]
        (lambda: load_data(IMAGES), "cannot load data from a ndarray"),  # type: ignore[arg-type]
    ],
)
def test_tensors_that_cannot_be_measured_on_are_refused(load: Callable[[], object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        load()


# --- folders ------------------------------------------------------------------------------------------------

GREY = np.random.default_rng(1).integers(0, 256, (30, 6, 5), dtype=np.uint8)
COLOUR = np.random.default_rng(2).integers(0, 256, (30, 6, 5, 3), dtype=np.uint8)
LABELS = [index % 3 for index in range(30)]
NAMED = datasets.ClassLabel(names=["cat", "dog", "truck"])


def encoded(array: NDArray[Any], image_format: str = "PNG", mode: str | None = None) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(array)
    (image if mode is None else image.convert(mode)).save(buffer, image_format)
    return buffer.getvalue()


def write(
    folder: Path,
    images: list[Any],
    labels: list[Any] = LABELS,
    *,
    splits: tuple[str, ...] = ("train", "test"),
    label_feature: Any = NAMED,
    label_column: str = "label",
    **more: Any,
) -> Path:
    """A data set in the hub's parquet layout; ``more`` are further columns, as (feature, values)."""
    columns = {"picture": images, label_column: labels} | {k: values for k, (_, values) in more.items()}
    features = {"picture": datasets.Image(), label_column: label_feature}
    features |= {column: feature for column, (feature, _) in more.items()}
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    folder.mkdir(exist_ok=True)
    for split in splits:
        table.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def stored(images: Any) -> list[dict[str, Any]]:
    return [{"bytes": encoded(image), "path": None} for image in images]


@each(("images", "channels"), [(GREY, 1), (COLOUR, 3)])
def test_a_folder_loads_bit_for_bit(tmp_path: Path, images: NDArray[Any], channels: int) -> None:
    data = load_data(write(tmp_path / "pets", stored(images)))
    assert data.name == "pets"
    assert data.classes == ("cat", "dog", "truck")
    assert data.score.images.shape == (30, channels, 6, 5)
    assert data.score.images.is_contiguous()
    assert np.array_equal(data.score.images.numpy(), images.reshape(30, 6, 5, channels).transpose(0, 3, 1, 2))
    assert data.score.labels.tolist() == LABELS
    assert [len(data.fit), len(data.validation)] == [27, 3]


def test_a_folder_of_images_for_each_class_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "test"):
        for index, image in enumerate(COLOUR):
            folder = tmp_path / "pets" / split / NAMED.names[LABELS[index]]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{index:02}.png")
    monkeypatch.chdir(tmp_path)
    data = load_data("./pets", score_split="test")
    assert data.name == "pets"
    scored = list(
        zip(data.score.labels.tolist(), (image.numpy().tobytes() for image in data.score.images), strict=True)
    )
    stored = [(label, image.transpose(2, 0, 1).tobytes()) for label, image in zip(LABELS, COLOUR, strict=True)]
    assert sorted(scored) == sorted(stored)
    assert data.score.labels[:10].unique().tolist() == [0, 1, 2], "the first few must not be of one class"


@each("grey_first", [True, False])
def test_grey_among_colour_is_repeated(tmp_path: Path, grey_first: bool) -> None:
    mixed = [GREY[0], *COLOUR[1:]] if grey_first else [*COLOUR[:-1], GREY[0]]
    data = load_data(write(tmp_path / "pets", stored(mixed)))
    expected = [np.stack([image] * 3, -1) if image.ndim == 2 else image for image in mixed]
    assert np.array_equal(data.score.images.numpy(), np.stack(expected).transpose(0, 3, 1, 2))


@each("mode", ["L", "LA", "1"])
def test_every_grey_mode_has_one_channel(tmp_path: Path, mode: str) -> None:
    files = [encoded(image, "PNG", mode) for image in GREY]
    data = load_data(write(tmp_path / "grey", [{"bytes": file, "path": None} for file in files]))
    expected = np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("L")) for file in files])
    assert np.array_equal(data.score.images.numpy(), expected[:, None])


@each(("mode", "image_format"), [("P", "PNG"), ("RGBA", "PNG"), ("CMYK", "TIFF"), ("RGB", "JPEG")])
def test_every_other_mode_becomes_rgb(tmp_path: Path, mode: str, image_format: str) -> None:
    files = [encoded(image, image_format, mode) for image in COLOUR]
    data = load_data(write(tmp_path / "pets", [{"bytes": file, "path": None} for file in files]))
    expected = np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])
    assert np.array_equal(data.score.images.numpy(), expected.transpose(0, 3, 1, 2))


def test_a_rotation_noted_in_exif_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise by a quarter
    buffer = io.BytesIO()
    Image.fromarray(GREY[0]).save(buffer, "PNG", exif=exif)
    data = load_data(write(tmp_path / "pets", [{"bytes": buffer.getvalue(), "path": None}] * 30))
    assert np.array_equal(data.score.images[0, 0].numpy(), np.rot90(GREY[0], -1))


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    images = [*COLOUR[:29], COLOUR[29][:4]]
    folder = write(tmp_path / "pets", stored(images))
    with pytest.raises(DataError, match=r"image 29 of 'pets/train' is 5×4 pixels, those before it 5×6; .*size="):
        load_data(folder)
    with pytest.raises(DataError, match=r"size=0 .* give a side of 1 pixel or more"):
        load_data(folder, size=0)
    data = load_data(folder, size=8)
    resized = [np.asarray(Image.fromarray(x).resize((8, 8), Image.Resampling.BILINEAR)) for x in images]
    assert np.array_equal(data.score.images.numpy(), np.stack(resized).transpose(0, 3, 1, 2))


@each("dtype", ["int64", "uint8"])
def test_integer_labels_by_name_get_numbered_or_given_classes(tmp_path: Path, dtype: str) -> None:
    folder = write(tmp_path / "pets", stored(GREY), label_feature=datasets.Value(dtype), label_column="labels")
    assert load_data(folder).classes == ("0", "1", "2")
    assert load_data(folder, classes=["cat", "dog", "truck"]).classes == ("cat", "dog", "truck")


def test_names_of_the_source_are_not_overruled(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="names its own classes: 'cat', 'dog', 'truck'; leave out classes="):
        load_data(write(tmp_path / "pets", stored(GREY)), classes=["a", "b", "c"])


def test_two_label_columns_need_a_choice(tmp_path: Path) -> None:
    coarse = (datasets.ClassLabel(names=["animal", "vehicle"]), [label // 2 for label in LABELS])
    folder = write(tmp_path / "pets", stored(GREY), label_column="fine_label", coarse_label=coarse)
    with pytest.raises(DataError, match=r"found: 'fine_label', 'coarse_label'.*columns=\(image, label\)"):
        load_data(folder)
    data = load_data(folder, columns=("picture", "coarse_label"))
    assert data.classes == ("animal", "vehicle")
    assert data.score.labels.tolist() == [label // 2 for label in LABELS]
    with pytest.raises(DataError, match=r"one label column \(found: none"):
        load_data(folder, columns=("picture", "nothing"))


@each("feature", [datasets.Value("string"), datasets.Value("float32")])
def test_data_without_labels_is_refused_by_its_columns(tmp_path: Path, feature: Any) -> None:
    values = ["a"] * 30 if feature.dtype == "string" else [0.5] * 30
    folder = write(tmp_path / "pets", stored(GREY), values, label_feature=feature, label_column="caption")
    with pytest.raises(DataError, match=r"data without labels.*'picture' \(Image\), 'caption' \(Value\)"):
        load_data(folder)


def test_data_without_images_is_refused_by_its_columns(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,0\nb,1\n")
    with pytest.raises(DataError, match=r"one image column \(found: none\).*'text' \(Value\), 'label' \(Value\)"):
        load_data_with_test(tmp_path)


def load_data_with_test(folder: Path) -> None:
    (folder / "test.csv").write_text((folder / "train.csv").read_text())
    load_data(folder)


@each(
    ("labels", "feature"),
    [([-1] * 30, NAMED), ([0, None] * 15, NAMED), ([0, None] * 15, datasets.Value("uint8"))],
)
def test_a_score_split_without_labels_is_refused(tmp_path: Path, labels: list[Any], feature: Any) -> None:
    folder = write(tmp_path / "pets", stored(GREY), splits=("train", "validation"), label_feature=feature)
    write(folder, stored(GREY), labels, splits=("test",), label_feature=feature)
    with pytest.raises(DataError, match=r"split 'test' of .*score_split=…; its splits: .*'validation'"):
        load_data(folder)
    assert load_data(folder, score_split="validation").score.labels.tolist() == LABELS


@pytest.mark.parametrize(
    ("splits", "asked", "says"),
    [
        (("train",), None, "no split 'test' or 'validation' or 'valid' to score on; give it one"),
        (("train", "test"), "dev", "no split 'dev' to score on; name one with score_split=…: 'test'"),
        (("train", "test"), "train", "no split 'train' to score on; name one with score_split=…: 'test'"),
        (("test",), None, "no split 'train' to fit on; its splits: 'test'"),
    ],
)
def test_missing_splits_are_named(tmp_path: Path, splits: tuple[str, ...], asked: str | None, says: str) -> None:
    folder = write(tmp_path / "pets", stored(GREY), splits=splits)
    with pytest.raises(DataError, match=says):
        load_data(folder, score_split=asked)


def test_validation_scores_where_there_is_no_test(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", stored(GREY), splits=("train", "validation"))
    assert load_data(folder).score.name == "pets/score"


@each(
    ("bad", "says"),
    [
        (None, "image 7 of 'pets/train' is missing"),
        ({"bytes": b"not an image", "path": None}, "sample 7 of 'pets/train' cannot be read"),
        ({"bytes": encoded(COLOUR[0])[:60], "path": None}, "sample 7 of 'pets/train' cannot be read"),
        ({"bytes": encoded(GREY[0].astype(np.uint16) * 9), "path": None}, "mode 'I;16', more than 8 bits"),
    ],
)
def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path, bad: Any, says: str) -> None:
    images = stored(COLOUR)
    images[7] = bad
    with pytest.raises(DataError, match=says):
        load_data(write(tmp_path / "pets", images))


@each("disabled", [True, False])
def test_progress_bars_are_quiet_and_the_users_setting_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], disabled: bool
) -> None:
    folder = write(tmp_path / "pets", stored(GREY))
    before = datasets.are_progress_bars_disabled()
    capfd.readouterr()
    try:
        (datasets.disable_progress_bars if disabled else datasets.enable_progress_bars)()
        load_data(folder)
        assert datasets.are_progress_bars_disabled() == disabled
    finally:
        (datasets.disable_progress_bars if before else datasets.enable_progress_bars)()
    assert capfd.readouterr() == ("", "")


# --- the hub ------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that answers every id with the same data, and notes what it was asked for."""
    folder = write(tmp_path / "hub", stored(GREY))
    asked: list[str] = []
    real_load = datasets.load_dataset

    def load_dataset(source: str) -> Any:
        asked.append(source)
        return real_load(str(folder))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.chdir(tmp_path)
    return asked


@pytest.mark.parametrize(
    ("source", "hub_id", "name"),
    [
        ("mnist", "ylecun/mnist", "mnist"),
        ("cifar10", "uoft-cs/cifar10", "cifar10"),
        ("ylecun/mnist", "ylecun/mnist", "mnist"),
        ("zalando-datasets/fashion_mnist", "zalando-datasets/fashion_mnist", "fashion_mnist"),
    ],
)
def test_names_resolve_to_hub_ids(hub: list[str], source: str, hub_id: str, name: str) -> None:
    assert load_data(source).name == name
    assert hub == [hub_id]


def test_a_folder_wins_over_a_hub_id(hub: list[str], tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    load_data("mnist")
    assert hub == [str((tmp_path / "mnist").resolve())]


@each("source", ["mnistt", "./nowhere", "/no/such/folder", "a/b/c", "https://x.org/a", ""])
def test_a_string_that_is_no_source_is_refused_at_once(hub: list[str], source: str) -> None:
    with pytest.raises(DataError, match=f"no data '{source}'.*'digits', 'mnist', 'cifar10', .*'owner/name'.*folder"):
        load_data(source)
    assert hub == []


@each("error", [ConnectionError("Couldn't reach it\nmore"), RuntimeError(), ValueError("odd")])
def test_a_hub_that_fails_is_named_with_the_other_sources(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load_dataset(source: str) -> Any:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"cannot load 'nobody/nothing' \(.+\); possible sources: .*") as caught:
        load_data("nobody/nothing")
    assert caught.value.__cause__ is error
    assert "\n" not in str(caught.value)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot load .*possible sources"):
        load_data(tmp_path)


# --- real data ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "column"), [("cifar10", "img"), pytest.param("mnist", "image", marks=pytest.mark.slow)]
)
def test_real_data_is_what_pyarrow_and_pil_read(tmp_path: Path, name: str, column: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    test_file = real(name) / "test-00000-of-00001.parquet"
    os.symlink(test_file, folder / test_file.name)
    first = next(pq.ParquetFile(next(real(name).glob("train-*"))).iter_batches(1_000))
    pq.write_table(pa.Table.from_batches([first]), folder / "train-00000-of-00001.parquet")
    table = pq.read_table(test_file)
    data = load_data(folder)
    assert [len(data.fit), len(data.validation), len(data.score)] == [900, 100, 10_000]
    assert data.score.labels.tolist() == table["label"].to_pylist()
    for index in range(0, 10_000, 97):
        pixels = np.asarray(Image.open(io.BytesIO(table[column][index].as_py()["bytes"])))
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        assert np.array_equal(data.score.images[index].numpy(), pixels)


def test_names_of_classes_may_be_numpys():
    images, labels = torch.zeros(60, 1, 2, 2), torch.arange(60) % 3
    plain, numpys = (
        load_data(((images, labels), (images[:9], labels[:9])), name="t", classes=names)
        for names in (["x", "y", "z"], np.array(["x", "y", "z"]))
    )
    assert plain.fit.fingerprint == numpys.fit.fingerprint


def test_classes_may_be_a_number_so_that_one_may_lack_images():
    images, labels = torch.rand(60, 1, 2, 2), torch.arange(60) % 3
    data = load_data(((images, labels), (1 - images[:9], labels[:9])), classes=4)
    assert data.fit.classes == ("0", "1", "2", "3")


@each(
    ("classes", "said"),
    [
        ("abc", "classes='abc' names no classes"),
        (2.5, "classes=2.5 names no classes"),
        (("a", "b", "a"), "two classes are called 'a'"),
        ((), "classes is empty"),
        (0, "classes is empty"),
    ],
)
def test_classes_that_name_none_are_refused(classes, said):
    images, labels = torch.rand(60, 1, 2, 2), torch.arange(60) % 3
    with pytest.raises(DataError, match=said):
        load_data(((images, labels), (1 - images[:9], labels[:9])), classes=classes)


def test_images_that_would_be_all_but_black_are_refused():
    random = torch.rand(60, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 3
    bits = (random > 0.5).to(torch.uint8)
    with pytest.raises(DataError, match=r"uint8 and hold 0 and 1 alone; .* give images.float\(\), or images \* 255"):
        load_data(((bits, labels), (1 - bits, labels)))
    with pytest.raises(DataError, match=r"nearly black; divide 0\.\.255 by 255 once, not twice"):
        load_data(((random / 255, labels), ((1 - random) / 255, labels)))
    black = torch.zeros(60, 1, 2, 2)
    load_data(((black, labels), (black[:9], labels[:9])))  # is somebody's test of a program


def test_a_tuple_of_other_things_is_named_by_what_is_in_it():
    images, labels = torch.rand(60, 1, 2, 2), torch.arange(60) % 3
    with pytest.raises(DataError, match="cannot load data from a tuple of Tensor, Tensor; possible sources"):
        load_data((images, labels))
    with pytest.raises(DataError, match="from a list of TensorDataset, Tensor, TensorDataset; possible"):
        load_data([TensorDataset(images, labels), images, TensorDataset(images, labels)])


def test_images_of_sixteen_bits_are_refused_in_words():
    images, labels = torch.zeros(60, 1, 2, 2, dtype=torch.uint16), torch.arange(60) % 3
    with pytest.raises(DataError, match=r"have dtype torch\.uint16; they must be uint8"):
        load_data(((images, labels), (images[:9], labels[:9])))


@each("count", [4, np.int64(4)])
def test_a_number_of_classes_may_be_numpys(count):
    images, labels = torch.rand(60, 1, 2, 2), torch.arange(60) % 3
    assert len(load_data(((images, labels), (1 - images[:9], labels[:9])), classes=count).classes) == 4
