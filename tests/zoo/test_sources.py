import json
import pickle
import re
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file, save, save_file
from timm.data import create_transform, resolve_data_config
from torch import nn
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

from loops import each
from suture import load_network
from suture.common.errors import CheckpointError, NetworkError, SourceError
from suture.data.preprocess import Preprocess
from suture.runs.store import store
from suture.zoo import Source, parse_source, resolve
from suture.zoo.published import find_place, of_timm
from suture.zoo.sources import EXAMPLES, check_trusted, image_shape, is_random
from suture_papers.networks.architectures import NETWORKS, convnet, preprocess_of

SMALL = "timm:mobilenetv3_small_050"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MODELS = '''
"""A user's file."""
from dataclasses import dataclass
from torch import nn
from suture import zoo
from suture.data.preprocess import Preprocess

LIMIT = 3

@dataclass
class Shape:
    width: "int" = 4

def small(width=4, *, bias=True):
    return nn.Linear(width, Shape().width, bias=bias)

def normalised():
    return nn.Linear(2, 2), Preprocess(size=8, mean=(0.5,))

def calmed(x):
    while x.abs().max() > 10:
        x = x / 2
    return x

class Calmed(nn.Sequential):
    def forward(self, x):
        return self[2](calmed(self[1](self[0](x))))

def staged():
    return Calmed(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 3)), Preprocess(), ["0", "1", ("calmed", calmed), "2"]

def text():
    return "a model"

def pair():
    return nn.Linear(2, 2), 3

def needy(width):
    return nn.Linear(width, width)

def broken(width=2):
    raise RuntimeError("out of wool")

def _hidden():
    return nn.Linear(1, 1)
'''


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("nothing may be downloaded")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


# Reading


@pytest.mark.parametrize(
    ("text", "kind", "name", "arguments", "checkpoint"),
    [
        ("timm:resnet18", "timm", "resnet18", {}, None),
        ("timm:resnet18.a1_in1k", "timm", "resnet18.a1_in1k", {}, None),
        (
            "timm:resnet18,num_classes=10@b.safetensors",
            "timm",
            "resnet18",
            {"num_classes": 10},
            "b.safetensors",
        ),
        ("torchvision:vgg19_bn@a b,c@d'(.pt", "torchvision", "vgg19_bn", {}, "a b,c@d'(.pt"),
        ("zoo:resnet, width = 16, blocks=(1,1,1)", "zoo", "resnet", {"width": 16, "blocks": (1, 1, 1)}, None),
        (
            "zoo:mlp,a=[(1,2),{'k': 'x,y@z'}],b=1e-3",
            "zoo",
            "mlp",
            {"a": [(1, 2), {"k": "x,y@z"}], "b": 1e-3},
            None,
        ),
        (
            "zoo:mlp,a=gelu,b='12',c=None,d=True,e=",
            "zoo",
            "mlp",
            {"a": "gelu", "b": "12", "c": None, "d": True, "e": ""},
            None,
        ),
        ("zoo:mlp,url=a=b", "zoo", "mlp", {"url": "a=b"}, None),
        ("path/to/file.py:make,width=8@w.pt", "file", "path/to/file.py:make", {"width": 8}, "w.pt"),
        ("../a@b, c.d/m.py:Net", "file", "../a@b, c.d/m.py:Net", {}, None),
        ("C:\\m.py:Net,other=n.py:x", "file", "C:\\m.py:Net", {"other": "n.py:x"}, None),
    ],
)
def test_a_model_string_is_read(text, kind, name, arguments, checkpoint):
    assert parse_source(text) == Source(text, kind, name, arguments, checkpoint)


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ("preprocess.size=32", {"size": 32}),
        ("preprocess.size=None,preprocess.channels=3", {"size": None, "channels": 3}),
        ("preprocess.mean=0.5,preprocess.std=2", {"mean": (0.5,), "std": (2,)}),
        ("preprocess.mean=[0.4,0.5,0.6]", {"mean": (0.4, 0.5, 0.6)}),
    ],
)
def test_preprocessing_keys_are_no_arguments(keys, fields):
    source = parse_source(f"zoo:resnet,size=1,{keys},mean=2")
    assert source.preprocess == fields
    assert source.arguments == {"size": 1, "mean": 2}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_example_reads_as_its_kind(kind):
    assert parse_source(EXAMPLES[kind]).kind == kind


