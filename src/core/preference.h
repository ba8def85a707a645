/* Losses over the log-probabilities of whole answers, and their derivatives: for host code and kernels. Semantics are TRL 1.16's.
 *
 * l is an answer's summed log-probability, l_ref that of the reference, u = l - l_ref; c is the chosen answer of a pair, r the rejected.
 * Rafailov et al. 2023 (DPO: sigmoid), Zhao et al. 2023 (hinge), Azar et al. 2023 (IPO), Chowdhury et al. 2024 (robust), Ji et al. 2024
 * (EXO), D'Oosterlinck et al. 2024 (APO), Chen et al. 2024 (NCA), Jung et al. 2024 (BCO), Wu et al. 2024 (SPPO), Meng et al. 2024 (SimPO),
 * Hong et al. 2024 (ORPO), Ethayarajh et al. 2024 (KTO). */
#ifndef RH_CORE_PREFERENCE_H
#define RH_CORE_PREFERENCE_H

#include "core/portable.h"

#include <math.h>
#include <stdint.h>

/* In the order of the words of loss_type. */
enum rh_preference_loss {
	RH_PREFERENCE_SIGMOID,
	RH_PREFERENCE_HINGE,
	RH_PREFERENCE_IPO,
	RH_PREFERENCE_SIGMOID_NORM,
	RH_PREFERENCE_ROBUST,
	RH_PREFERENCE_EXO_PAIR,
	RH_PREFERENCE_APO_ZERO,
	RH_PREFERENCE_APO_DOWN,
	RH_PREFERENCE_NCA_PAIR,
	RH_PREFERENCE_BCO_PAIR,
	RH_PREFERENCE_SPPO_HARD,
	RH_PREFERENCE_SFT, /* the chosen answer's cross-entropy */
	RH_PREFERENCE_SIMPO,
	RH_PREFERENCE_ORPO,
	RH_PREFERENCE_KTO,
	RH_PREFERENCE_APO_ZERO_UNPAIRED,
	RH_PREFERENCE_LOSSES
};

/* What a run's rows are judged by; zeros: by nothing, they are trained on as they are. */
struct rh_preference {
	float weight[RH_PREFERENCE_LOSSES]; /* 0: the loss is not asked for */
	float beta, label_smoothing, simpo_gamma, cpo_alpha;
	float desirable_weight, undesirable_weight;
	int answers; /* documents of a row: 2, or 1; 0: no preference */
};

/* What a document is to its row. A mismatched one has a row's prompt and another row's answer: KTO's estimate of a divergence. */
enum rh_role { RH_ROLE_REJECTED, RH_ROLE_CHOSEN, RH_ROLE_MISMATCHED };

RH_PORTABLE int rh_preference_is_paired(const struct rh_preference *is)
{
	return is->answers && is->weight[RH_PREFERENCE_KTO] == 0 && is->weight[RH_PREFERENCE_APO_ZERO_UNPAIRED] == 0;
}

/* The fewest rows of a micro-batch: KTO compares each with its neighbour in it. */
RH_PORTABLE int rh_preference_fewest_rows(const struct rh_preference *is)
{
	return is->weight[RH_PREFERENCE_KTO] != 0 ? 2 : 1;
}

/* Does it compare with a reference? */
RH_PORTABLE int rh_preference_refers(const struct rh_preference *is)
{
	int refers = 0;
	for (int i = 0; i < RH_PREFERENCE_LOSSES; i++)
		refers |= is->weight[i] != 0 && i != RH_PREFERENCE_SFT && i != RH_PREFERENCE_SIMPO && i != RH_PREFERENCE_ORPO;
	return refers;
}

/* The weight of the chosen answer's mean cross-entropy; with ORPO that of its prompt too. */
RH_PORTABLE float rh_preference_nll_weight(const struct rh_preference *is)
{
	return is->weight[RH_PREFERENCE_SFT] + is->weight[RH_PREFERENCE_ORPO] + is->weight[RH_PREFERENCE_SIMPO] * is->cpo_alpha;
}

