"""Datasets, loaders and what ``datasets`` has are read sample for sample, in their order."""

import random as pythons
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision.transforms import v2

from suture import tasks
from suture.common import mapped
from suture.common.errors import DataError, SutureWarning
from suture.data import Data, load_data
from suture.data.tasks import IGNORED, DenseClassification

PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (90, 3, 6, 5), dtype=np.uint8))
LABELS = torch.arange(90) % 3
TRAIN, TEST = slice(60), slice(60, 90)


class Pictures(Dataset[Any]):
    """Images of PIL, with labels, through a transform, as torchvision's."""

    def __init__(self, part: slice, transform: Any = None, labels: Any = LABELS) -> None:
        self.images, self.labels, self.transform = PIXELS[part], labels[part], transform
        self.classes = ["cat", "dog", "fox"]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Any:
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        image = Image.fromarray(self.images[i].permute(1, 2, 0).numpy())
        return (image if self.transform is None else self.transform(image)), self.labels[i].item()


class Entries(Pictures):
    """The same as mappings."""

    def __init__(self, part: slice, *names: str) -> None:
        super().__init__(part)
        self.names = names

    def __getitem__(self, i: int) -> Any:
        return dict(zip(self.names, super().__getitem__(i), strict=True))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(Pictures(TRAIN))


def to_tensor(image: Any) -> Any:
    return v2.functional.to_dtype(v2.functional.to_image(image), torch.float32, scale=True)


def crop(image: Any) -> Any:
    return v2.RandomCrop(4)(image)


def turn(image: Any) -> Any:
    return image.rotate(90 * pythons.randrange(4)).resize((5, 6))


def of_datasets(part: slice, **others: Any) -> datasets.Dataset:
    images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in PIXELS[part]]
    kinds = {"picture": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "fox"])}
    values = {"picture": images, "label": LABELS[part].tolist()}
    kinds |= {name: kind for name, (kind, _) in others.items()}
    values |= {name: column[part] for name, (_, column) in others.items()}
    return datasets.Dataset.from_dict(values, features=datasets.Features(kinds))


def collate(items: list[Any]) -> Any:
    """Pairs of tensors that are not what default_collate makes: images upside down."""
    return torch.stack([to_tensor(image).flip(1) for image, _ in items]), torch.tensor([label for _, label in items])


def plain() -> Data:
    return load_data(((PIXELS[TRAIN], LABELS[TRAIN]), (PIXELS[TEST], LABELS[TEST])), classes=("cat", "dog", "fox"))


SAME = {
    "Dataset of PIL": lambda: (Pictures(TRAIN), Pictures(TEST)),
    "floats of ToTensor": lambda: (Pictures(TRAIN, to_tensor), Pictures(TEST, to_tensor)),
    "shuffling loaders": lambda: (DataLoader(Pictures(TRAIN, to_tensor), 7, shuffle=True), DataLoader(Pictures(TEST))),
    "a loader with workers": lambda: (DataLoader(Pictures(TRAIN), 7, num_workers=1), Pictures(TEST)),
    "a loader of some indices": lambda: tuple(
        DataLoader(Pictures(slice(90)), 7, sampler=SubsetRandomSampler(range(90)[part])) for part in (TRAIN, TEST)
    ),
    "subsets": lambda: tuple(Subset(Pictures(slice(90)), range(90)[part]) for part in (TRAIN, TEST)),
    "mappings": lambda: (Entries(TRAIN, "image", "label"), Entries(TEST, "image", "label")),
    "tensors and names": lambda: (TensorDataset(PIXELS[TRAIN], LABELS[TRAIN]), Pictures(TEST)),
    "datasets": lambda: (of_datasets(TRAIN), of_datasets(TEST)),
    "DatasetDict": lambda: datasets.DatasetDict(train=of_datasets(TRAIN), test=of_datasets(TEST)),
    "datasets and a Dataset": lambda: (Pictures(TRAIN), of_datasets(TEST).rename_column("picture", "image")),
    "set_transform": lambda: datasets.DatasetDict(
        train=of_datasets(TRAIN)
        .rename_column("picture", "image")
        .with_transform(lambda rows: rows | {"image": list(map(to_tensor, rows["image"]))}),
        test=of_datasets(TEST).rename_column("picture", "image"),
    ),
}


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_all_that_hold_the_same_samples_are_the_same_data() -> None:
    wanted = plain()
    for what, source in SAME.items():
        found = load_data(source())
        assert found.classes == wanted.classes, what
        for role in ("fit", "validation", "score"):
            assert getattr(found, role).fingerprint == getattr(wanted, role).fingerprint, what


