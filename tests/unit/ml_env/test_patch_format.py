"""Unified diffs: what git and diff write is applied exactly or not at all, and hostile ones lead nowhere."""

from __future__ import annotations

import contextlib
import subprocess

import pytest
from ansible_collections.groundstate.llm.plugins.module_utils.venvs import patch_format
from ansible_collections.groundstate.llm.plugins.module_utils.venvs.patch_format import PatchError
from hypothesis import given
from hypothesis import strategies as st

HEAD = "--- a/pkg/a.py\n+++ b/pkg/a.py\n"


def applied(content: bytes | None, text: str, strip: int = 1) -> bytes | None:
    """The content after a patch of one file."""
    (change,) = patch_format.parse(text, strip)
    return patch_format.apply(content, change)


def undone(content: bytes | None, text: str) -> bytes | None:
    (change,) = patch_format.parse(text)
    return patch_format.apply(content, change.reversed())


CONTENTS = [
    (b"a\nb\nc\n", b"a\nB\nc\n"),
    (b"a\nb\nc", b"a\nb\nc\n"),
    (b"a\nb\nc\n", b"a\nb\nc"),
    (b"a\nb", b"a\nb\nc"),
    (b"a\r\nb\r\n", b"a\r\nB\r\n"),
    (b"a\rb\n", b"a\rc\n"),
    (b"-- x\n--- y\n", b"-- x\n+++ y\n"),
    (b"x\n" * 30 + b"end\n", b"new\n" + b"x\n" * 30 + b"END\n"),
    (None, b"made\n"),
    (None, b"made"),
    (b"gone\n", None),
    (None, b""),
    (b"", None),
    (b"", b"now\n"),
    ("grün\n".encode(), "größer\n".encode()),
]


@pytest.mark.parametrize(("before", "after"), CONTENTS)
def test_what_git_writes_is_applied_and_taken_back(tmp_path, before, after):
    def git(*arguments: str) -> bytes:
        done = subprocess.run(
            ["git", "-c", "core.autocrlf=false", "-C", str(tmp_path), *arguments], capture_output=True, check=True
        )
        return done.stdout

    git("init", "-q")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "other").write_text("stays\n")
    path = tmp_path / "pkg" / "a.py"
    for content in (before, after):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        if content is before:
            git("add", "-A")
    git("add", "-N", "pkg/a.py") if after is not None and before is None else None
    text = git("diff").decode()
    assert applied(before, text) == after
    assert undone(after, text) == before


@pytest.mark.parametrize(("before", "after"), CONTENTS)
def test_what_is_written_here_git_and_we_read(tmp_path, before, after):
    text = patch_format.render("pkg/a.py", before, after)
    if b"" not in (before, after) or None not in (before, after):
        assert applied(before, text.decode()) == after
    path = tmp_path / "pkg" / "a.py"
    path.parent.mkdir()
    if before is not None:
        path.write_bytes(before)
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", "apply", "--unidiff-zero", "-"],
        cwd=tmp_path,
        input=text,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (path.read_bytes() if path.exists() else None) == after


_LINES = st.lists(st.sampled_from([b"a", b"b", b"", b" c", b"-", b"+", b"\\", b"d\r", b"@@ -1 +1 @@"]), max_size=14)


@given(_LINES, _LINES, st.booleans(), st.booleans())
def test_any_two_contents(old, new, old_break, new_break):
    before = b"\n".join(old) + b"\n" * old_break
    after = b"\n".join(new) + b"\n" * new_break
    text = patch_format.render("p/f", before, after).decode()
    if before != after:
        assert applied(before, text) == after
        assert undone(after, text) == before


def test_of_a_large_file_only_what_changed_is_compared(monkeypatch):
    """difflib takes half a minute for a table of 150,000 lines with many lines twice."""
    rows = [b"%d\n" % (row % 7) for row in range(9000)]
    seen = []
    whole = patch_format.difflib.diff_bytes
    monkeypatch.setattr(
        patch_format.difflib,
        "diff_bytes",
        lambda how, a, b, *rest, **more: (seen.append(a + b), whole(how, a, b, *rest, **more))[1],
    )
    for at, header in ((0, "-1,3 +1,4"), (4000, "-3998,6 +3998,7"), (9000, "-8998,3 +8998,4")):
        before, after = b"".join(rows), b"".join([*rows[:at], b"#\n", *rows[at:]])
        text = patch_format.render("p/f", before, after).decode()
        assert f"@@ {header} @@" in text
        (change,) = patch_format.parse(text)
        assert patch_format.apply(before, change) == after
        assert patch_format.apply(after, change.reversed()) == before
    assert max(len(one) for one in seen) <= 13


