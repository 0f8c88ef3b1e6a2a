"""The pictures of the pages on evidence, indices, complexity and traits, drawn by the commands shown; three minutes.

    python benchmarks/evidence_pictures.py runs/evidence docs/images

Two small networks on digits, C and D, are stitched at six cuts with all controls, compared by every index, and measured
in complexity. A trait is planted in one block of an MLP: ``plain`` is trained on in its third block alone, on digits
whose 0 is called 1, which gives ``odd``, and ``localise`` looks for it. Resumes.
"""

import argparse
import shutil
from pathlib import Path

from suture.cli.main import main as suture

CUTS = "stage1.relu,stage2.conv,stage2.relu,stage3.relu,stage3.pool,flatten"
BESIDE = "linear_cka,debiased=True,svcca,procrustes,procrustes_angle,mutual_knn,linear_predictivity"
FEW = "--samples 200 --permutations 19"
SOME = "--data digits --fit-samples 400 --score-samples 300"


def commands(folder: Path) -> list[str]:
    """Return the commands, in order."""
    c, d, odd, plain = (f"{folder}/nets/{name}" for name in ("C", "D", "odd", "plain"))
    conv, mlp = "--network zoo:convnet,width=4 --data digits", "--network zoo:mlp,width=64,depth=4 --data digits"
    return [
        f"train digits {conv} --out {c}",
        f"train digits {conv} --seed 1 --out {d}",
        f"curve {c} {d} {SOME} --at {CUTS} --out {folder}/cd",
        f"compare {c} {d} --data digits --by all {FEW} --out {folder}/grid",
        f"compare {c} {d} --data digits --by {BESIDE} {FEW} --at {CUTS} --beside {folder}/cd --out {folder}/cd",
        f"complexity {folder}/cd --data digits --samples 100 --out {folder}/cd",
        f"train digits {mlp} --out {plain}",
        f"train digits {mlp} --variant relabelled,label=0,to=1 --start {plain} --trained block3 --out {odd}",
        f"localise confusion:0>1 {odd} {plain} --data digits --fit-variant without,classes=0 --at block?.relu "
        f"--stitch diagonal --fit least-squares --out {folder}/trait",
    ]


PICTURES = {
    "evidence-curve": "cd/beside",
    "evidence-grid": "grid/similarities",
    "evidence-complexity": "cd/complexity",
    "evidence-trait": "trait/localise",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pictures", type=Path)
    given = parser.parse_args()
    for command in commands(given.folder):
        print(f"$ suture {command}", flush=True)
        if code := suture(command.split()):
            return code
    for name, drawn in PICTURES.items():
        shutil.copy(given.folder / f"{drawn}.png", given.pictures / f"{name}.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
