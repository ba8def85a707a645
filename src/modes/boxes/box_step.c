#include "modes/boxes/box_step.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "modes/boxes/box_table.h"

#include <math.h>
#include <string.h>

uint64_t box_tag_of(int64_t step, enum box_message message)
{
	return (uint64_t)(step + 1) * BOX_STEP_MESSAGES + (uint64_t)message;
}

/* A message, all in 64 bits, whatever a box's compiler makes of structs. More than 20 members: each a number that a box must learn. */
struct run_facts {
	int64_t steps, steps_per_epoch, rows, tokens, targets, warmup, save_every;
	int64_t micro_tokens, micro_documents, micro_longest, micro_head_rows, micro_batches, train_steps;
	/* evaluations; rows 0: there are none */
	int64_t eval_every, eval_rows, eval_tokens, eval_documents, eval_longest, eval_head_rows, eval_micro_batches;
	int64_t eval_scores, choices, choice[RH_CHOICES_MAX], choice_documents[RH_CHOICES_MAX];
};

/* What box 0 tells the others about evaluations. */
static void tell_evaluations(const struct training *run, const struct rh_workload *work, struct run_facts *facts)
{
	const struct rh_choices *choices = &run->data.choices;
	facts->eval_every = run->eval_every;
	facts->eval_rows = run->data.held_out.rows;
	facts->eval_tokens = work->infer.tokens;
	facts->eval_documents = work->infer.documents;
	facts->eval_longest = work->infer.longest;
	facts->eval_head_rows = work->infer.head_rows;
	facts->eval_micro_batches = work->infer_micro_batches;
	facts->eval_scores = work->infer.choices;
	facts->choices = choices->count;
	for (int c = 0; c < choices->count; c++) {
		facts->choice[c] = choices->token[c];
		facts->choice_documents[c] = choices->documents[c];
	}
}

static int hear_evaluations(struct training *run, const struct run_facts *facts, struct rh_workload *work)
{
	struct rh_choices *choices = &run->data.choices;
	if (facts->choices < 0 || facts->choices > RH_CHOICES_MAX)
		return rh_fail(-EPROTO, "box 1 speaks of evaluations with more than %d choices", RH_CHOICES_MAX);
	run->eval_every = facts->eval_every;
	run->data.held_out.rows = facts->eval_rows; /* without the rows themselves */
	run->data.held_out.objective = rh_session_objective(&run->session);
	work->infer = (struct rh_micro_shape){.tokens = facts->eval_tokens,
	                                      .documents = facts->eval_documents,
	                                      .longest = facts->eval_longest,
	                                      .head_rows = facts->eval_head_rows,
	                                      .choices = facts->eval_scores};
	work->infer_micro_batches = facts->eval_micro_batches;
	choices->count = (int)facts->choices;
	for (int c = 0; c < choices->count; c++) {
		choices->token[c] = (int32_t)facts->choice[c];
		choices->documents[c] = facts->choice_documents[c];
	}
	return 0;
}

int box_share_run(struct training *run, struct rh_workload *work)
{
	struct run_facts facts = {.steps = run->data.steps,
	                          .steps_per_epoch = run->data.steps_per_epoch,
	                          .rows = run->data.train.rows,
	                          .tokens = run->data.train.tokens,
	                          .targets = run->data.targets,
	                          .warmup = run->warmup,
	                          .save_every = run->save_every,
	                          .micro_tokens = work->train.tokens,
	                          .micro_documents = work->train.documents,
	                          .micro_longest = work->train.longest,
	                          .micro_head_rows = work->train.head_rows,
	                          .micro_batches = work->train_micro_batches};
	tell_evaluations(run, work, &facts);
	int rc = rh_box_pass_up(&run->session.box, box_tag_of(-1, BOX_RUN), &facts, sizeof facts);
	if (rc || !run->session.box.number)
		return rc;
	run->data.steps = facts.steps;
	run->data.steps_per_epoch = facts.steps_per_epoch;
	run->data.train.rows = facts.rows;
	run->data.train.tokens = facts.tokens;
	run->data.targets = facts.targets;
	run->warmup = facts.warmup;
	run->save_every = facts.save_every;
	*work = (struct rh_workload){.train = {.tokens = facts.micro_tokens,
	                                       .documents = facts.micro_documents,
	                                       .longest = facts.micro_longest,
	                                       .head_rows = facts.micro_head_rows},
	                             .train_micro_batches = facts.micro_batches};
	return hear_evaluations(run, &facts, work);
}

struct least {
	int64_t least, differ;
};

