"""Begin a whole run anew, or some of its members. Nothing is deleted: earlier files are kept under another name.

A member's new beginning is an event. It is journaled before the member's old folder is moved to the place that the
event names, and before anything else about the member. If the driver is killed in between, the member has no sections,
and the next driver moves the folder.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from argosy.errors import RunError
from argosy.errors.spelling import did_you_mean, format_names
from argosy.protocol.events import BeganAnew
from argosy.results.fold import MemberState, RunState
from argosy.running.directory.lock import Lock, make_own_directory
from argosy.study import Study

__all__ = ["make_began_anew", "set_members_aside", "set_run_aside"]


def set_run_aside(directory: Path) -> Path | None:
    """Rename a run's directory to the first free of ``DIR.old-1``, ``DIR.old-2``, …; returns the new path.

    Returns None if no run is there. Raises RunError if the run is at work, or the directory cannot be renamed,
    or contains the working directory or code.
    """
    directory = directory.absolute()
    journal = directory / "journal.jsonl"
    if not os.path.exists(journal):  # noqa: PTH110  # Path.exists() may raise; the run refuses a private directory
        return None
    if what := _holds_more(directory):
        raise RunError(
            f"{directory} {what}: starting over would move all that is in it to {_free_name(directory).name}. Choose a directory "
            "for the run alone, and call from a folder outside of it."
        )
    make_own_directory(directory)
    with contextlib.suppress(FileNotFoundError), Lock(directory / "run.lock"):
        place = _free_name(directory)
        if journal.exists():  # another command may have moved it meanwhile
            try:
                directory.rename(place)
            except OSError as error:
                raise RunError(
                    f"{directory} cannot be moved to {place.name} to start over: {error.strerror}. Move it "
                    "yourself, or choose another directory."
                ) from error
            return place
    return None


def make_began_anew(names: Sequence[str], study: Study, state: RunState, directory: Path) -> BeganAnew | None:
    """Return the event to journal before these members begin anew; None if none of them has begun. Raises RunError.

    The name of a configuration stands for all its repetitions in the study.
    """
    repeated: dict[str, list[str]] = {}
    for member in study.members:
        if member.repetition is not None:
            repeated.setdefault(member.repetition.of, []).append(member.name)
    own = dict.fromkeys([*study.names, *state.members])
    known = dict.fromkeys([*own, *repeated])
    names = [one for name in names for one in ([name] if name in own else repeated.get(name, [name]))]
    for name in names:
        if name not in known:
            raise RunError(
                f"the run has no member {name!r}{did_you_mean(name, known)} to start over; choose one of {format_names(known)}."
            )
        if name in state.members and state.members[name].inherited is not None:
            raise RunError(
                f"member {name!r} is a clone that continued from the weights of {state.members[name].source!r}, "
                "so it cannot start over. Clone the original again, under another name."
            )
    begun = [name for name in dict.fromkeys(names) if name in state.members]
    places = {name: str(_free_name(directory / "members.old" / name, old="").relative_to(directory)) for name in begun}
    return BeganAnew(members=places) if places else None


def _holds_more(directory: Path) -> str:
    """Return why a directory may hold more than a run; empty if nothing shows it."""
    if Path.cwd().is_relative_to(directory.resolve()):
        return "is the working directory, or a folder above it"
    code = sorted(file.name for ending in ("py", "ipynb") for file in directory.glob(f"*.{ending}"))
    return f"contains {code[0]}" if code else ""


def set_members_aside(states: Iterable[MemberState], directory: Path) -> None:
    """Move the folders of members that begin anew and have not trained since."""
    for state in [one for one in states if one.aside is not None and not one.assigned]:
        folder, aside = directory / "members" / state.name, directory / str(state.aside)
        if folder.exists() and not aside.exists():
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)


def _free_name(path: Path, old: str = ".old") -> Path:
    number = 1
    while (place := path.with_name(f"{path.name}{old}-{number}")).exists():
        number += 1
    return place
