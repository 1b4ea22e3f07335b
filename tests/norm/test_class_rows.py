import pytest
import torch

from resitta.norm.class_rows import ClassRows, from_24_bits, to_24_bits


def test_24_bits_hold_the_nearest_number() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(10_000, generator=generator) * 10 ** torch.linspace(-30, 30, 10_000)
    rounded = from_24_bits(*to_24_bits(values))
    error = ((rounded - values) / values).double().abs().max().item()
    assert 2**-17 < error <= 2**-16
    assert not (rounded.view(torch.int32) & 0xFF).any()
    nearest = ((values.view(torch.int32).long() + 0x80) // 256 * 256).int().view(torch.float32)
    assert torch.equal(rounded, nearest)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, torch.inf, -torch.inf, 1e-40])
def test_what_fits_is_kept(value: float) -> None:
    once = from_24_bits(*to_24_bits(torch.tensor([value])))
    assert torch.equal(from_24_bits(*to_24_bits(once)), once)
    assert once.item() == pytest.approx(value, rel=1e-4)


def test_what_is_not_a_number_stays_so() -> None:
    assert from_24_bits(*to_24_bits(torch.tensor([torch.nan]))).isnan().all()


@pytest.mark.parametrize(("bits", "nbytes"), [(32, 4), (24, 3)])
def test_every_class_begins_with_the_same(bits: int, nbytes: int) -> None:
    row = torch.tensor([[1.0, 2.0], [0.5, 3.0]])
    rows = ClassRows(row, 7, bits)  # type: ignore[arg-type]
    assert torch.equal(rows.read(), row.expand(7, 2, 2))
    assert rows.nbytes == 7 * 4 * nbytes
    other = ClassRows(torch.zeros(2, 2), 7, bits)  # type: ignore[arg-type]
    other.load_state_dict(rows.state_dict())
    assert torch.equal(other.read(), rows.read())


def test_32_bits_follow_the_precision_of_the_network() -> None:
    rows = ClassRows(torch.ones(2, 3), 4).double()
    rows.write(torch.full((4, 2, 3), 1 / 3, dtype=torch.float64))
    assert rows.read()[0, 0, 0].item() == 1 / 3
