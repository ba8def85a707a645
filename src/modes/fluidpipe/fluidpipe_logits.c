#include "modes/fluidpipe/fluidpipe_logits.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/minmax.h"
#include "modes/boxes/box_step.h"
#include "modes/fluidpipe/distillation.h"
#include "modes/fluidpipe/fluidpipe.h"
#include "modes/fluidpipe/fluidpipe_stream.h"
#include "modes/fluidpipe/idle_steps.h"
#include "modes/fluidpipe/teacher_logits.h"

#include <inttypes.h>
#include <string.h>

/* Bytes of a message down. */
enum { PIECE_BYTES = 4 << 20 };

struct fluidpipe_logits {
	int learns, teaches;            /* this box distils; the other one does */
	struct rh_teacher_logits table; /* box 1: that it distils, of the last epoch. Box 2: its own of this one */
	int64_t *first;                 /* (samples) the number of each one's first target; NULL: a sample has one, of its own number */
	float *teacher, *mix;           /* (micro-batches, most targets, columns), (micro-batches, most targets, 2) of the step */
	float *own_logits;              /* as teacher */
	float **received;               /* box 2: of step s number s % on_the_way, row by row (most rows of a step, columns) */
	int64_t on_the_way;
	int64_t columns, targets; /* numbers of a target; the most targets of a micro-batch */
	int64_t top, outputs;     /* as fluidpipe_top_k; of the head */
	int64_t untaught;         /* targets without a teacher */
	/* Where logits stream. Box 1: those of this epoch. Box 2: (of the table) 1: its row went down as it is there; (most targets of a step)
	 * the numbers of the rows that the last finished step kept, and how many they are. */
	struct rh_teacher_logits next;
	char *is_sent;
	int32_t *step_ids;
	int64_t step_rows;
};

int64_t fluidpipe_logits_columns(const struct rh_session *session)
{
	int64_t top = session->config->fluidpipe_top_k;
	return top ? 2 * top : rh_model_outputs(session->model_config);
}

/* Steps whose logits may be on their way up at once: this one and those that box 2 knows of. Elsewhere 0. */
static int64_t steps_on_the_way(const struct rh_session *session)
{
	return session->box.number && rh_config_distils(session->config, 1) ? rh_fluidpipe_steps_ahead(session->config) + 1 : 0;
}

static int is_student(const struct rh_session *session)
{
	return rh_config_distils(session->config, session->box.number);
}

static int is_teacher(const struct rh_session *session)
{
	return rh_config_distils(session->config, !session->box.number);
}

/* Does this box keep a table? Box 2 for box 1, which needs it. */
static int keeps(const struct rh_session *session)
{
	return rh_config_distils(session->config, 0);
}

/* Does this box make its own logits: for the other one, or, of whole ones, to tell its two losses apart. */
static int makes(const struct rh_session *session)
{
	return is_teacher(session) || (is_student(session) && idle_steps_are_wanted(session) && !session->config->fluidpipe_top_k);
}

static int64_t step_rows(const struct rh_workload *work)
{
	return work->train_micro_batches * work->train.head_rows;
}

void fluidpipe_logits_plan(const struct rh_session *session, int64_t samples, int64_t targets, struct rh_workload *work)
{
	int64_t columns = fluidpipe_logits_columns(session), row = columns * (int64_t)sizeof(float), rows = step_rows(work),
	        top = session->config->fluidpipe_top_k;
	work->train.taught = is_student(session) ? columns : 0;
	work->train.choices = makes(session) && !top ? columns : 0;
	work->train.top = makes(session) ? top : 0;
	work->data_bytes += is_student(session) ? rows * (row + 2 * (int64_t)sizeof(float)) : 0;
	work->data_bytes += makes(session) ? rows * row : 0;
	work->data_bytes += steps_on_the_way(session) * rows * row;
	/* and once more while a checkpoint is written */
	int64_t kept = top ? targets : samples;
	work->data_bytes += keeps(session) ? 2 * rh_teacher_logits_bytes(kept, columns) : 0;
	work->data_bytes += keeps(session) && top ? samples * (int64_t)sizeof(int64_t) : 0;
	if (!fluidpipe_streams(session->config))
		return;
	work->data_bytes += fluidpipe_stream_bytes(session, work);
	work->data_bytes += session->box.number ? kept + rows * (int64_t)sizeof(int32_t) : rh_teacher_logits_bytes(kept, columns);
}