RH_PORTABLE double rh_logistic(double x)
{
	return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

RH_PORTABLE double rh_log_logistic(double x)
{
	return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

/* The logarithm of the odds of a mean log-probability, which may be 0, and odds infinite, in fp32: then it is a part in 2^30 below. */
RH_PORTABLE double rh_below_certain(double mean)
{
	return mean > -0x1p-30 ? -0x1p-30 : mean;
}

RH_PORTABLE double rh_log_odds(double mean)
{
	return rh_below_certain(mean) - log(-expm1(rh_below_certain(mean)));
}

/* Its derivative by the mean. */
RH_PORTABLE double rh_log_odds_slope(double mean)
{
	return -1 / expm1(rh_below_certain(mean));
}

/* An answer: l and l_ref; its tokens, and how many of them have a probability: one less where nothing comes before the first. */
struct rh_answer {
	double logp, reference, tokens, rows;
};

/* A loss, and its derivatives by l of both answers. */
struct rh_slopes {
	double loss, chosen, rejected;
};

RH_PORTABLE struct rh_slopes rh_slopes_of(double loss, double chosen, double rejected)
{
	struct rh_slopes out;
	out.loss = loss;
	out.chosen = chosen;
	out.rejected = rejected;
	return out;
}

/* A pair's loss of this type, but for cross-entropies. */
RH_PORTABLE struct rh_slopes rh_preference_pair(enum rh_preference_loss type, const struct rh_preference *is, struct rh_answer c,
                                                struct rh_answer r)
{
	double b = (double)is->beta, e = (double)is->label_smoothing, u_c = c.logp - c.reference, u_r = r.logp - r.reference;
	double x = b * (u_c - u_r), s_c = rh_logistic(b * u_c), s_r = rh_logistic(b * u_r), s = rh_logistic(x), d, y;
	switch (type) {
	case RH_PREFERENCE_SIGMOID: /* -log s(x) */
		return rh_slopes_of(-rh_log_logistic(x), -b * rh_logistic(-x), b * rh_logistic(-x));
	case RH_PREFERENCE_HINGE: /* max(0, 1 - x) */
		return x < 1 ? rh_slopes_of(1 - x, -b, b) : rh_slopes_of(0, 0, 0);
	case RH_PREFERENCE_IPO: /* (u_c / |c| - u_r / |r| - 1 / (2 b))^2 */
		y = u_c / c.tokens - u_r / r.tokens - 1 / (2 * b);
		return rh_slopes_of(y * y, 2 * y / c.tokens, -2 * y / r.tokens);
	case RH_PREFERENCE_SIGMOID_NORM: /* -log s(b (u_c / |c| - u_r / |r|)) */
		y = b * (u_c / c.tokens - u_r / r.tokens);
		return rh_slopes_of(-rh_log_logistic(y), -b * rh_logistic(-y) / c.tokens, b * rh_logistic(-y) / r.tokens);
	case RH_PREFERENCE_ROBUST: /* (-(1 - e) log s(x) + e log s(-x)) / (1 - 2 e) */
		d = b * (-(1 - e) * rh_logistic(-x) - e * s) / (1 - 2 * e);
		return rh_slopes_of((-(1 - e) * rh_log_logistic(x) + e * rh_log_logistic(-x)) / (1 - 2 * e), d, -d);
	case RH_PREFERENCE_EXO_PAIR: /* s (log s - log(1 - e)) + (1 - s) (log(1 - s) - log e), s = s(x) */
		d = b * s * rh_logistic(-x) * (x - log1p(-e) + log(e));
		return rh_slopes_of(s * (rh_log_logistic(x) - log1p(-e)) + rh_logistic(-x) * (rh_log_logistic(-x) - log(e)), d, -d);
	case RH_PREFERENCE_APO_ZERO: /* 1 - s(b u_c) + s(b u_r) */
		return rh_slopes_of(rh_logistic(-b * u_c) + s_r, -b * s_c * rh_logistic(-b * u_c), b * s_r * rh_logistic(-b * u_r));
	case RH_PREFERENCE_APO_DOWN: /* s(b u_c) + 1 - s(x) */
		d = b * s * rh_logistic(-x);
		return rh_slopes_of(s_c + rh_logistic(-x), b * s_c * rh_logistic(-b * u_c) - d, d);
	case RH_PREFERENCE_NCA_PAIR: /* -log s(b u_c) - (log s(-b u_c) + log s(-b u_r)) / 2 */
		y = -rh_log_logistic(b * u_c) - (rh_log_logistic(-b * u_c) + rh_log_logistic(-b * u_r)) / 2;
		return rh_slopes_of(y, b * (s_c / 2 - rh_logistic(-b * u_c)), b * s_r / 2);
	case RH_PREFERENCE_BCO_PAIR: /* -log s(b u_c) - log s(-b u_r) */
		return rh_slopes_of(-rh_log_logistic(b * u_c) - rh_log_logistic(-b * u_r), -b * rh_logistic(-b * u_c), b * s_r);
	case RH_PREFERENCE_SPPO_HARD: /* (u_c - 1 / (2 b))^2 + (u_r + 1 / (2 b))^2 */
		d = u_c - 1 / (2 * b);
		y = u_r + 1 / (2 * b);
		return rh_slopes_of(d * d + y * y, 2 * d, 2 * y);
	case RH_PREFERENCE_SIMPO: /* -(1 - e) log s(y) - e log s(-y), y = b (m_c - m_r) - gamma, m the mean of a row */
		y = b * (c.logp / c.rows - r.logp / r.rows) - (double)is->simpo_gamma;
		d = b * (e * rh_logistic(y) - (1 - e) * rh_logistic(-y));
		return rh_slopes_of(-(1 - e) * rh_log_logistic(y) - e * rh_log_logistic(-y), d / c.rows, -d / r.rows);
	case RH_PREFERENCE_ORPO: /* -b log s(y), y = log(odds(m_c) / odds(m_r)), odds(m) = e^m / (1 - e^m) */
		y = rh_log_odds(c.logp / c.rows) - rh_log_odds(r.logp / r.rows);
		d = -b * rh_logistic(-y);
		return rh_slopes_of(-b * rh_log_logistic(y), d * rh_log_odds_slope(c.logp / c.rows) / c.rows,
		                    -d * rh_log_odds_slope(r.logp / r.rows) / r.rows);
	case RH_PREFERENCE_SFT:
	case RH_PREFERENCE_KTO:
	case RH_PREFERENCE_APO_ZERO_UNPAIRED:
	case RH_PREFERENCE_LOSSES:
		break;
	}
	return rh_slopes_of(0, 0, 0);
}

/* The loss of an answer by itself, good or bad; its derivative by l is `chosen`. k is KTO's estimate of the divergence. */
RH_PORTABLE struct rh_slopes rh_preference_single(enum rh_preference_loss type, const struct rh_preference *is, struct rh_answer a,
                                                  int is_good, double k)
{
	double b = (double)is->beta, weight = (double)(is_good ? is->desirable_weight : is->undesirable_weight);
	/* of both: 1 - s(b (u - k)) of a good answer, 1 - s(b (k - u)) of a bad one, without a reference point k is 0 */
	double sign = is_good ? 1 : -1, x = sign * b * (a.logp - a.reference - (type == RH_PREFERENCE_KTO ? k : 0));
	return rh_slopes_of(weight * rh_logistic(-x), -weight * sign * b * rh_logistic(x) * rh_logistic(-x), 0);
}

/* The documents of a micro-batch. Of each document `span` has its first head row, the first of its answer's, the answer's tokens and its
 * role; rows: all head rows. sum: of each document the cross-entropies of its answer, and of all its head rows. */
enum { RH_SPAN_FIRST, RH_SPAN_ANSWER, RH_SPAN_TOKENS, RH_SPAN_ROLE, RH_SPANS };
struct rh_judged {
	const int32_t *span;    /* (documents, RH_SPANS) */
	const float *reference; /* (documents) */
	const float *sum;       /* (documents, 2) */
	int64_t documents, rows;
};

RH_PORTABLE int64_t rh_judged_end(const struct rh_judged *batch, int64_t d)
{
	return d + 1 < batch->documents ? batch->span[(d + 1) * RH_SPANS + RH_SPAN_FIRST] : batch->rows;
}

/* The first of the document's head rows that count in its sum of cross-entropies for `all`: its prompt's too, or the answer's alone. */
RH_PORTABLE int64_t rh_judged_first(const struct rh_judged *batch, int64_t d, int all)
{
	return batch->span[d * RH_SPANS + (all ? RH_SPAN_FIRST : RH_SPAN_ANSWER)];
}

/* l and l_ref are fp32 numbers: a model compared with itself differs by nothing. */
RH_PORTABLE struct rh_answer rh_judged_answer(const struct rh_judged *batch, int64_t d)
{
	struct rh_answer out;
	out.logp = -(double)batch->sum[2 * d];
	out.reference = (double)batch->reference[d];
	out.tokens = (double)batch->span[d * RH_SPANS + RH_SPAN_TOKENS];
	out.rows = (double)(rh_judged_end(batch, d) - rh_judged_first(batch, d, 0));
	return out;
}

/* KTO's k: the mean of u over the mismatched documents, at least 0. */
RH_PORTABLE double rh_judged_divergence(const struct rh_judged *batch)
{
	double sum = 0, count = 0;
	for (int64_t d = 0; d < batch->documents; d++) {
		if (batch->span[d * RH_SPANS + RH_SPAN_ROLE] != RH_ROLE_MISMATCHED)
			continue;
		struct rh_answer a = rh_judged_answer(batch, d);
		sum += a.logp - a.reference;
		count++;
	}
	return count > 0 && sum > 0 ? sum / count : 0;
}

/* Of a row, whose first document is d: its loss but for cross-entropies, and the derivatives by l of its documents. k: KTO's. */
RH_PORTABLE struct rh_slopes rh_judged_row(const struct rh_judged *batch, const struct rh_preference *is, int64_t d, double k)
{
	struct rh_slopes sum = rh_slopes_of(0, 0, 0);
	struct rh_answer first = rh_judged_answer(batch, d), second = first;
	int is_paired = rh_preference_is_paired(is), is_good = batch->span[d * RH_SPANS + RH_SPAN_ROLE] == RH_ROLE_CHOSEN;
	if (is_paired)
		second = rh_judged_answer(batch, d + 1);
	for (int i = 0; i < RH_PREFERENCE_LOSSES; i++) {
		if (is->weight[i] == 0)
			continue;
		enum rh_preference_loss type = (enum rh_preference_loss)i;
		struct rh_slopes own =
		        is_paired ? rh_preference_pair(type, is, first, second) : rh_preference_single(type, is, first, is_good, k);
		sum.loss += (double)is->weight[i] * own.loss;
		sum.chosen += (double)is->weight[i] * own.chosen;
		sum.rejected += (double)is->weight[i] * own.rejected;
	}
	return sum;
}

/* Head rows that count in the mean cross-entropy of a micro-batch's chosen answers. */
RH_PORTABLE int64_t rh_judged_nll_rows(const struct rh_judged *batch, const struct rh_preference *is)
{
	int64_t rows = 0;
	for (int64_t d = 0; d < batch->documents; d += is->answers)
		rows += rh_judged_end(batch, d) - rh_judged_first(batch, d, is->weight[RH_PREFERENCE_ORPO] != 0);
	return rows;
}

/* The derivative of a micro-batch's mean cross-entropy, times its rows, by one of those that count. */
RH_PORTABLE double rh_judged_nll_slope(const struct rh_judged *batch, const struct rh_preference *is)
{
	float weight = rh_preference_nll_weight(is);
	return weight == 0 ? 0 : (double)weight * (double)(batch->documents / is->answers) / (double)rh_judged_nll_rows(batch, is);
}

/* What cross-entropies of document d weigh, those of its answer and of its prompt: the derivative of the rows' losses by them. k, token:
 * rh_judged_divergence, rh_judged_nll_slope. */
struct rh_weights {
	float answer, prompt;
};
RH_PORTABLE struct rh_weights rh_judged_weights(const struct rh_judged *batch, const struct rh_preference *is, int64_t d, double k,
                                                double token)
{
	int is_second = d % is->answers != 0;
	struct rh_slopes row = rh_judged_row(batch, is, d - is_second, k);
	struct rh_weights out;
	out.answer = (float)((is_second ? 0 : token) - (is_second ? row.rejected : row.chosen));
	out.prompt = (float)(is_second || is->weight[RH_PREFERENCE_ORPO] == 0 ? 0 : token);
	return out;
}

#endif
