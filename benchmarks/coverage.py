"""Which networks of transformers, timm and torchvision can be cut and made untrained, as their libraries build them.

    python benchmarks/coverage.py benchmarks/results/coverage.jsonl docs/coverage.md

Every architecture is built small if that can be said, with random weights and noise on all that a training changes; it
becomes a ``Network`` without a factory, and then an untrained one, in which no tensor of a state dict may be what it
was. A row is written for each, those that are there are not tried again, and the page is made of all. About twenty
minutes of one core; each model has its own process and five minutes.
"""

import argparse
import csv
import io
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn

import suture

LIMIT = 300.0  #: seconds for one model
TOKENS = 16

_BERT_LIKE = (
    "Bert Roberta Electra Albert XLMRoberta Camembert Ernie MPNet ConvBert FNet ModernBert Nystromformer RemBert "
    "RoFormer Deberta DebertaV2 MobileBert SqueezeBert BigBird Longformer Data2VecText Mra Yoso Funnel DistilBert "
    "XLNet Esm Bart"
)
_DECODERS = (
    "GPT2 GPTNeo GPTNeoX GPTJ OPT Bloom Llama Mistral Mixtral Qwen2 Qwen3 Qwen2Moe Gemma Gemma2 Phi Phi3 Falcon "
    "StableLm Starcoder2 Olmo Olmo2 Cohere Granite XGLM CodeGen CTRL Mpt BioGpt Persimmon Mamba Mamba2 Rwkv"
)
_VISION = (
    "ViT DeiT Beit Swin Swinv2 ConvNext ConvNextV2 Dinov2 Dinov2WithRegisters ViTMSN Hiera PvtV2 Segformer "
    "PoolFormer Levit MobileViT MobileViTV2 MobileNetV1 MobileNetV2 EfficientNet ResNet RegNet Bit FocalNet Cvt "
    "SwiftFormer ImageGPT Data2VecVision"
)
_OTHERS = (
    "CLIPVisionModel SiglipVisionModel ViTMAEModel DINOv3ViTModel T5EncoderModel T5ForConditionalGeneration CLIPModel"
)

