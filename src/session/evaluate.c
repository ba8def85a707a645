#include "session/evaluate.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "schedule/program.h"
#include "session/mode.h"
#include "session/preference.h"

#include <math.h>
#include <string.h>

/* The trained run of a document: [first, end) in tokens; 0 if it is not one run. */
static int answer_of(const struct rh_dataset *dataset, int64_t document, int64_t *first, int64_t *end)
{
	int64_t at = dataset->document_start[document], stop = dataset->document_start[document + 1];
	while (at < stop && !dataset->trained[at])
		at++;
	*first = at;
	while (at < stop && dataset->trained[at])
		at++;
	*end = at;
	return *first < stop && at == stop;
}

static int same_answer(const struct rh_dataset *dataset, int64_t a, int64_t a_end, int64_t b, int64_t b_end)
{
	return a_end - a == b_end - b && !memcmp(dataset->ids + a, dataset->ids + b, (size_t)(a_end - a) * sizeof *dataset->ids);
}

struct rh_choices rh_choices_find(const struct rh_dataset *dataset)
{
	int64_t known[RH_CHOICES_MAX][2], first, end;
	const struct rh_choices none = {0};
	struct rh_choices found = none;
	if (dataset->objective.task != RH_TASK_CAUSAL_LM || dataset->judged)
		return none;
	for (int64_t d = 0; d < dataset->documents; d++) {
		if (!answer_of(dataset, d, &first, &end))
			return none;
		int c = 0;
		while (c < found.count && !same_answer(dataset, first, end, known[c][0], known[c][1]))
			c++;
		if (c == found.count) {
			if (c == RH_CHOICES_MAX)
				return none;
			for (int i = 0; i < c; i++)
				if (found.token[i] == dataset->ids[first])
					return none;
			known[c][0] = first;
			known[c][1] = end;
			found.token[found.count++] = dataset->ids[first];
		}
		found.documents[c]++;
	}
	return found.count >= 2 && 2 * found.count <= dataset->documents ? found : none;
}

int rh_evaluate_load(const struct rh_config *config, const struct rh_objective *objective, const struct rh_tokenizer *tokenizer,
                     struct rh_dataset *out)
{
	struct rh_config unpacked = *config;
	struct rh_dataset train = {0};
	unpacked.packing = 0;
	if (config->validation_file.count) {
		int rc = rh_dataset_load_for(RH_DATASET_VALIDATION, &unpacked, objective, tokenizer, out);
		if (!rc)
			rh_dataset_report(out);
		return rc;
	}
	int rc = rh_dataset_load_for(RH_DATASET_TRAIN, config, objective, tokenizer, &train);
	if (!rc)
		rh_dataset_report(&train);
	if (!rc)
		rc = rh_dataset_split(&train, config->eval_split, config->data_seed, out);
	if (!rc)
		rh_dataset_report_split(&train, out);
	rh_dataset_free(&train);
	return rc;
}

int rh_evaluate_shape(const struct rh_dataset *dataset, int64_t each, const struct rh_choices *choices, struct rh_micro_shape *out)
{
	struct rh_batch_limits limits;
	int rc = rh_dataset_limits(dataset, each, &limits);
	if (rc)
		return rc;
	*out = (struct rh_micro_shape){.tokens = limits.tokens,
	                               .documents = limits.documents,
	                               .longest = limits.longest,
	                               .head_rows = limits.trained,
	                               .choices = choices ? choices->count : 0,
	                               .typed = dataset->objective.is_typed ? limits.tokens : 0,
	                               .pixels = limits.pixels};
	if (rh_task_classifies(dataset->objective.task))
		out->choices = dataset->objective.labels;
	return 0;
}

int64_t rh_evaluate_micro_batches(int64_t rows, int64_t each, int devices)
{
	return rh_roundpipe_default_round((rows + each - 1) / each, devices); /* of a call */
}

/* Buffers of one executor call. */
struct wave {
	int64_t micro_batches, scores;
	int64_t each, *rows; /* of one micro-batch: how many at most, and which */
	struct rh_batch *batch;
	struct rh_micro_batch *micro;
	float **loss, **score;
	int32_t **hit;
	float *sums; /* scratch of what judges documents */
};

