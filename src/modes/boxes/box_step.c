#include "modes/boxes/box_step.h"

#include "core/alloc.h"
#include "core/minmax.h"

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
	run->data->held_out.preference = run->session->config->preference;
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
	run->data->train.preference = run->session->config->preference;
	run->data->targets = facts.targets;
	run->course->lr.warmup_steps = facts.warmup;
	run->course->save_every = facts.save_every;
	*work = (struct rh_workload){.train = {.tokens = facts.micro_tokens,
	                                       .documents = facts.micro_documents,
	                                       .longest = facts.micro_longest,
	                                       .head_rows = facts.micro_head_rows,
	                                       .judged = run->session->config->preference.answers ? facts.micro_documents : 0},
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

int box_share_tally(struct rh_session *session, void *tally, int64_t bytes)
{
	return rh_box_pass_down(&session->box, box_tag_of(-1, BOX_EVAL_RESULT), tally, bytes);
}

int64_t box_losses_bytes(const struct rh_mode_run *run, int64_t step)
{
	const struct rh_flight *flight = rh_flight_of(run->flights, step);
	return flight->count * (int64_t)sizeof(double) + flight->trained * (int64_t)sizeof(float);
}

int64_t box_results_bytes(const struct rh_mode_run *run, int64_t step)
{
	return (int64_t)sizeof(struct box_results) + box_losses_bytes(run, step);
}

/* One array, into the message or out of it. Returns the message's next byte. */
static char *pack(char *at, void *array, int64_t bytes, enum box_pack way)
{
	memcpy(way == BOX_PACK_OUT ? at : array, way == BOX_PACK_OUT ? array : at, (size_t)bytes);
	return at + bytes;
}

void box_losses_pack(const struct rh_mode_run *run, int64_t step, char *message, enum box_pack way)
{
	int64_t first = rh_flight_first(run->flights, step), count = rh_flight_of(run->flights, step)->count;
	char *at = pack(message, run->flights->load_balancing_loss + first, count * (int64_t)sizeof(double), way);
	for (int64_t m = first; m < first + count; m++)
		at = pack(at, run->flights->loss[m], run->flights->targets[m] * (int64_t)sizeof(float), way);
}

void box_results_pack(const struct rh_mode_run *run, int64_t step, struct box_results *results, char *message, enum box_pack way)
{
	box_losses_pack(run, step, pack(message, results, sizeof *results, way), way);
}

void box_squares_ask(const struct rh_mode_run *run, struct box_squares *squares)
{
	squares->requests.stop |= run->stop_requested;
	squares->requests.save |= run->save_requested;
	squares->requests.rest |= run->rest_requested;
	squares->saved = rh_min(squares->saved, run->saved);
}

struct box_results box_results_of(const struct box_squares *squares)
{
	return (struct box_results){.norm = sqrt(squares->sum), .requests = squares->requests, .saved = squares->saved};
}

void box_results_heed(struct rh_mode_run *run, const struct box_results *results)
{
	run->stop_requested = results->requests.stop != 0;
	run->save_requested = results->requests.save != 0;
	run->saved_by_all = results->saved;
}