/* ---- checkpoints ---- */

#define FILE_NAME "teacher_logits.safetensors"

/* Writes nothing where the next step begins another epoch, whose table is a new one. */
static int print_table(void *context, struct rh_text *out)
{
	const struct training *run = context;
	const struct rh_teacher_logits *table = &run->logits->table;
	int is_between = run->state.step % run->data.steps_per_epoch == 0;
	return !table->count || (is_between && !run->session.box.number) ? 0 : rh_teacher_logits_print(table, out);
}

/* A checkpoint in the first epoch has none for box 1, and one between two epochs has none either. */
static int load_table(struct training *run, const char *checkpoint)
{
	int64_t epoch = run->data.steps_per_epoch, step = run->state.step;
	int is_wanted = run->session.box.number ? step > 0 : step > epoch && step % epoch;
	char *path = rh_path_join(checkpoint, FILE_NAME);
	int rc = path ? 0 : -ENOMEM;
	if (!rc && rh_file_exists(path))
		rc = rh_teacher_logits_load(path, &run->logits->table);
	else if (!rc && is_wanted)
		rh_note("%s: has no %s: samples whose logits it would hold are learnt from their labels alone", checkpoint, FILE_NAME);
	rh_free(path);
	return rc;
}

/* ---- a run ---- */

static int reserve_stream(const struct training *run, struct fluidpipe_logits *logits)
{
	if (!run->session.box.number) {
		int rc = rh_teacher_logits_create(logits->table.samples, logits->columns, &logits->next);
		logits->next.ids = logits->table.ids;
		return rc;
	}
	logits->is_sent = rh_alloc((size_t)logits->table.samples, 1);
	logits->step_ids = rh_alloc((size_t)step_rows(&run->work), sizeof *logits->step_ids);
	return logits->is_sent && logits->step_ids ? 0 : -ENOMEM;
}

static int reserve(struct training *run, struct fluidpipe_logits *logits)
{
	size_t rows = (size_t)step_rows(&run->work), columns = (size_t)logits->columns;
	int64_t samples = run->data.train.rows, targets = run->data.targets;
	int rc = 0;
	if (keeps(&run->session) && logits->top && (targets < 1 || targets > INT32_MAX))
		return rh_fail(-EINVAL, "fluidpipe_top_k: %" PRId64 " trained tokens, of 1 to 2^31 - 1 that boxes can number", targets);
	if (keeps(&run->session))
		rc = rh_teacher_logits_create(logits->top ? targets : samples, logits->columns, &logits->table);
	logits->table.ids = logits->top ? logits->outputs : 0;
	if (!rc && keeps(&run->session) && logits->top && !(logits->first = rh_alloc((size_t)samples, sizeof *logits->first)))
		rc = -ENOMEM;
	if (!rc && logits->learns) {
		logits->teacher = rh_alloc(rows * columns, sizeof *logits->teacher);
		logits->mix = rh_alloc(rows * 2, sizeof *logits->mix);
		rc = logits->teacher && logits->mix ? 0 : -ENOMEM;
	}
	if (!rc && makes(&run->session) && !(logits->own_logits = rh_alloc(rows * columns, sizeof *logits->own_logits)))
		rc = -ENOMEM;
	if (!rc && fluidpipe_streams(run->config))
		rc = reserve_stream(run, logits);
	if (!rc && logits->on_the_way && !(logits->received = rh_alloc((size_t)logits->on_the_way, sizeof *logits->received)))
		rc = -ENOMEM;
	for (int64_t i = 0; !rc && i < logits->on_the_way; i++)
		if (!(logits->received[i] = rh_alloc(rows * columns, sizeof *logits->received[i])))
			rc = -ENOMEM;
	return rc;
}

