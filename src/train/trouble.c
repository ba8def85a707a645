/* Numbers in trouble. With clipping, a step whose gradient is not finite is skipped whole, as no block is updated before the norm is known;
 * it is counted, and after max_bad_steps of them in a row the run stops on weights that are good. Without clipping, or with an optimizer
 * that works beside the next step, other blocks may have been updated by then: the run stops, and goes on from its last checkpoint. Boxes
 * that update themselves return to one by themselves (box_return.c). */
#include "train/training.h"

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

static int stop(const struct training *run, int64_t step, double loss, double norm, const char *tensor)
{
	return rh_fail(-EDOM,
	               "step %" PRId64
	               ": the loss is %g and the gradient norm %g%s%s; training cannot go on (lower learning_rate, or check "
	               "the data%s); checkpoints written before are good: go on from the last with resume_from_checkpoint: true",
	               step + 1, loss, norm, *tensor ? ", first in " : "", tensor,
	               run->config->max_grad_norm > 0 ? "" : "; with max_grad_norm above 0 such a step is skipped");
}

int trouble_judge(struct training *run, int64_t step, double loss, double norm)
{
	const char *tensor = bad_tensor(run);
	if (isfinite(loss) && isfinite(norm)) {
		run->trouble.bad_in_a_row = 0;
		return 0;
	}
	int skipped = run->config->max_grad_norm > 0 && !run->config->optimizer_staleness &&
	              run->session.plan.schedule->update != RH_UPDATE_LOCAL && !isfinite(norm);
	if (!skipped)
		return stop(run, step, loss, norm, tensor);
	run->trouble.bad_in_a_row++;
	run->state.skipped_steps++;
	rh_note("warning: step %" PRId64 " is skipped: the gradient of %s is not finite (loss %g); %" PRId64 " skipped in a row, %" PRId64
	        " in all",
	        step + 1, tensor, loss, run->trouble.bad_in_a_row, run->state.skipped_steps);
	return 1;
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

void trouble_watch(struct training *run, double loss)
{
	enum { FIRST = 20, QUIET = 50 }; /* steps that the mean needs; between two warnings */
	static const double SHARE = 0.05, FAR = 8, LEAST = 0.2;
	struct trouble *trouble = &run->trouble;
	double apart = fabs(loss - trouble->usual_loss), most = fmax(FAR * trouble->apart, LEAST * trouble->usual_loss);
	if (trouble->steps >= FIRST && loss - trouble->usual_loss > most && run->state.step - trouble->told >= QUIET) {
		rh_note("warning: step %" PRId64 ": the loss is %.4f, far above the %.4f (apart by %.4f) of the steps before it",
		        run->state.step, loss, trouble->usual_loss, trouble->apart);
		trouble->told = run->state.step;
	}
	double share = trouble->steps < FIRST ? 1 / (double)(trouble->steps + 1) : SHARE;
	if (trouble->steps)
		trouble->apart += share * (fmin(apart, most > 0 ? most : apart) - trouble->apart);
	trouble->usual_loss += share * (loss - trouble->usual_loss);
	trouble->steps++;
	if (trouble->steps == 1)
		trouble->told = -QUIET;
}
