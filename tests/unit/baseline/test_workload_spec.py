"""The role's workload options are the module's: one list, told twice, must be the same."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]


def test_role_and_module_agree():
    role = yaml.safe_load((ROOT / "roles/baseline/meta/argument_specs.yml").read_text())
    source = (ROOT / "plugins/modules/llm_benchmark.py").read_text()
    module = yaml.safe_load(source.split('DOCUMENTATION = r"""')[1].split('"""')[0])
    options = role["argument_specs"]["main"]["options"]["baseline_workload"]["options"]
    assert options == module["options"]["workload"]["suboptions"]
    assert len(options) > 5
