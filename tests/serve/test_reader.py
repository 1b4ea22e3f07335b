import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait

import pytest
import torch
from torch import Tensor

from resitta.serve.http_errors import Refused
from resitta.serve.reader import Answer, Reader
from resitta.serve.settings import Limits
from resitta.serve.stream_priors import Correct, Stream, StreamPriors


class Slow:
    """Predicts when it is let go; notes the sizes of batches."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.sizes: list[int] = []

    def __call__(self, images: Tensor, clients: list[str], correct: Correct) -> tuple[Tensor, int, list[bool]]:
        self.go.wait(10)
        self.sizes.append(len(images))
        return images * 2, len(self.sizes), [True] * len(images)


def numbers(*values: int) -> Tensor:
    return torch.tensor(values).view(-1, 1).float()


def test_each_request_gets_its_own_answer_from_a_shared_batch() -> None:
    slow = Slow()
    reader = Reader(slow, Limits(batch=6, wait_ms=200))
    futures = [reader.submit(numbers(*range(start, start + 2))) for start in (0, 10, 20, 30)]
    slow.go.set()
    reader.start()
    answers = [future.result(10) for future in futures]
    reader.close()
    assert [answer.logits.flatten().tolist() for answer in answers] == [[0, 2], [20, 22], [40, 42], [60, 62]]
    assert slow.sizes == [6, 2]
    assert [answer.version for answer in answers] == [1, 1, 1, 2]


def test_a_large_request_is_not_divided() -> None:
    slow = Slow()
    slow.go.set()
    reader = Reader(slow, Limits(batch=2))
    reader.start()
    assert reader.submit(numbers(*range(5))).result(10).logits.shape == (5, 1)
    reader.close()


def test_too_many_waiting_images_are_refused() -> None:
    slow = Slow()
    reader = Reader(slow, Limits(queue=4))
    first = reader.submit(numbers(1, 2, 3))
    with pytest.raises(Refused) as refused:
        reader.submit(numbers(1, 2))
    assert refused.value.status == 429
    reader.submit(numbers(4))
    slow.go.set()
    reader.start()
    assert first.result(10).learned == 3
    reader.close()
    assert reader.waiting == 0


def test_a_cancelled_request_is_not_predicted() -> None:
    slow = Slow()
    slow.go.set()
    reader = Reader(slow, Limits())
    given_up, wanted = reader.submit(numbers(1)), reader.submit(numbers(2))
    given_up.cancel()
    reader.start()
    wanted.result(10)
    reader.close()
    assert slow.sizes == [1]


def test_a_failure_reaches_the_requests_and_the_reader_goes_on() -> None:
    def fail_once(images: Tensor, clients: list[str], correct: Correct) -> tuple[Tensor, int, list[bool]]:
        if images[0] == 0:
            raise ValueError("zero")
        return images, 0, [False]

    reader = Reader(fail_once, Limits(wait_ms=0))
    reader.start()
    assert isinstance(reader.submit(numbers(0)).exception(10), ValueError)
    assert reader.submit(numbers(1)).result(10).version == 0
    reader.close()


def test_each_request_hears_of_its_own_images_and_each_image_has_its_client() -> None:
    seen: list[str] = []

    def predict(images: Tensor, clients: list[str], correct: Correct) -> tuple[Tensor, int, list[bool]]:
        seen.extend(clients)
        return images, 0, [client != "b" for client in clients]

    reader = Reader(predict, Limits(wait_ms=200))
    futures = [reader.submit(numbers(1, 2), client) for client in ("a", "b", "c")]
    reader.start()
    assert [future.result(10).learned for future in futures] == [2, 0, 2]
    reader.close()
    assert seen == ["a", "a", "b", "b", "c", "c"]


def test_samples_of_a_named_stream_are_corrected_and_others_are_not() -> None:
    class Doubling(StreamPriors):
        def correct(self, logits: Tensor, streams: Sequence[Stream | None]) -> Tensor:
            return logits * torch.tensor([[1 if stream is None else 2] for stream in streams])

    def predict(images: Tensor, clients: list[str], correct: Correct) -> tuple[Tensor, int, list[bool]]:
        return correct(images), 0, [True] * len(images)

    reader = Reader(predict, Limits(wait_ms=200), Doubling(most=2))
    futures = [reader.submit(numbers(1, 2), "me", stream) for stream in ("left", "")]
    reader.start()
    assert [future.result(10).logits.flatten().tolist() for future in futures] == [[2, 4], [1, 2]]
    reader.close()


def test_closing_answers_what_waits_and_refuses_the_rest() -> None:
    slow = Slow()
    reader = Reader(slow, Limits(batch=1))
    reader.start()
    futures: list[Future[Answer]] = [reader.submit(numbers(value)) for value in range(5)]
    threading.Timer(0.05, slow.go.set).start()
    reader.close()
    assert not wait(futures, 0).not_done
    with pytest.raises(Refused, match="stopping"):
        reader.submit(numbers(1))
