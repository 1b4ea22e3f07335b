"""Kill a process at random moments while it adapts with autosave, restart it each time, and compare what it predicts.

    python benchmarks/kills.py --kills 200

A child process runs a stream through a small network and writes down every prediction; it is ended with SIGKILL after
a random time, often in the middle of a save. Then every file it left must verify, and the next child must go on from
the newest with exactly the predictions of a run that nobody interrupted. A stream that reaches its end makes room for
the next, with another set-up: five methods, three of them also with a guard, on a stream whose cameras fail (black
frames, noise, NaN, sudden light) and whose guard rolls back. Prints a summary and writes it to
benchmarks/records/kills.json.
"""

import argparse
import hashlib
import os
import random
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import resitta
from resitta.bench.record import environment, write_json
from resitta.checkpoint.autosave import saved
from resitta.checkpoint.io import read_document
from resitta.conformance import tiny_network
from resitta.errors import BadState

BATCHES, BATCH = 60, 8
BANK: dict[str, Any] = {"capacity": 16, "update_every": 8}
GUARDED: dict[str, Any] = {"guard": resitta.Guard(window=8, max_drift=0.2, max_sample_entropy=1), "non_finite": "skip"}
STREAMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resitta", {**BANK, **GUARDED}),
    ("resitta", BANK),
    ("rotta", {**BANK, **GUARDED}),
    ("tent", {}),
    ("note", {**BANK, "momentum": 0.05, **GUARDED}),
    ("note", BANK),
    ("rotta", BANK),
    ("cotta", {"views": 2}),
)


@dataclass
class Summary:
    """What the kills did."""

    kills: int = 0
    during_a_save: int = 0
    before_the_first_save: int = 0
    recovered: int = 0
    not_recovered: int = 0
    streams_finished: int = 0
    files_checked: int = 0
    files_unreadable: int = 0
    predictions_compared: int = 0
    predictions_different: int = 0
    predictions_with_a_guard: int = 0
    found_by_guards: int = 0
    batches_repeated_at_most: int = 0


def guarded(stream: int) -> bool:
    """Whether a stream has a guard and bad frames."""
    return "guard" in STREAMS[stream % len(STREAMS)][1]


def images(stream: int, position: int) -> Tensor:
    """The batch at a position of a stream."""
    generator = torch.Generator().manual_seed(position)
    noise = torch.rand(BATCH, 3, 16, 16, generator=generator)
    return bad_frames(noise, position, generator) if guarded(stream) else noise


def bad_frames(noise: Tensor, position: int, generator: torch.Generator) -> Tensor:
    """Smooth pictures, and at times what a broken camera sends instead."""
    coarse = torch.rand(BATCH, 3, 5, 5, generator=generator)
    pictures = nn.functional.interpolate(coarse, size=(16, 16), mode="bicubic").clamp(0, 1)
    if position % 6 == 2:
        pictures[1:] = 0
    if position % 6 == 4:
        pictures[2:] = noise[2:]
    if position % 20 > 12:
        pictures = pictures * 0.3 + 0.7
    pictures[: broken(position)] = torch.nan
    return pictures


def broken(position: int) -> int:
    """How many frames of a batch with bad ones hold NaN."""
    return {3: 1, 8: BATCH}.get(position % 10, 0)


def position_of(adapter: resitta.Adapter, stream: int) -> int:
    """Where in the stream an adapter is; frames with NaN are not among its samples."""
    position = samples = 0
    while samples < adapter.samples:
        samples += BATCH - (broken(position) if guarded(stream) else 0)
        position += 1
    return position


def new_adapter(model: nn.Module, stream: int) -> resitta.Adapter:
    """An adapter at the beginning of a stream."""
    method, settings = STREAMS[stream % len(STREAMS)]
    return resitta.adapt(model, method, seed=stream, **settings)


def digest(logits: Tensor) -> str:
    """Logits in short, every bit of them."""
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()


def uninterrupted(summary: Summary, model: nn.Module, stream: int) -> list[str]:
    """The predictions of a run without kills, and without autosave."""
    adapter = new_adapter(model, stream)
    predictions = [digest(adapter(images(stream, position))) for position in range(BATCHES)]
    summary.found_by_guards += adapter.guard.counts.total() if adapter.guard else 0
    return predictions


