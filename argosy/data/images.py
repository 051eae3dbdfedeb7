"""Images in one folder per class, read without torchvision."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from argosy.disk.files import user_path
from argosy.errors import StudyError
from argosy.errors.checks import check_whole

__all__ = ["ImageFolder", "image_folder"]

ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFolder:
    """Samples (image, class): the image is uint8 ``[3, size, size]``, the class an int."""

    root: str
    files: tuple[str, ...]
    """Paths relative to the root, sorted by class and name."""
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    """Names of the class folders, by class number."""
    size: int

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return _decode(Path(self.root, self.files[index]), self.size), self.labels[index]


def image_folder(root: str | Path, *, size: int, classes: Sequence[str] | None = None) -> ImageFolder:
    """Return the images of a folder that has one folder for each class, ``root/cat/1.jpg``, as samples (image, class).

    Images are uint8 ``[3, size, size]``. Each is decoded to RGB (16-bit pixels are scaled to 8 bits), resized so that its shorter side is
    `size` (bilinear, antialiased), and cropped to the centre. Normalise the bytes in `Data.on_device`, and augment in `Data.then` or `Member.augment`. Hidden files and folders
    (``.ipynb_checkpoints``) are ignored. Classes are numbered in the order of their names, or as in `classes`: give ``classes=train.classes`` for
    a validation set that lacks some. The Dataset has the attributes `classes`, the names by class number, and `labels`, the class number of each
    image. Needs Pillow.

    Raises:
        StudyError: if the folder does not exist, has no image, or has a class that is not in `classes`.

    Example:
        ``argosy.Data(train=argosy.data.image_folder("photos/train", size=64), val=argosy.data.image_folder("photos/val", size=64))``
    """
    check_whole("image_folder: size", size, least=1)
    root = user_path(root).absolute()
    shown = (path for path in (root.iterdir() if root.is_dir() else ()) if not path.name.startswith("."))
    folders = sorted(path for path in shown if path.is_dir())
    names = tuple(folder.name for folder in folders) if classes is None else tuple(classes)
    if unknown := [folder.name for folder in folders if folder.name not in names]:
        raise StudyError(
            f"image_folder: {root} has the folder {unknown[0]!r}, which is not one of the classes {', '.join(names)}. "
            "Add it to classes=, or remove the folder."
        )
    images = [
        (str(path.relative_to(root)), names.index(folder.name))
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".")
    ]
    if not images:
        what = f"it has {len(folders)} folders and no images" if root.is_dir() else "the folder does not exist"
        raise StudyError(
            f"image_folder: {root}: {what}. Pass a folder that has one folder per class, for example "
            f"{root / 'cat' / '1.jpg'}. Images end in {', '.join(sorted(ENDINGS))}."
        )
    files, labels = zip(*images, strict=True)
    return ImageFolder(root=str(root), files=files, labels=labels, classes=names, size=size)


def _decode(path: Path, size: int) -> Tensor:
    from argosy.data.pillow import Image

    with Image.open(path) as file:
        image = _to_8_bit(path, file).convert("RGB")
    scale = size / min(image.size)
    wide, high = (max(round(side * scale), size) for side in image.size)
    left, top = (wide - size) // 2, (high - size) // 2
    image = image.resize((wide, high), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _to_8_bit(path: Path, file: Any) -> Any:
    """Return an image with 8 bits per channel. Pillow's own conversion would make all values above 255 white."""
    from argosy.data.pillow import Image

    # In PNG and PPM files, pixels that Pillow opens in the 32-bit mode I are scaled to 16 bits.
    if file.mode.startswith("I;16") or (file.mode == "I" and file.format in ("PNG", "PPM")):
        return Image.fromarray(np.rint(np.asarray(file) / 257).astype(np.uint8))
    if file.mode in ("I", "F"):
        raise StudyError(
            f"image_folder: the pixels of {path} are {'floats' if file.mode == 'F' else '32-bit numbers'} (mode "
            f"{file.mode!r}), whose value for white is unknown. Convert the image to 8 or 16 bits."
        )
    return file