@pytest.mark.parametrize("text", ["resnet18", "keras:resnet", "zoo:", "timm:@w.pt", "file.py", "file.py:", ""])
def test_a_string_of_no_kind_is_told_every_kind_with_an_example(text):
    with pytest.raises(SourceError, match=f"no model source {re.escape(repr(text))}; name a model") as caught:
        parse_source(text)
    assert all(example in str(caught.value) for example in EXAMPLES.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zoo:mlp,width", "has the argument 'width'; write key=value, such as width=16"),
        ("zoo:mlp,=3", "has the argument '=3'; write key=value"),
        ("zoo:mlp,", "has the argument ''; write key=value"),
        ("zoo:mlp,a-b=3", "has the argument 'a-b=3'; write key=value"),
        ("zoo:mlp,width=3,width=4", "gives 'width' twice; keep one"),
        ("zoo:mlp,blocks=(1,1@w.pt", "bracket or a quote without its partner; close it"),
        ("zoo:mlp,a='b@w.pt", "bracket or a quote without its partner"),
        ("zoo:mlp,a=1)", "bracket or a quote without its partner"),
        ("zoo:mlp@", "names no checkpoint after its '@'; write a path there"),
        (
            "zoo:mlp,preprocess.crop=3",
            "unexpected keyword argument 'crop'; preprocessing has size, channels, mean and std",
        ),
        ("zoo:mlp,preprocess.size=big", "preprocessing with size='big': give a whole number above 0"),
        ("zoo:mlp,preprocess.channels=0", "preprocessing with channels=0: give a whole number above 0"),
        (
            "zoo:mlp,preprocess.mean=(0.5,x)",
            r"preprocessing with mean=\('\(0.5,x\)',\): give one number, or one for",
        ),
        ("zoo:mlp,preprocess.mean=()", r"preprocessing with mean=\(\): give one number"),
        ("zoo:mlp,preprocess.std=0", "every standard deviation must be above 0"),
        (
            "timm:resnet18,checkpoint_path=w.pt",
            "gives timm the argument 'checkpoint_path'; name the checkpoint after",
        ),
        ("torchvision:resnet18,pretrained=True", "the argument 'pretrained'; ask .* with weights=DEFAULT"),
    ],
)
def test_a_string_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(SourceError, match=message) as caught:
        parse_source(text)
    assert repr(text) in str(caught.value)


# Building


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{SMALL},num_classes=7", lambda: timm.create_model("mobilenetv3_small_050", num_classes=7)),
        (
            "timm:vit_tiny_patch16_224,img_size=32,patch_size=4,depth=1",
            lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=1),
        ),
        ("torchvision:squeezenet1_1,num_classes=3", lambda: torchvision.models.squeezenet1_1(num_classes=3)),
        ("torchvision:resnet18,weights=None", lambda: torchvision.models.resnet18()),
        ("zoo:convnet,width=4,classes=3", lambda: convnet(width=4, classes=3)),
        ("zoo:resnet,width=2,blocks=(1,2)", lambda: NETWORKS["resnet"]((1, 2), width=2)),
    ],
)
@pytest.mark.usefixtures("offline")
def test_a_source_builds_the_model_it_names(text, expected):
    built = resolve(text)
    assert type(built.model) is type(expected())
    assert shapes(built.model) == shapes(expected()) == shapes(built.factory())
    if not text.startswith("zoo:"):
        assert built.preprocess == Preprocess()


