"""Pillow, which decodes images (extra: images)."""

from argosy.errors import StudyError
from argosy.errors.optional import optional

with optional(StudyError, "image_folder decodes images with Pillow", "'argosy[images]'"):
    from PIL import Image as Image
    from PIL import ImageEnhance as ImageEnhance

__all__ = ["Image", "ImageEnhance"]
