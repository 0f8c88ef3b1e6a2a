"""Sequences of token ids in place of images: language models are cut, stitched and refused as other networks are.

Evidence: the model called by itself; an answer planted in its weights; labels that it gives itself.
"""

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import suture
from loops import each
from models import scrambled, split_everywhere
from suture import Network, Preprocess, load_data, load_network
from suture.cli.main import main
from suture.common.errors import DataError
from suture.core.network.tracing import is_encoder
from suture.core.stitches import Identity, Linear
from suture.data.changes import Covered, stack
from suture.data.tasks import NextToken
from suture.fits import LeastSquares
from suture.measurement.scores import traits
from suture.measurement.trials import controls
from suture_papers.training import CropFlip, Recipe, train
from suture_papers.variants import Grey3

VOCABULARY, LENGTH, WIDTH = 11, 6, 8


class Block(nn.Module):
    """Attention to what came before, and a layer for each token, beside the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.read = nn.Linear(WIDTH, 3 * WIDTH)
        self.write = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.read(self.norm(x)).chunk(3, dim=-1)
        return x + self.write(F.scaled_dot_product_attention(query, key, value, is_causal=True))


class Language(nn.Module):
    """What comes after a sequence of tokens."""

    def __init__(self, first: nn.Module | None = None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.first = first or nn.Identity()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.blocks(self.first(x))[:, -1])


class Encoded(nn.Module):
    """The same by torch's own encoder, of any settings, with a mask that looks back only."""

    def __init__(self, norm_first: bool = False, masked: bool = True, normed: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, batch_first=True, norm_first=norm_first)
        norm = nn.LayerNorm(WIDTH) if normed else None
        self.encoder = nn.TransformerEncoder(layer, 3, norm=norm, enable_nested_tensor=False)
        mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
        self.register_buffer("mask", mask if masked else None)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.tokens(ids), mask=self.mask)[:, -1])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(ids))[0][:, -1])


class Padded(nn.Module):
    """Every layer looks at which tokens are there."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids != 0).unsqueeze(-1)
        h = torch.tanh(self.one(self.tokens(ids) * there)) * there
        return (self.two(h) * there).mean(1)


class Reading(nn.Module):
    """A later layer looks at which tokens there are once more."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.again = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, VOCABULARY)
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.two(self.one(self.tokens(ids))) + self.again(ids)).mean(1).tanh()


def sequences(n: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (n, LENGTH), generator=torch.Generator().manual_seed(seed))


