import math

import numpy as np
import pytest
import torch

from ogc.audit import Issues, find_label_issues
from ogc.audit.suspicion import TINY, from_surveys
from ogc.rival_label import LEAD, PRIOR, almost_all, class_confidence, likelier_label, unlearned
from ogc.training.method import for_rare_classes


def random_predictions(N=40, C=4, surveys=3, seed=0):
    draw = np.random.default_rng(seed)
    return draw.integers(C, size=N), draw.dirichlet(np.ones(C), size=(surveys, N))


def loop_reference(labels, p):
    """Compute the module's formulas one sample and one survey at a time."""
    surveys, N, C = p.shape
    means = [[sum(p[s, i, j] for s in range(surveys)) / surveys for j in range(C)] for i in range(N)]
    agreed = [[mean[y] for mean, y in zip(means, labels, strict=True) if y == j == np.argmax(mean)] for j in range(C)]
    overall = np.mean([value for values in agreed for value in values])
    confidence = [np.mean([*values, *[overall] * PRIOR]) for values in agreed]
    lead = min(LEAD, np.mean(confidence) / 10)
    for i, (y, mean) in enumerate(zip(labels, means, strict=True)):
        margins = [math.log(p[s, i, y]) - math.log(max(p[s, i, j] for j in range(C) if j != y)) for s in range(surveys)]
        above = [mean[j] - confidence[j] for j in range(C)]
        rivals = [j for j in range(C) if above[j] > above[y] + lead and mean[j] > mean[y] / 2]
        best = max(rivals, key=above.__getitem__, default=y)
        yield best != y, 1 / (1 + math.exp(-sum(margins) / surveys)), best, 1 - mean[y], mean[best]


def test_matches_loop_reference():
    labels, p = random_predictions()
    issues = find_label_issues(labels, p)
    found = zip(
        issues.is_label_issue.tolist(),
        issues.label_score.tolist(),
        issues.predicted_label.tolist(),
        issues.wrong_probability.tolist(),
        issues.predicted_probability.tolist(),
        strict=True,
    )
    for actual, expected in zip(found, loop_reference(labels, p), strict=True):
        assert actual == pytest.approx(expected, abs=1e-12)
    assert 0 < int(issues.is_label_issue.sum()) < len(issues)
    assert issues.noise_rate == np.mean([row[0] for row in loop_reference(labels, p)])


@pytest.mark.parametrize("p", [0.97, 0.6, 0.5])
def test_doubt_about_the_likeliest_label_does_not_raise_the_noise_rate(p):
    issues = find_label_issues([0] * 12, [[p, 1 - p]] * 10 + [[0.01, 0.99]] * 2)
    assert issues.noise_rate == pytest.approx(2 / 12)


def test_finds_asymmetric_noise_despite_low_confidence():
    """40 % of the second class have the label of the first, and the network has learnt to predict that."""
    labels = [0] * 100 + [0] * 40 + [1] * 60
    p = [[0.95, 0.05]] * 100 + [[0.55, 0.45]] * 40 + [[0.45, 0.55]] * 60
    issues = find_label_issues(labels, p)
    assert not issues.is_label_issue[:100].any()
    assert issues.is_label_issue[100:140].all()
    assert not issues.is_label_issue[140:].any()


def test_confidence_of_small_classes_shrinks_to_the_overall_mean():
    p, labels = torch.tensor([[0.9, 0.1]] * 200 + [[0.4, 0.6]]), torch.tensor([0] * 200 + [1])
    confidence = class_confidence(p, labels)
    overall = (200 * 0.9 + 0.6) / 201
    assert confidence.tolist() == pytest.approx(
        [(180 + PRIOR * overall) / (200 + PRIOR), (0.6 + PRIOR * overall) / (1 + PRIOR)]
    )
    assert class_confidence(p, 1 - labels).tolist() == [0, 0]  # every label is contradicted


def test_suggestion_is_over_half_as_likely_as_the_given_label():
    p, confidence = torch.tensor([[0.6, 0.2, 0.2], [0.6, 0.31, 0.09]]), torch.tensor([0.95, 0.3, 0.5])
    assert likelier_label(p, torch.tensor([0, 0]), confidence).tolist() == [0, 1]


