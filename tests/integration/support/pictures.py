"""Images for models that read them."""

from __future__ import annotations

import base64
import io

from PIL import Image


def picture(colour: str) -> str:
    """A small square of one colour, as the URL of a PNG."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
