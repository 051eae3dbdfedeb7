"""The pages of the site: ``python tests/site_pages.py build/pages`` writes the files from which `mkdocs.yml` builds it.

They are the pages of docs/, the changelog and the guide for contributors. Links to other files of the repository lead to added pages with
the text of the file, or with the names of the files of a folder, so that the site is self-contained.
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
"""Files of the repository's root that are pages; links to the README lead to the start page of docs/."""
SOURCES = [*sorted(DOCS.rglob("*.md")), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sbatch": "bash"}
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", flags=re.DOTALL | re.MULTILINE)


def without_code(text: str) -> str:
    """Return a page without code blocks and inline code, in which brackets are no links."""
    return CODE.sub("", text)


def links(text: str) -> list[tuple[str, str]]:
    """Return the relative links of a page as (file, anchor), either of which may be empty."""
    found = (match.groups(default="") for match in LINK.finditer(without_code(text)))
    return [(file, anchor.removeprefix("#")) for file, anchor in found if "://" not in file and "mailto:" not in file]


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the site."""
    found, linked = dict[str, str](), set[Path]()
    for path in SOURCES:
        place, text = _place(path), path.read_text()
        move, code = partial(_moved, path, place, linked), [*CODE.findall(text), ""]
        # Brackets in code are no links. In inline code within a table GitHub needs a backslash before `|`, which MkDocs would show.
        words = (part if part.startswith("```") else part.replace("\\|", "|") for part in code)
        found[place] = "".join(LINK.sub(move, part) + word for part, word in zip(CODE.split(text), words, strict=True))
    return found | {_place(path): _shown(path) for path in sorted(linked)}


def _shown(path: Path) -> str:
    """Return the page for a file or a folder that another page links to."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"# {name}\n\n" + "".join(f"* `{file.name}`\n" for file in sorted(path.iterdir()))
    return f"# {name}\n\n```{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}```\n"


def _place(path: Path) -> str:
    """Return the path of a file's page in the site."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix().replace("README.md", "index.md")
    return f"files/{path.relative_to(ROOT).as_posix()}.md"


def _moved(path: Path, place: str, linked: set[Path], match: re.Match[str]) -> str:
    """Return a link of a page with its target in the site; targets that need an added page are put into `linked`."""
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
