"""Commands of a distillation on a GPU: development, texts, vectors, contexts, choice."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.attention import mean_pool
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import QUERY
from lab.distil.target_axes import aligned, projection_axes
from lab.experiments.gpu_distillation.corpus_stage import train_contexts
from lab.experiments.gpu_distillation.interpolation_choice import run_choice
from lab.experiments.gpu_distillation.pair_vectors import teacher_vectors
from lab.experiments.gpu_distillation.stage_material import load_material, log, write_development
from lab.experiments.gpu_distillation.text_pool import pool, read_pairs
from lab.experiments.gpu_distillation.token_rows import GROUP_TOKENS, autocast, embed, null_context
from lab.experiments.gpu_distillation.vector_stage import Settings, train_vectors


def write_state(network: TwoStage, out: Path, name: str, most: int = 15 * 2**20) -> None:
    """Write all tensors in float16, in files of at most `most` bytes."""
    files: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, value in network.state_dict().items():
        half = value.detach().half().cpu().contiguous()
        parts = half.split(max(1, most // max(1, half[0].nbytes))) if half.ndim == 2 and half.nbytes > most else (half,)
        for number, part in enumerate(parts):
            if size + part.nbytes > most:
                files.append({})
                size = 0
            files[-1][f"{key}#{number}" if len(parts) > 1 else key] = part.contiguous()
            size += part.nbytes
    for number, tensors in enumerate(files):
        save_file(tensors, out / f"{name}-{number}.safetensors")


def read_state(folder: Path, name: str) -> dict[str, Tensor]:
    """Read a state of `write_state`, in float32."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob(f"{name}-*.safetensors")):
        tensors |= load_file(path)
    joined: dict[str, list[Tensor]] = {}
    for key in sorted(tensors, key=lambda each: (each.split("#")[0], int(f"0{each.partition('#')[2]}"))):
        joined.setdefault(key.split("#")[0], []).append(tensors[key])
    return {key: torch.cat(parts).float() if len(parts) > 1 else parts[0].float() for key, parts in joined.items()}


def _kept(teacher: Tensor, axes: Tensor) -> float:
    projected = F.normalize(teacher @ axes, dim=-1)
    tops = [(each @ each.T).fill_diagonal_(-1).topk(10, dim=1).indices for each in (teacher, projected)]
    return float((tops[0][:, :, None] == tops[1][:, None, :]).any(2).float().mean())


def run_texts(arguments: argparse.Namespace, device: str) -> None:
    """Embed the pool with the teacher, compute the target space, and write the student's start."""
    keep = arguments.keep
    keep.mkdir(parents=True, exist_ok=True)
    pairs = list(read_pairs(arguments.pairs))
    if arguments.limit:
        pairs = [pairs[place] for place in np.random.default_rng(5).permutation(len(pairs))[: arguments.limit]]
        pairs.sort(key=lambda each: (each["source"], each["domain"], each.get("parent", "")))
    texts = pool(pairs)
    log(f"{len(pairs):,} pairs, {len(texts.texts):,} texts")
    teacher, rows = teacher_vectors(texts, arguments.teacher, arguments.processes, device)
    log("teacher's vectors")
    network, tokenizer, _ = checkpoints.read(arguments.student)
    network = network.to(device)
    random = np.random.default_rng(6)
    sample = random.choice(texts.trained, min(texts.trained, 60_000), replace=False)
    where = torch.from_numpy(sample).to(device)
    is_query = torch.from_numpy((texts.roles[sample] == QUERY).astype(np.float32))
    vectors = teacher[where].float().cpu()
    axes = projection_axes(vectors, is_query, network.config.dim, "principal")
    with torch.no_grad():
        norms: list[Tensor] = []
        hook = network.second_stage.layers[-1].register_forward_hook(
            lambda _, given, x: norms.append(mean_pool(x, given[1][:, 0, 0, :]).norm(dim=1))
        )
        with autocast(device, torch.bfloat16):
            ours = embed(network, rows, sample, texts.roles, null_context(network), 4 * GROUP_TOKENS).float().cpu()
        hook.remove()
        space, shift = aligned(axes, vectors, ours)
        scaled = (shift * torch.cat(norms).mean().cpu()).to(device)
        network.second_stage.layers[-1].get_parameter("output_norm.bias").add_(
            scaled if network.rotation is None else scaled @ network.rotation.T
        )
    mean = F.normalize(vectors @ space.axes, dim=-1).mean(0)
    kept_scores = _kept(teacher[where[:4096]].float(), space.axes.to(device))
    log(f"share of ten nearest kept by the projection {kept_scores:.4f}, mean target's norm {float(mean.norm()):.3f}")
    save_file(
        {"ids": rows.ids.cpu(), "teacher": teacher.cpu(), "axes": space.axes, "mean": mean},
        keep / "material.safetensors",
    )
    np.savez(keep / "material.npz", starts=rows.starts, roles=texts.roles, pairs=texts.pairs, trained=texts.trained)
    (keep / "tokenizer.json").write_text(tokenizer.serialised, encoding="utf-8")
    (keep / "development.json").write_text(arguments.development.read_text(encoding="utf-8"), encoding="utf-8")
    save_file(
        {name: value.cpu().contiguous() for name, value in network.state_dict().items()}, keep / "start.safetensors"
    )
    log("written")


