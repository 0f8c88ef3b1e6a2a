"""Steps of a descent that leave nothing to decide while they run, so that a GPU can record one and replay it.

The batches are drawn before the descent. Parameters, Adam's moments, the sum of the parameters and the sum of the
losses stay on the device, and nothing is read back before ``StaticSteps.mean``. On a GPU the first steps run as they
are, then one is recorded as a CUDA graph and replayed; where recording fails all steps run as they are, and a note says
so.
"""

import torch
from torch import Tensor, nn

from suture.common.devices import CPU
from suture.common.errors import FitError
from suture.common.formatting import first_line
from suture.common.phases import say_step
from suture.fits.base import Problem, State, mean_loss
from suture.fits.coordinates import Coordinates
from suture.fits.descent import differentiate, draw_batches

BETAS = (0.9, 0.99)  #: of Adam
WARM = 3  #: steps that run before one is recorded: libraries allocate what they need in the first

Given = tuple[Tensor, Tensor, Tensor | None]
"""Activations, labels and other inputs of the samples of one batch, on the device."""


class Batches:
    """The batches of a problem's fit samples, in order: drawn once, for all descents on it, for a stitch on a device.

    Indices lie where the activations do, labels on the device.
    """

    def __init__(self, problem: Problem, size: int, device: torch.device) -> None:
        self._drawn = draw_batches(len(problem.fit.labels), size, problem.seed)
        self._rows: list[Tensor] = []
        sent = problem.fit.activations
        self.device = sent.device if isinstance(sent, Tensor) else CPU  # what stands for them runs the prefix on rows
        self.labels = problem.fit.labels.to(device)  # once, since a GPU would wait for each batch of them

    def rows(self, first: int, last: int) -> list[Tensor]:
        """Return the indices of the batches from ``first`` to before ``last``, each ``(batch,)``."""
        missing = last - len(self._rows)
        if missing > 0:
            drawn = torch.stack([next(self._drawn) for _ in range(missing)])
            self._rows.extend(drawn.to(self.device).unbind())
        return self._rows[first:last]


class StaticSteps:
    """Steps of Adam on the coordinates of a stitch, batch after batch, with the average of the parameters.

    ``suffix`` maps represented tensors ``(n, *receiver shape)`` to outputs; ``rate`` is Adam's, and its first batch
    that after ``begun`` of them. ``taken`` counts the steps, and ``note`` says why a GPU does not replay them, if it
    was tried. Raises ``FitError`` if no gradient passes the receiver.
    """

    def __init__(
        self,
        problem: Problem,
        coordinates: Coordinates,
        suffix: nn.Module,
        batches: Batches,
        rate: float,
        begun: int = 0,
    ) -> None:
        self.problem, self.coordinates, self.suffix, self.batches = problem, coordinates, suffix, batches
        self.free = list(coordinates.free.values())
        self.device = self.free[0].device
        self.is_cuda = self.device.type == "cuda"
        groups = coordinates.groups(rate)
        try:  # steps in one operation, where the device has that; torch lists those devices in no public place
            self.adam = torch.optim.Adam(groups, betas=BETAS, fused=True, capturable=self.is_cuda)
        except RuntimeError:
            self.adam = torch.optim.Adam(groups, betas=BETAS, capturable=self.is_cuda)
        self.sums = [torch.zeros_like(tensor, requires_grad=False) for tensor in self.free]
        self.loss = torch.zeros((), device=self.device)
        self.begun, self.taken = begun, 0
        self.parts: list[tuple[int, list[Tensor], Tensor]] = []  # steps, and the sums over them, since some time ago
        self.note = ""
        self._static: tuple[Tensor | None, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None

    def take(self, most: int, total: int = 0, limit: int = 0) -> None:
        """Take so many steps, and begin a new sum of the parameters.

        People are told how far the fit is: these are the last of its ``total`` so far, of at most ``limit``.
        """
        for place in self.sums:
            place.zero_()
        self.loss.zero_()
        end = self.begun + self.taken + most
        for chosen in self.batches.rows(self.begun + self.taken, end):
            given = self._gather(chosen)
            if not self.is_cuda or self.note:
                self._step(*given)
            elif self.taken < WARM:
                self._step_aside(given)
            else:
                self._replay(given)
            self.taken += 1
            say_step(total - end + self.begun + self.taken, limit)
        self.parts.append((most, [total.clone() for total in self.sums], self.loss.clone()))

    def mean(self, steps: int) -> tuple[State, float]:
        """Return the stitch's parameters, averaged over the last steps, and the mean of their losses.

        Raises ``ValueError`` if ``take`` did not begin with the first of these.
        """
        count, chosen = 0, list[tuple[int, list[Tensor], Tensor]]()
        while count < steps:
            chosen.append(self.parts[-1 - len(chosen)])
            count += chosen[-1][0]
        if count != steps:
            raise ValueError(f"steps were not taken so that the last {steps} of them have a sum")
        self.parts = chosen[::-1]
        total = [sum(tensors[1:], tensors[0]) for tensors in zip(*(sums for _, sums, _ in chosen), strict=True)]
        loss = float(sum(float(loss) for *_, loss in chosen)) / steps
        return self.coordinates.mean([tensor / steps for tensor in total]), loss

    def _gather(self, chosen: Tensor) -> Given:
        """Return activations, labels and other inputs of the samples of a batch, on the device."""
        side = self.problem.fit
        sent = in_layout(side.activations[chosen].to(self.device))
        return sent, self.batches.labels[chosen], side.inputs_of(chosen, self.device)

    def _step(self, sent: Tensor, labels: Tensor, inputs: Tensor | None) -> None:
        problem = self.problem
        loss = mean_loss(problem, self.suffix, self.coordinates(sent), labels, inputs, problem.task)
        self.adam.zero_grad(set_to_none=True)
        differentiate(loss, self.free, self.problem.where)
        self.adam.step()
        with torch.no_grad():
            for total, tensor in zip(self.sums, self.free, strict=True):
                total.add_(tensor)
            self.loss.add_(loss)

    def _step_aside(self, given: Given) -> None:
        """Take a step on another stream of the GPU, as steps must be that come before a recorded one."""
        own, aside = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(own)
        with torch.cuda.stream(aside):
            self._step(*given)
        own.wait_stream(aside)

    def _replay(self, given: Given) -> None:
        """Replay the recorded step on a batch; record it first if it is not."""
        if self._graph is None:
            self._static = tuple(None if tensor is None else tensor.clone() for tensor in given)
            try:
                self._graph = self._record()
            except (RuntimeError, FitError) as error:  # a layer waits for the GPU, or allocates outside of torch
                self.note = f"steps are not recorded on the GPU ({first_line(error)}): they run one by one"
                self._step(*given)
                return
        for place, tensor in zip(self._static, given, strict=True):
            if place is not None and tensor is not None:
                place.copy_(tensor)
        self._graph.replay()

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self.adam.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._step(*self._static)  # type: ignore[arg-type]
        return graph


def in_layout(sent: Tensor) -> Tensor:
    """Return activations with their channels last, if they are maps ``(n, C, H, W)``."""
    return sent.contiguous(memory_format=torch.channels_last) if sent.ndim == 4 else sent