def test_logits_give_the_same_result_as_probabilities():
    labels, p = random_predictions()
    one, other = find_label_issues(labels, p), find_label_issues(labels, logits=np.log(p) + 7)
    torch.testing.assert_close(one.label_score, other.label_score)
    torch.testing.assert_close(one.wrong_probability, other.wrong_probability)
    assert torch.equal(one.is_label_issue, other.is_label_issue)


def test_accepts_lists_arrays_and_tensors_and_a_single_survey():
    labels, p = random_predictions(surveys=1)
    scores = [
        find_label_issues(given, probabilities).label_score
        for given, probabilities in (
            (labels, p),
            (labels.tolist(), p[0].tolist()),
            (torch.tensor(labels), torch.tensor(p[0])),
        )
    ]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-5, atol=0)  # torch reads lists as float32
    assert torch.equal(scores[0], scores[2])


def test_the_order_of_samples_and_of_surveys_does_not_matter():
    labels, p = random_predictions()
    order = np.random.default_rng(1).permutation(len(labels))
    one, other = find_label_issues(labels, p), find_label_issues(labels[order], p[::-1][:, order])
    torch.testing.assert_close(one.label_score[order], other.label_score)
    assert torch.equal(one.suggested_label[order], other.suggested_label)


def test_early_surveys_count_as_much_as_late_ones():
    """A wrong label is memorised in the end."""
    early, late = [[0.05, 0.95], [0.9, 0.1]], [[0.99, 0.01], [0.99, 0.01]]
    assert find_label_issues([0, 0], [late]).is_label_issue.tolist() == [False, False]
    assert find_label_issues([0, 0], [early, early, late]).is_label_issue.tolist() == [True, False]


def test_required_lead_is_smaller_for_an_unsure_network():
    """Twenty classes with nearly equal probabilities, as after one epoch."""
    p = np.full((40, 20), 0.05)
    labels = np.arange(40) % 20
    p[np.arange(40), labels] += 0.019
    p[0] = np.roll(p[0], 1)
    assert find_label_issues(labels, p / p.sum(1, keepdims=True)).is_label_issue.nonzero().tolist() == [[0]]


def test_tie_or_narrow_lead_is_not_an_issue():
    narrow = find_label_issues([0, 1, 1, 1], [[0.9, 0.1], [0.1, 0.9], [0.514, 0.486], [0.516, 0.484]])
    assert narrow.is_label_issue.tolist() == [False, False, False, True]
    issues = find_label_issues([1, 0], [[0.5, 0.5], [0.5, 0.5]])
    assert issues.is_label_issue.tolist() == [False, False]
    assert issues.predicted_label.tolist() == [1, 0]
    assert issues.label_score.tolist() == [0.5, 0.5]


def test_unlikely_label_is_kept_if_no_other_is_likelier():
    issues = find_label_issues([0], [[0.4, 0.3, 0.3]])
    assert float(issues.wrong_probability) == pytest.approx(0.6)
    assert issues.is_label_issue.tolist() == [False]
    assert issues.suggested_label.tolist() == [0]


def test_zero_probability_gives_finite_and_lowest_score():
    issues = find_label_issues([0, 0, 0], [[0.0, 1.0], [1.0, 0.0], [1e-6, 1 - 1e-6]])
    assert issues.label_score.isfinite().all()
    assert issues.worst_first.tolist() == [0, 2, 1]
    assert issues.label_score[0] == pytest.approx(TINY, rel=1e-6)


def test_confusion_counts_given_against_suggested():
    issues = find_label_issues([0, 0, 1, 2], [[0.9, 0.1, 0], [0.1, 0.8, 0.1], [0, 1, 0], [0, 1, 0]])
    assert issues.confusion().tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]


