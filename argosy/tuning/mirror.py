"""A copy of a search in Optuna's storage, for the dashboard. Only Argosy writes it; if it contradicts the journal, it is rewritten."""

import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from argosy.disk.files import open_append, read_lines
from argosy.errors import RunError
from argosy.stopping import Mode
from argosy.tuning.optuna_package import (
    CONSTRAINTS,
    DIRECTIONS,
    JournalFileBackend,
    SQLAlchemyError,
    optuna,
    silence_optuna,
)
from argosy.tuning.search import Store

__all__ = ["StorageMirror", "refusal_behind"]

OWNER = "argosy directory"
"""Attribute of a study in a storage that names the directory to which it belongs."""


class StorageMirror:
    """A study in Optuna's storage that shows the trials of one directory.

    Contract. A separate thread writes to the storage, so the search never waits for a disk or a database. Callers pass frozen copies
    of trials, which no longer change. A failed write is reported at the end; nothing is lost, because running the same command
    again writes whatever is missing.
    """

    def __init__(self, directory: Path, store: Store, *, modes: Sequence[Mode]) -> None:
        self.name: str = store.name or directory.resolve().name
        self.modes = modes
        # A file moves with its directory.
        self.owner: str = "this directory" if store.url is None else str(directory.resolve())
        try:
            place = _open_journal(directory / "optuna.log") if store.url is None else store.url
            with silence_optuna():
                self.storage: Any = optuna.storages.get_storage(place)
            self.study: Any = self._open()
        except (SQLAlchemyError, ImportError, ValueError) as error:
            # The URL is left out, because it may contain a password.
            raise RunError(
                f"Optuna's storage cannot be opened: {str(error).splitlines()[0]}. Choose another, for example "
                "sqlite:///search.db, or omit storage= to use a file in the directory."
            ) from error
        self._known: dict[int, tuple[int, set[int]]] = {}
        """By trial number: its number in the storage, and the steps already reported there."""
        self._news: queue.SimpleQueue[list[optuna.trial.FrozenTrial] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_news, name="optuna-storage", daemon=True)
        self._failure: Exception | None = None

    def settle(self, trials: list[optuna.trial.FrozenTrial]) -> list[str]:
        """Make the storage contain exactly these trials, and start the writer thread.

        Returns how the distributions have changed since: of each parameter that of the latest stored trial that has it.
        """
        stored = self.study.get_trials(deepcopy=False)
        latest = {
            name: (there.distributions.get(name, now), now)
            for there, here in zip(stored, trials, strict=False)
            for name, now in here.distributions.items()
        }
        changes = [f"{name} was {before}, is now {now}" for name, (before, now) in latest.items() if before != now]
        if any(map(_contradicts, stored, trials)) or len(stored) > len(trials):
            optuna.delete_study(study_name=self.name, storage=self.storage)
            self.study, stored = self._open(), []
        study = self.storage.get_study_id_from_name(self.name)
        for trial in stored:
            number = self.storage.get_trial_id_from_study_id_trial_number(study, trial.number)
            self._known[trial.number] = (number, set(trial.intermediate_values))
        for trial in trials:  # Optuna refuses changes of finished ones
            if not (trial.number < len(stored) and stored[trial.number].state.is_finished()):
                self._write(trial)
        self._writer.start()
        return changes

    def show(self, trials: list[optuna.trial.FrozenTrial]) -> None:
        """Queue trials with new results for writing."""
        self._news.put(trials)

    def close(self) -> None:
        """Wait until everything is written; raises RunError if a write failed."""
        self._news.put(None)
        self._writer.join()
        if self._failure is not None:
            raise RunError(
                f"Optuna's storage of {self.name!r} could not be written: {self._failure}. The search itself is "
                "complete. Run the same command again to write the missing results there."
            ) from self._failure

    def _write_news(self) -> None:
        try:
            while (trials := self._news.get()) is not None:
                for trial in trials:
                    self._write(trial)
        except Exception as error:  # this ends the thread; `close` reports it
            self._failure = refusal_behind(error)

    def _write(self, trial: optuna.trial.FrozenTrial) -> None:
        if trial.number not in self._known:
            study = self.storage.get_study_id_from_name(self.name)
            number = self.storage.create_new_trial(study, template_trial=trial)
            self._known[trial.number] = (number, set(trial.intermediate_values))
            return
        number, steps = self._known[trial.number]
        for step in sorted(trial.intermediate_values.keys() - steps):
            self.storage.set_trial_intermediate_value(number, step, trial.intermediate_values[step])
            steps.add(step)
        if CONSTRAINTS in trial.system_attrs:
            self.storage.set_trial_system_attr(number, CONSTRAINTS, trial.system_attrs[CONSTRAINTS])
        if trial.state.is_finished():
            self.storage.set_trial_state_values(number, trial.state, trial.values)

    def _open(self) -> optuna.Study:
        with silence_optuna():
            study = optuna.create_study(
                storage=self.storage,
                study_name=self.name,
                directions=[DIRECTIONS[mode] for mode in self.modes],
                sampler=optuna.samplers.RandomSampler(),
                load_if_exists=True,
            )
        owner = study.user_attrs.get(OWNER)
        if owner is None and not study.get_trials(deepcopy=False):
            study.set_user_attr(OWNER, self.owner)
        elif owner != self.owner:
            raise RunError(
                f"the storage has a study {self.name!r} that belongs to {owner or 'another program'}, not to the "
                "search in this directory. Choose another study_name."
            )
        return study


def refusal_behind(error: Exception) -> Exception:
    """Return the system's refusal of Optuna's file. Optuna raises that it did not possess the lock, which it could not release then."""
    return error.__context__ if isinstance(error.__context__, OSError) else error


def _open_journal(path: Path) -> optuna.storages.JournalStorage:
    """Return the storage in Optuna's journal file, after removing what a killed driver may have left: a lock, and an incomplete last line.

    The file is created here, because Optuna would follow a symbolic link and let the umask decide who may write it.
    """
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    with open_append(path) as file:
        os.ftruncate(file.fileno(), sum(len(line) + 1 for line in read_lines(path)))
    return optuna.storages.JournalStorage(JournalFileBackend(str(path.resolve())))


def _contradicts(there: optuna.trial.FrozenTrial, here: optuna.trial.FrozenTrial) -> bool:
    """Return whether the stored trial can no longer become `here`; a database refuses one parameter with two lists of choices."""
    if (there.params, there.distributions) != (here.params, here.distributions):
        return True
    return there.state.is_finished() and _final_state(there) != _final_state(here)


def _final_state(trial: optuna.trial.FrozenTrial) -> tuple[Any, ...]:
    return trial.state, trial.values, trial.intermediate_values, trial.system_attrs.get(CONSTRAINTS)
