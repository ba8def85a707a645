/* Steps whose loss or gradient is not finite. With clipping such a step is skipped whole, because no block is updated before the norm is
 * known. It is counted, and after max_bad_steps of them in a row the run stops, with weights that are still good. Without clipping, or
 * with an optimizer that works while the next step runs, blocks may have been updated before the fault is found: the run returns to its
 * newest checkpoint, trains up to that step again and leaves it out, all in the same process (rh_train). Boxes that
 * end each step together do the same, as each of them knows all losses and norms. Boxes that update themselves return without closing
 * their links (returning.c). */
#include "train/training.h"

#include "checkpoint/checkpoint.h"
#include "core/alloc.h"
#include "core/log.h"

#include <inttypes.h>
#include <math.h>

/* "model.layers.3.self_attn.q_proj.weight" of the step just finished; "" where no gradient was bad. */
static const char *bad_tensor(const struct training *run)
{
	int block = -1, tensor = -1;
	if (!rh_updater_spoilt(run->session.updater, &block, &tensor) || tensor < 0)
		return "";
	return run->session.model->block[block].tensor[tensor].name;
}

int trouble_may_return(const struct training *run)
{
	int opens_links_again = !rh_box_is_linked(&run->session.box) || rh_transport_traits(run->config->link_transport).may_reopen;
	return run->trouble.bad && opens_links_again && !run->mode->is_apart;
}

static const char *clipping_would_skip(const struct training *run)
{
	return run->config->max_grad_norm > 0 ? "" : "; with max_grad_norm above 0 such a step is skipped";
}

static int stop(struct training *run, int64_t step, double loss, double norm, const char *tensor)
{
	char line[512];
	snprintf(line, sizeof line, "step %" PRId64 ": the loss is %g and the gradient norm %g%s%s", step + 1, loss, norm,
	         *tensor ? ", first in " : "", tensor);
	run->trouble.bad = step + 1;
	if (trouble_may_return(run)) /* trouble_return says how the run goes on */
		return rh_fail(-EDOM, "%s", line);
	return rh_fail(-EDOM,
	               "%s; training cannot go on (lower learning_rate, or check the data%s); checkpoints written before are good: go on "
	               "from the last with resume_from_checkpoint: true",
	               line, clipping_would_skip(run));
}

int trouble_judge(struct training *run, int64_t step, double loss, double norm)
{
	const char *tensor = bad_tensor(run);
	if (isfinite(loss) && isfinite(norm)) {
		run->trouble.bad_in_a_row = 0;
		return 0;
	}
	int skipped = run->config->max_grad_norm > 0 && !run->config->optimizer_staleness &&
	              run->session.plan.executor.schedule->update != RH_UPDATE_LOCAL && !isfinite(norm);
	if (!skipped)
		return stop(run, step, loss, norm, tensor);
	run->trouble.bad_in_a_row++;
	run->state.skipped_steps++;
	rh_note("warning: step %" PRId64 " is skipped: the gradient of %s is not finite (loss %g); %" PRId64 " skipped in a row, %" PRId64
	        " in all",
	        step + 1, tensor, loss, run->trouble.bad_in_a_row, run->state.skipped_steps);
	return 1;
}

int trouble_leaves_out(const struct training *run, int64_t step)
{
	for (size_t i = 0; i < run->trouble.left_outs; i++)
		if (run->trouble.left_out[i] == step)
			return 1;
	return 0;
}

int trouble_leave_out(struct training *run, int64_t step)
{
	struct trouble *trouble = &run->trouble;
	int rc = rh_grow(&trouble->left_out, &trouble->left_out_room, trouble->left_outs + 1, sizeof *trouble->left_out);
	if (!rc)
		trouble->left_out[trouble->left_outs++] = step;
	return rc;
}

void trouble_begin(struct training *run)
{
	int64_t *bad = &run->trouble.bad_in_a_row;
	while (trouble_leaves_out(run, run->state.step - 1 - *bad))
		++*bad;
	const struct rh_model_config *model = run->session.model_config;
	/* losses that have no such measure */
	int is_other = rh_config_distils(run->config, run->session.box.number) || run->config->preference.answers;
	run->trouble.divergence.most_loss =
	        is_other ? 0 : divergence_most_loss(rh_model_outputs(model), run->config->router_aux_loss_coef, model->experts);
}