static void wave_free(struct wave *wave)
{
	for (int64_t m = 0; m < wave->micro_batches; m++) {
		if (wave->batch)
			rh_batch_free(&wave->batch[m]);
		if (wave->loss)
			rh_free(wave->loss[m]);
		if (wave->score)
			rh_free(wave->score[m]);
		if (wave->hit)
			rh_free(wave->hit[m]);
	}
	rh_free(wave->rows);
	rh_free(wave->batch);
	rh_free(wave->micro);
	rh_free(wave->loss);
	rh_free(wave->score);
	rh_free(wave->hit);
	rh_free(wave->sums);
}

/* Box 1 of several makes the batches; the others have room for them. */
static int reserve_batch(const struct rh_session *session, struct rh_batch *batch)
{
	const struct rh_micro_shape *shape = &session->work.infer;
	const struct rh_batch_limits limits = {.tokens = shape->tokens,
	                                       .documents = shape->documents,
	                                       .trained = shape->head_rows,
	                                       .longest = shape->longest,
	                                       .judged = session->config->preference.answers ? shape->documents : 0};
	return session->box.number ? rh_batch_reserve(batch, &limits) : 0;
}

static int wave_create(const struct rh_session *session, int64_t each, struct wave *out)
{
	const struct rh_micro_shape *shape = &session->work.infer;
	int64_t micro_batches = session->work.infer_micro_batches;
	size_t count = (size_t)micro_batches, rows = (size_t)shape->head_rows;
	*out = (struct wave){.micro_batches = micro_batches, .scores = shape->choices, .each = each};
	out->rows = rh_alloc((size_t)each, sizeof *out->rows);
	out->sums = rh_alloc(2 * (size_t)shape->documents, sizeof *out->sums);
	out->batch = rh_alloc(count, sizeof *out->batch);
	out->micro = rh_alloc(count, sizeof *out->micro);
	out->loss = rh_alloc(count, sizeof(float *));
	out->score = rh_alloc(count, sizeof(float *));
	out->hit = rh_alloc(count, sizeof(int32_t *));
	int rc = out->rows && out->sums && out->batch && out->micro && out->loss && out->score && out->hit ? 0 : -ENOMEM;
	for (int64_t m = 0; !rc && m < micro_batches; m++) {
		out->loss[m] = rh_alloc(rows, sizeof(float));
		out->hit[m] = rh_alloc(rows, sizeof(int32_t));
		out->score[m] = rh_alloc(rows * (size_t)(shape->choices ? shape->choices : 1), sizeof(float));
		rc = out->loss[m] && out->hit[m] && out->score[m] ? reserve_batch(session, &out->batch[m]) : -ENOMEM;
	}
	if (rc)
		wave_free(out);
	return rc;
}

/* In 64 bits each: they travel between boxes. */
struct sums {
	double loss;
	int64_t hits, trained, tokens, correct, documents;
	struct rh_figures figures;
};

struct tally {
	struct sums sums;
	int64_t labels, *pair; /* of a classification: (labels, labels) rows of a label, columns of a prediction; else NULL */
	const struct rh_preference *preference; /* what documents are judged by; NULL: they are not */
	float *logps;                           /* where the next documents' log-probabilities go, and nothing else is counted; NULL */
};

static void count_pair(const float *score, int32_t label, struct tally *tally)
{
	int64_t best = 0;
	for (int64_t c = 1; c < tally->labels; c++)
		best = score[c] > score[best] ? c : best;
	tally->pair[label * tally->labels + best]++;
}

static void judge_micro(const struct wave *wave, int64_t m, struct tally *tally)
{
	const struct rh_batch *batch = &wave->batch[m];
	const struct rh_judged_losses judged = {batch->span, batch->reference, wave->loss[m], batch->documents, batch->trained, wave->sums};
	if (tally->logps) {
		rh_preference_logps(&judged, tally->logps);
		tally->logps += batch->documents;
	} else {
		tally->sums.loss += rh_preference_judge(tally->preference, &judged, &tally->sums.figures);
	}
}

