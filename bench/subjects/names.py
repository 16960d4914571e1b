"""Names of caches, as the report has them."""

from __future__ import annotations

ACC_FILES = "aiohttp-client-cache, files"
ACC_SQLITE = "aiohttp-client-cache, SQLite"
CC = "CacheControl"
CC_SEPARATE = "CacheControl, separate bodies"
HISHEL = "hishel"
OWN = "vLLM's own"
RC_FILES = "requests-cache, files"
RC_SQLITE = "requests-cache, SQLite"
FLOORS = ("Path.read_bytes", "read into a ready buffer")
WRITE = "write and rename"
TO_FILE = "no cache, to a file"
STORAGE = "FileStorage"
NONE = "no cache"
OURS = "vllm-http-cache"