def test_issues_come_first():
    """One early survey that strongly contradicts a label lowers its score, although all others agree with the label."""
    surveys = [[[1e-9, 1 - 1e-9], [0.3, 0.7]], *[[[0.9, 0.1], [0.3, 0.7]]] * 4]
    issues = find_label_issues([0, 0], surveys)
    assert issues.is_label_issue.tolist() == [False, True]
    assert issues.label_score[0] < issues.label_score[1]
    assert issues.worst_first.tolist() == [1, 0]


def test_separation_is_in_widths_of_the_margins():
    margins = torch.tensor([-3.0, -5.0, 2.0, 4.0])
    p = torch.stack([margins.sigmoid(), (-margins).sigmoid()], 1)
    issues = find_label_issues([0] * 4, p)
    assert issues.is_label_issue.tolist() == [True, True, False, False]
    assert issues.separation == pytest.approx(7 / 2**0.5, rel=1e-4)
    assert math.isnan(find_label_issues([0] * 3, p[1:]).separation), "a single issue"


def test_equal_scores_keep_their_order():
    issues = find_label_issues([0] * 50, [[0.3, 0.7]] * 50)
    assert issues.worst_first.tolist() == list(range(50))


def test_empty_input_has_no_issues():
    issues = find_label_issues(np.zeros(0, dtype=np.int64), np.zeros((0, 3)))
    assert (len(issues), issues.confusion().tolist()) == (0, [[0] * 3] * 3)


def test_from_surveys_matches_find_label_issues():
    labels, p = random_predictions()
    given, log_p = torch.tensor(labels), torch.tensor(p).log()
    margins = [row.gather(1, given[:, None])[:, 0] for row in log_p]
    rivals = [row.scatter(1, given[:, None], -torch.inf).amax(1) for row in log_p]
    mean = torch.stack(margins).mean(0) - torch.stack(rivals).mean(0)
    issues = from_surveys(given, margin=mean, probabilities=torch.tensor(p).mean(0))
    assert isinstance(issues, Issues)
    torch.testing.assert_close(issues.label_score, find_label_issues(labels, p).label_score)


def test_held_out_samples_do_not_affect_class_confidence():
    labels, p = random_predictions(surveys=1)
    given, p = torch.tensor(labels), torch.tensor(p[0])
    confidence = class_confidence(p[:25], given[:25])
    all_samples, trained = (
        from_surveys(given[:end], margin=torch.zeros(end), probabilities=p[:end], confidence=confidence)
        for end in (len(given), 25)
    )
    assert torch.equal(all_samples.is_label_issue[:25], trained.is_label_issue)
    assert torch.equal(
        trained.predicted_label, likelier_label(p[:25], given[:25], class_confidence(p[:25], given[:25]))
    )


GOOD = [[0.5, 0.5], [0.2, 0.8]]


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([0, 1], {}, "Pass either `pred_probs` or `logits`, and not both."),
        ([0, 1], {"pred_probs": GOOD, "logits": GOOD}, "Pass either `pred_probs` or `logits`, and not both."),
        ([0, 1], {"pred_probs": [0.5, 0.5]}, "of shape (N, C) or (surveys, N, C). Found `pred_probs = (2,)`."),
        ([0, 1, 1], {"pred_probs": GOOD}, "Parameter `labels` should be of shape (2,), like pred_probs."),
        ([0, 2], {"pred_probs": GOOD}, "Parameter `labels` should be in [0, 2). Found `labels = [2]`."),
        ([0, -1], {"logits": GOOD}, "Parameter `labels` should be in [0, 2). Found `labels = [-1]`."),
        ([0.0, 1.0], {"logits": GOOD}, "Parameter `labels` should be integers."),
        ([True, False], {"logits": GOOD}, "Parameter `labels` should be integers."),
        ([0, 1], {"pred_probs": [[0.5, 0.6], [0.2, 0.8]]}, "with a sum of 1 for each sample"),
        ([0, 1], {"pred_probs": [[-0.5, 1.5], [0.2, 0.8]]}, "at least 0"),
        ([0, 1], {"logits": [[math.nan, 1], [0.2, 0.8]]}, "Parameter `logits` should be finite."),
        ([0, 0], {"pred_probs": [[1.0], [1.0]]}, "at least 1 survey and 2 classes"),
    ],
)
def test_error_names_the_invalid_parameter(labels, options, message):
    with pytest.raises(ValueError, match=r"^(Parameter|Pass) ") as error:
        find_label_issues(labels, **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: [torch.as_tensor(part) for part in p],  # one per survey
        lambda p: torch.as_tensor(p),
        lambda p: p[:, ::-1][:, ::-1].astype(">f8"),
        lambda p: p.tolist(),
    ],
    ids=["tensors", "tensor", "big-endian", "lists"],
)
def test_accepts_other_types_and_byte_orders(change):
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 20))
    labels = np.arange(20) % 4
    expected = find_label_issues(labels, p)
    for given in (labels[::-1][::-1], labels.astype(">i4"), labels.tolist()):
        found = find_label_issues(given, change(p))
        assert torch.equal(found.label_score, expected.label_score)
        assert torch.equal(found.predicted_label, expected.predicted_label)