CIFAR = Preprocess(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
MNIST = Preprocess(mean=(0.1307,), std=(0.3081,))
HALF = Preprocess(mean=(0.5,), std=(0.5,))


@pytest.mark.parametrize(
    ("text", "image", "preprocess"),
    [
        ("zoo:convnet,width=2", (1, 8, 8), Preprocess()),
        ("zoo:convnet,width=2,channels=3", (3, 8, 8), Preprocess()),
        ("zoo:mlp", (1, 8, 8), Preprocess()),
        ("zoo:mlp,inputs=144", (1, 12, 12), Preprocess()),
        ("zoo:mlp,inputs=784", (1, 28, 28), HALF),
        ("zoo:mlp,inputs=3072", (3, 32, 32), HALF),
        ("zoo:cnn", (3, 32, 32), HALF),
        ("zoo:cnn,dense=5,image=(64,32)", (3, 64, 32), HALF),
        ("zoo:cnn,image=(28,28),channels=1", (1, 28, 28), HALF),
        ("zoo:myrtle,width=4", (3, 32, 32), CIFAR),
        ("zoo:resnet,width=2", (3, 32, 32), CIFAR),
        ("zoo:resnet,width=2,channels=1", (1, 32, 32), MNIST),
        ("zoo:resnet,width=2,channels=2", (2, 32, 32), Preprocess()),
        ("zoo:resnet,width=2,stem=7x7", (3, 28, 28), CIFAR),
        ("zoo:resnet50,width=2,channels=1,stem=7x7", (1, 28, 28), MNIST),
        ("zoo:resnet164,width=8,blocks=1", (3, 32, 32), CIFAR),
        ("zoo:vgg19,width=2,hidden=4,pool=1", (3, 32, 32), replace(CIFAR, size=32)),
        ("zoo:vgg19,width=2,hidden=4,pool=1,channels=1", (1, 32, 32), replace(MNIST, size=32)),
        ("zoo:vit,dim=16,depth=1,heads=2,size=28,channels=1", (1, 28, 28), MNIST),
    ],
)
def test_a_network_of_the_project_knows_its_images_and_how_it_wants_them(text, image, preprocess):
    assert image_shape(parse_source(text)) == image
    built = resolve(text)
    assert built.preprocess == preprocess
    with torch.no_grad():
        assert built.model.eval()(built.preprocess(torch.rand(2, *image))).shape == (2, 10)


def test_every_network_of_the_project_normalises_or_takes_the_digits():
    assert {name for name in NETWORKS if preprocess_of(name, {}) == Preprocess()} == {"convnet", "mlp"}


def test_the_string_has_the_last_word_on_the_preprocessing_of_a_network_of_the_project():
    built = resolve("zoo:vgg19,width=2,hidden=4,pool=1,preprocess.mean=0.5,preprocess.size=None")
    assert built.preprocess == Preprocess(None, None, (0.5,), (0.2470, 0.2435, 0.2616))


def test_a_small_image_is_brought_to_the_size_that_vgg19_needs():
    network = load_network("zoo:vgg19,width=2,hidden=4,pool=1", example=torch.rand(3, 3, 28, 28))
    assert network.image_shape == (3, 28, 28)
    assert network.cuts["features.1"].shape == (2, 32, 32)


@pytest.mark.parametrize("text", ["zoo:mlp,inputs=50", "models.py:net", "zoo:nothing"])
def test_images_that_nobody_can_know_are_asked_for(text):
    with pytest.raises(SourceError, match=f"{text}: only you know the images that it takes; give their shape"):
        image_shape(parse_source(text))


def test_a_file_builds_by_its_factory(models):
    built = resolve(f"{models}:small,width=3,bias=False")
    assert shapes(built.model) == {"weight": (4, 3)} == shapes(built.factory())
    assert built.preprocess == Preprocess()


def test_a_factory_in_a_file_may_name_the_stages_of_what_cannot_be_traced(models):
    made = load_network(f"{models}:staged", example=torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
    assert made.backend == "stages"
    assert made.cuts.names == ("0", "1", "calmed")
    assert made.untrained(0).cuts.names == made.cuts.names


def test_a_file_brings_its_preprocessing_and_the_string_has_the_last_word(models):
    assert resolve(f"{models}:normalised").preprocess == Preprocess(size=8, mean=(0.5,))
    built = resolve(f"{models}:normalised,preprocess.size=16,preprocess.std=0.2")
    assert built.preprocess == Preprocess(size=16, mean=(0.5,), std=(0.2,))


def test_a_file_is_run_once_for_each_content_and_files_of_one_name_do_not_mix(tmp_path, capsys):
    for width, folder in ((1, "a"), (2, "b"), (3, "a")):
        path = tmp_path / folder / "model.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"from torch import nn\nprint('run {width}')\ndef make(): return nn.Linear({width}, 1)")
        built = resolve(f"{path}:make")
        assert built.model.in_features == built.factory().in_features == width
    assert capsys.readouterr().out.split("\n") == ["run 1", "run 2", "run 3", ""]


def test_the_factory_builds_afresh_from_torchs_generator_and_never_the_checkpoint(tmp_path):
    path = tmp_path / "weights.safetensors"
    trained = convnet(width=2)
    save_file(trained.state_dict(), path)
    built = resolve(f"zoo:convnet,width=2@{path}")
    assert torch.equal(built.model.head.weight, trained.head.weight)

    torch.manual_seed(1)
    first, second = built.factory(), built.factory()
    torch.manual_seed(1)
    again = built.factory()
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, trained.head.weight)


@pytest.mark.parametrize("text", [SMALL, "torchvision:squeezenet1_1", "zoo:mlp", "{models}:small"])
def test_the_factory_can_be_sent_to_another_process(text, models, monkeypatch):
    built = resolve(text.format(models=models))
    sent = pickle.dumps(built.factory)
    for name in [name for name in sys.modules if name.startswith("suture_source_")]:
        monkeypatch.delitem(sys.modules, name)
    assert shapes(pickle.loads(sent)()) == shapes(built.model)  # noqa: S301, our own bytes


@pytest.mark.parametrize("form", [str, parse_source])
def test_a_checkpoint_may_be_given_beside_the_source(tmp_path, form):
    path = tmp_path / "weights.safetensors"
    trained = convnet(width=2)
    save_file(trained.state_dict(), path)
    built = resolve(form("zoo:convnet,width=2"), path)
    assert torch.equal(built.model.head.weight, trained.head.weight)
    assert built.name == "weights"  # so two checkpoints of one model are told apart, as on the command line


def test_a_checkpoint_that_does_not_fit_is_an_error_and_so_are_two(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(convnet(width=2).state_dict(), path)
    with pytest.raises(CheckpointError, match="size mismatch for"):
        resolve(f"zoo:convnet,width=3@{path}")
    with pytest.raises(SourceError, match=r"names a checkpoint, and 'other.pt' is given too; keep one"):
        resolve(f"zoo:convnet,width=2@{path}", "other.pt")


@pytest.mark.parametrize(
    ("text", "nearest", "listing"),
    [
        ("timm:resnet18_", "'resnet18'", "timm.list_models"),
        ("timm:resnet18.a1_in2k", "'resnet18.a1_in1k'", "timm.list_models"),
        ("timm:hf-hub:timm/resnet18", "'resnet18", "timm.list_models"),
        ("torchvision:resnet19", "'resnet18'", "torchvision.models.list_models"),
        ("torchvision:fcn_resnet50", "'resnet50'", "torchvision.models.list_models"),
        ("zoo:vgg", "'vgg19'", "zoo:NAME"),
    ],
)
@pytest.mark.usefixtures("offline")
def test_an_unknown_name_is_told_the_nearest(text, nearest, listing):
    kind, _, name = text.partition(":")
    with pytest.raises(
        SourceError, match=f"no model {name!r} in {kind}; nearest: .*{nearest}.*; all [0-9]+: {listing}"
    ):
        resolve(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{SMALL},num_clases=10",
            "unexpected keyword argument 'num_clases'.*; .*it takes pretrained",
        ),
        (
            "torchvision:resnet18,num_clases=10",
            "unexpected keyword argument 'num_clases'.*; .*it takes .*weights",
        ),
        ("timm:efficientvit_b0,wdth=1", r"unexpected keyword argument 'wdth'.*; .*it takes pretrained.*, \*\*kwargs"),
        ("torchvision:resnet18,weights=V9", "no weights 'V9'; resnet18 has 'IMAGENET1K_V1', 'DEFAULT'"),
        ("torchvision:resnet18,weights=True", "no weights True; resnet18 has 'IMAGENET1K_V1', 'DEFAULT'"),
        ("zoo:mlp,wdth=3", "mlp.* unexpected keyword argument 'wdth'.*; .*it takes width: int = 64, depth: int = 4"),
        ("zoo:resnet,blocks=()", r"resnet raised NetworkError: resnet cannot have blocks=\(\)"),
        (
            "{models}:absent",
            "models.py has no callable 'absent'; its callables: 'Shape', 'small', 'normalised', 'calmed'",
        ),
        ("{models}:LIMIT", "has no callable 'LIMIT'; its callables: .*'broken'$"),
        ("{models}:small,wdth=3", "small.* unexpected keyword argument 'wdth'.*; .*it takes width=4, bias=True"),
        (
            "{models}:needy",
            "raised TypeError: .*missing 1 required .*'width'; correct its arguments.* takes width",
        ),
        ("{models}:broken", "broken raised RuntimeError: out of wool; correct its arguments, or the factory"),
        ("{models}:text", "text returned 'a model'; it must return an nn.Module, alone, with its Preprocess, or with"),
        ("{models}:pair", r"pair returned \(Linear.*; it must return an nn.Module"),
        ("nowhere/models.py:small", "no file nowhere.models.py; give its path, from"),
    ],
)
def test_what_cannot_be_built_is_told_with_its_remedy(text, message, models):
    text = text.format(models=models)
    with pytest.raises(SourceError, match=message) as caught:
        resolve(text)
    assert repr(text) in str(caught.value)


