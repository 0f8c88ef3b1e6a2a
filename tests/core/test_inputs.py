"""Several inputs: token ids with their mask, of any length, in networks that read the mask in every layer.

Evidence: the user's own model called by hand; the same texts one by one without padding; answers planted in weights.
"""

from dataclasses import replace

import datasets
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import suture
from loops import each
from models import scrambled
from suture import Network, indices, load_data
from suture.common.errors import CutError, DataError, NetworkError
from suture.core.activations.cache import Activations
from suture.core.stitches import Identity, Layers, Linear
from suture.data.inputs import PADDING
from suture.data.samples import Samples
from suture.data.tasks import IGNORED, DenseClassification, NextToken, OwnOutputs
from suture.fits import Converged, LeastSquares, MatchActivations
from suture.measurement.indices import LinearCKA
from suture.measurement.trials import controls
from suture.measurement.trials.measure import make_problem
from suture_papers.fits_of_others import FunctionalLatentAlignment, MatchPenultimate, RelativeRepresentations

VOCABULARY, LENGTH, WIDTH, CLASSES = 24, 9, 16, 5
PAD = VOCABULARY - 1


class Words(nn.Module):
    """A hand-written transformer that looks at no masked word, and at none after the word it stands at."""

    def __init__(self, pooled: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(2))
        self.head, self.pooled = nn.Linear(WIDTH, CLASSES if pooled else VOCABULARY), pooled

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        there = torch.ones_like(x) if mask is None else mask
        seen = (there[:, None, :] != 0) & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        h = self.first(self.tokens(x))
        for layer in self.layers:
            query, key, value, more = layer(h).chunk(4, -1)
            looked = (query @ key.mT).masked_fill(~seen, -1e9).softmax(-1)
            h = h + looked @ value + more.relu()
        if not self.pooled:
            return self.head(h)
        return self.head((h * there[..., None]).sum(1) / there.sum(1, keepdim=True))


def texts(n: int, seed: int, side: str = "right") -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, LENGTH + 1, (n, 1), generator=random)
    mask = (torch.arange(LENGTH) < lengths).long()
    mask = mask if side == "right" else mask.flip(1)
    return {"x": torch.randint(PAD, (n, LENGTH), generator=random).where(mask == 1, PAD), "mask": mask}


