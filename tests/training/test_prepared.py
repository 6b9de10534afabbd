"""A prepared folder gives back what was written, on this machine or another, or says what is wrong with it."""

import json
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from prepared_stub import prepared_stub, stub_pairs, stub_vectors

from cde_rag_training.data import archive
from cde_rag_training.data.array_folder import MANIFEST, PreparedError, seal
from cde_rag_training.data.layout import LAYOUT, check_layout
from cde_rag_training.data.prepared import Prepared

ARRAYS = sorted(set(LAYOUT) - {"tokens", "token_starts"})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepared_stub(tmp_path_factory.mktemp("stub") / "pairs")


@pytest.fixture
def folder(prepared, tmp_path):
    return shutil.copytree(prepared.folder, tmp_path / "pairs")


def assert_same(one, other):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert [one.texts[row] for row in range(len(one.texts))] == [other.texts[row] for row in range(len(other.texts))]
    for name in ("source_names", "domain_names", "tokenizer", "tokenizer_sha256", "max_length", "settings"):
        assert getattr(one, name) == getattr(other, name)


def test_texts_come_back(prepared):
    pairs = stub_pairs()
    assert len(prepared) == len(pairs) == 96
    for number, pair in enumerate(pairs):
        assert prepared.text(prepared.queries[number]) == f"[CLS] {pair.query.replace(':', ' [UNK]')} [SEP]"
        assert prepared.source_names[prepared.sources[number]] == pair.source
        assert prepared.domain_names[prepared.domains[number]] == pair.domain
        assert (prepared.titles[number] == -1) == (pair.parent == "")
    some = np.array([5, 2])
    queries, documents = ([getattr(pairs[number], side) for number in some] for side in ("query", "document"))
    np.testing.assert_allclose(prepared.query_vectors_of(some), stub_vectors(queries), atol=1e-3)
    np.testing.assert_allclose(prepared.document_vectors_of(some), stub_vectors(documents), atol=1e-3)
    assert prepared.query_vectors_of(some).dtype == np.float32


def test_arrays_stay_on_disk(prepared):
    assert isinstance(prepared.texts.ids.base, np.memmap)
    assert not prepared.texts.ids.flags.writeable


