from resitta.monitor.shadow.comparison import paired_accuracy
from resitta.monitor.shadow.records import METRICS, Agreement, FeedbackStats, ShadowStats, shadow_metrics


def test_every_metric_has_a_help_text_and_one_set_of_labels() -> None:
    recent, accuracy = Agreement(9, 0.5, 0.9, 0.8, 0.1, 0.2), paired_accuracy(5, 3, 1, 1)
    feedback = FeedbackStats(not_compared=0, unknown=0, running=accuracy, recent=accuracy)
    stats = ShadowStats(0.1, 90, recent, recent, feedback, falling_back=True, fell_back=1)
    found = list(shadow_metrics(stats))
    assert {name for name, _, _ in found} == set(METRICS)
    for name in METRICS:
        assert len({tuple(labels) for each, labels, _ in found if each == name}) == 1
    values = {(name, *labels.values()): value for name, labels, value in found}
    assert values["resitta_shadow_entropy", "source"] == 0.2
    assert values["resitta_shadow_accuracy", "adapted"] == 0.8
    assert values["resitta_falling_back",] == 1.0


def test_without_comparisons_only_the_fallback_is_told() -> None:
    stats = ShadowStats(0.1, 0, None, None, FeedbackStats(0, 0, None, None), falling_back=False, fell_back=0)
    assert list(shadow_metrics(stats)) == [("resitta_falling_back", {}, 0.0)]