def run_stage(arguments: argparse.Namespace, device: str) -> None:
    """Train one stage from the state that the one before left, and write its curve and weights."""
    keep, out = arguments.keep, arguments.out
    material = load_material(keep, device)
    network, _, _ = checkpoints.read(arguments.student)
    network.load_state_dict(load_file(keep / f"{arguments.start}.safetensors"))
    network = network.to(device)
    log("loaded")
    changes = dict(pair.split("=", 1) for pair in arguments.set)
    settings = Settings(**{name: type(getattr(Settings, name))(value) for name, value in changes.items()})
    train = {"vectors": train_vectors, "contexts": train_contexts}[arguments.command]
    curve = train(network, material, settings, arguments.seconds, device)
    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    save_file(state, keep / f"{arguments.name}.safetensors")
    (out / f"{arguments.name}.json").write_text(json.dumps(curve), encoding="utf-8")
    if arguments.command == "vectors":
        write_state(network, out, arguments.name)
        save_file({"axes": material.axes.cpu(), "mean": material.mean.cpu()}, out / "space.safetensors")
    else:
        changed = {name: value for name, value in state.items() if name.startswith(("second_stage.", "set_attention."))}
        save_file(checkpoints.quantise(changed), out / f"{arguments.name}.safetensors")
    log("written")


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("development", "texts", "vectors", "contexts", "choice"))
    parser.add_argument("--pairs", type=Path, nargs="+", help="JSON Lines, also .xz")
    parser.add_argument("--keep", type=Path, help="folder that the commands share")
    parser.add_argument("--out", type=Path, help="folder of results")
    parser.add_argument("--teacher", type=Path, default=Path("cde_rag/models/bundled/cde-base-1"))
    parser.add_argument("--student", type=Path, default=Path("cde_rag/models/bundled/cde-mini-1"))
    parser.add_argument("--development", type=Path, help="file of the development sets")
    parser.add_argument("--toml", type=Path, default=Path("lab/plans/distillation.toml"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--name", default="vectors", help="of the results")
    parser.add_argument("--start", default="start", help="name of the results to begin with")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training")
    parser.add_argument("--limit", type=int, default=0, help="pairs; 0: all")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for each shape of a batch, half a second a step
    if arguments.command == "development":
        write_development(arguments.toml, arguments.data, arguments.development)
    elif arguments.command == "texts":
        run_texts(arguments, device)
    elif arguments.command == "choice":
        run_choice(arguments, device)
    else:
        run_stage(arguments, device)


if __name__ == "__main__":
    main()
