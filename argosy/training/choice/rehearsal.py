"""Measures a fusion group's candidates on copies of its members, if the bits of their results show which programs stepped them.

So such members have the same programs from their first step on, in a machine's first run as in later runs, which reuse its choice.
"""

import time
from collections.abc import Sequence

from argosy.stream.blocks import Block
from argosy.training.choice.copies import fill_block, restart_cutters
from argosy.training.choice.fused_check import have_own_batches
from argosy.training.choice.fusion_group import ALONE, STEPS, FusionGroup, Kind, divide_evenly
from argosy.training.choice.measure import state_bytes
from argosy.training.device.clock import Stopwatch
from argosy.training.member.live import BatchLengths, LiveMember
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.program import Program
from argosy.training.programs.solo import Solo

__all__ = ["needs_copies", "make_program", "rehearse"]

MAX_COPIED_BYTES = 256 << 20
"""Largest memory of members that are copied; for larger ones, the first rounds of training are measured instead."""
SECONDS = 0.05
"""Measured time after which a candidate's cost is known; short, because time spent on copies is lost to training."""
ROUND_SECONDS = 0.1
"""Time after which a round makes no further step."""


def make_program(lives: Sequence[LiveMember], kind: Kind, lengths: BatchLengths | None = None) -> Program:
    """Return the uncaptured program of several members, or of one."""
    if len(lives) == 1:
        return Solo(lives[0])
    return Grouped.of(lives, lengths) if kind == "grouped" else Fused.of(lives, lengths=lengths)


def needs_copies(group: FusionGroup, lives: Sequence[LiveMember]) -> bool:
    """Return whether to measure on copies: for plain programs on the host that round differently from members alone."""
    return (
        group.lengths is None
        and tuple(group.kinds) == (ALONE.kind,)
        and lives[0].backend.device.type == "cpu"
        and sum(map(state_bytes, lives)) <= MAX_COPIED_BYTES
    )


def rehearse(group: FusionGroup, lives: Sequence[LiveMember], block: Block) -> None:
    """Measure the group's candidates on a block of training samples until all costs are known; `lives` stay unchanged.

    Errors of a step propagate; the group's present candidate is then the one that raised.
    """
    group.try_seconds = SECONDS
    count, length, own = len(lives), lives[0].usual_batch, have_own_batches(lives)[0]
    warm_up, timed = (fill_block(block, steps * length, apart=own) for steps in (1, STEPS))
    copies = [live.trial() for live in lives]
    for copied in copies:
        copied.schedule = None  # one that steps with each batch may have fewer steps than are measured
    programs: list[Program] = []
    while True:
        wanted = group.next(count)
        if wanted != group.now:
            group.switch_to(wanted)
            for program in programs:
                program.release()
            programs = []
        if not group.needs_measuring(count):
            return
        if not programs:
            programs = [make_program(part, wanted.kind) for part in divide_evenly(copies, wanted.size)]
        shown = warm_up if group.warms_up else timed
        restart_cutters(copies, shown, length, apart=own)
        watch, samples = Stopwatch(copies[0].backend), 0
        for program in programs:
            samples += _run_round(program, shown)
            if group.alike and watch.seconds > ROUND_SECONDS:
                break  # of thousands of members one after another, the first ones show what all cost
        group.note(watch.seconds, samples)


def _run_round(program: Program, block: Block) -> int:
    """Make the steps of one round on a block; returns their number of samples."""
    until = time.perf_counter() + ROUND_SECONDS
    with program.active():
        samples = 0
        for batch in program.cut(block):
            program.begin(batch)
            samples += program.finish()
            if time.perf_counter() > until:
                break
    return samples