def words(seed: int, pooled: bool = True) -> Words:
    """A model that says each class about as often as the others."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = scrambled(Words(pooled), seed).eval()
    with torch.no_grad():
        model.head.bias -= model(**texts(400, 9)).flatten(0, -2).mean(0)
    return model


def labelled(model: nn.Module, n: int = 600) -> suture.Data:
    """Texts, each labelled with what the model says."""
    with torch.no_grad():
        parts = [(batch, model(**batch).argmax(-1)) for batch in (texts(n, 1), texts(n // 2, 2))]
    return load_data((parts[0], parts[1]), name="texts", classes=CLASSES)


def of_transformers(name: str) -> nn.Module:
    """A small model of transformers with random weights."""
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, name)
    default = cls.config_class().to_dict()
    small = {
        **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 32),
        **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_attention_heads", "n_head"), 2),
        **dict.fromkeys(("n_heads", "num_heads", "num_key_value_heads"), 2),
        **dict.fromkeys(("intermediate_size", "ffn_dim", "hidden_dim", "n_inner", "d_ff"), 48),
        **dict.fromkeys(("head_dim", "d_kv"), 16),
        "vocab_size": 99,
        "max_position_embeddings": 32,
        "n_positions": 32,
        "num_labels": 4,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(0)
    return cls(cls.config_class(**{key: value for key, value in small.items() if key in default})).eval()


def encoded(side: str) -> dict[str, Tensor]:
    """What a tokeniser gives for six texts, filled up on one side."""
    random = torch.Generator().manual_seed(0)
    mask = (torch.arange(12) < torch.tensor([5, 12, 8, 3, 11, 7])[:, None]).long()
    mask = mask if side == "right" else mask.flip(1)
    return {"input_ids": torch.randint(3, 99, (6, 12), generator=random) * mask, "attention_mask": mask}


#: Models with the cut after their first layer.
LAYERS = {
    "BertForSequenceClassification": "bert.encoder.layer.0",
    "GPT2ForSequenceClassification": "transformer.h.0",
}
MORE = {
    "LlamaForCausalLM": "model.layers.0",
    "T5EncoderModel": "encoder.block.0.layer.1",
    "BertModel": "encoder.layer.0",
    "DistilBertForSequenceClassification": "distilbert.transformer.layer.0",
    "DebertaV2ForSequenceClassification": "deberta.encoder.layer.0",
    "MPNetForSequenceClassification": "mpnet.encoder.layer.0",
    "ModernBertForSequenceClassification": "model.layers.0",
    "GPT2LMHeadModel": "transformer.h.0",
    "Qwen3ForCausalLM": "model.layers.0",
    "GemmaForCausalLM": "model.layers.0",
    "GPTNeoXForCausalLM": "gpt_neox.layers.0",
    "OPTForCausalLM": "model.decoder.layers.0",
    "PhiForCausalLM": "model.layers.0",
    "CLIPTextModel": "encoder.layers.0",
}


PLACED = ("GPT2ForSequenceClassification", "GPT2LMHeadModel", "BertModel", "CLIPTextModel")
#: Those that take their answer from the first position.
FIRST = [f"{kind}ForSequenceClassification" for kind in ("Bert", "DistilBert", "DebertaV2", "MPNet", "ModernBert")]


def check_cut_with_a_mask(name: str, layer: str, sides: tuple[str, ...]) -> None:
    """Assert the law of composition at every cut, and that the mask cost none of those there are without it."""
    model = of_transformers(name)
    plain = Network(model, example=encoded("right")["input_ids"]).cuts
    for side in sides:
        batch, told = encoded(side), {}
        if side == "left" and name in PLACED:
            with pytest.warns(UserWarning, match="it is given position_ids that begin where the mask does"):
                network = Network(model, example=batch)
            told = {"position_ids": (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)}
        else:
            network = Network(model, example=batch)
        with torch.no_grad():
            wanted = model(**batch, **told)[network.output]
        assert torch.equal(network(batch), wanted)
        for cut in network.cuts:
            passed = network.upto(cut)(batch)
            assert torch.equal(network.after(cut)(passed, network.inputs_after(cut, batch)), wanted), (name, cut.name)
        assert layer in network.cuts
        assert len(network.cuts) == len(plain)


@pytest.mark.slow
@each(("name", "layer"), LAYERS.items(), ids=LAYERS)
def test_a_mask_blocks_no_cut(name, layer):
    check_cut_with_a_mask(name, layer, ("right",) if name in FIRST else ("right", "left"))


@pytest.mark.slow
@each(("name", "layer"), MORE.items(), ids=MORE)
def test_a_mask_blocks_no_cut_of_any_architecture(name, layer):
    check_cut_with_a_mask(name, layer, ("right",) if name in FIRST else ("left",))


@pytest.mark.slow
@each("name", FIRST)
def test_what_answers_at_the_first_position_is_not_padded_there(name):
    with pytest.raises(
        NetworkError, match=r"(reads|counts from) the first position, which is padding; fill them up on"
    ):
        Network(of_transformers(name), example=encoded("left"))


def alone(network: Network, batch: dict[str, Tensor]) -> list[Tensor]:
    """What a network's model says of each text by itself, without padding or a mask."""
    model = network._model.model
    with torch.no_grad():
        found = [model(ids[None, there == 1]) for ids, there in zip(*batch.values(), strict=True)]
    return [(out if isinstance(out, Tensor) else out.logits)[0] for out in found]


@pytest.mark.slow
def test_a_language_model_reads_padded_texts_as_it_reads_them_alone():
    model, batch = of_transformers("GPT2LMHeadModel"), encoded("left")
    with pytest.warns(UserWarning, match="counts positions from the padding on the left of its example"):
        placed = Network(model, example=batch)
    for network, filled in ((placed, batch), (Network(model, example=encoded("right")), encoded("right"))):
        for out, want, there in zip(network(filled), alone(network, filled), filled["attention_mask"], strict=True):
            assert torch.allclose(out[there == 1], want, atol=1e-5)
    own = Network(model, example=encoded("right"), name="G")
    with pytest.raises(DataError, match="G counts from the first position, which is padding; make it with example=da"):
        own.check_samples(Samples("texts", batch, None, task=NextToken()))
    whole = Samples("texts", {k: torch.cat([encoded("right")[k], v]) for k, v in batch.items()}, None, task=NextToken())
    assert int(whole.example["attention_mask"][:3, 0].min()) == 0, "a text padded on the left is among the first"


