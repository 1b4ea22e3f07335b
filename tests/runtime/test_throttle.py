"""Updates that wait while predictions are under way."""

import threading
import time

import pytest
import torch
from torch import Tensor, nn

from resitta.norm.bn_layers import updating_statistics
from resitta.norm.resibn import ResiBN
from resitta.runtime import throttle as module
from resitta.runtime.throttle import Throttle
from resitta.training.network import Network


class Counting(Throttle):
    passed = 0

    def wait_for_predictions(self) -> None:
        self.passed += 1


def network(model: nn.Module) -> Network:
    return Network(model).fork("affine").with_bn(lambda layer: ResiBN(layer, 0.1))


def test_an_update_passes_at_every_layer_forth_and_back(model: nn.Module) -> None:
    throttle, student = Counting(), network(model)
    throttle.attach(student)
    throttle.attach(student)  # again, as after a move: still once per layer
    with updating_statistics(student):
        loss = student(torch.rand(8, 3, 10, 10)).sum()
    assert throttle.passed == 2
    loss.backward()  # type: ignore[no-untyped-call]
    assert throttle.passed == 3, "behind the first layer nothing needs a gradient"
    student.predict(torch.rand(8, 3, 10, 10))
    assert throttle.passed == 3, "predictions do not wait"


def test_throttling_changes_no_number(model: nn.Module) -> None:
    def gradients(throttled: bool) -> list[Tensor]:
        student = network(model)
        if throttled:
            Throttle().attach(student)
        with updating_statistics(student):
            loss = student(torch.linspace(0, 1, 2400).view(8, 3, 10, 10)).square().sum()
        return list(torch.autograd.grad(loss, list(student.parameters())))

    assert all(map(torch.equal, gradients(True), gradients(False)))


def test_an_export_does_not_copy_the_throttle(model: nn.Module) -> None:
    throttle, student = Counting(), network(model)
    throttle.attach(student)
    student.export()(torch.rand(2, 3, 10, 10))
    assert throttle.passed == 0


def test_it_waits_for_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAIT", 20)
    throttle, done = Throttle(), threading.Event()

    def update() -> None:
        throttle.wait_for_predictions()
        done.set()

    with throttle.prediction():
        threading.Thread(target=update).start()
        assert not done.wait(0.1)
    assert done.wait(10)


def test_it_does_not_wait_for_ever() -> None:
    throttle = Throttle()
    with throttle.prediction():
        start = time.monotonic()
        throttle.wait_for_predictions()
        assert time.monotonic() - start >= module.MAX_WAIT
