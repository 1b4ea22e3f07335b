from collections.abc import Callable
from typing import Any

import pytest

from resitta.bench.record import RunRecord
from resitta.data.corruptions import CORRUPTIONS
from resitta.errors import BadData
from resitta.report.groups import by_domains, grouped, short
from resitta.report.identity import from_folder

MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]


def test_seeds_come_together_in_the_given_order(make_run: MakeRun) -> None:
    groups = grouped([make_run("tent", seed=1), make_run("bn", seed=1), make_run("tent", seed=2)])
    assert [(group.label, len(group.runs)) for group in groups] == [("TENT", 2), ("BN", 1)]


def test_other_settings_make_another_group_named_by_what_differs(make_run: MakeRun) -> None:
    runs = [make_run("resitta", settings={"lr": 0.001, "eta": eta}) for eta in (0.01, 0.05)]
    assert [group.label for group in grouped(runs)] == ["ResiTTA eta=0.01", "ResiTTA eta=0.05"]


def test_means_over_seeds(make_run: MakeRun) -> None:
    one = make_run(errors=(10.0, 20.0), error_over_time=(0.0, 4.0))
    two = make_run(errors=(20.0, 40.0), error_over_time=(2.0, 8.0), seed=1)
    (group,) = grouped([one, two])
    assert group.average == 22.5
    assert group.mean(lambda run: run.nll) == 0.75
    assert group.mean_trace(lambda run: run.error_over_time) == (1.0, 6.0)


def test_what_cannot_be_reported_together_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(BadData, match="no runs"):
        grouped([])
    with pytest.raises(BadData, match="different domains"):
        grouped([make_run(), make_run(errors=(1.0,))])
    (group,) = grouped([make_run(error_over_time=(1.0,)), make_run(error_over_time=(1.0, 2.0), seed=1)])
    with pytest.raises(BadData, match="traces of 1, 2 points"):
        group.mean_trace(lambda run: run.error_over_time)


def test_short_names_of_the_paper_are_all_different() -> None:
    assert len({short(name) for name in (*CORRUPTIONS, "gaussian_blur", "speckle_noise")}) == 17


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"severity": 3}, "severity 3"),
        ({"order": "iid"}, "order iid"),
        ({"batch_size": 16}, "batch_size 16"),
        ({"per_domain": 500}, "per_domain 500"),
        ({"model": "wrn16x1"}, "model wrn16x1"),
        ({"data": "photos"}, "data photos"),
        ({"precision": "bf16"}, "precision bf16"),
        ({"version": "0.2.0"}, "version 0.2.0"),
        ({"untrained": True}, "untrained"),
        ({"model_options": {"num_classes": 7}}, "num_classes=7"),
        ({"weights": "a76da5dca158"}, "weights a76da5dca158"),
        ({"code": "1f3a"}, "code 1f3a"),
        ({"method_source": "1f3a"}, "code 1f3a"),
        ({"model_source": "1f3a"}, "model code 1f3a"),
        ({"some_option": 7}, "some_option 7"),
    ],
)
def test_only_seeds_are_averaged(
    make_run: MakeRun, make_identity: MakeIdentity, change: dict[str, Any], label: str
) -> None:
    runs = [make_run("tent", seed=seed, identity=make_identity()) for seed in (1, 2)]
    other = make_run("tent", (70.0, 80.0), seed=3, identity=make_identity(**change))
    usual, changed = grouped([*runs, other])
    assert (len(usual.runs), len(changed.runs)) == (2, 1)
    assert usual.average == 15.0
    assert label in changed.label
    assert changed.label.startswith("TENT ")


