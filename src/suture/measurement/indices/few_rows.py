"""Whether few rows hold most of a kernel's norm, and so decide a linear index.

Transformers give some tokens, mostly the first, one feature that is a hundred times larger than all others ("attention
sinks": Sun et al. 2024, *Massive activations*; Xiao et al. 2024). In the kernel XXᵀ of all tokens these rows outweigh
the rest, and two layers that agree in nothing but where such tokens are have a linear CKA near 1. An index of near
neighbours counts every row alike.

The squared norm of row i of the centred kernel K is the mean of (Kz)ᵢ² over random signs z, which takes two products
with X and never K itself. A direction that outweighs all others multiplies every (Kz)ᵢ by the same number, so shares of
rows are told by few z.
"""

from collections import Counter
from collections.abc import Sequence

import torch

from suture.common.warning import warn
from suture.measurement.indices.base import Index, Layer
from suture.measurement.indices.cka import LinearCKA, MinibatchCKA
from suture.measurement.indices.grams import MutualKNN

FEW = 0.1  #: of the rows
MOST_OF = 0.75  #: of the sum of squares of a kernel's entries; a tenth of normal rows holds less than a fifth
LEAST_ROWS = 100  #: of which a tenth may hold most by chance if they are fewer
_PROBES = 16


def warn_of_few_rows(layers: Sequence[Layer], methods: Sequence[Index]) -> None:
    """Warn if few rows of a layer hold most of its kernel's norm, by which an index in ``methods`` compares it."""
    linear = [one.name for one in methods if isinstance(one, LinearCKA | MinibatchCKA)]
    if not linear:
        return
    distinct = {id(layer.activations): layer for layer in layers}.values()
    found = {layer.name: rows for layer in distinct if len(rows := find_few_rows(layer))}
    if not found:
        return
    name, rows = next(iter(found.items()))
    layer = next(layer for layer in distinct if layer.name == name)
    others = f", and as few of {len(found) - 1} other layers" if len(found) > 1 else ""
    where, remedy = f"{len(rows)} of {layer.samples:,} samples", ""
    if layer.samples_as == "pixels" and layer.activations.ndim == 3:
        places = Counter((rows % layer.positions).tolist())
        often = sorted(place for place, count in places.items() if count > layer.images / 2)
        if often:
            where += f", mostly tokens {often}"
            remedy = f", or leave these tokens out, ignore={often}"
    warn(
        f"{where}, hold most of the norm of {name}{others}, so {', '.join(linear)} says little of the rest; compare by "
        f"{MutualKNN().name}, to which every sample counts alike{remedy}"
    )


def find_few_rows(layer: Layer) -> torch.Tensor:
    """Return the fewest rows that hold ``MOST_OF`` of the kernel's squared norm, or none if these are not few."""
    few = int(FEW * layer.samples)
    if layer.samples < LEAST_ROWS:
        return torch.empty(0, dtype=torch.int64)
    with torch.no_grad():
        parts = list(layer.centred_rows(torch.float32)) if layer.activations.numel() < 2**24 else None
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, (layer.samples, _PROBES), generator=generator) * 2.0 - 1
        signs = signs.to(layer.activations.device)
        projected = torch.zeros(layer.features, _PROBES, device=signs.device)
        start = 0
        for rows in parts or layer.centred_rows(torch.float32):
            projected += rows.T @ signs[start : start + len(rows)]
            start += len(rows)
        projected /= projected.norm().clamp(min=torch.finfo(torch.float32).tiny)
        parts = [(rows @ projected).double().square().sum(1) for rows in parts or layer.centred_rows(torch.float32)]
        largest, order = torch.cat(parts).cpu().sort(descending=True, stable=True)
        held = largest.cumsum(0)
        count = int((held < MOST_OF * held[-1]).sum()) + 1
    return order[:count] if count <= few and held[-1] > 0 else order[:0]
