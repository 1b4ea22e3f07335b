import math

import torch
from tests.conftest import stream
from torch import nn

from resitta.training.class_features import ClassMeans, class_features, divergence
from resitta.training.network import Network

K = 5


def test_class_features_are_those_of_the_predicted_classes(model: nn.Module) -> None:
    sure, images = model.double(), stream(150).double()
    found = class_features(Network(sure), torch.split(images, 40))
    features = sure[:-1](images).detach()  # type: ignore[index]
    labels = sure(images).argmax(1)
    for k in range(K):
        mine = features[labels == k]
        assert found["counts"][k] == len(mine)
        if len(mine) > 1:
            torch.testing.assert_close(found["means"][k], mine.mean(0))
            torch.testing.assert_close(found["variances"][k], mine.var(0))
        if len(mine) < 2:
            assert not found["variances"][k].any()


def test_classes_without_source_statistics_have_no_part() -> None:
    source = {"counts": torch.tensor([4, 1]), "means": torch.zeros(2, 3), "variances": torch.ones(2, 3)}
    means = ClassMeans(source, rate=0.5, variant="code")
    labels = torch.tensor([0, 1])
    features = torch.tensor([[1.0, 1.0, 1.0], [100.0, 100.0, 100.0]])
    assert means(features, labels) == 0
    torch.testing.assert_close(means.means, 0.5 * features)
    torch.testing.assert_close(means(features, labels).item(), 1 - math.exp(-0.25 / (1 + 1e-6)))
    assert means(features[1:], labels[1:]) == 0
    none = torch.zeros(2, dtype=torch.bool)
    for variant in ("code", "paper"):
        assert divergence(means.means, source["means"], source["variances"], none, variant) == 0
