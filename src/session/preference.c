#include "session/preference.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/minmax.h"
#include "core/text.h"
#include "session/evaluate.h"
#include "session/mode.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

static struct rh_judged sums_of(const struct rh_judged_losses *batch)
{
	const struct rh_judged judged = {batch->span, batch->reference, batch->space, batch->documents, batch->rows};
	for (int64_t d = 0; d < batch->documents; d++)
		for (int all = 0; all < 2; all++) {
			double sum = 0;
			for (int64_t i = rh_judged_first(&judged, d, all); i < rh_judged_end(&judged, d); i++)
				sum += (double)batch->loss[i];
			batch->space[2 * d + all] = (float)sum;
		}
	return judged;
}

void rh_preference_logps(const struct rh_judged_losses *batch, float *out)
{
	const struct rh_judged judged = sums_of(batch);
	for (int64_t d = 0; d < judged.documents; d++)
		out[d] = -judged.sum[2 * d];
}

static void add(struct rh_figures *figures, enum rh_figure which, double value)
{
	figures->sum[which] += value;
	figures->count[which]++;
}

/* An answer's reward, and its log-probability as it is told: without a reference, means of a token. */
struct told {
	double reward, logp;
};

static struct told tell(const struct rh_judged *judged, const struct rh_preference *is, int64_t d)
{
	const struct rh_answer answer = rh_judged_answer(judged, d);
	double mean = answer.logp / answer.rows, beta = (double)is->beta;
	return rh_preference_refers(is) ? (struct told){beta * (answer.logp - answer.reference), answer.logp}
	                                : (struct told){beta * mean, mean};
}

/* Means over the pairs of a micro-batch. */
static void tell_pairs(const struct rh_judged *judged, const struct rh_preference *is, double nll, struct rh_figures *out)
{
	struct told chosen = {0, 0}, rejected = {0, 0};
	double pairs = (double)judged->documents / 2, right = 0, odds = 0, ratio = 0;
	for (int64_t d = 0; d < judged->documents; d += 2) {
		struct told c = tell(judged, is, d), r = tell(judged, is, d + 1);
		chosen.reward += c.reward / pairs;
		chosen.logp += c.logp / pairs;
		rejected.reward += r.reward / pairs;
		rejected.logp += r.logp / pairs;
		right += (c.reward > r.reward) / pairs;
		double log_odds = rh_log_odds(c.logp) - rh_log_odds(r.logp); /* of means */
		odds += log_odds / pairs;
		ratio += rh_log_logistic(log_odds) / pairs;
	}
	add(out, RH_FIGURE_REWARDS_CHOSEN, chosen.reward);
	add(out, RH_FIGURE_REWARDS_REJECTED, rejected.reward);
	add(out, RH_FIGURE_REWARDS_ACCURACIES, right);
	add(out, RH_FIGURE_REWARDS_MARGINS, chosen.reward - rejected.reward);
	add(out, RH_FIGURE_LOGPS_CHOSEN, chosen.logp);
	add(out, RH_FIGURE_LOGPS_REJECTED, rejected.logp);
	if (!rh_preference_refers(is))
		add(out, RH_FIGURE_NLL_LOSS, nll);
	if (is->weight[RH_PREFERENCE_ORPO] == 0)
		return;
	add(out, RH_FIGURE_LOG_ODDS_RATIO, ratio);
	add(out, RH_FIGURE_LOG_ODDS_CHOSEN, odds);
}

/* Means over the good answers of a micro-batch, and over the bad ones, where it has such. */
static void tell_judged(const struct rh_judged *judged, const struct rh_preference *is, double k, struct rh_figures *out)
{
	struct told sum[2] = {{0, 0}, {0, 0}};
	double count[2] = {0};
	for (int64_t d = 0; d < judged->documents; d += is->answers) {
		int is_good = judged->span[d * RH_SPANS + RH_SPAN_ROLE] == RH_ROLE_CHOSEN;
		struct told own = tell(judged, is, d);
		sum[is_good].reward += own.reward;
		sum[is_good].logp += own.logp;
		count[is_good]++;
	}
	add(out, RH_FIGURE_KL, k);
	if (count[1] > 0) {
		add(out, RH_FIGURE_REWARDS_CHOSEN, sum[1].reward / count[1]);
		add(out, RH_FIGURE_LOGPS_CHOSEN, sum[1].logp / count[1]);
	}
	if (count[0] > 0) {
		add(out, RH_FIGURE_REWARDS_REJECTED, sum[0].reward / count[0]);
		add(out, RH_FIGURE_LOGPS_REJECTED, sum[0].logp / count[0]);
	}
	if (count[0] > 0 && count[1] > 0)
		add(out, RH_FIGURE_REWARDS_MARGINS, sum[1].reward / count[1] - sum[0].reward / count[0]);
}

