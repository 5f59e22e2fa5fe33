"""A real S3 server on the loopback: moto's, in a process of its own.

It brings Flask, beside which vLLM 0.32.0 starts no engine: that looks at every attribute of every module, and
Flask's raise outside of a request.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from typing import Any

import boto3

SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
sys.stdout = open("/dev/null", "w")  # Flask's greeting
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
print(*server.get_host_and_port(), file=sys.__stdout__, flush=True)
sys.stdin.read()  # until the tests are over, however they end
server.stop()
"""
KEY_ID = "AKIALOOPBACKKEYID"
SECRET = "loopback/secret+access=key"


class ObjectServer:
    """Starts with the object, on a free port; `close` stops it.

    Attributes:
        endpoint: Its address.
        options: What `Object` needs besides the URL.
        s3: A client of AWS's own SDK, for what is to go past ours.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        host, port = self._process.stdout.readline().split()
        self.endpoint = f"http://{host}:{port}"
        self.options: dict[str, Any] = {
            "endpoint": self.endpoint,
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }
        self.s3 = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        self._numbers = count()

    def new_bucket(self) -> str:
        """The name of a bucket that nobody has used."""
        name = f"bucket-{next(self._numbers)}"
        self.s3.create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        """The keys of all its objects."""
        return [item["Key"] for item in self.s3.list_objects_v2(Bucket=bucket).get("Contents", [])]

    def close(self) -> None:
        """Stop it and wait for its end."""
        self.s3.close()
        self._process.communicate()
