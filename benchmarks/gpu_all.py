"""Checks all claims about GPUs on one GPU: all sections, or a part that takes at most ten minutes.

    python benchmarks/gpu_all.py [--part 1|2|3] [--rehearse] [--json]

Each part is useful alone. It skips sections that today's results say hold, so the same command continues a run that was
cut off. Part 1: members train, end alone and wait for nothing. Part 2: memory, split members, packs, captured steps and
sums are right. Part 3: the gains. ``--rehearse`` runs all three without a GPU, on `tests/rehearsed.py`.

Sections: members together equal members alone; a resumed run equals an uninterrupted one; a killed trainer is replaced;
a kernel that asserts ends only its member; measured memory against torch's count; how a card is given to a process
(`gpu_given.py`); members' seconds; steps that wait for nothing; blocks copied from the pinned ring while the device
works; members on several ranks; sums by NCCL; packs and captured steps (`gpu_packs.py`); the demo's networks against a
CPU. It needs only torch, numpy and Argosy's own requirements; without scikit-learn the demo's networks get synthetic
digits. Without a GPU, or with ``--devices cpu:2``, everything is smaller. Appends to ``results/<date>_<hardware>.md``.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import torch
from measuring import hardware
from torch import nn
from torch.optim import SGD, Adam, AdamW

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpu_given
import gpu_packs
import gpu_unlike
import packs
from gpu_site import (
    MIB,
    Outcome,
    Site,
    data,
    differences,
    digits,
    dropping,
    equal,
    events,
    exactly,
    members,
    study,
    together,
)
from groups import Placed, distance, trained

import argosy
from argosy import api
from argosy.cli import demo
from argosy.settings import Settings
from argosy.stream.blocks import Block, Layout, Place
from argosy.stream.ring import Ring, RingReader
from argosy.stream.wire import Peer
from argosy.training.device.copies import DeviceCopies
from argosy.training.device.devices import Backend, open_backend
from argosy.training.device.recorders import has_recorder, make_recorder
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.shard.ends import HOST
from argosy.training.programs.solo import Solo

TESTS = Path(__file__).resolve().parent.parent / "tests"
RESULTS = Path(__file__).parent / "results"


# ---- sections


def together_is_alone(site: Site) -> Outcome:
    """Compare members trained together with each of them trained alone."""
    found: dict[str, float] = {}
    for member in members():
        alone = exactly(site, study(site, [member]), f"alone-{member.name}")
        found |= differences(together(site), alone, [member.name])
    return equal(found)


def resumed_is_uninterrupted(site: Site) -> Outcome:
    """Compare one epoch, continued by the same command with more epochs, with `together`."""
    for epochs in (1, 3):
        resumed = exactly(site, study(site, members(), epochs), "resumed")
    return equal(differences(together(site), resumed, [member.name for member in members()]))


def dawdle(batch: Any) -> Any:
    """Give the kill below time to happen."""
    time.sleep(0.01)
    return batch


def a_killed_trainer_is_replaced(site: Site) -> Outcome:
    """Kill a trainer after the first section; the results must be those of an undisturbed run."""
    run, killed = site.folder / "killed", threading.Event()
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.01):
            if events(run, "SectionEnded"):
                for process in psutil.Process().children(recursive=True):
                    if process.name().startswith("argosy-trainer"):
                        process.kill()
                        killed.set()
                        return

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        exactly(site, study(site, members(augment=dawdle)), "killed")
    finally:
        over.set()
        killer.join()
    outcome = equal(differences(together(site), run, [member.name for member in members()]))
    lost = [line["at"] for line in events(run, "WorkerLost")]
    again = [line["at"] for line in events(run, "MemberStarted") if lost and line["at"] > lost[0]]
    seconds = round(again[0] - lost[0], 2) if again else None
    figures = {**outcome.figures, "trainers lost": len(lost), "seconds until a member went on": seconds}
    return Outcome(holds=outcome.holds and killed.is_set() and len(lost) == 1, figures=figures)


class Asserting(nn.Module):
    """Reads beyond the end of a table after `after` steps: a kernel asserts, of which the host learns later. A CPU raises at once."""

    steps: torch.Tensor
    table: torch.Tensor

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after
        self.classify = dropping(48)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("table", torch.zeros(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        logits: torch.Tensor = self.classify(inputs) + self.table[9 * (self.steps > self.after).view(1)]
        return logits


def a_kernel_that_asserts_ends_its_member_alone(site: Site) -> Outcome:
    """Train a member whose steps make the device unusable at some point; it ends, and the others end as they do without it."""
    asserts = argosy.Member("asserts", model=partial(Asserting, 20), optimizer=Adam, batch_size=32)
    run = exactly(site, study(site, [*members(), asserts]), "asserts")
    outcome = equal(differences(together(site), run, [member.name for member in members()]))
    ended = [line["status"] for line in events(run, "MemberEnded") if line["member"] == "asserts"]
    lost = len(events(run, "WorkerLost"))
    figures = {**outcome.figures, "it ended as": ", ".join(ended), "trainers lost": lost}
    return Outcome(holds=outcome.holds and ended == ["failed"] and site.real <= lost <= 2, figures=figures)


def memory_is_what_torch_counts(site: Site) -> Outcome:
    """Compare the memory in members' profiles with the most that torch counts in a loop of their own."""
    backend = open_backend(site.device)
    if backend.memory_in_use() is None:
        return Outcome(holds=True, figures={"memory": f"not counted on {site.device}"})
    inputs, target = (t.to(backend.device) for t in demo.normalize(digits(512, 3)))
    fleet = [
        argosy.Member("wide", model=partial(dropping, hidden=4096), optimizer=Adam, batch_size=512),
        argosy.Member("resnet", model=partial(demo.resnet, width=32), optimizer=Adam, batch_size=512),
    ]
    asked = study(site, fleet, 1)
    said = {p.member: p.memory_bytes for p in api.profile(asked, settings=Settings(devices=site.device)).profiles}
    ratios = {}
    for member in fleet:
        before = _memory_in_use(backend)
        model = member.model().to(backend.device)
        optimizer = member.optimizer(model.parameters())
        for _ in range(3):
            backend.reset_peak()
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(inputs), target).backward()
            optimizer.step()
        backend.synchronize()
        ratios[member.name] = round(said[member.name] / ((backend.peak_memory() or 0) - before), 3)
        del model, optimizer
    return Outcome(holds=all(0.9 <= ratio <= 1.3 for ratio in ratios.values()), figures={"said / counted": ratios})


