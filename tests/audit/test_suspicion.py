import math

import numpy as np
import pytest
import torch

from ogc.audit import Issues, find_label_issues
from ogc.audit.suspicion import TINY, from_surveys
from ogc.rival_label import LEAD, PRIOR, class_confidence, likelier_label


def made_up(N=40, C=4, surveys=3, seed=0):
    draw = np.random.default_rng(seed)
    return draw.integers(C, size=N), draw.dirichlet(np.ones(C), size=(surveys, N))


def by_loops(labels, p):
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


def test_it_is_what_the_formulas_say():
    labels, p = made_up()
    issues = find_label_issues(labels, p)
    found = zip(
        issues.is_label_issue.tolist(),
        issues.label_score.tolist(),
        issues.predicted_label.tolist(),
        issues.wrong_probability.tolist(),
        issues.predicted_probability.tolist(),
        strict=True,
    )
    for here, there in zip(found, by_loops(labels, p), strict=True):
        assert here == pytest.approx(there, abs=1e-12)
    assert 0 < int(issues.is_label_issue.sum()) < len(issues)
    assert issues.noise_rate == np.mean([row[0] for row in by_loops(labels, p)])


@pytest.mark.parametrize("p", [0.97, 0.6, 0.5])
def test_doubt_about_the_likeliest_label_does_not_raise_the_noise_rate(p):
    issues = find_label_issues([0] * 12, [[p, 1 - p]] * 10 + [[0.01, 0.99]] * 2)
    assert issues.noise_rate == pytest.approx(2 / 12)


def test_classes_that_lose_labels_to_others_are_predicted_with_less_confidence():
    """40 % of the second class have the label of the first, and a network that has learnt that says so."""
    labels = [0] * 100 + [0] * 40 + [1] * 60
    p = [[0.95, 0.05]] * 100 + [[0.55, 0.45]] * 40 + [[0.45, 0.55]] * 60
    issues = find_label_issues(labels, p)
    assert not issues.is_label_issue[:100].any()
    assert issues.is_label_issue[100:140].all()
    assert not issues.is_label_issue[140:].any()


def test_a_class_of_few_samples_is_judged_like_the_others():
    p, labels = torch.tensor([[0.9, 0.1]] * 200 + [[0.4, 0.6]]), torch.tensor([0] * 200 + [1])
    confidence = class_confidence(p, labels)
    overall = (200 * 0.9 + 0.6) / 201
    assert confidence.tolist() == pytest.approx(
        [(180 + PRIOR * overall) / (200 + PRIOR), (0.6 + PRIOR * overall) / (1 + PRIOR)]
    )
    assert class_confidence(p, 1 - labels).tolist() == [0, 0]  # everything is contradicted


def test_no_label_is_suggested_that_is_half_as_likely_as_the_given_one():
    p, confidence = torch.tensor([[0.6, 0.2, 0.2], [0.6, 0.31, 0.09]]), torch.tensor([0.95, 0.3, 0.5])
    assert likelier_label(p, torch.tensor([0, 0]), confidence).tolist() == [0, 1]


def test_logits_are_probabilities_before_the_softmax():
    labels, p = made_up()
    one, other = find_label_issues(labels, p), find_label_issues(labels, logits=np.log(p) + 7)
    torch.testing.assert_close(one.label_score, other.label_score)
    torch.testing.assert_close(one.wrong_probability, other.wrong_probability)
    assert torch.equal(one.is_label_issue, other.is_label_issue)


def test_lists_arrays_and_tensors_are_alike_and_one_survey_needs_no_axis():
    labels, p = made_up(surveys=1)
    scores = [
        find_label_issues(given, there).label_score
        for given, there in ((labels, p), (labels.tolist(), p[0].tolist()), (torch.tensor(labels), torch.tensor(p[0])))
    ]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-5, atol=0)  # torch reads lists as float32
    assert torch.equal(scores[0], scores[2])


def test_the_order_of_samples_and_of_surveys_does_not_matter():
    labels, p = made_up()
    order = np.random.default_rng(1).permutation(len(labels))
    one, other = find_label_issues(labels, p), find_label_issues(labels[order], p[::-1][:, order])
    torch.testing.assert_close(one.label_score[order], other.label_score)
    assert torch.equal(one.suggested_label[order], other.suggested_label)


def test_early_surveys_count_as_much_as_late_ones():
    """A wrong label that was learnt by heart in the end."""
    early, late = [[0.05, 0.95], [0.9, 0.1]], [[0.99, 0.01], [0.99, 0.01]]
    assert find_label_issues([0, 0], [late]).is_label_issue.tolist() == [False, False]
    assert find_label_issues([0, 0], [early, early, late]).is_label_issue.tolist() == [True, False]


def test_a_network_that_is_unsure_of_everything_needs_less_of_a_lead():
    """Twenty classes of nearly the same probability, as after one epoch."""
    p = np.full((40, 20), 0.05)
    labels = np.arange(40) % 20
    p[np.arange(40), labels] += 0.019
    p[0] = np.roll(p[0], 1)
    assert find_label_issues(labels, p / p.sum(1, keepdims=True)).is_label_issue.nonzero().tolist() == [[0]]


def test_a_tie_is_no_issue_nor_is_a_narrow_lead():
    narrow = find_label_issues([0, 1, 1, 1], [[0.9, 0.1], [0.1, 0.9], [0.514, 0.486], [0.516, 0.484]])
    assert narrow.is_label_issue.tolist() == [False, False, False, True]
    issues = find_label_issues([1, 0], [[0.5, 0.5], [0.5, 0.5]])
    assert issues.is_label_issue.tolist() == [False, False]
    assert issues.predicted_label.tolist() == [1, 0]
    assert issues.label_score.tolist() == [0.5, 0.5]


