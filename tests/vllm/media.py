"""Pictures, sounds and clips, made here; and two ways to have vLLM fetch them."""

from __future__ import annotations

import asyncio
import io
import wave
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image
from vllm.connections import global_http_connection as connection
from vllm.multimodal.media import MediaConnector

__all__ = ["Fetch", "Octets", "clip", "picture", "sound"]


def picture(grey: int = 0, side: int = 32) -> bytes:
    """A PNG of one shade."""
    with io.BytesIO() as file:
        Image.new("RGB", (side, side), (grey, grey, grey)).save(file, "PNG")
        return file.getvalue()


def sound(frames: int = 1600) -> bytes:
    """A WAV file of silence at 16 kHz."""
    with io.BytesIO() as file:
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(16_000)
            writer.writeframes(bytes(2 * frames))
        return file.getvalue()


def clip(folder: Path, frames: int = 4) -> bytes:
    """An AVI of motion JPEGs; *folder* for a file on the way."""
    path = folder / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 4.0, (64, 64))
    for number in range(frames):
        writer.write(np.full((64, 64, 3), number * 20, np.uint8))
    writer.release()
    return path.read_bytes()


class Octets:
    """A MediaIO that decodes nothing, or only fails."""

    def __init__(self, error: Exception | None = None, most: int | None = None) -> None:
        self._error = error
        self._most = most

    def get_max_bytes(self) -> int | None:
        return self._most

    def load_bytes(self, data: bytes) -> bytes:
        if self._error is not None:
            raise self._error
        return data


class Fetch:
    """A new MediaConnector's methods, in the synchronous or the asynchronous form."""

    def __init__(self, *, asynchronous: bool) -> None:
        self.asynchronous = asynchronous

    def __call__(self, kind: str, url: str, **connector: Any) -> Any:
        return self.on(MediaConnector(**connector), kind, url)

    def on(self, connector: MediaConnector, kind: str, url: str) -> Any:
        if self.asynchronous:
            return _run(getattr(connector, f"fetch_{kind}_async")(url))
        return getattr(connector, f"fetch_{kind}")(url)

    def load(self, url: str, media_io: Any) -> Any:
        """What *media_io* makes of the octets at *url*."""
        connector: Any = MediaConnector()
        if self.asynchronous:
            return _run(connector.load_from_url_async(url, media_io))
        return connector.load_from_url(url, media_io)

    def grey(self, url: str, **connector: Any) -> int:
        """The shade of the :func:`picture` at *url*."""
        image: Any = self("image", url, **connector)
        return int(getattr(image, "media", image).getpixel((0, 0))[0])

    def octets(self, url: str, **arguments: Any) -> bytes:
        """What vLLM's connection gives for *url*."""
        if self.asynchronous:
            return bytes(_run(connection.async_get_bytes(url, **arguments)))
        return bytes(connection.get_bytes(url, **arguments))


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """In a loop of its own, after which vLLM's own session, where there is one, could not be used again."""

    async def run() -> Any:
        try:
            return await work
        finally:
            session, connection._async_client = connection._async_client, None
            if session is not None:
                await session.close()

    return asyncio.run(run())