def test_loading_needs_numpy_alone(prepared):
    code = (
        "import sys; from cde_rag_training.data.prepared import Prepared; Prepared.load(sys.argv[1]); "
        "print(sorted({'torch', 'faiss', 'bm25s', 'pyarrow', 'tokenizers', 'datasketch'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code, str(prepared.folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_packed_file_is_unpacked_once_beside_it(prepared, tmp_path):
    packed = tmp_path / "pairs.zip"
    prepared.pack(packed)
    assert packed.stat().st_size < sum(path.stat().st_size for path in prepared.folder.iterdir())
    assert_same(Prepared.load(packed), prepared)
    before = (tmp_path / "pairs" / MANIFEST).stat().st_mtime_ns
    assert_same(Prepared.load(packed), prepared)
    assert (tmp_path / "pairs" / MANIFEST).stat().st_mtime_ns == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs", "pairs.zip"]
    again = tmp_path / "again.zip"
    prepared.pack(again)
    assert again.read_bytes() == packed.read_bytes()


def test_unpacking_that_is_killed_leaves_no_folder(prepared, tmp_path, monkeypatch):
    packed = tmp_path / "pairs.zip"
    prepared.pack(packed)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "_extract", full)
    with pytest.raises(OSError, match="No space"):
        Prepared.load(packed)
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.zip"]
    monkeypatch.setattr(archive.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        prepared.pack(tmp_path / "other.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.zip"]


def test_another_folder_is_not_overwritten(prepared, tmp_path):
    prepared.pack(tmp_path / "pairs.zip")
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs/notes.txt").touch()
    with pytest.raises(PreparedError, match="found another folder there"):
        Prepared.load(tmp_path / "pairs.zip")
    assert (tmp_path / "pairs/notes.txt").exists()


def repacked(prepared, path, *, also=None, instead=None):
    """A packed file with an entry more, or with the content of one replaced."""
    prepared.pack(path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (content | (instead or {}) | (also or {})).items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("name", ["../evil.npy", "/tmp/evil.npy", "tokens.npy/evil", "evil.npy", "sub/tokens.npy"])
def test_a_packed_file_writes_nowhere_else(prepared, tmp_path, name):
    (tmp_path / "in").mkdir()
    path = repacked(prepared, tmp_path / "in/pairs.zip", also={name: b"x"})
    with pytest.raises(PreparedError, match="files that do not belong there"):
        Prepared.load(path)
    assert [one.name for one in tmp_path.rglob("*")] == ["in", "pairs.zip"]


def test_a_packed_file_grows_no_further_than_it_says(prepared, tmp_path, monkeypatch):
    path = repacked(prepared, tmp_path / "pairs.zip", instead={"tokens.npy": bytes(1 << 24)})
    sizes = []
    monkeypatch.setattr(
        archive, "check_files", lambda folder, files: sizes.append((folder / "tokens.npy").stat().st_size)
    )
    with pytest.raises(PreparedError, match=r"tokens.npy: .*sha256"):
        Prepared.load(path)
    assert sizes == [json.loads((prepared.folder / MANIFEST).read_bytes())["files"]["tokens.npy"]["bytes"]]


def test_a_packed_file_whose_content_was_changed_makes_no_folder(prepared, tmp_path):
    path = repacked(prepared, tmp_path / "pairs.zip", instead={"tokens.npy": bytes(10)})
    with pytest.raises(PreparedError, match=r"tokens.npy: .*10 bytes where there should be"):
        Prepared.load(path)
    assert [one.name for one in tmp_path.iterdir()] == ["pairs.zip"]


def test_sizes_are_bounded(prepared, tmp_path, monkeypatch):
    prepared.pack(tmp_path / "pairs.zip")
    monkeypatch.setattr(archive, "MAX_BYTES", 100)
    with pytest.raises(PreparedError, match="none above 100"):
        Prepared.load(tmp_path / "pairs.zip")
    monkeypatch.setattr(archive, "MAX_MANIFEST", 100)
    with pytest.raises(PreparedError, match="more than the 100 bytes"):
        Prepared.load(tmp_path / "pairs.zip")


def test_what_is_no_packed_file(prepared, tmp_path):
    path = tmp_path / "pairs.zip"
    path.write_bytes(b"PK no")
    with pytest.raises(PreparedError, match="cannot be unpacked"):
        Prepared.load(path)
    prepared.pack(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(PreparedError, match="cannot be unpacked"):
        Prepared.load(path)
    assert [one.name for one in tmp_path.iterdir()] == ["pairs.zip"]


def test_a_folder_that_is_not_ready(folder, tmp_path):
    (folder / MANIFEST).unlink()
    with pytest.raises(PreparedError, match=r"no manifest.json in it: it is not ready. Run prepare"):
        Prepared.load(folder)
    with pytest.raises(PreparedError, match="no such folder"):
        Prepared.load(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["tokens.npy", "views.npy", "tokenizer.json"])
def test_damage_is_named(folder, name):
    whole = (folder / name).read_bytes()
    for changed, found in (
        (whole[:-1], f"{len(whole) - 1} bytes where there should be {len(whole)}"),
        (whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], "sha256"),
    ):
        (folder / name).write_bytes(changed)
        with pytest.raises(PreparedError, match=rf"{name}: expected an intact file .*{found}"):
            Prepared.load(folder)
    (folder / name).unlink()
    with pytest.raises(PreparedError, match=f"{name}: .*no such file"):
        Prepared.load(folder)


def test_no_bit_of_the_manifest_may_change(folder):
    path = folder / MANIFEST
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(len(whole), size=60).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(PreparedError):
            Prepared.load(folder)
    path.write_bytes(whole[:-10])
    with pytest.raises(PreparedError, match="expected an intact file"):
        Prepared.load(folder)


def test_newer_folders_and_foreign_files(folder, monkeypatch):
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(PreparedError, match=r"expected format 1 or older, found 2\. Update cde-rag"):
        Prepared.load(folder)
    (folder / "other.npy").touch()
    seal(folder, ["other.npy"], manifest["facts"])
    with pytest.raises(PreparedError, match=r"a manifest of other files: \['other.npy'\]"):
        Prepared.load(folder)


def test_pickled_arrays_are_refused(folder):
    with (folder / "views.npy").open("wb") as file:
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    seal(folder, manifest["files"], manifest["facts"])
    with pytest.raises(PreparedError, match=r"views.npy: .*no array of numbers"):
        Prepared.load(folder)


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("queries", lambda array: array[:-1], "expected 95 pairs, found 96"),
        ("queries", lambda array: array.astype(np.int32), "expected int64 of 1 axes, found int32 of 1"),
        ("documents", lambda array: array + 10_000, "expected numbers from 0 to"),
        ("queries", lambda array: np.where(array == array[0], -1, array), "expected numbers from 0"),
        ("titles", lambda array: array - 2, "expected numbers from -1"),
        ("views", lambda array: array[::-1], "sorted by pair"),
        ("views", lambda array: array[1:], "each with one view of its own"),
        ("views", lambda array: array[:, :3], "expected 4 4, found 3"),
        ("token_starts", lambda array: np.sort(array)[::-1], "expected ascending"),
        ("clusters", None, "expected the arrays"),
    ],
)
def test_arrays_have_to_belong_together(prepared, name, change, found):
    arrays = {each: getattr(prepared, each) for each in ARRAYS}
    arrays |= {"tokens": prepared.texts.ids, "token_starts": prepared.texts.starts}
    check_layout(arrays, where="here")
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays[name])
    with pytest.raises(PreparedError, match=rf"here.*{found}.* with prepare"):
        check_layout(arrays, where="here")
