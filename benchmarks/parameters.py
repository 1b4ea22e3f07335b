"""How large the BatchNorm weights of the testbeds' networks are: what a step of a given size means to them.

    python benchmarks/parameters.py

Adam moves every parameter by about the learning rate, whatever its size. Needs the folder of testbeds: $RESITTA_BEDS.
"""

import torch
from beds import FOLDER, TESTBEDS, load_network

from resitta.training.network import Network


def main() -> None:
    """Print the mean of the absolute weights of each network."""
    for name in TESTBEDS:
        model = load_network(name, FOLDER)
        names = Network(model).trained_names("affine")
        weights = torch.cat([model.get_parameter(name).abs() for name in names if name.endswith("weight")])
        print(f"{name}: {weights.mean():.2f}", flush=True)


if __name__ == "__main__":
    main()
