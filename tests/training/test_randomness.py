import pytest
import torch

from resitta.training.randomness import device_generator


def draws(seed: int, device: str = "cpu") -> torch.Tensor:
    generator = device_generator(torch.Generator().manual_seed(seed), device)
    return torch.randn(100, generator=generator, device=device).cpu()


def test_the_seed_decides_the_stream() -> None:
    assert torch.equal(draws(1), draws(1))
    assert not torch.equal(draws(1), draws(2))


def test_one_integer_is_drawn_so_the_next_stream_differs() -> None:
    generator, twin = (torch.Generator().manual_seed(3) for _ in range(2))
    first, second = (device_generator(generator, "cpu") for _ in range(2))
    torch.randint(2**63 - 1, (2,), generator=twin)
    assert first.initial_seed() != second.initial_seed()
    assert torch.equal(generator.get_state(), twin.get_state())


def test_global_randomness_is_left_alone() -> None:
    before = torch.get_rng_state()
    draws(1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_stream_is_reproducible() -> None:
    assert torch.equal(draws(1, "cuda"), draws(1, "cuda"))
