"""An image inside a page: a JPEG as a data URI."""

from __future__ import annotations

import base64
import io

from PIL import Image


def data_uri(image: Image.Image, quality: int = 80) -> str:
    """The image as a JPEG in a data URI."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
