"""Pillow, which decodes images (extra: images)."""

from argosy.errors import StudyError

try:
    from PIL import Image as Image
    from PIL import ImageEnhance as ImageEnhance
except ImportError as _error:
    raise StudyError(
        "image_folder decodes images with Pillow, which is not installed. Install it: pip install 'argosy[images]'."
    ) from _error

__all__ = ["Image", "ImageEnhance"]
