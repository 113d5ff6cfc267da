"""The linter on the command line: for a file of profiles, an inventory's variables, variables alone, an nccl.conf."""

from __future__ import annotations

import pytest

from groundstate import cli


@pytest.fixture
def lint(tmp_path, capsys):
    """Lint a text; (exit code, lines, errors)."""

    def run(text):
        path = tmp_path / "profiles.yml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        code = cli.main(["lint-nccl", str(path)])
        said = capsys.readouterr()
        return code, said.out.replace(str(path), "FILE").splitlines(), said.err.replace(str(path), "FILE")

    return run


def test_an_inventory_with_good_profiles_that_extend_a_shipped_one(lint):
    code, lines, _said = lint(
        "secret: !vault |\n  x\nnccl_profiles:\n  lean:\n    extends: pcie_ll_ring\n"
        "    variables: {NCCL_BUFFSIZE: null, NCCL_NTHREADS: null}\n"
    )
    assert code == 0
    assert [line.split()[0] for line in lines] == ["warning", "warning", "FILE:"]
    assert lines[0].startswith("warning  lean: NCCL_MAX_NCHANNELS: deprecated since NCCL 2.17")
    assert lines[-1] == "FILE: accepted"


def test_profiles_by_name_with_mistakes(lint):
    code, lines, _said = lint("a:\n  variables: {NCCL_P2P_LEVEL: sys}\nb:\n  variables: {NCCL_PROTO: Simple}\n")
    assert code == 1
    assert "write SYS" in lines[0]
    assert lines[-1] == "FILE: refused"


@pytest.mark.parametrize("text", ["NCCL_BUFFSIZE: 16M\n", "NCCL_PROTO=LL\nNCCL_BUFFSIZE=16M\n"])
def test_variables_alone_and_an_nccl_conf(lint, text):
    code, lines, _said = lint(text)
    assert code == 1
    assert lines[0].startswith("error    FILE: NCCL_BUFFSIZE: '16M' is not an integer: NCCL reads it as 16")


def test_an_nccl_conf_as_nccl_reads_it(lint):
    code, lines, _said = lint('# NCCL_FOO=1\nexport NCCL_ALGO=Ring\nNCCL_PROTO="LL"\n')
    assert code == 1
    assert "write the name alone: NCCL_ALGO" in "".join(lines)
    assert "has a quote" in "".join(lines)
    assert "NCCL_FOO" not in "".join(lines)


@pytest.mark.parametrize("text", ["a: [\n", b"\xff\xfe", "nccl_profiles: 3\n", "{}\n"])
def test_no_such_file(lint, text):
    code, lines, said = lint(text)
    assert (code, lines) == (2, [])
    assert said.startswith("groundstate: FILE ")
