"""Build all distributions, check what a registry would show, and try the wheels in environments of nothing else.

    python tools/release_check.py dist --python python3.10 --python python3.13

Builds a source distribution and a wheel of each into the folder, checks metadata, sizes and links, and for each Python
makes an empty environment, installs the wheels in the versions of constraints.txt, runs `pip check`, README's first
example, the command, and an import of each adapter. Needs the extra `dev`. The addresses in [project.urls] have to be
those of a repository of yours before anything is uploaded: `twine upload dist/*`.
"""

import argparse
import email
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE_BYTES = 60e6  # at most, of the core's wheel
IMPORTS = (
    "langchain_cde",
    "llama_index.embeddings.cde",
    "llama_index.vector_stores.cde",
    "haystack_integrations.document_stores.cde",
)


def sources() -> list[Path]:
    """Folders of the distributions."""
    return [
        ROOT,
        *sorted(path.parent for name in ("models", "integrations") for path in (ROOT / name).glob("*/pyproject.toml")),
    ]


def built(folder: Path) -> list[Path]:
    """Build all distributions into an empty folder; return the wheels."""
    folder.mkdir(parents=True, exist_ok=True)
    if found := sorted(folder.iterdir()):
        sys.exit(f"{folder}: expected an empty folder, found {found[0].name}. Empty it.")
    for source in sources():
        print(f"build: {source.name}")
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("*.whl"))


def check_page(wheel: Path) -> None:
    """Exit if the page that a registry shows has relative links, or the metadata lacks what it needs."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    page = str(metadata.get_payload())
    relative = re.findall(r"\]\((?!https?://|#)[^)]*\)", page)
    missing = [key for key in ("Summary", "License-Expression", "Project-URL", "Classifier") if key not in metadata]
    if relative or missing or "<!--" in page:
        sys.exit(f"{wheel.name}: relative links {relative}, missing {missing}, or comments on its page.")
    size = wheel.stat().st_size
    if wheel.name.startswith("cde_rag-") and size > CORE_BYTES:
        sys.exit(f"{wheel.name}: expected at most {CORE_BYTES / 1e6:.0f} MB, found {size / 1e6:.1f}.")
    print(f"page:  {wheel.name} {size / 1e6:.1f} MB, {metadata['Version']}")


def check_installed(wheels: list[Path], python: str) -> None:
    """Install the wheels into an empty environment, and use them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        own = folder / "venv" / "bin" / "python"
        wanted = [f"{wheel}[faiss,files]" if wheel.name.startswith("cde_rag-") else str(wheel) for wheel in wheels]
        install = [own, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *wanted]
        subprocess.run(install, check=True)
        subprocess.run([own, "-m", "pip", "check"], check=True)
        version = subprocess.check_output([own, "--version"], text=True).strip()
        example, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        shutil.copytree(ROOT / "docs/guide", folder / "docs/guide")
        printed = subprocess.check_output([own, "-W", "error", "-c", example], cwd=folder, text=True)
        if not re.search(r"0\.\d\d  guide/\S+\.md  ", printed):
            sys.exit(f"{version}: README's example printed {printed!r}.")
        code = "; ".join(f"import {name}" for name in IMPORTS)
        subprocess.run([own, "-c", code], cwd=folder, check=True)
        old = "from cde_rag import CDEModel; print(CDEModel.from_pretrained('cde-mini-0').identity.name)"
        subprocess.run([own, "-c", old], cwd=folder, check=True)
        command = [folder / "venv/bin/cde-rag", "search", "pages.faiss", "make a backup", "-k", "1"]
        subprocess.run(command, cwd=folder, check=True)
        megabytes = sum(path.stat().st_size for path in (folder / "venv").rglob("*") if path.is_file()) / 1e6
        print(f"tried: {version}, {megabytes:.0f} MB in its environment\n{printed}", flush=True)


def main() -> None:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an empty folder, for what is built")
    parser.add_argument("--python", action="append", help="an interpreter; by default the one that runs this")
    parser.add_argument("--no-build", action="store_true", help="take what the folder holds")
    arguments = parser.parse_args()
    wheels = sorted(arguments.folder.glob("*.whl")) if arguments.no_build else built(arguments.folder)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *arguments.folder.iterdir()], check=True)
    for wheel in wheels:
        check_page(wheel)
    for python in arguments.python or [sys.executable]:
        check_installed([wheel.resolve() for wheel in wheels], python)
    version = next(wheel.name.split("-")[1] for wheel in wheels if wheel.name.startswith("cde_rag-"))
    (ROOT / "build/notes.md").write_text(notes(version), encoding="utf-8")
    print(f"notes: build/notes.md\npublish: git tag -F build/notes.md v{version} && twine upload {arguments.folder}/*")


def notes(version: str) -> str:
    """Return the changes of a version, as CHANGELOG.md has them; of one that is not released, what is unreleased."""
    parts = re.split(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    named = next((title for title in sections if title.partition(" ")[0] == version), "Unreleased")
    return f"cde-rag {version}\n\n{sections[named].strip()}\n"


if __name__ == "__main__":
    main()
