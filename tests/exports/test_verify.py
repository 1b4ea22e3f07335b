import pytest
import torch
from torch import Tensor

from resitta.errors import NotExportable
from resitta.exports.verify import largest_difference, random_batches

BATCHES = random_batches((3,))


def refusal(found: object) -> str:
    def run(images: Tensor) -> Tensor:
        if isinstance(found, Exception):
            raise found
        assert callable(found)
        logits: Tensor = found(images)
        return logits

    with pytest.raises(NotExportable) as caught:
        largest_difference(run, lambda images: images, BATCHES, of="the file")
    return str(caught.value)


def test_batches_are_of_several_sizes_and_always_the_same() -> None:
    assert {len(batch) for batch in BATCHES} > {1, 2}
    assert all(map(torch.equal, BATCHES, random_batches((3,))))
    assert all(0 <= float(batch.min()) <= float(batch.max()) <= 1 for batch in BATCHES)


def test_the_largest_difference_of_all_batches_is_returned() -> None:
    found = largest_difference(lambda x: x + 9e-5 * (len(x) == 5), lambda x: x, BATCHES, of="the file")
    assert found == pytest.approx(9e-5, rel=0.01)
    assert largest_difference(lambda x: x, lambda x: x, BATCHES, of="the file") == 0


def test_large_logits_may_differ_by_a_share_of_the_largest() -> None:
    assert largest_difference(lambda x: 1e3 * x + 0.05, lambda x: 1e3 * x, BATCHES, of="it") > 0.04
    with pytest.raises(NotExportable):
        largest_difference(lambda x: 1e3 * x + 0.15, lambda x: 1e3 * x, BATCHES, of="it")


def test_a_file_that_does_not_agree_is_refused_in_words() -> None:
    assert "the file does not predict what the model does: logits differ by 0.0002" in refusal(lambda x: x + 2e-4)
    assert "logits differ by nan" in refusal(lambda x: x * float("nan"))
    assert "returns logits of shape (2, 2) instead of (2, 3)" in refusal(lambda x: x[:, :2])
    assert "the file fails on a batch of 2: no kernel; it is not kept" in refusal(RuntimeError("no kernel\nat line 3"))