class Narrow(nn.Module):
    """A convolution over words, whose mean alone heeds the mask; of any length, or of one alone."""

    def __init__(self, heeds: bool = False, length: int = 0) -> None:
        super().__init__()
        self.tokens, self.conv = nn.Embedding(VOCABULARY, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.head, self.heeds = nn.Linear(WIDTH, CLASSES), heeds
        self.places = nn.Parameter(torch.randn(length, WIDTH)) if length else 0

    def forward(self, x: Tensor, input_mask: Tensor) -> Tensor:
        there = input_mask[..., None]
        h = self.tokens(x) + self.places
        h = self.conv((h * there if self.heeds else h).mT).relu().mT
        return self.head((h * there).sum(1) / there.sum(1))


@each("length", [0, LENGTH])
def test_a_model_that_reads_padding_is_refused_and_one_that_heeds_its_mask_is_not(length):
    batch = dict(zip(("x", "input_mask"), texts(8, 0).values(), strict=True))
    torch.manual_seed(0)
    reads, heeds = (Narrow(heeds, length).eval() for heeds in (False, True))
    with pytest.raises(NetworkError, match="Narrow reads the padding, although the mask leaves it o"):
        Network(reads, example=batch)
    assert len(Network(heeds, example=batch).cuts) > 2
    full = {"x": batch["x"], "input_mask": torch.ones_like(batch["x"])}
    found = Samples("texts", batch, None, task=OwnOutputs())
    assert torch.equal(found.counted, batch["input_mask"] == 1), "whatever the model calls its mask counts"
    with pytest.raises(DataError, match="texts are padded, and Narrow reads the padding"):
        Network(reads, example=full).check_samples(found)


def test_a_mean_over_all_positions_is_refused():
    class Mean(Narrow):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.head((self.tokens(x) * mask[..., None]).mean(1))

    with pytest.raises(NetworkError, match="depends on the length of the padding, as a mean over all positions does"):
        Network(Mean().eval(), example=texts(8, 0))


def test_what_a_suffix_reads_beside_the_tensor_must_be_given_to_it():
    network = Network(words(0), example=texts(4, 0))
    assert network.inputs_after("div", texts(4, 0)) is None
    with pytest.raises(NetworkError, match=r"read masks or positions; .* network.inputs_after\(cut, batch\)"):
        network.after("tokens")(network.upto("tokens")(texts(4, 0)))


def test_a_second_stream_of_content_is_no_mask_and_blocks_the_cuts_that_it_jumps_over():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.letters = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, letters: Tensor, mask: Tensor) -> Tensor:
            h = self.one(self.words(x)) + self.letters(letters)
            return self.two((h * mask[..., None]).sum(1))

    batch = texts(4, 0) | {"letters": texts(4, 1)["x"]}
    network = Network(scrambled(Both()).eval(), example=batch)
    assert network.cuts.names == ("add", "mul", "sum")


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> suture.Data:
    return labelled(words(0))


def turned(by: Tensor) -> Words:
    """The same model with its embedding turned, and led back behind the cut; but not that of padding."""
    model = words(0)
    with torch.no_grad():
        model.tokens.weight.copy_(model.tokens.weight @ by.T)
        model.first.weight.copy_(model.first.weight @ by.T)
        model.tokens.weight[PAD] += 10
    return model


TURN = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3))).Q