def test_a_label_is_kept_where_none_is_likelier_though_it_is_not_likely():
    issues = find_label_issues([0], [[0.4, 0.3, 0.3]])
    assert float(issues.wrong_probability) == pytest.approx(0.6)
    assert issues.is_label_issue.tolist() == [False]
    assert issues.suggested_label.tolist() == [0]


def test_probabilities_of_zero_are_finite_and_the_worst():
    issues = find_label_issues([0, 0, 0], [[0.0, 1.0], [1.0, 0.0], [1e-6, 1 - 1e-6]])
    assert issues.label_score.isfinite().all()
    assert issues.worst_first.tolist() == [0, 2, 1]
    assert issues.label_score[0] == pytest.approx(TINY, rel=1e-6)


def test_confusion_counts_given_against_suggested_or_true():
    issues = find_label_issues([0, 0, 1, 2], [[0.9, 0.1, 0], [0.1, 0.8, 0.1], [0, 1, 0], [0, 1, 0]])
    assert issues.confusion().tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    assert issues.confusion(torch.tensor([2, 2, 2, 2])).tolist() == [[0, 0, 2], [0, 0, 1], [0, 0, 1]]


def test_equal_scores_stay_in_their_order():
    issues = find_label_issues([0] * 50, [[0.3, 0.7]] * 50)
    assert issues.worst_first.tolist() == list(range(50))


def test_no_samples_are_no_issues():
    issues = find_label_issues(np.zeros(0, dtype=np.int64), np.zeros((0, 3)))
    assert (len(issues), issues.confusion().tolist()) == (0, [[0] * 3] * 3)


def test_what_training_saved_gives_what_its_surveys_give():
    labels, p = made_up()
    given, log_p = torch.tensor(labels), torch.tensor(p).log()
    margins = [row.gather(1, given[:, None])[:, 0] for row in log_p]
    rivals = [row.scatter(1, given[:, None], -torch.inf).amax(1) for row in log_p]
    mean = torch.stack(margins).mean(0) - torch.stack(rivals).mean(0)
    issues = from_surveys(given, margin=mean, probabilities=torch.tensor(p).mean(0))
    assert isinstance(issues, Issues)
    torch.testing.assert_close(issues.label_score, find_label_issues(labels, p).label_score)


def test_samples_that_were_not_trained_on_do_not_move_the_confidence():
    labels, p = made_up(surveys=1)
    given, p = torch.tensor(labels), torch.tensor(p[0])
    confidence = class_confidence(p[:25], given[:25])
    whole, trained = (
        from_surveys(given[:end], margin=torch.zeros(end), probabilities=p[:end], confidence=confidence)
        for end in (len(given), 25)
    )
    assert torch.equal(whole.is_label_issue[:25], trained.is_label_issue)
    assert torch.equal(
        trained.predicted_label, likelier_label(p[:25], given[:25], class_confidence(p[:25], given[:25]))
    )


GOOD = [[0.5, 0.5], [0.2, 0.8]]


@pytest.mark.parametrize(
    ("labels", "options", "sentence"),
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
def test_what_is_wrong_is_named(labels, options, sentence):
    with pytest.raises(ValueError, match=r"^(Parameter|Pass) ") as error:
        find_label_issues(labels, **options)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: [torch.as_tensor(part) for part in p],  # one a survey
        lambda p: torch.as_tensor(p),
        lambda p: p[:, ::-1][:, ::-1].astype(">f8"),
        lambda p: p.tolist(),
    ],
    ids=["tensors", "tensor", "big-endian", "lists"],
)
def test_whatever_people_have_them_in(change):
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 20))
    labels = np.arange(20) % 4
    want = find_label_issues(labels, p)
    for these in (labels[::-1][::-1], labels.astype(">i4"), labels.tolist()):
        found = find_label_issues(these, change(p))
        assert torch.equal(found.label_score, want.label_score)
        assert torch.equal(found.predicted_label, want.predicted_label)


def test_half_precision_has_its_rounding():
    p = torch.rand(50, 10).softmax(1)
    labels = torch.arange(50) % 10
    want = find_label_issues(labels, p).wrong_probability
    for bits in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(find_label_issues(labels, p.to(bits)).wrong_probability, want, rtol=0, atol=0.01)


def test_a_logit_of_minus_infinity_rules_a_class_out():
    issues = find_label_issues([0, 1], logits=[[0.0, 1.0, -math.inf], [-math.inf, -math.inf, 2.0]])
    assert issues.label_score.isfinite().all()
    assert issues.predicted_label.tolist() == [1, 2]
    assert float(issues.wrong_probability[1]) == pytest.approx(1)
    with pytest.raises(ValueError, match="`logits` should be finite"):
        find_label_issues([0], logits=[[-math.inf, -math.inf]])
    with pytest.raises(ValueError, match="`logits` should be finite"):
        find_label_issues([0], logits=[[math.inf, 0.0]])


def test_what_is_no_numbers_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="`pred_probs` should be numbers, all rows of one length"):
        find_label_issues([0, 1], [[0.5, 0.5], [1.0]])
    with pytest.raises(ValueError, match="`labels` should be numbers"):
        find_label_issues(["a", "b"], [[0.5, 0.5], [1.0, 0.0]])
