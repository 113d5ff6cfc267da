"""What the module python_env refuses of a declaration."""

from __future__ import annotations

import pytest
from ansible_collections.groundstate.llm.plugins.modules import python_env


@pytest.mark.parametrize("path", ["envs/x", "./x", ""])
def test_a_relative_path_is_refused(path):
    with pytest.raises(ValueError, match=r"name an absolute one \(ml_env_path\)"):
        python_env.specification({"path": path})