def _memory_in_use(backend: Backend) -> int:
    """Return the memory in use after work that lets libraries allocate their work space, also in the thread of backward passes."""
    ones = torch.ones(64, 64, device=backend.device, requires_grad=True)
    (ones @ ones).sum().backward()
    del ones
    return backend.memory_in_use() or 0


def steps_wait_for_nothing(site: Site) -> Outcome:
    """Step members of each kind alone and as packs, with torch raising an error if a step waits for the device."""
    backend = open_backend(site.device)
    if not site.real or not has_recorder(backend):
        # A CPU's operators read values themselves; tests/training/test_waits.py looks for waits on torch's meta device.
        return Outcome(holds=True, figures={"waits": f"torch reports none on {site.device}"})
    found = {}
    for kind, more in packs.UNWAITING.items():
        for count, holes in ((1, ()), (1, (3, 15, 40, 70)), (3, ())):
            lives = [packs.live(packs.member(f"m{n}", **more), site.device) for n in range(count)]
            program = Fused.of(lives) if count > 1 else Solo(lives[0])
            try:
                packs.step_through(make_recorder(backend).strict, program, holes=holes)
            except RuntimeError as error:
                found[f"{count} x {kind}{', broken samples' if holes else ''}"] = str(error)
    return Outcome(holds=not found, figures={"waits": found})