def test_half_precision_is_close_to_float32():
    p = torch.rand(50, 10).softmax(1)
    labels = torch.arange(50) % 10
    expected = find_label_issues(labels, p).wrong_probability
    for dtype in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(
            find_label_issues(labels, p.to(dtype)).wrong_probability, expected, rtol=0, atol=0.01
        )


def test_logit_of_minus_infinity_excludes_a_class():
    issues = find_label_issues([0, 1], logits=[[0.0, 1.0, -math.inf], [-math.inf, -math.inf, 2.0]])
    assert issues.label_score.isfinite().all()
    assert issues.predicted_label.tolist() == [1, 2]
    assert float(issues.wrong_probability[1]) == pytest.approx(1)
    with pytest.raises(ValueError, match="`logits` should be finite"):
        find_label_issues([0], logits=[[-math.inf, -math.inf]])
    with pytest.raises(ValueError, match="`logits` should be finite"):
        find_label_issues([0], logits=[[math.inf, 0.0]])


def test_non_numeric_input_is_rejected():
    with pytest.raises(ValueError, match="`pred_probs` should be numbers, all rows of one length"):
        find_label_issues([0, 1], [[0.5, 0.5], [1.0]])
    with pytest.raises(ValueError, match="`labels` should be numbers"):
        find_label_issues(["a", "b"], [[0.5, 0.5], [1.0, 0.0]])


# --- classes that were not learned -----------------------------------------------------------------------------------


def test_class_is_unlearned_if_nearly_all_of_its_labels_are_rejected():
    labels = torch.tensor([0] * 100 + [1] * 100 + [2] * 9 + [3] * 10)
    accepted = torch.zeros(len(labels), dtype=torch.bool)
    accepted[:100], accepted[100:105] = True, True
    assert unlearned(labels, accepted, ["a", "b", "c", "d", "e"]) == {"d": 10}, "c has too few labels, e none"
    accepted[104] = False
    assert unlearned(labels, accepted, ["a", "b", "c", "d", "e"]) == {"b": 100, "d": 10}


def test_unlearned_classes_are_named():
    assert almost_all({"b": 1200}) == "almost all labels of the class b (1,200)"
    assert almost_all({"b": 100, "d": 10}) == "almost all labels of 2 classes: b (100), d (10)"
    text = almost_all({"x" * 50: 30, "b\x1b[31m": 20, "c": 10, "d": 10, "e": 10})
    long = f"{'x' * 19}...{'x' * 18}"
    assert (
        text == f"almost all labels of 5 classes: {long} (30), b\N{REPLACEMENT CHARACTER}[31m (20), c (10) and 2 more"
    )


def test_advice_for_rare_classes_depends_on_the_method():
    assert for_rare_classes("ce", {}) == "for more epochs"
    assert for_rare_classes("ce+ogc", {"every": 32}) == "for more epochs or with --method ce"
    assert for_rare_classes("fl+ogc", {"epsilon": 2.0}) == "with --method ce"
    assert for_rare_classes("gce", {"q": 0.7}) == "with --method ce or ce+ogc"
