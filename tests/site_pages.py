"""The pages of the site: ``python tests/site_pages.py build/pages`` writes what `mkdocs.yml` builds.

They are the pages of docs/, the changelog and how to contribute. A link that leaves these leads to a page with the text of the file, or
with the names of the folder's files, so that the site needs no other place.
"""

import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path

__all__ = ["DOCS", "ROOT", "SOURCES", "links", "pages", "without_code"]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = {
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "README.md": "index.md",
}
"""Files of the root that are pages; the README's place is that of the start page of docs/."""
SOURCES = [*sorted(DOCS.rglob("*.md")), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sbatch": "bash"}
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", flags=re.DOTALL | re.MULTILINE)


def without_code(text: str) -> str:
    """A page without blocks and words of code, where brackets are no links."""
    return CODE.sub("", text)


def links(text: str) -> list[tuple[str, str]]:
    """Each relative link of a page, as (file, anchor); a file may be empty, and so may an anchor."""
    found = (match.groups(default="") for match in LINK.finditer(without_code(text)))
    return [(file, anchor.removeprefix("#")) for file, anchor in found if "://" not in file and "mailto:" not in file]


def pages() -> dict[str, str]:
    """The text of each page, by its path in the site."""
    found, linked = dict[str, str](), set[Path]()
    for path in SOURCES:
        place, text = _place(path), path.read_text()
        move, code = partial(_moved, path, place, linked), [*CODE.findall(text), ""]
        # Brackets of code are no links; in words of code within a table GitHub wants a backslash before `|`, and MkDocs shows it.
        words = (part if part.startswith("```") else part.replace("\\|", "|") for part in code)
        found[place] = "".join(LINK.sub(move, part) + word for part, word in zip(CODE.split(text), words, strict=True))
    return found | {_place(path): _shown(path) for path in sorted(linked)}


def _shown(path: Path) -> str:
    """The page of a file or a folder that another page links to."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"# {name}\n\n" + "".join(f"* `{file.name}`\n" for file in sorted(path.iterdir()))
    return f"# {name}\n\n```{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}```\n"


def _place(path: Path) -> str:
    """Where a file is in the site."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix().replace("README.md", "index.md")
    return f"files/{path.relative_to(ROOT).as_posix()}.md"


def _moved(path: Path, place: str, linked: set[Path], match: re.Match[str]) -> str:
    """What takes the place of a link of this page; what has to become a page is added to `linked`."""
    file, anchor = match.groups(default="")
    if not file or "://" in file:
        return match[0]
    target = Path(os.path.normpath(path.parent / file))
    target = target / "README.md" if (target / "README.md").exists() else target
    if not target.is_relative_to(DOCS) and target not in OUTSIDE:
        linked.add(target)
    return f"]({os.path.relpath(_place(target), Path(place).parent)}{anchor})"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    for place, text in pages().items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    for picture in DOCS.rglob("*.png"):
        place = folder / picture.relative_to(DOCS)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, place)