def seconds_are_the_devices(site: Site) -> Outcome:
    """Compare the seconds of unlike members in their last section with the time that has passed since the section before."""
    models = {"light": partial(dropping, hidden=64), "heavy": partial(demo.resnet, width=128 if site.real else 8)}
    sgd = partial(SGD, lr=0.02)
    fleet = [argosy.Member(name, model=model, optimizer=sgd, batch_size=256) for name, model in models.items()]
    run = site.train(study(site, fleet, 6), "seconds", devices=site.one, numerics="exact")
    lines = events(run, "SectionEnded")
    passed = max(line["at"] for line in lines[-2:]) - max(line["at"] for line in lines[-4:-2])
    seconds = {line["member"]: round(line["seconds"], 4) for line in lines[-2:]}
    share = round(sum(seconds.values()) / passed, 3)
    return Outcome(holds=not site.real or 0.7 <= share <= 1.05, figures={"share of the time": share, **seconds})


def copies_pass_beside_steps(site: Site) -> Outcome:
    """Measure how much of the copies' time is hidden behind steps, from a ring that is pinned and from one that is not."""
    backend = open_backend(site.device)
    if not backend.apart:
        return Outcome(holds=True, figures={"copies": f"none on {site.device}"})
    figures = {
        words: _hidden(backend, pin, small=not site.real)
        for words, pin in (("unpinned", None), ("pinned", backend.pin))
    }
    return Outcome(holds=not site.real or figures["pinned"]["share hidden"] >= 0.7, figures=figures)


def _hidden(backend: Backend, pin: Any, *, small: bool) -> dict[str, float]:
    """Return the seconds of blocks alone, of about as many seconds of steps alone, and of both at once."""
    size, blocks, side = (MIB, 12, 128) if small else (32 * MIB, 60, 4096)
    weights = torch.randn(side, side, device=backend.device)
    feeder = _Feeder(size, pin)

    def steps(count: int) -> None:
        for _ in range(count):
            torch.mm(weights, weights)

    def through(each: int) -> None:
        copies = DeviceCopies(backend)
        for _ in range(blocks):
            copies.start(feeder.block(copies))
            steps(each)
        copies.finish()

    def seconds(work: Callable[..., None], *arguments: int) -> float:
        def once() -> float:
            backend.synchronize()
            started = time.perf_counter()
            work(*arguments)
            backend.synchronize()
            return time.perf_counter() - started

        return min(once() for _ in range(1 if small else 4))

    copying = seconds(through, 0)
    each = 1 if small else max(1, round(copying / blocks / (seconds(steps, 50) / 50)))
    stepping, both = seconds(steps, each * blocks), seconds(through, each)
    feeder.close()
    return {
        "GiB/s": round(size * blocks / copying / 2**30, 2),
        "copies s": round(copying, 4),
        "steps s": round(stepping, 4),
        "both s": round(both, 4),
        "share hidden": round((copying + stepping - both) / min(copying, stepping), 3),
    }


class _Feeder:
    """A feeder with one reader in this process, whose blocks are always ready."""

    def __init__(self, size: int, pin: Any) -> None:
        self.layout = Layout.of(torch.zeros(1024))
        self.rows = size // 4096
        self.ring = Ring(slots=6, slot_bytes=self.layout.block_bytes(self.rows))
        self.peer, theirs = Peer.pair()
        self.ring.lend(self.peer, {"train": self.layout}, {"train": self.rows})
        self.reader = RingReader(theirs, pin=pin)
        self.free = list(range(self.ring.slots))
        for slot in self.free:
            self.ring.slot(slot)[:] = 0

    def block(self, copies: DeviceCopies) -> Block:
        """Return the next block as soon as a slot is free."""
        while not self.free:
            copies.release_done()
            self.free += self.peer.receive()
        place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=self.rows, last=False)
        self.peer.send((self.free.pop(0), place, 0, False, ()))
        ((block, _),) = self.reader.blocks()
        return block

    def close(self) -> None:
        """Close the connection."""
        self.reader.close()
        self.peer.close()


