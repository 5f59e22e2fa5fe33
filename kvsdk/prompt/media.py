"""Images and files as the vendors' dicts write them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from kvsdk.errors import InvalidRequest
from kvsdk.prompt.parts import Breakpoint, File, Image

_DATA = "data:"


def read_media(kind: str, item: Mapping[str, Any], where: str, mark: Breakpoint | None) -> Image | File:
    """An image or a file from a dict of one of `MEDIA_KINDS`.

    Raises:
        InvalidRequest: A part of it is missing or of a kind that cannot be carried; the text has its place.
    """
    try:
        return _READERS[kind](item, mark)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{where} is no whole {kind}: {error}", field=where) from error


def _image(item: Mapping[str, Any], mark: Breakpoint | None) -> Image:
    """Anthropic's image."""
    source = item["source"]
    if source["type"] == "base64":
        return Image(data=source["data"], media_type=source["media_type"], cache=mark)
    return Image(url=source["url"], cache=mark)


def _document(item: Mapping[str, Any], mark: Breakpoint | None) -> File:
    """Anthropic's document; a plain text becomes a text file."""
    source, name = item["source"], str(item.get("title") or "document")
    if source["type"] == "text":
        return File.from_bytes(name, source["data"].encode(), "text/plain", cache=mark)
    if source["type"] == "base64":
        return File(name, data=source["data"], media_type=source["media_type"], cache=mark)
    if source["type"] == "file":
        return File(name, file_id=source["file_id"], cache=mark)
    return File(name, url=source["url"], cache=mark)


def _image_url(item: Mapping[str, Any], mark: Breakpoint | None) -> Image:
    """The image of Chat Completions."""
    return _from_url(item["image_url"]["url"], item["image_url"].get("detail"), mark)


def _input_image(item: Mapping[str, Any], mark: Breakpoint | None) -> Image:
    """The image of Responses."""
    return _from_url(item["image_url"], item.get("detail"), mark)


def _chat_file(item: Mapping[str, Any], mark: Breakpoint | None) -> File:
    """The file of Chat Completions."""
    return _input_file(item["file"], mark)


def _input_file(item: Mapping[str, Any], mark: Breakpoint | None) -> File:
    """The file of Responses."""
    name = str(item.get("filename") or "file")
    if item.get("file_id"):
        return File(name, file_id=item["file_id"], cache=mark)
    if item.get("file_url"):
        return File(name, url=item["file_url"], cache=mark)
    media_type, data = _split(item["file_data"])
    return File(name, data=data, media_type=media_type, cache=mark)


def _from_url(url: str, detail: str | None, mark: Breakpoint | None) -> Image:
    if not url.startswith(_DATA):
        return Image(url=url, detail=detail, cache=mark)
    media_type, data = _split(url)
    return Image(data=data, media_type=media_type, detail=detail, cache=mark)


def _split(data_url: str) -> tuple[str, str]:
    """The media type and the base64 of a data URL; bare base64 is taken as a PDF, as OpenAI does."""
    if not data_url.startswith(_DATA):
        return "application/pdf", data_url
    head, _, data = data_url.removeprefix(_DATA).partition(",")
    media_type, _, encoding = head.partition(";")
    return media_type or "text/plain", data if encoding == "base64" else b64encode(data.encode()).decode()


def data_url(part: Image | File) -> str:
    """A part's data as a data URL."""
    return f"{_DATA}{part.media_type};base64,{part.data}"


_READERS: Mapping[str, Callable[[Mapping[str, Any], Breakpoint | None], Image | File]] = {
    "image": _image,
    "document": _document,
    "image_url": _image_url,
    "input_image": _input_image,
    "file": _chat_file,
    "input_file": _input_file,
}

MEDIA_KINDS = tuple(_READERS)
"""The `type`s of dicts that are images and files."""
