"""The shadow of an adapter: what it compares, what labels make of it, and what is returned meanwhile."""

import copy
import json
import logging
import pickle
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.checkpoint.format import read, seal
from resitta.checkpoint.tree import same
from resitta.errors import BadLabels, BadSetting, BadState
from resitta.monitor.events import Compared, Event, FellBack, Labelled, Prometheus, Restarted, Resumed, TensorBoard
from resitta.monitor.shadow import ShadowStats
from resitta.monitor.shadow import shadow as module
from resitta.monitor.shadow.ids import chosen
from resitta.monitor.shadow.pending import BATCH
from resitta.monitor.shadow.shadow import LABELLED, Shadow
from resitta.training.entropy import entropy


def images(n: int, seed: int = 0, size: int = 10) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def stats(adapter: resitta.Adapter) -> ShadowStats:
    found = adapter.stats.shadow
    assert found is not None
    return found


def shadow_of(adapter: resitta.Adapter) -> Shadow:
    assert adapter.shadow is not None
    return adapter.shadow


@pytest.fixture
def harmed(model: nn.Module) -> Callable[..., resitta.Adapter]:
    """Makes adapters with a network that always says class 4, while `wrong` is set."""

    def make(**options: Any) -> resitta.Adapter:
        adapter = resitta.adapt(model, "source", shadow=1.0, **options)
        plain = adapter.learner.predict

        def predict(batch: Tensor) -> Tensor:
            logits = plain(batch)
            return torch.eye(5)[[4] * len(batch)] * 9 if getattr(adapter, "wrong", False) else logits

        adapter.learner.predict = predict  # type: ignore[method-assign, assignment]
        return adapter

    return make


def serve(adapter: resitta.Adapter, source: nn.Module, n: int, *, seed: int = 0) -> Tensor:
    """Predict images in one call, and label them as the source does, but for class 4."""
    batch = images(n, seed)
    answer: Tensor = adapter(batch)
    with torch.no_grad():
        labels = source(batch).argmax(1)
    adapter.feedback(adapter.answered.ids, labels.where(labels != 4, 0))
    return answer


# --- what is compared -------------------------------------------------------------------------------------------------


def test_which_images_are_compared_depends_on_number_and_seed_alone(model: nn.Module) -> None:
    found = []
    for size in (1, 7, 200):
        adapter, compared = resitta.adapt(model, "bn", shadow=0.3, seed=5), list[bool]()
        for batch in torch.split(images(200), size):
            adapter(batch)
            compared += adapter.answered.compared
        found.append(compared)
    assert found[0] == found[1] == found[2] == chosen(range(200), 0.3, 5).tolist()
    assert chosen(range(200), 0.3, 6).tolist() != found[0]
    assert 30 < sum(found[0]) < 90
    assert chosen(range(100, 200), 1.0, 2**64 - 1).all()


def test_both_networks_are_described_on_the_same_images(model: nn.Module) -> None:
    adapter, batches = resitta.adapt(model, "resitta", shadow=1.0), torch.split(images(320), 64)
    answers = torch.cat([adapter(batch) for batch in batches])
    with torch.no_grad():
        source = torch.cat([model(batch) for batch in batches])
    running = stats(adapter).running
    assert running is not None
    assert running.compared == 320
    assert running.disagreement == pytest.approx((answers.argmax(1) != source.argmax(1)).double().mean().item())
    for name, logits in (("adapted", answers), ("source", source)):
        confidence = logits.softmax(1).amax(1).mean().item()
        assert getattr(running, f"{name}_confidence") == pytest.approx(confidence, rel=1e-5)
        assert getattr(running, f"{name}_entropy") == pytest.approx(entropy(logits).mean().item(), rel=1e-5)
    recent = stats(adapter).recent
    assert recent is not None
    assert recent.compared == 320
    json.dumps(asdict(stats(adapter)), allow_nan=False)


def test_a_shadow_changes_neither_predictions_nor_what_is_learned(model: nn.Module) -> None:
    plain, watched = resitta.adapt(model, "resitta"), resitta.adapt(model, "resitta", shadow=0.5)
    for batch in torch.split(images(256), 32):
        assert torch.equal(plain(batch), watched(batch))
    assert same(plain.learner.state_dict(), watched.learner.state_dict())
    assert plain.stats.shadow is None


def test_images_wait_until_they_are_a_batch_and_the_caller_may_overwrite_them(model: nn.Module) -> None:
    adapter, batch = resitta.adapt(model, "bn", shadow=1.0), images(BATCH - 1)
    logits = adapter(batch)
    expected = logits.argmax(1).clone()
    assert stats(adapter).running is None
    batch.zero_()
    logits.zero_()
    adapter(images(1, seed=2))
    ledger = shadow_of(adapter).ledger
    with torch.no_grad():
        assert ledger.values[: BATCH - 1, 1].tolist() == model(images(BATCH - 1)).argmax(1).tolist()
    assert ledger.values[: BATCH - 1, 0].tolist() == expected.tolist()


