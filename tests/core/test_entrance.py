"""Models of transformers as they are, and models with several outputs: how they are called, and what counts.

Evidence: the model itself, called by hand as its documentation says.
"""

import copy
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch
from torch import nn

from loops import each
from models import images, small
from suture import Network
from suture.common.errors import NetworkError, SutureWarning

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


@pytest.mark.slow
@each("name", AS_THEY_ARE, few=1)
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


@each("name", AS_THEY_ARE, few=1)
def test_its_untrained_copy_is_another_with_the_same_cuts(name):
    _, example, *_, cut = AS_THEY_ARE[name]
    _, _, network = taken(name)
    untrained = network.untrained(0)
    assert untrained.cuts.names == network.cuts.names
    assert untrained.output == network.output
    assert not torch.equal(untrained.upto(cut)(example), network.upto(cut)(example))


@pytest.mark.slow
def test_a_factory_of_the_users_makes_the_untrained_copy():
    model, _, network = taken("ViT")
    by_factory = Network(model, example=IMAGES, factory=lambda: type(model)(model.config))
    assert by_factory.untrained(0).cuts.names == network.cuts.names


@dataclass
class Fields:
    """Outputs of a model, as a dataclass that is not a mapping."""

    logits: torch.Tensor
    hidden: torch.Tensor


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
        (lambda out: Fields(5 * out, out), None, 5),
        (lambda out: Fields(out, 6 * out), "hidden", 6),
    ],
)
def test_one_of_several_outputs_counts(form, output, factor):
    model, x = Several(form).eval(), images(3, 8)
    network = Network(model, example=x, output=output)
    with torch.no_grad():
        assert torch.equal(network(x), factor * model.body(x))
    assert network.untrained(1).output == network.output


def _with_nan(model):
    with torch.no_grad():
        model.pooler.dense.weight[0, 0] = float("nan")
    return model


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
        (
            lambda: make("ViT", "ForImageClassification", **GRID),
            *(IMAGES[:, :1], r"Expected 3 but got 1.*; if it takes other ones, give preprocess=Preprocess\("),
        ),
        (
            lambda: make("Bert", "Model", **NARROW, vocab_size=9),
            *(IDS + 90, r"row \d+ of 'embeddings.word_embeddings.weight' is looked up, which has 9 rows: give smaller"),
        ),
        (
            lambda: _with_nan(make("Bert", "Model", **NARROW, vocab_size=99)),
            *(IDS, "^the weight of module 'pooler.dense' in BertModel is not finite"),
        ),
    ],
)
def test_what_cannot_be_called_or_chosen_is_refused(build, example, said):
    with pytest.raises(NetworkError, match=said):
        Network(build().eval(), example=example)


@pytest.mark.slow
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


#: Models of sound and of series, what makes their input of images (4, 1, 20, 20), its name and that of their output.
MADE = {
    "sound": (
        lambda: make(
            *("Wav2Vec2", "ForSequenceClassification"),
            **NARROW,
            conv_dim=[8, 8],
            conv_kernel=[5, 3],
            conv_stride=[3, 2],
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        ),
        *(lambda x: x.flatten(1), "input_values", "logits"),
    ),
    "series": (
        lambda: make(
            *("PatchTST", "ForClassification"),
            num_input_channels=20,
            context_length=20,
            patch_length=4,
            stride=4,
            d_model=16,
            ffn_dim=32,
            num_attention_heads=4,
            num_hidden_layers=1,
            use_cls_token=True,
        ),
        *(lambda x: x[:, 0], "past_values", "prediction_logits"),
    ),
}


@each("name", MADE)
def test_a_model_of_sound_or_series_is_fed_what_its_preprocessing_makes(name):
    build, makes, given, output = MADE[name]
    model, x = build(), torch.rand(4, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    network = Network(model, example=x, preprocess=makes, output=output)
    with torch.no_grad():
        assert torch.equal(network(x), model(**{given: makes(x)})[output])
    with pytest.raises(NetworkError, match=f"takes {given}, and the example has images.* or preprocess="):
        Network(model, example=x)


class Packed(nn.Module):
    """Answers at the first word, behind torch's own encoder, which may pack padded sequences into nested tensors."""

    def __init__(self, packs):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.words, self.head = nn.Embedding(99, 16), nn.Linear(16, 3)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=packs)

    def forward(self, ids, mask):
        return self.head(self.encoder(self.words(ids), src_key_padding_mask=mask == 0)[:, 0])


class Within(nn.Module):
    """Takes its inputs from a mapping inside a mapping."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = Packed(packs=False)

    def forward(self, batch):
        return self.body(batch["text"]["ids"], batch["text"]["mask"])


MASKED = {"ids": IDS, "mask": (torch.arange(12) < torch.tensor([12, 9, 12, 5])[:, None]).long()}


def test_inputs_may_lie_in_a_mapping_inside_a_mapping():
    model = Within().eval()
    network = Network(model, example={"batch": {"text": MASKED}})
    with torch.no_grad():
        assert torch.equal(network({"batch": {"text": MASKED}}), model({"text": MASKED}))
    assert [one.name for one in network.inputs] == ["batch.text.ids", "batch.text.mask"]
    with pytest.raises(NetworkError, match="takes batch, and the example has text"):
        Network(model, example={"text": MASKED})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_cuts_that_nested_tensors_cost_are_named_with_the_remedy():
    model = Packed(packs=True).eval()
    with pytest.warns(SutureWarning, match="between the layers of 'encoder'.*model.encoder.use_nested_tensor = False"):
        packed = Network(model, example=MASKED)
    assert "encoder.layers.0" not in packed.cuts
    model.encoder.use_nested_tensor = False
    assert "encoder.layers.0" in Network(model, example=MASKED).cuts


class AlignDevicesHook:
    """As accelerate's, which replaces a module's forward pass by one that moves its inputs."""

    def __init__(self, offload):
        self.offload = offload

    def add_to(self, module):
        module._hf_hook, module._old_forward = self, module.forward
        module.forward = partial(self.call, module)

    def call(self, module, *args):
        return module._old_forward(*(one.tolist() and one for one in args))  # which no tracer can follow


def test_hooks_of_accelerate_are_looked_through_or_named():
    model = small()
    wanted = Network(model, example=images(3, 8))
    hooked = copy.deepcopy(model)
    AlignDevicesHook(offload=False).add_to(hooked.conv)
    network = Network(hooked, example=images(3, 8))
    assert network.cuts.names == wanted.cuts.names
    assert torch.equal(network(images(3, 8)), wanted(images(3, 8)))
    assert hasattr(hooked.conv, "_hf_hook"), "the user's model keeps its hook"
    AlignDevicesHook(offload=True).add_to(hooked.conv)
    with pytest.raises(NetworkError, match=r"module 'conv' in .* hook of accelerate .*remove_hook_from_module"):
        Network(hooked, example=images(3, 8))


def test_cuts_that_autocast_costs_are_named_and_the_others_are_exact():
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = self.conv(x).relu()
            return self.head(x.float().mean((2, 3)))

    model, x = Cast().eval(), images(3, 8).float() / 255
    with pytest.warns(SutureWarning, match=r"forward pass of Cast is inside torch\.autocast; .* take autocast out"):
        network = Network(model, example=x)
    assert "conv" not in network.cuts
    with torch.no_grad():
        for cut in network.cuts:
            assert torch.equal(network.after(cut)(network.upto(cut)(x)), model(x))
