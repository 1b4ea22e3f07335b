"""What an image batch must be, and how images of other forms become one."""

from resitta.inputs.checks import (
    ROUNDING,
    UNRECORDABLE,
    NonFinite,
    PixelRange,
    Predict,
    Preprocessing,
    answer_finite,
    check_form,
    check_logits,
    checked,
    is_batch,
    predict_early,
    refuse_recording,
)
from resitta.inputs.convert import for_network
from resitta.inputs.hints import layout_hint
from resitta.inputs.sources import is_list_of_images

__all__ = [
    "ROUNDING",
    "UNRECORDABLE",
    "NonFinite",
    "PixelRange",
    "Predict",
    "Preprocessing",
    "answer_finite",
    "check_form",
    "check_logits",
    "checked",
    "for_network",
    "is_batch",
    "is_list_of_images",
    "layout_hint",
    "predict_early",
    "refuse_recording",
]
