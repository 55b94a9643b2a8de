"""Folders in OpenVINO's format with small encoders, whose results are easy to compute, and their tokenizer.

The vector of a token is a row of TABLE. A model that embeds returns these rows; one that ranks returns the sum of
the first numbers of the tokens of the document.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cats", "sleep", "laws", "are", "##n"]
SPECIAL = {str(id): {"content": VOCABULARY[id], "special": True} for id in range(4)}
TABLE = np.array(
    [[9, 9, 9], [0, 0, 1], [0, 2, 0], [0, 0, 3], [3, 1, 0], [1, 0, 2], [-3, 0, 1], [0, 1, 1], [0, 0, 0]], np.float32
)
CONTEXT = 16


def write_folder(folder: Path, architecture: str, output: str, pooling: dict[str, bool] | None = None) -> Path:
    """Write a model with this output: last_hidden_state, sentence_embedding, logits or another name."""
    folder.mkdir()
    _write_model(folder, output)
    _write_tokenizer(folder)
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": len(VOCABULARY),
        "max_position_embeddings": CONTEXT + 2,
        "hidden_size": TABLE.shape[1],
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {"added_tokens_decoder": SPECIAL, "model_max_length": CONTEXT, "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def _write_model(folder: Path, output: str) -> None:
    import openvino as ov
    from openvino import opset13 as ops

    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [ops.parameter([-1, -1], ov.Type.i64, name=name) for name in names]
    for each in inputs:
        each.output(0).set_names({each.friendly_name})
    ids, mask, types = inputs
    result = ops.gather(ops.constant(TABLE), ids, ops.constant(0))
    if output != "last_hidden_state":
        weights = types if output == "logits" else mask
        counted = ops.multiply(result, ops.unsqueeze(ops.convert(weights, ov.Type.f32), ops.constant(2)))
        result = ops.reduce_sum(counted, ops.constant(1))
    if output == "logits":
        result = ops.gather(result, ops.constant([0]), ops.constant(1))
    result.output(0).set_names({output})
    ov.save_model(ov.Model([result], inputs, "small"), folder / "openvino_model.xml", compress_to_fp16=False)


def _write_tokenizer(folder: Path) -> None:
    import openvino as ov
    from openvino_tokenizers import tokenizer_pipeline as steps
    from openvino_tokenizers.utils import change_inputs_type, change_outputs_type, update_rt_info_with_environment

    pipeline = steps.TokenizerPipeline(vocab=VOCABULARY)
    parts: list[Any] = [steps.AddToken(token="[CLS]"), steps.Sequence(), steps.AddToken(token="[SEP]")]
    pipeline.add_steps(
        [
            steps.SpecialTokensSplit([steps.SpecialToken(text) for text in VOCABULARY[:4]]),
            steps.RegexSplitStep.whitespace_splitter(),
            steps.WordPieceTokenizationStep(vocab=VOCABULARY),
            steps.TruncationStep(max_length=4),  # not applied: the server rejects texts that are too long
            steps.CombineSegmentsStep(parts),
            steps.PaddingStep(token="[PAD]"),
            steps.VocabDecoderStep(vocab=VOCABULARY, skip_tokens=[0, 2, 3]),
            steps.FuseStep(),
        ]
    )
    tokenizer, detokenizer = pipeline.get_tokenizer_ov_subgraph(), pipeline.get_detokenizer_ov_subgraph()
    change_outputs_type(tokenizer, ov.Type.i64)
    change_inputs_type(detokenizer, ov.Type.i64)
    for model, name in ((tokenizer, "openvino_tokenizer.xml"), (detokenizer, "openvino_detokenizer.xml")):
        update_rt_info_with_environment(model)  # openvino-genai reads it
        ov.save_model(model, folder / name)