/* Box 1 knows how many targets each sample has, and box 2 learns it. */
static int share_targets(struct training *run, struct fluidpipe_logits *logits)
{
	struct rh_box *box = &run->session.box;
	int64_t samples = run->data.train.rows, all = 0, bytes = samples * (int64_t)sizeof(int32_t);
	int32_t *targets = rh_alloc((size_t)samples, sizeof *targets);
	if (!targets)
		return -ENOMEM;
	for (int64_t i = 0; !box->number && i < samples; i++)
		targets[i] = (int32_t)rh_dataset_row_targets(&run->data.train, i);
	int rc = box->number ? rh_box_take(box->link_below, box_tag_of(-1, BOX_LOGITS), targets, bytes)
	                     : rh_box_give(box, box->link_above, box_tag_of(-1, BOX_LOGITS), targets, bytes);
	for (int64_t i = 0; !rc && i < samples; all += targets[i++]) {
		logits->first[i] = all;
		if (targets[i] < 0)
			rc = rh_fail(-EPROTO, "box 1 speaks of %d targets of a row", (int)targets[i]);
	}
	rh_free(targets);
	if (!rc && all != logits->table.samples)
		rc = rh_fail(-EPROTO, "box 1 numbers %" PRId64 " targets, of %" PRId64 " that it spoke of", all, logits->table.samples);
	return rc;
}

int fluidpipe_logits_begin(struct training *run, const char *checkpoint)
{
	if (!is_student(&run->session) && !is_teacher(&run->session))
		return 0;
	struct fluidpipe_logits *logits = run->logits = rh_alloc(1, sizeof *logits);
	if (!logits)
		return -ENOMEM;
	*logits = (struct fluidpipe_logits){.learns = is_student(&run->session),
	                                    .teaches = is_teacher(&run->session),
	                                    .columns = fluidpipe_logits_columns(&run->session),
	                                    .top = run->config->fluidpipe_top_k,
	                                    .outputs = rh_model_outputs(run->session.model_config),
	                                    .on_the_way = steps_on_the_way(&run->session),
	                                    .targets = run->work.train.head_rows};
	int rc = reserve(run, logits);
	if (!rc && logits->first)
		rc = share_targets(run, logits);
	if (rc || !keeps(&run->session))
		return rc;
	for (int64_t m = 0; m < run->micro_batches; m++)
		run->batch[m].names_samples = 1;
	rh_checkpoint_writer_add(run->saving.writer, &(struct rh_checkpoint_extra){FILE_NAME, print_table, run});
	return checkpoint ? load_table(run, checkpoint) : 0;
}

void fluidpipe_logits_free(struct training *run)
{
	struct fluidpipe_logits *logits = run->logits;
	if (!logits)
		return;
	rh_teacher_logits_destroy(&logits->table);
	rh_free(logits->first);
	rh_teacher_logits_destroy(&logits->next);
	rh_free(logits->is_sent);
	rh_free(logits->step_ids);
	rh_free(logits->teacher);
	rh_free(logits->mix);
	rh_free(logits->own_logits);
	for (int64_t i = 0; logits->received && i < logits->on_the_way; i++)
		rh_free(logits->received[i]);
	rh_free(logits->received);
	rh_free(logits);
}

void fluidpipe_logits_report(const struct training *run)
{
	if (run->logits && run->logits->untaught)
		rh_note("%" PRId64 " %s were learnt from their labels alone: there were no logits of theirs to distil",
		        run->logits->untaught, run->logits->top ? "tokens" : "samples");
}

/* ---- a step ---- */

int64_t fluidpipe_logits_bytes(const struct rh_session *session, int64_t targets)
{
	return rh_config_distils(session->config, 1) ? targets * fluidpipe_logits_columns(session) * (int64_t)sizeof(float) : 0;
}

void *fluidpipe_logits_place(const struct training *run, int64_t step)
{
	return run->logits->received[step % run->logits->on_the_way];
}

/* A position among a micro-batch's targets: document and sample of the last target, and the number of the next. */
struct place {
	int64_t document, sample, next;
};
static const struct place first_place = {0, -1, 0};

