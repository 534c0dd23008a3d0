"""Is every mistake in the file told by file, key and nearest right value?"""

from pathlib import Path

import pytest

from llmhostd.config import Config, load_config, state_directory
from llmhostd.domain.errors import OperatorError

MISTAKES = [
    ("[http]\nprot = 1", "http.prot: there is no such setting; did you mean `http.port`?"),
    ("[htp]\nport = 1", "htp: there is no such setting; did you mean `http`?"),
    ("[slo]\nzzz = 1", "slo.zzz: there is no such setting; known here: ttft_s, tpot_s"),
    ("[[nodes]]\nid = 'a'\n[[nodes]]\ncoers = '1'",
     "nodes[1].coers: there is no such setting; did you mean `nodes[1].cores`?"),
    ("[scheduling.headroom]\nreserve = 1",
     "scheduling.headroom.reserve: there is no such setting; did you mean `scheduling.headroom.reserve_s`?"),
    ("[http]\nport = 'many'", "http.port: expected a whole number, got text"),
    ("[slo]\nttft_s = true", "slo.ttft_s: expected a number, got true or false"),
    ("http = 2", "http: expected a table, got a whole number"),
    ("nodes = 3", "nodes: expected a list, got a whole number"),
    ("[slo]\nttft_s = -1.0", "slo.ttft_s: is -1.0; expected a number that is not negative"),
    ("[slo]\nttft_s = nan", "slo.ttft_s: is nan; expected a number that is not negative"),
    ("[http\n", "is not TOML: Expected ']' at the end of a table declaration (at line 1, column 6)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "complaint"), MISTAKES)
def test_mistake_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "llmhostd.toml"
    file.write_text(text)
    with pytest.raises(OperatorError) as caught:
        load_config(file)
    assert str(caught.value) == f"{file}: {complaint}"


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"none\.toml: cannot be read: No such file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "latin").write_bytes(b"# caf\xe9\n")
    with pytest.raises(OperatorError, match=r"latin: is not UTF-8 text \(byte 5\)"):
        load_config(tmp_path / "latin")


def test_set_values_arrive_and_others_keep_their_defaults(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[http]\nport = 0\n[slo]\nttft_s = 1\n[[nodes]]\nid = 'a'\ncores = '0'\n")
    config = load_config(file)
    assert (config.http.port, config.slo.ttft_s, config.slo.tpot_s) == (0, 1.0, 0.2)
    assert [(node.id, node.cores, node.engine) for node in config.nodes] == [("a", "0", "openvino")]
    assert load_config(None) == Config()


def test_state_lives_where_the_nearest_voice_says(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f"[daemon]\nstate_dir = '{tmp_path}/config'\n")
    config, systemd = load_config(file), {"STATE_DIRECTORY": f"{tmp_path}/systemd:/other"}
    assert state_directory(tmp_path / "option", systemd, config) == tmp_path / "option"
    assert state_directory(None, systemd, config) == tmp_path / "systemd"
    assert state_directory(None, {}, config) == tmp_path / "config"
    assert state_directory(None, {"XDG_STATE_HOME": "/x"}, Config()) == Path("/x/llmhostd")