#: Small values of what configs call their sizes; those that are lists keep their length.
_SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads", "attention_heads"), 2
    ),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_kv_heads"), 2),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "hidden_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 64
    ),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "d_inner", "dff", "ffn_hidden_size"), 64
    ),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_hidden_size"), 16),
    "vocab_size": 99,
    "rotary_dim": 8,
    "num_labels": 5,
    "pad_token_id": 0,
    "image_size": 64,
    "bottleneck_size": 32,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_positions": 64,
}
#: Where the small values do not go together.
_OWN: dict[str, dict[str, Any]] = {
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "Albert": {"embedding_size": 16},
    "MobileBert": {"true_hidden_size": 32, "intra_bottleneck_size": 32, "embedding_size": 32},
    "Mamba2": {"num_heads": 4, "head_dim": 16, "expand": 2, "n_groups": 1, "state_size": 8},
    "Funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1, "d_inner": 64},
    "SqueezeBert": {"q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1, "intermediate_groups": 1},
    "ImageGPT": {"image_size": 8, "vocab_size": 513, "n_positions": 64},
    "CodeGen": {"n_head": 4, "rotary_dim": 4},
    "Phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
_FULL = {"Swin", "Swinv2", "Levit", "Hiera", "MobileViT", "MobileViTV2", "SwiftFormer", "Cvt", "FocalNet", "Bit"}
_FULL |= {
    "PvtV2",
    "Segformer",
    "PoolFormer",
    "EfficientNet",
    "MobileNetV1",
    "MobileNetV2",
    "ResNet",
    "RegNet",
    "ConvNext",
}
_FULL |= {"ConvNextV2"}  # of several stages, whose sizes are lists; these are built as they are by default

_TIMM = (
    "test_vit test_efficientnet test_byobnet test_mambaout mobileone_s1 poolformer_s12 cait_xxs24_224 "
    "coatnet_nano_cc_224 convit_tiny convmixer_768_32 convnext_atto cs3darknet_focus_s davit_tiny "
    "deit_tiny_patch16_224 densenet121 dla46x_c nf_ecaresnet26 ese_vovnet19b_slim_dw edgenext_xx_small "
    "efficientformerv2_s0 efficientnet_b0 efficientvim_m1 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224 "
    "fasternet_t0 fastvit_t8 lcnet_035 focalnet_tiny_srf ghostnet_050 gmlp_ti16_224 mixer_s32_224 hiera_tiny_224 "
    "hrnet_w18_small inception_next_atto legacy_seresnet18 levit_128s mobilevit_xxs mobilenetv3_small_050 "
    "mvitv2_tiny nextvit_small pit_ti_224 pvt_v2_b0 regnetx_002 repghostnet_050 repvit_m1 res2net50_14w_8s "
    "resnest14d resnetv2_18 rexnet_100 shvit_s1 skresnet18 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 "
    "swinv2_tiny_window8_256 test_vit_relpos tiny_vit_5m_224 tnt_s_legacy_patch16_224 twins_svt_small "
    "visformer_tiny vit_tiny_patch16_224 xcit_nano_12_p16_224"
)
_TORCHVISION = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 "
    "mobilenet_v2 mobilenet_v3_small regnet_y_400mf resnet18 resnext50_32x4d wide_resnet50_2 shufflenet_v2_x0_5 "
    "squeezenet1_1 swin_t swin_v2_t vgg11 vgg11_bn vit_b_32"
)

Made = tuple[nn.Module, list[Tensor]]
"""A model, with examples of which it takes the first that it can."""


def models() -> Iterator[tuple[str, str, Callable[[], Made]]]:
    """Yield library, name and builder of every model that is tried."""
    for head, kinds in (
        ("ForSequenceClassification", _BERT_LIKE),
        ("ForCausalLM", _DECODERS),
        ("ForImageClassification", _VISION),
    ):
        for kind in kinds.split():
            yield "transformers", f"{kind}{head}", lambda kind=kind, head=head: _of_transformers(kind, head)
    for name in _OTHERS.split():
        kind, head = next(
            (name.removesuffix(end), end)
            for end in ("EncoderModel", "ForConditionalGeneration", "Model")
            if name.endswith(end)
        )
        yield "transformers", name, lambda kind=kind, head=head: _of_transformers(kind, head)
    for name in _TIMM.split():
        yield "timm", name, lambda name=name: _of_timm(name)
    for name in _TORCHVISION.split():
        yield "torchvision", name, lambda name=name: _of_torchvision(name)


def _of_transformers(kind: str, head: str) -> Made:
    import transformers

    of = getattr(transformers, f"{kind}Config")
    default = of().to_dict()
    small = {} if kind in _FULL else {key: value for key, value in _SMALL.items() if key in default}
    small = {key: value for key, value in small.items() if not isinstance(default[key], list | tuple)}
    patches = {"patch_size": 8} if isinstance(default.get("patch_size"), int) and kind not in _FULL else {}
    config = of(**small | patches | _OWN.get(kind, {}))
    names = (f"{kind}{head}", f"{kind}LMHeadModel", f"{kind}Model")
    model = getattr(transformers, next(name for name in names if hasattr(transformers, name)))(config)
    side = getattr(config, "image_size", 64)
    side = side if isinstance(side, int) else side[0]
    return model, _images(64, side) if "pixel_values" in model.main_input_name else [torch.randint(3, 99, (3, TOKENS))]


def _of_timm(name: str) -> Made:
    model = timm.create_model(name, num_classes=5)
    return model, _images(64, model.pretrained_cfg["input_size"][-1])


def _of_torchvision(name: str) -> Made:
    model = torchvision.models.get_model(name, weights=None, num_classes=5)
    return model, _images(64, 299 if name == "inception_v3" else 224)


def _images(*sides: int) -> list[Tensor]:
    return [torch.randint(0, 256, (3, 3, side, side), dtype=torch.uint8) for side in sides]


def try_model(build: Callable[[], Made]) -> dict[str, Any]:
    """Return the outcome of cutting a model and making it untrained."""
    torch.manual_seed(0)
    model, examples = build()
    model.eval()
    with torch.no_grad():
        for tensor in dict(model.state_dict()).values():
            if tensor.is_floating_point():
                tensor.add_((torch.rand(tensor.shape) - 0.5) / 50)
    row: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    began = time.perf_counter()
    try:
        network = _first_that_runs(model, examples)
    except suture.errors.SutureError as error:
        return row | {"seconds": round(time.perf_counter() - began, 1), "error": str(error)}
    row |= {"cuts": len(network.cuts), "how": network.backend, "seconds": round(time.perf_counter() - began, 1)}
    row |= {"input": "×".join(map(str, network.image_shape)), "output": network.output}
    if examples[-1].dtype == torch.int64:
        row["masked"] = _count_masked(model, examples[-1])
    try:
        untrained = network.untrained(0)
    except suture.errors.SutureError as error:
        return row | {"untrained": str(error)}
    new, saved = (
        dict(untrained._model.named_parameters()) | dict(untrained._model.named_buffers()),
        network._model.state_dict(),
    )
    kept = [
        n for n, t in saved.items() if t.is_floating_point() and t.numel() > 1 and n in new and torch.equal(new[n], t)
    ]
    return row | {"untrained": f"keeps {', '.join(kept)}" if kept else "drawn"}


def _count_masked(model: nn.Module, ids: Tensor) -> int | str:
    """Return the number of cuts if the ends of two texts are masked, or why there are none."""
    mask = torch.ones_like(ids)
    mask[1, -3:], mask[2, -9:] = 0, 0
    try:
        return len(suture.Network(model, example={"input_ids": ids, "attention_mask": mask}).cuts)
    except suture.errors.SutureError as error:
        return str(error)


def _first_that_runs(model: nn.Module, examples: list[Tensor]) -> suture.Network:
    for example in examples[:-1]:
        try:
            with torch.no_grad():
                model(example / 255)
        except Exception:  # of another size, or the library would say so
            continue
        return suture.Network(model, example=example)
    return suture.Network(model, example=examples[-1])


def _try_apart(build: Callable[[], Made]) -> dict[str, Any]:
    """Return the outcome for a model, tried in a process of its own."""
    here, there = multiprocessing.Pipe()

    def work() -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        try:
            here.send(try_model(build))
        except Exception as error:  # a library may fail at building it
            here.send({"error": f"{type(error).__name__}: {error}"})

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    try:
        return there.recv() if there.poll(LIMIT) else {"error": f"took more than {LIMIT:g} seconds"}
    except EOFError:
        return {"error": "ended its process"}
    finally:
        process.kill()
        process.join()


# --- the page ---------------------------------------------------------------------------------------------------------

_HEAD = """# Coverage

These architectures were cut and made untrained as their libraries build them, without a wrapper, a factory or named
stages. Versions: timm {timm}, torchvision {torchvision}, transformers {transformers}. All weights are random. Models of
transformers are small where their config has one size.

| library | tried | cut | made untrained |
| --- | ---: | ---: | ---: |
{counts}

*Made untrained* means that the library's own initialisers drew every tensor of a checkpoint anew, which the controls
need. A model that is not listed may still work: `suture cuts MODEL` tries it.

`benchmarks/results/coverage.csv` has a row for each model: parameters, input, number of cuts, the number with a padding
mask, how the cuts were found, which output counts, and seconds on one core.
"""

_COLUMNS = (
    "library",
    "model",
    "version",
    "parameters",
    "input",
    "cuts",
    "masked",
    "how",
    "output",
    "seconds",
    "untrained",
    "error",
)


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page: how many are covered, their names, and why the others are not."""
    counts, lists, refused = [], "", ""
    for library in ("transformers", "timm", "torchvision"):
        those = [row for row in rows if row["library"] == library]
        good = [row for row in those if "cuts" in row]
        drawn = sum(row["untrained"] == "drawn" for row in good)
        counts.append(f"| {library} | {len(those)} | {len(good)} | {drawn} |")
        names = ", ".join(f"`{row['model']}`" for row in good)
        summary = f"<summary>The {len(good)} models of {library}</summary>"
        lists += f'\n<details markdown="1">\n{summary}\n\n{names}\n\n</details>\n'
        for row in those:
            why = row.get("error") or row["untrained"]
            if why != "drawn":
                refused += f"| {row['model']} | {' '.join(why.split()).replace('|', '/')} |\n"
    head = _HEAD.format(counts="\n".join(counts), **{row["library"]: row["version"] for row in rows})
    return f"{head}{lists}\n| not possible | Suture's message |\n| --- | --- |\n{refused}"


def sheet(rows: list[dict[str, Any]]) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def main() -> int:
    """Try the models that were not tried yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="a file of rows, which is added to")
    parser.add_argument("page", type=Path, help="the page that is made of them")
    parser.add_argument("--again", action="store_true", help="try again what was not possible")
    given = parser.parse_args()
    lines = given.rows.read_text(encoding="utf-8").splitlines() if given.rows.exists() else []
    done = {(row["library"], row["model"]): row for row in map(json.loads, lines)}
    done = {key: row for key, row in done.items() if row.get("input") != str(TOKENS) or "masked" in row}
    if given.again:
        done = {key: row for key, row in done.items() if row.get("untrained") == "drawn"}
    rows = []
    for library, name, build in models():
        row = done.get((library, name)) or {
            "library": library,
            "model": name,
            "version": version(library).partition("+")[0],
            **_try_apart(build),
        }
        rows.append(row)
        said = f"{row['cuts']} cuts by {row['how']}, {row['untrained']}" if "cuts" in row else row["error"]
        print(f"{library} {name}: {said} ({row.get('seconds', '–')} s)", file=sys.stderr, flush=True)
        rest = [one for key, one in done.items() if key not in {(r["library"], r["model"]) for r in rows}]
        given.rows.write_text("".join(f"{json.dumps(one)}\n" for one in (*rows, *rest)), encoding="utf-8")
    given.page.write_text(page(rows), encoding="utf-8")
    given.rows.with_suffix(".csv").write_text(sheet(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