/* The number of target i in tables; one that no table has where box 1 names no such sample. */
static int64_t number_of(const struct training *run, const struct rh_batch *batch, int64_t i, struct place *place)
{
	while (batch->head_row[i] >= batch->start[place->document + 1])
		place->document++;
	int64_t sample = batch->sample[place->document];
	if (!run->logits->first || sample < 0 || sample >= run->data.train.rows)
		return run->logits->first ? -1 : sample;
	if (sample != place->sample)
		*place = (struct place){place->document, sample, run->logits->first[sample]};
	return place->next++;
}

static int is_sound(const struct fluidpipe_logits *logits, const float *row)
{
	return logits->top ? rh_shares_are_sound(row, logits->top, logits->outputs) : rh_logits_are_finite(row, logits->columns);
}

/* Each target of a micro-batch: its teacher's logits, and how much both losses count, times `scale`. `came`: box 2: of the micro-batch's
 * first target. */
static void teach(struct training *run, int64_t m, const float *came, const double scale[2])
{
	struct fluidpipe_logits *logits = run->logits;
	const struct rh_config *config = run->config;
	const struct rh_batch *batch = &run->batch[m];
	int is_sum = config->fluidpipe_weighting == RH_WEIGHTING_SUM;
	float alpha = (float)(run->session.box.number ? config->fluidpipe_alpha2 : config->fluidpipe_alpha1);
	float *teacher = logits->teacher + m * logits->targets * logits->columns, *mix = logits->mix + 2 * m * logits->targets;
	struct place place = first_place;
	run->micro[m].teacher = teacher;
	run->micro[m].mix = mix;
	run->micro[m].shape.taught = logits->columns;
	for (int64_t i = 0; i < batch->trained; i++, teacher += logits->columns, mix += 2) {
		const float *row =
		        came ? came + i * logits->columns : rh_teacher_logits_get(&logits->table, number_of(run, batch, i, &place));
		int is_taught = row && is_sound(logits, row);
		mix[0] = (float)scale[0] * (is_taught && !is_sum ? alpha : 1);
		mix[1] = (float)scale[1] * (!is_taught ? 0 : is_sum ? 1 : 1 - alpha);
		logits->untaught += !is_taught;
		if (is_taught)
			memcpy(teacher, row, (size_t)logits->columns * sizeof *row);
	}
}

static void ask_for_own(struct training *run, int64_t m)
{
	struct fluidpipe_logits *logits = run->logits;
	if (!logits->own_logits)
		return;
	run->micro[m].scores = logits->own_logits + m * logits->targets * logits->columns;
	run->micro[m].shape.choices = logits->top ? 0 : logits->columns;
	run->micro[m].shape.top = logits->top;
}

void fluidpipe_logits_attach(struct training *run, int64_t step, int64_t count)
{
	static const double whole[2] = {1, 1};
	struct fluidpipe_logits *logits = run->logits;
	int is_upper = run->session.box.number > 0;
	const float *came = logits && logits->received ? logits->received[step % logits->on_the_way] : NULL;
	for (int64_t m = 0; logits && m < count; m++) {
		RH_ASSERT(logits->top || run->batch[m].trained == run->batch[m].documents);
		if (logits->learns && (is_upper || step >= run->data.steps_per_epoch)) /* in box 1's first epoch there is no teacher */
			teach(run, m, came, whole);
		if (came)
			came += run->batch[m].trained * logits->columns;
		ask_for_own(run, m);
	}
}

/* Row by row, as they go up. */
static int send_up(struct training *run, int64_t step, int64_t count)
{
	struct rh_box *box = &run->session.box;
	int64_t bytes = fluidpipe_logits_bytes(&run->session, run->flight[step % run->flights].trained), used = 0;
	char *message = rh_alloc((size_t)bytes, 1);
	if (!message)
		return -ENOMEM;
	for (int64_t m = 0; m < count; m++) {
		int64_t part = run->batch[m].trained * run->logits->columns * (int64_t)sizeof(float);
		memcpy(message + used, run->micro[m].scores, (size_t)part);
		used += part;
	}
	int rc = rh_box_give(box, box->link_above, box_tag_of(step, BOX_LOGITS), message, bytes);
	rh_free(message);
	return rc;
}

