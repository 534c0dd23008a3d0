"""Are models served whose weights lie in an S3 bucket, with signed requests, and does no secret of them show?"""

import os
import subprocess
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from file_server import serving
from s3_stand_in import ACCESS_KEY, REGION, SECRET_KEY, Bucket
from served_stores import served_store
from typed_commands import COMMAND

from llmhostd.loader.store_index import DATA_FILE, arrives

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
NOBODY = {
    "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Path:
    """The bucket `models` with a store under `team a/large`."""
    root = tmp_path_factory.mktemp("buckets")
    store = served_store(root, tiny_models_dir)
    (root / "models" / "team a+b").mkdir()
    store.rename(root / "models" / "team a+b" / "large")
    return root


def environment(**said: str) -> dict[str, str]:
    """Nothing of this machine's own, but what is said."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | NOBODY | said


def add(state: Path, environ: dict[str, str], *more: str) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, "--state-dir", str(state), *more, "models", "add", "s3://models/team%20a+b/large"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)


def test_a_model_in_a_bucket_is_added_fetched_and_answers(root: Path, tmp_path: Path) -> None:
    token = "temporary-t0ken"
    with serving(Bucket(root, session_token=token)) as bucket:
        said = environment(AWS_ENDPOINT_URL=bucket.origin, AWS_REGION=REGION, AWS_SESSION_TOKEN=token, **KEYS)
        done = add(tmp_path, said)
        assert done.returncode == 0, done.stderr
        with DaemonProcess(tmp_path, environ=said) as daemon:
            answer = daemon.openai.completions.create(model="large", prompt="abc", max_tokens=4, temperature=0)
            assert answer.usage is not None
            assert answer.usage.completion_tokens
            (model,) = daemon.http.get("/api/v1/models").json()
        store = tmp_path / "models" / "large"
        assert not arrives(store)
        assert (store / DATA_FILE).read_bytes() == (root / "models/team a+b/large" / DATA_FILE).read_bytes()
        kept = b"".join(file.read_bytes() for file in store.glob("*.json")) + done.stderr.encode() + daemon.log.encode()
        assert not any(one.encode() in kept + repr(model).encode() for one in (SECRET_KEY, ACCESS_KEY, token))


def test_keys_and_region_come_from_a_profile_and_the_endpoint_from_the_settings(root: Path, tmp_path: Path) -> None:
    with serving(Bucket(root)) as bucket:
        (tmp_path / "config").write_text(f"[profile team]\nregion = {REGION}\n")
        keys = f"[team]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
        (tmp_path / "credentials").write_text(keys)
        (tmp_path / "llmhostd.toml").write_text(f'[fetch]\ns3_endpoint = "{bucket.origin}/"\n')
        said = environment(AWS_PROFILE="team", AWS_CONFIG_FILE=str(tmp_path / "config"),
                           AWS_SHARED_CREDENTIALS_FILE=str(tmp_path / "credentials"))  # fmt: skip
        done = add(tmp_path / "state", said, "--config", str(tmp_path / "llmhostd.toml"))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({}, "s3: there are no credentials in the environment"),
        ({"AWS_PROFILE": "nobody"}, "s3: The config profile (nobody) could not be found"),
        (KEYS | {"AWS_SECRET_ACCESS_KEY": "wrong"}, "the server answered 403 Forbidden: SignatureDoesNotMatch"),
        (KEYS | {"AWS_ACCESS_KEY_ID": "other"}, "the server answered 403 Forbidden: InvalidAccessKeyId"),
        (KEYS | {"AWS_REGION": "us-east-1"}, "the server answered 403 Forbidden: AuthorizationHeaderMalformed"),
        (KEYS | {"AWS_ENDPOINT_URL": "localhost"}, "fetch.s3_endpoint: 'localhost' is no http: or https: address"),
        (KEYS | {"AWS_ENDPOINT_URL": "", "AWS_REGION": "mars"}, "fetch.s3_region: 'mars' is not known"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(root: Path, tmp_path: Path, said: dict[str, str], says: str) -> None:
    with serving(Bucket(root)) as bucket:
        done = add(tmp_path, environment(**{"AWS_ENDPOINT_URL": bucket.origin, "AWS_REGION": REGION} | said))
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("*large*"))


def test_without_the_library_its_extra_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "botocore.py").write_text("raise ImportError('no')\n")
    done = add(tmp_path / "state", environment(PYTHONPATH=str(tmp_path / "hidden"), **KEYS))
    assert done.returncode == 1
    assert done.stderr == "llmhostd: s3: needs botocore, which is not installed: pip install 'llmhostd[s3]'\n"