def test_plain_diff_with_times_and_prose_around_it():
    hunk = "@@ -1,2 +1,2 @@ def x():\n-a\n+A\n b\n"
    text = f"From: someone\nSubject: [PATCH] x\n---\n a.py | 2 +-\n\n{HEAD}{hunk}-- \n2.39.2\n"
    assert applied(b"a\nb\n", text.replace("b/pkg/a.py", "b/pkg/a.py\t2026-11-01 10:00:00 +0000")) == b"A\nb\n"


def test_an_empty_line_that_lost_its_space():
    assert applied(b"a\n\nb\n", HEAD + "@@ -1,3 +1,3 @@\n-a\n+A\n\n b\n") == b"A\n\nb\n"


def test_lines_that_moved_are_found_where_they_stand_once_and_nowhere_else():
    text = HEAD + "@@ -1,2 +1,2 @@\n x = 1\n-y = 1\n+y = 2\n"
    assert applied(b"new\nx = 1\ny = 1\n", text) == b"new\nx = 1\ny = 2\n"
    with pytest.raises(PatchError, match="hunk 1 of 1 does not apply"):
        applied(b"new\nx = 1\ny = 1\nx = 1\ny = 1\n", text)


def test_a_later_hunk_moves_with_the_one_before():
    text = HEAD + "@@ -1 +1 @@\n-a\n+A\n@@ -3 +3 @@\n-c\n+C\n"
    assert applied(b"0\na\nb\nc\n1\n", text) == b"0\nA\nb\nC\n1\n"


def test_a_hunk_that_does_not_apply_is_shown_with_what_is_there():
    with pytest.raises(PatchError) as raised:
        applied(b"a\nother\nc\n", HEAD + "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n")
    message = str(raised.value)
    assert "pkg/a.py: hunk 1 of 1 does not apply: line 2 of the file is 'other'" in message
    assert "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c" in message


def test_other_line_ends_are_named():
    with pytest.raises(PatchError, match="other line ends"):
        applied(b"a\r\nb\r\n", HEAD + "@@ -1,2 +1,2 @@\n-a\n+A\n b\n")
    with pytest.raises(PatchError, match="other line ends"):
        applied(b"a", HEAD + "@@ -1 +1 @@\n-a\n+A\n")


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "b/../../x.py", "b/./x", "b//x", "b", '"b/x"', "b/x\0y", "../b/x"],
)
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(PatchError):
        patch_format.parse(f"--- a/x\n+++ {name}\n@@ -1 +1 @@\n-a\n+b\n")


def test_names_of_deleted_and_empty_files_are_checked_as_well():
    with pytest.raises(PatchError):
        patch_format.parse("--- a/../x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n")
    with pytest.raises(PatchError):
        patch_format.parse("diff --git a/../x b/../x\nnew file mode 100644\nindex 0000000..e69de29\n")


def test_how_much_of_a_name_is_left_out():
    text = HEAD.replace("pkg/", "python/pkg/") + "@@ -1 +1 @@\n-a\n+b\n"
    assert patch_format.parse(text, 2)[0].path == "pkg/a.py"
    assert patch_format.parse(text, 0)[0].path == "b/python/pkg/a.py"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "changes no file"),
        ("hello\n", "changes no file"),
        ("@@ -1 +1 @@\n-a\n+b\n", "no file is named for"),
        (HEAD, "no hunk follows"),
        (HEAD + "@@ -1,3 +1,3 @@\n-a\n+b\n", "cut off"),
        (HEAD + "@@ -1 +1 @@\n-a\n+b\n+c\n", "more lines than its header"),
        (HEAD + "@@ -1,2 +1 @@\n a\nnonsense\n", "not a part of the hunk"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "names no file"),
        ("diff --git a/x b/y\nsimilarity index 90%\nrename from x\nrename to y\n", "renames"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "mode"),
        ("diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n", "binary"),
        ("diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n", "link"),
    ],
)
def test_what_is_no_such_patch_is_refused_with_the_reason(text, why):
    with pytest.raises(PatchError, match=why):
        patch_format.parse(text)


def test_files_that_are_and_are_not_there():
    made = "--- /dev/null\n+++ b/pkg/a.py\n@@ -0,0 +1 @@\n+a\n"
    with pytest.raises(PatchError, match="is there already"):
        applied(b"a\n", made)
    with pytest.raises(PatchError, match="is not there"):
        applied(None, HEAD + "@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(PatchError, match="holds 1 lines more"):
        applied(b"a\nb\n", "--- a/x/y\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n")


@given(st.text(alphabet='ab@-+ \\\n\r/.0123456789,\0"d', max_size=120), st.binary(max_size=40))
def test_hostile_text_ends_in_a_patch_error_or_a_result(text, content):
    with contextlib.suppress(PatchError):
        for change in patch_format.parse(HEAD + text):
            assert ".." not in change.path.split("/")
            patch_format.apply(content, change)
