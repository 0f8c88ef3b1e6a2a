"""Draw the figures of all studies again, from the tables that were measured.

python benchmarks/study_pictures.py papers/results/small docs/papers/images [ID …]
"""

import argparse
from pathlib import Path

from suture.reports.figures import curve as figures
from suture_papers import STUDIES, load_result
from suture_papers.reports.figures import figure

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("ids", nargs="*", default=list(STUDIES), metavar="ID")
    given = parser.parse_args()
    for name in given.ids:
        study, result = STUDIES[name], load_result(given.results, name)
        if result is not None and study.panels:
            print(figures.save(figure(study, result.tables), given.pictures / name)[0])
