from __future__ import annotations

from factory import tiny_checkpoint

from caudal.config import EngineConfig
from caudal.server import launch
from caudal.server.settings import ServedModel, ServerSettings


def test_a_server_knows_the_facts_of_its_model(tmp_path, monkeypatch):
    path = tiny_checkpoint(tmp_path, arch="qwen3", scheme="Q8_0")
    served = []
    monkeypatch.setattr(launch, "run_server", lambda *given: served.extend(given))
    launch.serve(EngineConfig(model_path=str(path)), ServerSettings(port=0), ServedModel(name="m"))
    model = next(each for each in served if isinstance(each, ServedModel))
    assert (model.name, model.facts.architecture, model.facts.file_name) == ("m", "qwen3", path.name)
    hash(model)