def language(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return scrambled(Language(), seed).eval()


def data_of(model: nn.Module, n: int = 400) -> suture.Data:
    """Sequences, each labelled with what the model says comes next."""
    with torch.no_grad():
        parts = [(ids, model(ids).argmax(1)) for ids in (sequences(n, 1), sequences(n // 2, 2))]
    return load_data((parts[0], parts[1]), name="sequences", classes=VOCABULARY)


# --- cuts -------------------------------------------------------------------------------------------------------------


@each(
    ("make", "wanted"),
    [
        (Language, ["tokens", "add", "blocks.0", "blocks.1"]),
        (Encoded, ["tokens", "encoder.layers.0", "encoder.layers.1", "encoder"]),
        (lambda: Encoded(norm_first=True), ["encoder.layers.0", "encoder.layers.1", "encoder"]),
        (lambda: Encoded(masked=False), ["encoder.layers.0", "encoder.layers.1", "encoder"]),
        (lambda: Encoded(normed=True), ["encoder.layers.1", "encoder.layers.2", "encoder"]),
        (Recurrent, ["tokens", "getitem"]),
    ],
)
def test_language_models_are_cut_exactly(make, wanted):
    model = scrambled(make()).eval()
    network = Network(model, example=sequences(4))
    assert network.backend == "torch.fx"
    assert set(wanted) <= set(network.cuts.names)
    assert network.image_shape == (LENGTH,)
    for n in (1, 2, 5):
        split_everywhere(model, network, sequences(n, n))


@each("batch_first", [True, False])
def test_torchs_encoder_is_cut_between_its_layers_wherever_it_stands(batch_first):
    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, WIDTH, 2, 2)
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, batch_first=batch_first)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.patches(x).flatten(2)
            h = h.transpose(1, 2) if batch_first else h.permute(2, 0, 1)
            return self.head(self.encoder(h).mean(1 if batch_first else 0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # torch's, that nested tensors need batch_first
        model = scrambled(Vision()).eval()
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    network = Network(model, example=x)
    inside = "encoder.layers.0" in network.cuts.names
    assert inside == batch_first
    if not batch_first:
        assert network.cuts.dropped["encoder.layers.0"] == "its first dimension is not the batch"
    split_everywhere(model, network, x)


class Masked(nn.Module):
    """Torch's encoder with a mask that is made, or cut to length, in the forward pass."""

    def __init__(self, kind: str, encoder: type[nn.TransformerEncoder] = nn.TransformerEncoder) -> None:
        super().__init__()
        self.kind = kind
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, batch_first=True)
        self.encoder = encoder(layer, 2)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(2 * LENGTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        n, h = ids.shape[1], self.tokens(ids)
        match self.kind:
            case "made":
                h = self.encoder(h, mask=nn.Transformer.generate_square_subsequent_mask(n))
            case "cut":
                h = self.encoder(h, mask=self.mask[:n, :n])
            case "cut, and said to look back":
                h = self.encoder(h, mask=self.mask[:n, :n], is_causal=True)
            case "of padding":
                h = self.encoder(h, src_key_padding_mask=ids == 0)
        return self.head(h.mean(1))


class Subclass(nn.TransformerEncoder):
    pass


class Doubled(nn.TransformerEncoder):
    def forward(self, src: Tensor, **masks: Tensor | None) -> Tensor:
        return 2 * super().forward(src, **masks)


@pytest.mark.slow
@each("encoder", [nn.TransformerEncoder, Subclass])
@each("kind", ["made", "cut", "cut, and said to look back"])
def test_an_encoder_may_be_masked_as_torch_allows(kind, encoder):
    model = scrambled(Masked(kind, encoder)).eval()
    network = Network(model, example=sequences(4))
    assert network.refused == {}
    assert {"tokens", "encoder.layers.0", "encoder"} <= set(network.cuts.names)
    split_everywhere(model, network, sequences(5))


def test_only_encoders_with_torchs_own_forward_are_chains_of_layers():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, batch_first=True)
    theirs, same, other, own = (make(layer, 2) for make in (nn.TransformerEncoder, Subclass, Doubled, Subclass))
    own.forward = other.forward
    assert [is_encoder(one) for one in (theirs, same, other, own)] == [True, True, False, False]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("default:no cut lies between the layers of 'encoder'")
def test_an_encoder_of_which_the_layers_are_not_all_is_left_whole():
    padded = scrambled(Masked("of padding")).eval()
    ids = sequences(3).clamp(min=1)
    ids[:, 4:] = 0
    with pytest.warns(suture.errors.SutureWarning, match="between the layers of 'encoder' .*use_nested_tensor = False"):
        network = Network(padded, example=ids)
    assert (network.backend, network.cuts.names) == ("torch.fx", ("tokens", "encoder", "mean"))
    split_everywhere(padded, network, ids)


def test_where_tokens_are_goes_past_a_cut_and_which_they_are_does_not():
    padded = scrambled(Padded()).eval()
    network = Network(padded, example=sequences(4))
    assert {"tokens", "one", "tanh", "two"} <= set(network.cuts.names)
    split_everywhere(padded, network, sequences(9))
    network = Network(scrambled(Reading()).eval(), example=sequences(4))
    assert network.cuts.names == ("add", "mean")
    assert network.cuts.dropped["one"] == "a path from the input jumps over it"


def test_masks_may_hold_minus_infinity_and_nothing_else_that_is_not_finite():
    model = Encoded()
    model.mask[0, 1] = torch.nan
    with pytest.raises(suture.errors.NetworkError, match="the mask of Encoded is not finite"):
        Network(model, example=sequences(4))
    norm = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3))
    norm[1].running_mean[0] = -torch.inf
    with pytest.raises(suture.errors.NetworkError, match="the running_mean of module '1'"):
        Network(norm, example=torch.rand(3, 1, 2, 2))


# --- stitches ---------------------------------------------------------------------------------------------------------


def test_a_rotation_of_the_embedding_is_found():
    model = language()
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3))).Q
    back = nn.Linear(WIDTH, WIDTH, bias=False)
    turned = Language(back)
    turned.load_state_dict(model.state_dict() | {"first.weight": turn.T})
    with torch.no_grad():
        for table in (turned.tokens, turned.places):
            table.weight.copy_(table.weight @ turn.T)
    data = data_of(model)
    a, b = (Network(m.eval(), example=data.example, name=n) for m, n in ((model, "A"), (turned, "B")))
    found = suture.stitch(a, b, at="add", data=data, stitch=Linear(), fit=LeastSquares(), controls=())
    assert found.penalty.value == 0
    weight = next(p for p in found.stitched.stitch.parameters() if p.ndim == 2)
    torch.testing.assert_close(weight, turn, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_every_control_of_a_language_model_is_measured_and_the_identity_costs_nothing():
    data = data_of(language())
    a, b = (Network(language(seed), example=data.example, name=f"seed {seed}") for seed in (1, 0))
    table = suture.run(suture.curve(a, b, data=data, at=["add", "blocks.0"], fit=LeastSquares()))
    assert table["control"].nunique() == 1 + len(controls.DEFAULT)
    assert (table["status"] == "ok").all()
    assert (table["receiver_score"][table["score"] == "accuracy"][table["control"] == ""] == 1).all()
    itself = suture.stitch(b, b, at="blocks.0", data=data, stitch=Identity(), fit=LeastSquares(), controls=())
    assert itself.penalty.value == 0


def test_a_mask_is_no_result_of_training():
    network = Network(scrambled(Encoded()).eval(), example=sequences(4))
    fresh = network.untrained(0)
    assert fresh.fingerprint != network.fingerprint
    split_everywhere(fresh._model, fresh, sequences(5))


def test_a_stitched_language_model_can_be_saved(tmp_path):
    data = data_of(language())
    a, b = (Network(language(seed), example=data.example, name=f"seed {seed}") for seed in (1, 0))
    found = suture.stitch(a, b, at="blocks.0", data=data, fit=LeastSquares(), controls=())
    found.save(tmp_path / "seam")
    again = suture.load_stitched(tmp_path / "seam", a, b)
    assert torch.equal(found.stitched(data.example), again(data.example))


@pytest.mark.slow
def test_a_stitched_language_model_of_a_model_string_is_made_anew_of_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    settings = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**settings, architectures=["GPT2LMHeadModel"])
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    data = load_data(((sequences(60, 1), None), (sequences(20, 2), None)), task=NextToken())
    text = f"hf:{tmp_path / 'gpt'}@{tmp_path / 'gpt' / 'model.safetensors'}"
    network = load_network(text, example=data.example)
    found = suture.stitch(network, network, at=network.cuts[1].name, data=data, fit=LeastSquares(), controls=())
    found.save(tmp_path / "seam")
    assert torch.equal(found.stitched(data.example), suture.load_stitched(tmp_path / "seam")(data.example))


