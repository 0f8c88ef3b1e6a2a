"""Two views of one thing: each network reads its own, samples are pairs, and positions are not."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import datasets
import pytest
import torch
from torch import Tensor, nn

import suture
from models import scrambled
from suture import Data, Measurement, Network, controls, fits, indices, scores, stitches
from suture.common.errors import SutureError
from suture.data import changes, load_views
from suture.runs.runners.transport import Packer, Unpacker

N, HELD, SIDE, WORDS, LENGTH, WIDTH, CLASSES = 240, 80, 4, 30, 7, 6, 3
LABELS = torch.arange(N) % CLASSES
CLOSED = fits.LeastSquares(ridges=(1e-9,))


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


PICTURES = torch.rand(N, 1, SIDE, SIDE, generator=numbers(0))
TEXTS = torch.randint(WORDS, (N, LENGTH), generator=numbers(1))
LENGTHS = torch.randint(2, LENGTH + 1, (N,), generator=numbers(2))
MASK = (torch.arange(LENGTH) < LENGTHS[:, None]).long()


class Picture(nn.Module):
    """Images to a vector to classes."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.first = nn.Flatten(), nn.Linear(SIDE**2, WIDTH)
        self.read, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.read(torch.tanh(self.first(self.flat(x))))))


class Text(nn.Module):
    """Token ids to the mean of the tokens that count, or the last of them, to classes."""

    def __init__(self, by: str = "mean") -> None:
        super().__init__()
        self.by, self.tokens, self.mix = by, nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bend, self.read, self.head = nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.bend(self.mix(self.tokens(input_ids)))
        if attention_mask is None:
            x = x.mean(1) if self.by == "mean" else x[:, -1]
        else:
            ends = torch.nn.functional.one_hot(attention_mask.sum(1) - 1, LENGTH)
            there = (attention_mask if self.by == "mean" else ends)[..., None]
            x = (x * there).sum(1) / there.sum(1)
        return self.head(torch.tanh(self.read(x)))


def shared(model: nn.Module, x: Tensor | dict[str, Tensor]) -> tuple[nn.Module, Tensor]:
    """The model with its classes evenly spread, and the labels that it gives."""
    given = [x] if isinstance(x, Tensor) else x.values()
    with torch.no_grad():
        model.head.bias -= model(*given).mean(0)
        return model, model(*given).argmax(1)


def cut(x: Tensor | dict[str, Tensor], labels: Tensor = LABELS) -> tuple[object, object]:
    """Samples to train on and to score."""
    parts = ({name: v[rows] for name, v in x.items()} if isinstance(x, dict) else x[rows] for rows in (TRAIN, TEST))
    return tuple(zip(parts, (labels[TRAIN], labels[TEST]), strict=True))


TRAIN, TEST = slice(HELD, None), slice(HELD)


def views(sent: object, received: object, labels: Tensor = LABELS, **settings: object) -> Data:
    return load_views(cut(sent, labels), cut(received, labels), name="two", classes=CLASSES, **settings)


def network(model: nn.Module, data: Data, name: str, **settings: object) -> Network:
    return Network(model.eval(), example=data.example, name=name, **settings)


@cache
def pair() -> tuple[Data, Network, Network]:
    """An image network that knows nothing, and a text network that is always right."""
    model, labels = shared(scrambled(Text()), TEXTS)
    data = views(PICTURES, TEXTS, labels)
    sees = network(scrambled(Picture()), data.for_sender, "sees")
    return data, sees, network(model, data.for_receiver, "reads", tokenizer="words")


@cache
def rotated() -> tuple[Data, Network, Network, Tensor]:
    """A network, and its copy for images turned by a quarter, whose features are rotated by the last."""
    model, labels = shared(scrambled(Picture()), PICTURES)
    copy = scrambled(Picture())
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=numbers(3))).Q
    with torch.no_grad():
        copy.load_state_dict(model.state_dict())
        copy.first.weight.copy_(model.first.weight.reshape(-1, SIDE, SIDE).rot90(1, (1, 2)).flatten(1))
        copy.read.weight.copy_(turn @ model.read.weight)
        copy.read.bias.copy_(turn @ model.read.bias)
    data = views(PICTURES.rot90(1, (2, 3)), PICTURES, labels)
    return data, network(copy, data.for_sender, "turned"), network(model, data.for_receiver, "own"), turn