def test_what_a_factory_or_a_file_raised_is_the_cause(models, tmp_path):
    with pytest.raises(SourceError) as caught:
        resolve(f"{models}:broken")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(SourceError) as caught:
        resolve("zoo:resnet,blocks=3")
    assert isinstance(caught.value.__cause__, NetworkError)

    (tmp_path / "bad.py").write_text("import no_such_module_anywhere")
    for _ in range(2):  # a failed file is not kept
        with pytest.raises(SourceError, match=r"running .*bad.py raised ModuleNotFoundError: .*; correct") as caught:
            resolve(f"{tmp_path / 'bad.py'}:make")
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("code", ["0", "'bad config'"])
def test_code_that_ends_the_program_does_not(code, tmp_path):
    (tmp_path / "ends.py").write_text(f"import sys\nsys.exit({code})")
    with pytest.raises(SourceError, match=r"running .*ends.py raised SystemExit: .*; correct the file"):
        resolve(f"{tmp_path / 'ends.py'}:make")
    (tmp_path / "later.py").write_text(f"import sys\ndef make(): sys.exit({code})")
    with pytest.raises(SourceError, match=r"make raised SystemExit: .*; correct its arguments, or the factory"):
        resolve(f"{tmp_path / 'later.py'}:make")


# Pretrained weights, from files or fakes instead of the network


