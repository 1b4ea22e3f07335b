"""Influence: who moves the others' predictions loses its own voice, and honest clients never do."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.checkpoint.tree import same
from resitta.data.corruptions import corrupt
from resitta.demo import digits as demo
from resitta.demo.digits import load_digits, painted
from resitta.methods.resitta import ResiTTALearner
from resitta.serve.client_screening import Client, ClientScreening
from resitta.serve.events import Events
from resitta.serve.influence import EVERY, OWN, PRESENT, Effect, Influence, Influences, is_harmful, loss_rise
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.serve.writer import Writer

HOSTILE = "hostile"
DOMAINS = ("fog", "gaussian_noise", "pixelate", "contrast")
BAD, GOOD = Effect(rise=0.3, entropy=0.0), Effect(rise=0.0, entropy=0.3)


# The pure functions.


def test_the_rise_is_the_median_of_clients_as_a_share_of_log_c() -> None:
    before = torch.tensor([[99.0, 0, 0, 0]]).repeat(4, 1)  # the loss of the label found is 0
    after = before.clone()
    after[1:3] = 0  # the second client's two images
    assert loss_rise(before, after, [1, 2, 1]) == pytest.approx(0)
    assert loss_rise(before[:3], after[:3], [1, 2]) == pytest.approx(0.5)
    assert loss_rise(before[1:3], after[1:3], [2]) == pytest.approx(1)
    assert loss_rise(before, before, [4]) == 0


@pytest.mark.parametrize(
    ("effect", "others", "harmful"),
    [
        (BAD, [GOOD], True),
        (BAD, [Effect(rise=-0.5, entropy=0.1), GOOD, Effect(rise=0.9, entropy=0.4)], True),
        (BAD, [], False),  # nothing to compare with
        (BAD, [Effect(rise=rise, entropy=0.3) for rise in (0.28, 0.3, -0.1)], False),  # most others do the same
        (BAD, [Effect(rise=0.0, entropy=0.0)], False),  # the source is sure of everyone's
        (Effect(rise=0.3, entropy=0.2), [GOOD], False),  # an honest client in another domain
        (Effect(rise=0.01, entropy=0.0), [Effect(rise=-0.9, entropy=0.3)], False),  # however helpful the others are
        (GOOD, [GOOD], False),
    ],
)
def test_harm_is_an_outlier_above_a_bound_for_no_need(effect: Effect, others: list[Effect], harmful: bool) -> None:
    assert is_harmful(effect, others) is harmful


def test_several_measurements_decide_and_several_take_it_back() -> None:
    influence = Influence()
    told = [influence.judge(effect, [GOOD]) for effect in (BAD, BAD, GOOD, BAD, BAD)]
    assert told == [False, False, False, False, True]
    assert influence.harmful
    told = [influence.judge(effect, [GOOD]) for effect in (GOOD, GOOD, BAD, GOOD, GOOD)]
    assert told == [False, False, False, False, True]
    assert not influence.harmful


# Who is measured, and when.


def kept(influences: Influences, *names: str, times: int = OWN) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(times):
        influences.keep(torch.rand(len(names), 3, 10, 10, generator=generator), names)


def test_clients_take_turns_every_few_updates(model: nn.Module) -> None:
    influences = Influences(resitta.adapt(model, "resitta"))
    kept(influences, "a", "b", "c")
    influences.measure(EVERY - 1)
    assert influences["a"].effect is None
    for name in "abc":
        influences.measure(EVERY)
        assert influences[name].effect is not None
    first = influences["a"].effect
    influences.measure(EVERY)
    assert influences["a"].effect is first, "not twice with the same images"
    kept(influences, "a", "b", "c", times=OWN // 2)
    influences.measure(1)
    assert influences["a"].effect is not first


def test_who_is_under_suspicion_is_next(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    influences, measured = Influences(resitta.adapt(model, "resitta")), list[str]()

    def effect(self: Influences, key: str) -> Effect:
        measured.append(key)
        return BAD if key == "c" else GOOD

    monkeypatch.setattr(Influences, "_effect", effect)
    changed = []
    for _ in range(8):
        kept(influences, "a", "b", "c")
        changed.append(influences.measure(EVERY))
    assert measured == ["a", "b", "c", "c", "c", "a", "b", "c"]
    assert changed == [None] * 4 + ["c"] + [None] * 3


def test_one_client_alone_and_methods_without_a_teacher_are_not_measured(model: nn.Module) -> None:
    alone = Influences(resitta.adapt(model, "resitta"))
    kept(alone, "a")
    assert alone.measure(EVERY) is None
    other = Influences(resitta.adapt(model, "note"))
    kept(other, "a", "b")
    assert other.measure(EVERY) is None
    assert alone["a"].effect is other["a"].effect is None


def test_only_the_clients_that_sent_last_are_kept(model: nn.Module) -> None:
    influences = Influences(resitta.adapt(model, "resitta"))
    for number in range(3 * PRESENT):
        kept(influences, "faithful", f"passing {number}", times=2)
    assert len(influences._known) == PRESENT
    assert len(influences["faithful"].images) == OWN


def test_measuring_changes_nothing_in_the_adapter(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", guard=True)
    adapter(torch.rand(70, 3, 10, 10))
    before = adapter.state_dict()
    influences = Influences(adapter)
    kept(influences, "a", "b")
    influences.measure(EVERY)
    assert influences["a"].effect is not None
    assert same(adapter.state_dict(), before)
    assert not any(module.updating for module in influences._copied().modules() if hasattr(module, "updating"))


# In the writer, with real digits and a real attack.


@pytest.fixture(scope="module")
def network() -> nn.Module:
    with pytest.MonkeyPatch.context() as short:
        short.setattr(demo, "STEPS", 200)
        return demo.train(load_digits())


def climb(network: nn.Module, images: Tensor, bound: float = 32 / 255, steps: int = 20) -> Tensor:
    """PGD: away from the class that the network gives images, within a bound."""
    with torch.no_grad():
        labels = network(images).argmax(dim=1)
    moved = images.clone()
    for _ in range(steps):
        moved.requires_grad_()
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(network(moved), labels), moved)
        moved = (images + (moved.detach() + bound / 4 * slope.sign() - images).clamp(-bound, bound)).clamp(0, 1)
    return moved


def pictures(count: int, seed: int, corruption: str | None = None) -> Tensor:
    ink = load_digits().test
    generator = torch.Generator().manual_seed(seed)
    chosen = ink[torch.randint(len(ink), (count,), generator=generator)]
    images = painted(chosen, generator)
    if corruption is None:
        return images
    return corrupt(images.mul(255).round().byte(), corruption, 5, seed=seed).float() / 255


def service(network: nn.Module, folder: Path) -> Writer:
    adapter = resitta.adapt(network, "resitta", guard=True, anchor=0.1)
    return Writer(adapter, StateFolder(folder, keep=1), Limits(save_every=1e9), Events())


def send(writer: Writer, sent: dict[str, Tensor]) -> None:
    """Predict the images of all clients, and learn from what fills a batch."""
    for client, images in sent.items():
        writer.predict(images, [client] * len(images))
    while writer.queue.has_batch:
        writer.thread.step()


def run(writer: Writer, streams: dict[str, Tensor], shares: dict[str, int] | None = None) -> dict[str, int]:
    """Let clients send in turn, 8 images at a time or more; return after how many of its images each was muted."""
    muted: dict[str, int] = {}
    turns = min(len(images) // (shares or {}).get(name, 8) for name, images in streams.items())
    for turn in range(turns):
        sizes = {name: (shares or {}).get(name, 8) for name in streams}
        send(writer, {name: images[turn * sizes[name] : (turn + 1) * sizes[name]] for name, images in streams.items()})
        for name in writer.screening.muted:
            muted.setdefault(name, (turn + 1) * sizes[name])
    return muted


@pytest.fixture(scope="module")
def attack(network: nn.Module) -> Tensor:
    return climb(network, pictures(200, 9))


def test_the_forward_passes_rank_clients_as_whole_updates_would(network: nn.Module, attack: Tensor) -> None:
    adapter = resitta.adapt(network, "resitta", guard=True, anchor=0.1)
    streams = {name: pictures(32 * OWN, number, name) for number, name in enumerate(DOMAINS)}
    adapter(torch.cat([images[:32] for images in streams.values()]))
    influences, learner = Influences(adapter), adapter.learner
    assert isinstance(learner, ResiTTALearner)
    for turn in range(OWN // 2):
        batch = {**{name: images[2 * turn :][:2] for name, images in streams.items()}, HOSTILE: attack[2 * turn :][:2]}
        influences.keep(torch.cat(list(batch.values())), [name for name in batch for _ in range(2)])
    cheap, whole = [], []
    for name in batch:
        own, (others, counts) = torch.stack(list(influences[name].images)), influences._others(name)
        undo, before = adapter.rollback.keep(), learner.predict(others)
        for _ in range(4):
            learner.learn(own, learner.networks.student.augment(own, learner.networks.view))
        whole.append(loss_rise(before.detach(), learner.predict(others).detach(), counts))
        undo()
        cheap.append(influences._effect(name).rise)
    assert np.argsort(cheap).tolist() == np.argsort(whole).tolist()
    assert np.corrcoef(cheap, whole)[0, 1] > 0.95


def test_of_two_clients_the_honest_one_is_never_muted(network: nn.Module, attack: Tensor, tmp_path: Path) -> None:
    muted = run(
        service(network, tmp_path), {"honest": pictures(800, 0, "pixelate"), HOSTILE: attack.repeat(4, 1, 1, 1)}
    )
    assert set(muted) <= {HOSTILE}, "the other one only if it is found out"


def test_an_adversary_is_muted_and_nobody_else(network: nn.Module, attack: Tensor, tmp_path: Path) -> None:
    writer = service(network, tmp_path)
    streams = {f"honest {n}": pictures(1200, n, name) for n, name in enumerate(DOMAINS)}
    muted = run(writer, {**streams, HOSTILE: attack.repeat(6, 1, 1, 1)})
    assert list(muted) == [HOSTILE]
    assert muted[HOSTILE] <= 1100
    assert writer.screening.muted == writer.screening.harmful == {HOSTILE}
    (event,) = writer.events.newest()
    assert "is predicted, but no longer learned from: its images change the loss of others by +" in event.text
    (listed,) = [client for client in writer.screening.listing() if not client["is_allowed"]]
    assert listed["is_harmful"]
    assert not listed["is_unknown"]
    assert listed["screened"]


def test_a_client_that_ceases_is_learned_from_again(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    screening = ClientScreening(resitta.adapt(model, "resitta"), Events())
    effects = {"good": GOOD, "bad": BAD}
    monkeypatch.setattr(Influences, "_effect", lambda _, key: effects[key])

    def last_of_bad(times: int) -> list[bool]:
        found = []
        for _ in range(times):
            for _ in range(OWN):
                found.append(
                    screening.allowed(torch.rand(2, 3, 10, 10), torch.eye(5)[:2] * 9, ["good", "bad"]).tolist()[1]
                )
            screening.attribute(EVERY)
        return found

    assert not last_of_bad(8)[-1]
    assert screening.muted == screening.harmful == {"bad"}
    effects["bad"] = GOOD
    assert last_of_bad(8)[-1]
    assert screening.muted == screening.harmful == frozenset()
    regained, lost = screening.events.newest()
    assert "is predicted, but no longer learned from: its images change the loss of others by +30%" in lost.text
    assert "is learned from again: its images change the loss of others by +0%" in regained.text


def test_a_client_that_is_unknown_and_harmful_stays_muted_until_it_is_neither(model: nn.Module) -> None:
    client = Client(0, "name", is_harmful=True)
    client.judge(64, 64)
    assert (client.is_unknown, client.is_allowed) == (True, False)
    client.is_harmful = False
    assert not client.is_allowed
    client.judge(640, 0)
    assert client.is_allowed


def test_learning_with_attribution_is_repeatable(network: nn.Module, attack: Tensor, tmp_path: Path) -> None:
    found = []
    for number in range(2):
        writer = service(network, tmp_path / str(number))
        run(writer, {"honest": pictures(400, 0, "pixelate"), HOSTILE: attack.repeat(2, 1, 1, 1)})
        found.append(writer.adapter.state_dict())
    assert same(*found)


def test_attribution_that_fails_is_told_once_and_learning_goes_on(
    network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Influences, "_effect", lambda *_: 1 / 0)
    writer = service(network, tmp_path)
    run(writer, {f"honest {n}": pictures(800, n) for n in range(2)})
    (event,) = writer.events.newest()
    assert event.text == "the influence of clients cannot be measured: ZeroDivisionError: division by zero"
    assert writer.queue.counters.learned == 1600
    assert not writer.queue.paused


@pytest.mark.parametrize("shares", [None, {"honest 0": 48}])
@pytest.mark.parametrize("honest", [2, 4])
def test_honest_clients_stay_allowed(
    network: nn.Module, tmp_path: Path, honest: int, shares: dict[str, int] | None
) -> None:
    writer, turns = service(network, tmp_path), 75 if shares is None else 35
    streams = {
        f"honest {n}": pictures((shares or {}).get(f"honest {n}", 8) * turns, n, DOMAINS[n]) for n in range(honest)
    }
    assert run(writer, streams, shares) == {}
    measured = [influence.effect for influence in writer.screening.influences._known.values()]
    assert all(measured)