class NotedAutosave(resitta.Autosave):
    """Writes down when a save begins and ends."""

    def __init__(self, folder: Path, log: int) -> None:
        super().__init__(folder, updates=2, seconds=0.2, keep=3)
        self.log = log

    def save(self, adapter: resitta.Adapter) -> None:
        """Save between two lines of the log."""
        os.write(self.log, b"saving\n")
        super().save(adapter)
        os.write(self.log, b"saved\n")


def serve(model: nn.Module, stream: int, folder: Path) -> None:
    """What a child does: recover or begin, then predict to the end of the stream and write everything down."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    adapter = resitta.recover(model, folder) if saved(folder) else new_adapter(model, stream)
    adapter.add_callback(NotedAutosave(folder, log))
    for position in range(position_of(adapter, stream), BATCHES):
        os.write(log, f"{position} {digest(adapter(images(stream, position)))}\n".encode())


def killed(model: nn.Module, stream: int, folder: Path, seconds: float) -> bool:
    """Run a child and kill it after a time; return whether it was still running."""
    (folder / "log").unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            serve(model, stream, folder)
            status = 0
        finally:
            os._exit(status)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    end = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(end) and os.WEXITSTATUS(end) != 0:
        raise SystemExit("a child failed by itself")
    return os.WIFSIGNALED(end)


def check_files(summary: Summary, folder: Path) -> None:
    """Every file must verify."""
    for path in saved(folder):
        summary.files_checked += 1
        try:
            read_document(path)
        except BadState as error:
            summary.files_unreadable += 1
            print(error)


def check_recovery(summary: Summary, model: nn.Module, stream: int, folder: Path, expected: list[str]) -> None:
    """The newest file must continue as the uninterrupted run did."""
    if not saved(folder):
        summary.before_the_first_save += 1
        return
    try:
        adapter = resitta.recover(model, folder)
    except BadState as error:
        summary.not_recovered += 1
        print(error)
        return
    summary.recovered += 1
    for position in range(position_of(adapter, stream), BATCHES)[:3]:
        compare(summary, stream, digest(adapter(images(stream, position))), expected[position])


def check_log(summary: Summary, stream: int, folder: Path, expected: list[str], reached: int) -> int:
    """Compare what a child predicted; return the position it reached."""
    log = folder / "log"
    text = log.read_text() if log.exists() else ""
    summary.during_a_save += text.endswith("saving\n")
    predictions = [line.split() for line in text.splitlines() if " " in line]
    for position, found in predictions:
        compare(summary, stream, found, expected[int(position)])
    if not predictions:
        return reached
    first, last = int(predictions[0][0]), int(predictions[-1][0])
    summary.batches_repeated_at_most = max(summary.batches_repeated_at_most, reached - first)
    return last + 1


def compare(summary: Summary, stream: int, found: str, expected: str) -> None:
    """Count a prediction."""
    summary.predictions_compared += 1
    summary.predictions_with_a_guard += guarded(stream)
    summary.predictions_different += found != expected


def run(kills: int, seed: int, longest: float = 0.5) -> Summary:
    """Kill children until enough have been killed."""
    model, moments, summary = tiny_network(), random.Random(seed), Summary()
    while summary.kills < kills:
        stream, reached = summary.streams_finished, 0
        expected = uninterrupted(summary, model, stream)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            while reached < BATCHES and summary.kills < kills:
                if killed(model, stream, folder, moments.uniform(0, longest)):
                    summary.kills += 1
                    check_files(summary, folder)
                    check_recovery(summary, model, stream, folder, expected)
                reached = check_log(summary, stream, folder, expected, reached)
        summary.streams_finished += reached == BATCHES
    return summary


def main() -> None:
    """Kill, print, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=Path(__file__).parent / "records" / "kills.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    summary = run(args.kills, args.seed)
    for name, value in asdict(summary).items():
        print(f"{name.replace('_', ' '):26}{value:8,}")
    write_json(args.record, {"seed": args.seed, **asdict(summary), "environment": environment()})


if __name__ == "__main__":
    main()
