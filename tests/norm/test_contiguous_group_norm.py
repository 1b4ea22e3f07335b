import subprocess
import sys


def test_group_norm_behind_a_channels_last_input_is_trained() -> None:
    """In a process of its own: torch's backward pass would crash it."""
    code = """
import torch
from torch import nn
from resitta.training.network import Network
layers = nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
network = Network(nn.Sequential(*layers)).fork("affine")
images = torch.rand(5, 3, 8, 8).to(memory_format=torch.channels_last)
gradients = torch.autograd.grad(network(images).square().sum(), list(network.parameters()))
plain = nn.Sequential(*layers)
expected = torch.autograd.grad(plain(images.contiguous()).square().sum(), list(plain[1].parameters()))
torch.testing.assert_close(gradients, expected)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
