"""Suture beside the loops that people write, in turns, in one process with one thread.

    python -m benchmarks matrix A B --data cifar10 --cuts 'layer?.?' --fit-samples 9000 --out front.jsonl
    python -m benchmarks similarity A B --data cifar10 --out similarity.json

Networks are model strings, as on Suture's own command line; without any, two small ones are trained on the digits.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import suture
from benchmarks import matrix, similarity
from suture.common.errors import SutureError
from suture_papers.networks.architectures import convnet
from suture_papers.networks.recipes import DIGITS
from suture_papers.training import train


def networks(texts: Sequence[str], data: suture.Data) -> list[suture.Network]:
    """Load the networks that strings name, or train two small ones."""
    made = []
    for seed, name in enumerate("AB"):
        torch.manual_seed(seed)  # for a string that names no weights
        if texts:
            made.append(suture.load_network(texts[seed], example=data.example, name=name))
        else:
            model = train(lambda: convnet(8), data.fit, DIGITS, seed)
            made.append(suture.Network(model, example=data.example, name=name))
    return made


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(dest="what", required=True)
    for name, module in (("matrix", matrix), ("similarity", similarity)):
        described = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, description=module.__doc__, formatter_class=described)
        command.add_argument("networks", nargs="*", metavar="NETWORK", help="sender and receiver")
        command.add_argument("--data", default="digits", help="digits, a Hugging Face hub id or a local folder")
        command.add_argument("--cuts", nargs="*", help="names or patterns such as 'layer?.?'; by default all")
        command.add_argument("--repeats", type=int, default=3, metavar="N", help="the medians count")
        module.add_arguments(command)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark; return the exit code."""
    given = parser().parse_args(arguments)
    if len(given.networks) not in (0, 2) or given.repeats < 1:
        parser().error("give two networks or none, and at least one repeat")
    try:
        if given.out is not None:
            Path(given.out).parent.mkdir(parents=True, exist_ok=True)
        data = suture.load_data(given.data)
        run = matrix.run if given.what == "matrix" else similarity.run
        return run(given, networks(given.networks, data), data)
    except (SutureError, OSError) as error:
        print(f"{error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