double rh_preference_judge(const struct rh_preference *is, const struct rh_judged_losses *batch, struct rh_figures *figures)
{
	const struct rh_judged judged = sums_of(batch);
	double k = is->weight[RH_PREFERENCE_KTO] != 0 ? rh_judged_divergence(&judged) : 0, loss = 0, nll = 0;
	for (int64_t d = 0; d < judged.documents; d += is->answers) {
		loss += rh_judged_row(&judged, is, d, k).loss;
		nll += (double)judged.sum[2 * d + (is->weight[RH_PREFERENCE_ORPO] != 0)];
	}
	nll /= (double)rh_judged_nll_rows(&judged, is);
	if (figures && rh_preference_is_paired(is))
		tell_pairs(&judged, is, nll, figures);
	else if (figures)
		tell_judged(&judged, is, k, figures);
	float weight = rh_preference_nll_weight(is);
	return loss + (weight == 0 ? 0 : (double)weight * nll * (double)(judged.documents / is->answers));
}

/* ---- the reference ---- */

int rh_reference_workload(const struct rh_config *config, const struct rh_dataset *train, const struct rh_dataset *held_out, int devices,
                          struct rh_workload *work)
{
	const struct rh_dataset *const sets[] = {train, held_out};
	const int64_t each[] = {config->per_device_train_batch_size, config->per_device_eval_batch_size};
	struct rh_micro_shape *most = &work->infer;
	int rc = 0;
	for (int i = 0; !rc && i < 2 && sets[i]; i++) {
		struct rh_micro_shape shape;
		rc = rh_evaluate_shape(sets[i], each[i], NULL, &shape);
		most->tokens = rh_max(most->tokens, shape.tokens);
		most->documents = rh_max(most->documents, shape.documents);
		most->longest = rh_max(most->longest, shape.longest);
		most->head_rows = rh_max(most->head_rows, shape.head_rows);
		work->infer_micro_batches = rh_max(work->infer_micro_batches, rh_evaluate_micro_batches(sets[i]->rows, each[i], devices));
	}
	return rc;
}

static void describe_rows(const struct rh_dataset *set, uint64_t *hash)
{
	*hash = XXH3_64bits_withSeed(set->ids, (size_t)set->tokens * sizeof *set->ids, *hash);
	*hash = XXH3_64bits_withSeed(set->trained, (size_t)set->tokens, *hash);
	*hash = XXH3_64bits_withSeed(set->document_start, ((size_t)set->documents + 1) * sizeof *set->document_start, *hash);
}

/* The file's first line: what the reference was made of. */
static int describe(const struct rh_session *session, const struct rh_dataset *train, const struct rh_dataset *held_out,
                    struct rh_text *out)
{
	const struct rh_config *config = session->config;
	char base[RH_DIGEST] = "none", adapter[RH_FILE_HASH] = "none";
	uint64_t rows = 0;
	int rc = session->source ? rh_base_digest(session->source, session->model, session->model->dtype, base) : 0;
	if (!rc && config->adapter_name_or_path) {
		char *path = rh_path_join(config->adapter_name_or_path, "adapter_model.safetensors");
		rc = path ? rh_file_hash(path, adapter) : -ENOMEM;
		rh_free(path);
	}
	describe_rows(train, &rows);
	if (held_out)
		describe_rows(held_out, &rows);
	return rc ? rc
	          : rh_text_printf(out,
	                           "roundhouse reference 1: base %s, adapter %s, rows %016" PRIx64 ", seed %" PRIu64
	                           ", dtype %d, quantize %d, accumulation %d, fp8 %d\n",
	                           base, adapter, rows, session->source ? 0 : config->seed, (int)config->dtype, (int)config->quantize,
	                           (int)config->accumulation, config->fp8);
}