@pytest.mark.slow
def test_a_planted_rotation_is_recovered_from_the_words_that_count(data):
    a, b = (Network(m, example=data.example, name=name) for m, name in ((turned(TURN), "A"), (words(0), "B")))
    exactly = LeastSquares(ridges=(1e-12,), rescale=False)
    found = suture.stitch(a, b, at="tokens", data=data, stitch=Linear(), fit=exactly)
    assert torch.allclose(found.stitch.weight, TURN.T, atol=1e-4)
    assert found.representation_error < 1e-9
    assert found.stitched.seam.sender is a
    assert torch.equal(found.stitched(texts(9, 5)).argmax(1), words(0)(**texts(9, 5)).argmax(1))


@pytest.mark.slow
def test_the_identity_gives_the_receivers_own_score_and_shuffled_pairs_collapse(data):
    own = Network(words(0), example=data.example, name="A")
    seam = suture.Seam.at(own, own, "add_1")
    roles = (data.fit, data.validation, data.score)
    same = suture.measure(suture.Trial(seam, *roles, Identity()))
    assert [same.scores[name].value for name in same.scores] == [same.receiver[name].value for name in same.scores]
    assert same.representation_error == 0
    sender = Network(turned(TURN), example=data.example, name="B")
    trial = suture.Trial(suture.Seam.at(sender, own, "tokens"), *roles, Linear(), Converged(cap=280))
    plain, shuffled = suture.measure(trial), suture.measure(controls.shuffled_pairs(trial))
    commonest = float(data.score.labels.bincount().max()) / len(data.score)
    assert commonest < 0.5 < 0.98 < plain.scores.accuracy.value
    assert shuffled.scores.accuracy.value < commonest + 0.05


@pytest.mark.slow
def test_least_squares_on_padded_texts_is_that_on_the_texts_one_by_one():
    data = labelled(words(0), 150)
    a, b = (Network(words(seed), example=data.example) for seed in (5, 0))
    seam = suture.Seam.at(a, b, "add_1")
    trial = suture.Trial(seam, data.fit, data.validation, data.score, Linear(), LeastSquares(ridges=(1e-6,)))
    alone = [[], []]
    for row in data.fit.images:
        there = row[1] == 1
        text = {"x": row[None, 0, there], "mask": torch.ones(1, int(there.sum()), dtype=torch.long)}
        for model, rows in zip((words(5), words(0)), alone, strict=True):
            model.layers[1].register_forward_pre_hook(lambda _, given, rows=rows: rows.append(given[0][0]))
            with torch.no_grad():
                model(**text)
    x, y = (torch.cat(rows).double() for rows in alone)
    mean_x, mean_y = x.mean(0), y.mean(0)
    cov = (x - mean_x).T @ (x - mean_x) / len(x)
    ridge = 1e-6 * cov.diagonal().mean() * torch.eye(WIDTH)
    weight = torch.linalg.solve(cov + ridge, (x - mean_x).T @ (y - mean_y) / len(x)).T
    scale = y.std(0, correction=0) / ((x - mean_x) @ weight.T).std(0, correction=0)
    found = suture.measure(trial).stitch
    assert torch.allclose(found.weight.double(), weight * scale[:, None], atol=1e-4)


def test_a_text_scores_the_same_padded_and_alone():
    model = words(0, pooled=False)
    batch = texts(40, 3)
    found = load_data((({**batch}, None), (texts(30, 4), None)), task=NextToken(), name="texts").score
    network = Network(model, example=batch)
    losses = NextToken().losses(network({"x": found.images[:, 0], "mask": found.images[:, 1]}), found.labels)
    for row, loss in zip(found.images, losses, strict=True):
        text = row[None, 0, row[1] == 1]
        with torch.no_grad():
            alone = nn.functional.cross_entropy(model(text)[0, :-1], text[0, 1:])
        assert torch.allclose(loss, alone, atol=1e-5)


