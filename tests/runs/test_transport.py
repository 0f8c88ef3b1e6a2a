"""What goes to other processes: nothing is lost on the way, and a trial measures there what it measures here."""

import inspect
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import suture
from models import Small, images, made_of, seeded, small, zoo_network
from suture import Measurement, Network, Samples, Seam, Trial, load_network, measure
from suture.common.errors import DataError, NetworkError, RunnerError, may_be_of_machine
from suture.core.fused import fuse_suffix
from suture.data.noise import ClusteredNoise
from suture.fits import Fit, LeastSquares, Random, TaskLoss
from suture.measurement.scores.scores import Accuracy, Score
from suture.runs.runners import transport
from suture.runs.runners.tasks import Measuring
from suture.runs.runners.transport import Packer, Unpacker

FIT = TaskLoss(start=Random(), steps=4, check=2, batch=20)


def samples(name: str = "some", n: int = 300, seed: int = 1) -> Samples:
    labels = torch.randint(5, (n,), generator=torch.Generator().manual_seed(seed))
    return Samples(name, images(n, 8, seed=seed), labels, tuple("01234"))


def network(model: nn.Module, **settings) -> Network:
    return Network(model, example=images(4, 8, seed=5), **settings)


def trial(a: Network | ClusteredNoise, b: Network, cut: str, **settings) -> Trial:
    own = "" if isinstance(a, ClusteredNoise) else cut
    data = [samples("fit"), samples("validation", 40, 2), samples("score", 260, 3)]
    return Trial(Seam(a, b, own, cut), *data, **({"fit": FIT} | settings))


def shipped(thing, folder: Path | None = None):
    packer = Packer(folder)
    return Unpacker(packer.part).unpack(packer.pack(thing))


def flat(h: Tensor) -> Tensor:
    return h.mean((2, 3))


def branching(m: nn.Module, x: Tensor) -> Tensor:
    """Too much for torch.fx."""
    h = m.conv(x)
    if x.shape[0] > 1000:
        h = h * 2
    for _ in range(len(x.shape) - 2):
        h = m.relu(h)
    return m.end(h * 0.5)


def scaled(value: float):
    return lambda x: x * value


@dataclass(frozen=True)
class Margin(Score):
    """A score of the user's."""

    over: float = 1.0
    name = "margin"
    unit = "raw"
    higher_is_better = None

    def per_sample(self, logits, labels):
        return scaled(self.over)(logits.double().gather(1, labels[:, None])[:, 0])


def networks(folder: Path) -> dict[str, Network]:
    """Of every backend, with everything in them that is hard to pickle."""
    source = folder / "some_models.py"
    source.write_text(
        "import torch\nWIDTH = 4\ndef width(): return WIDTH\n"
        "class Own(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.conv = torch.nn.Conv2d(3, width(), 3)\n        self.head = torch.nn.Linear(4, 5)\n"
        "    def forward(self, x): return self.head(self.conv(x).relu().mean((2, 3)))\n"
        "def make(): return Own()\n"
    )
    return {
        "fx": network(small()),
        "lambda": network(small(1), preprocess=lambda x: x * 2 - 1),
        "closure": network(small(1), preprocess=scaled(0.5)),
        "export": network(made_of(branching)),
        "stages": network(
            made_of(branching), stages=["conv", ("relu", lambda h: h.relu() * 0.5), ("flat", flat), "head"]
        ),
        "shared": network(small(2), copy=False),
        "untrained": network(small(), factory=lambda: Small()).untrained(3),
        "parametrised": network(parametrised()),
        "file": load_network(f"{source}:make", example=images(4, 8, seed=5)),
        "string": load_network("zoo:resnet,width=4,classes=5", example=images(4, 8, seed=5)),
    }


def parametrised() -> nn.Module:
    model = small(4)
    weight_norm(model.branch)
    return model


# ------------------------------------------------------------------------------------------------------ what arrives