def test_other_images_are_another_row(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    one, two = make_run(identity=make_identity()), make_run(seed=1, identity=make_identity(images=["0", "1"]))
    labels = [group.label for group in grouped([one, two])]
    assert len(set(labels)) == 2
    assert all(label.startswith("TENT (images ") for label in labels)


def test_a_difference_between_methods_is_named_too(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    runs = [make_run("bn", identity=make_identity()), make_run("rotta", identity=make_identity())]
    runs.append(make_run("tent", identity=make_identity(severity=3)))
    assert [group.label for group in grouped(runs)] == ["BN", "RoTTA", "TENT (severity 3)"]
    digests = [make_run(name, identity=make_identity(code=name, method_source=name)) for name in ("bn", "tent")]
    assert [group.label for group in grouped(digests)] == ["BN", "TENT"], "each method has code of its own"


def test_what_follows_from_a_named_difference_is_not_named(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    mild = make_identity(severity=3, images=["3"], weights="w")
    runs = [make_run(identity=make_identity()), make_run("bn", identity=make_identity()), make_run("bn", identity=mild)]
    assert [group.label for group in grouped(runs)] == ["TENT", "BN", "BN (severity 3)"]


def test_an_upgrade_is_not_averaged_away(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    old = make_run("resitta", seed=1, identity=make_identity())
    new = [make_run("resitta", seed=s, identity=make_identity(version="0.2.0", code="c")) for s in (1, 2, 3)]
    assert [(group.label, len(group.runs)) for group in grouped([old, *new])] == [
        ("ResiTTA", 1),
        ("ResiTTA (version 0.2.0)", 3),
    ]


def test_what_is_empty_counts_as_absent(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    one = make_run(
        identity=make_identity(checkpoint=None, untrained=False, model_options={}), settings={"reset_on_shift": None}
    )
    two = make_run(seed=1, identity={k: v for k, v in make_identity().items() if k != "checkpoint"}, settings={})
    assert len(grouped([one, two])) == 1
    settings = [make_run(settings={"drop": drop}) for drop in (True, False)]
    assert [group.label for group in grouped(settings)] == ["TENT drop=True", "TENT drop=False"]


def test_runs_in_memory_of_other_lengths_are_other_rows(make_run: MakeRun) -> None:
    assert len(grouped([make_run(), make_run(seed=1, samples=400)])) == 2


def test_a_copy_of_a_run_counts_once(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    run = make_run(seed=1, identity=make_identity())
    again = make_run(seed=1, identity=make_identity(), seconds=9.0)
    other = make_run(errors=(12.0, 22.0), seed=2, identity=make_identity())
    runs = [from_folder(run, "a"), from_folder(again, "b"), from_folder(other, "b")]
    (group,) = grouped(runs)
    assert (group.label, [run.seed for run in group.runs]) == ("TENT", [1, 2])


def test_two_results_of_one_seed_are_never_averaged(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    one = make_run(seed=1, identity=make_identity())
    two = make_run(errors=(30.0, 40.0), seed=1, identity=make_identity())
    with pytest.raises(BadData, match="seed 1 differ .*15.00 % and 35.00 %"):
        grouped([one, two])
    before, after = grouped([from_folder(one, "before"), from_folder(two, "after")])
    assert (before.label, after.label) == ("TENT (before)", "TENT (after)")


def test_folders_name_what_has_no_better_name(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    def run(code: str, folder: str, **changes: Any) -> RunRecord:
        return from_folder(make_run(identity=make_identity(code=code), **changes), folder)

    digests = [run("1", "before"), run("2", "after")]
    assert [group.label for group in grouped(digests)] == ["TENT (before)", "TENT (after)"]
    seeds = [run("1", "before", seed=1), run("1", "after", seed=2)]
    assert [(group.label, len(group.runs)) for group in grouped(seeds)] == [("TENT", 2)]
    methods = [run("1", "before"), run("2", "after", method="bn")]
    assert [group.label for group in grouped(methods)] == ["TENT", "BN"]


def test_labels_are_all_different(make_run: MakeRun) -> None:
    mine, other = make_run("mine", title="RoTTA"), make_run("rotta")
    assert [group.label for group in grouped([mine, other])] == ["RoTTA mine", "RoTTA rotta"]
    odd = [make_run(settings={"x": value}) for value in (1, "1")]
    assert len({group.label for group in grouped(odd)}) == 2


def test_display_names(make_run: MakeRun) -> None:
    runs = [make_run("mine", title="My method"), make_run("nobody_knows"), make_run("pl")]
    assert [group.label for group in grouped(runs)] == ["My method", "nobody_knows", "PL"]


def test_runs_are_split_by_their_domains(make_run: MakeRun) -> None:
    both, fog = make_run(), make_run(errors=(1.0,), domains=("fog",))
    assert by_domains([both, fog, both]) == [[both, both], [fog]]
