"""The cards of the other homes: how to load one, and what it does not do that the runtime does."""

from __future__ import annotations

import json

from mothertongue.chat import TOKENIZER_CONFIG_FILE
from mothertongue_export.checkpoint import Checkpoint


def huggingface_card(name: str, checkpoint: Checkpoint) -> str:
    """Return README.md of the Hugging Face folder `name`."""
    return f"""\
---
library_name: transformers
---

# {name}

The trained checkpoint itself, in the layout of Hugging Face: {_size(checkpoint)} parameters, float32.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
turns = [{{"role": "user", "content": question}}]
prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt")
written = model.generate(prompt, max_new_tokens=60, do_sample=False)
print(tokenizer.decode(written[0, prompt.shape[1] :], skip_special_tokens=True))
```

- Plain text gets one `<|bos|>` in front, as in training; the chat template writes its own.
- `<|end|>` and the like become special tokens wherever they stand. For text that people type, say
  `tokenizer(text, split_special_tokens=True)`.
{_replacements(checkpoint)}"""


def gguf_card(name: str, checkpoint: Checkpoint) -> str:
    """Return README.md of the GGUF folder `name`."""
    return f"""\
# {name}, GGUF

{_size(checkpoint)} parameters, for llama.cpp and what is built on it: `{name}-Q8_0.gguf` with 8 bits
a weight, `{name}-F16.gguf` with 16. Each tensor was read back, and is the checkpoint's within the rounding
of its type.

```sh
llama-cli -m '{name}-Q8_0.gguf' -cnv --temp 0
```

- **Text must be in NFC.** A GGUF file has no normaliser: text in another form is other tokens, and nothing
  warns. In Python: `unicodedata.normalize("NFC", text)`.
- Plain text gets one `<|bos|>` in front, as in training; llama.cpp takes away a second one.
- Some programs read `<|end|>` in what people type as a special token. The runtime of Mothertongue never does.
{_replacements(checkpoint)}"""


def _size(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.parameters / 1e6:,.2f} M"


def _replacements(checkpoint: Checkpoint) -> str:
    """Return the point on what the runtime does to the words of people before the model reads them."""
    config = json.loads((checkpoint.folder / TOKENIZER_CONFIG_FILE).read_text(encoding="utf-8"))
    replaced = config["mothertongue"]["replacements"]
    if not replaced:
        return "- As the runtime does, trim the white space of a question and make each run one space.\n"
    pairs = ", ".join(f"`{old}` → `{new}`" for old, new in replaced.items())
    return f"""\
- The runtime writes questions as the model was taught to read them; here that is yours to do. Replace
  {pairs}.
  Then trim white space, and make each run of it one space.
"""