def test_paused_calls_are_compared_too_and_images_of_other_sizes(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", shadow=1.0)
    adapter(images(20))
    with adapter.paused():
        adapter(images(20, size=12))
    assert stats(adapter).predicted == 40
    assert adapter.feedback(range(40), [0] * 40).used == 40
    assert adapter.samples == 20


def test_images_that_are_not_finite_are_compared_as_they_were_predicted(model: nn.Module) -> None:
    adapter, batch = resitta.adapt(model, "bn", shadow=1.0, non_finite="skip"), images(BATCH)
    batch[3] = torch.nan
    adapter(batch)
    running = stats(adapter).running
    assert running is not None
    assert running.compared == BATCH


@pytest.mark.parametrize("method", ["tent", "lame", "t3a", "resitta"])
def test_any_method_can_have_a_shadow(model: nn.Module, method: str) -> None:
    adapter = resitta.adapt(model, method, shadow=0.5)
    with torch.inference_mode():
        for batch in torch.split(images(128), 16):
            adapter(batch)
    running = stats(adapter).running
    assert running is not None
    assert running.compared > 30


def test_beside_learning_in_the_background(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", shadow=1.0, background=True)
    heard = list[Event]()
    adapter.listen(lambda event: heard.append(event) if isinstance(event, Compared) and adapter.stats else None)
    for batch in torch.split(images(192), 64):
        adapter(batch)
        adapter.feedback(adapter.answered.ids, torch.zeros(64, dtype=torch.int32))
    adapter.sync()
    assert stats(adapter).feedback.running is not None
    assert len(heard) == 3
    assert adapter.stats.updates == 3
    assert copy.deepcopy(adapter).stats.shadow == adapter.stats.shadow


def test_every_thread_gets_the_ids_of_its_own_images(model: nn.Module) -> None:
    adapter, found = resitta.adapt(model, "source", shadow=1.0), list[int]()

    def call(count: int) -> None:
        for _ in range(20):
            adapter(images(count))
            assert len(adapter.answered.ids) == count
            found.extend(adapter.answered.ids)

    threads = [threading.Thread(target=call, args=(count,)) for count in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == list(range(120))
    assert len(adapter.answered.ids) == 0


def test_a_source_that_cannot_predict_disturbs_nothing(
    model: nn.Module, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, plain = resitta.adapt(model, "resitta", shadow=1.0), resitta.adapt(model, "resitta")

    def fail(_: Tensor) -> Tensor:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(adapter.source, "predict", fail)
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                assert torch.equal(adapter(images(64)), plain(images(64)))
            adapter(images(3))
            plain(images(3))
            adapter.state_dict()
    assert caplog.text.count("the source network cannot predict") == 1
    adapter(images(64))
    running = stats(adapter).running
    assert running is not None
    assert running.compared == 64


# --- labels -----------------------------------------------------------------------------------------------------------


def test_labels_judge_both_networks_on_the_same_images(harmed: Any) -> None:
    adapter = harmed()
    adapter.wrong = True
    adapter(images(40))
    labels = adapter.source.predict(images(40)).argmax(1)
    assert adapter.feedback(torch.arange(40), labels).used == 40
    found = stats(adapter).feedback.running
    assert found is not None
    assert found.source.value == 1.0
    assert found.adapted.value == pytest.approx((labels == 4).float().mean().item())
    assert found.difference.high < 0
    assert found.p_value < 1e-3
    assert not stats(adapter).falling_back, "that has to be asked for"


def test_ids_that_cannot_be_used_are_counted(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resitta.monitor.shadow.ledger.ROOM", 10)
    adapter = resitta.adapt(model, "bn", shadow=0.5)
    adapter(images(100))
    compared = [number for number, is_compared in enumerate(adapter.answered.compared) if is_compared]
    missed = next(number for number in range(99, 0, -1) if number not in compared and number > compared[-10])
    found = adapter.feedback([compared[-1], missed, compared[0], 100, -1], [0] * 5)
    assert (found.used, found.not_compared, found.unknown) == (1, 1, 3)
    assert (stats(adapter).feedback.not_compared, stats(adapter).feedback.unknown) == (1, 3)


@pytest.mark.parametrize(
    ("ids", "labels", "words"),
    [
        ([0, 1], [0], "there are 2 ids and 1 labels"),
        ([0], [5], "the model's 5 classes, from 0 on, found 5"),
        ([0], [-1], "from 0 on, found -1"),
        ([0], [0.5], "labels must be one whole number per image, found float64"),
        ([0], [True], "found bool"),
        ([0], ["cat"], "labels must be one whole number per image"),
        ([[0]], [0], "ids must be one whole number per image"),
        (0, [0], "ids must be a list, an array or a tensor, found a int"),
        ([2**70], [0], "ids must be one whole number"),
        ([0], torch.zeros(1), "found float32"),
    ],
)
def test_bad_labels_are_refused_and_change_nothing(model: nn.Module, ids: Any, labels: Any, words: str) -> None:
    adapter = resitta.adapt(model, "bn", shadow=1.0)
    adapter(images(64))
    before = stats(adapter)
    with pytest.raises(BadLabels, match=words):
        adapter.feedback(ids, labels)
    assert stats(adapter) == before


def test_without_a_shadow_there_is_nothing_to_feed(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "bn")
    with pytest.raises(BadSetting, match="call resitta.adapt with shadow="):
        adapter.feedback([0], [0])
    assert len(adapter.answered.ids) == 0


@pytest.mark.parametrize("share", [0, 0.0, -0.1, 1.01, float("nan"), True, "0.05"])
def test_a_share_that_is_none_is_refused(model: nn.Module, share: Any) -> None:
    with pytest.raises(BadSetting, match="shadow must be a share of the images"):
        resitta.adapt(model, shadow=share)


def test_options_that_do_not_fit_are_refused(model: nn.Module) -> None:
    with pytest.raises(BadSetting, match=r"pass shadow= too"):
        resitta.adapt(model, fallback=True)
    with pytest.raises(BadSetting, match="fallback must be True or False"):
        resitta.adapt(model, shadow=0.1, fallback=1)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="no shadow watches"):
        resitta.fleet(model, shadow=0.1)


# --- falling back -----------------------------------------------------------------------------------------------------


def test_the_source_answers_while_it_is_better(harmed: Any, model: nn.Module) -> None:
    adapter, heard = harmed(fallback=True), list[Event]()
    adapter.listen(heard.append)
    serve(adapter, model, 120)
    assert not stats(adapter).falling_back
    adapter.wrong = True
    assert (serve(adapter, model, 60).argmax(1) == 4).all()
    serve(adapter, model, 60, seed=1)
    assert stats(adapter).falling_back
    with torch.no_grad():
        assert torch.equal(serve(adapter, model, 50, seed=2), model(images(50, seed=2)))
    assert adapter.answered.fallback
    for seed in range(5):
        serve(adapter, model, 50, seed=seed)
    assert stats(adapter).falling_back, "as long as it is better"
    adapter.wrong = False
    for seed in range(4):
        serve(adapter, model, 50, seed=seed)
    assert not stats(adapter).falling_back
    assert not adapter(images(4)).requires_grad
    assert not adapter.answered.fallback
    switches = [event for event in heard if isinstance(event, FellBack | Resumed)]
    assert [type(event) for event in switches] == [FellBack, Resumed]
    assert switches[0].recent.source.low > switches[0].recent.adapted.high
    assert switches[1].recent.labelled == LABELLED
    assert stats(adapter).fell_back == 1


def test_a_switch_is_judged_by_images_predicted_after_it(harmed: Any, model: nn.Module) -> None:
    adapter = harmed(fallback=True)
    adapter.wrong = True
    adapter(images(400))
    with torch.no_grad():
        labels = model(images(400)).argmax(1)
    adapter.feedback(range(100), labels[:100])
    assert stats(adapter).falling_back
    adapter.feedback(range(100, 400), [4] * 300)  # late labels, in favour of the adapted network
    assert stats(adapter).falling_back
    adapter(images(200))
    adapter.feedback(range(400, 400 + LABELLED - 1), [4] * (LABELLED - 1))
    assert stats(adapter).falling_back, "one label is missing"
    adapter.feedback([400 + LABELLED - 1], [4])
    assert not stats(adapter).falling_back


def test_learning_continues_while_the_source_answers(model: nn.Module) -> None:
    adapter, plain = resitta.adapt(model, "resitta", shadow=1.0, fallback=True), resitta.adapt(model, "resitta")
    shadow_of(adapter).falling_back = True
    for batch in torch.split(images(192), 48):
        answer = adapter(batch)
        plain(batch)
        with torch.no_grad():
            assert torch.equal(answer, model(batch))
    assert same(adapter.learner.state_dict(), plain.learner.state_dict())
    assert stats(adapter).running is not None


# --- states, copies, events -------------------------------------------------------------------------------------------


def used(model: nn.Module, **options: Any) -> resitta.Adapter:
    adapter = resitta.adapt(model, "resitta", shadow=0.5, fallback=True, **options)
    for seed in range(3):
        adapter(images(70, seed))
        adapter.feedback(adapter.answered.ids, torch.arange(70) % 5)
    adapter(images(9))
    shadow_of(adapter).falling_back = True
    return adapter


def through_file(adapter: resitta.Adapter, model: nn.Module, path: Path) -> resitta.Adapter:
    adapter.save(path / "state")
    return resitta.load(model, path / "state")


@pytest.mark.parametrize("how", ["file", "copy", "pickle", "state_dict", "restore"])
def test_everything_is_saved_and_comes_back(model: nn.Module, tmp_path: Path, how: str) -> None:
    adapter = used(model)
    if how == "file":
        other = through_file(adapter, model, tmp_path)
        assert (other.options.shadow, other.options.fallback) == (0.5, True)
    elif how in ("copy", "pickle"):
        other = copy.deepcopy(adapter) if how == "copy" else pickle.loads(pickle.dumps(adapter))
    else:
        other = resitta.adapt(model, "resitta", shadow=0.5, fallback=True)
        if how == "restore":
            adapter.save(tmp_path / "state")
            other.restore(tmp_path / "state")
        else:
            other.load_state_dict(adapter.state_dict())
    assert other.stats == adapter.stats
    assert shadow_of(other).epoch != shadow_of(adapter).epoch
    for each in (adapter, other):
        each(images(64, seed=7))
        each.feedback(each.answered.ids, [1] * 64)
    assert other.answered.compared == adapter.answered.compared
    assert other.stats == adapter.stats


def test_files_of_earlier_versions_load(model: nn.Module, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(images(64))
    adapter.save(tmp_path / "state")
    document = read(tmp_path / "state")
    for name in ("shadow", "fallback"):
        del document["options"][name]
    (tmp_path / "state").write_bytes(seal(document))
    assert resitta.load(model, tmp_path / "state").stats == adapter.stats
    watched = resitta.adapt(model, "resitta", shadow=0.5)
    watched(images(64))
    watched.restore(tmp_path / "state")
    assert stats(watched).predicted == 0
    adapter.restore(tmp_path / "state")


def test_a_shadow_in_a_file_is_ignored_without_one(model: nn.Module, tmp_path: Path) -> None:
    used(model).save(tmp_path / "state")
    plain = resitta.adapt(model, "resitta")
    plain.restore(tmp_path / "state")
    assert plain.stats.shadow is None
    cautious = resitta.adapt(model, "resitta", shadow=0.5)
    cautious.restore(tmp_path / "state")
    assert not stats(cautious).falling_back, "it was not asked to fall back"


@pytest.mark.parametrize(("name", "value"), [("predicted", -1), ("switched_at", 1.5), ("unknown", True)])
def test_a_state_made_by_hand_is_refused_and_changes_nothing(model: nn.Module, name: str, value: Any) -> None:
    adapter = used(model)
    state, before = adapter.state_dict(), stats(adapter)
    state["_extra_state"]["shadow"][name] = value
    with pytest.raises(BadState, match="a shadow has counted"):
        adapter.load_state_dict(state)
    assert stats(adapter) == before


def test_a_reset_begins_anew(model: nn.Module) -> None:
    adapter = used(model)
    epoch = shadow_of(adapter).epoch
    adapter.reset()
    assert stats(adapter) == stats(resitta.adapt(model, "resitta", shadow=0.5))
    assert shadow_of(adapter).epoch != epoch
    sibling = used(model).sibling()
    assert stats(sibling).predicted == 0


def test_events_and_metrics(harmed: Any, model: nn.Module, tmp_path: Path) -> None:
    adapter, heard = harmed(fallback=True), list[Event]()
    prometheus = Prometheus()
    board = TensorBoard(tmp_path)
    for handler in (heard.append, prometheus, board):
        adapter.listen(handler)
    assert "resitta_shadow" not in prometheus.text()
    adapter.wrong = True
    serve(adapter, model, 100)
    adapter(images(8))
    board.close()
    kinds = [type(event) for event in heard if not isinstance(event, Restarted)]
    assert kinds == [Compared, Labelled, FellBack]
    text = prometheus.text()
    for line in (
        'resitta_shadow_accuracy{network="source"}',
        'resitta_shadow_difference{bound="low"}',
        'resitta_shadow_confidence{network="adapted"}',
        "resitta_shadow_disagreement ",
        "resitta_falling_back 1.0",
    ):
        assert line in text


@pytest.fixture(autouse=True)
def counts_of_windows() -> None:
    """The tests count on these."""
    assert (BATCH, LABELLED, module.EVERY) == (32, 100, 64)


def test_numbers_may_be_arrays(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "bn", shadow=1.0)
    adapter(images(3))
    assert adapter.feedback(np.arange(3), np.array([0, 1, 2], np.uint8)).used == 3
    assert adapter.feedback([], []).used == 0
