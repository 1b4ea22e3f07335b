from collections.abc import Callable
from dataclasses import replace
from typing import Any

from resitta.bench.record import RunRecord
from resitta.report.identity import common_facts, experiment, facts, from_folder, task

MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]


def test_facts_are_flat_and_leave_out_what_is_empty(make_run: MakeRun) -> None:
    identity = {"protocol": {"severity": 3, "per_domain": None}, "method": "tent", "settings": {"lr": 1}, "seedless": 0}
    assert facts(make_run(identity=identity)) == {"settings.lr": 0.001, "protocol.severity": 3, "seedless": 0}


def test_the_seed_and_the_folder_define_no_experiment(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    run = make_run(identity=make_identity())
    assert experiment(from_folder(replace(run, seed=7, seconds=1.0), "b")) == experiment(from_folder(run, "a"))
    assert experiment(replace(run, identity=make_identity(severity=1))) != experiment(run)


def test_a_task_does_not_depend_on_the_method(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    run = make_run("tent", identity=make_identity())
    alike = make_run(
        "bn", settings={}, identity=make_identity(code="x", method_source="x", version="2", precision="bf16")
    )
    assert task(alike) == task(run)
    for change in ({"severity": 1}, {"weights": "w"}, {"images": ["x"]}, {"model": "m"}, {"model_options": {"a": 1}}):
        assert task(make_run(identity=make_identity(**change))) != task(run)


def test_common_facts_are_what_all_runs_share(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    mild, severe = (make_run(identity=make_identity(severity=severity)) for severity in (3, 5))
    assert common_facts([mild])["severity"] == 3
    assert "severity" not in common_facts([mild, severe])
    assert common_facts([mild, severe])["model"] == "wrn28x10"
    assert not {"images", "corruptions", "settings.lr"} & set(common_facts([mild]))