def split_is_alone(site: Site) -> Outcome:
    """Compare a member on ranks, here threads, with the member alone: ranks on one device sum in host memory, others as groups do in runs."""
    optimizer = partial(AdamW, lr=4e-3, weight_decay=0.1)
    one = packs.member("m", batch_size=63, accumulate=2, optimizer=optimizer, clip_grad_norm=0.1)
    here, kind = (lambda number: site.device), site.devices.partition(":")[0]
    ways: dict[str, tuple[tuple[float, ...], Callable[[int], str], torch.device | None]] = {
        "one rank": ((1.0,), here, None),
        "two ranks of a device": ((0.3, 0.7), here, HOST),
    }
    if len(open_backend(site.device).hardware(kind)) > 1:
        ways["two devices"] = ((0.3, 0.7), f"{kind}:{{}}".format, None)
    (solo,) = trained([Placed(one)], site.folder, epochs=3, places=here)["m"]
    gaps = {}
    for words, (shares, places, on) in ways.items():
        folder = site.folder / f"split, {words}"
        folder.mkdir()
        placed = Placed(one, tuple(range(len(shares))), shares)
        lives = trained([placed], folder, epochs=3, places=places, on=on)["m"]
        gaps[words] = max(distance(live, solo) for live in lives)
    return Outcome(holds=max(gaps.values()) <= 1e-9, figures={"relative distance from the member alone": gaps})


def the_demo_is_as_good_as_on_a_cpu(site: Site) -> Outcome:
    """Compare the best accuracies of the demo's eight networks with those on a CPU."""
    there = find_spec("sklearn") and find_spec("PIL") and site.real
    asked = argosy.Study(
        data=demo.study.data if there else data(site),
        members=demo.study.members if site.real else demo.study.members[:2],
        stop=argosy.MaxEpochs(4 if site.real else 1),
        objective="val_accuracy",
        mode="max",
    )
    best: dict[str, dict[str, float]] = {}
    for words, devices in (("cpu", "cpu"), ("device", site.devices)):
        report = argosy.load(site.train(asked, f"demo-{words}", devices=devices), study=asked)
        best[words] = {row.name: row.metrics["val_accuracy"] for row in report.rows}
    gaps = {name: round(best["device"][name] - best["cpu"][name], 4) for name in best["cpu"]}
    worst = min(gaps.values())
    return Outcome(holds=worst >= -0.05, figures={"data": "digits" if there else "made up", "gaps": gaps, **best})


PARTS: tuple[tuple[Callable[[Site], Outcome], ...], ...] = (
    # Part 1: members train, and wait for nothing.
    (
        together_is_alone,
        resumed_is_uninterrupted,
        a_killed_trainer_is_replaced,
        a_kernel_that_asserts_ends_its_member_alone,
        steps_wait_for_nothing,
        seconds_are_the_devices,
        copies_pass_beside_steps,
        gpu_given.the_command_leaves_the_card_to_its_trainers,
        gpu_given.variables_say_which_cards_are_seen,
        gpu_given.a_card_in_parts_is_counted_as_what_one_sees,
        gpu_given.nothing_needs_nvml,
        gpu_given.two_trainers_share_a_card,
    ),
    # Part 2: memory, packs, captured steps and sums are right.
    (
        memory_is_what_torch_counts,
        split_is_alone,
        gpu_packs.packs_are_their_members_one_after_another,
        gpu_packs.resumed_packs_are_uninterrupted,
        gpu_packs.a_pack_beyond_memory_trains_all,
        gpu_packs.captured_steps_are_plain_ones,
        gpu_packs.sums_are_made_on_the_device,
    ),
    # Part 3: the gains.
    (
        gpu_unlike.sixty_four_unlike_mlps_are_one_captured_program,
        gpu_unlike.sixty_four_unlike_mlps_are_stepped_by_muon,
        gpu_packs.the_ladder,
        gpu_packs.unlike_members_step_side_by_side,
        the_demo_is_as_good_as_on_a_cpu,
    ),
)


# ---- the whole


def words(section: Callable[[Site], Outcome]) -> str:
    """Return a section's name as words."""
    return section.__name__.replace("_", " ")


