"""How large the BatchNorm weights of the beds' networks are: what a step of a given size means to them.

    python benchmarks/parameters.py

Adam moves every parameter by about the learning rate, whatever its size. Needs the folder of beds: $RESITTA_BEDS.
"""

import os
from pathlib import Path

import torch
from beds import BEDS

from resitta.models import create
from resitta.training.network import Network


def main() -> None:
    """Print the mean of the absolute weights of each network."""
    folder = Path(os.environ.get("RESITTA_BEDS", "../shared/beds"))
    for name, bed in BEDS.items():
        model = create(bed.model, folder / f"{name}.safetensors", **bed.options)
        names = Network(model).trained_names("affine")
        weights = torch.cat([model.get_parameter(name).abs() for name in names if name.endswith("weight")])
        print(f"{name}: {weights.mean():.2f}", flush=True)


if __name__ == "__main__":
    main()
