"""Random networks with skips, drawn as programs whose meaning the strategy itself knows.

A program is a list of steps on values of one shape, (n, 2, 4, 4). Value 0 is the input, value i the result of step i,
and the output is a head on the last value. ``meaning`` is the graph of what depends on what, built from the steps
alone: a step in place makes a new version of the tensor that it writes to, and whoever reads any name of that tensor
later reads the new version. Sizes and parameters are read too, but no data passes there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import torch
from hypothesis import strategies as st
from torch import Tensor, nn


class Step(nn.Module):
    """One step: a function of the values that it reads, with a parameter that it may use."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2, 1, 1))
        self.function = function

    def forward(self, *values: Tensor) -> Tensor:
        return self.function(self.shift, *values)


PURE: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "conv": (1, lambda: nn.Conv2d(2, 2, 1)),
    "norm": (1, lambda: nn.BatchNorm2d(2)),
    "relu": (1, nn.ReLU),
    "shift": (1, lambda: Step(lambda p, a: a + p.expand(a.shape[0], -1, -1, -1))),
    "add": (2, lambda: Step(lambda p, a, b: a + b)),
    "max": (2, lambda: Step(lambda p, a, b: torch.maximum(a, b))),
    "cat": (2, lambda: Step(lambda p, a, b: torch.cat([a, b], 1)[:, 1:3])),
    "swap": (1, lambda: Step(lambda p, a: torch.cat(a.chunk(2, 1)[::-1], 1))),
    "size": (2, lambda: Step(lambda p, a, b: a / b.shape[2] + a.new_ones(b.size(0), 1, 1, 1))),
}
IN_PLACE: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "relu_": (1, lambda: nn.ReLU(inplace=True)),
    "add_": (2, lambda: Step(lambda p, a, b: a.add_(b))),
    "half_": (1, lambda: Step(lambda p, a: a.mul_(0.5))),
    "view_": (1, lambda: Step(lambda p, a: a.flatten(2).clamp_(-1, 1).unflatten(2, (4, 4)))),
}


@dataclass(frozen=True)
class Program:
    """Steps as ``(kind, values read)``."""

    steps: tuple[tuple[str, tuple[int, ...]], ...]

    def module(self) -> nn.Module:
        """The network."""
        return _Network(self)

    def meaning(self) -> nx.DiGraph:
        """Edges from what is read to what is made; the nodes are steps, 0 is the input, and the last the output."""
        graph = nx.DiGraph()
        tensor = [0]  # of each value: which tensor it names
        version = [0]  # of each tensor: the step that wrote it last
        for i, (kind, reads) in enumerate(self.steps, start=1):
            data = reads[:1] if kind == "size" else reads
            graph.add_edges_from((version[tensor[value]], i) for value in data)
            if kind in IN_PLACE:
                tensor.append(tensor[reads[0]])
                version[tensor[-1]] = i
            else:
                tensor.append(len(version))
                version.append(i)
        graph.add_edge(version[tensor[-1]], "output")
        return graph

    def dominators(self) -> set[str]:
        """The names of the steps that every path from the input to the output passes through."""
        graph = self.meaning()
        above = nx.immediate_dominators(graph, 0)
        found, node = set(), above["output"]
        while node != 0:
            found.add(f"n{node}")
            node = above[node]
        return found

    def separators(self) -> set[str]:
        """The same by removing each step in turn and asking whether the output can still be reached."""
        graph = self.meaning()
        inner = set(graph) - {0, "output"}
        return {f"n{i}" for i in inner if not nx.has_path(nx.restricted_view(graph, [i], []), 0, "output")}


class _Network(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.steps = program.steps
        for i, (kind, _) in enumerate(program.steps, start=1):
            self.add_module(f"n{i}", (PURE | IN_PLACE)[kind][1]())
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for i, (_, reads) in enumerate(self.steps, start=1):
            values.append(getattr(self, f"n{i}")(*(values[j] for j in reads)))
        return self.head(values[-1].mean((2, 3)))


@st.composite
def programs(draw: st.DrawFn, in_place: bool = False) -> Program:
    """Programs of up to nine steps; most read what was made just before, some skip."""
    kinds = PURE | (IN_PLACE if in_place else {})
    steps = []
    for i in range(draw(st.integers(1, 9))):
        kind = draw(st.sampled_from(sorted(kinds)))
        reads = tuple(draw(st.just(i) | st.integers(max(0, i - 3), i)) for _ in range(kinds[kind][0]))
        steps.append((kind, reads))
    return Program(tuple(steps))
