import pytest
import torch
from torch import Tensor

from resitta.training.destroyed_view import DESTRUCTIONS, occlude, shuffle_patches, shuffle_pixels


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def patches(image: Tensor) -> list[bytes]:
    """The 16 patches of an image whose sides are multiples of 4."""
    side = image.shape[1] // 4
    places = [(row * side, column * side) for row in range(4) for column in range(4)]
    return [image[:, row : row + side, column : column + side].numpy().tobytes() for row, column in places]


def test_patches_keep_their_content_and_each_image_has_an_order_of_its_own() -> None:
    images = torch.rand(1, 3, 12, 12).repeat(2, 1, 1, 1)
    first, second = shuffle_patches(images, generator())
    orders = [[patches(images[0]).index(patch) for patch in patches(shuffled)] for shuffled in (first, second)]
    assert [sorted(order) for order in orders] == [list(range(16))] * 2
    assert orders[0] != orders[1]
    assert orders[0] == torch.rand(2, 16, generator=generator()).argsort(dim=1)[0].tolist()


def test_sides_need_not_be_multiples_of_four() -> None:
    images = torch.full((2, 3, 14, 33), 0.25)
    torch.testing.assert_close(shuffle_patches(images, generator()), images)
    assert shuffle_patches(torch.rand(1, 1, 3, 2), generator()).shape == (1, 1, 3, 2)


def test_pixels_go_the_same_way_in_all_images() -> None:
    images = torch.arange(64).float().view(1, 1, 8, 8) + torch.tensor([0.0, 100.0]).view(2, 1, 1, 1)
    first, second = shuffle_pixels(images, generator())
    assert torch.equal(first + 100, second)
    assert not torch.equal(first, images[0])
    assert torch.equal(first.flatten().sort().values, images[0].flatten())


def test_the_hidden_square_lies_in_the_middle() -> None:
    images = torch.rand(2, 3, 224, 224)
    hidden = occlude(images, generator())
    changed = (hidden != images).any(dim=1)
    assert changed[:, 56:168, 56:168].all()
    assert changed.sum() == 2 * 112 * 112
    torch.testing.assert_close(hidden[:, :, 100, 100], images.mean(dim=(2, 3)))


@pytest.mark.parametrize("name", list(DESTRUCTIONS))
def test_the_images_given_are_not_changed(name: str) -> None:
    images = torch.rand(2, 3, 8, 8)
    before = images.clone()
    DESTRUCTIONS[name](images, generator())  # type: ignore[index]
    assert torch.equal(images, before)