@pytest.mark.slow
def test_what_is_masked_changes_no_target_no_index_and_no_distance(data):
    network = Network(words(0, pooled=False), example=data.example, name="A")
    other = Network(words(5, pooled=False), example=data.example, name="B")
    there = data.score.counted
    own = Activations().at(network, "add_1", data.score)
    noisy = own + 100 * torch.randn(own.shape) * ~there[..., None]
    task = OwnOutputs()
    losses = [task.losses(one, task.ignore(own, there)) for one in (own, noisy)]
    assert torch.equal(*losses)
    assert float(losses[0].abs().max()) < 1e-5
    labels = torch.zeros_like(data.score.images[:, 0])
    assert torch.equal(DenseClassification().ignore(labels, there) == IGNORED, ~there)
    kinds = [indices.linear_cka, indices.rbf_cka, indices.mutual_knn, indices.rsa_pearson]
    options = {"data": data, "cuts": ["add_1"], "by": kinds, "permutations": 0}
    both = [Activations().at(one, "add_1", data.score) for one in (network, other)]
    for read, how in (
        ("pixels", lambda x: x[there]),
        ("mean", lambda x: torch.stack([row[at].mean(0) for row, at in zip(x, there, strict=True)])),
        ("last", lambda x: torch.stack([row[at][-1] for row, at in zip(x, there, strict=True)])),
        ("first", lambda x: torch.stack([row[at][0] for row, at in zip(x, there, strict=True)])),
    ):
        table = suture.compare(network, other, samples_as=read, **options)
        wanted = [kind(*map(how, both)) for kind in kinds]
        assert table["value"].tolist() == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(DataError, match="permutations=0"):
        suture.compare(network, other, data=data, cuts=["add_1"], samples_as="pixels")
    with pytest.raises(DataError, match=r"rbf_cka, mutual_knn, rsa_pearson of whole texts .* find their lengths alike"):
        suture.compare(network, other, **options | {"by": [LinearCKA(debiased=True), *kinds[1:]]})
    assert len(suture.compare(network, other, data=data, cuts=["add_1"])) == 1


def test_what_stands_behind_padding_on_the_left_is_not_told_by_it():
    batch = texts(40, 3, side="left")
    found = load_data((({**batch}, None), (texts(30, 4), None)), task=NextToken(), name="texts").fit
    assert int(NextToken().positions(found.labels).sum()) == int((found.counted.sum(1) - 1).sum())


@each(
    "fit",
    [
        LeastSquares(),
        RelativeRepresentations(anchors=60),
        *(
            kind(steps=6, check=3, standardise=False)
            for kind in (MatchActivations, FunctionalLatentAlignment, MatchPenultimate)
        ),
    ],
    ids=lambda fit: type(fit).__name__,
    few=1,
)
def test_no_fit_looks_at_what_is_masked(fit):
    batches = texts(200, 1), texts(60, 2)
    data = load_data(tuple((batch, None) for batch in batches), task=NextToken(), name="texts")
    a, b = (Network(words(seed, pooled=False), example=data.example) for seed in (5, 0))
    seam = suture.Seam.at(a, b, "add_3")
    trial = suture.Trial(seam, data.fit, data.validation, data.score, Linear(), fit)
    found = []
    for noise in (0.0, 100.0):
        torch.manual_seed(0)
        stitch = Linear().build(*seam.shapes)
        problem = make_problem(trial, Activations(), stitch)
        side, random = problem.fit, torch.Generator().manual_seed(3)
        sent, own = (
            x + noise * torch.randn(x.shape, generator=random) * ~side.counted[..., None]
            for x in (side.activations[:], side.expected()[:])
        )
        fit.fit(replace(problem, fit=replace(side, activations=sent, expected=lambda own=own: own)), stitch)
        found.append(stitch.weight.detach())
    assert torch.allclose(*found, rtol=1e-4, atol=1e-5)


def test_a_suffix_reads_the_masks_of_the_samples_that_are_chosen(data):
    network = Network(words(0), example=data.example, name="A")
    side = make_problem(trial_at(network, "tokens", data.fit.shuffled(0), data), Activations(), nn.Linear(1, 1)).fit
    chosen = torch.tensor([7, 2])
    passed = network.upto("tokens")(data.fit.images[chosen])
    partners = data.fit.images[data.fit.shuffled(0).pairing[chosen]]
    wanted = network.after("tokens")(passed, partners)
    assert torch.equal(side.run(network.after("tokens"), passed, chosen), wanted)
    assert torch.equal(side.counted[chosen], data.fit.counted[chosen] & (partners[:, 1] == 1))