int trouble_return(struct training *run, int rc, const char *began_with, char **checkpoint)
{
	char line[512];
	snprintf(line, sizeof line, "%s", rh_error(rc));
	rc = rh_checkpoint_newest(run->config->output_dir, run->trouble.bad, checkpoint);
	if (!rc && !*checkpoint && began_with && !(*checkpoint = rh_strdup(began_with)))
		rc = -ENOMEM;
	if (!rc && !*checkpoint)
		rc = rh_fail(-EDOM,
		             "%s; there is no checkpoint to return to (lower learning_rate, check the data, or save sooner: save_steps%s)",
		             line, clipping_would_skip(run));
	if (!rc)
		rc = trouble_leave_out(run, run->trouble.bad - 1);
	if (!rc)
		rh_note("warning: %s; the run returns to %s, and will leave that step out", line, *checkpoint);
	return rc;
}

int trouble_is_too_much(const struct training *run)
{
	return run->trouble.bad_in_a_row >= run->config->max_bad_steps;
}

int trouble_stop(const struct training *run)
{
	return rh_fail(-EDOM,
	               "stopped after step %" PRId64 ", whose checkpoint is written: the gradients of %" PRId64
	               " steps in a row were not finite (max_bad_steps); its weights are those before them: lower learning_rate, or check "
	               "the data",
	               run->state.step, run->trouble.bad_in_a_row);
}

int trouble_end(const struct training *run)
{
	if (!run->state.step || run->state.skipped_steps < run->state.step)
		return 0;
	return rh_fail(-EDOM,
	               "nothing was learnt: all %" PRId64
	               " steps were skipped, as their gradients were not finite, and no result is written; "
	               "lower learning_rate, or check the data and the model",
	               run->state.step);
}

static void watch_divergence(struct training *run, double loss, double norm)
{
	const struct rh_model_config *model = run->session.model_config;
	int frozen = run->config->fluidpipe_freeze && !run->session.box.number; /* such a box has no gradient */
	int signs = divergence_watch(&run->trouble.divergence, loss, frozen ? 1 : norm);
	if (signs & DIVERGENCE_LOSS)
		rh_note("warning: step %" PRId64 ": the loss is %.4f, worse than by guessing among %" PRId64
		        " (%.4f): the run diverges; lower "
		        "learning_rate, or check the data",
		        run->state.step, loss, rh_model_outputs(model), log((double)rh_model_outputs(model)));
	if (signs & DIVERGENCE_GRADIENT)
		rh_note("warning: step %" PRId64
		        ": the gradient is zero at a loss of %.4f: nothing is learnt from here on; lower learning_rate, "
		        "and begin again from an earlier checkpoint",
		        run->state.step, loss);
}

void trouble_watch(struct training *run, double loss, double norm)
{
	watch_divergence(run, loss, norm);
	enum { FIRST = 20, QUIET = 50 }; /* steps that the mean needs; between two warnings */
	static const double SHARE = 0.05, FAR = 8, LEAST = 0.2;
	struct trouble *trouble = &run->trouble;
	double apart = fabs(loss - trouble->usual_loss), most = fmax(FAR * trouble->usual_distance, LEAST * trouble->usual_loss);
	if (trouble->steps >= FIRST && loss - trouble->usual_loss > most && run->state.step - trouble->warned_step >= QUIET) {
		rh_note("warning: step %" PRId64 ": the loss is %.4f, far above the %.4f (apart by %.4f) of the steps before it",
		        run->state.step, loss, trouble->usual_loss, trouble->usual_distance);
		trouble->warned_step = run->state.step;
	}
	double share = trouble->steps < FIRST ? 1 / (double)(trouble->steps + 1) : SHARE;
	if (trouble->steps)
		trouble->usual_distance += share * (fmin(apart, most > 0 ? most : apart) - trouble->usual_distance);
	trouble->usual_loss += share * (loss - trouble->usual_loss);
	trouble->steps++;
	if (trouble->steps == 1)
		trouble->warned_step = -QUIET;
}
