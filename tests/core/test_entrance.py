"""Models of transformers as they are, and models with several outputs: how they are called, and what counts.

Evidence: the model itself, called by hand as its documentation says.
"""

from functools import cache

import pytest
import torch
from torch import nn

from loops import each
from models import images, small
from suture import Network
from suture.common.errors import NetworkError

transformers = pytest.importorskip("transformers")

IDS = torch.randint(0, 99, (4, 12), generator=torch.Generator().manual_seed(0))
IMAGES = images(4, 32)
NARROW = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
GRID = {**NARROW, "image_size": 32, "patch_size": 8}


def make(kind, head, **settings):
    torch.manual_seed(0)
    return getattr(transformers, kind + head)(getattr(transformers, f"{kind}Config")(**settings)).eval()


#: Models with their example, the input and the output that they are asked for by hand, and one of their cuts.
AS_THEY_ARE = {
    "ViT": (lambda: make("ViT", "ForImageClassification", **GRID), IMAGES, "pixel_values", "logits", "vit.layers.0"),
    "tower": (lambda: make("CLIPVision", "Model", **GRID), IMAGES, "pixel_values", "last_hidden_state", "embeddings"),
    "BERT": (
        lambda: make("Bert", "ForSequenceClassification", **NARROW, vocab_size=99),
        *(IDS, "input_ids", "logits", "bert.encoder.layer.0"),
    ),
    "Llama": (
        lambda: make("Llama", "ForCausalLM", **NARROW, vocab_size=99),
        *(IDS, "input_ids", "logits", "model.layers.0"),
    ),
}


@cache
def taken(name):
    """A model, its settings as they were before, and its network."""
    build, example, *_ = AS_THEY_ARE[name]
    model = build()
    before = model.config.to_dict()
    return model, before, Network(model, example=example)


@each("name", AS_THEY_ARE)
def test_a_model_of_transformers_is_taken_as_it_is(name):
    _, example, given, named, cut = AS_THEY_ARE[name]
    model, before, network = taken(name)
    assert network.name == type(model).__name__
    assert network.output == named
    assert cut in network.cuts.names
    with torch.no_grad():
        wanted = model(**{given: example})[named]
        assert torch.equal(network(example), wanted)
        assert torch.equal(network.after(cut)(network.upto(cut)(example)), wanted)
    assert model.config.to_dict() == before, "the user's model keeps its settings"
    assert repr(named) in repr(network)


@each("name", AS_THEY_ARE)
def test_its_untrained_copy_is_another_with_the_same_cuts(name):
    _, example, *_, cut = AS_THEY_ARE[name]
    _, _, network = taken(name)
    untrained = network.untrained(0)
    assert untrained.cuts.names == network.cuts.names
    assert untrained.output == network.output
    assert not torch.equal(untrained.upto(cut)(example), network.upto(cut)(example))


def test_a_factory_of_the_users_makes_the_untrained_copy():
    model, _, network = taken("ViT")
    by_factory = Network(model, example=IMAGES, factory=lambda: type(model)(model.config))
    assert by_factory.untrained(0).cuts.names == network.cuts.names


class Several(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.body, self.form = small(), form

    def forward(self, x):
        out = self.body(x)
        return self.form(out)


@each(
    ("form", "output", "factor"),
    [
        (lambda out: {"loss": None, "logits": 2 * out}, None, 2),
        (lambda out: {"aux": out, "main": 3 * out}, "main", 3),
        (lambda out: (out, 4 * out), 1, 4),
    ],
)
def test_one_of_several_outputs_counts(form, output, factor):
    model, x = Several(form).eval(), images(3, 8)
    network = Network(model, example=x, output=output)
    with torch.no_grad():
        assert torch.equal(network(x), factor * model.body(x))
    assert network.untrained(1).output == network.output


@each(
    ("build", "example", "said"),
    [
        (
            lambda: Several(lambda out: {"a": out, "b": 1}),
            images(2, 8),
            r"without logits: it has 'a' \(1, 5\); name one",
        ),
        (lambda: Several(lambda out: (out, out)), images(2, 8), r"is a tuple without logits: it has 0 \(1, 5\), 1 "),
        (
            lambda: make("T5", "ForConditionalGeneration", d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2),
            *(IDS, r"needs decoder ids beside its input: give its encoder, model.get_encoder\(\)"),
        ),
        (
            lambda: make("Bert", "Model", **NARROW, vocab_size=99),
            *(images(2, 8), "takes input_ids, and the example has images"),
        ),
    ],
)
def test_what_cannot_be_called_or_chosen_is_refused(build, example, said):
    with pytest.raises(NetworkError, match=said):
        Network(build().eval(), example=example)


def test_flops_are_counted_where_code_relies_on_the_layout_of_another_kernel():
    kinds = ("Data2VecVision", "Beit")  # one architecture, written twice
    networks = [Network(make(kind, "ForImageClassification", **GRID), example=IMAGES) for kind in kinds]
    one, other = (network.cuts.find("output").flops for network in networks)
    assert one == pytest.approx(other, rel=0.01)


def test_an_encoder_of_a_pair_is_a_network():
    model = make("T5", "ForConditionalGeneration", d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2, vocab_size=99)
    network = Network(model.get_encoder(), example=IDS)
    assert network.output == "last_hidden_state"
    assert len(network.cuts) > 2