class Some(DataLoader[Any]):
    def __iter__(self) -> Any:
        return islice(super().__iter__(), 2)


def test_a_loader_is_the_samples_of_its_batches() -> None:
    """As many as it gives: not those of its dataset that its last batch or its sampler leaves out."""
    loader, test = DataLoader(Pictures(TRAIN), 7, drop_last=True), Pictures(TEST)
    found = load_data((loader, test), validation_fraction=0.1)
    given = sum(len(labels) for _, labels in DataLoader(TensorDataset(PIXELS[TRAIN], LABELS[TRAIN]), 7, drop_last=True))
    assert len(found.training) == given < len(Pictures(TRAIN))
    shuffles = DataLoader(Pictures(TRAIN), 7, shuffle=True, drop_last=True)
    with pytest.warns(
        SutureWarning, match=r"leaves out \d of \d\d samples, different ones each time .* all samples are used"
    ):
        assert len(load_data((shuffles, test)).training) == len(Pictures(TRAIN))
    with pytest.raises(DataError, match="is a Some, whose __iter__ is its own"):
        load_data((Some(Pictures(TRAIN), 7), test))


def test_labels_that_begin_behind_0_are_taken_as_they_are_with_a_word() -> None:
    pairs = ((PIXELS[TRAIN], LABELS[TRAIN] + 1), (PIXELS[TEST], LABELS[TEST] + 1))
    with pytest.warns(
        SutureWarning, match=r"begin at 1, and 4 classes are taken.* labels - 1 if there are 3, or classes=4"
    ):
        assert load_data(pairs).classes == ("0", "1", "2", "3")
    assert load_data(pairs, classes=4).classes == ("0", "1", "2", "3")
    maps = torch.arange(90 * 30).view(90, 6, 5) % 3 + 1
    with pytest.warns(SutureWarning, match="begin at 1, and 4 classes") as told:
        load_data(((PIXELS[TRAIN], maps[TRAIN]), (PIXELS[TEST], maps[TEST])), task=tasks.DenseClassification())
    assert told[0].filename == __file__, "a warning points at the user's line"


def test_parts_that_are_numbered_unlike_are_said_to_be() -> None:
    images, labels = torch.rand(42, 1, 4, 4), torch.arange(42) % 3
    said = "labels to fit of 'd' run from 1 to 3, and those to score from 0 to 2, and 4 classes are taken"
    with pytest.warns(SutureWarning, match=said):
        load_data(((images, labels + 1), (images, labels)), name="d")
    load_data(((images, labels + 1), (images, labels)), name="d", classes=4)
    load_data(((images, labels), (images, labels % 2)), name="d")