/* Not sent as it is now. */
static void note_row(struct fluidpipe_logits *logits, int32_t id)
{
	if (!logits->is_sent)
		return;
	logits->is_sent[id] = 0;
	logits->step_ids[logits->step_rows++] = id;
}

static int keep(struct training *run, int64_t count)
{
	struct fluidpipe_logits *logits = run->logits;
	logits->step_rows = 0;
	for (int64_t m = 0; m < count; m++) {
		struct place place = first_place;
		for (int64_t i = 0; i < run->batch[m].trained; i++) {
			const float *row = run->micro[m].scores + i * logits->columns;
			int64_t id = number_of(run, &run->batch[m], i, &place);
			int rc = rh_teacher_logits_put(&logits->table, id, row);
			if (rc < 0)
				return rc;
			note_row(logits, (int32_t)id);
		}
	}
	return 0;
}

int fluidpipe_logits_finish(struct training *run, int64_t step)
{
	int64_t count = run->flight[step % run->flights].count;
	if (!run->logits || !run->logits->teaches)
		return 0;
	return run->session.box.number ? keep(run, count) : send_up(run, step, count);
}

/* ---- an opportunistic step ---- */

int64_t fluidpipe_logits_target_bytes(const struct rh_session *session)
{
	return is_student(session) ? fluidpipe_logits_columns(session) * (int64_t)sizeof(float) : 0;
}

const float *fluidpipe_logits_received(const struct training *run, int64_t step, int64_t m)
{
	const float *came = run->logits && run->logits->received ? fluidpipe_logits_place(run, step) : NULL;
	for (int64_t before = 0; came && before < m; before++)
		came += run->batch[before].trained * run->logits->columns;
	return came;
}

int fluidpipe_logits_attach_idle(struct training *run, int64_t after, int64_t count, const float *came, const double scale[2])
{
	struct fluidpipe_logits *logits = run->logits;
	int is_taught = logits && logits->learns && (came || after > run->data.steps_per_epoch);
	for (int64_t m = 0; logits && m < count; m++) {
		if (is_taught)
			teach(run, m, came, scale);
		if (came)
			came += run->batch[m].trained * logits->columns;
		ask_for_own(run, m);
	}
	return is_taught;
}

int fluidpipe_logits_finish_idle(struct training *run, int64_t count)
{
	return run->logits && run->logits->teaches && run->session.box.number ? keep(run, count) : 0;
}

void fluidpipe_logits_losses(const struct training *run, int64_t m, int64_t i, double out[2])
{
	const struct rh_micro_batch *micro = &run->micro[m];
	const struct fluidpipe_logits *logits = run->logits;
	out[0] = (double)micro->loss[i];
	out[1] = 0;
	if (!logits || !logits->learns || !micro->mix || logits->top)
		return;
	const float *teacher = micro->mix[2 * i + 1] != 0 ? micro->teacher + i * logits->outputs : NULL;
	rh_distillation_losses(&run->session.model->distillation, logits->outputs, micro->scores + i * logits->outputs, teacher,
	                       micro->target[i], out);
}

/* ---- an epoch ---- */

/* Box 2: 1: the sample has logits that are to go down behind the epoch. */
static int is_left(const struct fluidpipe_logits *logits, int64_t id)
{
	return logits->table.is_known[id] && !(logits->is_sent && logits->is_sent[id]);
}

int64_t fluidpipe_logits_kept(const struct training *run)
{
	const struct fluidpipe_logits *logits = run->logits;
	int64_t left = 0;
	for (int64_t id = 0; logits && id < logits->table.samples; id++)
		left += is_left(logits, id);
	return left;
}

int64_t fluidpipe_logits_row_bytes(const struct rh_session *session)
{
	return (1 + fluidpipe_logits_columns(session)) * (int64_t)sizeof(float);
}

int64_t fluidpipe_logits_piece(const struct rh_session *session, int64_t rows)
{
	return rh_min(rows, rh_max(1, PIECE_BYTES / fluidpipe_logits_row_bytes(session)));
}

/* A message has the ids of some samples, then their logits: here number i of `samples`. One without logits that a
 * teacher may have has NaN, which no table takes. */