int box_share_least(struct training *run, int64_t own, int64_t *least)
{
	struct rh_box *box = &run->session.box;
	struct least all = {.least = own};
	int rc = rh_box_take(box->link_below, box_tag_of(-1, BOX_LEAST), &all, sizeof all);
	all.differ |= all.least != own;
	all.least = rh_min(all.least, own);
	if (!rc)
		rc = rh_box_give(box, box->link_above, box_tag_of(-1, BOX_LEAST), &all, sizeof all);
	if (!rc)
		rc = rh_box_pass_down(box, box_tag_of(-1, BOX_LEAST), &all, sizeof all);
	*least = all.least;
	return rc ? rc : !all.differ;
}

int box_share_stretch(struct training *run, int64_t first, int64_t *steps, int64_t *count)
{
	int64_t both[2] = {*steps, *count};
	int rc = rh_box_pass_up(&run->session.box, box_tag_of(first, BOX_STRETCH), both, sizeof both);
	*steps = both[0];
	*count = both[1];
	if (!rc && (*steps < 1 || *steps > run->flights || *count < 1 || *count > run->micro_batches))
		rc = rh_fail(-EPROTO, "box 1 speaks of %lld steps of %lld micro-batches, of at most %lld and %lld", (long long)*steps,
		             (long long)*count, (long long)run->flights, (long long)run->micro_batches);
	return rc;
}

/* A micro-batch's arrays of 32-bit integers, one after the other. */
enum { ARRAYS = 6 };
struct array {
	int32_t *item;
	int64_t items;
};

static struct array array_of(const struct rh_batch *batch, int which)
{
	const struct array all[ARRAYS] = {
	        {batch->ids, batch->tokens},          {batch->position, batch->tokens},
	        {batch->start, batch->documents + 1}, {batch->head_row, batch->trained},
	        {batch->target, batch->trained},      {batch->sample, batch->names_samples ? batch->documents : 0}};
	return all[which];
}

int64_t box_batches_bytes(const struct rh_batch *batch, int64_t count)
{
	int64_t bytes = 0;
	for (int64_t m = 0; m < count; m++)
		for (int i = 0; i < ARRAYS; i++)
			bytes += array_of(&batch[m], i).items * (int64_t)sizeof(int32_t);
	return bytes;
}

void box_batches_pack(const struct rh_batch *batch, int64_t count, char *message, int is_out)
{
	for (int64_t m = 0; m < count; m++)
		for (int i = 0; i < ARRAYS; i++) {
			struct array array = array_of(&batch[m], i);
			size_t bytes = (size_t)array.items * sizeof *array.item;
			if (is_out)
				memcpy(message, array.item, bytes);
			else
				memcpy(array.item, message, bytes);
			message += bytes;
		}
}

/* The numbers of each micro-batch: tokens, documents, longest, trained. */
enum { SHAPE = 4 };

int box_data_reserve(struct training *run)
{
	run->box_data = rh_alloc((size_t)run->flights, sizeof *run->box_data);
	for (int64_t i = 0; run->box_data && i < run->flights; i++)
		if (!(run->box_data[i].shapes = rh_alloc((size_t)box_shapes_items(run), sizeof(int64_t))))
			return -ENOMEM;
	return run->box_data ? 0 : -ENOMEM;
}

void box_data_free(struct training *run)
{
	for (int64_t i = 0; run->box_data && i < run->flights; i++) {
		rh_free(run->box_data[i].shapes);
		rh_free(run->box_data[i].batches);
	}
	rh_free(run->box_data);
}

int64_t box_shapes_items(const struct training *run)
{
	return 1 + SHAPE * run->micro_batches;
}

int64_t box_shapes_tokens(const int64_t *shapes, int64_t m)
{
	return shapes[1 + SHAPE * m];
}

int64_t box_shapes_targets(const int64_t *shapes)
{
	int64_t targets = 0;
	for (int64_t m = 0; m < shapes[0]; m++)
		targets += shapes[1 + SHAPE * m + 3];
	return targets;
}

int64_t box_shapes_bytes(const int64_t *shapes, int names_samples)
{
	int64_t bytes = 0;
	for (int64_t m = 0; m < shapes[0]; m++) {
		const int64_t *shape = shapes + 1 + SHAPE * m;
		const struct rh_batch batch = {.tokens = shape[0],
		                               .documents = shape[1],
		                               .longest = shape[2],
		                               .trained = shape[3],
		                               .names_samples = names_samples};
		bytes += box_batches_bytes(&batch, 1);
	}
	return bytes;
}