def test_a_rotated_copy_is_recovered_through_two_arrays():
    data, copy, model, turn = rotated()
    measured = suture.stitch(copy, model, at="read", data=data, fit=CLOSED, controls=())
    torch.testing.assert_close(measured.stitch.weight.detach(), turn.T, atol=1e-4, rtol=0)
    assert measured.scores["accuracy"].value == 1
    assert measured.penalty.value == 0
    table = suture.compare(copy, model, data=data, cuts=["read"], by=indices.linear_cka, permutations=0)
    assert table["value"].tolist() == pytest.approx([1], abs=1e-4)


@cache
def renamed(by: str, filled: bool) -> tuple[Data, Network, Network, Text]:
    """A text network, and its copy in whose vocabulary every token has another number."""
    order = torch.randperm(WORDS, generator=numbers(4))
    other = order.argsort()[TEXTS]
    ours, theirs = ({"input_ids": ids, "attention_mask": MASK} if filled else ids for ids in (TEXTS, other))
    model, labels = shared(scrambled(Text(by)), ours)
    copy = Text(by)
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        copy.tokens.weight.copy_(model.tokens.weight[order])
    data = views(theirs, ours, labels)
    sender = network(copy, data.for_sender, "B", tokenizer="its own")
    return data, sender, network(model, data.for_receiver, "A", tokenizer="another"), model


def test_a_permuted_vocabulary_compares_as_the_same_network():
    data, copy, model, _ = renamed("mean", False)
    own = suture.compare(model, model, data=data.for_receiver, permutations=0)
    for samples_as in ("flattened", "mean", "last"):
        table = suture.compare(copy, model, data=data, samples_as=samples_as, by=indices.linear_cka, permutations=0)
        same = table[table.sender_cut == table.receiver_cut]
        assert len(same) == len(model.cuts)
        assert same["value"].tolist() == pytest.approx([1] * len(same), abs=1e-4)
    found = suture.compare(copy, model, data=data, permutations=0)["value"]
    assert found.tolist() == pytest.approx(own["value"].tolist(), abs=1e-6)


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("by", ["mean", "last"])
def test_a_permuted_vocabulary_is_stitched_without_loss(by: str, filled: bool, tmp_path: Path):
    data, copy, model, own = renamed(by, filled)
    family = stitches.PooledLinear(by)
    measured = suture.stitch(copy, model, at=("bend", "read"), data=data, stitch=family, fit=CLOSED, controls=())
    torch.testing.assert_close(measured.stitch[1].weight.detach(), own.read.weight.detach(), atol=1e-4, rtol=0)
    assert measured.representation_error == pytest.approx(0, abs=1e-6)
    assert measured.penalty.value == 0
    assert measured.sender["accuracy"].value == measured.receiver["accuracy"].value == 1
    loaded = suture.Stitched.load(measured.save(tmp_path), copy, model)
    sent = data.score.for_sender
    given = {"input_ids": sent.images[:, 0], "attention_mask": sent.images[:, 1]} if filled else sent.images
    assert (loaded(given).argmax(1) == data.score.labels).all()


def test_by_default_what_has_positions_is_pooled():
    data, copy, model, _ = renamed("mean", True)
    measured = suture.stitch(copy, model, at=("bend", "read"), data=data, fit=CLOSED, controls=())
    assert measured.trial.family == stitches.PooledLinear()
    assert measured.penalty.value == 0
    told = suture.features.transfer(suture.features.directions(torch.eye(WIDTH)), measured, permutations=99)
    assert told["value"].tolist() == pytest.approx([1] * len(told), abs=1e-4)  # of texts of unequal length, pooled


@cache
def controlled() -> dict[str, Measurement]:
    data, copy, model, _ = rotated()
    noise = (*controls.DEFAULT, controls.clustered_noise)
    measured = suture.stitch(copy, model, at="read", data=data, fit=CLOSED, controls=noise)
    return {"": measured} | {one.trial.control: one for one in measured.controls}


def test_shuffled_pairs_break_the_pairing_of_views():
    shuffled = controlled()["shuffled pairs"]
    most = shuffled.trial.score_data.labels.bincount().max() / HELD
    assert shuffled.scores["accuracy"].value == pytest.approx(float(most), abs=0.15)
    assert shuffled.representation_error > 0.9
    own, sent = shuffled.trial.fit_data, shuffled.trial.fit_data.for_sender
    assert sent.pairing is None
    assert not (own.pairing == torch.arange(len(own))).any()
    assert torch.equal(sent.images, own.images.rot90(1, (2, 3)))  # each is sent as it is, and joined to another's


