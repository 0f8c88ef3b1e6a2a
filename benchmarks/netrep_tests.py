"""netrep's own tests of its metrics, with Suture's indices in their place.

    python benchmarks/netrep_tests.py FOLDER [pytest's options]

``FOLDER`` is netrep's source (github.com/ahwillia/netrep, Williams et al. 2021), with ``netrep/`` and ``tests/``. Of
its ``LinearMetric``, ``alpha=1`` is the Procrustes angle and ``alpha=0`` the arc cosine of mean CCA. Where a test asks
for what Suture does not have (other alphas, permutations of features), it is skipped. Suture always centres columns, so
the three tests of principal angles of uncentred ones fail, and no other may: the exit code says so.
"""

import sys
from math import acos
from pathlib import Path
from typing import Any

import pytest
import torch

from suture.measurement import indices

UNCENTRED = "test_principal_angles"


def score(alpha: float, x: Any, y: Any) -> float:
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    return indices.procrustes_angle(x, y) if alpha == 1 else acos(indices.mean_cca(x, y))


class Results:
    """The tests that passed, failed, and were skipped."""

    def __init__(self) -> None:
        self.by: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.by[report.outcome].append(report.nodeid)


def main() -> int:
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    import netrep.metrics

    def fit(metric: Any, x: Any, y: Any) -> Any:
        if isinstance(metric, netrep.metrics.PermutationMetric) or metric.alpha not in (0, 1):
            pytest.skip("Suture has no such index")
        return metric

    for kind in (netrep.metrics.LinearMetric, netrep.metrics.PermutationMetric):
        kind.fit, kind.score = fit, lambda metric, x, y: score(metric.alpha, x, y)
    results = Results()
    tests = str(folder / "tests" / "test_metrics.py")
    pytest.main([tests, "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", *sys.argv[2:]], plugins=[results])
    print({outcome: len(names) for outcome, names in results.by.items()})
    unexpected = [name for name in results.by["failed"] if UNCENTRED not in name]
    print(*unexpected, sep="\n")
    return int(bool(unexpected) or not results.by["passed"])


if __name__ == "__main__":
    raise SystemExit(main())