def run(section: Callable[[Site], Outcome], site: Site) -> dict[str, Any]:
    """Run one section and print its outcome; an exception means that it does not hold."""
    started = time.perf_counter()
    try:
        outcome = section(site)
    except Exception:  # the other sections may still hold
        outcome = Outcome(holds=False, figures={"error": traceback.format_exc()})
    what = words(section)
    seconds = round(time.perf_counter() - started, 1)
    print(f"{'holds' if outcome.holds else 'FAILED'}: {what} ({seconds} s) {json.dumps(outcome.figures)}", flush=True)
    return {"what": what, "holds": outcome.holds, "seconds": seconds, "figures": dict(outcome.figures)}


def results_of_today(site: Site, folder: Path) -> Path:
    """Return the file of results for this hardware and day."""
    name = (
        torch.cuda.get_device_name() if site.real and torch.cuda.is_available() else f"{psutil.cpu_count()} cores cpu"
    )
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return folder / f"{datetime.date.today()}_{slug}.md"


def heading(site: Site) -> str:
    """Return the first line of a table of these devices."""
    return f"## `benchmarks/gpu_all.py --devices {site.devices}`"


def begin(path: Path, site: Site) -> None:
    """Begin a table."""
    lines = [
        "",
        heading(site),
        "",
        f"{hardware()}.",
        "",
        "| section | holds | seconds | figures |",
        "|---|---|---|---|",
        "",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("\n".join(lines))


def write(row: Mapping[str, Any], path: Path) -> None:
    """Append a section's line as soon as it is known, so that a command that is cut off loses only the section it was in."""
    figures = json.dumps(row["figures"]).replace("|", "\\|")
    with path.open("a") as file:
        file.write(f"| {row['what']} | {'yes' if row['holds'] else 'NO'} | {row['seconds']} | `{figures}` |\n")


def held_today(path: Path, site: Site) -> set[str]:
    """Return the sections that a file says hold on these devices."""
    tables = path.read_text().split("\n## ") if path.exists() else []
    lines = [
        line for table in tables if heading(site) in f"## {table.removeprefix('## ')}" for line in table.splitlines()
    ]
    return {line.split(" | ")[0].removeprefix("| ") for line in lines if " | yes | " in line}


def rehearse(results: Path) -> int:
    """Run all parts on stand-in devices that work late, as accelerators do, and whose steps can be captured."""
    environment = {
        **os.environ,
        "ARGOSY_DEVICES": "rehearsed",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, __file__, "--devices", "late:0", "--results", str(results)]
    started, parts = time.perf_counter(), range(1, len(PARTS) + 1)
    worst = max(subprocess.run([*command, "--part", str(n)], env=environment, check=False).returncode for n in parts)
    print(f"all parts in {taken(started)}")
    return worst


def taken(started: float) -> str:
    """Return the time since then and the processor time, which says more on a busy machine."""
    return f"{time.perf_counter() - started:.0f} s, {sum(os.times()[:4]):.0f} s of a processor"


def main() -> int:
    """Run the chosen sections, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--devices", default="cuda" if torch.cuda.is_available() else "cpu:2")
    parser.add_argument("--part", type=int, choices=range(1, len(PARTS) + 1), help="sections of at most ten minutes")
    parser.add_argument("--rehearse", action="store_true", help="all parts on a CPU that behaves like an accelerator")
    parser.add_argument("--only", action="append", help="sections with this word in their names; may be repeated")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the table")
    options = parser.parse_args()
    if options.rehearse:
        return rehearse(options.results)
    started, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory(prefix="argosy-gpu-") as folder:
        site = Site(devices=options.devices, folder=Path(folder))
        path = results_of_today(site, options.results)
        wanted = PARTS[options.part - 1] if options.part else chain.from_iterable(PARTS)
        held = held_today(path, site) if options.part else set()
        begin(path, site)
        for section in wanted:
            if words(section) in held:
                print(f"held today: {words(section)}", flush=True)
            elif not options.only or any(word in section.__name__ for word in options.only):
                rows.append(run(section, site))
                write(rows[-1], path)
    print(f"{taken(started)}; written to {path}")
    if options.json:
        print(
            json.dumps({"benchmark": "gpu_all", "hardware": hardware(), "devices": options.devices, "sections": rows})
        )
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