int box_shapes_set(struct rh_batch *batches, int64_t most, const int64_t *shapes)
{
	if (shapes[0] < 0 || shapes[0] > most)
		return rh_fail(-EPROTO, "box 1 speaks of %lld micro-batches at once, of at most %lld", (long long)shapes[0],
		               (long long)most);
	for (int64_t m = 0; m < shapes[0]; m++) {
		struct rh_batch *batch = &batches[m];
		const int64_t *shape = shapes + 1 + SHAPE * m;
		batch->tokens = shape[0];
		batch->documents = shape[1];
		batch->longest = shape[2];
		batch->trained = shape[3];
		if (!rh_batch_has_room(batch))
			return rh_fail(-EPROTO, "box 1 speaks of a micro-batch that is larger than it said");
	}
	return 0;
}

void box_shapes_of(const struct rh_batch *batches, int64_t count, int64_t *shapes)
{
	shapes[0] = count;
	for (int64_t m = 0; m < count; m++) {
		const struct rh_batch *batch = &batches[m];
		const int64_t shape[SHAPE] = {batch->tokens, batch->documents, batch->longest, batch->trained};
		memcpy(shapes + 1 + SHAPE * m, shape, sizeof shape);
	}
}

static int share_shapes(struct training *run, int64_t step, int64_t count, int64_t *shapes)
{
	int64_t items = box_shapes_items(run);
	int is_first = !run->session.box.number;
	if (is_first)
		box_shapes_of(run->batch, count, shapes);
	int rc = rh_box_pass_up(&run->session.box, box_tag_of(step, BOX_SHAPES), shapes, items * (int64_t)sizeof *shapes);
	return rc || is_first ? rc : box_shapes_set(run->batch, run->micro_batches, shapes);
}

/* Box 1's numbers are those of a micro-batch of this model. */
static int check_batch(const struct rh_session *session, const struct rh_batch *batch, int64_t m)
{
	const struct rh_model_config *model = session->model_config;
	if (rh_batch_is_sound(batch, model->vocab_size, rh_model_outputs(model)))
		return 0;
	return rh_fail(-EPROTO, "micro-batch %lld from box 1 is not one of this model's", (long long)m);
}

int box_share_rows(struct rh_session *session, int64_t row, struct rh_batch *batch, int64_t count)
{
	struct rh_box *box = &session->box;
	int64_t *shapes = rh_alloc((size_t)(1 + SHAPE * count), sizeof *shapes), bytes = 0;
	char *message = NULL;
	int is_first = !box->number, rc = shapes ? 0 : -ENOMEM;
	if (!rc && is_first)
		box_shapes_of(batch, count, shapes);
	if (!rc)
		rc = rh_box_pass_up(box, box_tag_of(row, BOX_EVAL_SHAPES), shapes, (1 + SHAPE * count) * (int64_t)sizeof *shapes);
	if (!rc && !is_first)
		rc = box_shapes_set(batch, count, shapes);
	if (rc)
		goto out;
	bytes = box_batches_bytes(batch, count);
	message = rh_alloc((size_t)rh_max(bytes, 1), 1);
	rc = message ? 0 : -ENOMEM;
	if (!rc && is_first)
		box_batches_pack(batch, count, message, 1);
	if (!rc)
		rc = rh_box_pass_up(box, box_tag_of(row, BOX_EVAL_BATCHES), message, bytes);
	if (!rc && !is_first)
		box_batches_pack(batch, count, message, 0);
	for (int64_t m = 0; !rc && !is_first && m < count; m++)
		rc = check_batch(session, &batch[m], m);
out:
	rh_free(message);
	rh_free(shapes);
	return rc;
}

int box_share_tally(struct rh_session *session, void *tally, int64_t bytes)
{
	return rh_box_pass_down(&session->box, box_tag_of(-1, BOX_EVAL_RESULT), tally, bytes);
}

int box_share_data(struct training *run, int64_t step, int64_t count)
{
	struct box_data *data = &run->box_data[step % run->flights];
	int is_first = !run->session.box.number;
	int rc = share_shapes(run, step, count, data->shapes);
	if (rc)
		return rc;
	int64_t bytes = box_batches_bytes(run->batch, data->shapes[0]);
	rh_free(data->batches);
	data->batches = rh_alloc((size_t)rh_max(bytes, 1), 1);
	if (!data->batches)
		return -ENOMEM;
	if (is_first)
		box_batches_pack(run->batch, count, data->batches, 1);
	rc = rh_box_pass_up(&run->session.box, box_tag_of(step, BOX_BATCHES), data->batches, bytes);
	if (is_first) { /* which makes them anew when the step begins */
		rh_free(data->batches);
		data->batches = NULL;
	}
	return rc;
}

