"""ResiTTA without any care for speed: benchmarks/speed.py compares with it, docs/methods/one-file.md explains it.

Two full copies of the model, every formula as it stands in the paper, one launch per operation.
"""

import copy

import torch
from torch import Tensor, nn

from resitta.memory.entrobank import EntroBank
from resitta.training.self_training import soft_cross_entropy
from resitta.training.strong_view import strong_view


class PlainResiBN(nn.Module):
    """The formulas of ResiBN."""

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        super().__init__()
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.mean, self.var = layer.running_mean.clone(), layer.running_var.clone()
        self.source_mean, self.source_var = self.mean.clone(), self.var.clone()
        self.updating = False

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (equation 3), with statistics moved towards the batch first when updating (4 and 5)."""
        if self.updating:
            self.mean = 0.95 * self.mean + 0.05 * x.detach().mean((0, 2, 3))
            self.var = 0.95 * self.var + 0.05 * x.detach().var((0, 2, 3), correction=0)
        mean, var, weight, bias = (t[:, None, None] for t in (self.mean, self.var, self.weight, self.bias))
        return weight * (x - mean) / torch.sqrt(var + self.eps) + bias

    def align(self) -> None:
        """One step of soft alignment with the source (equations 10 and 11, with η = 0.01)."""
        self.mean = self.mean - 0.02 * (self.mean - self.source_mean)
        std = self.var.sqrt() - 0.02 * (self.var.sqrt() - self.source_var.sqrt())
        self.var = std.square()


class PlainResiTTA:
    """The method of the paper with the settings of the paper for CIFAR."""

    def __init__(self, model: nn.Module) -> None:
        self.teacher, self.student = self.network(model), self.network(model)
        self.trained = [p for layer in self.layers(self.student) for p in (layer.weight, layer.bias)]
        self.adam = torch.optim.Adam(self.trained, lr=1e-3, foreach=False)
        self.generator = torch.Generator().manual_seed(0)
        self.bank = EntroBank(64, generator=self.generator)

    @staticmethod
    def network(model: nn.Module) -> nn.Module:
        """A full copy of the model with the layers replaced."""
        network = copy.deepcopy(model).eval()
        for name, layer in list(network.named_modules()):
            if isinstance(layer, nn.BatchNorm2d):
                network.set_submodule(name, PlainResiBN(layer))
        return network

    @staticmethod
    def layers(network: nn.Module) -> list[PlainResiBN]:
        """The layers that adapt."""
        return [module for module in network.modules() if isinstance(module, PlainResiBN)]

    def __call__(self, images: Tensor) -> Tensor:
        """Predict with the teacher, fill the bank (Algorithm 1), and update after every 64 samples."""
        with torch.no_grad():
            logits: Tensor = self.teacher(images)
        for _ in self.bank.fill(images, logits, every=64):
            self.update(self.bank.samples)
        return logits

    def update(self, images: Tensor) -> None:
        """One adaptation on everything in the bank (equations 15 and 16), then one alignment of both networks."""
        both = self.layers(self.teacher) + self.layers(self.student)
        for layer in both:
            layer.updating = True
        with torch.no_grad():
            targets = self.teacher(images)
        logits = self.student(strong_view(images, generator=self.generator))
        loss = soft_cross_entropy(logits, targets).mean()
        self.adam.zero_grad()
        torch.autograd.backward(loss)
        self.adam.step()
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                slow.mul_(0.999).add_(fast, alpha=0.001)
        for layer in both:
            layer.updating = False
            layer.align()