def test_255_does_not_count_in_masks_of_any_integers() -> None:
    """As in masks that are images; where there are more classes than that, it is one of them."""
    maps = torch.arange(90 * 30).view(90, 6, 5) % 4
    for kind in (torch.uint8, torch.int32, torch.int64):
        given = maps.masked_fill(maps == 3, 255).to(kind)
        for source in (
            ((PIXELS[TRAIN], given[TRAIN]), (PIXELS[TEST], given[TEST])),
            ((PIXELS[TRAIN].numpy(), given[TRAIN].numpy()), (PIXELS[TEST].numpy(), given[TEST].numpy())),
            tuple(TensorDataset(PIXELS[part], given[part]) for part in (TRAIN, TEST)),
        ):
            found = load_data(source, task=tasks.DenseClassification())
            assert found.classes == ("0", "1", "2"), kind
            assert torch.equal(found.score.labels, maps.masked_fill(maps == 3, -100)[TEST])
    wide = ((PIXELS[TRAIN], maps[TRAIN] * 85), (PIXELS[TEST], maps[TEST] * 85))
    assert (load_data(wide, task=tasks.DenseClassification(), classes=256).score.labels == 255).any()


def test_transforms_are_part_of_the_data_and_said_to_be() -> None:
    darker = v2.Compose([v2.ToImage(), v2.Lambda(partial(torch.mul, other=0.5)), v2.ToDtype(torch.uint8)])
    found = load_data((Pictures(TRAIN, darker), Pictures(TEST, darker)))
    assert torch.equal(found.score.images, (PIXELS[TEST] * 0.5).to(torch.uint8))
    assert "through Compose( ToImage()" in repr(found)
    assert "through Compose( ToImage()" in repr(found.limited(fit=10).fit)
    turned = load_data(
        (DataLoader(Pictures(TRAIN), collate_fn=collate), DataLoader(Pictures(TEST), 4, collate_fn=collate))
    )
    assert torch.equal(turned.score.images, PIXELS[TEST].flip(2))
    assert "collated by collate" in repr(turned)
    assert "through" not in repr(plain())


def test_augmentation_is_refused() -> None:
    for source in (
        (Pictures(TRAIN, v2.RandomHorizontalFlip()), Pictures(TEST)),
        (Pictures(TRAIN), Pictures(TEST, crop)),
        (
            DataLoader(Pictures(TRAIN, lambda image: image.rotate(90 * pythons.randrange(4)).resize((5, 6)))),
            Pictures(TEST),
        ),
    ):
        before = torch.random.get_rng_state()
        with pytest.raises(DataError, match=r"change each time they are read.*without random ones"):
            load_data(source)
        assert torch.equal(torch.random.get_rng_state(), before)


def test_one_set_is_cut_at_random_by_its_content() -> None:
    for source in (Pictures(slice(90)), of_datasets(slice(90)), (PIXELS, LABELS)):
        half, again, third = (load_data(source, split=split) for split in (0.5, 45, 30))
        assert (len(half.score), len(third.score), len(third.fit) + len(third.validation)) == (45, 30, 60)
        assert half.score.fingerprint == again.score.fingerprint
        drawn = [PIXELS.eq(image).flatten(1).all(1).nonzero().item() for image in half.score.images]
        assert sorted(drawn) != drawn
        assert torch.equal(half.score.labels, LABELS[drawn])
        assert not set(half.score.contents) & set(half.training.contents)
    twice = torch.cat([PIXELS, PIXELS[:60]]), torch.cat([LABELS, LABELS[:60]])
    cut = load_data(twice, split=0.3)
    assert len(cut.score) + len(cut.training) == len(twice[0])
    for one, others in ((cut.score, cut.training), (cut.validation, cut.fit)):
        assert not set(one.contents) & set(others.contents)


def test_a_folder_of_classes_as_torchvision_has_it(tmp_path: Any) -> None:
    for i, (image, label) in enumerate(zip(PIXELS, LABELS.tolist(), strict=True)):
        folder = tmp_path / "pets" / ("cat", "dog", "fox")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{i:02}.png")
    by_folder = load_data(tmp_path / "pets", split=30)
    by_torchvision = load_data(torchvision.datasets.ImageFolder(tmp_path / "pets"), split=30)
    for found in (by_folder, by_torchvision):
        assert found.classes == ("cat", "dog", "fox")
        assert set(found.score.contents) <= set(plain().score.contents + plain().training.contents)
    assert by_folder.score.fingerprint == by_torchvision.score.fingerprint
    with pytest.raises(DataError, match="or cut 'train': split="):
        load_data(tmp_path / "pets")


