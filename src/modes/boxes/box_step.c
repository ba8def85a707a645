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
static void tell_evaluations(const struct rh_mode_run *run, const struct rh_workload *work, struct run_facts *facts)
{
	const struct rh_choices *choices = &run->data->choices;
	facts->eval_every = run->course->eval_every;
	facts->eval_rows = run->data->held_out.rows;
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

static int hear_evaluations(struct rh_mode_run *run, const struct run_facts *facts, struct rh_workload *work)
{
	struct rh_choices *choices = &run->data->choices;
	if (facts->choices < 0 || facts->choices > RH_CHOICES_MAX)
		return rh_fail(-EPROTO, "box 1 speaks of evaluations with more than %d choices", RH_CHOICES_MAX);
	run->course->eval_every = facts->eval_every;
	run->data->held_out.rows = facts->eval_rows; /* without the rows themselves */
	run->data->held_out.objective = rh_session_objective(run->session);
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

int box_share_run(struct rh_mode_run *run)
{
	struct rh_workload *work = run->work;
	struct run_facts facts = {.steps = run->data->steps,
	                          .steps_per_epoch = run->data->steps_per_epoch,
	                          .rows = run->data->train.rows,
	                          .tokens = run->data->train.tokens,
	                          .targets = run->data->targets,
	                          .warmup = run->course->lr.warmup_steps,
	                          .save_every = run->course->save_every,
	                          .micro_tokens = work->train.tokens,
	                          .micro_documents = work->train.documents,
	                          .micro_longest = work->train.longest,
	                          .micro_head_rows = work->train.head_rows,
	                          .micro_batches = work->train_micro_batches};
	tell_evaluations(run, work, &facts);
	int rc = rh_box_pass_up(&run->session->box, box_tag_of(-1, BOX_RUN), &facts, sizeof facts);
	if (rc || !run->session->box.number)
		return rc;
	run->data->steps = facts.steps;
	run->data->steps_per_epoch = facts.steps_per_epoch;
	run->data->train.rows = facts.rows;
	run->data->train.tokens = facts.tokens;
	run->data->targets = facts.targets;
	run->course->lr.warmup_steps = facts.warmup;
	run->course->save_every = facts.save_every;
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

int box_share_least(struct rh_session *session, int64_t own, int64_t *least)
{
	struct rh_box *box = &session->box;
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

int box_share_stretch(struct rh_mode_run *run, int64_t first, int64_t *steps, int64_t *count)
{
	int64_t both[2] = {*steps, *count};
	int rc = rh_box_pass_up(&run->session->box, box_tag_of(first, BOX_STRETCH), both, sizeof both);
	*steps = both[0];
	*count = both[1];
	if (!rc && (*steps < 1 || *steps > run->flights->count || *count < 1 || *count > run->flights->micro_batches))
		rc = rh_fail(-EPROTO, "box 1 speaks of %lld steps of %lld micro-batches, of at most %lld and %lld", (long long)*steps,
		             (long long)*count, (long long)run->flights->count, (long long)run->flights->micro_batches);
	return rc;
}

int box_share_tally(struct rh_session *session, void *tally, int64_t bytes)
{
	return rh_box_pass_down(&session->box, box_tag_of(-1, BOX_EVAL_RESULT), tally, bytes);
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

static int share_losses(struct rh_mode_run *run, int64_t step, struct results *results)
{
	const struct rh_flight *flight = rh_flight_of(run->flights, step);
	int64_t first = rh_flight_first(run->flights, step), balances = flight->count * (int64_t)sizeof(double);
	int64_t at = (int64_t)sizeof *results + balances, bytes = at + flight->trained * (int64_t)sizeof(float);
	char *message = rh_alloc((size_t)bytes, 1);
	if (!message)
		return -ENOMEM;
	memcpy(message, results, sizeof *results);
	memcpy(message + sizeof *results, run->flights->load_balancing_loss + first, (size_t)balances);
	for (int64_t m = first; m < first + flight->count; at += run->flights->targets[m++] * (int64_t)sizeof(float))
		memcpy(message + at, run->flights->loss[m], (size_t)run->flights->targets[m] * sizeof(float));
	int rc = rh_box_pass_down(&run->session->box, box_tag_of(step, BOX_RESULTS), message, bytes);
	memcpy(results, message, sizeof *results);
	memcpy(run->flights->load_balancing_loss + first, message + sizeof *results, (size_t)balances);
	at = (int64_t)sizeof *results + balances;
	for (int64_t m = first; !rc && m < first + flight->count; at += run->flights->targets[m++] * (int64_t)sizeof(float))
		memcpy(run->flights->loss[m], message + at, (size_t)run->flights->targets[m] * sizeof(float));
	rh_free(message);
	return rc;
}

/* Boxes that update themselves are several models to their updaters, and each knows the norm of its own gradients. */
static int add_squares(struct rh_mode_run *run, int64_t step, double *sum)
{
	double own = rh_flight_of(run->flights, step)->norm;
	if (rh_session_mode(run->session)->shares_norm)
		return rh_updater_add_squares(run->session->updater, sum);
	*sum += own * own;
	return 0;
}

static int share_squares(struct rh_mode_run *run, int64_t step, struct results *out)
{
	struct rh_box *box = &run->session->box;
	struct squares squares = {.saved = run->saved};
	int rc = rh_box_take(box->link_below, box_tag_of(step, BOX_SQUARES), &squares, sizeof squares);
	squares.requests.stop |= run->stop_requested;
	squares.requests.save |= run->save_requested;
	squares.saved = rh_min(squares.saved, run->saved);
	if (!rc)
		rc = add_squares(run, step, &squares.sum);
	if (!rc)
		rc = rh_box_give(box, box->link_above, box_tag_of(step, BOX_SQUARES), &squares, sizeof squares);
	/* on the last box that is all boxes' sum; the others get the last one's results */
	*out = (struct results){.norm = sqrt(squares.sum), .requests = squares.requests, .saved = squares.saved};
	return rc;
}

/* A norm of zero or none says nothing of shares. */
static void note_norm(struct rh_mode_run *run, int64_t step, double norm)
{
	double *own = &rh_flight_of(run->flights, step)->norm;
	if (norm > 0 && isfinite(norm) && *own > 0)
		run->state->norm_share = *own / norm;
	*own = norm;
}

int box_share_results(struct rh_mode_run *run, int64_t first, int64_t steps)
{
	struct results results[RH_RUN_STRETCH];
	int rc = 0;
	RH_ASSERT(steps <= RH_RUN_STRETCH);
	rc = box_table_exchange(run->session, box_tag_of(first, BOX_TABLE));
	for (int64_t i = 0; !rc && i < steps; i++)
		rc = share_squares(run, first + i, &results[i]);
	for (int64_t i = 0; !rc && i < steps; i++) {
		rc = share_losses(run, first + i, &results[i]);
		if (!rc && rh_session_mode(run->session)->shares_norm)
			rh_updater_give_norm(run->session->updater, results[i].norm);
		else if (!rc)
			note_norm(run, first + i, results[i].norm);
	}
	if (rc)
		return rc;
	run->stop_requested = results[steps - 1].requests.stop != 0;
	run->save_requested = results[steps - 1].requests.save != 0;
	run->saved_by_all = results[steps - 1].saved;
	return box_table_settle(run->session);
}
