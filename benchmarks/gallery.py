"""The pictures of docs/gallery.md and docs/how-to/views.md, drawn by the programs of these pages; it takes minutes.

python benchmarks/gallery.py docs/images [--page views]
"""

import argparse
import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"gallery": DOCS / "gallery.md", "views": DOCS / "how-to" / "views.md"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--page", choices=PAGES, nargs="+", default=[*PAGES])
    given = parser.parse_args()
    os.chdir(given.pictures)
    for page in given.page:
        names, text = {"__name__": page}, PAGES[page].read_text(encoding="utf-8")
        for program in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            print(program, flush=True)
            exec(program, names)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