@pytest.mark.usefixtures("offline")
def test_timms_pretrained_weights_bring_their_preprocessing_but_the_factory_is_untrained(tmp_path):
    published = timm.create_model("mobilenetv3_small_050")
    save_file(published.state_dict(), tmp_path / "published.safetensors")
    overlay = f"pretrained_cfg_overlay={{'file': '{tmp_path / 'published.safetensors'}'}}"
    built = resolve(f"{SMALL},pretrained=True,{overlay}")
    assert torch.equal(built.model.conv_stem.weight, published.conv_stem.weight)
    assert not torch.equal(built.factory().conv_stem.weight, published.conv_stem.weight)
    pictures, on_pictures = pil_images(), create_transform(**resolve_data_config(model=published))
    wanted = torch.stack([on_pictures(picture) for picture in pictures])
    assert (built.preprocess(as_tensor(pictures)) - wanted).abs().max() < OF_ONE_STEP
    assert resolve(f"{SMALL},pretrained=True,{overlay},preprocess.size=64").preprocess == Preprocess(
        64, 3, IMAGENET_MEAN, IMAGENET_STD
    )
    assert resolve(f"{SMALL},pretrained=False,{overlay}").preprocess == Preprocess()


def test_timms_pretrained_weights_for_grey_images_take_grey_images():
    model = timm.create_model("mobilenetv3_small_050", in_chans=1).eval()
    grey = of_timm(model, {"in_chans": 1})(torch.rand(2, 1, 224, 224))
    assert grey.shape == (2, 1, 224, 224)
    with torch.no_grad():
        assert model(grey).isfinite().all()


def test_torchvisions_pretrained_weights_bring_their_preprocessing_but_the_factory_is_untrained(monkeypatch):
    model = torchvision.models.squeezenet1_1()
    download = "torchvision.models._api.load_state_dict_from_url"
    monkeypatch.setattr(download, lambda *args, **options: model.state_dict())
    built = resolve("torchvision:squeezenet1_1,weights=DEFAULT,preprocess.size=32")
    assert torch.equal(built.model.features[0].weight, model.features[0].weight)
    assert not torch.equal(built.factory().features[0].weight, model.features[0].weight)
    assert built.preprocess == Preprocess(32, 3, IMAGENET_MEAN, IMAGENET_STD)
    again = resolve("torchvision:squeezenet1_1,weights=SqueezeNet1_1_Weights.IMAGENET1K_V1")
    on_pictures = torchvision.models.SqueezeNet1_1_Weights.IMAGENET1K_V1.transforms()
    pictures = pil_images()
    wanted = torch.stack([on_pictures(picture) for picture in pictures])
    assert (again.preprocess(as_tensor(pictures)) - wanted).abs().max() < OF_ONE_STEP
    assert pickle.loads(pickle.dumps(again.preprocess)) == again.preprocess  # noqa: S301, our own bytes


OF_ONE_STEP = 4 / 255 / 0.225  #: libraries resize pictures in whole steps of 1/255 and tensors without


