"""Bugs of the control plane, most of them fixed once, to be planted again: the simulator must find each of them."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from argosy import planning
from argosy.disk.files import append_flushed
from argosy.running.control.carry_out import CarryOut
from argosy.running.control.driver import Driver
from argosy.running.control.faults import Faults
from argosy.running.control.leg_starts import LegStarts
from argosy.running.control.legs import LiveLeg
from argosy.running.control.measurements import Measurements
from argosy.running.control.members import Members
from argosy.running.control.positions import Positions
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.launch import worker
from argosy.training.member.files import KeptFiles
from argosy.training.trainer.trainer import Trainer
from simulation.made import LOST_WHILE_MEASURING, STOPPED_AT_START
from simulation.scenario import Scenario, drawn

__all__ = ["PLANTED", "Planted"]


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug, as a change of one place in the source of one function."""

    what: str
    function: Callable[..., Any]
    fixed: str
    before: str
    commit: str
    """The commit that fixed the bug; empty if the code never had it."""
    found: int | Scenario
    """A seed whose run shows the bug, or a scenario made by hand."""

    @property
    def scenario(self) -> Scenario:
        """The scenario whose run shows the bug."""
        return drawn(self.found) if isinstance(self.found, int) else self.found

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Plant the bug while the context is active."""
        assert isinstance(self.function, FunctionType)
        source = textwrap.dedent(inspect.getsource(self.function))
        assert source.count(self.fixed) == 1, f"{self.what}: {self.function.__qualname__} has changed"
        scope: dict[str, Any] = {}
        code = compile(source.replace(self.fixed, self.before), f"<planted: {self.what}>", "exec", dont_inherit=True)
        exec(code, self.function.__globals__, scope)
        (changed,) = scope.values()
        sound, self.function.__code__ = self.function.__code__, getattr(changed, "__func__", changed).__code__
        try:
            yield
        finally:
            self.function.__code__ = sound


PLANTED = (
    Planted(
        "a member that leaves a leg just when its feeder dies is never let go",
        worker.without_feeder,
        "return Unassign(members=names)",
        "return None",
        "5a0bebf",
        1054,
    ),
    Planted(
        "a run whose members wait only to be saved cannot be planned",
        planning.best_with_known_epochs,
        "max(math.ceil(max(situation.epochs_left.values(), default=1) / MOST_EPOCHS), 1)",
        "math.ceil(max(situation.epochs_left.values(), default=1) / MOST_EPOCHS)",
        "5a0bebf",
        1196,
    ),
    Planted(
        "a feeder waits for a trainer whose member had ended before it was lost",
        CarryOut._remove,
        "(removed or device in leg.readers)",
        "removed",
        "5a0bebf",
        2869,
    ),
    Planted(
        "all nodes but one that is not open yet are gone, and the cluster is empty",
        LegStarts.update_cluster,
        "opened or nodes",
        "opened",
        "5a0bebf",
        9362,
    ),
    Planted(
        "the costs of a resting member whose measuring trainer was lost are never known",
        Measurements.measure_unknown,
        "new.union(self.members.waiting)",
        "new",
        "5a0bebf",
        2158,
    ),
    Planted(
        "a feeder that is lost before it has opened the data is not started again",
        Faults.handle_lost,
        "self.pool.free_team(self.pool.devices, ())",
        "pass",
        "9497b67",
        7,
    ),
    Planted(
        "a trainer that was started again gets its assignment before it reads from its feeder",
        CarryOut._start,
        "self.pool.attach(leg.feeders, device)",
        "pass",
        "fe4ee7b",
        0,
    ),
    Planted(
        "a member that a command stops while it waits to start is trained to its end",
        CarryOut._start,
        "if stopped:",
        "if False:",
        "fefc2eb",
        STOPPED_AT_START,
    ),
    Planted(
        "a member that waits to start starts in the middle of a regrouping",
        CarryOut.regroup,
        "leg.starting.clear()",
        "pass",
        "ddd80b0",
        495,
    ),
    Planted(
        "a hold ends before what was credited",
        LiveLeg.held,
        "max(self.credit, self.certain)",
        "self.certain",
        "a492612",
        70,
    ),
    Planted(
        "a hold gives credit beyond the sections that all members surely train",
        LiveLeg.held,
        "self.until = min(self.until, max(self.credit, self.certain))",
        "pass",
        "772ccda",
        235,
    ),
    Planted(
        "a member that had trained enough when its driver was killed is forgotten by the next one",
        Driver.drive,
        "self.carry_out.settle_undecided()",
        "pass",
        "7ffcbd7",
        50,
    ),
    Planted(
        "a run whose driver was killed when all was done is never reported as done",
        Driver.end,
        "or untold",
        "",
        "93d5f3e",
        50,
    ),
    Planted(
        "members that were leaving a trainer that is lost while others are measured wait for ever",
        Faults.handle_lost,
        "self.carry_out.resume_or_end(self.carry_out.drop_unsaved(worker))",
        "self.carry_out.drop_unsaved(worker)",
        "14bb73e",
        LOST_WHILE_MEASURING,
    ),
    Planted(
        "resting members do not outlive their driver",
        Members.begin,
        "State.RESTING if name in resting",
        "State.ENDED if name in resting",
        "f0e3e3d",
        17,
    ),
    Planted(
        "a member that ends while it is leaving is still to leave",
        CarryOut.end,
        "self.members.end(member)",
        "self.members.leaving_of(member) or self.members.end(member)",
        "14bb73e",
        0,
    ),
    Planted(
        "a member joins a leg with an epoch of the stream that is behind it",
        Positions._first_unbegun,
        "p.stream_epoch + (not p.is_at_epoch_end)",
        "p.stream_epoch - 1",
        "",
        162,
    ),
    Planted(
        "files go that are journaled and younger than the one that is settled",
        KeptFiles.note_journaled,
        "kept = (*self._settled, *self._unsettled)",
        "kept = self._settled[-1:]",
        "",
        0,
    ),
    Planted(
        "what is acted on is not on the disk yet",
        append_flushed,
        "os.fdatasync(descriptor)",
        "pass",
        "",
        336,
    ),
    Planted(
        "a command that comes while blocks are kept makes a trainer forget them",
        Trainer._follow,
        "if number > assignment or self.kept:",
        "if number > assignment + 1 or self.kept:",
        "",
        7,
    ),
    Planted(
        "a member that has failed on one rank is reported as training when another rank has started it",
        Driver._handle_report,
        "if self.members.state(event.member) is State.ENDED:",
        "if False:",
        "fbae0dc",
        689,
    ),
    Planted(
        "a rank steps the next members on the block that it had for a member that ended elsewhere",
        Trainer._assign,
        "self.at_hand = None",
        "",
        "6502672",
        1369,
    ),
    Planted(
        "the file that members were added from is not on the disk yet when that is journaled",
        StudyCopy.take.__func__,
        "durable=True",
        "durable=False",
        "a50c22b",
        1601,
    ),
    Planted(
        "sums are timed over the one device that is left",
        Measurements._time_sums,
        "len(devices) < 2 or",
        "",
        "2d760f5",
        899,
    ),
)
