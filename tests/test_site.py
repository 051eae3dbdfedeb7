"""Tests of the site: links and anchors exist, each page has one place, and MkDocs, if installed, builds it without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import site_pages
from site_pages import DOCS, ROOT, SOURCES, links, without_code

CONFIGURED = (ROOT / "mkdocs.yml").read_text()
NAV = re.findall(r"(?m)^ +- (?:[^:\n]+: )?(\S+\.md)$", CONFIGURED.partition("\nnav:\n")[2])
TEXTS = [*SOURCES, ROOT / "README.md"]


def anchors(path: Path) -> list[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs both form them."""
    found = []
    for heading in re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", path.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.append(re.sub(r"[^\w -]", "", plain).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(path: Path) -> None:
    for file, anchor in links(path.read_text()):
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{path.relative_to(ROOT)}: {file}"
        assert target.is_relative_to(ROOT), file
        assert not anchor or anchor in anchors(target), f"{path.relative_to(ROOT)}: {file}#{anchor}"


def test_a_linked_heading_has_the_same_anchor_on_github_and_in_the_site() -> None:
    """No linked anchor has several hyphens in a row, which MkDocs would merge into one and GitHub would not."""
    linked = [anchor for path in TEXTS for _, anchor in links(path.read_text())]
    assert linked
    assert not [anchor for anchor in linked if "--" in anchor or "__" in anchor]


def test_each_page_has_one_place_in_the_site() -> None:
    assert sorted(NAV) == sorted(place for place in site_pages.pages() if not place.startswith("files/"))


def test_links_of_the_site_lead_to_its_pages() -> None:
    found = site_pages.pages()
    pictures = {picture.relative_to(DOCS).as_posix() for picture in DOCS.rglob("*.png")}
    places = {Path(place) for place in (*found, *pictures)}
    for place, text in found.items():
        if not place.startswith("files/"):
            for file, _ in links(text):
                target = Path(*_plain(Path(place).parent / file)) if file else Path(place)
                assert target in places, f"{place}: {file}"


def _plain(path: Path) -> list[str]:
    parts = list[str]()
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return parts


def test_code_is_no_link() -> None:
    assert links("`a[0](b)` and [c](d.md#e)\n```\nf[0](g)\n```\n") == [("d.md", "e")]
    assert without_code("```\nf\n```\nh") == "\nh"


def test_mkdocs_builds_it_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site is built with the extra docs: make docs")
    pages = tmp_path / "pages"
    subprocess.run([sys.executable, ROOT / "tests" / "site_pages.py", pages], check=True)
    (tmp_path / "mkdocs.yml").write_text(CONFIGURED.replace("build/pages", "pages").replace("build/site", "site"))
    build = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    found = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "WARNING" not in found.stderr
    # A dead link and a dead anchor make the build fail.
    (pages / "tutorial.md").write_text("[one](gone.md), [two](how-to.md#gone)")
    found = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "gone.md" in found.stderr and "#gone" in found.stderr
