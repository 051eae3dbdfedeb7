"""Tests that all text that people name, choose and raise is shown literally everywhere: no escape is obeyed, no markup is read."""

import contextlib
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import studies
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD

import argosy
from argosy.cli import report as reporting_cli
from argosy.cli.app import main
from argosy.errors import ArgosyError, DiskError, MemberError, RunError
from argosy.errors.wording import as_html, escape_unprintable, format_value
from argosy.views.bar import Notebook
from argosy.views.output import as_text, console, print_output, print_table
from argosy.views.terminal import Terminal

pytestmark = pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")  # reports are checked for its text

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202e[red]x[/red]\ud800"
SEEN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202e[red]x[/red]\ud800"
UNSEEN = ("\x1b", "\x07", "\x9b", "\r", "\x08", "\u202e", "\ud800")


def sgd(parameters: Any, *, lr: float, note: str) -> SGD:
    return SGD(parameters, lr=lr)


def raises(*_: Any) -> Any:
    raise ValueError(f"no {EVIL}")


def study(tmp: Path) -> argosy.Study:
    fleet = [
        studies.member("one", optimizer=partial(sgd, lr=0.1, note=EVIL), metrics={f"m{EVIL[:6]}": argosy.accuracy}),
        studies.member("two", optimizer=partial(sgd, lr=0.1, note="plain"), augment=raises),
    ]
    return studies.study(60, fleet=fleet, epochs=1, val=20, objective="val_loss")


def clean(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str], list[tuple[Any, ...]]]:
    """Train in a folder with an evil name; return its directory, and what a terminal, a notebook and a tracker were shown."""
    directory = tmp_path_factory.mktemp("shown") / f"run {EVIL[:-1].replace('/', '')}"
    said, shown, calls = io.StringIO(), [], []

    class Both(Notebook):
        def __init__(self) -> None:
            super().__init__(lambda html: shown.append)
            self.terminal = Terminal(console(file=said, width=200))

        def __getattribute__(self, name: str) -> Any:
            own = object.__getattribute__(self, name)
            if name not in ("begin", "study", "plan", "handle", "tick", "end"):
                return own
            other = getattr(object.__getattribute__(self, "terminal"), name)
            return lambda *given: (own(*given), other(*given))

    class Tracker:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *given: calls.append((name, *given))

        def open(self, *_: Any) -> None: ...
        def begin(self, *given: Any) -> None:
            calls.append(given)

        def log(self, *given: Any) -> None:
            calls.append(given)

        def end(self, *_: Any) -> None: ...

    argosy.train(
        study(directory), directory=directory, launcher="inline", devices="cpu:1", view=Both(), trackers=[Tracker()]
    )
    return directory, said.getvalue(), shown, calls


def test_a_terminal_and_a_pipe_show_it(run: Any) -> None:
    _, said, _, _ = run
    assert clean(said)
    assert rf"two failed: ValueError: no {SEEN}" in said


def test_a_notebook_shows_it(run: Any) -> None:
    directory, _, shown, _ = run
    assert all(map(clean, shown))
    assert rf"no {SEEN}" in shown[-1]
    table = argosy.load(directory)._repr_html_()
    assert clean(table)
    assert SEEN in table


@pytest.mark.parametrize("command", ["status", "report", "audit"])
def test_commands_show_it(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    directory, *_ = run
    monkeypatch.setattr("sys.argv", ["argosy", command, str(directory)])
    with contextlib.suppress(SystemExit):
        main()
    said = capsys.readouterr()
    assert clean(said.out + said.err)
    assert r"\x1b" in said.out


def test_the_page_shows_it(run: Any) -> None:
    directory, *_ = run
    reporting_cli.report(directory, html=True)
    text = (directory / "report.html").read_text()
    assert not any(one in text for one in UNSEEN)
    assert SEEN in text
    values = text[text.index('id="values">') : text.rindex("</script>\n<script>")]
    assert r"\u001b" not in values
    assert r"m\\x1b]0;ow" in values


def test_trackers_are_told_what_can_be_shown(run: Any) -> None:
    *_, calls = run
    notes = [given["optimizer.note"] for _, given in (call for call in calls if len(call) == 2)]
    assert notes == [SEEN]  # the other member has not begun
    assert all(clean(str(call)) for call in calls)
    figures = next(call[2] for call in calls if len(call) == 3)
    assert r"val_m\x1b]0;ow" in figures


def test_errors_show_it() -> None:
    for kind in (ArgosyError, RunError, MemberError):
        assert str(kind(f"no {EVIL}\nsecond line")) == f"no {SEEN}\nsecond line"


def test_json_stays_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert json.loads(json.dumps({"name": EVIL})) == {"name": EVIL}


def test_a_bar_and_a_table_are_as_wide_as_they_say() -> None:
    assert as_text(EVIL).plain == SEEN
    assert format_value("a\nb") == r"a\nb"
    assert as_html("<\x1b>") == r"&lt;\x1b&gt;"


def test_rich_reads_no_markup_in_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(as_text("[red]x[/red] :boom: \x1b[1m"))
    print_output("[red]x[/red] \x1b[1m")
    assert capsys.readouterr().out == "[red]x[/red] :boom: \\x1b[1m\n[red]x[/red] \\x1b[1m\n"


@given(st.text())
def test_whatever_is_shown_is_visible_and_shown_once(text: str) -> None:
    assert clean(escape_unprintable(text))
    assert escape_unprintable(text, lines=False).isprintable()
    assert escape_unprintable(escape_unprintable(text)) == escape_unprintable(text)
    if text.isprintable():
        assert escape_unprintable(text) == text


def test_a_file_without_room_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(
            DiskError, match=r"the command's output cannot be written in full: .* then repeat the command"
        ):
            print_output("member,val_loss")


def test_what_an_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    page = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(page, encoding="ascii"))
    print_output("grün")
    assert page.getvalue() == b"gr\\xfcn\n"
