"""What the site's build makes from the code: the table of environment variables."""

from __future__ import annotations

from vllm_http_cache.settings import reference

VARIABLES = "<!-- variables -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    return markdown.replace(VARIABLES, reference())