class Rows(nn.Module):
    """1-D convolutions with BatchNorm, whose tensors are brought into a layout of maps at the cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4)
        self.second, self.other = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x.flatten(2))).relu()
        return self.head(self.other(self.second(h)).relu().mean(2))


@pytest.mark.slow
def test_fused_suffixes_of_networks_that_arrived_are_those_of_here(tmp_path):
    """Else a pool would fit through other bits than this process, under one key."""
    made = {**networks(tmp_path), "rows": network(seeded(Rows))}
    for name, here in made.items():
        there = shipped(here, tmp_path)
        for cut in here.cuts:
            one, other = (fuse_suffix(n, n.cuts.find(cut.name)) for n in (here, there))
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.body.code == other.body.code, (name, cut.name)


def test_networks_arrive_as_they_were(tmp_path):
    x = images(6, 8)
    made = networks(tmp_path)
    assert {one.backend for one in made.values()} == {"torch.fx", "torch.export", "stages"}
    for name, sent in made.items():
        got = shipped(sent)
        assert got is not sent
        assert got.fingerprint == sent.fingerprint == got._fingerprint(), name
        assert got.state_digest() == got.wrapped_digest == sent.wrapped_digest, name
        assert (got.name, got.source, repr(got.cuts)) == (sent.name, sent.source, repr(sent.cuts))
        for cut in sent.cuts:
            assert torch.equal(got.upto(cut)(x), sent.upto(cut)(x)), f"{name} {cut.name}"
            assert torch.equal(got.after(cut)(sent.upto(cut)(x)), sent(x)), f"{name} {cut.name}"


@pytest.mark.slow
def test_graphs_arrive_node_by_node():
    for sent in (zoo_network("vit_tiny"), zoo_network("convnext_tiny"), network(made_of(branching))):
        for segment, other in zip(sent._traced.segments, shipped(sent)._traced.segments, strict=True):
            assert segment.body.code == other.body.code
            assert [n.name for n in segment.body.graph.nodes] == [n.name for n in other.body.graph.nodes]
            assert type(segment.body) is not type(other.body)
            other.body.graph.lint()


def test_a_network_can_be_made_untrained_where_it_arrives():
    sent = network(small(), factory=lambda: Small())
    assert shipped(sent).untrained(3).fingerprint == sent.untrained(3).fingerprint


def test_a_network_leaves_behind_the_untrained_ones_made_of_it():
    sent = network(small())
    sizes = []
    for _ in range(2):
        packer = Packer()
        sizes.append(len(packer.part(packer.pack(sent).parts[0])))
        sent.untrained(1)
    assert sizes[0] == sizes[1]


def test_a_network_that_changed_is_refused():
    model = small()
    sent = network(model, name="mine", copy=False)
    with torch.no_grad():
        model.head.bias[0] += 1
    with pytest.raises(NetworkError, match="the weights of mine changed"):
        shipped(sent)


@pytest.mark.parametrize("with_folder", [True, False])
def test_samples_arrive_as_they_were(tmp_path, with_folder):
    sent = samples().shuffled(3)
    got = shipped(sent, tmp_path if with_folder else None)
    assert vars(got)["fingerprint"] == sent.fingerprint  # without being computed again
    assert vars(got)["image_fingerprint"] == sent.image_fingerprint
    assert (got.name, got.classes) == (sent.name, sent.classes)
    for name in ("images", "labels", "pairing"):
        assert torch.equal(getattr(got, name), getattr(sent, name))
    assert replace(got, name="again").fingerprint == sent.fingerprint
    assert got.shuffled(5).fingerprint == sent.shuffled(5).fingerprint


@pytest.mark.parametrize("harm", [lambda held: held[:-1] + b"!", lambda held: held[:-9], lambda held: b"!" + held[1:]])
def test_images_that_a_stopped_run_left_damaged_are_written_anew(tmp_path, harm):
    sent = samples()
    shipped(sent, tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(DataError, match="is damaged; begin the run again") as refused:
        transport._load_images(path)
    assert may_be_of_machine(refused.value)
    assert torch.equal(shipped(sent, tmp_path).images, sent.images)


@pytest.mark.parametrize("with_folder", [True, False])
def test_images_are_sent_once(tmp_path, with_folder):
    plain = samples()
    renamed = replace(plain, name="others")
    packer = Packer(tmp_path if with_folder else None)
    fetched = []
    unpacker = Unpacker(lambda key: fetched.append(key) or packer.part(key))
    payload = packer.pack([plain, plain.shuffled(1), renamed])
    got = unpacker.unpack(payload)
    assert got[0].images is got[1].images is got[2].images
    assert sorted(fetched) == sorted(payload.parts)
    content = {key: len(packer.part(key)) for key in payload.parts}
    heavy = [key for key, size in content.items() if size > plain.images.nbytes]
    assert heavy == ([] if with_folder else [f"images-{plain.image_fingerprint}"])
    files = [path.name for path in tmp_path.iterdir()]
    assert files == ([f"{plain.image_fingerprint}.safetensors"] if with_folder else [])
    assert unpacker.unpack(packer.pack(plain)) is got[0]


def test_images_that_are_part_of_many_are_sent_alone():
    many = torch.rand(3000, 3, 8, 8)
    some = Samples("few", many[:10].permute(0, 1, 3, 2), torch.arange(10) % 5, tuple("01234"))
    packer = Packer()
    payload = packer.pack(some)
    assert sum(len(packer.part(key)) for key in payload.parts) < 2 * some.images.nbytes + 2000
    assert torch.equal(Unpacker(packer.part).unpack(payload).images, some.images)


# ------------------------------------------------------------------------------------------------------ payloads


def test_a_payload_is_small_and_names_its_parts():
    a, b = network(small(), name="A"), network(small(1), name="B")
    first, second = (trial(a, b, "relu", seed=seed) for seed in (0, 1))
    packer = Packer()
    payload = packer.pack(first)
    assert len(payload.content) < 1500
    kinds = sorted(part.partition("-")[0] for part in payload.parts)
    assert kinds == ["images"] * 3 + ["network"] * 2 + ["samples"] * 3
    assert packer.pack(second).parts == payload.parts == Packer().pack(first).parts


def test_noise_is_sent_without_its_centres():
    noise = ClusteredNoise((64, 8, 8), 10)
    assert noise.centres.nbytes > 100_000
    assert len(Packer().pack(noise).content) < 500
    assert shipped(noise) == noise


@pytest.mark.parametrize(
    "change",
    [{"name": "other"}, {"constants": ("head.bias",)}, {"factory": Small}, {"preprocess": abs}],
    ids=["name", "constants", "factory", "preprocess"],
)
def test_networks_that_differ_are_different_parts(change):
    settings = {"name": "one"}
    packer = Packer()
    alike = [network(small(), **settings), network(small(), **settings), network(small(), **(settings | change))]
    one, same, other = (packer.pack(made).parts for made in alike)
    assert one == same != other
    got = Unpacker(packer.part)
    assert got.unpack(packer.pack(alike[0])) is got.unpack(packer.pack(alike[1]))
    assert got.unpack(packer.pack(alike[2])).name == alike[2].name


def test_a_part_is_fetched_once():
    packer, fetched = Packer(), list[str]()
    payloads = [packer.pack(network(small(seed), name=str(seed))) for seed in range(3)]
    unpacker = Unpacker(lambda key: fetched.append(key) or packer.part(key))
    for payload in (*payloads, *payloads):
        unpacker.unpack(payload)
    assert fetched == [payload.parts[0] for payload in payloads]


def test_the_key_of_a_trial_arrives_with_it():
    sent = trial(network(small()), network(small(1)), "relu", scores=(Margin(),))
    assert vars(shipped(sent))["key"] == sent.key
    got = shipped(sent)
    for name in ("key", "fit_description"):
        del vars(got)[name]
    assert got.key == sent.key  # nor would it be another


# ------------------------------------------------------------------------------------------------------ what cannot be


@dataclass(frozen=True)
class Holding(Fit):
    lock: object

    def fit(self, problem, stitch):
        raise NotImplementedError


@dataclass(frozen=True)
class Locked(Margin):
    lock: object = None


def test_what_cannot_be_pickled_is_named():
    lock = threading.Lock()
    a, b = network(small(), name="A"), network(small(1), name="B")
    remedy = r".*cannot pickle '_thread.lock' object.*on=suture.Local\(workers=1\)$"
    for settings in ({"fit": Holding(lock)}, {"scores": (Locked(lock=lock),)}):
        with pytest.raises(RunnerError, match=f"^A → B at relu cannot be sent{remedy}"):
            Packer().pack(Measuring(trial(a, b, "relu", **settings)))
    packer = Packer()
    payload = packer.pack(network(small(), name="mine", preprocess=lambda x, lock=lock: x))
    with pytest.raises(RunnerError, match=f"^mine cannot be sent{remedy}"):
        packer.part(payload.parts[0])


# ------------------------------------------------------------------------------------------------------ elsewhere


def summary(m: Measurement) -> list[str]:
    stitch = [tensor.double().sum().item().hex() for tensor in m.stitch.state_dict().values()]
    cards = [repr(card) for card in (m.sender, m.receiver, m.scores)]
    return [m.trial.key, replace(m.trial).key, *cards, repr(m.penalties), m.representation_error.hex(), *stitch]


OPEN = f"""
import json, pickle, sys
from dataclasses import replace
import torch
from suture import Measurement, measure
from suture.runs.runners.transport import Unpacker

