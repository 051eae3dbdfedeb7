"""What faults cost: a study of 12 unlike members, and the same study with a trainer killed every 15 seconds.

Both run in processes of their own, one after the other, in ``--rounds`` rounds. The disturbed run must end with the
weights, rows and digests of the other, and the audit must find that every sample was trained on; its wall time is
compared. ``stepped`` is the ratio of the work of all trainers in the two runs: the work that was done again,
independent of the machine's other load.
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from measuring import arguments, finish, target

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import evidence
from family import Run

SCRIPT = """
import sys, argosy, studies
members = [studies.member(f"m{{n:02}}", hidden=16 + 24 * n, batch_size=16 + 4 * (n % 5), lr=0.01) for n in range(12)]
study = studies.study({length}, fleet=members, epochs={epochs}, val=200)
argosy.train(study, quiet=True, directory=sys.argv[1], {settings}, checkpoint_seconds=2, numerics="exact", hang_seconds={hang_seconds})
"""
SETTINGS = 'devices="cpu:2", loader_workers=1'
WALL = 1.4


def faultless(directory: Path, length: int, epochs: int) -> float:
    began = time.monotonic()
    if Run(directory, SCRIPT, settings=SETTINGS, length=length, epochs=epochs).end(3600) != 0:
        raise AssertionError(directory.with_name(f"{directory.name}.stderr").read_text()[-3000:])
    return time.monotonic() - began


def hurt(directory: Path, length: int, epochs: int, every: float, seed: int) -> tuple[float, int]:
    """Kill trainers during a run; return its wall seconds and how many were killed."""
    began, kills, dice = time.monotonic(), 0, random.Random(seed)
    run = Run(directory, SCRIPT, settings=SETTINGS, length=length, epochs=epochs)
    following = began + every
    while run.process.poll() is None:
        if time.monotonic() > following and (victims := run.role("trainer")):
            dice.choice(victims).kill()
            kills, following = kills + 1, following + every
        time.sleep(0.1)
    seconds = time.monotonic() - began
    if run.process.returncode != 0:
        raise AssertionError(run.errors[-3000:])
    return seconds, kills


def facts(directory: Path) -> dict[str, Any]:
    """Return what the journal says about the faults."""
    lines = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    kinds = Counter(line["event"] for line in lines)
    return {
        "lost": kinds["WorkerLost"],
        "ways": dict(Counter(line["way"] for line in lines if line["event"] == "Recovered")),
        "started": kinds["MemberStarted"],
        "sections": kinds["SectionEnded"],
        "cpu_seconds": next(line["cpu_seconds"] for line in reversed(lines) if line["event"] == "RunEnded"),
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--length", type=int, default=32_000)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two kills")
    options = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="argosy-goodput-") as name:
        for number in range(options.rounds):
            whole, cut = Path(name, f"whole-{number}"), Path(name, f"cut-{number}")
            seconds = faultless(whole, options.length, options.epochs)
            slower, kills = hurt(cut, options.length, options.epochs, options.every, number)
            equal = evidence.results(whole) == evidence.results(cut)
            row = {"faultless": seconds, "hurt": slower, "ratio": slower / seconds, "kills": kills, "equal": equal}
            rounds.append({**row, "work": facts(cut)["cpu_seconds"] / facts(whole)["cpu_seconds"], **facts(cut)})
            print(
                {key: round(value, 3) if isinstance(value, float) else value for key, value in rounds[-1].items()},
                flush=True,
            )
    targets = [
        target("wall time over that of the faultless run", [row["ratio"] for row in rounds], at_most=WALL),
        target(
            "runs whose weights, rows and digests are the faultless ones",
            [sum(r["equal"] for r in rounds)],
            at_least=len(rounds),
        ),
        target("trainers killed in a run", [row["kills"] for row in rounds], at_least=1),
    ]
    finish(
        "goodput", {"rounds": rounds, "median_ratio": median(r["ratio"] for r in rounds)}, targets, as_json=options.json
    )
    sys.exit(not all(one["holds"] for one in targets))


if __name__ == "__main__":
    main()
