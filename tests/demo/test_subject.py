import pytest

from resitta.bench.api import choose
from resitta.cli import library
from resitta.demo.run import SUBJECTS
from resitta.demo.subject import Subject


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_a_subject_names_what_exists(subject: Subject) -> None:
    assert len(choose(subject.methods)) == len(subject.methods) == 5
    assert len(subject.classes) == 10
    assert subject.fast_samples < subject.samples
    assert str(subject.samples) in subject.few.format(samples=1, usual=subject.samples)


def test_the_help_says_how_long_the_streams_are() -> None:
    photographs, digits = SUBJECTS["photographs"], SUBJECTS["digits"]
    shown = " ".join((library.demo.__doc__ or "").split())
    assert f"{photographs.samples} photographs of 2,000, or {digits.samples:,} digits" in shown
    assert f"Use {photographs.fast_samples} photographs, or {digits.fast_samples} digits" in shown