def test_a_language_model_can_be_trained_by_a_recipe():
    data = data_of(language())
    trained = train(Language, data.training, Recipe(steps=3), 0)
    assert trained is not None
    with pytest.raises(DataError, match=r"CropFlip is for images, and these are token ids; use Unchanged\(\)"):
        train(Language, data.training, Recipe(steps=3, augment=CropFlip()), 0)


# --- data -------------------------------------------------------------------------------------------------------------


def test_data_of_sequences_says_so():
    data = data_of(language())
    assert repr(data) == "Data('sequences', 360 fit, 40 validation, 200 score sequences of 6 tokens, 11 classes)"
    assert data.fit.images.dtype == torch.int64
    assert data.fit.extremes.max() == data.fit.images.max()
    assert data.fit.extremes.min() == data.fit.images.min()


@each("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_ids_of_any_integer_type_are_the_same(dtype):
    (ids, labels), (more, theirs) = (sequences(40), torch.arange(40) % 3), (sequences(9, 5), torch.arange(9) % 3)
    given, wanted = (load_data(((ids.to(t), labels), (more.to(t), theirs)), name="t") for t in (dtype, torch.int64))
    assert given.fit.fingerprint == wanted.fit.fingerprint


IDS, LABELS = sequences(40), torch.arange(40) % 3


@each(
    ("train_ids", "test_ids", "said"),
    [
        (IDS - 1, IDS, "token ids of 'tensors/train' begin at -1; .* give an attention_mask that is 0 at the padding"),
        (IDS.byte(), IDS.byte(), r"bytes of shape \(40, 6\), which may be flat images or token ids; reshape images"),
        (IDS.to(torch.complex64), IDS, r"are torch\.complex64 of shape \(40, 6\)"),
        (IDS[:, :0], IDS[:, :0], "the sequences of 'tensors/train' are empty; give each at least one token"),
        (IDS, torch.rand(40, 1, 2, 3), "'tensors/score' has images, and 'tensors/fit' sequences; they must be alike"),
        (IDS.float(), IDS.float(), r"are torch.float32 of shape \(40, 6\); .* token ids as \(N, T\) int64"),
        (
            IDS,
            IDS[:, :5],
            "sequences of .* are 5 tokens long and those of .* 6 tokens; cut them to one length, or pad them",
        ),
        (torch.cat([IDS, IDS]), torch.cat([IDS, IDS]), "80 of the 80 sequences of .* are also in"),
    ],
)
def test_sequences_that_cannot_be_measured_on_are_refused(train_ids, test_ids, said):
    labels = [torch.arange(len(ids)) % 3 for ids in (train_ids, test_ids)]
    with pytest.raises(DataError, match=said):
        load_data(((train_ids, labels[0]), (test_ids, labels[1])))


def test_tokens_beyond_the_vocabulary_are_found_before_anything_is_fitted():
    data = data_of(language())
    ids = data.fit.images.clone()
    ids[-1, 2] = VOCABULARY
    (fit, validation), score = (data.fit, data.validation), data.score
    odd = suture.Data("odd", suture.Samples("odd", ids, fit.labels, fit.classes), validation, score)
    network = Network(language(), example=data.example)
    said = "does not take sequences of odd, whose token ids are 0 to 11: .*; give it those of its own vocabulary"
    with pytest.raises(DataError, match=said):
        suture.stitch(network, network, at="blocks.0", data=odd, fit=LeastSquares())


def test_images_and_sequences_do_not_mix():
    data, digits = data_of(language()), load_data("digits")
    network = Network(language(), example=data.example, name="L")
    with pytest.raises(DataError, match="digits/score has images, and L was made with an example of token ids"):
        network.check_images(digits.score.images, "digits/score")
    seeing = Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), example=digits.example, name="S")
    with pytest.raises(DataError, match="odd has token ids, and S was made with an example of images"):
        seeing.check_images(data.example, "odd")
    with pytest.raises(DataError, match=r"Preprocess\(.* is for images, and these are token ids"):
        Network(language(), example=data.example, preprocess=Preprocess(mean=(0.5,)))
    for of_images in (Covered(0, 0, 1, 1), Grey3(), lambda data: stack(data, data)):
        with pytest.raises(DataError, match="is for images, and these are token ids"):
            of_images(data)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The sequences of a language model as parquet, with a column of masks beside them."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = data_of(language())
    (tmp_path / "text").mkdir()
    for split, part in (("train", data.training), ("test", data.score)):
        rows = {"input_ids": part.images.tolist(), "attention_mask": torch.ones_like(part.images).tolist()}
        pd.DataFrame(rows | {"label": part.labels}).to_parquet(tmp_path / "text" / f"{split}.parquet")
    return tmp_path / "text"


