import pytest
from tests.tools import make_run

from resitta.bench.experiments import EXPERIMENTS, METHODS, check_source, experiment
from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord
from resitta.data.corruptions import CORRUPTIONS
from resitta.errors import UnknownName
from resitta.method import list_methods


def test_every_experiment_can_be_made() -> None:
    for name in EXPERIMENTS:
        jobs = experiment(name).jobs([1])
        assert jobs, name
        assert all(job.seed == 1 for job in jobs)


def test_the_tables_run_all_nine_methods() -> None:
    assert set(METHODS) <= set(list_methods())
    assert [job.method.name for job in experiment("table2").jobs([1])] == list(METHODS)
    assert [job.seed for job in experiment("table1").jobs([1, 2], ["tent"])] == [1, 2]


def test_presets_of_the_data_set_reach_the_methods() -> None:
    (job,) = experiment("table3").jobs([1], ["resitta"])
    assert job.method.eta == 0.05  # type: ignore[attr-defined]
    assert experiment("table3").task.protocol.order == "sorted"


def test_the_ablation_and_the_sweeps_are_those_of_the_paper() -> None:
    rows = experiment("ablation").variants
    assert len(rows) == 6
    assert {tuple(settings) for _, settings in rows} >= {(), ("norm",), ("drop_outdated",)}
    ages = [job.method.mature_age for job in experiment("mature").jobs([1])]  # type: ignore[attr-defined]
    assert ages == [100, 200, 300, 400, 500, 600, 700, 800]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'table1'"):
        experiment("tabel1")
    with pytest.raises(UnknownName, match="Did you mean 'cifar10"):
        experiment("eta", "cifar-10")


def source_run(*errors: float) -> RunRecord:
    return make_run("source", errors, domains=CORRUPTIONS)


def test_the_papers_own_row_passes() -> None:
    row = PAPER.table1["source"]
    assert check_source(source_run(*row.errors), row).passed
    nearly = check_source(source_run(*[error + 0.1 for error in row.errors]), row)
    assert nearly.passed
    assert str(nearly).startswith("Source check passed")


def test_one_cell_off_fails_loudly_and_is_named() -> None:
    row = PAPER.table1["source"]
    errors = list(row.errors)
    errors[CORRUPTIONS.index("fog")] += 0.3
    verdict = check_source(source_run(*errors), row)
    assert not verdict.passed
    assert verdict.corruption == "fog"
    assert verdict.ours == pytest.approx(26.3)
    assert "SOURCE CHECK FAILED: Source has 26.3 % error on fog, the paper 26.0" in str(verdict)
