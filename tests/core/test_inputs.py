"""Several inputs: token ids with their mask, of any length, in networks that read the mask in every layer.

Evidence: the user's own model called by hand; the same texts one by one without padding; answers planted in weights.
"""

import pytest
import torch
from torch import Tensor, nn

import suture
from loops import each
from models import scrambled
from suture import Network, load_data
from suture.common.errors import NetworkError
from suture.core.stitches import Linear
from suture.fits import LeastSquares

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
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return scrambled(Words(pooled), seed).eval()


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
    "BertForTokenClassification": "bert.encoder.layer.0",
    "DistilBertForSequenceClassification": "distilbert.transformer.layer.0",
    "RobertaForSequenceClassification": "roberta.encoder.layer.0",
    "DebertaV2ForSequenceClassification": "deberta.encoder.layer.0",
    "ElectraForSequenceClassification": "electra.encoder.layer.0",
    "MPNetForSequenceClassification": "mpnet.encoder.layer.0",
    "ModernBertForSequenceClassification": "model.layers.0",
    "GPT2LMHeadModel": "transformer.h.0",
    "LlamaForSequenceClassification": "model.layers.0",
    "MistralForCausalLM": "model.layers.0",
    "Qwen2ForCausalLM": "model.layers.0",
    "Qwen3ForCausalLM": "model.layers.0",
    "GemmaForCausalLM": "model.layers.0",
    "GPTNeoXForCausalLM": "gpt_neox.layers.0",
    "OPTForCausalLM": "model.decoder.layers.0",
    "PhiForCausalLM": "model.layers.0",
    "CLIPTextModel": "encoder.layers.0",
}


def check_cut_with_a_mask(name: str, layer: str) -> None:
    """Assert the law of composition at every cut, and that the mask cost none of those there are without it."""
    model = of_transformers(name)
    plain = Network(model, example=encoded("right")["input_ids"]).cuts
    for side in ("right", "left"):
        batch = encoded(side)
        network = Network(model, example=batch)
        with torch.no_grad():
            wanted = model(**batch)[network.output]
        assert torch.equal(network(batch), wanted)
        for cut in network.cuts:
            passed = network.upto(cut)(batch)
            assert torch.equal(network.after(cut)(passed, network.inputs_after(cut, batch)), wanted), (name, cut.name)
        assert layer in network.cuts
        assert len(network.cuts) == len(plain)


@each(("name", "layer"), LAYERS.items(), ids=LAYERS)
def test_a_mask_blocks_no_cut(name, layer):
    check_cut_with_a_mask(name, layer)


@pytest.mark.slow
@each(("name", "layer"), MORE.items(), ids=MORE)
def test_a_mask_blocks_no_cut_of_any_architecture(name, layer):
    check_cut_with_a_mask(name, layer)


def test_what_a_suffix_reads_beside_the_tensor_must_be_given_to_it():
    network = Network(words(0), example=texts(4, 0))
    assert network.inputs_after("div", texts(4, 0)) is None
    with pytest.raises(NetworkError, match=r"read masks or positions beside .* network.inputs_after\(cut, batch\)"):
        network.after("tokens")(network.upto("tokens")(texts(4, 0)))


def test_a_second_stream_of_content_is_no_mask_and_blocks_the_cuts_that_it_jumps_over():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.letters = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, letters: Tensor, mask: Tensor) -> Tensor:
            h = self.one(self.words(x)) + self.letters(letters)
            return self.two((h * mask[..., None]).mean(1))

    batch = texts(4, 0) | {"letters": texts(4, 1)["x"]}
    network = Network(scrambled(Both()).eval(), example=batch)
    assert network.cuts.names == ("add", "mul", "mean")


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> suture.Data:
    return labelled(words(0))


def test_a_planted_rotation_is_recovered_from_the_words_that_count(data):
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3))).Q
    turned = words(0)
    with torch.no_grad():
        turned.tokens.weight.copy_(turned.tokens.weight @ turn.T)
        turned.first.weight.copy_(turned.first.weight @ turn.T)
        turned.tokens.weight[PAD] += 10  # which the rotation does not lead back
    a, b = (Network(m, example=data.example, name=name) for m, name in ((turned, "A"), (words(0), "B")))
    exactly = LeastSquares(ridges=(1e-12,), rescale=False)
    found = suture.stitch(a, b, at="tokens", data=data, stitch=Linear(), fit=exactly)
    assert torch.allclose(found.stitch.weight, turn.T, atol=1e-4)
    assert found.representation_error < 1e-9
    assert found.stitched.seam.sender is a
    assert torch.equal(found.stitched(texts(9, 5)).argmax(1), words(0)(**texts(9, 5)).argmax(1))
