import re
from pathlib import Path

import pytest

from resitta.bench.paper import DATASETS, PAPER
from resitta.data.corruptions import CORRUPTIONS
from resitta.errors import UnknownName
from resitta.method import create, list_methods
from resitta.methods import ResiTTA

SOURCE = Path(__file__).resolve().parents[3] / "shared" / "paper" / "resitta.tex"
needs_source = pytest.mark.skipif(not SOURCE.exists(), reason="the paper's source is not here")
MARKUP = re.compile(r"\\cite\{.*?\}|\\bf|\\underline|\\midrule|[~{}\s]")
SWEEP_LABELS = {
    "eta": "eta_t",
    "mature_age": "mature_age",
    "forget_age": "forget_age",
    "nu_b": "batch_norm_ema_nu",
    "nu_m": "model_ema_nu",
    "lr": "learning_rate",
}


def rows(label: str) -> list[list[str]]:
    """The body of a table of the paper's source, cell by cell, without its markup."""
    block = SOURCE.read_text().split(f"\\label{{table:{label}}}")[1].split("\\end{table")[0]
    lines = [line for line in block.split("\\midrule", 1)[1].split("\\bottomrule")[0].split("\\\\") if "&" in line]
    return [[MARKUP.sub("", cell) for cell in line.split("&")] for line in lines]


@needs_source
@pytest.mark.parametrize("dataset", DATASETS)
def test_main_tables_are_as_printed(dataset: str) -> None:
    printed = {row[0].removeprefix("\\").lower(): [float(cell) for cell in row[1:]] for row in rows(dataset)}
    printed["resitta"] = printed.pop("method")
    ours = {name: [*row.errors, row.average] for name, row in PAPER.main(dataset).items()}
    assert ours == printed


@needs_source
@pytest.mark.parametrize("setting", SWEEP_LABELS)
def test_sweeps_are_as_printed(setting: str) -> None:
    sweep, cells = PAPER.sweep(setting), rows(f"paras_{SWEEP_LABELS[setting]}")
    printed = [[float(cell.replace("5$\\times$10$^-5$", "5e-5")) for cell in row] for row in cells]
    ours = zip(sweep.values, *(sweep.averages[dataset] for dataset in DATASETS), strict=True)
    assert [list(row) for row in ours] == printed


@needs_source
def test_ablation_is_as_printed() -> None:
    on = ["\\checkmark" in cell for row in rows("ablation") for cell in row[2:8]]
    printed = {tuple(on[i : i + 6]): float(row[8]) for i, row in zip(range(0, 36, 6), rows("ablation"), strict=True)}
    for ablation in PAPER.table4:
        m = create("resitta", **ablation.settings)
        assert isinstance(m, ResiTTA)
        norms = (m.norm == "adbn", m.norm == "rbn", m.norm == "resibn")
        assert printed.pop((*norms, m.drop_outdated, m.drop_overconfident, m.compare_uncertainty)) == ablation.average
    assert not printed


def test_cells_checked_by_hand() -> None:
    assert PAPER.table1["lame"]["brightness"] == 5.4
    assert PAPER.table2["note"]["impulse_noise"] == 98.2
    assert PAPER.table3["resitta"]["jpeg_compression"] == 53.6
    assert PAPER.table3["resitta"].average == 66.7
    assert PAPER.sweep("nu_m").averages["imagenet"][-1] == 94.1


def test_every_row_has_our_names() -> None:
    for dataset in DATASETS:
        assert set(PAPER.main(dataset)) == set(list_methods()) & set(PAPER.table1)
        assert len(PAPER.main(dataset)) == 9
        assert all(len(row.errors) == len(CORRUPTIONS) == 15 for row in PAPER.main(dataset).values())


def test_averages_agree_with_the_errors_except_two_in_table_3() -> None:
    off = {
        (dataset, row.method)
        for dataset in DATASETS
        for row in PAPER.main(dataset).values()
        if abs(sum(row.errors) / 15 - row.average) > 0.05 + 1e-9
    }
    assert off == {("imagenet", "lame"), ("imagenet", "rotta")}


def test_defaults_of_the_sweeps_give_the_main_result() -> None:
    for setting, sweep in PAPER.sweeps.items():
        for dataset in DATASETS:
            default = getattr(create("resitta", preset=dataset), setting)
            assert sweep.averages[dataset][sweep.values.index(default)] == PAPER.main(dataset)["resitta"].average


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'eta'"):
        PAPER.sweep("etas")
    with pytest.raises(UnknownName, match="no data set 'mnist'"):
        PAPER.main("mnist")
    with pytest.raises(UnknownName, match="no corruption 'rain'"):
        PAPER.table1["bn"]["rain"]
