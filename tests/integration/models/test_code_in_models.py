"""Code that lies in a model's directory is never run, whatever its files say about it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from hundredfold.models import resolve
from hundredfold_tokenizer.vocabulary import load_vocabulary
from support.model_rows import load
from support.tiny_model import make_tiny_model

CODE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"


def test_code_of_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    """Item 153: auto_map in the configurations of model and tokenizer, and files of the usual names."""
    model = make_tiny_model(tmp_path / "model")
    for module in ("configuration_x", "modeling_x", "tokenization_x", "__init__"):
        (model / f"{module}.py").write_text(CODE)
    auto_map = {
        "AutoConfig": "configuration_x.Config",
        "AutoModelForCausalLM": "modeling_x.Model",
        "AutoTokenizer": ["tokenization_x.Tokenizer", "tokenization_x.Tokenizer"],
    }
    for name in ("config.json", "tokenizer_config.json"):
        said = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(said | {"auto_map": auto_map, "trust_remote_code": True}))

    assert load_vocabulary(resolve(str(model))).size > 0
    assert load(model).description.num_layers == 2
    assert not (model / "ran").exists()

    runpy.run_path(str(model / "modeling_x.py"))
    assert (model / "ran").exists()  # it would have shown