{inspect.getsource(summary)}
sent, parts = pickle.load(sys.stdin.buffer)
unpacker = Unpacker(parts.__getitem__)
print(json.dumps([summary(measure(unpacker.unpack(payload))) for payload in sent]))
"""


def measured_elsewhere(trials: list[Trial], path: list[Path], folder: Path | None = None) -> list[list[str]]:
    """What a process that can import nothing but what is installed, and what is on the path, measures."""
    packer = Packer(folder)
    payloads = [packer.pack(one) for one in trials]
    parts = {key: packer.part(key) for payload in payloads for key in payload.parts}
    places = [Path(suture.__file__).parents[1], *path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places)), "PYTHONHASHSEED": "5"}
    done = subprocess.run(
        [sys.executable, "-c", OPEN],
        input=pickle.dumps((payloads, parts)),
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_same_is_measured_in_another_process(tmp_path):
    made = networks(tmp_path)
    small_ones = [made[name] for name in ("lambda", "closure", "shared", "untrained", "parametrised")]
    trials = [trial(made["fx"], other, "relu") for other in small_ones]
    trials += [trial(made["export"], made["stages"], "conv"), trial(made["file"], made["file"], "conv")]
    trials += [trial(made["string"], made["string"], made["string"].cuts[2].name, fit=LeastSquares())]
    trials += [trial(ClusteredNoise((4, 8, 8), 5), made["fx"], "relu", scores=(Accuracy(), Margin(2.0)))]
    first = trials[0]
    shuffled = [data.shuffled(1) for data in (first.fit_data, first.validation_data)]
    trials += [replace(first, fit_data=shuffled[0], validation_data=shuffled[1], control="shuffled")]
    here = [summary(measure(one)) for one in trials]
    tests = Path(__file__).parents[1]
    assert measured_elsewhere(trials, [tests, tests / "runs"], tmp_path) == here


MAIN = """
import torch
from dataclasses import dataclass
from pathlib import Path
from torch import nn
from suture import measure
from suture.fits import Fit, FitReport
from suture.measurement.scores.scores import Accuracy, Score
from suture.core.stitches import Stitch
from test_transport import measured_elsewhere, network, summary, trial