def test_the_receiver_itself_and_noise_read_the_receivers_view():
    data, _, _, _ = rotated()
    found = controlled()
    assert set(found) == {
        *("", "itself", "untrained sender", "untrained receiver", "untrained both", "shuffled pairs", "clustered noise")
    }
    for name in ("itself", "clustered noise"):
        assert found[name].trial.score_data.fingerprint == data.for_receiver.score.fingerprint
    assert found["itself"].penalty.value == 0
    assert found["itself"].trial.key == found["itself"].trial.key
    assert found["itself"].outcomes.samples == found[""].outcomes.samples  # so the difference of the two is paired
    for name in ("untrained sender", "untrained both", "shuffled pairs"):
        assert found[name].scores["accuracy"].value < 0.8


def test_data_say_both_views():
    data, _, _ = pair()
    assert "80 score images of 1×4×4 for the sender and sequences of 7 tokens for the receiver" in repr(data)


def test_a_fingerprint_covers_both_views():
    data, _, _ = pair()
    score, sent = data.score, data.score.sent
    plain, changed = score.for_receiver, sent.images.clone()
    changed[5, 0, 0, 0] = 0.5
    others = [
        replace(score, sent=replace(sent, images=changed)),
        replace(sent, sent=plain, name="turned"),
        replace(plain, sent=plain),
        plain,
        sent,
    ]
    prints = {one.fingerprint for one in (score, *others)}
    assert len(prints) == len(others) + 1
    assert replace(plain, sent=replace(sent, name="other")).fingerprint == score.fingerprint  # names do not enter


def test_views_stay_together_whatever_is_taken():
    ranks = torch.arange(N).reshape(N, 1, 1, 1).expand(N, 1, 2, 2).float() / N
    data = views(ranks, torch.arange(N)[:, None].repeat(1, 2))
    parts = (data, data.limited(fit=60, score=40), data.validated_apart(20), views(ranks, ranks).limited(fit=99))
    for one in (*parts, load_views((ranks, LABELS), (1 - ranks, LABELS), split=0.25)):
        for samples in (one.fit, one.validation, one.score):
            first, second = (part.images.flatten(1)[:, 0] for part in (samples.for_sender, samples))
            second = 1 - second if second.is_floating_point() and one not in parts else second
            second = second if second.is_floating_point() else second / N
            assert torch.allclose(first, second, atol=1e-6)
            assert len(samples.sent) == len(samples)
    assert len(data.limited(fit=60).validation) == len(data.validation) + len(data.fit) - 60


def test_samples_that_share_a_view_are_on_one_side():
    pictures = PICTURES[:48].repeat_interleave(5, 0)  # five captions of each
    data = load_views((pictures, LABELS), (TEXTS, LABELS), split=0.25)
    sides = [{row.numpy().tobytes() for row in part.for_sender.images} for part in (data.fit, data.score)]
    assert not sides[0] & sides[1]
    names = LABELS[:, None].repeat(1, 2)  # of every class one text, which says nothing of what is a copy
    assert len(load_views((PICTURES, LABELS), (names, LABELS), split=0.25).score) == N // 4


def test_views_are_columns_of_a_table():
    table = datasets.Dataset.from_dict(
        {"one": TEXTS.tolist(), "other": [row[:length] for row, length in zip(TEXTS.tolist(), LENGTHS, strict=True)]}
        | {"label": LABELS.tolist()}
    )
    data = load_views(table, table, columns=(("one", "label"), ("other", "label")), split=0.25, classes=CLASSES)
    for samples in (data.fit, data.score):
        assert samples.sent.counted is None
        there = samples.counted
        assert torch.equal(samples.images[:, 0][there], samples.sent.images[there])


def test_views_arrive_in_another_process(tmp_path: Path):
    data, sees, reads = pair()
    trial = suture.curve(sees, reads, data=data, at=[("first", "read")], fit=CLOSED, controls=())[0]
    for packer in (Packer(), Packer(tmp_path)):
        arrived = Unpacker(packer.part).unpack(packer.pack(trial))
        assert arrived.key == trial.key
        assert torch.equal(arrived.fit_data.images, trial.fit_data.images)
        assert torch.equal(arrived.fit_data.sent.images, trial.fit_data.sent.images)
    assert len(list(tmp_path.iterdir())) == 6  # two views of three roles
    assert suture.forecast([trial]).images == 2 * (len(data.fit) + len(data.validation) + len(data.score))


