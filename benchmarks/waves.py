"""Waves of experiments: compares `examples/waves.py` on one live run with one script after another, at equal samples.

A script is a process of its own that imports torch, reads the data and trains one variant by a plain loop, for as many
epochs as the variant had in the run, which stopped half of each wave early. With `--kill`, the program and the run are
killed with SIGKILL after two waves and started again; the clock keeps running.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from measuring import arguments, finish, target

import argosy

EXAMPLE = Path(__file__).parents[1] / "examples" / "waves.py"
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from waves import network, x, y
torch.set_num_threads(int(sys.argv[4]))
model, lr, epochs = network(64), float(sys.argv[2]), int(float(sys.argv[3]))
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*map(torch.as_tensor, (x[:1400], y[:1400]))), 50, shuffle=True)
loss = torch.nn.CrossEntropyLoss()
for _ in range(epochs):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()
    with torch.no_grad():
        found = loss(model(torch.as_tensor(x[1400:])), torch.as_tensor(y[1400:])).item()
"""


def played(folder: Path, *, kill: bool) -> tuple[float, dict[str, dict[str, Any]]]:
    """Return the seconds of the whole program, and the results of its members."""
    began, run = time.perf_counter(), folder / "waves"
    command = [sys.executable, str(EXAMPLE), str(run)]
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    if kill:
        _killed(program, run)
        program = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    assert program.wait() == 0
    seconds = time.perf_counter() - began
    rows = {row.name: {"epochs": row.epochs, "status": row.status} for row in argosy.load(run).rows}
    return seconds, {name: row for name, row in rows.items() if name != "base"}


def _killed(program: "subprocess.Popen[bytes]", run: Path) -> None:
    """Kill the program and the run's driver when the third wave is being added."""
    while not (run / "wave-2.py").exists():
        assert program.poll() is None
        time.sleep(0.2)
    below = psutil.Process(program.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def one_after_another(variants: dict[str, dict[str, Any]], threads: int) -> float:
    """Return the seconds of as many scripts."""
    began = time.perf_counter()
    for name, row in variants.items():
        words = [str(EXAMPLE.parent), name.partition("=")[2], str(row["epochs"]), str(threads)]
        subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="threads of a script")
    options = parser.parse_args()
    ratios: list[float] = []
    figures: dict[str, Any] = {}
    for _ in range(min(options.rounds, 3)):
        with tempfile.TemporaryDirectory() as folder:
            seconds, variants = played(Path(folder), kill=options.kill)
        apart = one_after_another(variants, options.threads)
        print(
            f"{len(variants)} variants: {seconds:.1f} s on one run ({len(variants) / seconds * 3600:.0f} an hour), "
            f"{apart:.1f} s as scripts ({len(variants) / apart * 3600:.0f} an hour)",
            flush=True,
        )
        ratios.append(apart / seconds)
        figures = {"variants": len(variants), "run_seconds": seconds, "script_seconds": apart, "ratios": ratios}
    whole = target("variants of five waves", [float(figures["variants"])], at_least=40.0)
    finish(
        "waves",
        figures,
        [whole, target("experiments an hour, run / scripts", ratios, at_least=3.0)],
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