static void count_micro(const struct wave *wave, int64_t m, const struct rh_choices *choices, struct tally *tally)
{
	const struct rh_batch *batch = &wave->batch[m];
	int64_t document = -1;
	tally->sums.tokens += batch->tokens;
	tally->sums.trained += batch->trained;
	if (tally->preference)
		judge_micro(wave, m, tally);
	for (int64_t i = 0, d = 0; i < batch->trained; i++) {
		tally->sums.loss += tally->preference ? 0 : (double)wave->loss[m][i];
		tally->sums.hits += wave->hit[m][i];
		if (tally->pair)
			count_pair(wave->score[m] + i * wave->scores, batch->target[i], tally);
		while (batch->start[d + 1] <= batch->head_row[i])
			d++;
		if (!choices || !choices->count || d == document)
			continue;
		document = d; /* the first trained token of its document */
		int best = 0;
		for (int c = 1; c < choices->count; c++)
			if (wave->score[m][i * wave->scores + c] > wave->score[m][i * wave->scores + best])
				best = c;
		tally->sums.correct += choices->token[best] == batch->target[i];
		tally->sums.documents++;
	}
}

/* The batches of a wave, rows from *row on. Their number, or a fault. */
static int64_t fill_wave(struct rh_session *session, const struct rh_dataset *dataset, struct wave *wave, int64_t *row)
{
	int64_t count = 0, first = *row, most = wave->each;
	for (; count < wave->micro_batches && *row < dataset->rows; count++) {
		int64_t n = 0;
		while (n < most && *row < dataset->rows)
			wave->rows[n++] = (*row)++;
		int rc = session->box.number ? 0 : rh_batch_make(dataset, wave->rows, n, &wave->batch[count]);
		if (rc)
			return rc;
	}
	const struct rh_mode_part *part = &rh_session_mode(session)->part;
	int rc = part->share_rows ? part->share_rows(session, first, wave->batch, count) : 0;
	return rc ? rc : count;
}

/* The box with the head counts. */
static int run_wave(struct rh_session *session, const struct rh_dataset *dataset, const struct rh_choices *choices, struct wave *wave,
                    int64_t *row, struct tally *tally)
{
	int counts = rh_model_has_head(session->model);
	int64_t count = fill_wave(session, dataset, wave, row);
	for (int64_t m = 0; m < count; m++) {
		struct rh_micro_batch *micro = &wave->micro[m];
		*micro = rh_micro_of(&wave->batch[m]);
		micro->shape.judged = 0; /* the host judges what comes back */
		micro->loss = counts ? wave->loss[m] : NULL;
		micro->hit = counts ? wave->hit[m] : NULL;
		if (tally->pair) {
			micro->shape.choices = tally->labels;
			micro->scores = counts ? wave->score[m] : NULL;
		} else if (choices && choices->count) {
			micro->shape.choices = choices->count;
			micro->choice = choices->token;
			micro->scores = counts ? wave->score[m] : NULL;
		}
	}
	int rc = count < 0 ? (int)count : rh_executor_infer(session->executor, wave->micro, count);
	for (int64_t m = 0; !rc && counts && m < count; m++)
		count_micro(wave, m, choices, tally);
	return rc;
}

/* F1 of one label: of its rows, and of the rows taken for it. */
static double f1_of(const struct tally *tally, int64_t label)
{
	int64_t right = tally->pair[label * tally->labels + label], rows = 0, taken = 0;
	for (int64_t c = 0; c < tally->labels; c++) {
		rows += tally->pair[label * tally->labels + c];
		taken += tally->pair[c * tally->labels + label];
	}
	return rows + taken ? 2.0 * (double)right / (double)(rows + taken) : 0;
}

/* Matthews' correlation of labels and predictions, of two labels or more (Gorodkin 2004); 0 where either has one value alone. */
static double correlation(const struct tally *tally, double all, double right)
{
	double cross = 0, rows_squared = 0, taken_squared = 0;
	for (int64_t k = 0; k < tally->labels; k++) {
		double rows = 0, taken = 0;
		for (int64_t c = 0; c < tally->labels; c++) {
			rows += (double)tally->pair[k * tally->labels + c];
			taken += (double)tally->pair[c * tally->labels + k];
		}
		cross += rows * taken;
		rows_squared += rows * rows;
		taken_squared += taken * taken;
	}
	double spread = sqrt((all * all - rows_squared) * (all * all - taken_squared));
	return spread > 0 ? (right * all - cross) / spread : 0;
}