def pil_images():
    """Smooth pictures, wider than high, so that resizing and cropping matter."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 260), torch.linspace(0, 1, 300), indexing="ij")
    waves = [torch.stack([(3 * x + k).sin(), (4 * y - k).cos(), (x + y + k).sin()]) for k in (0, 1)]
    return [to_pil_image(((wave + 1) / 2 * 255).round().to(torch.uint8)) for wave in waves]


def as_tensor(pictures):
    return torch.stack([pil_to_tensor(picture) for picture in pictures]).float() / 255


# --- Hugging Face -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("hub") / "tiny-vit"
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=3)
    model = transformers.ViTForImageClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_a_folder_in_the_hubs_layout_is_a_network_with_its_own_preprocessing(hub_folder):
    transformers = pytest.importorskip("transformers")
    model = transformers.ViTForImageClassification.from_pretrained(hub_folder).eval()
    pictures = pil_images()
    network = load_network(f"hf:{hub_folder}", example=as_tensor(pictures))
    assert network.name == "tiny-vit"
    assert network.output == "logits"
    wanted = transformers.AutoImageProcessor.from_pretrained(hub_folder)(pictures, return_tensors="pt")
    assert (network.preprocess(as_tensor(pictures)) - wanted["pixel_values"]).abs().max() < OF_ONE_STEP
    with torch.no_grad():
        prepared = network.preprocess(as_tensor(pictures))
        assert torch.equal(network(as_tensor(pictures)), model(prepared).logits)
    untrained = network.untrained(0)
    name = "vit.layers.0"
    assert untrained.cuts.names == network.cuts.names
    assert not torch.equal(untrained.upto(name)(as_tensor(pictures)), network.upto(name)(as_tensor(pictures)))
    assert image_shape(parse_source(f"hf:{hub_folder}")) == (3, 16, 16)


@each("name", ["./nothing", "/no/such/folder", "~/nothing", "a/b/c", "../x"])
def test_a_path_without_a_folder_is_not_asked_for_on_the_hub(name, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(
        transformers.utils, "find_adapter_config_file", lambda *_, **__: pytest.fail("it was asked for")
    )
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_, **__: pytest.fail("it was asked for"))
    for ask in (resolve, lambda text: image_shape(parse_source(text))):
        with pytest.raises(SourceError, match=rf"hf:{re.escape(name)}: there is no such folder"):
            ask(f"hf:{name}")
    assert find_place("owner/name") == "owner/name"
    assert find_place("gpt2") == "gpt2"


@pytest.mark.usefixtures("offline")
def test_pictures_are_not_given_to_a_model_that_does_not_say_how(hub_folder, tmp_path):
    folder = shutil.copytree(hub_folder, tmp_path / "bare")
    written = (folder / "preprocessor_config.json").read_text()
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(SourceError, match=r"bare reads images, and its preprocessing is not known .* preprocess.mean="):
        resolve(f"hf:{folder}")
    assert resolve(f"hf:{folder},preprocess.mean=0.0").preprocess == Preprocess()
    (folder / "preprocessor_config.json").write_text(written.replace("ViTImageProcessor", "NoSuchProcessor"))
    with pytest.raises(SourceError, match="reads images"):
        resolve(f"hf:{folder}")


@pytest.mark.usefixtures("offline")
def test_what_a_processor_does_not_do_is_not_taken_over(hub_folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(hub_folder, tmp_path / "other")
    size = {"height": 16, "width": 16}
    unlike = {"do_normalize": False, "do_center_crop": False, "crop_size": {"height": 9, "width": 9}}
    transformers.ViTImageProcessor(size=size, **unlike).save_pretrained(folder)
    assert resolve(f"hf:{folder},preprocess.std=0.5").preprocess == Preprocess(16, 3, std=(0.5,))
    transformers.MobileViTImageProcessor(size={"shortest_edge": 16}, crop_size=size).save_pretrained(folder)
    assert resolve(f"hf:{folder}").preprocess.library == "transformers"
    with pytest.raises(SourceError, match="reverses the order of channels"):
        resolve(f"hf:{folder},preprocess.size=8")


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_a_table_of_angles_that_a_librarys_factory_makes_is_no_trained_weight(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "vocab_size": 9, "max_position_embeddings": 12}
    config = transformers.DistilBertConfig(**sizes, sinusoidal_pos_embds=True)
    model = transformers.DistilBertForSequenceClassification(config)
    model.save_pretrained(tmp_path)
    network = load_network(f"hf:{tmp_path}", example=torch.randint(0, 9, (3, 12)))
    untrained, embeddings = network.untrained(0)._model.model, model.distilbert.embeddings
    assert torch.equal(
        untrained.distilbert.embeddings.position_embeddings.weight, embeddings.position_embeddings.weight
    )
    assert not torch.equal(untrained.distilbert.embeddings.word_embeddings.weight, embeddings.word_embeddings.weight)


@pytest.mark.usefixtures("offline")
def test_the_hub_gives_safetensors_alone_and_no_code(hub_folder, tmp_path):
    folder = shutil.copytree(hub_folder, tmp_path / "pickled")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match=r"model\.safetensors"):
        resolve(f"hf:{folder}")
    built = resolve(f"hf:{folder},pretrained=False")
    assert built.preprocess == Preprocess()
    assert is_random(parse_source(f"hf:{folder},pretrained=False"))
    with pytest.raises(SourceError, match="has no nonsense"):
        resolve(f"hf:{hub_folder},nonsense=3")


@pytest.mark.usefixtures("offline")
def test_an_adapter_is_no_model(hub_folder, tmp_path):
    """peft's adapters lie alone, or beside their base, where transformers heeds them only if peft is installed."""
    said = r"is an adapter of peft, .*; merge it where it was trained, model\.merge_and_unload\(\)\.save_pretrained"
    alone, beside = tmp_path / "alone", shutil.copytree(hub_folder, tmp_path / "beside")
    alone.mkdir()
    described = {"peft_type": "LORA", "base_model_name_or_path": str(hub_folder), "r": 2, "target_modules": ["query"]}
    changes = {"base_model.model.vit.layers.0.attention.query.lora_A.weight": torch.zeros(2, 16)}
    for folder in (alone, beside):
        (folder / "adapter_config.json").write_text(json.dumps(described))
        save_file(changes, folder / "adapter_model.safetensors")
        for text in (f"hf:{folder}", f"hf:{folder},pretrained=False"):
            with pytest.raises(SourceError, match=rf"^hf:{folder} {said}"):
                load_network(text, example=as_tensor(pil_images()))
    with pytest.raises(CheckpointError, match=rf"adapter_model\.safetensors {said}"):
        resolve(f"hf:{hub_folder},pretrained=False@{alone / 'adapter_model.safetensors'}")


