import json
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from resitta.bench.experiments import METHODS
from resitta.bench.record import load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(*languages: str) -> list[str]:
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_runs(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"model": model, "images": torch.rand(70, 3, 10, 10)}
    names |= {"test_images": torch.rand(20, 3, 10, 10), "test_labels": torch.arange(20) % 5}
    for block in blocks("python"):
        exec(block, names)
    assert len(blocks("python")) >= 2


def test_the_first_two_commands_are_the_newcomers() -> None:
    first, second = blocks("sh")[:2]
    assert first.strip().endswith("resitta demo")
    assert second.strip().endswith("python -m pytest")
    assert first.count("\n") == second.count("\n") == 1


def test_ci_runs_the_second_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    awk = re.search(r"second_command=\$\((awk .*)\)\n", script)
    assert awk is not None
    found = subprocess.run(["bash", "-c", awk.group(1)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == blocks("sh")[1].strip()


def test_ci_runs_the_suite_with_sigint_ignored_and_uses_the_wheel() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert """(trap '' INT && bash -euo pipefail -c "$second_command")""" in script
    assert script.rstrip().endswith(".ci/wheel")


def test_the_five_lines_name_the_mode_for_live_streams() -> None:
    section = README.partition("## Five lines")[2].partition("\n## ")[0]
    assert "`background=True`" in section


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_no_document_installs_from_an_index_that_lacks_the_package(path: Path) -> None:
    assert not re.search(r'pip install "?resitta(?:\[[^]]*\])?(?!\[| @)', path.read_text(encoding="utf-8"))


def test_the_pin_of_torch_is_for_the_demo_and_the_tests_only() -> None:
    assert "pins torch for the demo and the tests only" in README
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "for the demo and the tests" in constraints


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_every_method_is_listed() -> None:
    for name in ("source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"):
        assert f"| `{name}` |" in README


@pytest.mark.parametrize(
    ("row", "folder"),
    [
        ("CIFAR-10, WRN-16-1,", "cifar10-wrn16x1"),
        ("CIFAR-10, WRN-28-10,", "cifar10-wrn28x10"),
        ("CIFAR-100, ResNeXt-29,", "cifar100-resnext29"),
        ("ImageNet, ResNet-50,", "imagenet-resnet50"),
    ],
)
def test_the_numbers_come_from_the_records(row: str, folder: str) -> None:
    cells = re.search(rf"^\| {row}[^|]*\|(.*?)\|[^|]*\|$", README, flags=re.MULTILINE)
    assert cells is not None
    records = [load(path) for path in sorted((ROOT / "benchmarks" / "records" / folder).glob("*-1-*.json"))]
    measured = {record.method: record.average for record in records}
    shown = [cell.strip(" *") for cell in cells.group(1).split("|")]
    for method, text in zip(("source", "bn", "tent", "rotta", "resitta"), shown, strict=True):
        assert text == (f"{measured[method]:.1f}" if method in measured else "–"), method


@pytest.mark.parametrize(
    "folder", ["cifar10-wrn28x10", "cifar100-resnext29", "imagenet-resnet50", "imagenet-resnet50-13-classes"]
)
def test_the_table_of_all_methods_comes_from_the_records(folder: str) -> None:
    cells = re.search(rf"^\| `{folder}` \|(.*)\|$", README, flags=re.MULTILINE)
    assert cells is not None
    records = [load(path) for path in sorted((ROOT / "benchmarks" / "records" / folder).glob("*.json"))]
    for method, cell in zip(METHODS, cells.group(1).split("|"), strict=True):
        averages = [record.average for record in records if record.method == method]
        spread = f" ± {statistics.stdev(averages):.1f}" if len(averages) > 1 and method != "source" else ""
        expected = f"{statistics.mean(averages):.1f}{spread}" if averages else "–"
        assert cell.strip(" *") == expected, method


def speed_record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(
        (ROOT / "benchmarks" / "records" / f"speed-cifar10-{name}.json").read_text("utf-8")
    )
    return record


def test_the_table_of_speeds_comes_from_the_records() -> None:
    columns = [speed_record(name)["rows"] for name in ("wrn16x1-cpu", "wrn16x1-h200", "wrn28x10-h200")]
    rows = {"plain code": "resitta, plain code", "exact (default)": "resitta, exact", "RoTTA": "rotta"}
    for title, name in {**rows, '`precision="bf16"`': "resitta, bf16"}.items():
        shown = " | ".join(f"{column[name]['ratio']:.1f}" for column in columns)
        assert f"| {title} | {shown} |" in README


def test_the_table_of_the_bank_comes_from_the_record() -> None:
    rates = speed_record("wrn16x1-cpu")["bank"]
    for title, order in {"classes mixed": "mixed classes", "in runs of one class": "runs of 50"}.items():
        shown = " | ".join(f"{round(rates[f'{size}, {order}'], -3):,.0f}" for size in ("64/10", "16,384/1,000"))
        assert f"| {title} | {shown} |" in README


def test_the_table_of_latency_and_memory_comes_from_the_records() -> None:
    columns = [speed_record(name) for name in ("wrn16x1-h200", "wrn28x10-h200")]
    for name, title in {"plain inference": "its median, p99 (ms)", "resitta, background": "median, p99 (ms)"}.items():
        latencies = [column["latency"][name] for column in columns]
        shown = " | ".join(f"{found['median']:.2f}, {found['p99']:.2f}" for found in latencies)
        assert f"{title} | {shown} |" in README
        speeds = " | ".join(f"{column['batch_1'][name]:.0f}" for column in columns)
        assert f"(images/s) | {speeds} |" in README
    modes = {
        "plain code": "plain code",
        "exact": "exact",
        '`precision="bf16"`': "bf16",
        "`micro_batch=8`": "micro-batches of 8",
    }
    for title, name in modes.items():
        shown = " | ".join(f"{column['memory'][name]:,.0f}" for column in columns)
        assert f"{title} (MB) | {shown} |" in README


@pytest.mark.parametrize(
    ("row", "plain", "renewed"),
    [
        ("CIFAR-10, WRN-16-1, 30,000 images", "cifar10-wrn16x1-renew", "cifar10-wrn16x1-renew"),
        ("CIFAR-10, WRN-28-10, 150,000 images", "cifar10-wrn28x10", "cifar10-wrn28x10-renew"),
        ("CIFAR-100, ResNeXt-29, 150,000 images", "cifar100-resnext29", "cifar100-resnext29-renew"),
        ("ImageNet, ResNet-50, 30,000 images by class", "imagenet-resnet50", "imagenet-resnet50-renew"),
    ],
)
def test_the_table_beyond_the_paper_comes_from_the_records(row: str, plain: str, renewed: str) -> None:
    shown = []
    for folder, renew in ((plain, None), (renewed, 2)):
        records = [load(path) for path in sorted((ROOT / "benchmarks" / "records" / folder).glob("resitta-*.json"))]
        averages = [record.average for record in records if record.settings.get("reset_on_shift") == renew]
        assert len(averages) == 3
        shown.append(f"{statistics.mean(averages):.1f} ± {statistics.stdev(averages):.1f}")
    assert f"| {row} | {shown[0]} | **{shown[1]}** |" in README


def test_the_changes_noticed_come_from_the_record() -> None:
    record = json.loads((ROOT / "benchmarks" / "records" / "shifts.json").read_text("utf-8"))
    runs = [record[f"cifar10-wrn16x1, ptta, seed {seed}, bound 2"] for seed in (1, 2, 3)]
    other = ("cifar10-wrn16x1, sorted", "cifar10-wrn16x1, iid", "cifar100-resnext29, ptta", "imagenet-resnet50, sorted")
    runs += [record[f"{stream}, seed 1, bound 2"] for stream in other]
    assert {(run["changes"], run["false"]) for run in runs} == {(14, 0)}
    at_once = [run["at once"] for run in runs]
    assert ({*at_once[:3]}, {run["late"] for run in runs[:3]}) == ({9, 10}, {1, 2})
    sentence = "it notices 9 or 10 of the 14 changes at once and one or two later, without a false alarm; "
    sentence += "sorted by class and shuffled, {} and {}; on CIFAR-100 {} and on ImageNet {},".format(*at_once[3:])
    assert sentence in " ".join(README.split())


@pytest.mark.parametrize(
    ("stream", "title", "seeds"),
    [
        ("10000 images, anchor 0.1, seed {}, cuda", "10,000 images of each, `anchor=0.1`, ", 3),
        ("10000 images, anchor 0.1, renew 2, seed {}, cuda", "10,000 images of each, `anchor=0.1, renew=2`, ", 1),
    ],
)
def test_the_table_of_wear_comes_from_the_record(stream: str, title: str, seeds: int) -> None:
    record = json.loads((ROOT / "benchmarks" / "records" / "endurance.json").read_text("utf-8"))
    rows = []
    for seed in range(1, seeds + 1):
        errors = record[f"recurring, 20 visits of {stream.format(seed)}"]["error_of_each_visit"]
        assert len(errors) == 20
        cells = errors[0], errors[1], statistics.mean(errors[2:19]), errors[19]
        rows.append(f"seed {seed} | {' | '.join(f'{cell:.1f}' for cell in cells)} |\n")
    assert f"| {title}" + "| ".join(rows) in README
