from resitta.cli.samples import digits, photographs


def test_both_are_colour_images_of_ten_classes() -> None:
    for images in (photographs(), digits()):
        assert images.read([0, len(images) - 1]).shape == (2, 3, 32, 32)
        assert images.classes == 10
