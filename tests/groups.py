"""Flotillas whose devices are threads of this process: members on one or several of them, in groups like those of trainers."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packs
import torch
from blocks import blocks
from torch import Tensor

from argosy.stream.blocks import Block
from argosy.stream.schedule import Orders
from argosy.study import Member
from argosy.training.device.copies import DeviceCopies
from argosy.training.member.live import LiveMember
from argosy.training.programs.shard.ends import sum_device
from argosy.training.programs.shard.parallel import Group
from argosy.training.programs.shard.shard import Shard
from argosy.training.programs.solo import Solo
from argosy.training.trainer.merged import Move, moves

__all__ = ["Placed", "distance", "steps", "trained"]


@dataclass(frozen=True)
class Placed:
    """A member with the numbers of its devices and its shares in the same order; without shares one device has all of it."""

    member: Member
    devices: tuple[int, ...] = (0,)
    shares: tuple[float, ...] = ()


def trained(
    placed: Sequence[Placed],
    folder: Path,
    *,
    epochs: int = 1,
    places: Callable[[int], str] = "cpu:{}".format,
    on: torch.device | None = None,
    **how: Any,
) -> dict[str, list[LiveMember]]:
    """Train with a thread for each device; returns each member's state on each of its ranks.

    `places` gives the name of a device by its number, and may give several numbers the same name. Groups sum gradients where trainers would,
    or on the device `on`.
    """
    devices = sorted({device for one in placed for device in one.devices})
    lives: dict[str, list[LiveMember]] = {one.member.name: [] for one in placed}
    programs: dict[int, dict[str, Any]] = {device: {} for device in devices}
    for number, one in enumerate(placed):
        for rank, device in enumerate(one.devices):
            live = packs.live(one.member, places(device))
            lives[one.member.name].append(live)
            rendezvous, where = str(folder / one.member.name), on or sum_device(live.backend.device)
            programs[device][one.member.name] = (
                Shard(live, Group.form(rendezvous, rank, len(one.devices), on=where), one.shares, number=number)
                if one.shares
                else Solo(live)
            )
    _at_once([lambda mine=mine: _train(mine, epochs, **how) for mine in programs.values()])
    for mine in programs.values():
        for program in mine.values():
            program.release()
    return lives


def _at_once(actions: Sequence[Callable[[], None]]) -> None:
    """Run each action on its own thread; raises the first error of any."""
    raised: list[BaseException] = []

    def guarded(action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not raised:
            thread.join(0.05)
    if raised:
        raise raised[0]


def _train(
    programs: dict[str, Any], epochs: int, *, size: int = 40, data: Any = None, holes: Sequence[int] = ()
) -> None:
    arrays, val = data or packs.samples()
    backend = next(iter(programs.values())).live.backend
    backend.activate()
    copies = DeviceCopies(backend)
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    for epoch in range(epochs):
        for program in programs.values():
            program.live.begin_epoch(orders, epoch)
        for block in blocks(orders.epoch("train", epoch), size, arrays=arrays, epoch=epoch, holes=holes):
            for _ in steps(programs, copies.start(block)):
                pass
        for block in blocks(orders.epoch("val", epoch), size, arrays=val, split="val"):
            for program in programs.values():
                with program.active(keep=True):
                    for _ in program.evaluate(copies.start(block)):
                        pass
        for program in programs.values():
            program.live.end_section(1)
    copies.finish()


def steps(programs: dict[str, Any], block: Block) -> Iterator[Move]:
    """Make all moves on a block, and yield each one after it is made."""
    splits = {name: program for name, program in programs.items() if isinstance(program, Shard)}
    whole = [(p, batch) for p in programs.values() if not isinstance(p, Shard) for batch in p.cut(block)]
    cuts = {name: split.cut(block) for name, split in splits.items()}
    for move, name in moves(splits, block, lambda: bool(whole)):
        if move is Move.WAIT:
            time.sleep(0.0005)
        elif move is Move.WHOLE:
            program, batch = whole.pop(0)
            with program.active():
                program.begin(batch)
                program.finish()
        else:
            with splits[name].active():
                splits[name].begin(next(cuts[name])) if move is Move.BEGIN else splits[name].finish()
        yield move
    for rest in cuts.values():
        assert next(rest, None) is None


def distance(one: LiveMember, other: LiveMember) -> float:
    """Return the largest relative L2 distance between a tensor of one member and that of another."""
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return max(_relative(mine, theirs) for mine, theirs in pairs)


def _relative(one: Tensor, other: Tensor) -> float:
    return float((one.cpu().double() - other.cpu().double()).norm() / other.cpu().double().norm())
