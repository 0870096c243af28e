"""The tiny pipeline with room for the whole prompt of a case: what the tests of evaluation share."""

from dataclasses import replace

from pipeline_case import TINY, tiny_adapter, tiny_parts

from snapref.anima.text import TextEncoder
from snapref.sampling.pipeline import Pipeline


def roomy_pipeline(adapter: bool = True) -> Pipeline:
    """The parts are shared between tests: put back what you change."""
    model, text, codec = tiny_parts()
    config = replace(TINY.text, context_rows=60)
    roomy = TextEncoder(text.qwen, text.qwen_tokenizer, text.t5_tokenizer, text.adapter, config)
    return Pipeline(model, roomy, codec, replace(TINY, text=config), tiny_adapter() if adapter else None)
