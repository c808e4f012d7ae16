"""Objects of S3 as origins: moto stands in for it, asks for signatures, and a relay before it counts."""

from __future__ import annotations

import json
import os
import random
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polycast
import pytest
from conftest import HANG_S
from polycast._program import program
from relay import Relay

boto3 = pytest.importorskip("boto3")
moto_server = pytest.importorskip("moto.server")

FILES = {
    "model/config.json": b"{}",
    "model/a b+c&\u00e9/weights.bin": random.Random(3).randbytes(3_000_001),
    "model/empty": b"",
    "model/folder/": b"",
    "other/file.bin": random.Random(4).randbytes(100_000),
}
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


def post(address: str, body: bytes) -> None:
    request = urllib.request.Request(address, data=body, headers={"Content-Type": "text/plain"})
    urllib.request.urlopen(request, timeout=HANG_S)


class Bucket:
    """A bucket with files, the keys to it, and what it was asked."""

    def __init__(self, address: str) -> None:
        free = {"endpoint_url": address, "region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
        iam = boto3.client("iam", **free)
        iam.create_user(UserName="reader")
        iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=json.dumps(POLICY))
        keys = iam.create_access_key(UserName="reader")["AccessKey"]
        self.keys = {"AWS_ACCESS_KEY_ID": keys["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"]}
        self.s3 = boto3.client("s3", **{**free, "aws_access_key_id": keys["AccessKeyId"], "aws_secret_access_key": keys["SecretAccessKey"]})
        self.s3.create_bucket(Bucket="models")
        for key, body in FILES.items():
            self.s3.put_object(Bucket="models", Key=key, Body=body)
        # From now on each request needs a signature that is right.
        post(f"{address}/moto-api/reset-auth", b"0")
        self.relay = Relay(address)
        self.address = f"http://127.0.0.1:{self.relay.server_port}"

    def gets(self, part: str) -> int:
        return self.relay.count(part)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    server = moto_server.ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    bucket = Bucket(f"http://127.0.0.1:{port}")
    yield bucket
    bucket.relay.shutdown()
    # Without rights to ask for from then on.
    post(f"http://127.0.0.1:{port}/moto-api/reset-auth", str(2**31).encode())
    post(f"http://127.0.0.1:{port}/moto-api/reset", b"")
    server.stop()


@pytest.fixture
def agents() -> Iterator[list[polycast.Agent]]:
    first = polycast.Agent.embedded()
    second = polycast.Agent.embedded(first.manager)
    yield [first, second]
    second.close()
    first.close()


def fetch(bucket: Bucket, agent: polycast.Agent, what: str, out: Path, *more: str, **environment: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    settings = {**kept, **bucket.keys, "AWS_ENDPOINT_URL": bucket.address, "HOME": "/nonexistent", **environment}
    command = [str(program()), "fetch", what, "--out", str(out), "--socket", str(agent.socket), "--json", *more]
    return subprocess.Popen(command, env=settings, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, error = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, error
    document: dict[str, Any] = json.loads(out)
    return document


def test_an_object_is_read_once_for_all_hosts(bucket: Bucket, agents: list[polycast.Agent], tmp_path: Path) -> None:
    what = "s3://models/other/file.bin"
    fetches = [fetch(bucket, agent, what, tmp_path / str(number)) for number, agent in enumerate(agents)]
    assert sorted(said(one)["filled"] for one in fetches) == [False, True]
    for number in range(2):
        assert (tmp_path / str(number)).read_bytes() == FILES["other/file.bin"]
    assert bucket.gets("/models/other/file.bin") == 1, bucket.relay.asked


def test_all_below_a_key_becomes_a_directory_and_what_has_changed_is_read_anew(
    bucket: Bucket, agents: list[polycast.Agent], tmp_path: Path
) -> None:
    first = said(fetch(bucket, agents[0], "s3://models/model/", tmp_path / "first"))
    wanted = {key.removeprefix("model/"): body for key, body in FILES.items() if key.startswith("model/") and not key.endswith("/")}
    assert {file["path"] for file in first["files"]} == set(wanted)
    second = said(fetch(bucket, agents[1], "s3://models/model/", tmp_path / "second"))
    assert not any(file["filled"] for file in second["files"])
    for folder in ("first", "second"):
        assert {str(path.relative_to(tmp_path / folder)): path.read_bytes() for path in (tmp_path / folder).rglob("*") if path.is_file()} == wanted
    assert bucket.gets("weights.bin") == 1, bucket.relay.asked
    bucket.s3.put_object(Bucket="models", Key="model/config.json", Body=b"{2}")
    third = said(fetch(bucket, agents[1], "s3://models/model/", tmp_path / "second", "--update"))
    assert [file["path"] for file in third["files"] if file["filled"]] == ["config.json"]
    assert (tmp_path / "second" / "config.json").read_bytes() == b"{2}"
    assert bucket.gets("weights.bin") == 1, bucket.relay.asked


def test_what_s3_has_is_published_and_read_once(
    bucket: Bucket, agents: list[polycast.Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**bucket.keys, "AWS_ENDPOINT_URL": bucket.address, "HOME": "/nonexistent"}.items():
        monkeypatch.setenv(name, value)
    first = polycast.publish("models", from_="s3://models/model/", agent=agents[0])
    assert first.version == 1 and first.missing == {}
    (version,) = [next(agents[1].subscribe("models"))]
    assert version.object is not None
    version.object.extract(tmp_path / "model")
    wanted = {key.removeprefix("model/"): body for key, body in FILES.items() if key.startswith("model/") and not key.endswith("/")}
    folder = tmp_path / "model"
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == wanted
    assert bucket.gets("weights.bin") == 1, bucket.relay.asked
    # Of the next version only what has changed is read, and of one object the state is asked for first.
    bucket.s3.put_object(Bucket="models", Key="model/config.json", Body=b"{2}")
    assert polycast.publish("models", from_="s3://models/model/", agent=agents[0]).version == 2
    assert bucket.gets("weights.bin") == 1, bucket.relay.asked
    for number in (3, 4):
        assert polycast.publish("models", from_="s3://models/other/file.bin", agent=agents[0]).version == number
    assert bucket.gets("/models/other/file.bin") == 3, bucket.relay.asked
    path = tmp_path / "local.bin"
    path.write_bytes(b"local")
    assert polycast.publish("models", path, agent=agents[0]).version == 5
    with pytest.raises(polycast.errors.Invalid):
        polycast.publish("models")
    with pytest.raises(polycast.errors.Invalid):
        polycast.publish("models", path, from_="s3://models/other/file.bin")


@pytest.mark.parametrize(
    ("what", "environment", "says"),
    [
        ("s3://models/none.bin", {}, "NoSuchKey"),
        ("s3://models/none/", {}, "there is no object with such a key"),
        ("s3://models/other/file.bin", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
        ("s3://models/other/file.bin", {"AWS_ACCESS_KEY_ID": ""}, "there are no keys"),
        ("s3://m/file.bin", {}, "no name of a bucket"),
        ("gs://models/file.bin", {}, "polycast reads https, http, s3, hf, oci and file, and not gs"),
    ],
)
def test_what_is_not_given_says_why(
    what: str, environment: dict[str, str], says: str, bucket: Bucket, agents: list[polycast.Agent], tmp_path: Path
) -> None:
    process = fetch(bucket, agents[0], what, tmp_path / "out", **environment)
    _, error = process.communicate(timeout=HANG_S)
    assert process.returncode != 0 and says in error, error
    assert "wrong" not in error and bucket.keys["AWS_SECRET_ACCESS_KEY"] not in error