FACTOR = 0.5


def halved(x):
    return FACTOR * x


class TrainingTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def middle(self, x):
        return self.conv(x).relu()


class Own(TrainingTask):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.middle(x).mean((2, 3)))


@dataclass(frozen=True)
class Half(Score):
    name = "half"
    unit = "raw"
    higher_is_better = True

    def per_sample(self, logits, labels):
        return halved(logits.double().amax(1))


@dataclass(frozen=True)
class Zero(Fit):
    to: float = 0.25

    def fit(self, problem, stitch):
        for p in stitch.parameters():
            p.data.fill_(self.to * FACTOR)
        return FitReport()


@dataclass(frozen=True)
class Scaling(Stitch):
    joins = "maps"

    def accepts(self, sender, receiver):
        return True

    def build(self, sender, receiver):
        return Doubling()


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.by * x


if __name__ == "__main__":
    torch.manual_seed(0)
    a = network(Own(), preprocess=halved, factory=Own)
    b = network(Own(), preprocess=lambda x: halved(x) + 1)
    sent = trial(a, b, "relu", stitch=Scaling(), fit=Zero(), scores=(Half(), Accuracy()))
    assert sent.key
    Path(__file__).unlink()  # as on another machine
    assert measured_elsewhere([sent], []) == [summary(measure(sent))]
    print("the same")
"""


@pytest.mark.slow
def test_what_a_script_defines_itself_goes_with_it(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(MAIN))
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, [Path(suture.__file__).parents[1], here, here.parent]))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "the same\n", done.stderr