def test_the_outermost_folder_is_the_class_as_torchvision_has_it(tmp_path: Any) -> None:
    for i, image in enumerate(PIXELS):
        inside = tmp_path / "pets" / ("train", "test")[i % 3 == 2] / ("cat", "dog")[i // 3 % 2] / ("in", "out")[i % 2]
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(inside / f"{i:02}.png")
    by_folder = load_data(tmp_path / "pets")
    theirs = [torchvision.datasets.ImageFolder(tmp_path / "pets" / split) for split in ("train", "test")]
    by_torchvision = load_data(tuple(theirs))
    for found in (by_folder, by_torchvision):
        assert found.classes == ("cat", "dog")
    of = [
        dict(zip(found.score.contents, found.score.labels.tolist(), strict=True))
        for found in (by_folder, by_torchvision)
    ]
    assert of[0] == of[1]
    assert load_data(tmp_path / "pets" / "train", split=20).classes == ("cat", "dog")


def test_every_task_is_read_from_datasets_of_both_libraries() -> None:
    maps, floats = torch.arange(90 * 30).view(90, 6, 5) % 4, torch.randn(90)
    masks = [Image.fromarray(map.to(torch.uint8).numpy()) for map in maps.masked_fill(maps == 3, 255)]
    several = torch.arange(90 * 3).view(90, 3) % 2
    cases: list[tuple[tasks.Task, Any, Any, torch.Tensor]] = [
        (tasks.DenseClassification(), (datasets.Image(), masks), maps, maps.masked_fill(maps == 3, -100)),
        (tasks.Regression(), (datasets.Value("float32"), floats.tolist()), floats, floats[:, None]),
        (tasks.MultiLabel(), (datasets.List(datasets.Value("int64")), several.tolist()), several, several),
        (
            tasks.MultiLabel(),
            (
                datasets.List(datasets.ClassLabel(names=["a", "b", "c"])),
                [row.nonzero().flatten().tolist() for row in several],
            ),
            several,
            several,
        ),
    ]
    for task, (kind, column), given, wanted in cases:
        name = "mask" if kind == datasets.Image() else "target"
        sets = [of_datasets(part, **{name: (kind, column)}).remove_columns("label") for part in (TRAIN, TEST)]
        found = load_data(tuple(sets), task=task)
        assert torch.equal(found.score.labels, wanted[TEST])
        assert torch.equal(found.score.images, PIXELS[TEST])
        if kind != datasets.Image():
            found = load_data(tuple(TensorDataset(PIXELS[part], given[part]) for part in (TRAIN, TEST)), task=task)
            assert torch.equal(found.score.labels, wanted[TEST])


def test_tasks_without_labels_need_none() -> None:
    for source in (
        (TensorDataset(PIXELS[TRAIN]), TensorDataset(PIXELS[TEST])),
        tuple(of_datasets(part).remove_columns("label") for part in (TRAIN, TEST)),
        (Pictures(TRAIN), of_datasets(TEST).rename_column("picture", "image")),
    ):
        found = load_data(source, task=tasks.OwnOutputs())
        assert torch.equal(found.score.images, PIXELS[TEST])
    ids = torch.arange(90 * 7).view(90, 7) % 11
    texts = datasets.Dataset.from_dict({"input_ids": ids.tolist(), "attention_mask": torch.ones_like(ids).tolist()})
    for one in (texts, TensorDataset(ids)):
        found = load_data(one, split=30, task=tasks.NextToken())
        assert torch.equal(found.score.labels, found.score.images)
    padded = datasets.Dataset.from_dict({"input_ids": ids.tolist(), "attention_mask": (ids > 0).long().tolist()})
    for one in (padded, padded.with_transform(lambda rows: rows)):
        found = load_data(one, split=30, task=tasks.NextToken()).score
        padding = found.images[:, 0] == 0
        behind = torch.nn.functional.pad(padding[:, :-1], (1, 0))  # nothing tells what stands behind padding
        assert torch.equal(found.labels, found.images[:, 0].masked_fill(padding | behind, tasks.IGNORED))


def each_size(image: Any) -> Any:
    return to_tensor(image)[:, : 4 + int(image.getpixel((0, 0))[0]) % 2]


def test_what_cannot_be_read_is_named_with_what_to_give() -> None:
    test = Pictures(TEST)
    for source, options, said in (
        (Pictures(TRAIN), {}, "from a Pictures alone; give .train, test., or one with split=0.2"),
        ((Pictures(TRAIN), test), {"split": 0.2}, "there are two"),
        ((Stream(), test), {}, "Stream/train' is a Stream, which can only be read from its beginning.*map-style"),
        ((DataLoader(Stream()), test), {}, "can only be read from its beginning"),
        ((of_datasets(TRAIN).to_iterable_dataset(), test), {}, "can only be read from its beginning"),
        (
            datasets.IterableDatasetDict(train=of_datasets(TRAIN).to_iterable_dataset(), test=of_datasets(TEST)),
            {},
            "without streaming=True",
        ),
        ((DataLoader(Pictures(TRAIN), batch_size=None), test), {}, "makes no batches.*give its dataset"),
        (
            (Entries(TRAIN, "photo", "label"), test),
            {},
            r"has 'photo', 'label', and no image .* columns=\(image, label\)",
        ),
        ((Entries(TRAIN, "image", "kind"), test), {}, "sample 0 of 'Entries/train' has no label; give pairs"),
        ((Entries(TRAIN, "image", "label"), test), {"columns": ("photo", "label")}, "has no 'photo'"),
        (
            (Pictures(TRAIN, each_size), test),
            {},
            "is 5×[45] pixels, those before it 5×[45]; all must have one size",
        ),
        ((Pictures(TRAIN, v2.functional.pil_to_tensor), test), {"size": 3}, "put a Resize into the transforms"),
        ((Pictures(TRAIN, str), test), {}, "image 0 of 'Pictures/train' is a str; give a tensor"),
        ((TensorDataset(PIXELS[TRAIN].permute(0, 2, 3, 1), LABELS[TRAIN]), test), {}, r"looks like \(H, W, C\)"),
        ((TensorDataset(PIXELS[TRAIN] / 99, LABELS[TRAIN]), test), {}, "leave normalisation to the network"),
        ((TensorDataset(PIXELS[TRAIN].int(), LABELS[TRAIN]), test), {}, "torch.int32 of shape"),
        (
            (TensorDataset(PIXELS[TRAIN], LABELS[TRAIN] / 2), test),
            {},
            "labels of .* have dtype torch.float32; .*Regression",
        ),
        ((TensorDataset(PIXELS[TRAIN], LABELS[TRAIN], LABELS[TRAIN]), test), {}, "is 3 things"),
        ((DataLoader(Pictures(TRAIN), 4, collate_fn=list), test), {}, "is 30 things"),
        (
            (DataLoader(Pictures(TRAIN), 2, collate_fn=lambda items: (items, items)), test),
            {},
            "the label of a batch of",
        ),
        ((Pictures(slice(0)), test), {}, "has no samples"),
        (Pictures(slice(90)), {"split": 89}, "give the share to score, such as 0.2, or how many, 2 to 86"),
        (Pictures(slice(90)), {"split": 1.5}, "give the share"),
        (of_datasets(slice(90)), {"split": 0.2, "score_split": "test"}, "score_split="),
        ((Pictures(TRAIN, labels=["a"] * 90), test), {}, "'list' object|has no attribute"),
    ):
        with pytest.raises(DataError, match=said):
            load_data(source, **options)


def test_a_sample_far_behind_that_cannot_be_read_is_named() -> None:
    class Truncated(Pictures):
        def __getitem__(self, i: int) -> Any:
            if i == 31:  # not one of those that are read twice, at the beginning
                raise OSError("image file is truncated")
            return super().__getitem__(i)

    said = r"sample 31 of 'mine/train' cannot be read \(OSError: image file is truncated\); mend it, or leave it out$"
    with pytest.raises(DataError, match=said):
        load_data((Truncated(TRAIN), Pictures(TEST)), name="mine")


def test_parts_with_other_classes_are_refused() -> None:
    other = Pictures(TEST)
    other.classes = ["dog", "cat", "fox"]
    with pytest.raises(DataError, match="have different classes: 'cat', 'dog', 'fox', and 'dog', 'cat', 'fox'"):
        load_data((Pictures(TRAIN), other))
    lacking = of_datasets(TEST).cast_column("label", datasets.ClassLabel(names=["dog", "cat", "fox"]))
    with pytest.raises(DataError, match="have different classes"):
        load_data((of_datasets(TRAIN), lacking))
    with pytest.raises(DataError, match="have different classes"):
        load_data(datasets.DatasetDict(train=of_datasets(TRAIN), test=lacking))


def test_targets_that_are_shifted_already_are_refused() -> None:
    ids = torch.randint(11, (90, 8), generator=torch.Generator().manual_seed(0))
    given = [(ids[part, :-1], ids[part, 1:]) for part in (TRAIN, TEST)]
    with pytest.raises(DataError, match="moved by one place"):
        load_data(tuple(given), task=tasks.NextToken())
    with pytest.raises(DataError, match="moved by one place"):
        load_data(tuple(TensorDataset(*pair) for pair in given), task=tasks.NextToken())
    found = load_data(tuple((x, x) for x, _ in given), task=tasks.NextToken())
    assert torch.equal(found.score.labels, given[1][0])


def test_grey_and_floats_among_the_first_are_widened() -> None:
    grey = [Image.fromarray(PIXELS[i, 0].numpy()) for i in range(90)]
    images = [*grey[:40], *(to_tensor(Image.fromarray(PIXELS[i].permute(1, 2, 0).numpy())) for i in range(40, 89))]
    images.append(torch.full((3, 6, 5), 0.123))
    found = load_data(_List(list(zip(images, LABELS.tolist(), strict=True))), split=30)
    everything = torch.cat([found.training.images, found.score.images])
    wanted = torch.cat(
        [PIXELS[:40, :1].expand(-1, 3, -1, -1).float() / 255, PIXELS[40:89].float() / 255, images[-1][None]]
    )
    assert {tuple(image.flatten().tolist()) for image in everything} == {tuple(i.flatten().tolist()) for i in wanted}


class _List:
    """Neither torch's nor anybody's: it has a length and gives samples by number."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


def test_large_data_lie_in_mapped_files_with_the_same_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    wanted = plain()
    monkeypatch.setattr(mapped, "LARGE", 1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sources = [SAME[what]() for what in ("Dataset of PIL", "datasets", "mappings")]
    for source in (*sources, ((PIXELS[TRAIN], LABELS[TRAIN]), (PIXELS[TEST].numpy(), LABELS[TEST]))):
        found = load_data(source, classes=("cat", "dog", "fox") if isinstance(source[0], tuple) else None)
        for role in ("fit", "validation", "score", "training"):
            samples = getattr(found, role)
            assert mapped.is_mapped(samples.images)
            assert samples.fingerprint == getattr(wanted, role).fingerprint
        assert mapped.is_mapped(found.limited(fit=10).fit.images)
        assert found.limited(fit=10).validation.fingerprint == wanted.limited(fit=10).validation.fingerprint
    assert not list(tmp_path.iterdir())  # nothing stays
    found.fit.images[0] = 7  # as in RAM, whoever reads meanwhile
    mapped.release(found.fit.images)
    assert bool((found.fit.images[0] == 7).all())


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(mapped, "LARGE", 1)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"do not fit into .*nowhere \(No such file .*TMPDIR"):
        plain()


def test_a_file_is_refused_at_once(tmp_path: Any) -> None:
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(DataError, match=r"card.json' is a file, and data are a folder or a hub id"):
        load_data(tmp_path / "card.json")


def test_what_a_dataset_calls_features_and_datasets_is_its_own_affair() -> None:
    class Named(Pictures):
        def __init__(self, part: slice) -> None:
            super().__init__(part)
            self.features, self.datasets = PIXELS[part], PIXELS[part]

    assert load_data((Named(TRAIN), Named(TEST))).classes == ("cat", "dog", "fox")


def test_two_datasets_with_other_columns_are_refused_by_name() -> None:
    test = of_datasets(TEST).rename_column("label", "labels")
    with pytest.raises(DataError, match="split 'test' of 'mine' has no column 'label', as 'train' has"):
        load_data((of_datasets(TRAIN), test), name="mine")


def test_one_set_of_tokens_and_masks_is_cut() -> None:
    ids, mask = torch.randint(1, 9, (60, 5)), torch.ones(60, 5, dtype=torch.int64)
    mask[:, -1] = torch.arange(60) % 2
    data = load_data(({"input_ids": ids, "attention_mask": mask}, torch.arange(60) % 3), split=0.2)
    assert len(data.score) == 12
    assert [one.name for one in data.score.inputs] == ["input_ids", "attention_mask"]


class Fifty(Sampler[int]):
    """A sampler over the first fifty samples, in another order each time."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(50).tolist())

    def __len__(self) -> int:
        return 50


def test_a_loader_gives_the_samples_that_it_draws() -> None:
    batches = [list(range(i, i + 10)) for i in range(0, 50, 10)]
    for loader in (DataLoader(Pictures(TRAIN), 7, sampler=Fifty()), DataLoader(Pictures(TRAIN), batch_sampler=batches)):
        before = torch.get_rng_state()
        found = load_data((loader, Pictures(TEST)))
        assert len(found.fit) + len(found.validation) == 50
        drawn = load_data((Subset(Pictures(TRAIN), range(50)), Pictures(TEST)))
        assert found.training.fingerprint == drawn.training.fingerprint
        assert torch.equal(before, torch.get_rng_state())


def test_a_loader_that_draws_others_each_time_is_refused() -> None:
    some = WeightedRandomSampler([1.0] * len(Pictures(TRAIN)), 20)
    for loader in (
        DataLoader(Pictures(TRAIN), 7, sampler=some),
        DataLoader(Pictures(TRAIN), 7, sampler=RandomSampler(Pictures(TRAIN), num_samples=20)),
    ):
        with pytest.raises(DataError, match=r"draws different samples each time; give .* as a dataset: .*Subset"):
            load_data((loader, Pictures(TEST)))


def test_255_does_not_count_in_a_mask_of_bytes_however_it_is_given() -> None:
    images = (255 * torch.rand(80, 1, 4, 4, generator=torch.Generator().manual_seed(0))).byte()
    masks = (torch.arange(80 * 16).view(80, 4, 4) % 3).to(torch.uint8)
    masks[:, 0] = 255
    for given in (masks, masks.numpy()):
        parts = (images[:60], given[:60]), (images[60:], given[60:])
        as_pairs = tuple(list(zip(*part, strict=True)) for part in parts)
        for source in (parts, tuple(map(Listed, as_pairs))):
            found = load_data(source, task=DenseClassification())
            assert found.classes == ("0", "1", "2")
            for samples in (found.fit, found.score):
                assert bool((samples.labels[:, 0] == IGNORED).all())
                assert bool((samples.labels[:, 1:] >= 0).all())


@dataclass
class Listed(Dataset[Any]):
    """Pairs, as a dataset."""

    pairs: list[Any]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]