def test_sequences_are_read_from_files(folder):
    data, wanted = load_data(folder, classes=VOCABULARY), data_of(language())
    assert torch.equal(data.score.images, wanted.score.images)
    assert sorted(data.training.images.tolist()) == sorted(wanted.training.images.tolist())
    with pytest.raises(DataError, match="200 of the 200 sequences"):  # masks, which are all alike
        load_data(folder, columns=("attention_mask", "label"), classes=VOCABULARY)
    with pytest.raises(DataError, match="token ids, which have no size in pixels; leave out size="):
        load_data(folder, size=8)


def test_files_of_sequences_whose_masks_have_another_length_are_refused(folder):
    table = pd.read_parquet(folder / "train.parquet")
    table.at[7, "input_ids"] = [1, 2]
    table.to_parquet(folder / "train.parquet")
    with pytest.raises(DataError, match="the inputs of sample 7 of 'text/train' differ in length"):
        load_data(folder)


def test_files_of_large_lists_are_read_and_missing_ones_refused(folder):
    wanted = load_data(folder, classes=VOCABULARY)
    for split in ("train", "test"):
        table = pq.read_table(folder / f"{split}.parquet")
        large = table["input_ids"].cast(pa.large_list(pa.int64()))
        pq.write_table(pa.table({"input_ids": large, "label": table["label"]}), folder / f"{split}.parquet")
    assert load_data(folder, classes=VOCABULARY).fit.fingerprint == wanted.fit.fingerprint
    table = pd.read_parquet(folder / "train.parquet")
    table["input_ids"] = table["input_ids"].map(list)
    table.at[0, "input_ids"] = None
    table.to_parquet(folder / "train.parquet")
    with pytest.raises(DataError, match="image 0 of 'text/train' is missing; remove its row"):
        load_data(folder)


