"""Label priors of a service's streams, through the real application."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.adapter.test_settings_of_every_method import colours, reader_of_colours
from tests.serve.conftest import serving
from tests.serve.helpers import TOKEN, array, until
from torch import Tensor

import resitta
from resitta.serve.app import create_app
from resitta.serve.service import Service
from resitta.serve.settings import Limits
from resitta.serve.stream_priors import Stream, StreamPriors

LEFT, RIGHT = (torch.arange(900) // 50 % 3, 2 - torch.arange(900) // 30 % 3)
HOLDER = {"Authorization": f"Bearer {TOKEN}"}


def service_of(method: str, folder: Path, **settings: Any) -> Service:
    adapter = resitta.adapt(reader_of_colours(), method, label_prior="temporal", **settings)
    return Service(adapter, size=4, state=folder, limits=Limits(streams=3, wait_ms=0))


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return service_of("source", tmp_path)


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with serving(create_app(service, token=TOKEN)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def ask(client: httpx.Client, pixels: Tensor, stream: str | None = None, **headers: str) -> Tensor:
    """The probabilities of some images."""
    named = {} if stream is None else {"X-Stream": stream}
    headers = {"Content-Type": "application/x-npy", **named, **headers}
    response = client.post("/predict", content=array(pixels.numpy()), headers=headers)
    assert response.status_code == 200, response.text
    return torch.tensor([each["probabilities"] for each in response.json()["predictions"]])


def test_each_named_stream_is_corrected_and_what_has_no_name_is_not(client: httpx.Client, service: Service) -> None:
    pixels = {"left": colours(LEFT), "right": colours(RIGHT, seed=1)}
    found: dict[str, list[Tensor]] = {"left": [], "right": []}
    for start in range(0, 900, 30):
        for name, own in found.items():
            own.append(ask(client, pixels[name][start : start + 30], name))
    for name, labels in (("left", LEFT), ("right", RIGHT)):
        with torch.no_grad():
            plain = service.adapter.source(pixels[name])
        torch.testing.assert_close(ask(client, pixels[name][-30:]), plain[-30:].softmax(1), atol=1e-5, rtol=0)
        alone = resitta.adapt(reader_of_colours(), "source", label_prior="temporal")
        expected = torch.cat([alone(batch) for batch in torch.split(pixels[name], 30)]).softmax(1)
        torch.testing.assert_close(torch.cat(found[name]), expected, atol=1e-4, rtol=0)
        wrong = [(each.argmax(1) != labels)[300:].double().mean() for each in (plain, torch.cat(found[name]))]
        assert wrong[1] < 0.5 * wrong[0]
    told = client.get("/stats").json()["adapter"]["label_prior"]
    assert (told["streams"], told["samples"]) == (2, 1800)
    assert told["corrected"] > 1000


def test_a_client_cannot_teach_the_stream_of_another(client: httpx.Client, service: Service) -> None:
    pixels = colours(LEFT)
    for batch in torch.split(pixels, 60):
        ask(client, batch, "door")
    before = ask(client, pixels[:1], "door", **HOLDER)  # the same name, another client
    with torch.no_grad():
        torch.testing.assert_close(before, service.adapter.source(pixels[:1]).softmax(1), atol=1e-5, rtol=0)
    assert client.get("/stats").json()["adapter"]["label_prior"]["streams"] == 2


def test_a_name_of_other_characters_or_too_long_is_refused(client: httpx.Client) -> None:
    for name in ("", "camera 3", "x" * 65, "käfer", "a/b"):
        headers = [(b"Content-Type", b"application/x-npy"), (b"X-Stream", name.encode())]
        response = client.post("/predict", content=array(colours(LEFT[:1]).numpy()), headers=headers)
        assert response.status_code == 400, name
        assert response.json()["error"].startswith("X-Stream must be 1 to 64 of the characters"), name


def test_a_reset_forgets_all_streams(client: httpx.Client) -> None:
    ask(client, colours(LEFT[:30]), "door")
    assert client.post("/reset", headers=HOLDER).status_code == 200
    assert client.get("/stats").json()["adapter"]["label_prior"]["streams"] == 0


@pytest.mark.parametrize("feedback", [False, True])
def test_with_feedback_the_corrected_predictions_are_learned_from(feedback: bool, tmp_path: Path) -> None:
    service = service_of("rotta", tmp_path, feedback=feedback, capacity=30)
    memory = service.adapter.learner.memory()
    assert memory is not None
    answers, last = [], colours(LEFT)[-60:]
    with service:
        for batch in torch.split(colours(LEFT), 30):
            answers.append(service.submit(batch, "me", "door").result(20).logits)
            until(lambda: service.writer.report().counters.waiting == 0)
    pairs = zip(memory.samples, memory.labels, strict=True)
    kept = {tuple(image.flatten().tolist()): int(label) for image, label in pairs}
    with torch.no_grad():
        plain = service.adapter.source(last).argmax(1)
    corrected = torch.cat(answers)[-60:].argmax(1)
    differ = [
        (kept[key], int(corrected[place]), int(plain[place]))
        for place, image in enumerate(last)
        if (key := tuple(image.flatten().tolist())) in kept and corrected[place] != plain[place]
    ]
    assert differ, "nothing is tested"
    agree = [label == (ours if feedback else theirs) for label, ours, theirs in differ]
    assert sum(agree) > 0.8 * len(agree)


@pytest.mark.parametrize("method", ["lame", "rotta"])
def test_what_has_no_name_teaches_nobody(method: str, tmp_path: Path) -> None:
    service = service_of(method, tmp_path, **({"capacity": 30} if method == "rotta" else {}))
    plain = resitta.adapt(reader_of_colours(), "lame")
    with service:
        for batch in torch.split(colours(LEFT), 30):
            answer = service.submit(batch, "me").result(20).logits
            until(lambda: service.writer.report().counters.waiting == 0)
            if method == "lame":  # which predicts and learns in one step
                torch.testing.assert_close(answer, plain(batch))
    assert service.adapter.prior is not None
    assert service.adapter.prior.stats.samples == 0


def test_a_client_that_invents_names_loses_its_own_streams() -> None:
    priors, logits = StreamPriors(most=3), torch.randn(1, 4)
    for name in ("good", "one", "two", "three", "four"):
        stream: Stream = ("honest" if name == "good" else "greedy", name)
        priors.correct(logits, [stream])
    assert list(priors._priors) == [("honest", "good"), ("greedy", "three"), ("greedy", "four")]