def trial_at(network: Network, cut: str, fit: suture.data.samples.Samples, data: suture.Data) -> suture.Trial:
    return suture.Trial(suture.Seam.at(network, network, cut), fit, data.validation, data.score, Linear())


# --- data -------------------------------------------------------------------------------------------------------------

ROWS = {
    "input_ids": [[1, 2, 3], [4, 5], [6, 7, 8, 9], [3, 2]] * 10,
    "label": [0, 1, 0, 1] * 10,
}


def test_texts_of_any_length_are_filled_up_and_masked():
    ragged = datasets.Dataset.from_dict(ROWS)
    masked = ragged.map(lambda row: {"attention_mask": [1] * len(row["input_ids"]), "token_type_ids": [0] * 9})
    masked = masked.map(lambda row: {"token_type_ids": row["token_type_ids"][: len(row["input_ids"])]})
    listed = [(torch.tensor(ids), label) for ids, label in zip(*ROWS.values(), strict=True)]
    for source in (
        datasets.DatasetDict(train=ragged, test=masked),
        (ragged, masked.with_transform(lambda rows: rows)),
        (Listed(listed), ragged),
        (DataLoader(Listed(listed), 7, collate_fn=collate), masked),
    ):
        found = load_data(source, name="texts", classes=2)
        assert [one.name for one in found.fit.inputs] == ["input_ids", "attention_mask"]
        ids, mask = found.score.images.unbind(1)
        assert torch.equal(mask.sum(1), torch.tensor([len(row) for row in ROWS["input_ids"]]))
        assert [row[there == 1].tolist() for row, there in zip(ids, mask, strict=True)] == ROWS["input_ids"]
        assert bool((ids[mask == 0] == PADDING).all())
        assert list(found.example) == ["input_ids", "attention_mask"]


class Listed(torch.utils.data.Dataset):
    def __init__(self, rows: list[object]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> object:
        return self.rows[i]


def collate(rows: list[tuple[Tensor, int]], masked: bool = True) -> dict[str, Tensor]:
    """Fill up a batch, each to its own length, as collators of transformers do."""
    ids = nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True, padding_value=PADDING)
    mask = {"attention_mask": (ids != PADDING).long()} if masked else {}
    return {"input_ids": ids, **mask, "labels": torch.tensor([row[1] for row in rows])}


def test_the_padding_of_a_model_stands_where_texts_were_filled_up():
    model = of_transformers("RobertaForSequenceClassification")
    model.config.pad_token_id = model.roberta.embeddings.padding_idx
    data = load_data(datasets.Dataset.from_dict(ROWS), split=8, classes=2)
    network = Network(model, example=data.example)
    ids, mask = data.score.images.unbind(1)
    with torch.no_grad():
        wanted = model(input_ids=ids.where(mask == 1, model.config.pad_token_id), attention_mask=mask).logits
    assert torch.allclose(network(data.score.images), wanted, atol=1e-6)


def test_labels_of_tokens_are_filled_up_with_what_does_not_count():
    rows = {"input_ids": ROWS["input_ids"], "labels": [[i % 2 for i in ids] for ids in ROWS["input_ids"]]}
    listed = [{"input_ids": ids, "labels": labels} for ids, labels in zip(*rows.values(), strict=True)]
    for source in (datasets.Dataset.from_dict(rows), Listed(listed)):
        found = load_data(source, split=20, task=DenseClassification()).training
        assert torch.equal(found.labels == IGNORED, found.images[:, 1] == 0)