def test_the_cuts_that_a_view_can_be_stitched_into_are_planned():
    data, copy, model, _ = renamed("mean", True)
    assert {trial.receiver_cut for trial in suture.curve(copy, model, data=data, controls=())} == VECTORS
    plan = suture.matrix(copy, model, data=data, controls=())
    assert {trial.receiver_cut for trial in plan} == VECTORS
    assert {trial.sender_cut for trial in plan} == {*copy.cuts.names}


VECTORS = {"truediv", "read", "tanh"}


def other_labels() -> None:
    load_views(cut(PICTURES), cut(TEXTS, LABELS.clone().index_fill_(0, torch.tensor(HELD + 7), 1)), classes=CLASSES)


def mixed(data: Data) -> Data:
    return replace(data, score=data.score.for_receiver)


def refused(make: Callable[[Data, Network, Network], object]) -> str:
    with pytest.raises(SutureError) as caught:
        make(*pair())
    return f"{type(caught.value).__name__}: {caught.value}"


REFUSED: dict[str, Callable[[Data, Network, Network], object]] = {
    "DataError: the sender's view of 'two/train' has 159 samples and the receiver's 160": lambda data, a, b: load_views(
        cut(PICTURES[:-1], LABELS[:-1]), cut(TEXTS), name="two"
    ),
    "DataError: sample 7 of 'tensors/train' has one label in the sender's view": lambda data, a, b: other_labels(),
    "DataError: 'two/fit' has a view for each network, so there are two examples": lambda data, a, b: data.example,
    "DataError: 'two/fit' has a view for each network, and 'two/score' has one view": lambda data, a, b: mixed(data),
    "CutError: 'mix' of reads passes tokens 7×6, and each network reads its own view of a sample, so that samples are "
    "pairs and their positions are not: stitch into a cut where a sample is one vector, such cuts of reads: mean, "
    "read, tanh; or compare": lambda data, a, b: suture.stitch(a, b, at=("read", "mix"), data=data),
    "share no cut where a sample is one vector; give pairs, at=[(a cut of W, a cut of reads), …]: such cuts of reads "
    "are mean, read, tanh": lambda data, a, b: suture.curve(wrapped(data), b, data=data),
    "CutError: the layers of A after 'sum_1' read masks or positions": lambda data, a, b: suture.curve(
        *renamed("mean", True)[1:3], data=renamed("mean", True)[0], at=[("bend", "sum_1")]
    ),
    "DataError: samples_as='pixels' pairs positions": lambda data, a, b: suture.compare(
        a, b, data=data, samples_as="pixels"
    ),
    "DataError: two has a view for each network, and a trait is looked for in both": lambda data, a, b: suture.localise(
        suture.traits.knows(data, "1"), a, b, data=data
    ),
    "DataError: of two senders read one view and receivers": lambda data, a, b: suture.matrix([a, b], data=data),
    "DataError: two/fit has images, and reads was made with an example of token ids": lambda data, a, b: suture.stitch(
        b, b, at=("mix", "read"), data=data
    ),
    "DataError: 'with 1×1 pixels": lambda data, a, b: changes.Covered(0, 0, 1, 1)(data),
    "DataError: 'FGSM success at 0.1' is computed from a network": lambda data, a, b: suture.stitch(
        a, b, at=("first", "read"), data=data, scores=(scores.Accuracy(), suture.traits.FGSM(0.1))
    ),
    "DataError: no images can be made that look to sees like those": lambda data, a, b: suture.curve(
        a, b, data=data, at=[("first", "read")], controls=(controls.invariance_aware,)
    ),
    "DataError: columns=('image', 'label'): give those of both": lambda data, a, b: load_views(
        cut(PICTURES), cut(TEXTS), columns=("image", "label")
    ),
}


def wrapped(data: Data) -> Network:
    """A sender that shares no cut with the text network but one where that has tokens."""
    return network(nn.Sequential(OrderedDict(mix=nn.Flatten(), last=nn.Linear(SIDE**2, 2))), data.for_sender, "W")


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_is_refused(said: str):
    assert said in refused(REFUSED[said])
