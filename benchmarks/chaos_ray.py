"""Seeded fault campaign on a Ray cluster of three raylets on this machine: every run must end with the weights of an undisturbed one.

Each run meets 1 to 3 faults at random moments: a raylet is killed and another one started; or an agent's process (Ray's
actor), one of its workers, or the driver is killed, and in the last case the same command follows at once. A run trains
until it has met all of its faults, and must leave nothing on the cluster, which all runs share as on real clusters. The
head's raylet is spared, since Ray itself would end with it. Some runs must have used a raylet that was started
meanwhile. Needs Ray.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from measuring import hardware

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import evidence
from family import repeats_at_most_one_interval
from ray_runs import RayRun
from raylets import Raylets

from argosy.running.directory.audit import audit

OTHERS = 2
"""Raylets besides the head's."""
ROLES = ("raylet", "agent", "worker", "driver")
LATEST_SECONDS = 5.0
"""The latest moment of a fault, counted from the first section that ends after the fault before."""
USED_SECONDS = 120.0
"""How long to wait until a new node is used, in runs that wait for it."""
PATIENCE_SECONDS = 300.0
ORPHANS_SECONDS = 10.0


class Study(RayRun):
    """One run, by one driver after another."""

    def __init__(self, folder: Path, address: str) -> None:
        folder.mkdir()
        super().__init__(folder, address, members=6, epochs=150, checkpoint_seconds=0.2)

    @property
    def uses_who_came(self) -> bool:
        """Return whether a member has ended a section on a node that came later."""
        came = {str(line["node"]) for line in self.lines("NodeCame")}
        return bool(came & {str(line["device"]).partition("/")[0] for line in self.lines("SectionEnded")})

    def until_section(self, latest: float) -> bool:
        """Wait for the end of a section and then for some time; return False if the run ends before."""
        seen, now = len(self.lines("SectionEnded")), time.monotonic()
        moment, deadline = now + latest, now + PATIENCE_SECONDS
        while len(self.lines("SectionEnded")) == seen or time.monotonic() < moment:
            if self.driver.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def end(self) -> str:
        """Let the run finish quickly, and return what went wrong."""
        self.hurry.touch()
        try:
            code = self.driver.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            code = self.driver.wait()
        return f"exit code {code}: {self.said[-2000:]}" if code else ""


class Campaign:
    """One cluster, and the faults that its runs meet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Raylets(OTHERS, head_cpus=1)
        self.living = list(range(1, OTHERS + 1))
        self.started = OTHERS
        self.expected: dict[str, object] = {}
        """The results of an undisturbed run in one process."""
        self.used = 0
        """Runs that used a node that came later."""

    def one_run(self, seed: int) -> tuple[list[str], list[str]]:
        """Return the faults that happened, and what is wrong."""
        dice, study = random.Random(seed), Study(self.folder / f"seed-{seed}", self.cluster.address)
        happened = list[str]()
        for _ in range(dice.randint(1, 3)):
            if not study.until_section(dice.uniform(0.0, LATEST_SECONDS)):
                return happened, [f"no section in time, or no run: {study.end()}"]
            happened.append(dice.choice(ROLES))
            self._hurt(happened[-1], study, dice)
        failed = study.end()
        self.used += study.uses_who_came
        return happened, [failed] if failed else self._wrong(study)

    def _hurt(self, role: str, study: Study, dice: random.Random) -> None:
        if role == "driver":
            study.driver.kill()
            study.driver.wait()
            study.start()
        elif role == "raylet":
            victim = dice.choice(self.living)
            self.living.remove(victim)
            self.cluster.tell(f"kill {victim}")
            self.cluster.tell("add")
            self.started += 1
            self.living.append(self.started)
            deadline = time.monotonic() + USED_SECONDS * dice.randint(0, 1)
            while time.monotonic() < deadline and study.driver.poll() is None and not study.uses_who_came:
                time.sleep(0.1)
        elif found := self._processes("ray::_Agent" if role == "agent" else "argosy-"):
            with contextlib.suppress(psutil.NoSuchProcess):
                dice.choice(found).send_signal(signal.SIGKILL)

    def _wrong(self, study: Study) -> list[str]:
        found = audit(study.directory)
        if evidence.results(study.directory) != self._faultless(study):
            found.append("results differ from the faultless run")
        if not repeats_at_most_one_interval(study.directory):
            found.append("a member repeated more than one checkpoint interval")
        deadline = time.monotonic() + ORPHANS_SECONDS
        while left := self._processes("argosy-"):
            if time.monotonic() > deadline:
                return [*found, f"{len(left)} processes left behind"]
            time.sleep(0.1)
        return found

    def _faultless(self, study: Study) -> dict[str, object]:
        if not self.expected:
            self.expected = study.faultless()
        return self.expected

    def _processes(self, name: str) -> list[psutil.Process]:
        """Return processes by name: Ray names actors after what they do, and Argosy its workers after their roles."""
        found = []
        for process in self.cluster.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith(name) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a new folder in which the runs are kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print(hardware(), flush=True)
    wrong: list[str] = []
    faults: Counter[str] = Counter()
    with contextlib.ExitStack() as last_first:
        folder = options.keep
        if folder is None:
            folder = Path(last_first.enter_context(tempfile.TemporaryDirectory(prefix="argosy-chaos-ray-")))
        else:
            folder.mkdir()
        campaign = Campaign(folder)
        last_first.callback(campaign.cluster.close)
        for seed in range(options.first_seed, options.first_seed + options.runs):
            began = time.monotonic()
            happened, found = campaign.one_run(seed)
            faults.update(happened)
            wrong += [f"seed {seed} ({', '.join(happened)}): {text}" for text in found]
            seconds = time.monotonic() - began
            print(f"seed {seed}, {seconds:.0f} s: {', '.join(happened)}: {'; '.join(found) or 'ok'}", flush=True)
    print(
        f"{options.runs} runs, {faults.total()} faults {dict(faults)}, {campaign.used} runs used a node that came: {len(wrong)} wrong"
    )
    if options.json:
        figures = {"runs": options.runs, "faults": dict(faults), "used_nodes_that_came": campaign.used, "wrong": wrong}
        none = {
            "what": "runs that differ from the faultless one",
            "value": len(wrong),
            "target": "== 0",
            "holds": not wrong,
        }
        some = {
            "what": "runs that used a node that came",
            "value": campaign.used,
            "target": ">= 1",
            "holds": campaign.used > 0,
        }
        result = {"benchmark": "chaos_ray", "hardware": hardware(), "figures": figures, "targets": [none, some]}
        print(json.dumps(result))
    sys.exit(bool(wrong) or not campaign.used)


if __name__ == "__main__":
    main()