def test_inputs_that_say_too_little_are_refused():
    model, data = words(0), labelled(words(0), 60)
    listed = [(torch.tensor(ids), label) for ids, label in zip(*ROWS.values(), strict=True)]
    with pytest.raises(DataError, match="padded to 3 and to 4 tokens, without a mask"):
        load_data(DataLoader(Listed(listed), 2, collate_fn=lambda rows: collate(rows, False)), split=20)
    with pytest.raises(DataError, match=r"each must be integers \(n, T\), all of one shape, and 'mask' is torch.fl"):
        Network(model, example=texts(4, 0) | {"mask": torch.rand(4, LENGTH)})
    with pytest.raises(DataError, match=r"'pixel_values' is torch\.float32"):
        Network(model, example={"pixel_values": torch.rand(4, 3, 8, 8), "input_ids": torch.ones(4, 8)})
    with pytest.raises(NetworkError, match="takes x, mask, and the example has input_ids, attention_mask; name its"):
        Network(model, example=encoded("right"))
    blind = Network(nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Head()), example=texts(4, 0)["x"], name="B")
    with pytest.raises(DataError, match="texts/fit has x, mask, and B was made with one input; make it with example"):
        suture.stitch(blind, blind, at="0", data=data)
    with pytest.raises(DataError, match="every position of a sequence of 'texts' is masked"):
        suture.data.samples.Samples(
            "texts",
            {"x": torch.ones(3, 4).long(), "mask": torch.zeros(3, 4).long()},
            torch.arange(3),
            ("a", "b", "c"),
        )


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, h: Tensor) -> Tensor:
        return self.linear(h).mean(1)


def test_a_network_that_takes_no_mask_is_fed_no_padding():
    class Unmasked(Words):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    data = labelled(words(0), 60)
    network = Network(scrambled(Unmasked()).eval(), example=data.example, name="U")
    with pytest.raises(DataError, match="sequences of texts/fit are padded, and U takes no mask"):
        suture.stitch(network, network, at="tokens", data=data)


@pytest.mark.slow
def test_networks_of_two_tokenisers_are_refused():
    ids = encoded("right")
    small, large = (of_transformers("BertModel"), of_transformers("LlamaForCausalLM"))
    large.resize_token_embeddings(120)
    a, b = (Network(model, example=ids, name=name) for model, name in ((small, "A"), (large, "B")))
    cuts = ("encoder.layer.0", "model.layers.0")
    found = load_data((ids["input_ids"].repeat(9, 1) % 60, torch.arange(54) % CLASSES), split=0.5, name="texts")
    with pytest.raises(NetworkError, match="A reads texts by a table of 99 tokens, and B by a table of 120 tokens"):
        suture.stitch(a, b, at=cuts, data=found)
    one, other = (
        Network(nn.Sequential(nn.Embedding(rows, WIDTH), Head()), example=ids["input_ids"] % 60, name=f"of {rows}")
        for rows in (60, 80)
    )
    with pytest.raises(NetworkError, match="of 60 reads texts by a table of 60 tokens, and of 80 by a table of 80"):
        suture.stitch(one, other, at="0", data=found)
    with pytest.raises(NetworkError, match="of 80 reads texts by a table of 80 tokens, and of 60 by a table of 60"):
        suture.compare(other, one, data=found)
    one, same, other = (Network(words(0), example=texts(4, 0), tokenizer=name) for name in ("one", "one", "other"))
    found = labelled(words(0), 60)
    suture.curve(one, same, data=found, at="tokens", controls=())
    with pytest.raises(NetworkError, match=r"by a tokeniser one, and .* by a tokeniser other"):
        suture.curve(one, other, data=found, at="tokens", controls=())


def test_layers_that_read_a_mask_are_not_fine_tuned():
    network = Network(words(0), example=texts(4, 0))
    with pytest.raises(CutError, match="read masks or positions beside the tensor, which a copy is not given"):
        Layers(network, "first")


class Wrapper(nn.Module):
    """Passes on whatever it is given, as adapters and averaged weights do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = model

    def forward(self, *args, **kwargs):
        return self.base_model(*args, **kwargs)


@pytest.mark.slow
@each("wrap", [lambda m: Wrapper(Wrapper(m)), nn.DataParallel, torch.optim.swa_utils.AveragedModel])
def test_a_wrapper_takes_what_the_model_inside_it_names(wrap):
    model, batch = of_transformers("BertForSequenceClassification"), encoded("right")
    plain, network = Network(model, example=batch), Network(wrap(model).eval(), example=batch)
    assert torch.equal(network(batch), plain(batch))
    assert len(network.cuts) == len(plain.cuts)
    assert network.vocabulary == 99
    with pytest.raises(NetworkError, match="takes input_ids, attention_mask, token_type_ids"):
        Network(wrap(model).eval(), example={"x": batch["input_ids"], "mask": batch["attention_mask"]}, name="W")
