"""A store with S3 behind it: shared by machines, and nothing that anyone waits for when it is gone."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from broken_servers import free_port, silent_server
from kv_samples import is_equal, kv_of, prompt
from kvsdk.store import Disk, Hit, Memory, Object
from object_server import ObjectServer
from pytest_httpserver import HTTPServer
from store_makers import StoreMaker

TOKENS = prompt(600)
KV = kv_of(TOKENS)
OPTIONS = {"access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}


def test_another_machine_serves_what_the_first_one_put(
    make_store: StoreMaker, object_server: ObjectServer, tmp_path: Path
) -> None:
    """With an empty disk and index and nothing shared but the bucket; afterwards from its own disk."""
    url = f"s3://{object_server.new_bucket()}/kv"
    with make_store(Disk(tmp_path / "one"), Object(url, **object_server.options)) as first:
        first.put(TOKENS, KV)
    second = make_store(Disk(tmp_path / "two"), Object(url, **object_server.options))
    assert second.lookup(TOKENS) == 0
    hit = second.get([*TOKENS, 1])
    assert isinstance(hit, Hit)
    assert hit.tokens_by_tier == {"object": 600}
    assert is_equal(hit.kv, KV)
    second.flush()
    assert second.get(TOKENS).tokens_by_tier == {"disk": 600}


def test_an_object_that_somebody_changed_is_a_miss(
    make_store: StoreMaker, object_server: ObjectServer
) -> None:
    """And is gone afterwards, so that the next put heals it."""
    bucket = object_server.new_bucket()
    store = make_store(Object(f"s3://{bucket}", **object_server.options))
    store.put(TOKENS, KV)
    store.flush()
    for key in object_server.keys(bucket):
        if key.startswith("kv/"):
            body = bytearray(object_server.s3.get_object(Bucket=bucket, Key=key)["Body"].read())
            body[len(body) // 2] ^= 1
            object_server.s3.put_object(Bucket=bucket, Key=key, Body=bytes(body))
    miss = store.get(TOKENS)
    assert not miss
    assert miss.kind == "corrupt"
    ends_s = time.monotonic() + 30  # the chunks behind are read ahead, and removed by threads of their own
    while any(key.startswith("kv/") for key in object_server.keys(bucket)) and time.monotonic() < ends_s:
        assert not store.get(TOKENS)
    store.put(TOKENS, KV)
    store.flush()
    assert is_equal(store.get(TOKENS).kv, KV)


def test_serving_goes_on_without_s3(make_store: StoreMaker, tmp_path: Path) -> None:
    """Nobody listens there: puts and gets go on with memory and disk, and the breaker opens."""
    dead = Object("s3://bucket", endpoint=f"http://127.0.0.1:{free_port()}", timeout_s=0.2, **OPTIONS)
    store = make_store(Memory("64MiB"), Disk(tmp_path), dead, deadline_s=5.0)
    for seed in range(4):
        tokens = prompt(300, seed)
        store.put(tokens, kv_of(tokens))
    store.flush()
    assert store.stats().tiers["object"].breaker == "open"
    assert all(store.get(prompt(300, seed)).tokens == 300 for seed in range(4))
    miss = store.get(prompt(300, 9))
    assert (miss.tokens, miss.kind) == (0, "unavailable")


def test_a_silent_s3_costs_no_more_than_the_deadline(make_store: StoreMaker, tmp_path: Path) -> None:
    """It accepts and never answers; what it has been asked for is a miss."""
    with silent_server() as endpoint:
        silent = Object("s3://bucket", endpoint=endpoint, timeout_s=30, **OPTIONS)
        store = make_store(Disk(tmp_path), silent, deadline_s=0.3)
        miss = store.get(TOKENS)
        assert (miss.kind, "no answer within 0.3 s" in miss.reason) == ("unavailable", True)


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusing_s3_is_unavailable(
    make_store: StoreMaker, httpserver: HTTPServer, tmp_path: Path, status: int
) -> None:
    """Too many requests, or none at all now: a miss that says so, and the disk goes on."""
    refusing = Object("s3://bucket", endpoint=httpserver.url_for("").rstrip("/"), timeout_s=0.3, **OPTIONS)
    httpserver.expect_request(re.compile(".*")).respond_with_data(status=status)
    store = make_store(Disk(tmp_path), refusing, deadline_s=5.0)
    miss = store.get(TOKENS)
    assert miss.kind == "unavailable"
    store.put(TOKENS, KV)
    store.flush()
    assert store.get(TOKENS).tokens_by_tier == {"disk": 600}
