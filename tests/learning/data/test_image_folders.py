"""A folder of images for each class."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import everything, load

from peer.errors import InputError


def draw(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (9, 5)) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_image_folder_with_train_and_test(tmp_path: Path) -> None:
    draw(tmp_path / "train" / "b" / "1.png", (255, 0, 0))
    draw(tmp_path / "train" / "a" / "2.PNG", (0, 255, 0), (40, 40))
    draw(tmp_path / "train" / "a" / "1.png", (0, 0, 255))
    draw(tmp_path / "test" / "b" / "1.png", (255, 255, 255))
    (tmp_path / "train" / "a" / "notes.txt").write_text("not an image")
    dataset = load("image-folder", root=tmp_path, size=6)
    train, test = everything(dataset)
    assert (dataset.shape, dataset.classes) == ((3, 6, 6), 2)
    assert train.y.tolist() == [0, 0, 1]
    assert train.x.mean(dim=(2, 3)).tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert (test.y.tolist(), test.x.min()) == ([1], 1.0)
    grey = load("image-folder", root=tmp_path, size=6, channels=1)
    assert grey.train(np.array([1])).x.shape == (1, 1, 6, 6)


def test_image_folder_with_a_holdout_and_fixed_classes(tmp_path: Path) -> None:
    for number in range(5):
        draw(tmp_path / "cat" / f"{number}.png", (number, 0, 0))
    dataset = load("image-folder", root=tmp_path, size=4, class_names=["ape", "cat"], holdout=0.4)
    order = np.random.default_rng(42).permutation(5)
    assert torch.equal(torch.round(dataset.test().x[:, 0, 0, 0] * 255).long(), torch.from_numpy(order[3:]))
    assert (dataset.classes, dataset.train_targets.tolist()) == (2, [1, 1, 1])
    with pytest.raises(InputError, match="the folder 'cat' is none of the classes ape, dog"):
        load("image-folder", root=tmp_path, class_names=["ape", "dog"])


def test_wrong_image_folders_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        load("image-folder", root=tmp_path / "none")
    with pytest.raises(InputError, match="needs one for each class"):
        load("image-folder", root=tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(InputError, match="there are no images"):
        load("image-folder", root=tmp_path)
    draw(tmp_path / "cat" / "1.png", (1, 2, 3), (64, 64))
    draw(tmp_path / "cat" / "2.jpg", (1, 2, 3), (64, 64))
    for name in ("1.png", "2.jpg"):
        path = tmp_path / "cat" / name
        path.write_bytes(path.read_bytes()[:-60])
    dataset = load("image-folder", root=tmp_path, holdout=0.5)
    for take in (lambda: dataset.train(np.array([0])), dataset.test):
        with pytest.raises(InputError, match=r"cannot read the image .*cat.[12]\."):
            take()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"Pillow, .* install it with: pip install -c constraints.txt 'dfl\[vision\]'"):
        dataset.test()


@pytest.mark.parametrize(("mode", "suffix"), [("I;16", "png"), ("I;16", "tif"), ("I", "tif"), ("F", "tif")])
def test_an_image_of_more_than_8_bits_is_refused(mode: str, suffix: str, tmp_path: Path) -> None:
    from PIL import Image

    for number in range(2):
        path = tmp_path / "cat" / f"{number}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        Image.new(mode, (4, 4), 9).save(path)
    dataset = load("image-folder", root=tmp_path, holdout=0.5)
    with pytest.raises(
        InputError, match=r"cannot read the image .*cat.* more than 8 bits a pixel; save it with 8 bits"
    ):
        dataset.train(np.array([0]))
