"""Large data stay out of RAM: the benchmark in small, in a process of its own, whose memory it watches."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_loading_takes_little_more_ram_than_nothing() -> None:
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    given = [sys.executable, "-m", "benchmarks.large_data", "--images", "10000", "--fitted", "300"]
    said = subprocess.run(given, env=os.environ | {"PYTHONPATH": path}, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    before, *_, limited, _ = (float(found) for found in re.findall(r"at most ([\d.]+) GB", said.stdout))
    assert "in a mapped file: True, 1.4 GB to fit" in said.stdout
    assert limited - before < 1.0, said.stdout  # data of 1.7 GB, of which each step held a part