def test_a_recipe_that_changes_images_is_refused_before_it_trains(folder, tmp_path, capsys):
    (tmp_path / "net.py").write_text(
        "import sys; sys.path.insert(0, 'tests')\nfrom test_token_ids import Language\ndef net(): return Language()\n"
    )
    words = ["--network", f"{tmp_path}/net.py:net", "--data", str(folder), "--out", str(tmp_path / "nets")]
    assert main(["train", "fast", *words, "--classes", str(VOCABULARY), "--epochs", "1"]) == 2
    told = capsys.readouterr().err
    assert "token ids; choose a recipe that leaves samples as they are, such as digits" in told
    assert main(["train", "digits", *words, "--classes", str(VOCABULARY), "--epochs", "1"]) == 0
    assert main(["cuts", str(tmp_path / "nets"), "--shape", "5", "--trust"]) == 0


@pytest.mark.slow
def test_language_models_on_the_command_line(folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "net.py").write_text(
        "import sys; sys.path.insert(0, 'tests'); import torch\n"
        "from test_token_ids import language\n"
        "def one(): return language(1)\n"
        "def two(): return language(0)\n"
    )
    one, two = f"{tmp_path}/net.py:one", f"{tmp_path}/net.py:two"
    assert main(["cuts", one, "--shape", str(LENGTH)]) == 0
    assert "blocks.1" in capsys.readouterr().out
    assert main(["cuts", one, "--shape", "2x3"]) == 2
    assert "or the number of tokens of a sequence" in capsys.readouterr().err
    assert main(["data", str(folder)]) == 0
    assert "sequences of 6 tokens" in capsys.readouterr().out
    curve = [
        "curve",
        one,
        two,
        "--data",
        str(folder),
        "--at",
        "blocks.0",
        "--fit",
        "least-squares",
        "--controls",
        "none",
    ]
    assert main(curve) == 2
    assert "load them with --classes 11" in capsys.readouterr().err
    curve += ["--classes", str(VOCABULARY)]
    assert main([*curve, "--out", str(tmp_path / "run")]) == 0
    assert main(["explain", str(tmp_path / "run")]) == 0
    assert main(["curve", one, two, "--data", "digits", "--at", "blocks.0"]) == 2
    assert "does not run on inputs of shape" in capsys.readouterr().err


def test_an_attack_on_pixels_is_refused():
    data = data_of(language())
    network = Network(language(), example=data.example)
    with pytest.raises(DataError, match="token ids are not images"):
        traits.FGSM(0.03).of_network(network.whole(), data.score)