static void set_references(struct rh_dataset *set, const char *from)
{
	for (int64_t d = 0; d < set->documents; d++)
		memcpy(&set->judged[d].reference, from + d * (int64_t)sizeof(float), sizeof(float));
}

/* 1: the file is there, whole, and of this model and these rows. */
static int read_references(const char *path, const struct rh_text *line, struct rh_dataset *train, struct rh_dataset *held_out)
{
	struct rh_bytes file;
	uint64_t sum;
	size_t documents = (size_t)(train->documents + (held_out ? held_out->documents : 0)), numbers = documents * sizeof(float);
	if (!path || !rh_file_exists(path))
		return 0;
	int rc = rh_file_load(path, &file);
	if (rc)
		return rc;
	int is_right = file.length == line->length + numbers + sizeof sum && !memcmp(file.bytes, line->bytes, line->length);
	if (is_right) {
		memcpy(&sum, file.bytes + line->length + numbers, sizeof sum);
		is_right = XXH3_64bits(file.bytes, line->length + numbers) == sum;
	}
	if (is_right) {
		set_references(train, file.bytes + line->length);
		if (held_out)
			set_references(held_out, file.bytes + line->length + (size_t)train->documents * sizeof(float));
	}
	rh_bytes_free(&file);
	return is_right;
}

int rh_reference_pass(struct rh_session *session, struct rh_dataset *set, int64_t each, struct rh_progress *progress)
{
	float *logps = rh_alloc((size_t)(set->rows * set->preference.answers), sizeof *logps);
	int rc = logps ? rh_evaluate_logps(session, set, each, progress, logps) : -ENOMEM;
	if (!rc)
		set_references(set, (const char *)logps);
	rh_free(logps);
	return rc;
}

int rh_reference_find(struct rh_session *session, const char *path, struct rh_dataset *train, struct rh_dataset *held_out,
                      struct rh_progress *progress, int *is_made)
{
	const struct rh_config *config = session->config;
	struct rh_text line = {0};
	int rc = 0, found = 1;
	if (!session->box.number) { /* it has the rows, and sends their references with them */
		rc = describe(session, train, held_out, &line);
		found = rc ? rc : read_references(path, &line, train, held_out);
		rh_text_free(&line);
	}
	if (found < 0)
		return found;
	const struct rh_mode_steps *mode = &rh_session_mode(session)->steps;
	int64_t rows = train->rows + (held_out ? held_out->rows : 0), all = found;
	rc = mode->agree ? mode->agree(session, found, &all) : 0;
	if (rc < 0)
		return rc;
	*is_made = !all && !session->box.number;
	if (all && !session->box.number)
		rh_note("reference: log-probabilities of %" PRId64 " rows read from %s", rows, path);
	if (all)
		return 0;
	rh_note("reference: the log-probabilities of %" PRId64 " rows by the model as it stands before step 1, in one pass%s", rows,
	        config->adapter_name_or_path ? " (that is the base with its adapter; LLaMA-Factory takes the base alone)" : "");
	rc = rh_reference_pass(session, train, config->per_device_train_batch_size, progress);
	if (!rc && held_out)
		rc = rh_reference_pass(session, held_out, config->per_device_eval_batch_size, progress);
	return rc;
}

int rh_reference_save(const struct rh_session *session, const char *path, const struct rh_dataset *train, const struct rh_dataset *held_out)
{
	struct rh_text text = {0};
	const struct rh_dataset *const sets[] = {train, held_out};
	int rc = describe(session, train, held_out, &text);
	for (int i = 0; i < 2 && sets[i]; i++)
		for (int64_t d = 0; !rc && d < sets[i]->documents; d++)
			rc = rh_text_append(&text, (const char *)&sets[i]->judged[d].reference, sizeof(float));
	uint64_t sum = rc ? 0 : XXH3_64bits(text.bytes, text.length);
	if (!rc)
		rc = rh_text_append(&text, (const char *)&sum, sizeof sum);
	if (!rc)
		rc = rh_file_write_whole(path, text.bytes, text.length);
	rh_text_free(&text);
	return rc;
}