int64_t box_take_data(struct training *run, int64_t step)
{
	const struct box_data *data = &run->box_data[step % run->flights];
	int64_t count = data->shapes[0];
	int rc = box_shapes_set(run->batch, run->micro_batches, data->shapes);
	if (rc)
		return rc;
	box_batches_pack(run->batch, count, data->batches, 0);
	for (int64_t m = 0; m < count; m++) {
		rc = check_batch(&run->session, &run->batch[m], m);
		if (rc)
			return rc;
	}
	train_use_batches(run, step, count);
	return count;
}

/* What boxes were asked for. */
struct requests {
	int64_t stop, save;
};

/* From the lowest box to the highest: each adds its own, tensor by tensor, to what those below have. */
struct squares {
	double sum;
	struct requests requests;
	int64_t saved; /* the newest checkpoint that all of them have */
};

/* Then down again, with the micro-batches' load balancing losses and the tokens' losses behind it. */
struct results {
	double norm;
	struct requests requests;
	int64_t saved;
};

static int share_losses(struct training *run, int64_t step, struct results *results)
{
	const struct train_step *flight = &run->flight[step % run->flights];
	int64_t first = step % run->flights * run->micro_batches, balances = flight->count * (int64_t)sizeof(double);
	int64_t at = (int64_t)sizeof *results + balances, bytes = at + flight->trained * (int64_t)sizeof(float);
	char *message = rh_alloc((size_t)bytes, 1);
	if (!message)
		return -ENOMEM;
	memcpy(message, results, sizeof *results);
	memcpy(message + sizeof *results, run->load_balancing_loss + first, (size_t)balances);
	for (int64_t m = first; m < first + flight->count; at += run->targets[m++] * (int64_t)sizeof(float))
		memcpy(message + at, run->loss[m], (size_t)run->targets[m] * sizeof(float));
	int rc = rh_box_pass_down(&run->session.box, box_tag_of(step, BOX_RESULTS), message, bytes);
	memcpy(results, message, sizeof *results);
	memcpy(run->load_balancing_loss + first, message + sizeof *results, (size_t)balances);
	at = (int64_t)sizeof *results + balances;
	for (int64_t m = first; !rc && m < first + flight->count; at += run->targets[m++] * (int64_t)sizeof(float))
		memcpy(run->loss[m], message + at, (size_t)run->targets[m] * sizeof(float));
	rh_free(message);
	return rc;
}

/* Boxes that update themselves are several models to their updaters, and each knows the norm of its own gradients. */
static int add_squares(struct training *run, int64_t step, double *sum)
{
	double own = run->flight[step % run->flights].norm;
	if (!training_is_local(run))
		return rh_updater_add_squares(run->session.updater, sum);
	*sum += own * own;
	return 0;
}

static int share_squares(struct training *run, int64_t step, struct results *out)
{
	struct rh_box *box = &run->session.box;
	struct squares squares = {.saved = run->saving.newest};
	int rc = rh_box_take(box->link_below, box_tag_of(step, BOX_SQUARES), &squares, sizeof squares);
	squares.requests.stop |= run->stop_requested;
	squares.requests.save |= run->save_requested;
	squares.saved = rh_min(squares.saved, run->saving.newest);
	if (!rc)
		rc = add_squares(run, step, &squares.sum);
	if (!rc)
		rc = rh_box_give(box, box->link_above, box_tag_of(step, BOX_SQUARES), &squares, sizeof squares);
	/* on the last box that is all boxes' sum; the others get the last one's results */
	*out = (struct results){.norm = sqrt(squares.sum), .requests = squares.requests, .saved = squares.saved};
	return rc;
}

/* A norm of zero or none says nothing of shares. */
static void note_norm(struct training *run, int64_t step, double norm)
{
	double *own = &run->flight[step % run->flights].norm;
	if (norm > 0 && isfinite(norm) && *own > 0)
		run->state.norm_share = *own / norm;
	*own = norm;
}

int box_share_results(struct training *run, int64_t first, int64_t steps)
{
	struct results results[RH_RUN_STRETCH];
	int rc = 0;
	RH_ASSERT(steps <= RH_RUN_STRETCH);
	rc = box_table_exchange(&run->session, box_tag_of(first, BOX_TABLE));
	for (int64_t i = 0; !rc && i < steps; i++)
		rc = share_squares(run, first + i, &results[i]);
	for (int64_t i = 0; !rc && i < steps; i++) {
		rc = share_losses(run, first + i, &results[i]);
		if (!rc && training_is_local(run))
			note_norm(run, first + i, results[i].norm);
		else if (!rc)
			rh_updater_give_norm(run->session.updater, results[i].norm);
	}
	if (rc)
		return rc;
	run->stop_requested = results[steps - 1].requests.stop != 0;
	run->save_requested = results[steps - 1].requests.save != 0;
	run->saving.common = results[steps - 1].saved;
	return box_table_settle(&run->session);
}