@pytest.mark.usefixtures("offline")
@each(
    ("key", "value", "taken"),
    [
        ("attn_implementation", "someone/kernel", False),
        ("_attn_implementation", "flash_attention_2", False),
        ("attn_implementation", {"": "eager", "vision_config": "someone/kernel:1"}, False),
        ("_experts_implementation", "someone/experts", False),
        ("attn_implementation", "eager", True),
        ("_attn_implementation", None, True),
    ],
)
def test_a_config_names_no_code_to_fetch(hub_folder, tmp_path, key, value, taken):
    """transformers fetches kernels from the hub by the name that a config gives, and runs them."""
    folder = tmp_path / f"{key}-{str(value)[:4].strip('{')}-{taken}"
    shutil.copytree(hub_folder, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    if taken:
        assert resolve(f"hf:{folder}").model is not None
    else:
        with pytest.raises(SourceError, match=rf"^hf:{folder}: its config names {key}=.* fetch code and run it"):
            resolve(f"hf:{folder}")


@pytest.mark.usefixtures("offline")
def test_an_index_of_the_hubs_layout_names_files_beside_it_alone(hub_folder, tmp_path):
    folder = shutil.copytree(hub_folder, tmp_path / "sharded")
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    names = load_file(tmp_path / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../elsewhere.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"names '\.\./elsewhere\.safetensors', which is not a .* file beside it"):
        resolve(f"hf:{folder}")


def test_the_revision_is_part_of_the_source(hub_folder, monkeypatch):
    transformers = pytest.importorskip("transformers")
    asked = []
    original = transformers.AutoConfig.from_pretrained

    def pinned(name, *, revision, **settings):
        asked.append(revision)
        config, unused = original(name, **settings)
        config._commit_hash = "c0ffee"
        return config, unused

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", pinned)
    built = resolve(f"hf:{hub_folder}")
    assert built.source == f"hf:{hub_folder},revision=c0ffee"
    assert resolve(f"hf:{hub_folder},revision=v1").source == built.source
    built.factory()
    assert asked == ["main", "v1", "c0ffee"]


# --- modules, and files with siblings ---------------------------------------------------------------------------------


def test_files_import_their_siblings_each_its_own(tmp_path):
    for folder, width in (("one", 1), ("two", 2)):
        path = tmp_path / folder / "model.py"
        path.parent.mkdir()
        (path.parent / "widths_beside.py").write_text(f"width = {width}")
        path.write_text(
            "from torch import nn\nfrom widths_beside import width\n"
            "def make():\n    import widths_beside\n    return nn.Linear(width, widths_beside.width)"
        )
        built = resolve(f"{path}:make")
        assert (built.model.in_features, built.model.out_features) == (width, width)


def test_a_module_that_can_be_imported_builds_by_its_factory(tmp_path, monkeypatch):
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "models.py").write_text(
        "from torch import nn\nfrom . import widths\ndef make(width=2): return nn.Linear(width, widths.out)"
    )
    (tmp_path / "some_package" / "widths.py").write_text("out = 5")
    monkeypatch.syspath_prepend(tmp_path)
    built = resolve("some_package.models:make,width=7")
    assert (built.model.in_features, built.model.out_features) == (7, 5)
    assert not is_random(parse_source("some_package.models:make"))
    with pytest.raises(SourceError, match=r"no callable 'mak'; its callables: 'make'"):
        resolve("some_package.models:mak")
    with pytest.raises(SourceError, match=r"importing no_package.models raised ModuleNotFoundError"):
        resolve("no_package.models:make")
    text = "some_package.models:make"
    with pytest.raises(SourceError, match=r"would run the module some_package.models, .* or say trust=True"):
        check_trusted("folder", parse_source(text))
    assert check_trusted("folder", parse_source(text), {text}).kind == "module"