static void judge_pairs(const struct tally *tally, struct rh_evaluation *out)
{
	double all = 0, right = 0, most = 0, f1 = 0;
	for (int64_t k = 0; k < tally->labels; k++) {
		double rows = 0;
		for (int64_t c = 0; c < tally->labels; c++)
			rows += (double)tally->pair[k * tally->labels + c];
		all += rows;
		right += (double)tally->pair[k * tally->labels + k];
		most = rows > most ? rows : most;
		f1 += f1_of(tally, k) / (double)tally->labels;
	}
	out->classifies = 1;
	out->choice_accuracy = right / all;
	out->majority = most / all;
	out->f1 = tally->labels == 2 ? f1_of(tally, 1) : f1;
	out->matthews = correlation(tally, all, right);
}

/* Every row once, in file order, `each` a micro-batch. */
static int run_rows(struct rh_session *session, const struct rh_dataset *dataset, int64_t each, const struct rh_choices *choices,
                    struct rh_progress *progress, struct tally *tally)
{
	struct wave wave;
	double began = rh_clock_seconds();
	int rc = wave_create(session, each, &wave);
	if (rc)
		return rc;
	for (int64_t row = 0; !rc && row < dataset->rows;) {
		rc = run_wave(session, dataset, choices, &wave, &row, tally);
		double now = rh_clock_seconds();
		rh_progress_rows(progress, row, dataset->rows, (now - began) / (double)row * (double)(dataset->rows - row), now);
	}
	wave_free(&wave);
	return rc;
}

int rh_evaluate_logps(struct rh_session *session, const struct rh_dataset *dataset, int64_t each, struct rh_progress *progress,
                      float *logps)
{
	struct tally tally = {.preference = &dataset->preference, .logps = logps};
	const struct rh_mode_part *part = &rh_session_mode(session)->part;
	int rc = run_rows(session, dataset, each, NULL, progress, &tally);
	int64_t documents = dataset->rows * dataset->preference.answers;
	return rc || !part->share_tally ? rc : part->share_tally(session, logps, documents * (int64_t)sizeof *logps);
}

int rh_evaluate(struct rh_session *session, const struct rh_dataset *dataset, const struct rh_choices *choices,
                struct rh_progress *progress, struct rh_evaluation *out)
{
	struct tally tally = {.labels = rh_task_classifies(dataset->objective.task) ? dataset->objective.labels : 0,
	                      .preference = dataset->preference.answers ? &dataset->preference : NULL};
	double began = rh_clock_seconds();
	int rc = 0;
	if (tally.labels && !(tally.pair = rh_alloc((size_t)(tally.labels * tally.labels), sizeof *tally.pair)))
		return -ENOMEM;
	rc = run_rows(session, dataset, session->config->per_device_eval_batch_size, choices, progress, &tally);
	const struct rh_mode_part *part = &rh_session_mode(session)->part;
	if (!rc && part->share_tally)
		rc = part->share_tally(session, &tally.sums, sizeof tally.sums);
	if (!rc && part->share_tally && tally.pair)
		rc = part->share_tally(session, tally.pair, tally.labels * tally.labels * (int64_t)sizeof *tally.pair);
	if (rc) {
		rh_free(tally.pair);
		return rc;
	}
	*out = (struct rh_evaluation){.loss = tally.sums.loss / (double)(tally.preference ? dataset->rows : tally.sums.trained),
	                              .is_judged = tally.preference != NULL,
	                              .figures = tally.sums.figures,
	                              .token_accuracy = (double)tally.sums.hits / (double)tally.sums.trained,
	                              .choice_accuracy = -1,
	                              .majority = -1,
	                              .rows = dataset->rows,
	                              .tokens = tally.sums.tokens,
	                              .trained = tally.sums.trained,
	                              .seconds = rh_clock_seconds() - began};
	if (tally.sums.documents) {
		int64_t most = 0;
		for (int c = 0; c < choices->count; c++)
			most = choices->documents[c] > most ? choices->documents[c] : most;
		out->choice_accuracy = (double)tally.sums.correct / (double)tally.sums.documents;
		out->majority = (double)most / (double)tally.sums.documents;
	}
	if (tally.pair)
		judge_pairs(&tally, out);
	rh_free(tally.pair);
	return 0;
}