static void put_row(const struct rh_teacher_logits *table, int32_t id, int64_t i, int64_t samples, char *message)
{
	size_t bytes = (size_t)table->outputs * sizeof(float);
	const float *row = rh_teacher_logits_get(table, id);
	char *to = message + samples * (int64_t)sizeof id + i * (int64_t)bytes;
	memcpy(message + i * (int64_t)sizeof id, &id, sizeof id);
	if (row)
		memcpy(to, row, bytes);
	else
		memset(to, 0xff, bytes); /* NaN */
}

/* The next `samples` that have logits and are left, from *id on. */
static void pack(const struct fluidpipe_logits *logits, int64_t *id, int64_t samples, char *message)
{
	for (int64_t i = 0; i < samples; (*id)++)
		if (is_left(logits, *id))
			put_row(&logits->table, (int32_t)*id, i++, samples, message);
}

static int unpack(struct rh_teacher_logits *table, int64_t samples, const char *message)
{
	const float *row = (const float *)(const void *)message + samples;
	for (int64_t i = 0; i < samples; i++, row += table->outputs) {
		int32_t id;
		memcpy(&id, message + i * (int64_t)sizeof id, sizeof id);
		int rc = rh_teacher_logits_put(table, id, row);
		if (rc < 0)
			return rc;
	}
	return 0;
}

void fluidpipe_logits_pack_step(struct training *run, int64_t rows, char *message)
{
	struct fluidpipe_logits *logits = run->logits;
	RH_ASSERT(rows == logits->step_rows);
	for (int64_t i = 0; i < rows; i++) {
		put_row(&logits->table, logits->step_ids[i], i, rows, message);
		logits->is_sent[logits->step_ids[i]] = 1;
	}
}

int fluidpipe_logits_collect(struct training *run, int64_t rows, const char *message)
{
	return unpack(&run->logits->next, rows, message);
}

int fluidpipe_logits_send(struct training *run, int64_t epoch)
{
	struct rh_box *box = &run->session.box;
	struct rh_teacher_logits *table = &run->logits->table;
	int64_t left = fluidpipe_logits_kept(run), id = 0, each = fluidpipe_logits_row_bytes(&run->session);
	char *message = rh_alloc((size_t)rh_max(1, fluidpipe_logits_piece(&run->session, left) * each), 1);
	int rc = message ? 0 : -ENOMEM;
	for (int64_t n; !rc && left; left -= n) {
		n = fluidpipe_logits_piece(&run->session, left);
		pack(run->logits, &id, n, message);
		rc = rh_box_give(box, box->link_below, box_tag_of(epoch, BOX_LOGITS), message, n * each);
	}
	rh_free(message);
	rh_teacher_logits_clear(table);
	if (run->logits->is_sent)
		memset(run->logits->is_sent, 0, (size_t)table->samples);
	return rc;
}

int fluidpipe_logits_receive(struct training *run, int64_t epoch, int64_t samples)
{
	struct rh_link *link = run->session.box.link_above;
	struct fluidpipe_logits *logits = run->logits;
	if (!logits || !logits->learns || samples < 0 || samples > logits->table.samples)
		return rh_fail(-EPROTO, "box 2 speaks of the logits of %" PRId64 " samples", samples);
	int64_t each = fluidpipe_logits_row_bytes(&run->session);
	char *message = rh_alloc((size_t)rh_max(1, fluidpipe_logits_piece(&run->session, samples) * each), 1);
	int rc = message ? 0 : -ENOMEM;
	struct rh_teacher_logits last = logits->table;
	rh_teacher_logits_clear(&last);
	if (fluidpipe_streams(run->config)) {
		logits->table = logits->next;
		logits->next = last;
	} else {
		logits->table = last;
	}
	for (int64_t n; !rc && samples; samples -= n) {
		n = fluidpipe_logits_piece(&run->session, samples);
		rc = rh_box_take(link, box_tag_of(epoch, BOX_LOGITS), message, n * each);
		if (!rc)
			rc = unpack(&logits->table, n, message);
	}
	rh_free(message);
	return rc;
}