# --- what a stranger's description may name ---------------------------------------------------------------------------


def card(folder, source, model):
    """A folder as of a trained network, with whatever source."""
    folder.mkdir()
    for name, content in store.contents(
        store.NETWORKS, {"source": source, "status": "ok"}, save(model.state_dict())
    ).items():
        (folder / name).write_bytes(content)
    return str(folder)


class Unpickled:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_a_folders_card_names_plain_arguments_alone(tmp_path, monkeypatch):
    """Whatever a library's factory would do with the others: read a file, unpickle it, fetch what it is told to."""
    model, marker = timm.create_model("test_vit", num_classes=3), tmp_path / "ran"
    torch.save({"state_dict": Unpickled(marker)}, tmp_path / "evil.pth")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("something was fetched"))
    for i, (source, said) in enumerate(
        (
            (f"timm:test_vit,num_classes=3,cache_dir={tmp_path}", "gives timm the argument cache_dir="),
            ("timm:test_vit,num_classes=3,embed_layer=os", "gives timm the argument embed_layer='os'"),
            ("timm:test_vit,num_classes=3,global_pool='a/b'", "gives timm the argument global_pool='a/b'"),
            ("timm:test_vit,num_classes={'a':1}", "gives timm the argument num_classes="),
            ("torchvision:resnet18,weights=DEFAULT", "gives torchvision the argument weights='DEFAULT'"),
            ("hf:someone/model", "names hf:someone/model"),
        )
    ):
        text = card(tmp_path / str(i), source, model)
        with pytest.raises(SourceError, match=f"the card of .* {re.escape(said)}.*or say trust=True"):
            resolve(text)
        assert parse_source(text, trust=True).checkpoint
    config = "timm:test_vit,pretrained=True,pretrained_cfg_overlay={'file':'evil.pth'}"
    with pytest.raises(SourceError, match="gives timm the argument pretrained_cfg_overlay="):
        check_trusted(config, parse_source(config), {"--config", "settings.yaml"})
    for text in (config, "torchvision:resnet18,weights=DEFAULT", "timm:test_vit,pretrained=True"):
        assert check_trusted(text, parse_source(text), {text if text == config else "--config"}).text == text
    text = card(tmp_path / "fine", "timm:test_vit.r160_in1k,pretrained=True,num_classes=3,drop_path_rate=0.1", model)
    assert resolve(text).preprocess == of_timm(model, {}), "nothing is fetched, and images are prepared as it says"
    assert not marker.exists()


def test_a_hub_style_config_names_plain_arguments_alone(tmp_path):
    """transformers gives timm what the config of a ``TimmWrapper`` says, a file to unpickle included."""
    pytest.importorskip("transformers")
    marker = tmp_path / "ran"
    torch.save({"state_dict": Unpickled(marker)}, tmp_path / "evil.pth")
    base = {"model_type": "timm_wrapper", "architectures": ["TimmWrapperForImageClassification"], "num_classes": 3}
    for said, more in (
        (
            "checkpoint_path",
            {"architecture": "test_vit", "model_args": {"checkpoint_path": str(tmp_path / "evil.pth")}},
        ),
        ("architecture='hf-hub:evil/one'", {"architecture": "hf-hub:evil/one"}),
        ("use_pretrained_backbone", {"architecture": "test_vit", "inside": {"use_pretrained_backbone": True}}),
        (
            "backbone_kwargs|pretrained_cfg",
            {"backbone_kwargs": {"pretrained_cfg": {"file": "x"}}, "architecture": "vgg11"},
        ),
    ):
        (tmp_path / "config.json").write_text(json.dumps(base | more))
        for text in (f"hf:{tmp_path}", f"hf:{tmp_path},pretrained=False"):
            with pytest.raises(SourceError, match=said):
                resolve(text)
    (tmp_path / "config.json").write_text(json.dumps(base | {"architecture": "test_vit", "model_args": {"depth": 1}}))
    assert resolve(f"hf:{tmp_path},pretrained=False").model is not None
    assert not marker.exists()
