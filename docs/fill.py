"""Put measured tables into the documents: `python docs/fill.py`.

Between `<!-- from FILE -->` and `<!-- end -->` stands the content of FILE, a result that a command
made. A test fails where a document and its results differ.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", *(f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md"))))
BLOCK = re.compile(r"(<!-- from (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return a document with every block renewed."""
    return BLOCK.sub(lambda m: f"{m[1]}{(ROOT / m[2]).read_text()}{m[3]}", text)


if __name__ == "__main__":
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(filled(path.read_text()))
