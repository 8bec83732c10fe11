from __future__ import annotations

from factory import tiny_checkpoint

from caudal.server.launch import ModelSources
from caudal.server.settings import ServedModel


def test_a_server_knows_the_facts_of_its_models_loaded_or_not(tmp_path):
    path = tiny_checkpoint(tmp_path, arch="qwen3", scheme="Q8_0")
    sources = ModelSources(named=((ServedModel(name="m"), path),))
    model = next(each for each in sources.catalog().models() if each.name == "m")
    assert (model.facts.architecture, model.facts.file_name) == ("qwen3", path.name)
    hash(model)
