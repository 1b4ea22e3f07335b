"""What one stream costs: time per image to predict and to learn, and what it keeps in memory and on disk.

    python benchmarks/capacity.py --models demo wrn16x1 wrn40x2

One core, random images and, but for the demo, random weights: neither changes the cost. Prints a table and writes a
record. Read ratios rather than milliseconds where the machine has other work too; the record holds its load.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import resitta
from resitta.demo.digits import digit_network
from resitta.models import MODELS, create
from resitta.runtime.weight_handoff import PublishedNetwork, weights_of

RECORD = Path(__file__).parent / "records" / "capacity.json"
COLUMNS = ("predict_1", "predict_32", "learn", "publish", "save", "model_mb", "state_mb")


def main() -> None:
    """Measure each model and print a line about it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["demo", "wrn16x1", "wrn40x2"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RECORD)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    print(f"{'model':<10}" + "".join(f"{name:>12}" for name in COLUMNS), flush=True)
    for name in args.models:
        rows[name] = measure(name, args.device, args.repeat)
        print(f"{name:<10}" + "".join(f"{rows[name][column]:>12.3g}" for column in COLUMNS), flush=True)
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "device": args.device}
    about = {"python": platform.python_version(), "torch": torch.__version__, **machine}
    args.out.write_text(json.dumps({"machine": about, "models": rows}, indent=2) + "\n", encoding="utf-8")


def measure(name: str, device: str, repeat: int) -> dict[str, Any]:
    """Milliseconds per image to predict and to learn, per publishing and per saving; megabytes of model and state."""
    side = 32 if name == "demo" else MODELS[name].image_size
    model = (digit_network() if name == "demo" else create(name)).eval().to(device)
    adapter = resitta.adapt(model, "resitta")
    images = torch.rand(64, 3, side, side, device=device)
    adapter(images)  # fills the bank
    published = PublishedNetwork.of(adapter)
    assert published is not None  # resitta can be exported
    network, weights = published.network, published.weights

    def seconds(action: Callable[[], object]) -> float:
        return min(timed(action, device) for _ in range(repeat))

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.safetensors"
        with torch.no_grad():
            logits = network(images)
            one, many = seconds(lambda: network(images[:1])), seconds(lambda: network(images[:32])) / 32
        learn = seconds(lambda: adapter.learn(images, logits)) / 64
        publish = seconds(lambda: (weights.put(weights_of(adapter), 1), weights.take()))
        saving = seconds(lambda: adapter.save(file))
        state = file.stat().st_size
    shared = sum(p.numel() * p.element_size() for p in model.parameters())
    times = {"predict_1": one, "predict_32": many, "learn": learn, "publish": publish, "save": saving}
    sizes = {"model_mb": shared, "state_mb": state}
    milliseconds = {key: round(value * 1e3, 3) for key, value in times.items()}
    return milliseconds | {key: round(value / 2**20, 3) for key, value in sizes.items()}


def timed(action: Callable[[], object], device: str) -> float:
    """How long something takes, on a GPU to its end."""
    start = time.perf_counter()
    action()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
